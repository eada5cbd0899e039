"""The file of a run's metrics: one JSON object a line, so that whatever was written survives."""

import contextlib
import json
from pathlib import Path
from typing import Any

from lqrlab.compute.files import write_atomic

FILE = "metrics.jsonl"

Row = dict[str, Any]

_FORMER = {"validation_lost": "validation_diverged"}  # names in version 0.2


def append(log: Path, row: Row) -> None:
    """Add a row."""
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read(log: Path) -> list[Row]:
    """All rows; a line cut short is left out."""
    rows = []
    for line in log.read_text().splitlines() if log.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append({_FORMER.get(name, name): value for name, value in json.loads(line).items()})
    return rows


def cut_back(log: Path, step: int, *, write: bool) -> list[Row]:
    """The rows up to the checkpoint of ``step``; later ones are dropped, for they will be measured again."""
    rows = [row for row in read(log) if row["step"] <= step]
    if write:
        write_atomic(log, "".join(json.dumps(row) + "\n" for row in rows))
    return rows
