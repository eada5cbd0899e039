"""A plant's regulators on sliders, in a page that needs no kernel: each position is a design computed beforehand.

Where no script runs, the pictures stand for the defaults. One small script (``design_page.js``) moves them, the only
one that the policy of such a page lets run; what it reads is numbers and words in an attribute.
"""

import base64
import dataclasses
import gzip
import html
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lqrlab import systems
from lqrlab.simulation.verdict import Verdict
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, design_drawing, loop_design, svg
from lqrlab.workbench.figures.design_grid import Grid, grid
from lqrlab.workbench.figures.svg import HtmlPage, Stroke, px

MARK = 'class="lq-designs"'
"""Of the element that the script looks for."""
SCRIPT = (Path(__file__).parent / "design_page.js").read_text(encoding="utf-8")
"""The script that moves the pictures, in a report and in a page of their own."""
_STATES, _INPUTS = 4, 2  # that are drawn, at most
_LEVELS = 2000  # that a chart's height is divided into
_SIZE = (300.0, 130.0)  # of a chart's picture [px]
_SCENE = (400.0, 170.0)  # of the plant's
_FRAMES = (24, 12, 0)  # in which the plant is drawn: as many as there is room for
_MOST = 265_000  # bytes of numbers and words
_PLACE = (8.0, 0.0, _SIZE[0] - 8, _SIZE[1])  # of the chart in it, which leaves room for −0.05
_DEFAULT, _CHOSEN = Stroke(3), Stroke(0)
_NOTE = "Grey: the design at the defaults. All costs are charged by the plant's own weights."
_VERDICTS = {Verdict.CONVERGED: "converges", Verdict.BOUNDED: "bounded, not converging", Verdict.DIVERGED: "diverges"}


def page(plant: str | Plant, *, parameter: str | None = None, weight: str | None = None) -> HtmlPage:
    """Regulators for a grid of sample times, factors of one weight and values of one parameter, on sliders.

    Each gain is the sampled optimum of its own plant and weights; its loop is that of the nonlinear plant, always from
    the same initial state. In a report, and in the file that ``save`` writes, sliders move; in a notebook, and where
    scripts are forbidden, the pictures stand for the defaults.

    Args:
        plant: a family of the catalogue, or one plant of your own.
        parameter: the parameter that moves; if left out, the one that changes the optimal cost most.
        weight: the state or input whose weight moves; the first input if left out.

    Raises:
        ValueError: a batch of plants, an unknown parameter or signal.
    """
    plant = systems.make(plant) if isinstance(plant, str) else plant
    systems.check_plant(plant, one=True)
    found = grid(plant, parameter, weight)
    shown = {"axes": _axes(found), "words": _words(found), "interval": float(found.ts[1])}
    for count in _FRAMES:
        scene, drawn = _scene(found, count) if count else ("", {})
        pictures, numbers = _charts(found, drawn)
        packed = _packed(data := shown | numbers | {"scene": drawn})
        if len(packed) <= _MOST:
            break
    markup = _markup(data, scene, pictures, _flat(found), packed)
    moved = ", ".join(axis["label"] for axis in data["axes"])
    alt = f"{plant.title}: states, input and poles under the sampled optimum; to be set: {moved}"
    return HtmlPage(markup, alt, f"Regulators of {_spaced(plant.name)}", SCRIPT)


def _packed(data: dict) -> str:
    """Plain data as JSON, compressed, as text."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _axes(g: Grid) -> list[dict]:
    """Label, positions in words and default position of each slider."""
    axes = [
        ("sample time", [charts.duration(t) for t in g.times]),
        (f"weight of {_spaced(g.weight.name)}", [f"× {factor:.3g}" for factor in g.factors]),
    ]
    if g.parameter:
        unit = systems.parameter_fields(type(g.plant))[g.parameter].metadata["unit"]
        axes.append((_spaced(g.parameter), [_with_unit(value, unit) for value in g.values]))
    return [{"label": label, "words": words, "at": at} for (label, words), at in zip(axes, g.at)]


def _words(g: Grid) -> list[dict]:
    """Each design in words, under labels."""
    inputs = g.plant.inputs[:_INPUTS]
    largest = f"largest {_spaced(inputs[0].name) if len(inputs) == 1 else 'inputs'}"
    cost = f"cost in {charts.duration(g.ts[-1])}"
    labels = ("slowest pole, |z|", "time constant", largest, cost, "on the nonlinear plant")
    dts = np.broadcast_to(g.times[:, None, None], g.found.shape)
    rows = []
    for i in np.ndindex(g.found.shape):
        row = [*["–"] * 4, "no stabilising gain was found"]
        if g.found[i]:
            row = [
                f"{np.abs(g.poles[i]).max():.3f}",
                charts.duration(loop_design.time_constant(g.poles[i], dts[i])),
                ", ".join(_with_unit(peak, s.unit) for peak, s in zip(g.peaks[i], inputs)),
                f"{_number(float(g.costs[i]))} (default {_number(float(g.costs[g.at]))})",
                _VERDICTS[Verdict(int(g.verdicts[i]))],
            ]
        rows.append(row)
    return [{"label": label, "words": list(words)} for label, words in zip(labels, zip(*rows))]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".removesuffix(" 1")


def _number(value: float) -> str:
    """Three digits, as people write them."""
    if not math.isfinite(value):
        return "∞"
    rounded = float(f"{value:.3g}")
    long = 1e3 <= abs(rounded) < 1e7
    return (f"{rounded:,.0f}".replace(",", "\u202f") if long else f"{rounded:.3g}").replace("-", "−")


def _charts(g: Grid, scene: dict) -> tuple[list[str], dict]:
    """A picture of each signal and of the poles at the defaults, and the numbers that the script draws others from."""
    every = charts.channels(g.plant)
    moves = np.abs(g.xs[g.at]).max(axis=0) / np.asarray(g.plant.scales[0])
    most = sorted(np.argsort(-moves, kind="stable")[:_STATES].tolist())
    chosen = [every[i] for i in most] + every[g.plant.n : g.plant.n + _INPUTS]
    pictures, places, curves = [], [], []
    for channel in chosen:
        values = getattr(g, channel.field)[..., channel.column]
        picture, place, drawn = _chart(g, channel, values, scene)
        pictures.append(picture)
        places.append(place)
        curves.append(drawn)
    picture, poles = _poles(g)
    return [*pictures, picture], {"charts": places, "curves": curves, "poles": poles}


def _chart(
    g: Grid, channel: charts.PlottedSignal, values: np.ndarray, scene: dict
) -> tuple[str, dict, list[list[int]]]:
    """One signal: the picture of its default, where the script draws, and the steps from point to point of all."""
    usual, hold = values[g.at], channel.held
    ends = np.array([np.nan, *(f(values[np.isfinite(values)]) for f in (np.min, np.max))])  # widens, is not drawn
    lines = [(g.ts, usual, _DEFAULT), (g.ts[:3], ends, _DEFAULT)]
    low, high, power = charts.value_range(lines, lead=1)
    markup, axes = charts.over_time(
        _PLACE, lines, channel.name, channel.signal.unit, float(g.ts[-1]), steps=hold, lead=1
    )
    scale = (high - low) / _LEVELS
    (x0, y0), (_, y1) = axes.place(0.0, 0.0), axes.place(0.0, scale / 10.0**power)
    step = (axes.edges[1] - axes.edges[0]) / (len(g.ts) - 1)
    place = {"x": [float(x0), step], "y": [float(y0), float(y1 - y0)], "hold": hold, "scale": scale}
    counts = [_counts(run, low, high, scale) for run in values.reshape(-1, len(g.ts))]
    drawn = [np.diff(c, prepend=0).tolist() for c in counts]
    if scene:
        _, _, top, bottom = axes.edges
        at = f"translate({px(x0 + step * scene['at'] * scene['every'])} 0)"
        line = {"class": "lq-mark lq-now", "d": f"M0 {px(top)}V{px(bottom)}", "transform": at}
        markup += svg.element("path", line)
    label = f"{channel.name} over time: the design chosen, and in grey that of the defaults"
    return _picture(markup, _path(counts[_flat(g)], place), label), place, drawn


def _counts(run: np.ndarray, low: float, high: float, scale: float) -> np.ndarray:
    """A run in whole multiples of a scale, up to where it leaves the chart."""
    inside = (run >= low) & (run <= high)
    end = len(run) if inside.all() else int(np.argmin(inside)) + 1
    return np.round(np.clip(np.nan_to_num(run[:end], nan=high), low, high) / scale).astype(int)


def _path(counts: np.ndarray, place: dict) -> str:
    """A curve, as the script draws it."""
    (x, across), (y, up) = place["x"], place["y"]
    points = [(px(x + across * k), px(y + up * count)) for k, count in enumerate(counts)]
    lines = (f"H{a}V{b}" if place["hold"] else f"L{a} {b}" for a, b in points[1:])
    return "M" + " ".join(points[0]) + "".join(lines)


def _flat(g: Grid) -> int:
    return int(np.ravel_multi_index(g.at, g.found.shape))


def _scene(g: Grid, count: int) -> tuple[str, dict]:
    """The plant drawn at a moment of its default run, and the numbers to draw it at others."""
    every = -(-len(g.ts) // count)
    ts = g.ts[::every]
    still = len(ts) // 6
    markup, data = design_drawing.drawn(g, every, still, _SCENE)
    label = f"{_spaced(g.plant.name)}, drawn at the time chosen"
    picture = svg.document(markup, *_SCENE, label, bare=True)
    unit, second = charts.duration_unit(g.ts[-1])
    words = [f"{t / second:.2f} {unit}" for t in ts]
    return (picture, data | {"label": "time", "words": words, "at": still, "every": every}) if data else ("", {})


def _poles(g: Grid) -> tuple[str, dict]:
    """The poles in the z-plane."""
    plane = charts.Axes(_PLACE, (0.0, 1.0), (0.0, 1.0), (30, 6, 16, 25))
    wide = 1.1 * plane.aspect
    plane = dataclasses.replace(plane, x=(-wide, wide), y=(-1.1, 1.1))
    usual = g.poles[g.at]
    markup = plane.frame("Re z", "poles, Im z", plane.circle(0.0, 0.0, 1.0))
    markup += plane.marks(usual.real, usual.imag, "×", _DEFAULT)
    (x0, y0), (x1, y1) = plane.place(0.0, 0.0), plane.place(1.0, 1.0)
    flat = g.poles.reshape(-1, g.plant.n)
    at = [[[round(z.real, 4), round(z.imag, 4)] for z in poles if np.isfinite(z)] for poles in flat]
    place = {"x": [float(x0), float(x1 - x0)], "y": [float(y0), float(y1 - y0)], "mark": charts.MARKS["○"], "at": at}
    live = "".join(f"M{px(x)} {px(y)}{place['mark']}" for x, y in zip(*plane.place(usual.real, usual.imag)))
    return _picture(markup, live, "Poles of the sampled loop: ○ of the design chosen, × of the defaults"), place


def _picture(markup: str, live: str, label: str) -> str:
    """A picture whose last curve the script redraws."""
    look = {"class": f"lq-curve lq-c{_CHOSEN.colour} lq-live", "d": live}
    return svg.document(markup + svg.element("path", look), *_SIZE, label, bare=True)


def _markup(data: dict, scene: str, pictures: Iterable[str], usual: int, packed: str) -> str:
    """All of it as HTML; sliders are put into their places by the script."""
    style = f"<style>{svg.STYLE}{svg.stylesheet('design_page.css')}</style>"
    rows = "".join(
        f'<div class="lq-row"><span>{html.escape(row["label"])}</span><span class="lq-slot"></span>'
        f"<b>{html.escape(row['words'][row['at']])}</b></div>"
        for row in [*data["axes"], *filter(None, [data["scene"]])]
    )
    said = "".join(
        f"<div><span>{html.escape(row['label'])}</span> <b>{html.escape(row['words'][usual])}</b></div>"
        for row in data["words"]
    )
    note = "In a report, and in the file that save writes, sliders move this."
    return (
        f'{style}<div {MARK} data-designs="{packed}">'
        f'<div class="lq-top"><div class="lq-controls">{rows}</div>{scene}</div>'
        f'<div class="lq-said" role="status">{said}</div><div class="lq-charts">{"".join(pictures)}</div>'
        f'<p class="lq-note">{_NOTE} <span>{note}</span></p></div>'
    )
