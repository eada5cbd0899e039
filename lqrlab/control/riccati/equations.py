"""Algebraic Riccati equations: doubling, rescued by the sign function and at last by SciPy; with derivatives.

The derivative is that of the equation (a Lyapunov equation for the tangent), not of the iteration.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import linalg
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.threads import on_all_cores
from lqrlab.control import checks
from lqrlab.control.lyapunov import solve_continuous, solve_discrete
from lqrlab.control.riccati import matrix_sign, scipy_fallback
from lqrlab.control.riccati.doubling import Solution, fast_continuous, fast_discrete

_BY_SCIPY = 256  # members of a batch, at most, that are left to SciPy in the end


def accepted(dtype: Any) -> float:
    """The largest relative residual of an answer that is given out."""
    return 1e-8 if jnp.finfo(dtype).eps < 1e-10 else 3e-4


def gain_discrete(A: Array, B: Array, R: Array, N: Array, P: Array) -> Array:
    """K = (R + BᵀPB)⁻¹ (BᵀPA + Nᵀ) of one problem."""
    return linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)


_FIVE = (2, 2, 2, 2, 2)
_continuous = batch_last.over_lanes(*_FIVE, rescue=matrix_sign.rescue_continuous)(fast_continuous)
_discrete = batch_last.over_lanes(*_FIVE, rescue=matrix_sign.rescue_discrete)(fast_discrete)


# With derivatives --------------------------------------------------------------------------------------------


@jax.custom_jvp
def solve_continuous_riccati(A: Array, B: Array, Q: Array, R: Array, N: Array) -> Solution:
    """The continuous design of problems whose leading axes are alike."""
    return _continuous(A, B, Q, R, N)[0]


@jax.custom_jvp
def solve_discrete_riccati(A: Array, B: Array, Q: Array, R: Array, N: Array) -> Solution:
    """The discrete design of problems whose leading axes are alike."""
    return _discrete(A, B, Q, R, N)[0]


def _t(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)


def _two(a: Array) -> Array:
    return a + _t(a)


@solve_continuous_riccati.defjvp
def _continuous_jvp(primals: tuple, tangents: tuple) -> tuple[Solution, Solution]:
    A, B, Q, R, N = primals
    dA, dB, dQ, dR, dN = tangents
    out = solve_continuous_riccati(A, B, Q, R, N)
    K, P, closed = out.K, out.P, out.closed
    drift = dA - dB @ K
    dP = solve_continuous(_t(closed), _two(P @ drift - dN @ K) + (dQ + _t(dQ)) / 2 + _t(K) @ dR @ K)
    dP = _two(dP) / 2
    dK = linalg.solve_many(R, _t(dB) @ P + _t(B) @ dP + _t(dN) - dR @ K)
    return out, _tangent(out, dK, dP, drift - B @ dK)


@solve_discrete_riccati.defjvp
def _discrete_jvp(primals: tuple, tangents: tuple) -> tuple[Solution, Solution]:
    A, B, Q, R, N = primals
    dA, dB, dQ, dR, dN = tangents
    out = solve_discrete_riccati(A, B, Q, R, N)
    K, P, closed = out.K, out.P, out.closed
    drift = dA - dB @ K
    PC = P @ closed
    dP = solve_discrete(_t(closed), _two(_t(PC) @ drift - dN @ K) + (dQ + _t(dQ)) / 2 + _t(K) @ dR @ K)
    dP = _two(dP) / 2
    BP = _t(B) @ P
    right = _t(dB) @ PC + _t(B) @ dP @ closed + BP @ drift + _t(dN) - dR @ K
    dK = linalg.solve_many(R + BP @ B, right)
    return out, _tangent(out, dK, dP, drift - B @ dK)


def _tangent(out: Solution, dK: Array, dP: Array, dclosed: Array) -> Solution:
    return Solution(dK, dP, dclosed, jnp.zeros_like(out.residual), jnp.zeros_like(out.stable))


# For callers -------------------------------------------------------------------------------------------------


def together(*arrays: Array) -> tuple[Array, ...]:
    """Matrices with their leading axes broadcast against each other."""
    return batch_last.together((2,) * len(arrays), *arrays)


def program(solve: Callable, *cores: int) -> Callable:
    """A solver on lanes as a compiled function of arrays whose leading axes broadcast."""
    native = batch_last.over_lanes(*cores)(solve)
    return jax.jit(lambda *args: native(*batch_last.together(cores, *args)))


_rescues = {
    True: program(matrix_sign.rescue_continuous, *_FIVE),
    False: program(matrix_sign.rescue_discrete, *_FIVE),
}
_fasts = {True: program(fast_continuous, *_FIVE), False: program(fast_discrete, *_FIVE)}


def solved(
    args: tuple[Array, ...], *, continuous: bool, fast: Callable | None = None, before: Any = None
) -> Solution:
    """Solutions of concrete problems, on all cores; what doubling leaves is gathered for the sign function,
    and what that leaves goes to SciPy one by one.

    Outside a trace the rescue is a program of its own, which is compiled only if it is needed.

    Args:
        args: arrays whose leading axes broadcast: matrices, or scalars at the end.
        continuous: which equation.
        fast: jitted solver of ``args`` if they are not the problem itself.
        before: what makes the problem of them, then.
    """
    cores = (*_FIVE, 0)[: len(args)]
    out, error = on_all_cores(fast or _fasts[continuous], *zip(args, cores))
    error = np.asarray(error)
    bad = np.flatnonzero(~(error <= batch_last.enough(args[0].dtype)))
    if not len(bad):
        return out
    wide = len(bad) if error.size < 24 else 24 << ((len(bad) - 1) // 24).bit_length()
    lead = error.shape or (1,)
    at = np.unravel_index(np.resize(bad, wide), lead)  # some twice: few shapes make few programs

    def chosen(a: Array, core: int) -> np.ndarray:
        # by NumPy: JAX's eager gather takes longer than the solver
        return np.broadcast_to(np.asarray(a), lead + a.shape[a.ndim - core :])[at]

    flat = [chosen(a, core) for a, core in zip(args, cores)]
    problems = before(*flat) if before else tuple(flat)
    better, again = _rescues[continuous](*problems)
    fresh, again = [np.array(a)[: len(bad)] for a in better], np.asarray(again)[: len(bad)]
    error = np.where(np.isnan(error), np.inf, error).reshape(-1)[bad]
    keep = again < error
    left = np.minimum(again, error)
    last = np.flatnonzero(~(left < accepted(out.P.dtype)))[:_BY_SCIPY]
    for i in last:
        answer = scipy_fallback.solved(*(np.asarray(a[i], float) for a in problems), continuous=continuous)
        if answer is not None:
            for whole, part in zip(fresh, (*answer, 1.0)):
                whole[i] = part
            keep[i] = True
    if not keep.any():
        return out

    def merged(old: Array, new: np.ndarray) -> Array:
        whole = np.array(old).reshape(-1, *new.shape[1:])
        whole[bad[keep]] = new[keep]
        return jnp.asarray(whole.reshape(old.shape))

    return Solution(*(merged(old, new) for old, new in zip(out, fresh)))


def _equation(solver: Callable) -> Callable:
    return jax.jit(lambda *args: _certain(solver(*together(*args))))


def _certain(solution: Solution) -> Array:
    _, P, _, residual, stable = solution
    good = (residual < accepted(P.dtype)) & (stable > 0.5)
    return jnp.where(good[..., None, None], P, jnp.nan)


_equations = {True: _equation(solve_continuous_riccati), False: _equation(solve_discrete_riccati)}


def _solution(args: tuple[Array, ...], *, continuous: bool) -> Array:
    if checks.traced(*args):
        return _equations[continuous](*args)
    return _certain(solved(args, continuous=continuous))


def dare(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> Array:
    """Solve P = AᵀPA − (AᵀPB + N)(R + BᵀPB)⁻¹(BᵀPA + Nᵀ) + Q for the stabilizing P.

    Args:
        A, B: of x[t+1] = A x[t] + B u[t], ``[..., n, n]`` and ``[..., n, m]``.
        Q, R, N: weights of Σ xᵀQx + uᵀRu + 2xᵀNu, ``[..., n, n]``, ``[..., m, m]``, ``[..., n, m]``.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`dlqr` says why.
    """
    return _solution(checks.arguments(A, B, Q, R, N, weights=False), continuous=False)


def care(A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, N: ArrayLike | None = None) -> Array:
    """Solve AᵀP + PA − (PB + N)R⁻¹(BᵀP + Nᵀ) + Q = 0 for the stabilizing P.

    Args:
        A, B: of ẋ = A x + B u, ``[..., n, n]`` and ``[..., n, m]``.
        Q, R, N: weights of ∫ xᵀQx + uᵀRu + 2xᵀNu dt.

    Returns:
        P ``[..., n, n]``. Where no stabilizing solution is found it is not finite; :func:`lqr` says why.
    """
    return _solution(checks.arguments(A, B, Q, R, N, weights=False), continuous=True)
