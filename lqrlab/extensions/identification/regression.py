"""Linear models by regression of measured states on the states before."""

import numpy as np
from jaxtyping import Float

from lqrlab.extensions.identification.log import Log, Record, check_log, require_excitation
from lqrlab.extensions.identification.model import LinearModel, placed


def transitions(
    records: list[Record],
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k m"], Float[np.ndarray, "k n"]]:
    """States, inputs and next states of records whose outputs are all the states.

    Raises:
        ValueError: states and inputs are linearly dependent, so that nothing tells their effects apart.
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
    index = np.concatenate([a, b, np.full(n * n + n * m, -1), a])
    return placed(of_weights, index)
