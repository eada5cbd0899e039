"""One input and one measured output of a linear plant: its frequency response with dead time, its ultimate gain."""

import dataclasses
import functools

import numpy as np
import scipy  # its modules load when they are first used

from lqrlab.control.analysis.eigenmodes import zeros
from lqrlab.control.analysis.system_norms import beside
from lqrlab.control.delay import delayed
from lqrlab.control.state_space import response_at

_POINTS, _DECADES = 1200, 3
_LIGHT = 0.1  # damping below which a pole or zero hides between such points; how far from it, relative, is looked finer
_TURNED = np.arange(10.0, 200.0, 0.25)  # by the dead time [rad]: before, the points are as near to each other
_SAME = 1e-4  # relative distance at which a pole and a zero cancel
_REAL = 1e-2  # |imag| / |p| below which a pole is one of a cluster of equal real ones, which rounding spreads


@dataclasses.dataclass(frozen=True)
class Channel:
    """y = cx of ẋ = Ax + b u(t − delay), on the host; sampled by exact zero-order hold if it has a sample time.

    Attributes:
        A, b, c: ``[n, n]``, ``[n, 1]``, ``[1, n]``, in continuous time.
        delay: dead time [s].
        dt: sample time [s]; None for a continuous loop.
    """

    A: np.ndarray
    b: np.ndarray
    c: np.ndarray
    delay: float = 0.0
    dt: float | None = None

    @property
    def lateness(self) -> float:
        """Dead time [s] with half a sample time, by which a hold is late on average."""
        return self.delay + (self.dt or 0.0) / 2

    @property
    def poles(self) -> np.ndarray:
        """Eigenvalues of A; what is zero but for rounding is zero."""
        poles = np.linalg.eigvals(self.A) if len(self.A) else np.zeros(0)
        return np.where(np.abs(poles) < 1e-9 * max(np.abs(poles).max(initial=0.0), 1e-3), 0.0, poles).astype(complex)

    @property
    def unstable(self) -> bool:
        """True if a pole lies in the right half-plane."""
        poles = self.poles
        return bool((poles.real > 1e-6 * np.abs(poles).max(initial=0.0)).any())

    def refuse_unstable(self, use: str) -> None:
        """Refuse a plant with a pole in the right half-plane for what only a stable one can be used for."""
        if self.unstable:
            raise ValueError(f'plant: expected a stable one {use}, but found an unstable pole; use rule="optimal"')

    def transfer(self) -> tuple[float, list[complex], list[complex]]:
        """Leading coefficient k, zeros and poles of k Π(s − z) / Π(s − p), without those that cancel."""
        poles, kept = list(self.poles), []
        for z in zeros(self.A, self.b, self.c):
            nearest = poles[int(np.argmin(np.abs(np.array(poles) - z)))]
            if abs(nearest - z) <= _SAME * max(abs(z), abs(nearest), 1e-9):
                poles.remove(nearest)
            else:
                kept.append(z)
        s = 2 * max([abs(a) for a in (*poles, *kept)] + [1e-3])  # beyond all of them, where nothing cancels
        value = (self.c @ np.linalg.solve(s * np.eye(len(self.A)) - self.A, self.b)).item()
        return float((value * np.prod([s - p for p in poles]) / np.prod([s - z for z in kept])).real), kept, poles

    @functools.cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, c; with a sample time of the sampled plant, whose state has the inputs that are on their way."""
        if self.dt is None:
            return self.A, self.b, self.c
        n = len(self.A)
        problem = delayed(self.A, self.b, np.zeros((n, n)), np.eye(1), self.dt, self.delay / self.dt)
        A, b = np.asarray(problem.A), np.asarray(problem.B)
        return A, b, np.pad(self.c, ((0, 0), (0, len(A) - n)))

    @functools.cached_property
    def span(self) -> tuple[float, float]:
        """ω [rad/s] far below and far above the plant's poles, zeros and dead time; just below π/dt if sampled."""
        sizes = np.abs([*self.poles, *zeros(self.A, self.b, self.c)])
        sizes = np.append(sizes[sizes > 0], [1 / t for t in (self.delay, self.dt or 0.0) if t > 0])
        low, high = (sizes.min(), sizes.max()) if len(sizes) else (1.0, 1.0)
        high = high * 10.0**_DECADES if self.dt is None else 0.999 * np.pi / self.dt
        return min(low * 10.0**-_DECADES, high / 1e3), high

    def frequencies(self) -> np.ndarray:
        """ω [rad/s] over the span, see :func:`spaced`; of a sampled plant π/dt as well."""
        roots = np.append(np.linalg.eigvals(self.matrices[0]), zeros(*self.matrices))
        w = spaced(*self.span, _POINTS, rates(roots, self.dt), self.delay)
        return w if self.dt is None else np.append(w, np.pi / self.dt)

    def response(self, w: np.ndarray) -> np.ndarray:
        """G(jω) exp(−jω delay) at ω [rad/s], or that of the sampled plant at exp(jω dt)."""
        value = response_at(*self.matrices, (1j * w if self.dt is None else np.exp(1j * w * self.dt)))[:, 0, 0]
        return value * np.exp(-1j * w * self.delay) if self.dt is None else value

    def sign(self) -> float:
        """The direction in which the output goes in the end: of the gain at the lowest frequencies."""
        k, found, poles = self.transfer()
        gain = k * np.prod([-z for z in found if z]) / np.prod([-p for p in poles if p])
        if not gain:
            raise ValueError("plant: the output does not react to the input; choose another pair of output and input")
        return float(np.sign(gain.real))

    def ultimate(self) -> tuple[float, float]:
        """The gain at which the output oscillates under proportional control, with its sign, and the period [s]."""
        self.refuse_unstable("whose gain is raised from zero to the limit of stability")
        w, sign = self.frequencies(), self.sign()
        h = sign * self.response(w)
        turned = np.flatnonzero((h.imag[:-1] * h.imag[1:] < 0) & (h.real[:-1] < 0) & (h.real[1:] < 0))
        search = functools.partial(scipy.optimize.brentq, lambda at: self.response(np.array([at]))[0].imag)
        found = [search(w[i], w[i + 1], xtol=1e-300, rtol=1e-14) for i in turned]
        if self.dt is not None and h[-1].real < 0:
            found.append(w[-1])  # the sampled response is real there
        gains = [(1 / abs(self.response(np.array([at]))[0]), at) for at in found]
        if not gains:
            raise ValueError(
                "plant: no proportional gain makes the loop oscillate, so it has no ultimate gain; give its dead time "
                'with delay=, or use rule="simc" with tau_c'
            )
        gain, at = min(gains)
        return sign * gain, 2 * np.pi / at


def rates(roots: np.ndarray, dt: float | None) -> np.ndarray:
    """Roots s [rad/s] of roots in z, s = log(z)/dt, far to the left of z = 0; as they are of a continuous system."""
    return roots if dt is None else np.log(np.where(np.abs(roots) > 1e-12, roots, 1e-12).astype(complex)) / dt


def spaced(low: float, high: float, num: int, roots: np.ndarray, delay: float = 0.0) -> np.ndarray:
    """About so many ω [rad/s], even on a logarithmic scale, but finer beside each light root s and for a dead time."""
    light = roots[np.abs(roots.real) < _LIGHT * np.abs(roots)]
    w = beside(light, None)
    w = w[(np.abs(w[:, None] - np.abs(light.imag)) < _LIGHT * np.abs(light)).any(axis=1)]
    w = np.concatenate([w, _TURNED / delay if delay else []])
    w = w[(w > low) & (w < high)]
    return np.union1d(np.geomspace(low, high, max(num - len(w), num // 2)), w)


def revealing_output(A: np.ndarray, C: np.ndarray) -> int:
    """The first output from which all modes that do not decay can be seen; else the first one."""
    slow = [s for s in np.linalg.eigvals(A) if s.real > -1e-9]
    tests = [A - s * np.eye(len(A)) for s in slow]
    seen = [
        all(np.linalg.matrix_rank(np.vstack([a, c]), tol=1e-9 * np.abs(A).max()) == len(A) for a in tests) for c in C
    ]
    return seen.index(True) if True in seen else 0


def real_lags(values: list[complex], what: str) -> np.ndarray:
    """−1/s of real poles or zeros, infinite for one at the origin; refuses complex ones."""
    s = np.asarray(values, complex)
    if (np.abs(s.imag) > _REAL * np.abs(s)).any():
        raise ValueError(
            f"plant: expected real {what}, but found {s[np.argmax(np.abs(s.imag))]:.3g} rad/s: the half rule "
            'is for lags that do not oscillate; use rule="optimal", or experiment="step" for a well damped plant'
        )
    with np.errstate(divide="ignore"):
        return np.where(s.real == 0, np.inf, -1 / s.real)
