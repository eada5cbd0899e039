"""Algebraic Riccati equations as functions with derivatives, inside and outside a trace.

Doubling solves most problems, the matrix sign function those on which it stalls. The derivative is that of the
equation (a Lyapunov equation for the tangent), not of the iteration.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import linalg
from lqrlab.compute.checks import traced
from lqrlab.compute.linalg import batch_last
from lqrlab.control import discretization, matrix_checks
from lqrlab.control.lyapunov import solve_lyapunov
from lqrlab.control.riccati import rescue
from lqrlab.control.riccati.doubling import Solution, by_doubling
from lqrlab.control.riccati.matrix_sign import by_sign_function


def certain(solution: Solution) -> Bool[Array, "*batch"]:
    """Whether the equation holds to a small relative residual and the loop is stable."""
    P = solution.P
    holds = jnp.all(jnp.isfinite(P), axis=(-1, -2)) & (solution.residual < rescue.accepted(P.dtype))
    return holds & (solution.stable > 0.5)


def _differentiable(*, continuous: bool) -> Callable[..., Solution]:
    """The solver of problems whose leading axes are alike, with the derivative of its equation.

    Let F = A − BK, D = dA − dB K, and in discrete time E = F, S = R + BᵀPB (continuous: E = I, S = R). Then dP
    solves the Lyapunov equation of Fᵀ with the right-hand side sym(EᵀP D − dN K) + dQ + KᵀdR K, where sym(X) =
    X + Xᵀ, and S dK = dBᵀPE + BᵀdP E + [BᵀP D] + dNᵀ − dR K, the bracket in discrete time only.
    """
    doubling, sign_function = (
        partial(method, continuous=continuous) for method in (by_doubling, by_sign_function)
    )
    native = batch_last.solver(2, 2, 2, 2, 2, rescue=sign_function)(doubling)

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
        return out, Solution(dK, dP, D - B @ dK, still, still)

    return solve


_SOLVERS = {continuous: _differentiable(continuous=continuous) for continuous in (True, False)}


@partial(jax.jit, static_argnames="continuous")
def _inside_a_trace(args: tuple[Array, ...], *, continuous: bool) -> Solution:
    if len(args) == 6:
        return _SOLVERS[False](*discretization.sample_many(*args))
    return _SOLVERS[continuous](*matrix_checks.together(*args))


def solution(args: tuple[Array, ...], *, continuous: bool) -> Solution:
    """Solutions of problems A, B, Q, R, N whose leading axes broadcast; traced or concrete.

    With a sample time as a sixth argument, those of the discrete problems that sampling makes of continuous ones.
    """
    if traced(*args):
        return _inside_a_trace(args, continuous=continuous)
    return rescue.solved(args, continuous=continuous)


@jax.jit
def _certified(solution: Solution) -> Array:
    return jnp.where(certain(solution)[..., None, None], solution.P, jnp.nan)


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
    with jax.debug_nans(False):  # NaN is the answer where there is none
        return _certified(solution(matrix_checks.arguments(A, B, Q, R, N, weights=False), continuous=False))


def care(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None
) -> Float[Array, "*batch n n"]:
    """Solve AᵀP + PA − (PB + N)R⁻¹(BᵀP + Nᵀ) + Q = 0 for the stabilizing P; arguments as in :func:`dare`.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`lqr` says why.

    >>> control.care([[0.0]], [[1.0]], [[4.0]], [[1.0]])
    Array([[2.]], dtype=float64)
    """
    with jax.debug_nans(False):  # NaN is the answer where there is none
        return _certified(solution(matrix_checks.arguments(A, B, Q, R, N, weights=False), continuous=True))
