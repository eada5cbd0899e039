"""The picture of a sampled regulator and its loop as built, with the words above it."""

import html
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import control
from lqrlab.simulation import Problem, Verdict
from lqrlab.workbench.figures import charts, example_loop, svg
from lqrlab.workbench.figures.charts import Axes, Rectangle
from lqrlab.workbench.figures.svg import DASHES, Stroke
from lqrlab.workbench.panels import controls, loop_views
from lqrlab.workbench.panels.loop_design import OVERVIEW, LoopDesign, LoopSetting, design

_WIDTH = 860.0  # of the card [px]


def picture(setting: LoopSetting) -> svg.Picture:
    """Responses, effort, cost so far, margins and poles as one drawing, with the words above it."""
    result = design(setting)
    stable = np.abs(result.poles).max() < 1
    margins = control.margins(result.A, result.B, result.K, setting.dt) if stable else []
    plant = setting.plant
    if setting.view != OVERVIEW:
        alt = f"{plant.title}: {setting.view} of the loop, sampled every {charts.duration(setting.dt)}"
        return svg.Picture(loop_views.drawn(setting, result, alt), alt, words(setting, result, margins))
    runs = {"optimal": result.best, "as built": result.built}
    signals, at = charts.channels(plant), (0, 0, _WIDTH)
    traces, bottom = charts.responses(signals, runs, at, columns=3, lead=1, named=True)
    optimal = np.linalg.eigvals(np.asarray(result.problem.closed_loop()))
    poles = {"optimal": optimal, "as built": result.poles}
    body = traces + _cost_so_far(result, (0, bottom + 6, 370, 200))
    body += _nyquist(result, margins, setting.dt, (390, bottom + 6, 225, 200))
    body += charts.pole_map((635, bottom + 6, 225, 200), poles)
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as built, sampled every {charts.duration(setting.dt)}"
    )
    drawing = svg.document(body, _WIDTH + 8, bottom + 214, alt)
    return svg.Picture(drawing, alt, words(setting, result, margins))


def _cost_so_far(result: LoopDesign, at: Rectangle) -> str:
    """Cost so far of both loops; the optimum as a line across."""
    runs, looks, ts = (
        (result.best, result.built),
        svg.strokes(("optimal", "as built")).values(),
        result.best.ts,
    )
    curves = [(ts, np.concatenate([[0.0], np.cumsum(run.costs)]), look) for run, look in zip(runs, looks)]
    curves.append((ts[[0, -1]], np.full(2, result.cost), Stroke(7, DASHES[2])))
    title = "cost so far; dotted: x0ᵀP x0, the least there is"
    return charts.over_time(at, curves, title, "1", float(ts[-1]), lead=1)[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input with the smallest disk margin; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(result: LoopDesign, margins: list[control.Margins], dt: float, at: Rectangle) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    i = _weakest(margins)
    w = np.pi / dt * np.append(np.geomspace(1e-4, 0.99, 299), 1.0)
    closed = np.asarray(control.sensitivity(result.A, result.B, result.K, w, dt))[:, i, i]
    with np.errstate(all="ignore"):
        L = 1 / closed - 1
    L = L[np.isfinite(L)]
    tall = 4.0 / Axes(at, (0, 1), (0, 1)).aspect
    axes = Axes(at, (-3.0, 1.0), (-tall / 2, tall / 2))
    body = axes.cross(0.0, 0.0) + axes.circle(0.0, 0.0, 1.0, DASHES[2])
    label = "Nyquist curve, Im L"
    if margins:
        body += axes.circle(-1.0, 0.0, margins[i].modulus_margin)
        label += f"; ring: {margins[i].modulus_margin:.2f} from −1"
    body += axes.curve(L.real, L.imag, Stroke(1))
    mark = axes.marks(np.array([-1.0]), np.array([0.0]), "+", Stroke(7))
    return axes.frame("Re L", label, body) + mark


def words(s: LoopSetting, result: LoopDesign, margins: list[control.Margins]) -> str:
    """What there is to say of a design: its cost against the optimum, modes, margins and effort."""
    lines = [_cost_words(s, result)]
    if (s.states != 1).any() or (s.inputs != 1).any():
        excess = _percent(_excess_in_plant_weights(s, result.problem.K))
        lines.append(f"In the plant's weights the gain costs {excess} the optimum, without delay and limits.")
    size = float(np.abs(result.poles).max())
    if margins:
        lasts = charts.duration(example_loop.time_constant(result.poles, s.dt))
        lines.append(f"<b>Poles.</b> Slowest mode |z| = {size:.4f}: time constant {lasts}.")
        worst = margins[_weakest(margins)]
        phase = "any phase" if math.isinf(worst.phase) else f"±{math.degrees(worst.phase):.0f}° of phase"
        at = "" if s.plant.m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Stable{at} for a gain ×{worst.gain_down:.2g} … ×{worst.gain_up:.3g}, or {phase}; "
            f"disk margin {worst.disk.alpha:.2f}, least |1 + L| = {worst.modulus_margin:.2f}."
        )
    else:
        why = "; the delay that its gain ignores is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    peaks = np.nanmax(np.abs(result.built.us), axis=0)
    effort = ", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks))
    return "<br>".join([*lines, f"<b>Effort.</b> Largest {html.escape(effort)}."])


def _cost_words(s: LoopSetting, result: LoopDesign) -> str:
    paid = float(np.sum(result.built.costs))
    cost = f"costs {paid:.4g}, <b>{_percent(paid / result.cost - 1)}</b> the optimum"
    match example_loop.outcome(s.plant, result.built):
        case Verdict.DIVERGED:
            cost = "<b>diverges</b>"
        case Verdict.BOUNDED:
            cost += " so far; it stays <b>bounded</b>, but does not converge"
    conditions = [f"sampled every {charts.duration(s.dt)}"]
    if s.delay:
        aware = "which its gain knows" if s.known else "which its gain ignores"
        conditions.append(f"its input {s.delay / s.sample:g} samples late, {aware}")
    if s.limit < controls.FREE:
        conditions.append(controls.limit_words(s.limit))
    return (
        f"<b>Cost.</b> No controller of the linear plant pays less than {result.cost:.4g} from here. On the nonlinear "
        f"plant, {', '.join(conditions)}, this one {cost}."
    )


def _excess_in_plant_weights(s: LoopSetting, K: Float[Array, "m n"]) -> float:
    """How much more the gain costs than the optimum of the plant's own weights, from the same start; linear."""
    problem = Problem.of(s.plant, dt=s.dt, linear=True)
    P = control.dlyap(problem.closed_loop(K).T, problem.stage_weight(K))
    return float(s.x0 @ P @ s.x0 / problem.optimal_cost(jnp.asarray(s.x0))) - 1


def _percent(share: float) -> str:
    """``3.1 % above``, in as many digits as mean anything."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{100 * abs(share):.2g} % {'above' if share > 0 else 'below'}"
