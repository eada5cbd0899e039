"""The picture of a regulator and its loop as implemented, with the words above it; and all of it on a sheet."""

import dataclasses
import html
import math
from collections.abc import Mapping

import numpy as np

import lqrlab
from lqrlab import control, systems
from lqrlab.control.state_space import response_at
from lqrlab.simulation import Verdict
from lqrlab.workbench.figures import animation, charts, loop_design, svg
from lqrlab.workbench.figures.charts import Axes, Rectangle, above
from lqrlab.workbench.figures.loop_controllers import KINDS, SampledLoop
from lqrlab.workbench.figures.loop_design import LoopDesign, LoopSetting
from lqrlab.workbench.figures.plant_card import Table, card, html_table
from lqrlab.workbench.figures.svg import DASHES, HtmlPage, Stroke

_WIDTH = 860.0  # of the card [px]
_MOST_GAINS = 24  # entries of a gain that is written out
LOOPS = ("linear LQR", "implemented")
"""The two loops that are drawn: the optimum on the linear model, and its gain on the plant."""


@dataclasses.dataclass(frozen=True)
class LoopPicture(svg.Picture):
    """A picture, and where in it poles are placed: shares of its width and height as of a click plane, and axes."""

    frame: tuple[float, ...] = (2.0, 3.0, 2.0, 3.0)  # outside of the picture: nowhere
    plane: Axes | None = None


def picture(
    setting: LoopSetting, result: LoopDesign, pinned: Mapping[str, tuple[LoopSetting, LoopDesign]] | None = None
) -> svg.Picture:
    """Responses, effort, cost so far, margins and poles as one drawing, with the words above it.

    ``pinned`` are other designs of the same plant by name, whose loops as implemented are drawn beside it.
    """
    plant, said, pinned = setting.plant, words(setting, result), pinned or {}
    others = {name: found.built for name, (_, found) in pinned.items()}
    if setting.view == loop_design.STEP:
        drawn = lqrlab.tuning.figures.picture(setting, result)
        return dataclasses.replace(drawn, words=f"{drawn.words}<br>{said}")
    if setting.view == loop_design.MOVES:
        moved = animation.animation(plant, {"implemented": result.built} | others, width=_WIDTH)
        return dataclasses.replace(moved, words=said)
    said += "".join(f"<br>{_pinned_words(name, *both)}" for name, both in pinned.items())
    signals, runs = charts.channels(plant), {LOOPS[0]: result.best, LOOPS[1]: result.built} | others
    lead = 1 + (loop_design.outcome(plant, result.built) != Verdict.DIVERGED)
    traces, bottom = charts.responses(signals, runs, (0, 0, _WIDTH), columns=3, lead=lead, named=True)
    placed, tall = setting.controller.poles, 200.0
    lasts = 250 if placed else 370  # wide; poles are placed in a larger map
    body = traces + _cost_so_far(result, (0, bottom + 6, lasts, tall))
    body += _nyquist(result, (lasts + 20, bottom + 6, 225, tall))
    at, frame, plane = (lasts + 265, bottom + 6, 595 - lasts, tall), LoopPicture.frame, None
    if placed:
        drawn, plane = lqrlab.tuning.figures.placed_poles(at, setting, result)
        (left, right, top, down), size = plane.edges, (_WIDTH + 8, bottom + 214)
        body, frame = body + drawn, (left / size[0], right / size[0], top / size[1], down / size[1])
    else:
        body += charts.pole_map(at, dict(zip(LOOPS, (result.optimal_poles, result.poles))))
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as implemented, sampled every {charts.duration(setting.dt)}"
    )
    return LoopPicture(svg.document(body, _WIDTH + 8, bottom + 214, alt), alt, said, frame, plane)


def _pinned_words(name: str, s: LoopSetting, result: LoopDesign) -> str:
    """A pinned design in a line, its cost by the plant's own weights."""
    margins = result.loop.margins
    phase = f"phase margin {phase_words(margins[_weakest(margins)])}" if margins else "<b>unstable</b>"
    excess = above(result.in_plant_weights)
    said = f"{excess} the optimum in the plant's weights, {phase}, at most {_effort(s, result)}"
    return f"<i>{html.escape(name)}</i>: {said}."


def _effort(s: LoopSetting, result: LoopDesign) -> str:
    """The largest of each input, as HTML."""
    peaks = np.nanmax(np.abs(result.built.us), axis=0)
    return html.escape(", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks)))


def phase_words(margin: control.Margins) -> str:
    """A phase margin in degrees."""
    return "any" if math.isinf(margin.phase) else f"±{math.degrees(margin.phase):.0f}°"


def _cost_so_far(result: LoopDesign, at: Rectangle) -> str:
    """Cost so far of the loops; the optimum as a line across."""
    runs, ts = (result.best, result.built), result.best.ts
    looks = svg.strokes(LOOPS).values()
    with np.errstate(over="ignore", invalid="ignore"):  # a loop that diverges costs more than there are numbers
        so_far = [np.concatenate([[0.0], np.cumsum(run.costs)]) for run in runs]
    curves = [(ts, cost, look) for cost, look in zip(so_far, looks)]
    curves.append((ts[[0, -1]], np.full(2, result.cost), Stroke(7, DASHES[2])))
    title = "cost so far; dotted: x0ᵀP x0, the least there is"
    return charts.over_time(at, curves, title, "1", float(ts[-1]), lead=1)[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input with the smallest disk margin; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(result: LoopDesign, at: Rectangle) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    (A, B, K), margins = result.loop.opened, result.loop.margins
    i, z = _weakest(margins), np.exp(1j * np.pi * np.append(np.geomspace(1e-4, 0.99, 299), 1.0))
    with np.errstate(all="ignore"):
        L = 1 / (1 + response_at(A - B @ K, B, -K, z)[:, i, i]) - 1
    L = L[np.isfinite(L)]
    tall = 4.0 / Axes(at, (0, 1), (0, 1)).aspect
    axes = Axes(at, (-3.0, 1.0), (-tall / 2, tall / 2))
    body = axes.cross(0.0, 0.0) + axes.circle(0.0, 0.0, 1.0, DASHES[2])
    label = "Nyquist curve, Im L"
    if margins:
        body += axes.circle(-1.0, 0.0, margins[i].modulus_margin)
        label += f"; ring: {margins[i].modulus_margin:.2f} from −1"
    body += axes.curve(L.real, L.imag, Stroke(1))
    return axes.frame("Re L", label, body) + axes.marks(np.array([-1.0]), np.array([0.0]), "+", Stroke(7))


def words(s: LoopSetting, result: LoopDesign) -> str:
    """A design in words: its cost against the optimum, modes, margins and effort."""
    lines, margins, placed = [_cost_words(s, result)], result.loop.margins, ""
    if (s.states != 1).any() or (s.inputs != 1).any() or s.controller.kind != KINDS[0]:
        excess = above(result.in_plant_weights)
        lines.append(f"In the plant's weights it costs {excess} the optimum, without delay and limits.")
    if s.controller.poles:
        placed = lqrlab.tuning.figures.pole_words(s, result)
    size = float(np.abs(result.poles).max())
    if margins:
        lasts = charts.duration(control.settling_time(result.poles, s.dt, within=math.exp(-1)))
        lines.append(f"<b>Poles.</b> {placed}Slowest mode |z| = {size:.4f}: time constant {lasts}.")
        worst = margins[_weakest(margins)]
        at = "" if s.plant.m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Gain margin{at} {worst.gain_down:.2g}–{worst.gain_up:.3g}, phase margin "
            f"{phase_words(worst)}; disk margin {worst.disk.alpha:.2f}, modulus margin {worst.modulus_margin:.2f}."
        )
    else:
        why = "; the delay that its design ignores is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> {placed}The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    lines += [f"<b>Effort.</b> Largest {_effort(s, result)}.", f"<b>Weights.</b> {weight_words(s)}."]
    return "<br>".join([*lines, *_design_words(s, result.loop)])


def weight_words(s: LoopSetting) -> str:
    """The diagonals of Q and R with their units."""
    parts = []
    for name, W, signals in zip("QR", s.weights, (s.plant.states, s.plant.inputs)):
        units = (f"({x.unit})" if {*"/ ·"} & {*x.unit} else x.unit for x in signals)
        units = ("" if unit == "1" else f" /{unit}²" for unit in units)
        entries = (f"{x.name.replace('_', ' ')} {w:.3g}{unit}" for x, w, unit in zip(signals, np.diagonal(W), units))
        parts.append(f"{name}: {', '.join(entries)}")
    return html.escape("; ".join(parts))


def _design_words(s: LoopSetting, loop: SampledLoop) -> list[str]:
    """Gains, and of an estimator its slowest pole."""
    design, lines, gains = loop.design, [], {"K": loop.K}
    if isinstance(design, control.Integral):
        gains = {"K": np.asarray(design.K), "K<sub>i</sub>": np.asarray(design.Ki)}
    if isinstance(design, control.LQG):
        gains = {"K": np.asarray(design.regulator.K), "L": np.asarray(design.estimator.L)}
        lines.append(f"<b>Estimator.</b> Slowest mode |z| = {np.abs(np.asarray(design.estimator.poles)).max():.4f}.")
    if all(gain.size <= _MOST_GAINS for gain in gains.values()):
        said = "; ".join(f"{name} = {_matrix(gain)}" for name, gain in gains.items())
        lines.append(f"<b>{'Gains' if len(gains) > 1 else 'Gain'}.</b> {said}.")
    return lines


def _matrix(a: np.ndarray) -> str:
    return f"[{'; '.join(', '.join(f'{x + 0.0:.4g}' for x in row) for row in a)}]"


def _cost_words(s: LoopSetting, result: LoopDesign) -> str:
    if s.load:
        return _load_words(s, result)
    paid = float(np.sum(result.built.costs))
    cost = f"{paid:.4g}, <b>{above(paid / result.cost - 1)}</b> the optimum"
    match loop_design.outcome(s.plant, result.built):
        case Verdict.DIVERGED:
            cost = "<b>diverges</b>"
        case Verdict.BOUNDED:
            cost += " so far; it stays <b>bounded</b>, but does not converge"
    conditions = [
        *([] if s.controller.kind == KINDS[0] else [s.controller.kind]),
        f"sampled every {charts.duration(s.dt)}",
    ]
    if s.delay:
        aware = "which its design knows" if s.known else "which its design ignores"
        late = s.delay / s.sample
        conditions.append(f"its input {late:g} sample{'s' * (late != 1)} late, {aware}")
    if s.limit < loop_design.FREE:
        conditions.append(loop_design.limit_words(s.limit, s.plant))
    return f"<b>Cost.</b> Linear optimum {result.cost:.4g}. Nonlinear, {', '.join(conditions)}: {cost}."


def _load_words(s: LoopSetting, result: LoopDesign) -> str:
    """The ends of the outputs under a constant load, which has no finite cost."""
    unit, scale = loop_design.input_unit(s.plant)
    under = f"<b>Load.</b> Under a load of {s.load * scale:.3g} {html.escape(unit)} at the inputs the"
    ends = np.asarray(s.plant.output_matrix()) @ result.built.xs[-1]
    if loop_design.outcome(s.plant, result.built) == Verdict.DIVERGED:
        return f"{under} loop <b>diverges</b>."
    ended = ", ".join(
        f"{o.name.replace('_', ' ')} {'0' if abs(y) < 1e-3 * o.scale else f'{y:.3g}'} {o.unit}".removesuffix(" 1")
        for o, y in zip(s.plant.outputs, ends)
    )
    return f"{under} outputs end at {html.escape(ended)}."


# On a sheet to mail or to print ----------------------------------------------------------------------------


def sheet(s: LoopSetting, result: LoopDesign, name: str, code: str) -> HtmlPage:
    """The design called ``name``, which the lines of ``code`` make, on one page that a browser prints to PDF."""
    drawn = picture(dataclasses.replace(s, view=loop_design.OVERVIEW), result)
    parts = [f"<p>{drawn.words}</p>", drawn.svg]
    try:
        parts.append(picture(dataclasses.replace(s, view=loop_design.STEP), result).svg)
    except ValueError as error:  # no constant input holds this output
        parts.append(f"<p>{html.escape(str(error))}</p>")
    about = card(s.plant, equations=False)
    facts = about.facts | {"modes of the open loop": "; ".join(about.modes)}
    parts += [
        html_table("Weights", _weights(s)),
        html_table("Margins at each input", _margins(s, result)) if result.loop.margins else "",
        html_table("Poles of the loop", _poles(s, result)),
        f"<h3>Plant</h3><p>{html.escape(about.title)}.</p>",
        *(f"<p><b>{html.escape(label.capitalize())}.</b> {html.escape(words)}</p>" for label, words in facts.items()),
        *(html_table(caption, table) for caption, table in about.tables.items()),
        f"<h3>Code</h3><pre>{html.escape(code)}</pre>",
    ]
    style = f"<style>{svg.STYLE}{svg.stylesheet('design_sheet.css')}</style>"
    title = f"{name}: {s.controller.kind} of the {s.plant.name.replace('_', ' ')}"
    return HtmlPage(f'{style}<div class="lq-sheet">{"".join(parts)}</div>', drawn.alt, title)


def _weights(s: LoopSetting) -> Table:
    own = [float(w) for W in s.plant.weights() for w in np.diagonal(np.asarray(W))]
    rows = [
        (x.name.replace("_", " "), f"{w:.4g}", f"× {factor:.4g}", f"{w * factor:.4g}")
        for x, w, factor in zip((*s.plant.states, *s.plant.inputs), own, (*s.states, *s.inputs))
    ]
    return ("of", "the plant's", "factor", "in this design"), rows


def _margins(s: LoopSetting, result: LoopDesign) -> Table:
    def each(i: systems.Signal, m: control.Margins) -> tuple[str, ...]:
        late = "any" if math.isinf(m.delay_margin) else charts.duration(m.delay_margin)
        gain, phase = f"{m.gain_down:.2g}–{m.gain_up:.3g}", phase_words(m)
        return i.name.replace("_", " "), gain, phase, late, f"{m.disk.alpha:.2f}", f"{1 / m.modulus_margin:.2f}"

    head = ("input", "gain", "phase", "further delay", "disk α", "Ms")
    return head, [each(*pair) for pair in zip(s.plant.inputs, result.loop.margins)]


def _poles(s: LoopSetting, result: LoopDesign) -> Table:
    rows = []
    for mode in control.modes(result.loop.closed, s.dt):
        z = np.exp(mode.pole * s.dt)
        pair = z.imag > 1e-9
        written = f"{z.real:.4f} ± {z.imag:.4f}j" if pair else f"{z.real:.4f}"
        lasts = charts.duration(mode.time_constant) if mode.time_constant >= 0 else "grows"
        rows.append((written, f"{abs(z):.4f}", lasts, f"{mode.damping:.2f}" if pair else "–"))
    return ("z", "|z|", "time constant", "damping"), rows
