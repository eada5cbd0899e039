"""Windows of trajectories as a learner takes them: cut when read, scaled, padded, masked."""

import concurrent.futures
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import pytree
from lqrlab.compute.memory import BOUNDARY, aligned, on_boundary
from lqrlab.dataset import shuffling, store
from lqrlab.dataset.store import Coordinates, Dataset, VariantTable
from lqrlab.systems import M_MAX, N_MAX

CHANNELS = N_MAX + M_MAX
"""Of a state and the input before it, padded."""


class _Channels:
    """What follows from a state and the input before it, which stand side by side: copied in one piece."""

    signals: Any

    @property
    def x(self) -> Any:
        """States in units of the variant's scales ``[..., 12]``."""
        return self.signals[..., :N_MAX]

    @property
    def u(self) -> Any:
        """Inputs that reached the plant in the step before each x, scaled ``[..., 6]``; zero if none did."""
        return self.signals[..., N_MAX:]


@pytree
@dataclasses.dataclass(frozen=True)
class Batch(_Channels):
    """Windows, each ending at the time whose input is to be chosen; oldest first. Masked entries are zero.

    Attributes:
        variant: row of the :class:`VariantTable` ``[b]``, int32.
        signals: ``x`` [b, W, 12] and ``u`` [b, W, 6] side by side ``[b, W, 18]``.
        gain: optimal gain of each window's plant, scaled ``[b, 6, 12]``.
        time_mask: 1 where the time exists, 0 before the trajectory began ``[b, W]``.
        state_mask, input_mask: 1 where a state or input exists, 0 in padding ``[b, 12]``, ``[b, 6]``.
    """

    variant: Array
    signals: Array
    gain: Array
    time_mask: Array
    state_mask: Array
    input_mask: Array

    @property
    def target(self) -> Array:
        """Optimal input −Kx at each x, scaled ``[b, W, 6]``; computed where it is asked for."""
        return _optimal(self.gain, self.x)


@pytree
@dataclasses.dataclass(frozen=True)
class Resident(_Channels):
    """All windows of a split on one device: batches are gathered inside a compiled step.

    Window i ends at time ``i % num_steps`` of trajectory ``i // num_steps``.

    Attributes:
        signals: state and the input before it at each time, after ``window − 1`` times of zeros, so that
            every window is one piece of memory ``[N, window − 1 + num_steps, 12 + 6]``.
        variant: row of the table ``[N]``.
        table: all variants.
        window: steps in a window.
        num_steps: windows per trajectory.
    """

    signals: Array
    variant: Array
    table: VariantTable
    window: int = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(metadata={"static": True})

    @property
    def target(self) -> Array:
        """Optimal input at each x, scaled ``[N, window − 1 + num_steps, 6]``."""
        return _optimal(self.table.gain[self.variant], self.x)

    @property
    def num_windows(self) -> int:
        """How many there are."""
        return self.signals.shape[0] * self.num_steps

    def epoch_order(self, seed: ArrayLike, epoch: ArrayLike) -> Array:
        """All windows in the order of an epoch ``[num_windows]``."""
        return self.order(jnp.arange(self.num_windows), seed, epoch)

    def order(self, positions: ArrayLike, seed: ArrayLike, epoch: ArrayLike) -> Array:
        """The windows at some positions of an epoch, without a list of all; see :func:`order.shuffled`."""
        return shuffling.shuffled(positions, self.num_windows, seed, epoch)

    def gather(self, indices: ArrayLike) -> Batch:
        """Windows by number ``[b]``; can be called inside ``jit``."""
        indices = jnp.asarray(indices)
        trajectory, t = indices // self.num_steps, indices % self.num_steps
        # a window is one piece of its row; said so, XLA copies it in half the time
        long, start = self.signals.reshape(len(self.signals), -1), t * CHANNELS
        size = (1, self.window * CHANNELS)
        pieces = jax.vmap(lambda i, at: jax.lax.dynamic_slice(long, (i, at), size)[0])(trajectory, start)
        variant = self.variant[trajectory]
        signals = pieces.reshape(-1, self.window, CHANNELS)
        return Batch(variant, signals, *known(t, variant, self.table, self.window))


def _optimal(gain: Array, x: Array) -> Array:
    return -jnp.einsum("bij,btj->bti", gain, x)


def known(t: Array, variant: Array, table: VariantTable, window: int) -> tuple[Array, Array, Array, Array]:
    """``gain``, ``time_mask``, ``state_mask``, ``input_mask`` of windows that end at times t ``[b]``."""
    back = jnp.arange(window - 1, -1, -1, dtype=t.dtype)
    gain, state_mask, input_mask = (
        a[variant] for a in (table.gain, table.description.state_mask, table.description.input_mask)
    )
    return gain, (back[None, :] <= t[:, None]).astype(state_mask.dtype), state_mask, input_mask


def check_window(window: int) -> int:
    """The length of a window, or a ``ValueError``."""
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise ValueError(f"window: expected at least one step, but found {window!r}")
    return int(window)


_ALONE = 256  # windows that are not worth a second thread
_cutters = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-cut")


def cut(rows: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Copy windows out of rows ``[N, L, 18]`` to out ``[b, W, 18]``; they begin at times ``at`` of all N·L.

    Half of it is done by a second thread: NumPy lets go of the interpreter meanwhile.
    """
    every, steps = rows.reshape(-1, CHANNELS), np.arange(out.shape[1])

    def some(part: slice) -> None:
        times = (at[part, None] + steps).reshape(-1)
        # to look whether each index is in range would mean a buffer in between; "clip" does without
        np.take(every, times, axis=0, out=out[part].reshape(-1, CHANNELS), mode="clip")

    half = len(at) // 2
    if half < _ALONE:
        return some(slice(None))
    other = _cutters.submit(some, slice(half, None))
    some(slice(None, half))
    return other.result()


def zeros(count: int, window: int, steps: int) -> np.ndarray:
    """Room for ``count`` trajectories, on a 64-byte boundary too."""
    shape = (count, window - 1 + steps, CHANNELS)
    buffer = np.zeros(4 * math.prod(shape) + BOUNDARY, np.uint8)
    return on_boundary(buffer, shape, np.float32)


def room(count: int, window: int) -> np.ndarray:
    """Room for ``count`` windows."""
    return aligned((count, window, CHANNELS))


def flat(
    dataset: Dataset, split: str, window: int, part: tuple[int, int] = (0, 1)
) -> tuple[np.ndarray, np.ndarray]:
    """The trajectories of a split in host memory ``[N, W − 1 + T, 18]``, and each one's row of the table.

    Args:
        dataset, split, window: what to read.
        part: (index, count) of this process: it takes every count-th trajectory.
    """
    check_window(window)
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(split)] = True
    picks, seen, (index, count) = [], 0, part
    for shard, first in zip(dataset.shards, dataset.first_rows):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"] + first
        keep = np.flatnonzero(chosen[variant])
        picks.append((variant, keep[(seen + np.arange(len(keep))) % count == index]))
        seen += len(keep)
    if not seen:
        raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
    variant = np.concatenate([v[keep] for v, keep in picks]).astype(np.int32)
    rows, at = zeros(len(variant), window, dataset.config.row_steps), 0
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
    rows: np.ndarray,
    where: slice,
    window: int,
    states: np.ndarray,
    controls: np.ndarray,
    coordinates: Coordinates,
) -> None:
    """Scale states ``[N, T+1, n]`` and inputs ``[N, T, m]`` into some rows of zeros."""
    sx, su = coordinates
    n, m = sx.shape[-1], su.shape[-1]
    there = rows[where, window - 1 :]
    # by the reciprocal, in float32: within one rounding of the quotient, and three times as fast
    np.multiply(states[:, :-1], (1 / sx)[:, None].astype(np.float32), out=there[..., :n])
    after = there[:, 1:, N_MAX : N_MAX + m]
    np.multiply(controls[:, :-1], (1 / su)[:, None].astype(np.float32), out=after)


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
    return resident_of(dataset, *flat(dataset, store.check_split(split), window), window, device)


def resident_of(
    dataset: Dataset, rows: np.ndarray, variant: np.ndarray, window: int, device: jax.Device | None
) -> Resident:
    """What :func:`flat` returned, on a device."""
    signals, of, table = jax.device_put((rows, variant, dataset.table()), device)
    return Resident(signals, of, table, window, dataset.config.row_steps)
