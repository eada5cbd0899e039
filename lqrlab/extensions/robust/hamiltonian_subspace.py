"""Riccati equations of indefinite weights, by the stable invariant subspace of their Hamiltonian matrix."""

import dataclasses

import numpy as np
import scipy  # its modules load when they are first used

_SKEW = 1e-3  # times U1's least singular value: a subspace of both eigenvalues of a pair on the axis is not symmetric
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class StableSubspace:
    """X = U2 U1⁻¹, the stabilizing solution of a Riccati equation, without the inverse: X may be unbounded.

    Attributes:
        U1, U2: ``[n, n]``; U1ᵀU2 is symmetric.
        motion: A + BF in the coordinates of the subspace: (A + BF) U1 = U1 motion.
        gain: F U1, where F = −R⁻¹(DᵀC + BᵀX).
        least: least eigenvalue of U1ᵀU2, scaled: X is semidefinite where this is not below zero.
    """

    U1: np.ndarray
    U2: np.ndarray
    motion: np.ndarray
    gain: np.ndarray
    least: float

    def solution(self) -> tuple[np.ndarray, np.ndarray]:
        """X and F."""
        x, f = (np.linalg.solve(self.U1.T, u.T).T for u in (self.U2, self.gain))
        return (x + x.T) / 2, f


def stable_subspace(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, squares: np.ndarray
) -> StableSubspace | None:
    """The stabilizing solution for the cost |Cx + Du|² − Σ squares u², maximized over inputs with large squares.

    ``squares`` has γ² of each input that disturbs, zero of each that controls. None where an eigenvalue of the
    Hamiltonian matrix lies on the imaginary axis: there is no such solution.

    Source: K. Zhou, J. C. Doyle and K. Glover, Robust and Optimal Control (1996), sections 13.2 and 17.1; A. J. Laub,
    A Schur method for solving algebraic Riccati equations, IEEE Transactions on Automatic Control 24 (1979).
    """
    n = len(a)
    try:
        inner = np.linalg.inv(d.T @ d - np.diag(squares))
        cross, row = d.T @ c, inner @ np.hstack([d.T @ c, b.T])
        upper = np.hstack([a, np.zeros((n, n))]) - b @ row
        lower = np.hstack([-c.T @ c, -a.T]) + cross.T @ row
        size, acts, costs = (float(np.linalg.norm(x)) for x in (upper[:, :n], upper[:, n:], lower[:, :n]))
        # X = s X̃ of order one: by cost, by instability
        s = max(costs / acts, (size / acts) ** 2) ** 0.5 if acts else 0.0
        s = 2.0 ** np.round(np.log2(s)) if 0 < s < np.inf else 1.0
        scaled = np.vstack([np.hstack([upper[:, :n], upper[:, n:] * s]), np.hstack([lower[:, :n] / s, lower[:, n:]])])
        motion, basis, count = scipy.linalg.schur(scaled, sort="lhp", check_finite=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    U1, U2 = basis[:n, :n], basis[n:, :n]
    product = U1.T @ U2
    skew = np.abs(product - product.T).max()
    if count != n or skew > max(_SKEW * np.linalg.svd(U1)[1][-1], _ROUNDING):
        return None
    gain = -row @ np.vstack([U1, s * U2])
    least = float(np.linalg.eigvalsh((product + product.T) / 2)[0])
    return StableSubspace(U1, s * U2, motion[:n, :n], gain, least)
