"""H2 and H∞ norms of linear systems."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import matrix_checks
from lqrlab.control.analysis.diagnosis import gram
from lqrlab.control.state_space import response_at

_ABOVE = 1e-6, 1e-9  # by how much a peak has to be higher than the best one known, relative, to be looked for
_APART = 10 ** np.linspace(3, -12, 91)  # times its size: how far from a pole frequencies are looked at,
_CLOSE, _STEP = 0.1, 0.1  # but no nearer than this times its distance from the boundary; steps, relative to it
_PEAKS, _ROUNDS, _SAME = 4, 30, 1e-13
_System = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
_SHARES = np.array([[1.0], [0.75], [0.5], [0.25], [0.0]])


def h2_norm(A: ArrayLike, B: ArrayLike, C: ArrayLike, *, discrete: bool = False) -> Float[Array, "*batch"]:
    """H2 norm of x' = Ax + Bw, y = Cx ``[...]``: the root mean square of y under unit white noise; differentiable.

    NaN where A is unstable.

    >>> control.h2_norm([[-0.5]], [[1.0]], [[2.0]])
    Array(2., dtype=float64)
    """
    A, B, C = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"), C=(C, "pn"))
    square = jnp.trace(C @ gram(A, B, discrete=discrete) @ C.mT, axis1=-1, axis2=-2)
    return jnp.sqrt(jnp.maximum(square, 0.0))  # outputs that see nothing: zero but for rounding


def hinf_norm(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> tuple[float, float]:
    """H∞ norm of one system, on the host: the largest gain over all frequencies, and where it is [rad/s].

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Returns:
        The gain, and its frequency; infinite if the gain is only approached at ever higher frequencies.

    Raises:
        ValueError: the system is not stable, so that its gain has no bound.

    Source: N. A. Bruinsma and M. Steinbuch, A fast algorithm to compute the H∞-norm of a transfer function matrix,
    Systems & Control Letters 14 (1990); S. Boyd and V. Balakrishnan, ibid. 15 (1990).

    >>> control.hinf_norm([[-0.5]], [[1.0]], [[1.0]])  # 1 / (s + 0.5)
    (2.0, 0.0)
    """
    matrix_checks.on_host("hinf_norm", A, B, C, D, dt)
    (a,) = matrix_checks.host_matrices("hinf_norm", A=(A, "nn"))
    dt = matrix_checks.host_sample_time("hinf_norm", dt)
    if not stable(a, dt):
        raise ValueError("A: the system is not stable, so its H∞ norm is infinite")
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    a, b, c, *rest = matrix_checks.host_matrices("hinf_norm", **given)
    d = rest[0] if rest else np.zeros((len(c), b.shape[1]))
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return _peak(a, b, c, d, dt)
    except np.linalg.LinAlgError as error:  # of entries near the largest numbers
        why = "expected numbers nearer to one: their H∞ norm cannot be computed"
        raise ValueError(f"A, B, C, D: {why} ({error}); choose other units") from error


def stable(A: np.ndarray, dt: float | None) -> bool:
    """True if all modes of one system decay by more than rounding of A tells, on the host; not if it is not finite."""
    if not np.isfinite(A).all():
        return False
    poles, left, right = scipy.linalg.eig(A, left=True)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # first order: infinite of a defective matrix
        moved = (np.abs(left) * (np.abs(A) @ np.abs(right))).sum(0) / np.abs((left.conj() * right).sum(0))
        moved = np.fmin(4 * len(A) * np.finfo(float).eps * moved, 2e-8 * np.linalg.norm(A))
    return bool((poles.real < -moved).all() if dt is None else (np.abs(poles) < 1 - moved).all())  # none of no states


def _peak(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, dt: float | None) -> tuple[float, float]:
    """The largest gain and its frequency.

    The Hamiltonian matrix of a level has on the imaginary axis the frequencies with that gain. Between two crossings
    of a level just above the best gain known lies a better one. What the eigenvalues suggest counts only by the gain
    that is there; what they miss, where rounding moves them, is found from a grid that is fine beside each pole.
    """
    # a discrete system as the continuous one with the same gains, z = (1 + s) / (1 − s), so ω = tan(θ / 2)
    A, B, C, D = (a, b, c, d) if dt is None else bilinear(a, b, c, d)

    def gains(w: np.ndarray) -> np.ndarray:
        response = response_at(a, b, c, boundary(w, dt))
        response = (np.where(np.isinf(w)[:, None, None], 0.0, response) if dt is None else response) + d
        if not np.isfinite(response).all():
            raise np.linalg.LinAlgError("the response overflows")
        return np.linalg.norm(response, 2, axis=(-2, -1))

    w = beside(np.linalg.eigvals(a), dt)
    found = gains(w)
    if not found.any():
        return 0.0, 0.0
    best, most = w[found.argmax()], found.max()
    for above in _ABOVE:
        for _ in range(50):
            level = most * (1 + above)
            near = np.unique(np.abs(np.append(0.0, np.linalg.eigvals(_hamiltonian(A, B, C / level, D / level)).imag)))
            near = np.concatenate([near, (near[1:] + near[:-1]) / 2, np.sqrt(near[1:] * near[:-1]), 2 * near[-1:]])
            there = gains(near)
            if there.max() <= level:
                break
            best, most = near[there.argmax()], there.max()
    if best not in w:
        i = np.searchsorted(w, best)
        w, found = np.insert(w, i, best), np.insert(found, i, most)
    at, height = tops(gains, w, found, _PEAKS)
    i = int(np.argmax(height))
    return float(height[i]), float(at[i] if dt is None else 2 * np.arctan(at[i]) / dt)


def boundary(w: np.ndarray, dt: float | None) -> np.ndarray:
    """Points at the boundary of stability: jω (0 of an infinite one), or (1 + jω) / (1 − jω) of a discrete system."""
    finite = np.where(np.isinf(w), 0.0, w)
    return 1j * finite if dt is None else np.where(np.isinf(w), -1.0, (1 + 1j * finite) / (1 - 1j * finite))


def beside(values: np.ndarray, dt: float | None) -> np.ndarray:
    """Frequencies ω as of :func:`boundary`, zero and infinity among them, fine enough beside each pole or zero."""
    if dt is not None:
        values = values[np.abs(values + 1) > 1e-300]
        values = (values - 1) / (values + 1)
    size, at = np.abs(values)[:, None], np.abs(values.imag)[:, None]
    apart = np.where(_APART * size >= _CLOSE * np.abs(values.real)[:, None], _APART * size, 0.0)
    w = np.concatenate([(at + apart).ravel(), (at - apart).ravel()])
    w = np.unique(w[(w > 0) & (w < np.inf)])
    if not len(w):
        return np.array([0.0, np.inf])
    # between neighbours some part of the way to the nearest pole: rounding makes no peaks of what is closer together
    nearest = np.abs(1j * w[1:, None] - (np.abs(values.real) + 1j * np.abs(values.imag))).min(axis=1)
    steps = np.cumsum(np.minimum(np.diff(w) / np.maximum(nearest, 1e-300), 1.0)) // _STEP
    return np.concatenate([[0.0], w[:1], w[1:][np.diff(steps, prepend=0.0) > 0], [np.inf]])


def tops(
    f: Callable[[np.ndarray], np.ndarray], w: np.ndarray, values: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The highest local maxima of f, each searched between its neighbours on a grid: where they are, and f there."""
    beyond = np.concatenate([[-np.inf], values, [-np.inf]])
    at = np.flatnonzero((values >= beyond[:-2]) & (values >= beyond[2:]) & (values > -np.inf))
    at = at[np.argsort(-values[at], kind="stable")[:most]]
    best, height = w[at], values[at]
    ends = w[np.maximum(at - 1, 0)], w[np.minimum(at + 1, len(w) - 1)]
    unit = np.where((best > 0) & (best < np.inf), best, np.where(best > 0, *ends))
    unit = np.where((unit > 0) & (unit < np.inf), unit, 1.0)
    low, middle, high = (np.arctan(x / unit) for x in (ends[0], best, ends[1]))  # of an infinite one as well
    each = np.arange(len(at))
    for _ in range(_ROUNDS):
        angles = np.concatenate([middle + _SHARES * (low - middle), middle + _SHARES[-2::-1] * (high - middle)])
        there = unit * np.tan(angles)
        found = f(there.ravel()).reshape(there.shape)
        i = np.argmax(found, axis=0)
        better = found[i, each] > height + _SAME * np.abs(height)
        best, height = np.where(better, there[i, each], best), np.where(better, found[i, each], height)
        low, middle, high = (angles[np.clip(i + k, 0, len(angles) - 1), each] for k in (-1, 0, 1))
        if (np.ptp(found, axis=0) <= _SAME * np.abs(height)).all():
            break
    return best, height


def bilinear(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> _System:
    """The continuous system with the same gains, z = (1 + s) / (1 − s)."""
    one = np.eye(len(a))
    moved = np.linalg.inv(a + one)  # a stable system has no pole at −1
    return moved @ (a - one), 2**0.5 * moved @ b, 2**0.5 * c @ moved, d - c @ moved @ b


def _hamiltonian(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray) -> np.ndarray:
    """The matrix with an eigenvalue jω exactly where the gain at ω is one."""
    R = np.linalg.inv(np.eye(B.shape[1]) - D.T @ D)
    F = A + B @ R @ D.T @ C
    return np.block([[F, B @ R @ B.T], [-C.T @ (C + D @ R @ D.T @ C), -F.T]])
