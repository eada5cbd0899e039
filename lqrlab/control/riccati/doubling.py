"""Algebraic Riccati equations on lanes by structure-preserving doubling, polished by a Newton step.

Sources: E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, C.-S. Wang, Structure-preserving algorithms for periodic
discrete-time algebraic Riccati equations, Int. J. Control 77 (2004), eqs. (10)-(12) [discrete]; E. K.-W. Chu,
H.-Y. Fan, W.-W. Lin, A structure-preserving doubling algorithm for continuous-time algebraic Riccati equations,
Linear Algebra Appl. 396 (2005), eqs. (15)-(17) [continuous]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968)
and G. A. Hewer, ibid. 16 (1971) [Newton].
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.control.lyapunov import cayley, shift_of, summed
from lqrlab.control.weights import stage_weight

_DOUBLINGS = 12  # what has not converged by then is gathered and solved by the sign function
_UNSEEN = 4  # doublings that every problem takes


class Solution(NamedTuple):
    """K, P, closed loop, relative residual and whether the loop is stable (1.0 or 0.0); leading axes alike."""

    K: Array
    P: Array
    closed: Array
    residual: Array
    stable: Array


def doubled(A: Array, G: Array, H: Array) -> Array:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H: H doubles the horizon each time."""
    one = eye(A.shape[0], A)
    enough = float(jnp.finfo(A.dtype).eps) ** 0.4  # its square is what is left, and Newton squares that again

    def moves(H: Array, step: Array) -> Array:
        scale = batch_last.largest(H)
        change = batch_last.largest(step) / jnp.where(scale > 0, scale, 1.0)
        return jnp.any((change > enough) & (change < jnp.inf))

    def more(state: tuple) -> Array:
        _, _, H, step, k = state
        # the change is worth a look once it may be small
        return jax.lax.cond(k < _UNSEEN, lambda *_: True, moves, H, step) & (k < _DOUBLINGS)

    def double(state: tuple) -> tuple:
        A, G, H, _, k = state
        inverse = batch_last.inverse(one + mul(G, H))
        WA = mul(inverse, A)
        step = symmetric(mul(t(A), mul(H, WA)))
        G = G + symmetric(mul(mul(A, mul(inverse, G)), t(A)))
        return mul(A, WA), G, H + step, step, k + 1

    return jax.lax.while_loop(more, double, (A, G, H, H, 0))[2]


def _doubled_continuous(F: Array, G: Array, H: Array) -> Array:
    """P of FᵀP + PF − PGP + H = 0, through the Cayley transform to a discrete equation."""
    n = F.shape[0]
    # the shift near the size of the closed loop's modes: tr(Hamiltonian²) = 2 Σ λ²
    squares = jnp.sum(F * t(F) + G * H, axis=(0, 1)) / n
    low = 0.01 * jnp.sum(F * F, axis=(0, 1)) / n + float(jnp.finfo(F.dtype).tiny)
    shift = jnp.sqrt(jnp.maximum(jnp.abs(squares), low))[None, None]
    inverse = batch_last.inverse(F - shift * eye(n, F))
    W = batch_last.inverse(F - shift * eye(n, F) + mul(G, mul(t(inverse), H)))
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
        return stage_weight(self.Q, self.R, self.N, K, mul=mul, t=t)

    def reduced(self) -> tuple[Array, Array, Array]:
        """F = A − BR⁻¹Nᵀ, G = BR⁻¹Bᵀ, H = Q − NR⁻¹Nᵀ."""
        A, B, Q, R, N = self
        invR = batch_last.inverse(R)
        NR = mul(N, invR)
        return A - mul(B, t(NR)), symmetric(mul(B, mul(invR, t(B)))), symmetric(Q - mul(NR, t(N)))


def kleinman(problem: Problem, P: Array) -> tuple[Array, Array]:
    """One Newton step on the continuous equation, and whether the loop that it starts from is stable."""
    K = mul(batch_last.inverse(problem.R), t(mul(P, problem.B) + problem.N))
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
    K = mul(batch_last.inverse(R + mul(t(B), PB)), mul(t(PB), A) + t(N))
    closed = A - mul(B, K)
    residual = symmetric(mul(t(closed), mul(P, closed)) - P + problem.stage(K))
    step, decays = summed(t(closed), residual, 1e-3)
    return P + symmetric(step), decays


def _relative(*terms: Array) -> Array:
    scale = functools.reduce(jnp.maximum, [batch_last.largest(term) for term in terms])
    return batch_last.largest(sum(terms[1:], terms[0])) / jnp.where(scale > 0, scale, 1.0)


def finish_continuous(problem: Problem, P: Array, decays: Array) -> tuple[Solution, Array]:
    """Gain and certificate of P, and its error: infinite where the loop does not decay."""
    A, B, Q, R, N = problem
    PBN = mul(P, B) + N
    K = mul(batch_last.inverse(R), t(PBN))
    PA = mul(P, A)
    residual = _relative(PA, t(PA), -mul(PBN, K), Q)
    stable = decays & batch_last.positive(R)
    return Solution(K, P, A - mul(B, K), residual, stable.astype(P.dtype)), _error(residual, stable)


def finish_discrete(problem: Problem, P: Array, decays: Array) -> tuple[Solution, Array]:
    """Gain and certificate of P, and its error: infinite where the loop does not decay."""
    A, B, Q, R, N = problem
    PA, PB = mul(P, A), mul(P, B)
    S = R + mul(t(B), PB)
    cross = mul(t(PB), A) + t(N)
    K = mul(batch_last.inverse(S), cross)
    residual = _relative(mul(t(A), PA), -P, -mul(t(cross), K), Q)
    stable = decays & batch_last.positive(S)
    return Solution(K, P, A - mul(B, K), residual, stable.astype(P.dtype)), _error(residual, stable)


def _error(residual: Array, stable: Array) -> Array:
    return jnp.where(stable & (residual < jnp.inf), residual, jnp.inf)


def fast_continuous(*args: Array) -> tuple[Solution, Array]:
    """The continuous design on lanes by doubling; and its error, infinite where the loop is not stable."""
    problem = Problem(*args)
    return finish_continuous(problem, *kleinman(problem, _doubled_continuous(*problem.reduced())))


def fast_discrete(*args: Array) -> tuple[Solution, Array]:
    """The discrete design on lanes by doubling; and its error, infinite where the loop is not stable."""
    problem = Problem(*args)
    return finish_discrete(problem, *hewer(problem, doubled(*problem.reduced())))
