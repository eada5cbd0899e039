"""Timings on a machine that others use too: what is compared takes turns, and the least time of each counts."""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lqrlab.compute import seconds, setup

Call = Callable[[], object]
Parts = Mapping[str, tuple[Callable[..., Iterable[Any]], dict[str, Any]]]
"""Name → a function that measures, and the arguments with which it takes seconds (``--quick``)."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name, value, unit: what was measured.
        target, reached: what was aimed at, and whether the value is as good.
        least: whether more is better, so that the target is the least value wanted.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    reached: bool | None = None
    least: bool = True


def row(name: str, value: float, unit: str, target: float | None = None, *, least: bool = True) -> Row:
    """A row whose target is the least value wanted, or with ``least=False`` the largest."""
    reached = None if target is None else bool(value >= target if least else value <= target)
    return Row(name, float(value), unit, target, reached, least)


def measure(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Least time [s] of each call after a first one, which may compile.

    They take turns, so that the machine's slow minutes meet them all alike.
    """
    for call in calls.values():
        seconds(call)
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in times) for name in calls}


def last_line(function: Callable[..., None], *args: str, **environment: str) -> str:
    """The last line that a module's function prints, called with texts in another process.

    Raises:
        subprocess.CalledProcessError: the function fails.
    """
    module = function.__module__
    if module == "__main__":  # python -m benchmarks.control
        module = sys.modules[module].__spec__.name  # type: ignore[union-attr]
    code = f"import sys; from {module} import {function.__name__} as call; call(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)
    return done.stdout.splitlines()[-1]


def main(parts: Parts) -> None:
    """The command line of a module that measures: one of its parts, as a table or as JSON."""
    described = (f"{name}: {(measure.__doc__ or name).splitlines()[0]}" for name, (measure, _) in parts.items())
    parser = argparse.ArgumentParser(
        description="\n".join(described), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", default=next(iter(parts)), choices=parts)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures say nothing")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    setup()
    measured, quick = parts[given.part]
    rows = (dataclasses.asdict(each) for each in measured(**quick if given.quick else {}))
    if given.json:
        for each in rows:
            print(json.dumps(each, ensure_ascii=False, default=float), flush=True)
    else:
        show(list(rows))


def show(rows: list[dict[str, Any]]) -> None:
    """Print rows with the same names as a table."""
    heads = [name for name in rows[0] if name != "least"]
    lines = [heads, *([_shown(each[name]) for name in heads] for each in rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}".replace("inf", "∞")
        case tuple():  # median, least and largest
            middle, low, high = (_shown(each) for each in value)
            return middle if low == high else f"{middle} [{low}, {high}]"
        case dict():
            return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    return str(value)
