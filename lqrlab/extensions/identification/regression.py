"""Linear models by regression: of measured states on the states before, of outputs on their past."""

import numpy as np

from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, require_excitation
from lqrlab.extensions.identification.model import LinearModel


def deviations(log: Log) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """Records less the means of the whole log, and the means."""
    u_mean, y_mean = log.us.mean(0), log.ys.mean(0)
    return [(u - u_mean, y - y_mean) for u, y in log.records], u_mean, y_mean


def least_squares(log: Log) -> LinearModel:
    """A, B of x[t+1] = A x + B u by least squares, where all states are the log's outputs; with covariances.

    Sensor noise biases it towards less of everything; :func:`refine` mends that. A record in which the input is a
    pure feedback of the states hides the plant, and is refused.

    Source: L. Ljung, System Identification, 2nd ed. (1999), section 4.2.
    """
    return arx(log, 1)


def arx(log: Log, lags: int, input_lags: int | None = None) -> LinearModel:
    """y[t] = Σ A_i y[t−i] + Σ B_i u[t−i] + e by least squares, as a model of ``lags`` · p states; with covariances.

    Args:
        log: the record or records.
        lags: of the outputs.
        input_lags: of the inputs; as many if left out, never more.

    Raises:
        ValueError: too few samples, inputs that do not move, feedback that hides the plant.
    """
    checks.whole("lags", lags)
    nb = checks.whole("input_lags", lags if input_lags is None else input_lags, 1, lags)
    p, m = log.ys.shape[1], log.us.shape[1]
    unknowns = lags * p + nb * m
    require_excitation(log, 2 * (unknowns + lags))
    records, u_mean, y_mean = deviations(log)
    rows, targets = [], []
    for u, y in records:
        if len(u) > lags:
            past_y = [y[lags - i : len(y) - i] for i in range(1, lags + 1)]
            past_u = [u[lags - i : len(u) - i] for i in range(1, nb + 1)]
            rows.append(np.concatenate([*past_y, *past_u], 1))
            targets.append(y[lags:])
    if not rows:
        raise ValueError(
            f"log: expected records longer than {lags} samples; lower the order, or record longer"
        )
    X, Y = np.concatenate(rows), np.concatenate(targets)
    size = np.maximum(np.linalg.norm(X, axis=0), 1e-300)
    s = np.linalg.svd(X / size, compute_uv=False)
    if s[-1] < 1e-9 * s[0]:
        raise ValueError(
            "log: the inputs are determined by the outputs before them (feedback without excitation hides the plant), "
            "or a signal does not move; add an excitation to the regulator's input (identification.excitation)"
        )
    W = np.linalg.lstsq(X / size, Y, rcond=None)[0] / size[:, None]
    e = Y - X @ W
    noise = e.T @ e / max(len(Y) - unknowns, 1)
    A, B, K = np.zeros((lags * p, lags * p)), np.zeros((lags * p, m)), W[: lags * p].reshape(lags, p, p)
    K = np.swapaxes(K, 1, 2).reshape(-1, p)
    A[:, :p] = K
    A[: (lags - 1) * p, p:] = np.eye((lags - 1) * p)
    B[: nb * p] = np.swapaxes(W[lags * p :].reshape(nb, m, p), 1, 2).reshape(-1, m)
    C = np.eye(p, lags * p)
    covariance = _arx_covariance(
        np.linalg.inv((X / size).T @ (X / size)) / np.outer(size, size), noise, lags, nb, m
    )
    return LinearModel(
        A, B, C, np.zeros((p, m)), K, noise, log.dt, log.inputs, log.outputs, u_mean, y_mean, covariance
    )


def _arx_covariance(P: np.ndarray, noise: np.ndarray, lags: int, nb: int, m: int) -> np.ndarray:
    """Of the entries of A, B, C, D, K, from that of the regression's coefficients, P ⊗ noise."""
    p = len(noise)
    n = lags * p
    to_a, to_b, to_k = (np.full((n, c), -1) for c in (n, m, p))
    number = np.arange((n + nb * m) * p).reshape(-1, p)  # of coefficient (regressor, output)
    for i in range(lags):
        to_a[i * p : (i + 1) * p, :p] = to_k[i * p : (i + 1) * p] = number[i * p : (i + 1) * p].T
    for i in range(nb):
        to_b[i * p : (i + 1) * p] = number[n + i * m : n + (i + 1) * m].T
    index = np.concatenate([to_a.ravel(), to_b.ravel(), np.full(p * n + p * m, -1), to_k.ravel()])
    full, used = np.zeros((len(index), len(index))), index >= 0
    full[np.ix_(used, used)] = np.kron(P, noise)[np.ix_(index[used], index[used])]
    return full
