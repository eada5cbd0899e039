"""The policy inspector: a policy and the LQR from the same start, chosen by a click in a plane of two states."""

import dataclasses
import functools
import html
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import ipywidgets
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control, simulation
from lqrlab.compute import checks
from lqrlab.simulation import Problem, Trajectory, Verdict
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, digits, loop_design, svg
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.controls import ClickPlane
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

_SIDE, _WIDTH = 340.0, 510.0  # of the plane, and of the curves beside it [px]
Ends = tuple[ArrayLike, ArrayLike] | None
"""Ends of the actuators, absolute; None for none."""


def policy_inspector(
    policy: object,
    family: str | Plant,
    *,
    label: str = "network",
    num_steps: int | None = None,
    limits: Ends = None,
    values: Mapping[str, Any] | None = None,
) -> "Inspector | Picture":
    """A panel that runs a controller, as :func:`lqrlab.simulation.bind` takes it, and the plant's LQR from a start.

    The policy is called ``label``, a run takes ``num_steps`` samples or two settling times of the optimum, ``limits``
    are those of the actuators, ``(low, high)``, absolute. ``values`` is what the controls begin at, as *copy as code*
    writes it. Without a person it is the picture.
    """
    return Inspector(loop_design.one_plant(family), policy, label, num_steps, limits).at(values)


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A plant with its LQR, and the policy compared with it."""

    problem: Problem
    policy: simulation.Policy
    label: str
    num_steps: int

    @classmethod
    def of(cls, plant: Plant, controller: object, label: str, num_steps: int | None, limits: Ends = None) -> "Pair":
        """Design the LQR and bind the controller."""
        if label == "optimal":
            raise ValueError("label: expected a name for the policy, but found 'optimal', the LQR's")
        problem = Problem.of(plant, limits=limits)
        steps = control.settling_steps(loop_design.poles_of(problem)) if num_steps is None else num_steps
        return cls(problem, simulation.bind(controller, problem), label, checks.whole("num_steps", steps))

    @property
    def plant(self) -> Plant:
        """The plant."""
        assert self.problem.plant is not None
        return self.problem.plant


class Run(NamedTuple):
    """A run of one policy: its trajectory, the verdict, and its cost over x0ᵀPx0, inf unless it converged."""

    path: Trajectory
    verdict: Verdict
    ratio: float


Runs = dict[str, dict[str, Run]]
"""``linear`` and ``nonlinear`` plant → ``optimal`` and the policy's label → run."""


def compare(
    pair: Pair, x0: Float[np.ndarray | Array, " n"], check: Check = lambda: None, push: tuple[int, float] = (0, 0.0)
) -> Runs:
    """Both policies from x0; with a push of their inputs at a sample, in scales of these."""
    P = np.asarray(pair.problem.P)
    least = float(x0 @ P @ x0)

    def run(policy: simulation.Policy, linear: bool) -> Run:
        check()
        problem = dataclasses.replace(pair.problem, linear=linear)
        path = simulation.rollout(problem, policy, jnp.asarray(x0), pair.num_steps)
        path = jax.tree.map(np.asarray, path)
        cost, verdict = (path.costs.sum() + path.xs[-1] @ P @ path.xs[-1], loop_design.outcome(pair.plant, path))
        return Run(path, verdict, cost / least if verdict == Verdict.CONVERGED and least > 0 else np.inf)

    policies: dict[str, simulation.Policy] = {
        "optimal": simulation.LinearPolicy(pair.problem.K),
        pair.label: pair.policy,
    }
    if push[1]:
        size = push[1] * jnp.asarray(pair.plant.scales[1])
        policies = {name: loop_design.Pushed(policy, push[0], push[0], size) for name, policy in policies.items()}
    return {
        name: {label: run(policy, name == "linear") for label, policy in policies.items()}
        for name in ("linear", "nonlinear")
    }


def words(pair: Pair, runs: Runs, *, pushed: bool = False) -> str:
    """All costs in words."""
    (lqr_linear, linear), (lqr, nonlinear) = (kind.values() for kind in runs.values())
    x0, name = lqr.path.xs[0], html.escape(pair.label)
    least = float(x0 @ np.asarray(pair.problem.P) @ x0)

    def cost(run: Run, of: float = 1.0, other: str = "the optimum") -> str:
        if run.verdict == Verdict.DIVERGED:
            return "<b>diverges</b>"
        if run.verdict == Verdict.BOUNDED:
            return "stays <b>bounded</b>, but does not converge"
        if not np.isfinite(of):
            return f"converges, where {other} does not"
        return f"costs <b>{charts.above(run.ratio / of - 1)}</b> {other}"

    if pushed:
        return "<br>".join(
            f"Pushed on the {kind} plant, the {name} {cost(both[pair.label], both['optimal'].ratio, 'the LQR')}."
            for kind, both in runs.items()
        )
    if not least > 0:
        return "This start is the equilibrium: its cost is zero. Choose another."
    compared, free = "", "" if pair.problem.low is None else ", if its inputs had no limits,"
    if np.isfinite(lqr.ratio) and np.isfinite(nonlinear.ratio):
        compared = f"; compared with each other, the {name} {cost(nonlinear, lqr.ratio, 'the LQR')}"
    return (
        f"The least that this start can cost on the linear plant{free} is x0ᵀP x0 = {digits(least, 4)}. There the LQR "
        f"{cost(lqr_linear)}, the {name} {cost(linear)}.<br>"
        f"On the nonlinear plant the LQR {cost(lqr)}, the {name} {cost(nonlinear)}{compared}."
    )


def _picture(pair: Pair, runs: Runs, left: str = "", *, pushed: bool = False) -> Picture:
    """The curves, to the right of a plane if there is one, with the words above."""
    paths, x = {label: run.path for label, run in runs["nonlinear"].items()}, _SIDE + 10 if left else 0.0
    signals, at = charts.channels(pair.plant), (x, 0, _WIDTH)
    columns = 1 + (len(signals) > 3)
    curves, bottom = charts.responses(signals, paths, at, columns=columns, lead=1, named=True, height=_SIDE - 26)
    alt = f"{pair.plant.name} under its LQR and under the {pair.label} from one start: plane of two states, and curves"
    file = svg.document(left + curves, x + _WIDTH, max(bottom, _SIDE if left else 0.0), alt)
    return Picture(file, alt, words(pair, runs, pushed=pushed))


def _plane(pair: Pair, runs: Runs, across: int, up: int, span: float) -> str:
    """Both runs in the plane of two states, so many scales wide and high to each side, and where they start."""
    (a, b), scales = (pair.plant.states[i] for i in (across, up)), np.asarray(pair.plant.scales[0])
    wide, tall = span * scales[across], span * scales[up]
    axes, looks = Axes((0.0, 20.0, _SIDE, _SIDE - 20), (-wide, wide), (-tall, tall)), svg.strokes(runs["nonlinear"])
    body = axes.cross(0.0, 0.0)
    for run, stroke in zip(runs["nonlinear"].values(), looks.values()):
        xs = run.path.xs
        body += axes.curve(xs[:, across], xs[:, up], stroke)
    x, y = axes.place(xs[0, across], xs[0, up])
    start: dict[str, object] = {"class": "lq-body", "stroke-width": 0, "r": 3.7}
    body += svg.element("circle", start | {"cx": svg.px(x), "cy": svg.px(y)})
    drawn = axes.frame(a.label, b.label, body) + svg.element("circle", start | {"cx": 6, "cy": 10.5})
    return drawn + svg.text(14, 14, "start", look="lq-b") + svg.legend(56, 14, looks)


InspectorQuestion = tuple[np.ndarray, Plant, tuple[int, int, float], tuple[float, float]]
"""The start, the plant, the states of the plane and its reach, time [s] and size of the impulse, in input scales."""


class Inspector(Panel[InspectorQuestion, tuple[str, Picture]]):
    """The panel; its controls are attributes, ``initial`` and ``parameters`` by name; ``plane`` is clicked."""

    moving = ("initial",)
    does = "runs both controllers from a start clicked in the plane, with an impulse disturbance, on a changed plant"
    first = "a network's rollouts take about 16 s, or 3 s where their program was compiled before"

    def __init__(
        self, plant: Plant, policy: object, label: str = "network", num_steps: int | None = None, limits: Ends = None
    ) -> None:
        self._nominal, self._limits, self._given = plant, limits, (policy, label, num_steps, limits)
        self._pairs: dict[tuple[float, ...], Pair] = {}
        self.across, self.up = controls.plane_choosers(plant.states, *controls.revealing_plane(plant))
        self.span = controls.slider("reach, × scale", 1.2, 0.2, 20.0)
        self.initial = controls.initial_sliders(plant)
        self.parameters = controls.parameter_sliders(plant, continuous_update=False)
        axes = Axes((0.0, 20.0, _SIDE, _SIDE - 20), (0, 1), (0, 1))
        self.plane = ClickPlane(frame=[edge / _SIDE for edge in axes.edges])
        steps = loop_design.horizon(plant, num_steps, most=10**9)
        self.push_at = controls.slider("impulse at [s]", 0.0, 0.0, float(f"{steps * float(plant.dt):.3g}"))
        self.push = controls.slider("impulse on inputs, × scale", 0.0, -10.0, 10.0)
        pages: dict[str, list[Any]] = {
            "initial state": list(self.initial.values()),
            "plane": [self.across, self.up, self.span],
            "impulse": [self.push_at, self.push],
            "parameters": list(self.parameters.values()),
        }
        beside = [ipywidgets.HTML("Click to choose the start in this plane:"), self.plane]
        arguments = {"policy": policy, "family": plant, "label": label, "num_steps": num_steps, "limits": limits}
        super().__init__([controls.tabs(pages)], beside=beside, call=("policy_inspector", arguments))
        self.plane.observe(self._guarded(self._clicked), names="point")
        self.track(then=self._reach, span=self.span)
        self.track(across=self.across, up=self.up, initial=self.initial, parameters=self.parameters)
        self.track(push_at=self.push_at, push=self.push)
        self.ask()

    def _reach(self) -> None:
        """Let the sliders of the start go as far as the plane, and three scales."""
        with self.quietly():
            for state, one in zip(self._nominal.states, self.initial.values()):
                one.max = high = max(self.span.value, controls.REACH) * state.scale
                one.min = one.value - math.ceil((one.value + high) / one.step) * one.step  # its value stays a step
        self.ask()

    def _clicked(self) -> None:
        with self.quietly():
            for axis, share in zip((self.across, self.up), self.plane.point):
                one = self._nominal.states[axis.value]
                controls.move_to(self.initial[one.name], (2 * share - 1) * self.span.value * one.scale)
        self.ask()

    def _question(self) -> InspectorQuestion:
        x0 = np.array([slider.value for slider in self.initial.values()])
        plant = controls.changed(self._nominal, self.parameters)
        plane = self.across.value, self.up.value, self.span.value
        return x0, plant, plane, (self.push_at.value, self.push.value)

    def _compute(self, question: InspectorQuestion, check: Check) -> tuple[str, Picture]:
        x0, plant, shown, (at, size) = question
        values = tuple(float(value) for value in plant.parameters.values())
        if values not in self._pairs:
            self._pairs = {values: Pair.of(plant, *self._given)}
        pair = self._pairs[values]
        runs = compare(pair, x0, check, (round(at / float(plant.dt)), size))
        plane = _plane(pair, runs, *shown)
        self._whole = functools.partial(_picture, pair, runs, plane, pushed=bool(size))
        return svg.document(plane, _SIDE, _SIDE, "plane of two states"), _picture(pair, runs, pushed=bool(size))

    def _exported(self, question: InspectorQuestion) -> tuple[object, Problem]:
        return self._given[0], Problem.of(question[1], limits=self._limits, optimum=False)

    def _still(self) -> Picture:
        return self._whole()

    def _show(self, answer: tuple[str, Picture]) -> None:
        self.plane.svg = answer[0]
        self.draw(answer[1])
