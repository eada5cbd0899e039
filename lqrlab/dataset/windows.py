"""Windows of trajectories as a learner takes them: cut when read, scaled, padded, masked."""

import dataclasses
import math
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import pytree
from lqrlab.dataset import order, store
from lqrlab.dataset.store import Coordinates, Dataset, VariantTable
from lqrlab.systems import M_MAX, N_MAX

WIDTHS = (N_MAX, M_MAX, M_MAX)
"""Of a state, the input before it and the optimal input, padded."""

_AT_ONCE = 128  # windows

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Those three at each time of each trajectory ``[N, W − 1 + T, 12 | 6 | 6]``, scaled, float32."""


@pytree
@dataclasses.dataclass(frozen=True)
class Batch:
    """Windows, each ending at the time whose input is to be chosen; oldest first. Masked entries are zero.

    Attributes:
        variant: row of the :class:`VariantTable` ``[b]``, int32.
        x: states in units of the variant's scales ``[b, W, 12]``.
        u: inputs that reached the plant in the step before each x, scaled ``[b, W, 6]``; zero if none did.
        target: optimal input −Kx at each x, scaled ``[b, W, 6]``.
        live_t: 1 where the time exists, 0 before the trajectory began ``[b, W]``.
        live_x, live_u: 1 where a state or input exists, 0 in padding ``[b, 12]``, ``[b, 6]``.
    """

    variant: Array
    x: Array
    u: Array
    target: Array
    live_t: Array
    live_x: Array
    live_u: Array


@pytree
@dataclasses.dataclass(frozen=True)
class Resident:
    """All windows of a split on one device: batches are gathered inside a compiled step.

    Window i ends at time ``i % num_steps`` of trajectory ``i // num_steps``.

    Attributes:
        x, u, target: state, the input before it and the optimal input at each time, after ``window − 1``
            times of zeros, so that every window is one piece of memory
            ``[N, window − 1 + num_steps, 12 | 6 | 6]``.
        variant: row of the table ``[N]``.
        table: all variants.
        window: steps in a window.
        num_steps: windows per trajectory.
    """

    x: Array
    u: Array
    target: Array
    variant: Array
    table: VariantTable
    window: int = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(metadata={"static": True})

    @property
    def num_windows(self) -> int:
        """How many there are."""
        return self.x.shape[0] * self.num_steps

    def epoch_order(self, seed: ArrayLike, epoch: ArrayLike) -> Array:
        """All windows in the order of an epoch ``[num_windows]``."""
        return self.order(jnp.arange(self.num_windows), seed, epoch)

    def order(self, positions: ArrayLike, seed: ArrayLike, epoch: ArrayLike) -> Array:
        """The windows at some positions of an epoch, without a list of all; see :func:`order.shuffled`."""
        return order.shuffled(positions, self.num_windows, seed, epoch)

    def gather(self, indices: ArrayLike) -> Batch:
        """Windows by number ``[b]``; can be called inside ``jit``."""
        indices = jnp.asarray(indices)
        trajectory, t = indices // self.num_steps, indices % self.num_steps

        def cut(rows: Array) -> Array:
            # a window is one piece of its row; said so, XLA copies it in half the time
            width = rows.shape[-1]
            long, start = rows.reshape(len(rows), -1), t * width
            size = (1, self.window * width)
            pieces = jax.vmap(lambda i, at: jax.lax.dynamic_slice(long, (i, at), size)[0])(trajectory, start)
            return pieces.reshape(-1, self.window, width)

        variant = self.variant[trajectory]
        pieces = (cut(self.x), cut(self.u), cut(self.target))
        return Batch(variant, *pieces, *masks(t, variant, self.table, self.window))


def masks(t: Array, variant: Array, table: VariantTable, window: int) -> tuple[Array, Array, Array]:
    """``live_t``, ``live_x``, ``live_u`` of windows that end at times t ``[b]``."""
    back = jnp.arange(window - 1, -1, -1, dtype=t.dtype)
    live_x, live_u = (a[variant] for a in (table.description.live_x, table.description.live_u))
    return (back[None, :] <= t[:, None]).astype(live_x.dtype), live_x, live_u


def check_window(window: int) -> int:
    """The length of a window, or a ``ValueError``."""
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise ValueError(f"window: expected at least one step, but found {window!r}")
    return int(window)


_SPARE = 16  # buffers that are kept for the next batches
_kept: list[np.ndarray] = []
_lock = threading.Lock()


def _references(buffers: list[np.ndarray]) -> list[int]:
    """How often each is referred to, this list and this question included."""
    return [sys.getrefcount(buffer) for buffer in buffers]


_IDLE = _references([np.empty(0)])[0]


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised float32 array on a 64-byte boundary, which JAX on a CPU takes over uncopied.

    Memory that no array refers to any more, JAX's neither, is used again: fresh pages cost more than filling
    them.
    """
    size = 4 * math.prod(shape)
    with _lock:
        free = [i for i, n in enumerate(_references(_kept)) if n == _IDLE and _kept[i].size == size + 64]
        if free:
            buffer = _kept[free[0]]
        else:
            buffer = np.empty(size + 64, np.uint8)
            _kept.append(buffer)
            del _kept[:-_SPARE]
        start = -buffer.ctypes.data % 64
        return buffer[start : start + size].view(np.float32).reshape(shape)


def cut(rows: Rows, trajectory: np.ndarray, t: np.ndarray, out: Rows) -> None:
    """Copy the windows that end at times t from rows to out ``[b, W, 12 | 6 | 6]``."""
    at = trajectory.astype(np.int64) * rows[0].shape[1] + t
    for source, target in zip(rows, out):
        # every window is one piece of memory: all of them as overlapping rows, copied some at a time, so that
        # what NumPy gathers is still in the cache when it is put into place
        times, width = math.prod(source.shape[:2]), source.shape[2]
        length = target.shape[1] * width
        every = np.lib.stride_tricks.as_strided(
            source, (times - target.shape[1] + 1, length), (width * source.itemsize, source.itemsize)
        )
        flat = target.reshape(len(target), length)
        for i in range(0, len(flat), _AT_ONCE):
            flat[i : i + _AT_ONCE] = every[at[i : i + _AT_ONCE]]


def zeros(count: int, window: int, steps: int) -> Rows:
    """Room for ``count`` trajectories."""
    x, u, target = (np.zeros((count, window - 1 + steps, width), np.float32) for width in WIDTHS)
    return x, u, target


def room(count: int, window: int) -> Rows:
    """Room for ``count`` windows."""
    x, u, target = (aligned((count, window, width)) for width in WIDTHS)
    return x, u, target


def flat(dataset: Dataset, split: str, window: int) -> tuple[Rows, np.ndarray]:
    """All trajectories of a split in host memory, and the row of the table of each ``[N]``."""
    check_window(window)
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(split)] = True
    picks = []
    for shard, first in zip(dataset.shards, dataset.first_rows):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"] + first
        picks.append((variant, np.flatnonzero(chosen[variant])))
    variant = np.concatenate([v[keep] for v, keep in picks]).astype(np.int32)
    if not len(variant):
        raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
    rows, at = zeros(len(variant), window, dataset.config.num_steps), 0
    for number, (_, keep) in enumerate(picks):
        if len(keep):
            of, states, controls = dataset.read(dataset.shards[number], READ).values()
            coordinates = dataset.coordinates(number, of[keep])
            put(rows, slice(at, at + len(keep)), window, states[keep], controls[keep], coordinates)
            at += len(keep)
    return rows, variant


READ = ("trajectories/variant", "trajectories/states", "trajectories/controls")
"""What windows are cut from."""


def put(
    rows: Rows, where: slice, window: int, states: np.ndarray, controls: np.ndarray, coordinates: Coordinates
) -> None:
    """Scale states ``[N, T+1, n]`` and inputs ``[N, T, m]`` into some rows of zeros."""
    sx, su, K = coordinates
    n, m = sx.shape[-1], su.shape[-1]
    x, u, target = (a[where, window - 1 :] for a in rows)
    # by the reciprocal, in float32: within one rounding of the quotient, and three times as fast
    np.multiply(states[:, :-1], (1 / sx)[:, None].astype(np.float32), out=x[..., :n])
    np.multiply(controls[:, :-1], (1 / su)[:, None].astype(np.float32), out=u[:, 1:, :m])
    target[..., :m] = states[:, :-1].astype(np.float64) @ (-K / su[:, :, None]).swapaxes(1, 2)


def resident(dataset: Dataset, split: str, window: int, device: jax.Device | None = None) -> Resident:
    """Put all windows of a split on a device.

    Args:
        dataset: opened.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        window: steps in a window.
        device: where to; JAX's default if left out.

    Raises:
        ValueError: an unknown or empty split, a damaged file.
    """
    rows, variant = flat(dataset, store.check_split(split), window)
    rows, variant, table = jax.device_put((rows, variant, dataset.table()), device)
    x, u, target = rows
    return Resident(x, u, target, variant, table, window, dataset.config.num_steps)
