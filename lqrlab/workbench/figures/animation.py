"""Drawings that move: a plant's trajectories as one small SVG that plays anywhere, offline and without a script."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from lqrlab.simulation import Trajectory, verdict
from lqrlab.systems import Plant, check_plant, drawing
from lqrlab.workbench.figures import charts, digits, keyframes, loop_design, svg
from lqrlab.workbench.figures.svg import px

_FRAMES = 240  # at most; straight pieces between them need no keyframes
HOLD = 0.8  # seconds on the wall that the end is shown before it starts again
_FAR = 50.0  # scales of a state beyond which a run that diverges is no longer drawn
_FIT = 2.0  # share by which later runs may widen the frame that the first one sets
_CONTROLS = (
    '<label class="lq-play"><input type="checkbox"><span class="lq-pause"> pause</span>'
    '<span class="lq-start"> play</span></label>'
)
PLAYING = svg.stylesheet("animation.css")


@dataclasses.dataclass(frozen=True)
class Animation(svg.Picture):
    """A drawing that moves; the last expression of a cell shows it."""

    seconds: float = 0.0  # that one round takes to play
    speed: float = 1.0  # seconds of the plant's time in a second of playing

    @property
    def drawing(self) -> str:
        """With a box to pause it; those who ask their system for less motion find it paused."""
        held = self.svg.replace("</style>", f"{PLAYING}</style>", 1)
        return f'<div class="lq-film">{held}{_CONTROLS}</div>'


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
    still where a state is 50 scales from the equilibrium, and says when. A plant without a ``draw`` is drawn as bars.

    Args:
        runs: a trajectory of one loop (``xs [T+1, n]``), or label → trajectory; the first sets the frame.
        curves: further runs that are shown as curves only, cut off where they leave the picture.
        signals: names of the states and inputs to show as curves; the first state and the first input if left out.
        speed: seconds of the plant's time a second of playing; 1 if a round then takes two to twenty seconds, else a
            round number of times faster or slower, which is written below.

    Raises:
        ValueError: a batch of plants or of trajectories, a run that does not fit the plant, an unknown signal.
    """
    named = {"": runs} if isinstance(runs, Trajectory) else dict(runs)
    tracks = {label: _checked(plant, label, run) for label, run in named.items()}
    shown = _channels(plant, signals)
    until = max(float(run.ts[-1]) for run, _ in tracks.values())
    speed = speed or _speed(until)
    times = np.linspace(0.0, until, min(max(len(run.ts) for run, _ in tracks.values()), _FRAMES))
    seconds = until / speed + HOLD
    film = keyframes.Film(times / speed / seconds, round(seconds, 3))
    drawn = {label: run for label, (run, _) in tracks.items()} | dict(curves or {})
    labels = svg.strokes(drawn)

    top = 4.0
    body = [svg.text(2, top + 12, title, look="lq-b"), _clock(film, until, width, top)]
    if title or len(tracks) > 1:  # else the only drawing stands below the clock
        top += 20
    labelled = len(tracks) > 1 or not curves  # else the legend of the curves names the only drawing
    scene, bottom = _scenes(film, plant, tracks, times, (top, width), labelled=labelled)
    body += [scene, svg.text(2, bottom + 11, _pace(speed), look="lq-soft")]
    if curves:
        body.append(svg.legend(2, bottom + 28, labels))
        bottom += 20
    traces, bottom = charts.responses(shown, drawn, (0, bottom + 16, width - 8), film=film, lead=len(tracks))
    body.append(traces)
    alt = _alt(plant, tracks, until, title)
    file = svg.document("".join(body), width, bottom, alt, style=film.style)
    return Animation(file, alt, seconds=seconds, speed=speed)


def poses(
    plant: Plant, run: Trajectory, count: int = 6, title: str = "", *, columns: int = 3, width: float = 720.0
) -> svg.Picture:
    """The plant drawn at ``count`` moments of a run (``xs [T+1, n]``), evenly spaced, ``columns`` in a row."""
    ts = np.asarray(run.ts)
    moments = np.unique(np.round(np.linspace(0, len(ts) - 2, count)).astype(int))
    drawn = keyframes.poses(plant, np.asarray(run.xs)[moments], np.asarray(run.us)[moments])
    bounds = drawing.bounds(*drawn)
    wide = (width - 8 * (columns - 1)) / columns
    tall = float(np.clip(wide * (bounds[3] - bounds[2]) / (bounds[1] - bounds[0]) + 8, 50, 200))
    body, top = svg.text(2, 14, title, look="lq-b"), 22 if title else 2
    for k, (t, shapes) in enumerate(zip(ts[moments], drawn)):
        x, y = (k % columns) * (wide + 8), top + (k // columns) * (tall + 18)
        window = {"x": px(x), "y": px(y + 14), "width": px(wide), "height": px(tall)}
        body += svg.text(x + 2, y + 12, f"{t:.2f} s", look="lq-soft")
        body += svg.element("svg", window, keyframes.still(shapes, bounds, wide, tall))
    alt = f"{title or plant.name.replace('_', ' ')}: drawn at {', '.join(f'{t:.2f}' for t in ts[moments])} s"
    return svg.Picture(svg.document(body, width, top + -(-len(drawn) // columns) * (tall + 18), alt), alt)


Track = tuple[Trajectory, float]
"""A run as far as it is drawn, and when it diverged [s], or inf."""


def _checked(plant: Plant, label: str, run: Trajectory) -> Track:
    check_plant(plant, one=True)
    ts, xs, us = (np.asarray(a, float) for a in (run.ts, run.xs, run.us))
    label = label or "the trajectory"
    for name, a, expected in (("xs", xs, (len(us) + 1, plant.n)), ("us", us, (len(us), plant.m))):
        if a.shape != expected or len(us) < 1:
            raise ValueError(
                f"runs: {label} has {name} of shape {a.shape}, but {plant.name} needs {expected}; "
                "choose one loop of a batch, as in jax.tree.map(lambda a: a[0], run)"
            )
    if not np.isfinite(xs[:2]).all():
        raise ValueError(f"runs: {label} is not finite from its start; there is nothing to draw")
    near = (np.abs(xs) <= _FAR * np.asarray(plant.scales[0])).all(axis=1)  # NaN is not
    whole = near.all() or loop_design.outcome(plant, run) != verdict.Verdict.DIVERGED
    end = len(xs) if whole else max(int(np.argmin(near)), 2)
    run = Trajectory(ts.reshape(-1)[:end], xs[:end], us[: end - 1], None)  # type: ignore[arg-type]
    return run, math.inf if whole else float(run.ts[-1])


def _channels(plant: Plant, names: Sequence[str] | None) -> list[charts.PlottedSignal]:
    known = {channel.signal.name: channel for channel in charts.channels(plant)}
    names = [plant.states[0].name, plant.inputs[0].name] if names is None else list(names)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"signals: {plant.name} has no {', '.join(unknown)}; it has {', '.join(known)}")
    return [known[name] for name in names]


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


def _clock(film: keyframes.Film, until: float, width: float, top: float) -> str:
    unit, second = charts.duration_unit(until)
    steps = int(np.clip(round(film.seconds * 10), 20, 80))
    decimals = min(max(0, 2 - math.floor(math.log10(until / second))), 3)
    words = [f"{until * i / steps / second:.{decimals}f} {unit}" for i in range(steps + 1)]
    return film.clock(width - 70, top - 4, words)


def _at(run: Trajectory, times: Float[np.ndarray, " frames"]) -> tuple[np.ndarray, np.ndarray]:
    """States and held inputs at the frames."""
    states = np.stack([np.interp(times, run.ts, column) for column in np.asarray(run.xs).T], axis=1)
    held = np.clip(np.searchsorted(run.ts, times * (1 + 1e-12), side="right") - 1, 0, len(run.us) - 1)
    return states, np.asarray(run.us)[held]


def _scenes(
    film: keyframes.Film,
    plant: Plant,
    tracks: Mapping[str, Track],
    times: Float[np.ndarray, " frames"],
    at: tuple[float, float],
    *,
    labelled: bool,
) -> tuple[str, float]:
    """The drawings side by side, each under its name; markup and the height at which they end."""
    top, width = at
    drawn = [keyframes.poses(plant, *_at(run, times)) for run, _ in tracks.values()]
    left, right, bottom, high = _frame(drawn)
    count = len(drawn)
    panel = (width - 12 * (count - 1)) / count
    # words have no size in the drawing's plane: pixels to leave at the sides
    room = panel - 16 - 5.8 * max((len(s.text) for s in drawn[0][0] if isinstance(s, drawing.Text)), default=0)
    height = float(np.clip(room * (high - bottom) / (right - left) + 16, 70, 230))
    scale, corner = keyframes.fit((left, right, bottom, high), (panel, height), (room, height - 16))
    parts, row = [], 18.0
    for k, (frames, (label, stroke)) in enumerate(zip(drawn, svg.strokes(tracks).items())):
        x, end = k * (panel + 12), tracks[label][1]
        diverged = f" · diverged after {digits(end)} s" if math.isfinite(end) else ""
        if (label and labelled) or diverged:
            parts.append(svg.legend(x + 2, top + 12, {(label or "run") + diverged: stroke}))
        window = {"x": px(x), "y": px(top + row), "width": px(panel), "height": px(height)}
        parts.append(svg.element("svg", window, keyframes.shapes(film, frames, scale, corner)))
    if plant.drawn_in:
        parts.append(_ruler(scale, plant.drawn_in, panel, top + row + height))
    return "".join(parts), top + row + height


def _frame(drawn: Sequence[Sequence[drawing.Drawing]]) -> tuple[float, ...]:
    """Left, right, bottom, top: all of the first run, and of the others as far as that is not much more."""
    first = np.array(drawing.bounds(*drawn[0]))
    everything = np.array(drawing.bounds(*(d for run in drawn for d in run)))
    wide, tall = first[1] - first[0], first[3] - first[2]
    most = 0.5 * (_FIT - 1) * np.array([-wide, wide, -tall, tall])
    low, high = np.minimum(first, first + most), np.maximum(first, first + most)
    return tuple(np.clip(everything, low, high))


def _ruler(scale: float, unit: str, right: float, bottom: float) -> str:
    """A bar with a round length."""
    most = 90 / scale
    power = 10.0 ** math.floor(math.log10(most))
    length = max(m * power for m in (1, 2, 5) if m * power <= most)
    x = right - 8 - length * scale
    bar = f'<path class="lq-axis" d="M{px(x)} {px(bottom + 4)}v3h{px(length * scale)}v-3"/>'
    return bar + svg.text(x - 5, bottom + 10, f"{length:g} {unit}", anchor="end", look="lq-soft")


def _alt(plant: Plant, tracks: Mapping[str, Track], until: float, title: str) -> str:
    sentences = []
    for label, (run, end) in tracks.items():
        far = int(np.argmax(np.abs(run.xs[0]) / np.asarray(plant.scales[0])))
        s = plant.states[far]
        of = "" if s.unit == "1" else f" {s.unit}"
        first, last = (digits(float(run.xs[i, far]), 2) for i in (0, -1))
        after = f"diverged after {digits(end)} s" if math.isfinite(end) else f"ends {last}{of} from it"
        who, name = (f"{label}: " if label else ""), s.name.replace("_", " ")
        sentences.append(f"{who}{name} starts {first}{of} from the equilibrium, {after}")
    about = title or "Animation of " + plant.name.replace("_", " ")
    return f"{about}, {charts.duration(until)}. {'; '.join(sentences)}."
