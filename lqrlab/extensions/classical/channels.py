"""One input and one measured output of a linear plant: its frequency response with dead time, its ultimate gain."""

import dataclasses

import numpy as np
import scipy  # its modules load when they are first used

from lqrlab.control.analysis.eigenmodes import zeros
from lqrlab.control.analysis.system_norms import beside
from lqrlab.control.delay import delayed
from lqrlab.control.state_space import response_at

_POINTS, _DECADES = 1200, 3
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

    def sampled(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A, b, c of the sampled plant, whose state has the inputs that are on their way."""
        assert self.dt is not None
        n = len(self.A)
        problem = delayed(self.A, self.b, np.zeros((n, n)), np.eye(1), self.dt, self.delay / self.dt)
        A, b = np.asarray(problem.A), np.asarray(problem.B)
        return A, b, np.pad(self.c, ((0, 0), (0, len(A) - n)))

    def frequencies(self) -> np.ndarray:
        """ω [rad/s] from far below to far above the plant's poles, zeros and dead time, and beside each pole and zero;
        up to π/dt if sampled."""
        roots = np.array([*self.poles, *zeros(self.A, self.b, self.c)])
        sizes = np.abs(roots)
        sizes = np.append(sizes[sizes > 0], [1 / t for t in (self.delay, self.dt or 0.0) if t > 0])
        low, high = (sizes.min(), sizes.max()) if len(sizes) else (1.0, 1.0)
        low, high = low * 10.0**-_DECADES, high * 10.0**_DECADES
        if self.dt is not None:
            high = np.pi / self.dt
            roots = roots.real + 1j * np.angle(np.exp(1j * roots.imag * self.dt)) / self.dt
        w, near = np.geomspace(min(low, high / 1e3), high, _POINTS), beside(roots, None)
        return np.union1d(w, near[(near > w[0]) & (near < high)])

    def response(self, w: np.ndarray) -> np.ndarray:
        """G(jω) exp(−jω delay) at ω [rad/s], or that of the sampled plant at exp(jω dt)."""
        A, b, c = (self.A, self.b, self.c) if self.dt is None else self.sampled()
        z = 1j * w if self.dt is None else np.exp(1j * w * self.dt)
        value = response_at(A, b, c, z)[:, 0, 0]
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
        if self.unstable:
            raise ValueError(
                "plant: expected a stable one, but found a pole in the right half-plane: its gain cannot be raised "
                'from zero to the limit of stability; use rule="optimal"'
            )
        w, sign = self.frequencies(), self.sign()

        def imaginary(at: float) -> float:
            return float(self.response(np.array([at]))[0].imag)

        h = sign * self.response(w)
        turned = np.flatnonzero((h.imag[:-1] * h.imag[1:] < 0) & (h.real[:-1] < 0) & (h.real[1:] < 0))
        found = [scipy.optimize.brentq(imaginary, w[i], w[i + 1], xtol=1e-300, rtol=1e-14) for i in turned]
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
