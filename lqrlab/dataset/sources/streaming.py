"""Windows of a data set that is larger than memory: pools of shuffled blocks, the next one read ahead."""

import bisect
import concurrent.futures
import dataclasses
import functools
import threading
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Int32

from lqrlab.compute.memory import aligned
from lqrlab.dataset import shuffling, windows
from lqrlab.dataset.sources.protocol import BatchSpec, Source
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.windows import CHANNELS, Block, Blocks, Rows, Windows


@dataclasses.dataclass(frozen=True, eq=False)
class _Pool:
    """Trajectories that are in memory together, and their windows in shuffled order.

    Attributes:
        rows: trajectories.
        variant: row of the table of each.
        trajectory, t: of each window.
    """

    rows: Rows
    variant: Int32[np.ndarray, " N"]
    trajectory: Int32[np.ndarray, " N*T"]
    t: Int32[np.ndarray, " N*T"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Epoch:
    """The blocks of each pool of an epoch, and the positions in the epoch at which the pools begin, and its end."""

    pools: list[Blocks]
    starts: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StreamingSource(Source):
    """Windows from the disk, in bounded memory.

    An epoch shuffles the blocks of all files, fills pools with them in that order, and shuffles the windows
    within each pool. Where one pool holds the whole split, the order is that of a resident source.

    Attributes:
        pool_bytes: host memory for one pool; two are held.
        blocks: of the split.
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
        """See :class:`Source`."""
        signals = aligned((count, self.window, CHANNELS))
        t, variant = np.empty(count, np.int32), np.empty(count, np.int32)
        done = 0
        while done < count:
            epoch, position = divmod(first + done, self.num_windows)
            starts = self._epoch(epoch).starts
            number = bisect.bisect_right(starts, position) - 1
            following = (epoch, number + 1) if number + 2 < len(starts) else (epoch + 1, 0)
            pool = self._pools.get(self._pool, (epoch, number), following)
            take = min(starts[number + 1] - position, count - done)
            piece, start = slice(done, done + take), position - starts[number]
            trajectory, t[piece] = pool.trajectory[start : start + take], pool.t[start : start + take]
            variant[piece] = pool.variant[trajectory]
            windows.cut(pool.rows, trajectory * np.int64(pool.rows.shape[1]) + t[piece], signals[piece])
            done += take
        return Windows(*jax.device_put((signals, t, variant), self.spec.device))

    def of_split(self, split: str) -> Source:
        """See :class:`Source`."""
        return streaming_source(self.data, dataclasses.replace(self.spec, split=split), pool_bytes=self.pool_bytes)

    # Caches belong to one source and end with it; a source with another seed has others.

    @functools.cached_property
    def _epoch(self) -> Callable[[int], _Epoch]:
        steps = self.data.config.row_steps
        room = self.pool_bytes // windows.row_bytes(self.window, steps)
        return functools.lru_cache(2)(functools.partial(_plan_epoch, self.blocks, room, steps, self.spec.seed))

    @functools.cached_property
    def _read(self) -> Callable[[Blocks], tuple[Rows, np.ndarray]]:
        return functools.lru_cache(1)(functools.partial(windows.read, self.data, self.window))

    @functools.cached_property
    def _pools(self) -> "_Ahead":
        return _Ahead()

    def _pool(self, epoch: int, number: int) -> _Pool:
        pools = self._epoch(epoch).pools
        # a single pool is shuffled as a resident source, each of several in another way
        seed = self.spec.seed + (0x632BE5 * (number + 1) if len(pools) > 1 else 0)
        rows, variant = self._read(pools[number])
        return _Pool(rows, variant, *_shuffled(len(variant), self.data.config.row_steps, seed, epoch))


class _Ahead:
    """Pools made by a thread: the one in use, and the next one."""

    def __init__(self) -> None:
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="lqrlab-read")
        self._held: dict[tuple[int, int], concurrent.futures.Future[_Pool]] = {}
        self._lock = threading.Lock()

    def get(self, make: Callable[[int, int], _Pool], key: tuple[int, int], following: tuple[int, int]) -> _Pool:
        """``make(*key)``, made before if it was the last call's ``following``; all other pools are released."""
        with self._lock:
            held = self._held
            self._held = {k: held.get(k) or self._thread.submit(make, *k) for k in (key, following)}
            future = self._held[key]
        try:
            return future.result()
        except Exception:  # what could not be read is read again when it is asked for again
            with self._lock:
                self._held.clear()
            raise


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


def streaming_source(data: Dataset, spec: BatchSpec, *, pool_bytes: int) -> StreamingSource:
    """List the blocks to read; see :func:`lqrlab.dataset.source`."""
    blocks = windows.blocks(data, spec.split, chunks=True)
    steps = data.config.row_steps
    needed = max(map(len, blocks)) * windows.row_bytes(spec.window, steps)
    if pool_bytes < needed:
        raise ValueError(f"pool_bytes: expected at least {needed}, one block of trajectories, but found {pool_bytes}")
    return StreamingSource(
        data=data,
        spec=spec,
        table=jax.device_put(data.table(), spec.device),
        num_windows=steps * sum(map(len, blocks)),
        pool_bytes=pool_bytes,
        blocks=blocks,
    )
