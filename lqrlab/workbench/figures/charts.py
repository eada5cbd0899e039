"""Charts as SVG: axes in whose units things are placed, and the kinds of charts made with them."""

import base64
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, SupportsFloat

import numpy as np
from jaxtyping import Array, Complex, Float, UInt8
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator

from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, Signal
from lqrlab.workbench.figures import digits
from lqrlab.workbench.figures.keyframes import Film
from lqrlab.workbench.figures.svg import Stroke, curve, element, legend, px, strokes, text

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height [px], labels included."""
Interval = tuple[float, float]
"""Lowest and highest value."""
Values = Float[np.ndarray | Array, " points"]
Poles = Complex[np.ndarray, "*batch n"] | Float[np.ndarray, "*batch n"]
_ROUNDING = 1e-6  # percent: less is what float64 leaves of a zero
_LEAST = 1e-3  # percent, below which digits say nothing to a person
_FAR = 1e4  # pixels from the middle: points that are farther away are put there, in their direction
MARKS = {"○": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "×": "m-4 -4l8 8m0 -8l-8 8", "+": "m-4 0h8m-4 -4v8"}


@dataclasses.dataclass(frozen=True)
class Axes:
    """A plane with two linear axes."""

    at: Rectangle
    x: Interval
    y: Interval
    margins: Rectangle = (40, 14, 16, 28)  # left, right, top and bottom, for the labels [px]
    boxed: bool = True  # a frame with a full grid; else a line below and horizontal grid lines
    at_y: tuple[float, ...] = ()  # where ticks stand on the vertical axis, if not at round numbers
    logs: str = ""  # axes, "x", "y" or "xy", whose values are log10 of what stands at their ticks

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, right, top and bottom of the plane [px]."""
        (left, top, width, height), m = self.at, self.margins
        return left + m[0], left + width - m[1], top + m[2], top + height - m[3]

    @property
    def aspect(self) -> float:
        """Width over height of the plane."""
        left, right, top, bottom = self.edges
        return (right - left) / (bottom - top)

    def place(self, x: Values | float, y: Values | float) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of a point, or of many."""
        left, right, top, bottom = self.edges
        across = (np.asarray(x, float) - self.x[0]) / (self.x[1] - self.x[0])
        up = (np.asarray(y, float) - self.y[0]) / (self.y[1] - self.y[0])
        return left + (right - left) * across, bottom - (bottom - top) * up

    def frame(self, below: str, above: str, body: str = "") -> str:
        """Grid, ticks, edges and labels below and above; ``body`` is cut off where it leaves the plane."""
        left, right, top, bottom = self.edges
        spacing, grid = ((50, 30), f"{px(top)}V{px(bottom)}") if self.boxed else ((45, 22), f"{px(bottom)}v3")
        parts = [text(self.at[0] + 2, self.at[1] + 10, above, look="lq-soft")]
        labelled = _labelled(self.y, int((bottom - top) / spacing[1]), log="y" in self.logs)
        for v, number in [(v, digits(v, 4)) for v in self.at_y] or labelled:
            y = float(self.place(0.0, v)[1])
            parts.append(f'<path class="lq-grid" d="M{px(left)} {px(y)}H{px(right)}"/>')
            parts.append(text(left - 4, y + 3.5, number, anchor="end", look="lq-soft"))
        for v, number in _labelled(self.x, int((right - left) / spacing[0]), log="x" in self.logs):
            x = float(self.place(v, 0.0)[0])
            parts.append(f'<path class="lq-{"grid" if self.boxed else "axis"}" d="M{px(x)} {grid}"/>')
            parts.append(text(x, bottom + 12, number, anchor="middle", look="lq-soft"))
        parts.append(text(right, bottom + 23, below, anchor="end", look="lq-soft") if below else "")
        window = self._window | {"viewBox": " ".join(self._window.values())}
        parts.append(element("svg", window, body) if body else "")
        box = f"V{px(top)}H{px(left)}Z" if self.boxed else ""
        return "".join(parts) + f'<path class="lq-axis" d="M{px(left)} {px(bottom)}H{px(right)}{box}"/>'

    @property
    def _window(self) -> dict[str, str]:
        left, right, top, bottom = self.edges
        return {"x": px(left), "y": px(top), "width": px(right - left), "height": px(bottom - top)}

    def curve(self, xs: Values, ys: Values, stroke: Stroke, *, steps: bool = False) -> str:
        """A curve through points, up to the first that is not finite; a single point is a short dash."""
        good = np.isfinite(xs) & np.isfinite(ys)
        end = len(good) if good.all() else int(np.argmin(good))
        if end < 2:
            return self.curve(xs[[0, 0]], ys[[0, 0]], stroke) if end else ""
        left, right, top, bottom = self.edges
        middle = 0.5 * (left + right), 0.5 * (top + bottom)
        away = [a - m for a, m in zip(self.place(xs[:end], ys[:end]), middle)]
        nearer = _FAR / np.maximum(np.hypot(*away), _FAR)
        return stroke.path(curve(*(m + nearer * a for a, m in zip(away, middle)), steps=steps))

    def cross(self, x: float, y: float) -> str:
        """Thin lines through a point, as long as the plane."""
        (left, right, top, bottom), (across, up) = self.edges, self.place(x, y)
        data = f"M{px(left)} {px(up)}H{px(right)}M{px(across)} {px(top)}V{px(bottom)}"
        return element("path", {"class": "lq-axis", "d": data})

    def region(self, x: Interval, y: Interval) -> str:
        """A rectangle that a curve is to stay out of."""
        (left, right), (bottom, top) = self.place(np.array(x), 0.0)[0], self.place(0.0, np.array(y))[1]
        size = {"x": px(left), "y": px(top), "width": px(right - left), "height": px(bottom - top)}
        return element("rect", {"class": "lq-forbidden", **size})

    def circle(self, x: float, y: float, radius: float, dashes: str = "") -> str:
        """A thin circle about a point, an ellipse where the axes differ in scale."""
        (cx, cy), (right, top) = self.place(x, y), self.place(x + radius, y + radius)
        size = {"cx": px(cx), "cy": px(cy), "rx": px(right - cx), "ry": px(cy - top)}
        return element("ellipse", {"class": "lq-axis", "stroke-dasharray": dashes or "none", **size})

    def marks(self, xs: Values, ys: Values, shape: str, stroke: Stroke) -> str:
        """A mark at each point: ``○``, ``×`` or ``+``."""
        return stroke.path("".join(f"M{px(x)} {px(y)}{MARKS[shape]}" for x, y in zip(*self.place(xs, ys))))

    def image(self, rgba: UInt8[np.ndarray, "rows columns 4"]) -> str:
        """Pixels that fill the plane, the first row at the bottom."""
        buffer = io.BytesIO()
        imsave(buffer, rgba, format="png", origin="lower")
        data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        look = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated", "href": data}
        return element("image", self._window | look)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between low and high."""
    values = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [0.0 if abs(t) < slack else float(t) for t in values if low - slack <= t <= high + slack]


def _labelled(range_: Interval, count: int, *, log: bool) -> list[tuple[float, str]]:
    """Places of ticks on an axis and what stands there; of a log10 whole decades, or 1, 2 and 5 of few."""
    if not log:
        return [(v, digits(v, 4)) for v in ticks(*range_, max(2, count))]
    low, high = range_
    decades = range(math.floor(low), math.ceil(high) + 1)
    whole = [float(d) for d in decades if low - 1e-9 <= d <= high + 1e-9]
    if len(whole) > 2:
        every = math.ceil(len(whole) / max(2, count))
        return [(d, digits(10**d)) for d in whole if d % every == 0]
    fine = [d + math.log10(k) for d in decades for k in (1, 2, 5)]
    return [(v, digits(10**v)) for v in fine if low - 1e-9 <= v <= high + 1e-9]


Curve = tuple[Values, Values, Stroke]
"""Times [s], values, how it is drawn."""


def duration_unit(seconds: float) -> tuple[str, float]:
    """A unit of time in which ``seconds`` is a handy number, and how many seconds it has."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)):
        if seconds < 300 * size or (unit == "s" and seconds < 600):
            return unit, size
    return ("h", 3600.0) if seconds < 3e5 else ("d", 86400.0)


def duration(seconds: SupportsFloat) -> str:
    """A time in a handy unit: ``20 ms``."""
    unit, size = duration_unit(float(seconds))
    return f"{float(seconds) / size:.3g} {unit}"


def percent(value: float) -> str:
    """A percentage with three significant digits, or what it means that there is none."""
    if not np.isfinite(value):
        return "∞"
    if abs(value) < _ROUNDING:
        return "0"
    if 0 < value < _LEAST:
        return f"≤{_LEAST:g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def above(share: float) -> str:
    """A cost relative to another one, in as many digits as mean anything: ``3.1 % above``."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{percent(100 * abs(share))} % {'above' if share > 0 else 'below'}"


def logarithmic(
    at: Rectangle, xs: Values, curves: Mapping[str, Values], labels: tuple[str, str], *, x: Interval, floor: float
) -> str:
    """Positive curves (label → values over ``xs``) on a logarithmic axis from ``floor`` on, with two ``labels``."""
    values = {k: np.maximum(np.nan_to_num(v, nan=floor, posinf=1e12), floor) for k, v in curves.items()}
    levels = {label: np.log10(v) for label, v in values.items()}
    low, high = math.floor(min(v.min() for v in levels.values())), math.ceil(max(v.max() for v in levels.values()))
    axes, looks = Axes(at, x, (low, max(high, low + 1)), logs="y"), strokes(curves)
    drawn = "".join(axes.curve(xs, v, looks[label]) for label, v in levels.items())
    return axes.frame(*labels) + drawn + legend(at[0] + 20 + 5.6 * len(labels[1]), at[1] + 10, looks)


def pole_map(at: Rectangle, groups: Mapping[str, Poles]) -> str:
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
    """A small chart of curves until a time [s], and its axes; a curve ends where it is not finite or leaves the chart.

    ``title`` and ``unit`` are of the values, which hold until the next where ``steps``; the time's unit stands below
    where ``labelled``. ``lead`` of the curves decide the range, others widen it to three times that at most; all if 0.
    """
    low, high, power = value_range(curves, lead)
    factor = f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))} " if power else ""
    label = f"{title} [{factor}{unit}]"
    label = label if len(label) <= int((at[2] - 4) / 5.6) else label.replace(" of ", " ")
    (name, second), one = duration_unit(until), 10.0**power
    margins = (36, 6, 16, 25 if labelled else 14)  # the widest label: −0.05
    axes = Axes(at, (0.0, until / second), (low / one, high / one), margins, boxed=False)
    parts = [axes.frame(f"time [{name}]" if labelled else "", label)]
    for ts, values, stroke in curves:
        seen = np.isfinite(values) & (ts <= until * (1 + 1e-9)) & (values >= low) & (values <= high)
        end = len(seen) if seen.all() else int(np.argmin(seen)) + 1
        if end > 1:
            values = np.clip(np.nan_to_num(values[:end], nan=high), low, high)
            parts.append(axes.curve(ts[:end] / second, values / one, stroke, steps=steps))
    return "".join(parts), axes


def value_range(curves: Sequence[Curve], lead: int = 0) -> tuple[float, float, int]:
    """Lowest and highest value of a chart of curves, and the power of ten that its labels leave out."""
    low, high = _range(curves[: lead or None])
    if lead and len(curves) > lead:
        span, wide = max(high - low, 1e-12), _range(curves)
        low, high = max(wide[0], low - span), min(wide[1], high + span)
    room = 1.0 if high - low < 1e-12 else 0.06 * (high - low)
    low, high = low - room, high + room
    power = math.floor(math.log10(max(abs(low), abs(high))))
    return low, high, 0 if -2 <= power < 4 else 3 * (power // 3)


def _range(curves: Sequence[Curve]) -> Interval:
    values = np.concatenate([values[np.isfinite(values)] for _, values, _ in curves] + [np.zeros(1)])
    return float(values.min()), float(values.max())


class PlottedSignal(NamedTuple):
    """One signal of a plant, and its values' place in a trajectory: ``xs`` or ``us``, and the column."""

    signal: Signal
    field: str
    column: int

    @property
    def name(self) -> str:
        """The signal's name in words."""
        return self.signal.name.replace("_", " ")

    @property
    def held(self) -> bool:
        """True of an input, which holds its value until the next."""
        return self.field == "us"

    def values(self, run: Trajectory) -> Float[np.ndarray, "*runs samples"]:
        """The signal in a run."""
        return np.asarray(getattr(run, self.field), float)[..., self.column]

    def curve(self, run: Trajectory) -> tuple[Float[np.ndarray, " times"], Float[np.ndarray, "*runs times"]]:
        """Times [s] and the signal at them; an input holds its last value to the end."""
        values = self.values(run)
        values = np.concatenate([values, values[..., -1:]], axis=-1) if self.held else values
        return np.asarray(run.ts, float), values


def channels(plant: Plant | type[Plant]) -> list[PlottedSignal]:
    """All of a plant's states, then its inputs."""
    fields = (("xs", plant.states), ("us", plant.inputs))
    return [PlottedSignal(signal, field, i) for field, signals in fields for i, signal in enumerate(signals)]


def responses(
    signals: Sequence[PlottedSignal],
    runs: Mapping[str, Trajectory],
    at: tuple[float, float, float],
    *,
    columns: int = 4,
    lead: int = 0,
    named: bool = False,
    film: Film | None = None,
    height: float = 0.0,
) -> tuple[str, float]:
    """A small chart for each signal, at most ``columns`` a row; markup and the height at which they end.

    ``runs`` is label → trajectory of one loop, ``at`` left, top and width [px]; ``lead`` of the runs decide the ranges
    of time and values, all if 0. Labels stand above where ``named``, the time of a ``film`` runs through each chart.
    Together they are ``height`` px high; 92 a row if 0.
    """
    left, top, width = at
    until = max(float(run.ts[-1]) for run in list(runs.values())[: lead or None])
    markup = legend(left + 2, top + 14, strokes(runs)) if named else ""
    top += 22 if named else 0
    places = cells(len(signals), (left, top, width, height or 92.0 * -(-len(signals) // columns)), columns)
    for i, (place, channel) in enumerate(zip(places, signals)):
        last, unit = i + columns >= len(signals), channel.signal.unit
        curves = [(*channel.curve(run), stroke) for run, stroke in zip(runs.values(), strokes(runs).values())]
        drawn, axes = over_time(place, curves, channel.name, unit, until, steps=channel.held, labelled=last, lead=lead)
        markup += drawn + (film.cursor(*axes.edges) if film else "")
    return markup, sum(places[-1][1::2]) + 4


def cells(count: int, at: Rectangle, columns: int) -> list[Rectangle]:
    """Places of charts that fill a rectangle, at most ``columns`` a row; they are at least 80 px high."""
    left, top, width, height = at
    columns = min(columns, count)
    wide, tall = (width - 10 * (columns - 1)) / columns, max(height / -(-count // columns), 80.0)
    return [(left + i % columns * (wide + 10), top + i // columns * tall, wide, tall) for i in range(count)]
