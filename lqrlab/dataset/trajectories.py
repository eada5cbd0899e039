"""The contents of a shard: plants drawn and designed, their closed loops, and which of these are kept."""

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

import lqrlab
from lqrlab import simulation, systems
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.manifest import FORMAT, REASONS, Shard, keys, splits, units
from lqrlab.dataset.shards import Content
from lqrlab.simulation import Keep, LinearPolicy, Problem, verdict
from lqrlab.simulation.recording import largest_sizes, paid
from lqrlab.systems import N_MAX, Plant, check_size

Runs = dict[str, np.ndarray]  # name → array ``[v, s, …]``: s loops of each of v plants


def drawn(config: DataConfig, shard: Shard) -> Problem:
    """The plants of a whole block, of which a shard takes the first ``shard.count``."""
    size = min(config.variants_per_shard, config.variants)
    plants = systems.sample(shard.family, key=keys(config, shard)[0], num=size, spread=config.spread)
    return posed(config, plants)


def posed(config: DataConfig, plants: Plant) -> Problem:
    """The problem of plants as the config simulates them: with its noises in units of the scales."""
    check_size(plants.n, plants.m, plants)
    problem = Problem.of(plants, linear=config.linear)
    return problem.disturbed(
        noise=config.noise * problem.scale_x,
        sensor_noise=config.sensor_noise * problem.scale_x,
        excitation=config.excitation * problem.scale_u,
    )


def initial_states(problem: Problem, key: PRNGKeyArray, num: int) -> Float[np.ndarray, "v num n"]:
    """Initial deviations in SI units."""
    plants = problem.plant
    if getattr(type(plants), "initial_state", None) is not Plant.initial_state:
        return np.asarray(problem.initial_state(key=key, num=num))
    # as Plant.initial_state, in one shape for all families: the program takes a second to compile
    normal = np.asarray(jax.random.normal(key, (len(problem), num, N_MAX)))
    return normal[..., : problem.n] * np.asarray(problem.scale_x)[:, None]


def simulate(config: DataConfig, problem: Problem, x0: Float[np.ndarray, "v s n"], key: PRNGKeyArray) -> Runs:
    """Run the optimum's loops that the config describes: what is written of each, and what decides whether it is kept.

    From x0 in SI units: ``x0``, ``states``, ``controls``, ``cost`` (of segments ``costs``); in scales ``start``,
    ``peak``, ``before``, ``last``.
    """
    gain = np.nan_to_num(np.asarray(problem.K))  # none where there is no optimum: nothing of it is written
    out = simulation.record(
        problem,
        LinearPolicy(jnp.asarray(gain)),
        jnp.asarray(x0),
        config.num_steps,
        _keep(config),
        key=key if _disturbed(config) else None,
        extra=problem.scale_x,
        total=config.variants * config.trajectories,
    )
    lead = x0.shape[:2]
    runs = {name: np.asarray(a).reshape(*lead, *a.shape[1:]) for name, a in out.items()}
    return runs | {"x0": x0, "start": x0 / np.asarray(problem.scale_x)[:, None]}


def _keep(config: DataConfig) -> Keep:
    """The data of a loop that are written, and those that decide whether it is kept."""
    keep = Keep(_states, _inputs_and_costs if config.segmented else _inputs, paid, largest_sizes(config.num_steps))
    return keep._replace(starts=config.starts, length=config.row_steps) if config.segmented else keep


def _states(xs: Array, us: Array, costs: Array, t: Array, scale_x: Array) -> dict[str, Array]:
    return {"states": xs.astype(jnp.float32)}


def _inputs(xs: Array, us: Array, costs: Array, t: Array, scale_x: Array) -> dict[str, Array]:
    return {"controls": us.astype(jnp.float32)}


def _inputs_and_costs(xs: Array, us: Array, costs: Array, t: Array, scale_x: Array) -> dict[str, Array]:
    return {"controls": us.astype(jnp.float32), "costs": costs}


def _disturbed(config: DataConfig) -> bool:
    return any((config.excitation, config.noise, config.sensor_noise))


def kept(config: DataConfig, problem: Problem, runs: Runs) -> tuple[Bool[np.ndarray, "v s"], dict[str, int]]:
    """Loops to keep, by their sizes those of linear plants too, and numbers left out for ``manifest.REASONS``."""
    sizes = np.abs(runs["start"]).max(-1), runs["peak"], runs["before"], runs["last"]
    judged = verdict.of_peaks(*sizes, num_steps=config.num_steps, disturbed=_disturbed(config))
    stays = np.asarray(judged) != verdict.Verdict.DIVERGED
    optimal = np.asarray(problem.has_optimum)
    left_out = (~optimal).sum(), (optimal[:, None] & ~stays).sum(), 0
    return optimal[:, None] & stays, dict(zip(REASONS, map(int, left_out)))


def make(config: DataConfig, shard: Shard) -> Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        problem = drawn(config, shard)
        _, begin, noise = keys(config, shard)
        x0 = initial_states(problem, begin, config.trajectories)
        runs = simulate(config, problem, x0, noise)
        # a whole block is computed and then cut: one compiled program for all shards, and the same bits in each
        first = slice(shard.count)
        problem, runs = problem[first], {name: a[first] for name, a in runs.items()}
        chosen, left_out = kept(config, problem, runs)
        return _content(config, shard, problem, _rows(config, runs, chosen), left_out)


def _rows(config: DataConfig, runs: Runs, chosen: Bool[np.ndarray, "v s"]) -> dict[str, np.ndarray]:
    """Group ``trajectories`` of the chosen loops: a row for all of each, or for each segment."""
    if config.segmented:
        # the first states of later segments are known from the states that are kept
        starts = np.concatenate([runs["x0"][:, :, None], runs["states"][:, :, 1:, 0]], axis=2)
        runs = runs | {"x0": starts, "cost": runs["costs"].sum(-1)}
    else:
        runs = {name: runs[name][:, :, None] for name in ("x0", "states", "controls", "cost")}
    # uncopied where all are chosen
    parts = {name: runs[name] if chosen.all() else runs[name][chosen] for name in ("x0", "states", "controls", "cost")}
    rows = {name: a.reshape(-1, *runs[name].shape[3:]) for name, a in parts.items()}
    of = np.nonzero(chosen)[0].astype(np.int32)
    if config.segmented:
        rows["start"] = np.tile(np.array(config.starts, np.int32), len(of))
    return {"variant": np.repeat(of, len(config.starts)), **rows}


def _content(
    config: DataConfig, shard: Shard, problem: Problem, rows: dict[str, np.ndarray], left_out: dict[str, int]
) -> Content:
    """Of the plants that have an optimum, and the rows of their loops."""
    plants, continuous = problem.plant, problem.continuous
    assert plants is not None
    assert continuous is not None
    good = np.flatnonzero(problem.has_optimum)
    # rows of the table that is written, in which variants without an optimum are missing
    rows = rows | {"variant": np.searchsorted(good, rows["variant"]).astype(np.int32)}
    columns = {name: getattr(continuous, name) for name in "ABQR"}
    columns |= {name: getattr(problem, name) for name in ("K", "P", "dt", "scale_x", "scale_u")}
    for name, value in plants.parameters.items():
        columns[f"parameters/{name}"] = np.broadcast_to(np.asarray(value), (len(problem),))
    columns = {name: np.asarray(a)[good] for name, a in columns.items()}
    columns["family"] = np.full(len(good), shard.family, dtype=f"S{len(shard.family)}")
    columns["variant"] = (shard.first + good).astype(np.int32)
    columns["split"] = splits(config, shard.family)[shard.first + good]
    arrays = {f"variants/{name}": a for name, a in columns.items()}
    arrays |= {f"trajectories/{name}": a for name, a in rows.items()}
    about = {
        "format": FORMAT,
        "config": config.to_json(),
        "family": shard.family,
        "first_variant": shard.first,
        "states": ", ".join(s.name for s in plants.states),
        "inputs": ", ".join(s.name for s in plants.inputs),
        "source": plants.source,
        **{f"left_out_{reason}": number for reason, number in left_out.items()},
        "lqrlab": lqrlab.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": jax.default_backend(),
    }
    return Content({name: np.ascontiguousarray(a) for name, a in arrays.items()}, units(config, plants), about)
