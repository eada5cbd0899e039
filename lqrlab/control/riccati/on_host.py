"""Riccati equations on the host in double precision: the pencil of each by SciPy, and Newton's steps.

Nothing is compiled, so a first design takes a millisecond instead of seconds, and LAPACK pivots. In discrete time R
may be singular: the pencil, as Newton's steps, needs R + BᵀPB > 0 only.

Sources: P. Van Dooren, A generalized eigenvalue approach for solving Riccati equations, SIAM J. Sci. Stat. Comput. 2
(1981) [the pencil]; D. L. Kleinman, IEEE Trans. Autom. Control 13 (1968), G. A. Hewer, ibid. 16 (1971) [Newton].
"""

from collections.abc import Sequence

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Float

from lqrlab.control.lyapunov import stage_weight
from lqrlab.control.riccati.doubling import Solution

_NEWTON = 20
_EXACT = 1e-14  # relative residual that no Newton step makes smaller

Problem = Sequence[np.ndarray]
"""A, B, Q, R, N."""


def solved(
    problems: Sequence[np.ndarray], *, continuous: bool, enough: float
) -> tuple[Solution, Float[np.ndarray, " batch"]]:
    """Solutions of A, B, Q, R, N ``[batch, …]``, and their errors: infinite where no stabilizing one is found.

    Args:
        problems: of double precision.
        continuous: which equation.
        enough: the relative residual above which a second Newton step is tried.
    """
    with np.errstate(all="ignore"):  # what is not finite has no answer
        found = [_polished(problem, continuous, enough) for problem in zip(*problems)]
    return Solution(*(np.stack(a) for a in zip(*(answer for answer, _ in found)))), np.array([e for _, e in found])


def scales(problem: Problem) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """d, r, powers of two, of x = diag(d) x̃, u = diag(r) ũ in whose equation the numbers are of like size."""
    A, B, Q, R, N = map(np.abs, problem)
    n = len(A)
    pencil = np.block([[A, np.zeros_like(A), B], [Q, A.T, N], [N.T, B.T, R]])
    np.fill_diagonal(pencil, 0.0)  # no scaling changes it
    _, (size, _) = scipy.linalg.matrix_balance(np.nan_to_num(pencil), permute=False, separate=True)
    return 2.0 ** np.round(np.log2(size[:n] / size[n : 2 * n]) / 2), size[2 * n :]


def _polished(problem: Problem, continuous: bool, enough: float) -> tuple[Solution, float]:
    """The best answer on the way of Newton's steps from the pencil's."""
    now, left = best, error = _answered(problem, _started(problem, continuous), continuous)
    # terms of a loop that moves by less than a thousandth within a sample cancel: its equation is to hold more exactly
    moved = 1.0 if continuous else min(1.0, 1e3 * np.abs(best.closed - np.eye(len(best.closed))).max())
    for k in range(_NEWTON):  # near the boundary of stability the first may lead away, and each halves the error
        if not (enough if k else _EXACT * moved) < error < np.inf or left == np.inf:
            break
        now, left = _answered(problem, _newton_step(problem, now, continuous), continuous)
        if left < error:
            best, error = now, left
    return best, error


def _started(problem: Problem, continuous: bool) -> np.ndarray:
    """P by the pencil in even units; in those given where LAPACK cannot bring the even one's modes into order."""
    A, B, Q, R, N = problem
    d, r = scales(problem)
    both = d[:, None] * d
    even = A * d / d[:, None], B * r / d[:, None], Q * both, R * r * r[:, None], N * d[:, None] * r
    P = _by_pencil(even, continuous) / both
    return P if np.isfinite(P).all() else _by_pencil(problem, continuous)


def _by_pencil(problem: Problem, continuous: bool) -> np.ndarray:
    """P of the graph [I; P] of the stable deflating subspace of the optimality conditions of x, Px and u.

    As in ``scipy.linalg.solve_*_are``, whose triangular solves take milliseconds on cores that others use.
    """
    A, B, Q, R, N = problem
    (n, m), one, zero = B.shape, np.eye(len(A)), np.zeros_like(A)
    if continuous:
        left = np.block([[A, zero, B], [-Q, -A.T, -N], [N.T, B.T, R]])
        right = np.eye(2 * n + m, 2 * n)
    else:
        left = np.block([[A, zero, B], [-Q, one, -N], [N.T, np.zeros((m, n)), R]])
        right = np.block([[one, zero], [zero, A.T], [np.zeros((m, n)), -B.T]])
    if not np.isfinite(left).all():
        return np.full_like(A, np.nan)
    rest = scipy.linalg.qr(left[:, 2 * n :])[0][:, m:].T  # what is orthogonal to the columns of u
    try:
        *_, U = scipy.linalg.ordqz(rest @ left[:, : 2 * n], rest @ right, sort="lhp" if continuous else "iuc")
        P = np.linalg.solve(U[:n, :n].T, U[n:, :n].T)
    except (np.linalg.LinAlgError, ValueError):  # no graph; an order that rounding does not allow
        return np.full_like(A, np.nan)
    return (P + P.T) / 2


def _newton_step(problem: Problem, answer: Solution, continuous: bool) -> np.ndarray:
    """P after a step by Kleinman (continuous) or Hewer (discrete)."""
    _, _, Q, R, N = problem
    K, P, F, *_ = answer
    D = F if continuous else F - np.eye(len(F))  # exact for a short sample time, whose digits FᵀPF − P would lose
    PD = P @ D
    wrong = PD + PD.T + stage_weight(Q, R, N, K, mul=np.matmul, t=np.transpose)  # an error in K enters it squared
    wrong = wrong if continuous else wrong + D.T @ PD
    step = _lyapunov(F.T, (wrong + wrong.T) / 2, continuous)
    return P + (step + step.T) / 2


def _lyapunov(a: np.ndarray, q: np.ndarray, continuous: bool) -> np.ndarray:
    """X of a X + X aᵀ + q = 0 or, by a bilinear transform, of X = a X aᵀ + q; SciPy's would warn of what is checked."""
    if not continuous:
        one = np.eye(len(a))
        moved = np.linalg.inv(a + one)
        a, q = moved @ (a - one), 2 * moved @ q @ moved.T
    T, Z = scipy.linalg.schur(a)
    return Z @ scipy.linalg.lapack.dtrsyl(T, T, -Z.T @ q @ Z, tranb="T")[0] @ Z.T


def _answered(problem: Problem, P: np.ndarray, continuous: bool) -> tuple[Solution, float]:
    """Gain and certificate of P, and its error: infinite where the loop is not stable."""
    A, B, Q, R, N = problem
    PA = P @ A
    S, M = (R, P @ B + N) if continuous else (R + B.T @ P @ B, A.T @ P @ B + N)
    nan = np.full_like(A, np.nan)
    nothing = Solution(np.full_like(B.T, np.nan), nan, nan, np.array(np.nan), np.array(0.0)), np.inf
    if not (np.isfinite(S).all() and np.linalg.eigvalsh((S + S.T) / 2)[0] > 0):
        return nothing
    K = np.linalg.solve(S, M.T)
    closed = A - B @ K
    if not np.isfinite(closed).all():
        return nothing
    terms = (*((PA, PA.T) if continuous else (A.T @ PA, -P)), -M @ K, Q)
    scale = max(np.abs(term).max() for term in terms)
    residual = np.abs(sum(terms)).max() / (scale if scale > 0 else 1.0)
    poles = np.linalg.eigvals(closed)
    stable = bool(poles.real.max() < 0 if continuous else np.abs(poles).max() < 1)
    error = float(residual) if stable and residual < np.inf else np.inf
    return Solution(K, P, closed, residual, np.array(float(stable))), error
