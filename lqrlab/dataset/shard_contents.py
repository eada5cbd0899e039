"""The contents of a shard: plants drawn and designed, closed loops, and their arrays, units and attributes."""

from typing import Any

import h5py
import jax
import numpy as np
from jaxtyping import Bool

import lqrlab
from lqrlab.dataset import layout, shards, trajectories
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.layout import Shard, keys, splits
from lqrlab.dataset.trajectories import Runs
from lqrlab.dataset.variant_table import Columns
from lqrlab.simulation import Problem, binding, is_policy


def make(config: DataConfig, shard: Shard, controller: object = None) -> shards.Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        problem = trajectories.drawn(config, shard)
        _, begin, noise = keys(config, shard)
        x0 = trajectories.initial_states(problem, begin, config.trajectories)
        runs = trajectories.simulate(config, problem, x0, noise, controller)
        # a whole block is computed and then cut: one compiled program for all shards, and the same bits in each
        first = slice(shard.count)
        problem, runs = problem[first], {name: a[first] for name, a in runs.items()}
        chosen, left_out = trajectories.kept(config, problem, runs)
        return _content(config, shard, problem, runs, chosen, left_out)


def _content(
    config: DataConfig,
    shard: Shard,
    problem: Problem,
    runs: Runs,
    chosen: Bool[np.ndarray, "v s"],
    left_out: dict[str, int],
) -> shards.Content:
    """Of the plants that have an optimum, and the chosen loops."""
    rows = {name: _chosen(chosen, a) for name, a in _rows(config, runs).items()}
    # rows of the table that is written, in which variants without an optimum are missing
    of = (np.cumsum(problem.has_optimum) - 1)[np.nonzero(chosen)[0]].astype(np.int32)
    written = {"variant": np.repeat(of, len(config.starts)), **rows}
    if config.segmented:
        written["start"] = np.tile(np.array(config.starts, np.int32), len(of))
    arrays = {f"variants/{name}": a for name, a in _columns(config, shard, problem).items()}
    arrays |= {f"trajectories/{name}": np.ascontiguousarray(a) for name, a in written.items()}
    plants = problem.plant
    assert plants is not None
    about = {
        "format": layout.FORMAT,
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
    return shards.Content(arrays, layout.units(config, plants), about)


def _columns(config: DataConfig, shard: Shard, problem: Problem) -> Columns:
    """Group ``variants``, in SI units: one row for each plant of a shard that has an optimum."""
    plants, continuous, size = problem.plant, problem.continuous, len(problem)
    assert plants is not None
    assert continuous is not None
    table: dict[str, Any] = {
        "family": np.full(size, shard.family, dtype=f"S{len(shard.family)}"),
        "variant": np.arange(shard.first, shard.first + size, dtype=np.int32),
        "split": splits(config, shard.family)[shard.first : shard.first + size],
        **{name: getattr(continuous, name) for name in "ABQR"},
        "K": problem.K,
        "P": problem.P,
        "dt": problem.dt,
        "scale_x": problem.scale_x,
        "scale_u": problem.scale_u,
    }
    for name, value in plants.parameters.items():
        table[f"parameters/{name}"] = np.broadcast_to(np.asarray(value), (size,))
    good = np.asarray(problem.has_optimum)
    return {name: np.ascontiguousarray(np.asarray(a)[good]) for name, a in table.items()}


def _rows(config: DataConfig, runs: Runs) -> Runs:
    """The data of each loop that are written ``[v, s, rows, …]``: a row for all of it, or for each segment."""
    if not config.segmented:
        return {name: runs[name][:, :, None] for name in ("x0", "states", "controls", "cost")}
    # the first states of later segments are known from the states that are kept
    starts = np.concatenate([runs["x0"][:, :, None], runs["states"][:, :, 1:, 0]], axis=2)
    paid = runs["costs"].sum(-1)
    return {"x0": starts, "states": runs["states"], "controls": runs["controls"], "cost": paid}


def _chosen(chosen: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The rows of the loops that are kept, one after the other; uncopied where all are."""
    return (a if chosen.all() else a[chosen]).reshape(-1, *a.shape[3:])


def check_controller(config: DataConfig, controller: object) -> None:
    """Refuse a controller that the config does not name, or that is bound to some plants already."""
    if (controller is None) != (config.controller == "lqr"):
        runner = "the optimum" if controller is None else "the controller that was given"
        raise ValueError(f"controller: the config says {config.controller!r}, but {runner} runs the loops")
    if controller is not None:
        binding.check_controller(controller)
    if is_policy(controller):
        raise ValueError(
            "controller: expected what binds to the plants of each family, such as a network or a function from a "
            f"problem to a policy, but found a policy, {type(controller).__name__}"
        )
