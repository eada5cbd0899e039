"""A run's metrics: means since its last report, and their file, which has one JSON object a line."""

import json
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lqrlab.compute.files import read_rows, write_atomic
from lqrlab.learning.training_step import Metrics

FILE = "metrics.jsonl"

Row = dict[str, Any]

_FORMER = {"validation_lost": "validation_diverged"}  # names in version 0.2


def append(log: str | Path, row: Row) -> None:
    """Add a row."""
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def read(log: str | Path) -> list[Row]:
    """All rows; a line that is cut short or no JSON object is left out."""
    return [row for row in _rows(log) if row is not None]


def put_back(log: str | Path, rows: list[Row]) -> None:
    """Write the rows up to a checkpoint; later ones will be measured again, lines that are no rows are told of."""
    foreign = sum(not _of_training(row) for row in _rows(log)[:-1])  # the last may have been cut short
    if foreign:
        warnings.warn(f"{log}: lines that are no rows of metrics are left out ({foreign} of them)", stacklevel=4)
    write_atomic(log, "".join(json.dumps(row) + "\n" for row in rows))


def _rows(log: str | Path) -> list[Row | None]:
    return [row and {_FORMER.get(name, name): value for name, value in row.items()} for row in read_rows(log)]


def _of_training(row: Row | None) -> bool:
    """True if a row holds what resuming needs."""
    return row is not None and type(row.get("step")) is int and type(row.get("validation_efficiency")) is float


class Watch:
    """Metrics of the dispatches since the last report, left on the device until they are looked at."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self.since, self.taken = time.perf_counter(), 0
        self.seen: list[Metrics] = []

    def add(self, count: int, metrics: Metrics) -> None:
        """Take in a dispatch of so many steps."""
        if self.seen:  # at most two dispatches are under way, so that a signal is heard
            jax.block_until_ready(self.seen[-1])
        self.taken += count
        self.seen.append(metrics)

    def look(self) -> Row:
        """Means over the steps, windows per second, seconds."""
        fetched = jax.device_get(self.seen)
        row = {name: float(np.mean(np.concatenate([m[name] for m in fetched]))) for name in fetched[0]}
        seconds = time.perf_counter() - self.since
        return row | {"windows_per_second": self.taken * self.batch_size / seconds, "seconds": seconds}
