"""Sources of windows for a learner: all of them on the device, or pools of them from the disk; one protocol."""

import abc
import bisect
import collections
import concurrent.futures
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int32

from lqrlab.compute import Backend, checks
from lqrlab.compute.threads import aligned
from lqrlab.dataset import shuffling, windows
from lqrlab.dataset.store import SPLITS, Dataset, VariantTable
from lqrlab.dataset.windows import CHANNELS, Batch, Block, Blocks, Rows, Windows, WindowSet, gain_and_masks, row_bytes

T = TypeVar("T")

KINDS = ("auto", "resident", "memory", "streaming")

_RESIDENT_BYTES = 1 << 30  # of windows that "auto" keeps on a device
_AHEAD = 2  # batches that a thread makes ahead of the one in use


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """Windows that a source hands out; see :func:`source`."""

    kind: str
    split: str
    window: int
    batch_size: int
    seed: int
    device: jax.Device | None
    pool_bytes: int

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, KINDS)
        checks.choice("split", self.split, SPLITS)
        for name in ("window", "batch_size", "pool_bytes"):
            checks.whole(name, getattr(self, name))
        checks.whole("seed", self.seed, 0, 2**32 - 1)
        if isinstance(self.device, str):  # by its name; JAX's own is taken as it is
            object.__setattr__(self, "device", Backend(device=self.device).jax_device)


def source(
    data: Dataset,
    *,
    kind: str = "auto",
    split: str = "train",
    batch_size: int,
    window: int,
    seed: int = 0,
    device: jax.Device | str | None = None,
    pool_bytes: int = 1 << 26,
) -> "Source":
    """Shuffled, scaled, padded, masked windows of a split, for a learner.

    Args:
        data: an opened data set.
        kind: ``"resident"`` keeps all windows on the device, ``"memory"`` all in host memory, ``"streaming"`` reads
            pools of shuffled blocks from the disk as they are needed. ``"auto"`` is resident up to 1 GiB of windows,
            else streaming. All give the same batches; streaming only where one pool holds the whole split.
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        batch_size: windows in a batch.
        window: steps in a window. One window ends at each step of each trajectory (or segment) at which an input is
            chosen; none reaches back over its start.
        seed: of the shuffling.
        device: where batches are put, a device or its name, ``"cpu"`` or ``"gpu:1"``; JAX's default if left out.
        pool_bytes: host memory for a pool of a streaming source, which holds two.

    Raises:
        ValueError: an argument that does not fit, an empty split, a damaged file.
    """
    if not isinstance(data, Dataset):
        raise ValueError(f"data: expected an opened data set, dataset.open(path), but found {type(data).__name__}")
    spec = BatchSpec(
        kind=kind, split=split, window=window, batch_size=batch_size, seed=seed, device=device, pool_bytes=pool_bytes
    )
    if kind == "auto":
        share = len(data.rows(split)) / max(len(data.variants), 1)
        size = share * data.num_trajectories * row_bytes(window, data.config.row_steps)
        spec = dataclasses.replace(spec, kind="resident" if size <= _RESIDENT_BYTES else "streaming")
    return _opened(data, spec)


def _opened(data: Dataset, spec: BatchSpec) -> "Source":
    blocks, steps = windows.blocks(data, spec.split), data.config.row_steps
    table, count = jax.device_put(data.table(), spec.device), sum(map(len, blocks))
    if spec.kind == "resident":
        # on a CPU host memory is the device's: the arrays are taken over, not copied
        signals, variant = jax.device_put(windows.read(data, spec.window, blocks, True), spec.device)
        held = WindowSet(signals=signals, variant=variant, window=spec.window, num_steps=steps)
        return ResidentSource(data=data, spec=spec, table=table, num_windows=steps * count, held=held)
    room = sys.maxsize if spec.kind == "memory" else spec.pool_bytes
    if room < (needed := max(map(len, blocks)) * row_bytes(spec.window, steps)):
        raise ValueError(f"pool_bytes: expected at least {needed}, one block of trajectories, but found {room}")
    return StreamingSource(data=data, spec=spec, table=table, num_windows=steps * count, pool_bytes=room, blocks=blocks)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source(abc.ABC):
    """Shuffled windows without end, epoch after epoch: each window once in an epoch, each epoch in another order.

    The window at a position is a pure function of (seed, epoch, position), so a learner that is stopped and resumed
    gets the same windows. Iterating over a source gives the batches of one epoch.

    Attributes:
        data: the data set that the windows are of.
        spec: which windows.
        table: all plants; windows point into its rows.
        num_windows: in an epoch.
    """

    data: Dataset
    spec: BatchSpec
    table: VariantTable
    num_windows: int

    @property
    def window(self) -> int:
        """Steps in a window."""
        return self.spec.window

    @property
    def batch_size(self) -> int:
        """Windows in a batch."""
        return self.spec.batch_size

    def windows(self, first: int, count: int) -> Windows:
        """The ``count`` windows from position ``first`` on, counted from the beginning of epoch 0."""
        count = checks.whole("count", count)
        return self._gather(checks.whole("first", first, 0, self.num_positions - count), count)

    @abc.abstractmethod
    def _gather(self, first: int, count: int) -> Windows:
        """:meth:`windows` at positions that there are."""

    @property
    def num_positions(self) -> int:
        """Windows in all epochs: they are numbered in 32 bits, and the next one would be epoch 0 again."""
        return 2**32 * self.num_windows

    @property
    def shuffling(self) -> dict[str, str | int]:
        """Order of the windows: a run can be resumed with a source of the same shuffling (and seed)."""
        return {"shuffling": "split"}

    def of_split(self, split: str) -> "Source":
        """The same source for another split."""
        return _opened(self.data, dataclasses.replace(self.spec, split=split))

    def batch(self, position: int) -> Batch:
        """A batch by its number, counted from the beginning of epoch 0."""
        position = checks.whole("position", position, 0, self.num_positions // self.batch_size - 1)
        taken = self.windows(position * self.batch_size, self.batch_size)
        # the signals do not pass through a program, which would copy them
        return Batch(taken.variant, taken.signals, *gain_and_masks(taken.t, taken.variant, self.table, self.window))

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches from number ``start`` on, made by a thread ahead of their use; one epoch if ``stop`` is left out."""
        start = checks.whole("start", start, 0)
        stop = start + len(self) if stop is None else checks.whole("stop", stop, 0)
        return _prefetched(self.batch, range(start, stop))

    def __len__(self) -> int:
        """Batches that an epoch takes; the last one continues into the next epoch."""
        return -(-self.num_windows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()


def _prefetched(make: Callable[[int], T], positions: range) -> Iterator[T]:
    """``make(position)`` in order, some of them made by a thread while an earlier one is used."""
    maker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-load")
    coming: collections.deque[concurrent.futures.Future[T]] = collections.deque()
    try:
        for position in positions:
            coming.append(maker.submit(make, position))
            if len(coming) > _AHEAD:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:  # also when the loop was left early; the thread ends with its maker
        maker.shutdown(wait=False, cancel_futures=True)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ResidentSource(Source):
    """All windows on the device, shuffled and gathered there."""

    held: WindowSet

    def _gather(self, first: int, count: int) -> Windows:
        epoch, start = (np.uint32(i) for i in divmod(first, self.num_windows))
        return self.held.shuffled(start, epoch, count, np.uint32(self.spec.seed))


class _Pool(NamedTuple):
    """Trajectories that are in memory together, their rows in the table, and their windows in shuffled order."""

    rows: Rows
    variant: Int32[np.ndarray, " N"]
    trajectory: Int32[np.ndarray, " N*T"]
    t: Int32[np.ndarray, " N*T"]


class _Epoch(NamedTuple):
    """The blocks of each pool of an epoch, and the positions in the epoch at which the pools begin, and its end."""

    pools: list[Blocks]
    starts: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamingSource(Source):
    """Windows from the disk, in bounded memory.

    An epoch shuffles the blocks of all files, fills pools with them in that order, and shuffles the windows
    within each pool. Where one pool holds the whole split, the order is that of a resident source. Two pools are held.
    """

    pool_bytes: int
    blocks: Blocks

    @property
    def shuffling(self) -> dict[str, str | int]:
        """See :class:`Source`; a single pool is shuffled as a resident source is."""
        if len(self._epoch(0).pools) == 1:
            return super().shuffling
        return {"shuffling": "pools", "pool_bytes": self.pool_bytes}

    def _gather(self, first: int, count: int) -> Windows:
        signals = aligned((count, self.window, CHANNELS))
        t, variant = np.empty(count, np.int32), np.empty(count, np.int32)
        done = 0
        while done < count:
            epoch, position = divmod(first + done, self.num_windows)
            starts = self._epoch(epoch).starts
            number = bisect.bisect_right(starts, position) - 1
            following = (epoch, number + 1) if number + 2 < len(starts) else (epoch + 1, 0)
            coming = self._pools(epoch, number)
            self._pools(*following)
            try:
                pool = coming.result()
            except Exception:  # what could not be read is read again when it is asked for again
                self._pools.cache_clear()
                raise
            take = min(starts[number + 1] - position, count - done)
            piece, start = slice(done, done + take), position - starts[number]
            trajectory, t[piece] = pool.trajectory[start : start + take], pool.t[start : start + take]
            variant[piece] = pool.variant[trajectory]
            windows.cut(pool.rows, trajectory * np.int64(pool.rows.shape[1]) + t[piece], signals[piece])
            done += take
        return Windows(*jax.device_put((signals, t, variant), self.spec.device))

    # Caches belong to one source and end with it; a source with another seed has others.

    @functools.cached_property
    def _epoch(self) -> Callable[[int], _Epoch]:
        steps = self.data.config.row_steps
        room = self.pool_bytes // row_bytes(self.window, steps)
        return functools.lru_cache(2)(functools.partial(_plan_epoch, self.blocks, room, steps, self.spec.seed))

    @functools.cached_property
    def _read(self) -> Callable[[Blocks], tuple[Rows, np.ndarray]]:
        in_memory = self.spec.kind == "memory"
        return functools.lru_cache(1)(functools.partial(windows.read, self.data, self.window, digests=in_memory))

    @functools.cached_property
    def _pools(self) -> Any:
        """Epoch and number → a pool that a thread makes: two are held, the one in use and the next one."""
        plan, read, seed, steps = self._epoch, self._read, self.spec.seed, self.data.config.row_steps

        def pool(epoch: int, number: int) -> _Pool:  # which does not hold its source
            pools = plan(epoch).pools
            # a single pool is shuffled as a resident source, each of several in another way
            own = seed + (0x632BE5 * (number + 1) if len(pools) > 1 else 0)
            rows, variant = read(pools[number])
            return _Pool(rows, variant, *_shuffled(len(variant), steps, own, epoch))

        thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-read")
        return functools.lru_cache(2)(lambda *key: thread.submit(pool, *key))


def _plan_epoch(blocks: Blocks, room: int, steps: int, seed: int, epoch: int) -> _Epoch:
    """The pools of an epoch; ``room`` is the number of trajectories that fit into one."""
    if sum(map(len, blocks)) > room:
        order = shuffling.shuffled_on_host(np.arange(len(blocks)), len(blocks), seed, epoch)
        blocks = tuple(blocks[b] for b in order)
    pools: list[list[Block]] = [[]]
    free = room
    for block in blocks:
        if len(block) > free:
            pools.append([])
            free = room
        pools[-1].append(block)
        free -= len(block)
    sizes = [steps * sum(map(len, pool)) for pool in pools]
    return _Epoch([tuple(pool) for pool in pools], np.cumsum([0, *sizes]).tolist())


def _shuffled(count: int, steps: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectory and time of each window of a pool, shuffled; a piece at a time, which stays in the cache."""
    num, piece = count * steps, 1 << 15
    trajectory, t = np.empty(num, np.int32), np.empty(num, np.int32)
    for first in range(0, num, piece):
        where = slice(first, min(first + piece, num))
        index = shuffling.shuffled_on_host(np.arange(where.start, where.stop), num, seed, epoch)
        trajectory[where], t[where] = np.divmod(index, steps)
    return trajectory, t
