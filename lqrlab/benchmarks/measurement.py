"""Timings on a machine that others use too: what is compared takes turns, and the least time of each counts."""

import dataclasses
from collections.abc import Callable, Mapping

from lqrlab.compute import seconds

Call = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Row:
    """One figure: what was measured, its value and unit, what was aimed at, and whether that was reached."""

    name: str
    value: float
    unit: str
    target: float | None = None
    reached: bool | None = None


def row(name: str, value: float, unit: str, target: float | None = None, *, least: bool = True) -> Row:
    """A row whose target is the least value wanted, or with ``least=False`` the largest."""
    reached = None if target is None else bool(value >= target if least else value <= target)
    return Row(name, float(value), unit, target, reached)


def measure(calls: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Least time [s] of each call after a first one, which may compile.

    They take turns, so that the machine's slow minutes meet them all alike.
    """
    for call in calls.values():
        seconds(call)
    times = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in times) for name in calls}
