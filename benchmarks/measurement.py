"""Timings on a machine that others use too: what is compared takes turns, and the least time of each counts."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from lqrlab.compute import seconds

Call = Callable[[], object]


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
    code = f"import sys; from {function.__module__} import {function.__name__} as call; call(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=True)
    return done.stdout.splitlines()[-1]
