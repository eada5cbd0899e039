"""Linear models without a search: subspaces, orders, pulse responses."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy.linalg
from jaxtyping import Float

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.extensions.identification.log import Log, check_log, require_excitation
from lqrlab.extensions.identification.model import LinearModel, responses

METHODS = ("n4sid", "moesp", "cva")


def hankel(a: Float[np.ndarray, "*batch T k"], rows: int) -> Float[np.ndarray, "*batch rows_k N"]:
    """Column t holds a[t], …, a[t + rows − 1]."""
    windows = np.moveaxis(np.lib.stride_tricks.sliding_window_view(a, rows, axis=-2), -3, -1)  # [..., k, rows, N]
    return np.swapaxes(windows, -3, -2).reshape(*a.shape[:-2], rows * a.shape[-1], -1)


def subspace(
    log: Log, order: int | None = None, *, method: str = "n4sid", horizon: int | None = None, feedthrough: bool = False
) -> LinearModel:
    """A model from the subspace that past inputs and outputs span in the future outputs.

    Args:
        log: the record or records.
        order: number of states; that of the least BIC (:func:`orders`) if left out.
        method: the weighting of the projection before its singular value decomposition: ``"n4sid"`` (none: oblique),
            ``"moesp"`` (orthogonal to future inputs) or ``"cva"`` (canonical correlations).
        horizon: block rows of the past and of the future; about twice the order if left out.
        feedthrough: whether inputs act on outputs at once (D).

    Source: P. Van Overschee and B. De Moor, Subspace Identification for Linear Systems (1996), sections 4.3, 4.4, 5.
    """
    check_log(log)
    checks.choice("method", method, METHODS)
    if order is None:
        order = int(orders(log, method=method, feedthrough=feedthrough)["BIC"].idxmin())
    order = checks.whole("order", order)
    i = _horizon(log, order, horizon)
    found = _project(log, i, method)
    if order >= len(found.values):
        raise ValueError(f"order: expected at most {len(found.values) - 1} with horizon {i}, but found {order}")
    return _realised(log, found, order, i, feedthrough)


@dataclasses.dataclass(frozen=True)
class _Projection:
    left: np.ndarray  # singular vectors, weighted back
    values: np.ndarray
    past: np.ndarray  # the projection as a map of the past
    means: tuple[np.ndarray, np.ndarray]


def _horizon(log: Log, order: int, horizon: int | None) -> int:
    """Block rows: those asked for, or as many as the records are long enough for and their inputs rich enough."""
    least = -(-order // log.ys.shape[1]) + 1
    i = checks.whole("horizon", max(2 * least, 10) if horizon is None else horizon, least)
    require_excitation(log, 2 * least)
    while (why := _unfit(log, i)) and horizon is None and i > least:
        i -= 1
    if why:
        raise ValueError(f"log: order {order} with horizon {i} {why}")
    return i


def _unfit(log: Log, i: int) -> str:
    """Why nothing is found with this horizon; empty if nothing is wrong."""
    (records, *_), columns = log.centred(), 2 * i * (log.us.shape[1] + log.ys.shape[1])
    spread = np.maximum(log.us.std(0), 1e-300)
    ahead = [hankel(u[i:] / spread, i) for u, _ in records if len(u) >= 2 * i]
    if sum(a.shape[1] for a in ahead) < columns:
        return (
            f"needs records of {columns + 2 * i} samples, but found {len(log)} in {len(log.first)} records; record "
            "longer, or lower the order or the horizon"
        )
    if np.linalg.cond(np.linalg.qr(np.concatenate(ahead, 1).T, mode="r")) > 1e10:
        return (
            "needs a richer input (identification.excitation), or a shorter horizon: its inputs do not excite so many "
            "samples' worth of dynamics (too few frequencies in them)"
        )
    return ""


def _project(log: Log, i: int, method: str) -> _Projection:
    records, *means = log.centred()
    p, m = log.ys.shape[1], log.us.shape[1]
    scale_u, scale_y = (np.maximum(a.std(0), 1e-300) for a in (log.us, log.ys))
    blocks = []
    for u, y in records:
        if len(u) >= 2 * i:
            U, Y = hankel(u / scale_u, 2 * i), hankel(y / scale_y, 2 * i)
            blocks.append(np.concatenate([U[i * m :], U[: i * m], Y[: i * p], Y[i * p :]]))
    L = np.asarray(np.linalg.qr(np.concatenate(blocks, 1).T, mode="r")).T
    a, b = i * m, i * m + i * (m + p)
    # future outputs = (future inputs) + past · past inputs and outputs + noise
    L22, L32 = L[a:b, a:b], L[b:, a:b]
    past = L32 @ np.linalg.pinv(L22, rcond=1e-10)
    if method == "n4sid":
        seen, weight = past @ L[a:b, :b], np.eye(i * p)
    else:
        seen, weight = L32, np.eye(i * p)
    if method == "cva":
        weight = np.linalg.cholesky(
            L[b:, a:] @ L[b:, a:].T + 1e-12 * np.trace(L[b:] @ L[b:].T) / (i * p) * np.eye(i * p)
        )
        seen = scipy.linalg.solve_triangular(weight, seen, lower=True)
    left, values, _ = np.linalg.svd(seen, full_matrices=False)
    scale = np.tile(scale_y, i)[:, None]
    back = np.concatenate([np.tile(scale_u, i), np.tile(scale_y, i)])
    return _Projection(scale * (weight @ left), values, scale * past / back, (means[0], means[1]))


def _realised(log: Log, found: _Projection, order: int, i: int, feedthrough: bool) -> LinearModel:
    """A, C from the observability matrix, K from states that the past gives, then B, D by least squares."""
    p = log.ys.shape[1]
    gamma = found.left[:, :order] * np.sqrt(found.values[:order])
    C = gamma[:p]
    A = np.linalg.lstsq(gamma[:-p], gamma[p:], rcond=None)[0]
    to_state = np.linalg.pinv(gamma) @ found.past
    parts: list[tuple[np.ndarray, ...]] = []
    for u, y in ((u - found.means[0], y - found.means[1]) for u, y in log.records):
        if len(u) > i + 1:
            x = (to_state @ np.concatenate([hankel(u, i), hankel(y, i)])).T  # x[i], x[i + 1], …
            parts.append((x[:-2], x[1:-1], u[i:-1], y[i:-1]))
    X, X1, U, Y = (np.concatenate(a) for a in zip(*parts))
    known = np.concatenate([X, U], 1)
    e = Y - (known if feedthrough else X) @ np.linalg.lstsq(known if feedthrough else X, Y, rcond=None)[0]
    w = X1 - known @ np.linalg.lstsq(known, X1, rcond=None)[0]
    K = _gain(A, C, w, e)
    B, D = input_matrices(log, A, C, K, found.means, feedthrough)
    model = LinearModel(A, B, C, D, K, np.eye(p), log.dt, log.inputs, log.outputs, *found.means)
    missed = log.ys - model.predict(log)
    return dataclasses.replace(model, noise=missed.T @ missed / len(missed))


def _gain(A: np.ndarray, C: np.ndarray, w: np.ndarray, e: np.ndarray) -> np.ndarray:
    """The stationary Kalman gain of residuals w [T, n] of the states and e [T, p] of the outputs."""
    z = np.concatenate([w, e], 1)
    joint, n = z.T @ z / len(z), w.shape[1]
    W, S, V = joint[:n, :n], joint[:n, n:], joint[n:, n:] + 1e-9 * np.trace(joint) * np.eye(e.shape[1])
    try:
        return np.asarray(control.dlqr(A.T, C.T, W + 1e-9 * np.trace(W) * np.eye(n), V, S).K).T
    except ValueError:  # nothing to be filtered from these residuals
        return np.asarray(control.dlqe(A, C, np.eye(n), np.eye(len(C))).L)


def input_matrices(
    log: Log, A: np.ndarray, C: np.ndarray, K: np.ndarray, means: tuple[np.ndarray, np.ndarray], feedthrough: bool
) -> tuple[np.ndarray, np.ndarray]:
    """B, D that predict best, together with an initial state for each record: linear once A, C, K are known."""
    n, p, m = len(A), len(C), log.us.shape[1]
    units, spread = np.eye(n), np.maximum(log.ys.std(0), 1e-300)
    rows, targets = [], []
    for us, ys in log.records:
        u, y = us - means[0], ys - means[1]
        by_entry = np.einsum("tj,ik->tkij", u, units).reshape(len(u), n, n * m)  # B[i, j] puts u_j into state i
        forced, free = responses(A - K @ C, C, np.concatenate([by_entry, (y @ K.T)[:, :, None]], 2))
        parts = [forced[..., :-1], (y - forced[..., -1])[..., None]]
        if feedthrough:
            parts.insert(1, np.einsum("tj,ik->tkij", u, np.eye(p)).reshape(len(u), p, p * m))
        each, free = (np.concatenate(a, 2) / spread[:, None] for a in (parts, [free]))  # no unit outweighs another
        each, free = each.reshape(len(u) * p, -1), free.reshape(len(u) * p, n)
        each -= free @ np.linalg.lstsq(free, each, rcond=None)[0]  # what the best initial state leaves of each
        rows.append(each[:, :-1])
        targets.append(each[:, -1])
    size = np.maximum(np.linalg.norm(known := np.concatenate(rows), axis=0), 1e-300)
    z = np.linalg.lstsq(known / size, np.concatenate(targets), rcond=None)[0] / size
    D = z[n * m :].reshape(p, m) if feedthrough else np.zeros((p, m))
    return z[: n * m].reshape(n, m) + K @ D, D


def orders(
    log: Log, candidates: Sequence[int] = range(1, 11), *, method: str = "n4sid", feedthrough: bool = False
) -> pd.DataFrame:
    """One row an order: singular value, AIC, BIC, and fit of prediction and simulation on a held-out log.

    Args:
        log: what models are estimated from; its last 30 % are held out, but where no input moves before them.
        candidates: orders.
        method, feedthrough: as in :func:`subspace`.
    """
    check_log(log)
    checks.choice("method", method, METHODS)
    if not np.ndim(candidates) or not len(candidates):
        raise ValueError(f"candidates: expected orders, such as range(1, 11), but found {candidates!r}")
    candidates = tuple(dict.fromkeys(checks.whole("candidates", order) for order in candidates))
    estimation, held_out = log.split(0.7)
    if not np.ptp(estimation.us, axis=0).all():  # a step at the end, say: nothing can be held out
        estimation = held_out = log
    p, m = log.ys.shape[1], log.us.shape[1]
    i = max(2 * (-(-max(candidates) // p) + 1), 10)
    while i > 2 and _unfit(estimation, i):
        i -= 1
    found = _project(estimation, _horizon(estimation, 1, i), method)
    rows = []
    for order in (n for n in candidates if n < min(len(found.values), (i - 1) * p)):
        model = _realised(estimation, found, order, i, feedthrough)
        free = order * (2 * p + m) + p * m * feedthrough
        fitness = len(estimation) * np.linalg.slogdet(model.noise)[1]
        rows.append(
            {
                "order": order,
                "singular value": found.values[order - 1] / found.values[0],
                "AIC": fitness + 2 * free,
                "BIC": fitness + free * np.log(len(estimation)),
                "predicted [%]": model.fit_percent(held_out, predicted=True).mean(),
                "simulated [%]": model.fit_percent(held_out).mean() if np.abs(model.poles).max() < 1 else np.nan,
            }
        )
    if not rows:
        raise ValueError(
            f"candidates: expected an order of at most {(i - 1) * p - 1}, for which the log is long and rich enough, "
            f"but found {min(candidates)}; record longer"
        )
    return pd.DataFrame(rows).set_index("order")
