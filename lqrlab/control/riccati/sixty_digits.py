"""Riccati equations by doubling in sixty digits: for the few that double precision defeats.

A plant that its inputs hardly move has a cost P of 1e11 and more, and doubling, the sign function and SciPy's QZ
lose the digits that its gain is made of. On the host, one problem at a time, some ten milliseconds for four states.
Source: as :mod:`lqrlab.control.riccati.doubling`.
"""

import mpmath
import numpy as np

_DIGITS, _DOUBLINGS = 60, 64
_CHANGE = 1e-25  # relative: the next doubling would square it


def exact(a: np.ndarray) -> np.ndarray:
    """The numbers of a matrix, digit for digit, as an array of mpmath's."""
    return np.array([mpmath.mpf(float(x)) for x in a.flat], object).reshape(a.shape)


def inverse(a: np.ndarray) -> np.ndarray:
    """a⁻¹; a ``ZeroDivisionError`` for a singular matrix."""
    return np.array(mpmath.inverse(mpmath.matrix(a.tolist())).tolist(), object)


def doubled(F: np.ndarray, G: np.ndarray, H: np.ndarray) -> np.ndarray | None:
    """The stabilizing solution of X = FᵀX(I + GX)⁻¹F + H, or None where doubling does not converge."""
    one = exact(np.eye(len(F)))
    for _ in range(_DOUBLINGS):
        VI = inverse(one + G @ H)
        VF = VI @ F
        step = F.T @ H @ VF
        F, G, H = F @ VF, G + F @ VI @ G @ F.T, H + step
        if np.abs(step).max() <= _CHANGE * np.abs(H).max():
            return H
    return None


def solved(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, *, continuous: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """K and P of one problem, rounded once, or None where no stabilizing solution is found."""
    with mpmath.workdps(_DIGITS):
        A, B, Q, R, N = (exact(a) for a in (A, B, Q, R, N))
        one = exact(np.eye(len(A)))
        try:
            NR, BR = N @ inverse(R), B @ inverse(R)
            F, G, H = A - B @ NR.T, BR @ B.T, Q - NR @ N.T
            if continuous:  # a Cayley transform, its shift near the size of the closed loop's modes
                shift = abs(np.sum(F * F.T + G * H) / len(A)) ** 0.5 * one
                first = inverse(F - shift)
                W = inverse(F - shift + G @ first.T @ H)
                F, G, H = one + 2 * shift @ W, 2 * shift @ first @ G @ W.T, 2 * shift @ W.T @ H @ first
            P = doubled(F, G, H)
            if P is None:
                return None
            K = inverse(R) @ (B.T @ P + N.T) if continuous else inverse(R + B.T @ P @ B) @ (B.T @ P @ A + N.T)
        except ZeroDivisionError:  # a singular matrix
            return None
        P = (P + P.T) / 2
    return K.astype(float), P.astype(float)
