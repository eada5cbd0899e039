"""Charts as SVG: curves over time, logarithmic curves, poles; the responses of a plant's signals."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Complex, Float

from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, Signal
from lqrlab.workbench.figures import keyframes
from lqrlab.workbench.figures.axes import Axes, Range, Rectangle, Values
from lqrlab.workbench.figures.svg import Stroke, legend, strokes

Curve = tuple[Values, Values, Stroke]
"""Times [s], values, how it is drawn."""


def duration_unit(seconds: float) -> tuple[str, float]:
    """A unit of time in which ``seconds`` is a handy number, and how many seconds it has."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)):
        if seconds < 300 * size or (unit == "s" and seconds < 600):
            return unit, size
    return ("h", 3600.0) if seconds < 3e5 else ("d", 86400.0)


def duration(seconds: float) -> str:
    """A time in a handy unit: ``20 ms``."""
    unit, size = duration_unit(seconds)
    return f"{seconds / size:.3g} {unit}"


def logarithmic(
    at: Rectangle,
    xs: Values,
    curves: Mapping[str, Values],
    labels: tuple[str, str],
    *,
    x: Range,
    floor: float,
    decades: int = 100,
    named: bool = False,
) -> str:
    """Positive curves over x, on an axis of their log10.

    Args:
        at: where.
        xs: the abscissae of all curves.
        curves: label → values; what is below ``floor`` is drawn there.
        labels: of the horizontal and of the vertical axis.
        x: lowest and highest abscissa.
        floor: least value.
        decades: at most so many are shown, the highest ones.
        named: whether the labels stand in the chart.
    """
    values = {k: np.maximum(np.nan_to_num(v, nan=floor, posinf=1e12), floor) for k, v in curves.items()}
    logs = {label: np.log10(v) for label, v in values.items()}
    high = math.ceil(max(v.max() for v in logs.values()))
    low = max(math.floor(min(v.min() for v in logs.values())), high - decades)
    axes, looks = Axes(at, x, (low, max(high, low + 1))), strokes(curves)
    drawn = "".join(axes.curve(xs, np.maximum(v, low), looks[label]) for label, v in logs.items())
    names = legend(axes.edges[0] + 8, axes.edges[2] + 12, looks) if named else ""
    return axes.frame(labels[0], f"log10 of {labels[1]}") + drawn + names


def pole_map(at: Rectangle, groups: Mapping[str, Complex[np.ndarray, " n"] | Values]) -> str:
    """Poles of one or two sampled loops (label → poles) in the z-plane with the unit circle."""
    groups = {label: poles[np.isfinite(poles)] for label, poles in groups.items()}
    poles, aspect = np.concatenate(list(groups.values())), Axes(at, (0, 1), (0, 1)).aspect
    middle = 0.5 * (min(poles.real.min(), 0.9) + max(poles.real.max(), 1.0))
    half = 1.15 * max(np.abs(poles.imag).max(), np.abs(poles.real - middle).max() / aspect, 0.05)
    axes = Axes(at, (middle - half * aspect, middle + half * aspect), (-half, half))
    title = "poles, Im z: " + ", ".join(f"{mark} {label}" for mark, label in zip("○×", groups))
    marks = (
        axes.marks(z.real, z.imag, mark, Stroke(stroke.colour))
        for mark, z, stroke in zip("○×", groups.values(), strokes(groups).values())
    )
    return axes.frame("Re z", title, axes.circle(0.0, 0.0, 1.0)) + "".join(marks)


def over_time(
    at: Rectangle,
    curves: Sequence[Curve],
    title: str,
    unit: str,
    until: float,
    *,
    steps: bool = False,
    labelled: bool = True,
    lead: int = 0,
) -> tuple[str, Axes]:
    """A small chart of curves over time; a curve ends where it is not finite or leaves the chart.

    Args:
        at: where.
        curves: what is drawn.
        title, unit: of what is shown.
        until: the last time [s].
        steps: whether values hold until the next.
        labelled: whether to write the time's unit below.
        lead: how many of the curves decide the range; others may widen it to three times that. All if 0.

    Returns:
        The elements, and the axes, in handy units.
    """
    low, high = _range(curves[: lead or None])
    if lead and len(curves) > lead:
        span, wide = max(high - low, 1e-12), _range(curves)
        low, high = max(wide[0], low - span), min(wide[1], high + span)
    room = 1.0 if high - low < 1e-12 else 0.06 * (high - low)
    low, high = low - room, high + room
    power = math.floor(math.log10(max(abs(low), abs(high))))
    power = 0 if -2 <= power < 4 else 3 * (power // 3)
    factor = f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))} " if power else ""
    label = f"{title} [{factor}{unit}]"
    label = label if len(label) <= int((at[2] - 4) / 5.6) else label.replace(" of ", " ")
    (name, second), one = duration_unit(until), 10.0**power
    margins = (30, 6, 16, 25 if labelled else 14)
    axes = Axes(at, (0.0, until / second), (low / one, high / one), margins, boxed=False)
    parts = [axes.frame(f"time [{name}]" if labelled else "", label)]
    for ts, values, stroke in curves:
        seen = np.isfinite(values) & (ts <= until * (1 + 1e-9)) & (values >= low) & (values <= high)
        end = len(seen) if seen.all() else int(np.argmin(seen)) + 1
        if end > 1:
            values = np.clip(np.nan_to_num(values[:end], nan=high), low, high)
            parts.append(axes.curve(ts[:end] / second, values / one, stroke, steps=steps))
    return "".join(parts), axes


def _range(curves: Sequence[Curve]) -> Range:
    values = np.concatenate([values[np.isfinite(values)] for _, values, _ in curves] + [np.zeros(1)])
    return float(values.min()), float(values.max())


class Channel(NamedTuple):
    """One signal of a plant, and its values' place in a trajectory: ``xs`` or ``us``, and the column."""

    signal: Signal
    field: str
    index: int

    @property
    def name(self) -> str:
        """The signal's name in words."""
        return self.signal.name.replace("_", " ")

    def values(self, run: Trajectory) -> Float[np.ndarray, "*runs samples"]:
        """The signal in a run."""
        return np.asarray(getattr(run, self.field), float)[..., self.index]


def channels(plant: Plant | type[Plant]) -> list[Channel]:
    """All of a plant's states, then its inputs."""
    fields = (("xs", plant.states), ("us", plant.inputs))
    return [Channel(signal, field, i) for field, signals in fields for i, signal in enumerate(signals)]


def responses(
    signals: Sequence[Channel],
    runs: Mapping[str, Trajectory],
    at: tuple[float, float, float],
    *,
    columns: int = 4,
    lead: int = 0,
    named: bool = False,
    film: keyframes.Film | None = None,
) -> tuple[str, float]:
    """A small chart for each signal, ``columns`` a row; markup and the height at which they end.

    Args:
        signals: what is shown.
        runs: label → trajectory of one loop.
        at: left, top and width [px].
        columns: at most so many a row.
        lead: how many of the runs decide the ranges of time and values; all if 0.
        named: whether the runs' labels stand above.
        film: if given, a mark for the time runs through each chart.
    """
    left, top, width = at
    until = max(float(run.ts[-1]) for run in list(runs.values())[: lead or None])
    columns = max(1, min(columns, len(signals)))
    wide, tall = (width - 10 * (columns - 1)) / columns, 92.0
    markup = legend(left + 2, top + 14, strokes(runs)) if named else ""
    top += 22 if named else 0
    for i, channel in enumerate(signals):
        row, column = divmod(i, columns)
        last, steps = i + columns >= len(signals), channel.field == "us"
        curves = []
        for run, stroke in zip(runs.values(), strokes(runs).values()):
            values = channel.values(run)
            values = np.append(values, values[-1]) if steps else values
            curves.append((np.asarray(run.ts, float), values, stroke))
        place, unit = (left + column * (wide + 10), top + row * tall, wide, tall), channel.signal.unit
        drawn, axes = over_time(
            place, curves, channel.name, unit, until, steps=steps, labelled=last, lead=lead
        )
        markup += drawn + (film.cursor(*axes.edges) if film else "")
    return markup, top + -(-len(signals) // columns) * tall + 4
