"""A plant's regulator at a grid of sample times, weights and values of one parameter, each tried in closed loop."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Int

from lqrlab import control, simulation, systems
from lqrlab.compute import jit_by_function
from lqrlab.simulation import Problem, verdict
from lqrlab.systems import Plant, Signal
from lqrlab.workbench.figures import loop_design
from lqrlab.workbench.figures.loop_sampling import TICKS, held, rk4_steps

_SAMPLES = np.array([1, 2, 4, 8, 16, 32, 64])  # ticks in the sample times
_FACTORS = 10.0 ** np.linspace(-2, 2, 9)  # of the weight
_SIDE = 3  # values of the parameter to each side of its default
_REACH = 2.0  # the parameter goes from its default over this to its default times this, within its range
_POINTS = 96  # of a curve, at most
_MOST_STEPS = 400  # sample times of the plant that the curves take


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Designs and what became of their loops; axes: sample time, factor of the weight, value of the parameter."""

    plant: Plant  # at its defaults
    weight: Signal  # whose weight moves
    parameter: str  # that moves; empty if there is none
    times: Float[np.ndarray, " s"]  # sample times [s]
    factors: Float[np.ndarray, " w"]
    values: Float[np.ndarray, " p"]  # of the parameter
    at: tuple[int, int, int]  # position of the defaults
    found: Bool[np.ndarray, "s w p"]  # whether there is a stabilising gain
    poles: Complex[np.ndarray, "s w p n"]
    ts: Float[np.ndarray, " points"]  # times of the curves [s]
    xs: Float[np.ndarray, "s w p points n"]
    us: Float[np.ndarray, "s w p points m"]
    peaks: Float[np.ndarray, "s w p m"]  # largest magnitude of each input
    costs: Float[np.ndarray, "s w p"]  # paid until the last time, in the plant's own weights
    verdicts: Int[np.ndarray, "s w p"]


def grid(plant: Plant, parameter: str | None = None, weight: str | None = None) -> Grid:
    """Design at each point of the grid, and run each loop on the nonlinear plant; arguments as of ``page``."""
    signal, which = _weight(plant, weight)
    name, values = _parameter(plant, parameter)
    tick = float(plant.dt) / TICKS
    # the sample times share one sampled problem for each parameter and weight
    batch = _varied(plant, {name: values} if name else {}, len(values))
    batch = batch.broadcast_to((len(values), len(_FACTORS)))
    roots = [np.ones((len(_FACTORS), len(signals))) for signals in (plant.states, plant.inputs)]
    roots[which[0]][:, which[1]] = np.sqrt(_FACTORS)
    own = batch.weights()
    weights = (np.asarray(W) * r[:, :, None] * r[:, None, :] for W, r in zip(own, roots))
    substeps = rk4_steps(batch.matrices()[0], tick)
    problem = Problem.of(batch, dt=tick, weights=tuple(weights), substeps=substeps, optimum=False)  # type: ignore[arg-type]
    sampled = [held(problem.sampled, ticks) for ticks in _SAMPLES]
    design = control.dlqr(*(np.swapaxes(np.stack(a), 1, 2) for a in zip(*sampled)))
    least = TICKS * loop_design.horizon(plant, None, most=_MOST_STEPS)
    every = 2 ** math.ceil(math.log2(max(least / _POINTS, 1)))
    x0 = jnp.broadcast_to(loop_design.start(plant), (*problem.batch_shape, plant.n))
    gains = jnp.swapaxes(design.K, 1, 2)
    Q, R = (jnp.broadcast_to(W, like.shape) for W, like in zip(own, (problem.Q, problem.R)))
    charged = problem.continuous._replace(Q=Q, R=R)  # type: ignore[union-attr]
    charged_so = dataclasses.replace(problem, continuous=charged)
    sizes = {"points": -(-least // every), "every": every}
    kept = _loops(charged_so, gains, jnp.asarray(_SAMPLES), x0, **sizes)
    xs, us, *rest = (np.swapaxes(np.asarray(a), 1, 2) for a in kept)
    middle = int(np.argmin(np.abs(values - getattr(plant, name)))) if name else 0
    at = (int(np.flatnonzero(_SAMPLES == TICKS)[0]), len(_FACTORS) // 2, middle)
    found, poles = np.asarray(design.stabilizing), np.asarray(design.poles)
    ts = every * tick * np.arange(xs.shape[-2])
    return Grid(plant, signal, name, tick * _SAMPLES, _FACTORS, values, at, found, poles, ts, xs, us, *rest)


def _weight(plant: Plant, name: str | None) -> tuple[Signal, tuple[int, int]]:
    """The signal whose weight moves; whether it is an input, and its place."""
    places = {s.name: (s, (k, i)) for k, of in enumerate((plant.states, plant.inputs)) for i, s in enumerate(of)}
    name = plant.inputs[0].name if name is None else name
    if name not in places:
        raise ValueError(f"weight: expected one of {', '.join(places)}, but found {name!r}")
    return places[name]


def _parameter(plant: Plant, name: str | None) -> tuple[str, Float[np.ndarray, " p"]]:
    """The parameter that moves, and its values: about its default, within its range."""
    fields = systems.parameter_fields(type(plant))
    if name is not None and name not in fields:
        raise ValueError(f"parameter: expected one of {', '.join(fields)}, but found {name!r}")
    spans = {}
    for key, f in fields.items():
        usual = float(getattr(plant, key))
        low, high = sorted((usual / _REACH, usual * _REACH))
        low, high = max(low, min(f.metadata["low"], usual)), min(high, max(f.metadata["high"], usual))
        if low < high and (key == name or (name is None and f.metadata["vary"])):
            sides = np.linspace(low, usual, _SIDE + 1)[:-1], np.linspace(usual, high, _SIDE + 1)
            spans[key] = np.unique(np.concatenate(sides))
    if name is not None and not spans:
        raise ValueError(f"parameter: {name} is {float(getattr(plant, name)):g} and has no range to move in")
    name = max(effects, key=lambda key: effects[key]) if (effects := _effects(plant, spans)) else ""
    return name, spans.get(name, np.zeros(1))


def _effects(plant: Plant, spans: dict[str, Float[np.ndarray, " p"]]) -> dict[str, float]:
    """By what factor each parameter changes the optimal cost from the initial state within its span."""
    columns = {key: np.full((len(spans), 2), float(getattr(plant, key))) for key in spans}
    for row, (key, span) in enumerate(spans.items()):
        columns[key][row] = span[[0, -1]]
    if not spans:
        return {}
    ends = _varied(plant, {key: column.ravel() for key, column in columns.items()}, 2 * len(spans))
    x0, P = loop_design.start(plant), np.asarray(Problem.of(ends, linear=True).P)
    found = x0 @ P @ x0
    costs = np.where(np.isfinite(found), np.maximum(found, 1e-300), 1.0)  # one where there is no optimum
    ratios = np.log(np.reshape(costs, (-1, 2)))
    return dict(zip(spans, np.abs(ratios[:, 1] - ratios[:, 0]).tolist()))


def _varied(plant: Plant, columns: dict[str, Float[np.ndarray, " p"]], count: int) -> Plant:
    """A batch of ``count`` plants whose parameters are in columns."""
    values = {key: jnp.asarray(column) for key, column in columns.items()}
    return dataclasses.replace(plant.broadcast_to((count,)), **values)  # type: ignore[type-var]


@partial(jit_by_function, static_argnames=("points", "every"))
def _loops(problem: Problem, K: Array, holds: Array, x0: Array, *, points: int, every: int) -> tuple[Array, ...]:
    """The loops of each sample time tick by tick, their inputs held; states and inputs every so many ticks are kept."""

    def loops(K: Array, hold: Array) -> tuple[Array, ...]:
        free = jnp.full(problem.m, jnp.inf)
        policy = simulation.DelayedPolicy(K, hold, jnp.zeros((), int), free, 0)
        run = simulation.rollout(problem, policy, x0, points * every)
        judged = verdict.of_sizes(verdict.size(run.xs, problem.scale_x))
        us = jnp.concatenate([run.us, run.us[..., -1:, :]], axis=-2)
        return run.xs[..., ::every, :], us[..., ::every, :], jnp.abs(run.us).max(-2), run.cost, judged

    return jax.vmap(loops)(K, holds)
