"""The MPC designer: limits, horizon and weight of a predictive controller, and its loop beside the clipped LQR's."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import ipywidgets
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from lqrlab import control, simulation
from lqrlab.compute import jit_by_function, pytree
from lqrlab.extensions import predictive
from lqrlab.simulation import Problem, Trajectory, Verdict
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, loop_design, svg
from lqrlab.workbench.figures.svg import DASHES, Picture, Stroke
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

LONGEST = 40
"""The longest horizon; all horizons run its program, so that a new one compiles nothing."""
_WIDTH, _TALL, _PLANS = 860.0, 300.0, 10  # plans of the fan, at most
_LIMIT = Stroke(7, DASHES[2])


def mpc_designer(
    plant: str | Plant, *, num_steps: int | None = None, values: Mapping[str, Any] | None = None
) -> "PredictiveDesigner | Picture":
    """A panel to design a predictive controller: limits, horizon, input weight and Δu on sliders.

    Loops take ``num_steps`` samples, or until the nominal loop has settled. ``values`` is what its controls begin at,
    as *copy as code* writes it. Without a person it is the picture.
    """
    return PredictiveDesigner(plant, num_steps).at(values)


class _Plan(NamedTuple):
    """The last input, the plan that it is the first of, and whether that is the optimum."""

    u: Float[Array, " m"]
    xs: Float[Array, "T+1 n"]
    us: Float[Array, "T m"]
    solved: Bool[Array, ""]


@pytree
@dataclasses.dataclass(frozen=True)
class _AnyHorizon:
    """A predictive controller whose plant stands still, without cost and limits, from the horizon on; 0 for the LQR."""

    sampled: control.Sampled
    K: Float[Array, "m n"]
    P: Float[Array, "n n"]
    limit: Float[Array, " m"]
    change: Float[Array, " m"]
    horizon: Int[Array, ""]

    def init(self, batch_shape: tuple[int, ...]) -> _Plan:
        """No input, and no plan."""
        m, n = self.K.shape
        return _Plan(jnp.zeros(m), jnp.zeros((LONGEST + 1, n)), jnp.zeros((LONGEST, m)), jnp.array(True))

    def __call__(self, carry: _Plan, x: Float[Array, " n"]) -> tuple[_Plan, Float[Array, " m"]]:
        """The first input of the plan from x."""
        A, B, Q, R, N = self.sampled
        ahead = (jnp.arange(LONGEST) < self.horizon)[:, None, None]
        A, B, Q, N = (jnp.where(ahead, a, still) for a, still in ((A, jnp.eye(len(A))), (B, 0.0), (Q, 0.0), (N, 0.0)))
        limit, change = (jnp.where(ahead[..., 0], a, jnp.inf) for a in (self.limit, self.change))
        plan = predictive.constrained_lqr(
            A, B, Q, jnp.broadcast_to(R, (LONGEST, *R.shape)), x, LONGEST, N=N, Qf=self.P,
            limits=simulation.Limits(u=(-limit, limit), du=(-change, change)),
            terms=predictive.Terms(u_last=carry.u, time_varying=True),
        )  # fmt: skip
        clipped = jnp.clip(-self.K @ x, carry.u - self.change, carry.u + self.change)
        u = jnp.where(self.horizon > 0, plan.us[0], jnp.clip(clipped, -self.limit, self.limit))
        return _Plan(u, plan.xs, plan.us, plan.solved), u


@partial(jit_by_function, static_argnames="num_steps")
def _rollout(problem: Problem, policy: _AnyHorizon, x0: Array, *, num_steps: int) -> Trajectory:
    return simulation.rollout(problem, policy, x0, num_steps, keep=simulation.loop.KEEPABLE)


class PredictiveDesigner(Panel[dict[str, Any], Picture]):
    """The panel; its controls are attributes, ``initial`` by name."""

    moving = ("limit", "horizon", "weight")
    does = "redesigns the controller for each limit, horizon, input weight and initial state"
    first = "the program of all horizons takes about 20 s, or 3 s where it was compiled before"

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._plant = loop_design.one_plant(plant)
        self._num_steps = loop_design.horizon(self._plant, num_steps, most=300)
        quiet: dict[str, Any] = {"continuous_update": False}
        self.limit = controls.limit_slider(0.5, "input limit", self._plant, **quiet)
        self.change = controls.limit_slider(loop_design.FREE, "Δu per sample", self._plant, **quiet)
        self.horizon = ipywidgets.IntSlider(20, 1, LONGEST, description="horizon [samples]", **quiet, **controls.WIDE)
        self.weight = controls.factor_slider("R: input weight ×", **quiet)
        self.initial = controls.initial_sliders(self._plant, **quiet)
        kept = {name: getattr(self, name) for name in ("limit", "change", "horizon", "weight")}
        pages = controls.tabs({"controller": [*kept.values()], "initial state": [*self.initial.values()]})
        super().__init__([pages], call=("mpc_designer", {"plant": plant, "num_steps": num_steps}))
        self.track(**kept, initial=self.initial)
        self.ask()

    def _question(self) -> dict[str, Any]:
        limits = {name: controls.limit_of(self.values[name], self._plant) for name in ("limit", "change")}
        return self.values | limits

    def _compute(self, question: dict[str, Any], check: Check) -> Picture:
        plant, (A, B), (Q, R) = self._plant, self._plant.matrices(), self._plant.weights()
        limit, change = (loop_design.largest_inputs(plant, question[name]) for name in ("limit", "change"))
        problem = Problem.of(plant, optimum=False)
        sampled = control.discretize(A, B, Q, question["weight"] * R, plant.dt)
        gain = control.dlqr(*sampled)
        x0, runs = jnp.asarray([question[f"initial.{s.name}"] for s in plant.states]), {}
        for label, horizon in {"MPC": question["horizon"], "clipped LQR": 0}.items():
            check()
            policy = _AnyHorizon(sampled, gain.K, gain.P, *map(jnp.asarray, (limit, change, horizon)))
            runs[label] = jax.tree.map(np.asarray, _rollout(problem, policy, x0, num_steps=self._num_steps))
        said = "; ".join(f"the {label} {_outcome(plant, sampled, run)}" for label, run in runs.items())
        said = f"{loop_design.limit_words(question['limit'], plant)}: {said}."
        if unsolved := int(np.sum(~runs["MPC"].memory.solved)):
            said += f" <b>{unsolved} plans were not solved</b>: the loop shown is not optimal."
        return _picture(plant, runs, question["horizon"], limit, said)

    def _exported(self, question: dict[str, Any]) -> tuple[object, Problem]:
        plant, (Q, R), u_eq = self._plant, self._plant.weights(), np.asarray(self._plant.equilibrium()[1])
        limit, change = (loop_design.largest_inputs(plant, question[name]) for name in ("limit", "change"))
        limits = simulation.Limits(
            u=(u_eq - limit, u_eq + limit), du=(-change, change) if np.isfinite(change).all() else None
        )
        problem = Problem.of(plant, weights=(Q, question["weight"] * R), limits=limits)
        return predictive.mpc(problem, question["horizon"]), Problem.of(plant, optimum=False)


def _outcome(plant: Plant, sampled: control.Sampled, run: Trajectory) -> str:
    """Its cost in the weights chosen, or that it does not converge."""
    z = np.concatenate([run.xs[:-1], run.us], axis=-1)
    cost = np.einsum("ta,ab,tb->", z, np.block([[sampled.Q, sampled.N], [sampled.N.T, sampled.R]]), z)
    verdict = loop_design.outcome(plant, run)
    return f"costs {cost:.5g}" if verdict == Verdict.CONVERGED else f"<b>{verdict.name.lower()}</b> in this time"


def _picture(plant: Plant, runs: Mapping[str, Trajectory], horizon: int, limit: np.ndarray, said: str) -> Picture:
    """Both loops, signal by signal, with plans of the first as a fan and limits as dotted lines."""
    run, looks, ts, fan = runs["MPC"], svg.strokes(runs), np.asarray(runs["MPC"].ts), Stroke(3)
    places = charts.cells(len(signals := charts.channels(plant)), (0, 22, _WIDTH, _TALL), 3)
    body = svg.legend(2, 14, looks | {"its plans": fan} | ({"limits": _LIMIT} if np.isfinite(limit).all() else {}))
    begun = range(0, len(run.us) - 1, max(horizon // 2, -(-len(run.us) // _PLANS)))  # remembered a sample later
    for at, channel in zip(places, signals):
        loops = [(*channel.curve(each), looks[label]) for label, each in runs.items()]
        curves = loops[:1]  # whose range is the chart's; drawn again above its plans
        for t in begun:
            planned = getattr(run.memory, channel.field)[t + 1, : horizon + 1 - channel.held, channel.column]
            curves.append((ts[t] + (ts[1] - ts[0]) * np.arange(len(planned)), planned, fan))
        if channel.held and np.isfinite(limit).all():
            curves += [(ts[[0, -1]], np.full(2, s * limit[channel.column]), _LIMIT) for s in (-1, 1)]
        curves += loops[::-1]
        of = channel.name, channel.signal.unit, float(ts[-1])
        body += charts.over_time(at, curves, *of, steps=channel.held, lead=1)[0]
    alt = f"{plant.title}: states and inputs under clipped LQR, and under MPC of {horizon} samples with its plans"
    return Picture(svg.document(body, _WIDTH, sum(places[-1][1::2]) + 4, alt), alt, said)
