"""Windows of trajectories for a learner: cut when read, scaled, padded, masked."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, Int32

from lqrlab.compute import pytree
from lqrlab.compute.threads import aligned, on_threads
from lqrlab.dataset import shards, shuffling
from lqrlab.dataset.store import Dataset, VariantTable
from lqrlab.systems import M_MAX, N_MAX, Coordinates

CHANNELS = N_MAX + M_MAX  # of a state and the input before it, padded


@pytree
@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows, each ending at the time of its target input; oldest first.

    Attributes:
        signals: scaled state and the input before it; zero before the trajectory began.
        t: time of the last state in its trajectory.
        variant: row of the :class:`VariantTable`.
    """

    signals: Float[Array, "*b W 18"]
    t: Int32[Array, "*b"]
    variant: Int32[Array, "*b"]

    def batch(self, table: VariantTable) -> "Batch":
        """With the optimal gains and masks of their plants."""
        known = gain_and_masks(self.t, self.variant, table, self.signals.shape[1])
        return Batch(self.variant, self.signals, *known)


@functools.partial(jax.jit, static_argnames="window")
def gain_and_masks(
    t: Int32[Array, " b"], variant: Int32[Array, " b"], table: VariantTable, window: int
) -> tuple[Array, Array, Array, Array]:
    """Optimal gains, time masks, state masks and input masks of windows that end at times ``t``."""
    back = jnp.arange(window - 1, -1, -1, dtype=t.dtype)
    time_mask = (back[None, :] <= t[:, None]).astype(jnp.float32)
    units = table.problem.coordinates
    states, inputs = (mask[variant].astype(jnp.float32) for mask in (units.state_mask, units.input_mask))
    return table.gain(variant), time_mask, states, inputs


@pytree
@dataclasses.dataclass(frozen=True)
class Batch:
    """Windows with the optimal gains and masks of their plants. Masked entries are zero.

    Attributes:
        variant: row of the :class:`VariantTable`.
        signals: ``x`` and ``u`` concatenated.
        gain: optimal gain of each window's plant, scaled.
        time_mask: 0 before the trajectory began, else 1.
        state_mask, input_mask: 1 where a state or input exists, 0 in padding.
    """

    variant: Int32[Array, " b"]
    signals: Float[Array, "b W 18"]
    gain: Float[Array, "b 6 12"]
    time_mask: Float[Array, "b W"]
    state_mask: Float[Array, "b 12"]
    input_mask: Float[Array, "b 6"]

    @property
    def x(self) -> Float[Array, "b W 12"]:
        """States in units of the variant's scales."""
        return self.signals[..., :N_MAX]

    @property
    def u(self) -> Float[Array, "b W 6"]:
        """Inputs that reached the plant in the step before each x, scaled; zero if none did."""
        return self.signals[..., N_MAX:]

    @property
    def target(self) -> Float[Array, "b W 6"]:
        """Optimal input −Kx at each x, scaled; computed when it is asked for."""
        return -jnp.einsum("bij,btj->bti", self.gain, self.x)


@pytree
@dataclasses.dataclass(frozen=True)
class WindowSet:
    """All windows of some trajectories; window i ends at time ``i % num_steps`` of trajectory ``i // num_steps``.

    Attributes:
        signals: state and the input before it at each time, after ``window − 1`` times of zeros.
        variant: row of the table of each trajectory.
        window: steps in a window.
        num_steps: windows per trajectory.
    """

    signals: Float[Array, "N window-1+num_steps 18"]
    variant: Int32[Array, " N"]
    window: int = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(metadata={"static": True})

    @property
    def num_windows(self) -> int:
        """Number of windows."""
        return self.signals.shape[0] * self.num_steps

    def gather(self, indices: Int[ArrayLike, " b"]) -> Windows:
        """Windows by number; can be called inside ``jit``."""
        indices = jnp.asarray(indices)
        trajectory, t = (a.astype(jnp.int32) for a in (indices // self.num_steps, indices % self.num_steps))
        # a window is one piece of its row: as a slice of the flat row XLA copies it in half the time
        rows, start = self.signals.reshape(len(self.signals), -1), t * CHANNELS
        size = (1, self.window * CHANNELS)
        pieces = jax.vmap(lambda i, at: jax.lax.dynamic_slice(rows, (i, at), size)[0])(trajectory, start)
        return Windows(pieces.reshape(-1, self.window, CHANNELS), t, self.variant[trajectory])

    @functools.partial(jax.jit, static_argnames="count")
    def shuffled(self, first: ArrayLike, epoch: ArrayLike, count: int, seed: ArrayLike) -> Windows:
        """The ``count`` windows from position ``first`` of a shuffled epoch on, and on into the epochs after it.

        Can be called inside ``jit``; see :func:`lqrlab.dataset.shuffling.shuffled`.
        """
        positions = jnp.asarray(first, jnp.uint32) + jnp.arange(count, dtype=jnp.uint32)
        num, epoch = self.num_windows, jnp.asarray(epoch, jnp.uint32)
        indices = jax.lax.cond(
            positions[-1] < num,  # as nearly always; then one epoch's cipher is enough, in half the time
            lambda: shuffling.shuffled(positions, num, seed, epoch),
            lambda: shuffling.shuffled(positions % num, num, seed, epoch + positions // num),
        )
        return self.gather(indices)


_FEW = 256  # windows that are not worth a second thread

Rows = Float[np.ndarray, "N times 18"]  # trajectories as a :class:`WindowSet` has them, in host memory


def cut(rows: Rows, at: Int[np.ndarray, " b"], out: Float[np.ndarray, "b W 18"]) -> None:
    """Copy windows that begin at times ``at``, counted over all rows one after another.

    A second thread does half of it: NumPy releases Python's lock meanwhile.
    """
    times, steps = rows.reshape(-1, CHANNELS), np.arange(out.shape[1])

    def copy(part: slice) -> None:
        index = (at[part, None] + steps).reshape(-1)
        # to check whether each index is in range would mean a buffer in between; "clip" does without
        np.take(times, index, axis=0, out=out[part].reshape(-1, CHANNELS), mode="clip")

    half = len(at) // 2
    if half < _FEW:
        return copy(slice(None))
    on_threads(copy, [slice(None, half), slice(half, None)], "cut")


def row_bytes(window: int, steps: int) -> int:
    """Memory of one trajectory's row."""
    return 4 * (window - 1 + steps) * CHANNELS


def put(
    rows: Rows,
    window: int,
    states: Float[np.ndarray, "N samples n"],
    controls: Float[np.ndarray, "N T m"],
    coordinates: Coordinates,
) -> None:
    """Write states and inputs in SI units, scaled, into rows of zeros."""
    n, m = states.shape[-1], controls.shape[-1]
    to = rows[:, window - 1 :]
    # by the reciprocal, in float32: within one rounding of the quotient, and three times as fast
    per_x, per_u = ((1 / a)[:, None].astype(np.float32) for a in (coordinates.scale_x, coordinates.scale_u))
    np.multiply(states[:, :-1], per_x[..., :n], out=to[..., :n])
    np.multiply(controls[:, :-1], per_u[..., :m], out=to[:, 1:, N_MAX : N_MAX + m])


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """Trajectories that are read together: of rows first … last − 1 of a file (shard) those of one split (keep).

    ``variant`` is the row among the file's variants of each that is kept.
    """

    shard: int
    first: int
    last: int
    keep: np.ndarray
    variant: np.ndarray

    def __len__(self) -> int:
        return len(self.keep)


Blocks = tuple[Block, ...]


def blocks(data: Dataset, split: str) -> Blocks:
    """The trajectories of a split: a block for each chunk of each file, as HDF5 reads it."""
    found = []
    for number, shard in enumerate(data.shards):
        variant = data.read(shard, ["trajectories/variant"])["trajectories/variant"]
        belongs = data.tables[number]["split"][variant].astype(str) == split
        size = shards.chunk_rows(shard["arrays"])
        for first in range(0, len(variant), size):
            keep = np.flatnonzero(belongs[first : first + size])
            if len(keep):
                found.append(Block(number, first, min(first + size, len(variant)), keep, variant[first + keep]))
    if not found:
        raise ValueError(f"split: {data.path} has no trajectory in {split!r}")
    return tuple(found)


def read(data: Dataset, window: int, blocks: Blocks, digests: bool) -> tuple[Rows, Int32[np.ndarray, " N"]]:
    """The trajectories of some blocks in host memory, and the row of the table of each.

    Damage is found by HDF5's checksums of a file's chunks and, with ``digests``, by those of the manifest.
    """
    at = np.cumsum([0, *map(len, blocks)])
    rows = aligned((int(at[-1]), window - 1 + data.config.row_steps, CHANNELS), make=np.zeros)
    variant = np.empty(at[-1], np.int32)
    names = ["trajectories/states", "trajectories/controls"]
    for number in sorted({block.shard for block in blocks}):
        path = data.path / data.shards[number]["file"]
        with shards.opened(path) as (_, arrays), shards.damage(path, "is damaged"):
            held = data.read(data.shards[number], names) if digests else arrays
            for first, block in zip(at, blocks):
                if block.shard == number:
                    states, controls = (held[name][block.first : block.last][block.keep] for name in names)
                    where = slice(first, first + len(block))
                    put(rows[where], window, states, controls, data.coordinates(number, block.variant))
                    variant[where] = block.variant + data.first_rows[number]
    return rows, variant
