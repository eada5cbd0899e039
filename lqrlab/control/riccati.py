"""Algebraic Riccati equations by structure-preserving doubling, polished by Newton, rescued by the sign function.

Sources: E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, C.-S. Wang, Structure-preserving algorithms for periodic
discrete-time algebraic Riccati equations, Int. J. Control 77 (2004), eqs. (10)-(12) [discrete]; E. K.-W. Chu,
H.-Y. Fan, W.-W. Lin, A structure-preserving doubling algorithm for continuous-time algebraic Riccati equations,
Linear Algebra Appl. 396 (2005), eqs. (15)-(17) [continuous]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968)
and G. A. Hewer, ibid. 16 (1971) [Newton]. The derivative is that of the equation, not of the iteration.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import linalg
from lqrlab.compute.batching import on_all_cores
from lqrlab.control import checks, lanes, pencil, sign
from lqrlab.control.lanes import eye, mul, symmetric, t
from lqrlab.control.lyapunov import cayley, shift_of, solve_continuous, solve_discrete, summed

_BY_SCIPY = 256  # members of a batch, at most, that are left to SciPy in the end
_DOUBLINGS = 12  # what has not converged by then is gathered and solved by the sign function


class Solution(NamedTuple):
    """K, P, closed loop, relative residual and whether the loop is stable (1.0 or 0.0); leading axes alike."""

    K: Array
    P: Array
    closed: Array
    residual: Array
    stable: Array


def accepted(dtype: Any) -> float:
    """The largest relative residual of an answer that is given out."""
    return 1e-8 if jnp.finfo(dtype).eps < 1e-10 else 3e-4


def stage(Q: Array, R: Array, N: Array, K: Array) -> Array:
    """The weight on x of a step with u = −Kx: Q + KᵀRK − NK − KᵀNᵀ; leading axes alike."""
    NK = N @ K
    return Q + jnp.swapaxes(K, -1, -2) @ R @ K - NK - jnp.swapaxes(NK, -1, -2)


def gain_discrete(A: Array, B: Array, R: Array, N: Array, P: Array) -> Array:
    """K = (R + BᵀPB)⁻¹ (BᵀPA + Nᵀ) of one problem."""
    return linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)


# On lanes ----------------------------------------------------------------------------------------------------


def doubled(A: Array, G: Array, H: Array) -> Array:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H: H doubles the horizon each time."""
    one = eye(A.shape[0], A)
    enough = float(jnp.finfo(A.dtype).eps) ** 0.4  # its square is what is left, and Newton squares that again

    def more(state: tuple) -> Array:
        _, _, _, change, k = state
        return jnp.any((change > enough) & (change < jnp.inf)) & (k < _DOUBLINGS)

    def double(state: tuple) -> tuple:
        A, G, H, _, k = state
        inverse = lanes.inverse(one + mul(G, H))
        WA = mul(inverse, A)
        step = symmetric(mul(t(A), mul(H, WA)))
        G = G + symmetric(mul(mul(A, mul(inverse, G)), t(A)))
        H = H + step
        scale = jnp.max(jnp.abs(H), axis=(0, 1))
        change = jnp.max(jnp.abs(step), axis=(0, 1)) / jnp.where(scale > 0, scale, 1.0)
        return mul(A, WA), G, H, change, k + 1

    start = (A, G, H, jnp.ones_like(A[0, 0]), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(more, double, start)[2]


def _doubled_continuous(F: Array, G: Array, H: Array) -> Array:
    """P of FᵀP + PF − PGP + H = 0, through the Cayley transform to a discrete equation."""
    n = F.shape[0]
    # the shift near the size of the closed loop's modes: tr(Hamiltonian²) = 2 Σ λ²
    squares = jnp.sum(F * t(F) + G * H, axis=(0, 1)) / n
    low = 0.01 * jnp.sum(F * F, axis=(0, 1)) / n + float(jnp.finfo(F.dtype).tiny)
    shift = jnp.sqrt(jnp.maximum(jnp.abs(squares), low))[None, None]
    inverse = lanes.inverse(F - shift * eye(n, F))
    W = lanes.inverse(F - shift * eye(n, F) + mul(G, mul(t(inverse), H)))
    return doubled(
        eye(n, F) + 2 * shift * W,
        symmetric(2 * shift * mul(mul(inverse, G), t(W))),
        symmetric(2 * shift * mul(t(W), mul(H, inverse))),
    )


class Problem(NamedTuple):
    """A, B, Q, R, N on lanes."""

    A: Array
    B: Array
    Q: Array
    R: Array
    N: Array

    def stage(self, K: Array) -> Array:
        """Q + KᵀRK − NK − KᵀNᵀ."""
        NK = mul(self.N, K)
        return self.Q + mul(t(K), mul(self.R, K)) - NK - t(NK)

    def reduced(self) -> tuple[Array, Array, Array]:
        """F = A − BR⁻¹Nᵀ, G = BR⁻¹Bᵀ, H = Q − NR⁻¹Nᵀ."""
        A, B, Q, R, N = self
        invR = lanes.inverse(R)
        NR = mul(N, invR)
        return A - mul(B, t(NR)), symmetric(mul(B, mul(invR, t(B)))), symmetric(Q - mul(NR, t(N)))


def kleinman(problem: Problem, P: Array) -> tuple[Array, Array]:
    """One Newton step on the continuous equation, and whether the loop that it starts from is stable."""
    K = mul(lanes.inverse(problem.R), t(mul(P, problem.B) + problem.N))
    closed = problem.A - mul(problem.B, K)
    PC = mul(P, closed)
    residual = symmetric(PC + t(PC) + problem.stage(K))  # an error in K enters it squared
    shift = shift_of(closed)
    inverse, moved = cayley(closed, shift)
    right = 2 * shift[None, None] * mul(mul(t(inverse), residual), inverse)
    step, decays = summed(t(moved), right, 1e-3)  # six digits of a correction are enough
    return P + symmetric(step), decays


def hewer(problem: Problem, P: Array) -> tuple[Array, Array]:
    """One Newton step on the discrete equation, and whether the loop that it starts from is stable."""
    A, B, _, R, N = problem
    PB = mul(P, B)
    K = mul(lanes.inverse(R + mul(t(B), PB)), mul(t(PB), A) + t(N))
    closed = A - mul(B, K)
    residual = symmetric(mul(t(closed), mul(P, closed)) - P + problem.stage(K))
    step, decays = summed(t(closed), residual, 1e-3)
    return P + symmetric(step), decays


def _relative(*terms: Array) -> Array:
    largest = lanes.norm(terms[0])
    for term in terms[1:]:
        largest = jnp.maximum(largest, lanes.norm(term))
    return lanes.norm(sum(terms[1:], terms[0])) / jnp.where(largest > 0, largest, 1.0)


def _finish_continuous(problem: Problem, P: Array, decays: Array) -> tuple[Solution, Array]:
    A, B, Q, R, N = problem
    PBN = mul(P, B) + N
    K = mul(lanes.inverse(R), t(PBN))
    PA = mul(P, A)
    residual = _relative(PA, t(PA), -mul(PBN, K), Q)
    stable = decays & lanes.positive(R)
    return Solution(K, P, A - mul(B, K), residual, stable.astype(P.dtype)), _error(residual, stable)


def _finish_discrete(problem: Problem, P: Array, decays: Array) -> tuple[Solution, Array]:
    A, B, Q, R, N = problem
    PA, PB = mul(P, A), mul(P, B)
    S = R + mul(t(B), PB)
    cross = mul(t(PB), A) + t(N)
    K = mul(lanes.inverse(S), cross)
    residual = _relative(mul(t(A), PA), -P, -mul(t(cross), K), Q)
    stable = decays & lanes.positive(S)
    return Solution(K, P, A - mul(B, K), residual, stable.astype(P.dtype)), _error(residual, stable)


def _error(residual: Array, stable: Array) -> Array:
    return jnp.where(stable & (residual < jnp.inf), residual, jnp.inf)


def _rescue_continuous(*problem: Array) -> tuple[Solution, Array]:
    return _finish_continuous(Problem(*problem), *sign.polished(Problem(*problem), continuous=True))


def _rescue_discrete(*problem: Array) -> tuple[Solution, Array]:
    return _finish_discrete(Problem(*problem), *sign.polished(Problem(*problem), continuous=False))


def fast_continuous(*args: Array) -> tuple[Solution, Array]:
    """The continuous design on lanes by doubling; and its error, infinite where the loop is not stable."""
    problem = Problem(*args)
    return _finish_continuous(problem, *kleinman(problem, _doubled_continuous(*problem.reduced())))


def fast_discrete(*args: Array) -> tuple[Solution, Array]:
    """The discrete design on lanes by doubling; and its error, infinite where the loop is not stable."""
    problem = Problem(*args)
    return _finish_discrete(problem, *hewer(problem, doubled(*problem.reduced())))


_FIVE = (2, 2, 2, 2, 2)
_continuous = lanes.over_lanes(*_FIVE, rescue=_rescue_continuous)(fast_continuous)
_discrete = lanes.over_lanes(*_FIVE, rescue=_rescue_discrete)(fast_discrete)


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
    lead = jnp.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    return tuple(jnp.broadcast_to(a, lead + a.shape[-2:]) for a in arrays)


def program(solve: Callable, before: Callable = together) -> Callable:
    """A solver on lanes as a compiled function of arrays that ``before`` makes the problem of."""
    native = lanes.over_lanes(*_FIVE)(solve)
    return jax.jit(lambda *args: native(*before(*args)))


_rescues = {True: program(_rescue_continuous), False: program(_rescue_discrete)}
_fasts = {True: program(fast_continuous), False: program(fast_discrete)}


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
    bad = np.flatnonzero(~(error <= lanes.enough(args[0].dtype)))
    if not len(bad):
        return out
    lead = error.shape
    where = np.resize(
        bad, len(bad) if error.size < 24 else -(-len(bad) // 24) * 24
    )  # few shapes: few programs
    flat = [
        jnp.broadcast_to(a, lead + a.shape[a.ndim - core :]).reshape(-1, *a.shape[a.ndim - core :])[where]
        for a, core in zip(args, cores)
    ]
    problems = before(*flat) if before else tuple(flat)
    better, again = _rescues[continuous](*problems)
    fresh = [np.array(a) for a in better]
    error = np.where(np.isnan(error), np.inf, error).reshape(-1)
    keep = np.asarray(again) < error[where]
    left = np.minimum(np.asarray(again), error[where])
    last = np.flatnonzero(~(left < accepted(out.P.dtype)))[:_BY_SCIPY]
    for i in last:
        answer = pencil.solved(*(np.asarray(a[i], float) for a in problems), continuous=continuous)
        if answer is not None:
            for whole, part in zip(fresh, (*answer, 1.0)):
                whole[i] = part
            keep[i] = True
    if not keep.any():
        return out

    def merged(old: Array, new: np.ndarray) -> Array:
        whole = np.array(old).reshape(-1, *new.shape[1:])
        whole[where[keep]] = new[keep]
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
