"""Batches of windows from the device, from memory, from the disk or from nowhere, behind one interface."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.dataset import shuffling, windows
from lqrlab.dataset.sources.streaming import Fetched, Streaming
from lqrlab.dataset.store import Dataset, VariantTable
from lqrlab.dataset.windows import Batch, Resident

MODES = ("resident", "memory", "streaming")


class _Source(Protocol):
    """Where windows come from: those at some positions of the epoch."""

    def at(self, first: int, count: int) -> Batch: ...


@dataclasses.dataclass(frozen=True, eq=False)
class _Held:
    """Everything on a device, or in host memory, which is the CPU's: shuffled and gathered there, then placed.

    Attributes:
        windows: where they are.
        seed, epoch: which shuffle.
        place: puts a batch where it is wanted.
    """

    windows: Resident
    seed: int
    epoch: int
    place: Callable[[Batch], Batch]

    def at(self, first: int, count: int) -> Batch:
        where = np.uint32(first), count, np.uint32(self.seed), np.uint32(self.epoch)
        return self.place(_ordered(self.windows, *where))

    def gather(self, index: np.ndarray) -> Batch:
        return self.place(_gather(self.windows, index.astype(np.uint32)))


@dataclasses.dataclass(frozen=True, eq=False)
class _Disk:
    """Pools of an epoch in host memory, one after the other."""

    stream: Streaming
    table: VariantTable
    device: jax.Device | None

    def at(self, first: int, count: int) -> Batch:
        return _placed(self.stream.fetch(first, count), self.table, self.device)


_known = jax.jit(windows.known, static_argnames="window")
_gather = jax.jit(Resident.gather)


@jax.jit(static_argnames="count")
def _ordered(source: Resident, first: Array, count: int, seed: Array, epoch: Array) -> Batch:
    return source.gather(source.order(first + jnp.arange(count, dtype=first.dtype), seed, epoch))


def _placed(fetched: Fetched, table: VariantTable, device: jax.Device | None) -> Batch:
    """Windows from the host on the device; they do not pass through a program, which would copy them."""
    signals, t, variant = jax.device_put(fetched, device)
    return Batch(variant, signals, *_known(t, variant, table, window=signals.shape[1]))


@dataclasses.dataclass(frozen=True, eq=False)
class Loader:
    """Batches of one epoch; iterate over it, or ask for any by its position.

    Attributes:
        batch: ``position -> Batch``: a pure function of (seed, epoch, position).
        table: all variants; batches point into its rows.
        num_windows: in the epoch.
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
    process_index: int = 0,
    process_count: int = 1,
) -> Loader:
    """Shuffled, scaled, padded, masked windows of a split as JAX arrays: every window once in an epoch.

    Args:
        dataset: opened.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        batch_size: windows in a batch (of this process).
        window: steps in a window; one ends at each time of each trajectory at which an input is chosen. Those of a
            thinned data set do not reach back over the start of a segment_length.
        seed, epoch: which shuffle.
        start: batch to begin at, for a resumed run.
        device: where batches are put; JAX's default if left out.
        mode: ``"resident"`` keeps all on the device, ``"memory"`` all in host memory, ``"streaming"`` reads
            pools of shuffled blocks as it goes. The first two give the same batches, all three the same
            windows in an epoch. For no file at all see :func:`lqrlab.dataset.live`.
        family_weights: family → relative frequency; windows are then drawn with replacement (blocks of
            trajectories in streaming mode), and families that are not named are not drawn.
        drop_remainder: leave out the last batch if it is not full. With several processes it keeps them in
            step: each has as many batches as the one with the fewest windows.
        pool_bytes: host memory for a pool of streaming mode, which holds two.
        process_index, process_count: which of several processes (hosts) this is. Each reads and shuffles a
            part of its own: every ``process_count``-th trajectory, or block of trajectories in streaming
            mode; the parts are disjoint and together the whole.

    Raises:
        ValueError: an argument that does not fit, an empty split, a damaged file.
    """
    check_numbers(batch_size=batch_size, seed=seed, epoch=epoch, start=start)
    check_numbers(process_index=process_index, process_count=process_count)
    if process_index >= process_count:
        raise ValueError(
            f"process_index: expected less than process_count, {process_count}, but found {process_index}"
        )
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, but found {mode!r}")
    steps, part = dataset.config.row_steps, (process_index, process_count)
    source: Any
    draw = None
    if mode == "streaming":
        stream = Streaming(
            dataset,
            split,
            window,
            seed=seed,
            epoch=epoch,
            pool_bytes=pool_bytes,
            family_weights=family_weights,
            part=part,
        )
        table = jax.device_put(dataset.table(), device)
        num_windows, fewest = stream.num_windows, stream.fewest
        source = _Disk(stream, table, device)
    else:
        rows, variant = windows.flat(dataset, split, window, part)
        num_windows = len(variant) * steps
        fewest = num_windows if process_count == 1 else steps * _share(dataset, split, process_count)
        if not num_windows:
            raise ValueError(f"process_count: {split!r} has too few trajectories for {process_count} parts")
        # on a CPU host memory is the device's own: what is there is taken over, not copied
        home = device if mode == "resident" else _cpu()
        there = windows.resident_of(dataset, rows, variant, window, home)
        wanted = device or next(iter(jnp.zeros(()).devices()))
        away = mode == "memory" and wanted != home
        place = partial(jax.device_put, device=wanted) if away else _stay
        source = _Held(there, seed, epoch, place)
        table = jax.device_put(there.table, wanted) if away else there.table
        if family_weights is not None:
            draw = _Drawn(dataset, variant, family_weights, seed, epoch)
    full, rest = divmod(fewest if drop_remainder else num_windows, batch_size)
    num_batches = full if drop_remainder or not rest else full + 1
    if not num_batches:
        raise ValueError(
            f"batch_size: expected at most {fewest}, the windows of {split!r}, but found {batch_size}"
        )

    def batch(position: int) -> Batch:
        if not 0 <= position < num_batches:
            raise ValueError(f"position: expected one of {num_batches} batches, but found {position}")
        first = position * batch_size
        count = min(batch_size, num_windows - first)
        return source.at(first, count) if draw is None else source.gather(draw(position, count))

    return Loader(batch, table, num_windows, num_batches, start, ahead=2)


def _stay(batch: Batch) -> Batch:
    return batch


def _cpu() -> jax.Device:
    """JAX's CPU, which computes on host memory."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ValueError(
            f"mode: 'memory' gathers windows on the host, but JAX was told to leave the CPU out ({error}); "
            "set JAX_PLATFORMS=cuda,cpu or leave it unset"
        ) from None


def check_numbers(**numbers: Any) -> None:
    """Refuse what is no whole number of the right size."""
    for name, value in numbers.items():
        least = int(name in ("batch_size", "process_count"))
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 2**32:
            raise ValueError(f"{name}: expected a whole number from {least} on, but found {value!r}")


def _share(dataset: Dataset, split: str, process_count: int) -> int:
    """Trajectories of the process that has the fewest."""
    rows = dataset.rows(split)
    total = 0
    for shard, first in zip(dataset.shards, dataset.first_rows):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"] + first
        total += int(np.isin(variant, rows).sum())
    return total // process_count


class _Drawn:
    """Windows by family, with replacement: a pure function of (seed, epoch, position)."""

    def __init__(
        self, dataset: Dataset, variant: np.ndarray, weights: Mapping[str, float], seed: int, epoch: int
    ) -> None:
        self.key, self.steps = [seed, epoch], dataset.config.row_steps
        family = dataset.variants.family[variant]
        self.share = shuffling.shares(weights, sorted(set(family.tolist())))
        self.members = [np.flatnonzero(family == name) for name in weights]

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
