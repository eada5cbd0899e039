"""Model reduction by balanced truncation, with its error bound; what is not stable is kept."""

import dataclasses

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Float

from lqrlab.compute.checks import whole
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.system_norms import bilinear, stable

_BOUNDARY = 1e-7  # modes so near to the stability boundary, relative to A, are kept as integrators


@dataclasses.dataclass(frozen=True)
class ReducedModel:
    """A system of fewer states.

    Attributes:
        A, B, C, D: of the reduced system; modes that are kept come first.
        hankel: Hankel singular values of the stable part of the system that was given, the largest first.
        bound: twice the sum of those left out: the H∞ norm of the error is no larger.
    """

    A: Float[np.ndarray, "r r"]
    B: Float[np.ndarray, "r m"]
    C: Float[np.ndarray, "p r"]
    D: Float[np.ndarray, "p m"]
    hankel: Float[np.ndarray, " stable"]
    bound: float


def balred(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, order: int, dt: float | None = None) -> ReducedModel:
    """System of ``order`` states near the one given, by balanced truncation, on the host.

    Unstable modes and integrators are split off and kept as they are. States that the inputs do not move or the
    outputs do not see are left out even if ``order`` is larger.

    Args:
        A, B, C, D: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]``.
        order: states of the reduced system, at least the number of modes that are not stable.
        dt: sample time [s] of a discrete system.

    Raises:
        ValueError: wrong arguments; fewer states asked for than there are modes that have to be kept.

    Source: M. G. Safonov and R. Y. Chiang, A Schur method for balanced-truncation model reduction, IEEE Transactions
    on Automatic Control 34 (1989); A. Varga, Balancing free square-root algorithm, CDC (1991); S. J. Hammarling,
    Numerical solution of the stable, non-negative definite Lyapunov equation, IMA J. Numer. Anal. 2 (1982).

    >>> fast = [[-1.0, 0.0], [0.0, -100.0]], [[1.0], [1.0]], [[1.0, 1.0]], [[0.0]]
    >>> len(control.balred(*fast, order=1).hankel)
    2
    """
    matrix_checks.on_host("balred", A, B, C, D, dt)
    dt = matrix_checks.host_sample_time("balred", dt)
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn"), "D": (D, "pm")}
    a, b, c, d = matrix_checks.host_matrices("balred", **given)
    order = whole("order", order, 0)
    x = matrix_checks.even_units(a, b, c)
    a, b, c = a * x / x[:, None], b / x[:, None], c * x
    a, b, c, kept = _split(a, b, c, dt)
    if order < kept:
        raise ValueError(
            f"order: expected at least {kept}, the modes that are not stable and have to be kept, but found {order}"
        )
    stable_part = a[kept:, kept:], b[kept:], c[:, kept:]
    reach, see = gramian_root(*stable_part[:2], dt), gramian_root(stable_part[0].T, stable_part[2].T, dt)
    left, hankel, right = np.linalg.svd(see.T @ reach)
    size = min(order - kept, int(np.sum(hankel > len(a) * np.finfo(float).eps * hankel.max(initial=0.0))))
    root = hankel[:size] ** 0.5
    into, out = (see @ left[:, :size] / root).T, reach @ right[:size].T / root
    reduced = into @ stable_part[0] @ out
    if not stable(reduced, dt):
        raise ValueError(
            f"A: the reduced system of order {order} is not stable in floating point: modes are too near the stability "
            "boundary; choose another order, or move them"
        )
    return ReducedModel(
        scipy.linalg.block_diag(a[:kept, :kept], reduced),
        np.vstack([b[:kept], into @ stable_part[1]]),
        np.hstack([c[:, :kept], stable_part[2] @ out]),
        d,
        hankel,
        2 * float(hankel[size:].sum()),
    )


def _split(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, dt: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The system in coordinates of two parts without effect on each other, the first not stable, and its size."""
    if not len(a):
        return a, b, c, 0
    near = _BOUNDARY * np.linalg.norm(a, 2) if dt is None else _BOUNDARY
    # a lambda: LAPACK's wrapper counts the arguments of what it calls
    keep = (lambda re, im: re >= -near) if dt is None else (lambda re, im: np.hypot(re, im) > 1 - near)
    a, basis, kept = scipy.linalg.schur(a, sort=keep)
    b, c = basis.T @ b, c @ basis
    # x1 = ξ1 + T ξ2 with a11 T − T a22 + a12 = 0
    T = scipy.linalg.solve_sylvester(a[:kept, :kept], -a[kept:, kept:], -a[:kept, kept:])
    b = np.vstack([b[:kept] - T @ b[kept:], b[kept:]])
    c = np.hstack([c[:, :kept], c[:, kept:] + c[:, :kept] @ T])
    return scipy.linalg.block_diag(a[:kept, :kept], a[kept:, kept:]), b, c, kept


def gramian_root(a: np.ndarray, b: np.ndarray, dt: float | None) -> np.ndarray:
    """R of the controllability Gramian R Rᵀ of a stable system, column by column of a triangle (Hammarling)."""
    if dt is not None:  # the bilinear transform does not change it
        a, b, *_ = bilinear(a, b, b.T, b.T @ b)
    n = len(a)
    triangle, basis = scipy.linalg.schur(a, output="complex")
    rest, root = basis.conj().T @ b, np.zeros((n, n), complex)
    for j in reversed(range(n)):
        row, pole = rest[j], triangle[j, j]
        size, rate = np.linalg.norm(row), (-2 * pole.real) ** 0.5
        if size == 0:
            continue
        root[j, j] = size / rate
        unit = row / size
        entering = rest[:j] @ unit.conj() * rate + triangle[:j, j] * root[j, j]
        root[:j, j] = scipy.linalg.solve_triangular(triangle[:j, :j] + pole.conjugate() * np.eye(j), -entering)
        rest = rest[:j] - rate * np.outer(root[:j, j], unit)
    both = basis @ root  # X = Re both Re bothᵀ + Im both Im bothᵀ
    return scipy.linalg.qr(np.hstack([both.real, both.imag]).T, mode="r")[0][: len(a)].T
