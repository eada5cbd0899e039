"""Algebraic Riccati equations by structure-preserving doubling, polished by a Newton step; the batch on the last axis.

Sources: E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, C.-S. Wang, Structure-preserving algorithms for periodic
discrete-time algebraic Riccati equations, Int. J. Control 77 (2004), eqs. (10)-(12) [discrete]; E. K.-W. Chu,
H.-Y. Fan, W.-W. Lin, A structure-preserving doubling algorithm for continuous-time algebraic Riccati equations,
Linear Algebra Appl. 396 (2005), eqs. (15)-(17) [continuous]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968)
and G. A. Hewer, ibid. 16 (1971) [Newton].
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import Arrays, eye, mul, symmetric, t
from lqrlab.control.lyapunov import smith, smith_continuous, stage_weight

_DOUBLINGS = 12  # problems that have not converged by then go to the sign function
CORRECTION = 1e-3  # six digits of a Newton step are enough


class Solution(NamedTuple):
    """Gain, cost to go, closed loop A − BK, relative residual and whether the loop is stable (1.0 or 0.0).

    Here with the batch on the last axis; from :mod:`lqrlab.control.riccati.equations` on with leading axes, JAX's
    arrays or NumPy's.
    """

    K: Any
    P: Any
    closed: Any
    residual: Any
    stable: Any


def doubled(
    A: Float[Arrays, "n n batch"], G: Float[Arrays, "n n batch"], H: Float[Arrays, "n n batch"]
) -> Float[Arrays, "n n batch"]:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H.

    With W = (I + GH)⁻¹ each step A ← AWA, G ← G + AWGAᵀ, H ← H + AᵀHWA doubles the horizon that H is the cost of.
    """
    one = eye(A.shape[0], A)
    enough = float(jnp.finfo(A.dtype).eps) ** 0.4  # the error is its square, and Newton squares that again

    def more(state: tuple) -> Any:
        _, _, H, step, k = state
        change, scale = batch_last.largest(step), batch_last.largest(H)
        return ((change > enough * scale) & (change < jnp.inf)).any() & (k < _DOUBLINGS)

    def double(state: tuple) -> tuple:
        A, G, H, _, k = state
        inverse = batch_last.inverse(one + mul(G, H))
        WA = mul(inverse, A)
        step = symmetric(mul(t(A), mul(H, WA)))
        G = G + symmetric(mul(mul(A, mul(inverse, G)), t(A)))
        return mul(A, WA), G, H + step, step, k + 1

    return batch_last.repeat_while(more, double, (A, G, H, H, 0))[2]


def _transformed(F: Arrays, G: Arrays, H: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """The discrete problem that has the solution of FᵀP + PF − PGP + H = 0, by a Cayley transform."""
    n = F.shape[0]
    # the shift near the size of the closed loop's modes: tr(Hamiltonian²) = 2 Σ λ²
    squares = (F * t(F) + G * H).sum(axis=(0, 1)) / n
    low = 0.01 * (F * F).sum(axis=(0, 1)) / n + float(jnp.finfo(F.dtype).tiny)
    shift = batch_last.library(F).maximum(abs(squares), low)[None, None] ** 0.5
    inverse = batch_last.inverse(F - shift * eye(n, F))
    W = batch_last.inverse(F - shift * eye(n, F) + mul(G, mul(t(inverse), H)))
    return (
        eye(n, F) + 2 * shift * W,
        symmetric(2 * shift * mul(mul(inverse, G), t(W))),
        symmetric(2 * shift * mul(t(W), mul(H, inverse))),
    )


class DoublingProblem(NamedTuple):
    """A, B, Q, R, N of a Riccati equation, the batch on the last axis."""

    A: Float[Arrays, "n n batch"]
    B: Float[Arrays, "n m batch"]
    Q: Float[Arrays, "n n batch"]
    R: Float[Arrays, "m m batch"]
    N: Float[Arrays, "n m batch"]

    def reduced(self) -> tuple[Arrays, Arrays, Arrays]:
        """F = A − BR⁻¹Nᵀ, G = BR⁻¹Bᵀ, H = Q − NR⁻¹Nᵀ: the same problem without a cross weight."""
        A, B, Q, R, N = self
        invR = batch_last.inverse(R)
        NR = mul(N, invR)
        return A - mul(B, t(NR)), symmetric(mul(B, mul(invR, t(B)))), symmetric(Q - mul(NR, t(N)))

    def gain(self, P: Arrays, *, continuous: bool) -> tuple[Arrays, Arrays, Arrays]:
        """S, M and K = S⁻¹Mᵀ: S = R, M = PB + N in continuous, S = R + BᵀPB, M = AᵀPB + N in discrete time."""
        A, B, _, R, N = self
        PB = mul(P, B)
        S, M = (R, PB + N) if continuous else (R + mul(t(B), PB), mul(t(A), PB) + N)
        return S, M, batch_last.quotient(S, t(M))

    def newton_equation(self, P: Arrays, *, continuous: bool) -> tuple[Arrays, Arrays]:
        """F = A − BK of P, and the right-hand side of the Lyapunov equation of Fᵀ by which Newton's step corrects P."""
        K = self.gain(P, continuous=continuous)[2]
        closed = self.A - mul(self.B, K)
        # exact for short samples: FᵀPF − P would lose the digits
        D = closed if continuous else closed - eye(len(P), P)
        PD = mul(P, D)
        stage = stage_weight(self.Q, self.R, self.N, K, mul=mul, t=t)  # an error in K enters it squared
        wrong = PD + t(PD) + stage
        return closed, symmetric(wrong if continuous else wrong + mul(t(D), PD))

    def newton_step(self, P: Arrays, *, continuous: bool) -> tuple[Arrays, Bool[Arrays, " batch"]]:
        """P after a step by Kleinman (continuous) or Hewer (discrete), and whether the loop of P is stable."""
        closed, wrong = self.newton_equation(P, continuous=continuous)
        step, stable = (smith_continuous if continuous else smith)(t(closed), wrong, CORRECTION)
        return P + symmetric(step), stable

    def finished(self, P: Arrays, stable: Arrays, *, continuous: bool) -> tuple[Solution, Arrays]:
        """Gain and certificate of P, and its error: infinite where the loop is not stable."""
        S, M, K = self.gain(P, continuous=continuous)
        PA = mul(P, self.A)
        terms = (PA, t(PA)) if continuous else (mul(t(self.A), PA), -P)
        residual = _relative(*terms, -mul(M, K), self.Q)
        stable = stable & batch_last.positive(S)
        error = batch_last.library(P).where(stable & (residual < jnp.inf), residual, jnp.inf)
        return Solution(K, P, self.A - mul(self.B, K), residual, stable.astype(P.dtype)), error


def _relative(*terms: Arrays) -> Arrays:
    library = batch_last.library(*terms)
    scale = functools.reduce(library.maximum, [batch_last.largest(term) for term in terms])
    return batch_last.largest(sum(terms[1:], terms[0])) / library.where(scale > 0, scale, 1.0)


def by_doubling(*matrices: Arrays, continuous: bool) -> tuple[Solution, Arrays]:
    """The solution of A, B, Q, R, N by doubling; and its error, infinite where the loop is not stable."""
    problem = DoublingProblem(*matrices)
    F, G, H = problem.reduced()
    P = doubled(*(_transformed(F, G, H) if continuous else (F, G, H)))
    P, stable = problem.newton_step(P, continuous=continuous)
    return problem.finished(P, stable, continuous=continuous)
