"""H2 and H∞ norms of linear systems."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.control import matrix_checks
from lqrlab.control.analysis.diagnosis import gram

_ABOVE = 1e-6, 1e-9  # by how much a peak has to be higher than the best one known, relative, to be looked for
_GRID = np.geomspace(1e-3, 1e3, 25)  # times the size of each pole


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
    """True if all modes of one system decay, on the host by its eigenvalues; not if it is not finite."""
    if not np.isfinite(A).all():
        return False
    poles = np.linalg.eigvals(A)
    return bool((poles.real < 0).all() if dt is None else (np.abs(poles) < 1).all())  # none of no states


def _peak(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, dt: float | None) -> tuple[float, float]:
    """The largest gain and its frequency.

    A level is the gain at a frequency exactly where the Hamiltonian matrix of the level has that frequency on the
    imaginary axis. Between two crossings of a level just above the best gain known lies a better one, at which the
    search goes on. What the eigenvalues suggest counts only by the gain that is there, computed from the system
    itself, so no tolerance decides whether an eigenvalue is on the axis.
    """
    # a discrete system as the continuous one with the same gains, z = (1 + s) / (1 − s), so ω = tan(θ / 2)
    A, B, C, D = (a, b, c, d) if dt is None else bilinear(a, b, c, d)
    poles = np.linalg.eigvals(A)
    first = np.concatenate([[0.0, np.inf], np.abs(poles.imag), np.outer(np.abs(poles), _GRID).ravel()])
    w, best = _better(a, b, c, d, dt, first, (np.inf, 0.0))
    if not best:
        return 0.0, 0.0
    for above in _ABOVE:
        for _ in range(50):
            level = best * (1 + above)
            values = np.linalg.eigvals(_hamiltonian(A, B, C / level, D / level))
            near = np.sort(np.abs(values.imag[np.abs(values.real) <= 1e-3 * np.abs(values)]))
            near = np.concatenate([[0.0], near])
            between = np.concatenate([(near[1:] + near[:-1]) / 2, np.sqrt(near[1:] * near[:-1])])
            found = _better(a, b, c, d, dt, np.concatenate([near, between, 2 * near[-1:]]), (w, best))
            if found[1] <= level:
                break
            w, best = found
    w, best = _refined(a, b, c, d, dt, (w, best))
    return float(best), float(w if dt is None else 2 * np.arctan(w) / dt)


def bilinear(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The continuous system with the same gains, z = (1 + s) / (1 − s)."""
    one = np.eye(len(a))
    moved = np.linalg.inv(a + one)  # a stable system has no pole at −1
    return moved @ (a - one), 2**0.5 * moved @ b, 2**0.5 * c @ moved, d - c @ moved @ b


def _hamiltonian(A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray) -> np.ndarray:
    """The matrix with an eigenvalue jω exactly where the gain at ω is one."""
    R = np.linalg.inv(np.eye(B.shape[1]) - D.T @ D)
    F = A + B @ R @ D.T @ C
    return np.block([[F, B @ R @ B.T], [-C.T @ (C + D @ R @ D.T @ C), -F.T]])


def _gains(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, dt: float | None, w: np.ndarray) -> np.ndarray:
    """Largest singular values of the response at frequencies, those of the bilinear transform if discrete."""
    finite = np.where(np.isinf(w), 0.0, w)
    z = 1j * finite if dt is None else np.where(np.isinf(w), -1.0, (1 + 1j * finite) / (1 - 1j * finite))
    inside = np.linalg.solve(z[:, None, None] * np.eye(len(a)) - a, b.astype(complex)[None])
    if dt is None:
        inside = np.where(np.isinf(w)[:, None, None], 0.0, inside)
    return np.linalg.norm(c @ inside + d, 2, axis=(-2, -1))


def _better(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    d: np.ndarray,
    dt: float | None,
    frequencies: np.ndarray,
    known: tuple[float, float],
) -> tuple[float, float]:
    """The best of some frequencies and its gain, or what is known if none is better."""
    gains = _gains(a, b, c, d, dt, frequencies)
    if not np.isfinite(gains).all():
        raise np.linalg.LinAlgError("the response overflows")
    i = int(np.argmax(gains))
    return (frequencies[i], float(gains[i])) if gains[i] > known[1] else known


def _refined(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, dt: float | None, best: tuple[float, float]
) -> tuple[float, float]:
    """The top of the peak, by ever finer grids around the best frequency."""
    width = 1e-2
    while 0 < best[0] < np.inf and width > 1e-9:
        best = _better(a, b, c, d, dt, best[0] * (1 + width * np.linspace(-1, 1, 21)), best)
        width /= 5
    return best
