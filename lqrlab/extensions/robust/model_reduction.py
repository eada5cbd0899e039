"""Model reduction by balanced truncation, with its error bound; what is not stable is kept."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import ArrayLike, Float

from lqrlab.compute.checks import choice, whole
from lqrlab.control import StateSpace, matrix_checks
from lqrlab.control.analysis.system_norms import bilinear, stable

_BOUNDARY = 1e-7  # modes so near to the stability boundary, relative to A, are kept as integrators


class Reduction(NamedTuple):
    """A reduced system, unstable modes first, and its error bound.

    Attributes:
        system: the reduced one.
        hankel: Hankel singular values of the given system's stable part, largest first; weighted for a loop.
        bound: of the error's H∞ norm, twice the sum of those left out; inf where it was reduced for a loop: none.
    """

    system: StateSpace
    hankel: Float[np.ndarray, " stable"]
    bound: float


def balred(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike, order: int, dt: float | None = None,
    *, method: str = "truncate", loop: Sequence[Any] | None = None,
) -> Reduction:  # fmt: skip
    """System of ``order`` states near the one given, by balancing, on the host.

    Unstable modes and integrators are kept; states that are not controllable or not observable are left out.

    Args:
        A, B, C, D, dt: ``[n, n]``, ``[n, m]``, ``[p, n]``, ``[p, m]``; sample time [s] of a discrete system.
        order: states of the reduced system, at least the number of modes that are not stable.
        method: ``"truncate"``, exact right after a step, or ``"matchdc"``, exact at rest (residualisation).
        loop: A, B, C of the plant of which the system is the controller, u = K y: what the *loop* needs least is then
            left out, with the weights (I − GK)⁻¹ and (I − GK)⁻¹G, and the reduced loop is checked.

    Raises:
        ValueError: wrong arguments; fewer states than have to be kept; a loop that is not stable, before or after.

    Source: A. Varga, Balancing free square-root algorithm, CDC (1991); S. J. Hammarling, IMA J. Numer. Anal. 2 (1982);
    weights: D. F. Enns, CDC (1984); B. D. O. Anderson and Y. Liu, IEEE Trans. Automatic Control 34 (1989).

    >>> fast = [[-1.0, 0.0], [0.0, -100.0]], [[1.0], [1.0]], [[1.0, 1.0]], [[0.0]]
    >>> small, hankel, bound = robust.balred(*fast, order=1)
    >>> small.order, len(hankel)
    (1, 2)
    """
    matrix_checks.on_host("balred", A, B, C, D, dt)
    dt = matrix_checks.host_sample_time("balred", dt)
    given = {"A": (A, "nn"), "B": (B, "nm"), "C": (C, "pn"), "D": (D, "pm")}
    a, b, c, d = matrix_checks.host_matrices("balred", **given)
    order = whole("order", order, 0)
    x = matrix_checks.even_units(a, b, c)
    a, b, c = a * x / x[:, None], b / x[:, None], c * x
    weights = None if loop is None else _loop_weights((a, b, c, d), loop, dt)
    a, b, c, kept = _split(a, b, c, dt)
    if order < kept:
        raise ValueError(
            f"order: expected at least {kept}, the modes that are not stable and have to be kept, but found {order}"
        )
    choice("method", method, ("truncate", "matchdc"))
    stable_part = a[kept:, kept:], b[kept:], c[:, kept:]
    reach, see = _gramian_roots(*stable_part, weights, dt)
    left, hankel, right = np.linalg.svd(see.T @ reach)
    hankel = hankel[: len(stable_part[0])]
    known = int(np.sum(hankel > len(a) * np.finfo(float).eps * hankel.max(initial=0.0)))
    size = min(order - kept, known)
    full = size if method == "truncate" else known
    root = hankel[:full] ** 0.5
    into, out = (see @ left[:, :full] / root).T, reach @ right[:full].T / root
    balanced = into @ stable_part[0] @ out, into @ stable_part[1], stable_part[2] @ out
    reduced, entering, leaving, through = _at_rest(*balanced, d, size, dt)
    parts = (
        scipy.linalg.block_diag(a[:kept, :kept], reduced),
        np.vstack([b[:kept], entering]),
        np.hstack([c[:, :kept], leaving]),
        through,
    )
    _check_stable(reduced, parts, loop, dt)
    return Reduction(StateSpace(*parts, dt), hankel, 2 * float(hankel[size:].sum()) if weights is None else np.inf)


def _check_stable(
    reduced: np.ndarray, parts: tuple[np.ndarray, ...], loop: Sequence[Any] | None, dt: float | None
) -> None:
    """Refuse what is left of the stable part if it is not stable, and a controller that loses its plant."""
    order = len(parts[0])
    if not stable(reduced, dt):
        if loop is not None:
            raise ValueError(
                f"order: expected another one than {order}: a reduction with the loop's weights may be "
                "unstable, and is so here; choose more states, or the other method"
            )
        raise ValueError(
            f"A: the reduced system of order {order} is not stable in floating point: modes are too near the stability "
            "boundary; choose another order, or move them"
        )
    if loop is not None and not stable(_loop_weights(parts, loop, dt, check=False)[0], dt):
        raise ValueError(
            f"order: expected another one than {order}: the plant with the reduced controller is not stable; "
            "choose more states, or the other method"
        )


def _at_rest(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, size: int, dt: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The first ``size`` states, the others where they rest: ẋ2 = 0, or x2[t+1] = x2[t]."""
    k = slice(size)
    rest = slice(size, None)
    still = (0 if dt is None else np.eye(len(a) - size)) - a[rest, rest]
    follows = np.linalg.solve(still, np.hstack([a[rest, k], b[rest]]))
    of_x, of_u = follows[:, :size], follows[:, size:]
    return a[k, k] + a[k, rest] @ of_x, b[k] + a[k, rest] @ of_u, c[:, k] + c[:, rest] @ of_x, d + c[:, rest] @ of_u


def _loop_weights(
    controller: tuple[np.ndarray, ...], plant: Sequence[Any], dt: float | None, *, check: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The loop's matrix, what enters it before and behind the controller, and the measurements: u = K(y + r) + v."""
    a, b, c, d = controller
    if not (isinstance(plant, tuple | list) and len(plant) == 3):
        found = f"{len(plant)} of them" if isinstance(plant, tuple | list) else type(plant).__name__
        raise ValueError(f"loop: expected three matrices, A, B, C of the plant, but found {found}")
    given = {"A": (plant[0], "nn"), "B": (plant[1], "nm"), "C": (plant[2], "pn")}
    A, B, C = matrix_checks.host_matrices("loop", **given)
    if (B.shape[1], C.shape[0]) != d.shape:
        raise ValueError(
            f"loop: expected a plant of {d.shape[0]} inputs and {d.shape[1]} outputs, those of the controller, but "
            f"found {B.shape[1]} and {C.shape[0]}"
        )
    F = np.block([[A + B @ d @ C, B @ c], [b @ C, a]])
    if check and not stable(F, dt):
        raise ValueError("loop: expected a plant that the controller, u = K y, stabilises, but the loop is not stable")
    return F, np.vstack([B @ d, b]), np.vstack([B, np.zeros((len(a), B.shape[1]))]), np.hstack([C, 0 * b.T])


def _gramian_roots(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, weights: tuple[np.ndarray, ...] | None, dt: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Roots of the Gramians; of white noise that the loop has coloured, and of outputs as the loop passes them on."""
    if weights is None:
        return gramian_root(a, b, dt), gramian_root(a.T, c.T, dt)
    F, before, behind, measured = weights
    n, k = len(a), len(F)
    none = np.zeros((k, n))
    coloured = np.block([[a, b @ measured], [none, F]]), np.vstack([b, before])
    passed = np.block([[a, none.T], [behind @ c, F]]), np.hstack([np.zeros((len(measured), n)), measured])
    return gramian_root(*coloured, dt)[:n], gramian_root(passed[0].T, passed[1].T, dt)[:n]


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
