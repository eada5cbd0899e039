"""Windows of trajectories as a learner takes them: cut when read, scaled, padded, masked."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.dataset import order, store
from lqrlab.dataset.store import Coordinates, Dataset, VariantTable
from lqrlab.systems import M_MAX, N_MAX

WIDTH = N_MAX + 2 * M_MAX


@jax.tree_util.register_dataclass
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Resident:
    """All windows of a split on one device: batches are gathered inside a compiled step.

    Window i ends at time ``i % num_steps`` of trajectory ``i // num_steps``.

    Attributes:
        rows: state, the input before it and the optimal input at each time, after ``window − 1`` rows of
            zeros ``[N, window − 1 + num_steps, 24]``, so that every window is one piece of memory.
        variant: row of the table ``[N]``.
        table: all variants.
        window: steps in a window.
        num_steps: windows per trajectory.
    """

    rows: Array
    variant: Array
    table: VariantTable
    window: int = dataclasses.field(metadata={"static": True})
    num_steps: int = dataclasses.field(metadata={"static": True})

    @property
    def num_windows(self) -> int:
        """How many there are."""
        return self.rows.shape[0] * self.num_steps

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

        def cut(trajectory: Array, t: Array) -> Array:
            size = (1, self.window, WIDTH)
            return jax.lax.dynamic_slice(self.rows, (trajectory, t, jnp.zeros_like(t)), size)[0]

        # the barrier keeps XLA from gathering once for each of the three parts
        rows = jax.lax.optimization_barrier(jax.vmap(cut)(trajectory, t))
        return finish(rows, t, self.variant[trajectory], self.table)


def finish(rows: Array, t: Array, variant: Array, table: VariantTable) -> Batch:
    """The batch of windows ``[b, W, 24]`` that end at times t ``[b]``."""
    x, u, target = jnp.split(rows, (N_MAX, N_MAX + M_MAX), axis=-1)
    back = jnp.arange(rows.shape[1] - 1, -1, -1, dtype=t.dtype)
    return Batch(
        variant=variant,
        x=x,
        u=u,
        target=target,
        live_t=(back[None, :] <= t[:, None]).astype(x.dtype),
        live_x=table.description.live_x[variant],
        live_u=table.description.live_u[variant],
    )


def check_window(window: int) -> int:
    """The length of a window, or a ``ValueError``."""
    if isinstance(window, bool) or not isinstance(window, int | np.integer) or window < 1:
        raise ValueError(f"window: expected at least one step, but found {window!r}")
    return int(window)


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialised float32 array on a 64-byte boundary, which JAX on a CPU takes over uncopied."""
    size = 4 * math.prod(shape)
    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(np.float32).reshape(shape)


def cut(rows: np.ndarray, trajectory: np.ndarray, t: np.ndarray, window: int, out: np.ndarray) -> None:
    """Copy the windows that end at times t from rows ``[N, W − 1 + T, 24]`` to out ``[b, W, 24]``."""
    at = trajectory.astype(np.int64) * rows.shape[1] + t
    index = at[:, None] + np.arange(window)
    # clip: checking each index against the end would cost a copy
    np.take(rows.reshape(-1, WIDTH), index, axis=0, out=out, mode="clip")


def flat(dataset: Dataset, split: str, window: int) -> tuple[np.ndarray, np.ndarray]:
    """``rows`` and ``variant`` of :class:`Resident` in host memory."""
    check_window(window)
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(split)] = True
    picks = []
    for shard, first in zip(dataset.shards, dataset.first_rows):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"] + first
        picks.append((variant, np.flatnonzero(chosen[variant])))
    steps = dataset.config.num_steps
    variant = np.concatenate([v[keep] for v, keep in picks]).astype(np.int32)
    if not len(variant):
        raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
    rows = np.zeros((len(variant), window - 1 + steps, WIDTH), np.float32)
    at = 0
    for number, (_, keep) in enumerate(picks):
        if len(keep):
            _fill(rows[at : at + len(keep), window - 1 :], dataset, number, keep)
            at += len(keep)
    return rows, variant


def _fill(out: np.ndarray, dataset: Dataset, number: int, keep: np.ndarray) -> None:
    """Put all trajectories ``keep`` of a file into out."""
    names = ("trajectories/variant", "trajectories/states", "trajectories/controls")
    variant, states, controls = dataset.read(dataset.shards[number], names).values()
    put(out, states[keep], controls[keep], dataset.coordinates(number, variant[keep]))


def put(out: np.ndarray, states: np.ndarray, controls: np.ndarray, coordinates: Coordinates) -> None:
    """Fill zeros ``[N, T, 24]`` from states ``[N, T+1, n]`` and inputs ``[N, T, m]`` in SI units."""
    sx, su, K = coordinates
    n, m = sx.shape[-1], su.shape[-1]
    # by the reciprocal, in float32: within one rounding of the quotient, and three times as fast
    np.multiply(states[:, :-1], (1 / sx)[:, None].astype(np.float32), out=out[..., :n])
    np.multiply(controls[:, :-1], (1 / su)[:, None].astype(np.float32), out=out[:, 1:, N_MAX : N_MAX + m])
    optimal = states[:, :-1].astype(np.float64) @ (-K / su[:, :, None]).swapaxes(1, 2)
    out[..., N_MAX + M_MAX : N_MAX + M_MAX + m] = optimal


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
    return Resident(rows, variant, table, window, dataset.config.num_steps)
