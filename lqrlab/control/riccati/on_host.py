"""Riccati equations on the host in double precision, by NumPy alone: doubling, then the matrix sign function.

Nothing is compiled, so a first design takes a millisecond instead of seconds, and LAPACK pivots. The methods are
those of :mod:`lqrlab.control.riccati.doubling` and :mod:`lqrlab.control.riccati.matrix_sign`, which name their
sources; here the batch is in front. In discrete time R may be singular: Newton steps lead from the problem with a
slightly larger R to that with R itself, for they need R + BᵀPB > 0 only (Hewer, 1971).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from lqrlab.control.riccati.doubling import Solution

_DOUBLINGS, _SQUARINGS, _SIGN_STEPS, _BALANCING, _NEWTON = 14, 48, 60, 24, 20
_EXACT = 1e-14  # relative residual that no Newton step makes smaller
_ADDED = 1e-8  # to a singular R, relative to what its inputs cost otherwise

Matrices = Float[np.ndarray, "batch _ _"]
Numbers = Float[np.ndarray, " batch"]
Answer = Any
"""A :class:`Solution` of NumPy's arrays with the batch in front."""


def inverse(a: Matrices) -> Matrices:
    """a⁻¹; NaN for a singular member."""
    try:
        return np.linalg.inv(a)
    except np.linalg.LinAlgError:
        if len(a) == 1:
            return np.full_like(a, np.nan)
        return np.concatenate([inverse(one) for one in a[:, None]])


def symmetric(a: Matrices) -> Matrices:
    """(a + aᵀ) / 2."""
    return (a + a.mT) / 2


def largest(a: Matrices) -> Float[np.ndarray, "batch 1 1"]:
    """max |a| of each member."""
    return np.abs(a).max((-1, -2), keepdims=True)


def lyapunov(a: Matrices, q: Matrices, *, continuous: bool) -> Matrices:
    """X of X = a X aᵀ + q, or of a X + X aᵀ + q = 0 by a Cayley transform; not finite or huge for unstable a."""
    if continuous:
        one, size = np.eye(a.shape[-1]), np.linalg.norm(a, axis=(-1, -2), keepdims=True)
        shift = np.where(size > 0, size, 1.0) / a.shape[-1] ** 0.5
        moved = inverse(shift * one - a)
        a, q = 2 * shift * moved - one, 2 * shift * moved @ q @ moved.mT
    for _ in range(_SQUARINGS):
        q, a = q + a @ q @ a.mT, a @ a
        size = np.abs(a).sum(-1).max(-1)
        if not np.any((size > 1e-9) & (size < 1e12)):
            break
    return q


class Equations(NamedTuple):
    """A, B, Q, R, N of Riccati equations, the batch in front."""

    A: Float[np.ndarray, "batch n n"]
    B: Float[np.ndarray, "batch n m"]
    Q: Float[np.ndarray, "batch n n"]
    R: Float[np.ndarray, "batch m m"]
    N: Float[np.ndarray, "batch n m"]
    continuous: bool

    @classmethod
    def of(cls, problems: Sequence[np.ndarray], *, continuous: bool) -> "Equations":
        """Those of A, B, Q, R, N."""
        A, B, Q, R, N = problems
        return cls(A, B, Q, R, N, continuous)

    def taken(self, members: np.ndarray) -> "Equations":
        """Some of them."""
        return Equations.of([a[members] for a in self[:5]], continuous=self.continuous)

    def reduced(self) -> tuple[Matrices, Matrices, Matrices]:
        """F = A − BR⁻¹Nᵀ, G = BR⁻¹Bᵀ, H = Q − NR⁻¹Nᵀ: the same problems without a cross weight."""
        A, B, Q, R, N = self[:5]
        invR = inverse(R)
        NR = N @ invR
        return A - B @ NR.mT, symmetric(B @ invR @ B.mT), symmetric(Q - NR @ N.mT)

    def answered(self, P: Matrices) -> tuple[Answer, Numbers]:
        """Gain and certificate of P, and its error: infinite where the loop is not stable."""
        A, B, Q, R, N = self[:5]
        PA = P @ A
        S, M = (R, P @ B + N) if self.continuous else (R + B.mT @ P @ B, A.mT @ P @ B + N)
        K = quotient(S, M.mT)
        closed = A - B @ K
        terms = (*((PA, PA.mT) if self.continuous else (A.mT @ PA, -P)), -M @ K, Q)
        scale = np.max([largest(term) for term in terms], axis=0)
        residual = largest(sum(terms[1:], terms[0])) / np.where(scale > 0, scale, 1.0)
        finite = np.isfinite(closed).all((-1, -2)) & np.isfinite(S).all((-1, -2))
        poles = np.linalg.eigvals(np.where(finite[:, None, None], closed, 2.0))
        stable = poles.real.max(-1) < 0 if self.continuous else np.abs(poles).max(-1) < 1
        stable &= finite & (np.linalg.eigvalsh(symmetric(np.where(finite[:, None, None], S, 0.0)))[:, 0] > 0)
        residual = residual[:, 0, 0]
        error = np.where(stable & (residual < np.inf), residual, np.inf)
        return Solution(K, P, closed, residual, stable.astype(float)), error  # type: ignore[arg-type]

    def polished(self, P: Matrices, enough: float) -> tuple[Answer, Numbers]:
        """The best answer on the way of Newton steps from P by Kleinman (continuous) or Hewer (discrete)."""
        best, error = self.answered(P)
        for k in range(_NEWTON):
            moving = np.flatnonzero((error < np.inf) & (error > (enough if k else _EXACT)))
            if not len(moving):
                break
            some = self.taken(moving)
            P, K, F = best.P[moving], best.K[moving], best.closed[moving]
            PF, NK = P @ F, some.N @ K
            stage = some.Q + K.mT @ some.R @ K - NK - NK.mT  # an error in K enters it squared
            wrong = symmetric(PF + PF.mT + stage if self.continuous else F.mT @ PF - P + stage)
            step = symmetric(lyapunov(F.mT, wrong, continuous=self.continuous))
            after, left = some.answered(P + step)
            better = left < error[moving]
            if not better.any():
                break
            for old, new in zip((*best, error), (*after, left)):
                old[moving[better]] = new[better]
        return best, error


def quotient(a: Matrices, b: Matrices) -> Matrices:
    """x of ax = b with pivoting, which loses fewer digits than the inverse; NaN for members where a is singular."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        if len(a) == 1:
            return np.full_like(b, np.nan)
        return np.concatenate([quotient(one, right) for one, right in zip(a[:, None], b[:, None])])


def doubled(A: Matrices, G: Matrices, H: Matrices) -> Matrices:
    """The stabilizing solution of X = AᵀX(I + GX)⁻¹A + H."""
    one = np.eye(A.shape[-1])
    for _ in range(_DOUBLINGS):
        W = inverse(one + G @ H)
        WA = W @ A
        step = symmetric(A.mT @ H @ WA)
        A, G, H = A @ WA, G + symmetric(A @ W @ G @ A.mT), H + step
        change = largest(step) / np.maximum(largest(H), np.finfo(float).tiny)
        if not np.any((change > 1e-7) & (change < np.inf)):
            break
    return H


def _cayley(F: Matrices, G: Matrices, H: Matrices) -> tuple[Matrices, Matrices, Matrices]:
    """The discrete problem that has the solution of FᵀP + PF − PGP + H = 0."""
    n, one = F.shape[-1], np.eye(F.shape[-1])
    squares = np.sum(F * F.mT + G * H, axis=(-1, -2), keepdims=True) / n
    low = 0.01 * np.sum(F * F, axis=(-1, -2), keepdims=True) / n + np.finfo(float).tiny
    shift = np.sqrt(np.maximum(np.abs(squares), low))
    first = inverse(F - shift * one)
    W = inverse(F - shift * one + G @ first.mT @ H)
    return (one + 2 * shift * W, symmetric(2 * shift * first @ G @ W.mT), symmetric(2 * shift * W.mT @ H @ first))


def by_doubling(equations: Equations, enough: float) -> tuple[Answer, Numbers]:
    """Solutions by doubling and Newton steps, and their errors."""
    reduced = equations.reduced()
    return equations.polished(doubled(*(_cayley(*reduced) if equations.continuous else reduced)), enough)


def scales(F: Matrices, G: Matrices, H: Matrices) -> Float[np.ndarray, "batch n"]:
    """d that evens out the rows and columns of the Hamiltonian [F −G; −H −Fᵀ] of x = D x̃, D = diag(d)."""
    f, g, h = np.abs(F) * (1 - np.eye(F.shape[-1])), np.abs(G), np.abs(H)  # no scaling changes the diagonal
    d = np.ones(F.shape[:-1])
    for _ in range(_BALANCING):
        ratio, both = d[:, None] / d[..., None], d[:, None] * d[..., None]
        rows = np.sum(f * ratio + g / both, axis=-1)
        columns = np.sum(f * ratio, axis=-2) + np.sum(h * both, axis=-1)
        seen = (rows > 0) & (columns > 0)
        d = d * np.where(seen, np.where(seen, rows, 1.0) / np.where(seen, columns, 1.0), 1.0) ** 0.25
        d = np.where(np.isfinite(d) & (d > 0), d, 1.0)
    return 2.0 ** np.round(np.log2(d))  # powers of two: exact


def _stable_subspace(S: Matrices) -> Matrices:
    """P of the graph [I; P] of the stable invariant subspace of S, from Z = sign(S) by Newton's Z ← (cZ + (cZ)⁻¹)/2."""
    n = S.shape[-1] // 2
    Z, change = S, np.ones((len(S), 1, 1))

    def norm(a: Matrices) -> Float[np.ndarray, "batch 1 1"]:
        return np.linalg.norm(a, axis=(-1, -2), keepdims=True)

    for _ in range(_SIGN_STEPS):
        inverted = inverse(Z)
        c = np.sqrt(norm(inverted) / norm(Z))
        c = np.where((change > 1e-2) & np.isfinite(c) & (c > 0), c, 1.0)
        after = (c * Z + inverted / c) / 2
        change = norm(after - Z) / norm(after)
        Z = after
        if not np.any((change > 1e-14) & (change < np.inf)):
            break
    one = np.eye(2 * n)
    left, right = Z[..., n:] + one[:, n:], -(Z[..., :n] + one[:, :n])  # (Z + I)[I; P] = 0, by least squares
    return inverse(left.mT @ left) @ left.mT @ right


def by_sign_function(equations: Equations, enough: float) -> tuple[Answer, Numbers]:
    """Solutions by the sign function and Newton steps, both of the balanced problems, and their errors."""
    A, B, Q, R, N, continuous = equations
    size = np.sqrt(np.abs(np.einsum("kii->ki", R)))
    r = 2.0 ** -np.round(np.log2(np.where(size > 0, size, 1.0)))[:, None]
    B, R, N = B * r, R * r * r.mT, N * r
    larger = R if continuous else _regular(B, Q, R)
    F, G, H = Equations(A, B, Q, larger, N, continuous).reduced()
    d = scales(F, G, H)
    ratio, both = d[:, None] / d[..., None], d[:, None] * d[..., None]
    F, G, H = F * ratio, G / both, H * both
    if continuous:
        S = np.block([[F, -G], [-H, -F.mT]])
    else:  # (M + L)⁻¹(L − M) of the symplectic pencil L − λM maps the unit circle to the imaginary axis
        zero, one = np.zeros_like(F), np.broadcast_to(np.eye(F.shape[-1]), F.shape)
        L, M = np.block([[F, zero], [-H, one]]), np.block([[one, G], [zero, F.mT]])
        S = inverse(L + M) @ (L - M)
    balanced = Equations(A * ratio, B / d[..., None], Q * both, R, N * d[..., None], continuous)
    answer, _ = balanced.polished(symmetric(_stable_subspace(S)), enough)
    return equations.answered(answer.P / both)


def _regular(B: Matrices, Q: Matrices, R: Matrices) -> Matrices:
    """R, a little larger where it is singular."""
    paid = np.maximum(np.linalg.norm(B, axis=-2, keepdims=True) ** 2 * largest(Q), np.finfo(float).tiny)
    singular = np.linalg.eigvalsh(np.nan_to_num(symmetric(R)))[:, :1, None] <= 1e-14 * largest(R)
    return np.where(singular, R + _ADDED * np.eye(R.shape[-1]) * paid, R)


def solved(problems: Sequence[np.ndarray], *, continuous: bool, enough: float) -> tuple[Answer, Numbers]:
    """Solutions of A, B, Q, R, N ``[batch, …]``, and their errors: infinite where no stabilizing one is found.

    Args:
        problems: of double precision.
        continuous: which equation.
        enough: the relative residual at which an answer is good.
    """
    equations = Equations.of(problems, continuous=continuous)
    with np.errstate(all="ignore"):  # what is not finite has no answer
        answer, error = by_doubling(equations, enough)
        retry(equations, answer, error, enough)
    return answer, error


def retry(equations: Equations, answer: Answer, error: Numbers, enough: float) -> None:
    """Replace answers whose error is too large by the sign function's, where that is better."""
    failed = np.flatnonzero(~(error <= enough))
    if len(failed):
        with np.errstate(all="ignore"):
            found, left = by_sign_function(equations.taken(failed), enough)
        better = ~(left >= np.nan_to_num(error[failed], nan=np.inf))
        for old, new in zip((*answer, error), (*found, left)):
            old[failed[better]] = new[better]
