"""Riccati equations outside a trace: doubling on all cores, then the sign function, SciPy, at last sixty digits.

Only the problems that one method leaves unsolved are handed to the next, which is slower and harder to defeat.
SciPy decomposes the extended matrix pencil (QZ) and needs no inverse of R, so R may be singular. What it leaves
unsolved has modes that its inputs hardly move, or do not; sixty digits tell these apart.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Array, PyTree

from lqrlab.compute import quick_jit
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.threads import on_all_cores
from lqrlab.control import discretization
from lqrlab.control.analysis import controllability
from lqrlab.control.riccati import sixty_digits
from lqrlab.control.riccati.doubling import Solution, by_doubling
from lqrlab.control.riccati.matrix_sign import by_sign_function

_BY_SCIPY = 256  # members of a batch, at most, that are left to SciPy in the end; those of a singular R, all
_BY_DIGITS = 32  # of these, at most, that SciPy leaves to sixty digits
_FEW = 64  # problems that take less time to solve than a program that solves them fast takes to be compiled
_CORES = (2, 2, 2, 2, 2, 0)  # core dimensions of A, B, Q, R, N and a sample time


def accepted(dtype: np.dtype) -> float:
    """The largest relative residual of an answer that is given out."""
    return 1e-8 if jnp.finfo(dtype).eps < 1e-10 else 3e-4


def _program(
    solve: Callable[..., PyTree[Array]], num_args: int = 5, jit: Callable = jax.jit
) -> Callable[..., PyTree[Array]]:
    """A batch-last solver as a compiled function of A, B, Q, R, N (and dt) whose leading axes broadcast."""
    cores = _CORES[:num_args]
    native = batch_last.solver(*cores)(solve)
    return jit(lambda *args: native(*batch_last.together(cores, *args)))


def _sampled_doubling(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array) -> tuple[Solution, Array]:
    return by_doubling(*discretization.sampled(A, B, Q, R, N, dt), continuous=False)


_sign_function = {c: _program(partial(by_sign_function, continuous=c)) for c in (True, False)}
_doubling, _doubling_of_few = (
    {
        continuous: _program(partial(by_doubling, continuous=continuous), jit=jit)
        for continuous in (True, False)
    }
    | {"sampled": _program(_sampled_doubling, 6, jit)}
    for jit in (jax.jit, quick_jit)
)


def solved(args: tuple[Array, ...], *, continuous: bool) -> Solution:
    """Solutions of concrete problems A, B, Q, R, N whose leading axes broadcast.

    With a sample time as a sixth argument, those of the discrete problems that sampling makes of continuous ones.
    """
    sampling = len(args) == 6
    continuous = continuous and not sampling
    many = np.prod(np.broadcast_shapes(*(a.shape[:-2] for a in args[:5]))) > _FEW
    fast = (_doubling if many else _doubling_of_few)["sampled" if sampling else continuous]
    answer, error = on_all_cores(fast, *zip(args, _CORES))
    error = np.asarray(error)
    failed = np.flatnonzero(~(error <= batch_last.enough(args[0].dtype)))
    if not len(failed):
        return answer
    problems = _gathered(args, failed, error.shape)
    if sampling:
        problems = tuple(discretization.compiled(*problems))
    fresh, remaining = _sign_function[continuous](*problems)
    fresh = [np.array(a)[: len(failed)] for a in fresh]
    remaining = np.asarray(remaining)[: len(failed)]
    error = np.where(np.isnan(error), np.inf, error).reshape(-1)[failed]
    better = remaining < error
    better |= _replaced_by_scipy(fresh, problems, np.minimum(remaining, error), continuous=continuous)
    if not better.any():
        return answer

    def merged(old: Array, new: np.ndarray) -> Array:
        whole = np.array(old).reshape(-1, *new.shape[1:])
        whole[failed[better]] = new[better]
        return jnp.asarray(whole.reshape(old.shape))

    return Solution(*(merged(old, new) for old, new in zip(answer, fresh)))


def _gathered(
    args: tuple[Array, ...], failed: np.ndarray, batch: tuple[int, ...]
) -> tuple[Array | np.ndarray, ...]:
    """The failed problems one after another, some twice: few batch sizes make few compiled programs."""
    size = len(failed) if np.prod(batch) < 24 else 24 << ((len(failed) - 1) // 24).bit_length()
    batch = batch or (1,)
    at = np.unravel_index(np.resize(failed, size), batch)
    # by NumPy: JAX's eager gather takes longer than the solver
    return tuple(
        np.broadcast_to(np.asarray(a), batch + a.shape[a.ndim - core :])[at] for a, core in zip(args, _CORES)
    )


def _replaced_by_scipy(
    answers: list[np.ndarray],
    problems: tuple[Array | np.ndarray, ...],
    error: np.ndarray,
    *,
    continuous: bool,
) -> np.ndarray:
    """Overwrite answers whose error is still too large by SciPy's, where it has one; which these are."""
    improved, tried = np.zeros(len(error), bool), 0
    left = np.flatnonzero(~(error < accepted(answers[1].dtype)))
    with np.errstate(all="ignore"):
        only_scipy = not continuous and np.linalg.det(np.asarray(problems[3])[left]) == 0  # R is singular
    for i in left[(np.arange(len(left)) < _BY_SCIPY) | only_scipy]:
        problem = [np.asarray(a[i], float) for a in problems]
        if not all(np.isfinite(a).all() for a in problem):
            continue
        answer = _by_scipy(*problem, continuous=continuous)
        if answer is None and tried < _BY_DIGITS and _worthwhile(*problem, continuous=continuous):
            tried += 1
            found = sixty_digits.solved(*problem, continuous=continuous)
            if found is not None:
                answer = _certified(*[*problem, *found], continuous=continuous)
        if answer is not None:
            improved[i] = True
            for whole, part in zip(answers, (*answer, 1.0)):
                whole[i] = part
    return improved


def _worthwhile(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, *, continuous: bool
) -> bool:
    """Whether more digits may find an answer: R > 0, and no mode at fault, to rounding."""
    positive = bool(np.linalg.eigvalsh((R + R.T) / 2).min() > 0)
    return positive and controllability.fault(A, B, Q, continuous=continuous) is None


def _by_scipy(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, *, continuous: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """``K, P, closed loop, relative residual`` of one problem, or None if SciPy finds no certified answer either."""
    solve = scipy.linalg.solve_continuous_are if continuous else scipy.linalg.solve_discrete_are
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            P = solve(A, B, Q, R, s=N)
            S, cross = _gain_terms(A, B, R, N, P, continuous=continuous)
            K = np.linalg.solve(S, cross.T)
    except (np.linalg.LinAlgError, ValueError):
        return None
    return _certified(A, B, Q, R, N, K, P, continuous=continuous)


def _gain_terms(
    A: np.ndarray, B: np.ndarray, R: np.ndarray, N: np.ndarray, P: np.ndarray, *, continuous: bool
) -> tuple[np.ndarray, np.ndarray]:
    """S and M of the gain K = S⁻¹Mᵀ."""
    return (R, P @ B + N) if continuous else (R + B.T @ P @ B, A.T @ P @ B + N)


def _certified(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, K: np.ndarray, P: np.ndarray, *,
    continuous: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:  # fmt: skip
    """``K, P, closed loop, relative residual`` if the loop is stable and the equation holds, else None."""
    S, cross = _gain_terms(A, B, R, N, P, continuous=continuous)
    with np.errstate(over="ignore", invalid="ignore"):
        closed = A - B @ K
    if not np.isfinite(closed).all():
        return None
    poles = np.linalg.eigvals(closed)
    stable = poles.real.max() < 0 if continuous else np.abs(poles).max() < 1
    terms = (A.T @ P, P @ A, -cross @ K, Q) if continuous else (A.T @ P @ A, -P, -cross @ K, Q)
    residual = np.linalg.norm(sum(terms)) / max(np.linalg.norm(t) for t in terms)
    if not (stable and residual < 1e-8 and np.linalg.eigvalsh((S + S.T) / 2).min() > 0):
        return None
    return K, P, closed, np.asarray(residual)
