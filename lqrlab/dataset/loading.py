"""Batches of windows from the device, from memory or from the disk, behind one interface."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.dataset import order, windows
from lqrlab.dataset.store import Dataset, VariantTable
from lqrlab.dataset.streaming import Fetched, Streaming
from lqrlab.dataset.windows import Batch, Resident

MODES = ("resident", "memory", "streaming")


class _Source(Protocol):
    """Where windows come from: those at some positions of the epoch."""

    def at(self, first: int, count: int) -> Batch: ...


@dataclasses.dataclass(frozen=True, eq=False)
class _Device:
    """Everything on the device; windows are shuffled and gathered there."""

    windows: Resident
    seed: int
    epoch: int

    def at(self, first: int, count: int) -> Batch:
        return _ordered(self.windows, np.uint32(first), count, np.uint32(self.seed), np.uint32(self.epoch))

    def gather(self, index: np.ndarray) -> Batch:
        return _gather(self.windows, index)


@dataclasses.dataclass(frozen=True, eq=False)
class _Host:
    """Everything in host memory; windows are copied out of it and put on the device."""

    rows: windows.Rows
    variant: np.ndarray
    table: VariantTable
    window: int
    steps: int
    device: jax.Device | None
    seed: int
    epoch: int

    def at(self, first: int, count: int) -> Batch:
        positions, num = np.arange(first, first + count), len(self.variant) * self.steps
        return self.gather(order.shuffled_on_host(positions, num, self.seed, self.epoch))

    def gather(self, index: np.ndarray) -> Batch:
        trajectory, t = index // self.steps, (index % self.steps).astype(np.int32)
        out = windows.room(len(index), self.window)
        windows.cut(self.rows, trajectory, t, out)
        return _placed((out, t, self.variant[trajectory]), self.table, self.device)


@dataclasses.dataclass(frozen=True, eq=False)
class _Disk:
    """Pools of an epoch in host memory, one after the other."""

    stream: Streaming
    table: VariantTable
    device: jax.Device | None

    def at(self, first: int, count: int) -> Batch:
        return _placed(self.stream.fetch(first, count), self.table, self.device)


_masks = jax.jit(windows.masks, static_argnames="window")
_gather = jax.jit(Resident.gather)


def _placed(fetched: Fetched, table: VariantTable, device: jax.Device | None) -> Batch:
    """Windows from the host on the device; they do not pass through a program, which would copy them."""
    (x, u, target), t, variant = jax.device_put(fetched, device)
    return Batch(variant, x, u, target, *_masks(t, variant, table, window=x.shape[1]))


@jax.jit(static_argnames="count")
def _ordered(source: Resident, first: Array, count: int, seed: Array, epoch: Array) -> Batch:
    return source.gather(source.order(first + jnp.arange(count, dtype=first.dtype), seed, epoch))


@dataclasses.dataclass(frozen=True, eq=False)
class Loader:
    """Batches of one epoch; iterate over it, or ask for any by its position.

    Attributes:
        batch: ``position -> Batch``: a pure function of (seed, epoch, position).
        table: all variants; batches point into its rows.
        num_windows: in the split.
        num_batches: in the epoch.
        start: position at which iteration begins.
        ahead: batches that a thread makes ahead of the one in use; 0: none.
    """

    batch: Callable[[int], Batch]
    table: VariantTable
    num_windows: int
    num_batches: int
    start: int
    ahead: int

    def __len__(self) -> int:
        return max(self.num_batches - self.start, 0)

    def __iter__(self) -> Iterator[Batch]:
        positions = range(self.start, self.num_batches)
        return _ahead(self.batch, positions, self.ahead) if self.ahead else map(self.batch, positions)


def loader(
    dataset: Dataset,
    *,
    split: str = "train",
    batch_size: int,
    window: int,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    device: jax.Device | None = None,
    mode: str = "resident",
    family_weights: Mapping[str, float] | None = None,
    drop_remainder: bool = True,
    pool_bytes: int = 1 << 28,
) -> Loader:
    """Shuffled, scaled, padded, masked windows of a split as JAX arrays: every window once in an epoch.

    Args:
        dataset: opened.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        batch_size: windows in a batch.
        window: steps in a window; one ends at each time of each trajectory at which an input is chosen.
        seed, epoch: which shuffle.
        start: batch to begin at, for a resumed run.
        device: where batches are put; JAX's default if left out.
        mode: ``"resident"`` keeps all on the device, ``"memory"`` all in host memory, ``"streaming"`` reads
            pools of shuffled blocks as it goes. The first two give the same batches, all three the same
            windows in an epoch.
        family_weights: family → relative frequency; windows are then drawn with replacement, and families
            that are not named are not drawn. Not in streaming mode.
        drop_remainder: leave out the last batch if it is not full.
        pool_bytes: host memory for a pool of streaming mode, which holds two.

    Raises:
        ValueError: an argument that does not fit, an empty split, a damaged file.
    """
    numbers = {"batch_size": batch_size, "seed": seed, "epoch": epoch, "start": start}
    for name, value in numbers.items():
        least = int(name == "batch_size")
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**32:
            raise ValueError(f"{name}: expected a whole number from {least} on, but found {value!r}")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, but found {mode!r}")
    if mode == "streaming" and family_weights is not None:
        raise ValueError(
            "family_weights: expected None in streaming mode, which reads each file once an epoch; use "
            "mode='memory' or 'resident'"
        )
    steps = dataset.config.num_steps
    source: Any
    if mode == "streaming":
        stream = Streaming(dataset, split, window, seed=seed, epoch=epoch, pool_bytes=pool_bytes)
        table, num_windows = jax.device_put(dataset.table(), device), stream.num_windows
        source = _Disk(stream, table, device)
    elif mode == "memory":
        rows, variant = windows.flat(dataset, split, window)
        table, num_windows = jax.device_put(dataset.table(), device), len(variant) * steps
        source = _Host(rows, variant, table, window, steps, device, seed, epoch)
    else:
        there = windows.resident(dataset, split, window, device)
        table, variant, num_windows = there.table, np.asarray(there.variant), there.num_windows
        source = _Device(there, seed, epoch)
    draw = None if family_weights is None else _Drawn(dataset, variant, family_weights, seed, epoch)
    full, rest = divmod(num_windows, batch_size)
    num_batches = full if drop_remainder or not rest else full + 1
    if not num_batches:
        raise ValueError(
            f"batch_size: expected at most {num_windows}, the windows of {split!r}, but found {batch_size}"
        )

    def batch(position: int) -> Batch:
        if not 0 <= position < num_batches:
            raise ValueError(f"position: expected one of {num_batches} batches, but found {position}")
        first = position * batch_size
        count = min(batch_size, num_windows - first)
        return source.at(first, count) if draw is None else source.gather(draw(position, count))

    return Loader(batch, table, num_windows, num_batches, start, ahead=0 if mode == "resident" else 2)


class _Drawn:
    """Windows by family, with replacement: a pure function of (seed, epoch, position)."""

    def __init__(
        self, dataset: Dataset, variant: np.ndarray, weights: Mapping[str, float], seed: int, epoch: int
    ) -> None:
        self.key, self.steps = [seed, epoch], dataset.config.num_steps
        family = dataset.variants.family[variant]
        there = sorted(set(family.tolist()))
        for name, weight in weights.items():
            if name not in there:
                raise ValueError(f"family_weights: {name!r} is not in this split of {', '.join(there)}")
            if not (np.isfinite(weight) and weight >= 0):
                raise ValueError(f"family_weights: expected a weight ≥ 0 for {name!r}, but found {weight!r}")
        self.members = [np.flatnonzero(family == name) for name in weights]
        total = sum(weights.values())
        if not total > 0:
            raise ValueError(f"family_weights: expected a family with a weight above 0, but found {weights}")
        self.share = np.array(list(weights.values()), float) / total

    def __call__(self, position: int, count: int) -> np.ndarray:
        random = np.random.Generator(np.random.Philox(key=self.key, counter=[0, 0, 0, position]))
        family = random.choice(len(self.share), size=count, p=self.share)
        sizes = np.array([len(m) for m in self.members])[family]
        within = random.integers(sizes * self.steps)
        start = np.cumsum([0] + [len(m) for m in self.members])[family]
        return np.concatenate(self.members)[start + within // self.steps] * self.steps + within % self.steps


def _ahead(batch: Callable[[int], Batch], positions: range, depth: int) -> Iterator[Batch]:
    """Batches in order, ``depth`` of them made by a thread while an earlier one is used."""
    maker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-load")
    coming: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
    try:
        for position in positions:
            coming.append(maker.submit(batch, position))
            if len(coming) > depth:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:  # also when the loop was left early; the thread ends with its maker
        for future in coming:
            future.cancel()
