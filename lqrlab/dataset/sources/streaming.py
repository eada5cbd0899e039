"""Windows of a data set that is larger than memory: pools of shuffled blocks, the next one read ahead."""

import bisect
import concurrent.futures
import dataclasses
import threading
from collections.abc import Mapping

import numpy as np

from lqrlab.dataset import shards, shuffling, windows
from lqrlab.dataset.store import Dataset

Fetched = tuple[np.ndarray, np.ndarray, np.ndarray]


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
        family_weights: family → relative frequency; blocks are then drawn with replacement.
        part: (index, count) of this process: it takes every count-th block.

    Attributes:
        num_windows: in this process's epoch.
        fewest: in the epoch of the process that has the fewest.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        window: int,
        *,
        seed: int,
        epoch: int,
        pool_bytes: int,
        family_weights: Mapping[str, float] | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self.dataset, self.window = dataset, windows.check_window(window)
        self.steps, self.seed, self.epoch = dataset.config.row_steps, seed, epoch
        every, (index, count) = _blocks(dataset, split), part
        if not every:
            raise ValueError(f"split: {dataset.path} has no trajectory in {split!r}")
        if len(every) < count:
            raise ValueError(f"process_count: {split!r} has {len(every)} blocks, too few for {count} parts")
        bytes_each = 4 * (self.window - 1 + self.steps) * windows.CHANNELS
        largest = max(len(block.keep) for block in every)
        if pool_bytes < largest * bytes_each:
            raise ValueError(
                f"pool_bytes: expected at least {largest * bytes_each}, one block of trajectories, but found "
                f"{pool_bytes}"
            )

        def chosen(process: int) -> list[_Block]:
            blocks = every[process::count]
            if family_weights is not None:
                return _drawn(dataset, blocks, family_weights, seed, epoch)
            shuffle = shuffling.shuffled_on_host(np.arange(len(blocks)), len(blocks), seed, epoch)
            return [blocks[b] for b in shuffle]

        self.fewest = self.steps * min(sum(len(b.keep) for b in chosen(process)) for process in range(count))
        self.pools = _pools(chosen(index), pool_bytes // bytes_each)
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
            there = slice(first + done - begin, first + done - begin + take)
            trajectory, t[piece] = pool.trajectory[there], pool.t[there]
            variant[piece] = pool.variant[trajectory]
            windows.cut(pool.rows, trajectory * np.int64(pool.rows.shape[1]) + t[piece], out[piece])
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
            with shards.opened(path, only=windows.READ) as found:
                for first, block in zip(at, pool):
                    if block.shard == shard:
                        of, states, controls = (
                            shards.part(path, found, name, block.first, block.last) for name in windows.READ
                        )
                        if len(block.keep) < len(of):
                            of, states, controls = (a[block.keep] for a in (of, states, controls))
                        where = slice(first, first + len(block.keep))
                        coordinates = self.dataset.coordinates(shard, of)
                        windows.put(rows, where, self.window, states, controls, coordinates)
                        variant[where] = of + self.dataset.first_rows[shard]
        # each pool is shuffled in its own way
        seed = self.seed + 0x632BE5 * (number + 1)
        return _Pool(rows, variant, *_ordered(len(variant), self.steps, seed, self.epoch))


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


def _drawn(
    dataset: Dataset, blocks: list[_Block], weights: Mapping[str, float], seed: int, epoch: int
) -> list[_Block]:
    """As many blocks with replacement, so that windows come by family as often as the weights say."""
    family = np.array([dataset.shards[block.shard]["family"] for block in blocks])
    share = shuffling.shares(weights, sorted(set(family.tolist())))
    size = np.array([len(block.keep) for block in blocks], float)
    chance = np.zeros(len(blocks))
    for name, s in zip(weights, share):
        # within a family each trajectory is as likely as any; families by what they bring
        chance += np.where(family == name, s / size[family == name].sum(), 0.0)
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    return [blocks[i] for i in random.choice(len(blocks), size=len(blocks), p=chance / chance.sum())]


def _blocks(dataset: Dataset, split: str) -> list[_Block]:
    """Chunks of the files, as HDF5 reads them, with those of their trajectories that are in the split."""
    chosen = np.zeros(len(dataset.variants), bool)
    chosen[dataset.rows(split)] = True
    found = []
    for number, shard in enumerate(dataset.shards):
        variant = dataset.read(shard, ["trajectories/variant"])["trajectories/variant"]
        inside = chosen[variant + dataset.first_rows[number]]
        large = (shard["arrays"][f"trajectories/{name}"] for name in ("states", "controls"))
        rows = min(shards.chunk_rows(a["shape"], np.dtype(a["dtype"]).itemsize) for a in large)
        for first in range(0, len(variant), rows):
            keep = np.flatnonzero(inside[first : first + rows])
            if len(keep):
                found.append(_Block(number, first, min(first + rows, len(variant)), keep))
    return found
