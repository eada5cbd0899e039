"""Invariant (transmission) zeros of linear systems."""

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Complex

from lqrlab.control import matrix_checks

System = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def zeros(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike | None = None, dt: float | None = None
) -> Complex[np.ndarray, " zeros"]:
    """Invariant (transmission) zeros of one system, on the host, the least stable first.

    At a zero the inputs can move the plant permanently without any effect on y = Cx + Du. A zero in the right
    half-plane (outside the unit circle if ``dt`` is given) makes y start the wrong way and bounds how fast any
    controller can be; one at the origin (at 1) means that no constant input holds y.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]`` (zero if left out).
        dt: sample time [s] of a discrete system.

    Source: A. Emami-Naeini and P. Van Dooren, Computation of zeros of linear multivariable systems, Automatica 18
    (1982).

    >>> control.zeros([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], [[-1.0, 1.0]]).real  # (s − 1) / s²
    array([1.])
    """
    dt = matrix_checks.host_sample_time("zeros", dt)
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn")} | ({} if D is None else {"D": (D, "pm")})
    matrix_checks.on_host("zeros", A, B, C, D)
    a, b, c, *rest = matrix_checks.host_matrices("zeros", **given)
    d = rest[0] if rest else np.zeros((len(c), b.shape[1]))
    for _ in range(3):  # units of states, inputs and outputs change no zero, and make each other's uneven
        x = matrix_checks.even_units(a, b, c)
        a, b, c = a * x / x[:, None], b / x[:, None], c * x
        size = np.linalg.norm(a) or 1.0
        b, d = (y * (size / _sizes(np.vstack([b, d]), 0)) for y in (b, d))
        c, d = (y * (size / _sizes(np.hstack([c, d]), 1)) for y in (c, d))
    small = 100 * np.finfo(float).eps * max(a.shape[0] + c.shape[0], b.shape[1]) * size
    a, b, c, d = _full_row_rank((a, b, c, d), small)
    a, c, b, d = (x.T for x in _full_row_rank((a.T, c.T, b.T, d.T), small))
    if not len(a):
        return np.zeros(0, complex)
    # d is square and regular now: what the outputs do not see of (x, u), and how that moves x
    hidden = scipy.linalg.null_space(np.hstack([c, d]), rcond=1e-15)[:, : len(a)] if len(d) else np.eye(len(a))
    values = scipy.linalg.eigvals(np.hstack([a, b]) @ hidden, hidden[: len(a)])
    values = values[np.isfinite(values)].astype(complex)
    return values[np.argsort(-(values.real if dt is None else np.abs(values)), kind="stable")]


def _sizes(a: np.ndarray, axis: int) -> np.ndarray:
    """Norms of columns or rows; one for a column or row of zeros."""
    size = np.linalg.norm(a, axis=axis, keepdims=True)
    return np.where(size > 0, size, 1.0)


def _full_row_rank(system: System, small: float) -> System:
    """A system with the same zeros whose D has full row rank.

    Outputs that no input acts on directly hold some states at zero; that these stay there is an output instead.
    """
    a, b, c, d = system
    while len(d):
        left, values, _ = np.linalg.svd(d) if d.shape[1] else (np.eye(len(d)), np.zeros(0), None)
        rank = int(np.sum(values > small))
        c, d = left.T @ c, left.T @ d
        rest, c, d = c[rank:], c[:rank], d[:rank]
        if not len(rest) or not len(a):
            break
        _, values, right = np.linalg.svd(rest)
        held = int(np.sum(values > small))
        if not held:
            break
        basis = np.vstack([right[held:], right[:held]]).T  # free states first, then those that are held
        a, b, c = basis.T @ a @ basis, basis.T @ b, c @ basis
        free = len(a) - held
        c, d = np.vstack([c[:, :free], a[free:, :free]]), np.vstack([d, b[free:]])
        a, b = a[:free, :free], b[:free]
    return a, b, c, d
