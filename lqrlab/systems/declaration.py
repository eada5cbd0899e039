"""The words that a plant is declared with: signals, parameters with units and ranges."""

import dataclasses
import inspect
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.checks import number


@dataclasses.dataclass(frozen=True)
class Signal:
    """A state or an input: name, unit and scale, the size of a large deviation.

    ``scale`` is at once Bryson's rule (the default weight is 1/scale²), the spread of typical initial states,
    and the unit in which a network sees the signal. ``at`` is its value at the operating point.
    """

    name: str
    unit: str = ""
    scale: float = 0.0
    at: float = 0.0

    @property
    def label(self) -> str:
        """Name and unit, if it has one, as an axis shows it."""
        return self.name.replace("_", " ") + (f" [{self.unit}]" if self.unit else "")


def signals(*texts: str) -> tuple[Signal, ...]:
    """Signals as a data sheet lists them: ``"voltage = 9.3 ± 3 V"`` is operated at 9.3 V, and 3 V off is large.

    ``"x, y ± 0.5 m, yaw ± 0.2 rad"`` are three signals, operated at zero; the first two have the same scale.
    """
    listed: list[Signal] = []
    pending: list[str] = []
    for text in texts:
        checks.text("signals", text, "texts such as 'voltage = 9.3 ± 3 V'")
    for item in ", ".join(texts).split(", "):
        read = re.fullmatch(r"(\w+)(?:(?: = (\S+))? ± (\S+) (\S.*))?", item)
        if read is None:
            raise ValueError(f"signals: expected 'name = 9.3 ± 3 unit', but found {item!r}")
        name, at, scale, unit = read.groups()
        pending.append(name)
        if unit:
            listed += [Signal(name, unit, float(scale), float(at or 0.0)) for name in pending]
            pending.clear()
    if pending:
        raise ValueError(f"signals: no scale and unit for {', '.join(pending)}; write them as '± 3 unit'")
    return tuple(listed)


def with_rates(*coordinates: str, time: float = 0.5) -> tuple[Signal, ...]:
    """:func:`signals`, then their rates (``…_rate``), at rest, large when a scale is crossed in ``time`` [s]."""
    number("time", time, "a time above 0 s", above=0)
    given = signals(*coordinates)
    return given + tuple(Signal(f"{s.name}_rate", f"{s.unit}/s", s.scale / time) for s in given)


def param(
    default: float,
    unit: str = "",
    about: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    vary: bool | None = None,
) -> Any:
    """Declare a physical parameter of a plant class.

    Args:
        default: its nominal value, in ``unit``.
        unit: SI unit, ``"1"`` for a pure number.
        about: its meaning in a few words.
        low, high: the range in which the model means anything; ``make`` refuses values outside.
        vary: whether variants differ in it (gravity does not); they do if left out.

    A parameter of a base class that is declared again inherits what is left out. Without a base class,
    registration refuses a parameter that lacks a unit, a meaning or a range.
    """
    number("default", default)
    given = {"unit": unit, "about": about, "low": low, "high": high, "vary": vary}
    return dataclasses.field(default=default, metadata=given)


def gravity(value: float = 9.81) -> Any:
    """Gravity as a parameter: equal for all variants, but settable."""
    return param(value, "m/s²", "gravitational acceleration", 0.1, 30.0, vary=False)


def documented(docstring: str) -> dict[str, str]:
    """Title, source and limits of a plant class: the first line, the paragraphs ``Source: …`` and ``Limits: …``."""
    text = inspect.cleandoc(docstring)
    parts = {"title": text.splitlines()[0].rstrip(".")}
    for paragraph in text.split("\n\n"):
        heading, _, rest = paragraph.partition(": ")
        if heading in ("Source", "Limits"):
            parts[heading.lower()] = " ".join(rest.split())
    return parts


def complete(declared: dataclasses.Field, inherited: dataclasses.Field | None) -> dataclasses.Field:
    """A declared parameter with what it leaves out taken from the base class's parameter of that name."""
    base = {"vary": True} if inherited is None else inherited.metadata
    given = {
        key: base.get(key, value) if value is None or (isinstance(value, str) and not value) else value
        for key, value in declared.metadata.items()
    }
    return dataclasses.field(default=declared.default, metadata=given)


def check_slopes(what: str, slopes: np.ndarray, rows: Sequence[Signal]) -> None:
    """Refuse derivatives ``[*batch, rows, …]`` at an equilibrium that are not finite, naming the first row at fault."""
    if len(bad := np.argwhere(~np.isfinite(slopes).all(-1))):
        raise ValueError(
            f"{what}: expected a derivative at the equilibrium, but that of {rows[bad[0][-1]].name!r} is not a finite "
            "number: norm(v), sqrt(v) and v / |v| have none where v is zero, also multiplied by zero; write jnp.abs(v) "
            "of a number, jnp.sqrt(v @ v + 1e-12) of a vector"
        )
