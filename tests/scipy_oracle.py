"""Sampling and gains by SciPy and NumPy alone, one problem at a time: they share no code with the package."""

import numpy as np
import scipy.linalg


def van_loan(A, B, Q, R, dt, N=None):
    """The sampled problem by one block exponential on the host."""
    n, m = B.shape
    M = np.block([[A, B], [np.zeros((m, n + m))]])
    N = np.zeros((n, m)) if N is None else N
    W = np.block([[Q, N], [N.T, R]])
    E = scipy.linalg.expm(np.block([[-M.T, W], [np.zeros_like(M), M]]) * dt)
    flow = E[n + m :, n + m :]
    cost = flow.T @ E[: n + m, n + m :]
    cost = (cost + cost.T) / 2
    return flow[:n, :n], flow[:n, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:]


def held(A, B, dt):
    """The plant that is sampled while its inputs are held for dt, by one exponential."""
    n, m = B.shape
    wide = scipy.linalg.expm(dt * np.block([[A, B], [np.zeros((m, n + m))]]))
    return wide[:n, :n], wide[:n, n:]


def gain(A, B, Q, R, N=None, *, discrete=True):
    """K and P of the infinite horizon."""
    if discrete:
        P = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
        return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + (0 if N is None else N.T)), P
    P = scipy.linalg.solve_continuous_are(A, B, Q, R, s=N)
    return np.linalg.solve(R, B.T @ P + (0 if N is None else N.T)), P


def relative(result, expected):
    """How far a result is from what is expected, relative to that."""
    return np.linalg.norm(np.asarray(result) - expected) / np.linalg.norm(expected)
