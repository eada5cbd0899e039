"""Undisturbed linear loops within their limits, on a CPU: whole trajectories as powers of the closed loop.

XLA's CPU compiler works the small products of a batch off one by one, several times as slowly as the BLAS under
NumPy; so these are NumPy's. The states come out as they are returned, one loop after another.
"""

import jax
import numpy as np
from jax import Array

from lqrlab.compute.memory import aligned
from lqrlab.compute.threads import on_threads
from lqrlab.control import Sampled, stage_weight
from lqrlab.simulation.engines.models import Loops

_STRIDES = 4, 64  # samples between checkpoints: for few loops of a plant, and for at least so many
_ENTRIES = 64_000  # of matrices in a piece, which stay in the cache
_LOOPS = 1600  # at most, in a piece


def applies(loops: Loops) -> bool:
    """Whether loops are of this kind, as far as they themselves say, and on a CPU."""
    return jax.default_backend() == "cpu" and isinstance(loops.model, Sampled) and loops.low is None


def simulate(loops: Loops, x0: Array, num_steps: int, keep: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """Closed loops x[t+1] = F x[t], F = A − BK, by powers of F: checkpoints, and from all of these the rest.

    The powers are computed by squaring, in the plants' precision; see :func:`lqrlab.simulation.total_cost`.

    Args:
        loops: p plants with their gains.
        x0: initial states ``[p·s, n]``, the s of one plant one after another.
        num_steps: T.
        keep: some of ``xs``, ``us``, ``costs``.

    Returns:
        ``xs`` ``[p·s, T+1, n]``, ``us`` ``[p·s, T, m]``, ``costs`` ``[p·s, T]`` in x0's precision, as far as they
        are kept; None where a power overflows, which a state need not do.
    """
    matrices, K = [np.asarray(a) for a in loops.model[:5]], np.asarray(loops.K)
    (count, n), m, T = x0.shape, K.shape[-2], num_steps
    plants = max(len(a) for a in (*matrices, K))
    each = count // plants
    starts = np.asarray(x0).reshape(plants, each, n)
    sizes = {"xs": (T + 1, n), "us": (T, m), "costs": (T,)}
    result = {name: aligned((plants, each, *sizes[name]), starts.dtype) for name in keep}
    many = each >= _STRIDES[1]
    stride = min(_STRIDES[many], 1 << T.bit_length())
    size = _LOOPS if many else max(min(_LOOPS, _ENTRIES // n**2), 1)
    group, some = max(size // each, 1), min(size, each)

    def piece(at: tuple[int, int]) -> bool:
        of, these = slice(at[0], at[0] + group), slice(at[1], at[1] + some)
        A, B, Q, R, N, gain = (a if len(a) == 1 else a[of] for a in (*matrices, K))
        out = {name: a[of, these] for name, a in result.items()}
        return _simulate_piece(A, B, Q, R, N, gain.astype(A.dtype), starts[of, these], stride, T, out)

    pieces = [(p, s) for p in range(0, plants, group) for s in range(0, each, some)]
    finite = all(on_threads(piece, pieces, "matrix powers"))
    return {name: a.reshape(count, *a.shape[2:]) for name, a in result.items()} if finite else None


def _simulate_piece(
    A: np.ndarray,
    B: np.ndarray,
    Q: np.ndarray,
    R: np.ndarray,
    N: np.ndarray,
    K: np.ndarray,
    x0: np.ndarray,
    stride: int,
    num_steps: int,
    out: dict[str, np.ndarray],
) -> bool:
    """Write what is kept of loops from x0 ``[p, s, n]`` to ``out``; whether all powers were finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        xs = out.get("xs")
        xs = np.empty((*x0.shape[:2], num_steps + 1, x0.shape[-1]), x0.dtype) if xs is None else xs
        if not _write_states(A - B @ K, x0, stride, xs):
            return False
        before = xs[:, :, :-1]
        if "us" in out:
            np.matmul(before, _t(-K).astype(x0.dtype)[:, None], out=out["us"])
        if "costs" in out:
            weight = stage_weight(Q, R, N, K).astype(x0.dtype)
            np.einsum("pstn,pstn->pst", before, before @ weight[:, None], out=out["costs"])
    return True


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _write_states(F: np.ndarray, x0: np.ndarray, stride: int, out: np.ndarray) -> bool:
    """Write the states from x0 ``[p, s, n]`` under F ``[p or 1, n, n]`` to out ``[p, s, T+1, n]``.

    Args:
        F, x0: as above.
        stride: samples between checkpoints, a power of two.
        out: where to.

    Returns:
        Whether all powers of F that were needed are finite.
    """
    plants, each, samples, n = out.shape
    ahead, power = _powers(F, stride)
    ahead = ahead.astype(out.dtype)[:, None]
    count, whole = -(-samples // stride), samples // stride
    # a product has as many rows as there are loops of a plant, or checkpoints of a loop, whichever are more
    times_first = each > count
    checkpoints, finite = _checkpoints(power, x0, count, times_first, out.dtype)

    def some(first: int, end: int) -> np.ndarray:
        return checkpoints[:, first:end] if times_first else checkpoints[:, :, first:end]

    rows = out[:, :, : whole * stride].reshape(plants, each, whole, stride * n)  # a view
    np.matmul(some(0, whole), ahead, out=rows.swapaxes(1, 2) if times_first else rows)
    if rest := samples - whole * stride:
        last = some(whole, count) @ ahead[..., : rest * n]
        out[:, :, whole * stride :] = last.reshape(plants, each, rest, n)
    return finite and bool(np.isfinite(ahead).all())


def _powers(F: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """The transposed powers I, F, …, F^(stride−1) side by side ``[·, n, stride·n]``, and F^stride transposed."""
    n, known, power = F.shape[-1], 1, _t(F)
    table = np.empty((len(F), n, stride, n), F.dtype)
    table[:, :, 0] = np.eye(n)
    columns = table.reshape(len(F), n, stride * n)
    while known < stride:
        np.matmul(power, columns[:, :, : known * n], out=columns[:, :, known * n : 2 * known * n])
        power, known = power @ power, 2 * known
    return columns, power


def _checkpoints(
    power: np.ndarray, x0: np.ndarray, count: int, times_first: bool, dtype: np.dtype
) -> tuple[np.ndarray, bool]:
    """States at each stride, by squaring ``power``; with or without the times in front of the loops.

    Returns:
        ``[p, count, s, n]`` if ``times_first``, else ``[p, s, count, n]``; whether all powers were finite.
    """
    plants, each, n = x0.shape
    x = np.empty((plants, count, each, n) if times_first else (plants, each, count, n), dtype)

    def some(first: int, end: int) -> np.ndarray:
        return x[:, first:end] if times_first else x[:, :, first:end]

    some(0, 1)[...], known, finite = (x0[:, None] if times_first else x0[:, :, None]), 1, True
    while known < count:
        new, factor = min(known, count - known), power.astype(dtype)[:, None]
        finite = finite and bool(np.isfinite(factor).all())
        np.matmul(some(0, new), factor, out=some(known, known + new))
        known += new
        power = power @ power if known < count else power
    return x, finite
