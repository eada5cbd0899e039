"""Stability margins of a loop: gain, phase, modulus and disk margins at its inputs."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.compute.checks import number
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.eigenmodes import zeros
from lqrlab.control.analysis.system_norms import beside, boundary, hinf_norm, stable, tops
from lqrlab.control.state_space import response_at

_FINER, _TURN = 30, 0.5  # rounds of bisection of a grid of frequencies, until it has no larger turn [rad]
_TOUCH = 1e-8  # a logarithm of |L|, or an angle [rad], so small is zero
_PEAKS, _TURNS = 8, 16  # local extremes that are searched between the frequencies of a grid
_EQUAL = 1e-11  # frequencies so near to each other, relative, are one: rounding makes no peaks of them


@dataclasses.dataclass(frozen=True)
class Disk:
    """Symmetric disk margin: tolerance to simultaneous gain *and* phase errors.

    The loop stays stable while its gain is multiplied by any (1 + δ/2)/(1 − δ/2), complex |δ| < α.

    Attributes:
        alpha: α. An LQR loop in continuous time has at least 2/3.
        frequency: where the loop becomes unstable first [rad/s]; infinite if at no finite frequency.

    Source: P. Seiler, A. Packard, P. Gahinet, An introduction to disk margins, IEEE Control Syst. Mag. 40 (2020).
    """

    alpha: float
    frequency: float

    @property
    def gain(self) -> tuple[float, float]:
        """Factors that the gain may be multiplied by: all between these two keep the loop stable."""
        up = (2 + self.alpha) / (2 - self.alpha) if self.alpha < 2 else np.inf
        return (2 - self.alpha) / (2 + self.alpha), up

    @property
    def phase(self) -> float:
        """The loop may be turned by any angle between minus and plus this [rad]."""
        return 2 * float(np.arctan(self.alpha / 2))


@dataclasses.dataclass(frozen=True)
class Margins:
    """Stability margins at one input, the other loops closed.

    Attributes:
        gain_down, gain_up: factors that the loop gain may be multiplied by, 0 ≤ down < 1 < up.
        phase: margin [rad]: the least angle that L(jω) can be turned by to pass through −1; infinite where |L| < 1 at
            all frequencies, for then none does. That |L| touches 1 counts as reaching it, as far as 1e-8 can tell.
        modulus_margin: least distance of the loop gain from −1, min |1 + L(jω)|; at least 1 for a continuous LQR.
        frequency: where that is [rad/s]; infinite if at no finite frequency.
        disk: symmetric disk margin, for gain and phase at once.
        delay_margin: the least further dead time of the input [s] that brings the loop to the limit of stability: the
            phase from −1 over the frequency, least over the frequencies with |L| = 1; infinite where there are none.
    """

    gain_down: float
    gain_up: float
    phase: float
    modulus_margin: float
    frequency: float
    disk: Disk
    delay_margin: float


def margins(
    A: ArrayLike, B: ArrayLike, K: ArrayLike, dt: float | None = None, *, delay: ArrayLike = 0.0
) -> list[Margins]:
    """Margins of the loop u = −Kx at each input, the others closed; one problem, on the host.

    Args:
        A: ``[n, n]``, of ẋ = Ax + Bu, or of x[t+1] = Ax[t] + Bu[t] if ``dt`` [s] is given.
        B, K: ``[n, m]``, ``[m, n]``.
        delay: dead time [s], exact in frequency: one number is that of the input that is looked at, L(jω) exp(−jω
            delay), the others without; one for each input, in continuous time, are there all at once. The loop is then
            stable if det(I + K (jω − A)⁻¹B exp(−jω delay)) turns around zero as often as without them; margins are
            searched on a grid of frequencies, refined.

    Raises:
        ValueError: an unstable loop; a delay beyond its margin; one for each input in discrete time.

    >>> round(control.margins([[0.0]], [[1.0]], [[2.0]])[0].phase * 180 / np.pi, 6)  # of 2 / s
    90.0
    """
    A, B, K = matrix_checks.host_matrices("margins", A=(A, "nn"), B=(B, "nm"), K=(K, "mn"))
    dt = matrix_checks.host_sample_time("margins", dt)
    several = isinstance(delay, list | tuple) or np.ndim(delay) > 0
    delays = [number("delay", d, "a dead time ≥ 0 s", low=0) for d in (list(delay) if several else [delay])]  # type: ignore[arg-type]
    if several and len(delays) != B.shape[1]:
        raise ValueError(f"delay: expected one, or one for each of {B.shape[1]} inputs, but found {len(delays)}")
    with np.errstate(over="ignore", invalid="ignore"):  # a loop beyond all numbers is not stable
        closed = A - B @ K
    if not stable(closed, dt):
        raise ValueError("K: the loop A − BK is not stable, so it has no margins")
    if len(delays) > 1 and any(delays) and dt is not None:
        raise ValueError(
            "delay: expected one number in discrete time; for a dead time of each input, sample the plant "
            "with control.delayed, and leave out delay"
        )
    loop, one = _LoopGains(A, B, K, dt), np.eye(B.shape[1])
    if len(delays) > 1 and any(delays):
        return [loop.margins(i, np.array(delays)) for i in range(len(one))]
    for i in range(len(one)):
        late, at = _delay_margin(*loop.unity(i, 0 * one[i], loop.grid(i, 0 * one[i]))) if any(delays) else (np.inf, 0)
        if delays[0] >= late:
            raise ValueError(
                f"delay: expected less than the delay margin of input {i}, {late:.4g} s, at which the loop begins "
                f"to oscillate at {at:.4g} rad/s, but found {delays[0]:g} s"
            )
    return [loop.margins(i, delays[0] * one[i]) for i in range(len(one))]


def _delay_margin(w: np.ndarray, unity: np.ndarray) -> tuple[float, float]:
    """The least dead time [s] that turns a loop gain of size one at ω into −1, and where; at ω = 0 none does."""
    w, unity = w[w > 0], unity[w > 0]
    if not len(w):
        return np.inf, np.inf
    late = np.mod(np.angle(-unity), 2 * np.pi) / w
    i = int(np.argmin(late))
    return float(late[i]), float(w[i])


@dataclasses.dataclass(frozen=True)
class _LoopGains:
    """The loop u = −Kx, whose inputs may come late: margins, searched in frequency ω as of :func:`boundary`."""

    A: np.ndarray
    B: np.ndarray
    K: np.ndarray
    dt: float | None

    def inner(self, i: int) -> np.ndarray:
        """The plant that input i drives, the others closed."""
        return self.A - np.delete(self.B, i, 1) @ np.delete(self.K, i, 0)

    def late(self, delay: float | np.ndarray, w: np.ndarray) -> np.ndarray:
        """exp(−jω delay)."""
        return np.exp(-1j * self.rad(np.where(np.isinf(w) & (self.dt is None), 0.0, w)) * delay)

    def rad(self, w: np.ndarray) -> np.ndarray:
        """In rad/s."""
        return w if self.dt is None else 2 * np.arctan(w) / self.dt

    def joint(self, w: np.ndarray, delays: Float[np.ndarray, " m"]) -> Complex[np.ndarray, "f m m"]:
        """K (zI − A)⁻¹B exp(−jω delay)."""
        T = response_at(self.A, self.B, self.K, boundary(w, self.dt)) * self.late(delays, w[:, None, None])
        return T * (np.isfinite(w) | (self.dt is not None))[:, None, None]

    def gain(self, i: int, delays: Float[np.ndarray, " m"], w: np.ndarray) -> Complex[np.ndarray, " f"]:
        """The loop gain at input i, the others closed; not finite at a pole."""
        others = np.arange(len(delays)) != i
        if not delays[others].any():
            L = response_at(self.inner(i), self.B[:, [i]], self.K[[i]], boundary(w, self.dt))[:, 0, 0]
            return np.where(np.isinf(w) & (self.dt is None), 0.0, L * self.late(delays[i], w))
        T = self.joint(w, delays)
        closed = np.eye(len(delays) - 1) + T[:, others][:, :, others]
        return T[:, i, i] - (T[:, [i]][:, :, others] @ np.linalg.solve(closed, T[:, others][:, :, [i]]))[:, 0, 0]

    def grid(self, i: int, delays: Float[np.ndarray, " m"]) -> Float[np.ndarray, " f"]:
        """Frequencies fine enough beside each pole and zero of the loop gain at input i, and for dead times."""
        a, several = self.inner(i), bool(np.delete(delays, i).any())
        poles = [np.linalg.eigvals(x) for x in (self.A - self.B @ self.K, a, *([self.A] if several else []))]
        w = beside(np.concatenate([*poles, zeros(a, self.B[:, [i]], self.K[[i]])]), self.dt)
        w = w[np.isfinite(self.gain(i, delays, w))]
        top, _ = tops(lambda w: np.abs(self.gain(i, delays, w)), w, np.abs(self.gain(i, delays, w)), _PEAKS)
        for delay in delays[delays > 0]:  # turns, from the first on, and where the gain is large
            turns = self.rad(top[np.isfinite(top)])[:, None] + np.arange(-10, 10, 0.05) / delay
            turns = np.concatenate([np.arange(0.05, 200, 0.05) / delay, turns.ravel()])
            turns = turns[turns > 0]
            w = np.append(w, turns if self.dt is None else np.tan(turns[turns < np.pi / self.dt] * self.dt / 2))
        w = np.sort(w)
        w = w[np.append(True, w[1:] > w[:-1] * (1 + _EQUAL)) & np.isfinite(self.gain(i, delays, w))]
        return self.stable_on(w, delays) if several else w

    def stable_on(self, grid: np.ndarray, delays: Float[np.ndarray, " m"]) -> np.ndarray:
        """The grid, finer, so that no turn of the determinant can hide in it; refuses delays that destabilise."""
        one = np.eye(len(delays))

        def turns(w: np.ndarray) -> np.ndarray:
            return np.angle(np.linalg.det(one + self.joint(w, delays)) / np.linalg.det(one + self.joint(w, 0 * delays)))

        inside = grid[(grid > 0) & (grid < np.inf)]
        for _ in range(_FINER):
            steps = np.abs(np.angle(np.exp(1j * np.diff(turns(inside)))))
            coarse = np.flatnonzero(steps > _TURN)
            if not len(coarse):
                break
            inside = np.sort(np.concatenate([inside, np.sqrt(inside[coarse] * inside[coarse + 1])]))
        if abs(np.unwrap(turns(inside))[-1]) > 1:  # it is one at both ends
            raise ValueError(f"delay: expected dead times at which the loop is stable, but found {delays.tolist()} s")
        return np.union1d(grid, inside)

    def unity(
        self, i: int, delays: Float[np.ndarray, " m"], grid: np.ndarray
    ) -> tuple[Float[np.ndarray, " k"], Complex[np.ndarray, " k"]]:
        """Frequencies [rad/s] at which the loop gain at input i has size one, and the loop gain there."""
        w = _crossings(lambda w: np.log(np.maximum(np.abs(self.gain(i, delays, w)), 1e-300)), grid)
        return self.rad(w), self.gain(i, delays, w)

    def margins(self, i: int, delays: Float[np.ndarray, " m"]) -> Margins:
        """Margins at input i."""
        gain, grid = partial(self.gain, i, delays), self.grid(i, delays)
        w, unity = self.unity(i, delays, grid)
        real = gain(_crossings(lambda w: np.angle(-gain(w)), grid, np.pi)).real
        # beyond these sizes a zero or a pole of L lies on the boundary itself
        factors = -1 / real[(np.abs(real) > 1e-8) & (np.abs(real) < 1e8)]
        if delays.any():
            nearest = self.least(lambda L: np.abs(1 + L), gain, grid)
            disk = self.least(lambda L: 2 * np.abs(1 + L) / np.maximum(np.abs(1 - L), 1e-300), gain, grid)
        else:  # 1/(1 + L) and the half of (1 − L)/(1 + L): their peaks are H∞ norms
            closed, b, k = self.A - self.B @ self.K, self.B[:, [i]], self.K[[i]]
            (peak, at), (half, worst) = (hinf_norm(closed, b, -k, np.full((1, 1), d), self.dt) for d in (1.0, 0.5))
            nearest, disk = (1 / peak, at), (1 / half, worst)
        down, up = factors[factors < 1].max(initial=0.0), factors[factors > 1].min(initial=np.inf)
        phase = np.abs(np.angle(-unity)).min(initial=np.inf)
        return Margins(float(down), float(up), float(phase), *nearest, Disk(*disk), _delay_margin(w, unity)[0])

    def least(self, distance: Callable, gain: Callable, grid: np.ndarray) -> tuple[float, float]:
        """The least distance of the loop gain, and where [rad/s]."""
        at, height = tops(lambda w: -distance(gain(w)), grid, -distance(gain(grid)), _PEAKS)
        best = int(np.argmax(height))
        return -float(height[best]), float(self.rad(at[[best]])[0])


def _crossings(f: Callable[[np.ndarray], np.ndarray], grid: np.ndarray, turn: float = np.inf) -> np.ndarray:
    """Frequencies at which f crosses zero, or touches it as far as 1e-8 can tell; a jump by a ``turn`` is none.

    Where f nears zero and turns, between neighbours of the grid, it is searched whether it crosses it twice.
    """
    values = f(grid)
    above, below = (np.where(sign * values >= 0, -sign * values, -np.inf) for sign in (1, -1))
    more = tops(lambda w: -f(w), grid, above, _TURNS)[0], tops(f, grid, below, _TURNS)[0]
    w = np.union1d(grid, np.concatenate(more))
    values, found = f(w), []
    small = np.flatnonzero(np.abs(values) < _TOUCH)
    for run in np.split(small, np.flatnonzero(np.diff(small) > 1) + 1):
        # what only comes near to zero at the ends of the grid does not touch it
        if len(run) and (run[0] > 0 or w[0] == 0) and (run[-1] < len(w) - 1 or np.isinf(w[-1])):
            inside = (w[run] > 0) & (w[run] < np.inf)
            found.append(w[run[np.lexsort((np.abs(values[run]), inside))[0]]])
    for i in np.flatnonzero((values[:-1] * values[1:] < 0) & (np.abs(np.diff(values)) < turn)):
        found.append(_zero(f, w[i], w[i + 1], values[i]))
    return np.array(found, float)


def _zero(f: Callable[[np.ndarray], np.ndarray], low: float, high: float, at_pole: float) -> float:
    """The zero of f between two frequencies, of which one may be zero or infinite, or a pole."""
    unit = low or high

    def of_angle(x: float) -> float:
        return float(np.nan_to_num(f(unit * np.tan(np.array([x]))), nan=at_pole)[0])

    ends = float(np.arctan(low / unit)), float(np.arctan(high / unit))
    if of_angle(ends[0]) * of_angle(ends[1]) < 0:
        angle = scipy.optimize.brentq(of_angle, *ends, xtol=1e-300, rtol=1e-15)
    else:  # one of them is zero but for rounding
        angle = min(ends, key=lambda x: abs(of_angle(x)))
    return unit * np.tan(angle)
