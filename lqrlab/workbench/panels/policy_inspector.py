"""The policy inspector: a network beside the LQR from the same start, chosen by a click in a plane of two states."""

import dataclasses
from collections.abc import Callable
from typing import Any

import ipywidgets
import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import control, evaluation, simulation
from lqrlab.systems import Plant
from lqrlab.workbench.figures import animation, catalogue_page, svg
from lqrlab.workbench.panels import baselines, live_panel, region_of_attraction
from lqrlab.workbench.panels.click_plane import Plane
from lqrlab.workbench.runs.session import headless

_REACH = 3.0  # of the plane and the sliders, in scales of the states
_SIDE = 300.0  # of the plane [px]
_WIDTH = 600.0  # of the curves [px]


def policy_inspector(
    policy: Any, family: str | Plant, *, label: str = "network", num_steps: int | None = None
) -> Any:
    """A panel that runs a policy beside the plant's own LQR from a start of one's choice.

    Args:
        policy: a network (told of the plant as its sliders make it), a run's ``checkpoints`` folder, a policy, or a
            function plant → policy.
        family: a family of the catalogue, or one plant of your own.
        label: what the policy is called.
        num_steps: samples of a run; two settling times of the optimum if left out.

    Returns:
        The :class:`Inspector`, to be displayed by the cell; without a person the picture at its defaults.
    """
    plant = live_panel.one_plant(family)
    if headless():
        pair = Pair.of(plant, policy, label, num_steps)
        seen = compare(pair, catalogue_page.start(plant))
        curves, bottom = _curves(pair, seen)
        beside = svg.element("svg", {"x": _SIDE + 10, "width": _WIDTH + 8, "height": bottom}, curves)
        body = _phase(pair, seen, *region_of_attraction.telling(plant)) + beside
        drawn = svg.picture(body, _SIDE + 18 + _WIDTH, max(_SIDE, bottom), _alt(pair))
        return svg.Picture(drawn, _alt(pair), words(pair, seen))
    return Inspector(plant, policy, label, num_steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A plant, its LQR and the policy beside it, both bound to it."""

    plant: Plant
    design: control.LQR
    policy: Any
    label: str
    num_steps: int

    @classmethod
    def of(cls, plant: Plant, policy: Any, label: str, num_steps: int | None) -> "Pair":
        """Design the LQR and bind the policy."""
        if label == "optimal":
            raise ValueError(
                "label: expected a name for the policy, but found 'optimal', which is the LQR's own"
            )
        design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
        steps = (
            evaluation.settling_steps(design.poles)
            if num_steps is None
            else live_panel.whole("num_steps", num_steps)
        )
        return cls(plant, design, baselines.bind(policy, plant), label, steps)


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """What both did from one start.

    Attributes:
        x0: the start ``[n]``.
        runs: label → run on the nonlinear plant.
        nonlinear, linear: label → cost over x0ᵀPx0 on the plant and on its linear model; inf for a loop that does not
            come back.
        optimum: x0ᵀPx0.
    """

    x0: np.ndarray
    runs: dict[str, simulation.Trajectory]
    nonlinear: dict[str, float]
    linear: dict[str, float]
    optimum: float


def compare(pair: Pair, x0: np.ndarray, check: Callable[[], None] = lambda: None) -> Seen:
    """Run both policies from x0 ``[n]``, on the nonlinear plant and on the linear one."""
    P = np.asarray(pair.design.P)
    optimum = float(x0 @ P @ x0)
    runs, ratios = {}, {True: {}, False: {}}  # type: ignore[var-annotated]
    for label, policy in (("optimal", simulation.LinearPolicy(pair.design.K)), (pair.label, pair.policy)):
        for linear in (True, False):
            check()
            run = simulation.rollout(pair.plant, policy, jnp.asarray(x0), pair.num_steps, linear=linear)
            run = jax.tree.map(np.asarray, run)
            end = run.xs[-1] @ P @ run.xs[-1]
            back = np.isfinite(end) and end < optimum
            ratios[linear][label] = (
                float((run.costs.sum() + end) / optimum) if back and optimum > 0 else np.inf
            )
            if not linear:
                runs[label] = run
    return Seen(x0, runs, ratios[False], ratios[True], optimum)


def words(pair: Pair, seen: Seen) -> str:
    """Both ratios in words."""
    if not seen.optimum > 0:
        return "This start is the equilibrium: nothing is to be paid. Choose another."
    name = pair.label

    def said(ratio: float, other: str = "the optimum") -> str:
        if not np.isfinite(ratio):
            return "does <b>not come back</b>"
        excess = 100 * (ratio - 1)
        exact = f"{abs(excess):.2g} % {'more' if excess > 0 else 'less'}"
        return f"pays <b>{exact}</b> than {other}" if abs(excess) > 1e-6 else f"pays <b>exactly</b> {other}"

    lines = [
        f"The least that this start can cost on the linear plant is x0ᵀP x0 = {seen.optimum:.4g}. There the LQR "
        f"{said(seen.linear['optimal'])}, the {name} {said(seen.linear[name])}.",
        f"On the nonlinear plant the LQR {said(seen.nonlinear['optimal'])}, the {name} {said(seen.nonlinear[name])}",
    ]
    if all(np.isfinite(r) for r in seen.nonlinear.values()):
        lines[-1] += (
            f"; beside each other, the {name} {said(seen.nonlinear[name] / seen.nonlinear['optimal'], 'the LQR')}"
        )
    return "<br>".join(lines) + "."


def _alt(pair: Pair) -> str:
    return f"{pair.plant.name} under its LQR and under the {pair.label} from one start: plane of two states, and curves"


def _curves(pair: Pair, seen: Seen) -> tuple[str, float]:
    plant = pair.plant
    shown = [(label, svg.colour(label, k), svg.DASHES[k]) for k, label in enumerate(seen.runs)]
    signals = [(s, "xs", i) for i, s in enumerate(plant.states)] + [
        (s, "us", i) for i, s in enumerate(plant.inputs)
    ]
    curves = {label: (run.ts, run.xs, run.us) for label, run in seen.runs.items()}
    until = float(next(iter(seen.runs.values())).ts[-1])
    traces, bottom = animation.charts(signals, curves, until, (22, _WIDTH), columns=3, lead=1)
    return svg.legend(2, 14, shown) + traces, bottom


def _phase(pair: Pair, seen: Seen, across: int, up: int) -> str:
    """Both runs in the plane of two states, and where they start."""
    states, scales = pair.plant.states, np.asarray(pair.plant.scales[0])
    wide, tall = _REACH * scales[across], _REACH * scales[up]
    parts = ['<path class="lq-grid" vector-effect="non-scaling-stroke" d="M0 .5H1M.5 0V1"/>']
    for k, (label, run) in enumerate(seen.runs.items()):
        x, y = 0.5 + 0.5 * run.xs[:, across] / wide, 0.5 - 0.5 * run.xs[:, up] / tall
        here = np.isfinite(x) & np.isfinite(y) & (np.abs(x) < 50) & (np.abs(y) < 50)
        end = len(here) if here.all() else int(np.argmin(here))
        data = "M" + "L".join(f"{a:.4f} {b:.4f}" for a, b in zip(x[:end], y[:end]))
        dashes = f' stroke-dasharray="{svg.DASHES[k]}"' if svg.DASHES[k] else ""
        parts.append(
            f'<path class="lq-curve lq-c{svg.colour(label, k)}" vector-effect="non-scaling-stroke"{dashes} d="{data}"/>'
        )
    at = 0.5 + 0.5 * seen.x0[across] / wide, 0.5 - 0.5 * seen.x0[up] / tall
    parts.append(f'<circle class="lq-body" style="stroke:none" cx="{at[0]:.4f}" cy="{at[1]:.4f}" r=".015"/>')
    frame = (0.0, 0.0, _SIDE, _SIDE)
    return svg.axes(
        frame, (-wide, wide, states[across].label), (-tall, tall, states[up].label), "".join(parts)
    )


class Inspector(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        plane: where a click chooses the start; ``plane.point`` in the plane's own 0 … 1.
        across, up: its two states.
        initial, parameters: name → slider.
        picture, words: what came out.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(
        self, plant: Plant, policy: Any, label: str = "network", num_steps: int | None = None
    ) -> None:
        self._nominal, self._policy, self._label, self._num_steps = plant, policy, label, num_steps
        self._bound: tuple[dict[str, float], Pair] | None = None
        choices = [(s.label, i) for i, s in enumerate(plant.states)]
        first = region_of_attraction.telling(plant)
        self.across, self.up = (
            ipywidgets.Dropdown(options=choices, value=value, description=name, **live_panel.WIDE)
            for name, value in zip(("across", "up"), first)
        )
        self.initial = {
            s.name: live_panel.slider(s.label, float(x), -_REACH * s.scale, _REACH * s.scale)
            for s, x in zip(plant.states, catalogue_page.start(plant))
        }
        self.parameters = live_panel.parameter_sliders(plant, continuous_update=False)
        x0, x1, y0, y1 = svg.frame((0.0, 0.0, _SIDE, _SIDE))
        self.plane = Plane(frame=[x0 / _SIDE, x1 / _SIDE, y0 / _SIDE, y1 / _SIDE])
        self.picture, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        self.live = live_panel.Live(self._compute, self._show)
        tabs = ipywidgets.Tab(
            [ipywidgets.VBox(list(d.values())) for d in (self.initial, self.parameters)],
            layout={"width": "27rem"},
        )
        tabs.titles = ("initial state", "parameters")
        note = ipywidgets.HTML("Click to choose the start in this plane:")
        left = ipywidgets.VBox([self.across, self.up, note, self.plane, tabs], layout={"flex": "0 0 28rem"})
        right = ipywidgets.VBox([self.live.bar, self.words, self.picture], layout={"flex": "1 1 auto"})
        super().__init__([left, right])
        self._quiet = False
        self.plane.observe(lambda _: self._clicked(), names="point")
        for control_ in (self.across, self.up, *self.initial.values(), *self.parameters.values()):
            control_.observe(lambda _: self._ask(), names="value")
        self._ask()

    def _clicked(self) -> None:
        names = [s.name for s in self._nominal.states]
        self._quiet = True
        for axis, share in zip((self.across, self.up), self.plane.point):
            slider = self.initial[names[axis.value]]
            slider.value = slider.min + share * (slider.max - slider.min)
        self._quiet = False
        self._ask()

    def _ask(self) -> None:
        if not self._quiet:
            x0 = np.array([slider.value for slider in self.initial.values()])
            self.live.ask(
                (x0, live_panel.moved(self.parameters, self._nominal), self.across.value, self.up.value)
            )

    def _compute(self, asked: tuple, check: Callable[[], None]) -> tuple[str, str, str]:
        x0, values, across, up = asked
        if self._bound is None or self._bound[0] != values:
            plant = live_panel.altered(self._nominal, values)
            self._bound = values, Pair.of(plant, self._policy, self._label, self._num_steps)
        pair = self._bound[1]
        seen = compare(pair, x0, check)
        curves, bottom = _curves(pair, seen)
        plane = svg.picture(_phase(pair, seen, across, up), _SIDE, _SIDE, "plane of two states")
        return plane, svg.picture(curves, _WIDTH + 8, bottom, _alt(pair)), words(pair, seen)

    def _show(self, answer: tuple[str, str, str]) -> None:
        self.plane.svg, self.picture.value, self.words.value = answer
