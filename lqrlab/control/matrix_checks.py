"""Checks of the arguments of designs: shapes that go together, weights that are symmetric and definite."""

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, ArrayLike

from lqrlab.compute import as_jax
from lqrlab.compute.checks import on_host, real, traced
from lqrlab.compute.linalg import batch_last

FEW = 64
"""Problems, at most, that are worked out on the host outside a trace: in less time than a program is compiled in.

A Riccati equation of n = 12 takes 0.6 ms there, 64 of them 6 ms; a program 2 ms, but 2 s to be compiled, 0.4 s to be
loaded from the cache.
"""
_DOUBLE = np.dtype(np.float64)


def few(lead: tuple[int, ...]) -> bool:
    """True if a batch with these leading axes has so few members."""
    return 0 < math.prod(lead) <= FEW


def floating(*arrays: Array | np.ndarray) -> np.dtype:
    """The floating type to compute in: that of the arrays, or JAX's default where all are whole numbers."""
    if {a.dtype for a in arrays} == {_DOUBLE} and jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return _DOUBLE  # as JAX would find out, slowly
    with jax.numpy_dtype_promotion("standard"):  # here mixed types become one: nothing after it promotes
        dtype = jnp.result_type(*arrays)
        return jnp.result_type(dtype, jnp.float32 if jnp.issubdtype(dtype, jnp.inexact) else float)


def shapes(arrays: Mapping[str, Array | np.ndarray], letters: dict[str, str]) -> None:
    """Refuse matrices ``[..., rows, columns]`` whose shapes do not go together: the first that contradicts one before.

    ``letters`` are those of their rows and columns: ``{"A": "nn", "B": "nm"}``. Leading axes have to broadcast.
    """
    first: dict[str, tuple[int, str]] = {}  # letter → its size, and the matrix that it was read off
    for name, a in arrays.items():
        axes = f"[{', '.join(letters[name])}]"
        if a.ndim < 2:
            raise ValueError(f"{name}: expected a matrix {axes}, but found shape {a.shape}")
        size = a.shape[-2:]
        wanted = [first.setdefault(letter, (k, name)) for letter, k in zip(letters[name], size)]
        expected = tuple(k for k, _ in wanted)
        if size != expected:
            by = next((by for (k, by), actual in zip(wanted, size) if k != actual and by != name), None)
            why = f" to go with {by} of shape {arrays[by].shape[-2:]}" if by else ""
            raise ValueError(f"{name}: expected shape {expected} {axes}{why}, but found {size}")
    try:
        np.broadcast_shapes(*(a.shape[:-2] for a in arrays.values()))
    except ValueError:
        listed = ", ".join(f"{name} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"leading axes: expected shapes that broadcast, but found {listed}") from None


def matrices(**given: tuple[ArrayLike, str]) -> list[Array]:
    """Matrices of one floating type with their leading axes broadcast: ``matrices(A=(A, "nn"), B=(B, "nm"))``.

    Raises:
        ValueError: as :func:`shapes`.
    """
    arrays = {name: real(name, a) for name, (a, _) in given.items()}
    shapes(arrays, {name: letters for name, (_, letters) in given.items()})
    for name, a in arrays.items():
        if 0 in a.shape[-2:]:
            raise ValueError(f"{name}: expected at least one row and column, but found shape {a.shape}")
    finite(arrays)
    dtype = floating(*arrays.values())
    return list(together(*(a.astype(dtype) for a in arrays.values())))


def together(*arrays: ArrayLike) -> tuple[Array, ...]:
    """Matrices with their leading axes broadcast against each other."""
    return batch_last.together((2,) * len(arrays), *(as_jax(real("matrix", a)) for a in arrays))


def host_matrices(function: str, **given: tuple[ArrayLike, str]) -> list[np.ndarray]:
    """Finite matrices of one problem in NumPy, for a ``function`` that runs on the host."""
    on_host(function, *(a for a, _ in given.values()))
    arrays = {name: np.asarray(real(name, a), float) for name, (a, _) in given.items()}
    shapes(arrays, {name: letters for name, (_, letters) in given.items()})
    for name, a in arrays.items():
        if a.ndim > 2:
            raise ValueError(f"{name}: expected a matrix, but found shape {a.shape}: {function} takes one problem")
    finite(arrays)
    return list(arrays.values())


def even_units(A: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
    """d, powers of two, of states x = diag(d) x̃ in which the rows and columns of A, B, C are of like size."""
    n, m, p = len(A), B.shape[1], len(C)
    system = np.block([[A, B, np.zeros((n, p))], [np.zeros((m, n + m + p))], [C, np.zeros((p, m + p))]])
    with np.errstate(all="ignore"):
        _, (d, _) = scipy.linalg.matrix_balance(system, permute=False, separate=True)
    return d[:n]


_DESIGN = {"B": "nm", "A": "nn", "Q": "nn", "R": "mm", "N": "nm"}


def arguments(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None, *, weights: bool = True
) -> tuple[Array, Array, Array, Array, Array]:
    """:func:`design_arguments` as JAX's arrays."""
    A, B, Q, R, N = (as_jax(a) for a in design_arguments(A, B, Q, R, N, weights=weights))
    return A, B, Q, R, N


def design_arguments(
    A: ArrayLike,
    B: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    N: ArrayLike | None = None,
    *,
    weights: bool = True,
    certified: bool = False,
    singular_R: bool = False,
) -> tuple[Any, Any, Any, Any, Any]:
    """The five matrices of a design as arrays of one floating type, checked; N defaults to zero.

    JAX's arrays stay JAX's, all else is NumPy's: to put a matrix on a device takes as long as a step of a solver.

    Args:
        A, B, Q, R, N: as given; a scalar R is the weight of a single input.
        weights: refuse an indefinite weight. An equation, unlike a cost, may have one.
        certified: the answer will have a certificate, so a weight of a single problem that is indefinite by the
            rounding of a printed table is taken, with a warning; of a batch, see :func:`bounded_below`.
        singular_R: likewise an R that is singular: in discrete time R + BᵀPB > 0 is enough.

    Raises:
        ValueError: a wrong shape (always); outside a trace also a number that is not finite, an asymmetric
            or indefinite weight in a single problem. In a batch the member's answer is marked instead.
    """
    given = {"B": B, "A": A, "Q": Q, "R": R} | ({} if N is None else {"N": N})
    arrays: dict[str, Any] = {name: real(name, value) for name, value in given.items()}
    if arrays["R"].ndim == 0:
        arrays["R"] = arrays["R"].reshape(1, 1)
    # a number of Python's takes the type of the arrays, as it does in JAX and NumPy
    dtype = floating(*(a for name, a in arrays.items() if type(given[name]) not in (int, float)))
    arrays = {name: a.astype(dtype) for name, a in arrays.items()}
    if dtype == jnp.float32:
        _warn_of_float32()
    shapes(arrays, _DESIGN)
    n, m = arrays["B"].shape[-2:]
    if not n or not m:
        raise ValueError(f"B: expected at least one state and one input, but found shape {(n, m)}")
    arrays.setdefault("N", np.zeros((n, m), dtype))
    if single := finite(arrays):
        for name in "QR":
            _symmetric(name, single[name])
        if weights:
            _check_bound(single["Q"], single["R"], single["N"], certified, singular_R)
    return arrays["A"], arrays["B"], arrays["Q"], arrays["R"], arrays["N"]


def one_problem(function: str, *args: ArrayLike | None, weights: bool = True) -> tuple[Array, ...]:
    """:func:`arguments` of one problem, for a ``function`` that runs on the host."""
    on_host(function, *args)
    problem = arguments(*args, weights=weights)  # type: ignore[arg-type]
    lead = np.broadcast_shapes(*(a.shape[:-2] for a in problem))
    if lead:
        raise ValueError(f"{function}: expected one problem, but found leading axes {lead}")
    return problem


@functools.cache
def _warn_of_float32() -> None:
    """Once a process."""
    warnings.warn(
        "a Riccati design in float32 leaves a few loops in a thousand unstable; call lqrlab.compute.setup() and "
        "pass float64 arrays",
        stacklevel=4,
    )


def finite(arrays: Mapping[str, Array | np.ndarray]) -> dict[str, np.ndarray]:
    """The finite matrices of one problem outside a trace; none of a batch, where a bad member's answer is marked."""
    if traced(*arrays.values()) or any(a.ndim != 2 for a in arrays.values()):
        return {}
    single = {name: np.asarray(a) for name, a in arrays.items()}
    for name, a in single.items():
        if not np.all(np.isfinite(a)):
            i, j = np.argwhere(~np.isfinite(a))[0]
            raise ValueError(f"{name}: expected finite numbers, but found {a[i, j]} in row {i}, column {j}")
    return single


def tolerance(dtype: np.dtype) -> float:
    """Relative to its largest entry, how far a weight may be from symmetric and from semidefinite."""
    return 1e-4 if dtype == np.float32 else 1e-8


def _symmetric(name: str, a: np.ndarray) -> None:
    skew = np.max(np.abs(a - a.T))
    if skew > tolerance(a.dtype) * np.max(np.abs(a)):
        raise ValueError(
            f"{name}: expected a symmetric matrix, but found entries that differ by {skew:.3g} across the "
            f"diagonal; a quadratic cost sees only ({name} + {name}ᵀ)/2, pass that"
        )


_PRINTED = 5e-4
"""Half a unit in the fourth digit, relative to a largest entry of 1.000: what printing a weight may have changed."""


def _refuse_negative(name: str, low: float) -> None:
    # an indefinite weight may still have an optimum (a sampled cost, a frequency-domain condition), but
    # nobody asks for one by hand; designs that make their own weights do not come through here
    raise ValueError(
        f"{name}: expected positive semidefinite, but found the eigenvalue {low:.3g}: along that "
        "direction the cost falls without bound; use weights ≥ 0"
    )


def weight(name: str, a: Array) -> None:
    """Refuse a weight of one problem, outside a trace, that is not finite, symmetric and semidefinite."""
    for W in finite({name: a}).values():
        _symmetric(name, W)
        if (low := float(_least(W))) < -tolerance(W.dtype) * float(_largest(W)):
            _refuse_negative(name, low)


def terminal_weight(Qf: ArrayLike | None, Q: Array, default: Array) -> Array:
    """The checked weight of the last state, ``[..., n, n]`` like Q and in its type; ``default`` if left out."""
    terminal = default if Qf is None else as_jax(real("Qf", Qf).astype(Q.dtype))
    if terminal.shape[-2:] != Q.shape[-2:]:
        raise ValueError(f"Qf: expected shape {Q.shape[-2:]}, Q's, but found {terminal.shape[-2:]}")
    weight("Qf", terminal)
    return terminal


def trailing(name: str, value: ArrayLike, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """``value`` as an array of real numbers with this shape after its leading axes, or a ``ValueError``."""
    given = real(name, value)
    a = as_jax(real(name, given, finite=given.ndim == len(shape)).astype(dtype))  # of a batch a member's answer is NaN
    if a.shape[max(a.ndim - len(shape), 0) :] != shape:
        raise ValueError(f"{name}: expected shape (…, {', '.join(map(str, shape))}), but found {a.shape}")
    return a


def _largest(a: np.ndarray) -> np.ndarray:
    return np.abs(a).max(axis=(-1, -2), keepdims=True)[..., 0, 0]  # an array, also of one matrix


def _least(a: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh((a + a.mT) / 2)[..., 0]


def _check_bound(Q: np.ndarray, R: np.ndarray, N: np.ndarray, certified: bool, singular_R: bool) -> None:
    """Refuse weights of one problem that bound no cost below."""
    (good,), (least,), (lowest,) = bounded_below(Q[None], R[None], N[None], certified, singular_R)
    if not (good or least > 0):
        raise ValueError(
            f"R: expected positive definite, but found the eigenvalue {least:.3g}: an input that costs nothing "
            "would be used without bound; give every input a positive weight"
        )
    if not good:
        _refuse_negative("Q − N R⁻¹ Nᵀ" if N.any() else "Q", lowest)


def bounded_below(
    Q: np.ndarray, R: np.ndarray, N: np.ndarray, certified: bool, singular_R: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True where R > 0 and Q − NR⁻¹Nᵀ ≥ 0, to rounding; the least eigenvalues of R and of Q − NR⁻¹Nᵀ; all ``[batch]``.

    Also true, with a warning, where a design is ``certified`` and the rounding of a printed table explains the negative
    eigenvalue, or R is singular and may be: a stabilizing solution is then the best that brings x to rest.
    """
    some, least = tolerance(R.dtype), _least(R)
    definite = least > 0
    rest = Q - N @ np.linalg.solve(np.where(definite[:, None, None], R, np.eye(R.shape[-1], dtype=R.dtype)), N.mT)
    lowest = _least(rest)
    good = definite & (lowest >= -some * _largest(Q))
    if good.all() or not certified:
        return good, least, lowest
    near = ~good & (_largest(Q - Q.mT) <= some * _largest(Q)) & (_largest(R - R.mT) <= some * _largest(R))
    printed = near & definite & (lowest >= -_PRINTED * _largest(Q))
    joint = np.block([[Q, N], [N.mT, R]])
    singular = near & ~definite & (least >= -some * _largest(R)) & (_least(joint) >= -_PRINTED * _largest(joint))
    of_table = "which the rounding of a table printed to four digits explains"
    of_effect = "an input that costs nothing is bounded by what its effect costs, R + BᵀPB > 0, where it has one"
    for name, wanted, which, low, why in (
        ("Q", "semidefinite", printed, lowest, of_table),
        ("R", "definite", singular & singular_R, least, of_effect),
    ):
        if which.any():
            of = f" in {np.sum(which)} of the batch" if len(which) > 1 else ""
            found = f"{name}: expected positive {wanted}, but found the eigenvalue {low[which].min():.3g}{of}, {why}"
            warnings.warn(
                f"{found}; the design is given only if its equation holds and its loop is stable", stacklevel=5
            )
    return good | printed | (singular & singular_R), least, lowest


def own_time(dt: ArrayLike | None, *, discrete: bool) -> None:
    """Refuse a sample time of a continuous design, and its lack of a discrete one."""
    if discrete != (dt is not None):
        expected = "the sample time of a discrete design" if discrete else "none for a continuous design"
        raise ValueError(f"dt: expected {expected}, but found {dt}")


def host_sample_time(function: str, dt: object) -> float | None:
    """dt [s] of one problem as a float above 0, None for continuous time, for a ``function`` on the host."""
    on_host(function, dt)
    if dt is None:
        return None
    step = design_sample_time(dt, _DOUBLE)  # type: ignore[arg-type]
    if step.ndim:
        raise ValueError(f"dt: expected one sample time, but found shape {step.shape}")
    return float(step)


def sample_time(dt: ArrayLike, dtype: np.dtype, *matrices: Array | np.ndarray) -> Array:
    """dt [s] as an array; a ``ValueError`` if it is not above 0, or does not go with the axes of batched matrices."""
    return as_jax(design_sample_time(dt, dtype, *matrices))


def design_sample_time(dt: ArrayLike, dtype: np.dtype, *matrices: Array | np.ndarray) -> Any:
    """:func:`sample_time`, not put on a device."""
    step: Any = real("dt", dt).astype(dtype)
    if not traced(step) and not (step.size and np.all(np.isfinite(step) & (np.asarray(step) > 0))):
        raise ValueError(f"dt: expected a sample time above 0 s, but found {dt}")
    try:
        np.broadcast_shapes(step.shape, *(a.shape[:-2] for a in matrices))
    except ValueError:
        leading = ", ".join(str(a.shape[:-2]) for a in matrices)
        raise ValueError(
            f"dt: expected one sample time, or leading axes that broadcast with {leading}, but found {step.shape}"
        ) from None
    return step
