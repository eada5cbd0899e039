"""Windows of a data set that is larger than memory: pools of shuffled blocks, the next one read ahead."""

import bisect
import concurrent.futures
import dataclasses
import threading

import numpy as np

from lqrlab.dataset import order, shards, windows
from lqrlab.dataset.store import Dataset

Fetched = tuple[windows.Rows, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class _Block:
    """Trajectories that are read together: ``keep`` of first … last − 1 of a file."""

    shard: int
    first: int
    last: int
    keep: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    """Trajectories that are in memory together."""

    rows: windows.Rows
    variant: np.ndarray


class Streaming:
    """Windows of one epoch of a split, from the disk, in bounded memory.

    An epoch shuffles the blocks of all files, fills pools with them in that order, and shuffles the windows
    within each pool: what is at which position follows from (seed, epoch) alone, so any can be asked for.

    Args:
        dataset: opened.
        split: its name.
        window: steps in a window.
        seed, epoch: which shuffle.
        pool_bytes: host memory for one pool; two are held.
    """

    def __init__(
        self, dataset: Dataset, split: str, window: int, *, seed: int, epoch: int, pool_bytes: int
    ) -> None:
        self.dataset, self.window, self.steps = (
            dataset,
            windows.check_window(window),
            dataset.config.num_steps,
        )
        self.seed, self.epoch = seed, epoch
        blocks = _blocks(dataset, split)
        if not blocks:
            raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
        bytes_each = 4 * (self.window - 1 + self.steps) * sum(windows.WIDTHS)
        largest = max(len(block.keep) for block in blocks)
        if pool_bytes < largest * bytes_each:
            raise ValueError(
                f"pool_bytes: expected at least {largest * bytes_each}, one block of trajectories, but found "
                f"{pool_bytes}"
            )
        self.pools = _pools(blocks, pool_bytes // bytes_each, seed, epoch)
        sizes = [self.steps * sum(len(block.keep) for block in pool) for pool in self.pools]
        self.starts = np.cumsum([0, *sizes]).tolist()
        self.num_windows = self.starts[-1]
        self._reader = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-read")
        self._held: dict[int, concurrent.futures.Future[_Pool]] = {}
        self._lock = threading.Lock()

    def fetch(self, first: int, count: int) -> Fetched:
        """The windows at positions first …, their times and their variants, ``count`` of each."""
        out = windows.room(count, self.window)
        t, variant = np.empty(count, np.int32), np.empty(count, np.int32)
        done = 0
        while done < count:
            number = bisect.bisect_right(self.starts, first + done) - 1
            begin, end = self.starts[number : number + 2]
            take = min(end - first - done, count - done)
            pool, piece = self._pool(number), slice(done, done + take)
            inside = np.arange(first + done - begin, first + done - begin + take)
            seed = self.seed + 0x632BE5 * (number + 1)  # each pool is shuffled in its own way
            index = order.shuffled_on_host(inside, end - begin, seed, self.epoch)
            t[piece], variant[piece] = index % self.steps, pool.variant[index // self.steps]
            x, u, target = (a[piece] for a in out)
            windows.cut(pool.rows, index // self.steps, t[piece], (x, u, target))
            done += take
        return out, t, variant

    def _pool(self, number: int) -> _Pool:
        """A pool; the next one is begun with at the same time, and those that are behind are let go."""
        with self._lock:
            wanted = range(number, min(number + 2, len(self.pools)))
            self._held = {k: future for k, future in self._held.items() if k in wanted}
            for k in wanted:
                if k not in self._held:
                    self._held[k] = self._reader.submit(self._read, k)
            future = self._held[number]
        return future.result()

    def _read(self, number: int) -> _Pool:
        pool = self.pools[number]
        at = np.cumsum([0] + [len(block.keep) for block in pool])
        rows = windows.zeros(at[-1], self.window, self.steps)
        variant = np.empty(at[-1], np.int32)
        for shard in sorted({block.shard for block in pool}):
            path = self.dataset.path / self.dataset.shards[shard]["file"]
            with shards.opened(path) as found:
                for first, block in zip(at, pool):
                    if block.shard == shard:
                        of, states, controls = (
                            shards.part(path, found, name, block.first, block.last)[block.keep]
                            for name in windows.READ
                        )
                        where = slice(first, first + len(block.keep))
                        coordinates = self.dataset.coordinates(shard, of)
                        windows.put(rows, where, self.window, states, controls, coordinates)
                        variant[where] = of + self.dataset.first_rows[shard]
        return _Pool(rows, variant)


def _pools(blocks: list[_Block], room: int, seed: int, epoch: int) -> list[list[_Block]]:
    """Blocks of each pool of an epoch; ``room`` is in trajectories."""
    pools: list[list[_Block]] = [[]]
    free = room
    for b in order.shuffled_on_host(np.arange(len(blocks)), len(blocks), seed, epoch):
        size = len(blocks[b].keep)
        if size > free:
            pools.append([])
            free = room
        pools[-1].append(blocks[b])
        free -= size
    return pools


def _blocks(dataset: Dataset, split: str) -> list[_Block]:
    """Chunks of the files, as HDF5 reads them, with those of their trajectories that are in the split."""
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(split)] = True
    found = []
    for number, shard in enumerate(dataset.shards):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"]
        inside = chosen[variant + dataset.first_rows[number]]
        states = shard["arrays"]["trajectories/states"]
        rows = shards.chunk_rows(states["shape"], np.dtype(states["dtype"]).itemsize)
        for first in range(0, len(variant), rows):
            keep = np.flatnonzero(inside[first : first + rows])
            if len(keep):
                found.append(_Block(number, first, min(first + rows, len(variant)), keep))
    return found
