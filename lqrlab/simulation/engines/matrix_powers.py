"""Linear loops within their limits and undisturbed, on a CPU: whole trajectories as products of matrices.

XLA's CPU compiler works the small products of a batch off one by one, several times as slowly as the BLAS under
NumPy; so these are NumPy's. The states come out as they are returned, one loop after another.
"""

import jax
import numpy as np
from jax import Array

from lqrlab.compute.memory import aligned
from lqrlab.compute.threads import on_threads
from lqrlab.simulation.engines.batch_last import Loops
from lqrlab.simulation.engines.stepping import Linear

_FEW, _MANY = 4, 64  # samples between checkpoints: for few loops of a plant, for at least so many
_MATRICES = 64_000  # entries of matrices in a piece, which stay in the cache
_LOOPS = 1600  # at most, in a piece


def fit(loops: Loops) -> bool:
    """Whether loops are of this kind, as far as they themselves say, and on a CPU."""
    return jax.default_backend() == "cpu" and isinstance(loops.model, Linear) and loops.low is None


def simulate(loops: Loops, x0: Array, steps: int, keep: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """Closed loops x⁺ = F x, F = A − B K, by powers of F: checkpoints, and from all of these the rest.

    The powers are computed by squaring, in the plants' precision; see :func:`lqrlab.simulation.total_cost`.

    Args:
        loops: p plants.
        x0: initial states ``[p·s, n]``, the s of one plant one after another.
        steps: T.
        keep: some of ``xs``, ``us``, ``costs``.

    Returns:
        ``xs`` ``[p·s, T+1, n]``, ``us`` ``[p·s, T, m]``, ``costs`` ``[p·s, T]`` in x0's precision, as far as they
        are kept; None where a power is beyond it, which a state need not be.
    """
    model, K = [np.asarray(a) for a in loops.model[:5]], np.asarray(loops.K)
    starts, T = np.asarray(x0), steps
    (count, n), m, dtype = starts.shape, K.shape[-2], starts.dtype
    plants = max(len(a) for a in (*model, K))
    each = count // plants
    sizes = {"xs": (T + 1, n), "us": (T, m), "costs": (T,)}
    result = {name: aligned((plants, each, *sizes[name]), dtype) for name in keep}
    starts = starts.reshape(plants, each, n)
    stride = min(_FEW if each < _MANY else _MANY, 1 << T.bit_length())
    size = _LOOPS if each >= _MANY else max(min(_LOOPS, _MATRICES // n**2), 1)
    group, some = max(size // each, 1), min(size, each)

    def piece(at: tuple[int, int]) -> bool:
        of, these = slice(at[0], at[0] + group), slice(at[1], at[1] + some)
        A, B, Q, R, N, gain = (a if len(a) == 1 else a[of] for a in (*model, K))
        gain = gain.astype(A.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            x0 = starts[of, these]
            xs = result["xs"][of, these] if "xs" in keep else np.empty((*x0.shape[:2], T + 1, n), dtype)
            if not _states(A - B @ gain, x0, stride, xs):
                return False
            before = xs[:, :, :-1]
            if "us" in keep:
                np.matmul(before, _t(-gain).astype(dtype)[:, None], out=result["us"][of, these])
            if "costs" in keep:
                cross = N @ gain
                weight = (Q - cross - _t(cross) + _t(gain) @ R @ gain).astype(dtype)
                np.einsum("pstn,pstn->pst", before, before @ weight[:, None], out=result["costs"][of, these])
        return True

    pieces = [(p, s) for p in range(0, plants, group) for s in range(0, each, some)]
    whole = all(on_threads(piece, pieces, "products"))
    return {name: a.reshape(count, *a.shape[2:]) for name, a in result.items()} if whole else None


def _t(a: np.ndarray) -> np.ndarray:
    return np.swapaxes(a, -1, -2)


def _states(F: np.ndarray, x0: np.ndarray, stride: int, out: np.ndarray) -> bool:
    """Write the states from x0 ``[p, s, n]`` under F ``[p or 1, n, n]`` to out ``[p, s, T+1, n]``, if F's powers
    are finite; the stride is a power of two."""
    plants, each, samples, n = out.shape
    power, checkpoints = _t(F), -(-samples // stride)
    # the transposed powers before the stride's, side by side
    table = np.empty((len(F), n, stride, n), F.dtype)
    table[:, :, 0], known = np.eye(n), 1
    columns = table.reshape(len(F), n, stride * n)
    while known < stride:
        np.matmul(power, columns[:, :, : known * n], out=columns[:, :, known * n : 2 * known * n])
        power, known = power @ power, 2 * known
    ahead = columns.astype(out.dtype)[:, None]
    # a product has as many rows as there are loops of a plant, or times of a loop, whichever are more
    wide = each > checkpoints
    x = np.empty((plants, checkpoints, each, n) if wide else (plants, each, checkpoints, n), out.dtype)

    def times(first: int, end: int) -> np.ndarray:
        return x[:, first:end] if wide else x[:, :, first:end]

    times(0, 1)[...], known = (x0[:, None] if wide else x0[:, :, None]), 1
    finite = np.isfinite(ahead).all()
    while known < checkpoints:
        new, factor = min(known, checkpoints - known), power.astype(out.dtype)[:, None]
        finite &= np.isfinite(factor).all()
        np.matmul(times(0, new), factor, out=times(known, known + new))
        known += new
        power = power @ power if known < checkpoints else power
    whole = samples // stride
    rows = out[:, :, : whole * stride].reshape(plants, each, whole, stride * n)  # a view
    np.matmul(times(0, whole), ahead, out=rows.swapaxes(1, 2) if wide else rows)
    if rest := samples - whole * stride:
        last = times(whole, checkpoints) @ ahead[..., : rest * n]
        out[:, :, whole * stride :] = last.reshape(plants, each, rest, n)
    return bool(finite)
