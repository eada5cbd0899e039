"""Algebraic Riccati equations as functions with derivatives, inside and outside a trace.

Many problems, and all inside a trace, are solved by doubling, and by the matrix sign function where that stalls;
outside a trace on all cores. Few are solved on the host (:mod:`lqrlab.control.riccati.on_host`), which compiles
nothing. The derivative is that of the equation (a Lyapunov equation for the tangent), not of the iteration. Every
answer carries the residual of its equation and whether its loop is stable; an answer without both is refused.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import as_jax, linalg
from lqrlab.compute.checks import traced
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.threads import on_all_cores
from lqrlab.control import discretization, matrix_checks
from lqrlab.control.lyapunov import solve_lyapunov
from lqrlab.control.riccati import on_host
from lqrlab.control.riccati.doubling import Solution, accepted, by_doubling, by_sign_function

_CORES = (2, 2, 2, 2, 2, 0)  # core dimensions of A, B, Q, R, N and a sample time


def certain(solution: Solution) -> Any:
    """True where the equation holds to a small relative residual, the loop is stable and P a minimum ``[...]``."""
    return (_certain if isinstance(solution.P, np.ndarray) else _CERTAIN)(solution)


def certified(solution: Solution, good: Any) -> Solution:
    """NaN for K and P of members that are not ``good``, an infinite residual where no stable loop was found."""
    return _certified(solution, good, np) if isinstance(solution.P, np.ndarray) else _CERTIFIED(solution, good)


def _certain(solution: Solution) -> Any:
    P = solution.P
    holds = (abs(P) < np.inf).all((-1, -2)) & (solution.residual < accepted(P.dtype))
    return holds & (solution.stable > 0.5) & (solution.definite > 0.5)


def _certified(solution: Solution, good: Any, library: Any = jnp) -> Solution:
    K, P = (library.where(good[..., None, None], a, np.nan).astype(a.dtype) for a in (solution.K, solution.P))
    residual = library.where(solution.stable > 0.5, solution.residual, np.inf).astype(P.dtype)
    return solution._replace(K=K, P=P, residual=residual)


_CERTAIN, _CERTIFIED = jax.jit(_certain), jax.jit(_certified)


def _differentiable(*, continuous: bool) -> Callable[..., Solution]:
    """The solver of problems with equal leading axes, with the derivative of its equation.

    Let F = A − BK, D = dA − dB K, and in discrete time E = F, S = R + BᵀPB (continuous: E = I, S = R). Then dP
    solves the Lyapunov equation of Fᵀ with the right-hand side sym(EᵀP D − dN K) + dQ + KᵀdR K, where sym(X) =
    X + Xᵀ, and S dK = dBᵀPE + BᵀdP E + [BᵀP D] + dNᵀ − dR K, the bracket in discrete time only.
    """

    def rescue(matrices: tuple[Array, ...], known: tuple[Solution, Array]) -> tuple[Solution, Array]:
        return by_sign_function(*matrices, continuous=continuous, known=known)

    doubling = partial(by_doubling, continuous=continuous)
    native = batch_last.solver(2, 2, 2, 2, 2, rescue=rescue)(doubling)

    @jax.custom_jvp
    def solve(A: Array, B: Array, Q: Array, R: Array, N: Array) -> Solution:
        return native(A, B, Q, R, N)[0]

    @solve.defjvp
    def tangent(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Solution, Solution]:
        A, B, Q, R, N = primals
        dA, dB, dQ, dR, dN = tangents
        out = solve(A, B, Q, R, N)
        K, P, F = out.K, out.P, out.closed
        D = dA - dB @ K
        PE, S = (P, R) if continuous else (P @ F, R + B.mT @ P @ B)
        change = linalg.symmetric(2 * (PE.mT @ D - dN @ K) + dQ) + K.mT @ dR @ K
        dP = linalg.symmetric(solve_lyapunov(F.mT, change, continuous=continuous))
        right = dB.mT @ PE + B.mT @ (dP if continuous else dP @ F) + dN.mT - dR @ K
        dK = linalg.solve_many(S, right if continuous else right + B.mT @ P @ D)
        still = jnp.zeros_like(out.residual)
        return out, Solution(dK, dP, D - B @ dK, *[still] * 3)

    return solve


_SOLVERS = {continuous: _differentiable(continuous=continuous) for continuous in (True, False)}


@partial(jax.jit, static_argnames="continuous")
def _inside_a_trace(args: tuple[Array | np.ndarray, ...], *, continuous: bool) -> Solution:
    if len(args) == 6:
        return _SOLVERS[False](*discretization.sample_many(*args))
    return _SOLVERS[continuous](*matrix_checks.together(*args))


def _program(solve: Callable[..., tuple[Solution, Array]], num_args: int = 5) -> Callable:
    """A batch-last solver as a compiled function of A, B, Q, R, N (and dt) whose leading axes broadcast."""
    cores = _CORES[:num_args]
    native = batch_last.solver(*cores)(solve)
    return jax.jit(lambda *args: native(*batch_last.together(cores, *args)))


def _sampled_doubling(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array) -> tuple[Solution, Array]:
    return by_doubling(*discretization.sampled(A, B, Q, R, N, dt), continuous=False)


_DOUBLING = {c: _program(partial(by_doubling, continuous=c)) for c in (True, False)}
_SAMPLED_DOUBLING = _program(_sampled_doubling, 6)


def _concrete(args: tuple[Array | np.ndarray, ...], *, continuous: bool) -> Solution:
    """Solutions of problems that are numbers, as NumPy's arrays if they are few."""
    dtype, sampling = args[0].dtype, len(args) == 6
    continuous = continuous and not sampling
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in zip(args, _CORES)))
    enough = batch_last.enough(dtype)
    if matrix_checks.few(lead):
        problems = _gathered(args, lead, np.arange(math.prod(lead)))
        found, _ = on_host.solved(problems, continuous=continuous, enough=enough)
        return Solution(*(a.reshape((*lead, *a.shape[1:])).astype(dtype) for a in found))
    doubling, matrices = _SAMPLED_DOUBLING if sampling else _DOUBLING[continuous], map(as_jax, args)
    answer, error = on_all_cores(doubling, *zip(matrices, _CORES))
    error = np.where(np.asarray(answer.residual) >= accepted(dtype), np.inf, error)  # too coarse to be given out
    failed = np.flatnonzero(~(error <= enough))
    if not len(failed):
        return answer
    whole = [np.array(a).reshape(-1, *a.shape[len(lead) :]) for a in answer]
    before = np.nan_to_num(error.ravel()[failed], nan=np.inf)
    again, left = on_host.solved(_gathered(args, lead, failed), continuous=continuous, enough=enough)
    better = left < before
    for old, new in zip(whole, again):
        old[failed[better]] = new[better]
    return Solution(*(as_jax(a.reshape((*lead, *a.shape[1:]))) for a in whole))


def _gathered(
    args: tuple[Array | np.ndarray, ...], lead: tuple[int, ...], members: np.ndarray
) -> tuple[np.ndarray, ...]:
    """A, B, Q, R, N of some members of a batch, one after another; by NumPy, for which no gather is compiled."""
    if not lead:
        chosen: Any = (np.asarray(a)[None] for a in args)
    else:
        at = np.unravel_index(members, lead)
        shapes = (lead + a.shape[a.ndim - core :] for a, core in zip(args, _CORES))
        chosen = (np.broadcast_to(np.asarray(a), shape)[at] for a, shape in zip(args, shapes))
    problems: Any = tuple(a.astype(float) for a in chosen)
    return problems if len(problems) == 5 else tuple(discretization.sampled_on_host(*problems))


def solution(args: tuple[Array | np.ndarray, ...], *, continuous: bool) -> Solution:
    """Solutions of problems A, B, Q, R, N whose leading axes broadcast; traced or concrete.

    With a sample time as a sixth argument, those of the discrete problems that sampling makes of continuous ones. They
    are JAX's arrays; NumPy's where the problems are numbers and few (:func:`lqrlab.control.matrix_checks.few`).
    """
    if traced(*args):
        return _inside_a_trace(args, continuous=continuous)
    return _concrete(args, continuous=continuous)


def _stabilizing(args: tuple[Array, ...], *, continuous: bool) -> Array:
    with jax.debug_nans(False):  # NaN is the answer where there is none
        found = solution(args, continuous=continuous)
        found = found._replace(definite=found.stable)  # the value of a game is no minimum
        return as_jax(certified(found, certain(found)).P)


def dare(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None
) -> Float[Array, "*batch n n"]:
    """Solve P = AᵀPA − (AᵀPB + N)(R + BᵀPB)⁻¹(BᵀPA + Nᵀ) + Q for the stabilizing P.

    Args:
        A, B: of x[t+1] = A x[t] + B u[t], ``[..., n, n]`` and ``[..., n, m]``.
        Q, R, N: weights of Σ xᵀQx + uᵀRu + 2xᵀNu, ``[..., n, n]``, ``[..., m, m]``, ``[..., n, m]``.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`dlqr` says why.

    >>> control.dare([[2.0]], [[1.0]], [[0.0]], [[1.0]])  # the least input that stabilizes: K = 1.5
    Array([[3.]], dtype=float64)
    """
    return _stabilizing(matrix_checks.arguments(A, B, Q, R, N, weights=False), continuous=False)


def care(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None
) -> Float[Array, "*batch n n"]:
    """Solve AᵀP + PA − (PB + N)R⁻¹(BᵀP + Nᵀ) + Q = 0 for the stabilizing P; arguments as in :func:`dare`.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`lqr` says why.

    >>> control.care([[0.0]], [[1.0]], [[4.0]], [[1.0]])
    Array([[2.]], dtype=float64)
    """
    return _stabilizing(matrix_checks.arguments(A, B, Q, R, N, weights=False), continuous=True)
