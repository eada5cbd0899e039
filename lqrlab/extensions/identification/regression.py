"""Measured states on the states before: a linear model by regression, or the regulator without one in between."""

import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, Record, check_log, require_excitation
from lqrlab.extensions.identification.model import LinearModel, placed


def transitions(
    records: list[Record],
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k m"], Float[np.ndarray, "k n"]]:
    """States, inputs and next states of records whose outputs are all the states.

    Refused where states and inputs are linearly dependent, so that nothing tells their effects apart.
    """
    steps = [(y[:-1], u[:-1], y[1:]) for u, y in records if len(u) > 1]
    if not steps:
        raise ValueError("log: expected records longer than 1 sample")
    X, U, after = (np.concatenate(parts) for parts in zip(*steps))
    known = np.concatenate([X, U], 1)
    s = np.linalg.svd(known / np.maximum(np.linalg.norm(known, axis=0), 1e-300), compute_uv=False)
    if s[-1] < 1e-9 * s[0]:
        raise ValueError(
            "log: is not persistently exciting: the inputs are determined by the states (feedback without excitation "
            "hides the plant), or a signal does not move; add an excitation to the regulator's input "
            "(identification.excitation)"
        )
    return X, U, after


def least_squares(log: Log) -> LinearModel:
    """A, B of x[t+1] = A x + B u by least squares, where all states are the log's outputs; with covariances.

    Sensor noise biases it towards less of everything; :func:`refine` corrects that. A record in which the input is a
    pure feedback of the states hides the plant, and is refused.

    Source: L. Ljung, System Identification, 2nd ed. (1999), section 4.2.
    """
    check_log(log)
    n, m = log.ys.shape[1], log.us.shape[1]
    require_excitation(log, 2 * (n + m + 1))
    records, u_mean, y_mean = log.centred()
    X, U, after = transitions(records)
    known = np.concatenate([X, U], 1)
    size = np.maximum(np.linalg.norm(known, axis=0), 1e-300)
    W = np.linalg.lstsq(known / size, after, rcond=None)[0] / size[:, None]
    e = after - known @ W
    noise = e.T @ e / max(len(after) - n - m, 1)
    spread = np.linalg.inv((known / size).T @ (known / size)) / np.outer(size, size)
    A, B, C, D = W[:n].T, W[n:].T, np.eye(n), np.zeros((n, m))
    covariance = _covariance(np.kron(spread, noise), n, m)
    return LinearModel(A, B, C, D, A, noise, log.dt, log.inputs, log.outputs, u_mean, y_mean, covariance)


def _covariance(of_weights: Float[np.ndarray, "k k"], n: int, m: int) -> Float[np.ndarray, "q q"]:
    """Covariance of the entries of A, B, C, D and K = A, from that of the regression's weights."""
    number = np.arange((n + m) * n).reshape(n + m, n)
    a, b = number[:n].T.ravel(), number[n:].T.ravel()
    return placed(of_weights, np.concatenate([a, b, np.full(n * n + n * m, -1), a]))


def direct_lqr(log: Log, Q: ArrayLike, R: ArrayLike, *, robustness: float = 0.0) -> Float[Array, "m n"]:
    """The LQR gain K, u = −Kx, directly from a persistently exciting record of x[t+1] = Ax + Bu.

    With U, X, X₊ the record's inputs, states and next states as columns, any loop is X₊G with XG = I and −K = UG.
    Minimised over G is the cost Σ xᵀQx + uᵀRu + ``robustness`` · ‖Gx‖², by one Riccati equation.

    Args:
        log: whose outputs are all the states, as deviations from the equilibrium (:meth:`Log.detrended`).
        Q, R: weights of a sample ``[n, n]``, ``[m, m]``.
        robustness: 0 keeps G in the space of U and X: without noise the optimum, with noise certainty equivalence.

    Raises:
        ValueError: a record that is not persistently exciting: U and X together have not full row rank.

    Source: C. De Persis and P. Tesi, Formulas for data-driven control, IEEE Trans. Autom. Control 65(3), 2020, theorem
    4; noise: the same, Low-complexity learning of linear quadratic regulators from noisy data, Automatica 128, 2021.
    """
    check_log(log)
    Q, R = (np.asarray(checks.real(name, a), float) for name, a in (("Q", Q), ("R", R)))
    n, m = log.ys.shape[1], log.us.shape[1]
    if Q.shape != (n, n) or R.shape != (m, m):
        raise ValueError(f"Q, R: expected shapes {(n, n)} and {(m, m)}, but found {Q.shape} and {R.shape}")
    weight = checks.number("robustness", robustness, "a weight ≥ 0", low=0)
    require_excitation(log, n + m + 1)
    X, U, after = (a.T for a in transitions(log.records))
    known = np.concatenate([U, X])
    data = np.concatenate([known, after]) if weight else known
    basis = np.linalg.svd(data / np.linalg.norm(data, axis=1, keepdims=True), full_matrices=False)[2]
    U, X, after = U @ basis.T, X @ basis.T, after @ basis.T  # G = basisᵀ H: other directions only cost
    free = np.linalg.svd(X)[2][n:].T  # the null space of X
    first = np.linalg.pinv(X)
    M = U.T @ R @ U + weight * np.eye(U.shape[1])
    gain = control.dlqr(after @ first, after @ free, Q + first.T @ M @ first, free.T @ M @ free, first.T @ M @ free).K
    return -U @ (first - free @ gain)
