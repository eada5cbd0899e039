"""Designs for a plant at many points of its parameters, weights and sample time, each tried in closed loop."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import control, evaluation, systems
from lqrlab.simulation import Problem, sampling
from lqrlab.systems import Plant
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
_NUMBERS_AT_ONCE = 1e7  # states and inputs that one program holds
Batch = tuple[Plant, np.ndarray, tuple[jax.Array, jax.Array]]
"""Plants, their sample times, and Q and R of each."""


def parameters(name: str) -> dict[str, Parameter]:
    """Names that a sweep can set: the plant's parameters, its sample time, a factor for each diagonal weight."""
    cls, known = systems.family(name), {}
    for key, field in systems.parameter_fields(cls).items():
        known[key] = Parameter(key, float, field.default, f"{field.metadata['about']} [{field.metadata['unit']}]")
    known["dt"] = Parameter("dt", float, float(cls.dt), "sample time [s]")
    for key in [f"q_{signal.name}" for signal in cls.states] + [f"r_{signal.name}" for signal in cls.inputs]:
        known[key] = Parameter(key, float, 1.0, "factor of the weight [1]")
    return known


def units(name: str) -> dict[str, str]:
    """Units of what can be set of the plant and of what is computed."""
    return {key: p.about.rpartition("[")[2].rstrip("]") for key, p in parameters(name).items()} | NUMBERS


def batch(name: str, points: Sequence[Values]) -> Batch:
    """The plants at ``points``, their dt and weights; a value outside of its range is refused by its name."""
    cls, known = systems.family(name), parameters(name)
    columns = {key: np.array([point.get(key, p.default) for point in points], float) for key, p in known.items()}
    fields = systems.parameter_fields(cls)
    for key in known.keys() - fields.keys():
        if not (columns[key] > 0).all():
            raise ValueError(f"{name}.{key}: expected numbers above 0, but found {columns[key].min():g}")
    plants = cls(**{key: systems.check_parameter(cls, key, columns[key]) for key in fields})
    weights = []
    for prefix, signals, weight in zip("qr", (cls.states, cls.inputs), plants.weights()):
        root = np.sqrt([columns[f"{prefix}_{signal.name}"] for signal in signals]).T
        weights.append(weight * root[:, :, None] * root[:, None, :])
    return plants, columns["dt"], (weights[0], weights[1])


def designs(name: str, batch: Batch) -> Iterator[list[tuple[int, Values]]]:
    """Design for each plant and try it on the nonlinear plant; yields (position, numbers) as they are done.

    The numbers: ``cost``, the mean x0ᵀP x0 of typical starts; ``nominal_excess`` [%], by how much the gain of the
    default parameters exceeds it on the linear plant (inf where it does not stabilise); ``nonlinear_p95`` and
    ``nonlinear_median`` [%], cost on the nonlinear plant above x0ᵀP x0, and ``nonlinear_diverged`` [%];
    ``time_constant`` [s] and ``slowest`` |λ| of the slowest mode; ``gain`` ‖K‖₂ in the signals' scales.
    A point without a stabilizing design has an ``error`` in their place.
    """
    plants, dt, weights = batch
    problem = Problem.of(plants, dt=dt, weights=weights, linear=True)
    good = np.asarray(problem.has_optimum)
    yield [(int(i), {"error": _why(problem[int(i)])}) for i in np.flatnonzero(~good)]
    if not good.any():
        return
    poles = np.linalg.eigvals(np.nan_to_num(np.asarray(problem.closed_loop())))
    table = _linear_numbers(name, problem, poles)
    # a point's numbers depend on no other point: its horizon follows from its own loop, all have the same starts
    horizon = np.array([next(n for n in HORIZONS if n >= least) for least in map(control.settling_steps, poles)])
    x0 = plants[0].initial_state(key=jax.random.key(0), num=STARTS)
    for steps in np.unique(horizon[good]):
        left = np.flatnonzero(good & (horizon == steps))
        most = 2 ** np.ceil(np.log2(max(len(left), 64)))  # few shapes, few programs
        chunk = int(np.clip(_NUMBERS_AT_ONCE // (STARTS * (steps + 1) * (x0.shape[-1] + problem.m + 1)), 1, most))
        for rows in np.split(left, range(chunk, len(left), chunk)):
            loops = _nonlinear_numbers(problem[np.resize(rows, chunk)], x0, int(steps))
            part = {k: v[rows] for k, v in table.items()} | {k: v[: len(rows)] for k, v in loops.items()}
            yield [(int(i), {k: float(part[k][j]) for k in NUMBERS}) for j, i in enumerate(rows)]


def _linear_numbers(name: str, problem: Problem, poles: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers that follow from the design and the linearised plant alone."""
    assert problem.plant is not None
    states, inputs = (np.asarray(s) for s in problem.plant.scales)
    cost = np.einsum("vii,i->v", np.asarray(problem.P), states**2)
    nominal = Problem.of(systems.make(name), linear=True).K
    # the cost of that one gain on each plant; NaN where it does not stabilise
    price = control.dlyap(problem.closed_loop(nominal).mT, problem.stage_weight(nominal))
    paid = np.einsum("vii,i->v", np.asarray(price), states**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "cost": cost,
            "nominal_excess": np.where(np.isfinite(paid), 100 * (paid / cost - 1), np.inf),
            "time_constant": control.settling_time(poles, problem.dt, within=np.exp(-1)),
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
    median, high = np.quantile(100 * (np.asarray(score.ratio) - 1), (0.5, 0.95), axis=-1, method="higher")
    diverged = 100 * np.asarray(jnp.mean(score.diverged, -1))
    return {"nonlinear_p95": high, "nonlinear_diverged": diverged, "nonlinear_median": median}


def _why(problem: Problem) -> str:
    """Reason why one problem has no optimum, as ``control`` puts it."""
    try:
        control.dlqr(problem.A, problem.B, problem.Q, problem.R, problem.N)
    except ValueError as error:
        return str(error)
    return "no stabilizing design was found"
