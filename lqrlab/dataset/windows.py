"""Windows of trajectories as a learner takes them: cut when read, scaled, padded, masked."""

import concurrent.futures
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import checks, pytree
from lqrlab.compute.memory import BOUNDARY, aligned, on_boundary
from lqrlab.dataset import shuffling
from lqrlab.dataset.store import Dataset, VariantTable, check_split
from lqrlab.systems import M_MAX, N_MAX, Coordinates

CHANNELS = N_MAX + M_MAX
"""Of a state and the input before it, padded."""

ARRAYS = ("trajectories/variant", "trajectories/states", "trajectories/controls")
"""What windows are cut from."""


@pytree
@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows, each ending at the time whose input is to be chosen; oldest first.

    Attributes:
        signals: scaled state and the input before it ``[b, W, 12 + 6]``; zero before the trajectory began.
        t: time of the last state in its trajectory ``[b]``, int32.
        variant: row of the :class:`VariantTable` ``[b]``, int32.
    """

    signals: Array
    t: Array
    variant: Array

    def batch(self, table: VariantTable) -> "Batch":
        """With what is known of their plants."""
        back = jnp.arange(self.signals.shape[1] - 1, -1, -1, dtype=self.t.dtype)
        mask = (back[None, :] <= self.t[:, None]).astype(self.signals.dtype)
        known = (table.gain, table.description.state_mask, table.description.input_mask)
        gain, state_mask, input_mask = (a[self.variant] for a in known)
        return Batch(self.variant, self.signals, gain, mask, state_mask, input_mask)


@pytree
@dataclasses.dataclass(frozen=True)
class Batch:
    """Windows with what is known of their plants. Masked entries are zero.

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
    def x(self) -> Array:
        """States in units of the variant's scales ``[b, W, 12]``."""
        return self.signals[..., :N_MAX]

    @property
    def u(self) -> Array:
        """Inputs that reached the plant in the step before each x, scaled ``[b, W, 6]``; zero if none did."""
        return self.signals[..., N_MAX:]

    @property
    def target(self) -> Array:
        """Optimal input −Kx at each x, scaled ``[b, W, 6]``; computed where it is asked for."""
        return -jnp.einsum("bij,btj->bti", self.gain, self.x)


@pytree
@dataclasses.dataclass(frozen=True)
class WindowSet:
    """All windows of some trajectories in one memory: they are gathered inside a compiled program.

    Window i ends at time ``i % num_steps`` of trajectory ``i // num_steps``.

    Attributes:
        signals: state and the input before it at each time, after ``window − 1`` times of zeros, so that
            every window is one piece of memory ``[N, window − 1 + num_steps, 12 + 6]``.
        variant: row of the table ``[N]``, int32.
        window: steps in a window.
        num_steps: windows per trajectory.
    """

    signals: Array
    variant: Array
    window: int = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(metadata={"static": True})

    @property
    def num_windows(self) -> int:
        """How many there are."""
        return self.signals.shape[0] * self.num_steps

    def gather(self, indices: ArrayLike) -> Windows:
        """Windows by number ``[b]``; can be called inside ``jit``."""
        indices = jnp.asarray(indices)
        trajectory, t = indices // self.num_steps, (indices % self.num_steps).astype(jnp.int32)
        # a window is one piece of its row; said so, XLA copies it in half the time
        rows, start = self.signals.reshape(len(self.signals), -1), t * CHANNELS
        size = (1, self.window * CHANNELS)
        pieces = jax.vmap(lambda i, at: jax.lax.dynamic_slice(rows, (i, at), size)[0])(trajectory, start)
        return Windows(pieces.reshape(-1, self.window, CHANNELS), t, self.variant[trajectory])

    def shuffled(self, first: ArrayLike, epoch: ArrayLike, count: int, seed: ArrayLike) -> Windows:
        """The ``count`` windows from position ``first`` of a shuffled epoch on, and on into the epochs after it.

        Can be called inside ``jit``; see :func:`lqrlab.dataset.shuffling.shuffled`.
        """
        positions = jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
        num = self.num_windows
        epochs = jnp.asarray(epoch, jnp.uint32) + positions // num
        return self.gather(shuffling.shuffled(positions % num, num, seed, epochs))


# On the host -------------------------------------------------------------------------------------------------

_FEW = 256  # windows that are not worth a second thread
_cutters = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-cut")


def cut(rows: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Copy windows out of rows ``[N, L, 18]`` to out ``[b, W, 18]``; they begin at times ``at`` of all N·L.

    Half of it is done by a second thread: NumPy lets go of the interpreter meanwhile.
    """
    times, steps = rows.reshape(-1, CHANNELS), np.arange(out.shape[1])

    def some(part: slice) -> None:
        index = (at[part, None] + steps).reshape(-1)
        # to look whether each index is in range would mean a buffer in between; "clip" does without
        np.take(times, index, axis=0, out=out[part].reshape(-1, CHANNELS), mode="clip")

    half = len(at) // 2
    if half < _FEW:
        return some(slice(None))
    other = _cutters.submit(some, slice(half, None))
    some(slice(None, half))
    return other.result()


def zeros(count: int, window: int, steps: int) -> np.ndarray:
    """Memory for the rows of ``count`` trajectories, on a 64-byte boundary."""
    shape = (count, window - 1 + steps, CHANNELS)
    buffer = np.zeros(4 * math.prod(shape) + BOUNDARY, np.uint8)
    return on_boundary(buffer, shape, np.float32)


def uncut(count: int, window: int) -> np.ndarray:
    """Memory for ``count`` windows, uninitialised."""
    return aligned((count, window, CHANNELS))


def put(
    rows: np.ndarray,
    where: slice,
    window: int,
    states: np.ndarray,
    controls: np.ndarray,
    coordinates: Coordinates,
) -> None:
    """Scale states ``[N, T+1, n]`` and inputs ``[N, T, m]`` in SI units into some rows of zeros."""
    n, m = states.shape[-1], controls.shape[-1]
    to = rows[where, window - 1 :]
    # by the reciprocal, in float32: within one rounding of the quotient, and three times as fast
    per_x, per_u = ((1 / a)[:, None].astype(np.float32) for a in (coordinates.scale_x, coordinates.scale_u))
    np.multiply(states[:, :-1], per_x[..., :n], out=to[..., :n])
    np.multiply(controls[:, :-1], per_u[..., :m], out=to[:, 1:, N_MAX : N_MAX + m])


def read(
    dataset: Dataset, split: str, window: int, part: tuple[int, int] = (0, 1)
) -> tuple[np.ndarray, np.ndarray]:
    """The trajectories of a split in host memory, as a :class:`WindowSet` has them.

    Args:
        dataset: opened.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        window: steps in a window.
        part: (index, count) of this process: it takes every count-th trajectory.

    Returns:
        Rows ``[N, W − 1 + T, 18]`` and each one's row of the table ``[N]``.

    Raises:
        ValueError: an unknown or empty split, a damaged file.
    """
    checks.whole("window", window)
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(check_split(split))] = True
    picks, seen, (index, count) = [], 0, part
    for shard, first in zip(dataset.shards, dataset.first_rows):
        variant = dataset.read(shard, [ARRAYS[0]])[ARRAYS[0]] + first
        keep = np.flatnonzero(chosen[variant])
        picks.append((variant, keep[(seen + np.arange(len(keep))) % count == index]))
        seen += len(keep)
    if not seen:
        raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
    variant = np.concatenate([v[keep] for v, keep in picks]).astype(np.int32)
    rows, at = zeros(len(variant), window, dataset.config.row_steps), 0
    for number, (_, keep) in enumerate(picks):
        if len(keep):
            of, states, controls = dataset.read(dataset.shards[number], ARRAYS).values()
            where = slice(at, at + len(keep))
            put(rows, where, window, states[keep], controls[keep], dataset.coordinates(number, of[keep]))
            at += len(keep)
    return rows, variant
