"""Riccati equations on the host in double precision: doubling by NumPy, and SciPy's pencil where that is not exact.

Nothing is compiled, so a first design takes a millisecond instead of seconds, and LAPACK pivots. In discrete time R
may be singular: the pencil, as Newton's steps, needs R + BᵀPB > 0 only.

Sources: :mod:`lqrlab.control.riccati.doubling`; P. Van Dooren, A generalized eigenvalue approach for solving Riccati
equations, SIAM J. Sci. Stat. Comput. 2 (1981) [the pencil].
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import scipy  # its modules load when they are first used
from jaxtyping import Float

from lqrlab.compute.linalg import batch_last
from lqrlab.control.riccati.doubling import DoublingProblem, Solution, accepted, by_doubling

_NEWTON = 20
_EXACT = 1e-14  # relative residual that no Newton step makes smaller
_DOUBLED = 1e-13  # that doubling and its Newton step leave, at most
_TOLD = 1e-11  # of any state's cost that an answer may be wrong by before it is polished

Problem = Sequence[np.ndarray]
"""A, B, Q, R, N."""


def solved(problems: Sequence[np.ndarray], *, continuous: bool, enough: float) -> tuple[Solution, np.ndarray]:
    """Solutions of A, B, Q, R, N ``[batch, …]``, and errors ``[batch]``: infinite where no stabilizing one is found.

    From a relative residual above ``enough`` on a second Newton step is tried.
    """
    answer, error = batch_last.on_host(partial(by_doubling, continuous=continuous), (2,) * 5, problems)
    for i in np.flatnonzero(~(error <= _DOUBLED * _moved(answer.closed, continuous))):
        with np.errstate(all="ignore"):  # what is not finite has no answer
            found, left = _by_pencil(tuple(a[i] for a in problems), continuous, enough)
        if left < error[i] or not error[i] < np.inf:
            for old, new in zip((*answer, error), (*found, left)):
                old[i] = new
    known = np.flatnonzero(error < np.inf)
    with np.errstate(all="ignore"):
        for i in known[error[known] > _TOLD * _cheapest(problems[0][known], answer.P[known], continuous)]:
            polished = _polished(tuple(a[i] for a in problems), answer.P[i], continuous) or ()
            for old, new in zip(answer, polished[:3]):  # whether it is given out is decided before
                old[i] = new
    return answer, error


def _cheapest(A: np.ndarray, P: np.ndarray, continuous: bool) -> Float[np.ndarray, " batch"]:
    """The least cost of any direction, as a share of the largest term of the equation, whose errors are relative."""
    size = np.sqrt(np.maximum(np.diagonal(P, axis1=1, axis2=2), np.finfo(float).tiny))
    even, grown = (a / size[:, None] / size[:, :, None] for a in (P, P if continuous else A.mT @ P @ A))
    even = np.where(np.isfinite(even), even, 0.0)  # of what is no cost at all
    return np.linalg.eigvalsh(even)[:, 0] / np.abs(grown).max((1, 2))


def _polished(problem: Problem, P: np.ndarray, continuous: bool) -> Solution | None:
    """The answer after Newton's steps in coordinates x̃ = Lᵀx, LLᵀ = P, in which P is nearly one, with its residual.

    No direction that costs little beside others loses its digits there: of twelve unstable modes P was off by 5e-4 at
    a residual of 6e-9. It counts as stable where the rounding of the matrices as they were given does not decide.
    """
    try:
        L = np.linalg.cholesky(P).astype(np.longdouble)  # what cancels on the way there is not in double's digits
    except np.linalg.LinAlgError:  # a state that costs nothing
        return None
    back = np.linalg.inv(L.astype(float)).T.astype(np.longdouble)
    back = back + back @ (np.eye(len(P)) - L.T @ back)
    A, B, Q, R, N = problem
    even = L.T @ A @ back, L.T @ B, back.T @ Q @ back, R, back.T @ N
    even = DoublingProblem(*(a.astype(float)[..., None] for a in even))
    best, after, least = np.eye(len(P)), np.eye(len(P)), np.inf
    for _ in range(4):
        closed, wrong = even.newton_equation(after[..., None], continuous=continuous)
        if not np.abs(wrong).max() < least:
            break
        best, least = after, np.abs(wrong).max()
        step = _lyapunov(closed[..., 0].T, wrong[..., 0], continuous)
        after = after + (step + step.T) / 2
    found, error = _answered(even, best, continuous)
    if error == np.inf:
        return None
    K, P = found.K @ L.T, L @ best @ L.T
    into, A_, B_, Q_, R_, N_, out, K_ = (abs(a.astype(float)) for a in (L.T, A, B, Q, R, N, back, K))
    rounded = into @ A_ @ out, into @ B_, out.T @ Q_ @ out, R_, out.T @ N_, K_ @ out
    solve = partial(_lyapunov, continuous=continuous)
    sure = even.determined(best[..., None], solve, [a[..., None] for a in rounded], continuous=continuous)
    return found._replace(K=K, P=(P + P.T) / 2, closed=A - B @ K, stable=sure[0].astype(float))


def scales(problem: Problem) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """d, r, powers of two, of x = diag(d) x̃, u = diag(r) ũ in whose equation the numbers are of like size."""
    A, B, Q, R, N = map(np.abs, problem)
    n = len(A)
    pencil = np.block([[A, np.zeros_like(A), B], [Q, A.T, N], [N.T, B.T, R]])
    np.fill_diagonal(pencil, 0.0)  # no scaling changes it
    _, (size, _) = scipy.linalg.matrix_balance(np.nan_to_num(pencil), permute=False, separate=True)
    return 2.0 ** np.round(np.log2(size[:n] / size[n : 2 * n]) / 2), size[2 * n :]


def _by_pencil(problem: Problem, continuous: bool, enough: float) -> tuple[Solution, float]:
    """The best answer on the way of Newton's steps from the pencil's, of one problem."""
    equation = DoublingProblem(*(a[..., None] for a in problem))
    now, left = best, error = _answered(equation, _started(problem, continuous), continuous)
    for k in range(_NEWTON):  # near the boundary of stability the first may lead away, and each halves the error
        if not (enough if k else _EXACT * _moved(best.closed, continuous)) < best.residual < np.inf or left == np.inf:
            break
        closed, wrong = equation.newton_equation(now.P[..., None], continuous=continuous)
        step = _lyapunov(closed[..., 0].T, wrong[..., 0], continuous)
        now, left = _answered(equation, now.P + (step + step.T) / 2, continuous)
        if left < error:
            best, error = now, left
    fine = best.residual < accepted(best.P.dtype)  # no other is given out
    solve = partial(_lyapunov, continuous=continuous)
    if error == np.inf or (fine and equation.determined(best.P[..., None], solve, continuous=continuous)):
        return best, error
    polished = _polished(problem, best.P, continuous)
    if polished is not None and polished.stable:
        return polished, float(polished.residual)
    return (best._replace(stable=np.array(0.0)), np.inf) if fine else (best, error)


def _answered(equation: DoublingProblem, P: np.ndarray, continuous: bool) -> tuple[Solution, float]:
    """Gain and certificate of P, and its error: infinite where the loop is not stable, by its eigenvalues."""
    batch, error = equation.finished(P[..., None], np.ones(1, bool), continuous=continuous)
    found = Solution(*(a[..., 0] for a in batch))
    if error[0] < np.inf:
        poles = np.linalg.eigvals(found.closed)
        if poles.real.max() < 0 if continuous else np.abs(poles).max() < 1:
            return found, float(error[0])
    return found._replace(stable=np.array(0.0)), np.inf


def _moved(closed: np.ndarray, continuous: bool) -> np.ndarray | float:
    """Below 1 for a loop that moves by less than a thousandth within a sample: terms of its equation cancel."""
    return 1.0 if continuous else np.minimum(1.0, 1e3 * np.abs(closed - np.eye(closed.shape[-1])).max((-1, -2)))


def _started(problem: Problem, continuous: bool) -> np.ndarray:
    """P by the pencil in even units; in those given where LAPACK cannot bring the even one's modes into order."""
    A, B, Q, R, N = problem
    d, r = scales(problem)
    both = d[:, None] * d
    even = A * d / d[:, None], B * r / d[:, None], Q * both, R * r * r[:, None], N * d[:, None] * r
    P = _stable_graph(even, continuous) / both
    return P if np.isfinite(P).all() else _stable_graph(problem, continuous)


def optimality(problem: Problem, continuous: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """L and M of the optimality conditions of x and Px, L − λM, without u; None if they are not finite."""
    A, B, Q, R, N = problem
    (n, m), one, zero = B.shape, np.eye(len(A)), np.zeros_like(A)
    if continuous:
        left = np.block([[A, zero, B], [-Q, -A.T, -N], [N.T, B.T, R]])
        right = np.eye(2 * n + m, 2 * n)
    else:
        left = np.block([[A, zero, B], [-Q, one, -N], [N.T, np.zeros((m, n)), R]])
        right = np.block([[one, zero], [zero, A.T], [np.zeros((m, n)), -B.T]])
    if not np.isfinite(left).all():
        return None
    rest = scipy.linalg.qr(left[:, 2 * n :])[0][:, m:].T  # what is orthogonal to the columns of u
    return rest @ left[:, : 2 * n], rest @ right


def _stable_graph(problem: Problem, continuous: bool) -> np.ndarray:
    """P of the graph [I; P] of the stable deflating subspace of the optimality conditions.

    As in ``scipy.linalg.solve_*_are``, whose triangular solves take milliseconds on cores that others use.
    """
    n, pencil = len(problem[0]), optimality(problem, continuous)
    if pencil is None:
        return np.full_like(problem[0], np.nan)
    try:
        *_, U = scipy.linalg.ordqz(*pencil, sort="lhp" if continuous else "iuc")
        P = np.linalg.solve(U[:n, :n].T, U[n:, :n].T)
    except (np.linalg.LinAlgError, ValueError):  # no graph; an order that rounding does not allow
        return np.full_like(problem[0], np.nan)
    return (P + P.T) / 2


def _lyapunov(a: np.ndarray, q: np.ndarray, continuous: bool) -> np.ndarray:
    """X of a X + X aᵀ + q = 0 or, by a bilinear transform, of X = a X aᵀ + q; SciPy's would warn of what is checked.

    NaN where a, or what its transform becomes, is none of a loop: a mode at −1, an overflow. Also of a batch of one.
    """
    if a.ndim > 2:
        return _lyapunov(a[..., 0], q[..., 0], continuous)[..., None]
    try:
        if not continuous:
            one = np.eye(len(a))
            moved = np.linalg.inv(a + one)
            a, q = moved @ (a - one), 2 * moved @ q @ moved.T
        T, Z = scipy.linalg.schur(a)
    except ValueError:  # LinAlgError is one
        return np.full_like(q, np.nan)
    return Z @ scipy.linalg.lapack.dtrsyl(T, T, -Z.T @ q @ Z, tranb="T")[0] @ Z.T
