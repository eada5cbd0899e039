"""A regulator's design as a card: its responses, cost, margins and poles, drawn and in words."""

import math

import numpy as np

from lqrlab import control
from lqrlab.simulation.verdict import Verdict
from lqrlab.workbench.figures import charts, demonstration, svg
from lqrlab.workbench.figures.axes import Axes, Rectangle
from lqrlab.workbench.figures.svg import DASHES, Stroke
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.regulator_design import Design, Setting, design

_WIDTH = 860.0


def picture(setting: Setting) -> svg.Picture:
    """Responses, effort, cost so far, margins and poles as one drawing, with the words above it."""
    found = design(setting)
    stable = np.abs(found.poles).max() < 1
    margins = control.margins(found.A, found.B, found.K, setting.dt) if stable else []
    plant, until = setting.plant, setting.ticks * setting.tick
    runs = {"optimal": found.best, "as built": found.built}
    signals, at = charts.channels(plant), (0, 0, _WIDTH)
    traces, bottom = charts.responses(signals, runs, at, columns=3, lead=1, named=True)
    poles = {"optimal": np.asarray(found.optimum.poles), "as built": found.poles}
    body = traces + _cost_so_far(found, (0, bottom + 6, 370, 200), until)
    body += _nyquist(found, margins, setting.dt, (390, bottom + 6, 225, 200))
    body += charts.pole_map((635, bottom + 6, 225, 200), poles)
    alt = (
        f"{plant.title}: states, inputs, cost so far, Nyquist curve and poles of the optimum on the linear model "
        f"and of the loop as built, sampled every {charts.duration(setting.dt)}"
    )
    return svg.Picture(svg.document(body, _WIDTH + 8, bottom + 214, alt), alt, words(setting, found, margins))


def _cost_so_far(found: Design, at: Rectangle, until: float) -> str:
    """Cost so far of both loops; the optimum as a line across."""
    curves = [
        (run.ts, np.concatenate([[0.0], np.cumsum(run.costs)]), stroke)
        for run, stroke in zip((found.best, found.built), svg.strokes(("optimal", "as built")).values())
    ]
    curves.append((np.array([0, until]), np.full(2, found.cost), Stroke(7, DASHES[2])))
    return charts.over_time(
        at, curves, "cost so far; dotted: x0ᵀP x0, the least there is", "1", until, lead=1
    )[0]


def _weakest(margins: list[control.Margins]) -> int:
    """The input with the smallest disk margin; the first where there are no margins."""
    return min(range(len(margins)), key=lambda i: margins[i].disk.alpha, default=0)


def _nyquist(found: Design, margins: list[control.Margins], dt: float, at: Rectangle) -> str:
    """The loop gain at the most sensitive input, the point −1, and how far the curve stays away from it."""
    i = _weakest(margins)
    w = np.pi / dt * np.append(np.geomspace(1e-4, 0.99, 299), 1.0)
    closed = np.asarray(control.sensitivity(found.A, found.B, found.K, w, dt))[:, i, i]
    with np.errstate(all="ignore"):
        L = 1 / closed - 1
    L = L[np.isfinite(L)]
    tall = 4.0 / Axes(at, (0, 1), (0, 1)).aspect
    axes = Axes(at, (-3.0, 1.0), (-tall / 2, tall / 2))
    body = axes.cross(0.0, 0.0) + axes.circle(0.0, 0.0, 1.0, DASHES[2])
    label = "Nyquist curve, Im L"
    if margins:
        body += axes.circle(-1.0, 0.0, margins[i].distance)
        label += f"; ring: {margins[i].distance:.2f} from −1"
    body += axes.curve(L.real, L.imag, Stroke(1))
    mark = axes.marks(np.array([-1.0]), np.array([0.0]), "+", Stroke(7))
    return axes.frame("Re L", label, body) + mark


# In words ----------------------------------------------------------------------------------------------------


def words(setting: Setting, found: Design, margins: list[control.Margins]) -> str:
    """What there is to say of a design: its cost against the optimum, modes, margins and effort."""
    s = setting
    lines = [_cost_words(s, found)]
    if (s.states != 1).any() or (s.inputs != 1).any():
        excess = _percent(_excess_in_plant_weights(s))
        lines.append(
            f"In the plant's own weights the gain costs {excess} their optimum, without delay and limits."
        )
    size = float(np.abs(found.poles).max())
    if margins:
        lasts = charts.duration(demonstration.time_constant(found.poles, s.dt))
        lines.append(f"<b>Poles.</b> Slowest mode |z| = {size:.4f}: time constant {lasts}.")
        worst = margins[_weakest(margins)]
        phase = "any phase" if math.isinf(worst.phase) else f"±{math.degrees(worst.phase):.0f}° of phase"
        at = "" if s.plant.m == 1 else " at its most sensitive input"
        lines.append(
            f"<b>Margins.</b> Stable{at} for a gain ×{worst.gain_down:.2g} … ×{worst.gain_up:.3g}, or {phase}; "
            f"disk margin {worst.disk.alpha:.2f}, least |1 + L| = {worst.distance:.2f}."
        )
    else:
        why = "; the delay that its gain ignores is too long" if s.delay and not s.known else ""
        lines.append(f"<b>Poles.</b> The loop is <b>unstable</b>: |z| = {size:.4f}{why}. It has no margins.")
    peaks = np.nanmax(np.abs(found.built.us), axis=0)
    effort = ", ".join(f"{i.name.replace('_', ' ')} {p:.3g} {i.unit}" for i, p in zip(s.plant.inputs, peaks))
    return "<br>".join([*lines, f"<b>Effort.</b> Largest {effort}."])


def _cost_words(setting: Setting, found: Design) -> str:
    s, paid = setting, float(np.sum(found.built.costs))
    cost = f"costs {paid:.4g}, <b>{_percent(paid / found.cost - 1)}</b> the optimum"
    match demonstration.outcome(s.plant, found.built):
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
        f"<b>Cost.</b> No controller of the linear plant pays less than {found.cost:.4g} from here. On the nonlinear "
        f"plant, {', '.join(conditions)}, this one {cost}."
    )


def _excess_in_plant_weights(setting: Setting) -> float:
    """How much more the gain costs than the optimum of the plant's own weights, from the same start; linear."""
    s = setting
    (A, B), (Q, R) = s.plant.matrices(), s.plant.weights()
    A_d, B_d, Q_d, R_d, N = control.discretize(A, B, Q, R, s.dt)
    least = control.dlqr(A_d, B_d, Q_d, R_d, N).P
    K = control.lqrd(A, B, *s.weights, s.dt).K
    P = control.dlyap((A_d - B_d @ K).T, control.stage_weight(Q_d, R_d, N, K))
    return float(s.x0 @ P @ s.x0) / float(s.x0 @ least @ s.x0) - 1


def _percent(share: float) -> str:
    """``3.1 % above``, in as many digits as mean anything."""
    if not math.isfinite(share):
        return "infinitely far above"
    if abs(share) < 5e-5:
        return "exactly" if abs(share) < 1e-9 else "within 0.01 % of"
    return f"{100 * abs(share):.2g} % {'above' if share > 0 else 'below'}"
