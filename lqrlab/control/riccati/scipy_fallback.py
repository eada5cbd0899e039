"""SciPy's Riccati solvers, for a problem outside a trace that neither doubling nor the sign function solves.

They decompose the extended matrix pencil (QZ) and need no inverse of R, so R may be singular or badly conditioned.
"""

import numpy as np
import scipy.linalg


def solved(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, *, continuous: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """``K, P, closed loop, relative residual`` of one problem, or None if this finds no certified answer either."""
    if not all(np.isfinite(a).all() for a in (A, B, Q, R, N)):
        return None
    solve = scipy.linalg.solve_continuous_are if continuous else scipy.linalg.solve_discrete_are
    try:
        P = solve(A, B, Q, R, s=N)
        S = R if continuous else R + B.T @ P @ B
        cross = (P @ B + N) if continuous else (A.T @ P @ B + N)
        K = np.linalg.solve(S, cross.T)
    except (np.linalg.LinAlgError, ValueError):
        return None
    closed = A - B @ K
    poles = np.linalg.eigvals(closed)
    stable = poles.real.max() < 0 if continuous else np.abs(poles).max() < 1
    terms = (A.T @ P, P @ A, -cross @ K, Q) if continuous else (A.T @ P @ A, -P, -cross @ K, Q)
    residual = np.linalg.norm(sum(terms)) / max(np.linalg.norm(t) for t in terms)
    if not (stable and residual < 1e-8 and np.linalg.eigvalsh((S + S.T) / 2).min() > 0):
        return None
    return K, P, closed, np.asarray(residual)
