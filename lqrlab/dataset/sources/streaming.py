"""Windows of a data set that is larger than memory: pools of shuffled blocks, the next one read ahead."""

import bisect
import concurrent.futures
import dataclasses
import functools
import threading

import jax
import numpy as np

from lqrlab.dataset import shards, shuffling, windows
from lqrlab.dataset.sources.base import BatchSpec, Source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.windows import ARRAYS, Windows


@dataclasses.dataclass(frozen=True, eq=False)
class _Block:
    """Trajectories that are read together: ``keep`` of first … last − 1 of a file."""

    shard: int
    first: int
    last: int
    keep: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    """Trajectories that are in memory together; their windows in the order in which they are handed out.

    Attributes:
        rows: as :func:`windows.cut` takes them ``[N, W − 1 + T, 18]``.
        variant: row of the table ``[N]``.
        trajectory, t: of each window ``[N·T]``.
    """

    rows: np.ndarray
    variant: np.ndarray
    trajectory: np.ndarray
    t: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Epoch:
    """Blocks of each pool of an epoch, and the window of the epoch that each pool begins at, and its end."""

    pools: list[list[_Block]]
    starts: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamingSource(Source):
    """Windows from the disk, in bounded memory.

    An epoch shuffles the blocks of all files, fills pools with them in that order, and shuffles the windows
    within each pool. Where one pool holds the whole split, the order is that of a resident source.

    Attributes:
        pool_bytes: host memory for one pool; two are held.
        blocks: of this process.
        reader: reads pools, and holds those that are in use.
    """

    pool_bytes: int
    blocks: tuple[_Block, ...]
    reader: "_Reader" = dataclasses.field(default_factory=lambda: _Reader())

    @property
    def order(self) -> dict[str, str | int]:
        """See :class:`Source`; one pool that holds everything is shuffled as a resident source is."""
        pools = len(self.epoch(0).pools)
        return super().order if pools == 1 else {"order": "pools", "pool_bytes": self.pool_bytes}

    def windows(self, first: int, count: int) -> Windows:
        """See :class:`Source`."""
        signals = windows.uncut(count, self.window)
        t, variant = np.empty(count, np.int32), np.empty(count, np.int32)
        done = 0
        while done < count:
            epoch, position = divmod(first + done, self.num_windows)
            number, begin, end = self._pool_at(epoch, position)
            take = min(end - position, count - done)
            pool = self.reader.pool(self, epoch, number)
            piece, here = slice(done, done + take), slice(position - begin, position - begin + take)
            trajectory, t[piece] = pool.trajectory[here], pool.t[here]
            variant[piece] = pool.variant[trajectory]
            windows.cut(pool.rows, trajectory * np.int64(pool.rows.shape[1]) + t[piece], signals[piece])
            done += take
        return Windows(*jax.device_put((signals, t, variant), self.spec.device))

    def of_split(self, split: str) -> Source:
        """See :class:`Source`."""
        return streaming(self.data, dataclasses.replace(self.spec, split=split), pool_bytes=self.pool_bytes)

    def _pool_at(self, epoch: int, position: int) -> tuple[int, int, int]:
        """The pool that holds a window of an epoch: its number, its first window and the one after its last."""
        starts = self.epoch(epoch).starts
        number = bisect.bisect_right(starts, position) - 1
        return number, starts[number], starts[number + 1]

    @functools.lru_cache(maxsize=3)  # noqa: B019 (sources are few, and live as long as they are used)
    def epoch(self, epoch: int) -> _Epoch:
        """What is read in which order."""
        steps, blocks = self.data.config.row_steps, list(self.blocks)
        room = self.pool_bytes // _row_bytes(self.window, steps)
        if sum(len(block.keep) for block in blocks) > room:
            order = shuffling.shuffled_on_host(np.arange(len(blocks)), len(blocks), self.spec.seed, epoch)
            blocks = [blocks[b] for b in order]
        pools = _pools(blocks, room)
        sizes = [steps * sum(len(block.keep) for block in pool) for pool in pools]
        return _Epoch(pools, np.cumsum([0, *sizes]).tolist())

    def read(self, epoch: int, number: int, same: _Pool | None) -> _Pool:
        """A pool; ``same`` is one whose trajectories need not be read again."""
        pools = self.epoch(epoch).pools
        if len(pools) == 1:  # as a resident source has them
            rows, variant = (same.rows, same.variant) if same else _read(self, pools[0])
            seed = self.spec.seed
        else:
            rows, variant = _read(self, pools[number])
            seed = self.spec.seed + 0x632BE5 * (number + 1)  # each pool is shuffled in its own way
        return _Pool(rows, variant, *_ordered(len(variant), self.data.config.row_steps, seed, epoch))


class _Reader:
    """Reads pools one after another, the next one while one is in use."""

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-read")
        self._held: dict[tuple[int, int], concurrent.futures.Future[_Pool]] = {}
        self._lock = threading.Lock()

    def pool(self, source: StreamingSource, epoch: int, number: int) -> _Pool:
        """A pool; the next one is begun with at the same time, and those that are behind are let go."""
        alone = len(source.epoch(epoch).pools) == 1
        last = number + 1 == len(source.epoch(epoch).pools)
        following = (epoch + 1, 0) if last else (epoch, number + 1)
        with self._lock:
            same = next(iter(self._held.values())).result() if alone and self._held else None
            wanted = ((epoch, number),) if alone else ((epoch, number), following)
            self._held = {key: future for key, future in self._held.items() if key in wanted}
            for key in wanted:
                if key not in self._held:
                    self._held[key] = self._thread.submit(source.read, *key, same)
            future = self._held[epoch, number]
        return future.result()


def _read(source: StreamingSource, blocks: list[_Block]) -> tuple[np.ndarray, np.ndarray]:
    """The trajectories of some blocks in host memory: rows, and each one's row of the table."""
    data, window = source.data, source.window
    at = np.cumsum([0] + [len(block.keep) for block in blocks])
    rows = windows.zeros(at[-1], window, data.config.row_steps)
    variant = np.empty(at[-1], np.int32)
    for shard in sorted({block.shard for block in blocks}):
        path = data.path / data.shards[shard]["file"]
        with shards.opened(path, only=ARRAYS) as found:
            for first, block in zip(at, blocks):
                if block.shard != shard:
                    continue
                of, states, controls = (
                    shards.part(path, found, name, block.first, block.last) for name in ARRAYS
                )
                if len(block.keep) < len(of):
                    of, states, controls = (a[block.keep] for a in (of, states, controls))
                where = slice(first, first + len(block.keep))
                windows.put(rows, where, window, states, controls, data.coordinates(shard, of))
                variant[where] = of + data.first_rows[shard]
    return rows, variant


def _ordered(count: int, steps: int, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """Trajectory and time of each window of a pool, shuffled; a piece at a time, which stays in the cache."""
    num, piece = count * steps, 1 << 15
    trajectory, t = np.empty(num, np.int32), np.empty(num, np.int32)
    for first in range(0, num, piece):
        where = slice(first, min(first + piece, num))
        index = shuffling.shuffled_on_host(np.arange(where.start, where.stop), num, seed, epoch)
        trajectory[where], t[where] = np.divmod(index, steps)
    return trajectory, t


def _pools(blocks: list[_Block], room: int) -> list[list[_Block]]:
    """Blocks of each pool of an epoch; ``room`` is in trajectories."""
    pools: list[list[_Block]] = [[]]
    free = room
    for block in blocks:
        if len(block.keep) > free:
            pools.append([])
            free = room
        pools[-1].append(block)
        free -= len(block.keep)
    return pools


def _blocks(data: Dataset, split: str) -> list[_Block]:
    """Chunks of the files, as HDF5 reads them, with those of their trajectories that are in the split."""
    chosen = np.zeros(len(data.variants), bool)
    chosen[data.rows(split)] = True
    blocks = []
    for number, shard in enumerate(data.shards):
        variant = data.read(shard, [ARRAYS[0]])[ARRAYS[0]]
        inside = chosen[variant + data.first_rows[number]]
        large = (shard["arrays"][name] for name in ARRAYS[1:])
        rows = min(shards.chunk_rows(a["shape"], np.dtype(a["dtype"]).itemsize) for a in large)
        for first in range(0, len(variant), rows):
            keep = np.flatnonzero(inside[first : first + rows])
            if len(keep):
                blocks.append(_Block(number, first, min(first + rows, len(variant)), keep))
    return blocks


def _row_bytes(window: int, steps: int) -> int:
    return 4 * (window - 1 + steps) * windows.CHANNELS


def streaming(data: Dataset, spec: BatchSpec, *, pool_bytes: int) -> StreamingSource:
    """Look for what is to be read; see :func:`lqrlab.dataset.source`."""
    blocks, (index, count) = _blocks(data, spec.split), spec.part
    if not blocks:
        raise ValueError(f"split: {data.path} has no trajectory in {spec.split!r}")
    if len(blocks) < count:
        raise ValueError(f"process_count: {spec.split!r} has {len(blocks)} blocks, too few for {count} parts")
    steps = data.config.row_steps
    needed = max(len(block.keep) for block in blocks) * _row_bytes(spec.window, steps)
    if pool_bytes < needed:
        raise ValueError(
            f"pool_bytes: expected at least {needed}, one block of trajectories, but found {pool_bytes}"
        )
    mine = tuple(blocks[index::count])
    return StreamingSource(
        data=data,
        spec=spec,
        table=jax.device_put(data.table(), spec.device),
        num_windows=steps * sum(len(block.keep) for block in mine),
        pool_bytes=pool_bytes,
        blocks=mine,
    )
