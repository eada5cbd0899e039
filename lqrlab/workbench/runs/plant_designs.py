"""Designs for a plant at many points of its parameters, weights and sample time, each tried in closed loop."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import control, evaluation, systems
from lqrlab.simulation import Problem, sampling
from lqrlab.systems import Plant
from lqrlab.workbench.figures import loop_design
from lqrlab.workbench.figures.plant_card import phrase
from lqrlab.workbench.runs.notebooks import Parameter, Values

NUMBERS = {  # of each design, and their units, in the order in which they are shown
    "cost": "1",
    "nominal_excess": "%",
    "nonlinear_p95": "%",
    "nonlinear_diverged": "%",
    "nonlinear_median": "%",
    "time_constant": "s",
    "slowest": "1",
    "gain": "1",
}
HORIZONS = (100, 200, 500, 1000, 2000)  # steps of a loop, few: each is a compiled program
STARTS = 16  # initial states that each design is tried from
_BYTES = 1e8  # of states that one program writes
Rows = Iterator[list[tuple[int, Values]]]
"""Positions of points and their numbers, as they become known."""


@functools.cache
def weighted(name: str) -> type[Plant]:
    """The family ``name`` with its sample time and a factor for each diagonal weight as further parameters."""
    cls = systems.family(name)
    q, r = [f"q_{s.name}" for s in cls.states], [f"r_{s.name}" for s in cls.inputs]

    def weights(self: Plant) -> tuple[jax.Array, ...]:
        plain = super(made, self).weights()
        factors = (jnp.broadcast_arrays(*(getattr(self, key) for key in keys)) for keys in (q, r))
        roots = (jnp.sqrt(jnp.stack(f, axis=-1)) for f in factors)
        return tuple(w * s[..., :, None] * s[..., None, :] for w, s in zip(plain, roots))

    dt = float(cls.dt)
    body: dict[str, Any] = {"dt": systems.param(dt, "s", "sample time", dt / 1000, dt * 1000)}
    for key, signal in zip((*q, *r), (*cls.states, *cls.inputs)):
        body[key] = systems.param(1.0, "1", f"factor of the weight of {signal.name}", 1e-9, 1e9)
    body |= {"__annotations__": dict.fromkeys(body, Any), "__doc__": cls.__doc__, "weights": weights}
    made: Any = type(cls)(cls.__name__, (cls,), body)  # type: ignore[misc]
    return made


def parameters(name: str) -> dict[str, Parameter]:
    """The parameters of the plant ``name`` that a sweep can set."""
    made = {}
    for key, f in systems.parameter_fields(weighted(name)).items():
        unit = f.metadata["unit"]
        made[key] = Parameter(key, float, f.default, f.metadata["about"] + (f" [{unit}]" if unit != "1" else ""))
    return made


def title(name: str) -> str:
    """The plant's title."""
    return phrase(systems.family(name).title)


def units(name: str) -> dict[str, str]:
    """Units of what can be set of the plant and of what is computed."""
    fields = systems.parameter_fields(weighted(name)).items()
    return {key: f.metadata["unit"] for key, f in fields} | NUMBERS


def plants(name: str, points: Sequence[Values]) -> Plant:
    """The batch of plants at ``points``; a value outside of its range is refused by its name."""
    cls, columns = weighted(name), {}
    for key, f in systems.parameter_fields(cls).items():
        column = np.array([point.get(key, f.default) for point in points], float)
        given = any(key in point for point in points)
        columns[key] = systems.check_parameter(cls, key, column) if given else jnp.asarray(column)
    return cls(**columns)


def designs(name: str, batch: Plant) -> Rows:
    """Design for each plant and try it on the nonlinear plant; yields (position, numbers) as they are done.

    The numbers: ``cost``, the mean x0ᵀP x0 of typical starts; ``nominal_excess`` [%], what the gain of the default
    parameters pays above that on the linear plant, on average (inf where it does not stabilise);
    ``nonlinear_p95`` and ``nonlinear_median`` [%], cost on the nonlinear plant above x0ᵀP x0 over 16 typical starts
    (a gentle nonlinearity can make it less), and ``nonlinear_diverged`` [%], the share of them that diverge;
    ``time_constant`` [s] and ``slowest`` |λ| of the loop's slowest mode; ``gain`` ‖K‖₂ in the signals' scales.
    A point without a stabilizing design has an ``error`` in their place.
    """
    problem = Problem.of(batch, linear=True)
    good = np.asarray(problem.has_optimum)
    yield [(int(i), {"error": _why(batch[int(i)])}) for i in np.flatnonzero(~good)]
    if not good.any():
        return
    poles = np.linalg.eigvals(np.nan_to_num(np.asarray(problem.closed_loop())))
    table = _linear_numbers(name, problem, poles)
    # a point's numbers depend on no other point: its horizon follows from its own loop, and all points start from
    # the same states
    settled = map(control.settling_steps, poles)
    horizon = np.array([next(n for n in HORIZONS if n >= least) for least in settled])
    x0 = batch[0].initial_state(key=jax.random.key(0), num=STARTS)
    for steps in np.unique(horizon[good]):
        left = np.flatnonzero(good & (horizon == steps))
        size = 8 * STARTS * (int(steps) + 1) * (batch.n + batch.m + 1)
        most = 2 ** np.ceil(np.log2(max(len(left), 64)))  # few shapes, few programs
        chunk = int(min(max(_BYTES // size, 1), most))
        for first in range(0, len(left), chunk):
            rows = left[first : first + chunk]
            loops = _nonlinear_numbers(problem[np.resize(rows, chunk)], x0, int(steps))
            part = {k: v[rows] for k, v in table.items()} | {k: v[: len(rows)] for k, v in loops.items()}
            yield [(int(i), {k: float(part[k][j]) for k in NUMBERS}) for j, i in enumerate(rows)]


def _linear_numbers(name: str, problem: Problem, poles: loop_design.Poles) -> dict[str, np.ndarray]:
    """Numbers that follow from the design and the linearised plant alone."""
    assert problem.plant is not None
    states, inputs = (np.asarray(s) for s in problem.plant.scales)
    cost = np.einsum("vii,i->v", np.asarray(problem.P), states**2)
    nominal = Problem.of(systems.make(name), linear=True).K
    # what that one gain pays on average on each plant; NaN where it does not stabilise
    price = control.dlyap(problem.closed_loop(nominal).mT, problem.stage_weight(nominal))
    paid = np.einsum("vii,i->v", np.asarray(price), states**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "cost": cost,
            "nominal_excess": np.where(np.isfinite(paid), 100 * (paid / cost - 1), np.inf),
            "time_constant": loop_design.time_constant(poles, problem.dt),
            "slowest": np.abs(poles).max(-1),
            "gain": np.linalg.norm(np.nan_to_num(problem.K) * states / inputs[:, None], 2, axis=(-2, -1)),
        }


def _nonlinear_numbers(problem: Problem, x0: jax.Array, steps: int) -> dict[str, np.ndarray]:
    """Costs of the loops on the nonlinear plants."""
    assert problem.plant is not None
    assert problem.continuous is not None
    substeps = sampling.substeps_of(problem.plant, problem.continuous.A, problem.dt, None)
    nonlinear = dataclasses.replace(problem, linear=False, substeps=substeps)
    x0 = jnp.broadcast_to(x0, (len(problem), *x0.shape))
    score = evaluation.evaluate(problem.K, nonlinear, key=jax.random.key(0), x0=x0, num_steps=steps)
    above = 100 * (np.asarray(score.ratio) - 1)
    median, high = np.quantile(above, (0.5, 0.95), axis=-1, method="higher")
    diverged = 100 * np.asarray(jnp.mean(score.diverged, -1))
    return {"nonlinear_p95": high, "nonlinear_diverged": diverged, "nonlinear_median": median}


def _why(plant: Plant) -> str:
    """Reason why one plant has no design, as ``control`` puts it."""
    try:
        control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    except ValueError as error:
        return str(error)
    return "no stabilizing design was found"
