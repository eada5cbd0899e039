"""Pictures and words of shaped loops: Bode plot, root locus, sensitivities, Nyquist curve, step."""

import html
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Complex, Float

from lqrlab.extensions.classical.shaped_loop import LoopRequirements, ShapedLoop
from lqrlab.workbench.figures import charts, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.svg import Picture, Stroke

SIDE, _WIDTH = 330.0, 560.0  # widths of Bode plot and root locus, and of the charts beside them [px]
BODE, LOCUS = 276.0, 172.0  # heights of the first two [px]; a laptop's screen has to hold all
_TALL = 172.0  # of the gain in it; the phase stands below [px]
_DECADES = 3.0, 1.5  # of the loop gain that are shown above and below one
_FACTORS = np.geomspace(1e-2, 1e2, 161)  # of the gain, along the root locus


def words(loop: ShapedLoop, wanted: LoopRequirements) -> str:
    """Margins, cost and broken requirements."""
    broken = " ".join(f"<b>{html.escape(said)}</b>" for said in loop.broken(wanted))
    if not loop.stable:
        return f"{broken} Change the gain, or move the lead to where the loop gain passes one."
    m = loop.margins
    return (
        f"Gain margin {m.gain_down:.2g}–{m.gain_up:.3g}, phase margin ±{math.degrees(m.phase):.3g}°, Ms "
        f"{1 / m.modulus_margin:.3g}, delay margin {charts.duration(m.delay_margin)}. "
        f"Cost <b>{loop.cost:.3g} times</b> the optimum of a regulator that sees all states."
        f"<br>{broken or 'All requirements are kept.'}"
    )


def _beside(name: str, loop: ShapedLoop) -> str:
    """A stored design in a line."""
    if not loop.stable:
        return f"<br>{html.escape(name)}: not stable"
    m = loop.margins
    return (
        f"<br>{html.escape(name)}: Ms {1 / m.modulus_margin:.3g}, phase margin ±{math.degrees(m.phase):.3g}°, "
        f"cost {loop.cost:.3g} times the optimum"
    )


def bode_plane(w: tuple[float, float]) -> Axes:
    """The plane of frequency, from one to another [rad/s], and loop gain, both as log10."""
    return Axes((0.0, 0.0, SIDE, _TALL), (math.log10(w[0]), math.log10(w[1])), (-_DECADES[1], _DECADES[0]), logs="xy")


def bode(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements, corners: Sequence[tuple[float, str]] = ()) -> str:
    """The loop gains' size and phase over frequency, with where the size is to be above one.

    ``corners`` are frequencies [rad/s] of the newest loop with a mark, ○ or ×, that can be taken hold of.
    """
    newest = next(iter(loops.values()))
    alt = f"{newest.plant.name}: size and phase of the loop gain over frequency"
    axes, looks = bode_plane(newest.channel.span), svg.strokes(loops)
    phases = Axes((0.0, _TALL, SIDE, BODE - _TALL), axes.x, (-360.0, 0.0), at_y=(-360.0, -180.0, 0.0), logs="x")
    body, below = axes.cross(axes.x[0], 0.0), phases.cross(axes.x[0], -180.0)
    if wanted.crossover:
        body += axes.region((axes.x[0], math.log10(wanted.crossover)), (axes.y[0], 0.0))
    for name, loop in loops.items():
        x = np.log10(loop.frequencies)
        body += axes.curve(x, np.log10(np.abs(loop.gain) + 1e-300), looks[name])
        below += phases.curve(x, loop.phase, looks[name])
    for w, level, phase, said in _margins(newest):
        x, of_gain = math.log10(w), said.startswith("GM")
        plane, ends = (axes, (level, 0.0)) if of_gain else (phases, (phase, -180.0))
        at, up = (float(a) for a in plane.place(x, ends[1]))
        drawn = plane.curve(np.full(2, x), np.array(ends), Stroke(1, "3 2"))
        up += -5 if ends[0] < ends[1] else 13
        drawn += svg.text(min(at, SIDE - 44), up, said, look="lq-b", anchor="middle")
        body, below = (body + drawn, below) if of_gain else (body, below + drawn)
    for at, mark in corners:
        level = float(np.clip(math.log10(abs(newest.gain_at(at)) + 1e-300), *axes.y))
        body += axes.marks(np.array([math.log10(at)]), np.array([level]), mark, next(iter(looks.values())))
    drawn = axes.frame("", "loop gain |L|", body)
    drawn += phases.frame("frequency [rad/s]", "phase of L [°]", below)
    return svg.document(drawn, SIDE, BODE, alt)


def _margins(loop: ShapedLoop) -> list[tuple[float, float, float, str]]:
    """Margins of a loop: ω [rad/s], log10 of the loop gain there, its phase [°], words."""
    if not loop.stable:
        return []
    (ones, turned), found = loop.crossings, []
    sizes = {w: abs(loop.gain_at(w)) for w in turned}
    for side in (-1, 1):  # the nearest on either side of one
        there = [w for w in turned if side * math.log(sizes[w]) > 0]
        if there:
            w = min(there, key=lambda w: abs(math.log(sizes[w])))
            found.append((w, math.log10(sizes[w]), -180.0, f"GM {1 / sizes[w]:.3g}"))
    away = {w: math.degrees(np.angle(-loop.gain_at(w))) for w in ones}
    if away:
        w = min(away, key=lambda w: abs(away[w]))
        phase = float(np.interp(math.log(w), np.log(loop.frequencies), loop.phase))
        found.append((w, 0.0, phase, f"PM {away[w]:.3g}°"))
    return found


def locus_plane(far: float) -> Axes:
    """The s-plane about the origin, so far up and down [rad/s]."""
    at = (0.0, 0.0, SIDE, LOCUS)
    across = far * Axes(at, (0.0, 1.0), (0.0, 1.0)).aspect
    return Axes(at, (-1.4 * across, 0.6 * across), (-far, far))


def locus(loops: Mapping[str, ShapedLoop], far: float, roots: Sequence[tuple[complex, str]] = ()) -> str:
    """Poles of the newest loop for gains a hundredth to a hundred times as large; those of all loops as they are now.

    ``roots`` are the compensator's, with a mark, ○ or ×, that can be taken hold of.
    """
    newest, looks, axes = next(iter(loops.values())), svg.strokes(loops), locus_plane(far)
    alt = f"{newest.plant.name}: root locus, and the poles of the loop"
    look = next(iter(looks.values()))
    body = _root_locus(axes, newest, Stroke(3))
    for s, mark in roots:
        body += axes.marks(*_split(np.unique([s, s.conjugate()])), mark, look)
    for name, loop in loops.items():
        body += axes.marks(*_split(loop.locus(np.ones(1))[0]), "+", looks[name])
    return svg.document(axes.frame("Re s [rad/s]", "root locus, Im s [rad/s]; poles now +", body), SIDE, LOCUS, alt)


def picture(loops: Mapping[str, ShapedLoop], wanted: LoopRequirements) -> Picture:
    """Sensitivities, Nyquist curve and step of loops by name, the newest first, with words on that."""
    newest, looks = next(iter(loops.values())), svg.strokes(loops)
    wide, tall, logs = (_WIDTH - 10) / 2, 210.0, np.log10(newest.frequencies)
    places = [(0.0, 18.0, wide, tall), (wide + 10, 18.0, wide, tall), (0.0, tall + 24, _WIDTH, tall)]
    sensitive = Axes(places[0], (logs[0], logs[-1]), (-2.0, 1.0), logs="xy")
    nyquist = Axes(places[1], (-1 - 2 * sensitive.aspect, -1 + 2 * sensitive.aspect), (-2.0, 2.0))
    forbidden = nyquist.circle(-1.0, 0.0, 1 / wanted.ms).replace('class="lq-axis"', 'class="lq-forbidden"')
    bodies = [sensitive.region(sensitive.x, (math.log10(wanted.ms), sensitive.y[1])), forbidden]
    bodies[1] += nyquist.cross(-1.0, 0.0) + nyquist.circle(0.0, 0.0, 1.0, "2 3")
    steps = []
    for name, loop in loops.items():
        L, x, look = loop.gain, np.log10(loop.frequencies), looks[name]
        S, T = loop.sensitivities
        bodies[0] += sensitive.curve(x, np.log10(np.abs(S)), look)
        bodies[0] += sensitive.curve(x, np.log10(np.abs(T)), Stroke(look.colour, "2 3"))
        near = np.abs(L) < 50
        bodies[1] += nyquist.curve(L.real[near], L.imag[near], look)
        steps.append((*loop.step(), look))
    for w, _, _, said in _margins(newest):
        at = newest.gain_at(w)
        if said.startswith("PM"):  # the angle from −1, along a ray
            bodies[1] += nyquist.curve(np.array([0.0, at.real]), np.array([0.0, at.imag]), Stroke(1, "3 2"))
        bodies[1] += nyquist.marks(np.array([at.real]), np.array([at.imag]), "+", Stroke(1))
        (x, y), under = nyquist.place(at.real, at.imag), at.imag < -0.01 or at.real < -1
        bodies[1] += svg.text(float(x) + 5, float(y) + (14 if under else -5), said, look="lq-b")
    drawn = [
        sensitive.frame("frequency [rad/s]", "|S|, and |T| (dotted)", bodies[0]),
        nyquist.frame("Re L", "Nyquist curve, Im L", bodies[1]),
        charts.over_time(places[2], steps, "output: reference, then load", "1", float(steps[0][0][-1]))[0],
    ]
    alt = f"{newest.plant.name}: sensitivities, Nyquist curve and step response of a loop shaped by hand"
    height = places[2][1] + tall + 4
    body = svg.legend(2, 12, looks) + "".join(drawn)
    said = words(newest, wanted) + "".join(_beside(name, loop) for name, loop in list(loops.items())[1:])
    return Picture(svg.document(body, _WIDTH, height, alt), alt, said)


def _root_locus(axes: Axes, loop: ShapedLoop, look: Stroke) -> str:
    """Poles for gains a hundredth to a hundred times as large, with the open loop's poles (×) and zeros (○)."""
    (left, right, top, bottom), (x, y) = axes.edges, axes.place(*_split(loop.locus(_FACTORS).ravel()))
    seen = (x > left) & (x < right) & (y > top) & (y < bottom)
    dots = "".join(f"M{svg.px(a)} {svg.px(b)}h.01" for a, b in zip(x[seen], y[seen]))
    body = axes.cross(0.0, 0.0)
    body += svg.element("path", {"class": "lq-soft", "d": dots, "stroke-width": "2", "stroke-linecap": "round"})
    body += axes.marks(*_split(loop.locus(np.zeros(1))[0]), "×", look)
    return body + axes.marks(*_split(loop.zeros), "○", look)


def _split(s: Complex[np.ndarray, " k"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    return s.real, s.imag
