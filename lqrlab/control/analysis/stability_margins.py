"""Stability margins of a loop: gain, phase, modulus and disk margins at its inputs."""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex, Float

from lqrlab.compute.checks import number
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.system_norms import hinf_norm, stable
from lqrlab.control.state_space import response_at

_FINER, _TURN = 30, 0.5  # rounds of bisection of a grid of frequencies, until it has no larger turn [rad]
_TOUCH = 1e-8  # a peak of |L| so near to one has its eigenvalues off the axis by the root of it, within 1e-4


@dataclasses.dataclass(frozen=True)
class Disk:
    """A symmetric disk margin: by how much gain *and* phase may be off at once.

    The loop stays stable while its gain is multiplied by any (1 + δ/2)/(1 − δ/2), complex |δ| < α.

    Attributes:
        alpha: α. An LQR loop in continuous time has at least 2/3.
        frequency: where the loop becomes unstable first [rad/s]; infinite if at no finite frequency.

    Source: P. Seiler, A. Packard and P. Gahinet, An introduction to disk margins, IEEE Control Systems Magazine
    40(5) (2020), with their skew σ = 0.
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
    """Distance of a loop from instability at one input, the other inputs as designed.

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
        ValueError: the loop is not stable, so it has no margins; a delay at or beyond its delay margin; one for each
            input in discrete time.

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
            "delay: expected one number in discrete time; a plant sampled with a dead time for each input is another "
            "one, which control.delayed makes, and its margins need no delay"
        )
    ports = [(B[:, [i]], K[[i]]) for i in range(B.shape[1])]
    inner = [A - np.delete(B, i, 1) @ np.delete(K, i, 0) for i in range(len(ports))]
    crossings = [_crossings(a, b, k, dt) for a, (b, k) in zip(inner, ports)]
    if any(delays):
        loop, known = _Late(A, B, K, dt), np.concatenate([w for _, (w, _) in crossings])
        grid = _grid([A, closed, *inner], dt, known, np.array([d for d in delays if d]))
        if len(delays) > 1:
            grid = loop.stable_on(grid, np.array(delays))
            return [loop.margins(i, np.array(delays), grid) for i in range(len(ports))]
        for i, (_, crossed) in enumerate(crossings):
            late, at = _delay_margin(*crossed)
            if delays[0] >= late:
                raise ValueError(
                    f"delay: expected less than the delay margin of input {i}, {late:.4g} s, at which the loop begins "
                    f"to oscillate at {at:.4g} rad/s, but found {delays[0]:g} s"
                )
        alone = delays[0] * np.eye(len(ports))
        return [loop.margins(i, alone[i], grid, crossed) for i, (_, (crossed, _)) in enumerate(crossings)]
    at_inputs = []
    for (b, k), (gains, (w, unity)) in zip(ports, crossings):
        # 1/(1 + L) and the half of (1 − L)/(1 + L): their peaks are H∞ norms
        peak, frequency = hinf_norm(closed, b, -k, np.ones((1, 1)), dt)
        half, worst = hinf_norm(closed, b, -k, np.full((1, 1), 0.5), dt)
        late, _ = _delay_margin(w, unity)
        at_inputs.append(_gathered(gains, unity, (1 / peak, frequency), Disk(1 / half, worst), late))
    return at_inputs


def _gathered(
    factors: np.ndarray, unity: np.ndarray, nearest: tuple[float, float], disk: Disk, delay_margin: float
) -> Margins:
    """Margins from what brings the loop gain to −1: factors, values of size one, the distance and where it is."""
    return Margins(
        gain_down=float(factors[factors < 1].max(initial=0.0)),
        gain_up=float(factors[factors > 1].min(initial=np.inf)),
        phase=float(np.abs(np.angle(-unity)).min(initial=np.inf)),
        modulus_margin=nearest[0],
        frequency=nearest[1],
        disk=disk,
        delay_margin=delay_margin,
    )


def _delay_margin(w: np.ndarray, unity: np.ndarray) -> tuple[float, float]:
    """The least dead time [s] that turns a loop gain of size one at ω into −1, and where; at ω = 0 none does."""
    w, unity = w[w > 0], unity[w > 0]
    if not len(w):
        return np.inf, np.inf
    late = np.mod(np.angle(-unity), 2 * np.pi) / w
    i = int(np.argmin(late))
    return float(late[i]), float(w[i])


@dataclasses.dataclass(frozen=True)
class _Late:
    """The loop u = −Kx, whose inputs may come late: its margins, searched in frequency."""

    A: np.ndarray
    B: np.ndarray
    K: np.ndarray
    dt: float | None

    def joint(self, w: np.ndarray, delays: Float[np.ndarray, " m"]) -> Complex[np.ndarray, "f m m"]:
        """K (zI − A)⁻¹B exp(−jω delay)."""
        z = 1j * w if self.dt is None else np.exp(1j * w * self.dt)
        return response_at(self.A, self.B, self.K, z) * np.exp(-1j * w[:, None, None] * delays)

    def gain(self, i: int, delays: Float[np.ndarray, " m"], w: np.ndarray) -> Complex[np.ndarray, " f"]:
        """The loop gain at input i, the others closed."""
        T, others = self.joint(w, delays), np.arange(len(delays)) != i
        closed = np.eye(len(delays) - 1) + T[:, others][:, :, others]
        return T[:, i, i] - (T[:, [i]][:, :, others] @ np.linalg.solve(closed, T[:, others][:, :, [i]]))[:, 0, 0]

    def stable_on(self, grid: np.ndarray, delays: Float[np.ndarray, " m"]) -> np.ndarray:
        """The grid, finer, so that no turn of the determinant can hide in it; refuses delays that destabilise."""
        one = np.eye(len(delays))

        def turns(w: np.ndarray) -> np.ndarray:
            return np.angle(np.linalg.det(one + self.joint(w, delays)) / np.linalg.det(one + self.joint(w, 0 * delays)))

        for _ in range(_FINER):
            steps = np.abs(np.angle(np.exp(1j * np.diff(turns(grid)))))
            coarse = np.flatnonzero(steps > _TURN)
            if not len(coarse):
                break
            grid = np.sort(np.concatenate([grid, np.sqrt(grid[coarse] * grid[coarse + 1])]))
        if abs(np.unwrap(turns(grid))[-1]) > 1:  # it is one at both ends
            raise ValueError(f"delay: expected dead times at which the loop is stable, but found {delays.tolist()} s")
        return grid

    def margins(
        self, i: int, delays: Float[np.ndarray, " m"], w: np.ndarray, crossed: np.ndarray | None = None
    ) -> Margins:
        """Margins at input i, searched on a grid of frequencies; ``crossed``: those of a loop gain of size one."""
        gain = partial(self.gain, i, delays)
        crossed = _zeros(lambda w: np.log(np.abs(gain(w))), w) if crossed is None else crossed
        unity, real = gain(crossed), gain(_zeros(lambda w: gain(w).imag, w, gain(w[:-1]).real < 0))

        def least(distance: Callable[[np.ndarray], np.ndarray]) -> tuple[float, float]:
            at = w
            for _ in range(6):
                i = int(np.argmin(distance(gain(at))))
                best = float(at[i])
                at = np.linspace(at[max(i - 1, 0)], at[min(i + 1, len(at) - 1)], 41)
            return float(distance(gain(np.array([best])))[0]), best

        alpha, worst = least(lambda L: 2 * np.abs(1 + L) / np.maximum(np.abs(1 - L), 1e-300))
        factors = 1 / np.abs(real[real.real < 0])
        late, _ = _delay_margin(crossed, unity)
        return _gathered(factors, unity, least(lambda L: np.abs(1 + L)), Disk(alpha, worst), late)


def _grid(systems: list[np.ndarray], dt: float | None, crossed: np.ndarray, delays: np.ndarray) -> np.ndarray:
    """Frequencies [rad/s] fine enough for dead times, for known crossings, and beside each mode of the systems."""
    modes = np.concatenate([np.linalg.eigvals(a) for a in systems]).astype(complex)
    if dt is not None:
        modes = np.log(modes + 1e-300) / dt
    sizes = np.abs(np.concatenate([modes, crossed, 1 / delays]))
    sizes = sizes[sizes > 0]
    top = 1e3 * sizes.max() if dt is None else np.pi / dt
    low = 1e-4 * min(sizes.min(), top)
    beside = np.geomspace(1e-2, 30, 60)
    near = modes.imag[:, None] + np.abs(modes.real)[:, None] * np.concatenate([-beside, [0.0], beside])
    late = (np.arange(0.05, 200, 0.05) / delay for delay in delays)
    w = np.unique(np.concatenate([np.geomspace(low, top, 4000), near.ravel(), *late]))
    return w[(w >= low) & (w <= top)]


def _zeros(f: Callable[[np.ndarray], np.ndarray], w: np.ndarray, which: np.ndarray | bool = True) -> np.ndarray:
    """Zeros of f between those neighbours of a grid at which its signs differ, and ``which`` is true."""

    def one(at: float) -> float:
        return float(f(np.array([at]))[0])

    values, found = f(w), []
    for i in np.flatnonzero((values[:-1] * values[1:] <= 0) & which):
        low, high = w[i], w[i + 1]
        if one(low) * one(high) < 0:
            found.append(scipy.optimize.brentq(one, low, high, xtol=1e-300, rtol=1e-13))
        else:  # one of them is zero but for rounding
            found.append(min(low, high, key=lambda at: abs(one(at))))
    return np.array(found, float)


def _crossings(
    A: np.ndarray, b: np.ndarray, k: np.ndarray, dt: float | None
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Factors g > 0 of the gain that bring L = k (zI − A)⁻¹b through −1; frequencies at which |L| = 1, and L there.

    On the boundary of stability L is real where L = L~, and of size one where L L~ = 1, with L~(z) = L(1/z), or
    L(−s) in continuous time. Both are generalised eigenvalue problems, which give all crossings, also that at
    z = −1, where a grid of frequencies might miss one: L − L~ and L L~ − 1 are the Schur complements of

        [A − zI      0          b]            [A − zI   b k          0]
        [0           A~(z)      b~]    and    [0        A~(z)       b~]
        [k           −k         0]            [−k       0            1]
    """
    discrete = dt is not None
    size = (np.linalg.norm(b) / (np.linalg.norm(k) or 1.0)) ** 0.5 or 1.0
    b, k = b / size, k * size  # L is the same in any units of input and states
    d = matrix_checks.even_units(A, b, k)
    A, b, k = A * d / d[:, None], b / d[:, None], k * d
    n = len(A)
    one, zero, column, row = np.eye(n), np.zeros((n, n)), np.zeros((n, 1)), np.zeros((1, n))
    mirrored = ([zero, one, column], [zero, A, b]) if discrete else ([zero, -A, -b], [zero, one, column])
    right = np.block([[one, zero, column], mirrored[1], [row, row, np.zeros((1, 1))]])

    def on_boundary(*rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues of the matrix with these first and last rows, with the ends of the axis; loop gains there."""
        try:
            z = scipy.linalg.eigvals(np.block([rows[0], mirrored[0], rows[1]]), right)
        except np.linalg.LinAlgError as error:
            why = "expected numbers nearer to one: where the loop crosses the boundary of stability cannot be computed"
            raise ValueError(f"A, B, K: {why} ({error}); choose other units") from error
        z = z[np.isfinite(z)]
        off, size = (np.abs(z) - 1, 1.0) if discrete else (z.real, np.maximum(np.abs(z), 1e-9))
        z = z[np.abs(off) < 1e-4 * size]  # a double one is off by the root of the rounding
        z = z / np.abs(z) if discrete else 1j * z.imag
        z = np.concatenate([z, [1.0, -1.0] if discrete else [0.0]])
        return z, _loop_gains(A, b, k, z)

    _, L = on_boundary([A, zero, b], [k, -k, np.zeros((1, 1))])
    # beyond these sizes a zero or a pole of L lies on the boundary itself
    moderate = (np.abs(L) > 1e-8) & (np.abs(L) < 1e8)
    L = L[moderate & (np.abs(L.imag) < 1e-3 * np.abs(L)) & (L.real < 0)]
    z, unity = on_boundary([A, b @ k, column], [-k, row, np.ones((1, 1))])
    # that |L| is one at an eigenvalue is known but for rounding, at the ends of the axis it is not
    close = np.full(len(unity), 1e-3)
    close[len(unity) - (2 if discrete else 1) :] = _TOUCH
    touching = np.abs(np.abs(unity) - 1) < close
    w = z.imag if dt is None else np.angle(z) / dt
    return -1 / L.real, (w[touching], unity[touching])


def _loop_gains(A: np.ndarray, b: np.ndarray, k: np.ndarray, z: np.ndarray) -> np.ndarray:
    """k (zI − A)⁻¹b at each z; where A has one of them as its eigenvalue, close to it."""
    with np.errstate(all="ignore"):
        try:
            return response_at(A, b, k, z)[:, 0, 0]
        except np.linalg.LinAlgError:
            return response_at(A, b, k, z * (1 + 1e-9) + 1e-12)[:, 0, 0]
