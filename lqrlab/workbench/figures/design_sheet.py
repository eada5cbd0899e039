"""A design on a sheet to mail or to print: what was chosen, the loop, its robustness, the plant, the code."""

import dataclasses
import html
import math

import numpy as np
from jaxtyping import Float

import lqrlab
from lqrlab import control, systems
from lqrlab.simulation import Problem
from lqrlab.workbench.figures import charts, loop_picture, svg
from lqrlab.workbench.figures.loop_design import OVERVIEW, STEP, LoopDesign, LoopSetting
from lqrlab.workbench.figures.plant_card import Table, card, html_table
from lqrlab.workbench.figures.svg import HtmlPage

VARIANTS, SPREAD = 200, 0.2
"""Plants that a design is tried on, and how far their parameters are from its own, relative."""


@dataclasses.dataclass(frozen=True)
class Robustness:
    """A design on plants with other parameters.

    Attributes:
        stable: how many of :data:`VARIANTS` it stabilises, with its delay.
        excess: cost above each variant's own optimum without delay and limits, relative, of a start that is as likely
            in all states as their scales say; inf where the loop is not stable.
    """

    stable: int
    excess: Float[np.ndarray, " variants"]


def robustness(s: LoopSetting, result: LoopDesign) -> Robustness | None:
    """The design on plants whose parameters lie within ±20 % and their ranges; None of a plant that has none."""
    if not any(f.metadata["vary"] for f in systems.parameter_fields(type(s.plant)).values()):
        return None
    uncertain = lqrlab.robust.UncertainPlant.of(s.plant, SPREAD)
    plants = uncertain.moved(np.random.default_rng(0).uniform(-1, 1, (uncertain.directions, VARIANTS)).T)
    problem, sizes = Problem.of(plants, dt=s.dt, linear=True), np.asarray(s.plant.scales[0]) ** 2
    A, B, Q, R, _ = problem.continuous  # type: ignore[misc]
    late = control.delayed(A, B, Q, R, s.dt, s.delay / s.sample)
    A, B = result.loop.on_plant(np.asarray(late.A), np.asarray(late.B))
    stable = np.abs(np.linalg.eigvals(A - B @ result.loop.K)).max(-1) < 1
    price, P = (np.diagonal(a, axis1=1, axis2=2) for a in (result.undelayed.price(problem.sampled), problem.P))
    return Robustness(int(stable.sum()), price @ sizes / (P @ sizes) - 1)


def sheet(s: LoopSetting, result: LoopDesign, name: str, code: str) -> HtmlPage:
    """The design called ``name`` on one page, which needs no other file; a browser prints it to PDF.

    Args:
        s, result: the setting and what was designed for it.
        name: of the design.
        code: lines that make it.
    """
    margins = result.loop.margins
    drawn = loop_picture.picture(dataclasses.replace(s, view=OVERVIEW), result)
    parts = [f"<p>{drawn.words}</p>", drawn.svg]
    try:
        parts.append(loop_picture.picture(dataclasses.replace(s, view=STEP), result).svg)
    except ValueError as error:  # no constant input holds this output
        parts.append(f"<p>{html.escape(str(error))}</p>")
    about = card(s.plant, equations=False)
    facts = about.facts | {"modes of the open loop": "; ".join(about.modes)}
    parts += [
        html_table("Weights", _weights(s)),
        html_table("Margins at each input", _margins(s, margins)) if margins else "",
        html_table("Poles of the loop", _poles(s, result)),
        f"<p>{_robustness_words(robustness(s, result))}</p>",
        f"<h3>Plant</h3><p>{html.escape(about.title)}.</p>",
        *(f"<p><b>{html.escape(label.capitalize())}.</b> {html.escape(words)}</p>" for label, words in facts.items()),
        *(html_table(caption, table) for caption, table in about.tables.items()),
        f"<h3>Code</h3><pre>{html.escape(code)}</pre>",
    ]
    style = f"<style>{svg.STYLE}{svg.stylesheet('design_sheet.css')}</style>"
    title = f"{name}: {s.controller.kind} of the {s.plant.name.replace('_', ' ')}"
    return HtmlPage(f'{style}<div class="lq-sheet">{"".join(parts)}</div>', drawn.alt, title)


def _weights(s: LoopSetting) -> Table:
    plain = (np.diagonal(np.asarray(W)) for W in s.plant.weights())
    rows = [
        (x.name.replace("_", " "), f"{own:.4g}", f"× {factor:.4g}", f"{own * factor:.4g}")
        for signals, factors, owns in zip((s.plant.states, s.plant.inputs), (s.states, s.inputs), plain)
        for x, factor, own in zip(signals, factors, owns)
    ]
    return ("of", "the plant's", "factor", "in this design"), rows


def _margins(s: LoopSetting, margins: list[control.Margins]) -> Table:
    def each(i: systems.Signal, m: control.Margins) -> tuple[str, ...]:
        late = "any" if math.isinf(m.delay_margin) else charts.duration(m.delay_margin)
        gain, phase = f"{m.gain_down:.2g}–{m.gain_up:.3g}", loop_picture.phase_words(m)
        return i.name.replace("_", " "), gain, phase, late, f"{m.disk.alpha:.2f}", f"{1 / m.modulus_margin:.2f}"

    head = ("input", "gain", "phase", "further delay", "disk α", "Ms")
    return head, [each(*pair) for pair in zip(s.plant.inputs, margins)]


def _poles(s: LoopSetting, result: LoopDesign) -> Table:
    rows = []
    for z in sorted(result.poles.astype(complex), key=abs, reverse=True):
        if z.imag < -1e-9:
            continue
        pair = f"{z.real:.4f} ± {z.imag:.4f}j" if z.imag > 1e-9 else f"{z.real:.4f}"
        pole = np.log(z) / s.dt if abs(z) > 1e-9 else complex(-math.inf)
        lasts = charts.duration(-1 / pole.real) if pole.real < 0 else "grows"
        rows.append((pair, f"{abs(z):.4f}", lasts, f"{-pole.real / abs(pole):.2f}" if z.imag > 1e-9 else "–"))
    return ("z", "|z|", "time constant", "damping"), rows


def _robustness_words(found: Robustness | None) -> str:
    if found is None:
        return "<b>Robustness.</b> The plant has no parameters to vary."
    middle, high = np.quantile(found.excess, (0.5, 0.95), method="higher")
    costs = ["∞" if math.isinf(a) else f"{charts.percent(100 * a)} %" for a in (middle, high)]
    return (
        f"<b>Robustness.</b> Of {VARIANTS} plants whose parameters lie within ±{100 * SPREAD:.0f} % the design "
        f"stabilises {found.stable}. It costs {costs[0]} above each one's own optimum (median; 95th percentile "
        f"{costs[1]}), without delay and limits, in the plant's weights."
    )
