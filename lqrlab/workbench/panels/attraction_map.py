"""The map of regions of attraction: which starts in a plane of two states converge on the nonlinear plant."""

import dataclasses
import functools
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Float, UInt8

from lqrlab import control, evaluation
from lqrlab.compute import checks
from lqrlab.evaluation import Attraction
from lqrlab.simulation import LinearPolicy, Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.loop_design import FREE, largest_inputs, limit_words, one_plant
from lqrlab.workbench.figures.svg import Picture, Stroke
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel
from lqrlab.workbench.runs.session import headless

_WIDTH, _TALLEST = 860.0, 400.0  # of the maps side by side, and of each [px]
_GREY = "#808080"
_COARSE = 1024  # starts of a map that is shown while the whole is still computed


def attraction_map(
    plant: str | Plant,
    policies: Mapping[str, object] | None = None,
    *,
    plane: Sequence[str] | None = None,
    span: float = 4.0,
    limit: float = 1.0,
    num: int = 100_000,
    num_steps: int = 500,
    values: Mapping[str, Any] | None = None,
) -> "AttractionMap | Picture":
    """A panel that shows from where the nonlinear plant converges under its LQR and ``policies``, label → controller.

    ``plane`` names the two states that are varied, up to ``span`` of their scales; ``limit`` is that of the inputs in
    their scales, none from 100 on. A picture takes ``num`` rollouts of ``num_steps`` samples, after which a loop that
    has neither converged nor diverged is undecided. ``values`` is what its controls begin at, as *copy as code* writes
    it. Without a person it is the picture.
    """
    setting = AttractionSetting.of(plant, policies, plane, span=span, limit=limit, num=num, num_steps=num_steps)
    return AttractionMap(setting).at(values)


@dataclasses.dataclass(frozen=True, eq=False)
class AttractionSetting:
    """A map, with the arguments of :func:`attraction_map`, in a plane of two states by their numbers."""

    plant: Plant
    policies: dict[str, object]
    across: int
    up: int
    span: float = 4.0
    limit: float = 1.0
    num: int = 100_000
    num_steps: int = 500

    @classmethod
    def of(
        cls, plant: str | Plant, policies: Mapping[str, object] | None, plane: Sequence[str] | None, **sizes: float
    ) -> "AttractionSetting":
        """The plant's LQR and the policies, in a plane of two named states or of the revealing ones."""
        for name, size in sizes.items():
            if name.startswith("num"):
                checks.whole(name, size)
            else:
                checks.number(name, size, "a number above 0", above=0.0, finite=False)
        plant = one_plant(plant)
        across, up = controls.revealing_plane(plant)
        names = [s.name for s in plant.states]
        if plane is not None:
            chosen = [plane] if isinstance(plane, str) else list(plane)
            if len(chosen) != 2 or chosen[0] == chosen[1] or not set(chosen) <= set(names):
                given = ", ".join(map(str, chosen)) or "none"
                raise ValueError(f"plane: expected two of {', '.join(names)}, but found {given}")
            across, up = (names.index(name) for name in chosen)
        if not isinstance(policies, Mapping | None):
            raise ValueError(f"policies: expected {{label: policy}}, but found {type(policies).__name__}")
        if "optimal" in (policies or {}):
            raise ValueError("policies: expected other labels than 'optimal', which is the LQR's own")
        lqr = {"optimal": lambda problem: LinearPolicy(problem.K)}
        return cls(plant, lqr | dict(policies or {}), across, up, **sizes)  # type: ignore[arg-type]

    @functools.cached_property
    def problem(self) -> Problem:
        """The nonlinear plant within its limits, with its LQR."""
        u_eq, size = self.plant.equilibrium()[1], largest_inputs(self.plant, self.limit)
        return Problem.of(self.plant, limits=None if self.limit >= FREE else (u_eq - size, u_eq + size))

    @property
    def reach(self) -> Float[np.ndarray, " 2"]:
        """Half-widths of the map in its states' units."""
        return self.span * np.asarray(self.plant.scales[0])[[self.across, self.up]]

    def starts(self) -> Float[np.ndarray, "side side n"]:
        """Initial deviations, rows from below, in the middles of the picture's squares."""
        side = max(int(math.sqrt(self.num / len(self.policies))), 2)
        middles = (np.arange(side) + 0.5) / side * 2 - 1
        x0 = np.zeros((side, side, self.plant.n), np.float32)
        x0[..., self.across], x0[..., self.up] = self.reach[0] * middles, self.reach[1] * middles[:, None]
        return x0


def maps(setting: AttractionSetting, check: Check = lambda: None) -> dict[str, Attraction]:
    """The verdict on each start of the plane under each policy."""
    x0, regions, steps = setting.starts(), {}, setting.num_steps
    for label, policy in setting.policies.items():
        try:
            regions[label] = evaluation.attraction(setting.problem, policy, x0, num_steps=steps, check=check)
        except ValueError as error:
            raise ValueError(f"{label}: {error}") from error
    return regions


def picture(setting: AttractionSetting, check: Check = lambda: None) -> Picture:
    """The maps side by side, and with two of them where they differ."""
    regions, strokes = maps(setting, check), svg.strokes(setting.policies)
    plant, (wide, tall) = setting.plant, setting.reach
    across, up = plant.states[setting.across], plant.states[setting.up]
    images = {
        f"{label}: {100 * a.share:.1f} % converge": _shaded(svg.CURVES[strokes[label].colour][0], a)
        for label, a in regions.items()
    }
    alt = f"{plant.title}: starts in the plane of {across.name} and {up.name} that converge; {'; '.join(images)}"
    if len(regions) == 2:
        (a, x), (b, y) = ((svg.CURVES[strokes[label].colour][0], a.converged) for label, a in regions.items())
        layers = (x & y, _GREY, 60), (x & ~y, a, 255), (y & ~x, b, 255)
        images["where only one converges, in its colour"] = _painted(*layers)
    side, body = (_WIDTH - 10 * (len(images) - 1)) / len(images), _legend(setting)
    high = min(side + 12, _TALLEST)
    for k, (title, rgba) in enumerate(images.items()):
        left = k * (side + 10)
        axes = Axes((left, 40, side, high), (-wide, wide), (-tall, tall))
        inner = axes.image(rgba) + ("" if k else _unsaturated(setting, axes))
        body += svg.text(left + 2, 34, title, look="lq-b") + axes.frame(across.label, up.label, inner)
    return Picture(svg.document(body, _WIDTH, high + 46, alt), alt, _words(setting, regions))


def _legend(setting: AttractionSetting) -> str:
    """Colours with their meaning, and the ellipse."""
    own, body, x = svg.CURVES[0][0], "", 2.0
    shades = (own, 1.0), (own, 0.4), (_GREY, 0.43), (own, 0.0)
    for words, (colour, strength) in zip(("converges soon", "converges late", "undecided", "diverges"), shades):
        box = {"x": svg.px(x), "y": 5, "width": 20, "height": 10, "fill": colour, "fill-opacity": strength}
        body += svg.element("rect", box | {"class": "lq-key"}) + svg.text(x + 25, 14, words)
        x += 25 + 6.4 * len(words) + 16
    return body + (svg.legend(x, 14, {"within: no limit is met": Stroke(7)}) if setting.limit < FREE else "")


def _painted(*layers: tuple[np.ndarray, str, ArrayLike]) -> UInt8[np.ndarray, "rows columns 4"]:
    """Pixels that have a colour where a layer is true, as strong as it says, 0 … 255."""
    rgba = np.zeros((*layers[0][0].shape, 4), np.uint8)
    for there, colour, strength in layers:
        rgba[there, :3] = tuple(bytes.fromhex(colour.removeprefix("#")))
        rgba[there, 3] = np.broadcast_to(strength, there.shape)[there]
    return rgba


def _shaded(colour: str, region: Attraction) -> UInt8[np.ndarray, "rows columns 4"]:
    """In its colour what converges, the stronger the sooner; grey what is undecided; nothing where it diverges."""
    converged, diverged = region.converged, region.diverged
    longest = max(region.seconds[converged].max(initial=0.0), 1e-9)
    strength = 255 * (1 - 0.6 * np.where(converged, region.seconds, 0.0) / longest)
    return _painted((converged, colour, strength), (~converged & ~diverged, _GREY, 110))


def _unsaturated(setting: AttractionSetting, axes: Axes) -> str:
    """Ellipse in which the linear loop never meets its limits, by :func:`control.unsaturated_level`."""
    problem = setting.problem
    if problem.high is None:
        return ""
    level = float(control.unsaturated_level(problem.K, problem.P, problem.high))
    chosen = np.array([setting.across, setting.up])
    P = np.asarray(problem.P)[np.ix_(chosen, chosen)] / level
    angle = np.linspace(0, 2 * np.pi, 121)
    x, y = np.linalg.solve(np.linalg.cholesky(P).T, np.stack([np.cos(angle), np.sin(angle)]))
    return axes.curve(x, y, Stroke(7))


def _words(setting: AttractionSetting, regions: Mapping[str, Attraction]) -> str:
    starts, name = next(iter(regions.values())).verdict.size, html.escape(setting.plant.name)
    shares = "; ".join(f"<b>{html.escape(label)}</b> {100 * a.share:.1f} %" for label, a in regions.items())
    lines = [
        f"{name}, nonlinear, {limit_words(setting.limit)}: {starts * len(regions):,} rollouts. "
        f"Of {starts:,} starts converge: {shares}."
    ]
    if len(regions) == 2:
        (a, x), (b, y) = ((html.escape(label), region) for label, region in regions.items())
        only = [charts.percent(100 * float(np.mean(p.converged & ~q.converged))) for p, q in ((x, y), (y, x))]
        lines.append(f"From {only[0]} % of them only <i>{a}</i> converges, from {only[1]} % only <i>{b}</i>.")
    undecided = sum(int((~a.converged & ~a.diverged).sum()) for a in regions.values())
    if undecided:
        lines.append(f"{undecided:,} rollouts were undecided after {setting.num_steps} samples.")
    return "<br>".join(lines)


class AttractionMap(Panel[AttractionSetting, Picture]):
    """The panel; its controls are attributes, ``parameters`` by name."""

    moving = ("limit",)
    does = "maps the starts that converge, for another plane, reach, limit and plant"
    first = "100,000 rollouts take about 7 s, or 5 s where their program was compiled before"

    def __init__(self, setting: AttractionSetting) -> None:
        self._default, quiet = setting, {"continuous_update": False}  # type: AttractionSetting, dict[str, Any]
        self.across, self.up = controls.plane_choosers(setting.plant.states, setting.across, setting.up)
        self.span = controls.slider("reach, × scale", setting.span, 0.5, 20.0, **quiet)
        self.limit = controls.limit_slider(setting.limit, **quiet)
        self.parameters = controls.parameter_sliders(setting.plant, **quiet)
        pages = {"map": [self.across, self.up, self.span, self.limit], "parameters": list(self.parameters.values())}
        names = [s.name for s in setting.plant.states]
        arguments = {
            "plant": setting.plant,
            "policies": dict(setting.policies) if len(setting.policies) > 1 else None,
            "plane": [names[setting.across], names[setting.up]],
        } | {name: getattr(setting, name) for name in ("span", "limit", "num", "num_steps")}
        super().__init__([controls.tabs(pages)], call=("attraction_map", arguments))
        self.track(**{n: getattr(self, n) for n in ("across", "up", "span", "limit", "parameters")})
        self.ask()

    def _question(self) -> AttractionSetting:
        if self.across.value == self.up.value:
            raise ValueError("choose two different states")
        chosen = {name: getattr(self, name).value for name in ("across", "up", "span", "limit")}
        plant = controls.changed(self._default.plant, self.parameters)
        return dataclasses.replace(self._default, plant=plant, **chosen)

    def _compute(self, question: AttractionSetting, check: Check) -> Picture:
        few = _COARSE * len(question.policies)
        if question.num > few and not headless():
            self._show(picture(dataclasses.replace(question, num=few), check))
        return picture(question, check)
