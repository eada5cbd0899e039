"""Drawings that move: a plant's trajectories as one small SVG that plays anywhere, offline and without a script."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, drawing
from lqrlab.workbench.figures import keyframes, svg
from lqrlab.workbench.figures.svg import _n as n

_FRAMES = 240  # at most; straight stretches between them need no keyframes
HOLD = 0.8  # seconds on the wall that the end is shown before it starts again
_LOST = 50.0  # scales of a state beyond which a loop counts as lost and its drawing stops
_FIT = 2.0  # share by which later runs may widen the frame that the first one sets
_CONTROLS = (
    '<label class="lq-play"><input type="checkbox"><span class="lq-pause"> pause</span>'
    '<span class="lq-start"> play</span></label>'
)
PLAYING = (
    ".lq-film{margin:.6rem 0 1rem;position:relative}.lq-film .lq-all{display:block}"
    ".lq-play{font:.76rem system-ui,sans-serif;display:inline-block;padding:.2rem 0;cursor:pointer}"
    ".lq-start{display:none}"
    ".lq-film:has(:checked) .lq-m{animation-play-state:paused}"
    "@media (prefers-reduced-motion:reduce){.lq-film .lq-m{animation-play-state:paused}"
    ".lq-film:has(:checked) .lq-m{animation-play-state:running}.lq-pause{display:none}.lq-start{display:inline}}"
)


@dataclasses.dataclass(frozen=True)
class Animation:
    """A drawing that moves; the last expression of a cell shows it.

    Attributes:
        svg: a complete SVG file that plays by itself wherever SVG is shown.
        alt: what stands for it where it cannot be seen.
        seconds: that one round takes to play.
        speed: seconds of the plant's time in a second of playing.
    """

    svg: str
    alt: str
    seconds: float
    speed: float

    @property
    def html(self) -> str:
        """With a box to pause it; those who ask their system for less motion find it paused."""
        held = self.svg.replace("</style>", f"{PLAYING}</style>", 1)
        return f'<div class="lq-film">{held}{_CONTROLS}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict]:
        return {"text/html": self.html, "text/plain": self.alt}, {}

    def save(self, path: str | Path) -> Path:
        """Write it to a file that any browser plays.

        Raises:
            ValueError: a name that ends neither in ``.svg`` nor in ``.html``.
        """
        path = Path(path)
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8")
        elif path.suffix in (".html", ".htm"):
            head = f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{self.alt}</title>'
            path.write_text(head + self.html + "</html>", encoding="utf-8")
        else:
            raise ValueError(f"{path}: an animation is saved as .svg or .html; the name has to end so")
        return path


def animation(
    plant: Plant,
    runs: Trajectory | Mapping[str, Trajectory],
    *,
    curves: Mapping[str, Trajectory] | None = None,
    signals: Sequence[str] | None = None,
    title: str = "",
    speed: float | None = None,
    width: float = 720.0,
) -> Animation:
    """Draw a plant moving through its trajectories, side by side, above the curves of some of its signals.

    All runs share one clock, one frame and one scale; time marks run along the curves. A run that diverges stands
    still where it was lost, and says when.

    Args:
        plant: one plant, of the catalogue or one's own; without a ``draw`` its states are bars.
        runs: a trajectory of one loop (``xs [T+1, n]``, as from ``simulation.rollout``), or label → trajectory. The
            first sets the frame. Labels known to :data:`plots.COLOURS` have the colours of all other figures.
        curves: further runs that are shown as curves only, cut off where they leave the picture.
        signals: names of the states and inputs to show as curves; the first state and the first input if left out.
        title: above the whole.
        speed: seconds of the plant's time a second of playing; 1 (life) if a round then takes two to twenty seconds,
            else a round number of times faster or slower, which is written below.
        width: in pixels.

    Raises:
        ValueError: a batch of plants or of trajectories, a run that does not fit the plant, an unknown signal.
    """
    named = {"": runs} if isinstance(runs, Trajectory) else dict(runs)
    tracks = {label: _checked(plant, label, run) for label, run in named.items()}
    beside = {label: (run.ts, run.xs, run.us) for label, run in (curves or {}).items()}
    chosen = _signals(plant, signals)
    until = max(float(ts[-1]) for ts, *_ in tracks.values())
    speed = speed or _speed(until)
    count = min(max(len(ts) for ts, *_ in tracks.values()), _FRAMES)
    times = np.linspace(0.0, until, count)
    seconds = until / speed + HOLD
    film = keyframes.Film(times / speed / seconds, round(seconds, 3))
    labels = [(label, svg.colour(label, k), svg.DASHES[k % 4]) for k, label in enumerate(tracks)]

    body, top = [], 4.0
    if title:
        body.append(svg.text(2, top + 12, title, look="lq-b"))
        top += 20
    # one drawing needs no label of its own above the legend of the curves
    above = [("", index, dashes) for _, index, dashes in labels] if beside and len(labels) == 1 else labels
    scene, bottom = _scenes(film, plant, tracks, above, times, (top, width))
    body.append(scene)
    size = svg.duration_unit(until)
    body.append(_clock(film, until, size, width, top))
    body.append(svg.text(2, bottom + 11, _pace(speed), look="lq-soft"))
    if beside:
        shown = [
            *labels,
            *((b, svg.colour(b, k), svg.DASHES[k % 4]) for k, b in enumerate(beside, len(labels))),
        ]
        body.append(svg.legend(2, bottom + 28, shown))
        bottom += 20
    drawn: dict[str, tuple[Any, Any, Any]] = {label: track[:3] for label, track in tracks.items()} | beside
    traces, bottom = charts(chosen, drawn, until, (bottom + 16, width), film, lead=len(tracks))
    body.append(traces)
    alt = _alt(plant, tracks, until, title)
    return Animation(svg.picture("".join(body), width, bottom, alt, style=film.style), alt, seconds, speed)


Track = tuple[
    np.ndarray, np.ndarray, np.ndarray, float
]  # ts, xs, us (deviations), when it was lost [s] or inf


def _checked(plant: Plant, label: str, run: Trajectory) -> Track:
    if plant.batch_shape:
        raise ValueError(f"plant: expected one plant, but found a batch of shape {plant.batch_shape}")
    ts, xs, us = (np.asarray(a, float) for a in (run.ts, run.xs, run.us))
    shapes = {"xs": (xs.shape, (len(us) + 1, plant.n)), "us": (us.shape, (len(us), plant.m))}
    for name, (found, expected) in shapes.items():
        if found != expected or len(us) < 1:
            raise ValueError(
                f"runs: {label or 'the trajectory'} has {name} of shape {found}, but {plant.name} needs {expected}; "
                "choose one loop of a batch, as in jax.tree.map(lambda a: a[0], run)"
            )
    ts = ts.reshape(-1)[: len(xs)]
    good = np.isfinite(xs).all(axis=1) & (np.abs(xs) <= _LOST * np.asarray(plant.scales[0])).all(axis=1)
    if good.all():
        return ts, xs, us, math.inf
    end = max(int(np.argmin(good)), 2)
    if not np.isfinite(xs[:2]).all():
        raise ValueError(
            f"runs: {label or 'the trajectory'} is not finite from its start; there is nothing to draw"
        )
    return ts[:end], xs[:end], us[: end - 1], float(ts[end - 1])


def _signals(plant: Plant, names: Sequence[str] | None) -> list[tuple[Any, str, int]]:
    """The signals to show: each with where it is found."""
    there = {s.name: (s, "xs", i) for i, s in enumerate(plant.states)}
    there |= {s.name: (s, "us", i) for i, s in enumerate(plant.inputs)}
    names = [plant.states[0].name, plant.inputs[0].name] if names is None else list(names)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise ValueError(f"signals: {plant.name} has no {', '.join(unknown)}; it has {', '.join(there)}")
    return [there[name] for name in names]


def _speed(until: float) -> float:
    if 2.0 <= until <= 20.0:
        return 1.0
    wanted = until / 8.0  # of a round that takes eight seconds
    power = 10.0 ** math.floor(math.log10(wanted))
    return min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / wanted)))


def _pace(speed: float) -> str:
    if abs(speed - 1) < 1e-9:
        return "real time"
    times, way = (speed, "faster") if speed > 1 else (1 / speed, "slower")
    many = f"{times:,.0f}".replace(",", " ") if times >= 10 else f"{times:g}"
    return f"{many} × {way} than real time"


def _clock(film: keyframes.Film, until: float, unit: tuple[str, float], width: float, top: float) -> str:
    steps = int(np.clip(round(film.seconds * 10), 20, 80))
    digits = max(0, 2 - math.floor(math.log10(until / unit[1])))
    words = [f"{until * i / steps / unit[1]:.{min(digits, 3)}f} {unit[0]}" for i in range(steps + 1)]
    return film.clock(width - 70, top - 4, words)


def _at(track: Track, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """States and held inputs at the frames."""
    ts, xs, us, _ = track
    states = np.stack([np.interp(times, ts, column) for column in xs.T], axis=1)
    held = np.clip(np.searchsorted(ts, times * (1 + 1e-12), side="right") - 1, 0, len(us) - 1)
    return states, us[held]


def _scenes(
    film: keyframes.Film,
    plant: Plant,
    tracks: Mapping[str, Track],
    labels: Sequence[tuple[str, int, str]],
    times: np.ndarray,
    at: tuple[float, float],
) -> tuple[str, float]:
    """The drawings side by side; markup and the height at which they end."""
    top, width = at
    x_eq, u_eq = (np.asarray(a, float) for a in plant.equilibrium())
    plain = plain_plant(plant)
    drawn = []
    for track in tracks.values():
        xs, us = _at(track, times)
        drawn.append([plain.draw(x + x_eq, u + u_eq) for x, u in zip(xs, us)])
    left, right, bottom, high = _frame(drawn)
    count = len(drawn)
    panel = (width - 12 * (count - 1)) / count
    aside = _overhang(drawn)
    room = panel - 16 - 2 * aside
    height = float(np.clip(room * (high - bottom) / (right - left) + 16, 70, 230))
    scale = min(room / (right - left), (height - 16) / (high - bottom))
    corner = (0.5 * (left + right) - 0.5 * panel / scale, 0.5 * (bottom + high) + 0.5 * height / scale)
    parts = []
    row = 18.0
    for k, (frames, (label, index, dashes), track) in enumerate(zip(drawn, labels, tracks.values())):
        x = k * (panel + 12)
        lost = f" · lost after {track[3]:.3g} s" if math.isfinite(track[3]) else ""
        if label or lost:
            parts.append(svg.legend(x + 2, top + 12, [((label or "run") + lost, index, dashes)]))
        window = {"x": n(x), "y": n(top + row), "width": n(panel), "height": n(height)}
        parts.append(svg.element("svg", window, keyframes.shapes(film, frames, scale, corner)))
        if plant.drawn_in and not k:
            parts.append(_ruler(scale, plant.drawn_in, x + panel, top + row + height))
    return "".join(parts), top + row + height


def plain_plant(plant: Plant) -> Plant:
    """The plant with plain numbers for its parameters, as drawings expect."""
    fields = {f.name: getattr(plant, f.name) for f in dataclasses.fields(plant)}  # type: ignore[arg-type]
    return type(plant)(**fields | {key: float(value) for key, value in plant.parameters.items()})


def _frame(drawn: Sequence[Sequence[drawing.Drawing]]) -> tuple[float, float, float, float]:
    """What is seen: all of the first run, and of the others as far as that is not much more."""
    first = np.array(drawing.bounds(*drawn[0]))
    if len(drawn) == 1:
        return tuple(first)
    everything = np.array(drawing.bounds(*(d for run in drawn for d in run)))
    wide, tall = first[1] - first[0], first[3] - first[2]
    most = 0.5 * (_FIT - 1) * np.array([-wide, wide, -tall, tall])
    low, high = np.minimum(first, first + most), np.maximum(first, first + most)
    return tuple(np.clip(everything, low, high))


def _overhang(drawn: Sequence[Sequence[drawing.Drawing]]) -> float:
    """Pixels to leave at the sides for words, which have no size in the drawing's plane."""
    words = [len(s.text) for s in drawn[0][0] if isinstance(s, drawing.Text)]
    return 2.9 * max(words, default=0)


def _ruler(scale: float, unit: str, right: float, bottom: float) -> str:
    """How long a round length is."""
    most = 90 / scale
    power = 10.0 ** math.floor(math.log10(most))
    length = max(m * power for m in (1, 2, 5) if m * power <= most)
    x = right - 8 - length * scale
    bar = f'<path class="lq-axis" d="M{n(x)} {n(bottom + 4)}v3h{n(length * scale)}v-3"/>'
    return bar + svg.text(x - 5, bottom + 10, f"{length:g} {unit}", anchor="end", look="lq-soft")


def charts(
    signals: Sequence[tuple[Any, str, int]],
    curves: Mapping[str, tuple[Any, Any, Any]],
    until: float,
    at: tuple[float, float],
    film: keyframes.Film | None = None,
    *,
    columns: int = 4,
    lead: int = 0,
) -> tuple[str, float]:
    """Small charts of signals, ``columns`` a row; markup and the height at which they end.

    Args:
        signals: each with ``"xs"`` or ``"us"`` and its index.
        curves: label → times, states, inputs.
        until: last time [s].
        at: top and width [px].
        film: if given, a mark for the time runs through each chart.
        columns: at most so many a row.
        lead: how many of the curves decide what is seen; all if 0.
    """
    top, width = at
    columns = max(1, min(columns, len(signals)))
    wide, tall = (width - 10 * (columns - 1)) / columns, 92.0
    parts = []
    for i, (signal, kind, index) in enumerate(signals):
        row, column = divmod(i, columns)
        last = i + columns >= len(signals)
        drawn = []
        for k, (label, run) in enumerate(curves.items()):
            ts, xs, us = (np.asarray(a, float) for a in run)
            values = (xs if kind == "xs" else np.vstack([us, us[-1:]]))[:, index]
            drawn.append((ts, values, svg.colour(label, k), svg.DASHES[k % 4]))
        place = (column * (wide + 10), top + row * tall, wide, tall)
        name = signal.name.replace("_", " ")
        markup, x0, x1 = svg.chart(
            place, drawn, name, signal.unit, until, steps=kind == "us", time=last, lead=lead
        )
        parts.append(markup)
        if film is not None:
            path = np.zeros((len(film.times), 5))
            path[:, 0], path[:, 1], path[:, 3:] = np.linspace(x0, x1, len(path)), place[1] + 16, 1.0
            mark = {"class": "lq-mark", "d": f"M0 0V{n(tall - (25 if last else 14) - 16)}"}
            parts.append(film.carry("path", mark, path, (0.0, 0.0)))
    rows = -(-len(signals) // columns)
    return "".join(parts), top + rows * tall + 4


def _alt(plant: Plant, tracks: Mapping[str, Track], until: float, title: str) -> str:
    unit, size = svg.duration_unit(until)
    told = []
    for label, (_, xs, _, lost) in tracks.items():
        far = int(np.argmax(np.abs(xs[0]) / np.asarray(plant.scales[0])))
        s = plant.states[far]
        of = "" if s.unit == "1" else f" {s.unit}"
        end = f"lost after {lost:.3g} s" if math.isfinite(lost) else f"ends {xs[-1, far]:.2g}{of} from it"
        who, name = (f"{label}: " if label else ""), s.name.replace("_", " ")
        told.append(f"{who}{name} starts {xs[0, far]:.2g}{of} from the equilibrium, {end}")
    return f"{title or 'Animation of ' + plant.name.replace('_', ' ')}, {until / size:.3g} {unit}. {'; '.join(told)}."
