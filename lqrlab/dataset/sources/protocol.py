"""The protocol of every source of windows, whatever they come from."""

import abc
import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax

from lqrlab.compute import Backend, checks
from lqrlab.dataset.store import Dataset
from lqrlab.dataset.variant_table import SPLITS, VariantTable
from lqrlab.dataset.windows import Batch, Windows, gain_and_masks

T = TypeVar("T")

_AHEAD = 2  # batches that a thread makes ahead of the one in use


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchSpec:
    """Windows that a source hands out.

    Attributes:
        split: ``"train"``, ``"validation"`` or ``"held_out"``.
        window: steps in a window.
        batch_size: windows in a batch.
        seed: of the shuffling.
        device: where batches are put: a device, or its name as of a backend, ``"cpu"``; JAX's default if None.
    """

    split: str
    window: int
    batch_size: int
    seed: int = 0
    device: jax.Device | None = None

    def __post_init__(self) -> None:
        checks.choice("split", self.split, SPLITS)
        checks.whole("window", self.window)
        checks.whole("batch_size", self.batch_size)
        checks.whole("seed", self.seed, 0, 2**32 - 1)
        if self.device is not None:
            object.__setattr__(self, "device", Backend(device=self.device).jax_device)


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

    @abc.abstractmethod
    def of_split(self, split: str) -> "Source":
        """The same source for another split."""

    def batch(self, position: int) -> Batch:
        """A batch by its number, counted from the beginning of epoch 0."""
        position = checks.whole("position", position, 0, self.num_positions // self.batch_size - 1)
        taken = self.windows(position * self.batch_size, self.batch_size)
        # the signals do not pass through a program, which would copy them
        return Batch(taken.variant, taken.signals, *_gain_and_masks(taken.t, taken.variant, self.table, self.window))

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches from number ``start`` on, made by a thread ahead of their use; one epoch if ``stop`` is left out."""
        start = checks.whole("start", start, 0)
        stop = start + len(self) if stop is None else checks.whole("stop", stop, 0)
        return prefetched(self.batch, range(start, stop))

    def __len__(self) -> int:
        """Batches that an epoch takes; the last one continues into the next epoch."""
        return -(-self.num_windows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()


_gain_and_masks = jax.jit(gain_and_masks, static_argnames="window")


def prefetched(make: Callable[[int], T], positions: range) -> Iterator[T]:
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
