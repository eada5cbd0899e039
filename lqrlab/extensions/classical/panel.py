"""The loop shaper: gain, lead, integral action, roll-off and notch of a compensator, and what becomes of its loop."""

import dataclasses
import html
import itertools
import math
from collections.abc import Mapping
from typing import Any

import ipywidgets
import numpy as np

from lqrlab import control
from lqrlab.extensions import classical
from lqrlab.extensions.classical import loop_pictures
from lqrlab.extensions.classical.channels import revealing_output
from lqrlab.extensions.classical.shaped_loop import LoopRequirements, ShapedLoop
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import loop_design, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.controls import ClickPlane
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel, literal

_MOST = 4  # designs on top of one another
_NEAR = 0.06  # of the plot's width, within which a corner is taken hold of
_APART = 1.02  # a lead's pole over its zero, at least
_ZOOM = 3.0  # factor by which the root locus may be too near or too far before it is drawn at another scale
_ALONG = np.geomspace(1e-2, 1e2, 1601)  # factors of the gain that a click on the root locus looks at
_RULES = {"SIMC": "simc", "AMIGO": "amigo", "Ziegler–Nichols": "ziegler_nichols", "most integral gain": "max_ki"}
_RULES |= {"least cost": "optimal"}
_BEGINNINGS = (1.0, 1.6, 2.5, 0.5), (55.0, 65.0, 75.0), (0.1, 0.3, 0.03)
"""Loops to begin with: crossover over the optimum's, lead [°], end of integral action over the crossover."""
_FOLLOWS = 0.1  # how far from a step of the reference the output may end
_WIDTH = 0.5  # damping of a notch's poles
_NOW = "this design"


def loop_shaper(
    plant: str | Plant, *, output: int | None = None, values: Mapping[str, Any] | None = None
) -> "LoopShaper | Picture":
    """Panel to shape a loop by hand, from one measured output of a plant with one input; the picture without a person.

    The compensator is a gain with a lead, integral action, roll-off and a notch. Its zeros (○) and poles (×) are
    dragged in the Bode plot and the root locus; all else of the curve is the gain, or moves a pole along its branch.
    The cost stands beside that of the LQR, which sees all states and knows the dead time. ``output`` is the measured
    one; the first that sees all undamped modes if left out. ``values``: as *copy as code* writes them.
    """
    return LoopShaper(plant, output).at(values)


Question = tuple[ShapedLoop, LoopRequirements, list[tuple[float, str]], str, tuple[float, list[tuple[complex, str]]]]
"""Loop, what is wanted of it, what can be held in it, the rule of the PID beside it; scale and roots of the locus."""


class LoopShaper(Panel[Question, tuple[str, str, Picture]]):
    """The panel; its controls are attributes; ``plane`` and ``roots`` are dragged in, ``pinned`` stand beside it."""

    moving, slim = ("gain", "lead", "integral"), loop_pictures.SIDE / (loop_pictures.BODE + loop_pictures.LOCUS)
    does = "its gain, zeros and poles are dragged in the Bode plot and the root locus, its requirements are regions"

    def __init__(self, plant: str | Plant, output: int | None = None) -> None:
        self._plant = one = loop_design.one_plant(plant)
        if one.m != 1:
            raise ValueError(f"plant: expected one input, but {one.name} has {one.m}: a loop is shaped one at a time")
        A, C = (np.asarray(a) for a in (one.matrices()[0], one.output_matrix()))
        at = revealing_output(A, C) if output is None else output
        if not isinstance(at, int) or not 0 <= at < len(one.outputs):
            raise ValueError(f"output: expected a number from 0 to {len(one.outputs) - 1}, but found {output!r}")
        self._rules: dict[tuple[str, int, float], ShapedLoop] = {}
        self.output = ipywidgets.Dropdown(
            options=[(o.name.replace("_", " "), i) for i, o in enumerate(one.outputs)],
            value=at, description="measured output", **controls.WIDE,
        )  # fmt: skip
        # where the optimum's loop is about as fast
        poles = np.asarray(control.lqrd(*one.matrices(), *one.weights(), one.dt).poles)
        speed = np.median(np.abs(np.log(np.maximum(np.abs(poles), 1e-6)))) / float(one.dt)
        nyquist, grows = np.pi / float(one.dt), np.linalg.eigvals(A).real.max()
        middle = float(np.clip(max(speed, 2 * grows), nyquist / 1e3, nyquist / 8))
        low, high = math.log10(middle) - 2, math.log10(nyquist)
        self.lead = controls.slider("lead [°]", 55.0, 0.0, 80.0)
        self.at_lead = controls.log_slider("lead at [rad/s]", middle, low, high)
        self.integral = controls.log_slider("integral below [rad/s]", 10**low, low, high)
        self.roll_off = controls.log_slider("roll-off above [rad/s]", 10**high, low, high)
        self.notch = controls.slider("notch depth [dB]", 0.0, 0.0, 40.0)
        self.at_notch = controls.log_slider("notch at [rad/s]", middle, low, high)
        self.dead_time = controls.slider("dead time [s]", 0.0, 0.0, float(f"{2 / middle:.1g}"))
        crossing = -20 * math.log10(abs(self._loop(0.0).gain_at(middle)) or 1.0)
        self.gain = controls.slider("gain [dB]", crossing, -80.0, 80.0)
        self.ms = controls.slider("largest Ms", 2.0, 1.1, 4.0)
        self.phase = controls.slider("least phase margin [°]", 30.0, 0.0, 80.0)
        self.crossover = controls.slider("crossover from [rad/s]", 0.0, 0.0, round(10 * middle, 2))
        self._begin(middle)
        self.rule = ipywidgets.Dropdown(
            options=[("none", ""), *zip(_RULES, _RULES)], description="compare with a PID", **controls.WIDE
        )
        self._held: str | None = None
        self.plane = ClickPlane(frame=_shares(self._axes(), loop_pictures.BODE))
        self._far = self._loop().reach
        self.roots = ClickPlane(frame=_shares(loop_pictures.locus_plane(self._far), loop_pictures.LOCUS))
        titles = {
            "compensator": ("gain", "lead", "at_lead", "integral", "roll_off"),
            "notch": ("notch", "at_notch"),
            "plant": ("output", "dead_time", "rule"),
            "requirements": ("ms", "phase", "crossover"),
        }
        pages = {title: {name: getattr(self, name) for name in names} for title, names in titles.items()}
        super().__init__(
            [controls.tabs({title: list(page.values()) for title, page in pages.items()})],
            beside=[ipywidgets.HTML("Drag the loop gain, a zero ○ or a pole ×:"), self.plane, self.roots],
            tools=self.pinning(lambda: ("", self._loop()), lambda: _MOST - 1 - bool(self.rule.value)),
            call=("loop_shaper", {"plant": plant, "output": output}),
        )
        acts = {"start": self._taken, "point": self._dragged}, {"start": self._root_taken, "point": self._root_dragged}
        for plane, named in zip((self.plane, self.roots), acts):
            for name, act in named.items():
                plane.observe(lambda _, act=act: self._guarded(act)(), names=name)
        self.track(**{name: control for page in pages.values() for name, control in page.items()})
        self.ask()

    def _begin(self, middle: float) -> None:
        """Move lead, integral action and gain to a loop that keeps the requirements and follows its reference."""
        moved = (self.lead, self.at_lead, self.integral, self.gain)
        kept, wanted = [slider.value for slider in moved], LoopRequirements(self.ms.value, self.phase.value)
        keeps = not self._loop().broken(wanted)
        for factor, lead, below in itertools.product(*_BEGINNINGS):
            self.lead.value = lead
            self.at_lead.value = factor * middle
            self.integral.value = below * self.at_lead.value
            self.gain.value -= 20 * math.log10(abs(self._loop().gain_at(self.at_lead.value)) or 1.0)
            loop = self._loop()
            if loop.broken(wanted):
                continue
            if abs(np.array_split(loop.step()[1], 2)[0][-1] - 1) < _FOLLOWS:
                break
            if not keeps:
                keeps, kept = True, [slider.value for slider in moved]
        else:
            for slider, value in zip(moved, kept):
                slider.value = value
        for slider in moved:
            controls.on_grid(slider)

    def _compensator(self, decibels: float | None = None) -> classical.Compensator:
        """The compensator of the controls, or one of another gain; what is at its end (as no roll-off) is left out."""
        zeros, poles, gain = [], [], 10 ** ((self.gain.value if decibels is None else decibels) / 20)
        if self.lead.value:
            ratio, at = _lead_ratio(self.lead.value), self.at_lead.value
            zeros, poles, gain = [-at / ratio], [-at * ratio], gain * ratio
        if self.integral.value > self.integral.base**self.integral.min * 1.001:
            zeros, poles = [*zeros, -self.integral.value], [*poles, 0.0]
        if self.roll_off.value < self.roll_off.base**self.roll_off.max / 1.001:
            poles, gain = [*poles, -self.roll_off.value], gain * self.roll_off.value
        if self.notch.value:
            at = self.at_notch.value
            for roots, damping in ((zeros, _WIDTH * 10 ** (-self.notch.value / 20)), (poles, _WIDTH)):
                part = complex(-damping, math.sqrt(1 - damping**2)) * at
                roots += [part, part.conjugate()]
        C = np.asarray(self._plant.output_matrix())[[self.output.value]]
        channel = ShapedLoop(self._plant, classical.Compensator(C)).channel
        try:  # the direction in which the output goes: in the end, of an unstable plant at first
            sign = float(np.sign(channel.transfer()[0])) if channel.unstable else channel.sign()
        except ValueError:  # it does not react
            sign = 1.0
        return classical.Compensator(C, sign * gain, zeros, poles)

    def _loop(self, decibels: float | None = None) -> ShapedLoop:
        return ShapedLoop(self._plant, self._compensator(decibels), self.dead_time.value)

    def _axes(self) -> Axes:
        return loop_pictures.bode_plane(self._loop().channel.span)

    def _corners(self) -> dict[str, tuple[float, str]]:
        """Roots of the compensator that can be taken hold of, by control: frequency [rad/s] and mark."""
        found = {
            "integral": (self.integral.value, "○"),
            "roll_off": (self.roll_off.value, "×"),
            "at_notch": (self.at_notch.value, "○"),
        }
        if self.lead.value:
            ratio = _lead_ratio(self.lead.value)
            found |= {"zero": (self.at_lead.value / ratio, "○"), "pole": (self.at_lead.value * ratio, "×")}
        low, high = self._loop().channel.span
        return {name: (float(np.clip(w, low, high)), mark) for name, (w, mark) in found.items()}

    def _roots(self, corners: Mapping[str, tuple[float, str]]) -> dict[str, tuple[complex, str]]:
        """Those of them that the compensator has now, by control: s [rad/s] and mark."""
        c, found = self._compensator(), {}
        for name, (w, mark) in corners.items():
            among = np.atleast_1d(np.asarray(c.zeros if mark == "○" else c.poles, complex))
            near = [
                s for s in among if abs(abs(s) / w - 1) < 1e-6 and (s.imag > 0 if name == "at_notch" else not s.imag)
            ]
            if near:
                found[name] = complex(near[0]), mark
        return found

    def _question(self) -> Question:
        wanted = LoopRequirements(self.ms.value, self.phase.value, self.crossover.value)
        loop, corners = self._loop(), self._corners()
        far = loop.reach
        if not self._far / _ZOOM < far < self._far * _ZOOM:
            self._far = far
        return loop, wanted, [*corners.values()], self.rule.value, (self._far, [*self._roots(corners).values()])

    def _compute(self, question: Question, check: Check) -> tuple[str, str, Picture]:
        loop, wanted, corners, rule, (far, roots) = question
        loops, trouble = {_NOW: loop} | self.pinned, ""
        if rule:
            try:
                loops[f"PID, {rule}"] = self._tuned(_RULES[rule], loop)
            except ValueError as error:
                trouble = f"<br>PID, {rule}: {html.escape(str(error))}"
        picture = loop_pictures.picture(loops, wanted)
        picture = dataclasses.replace(picture, words=picture.words + trouble)
        return loop_pictures.bode(loops, wanted, corners), loop_pictures.locus(loops, far, roots), picture

    def _tuned(self, rule: str, loop: ShapedLoop) -> ShapedLoop:
        """The PID loop of a rule from the same output with the same dead time, tuned once."""
        at = rule, self.output.value, loop.delay
        if at not in self._rules:
            design = classical.pid(self._plant, rule, pairs=[(self.output.value, 0)], delay=loop.delay)
            self._rules[at] = dataclasses.replace(loop, compensator=design)
        return self._rules[at]

    def _show(self, answer: tuple[str, str, Picture]) -> None:
        self.plane.svg, self.roots.svg, picture = answer
        self.draw(picture)

    def _still(self) -> Picture:
        below, right = self.roots.svg.replace("<svg", f'<svg y="{loop_pictures.BODE:g}"', 1), self._drawn
        body = self.plane.svg + below + right.drawing.replace("<svg", f'<svg x="{loop_pictures.SIDE + 8:g}"', 1)
        file = svg.document(body, loop_pictures.SIDE + 568, loop_pictures.BODE + loop_pictures.LOCUS, right.alt)
        return dataclasses.replace(right, svg=file)

    def _take(self, plane: ClickPlane, axes: Axes, roots: Mapping[str, list[complex]]) -> None:
        """Take hold of the root, at these points of the axes, that is nearest to the click; of the gain if none is."""

        def away(point: complex) -> float:
            ends = zip((point.real, point.imag), (axes.x, axes.y), plane.start)
            across, up = ((value - low) / (high - low) - share for value, (low, high), share in ends)
            return math.hypot(across, up / axes.aspect)

        far = {name: min(map(away, points)) for name, points in roots.items()}
        nearest = min(far, key=lambda name: far[name], default=None)
        self._held = nearest if nearest and far[nearest] < _NEAR else None
        # of the lead as it is taken: a browser's rounding of every step would add up in the end that stays
        self._ends = [self.at_lead.value * _lead_ratio(self.lead.value) ** sign for sign in (-1, 1)]

    def _taken(self) -> None:
        axes, loop, at = self._axes(), self._loop(), {name: w for name, (w, _) in self._corners().items()}
        level = {name: np.clip(math.log10(abs(loop.gain_at(w)) + 1e-300), *axes.y) for name, w in at.items()}
        self._take(self.plane, axes, {name: [complex(math.log10(w), level[name])] for name, w in at.items()})

    def _root_taken(self) -> None:
        axes, roots = loop_pictures.locus_plane(self._far), self._roots(self._corners())
        self._take(self.roots, axes, {name: [s, s.conjugate()] for name, (s, _) in roots.items()})

    def _dragged(self) -> None:
        """Move what is held to where the plane is clicked: a corner, or the gain so that the loop gain passes there."""
        clicked = self.plane.at(self._axes())
        at = 10**clicked.real

        def over() -> float:
            return 20 * (clicked.imag - math.log10(abs(self._loop().gain_at(at))))

        if self._held:
            with self.quietly():
                self._put(self._held, at)
                if self._held == "at_notch":
                    controls.move_to(self.notch, self.notch.value - over())
            self.ask()
        else:
            controls.move_to(self.gain, self.gain.value + over())

    def _root_dragged(self) -> None:
        """Move what is held to where the root locus is clicked: a root, or the gain so that a pole is nearest there."""
        s = self.roots.at(loop_pictures.locus_plane(self._far))
        if self._held:
            with self.quietly():
                size = max(abs(s), 1e-9)
                self._put(self._held, size if self._held == "at_notch" else max(-s.real, 1e-9))
                if self._held == "at_notch":
                    controls.move_to(self.notch, -20 * math.log10(np.clip(-s.real / size, 1e-3, _WIDTH) / _WIDTH))
            self.ask()
            return
        away = np.abs(self._loop().locus(_ALONG) - s).min(axis=1)
        # where poles that do not move are nearest, all gains are as good: the present one then
        away += 1e-3 * self._far * np.abs(np.log10(_ALONG))
        controls.move_to(self.gain, self.gain.value + 20 * math.log10(_ALONG[np.argmin(away)]))

    def _put(self, name: str, at: float) -> None:
        """Move a root of the compensator to a frequency [rad/s], the others staying where they are."""
        if name not in ("zero", "pole"):
            getattr(self, name).value = at
            return
        (zero, pole), most = self._ends, _lead_ratio(self.lead.max) ** 2
        if name == "zero":
            zero = min(max(at, pole / most), pole / _APART)
        else:
            pole = min(max(at, zero * _APART), zero * most)
        ends, grown = {"zero": zero, "pole": pole}, pole / zero
        self.lead.value = math.degrees(math.asin((grown - 1) / (grown + 1)))
        self.at_lead.value = math.sqrt(ends["pole"] * ends["zero"])

    def _codes(self, question: Question) -> list[str]:
        c = self._compensator()
        lines = [
            "from lqrlab import classical, compute, systems",
            "",
            "compute.setup()",
            f"plant = {literal(self._plant) or '...  # your own plant'}",
            f"C = plant.output_matrix()[{self.output.value}:{self.output.value + 1}]",
            f"compensator = classical.Compensator(C, {c.gain!r}, {_listed(c.zeros)}, {_listed(c.poles)})",
        ]
        return ["\n".join(lines), *super()._codes(question)]

    def _exported(self, question: Question) -> tuple[object, Problem]:
        return question[0].compensator, Problem.of(self._plant, optimum=False)


def _shares(axes: Axes, height: float) -> list[float]:
    """Left, right, top and bottom of a plane as shares of its picture."""
    left, right, top, bottom = axes.edges
    return [left / loop_pictures.SIDE, right / loop_pictures.SIDE, top / height, bottom / height]


def _lead_ratio(degrees: float) -> float:
    """Pole over the middle of a lead that turns the phase so far, or the middle over its zero."""
    sine = math.sin(math.radians(degrees))
    return math.sqrt((1 + sine) / (1 - sine))


def _listed(roots: Any) -> str:
    """Roots as code, real ones as numbers."""
    return "[" + ", ".join(repr(float(r.real)) if not r.imag else repr(complex(r)) for r in np.atleast_1d(roots)) + "]"
