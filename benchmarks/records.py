"""All figures of this machine in one file, and what became slower from one file to another."""

import dataclasses
import datetime
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.measurement import Row
from lqrlab.compute import files

Measure = Callable[[], Iterable[Row]]


def parts() -> dict[str, Measure]:
    """Measurements of a record, in this order."""
    from benchmarks import control, data, environments, identification, simulation, startup, training

    modules = (control, simulation, data, environments, training, identification, startup)
    return {module.__name__.rpartition(".")[2]: next(iter(module.PARTS.values()))[0] for module in modules}


WORSE = 1.2
"""A ratio this many times worse than before is a regression: two programs in turns on a busy machine vary by less."""


def measure_all(path: Path, wanted: Mapping[str, Measure] | None = None) -> Iterator[Row]:
    """Measure all parts, or those wanted, and write them to ``path``, each as soon as it is done.

    The parts that the file has already, from the same machine and versions, are not measured again.

    Raises:
        ValueError: ``path`` holds something else, or figures of another machine or of other versions.
    """
    record: dict[str, Any] = {"machine": machine(), "parts": {}}
    if path.exists():
        record = read(path)
        if record["machine"] != machine():
            raise ValueError(
                f"{path}: expected figures of this machine and these versions, but found {record['machine']}; "
                "give another file"
            )
    for name, bench in (parts() if wanted is None else wanted).items():
        if name not in record["parts"]:
            rows = [dataclasses.asdict(row) for row in bench()]
            date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
            record["parts"][name] = {"date": date, "rows": rows}
            files.write_json(path, record, ensure_ascii=False)
        yield from _rows(record, name)


def machine() -> dict[str, str | int]:
    """Processor, cores, devices and versions, on which the figures depend."""
    names = ("jax", "jaxlib", "numpy", "scipy", "lqrlab")
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = next((line.partition(": ")[2] for line in cpu.splitlines() if "model name" in line), "")
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "devices": ", ".join(sorted({device.device_kind for device in jax.devices()})),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }


def read(path: Path) -> dict[str, Any]:
    """A file of :func:`measure_all`; a ``ValueError`` if it is none."""
    try:
        record = files.read_object(path)
        for name in record["parts"]:
            _rows(record, name)
        dict(record["machine"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected a file that python -m benchmarks all wrote ({error})") from None
    return record


def _rows(record: Mapping[str, Any], part: str) -> list[Row]:
    return [Row(**row) for row in record["parts"][part]["rows"]]


def _named(record: Mapping[str, Any]) -> dict[str, Row]:
    return {row.name: row for part in record["parts"] for row in _rows(record, part)}


@dataclasses.dataclass(frozen=True)
class Change:
    """A ratio in two records, and how many times it is better in the second (below 1: worse)."""

    name: str
    old: float
    new: float
    better: float

    @property
    def regression(self) -> bool:
        """True if it is worse by more than machines vary."""
        return self.better < 1 / WORSE


def compare(old: Path, new: Path) -> list[Change]:
    """The ratios that two records share, the worst change first; times in seconds do not carry over.

    Raises:
        ValueError: a file that is no record; no ratio in common.
    """
    before, after = (_named(read(path)) for path in (old, new))
    changes = []
    for name, row in after.items():
        if row.unit == "×" and name in before and min(row.value, before[name].value) > 0:
            factor = row.value / before[name].value
            changes.append(Change(name, before[name].value, row.value, factor if row.least else 1 / factor))
    if not changes:
        raise ValueError(f"{new}: expected ratios that {old} has too, but found none")
    return sorted(changes, key=lambda change: change.better)
