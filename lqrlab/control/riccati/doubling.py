"""Algebraic Riccati equations by matrix products alone, the batch on the last axis: doubling, and the sign function.

Doubling is polished by a Newton step. Close to the imaginary axis, under bad scaling and with indefinite weights it
stalls or loses digits. The sign iteration on the balanced Hamiltonian then still finds the stable subspace, which
Newton steps polish: without it CAREX 6 and 12 to 14 (P. Benner et al., 1995), as SciPy's tests number them from 1, have
no answer inside a trace.

Sources: E. K.-W. Chu, H.-Y. Fan, W.-W. Lin, C.-S. Wang, Structure-preserving algorithms for periodic
discrete-time algebraic Riccati equations, Int. J. Control 77 (2004), eqs. (10)-(12) [discrete]; E. K.-W. Chu,
H.-Y. Fan, W.-W. Lin, A structure-preserving doubling algorithm for continuous-time algebraic Riccati equations,
Linear Algebra Appl. 396 (2005), eqs. (15)-(17) [continuous]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968)
and G. A. Hewer, ibid. 16 (1971) [Newton]; J. D. Roberts, Int. J. Control 32 (1980), sections 3-4; R. Byers, Linear
Algebra Appl. 85 (1987), section 4 (scaling) [sign function].
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import Arrays, eye, mul, symmetric, t
from lqrlab.control.lyapunov import cayley, even_units, smith, stage_weight

_DOUBLINGS = 12  # problems that have not converged by then go to the sign function
_STEPS, _NEWTON = 60, 8  # of the sign function, and after it
_PATIENT = 2  # Newton steps after which a digit less is enough
_TOLD, _ROUGH = 1e-7, 1e-5  # of any direction's cost; the residual of an answer that may be wrong by more
_DECIDES = 0.2  # share of a Newton step in its second; at a double root a quarter
_SAMPLED = 16  # times as much rounding have the matrices of a sampled plant: an exponential made them
CORRECTION = 1e-3  # six digits of a Newton step are enough


def accepted(dtype: Any) -> float:
    """The largest relative residual of an answer that is given out."""
    return 1e-8 if jnp.finfo(dtype).eps < 1e-10 else 3e-4


class Solution(NamedTuple):
    """Gain, cost to go, closed loop A − BK, relative residual, whether the loop is stable (1.0 or 0.0), and definite.

    Definite (1.0 or 0.0) says that R + BᵀPB > 0, or in continuous time R > 0: else P is no cost's minimum, but may be
    the value of a game. Here with the batch on the last axis; from :mod:`lqrlab.control.riccati.equations` on with
    leading axes, JAX's arrays or NumPy's.
    """

    K: Any
    P: Any
    closed: Any
    residual: Any
    stable: Any
    definite: Any


def twice(A: Arrays, G: Arrays, H: Arrays) -> tuple[Arrays, Arrays, Arrays]:
    """X ← AᵀX(I + GX)⁻¹A + H made two times, as one of the same form with other A, G, H."""
    inverse = batch_last.inverse(eye(A.shape[0], A) + mul(G, H))
    WA = mul(inverse, A)
    G = G + symmetric(mul(mul(A, mul(inverse, G)), t(A)))
    return mul(A, WA), G, H + symmetric(mul(t(A), mul(H, WA)))


def doubled(
    A: Float[Arrays, "n n batch"], G: Float[Arrays, "n n batch"], H: Float[Arrays, "n n batch"]
) -> Float[Arrays, "n n batch"]:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H: H, the cost of a horizon, which each step doubles."""
    enough = float(jnp.finfo(A.dtype).eps) ** 0.4  # the error is its square, and Newton squares that again

    def more(state: tuple) -> Any:
        _, _, H, step, k = state
        # state by state: beside a costly one a slow one would not be waited for
        change, scale = abs(_diagonal(step)), abs(_diagonal(H))
        return ((change > enough * scale) & (change < jnp.inf)).any() & (k < _DOUBLINGS)

    def double(state: tuple) -> tuple:
        *now, _, k = state
        longer = twice(*now)
        return *longer, longer[2] - now[2], k + 1

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

    def newton_step(self, P: Arrays, *, continuous: bool) -> tuple[Arrays, Float[Arrays, " batch"]]:
        """P after a step by Kleinman (continuous) or Hewer (discrete), and how long the loop of P takes to forget.

        In samples, in continuous time in units of the plant's fastest motion: :func:`smith`'s sum.
        """
        closed, wrong = self.newton_equation(P, continuous=continuous)
        size = _size(P)
        to, both = size[None] / size[:, None], size[:, None] * size[None]
        even = t(closed) * to
        step, reach = smith(*(cayley(even, wrong / both) if continuous else (even, wrong / both)), CORRECTION)
        if continuous:
            reach = reach * (1 + batch_last.largest(t(self.A) * to) / batch_last.largest(even))
        return P + symmetric(step * both), reach

    def finished(self, P: Arrays, stable: Arrays, *, continuous: bool) -> tuple[Solution, Arrays]:
        """Gain and certificate of P, and its error: infinite where the loop is not stable.

        The error is the residual in units in which P has ones on its diagonal: in others a state that costs little
        beside another one has no digits to be wrong in.
        """
        S, M, K = self.gain(P, continuous=continuous)
        PA = mul(P, self.A)
        terms = (*((PA, t(PA)) if continuous else (mul(t(self.A), PA), -P)), -mul(M, K), self.Q)
        residual, size = _relative(*terms), _size(P)
        even = _relative(*(term / (size[:, None] * size[None]) for term in terms))
        even = even + (residual >= accepted(P.dtype)).astype(P.dtype)  # none that is given out is worse
        error = batch_last.library(P).where(stable & (even < jnp.inf), even, jnp.inf)
        marks = (mark.astype(P.dtype) for mark in (stable, batch_last.positive(S)))
        return Solution(K, P, self.A - mul(self.B, K), residual, *marks), error

    def determined(self, P: Arrays, lyapunov: Callable, rounded: Sequence[Arrays] = (), *, continuous: bool) -> Any:
        """True ``[batch]`` where no rounding of the matrices decides on P or on the stability of its loop F = A − BK.

        Rounding changes F by a few ε of J = |A| + |B||K|, and the right-hand side of Newton's equation by up to E.
        With Δ of FᵀΔF − Δ + diag(v) = 0 (continuous: FᵀΔ + ΔF + diag(v) = 0), v the sums of E's rows in units in which
        P has ones on its diagonal, P is wrong by Δ at most, and K by S⁻¹BᵀΔF (R⁻¹BᵀΔ). Δ is a Lyapunov function of the
        loops near F if the few ε of J change FᵀΔF by less than v. Newton's second step, of Δ, is small beside the first
        where a stabilizing solution is near (L. Kantorovich's condition); where the closed loop should have a pole on
        the boundary, it is a quarter or more. And S is what it seems if BᵀΔB is small beside it.

        Args:
            P: of an answer.
            lyapunov: solves X = a X aᵀ + q (continuous: a X + X aᵀ + q = 0).
            rounded: what A, B, Q, R, N and K have been rounded in proportion to, if not to themselves.
        """
        few = 4 * float(jnp.finfo(P.dtype).eps)
        S, _, K = self.gain(P, continuous=continuous)
        F, wrong = self.newton_equation(P, continuous=continuous)
        A_, B_, Q_, R_, N_, K_ = rounded or map(abs, (*self, K))
        J = A_ + mul(B_, K_)
        E = mul(t(abs(P if continuous else mul(P, F))), J) + mul(N_, K_)
        E = few * (E + t(E) + Q_ + mul(t(K_), mul(R_, K_))) + abs(wrong)
        size = _size(P)
        to, both = size[:, None] / size[None], size[:, None] * size[None]
        F, B, J, v = F * to, self.B * size[:, None], J * to, (E / both).sum(1)
        v = v + few * (_diagonal(J) + float(not continuous)) + few**2 * v.max(0, keepdims=True)  # where P is zero
        v = v + float(jnp.finfo(P.dtype).tiny) ** 0.5
        delta = lyapunov(t(F), v[None] * batch_last.eye(len(F), F))
        moved = delta if continuous else mul(t(F), delta)
        change = few * (1 if continuous else _SAMPLED) * mul(abs(moved), J)
        kept = (change + t(change)).sum(1) < v
        inward = mul(t(B), t(moved))
        second = lyapunov(t(F), symmetric(mul(t(inward), batch_last.quotient(S, inward))))
        converges = batch_last.positive(_DECIDES * delta - second) & batch_last.positive(delta)
        wrong = few * R_ + (0 if continuous else abs(mul(t(B), mul(delta, B))))
        inverse = batch_last.quotient(S, batch_last.eye(len(S), S) + 0 * S)
        return kept.all(0) & converges & ((abs(inverse) * wrong).sum((0, 1)) < _DECIDES)


def _size(P: Float[Arrays, "n n batch"]) -> Float[Arrays, "n batch"]:
    """Units in which P has ones on its diagonal; one where it has a zero."""
    size = abs(_diagonal(P)) ** 0.5
    return batch_last.library(P).where((size > 0) & (size < jnp.inf), size, 1.0)


def _diagonal(a: Float[Arrays, "n n batch"]) -> Float[Arrays, "n batch"]:
    return batch_last.library(a).diagonal(a, axis1=0, axis2=1).T


def _relative(*terms: Arrays) -> Arrays:
    library = batch_last.library(*terms)
    scale = functools.reduce(library.maximum, [batch_last.largest(term) for term in terms])
    return batch_last.largest(sum(terms[1:], terms[0])) / library.where(scale > 0, scale, 1.0)


def by_doubling(*matrices: Arrays, continuous: bool) -> tuple[Solution, Arrays]:
    """The solution of A, B, Q, R, N by doubling; and its error, infinite where the loop is not stable.

    So it is too where the loop is so slow that rounding might decide, of which another method asks.
    """
    problem = DoublingProblem(*matrices)
    F, G, H = problem.reduced()
    P = doubled(*(_transformed(F, G, H) if continuous else (F, G, H)))
    P, reach = problem.newton_step(P, continuous=continuous)
    found, error = problem.finished(P, reach < jnp.inf, continuous=continuous)
    good = reach * reach * (error + 4 * float(jnp.finfo(P.dtype).eps)) < _DECIDES**2
    return _only(good, problem, found, error, continuous)


def scales(
    F: Float[Array, "n n batch"], G: Float[Array, "n n batch"], H: Float[Array, "n n batch"]
) -> Float[Array, "n batch"]:
    """d that evens out the rows and columns of the Hamiltonian [F −G; −H −Fᵀ] of x = D x̃, D = diag(d)."""
    both = even_units(_hamiltonian(F, G, H, continuous=True), 1.0)
    return 2.0 ** jnp.round(jnp.log2(both[: len(F)] / both[len(F) :]) / 2)  # powers of two: exact


def stable_subspace(S: Float[Array, "twice_n twice_n batch"]) -> Float[Array, "n n batch"]:
    """P of the graph [I; P] of the stable invariant subspace of S, from Z = sign(S) by Newton's Z ← (cZ + (cZ)⁻¹)/2."""
    double = S.shape[0]
    n = double // 2
    one = jnp.broadcast_to(eye(double, S), S.shape)
    tiny = float(jnp.finfo(S.dtype).eps)

    def more(state: tuple) -> Array:
        _, change, k = state
        return jnp.any((change > 100 * tiny) & (change < jnp.inf)) & (k < _STEPS)

    def step(state: tuple) -> tuple:
        Z, change, k = state
        inverse = batch_last.pivoted(Z, one)
        c = jnp.sqrt(batch_last.norm(inverse) / batch_last.norm(Z))
        c = jnp.where((change > 1e-2) & jnp.isfinite(c) & (c > 0), c, 1.0)[None, None]
        after = (c * Z + inverse / c) / 2
        return after, batch_last.norm(after - Z) / batch_last.norm(after), k + 1

    Z, _, _ = jax.lax.while_loop(more, step, (S, jnp.ones_like(S[0, 0]), jnp.zeros((), jnp.int32)))
    # (Z + I)[I; P] = 0, by least squares
    left = Z[:, n:] + one[:, n:]
    right = -(Z[:, :n] + one[:, :n])
    return batch_last.pivoted(mul(t(left), left), mul(t(left), right))


def by_sign_function(
    *matrices: Array, continuous: bool, known: tuple[Solution, Array] | None = None
) -> tuple[Solution, Array]:
    """The solution of A, B, Q, R, N by the sign function of the balanced problem and a few Newton steps.

    From ``known``, an answer and its error, Newton's steps go on where the sign function's P is not stabilizing. The
    best answer on the way is returned, the known one included, and its error: infinite where the loop is not stable.
    """
    problem = DoublingProblem(*matrices)
    best = problem.finished(problem.Q, problem.Q[0, 0] < -jnp.inf, continuous=continuous) if known is None else known
    balanced, both = _balanced(problem)
    fallback = best[0].P * both
    small = batch_last.enough(problem.A.dtype)

    def more(state: tuple) -> Array:
        _, (_, error), k = state
        wanted = small * jnp.where(k < _PATIENT, 1, 10)
        return (k == 0) | (jnp.any((error > wanted) & (error < jnp.inf)) & (k < _NEWTON))

    def step(state: tuple) -> tuple:
        P, best, k = state
        P, reach = balanced.newton_step(P, continuous=continuous)
        stable = reach < jnp.inf
        found = problem.finished(P / both, stable, continuous=continuous)
        which = found[1] < best[1]
        P = jnp.where(stable, P, fallback)
        return P, jax.tree.map(lambda a, b: jnp.where(which, b, a), best, found), k + 1

    S = _hamiltonian(*balanced.reduced(), continuous=continuous)
    found, error = jax.lax.while_loop(more, step, (symmetric(stable_subspace(S)), best, 0))[1]

    def lyapunov(a: Array, q: Array) -> Array:
        X, reach = smith(*cayley(a, q), _DECIDES) if continuous else smith(a, q, _DECIDES)
        return jnp.where(reach < jnp.inf, X, jnp.nan)

    return _only(problem.determined(found.P, lyapunov, continuous=continuous), problem, found, error, continuous)


def _only(sure: Arrays, problem: DoublingProblem, found: Solution, error: Arrays, continuous: bool) -> Any:
    """An answer whose loop counts as stable only where that is ``sure``, or where it is too coarse to be given out.

    In a program, which does not polish, it is where a direction that costs little may be wrong by :data:`_TOLD`.
    """
    A, P, library, size = problem.A, found.P, batch_last.library(found.P), _size(found.P)
    if library is jnp and P.dtype == jnp.float64:
        both, tiny = size[:, None] * size[None], float(jnp.finfo(P.dtype).eps)
        padded = eye(len(P), P) * jnp.where(_diagonal(P) == 0, 1.0, 0.1 * tiny)[None]  # what costs nothing
        grown = batch_last.largest((P if continuous else mul(t(A), mul(P, A))) / both)
        told = (error + tiny) * batch_last.row_sum(batch_last.inverse(P / both + padded)) * jnp.maximum(grown, 1.0)
        rough = jnp.where((error < jnp.inf) & ~(told < _TOLD), _ROUGH, 0.0)
        found = found._replace(residual=jnp.maximum(found.residual, rough))
    sure = sure | (found.residual >= accepted(P.dtype))
    stable = found.stable * sure.astype(P.dtype)
    return found._replace(stable=stable), library.where(sure, error, jnp.inf)


def _balanced(problem: DoublingProblem) -> tuple[DoublingProblem, Array]:
    """The problem in units in which its numbers are of one size, and what its P is larger by, entry by entry."""
    A, B, Q, R, N = problem
    size = jnp.sqrt(jnp.abs(jnp.diagonal(R, axis1=0, axis2=1))).T
    r = 2.0 ** -jnp.round(jnp.log2(jnp.where(size > 0, size, 1.0)))
    B, R, N = B * r[None], R * r[None] * r[:, None], N * r[None]
    d = scales(*DoublingProblem(A, B, Q, R, N).reduced())
    ratio, both = (d[None] / d[:, None]), (d[None] * d[:, None])
    return DoublingProblem(A * ratio, B / d[:, None], Q * both, R, N * d[:, None]), both


def _hamiltonian(F: Array, G: Array, H: Array, *, continuous: bool) -> Array:
    """The matrix whose sign gives P, ``[2n, 2n, batch]``; in discrete time by a bilinear transform.

    (M + L)⁻¹(L − M) of the symplectic pencil L − λM maps the unit circle to the imaginary axis.
    """
    if continuous:
        return jnp.concatenate([jnp.concatenate([F, -G], 1), jnp.concatenate([-H, -t(F)], 1)])
    zero, one = jnp.zeros_like(F), jnp.broadcast_to(eye(F.shape[0], F), F.shape)
    L = jnp.concatenate([jnp.concatenate([F, zero], 1), jnp.concatenate([-H, one], 1)])
    M = jnp.concatenate([jnp.concatenate([one, G], 1), jnp.concatenate([zero, t(F)], 1)])
    return batch_last.pivoted(L + M, L - M)
