"""What is in a shard: plants drawn, designs, closed loops, and what of them is kept."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lqrlab
from lqrlab import control, simulation, systems
from lqrlab.compute.compiling import quickly
from lqrlab.dataset import manifest, shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import in_units
from lqrlab.dataset.plan import Shard, keys, splits
from lqrlab.simulation.engines import batch_last, stepping
from lqrlab.systems import N_MAX, Linear, Plant

DIVERGED = 1e3
"""A state this many scales away from the equilibrium has left the model for good."""


Controller = Callable[[Plant], simulation.Policy]
"""From a batch of plants to the policy that runs their loops."""


def make(config: DataConfig, shard: Shard, controller: Controller | None = None) -> shards.Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        return _make(config, shard, controller)


def _make(config: DataConfig, shard: Shard, controller: Controller | None) -> shards.Content:
    draw, begin, noise = keys(config, shard)
    # always a whole block, cut afterwards: one compiled program for all shards, and the same bits in each
    size, count = min(config.variants_per_shard, config.variants), slice(0, shard.count)
    plants = systems.sample(shard.family, key=draw, num=size, spread=config.spread)
    linear = jax.tree.map(np.asarray, systems.linearise(plants))
    sx, su = (np.broadcast_to(np.asarray(s, float), (size, s.shape[-1])) for s in plants.scales)
    scaled = in_units(linear, sx, su)
    design = jax.tree.map(np.asarray, _design()(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt))
    gain = np.where(design.stabilizing[:, None, None], design.K, 0.0)
    if config.gain_error:  # of the loops alone: what is recorded as the optimum stays so
        off = jax.random.normal(jax.random.fold_in(begin, 1), gain.shape)
        gain = gain * (1 + config.gain_error * np.asarray(off))
    x0 = starts(plants, begin, config.trajectories, sx)
    if controller is not None:
        out = _controlled(config, plants, controller, x0, sx, su, noise)
    else:
        run = _linear if config.linear else _nonlinear
        out = run(config, plants, scaled, gain, x0, sx, su, noise)

    n, m = plants.n, plants.m
    designed = design.stabilizing[count]
    shaped = {name: a.reshape(size, config.trajectories, *a.shape[1:])[count] for name, a in out.items()}
    x0 = x0[count]
    chosen, left_out = kept(config, designed, x0 / sx[count, None], shaped, design.P[count, :n, :n])
    rows = {name: _where(chosen, a) for name, a in _rows(config, x0, shaped).items()}
    table = {
        "family": np.full(size, shard.family, dtype=f"S{len(shard.family)}"),
        "variant": np.arange(shard.first, shard.first + size, dtype=np.int32),
        "split": splits(config, shard.family)[shard.first : shard.first + shard.count],
        "A": linear.A,
        "B": linear.B,
        "Q": linear.Q,
        "R": linear.R,
        "K": design.K[:, :m, :n] * su[:, :, None] / sx[:, None, :],
        "P": design.P[:, :n, :n] / sx[:, :, None] / sx[:, None, :],
        "dt": linear.dt,
        "scale_x": sx,
        "scale_u": su,
    }
    for name, value in plants.parameters.items():
        table[f"parameters/{name}"] = np.broadcast_to(np.asarray(value), (size,))
    # rows of the table that is kept, in which variants without a design are missing
    of = (np.cumsum(designed) - 1)[np.nonzero(chosen)[0]].astype(np.int32)
    runs = {"variant": np.repeat(of, len(config.starts)), **rows}
    if config.keep_every > 1:
        runs["start"] = np.tile(np.array(config.starts, np.int32), len(of))
    arrays = {f"variants/{name}": np.ascontiguousarray(a[count][designed]) for name, a in table.items()}
    arrays |= {f"trajectories/{name}": np.ascontiguousarray(a) for name, a in runs.items()}
    about = {
        "format": manifest.FORMAT,
        "config": config.to_json(),
        "family": shard.family,
        "first_variant": shard.first,
        "states": ", ".join(s.name for s in plants.states),
        "inputs": ", ".join(s.name for s in plants.inputs),
        "source": plants.source,
        **{f"left_out_{reason}": number for reason, number in left_out.items()},
        **versions(),
    }
    return shards.Content(arrays, _units(plants, thinned=config.keep_every > 1), about, config.compression)


def starts(plants: Plant, key: Array, num: int, sx: np.ndarray) -> np.ndarray:
    """Initial deviations ``[size, num, n]``."""
    if type(plants).initial_state is not Plant.initial_state:
        return np.asarray(plants.initial_state(key=key, num=num))
    # what Plant.initial_state says, in one shape for all families: the program takes a second to compile
    normal = np.asarray(jax.random.normal(key, (len(sx), num, N_MAX)))
    return normal[..., : plants.n] * sx[:, None]


@functools.cache
def _design() -> Callable:
    """``control.lqrd`` as one program for all families."""
    return quickly(control.lqrd)


def versions() -> dict[str, str]:
    """What computed the numbers."""
    return {
        "lqrlab": lqrlab.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": jax.default_backend(),
    }


def _rows(config: DataConfig, x0: np.ndarray, runs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What of each trajectory is written ``[variants, trajectories, rows, …]``: all of it, or its stretches."""
    if config.keep_every == 1:
        whole = {name: runs[name] for name in ("states", "controls", "cost")}
        return {name: a[:, :, None] for name, a in ({"x0": x0} | whole).items()}
    # a later row's start is known as its first state is
    starts = np.concatenate([x0[:, :, None], runs["states"][:, :, 1:, 0]], axis=2)
    rows = {name: runs[name] for name in ("states", "controls")}
    return {"x0": starts, **rows, "cost": runs["costs"].sum(-1)}


def _where(kept: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The rows of the trajectories that are kept, one after the other; uncopied where all are."""
    return (a if kept.all() else a[kept]).reshape(-1, *a.shape[3:])


@functools.cache
def _sampled() -> Callable:
    """``control.discretize``, compiled as quickly; one program for all families."""
    return quickly(control.discretize)


def _linear(
    config: DataConfig,
    plants: Plant,
    scaled: Linear,
    gain: np.ndarray,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> dict[str, np.ndarray]:
    """Linear plants under exact zero-order hold, in units of their scales."""
    n, m = plants.n, plants.m
    wide = _sampled()(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt)
    model = stepping.Linear(*(a[:, :i, :j] for a, i, j in zip(wide, (n, n, n, m, n), (n, m, n, m, m))))
    one = np.ones((1, n)), np.ones((1, m))
    units = _Units(sx, su, *one)
    high = None if config.saturation is None else np.full((1, m), config.saturation)
    low = None if high is None else -high
    loops = batch_last.Loops(model, gain[:, :m, :n], low, high, units)  # type: ignore[arg-type]  # made arrays in _run
    return _run(config, loops, x0 / sx[:, None], one, key)


def _nonlinear(
    config: DataConfig,
    plants: Plant,
    scaled: Linear,
    gain: np.ndarray,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> dict[str, np.ndarray]:
    """One family's own equations of motion, in SI units; the costs are the same in either."""
    n, m = plants.n, plants.m
    u_eq = np.asarray(plants.equilibrium()[1])
    high = np.inf if config.saturation is None else config.saturation
    world = simulation.env(plants, limits=(u_eq - high * su, u_eq + high * su))
    K = gain[:, :m, :n] * su[:, :, None] / sx[:, None, :]
    units = _Units(np.ones((1, n)), np.ones((1, m)), 1 / sx, 1 / su)
    loops = simulation.bulk_loops(world, jnp.asarray(K))._replace(extra=units)
    return _run(config, loops, x0, (sx[:1], su[:1]), key, world.substeps)


class _Units(NamedTuple):
    """What states and inputs of the simulation are multiplied by for SI units, and for units of their scales."""

    x: np.ndarray
    u: np.ndarray
    relative_x: np.ndarray
    relative_u: np.ndarray


def _run(
    config: DataConfig,
    loops: batch_last.Loops,
    x0: np.ndarray,
    one: tuple[np.ndarray, np.ndarray],
    key: Array,
    substeps: int = 1,
) -> dict[str, np.ndarray]:
    """All loops of a shard; ``one`` is the scale that noise is given in units of."""
    sizes = (config.noise, config.sensor_noise, config.excitation)
    spread = (jnp.asarray(size * scale[0]) if size else None for size, scale in zip(sizes, (one[0], *one)))
    out = batch_last.simulate(
        jax.tree.map(jnp.asarray, loops),
        jnp.asarray(x0.reshape(-1, x0.shape[-1])),
        config.num_steps,
        _keep(config),
        key=key if any(sizes) else None,
        noise=batch_last.Noise(*spread),
        substeps=substeps,
        total=config.variants * config.trajectories,
    )
    each = np.repeat(loops.extra.relative_x, len(x0) // len(loops.extra.relative_x) * x0.shape[1], axis=0)
    return {name: np.asarray(a) for name, a in out.items()} | {"end": np.asarray(out["end"]) * each}


@functools.cache
def _keep(config: DataConfig) -> batch_last.Keep:
    """What of a loop is written, and what decides whether it is."""

    def points(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        return {"states": (xs * units.x[None]).astype(jnp.float32)}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        controls = {"controls": (us * units.u[None]).astype(jnp.float32)}
        return controls if config.keep_every == 1 else controls | {"costs": costs}

    def sums(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        if config.saturation is None:
            return {"cost": costs}
        limited = (jnp.abs(us[:, i] * units.relative_u[i][None]) for i in range(us.shape[1]))
        at_limit = functools.reduce(jnp.maximum, limited) > 0.999 * config.saturation
        tail = (t >= config.num_steps - _tail(config)) & (t < config.num_steps)
        return {"cost": costs, "limited": (at_limit & tail[:, None]).astype(costs.dtype)}

    def peaks(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        far = (jnp.abs(xs[:, i] * units.relative_x[i][None]) for i in range(xs.shape[1]))
        return {"peak": functools.reduce(jnp.maximum, far)}

    if config.keep_every == 1:
        return batch_last.Keep(points, intervals, sums, peaks)
    return batch_last.Keep(points, intervals, sums, peaks, config.starts, config.row_steps)


def _tail(config: DataConfig) -> int:
    """Samples of the last quarter."""
    return max(config.num_steps // 4, 1)


def _controlled(
    config: DataConfig,
    plants: Plant,
    controller: Controller,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> dict[str, np.ndarray]:
    """Loops of another policy, in SI units."""
    u_eq = np.asarray(plants.equilibrium()[1])
    high = np.inf if config.saturation is None else config.saturation
    out = simulation.rollout(
        plants,
        controller(plants),
        x0,
        config.num_steps,
        linear=config.linear,
        key=key,
        limits=(u_eq - high * su, u_eq + high * su),
        noise=config.noise * sx[0],
        sensor_noise=config.sensor_noise * sx[0],
        excitation=config.excitation * su[0],
    )
    runs = recorded(config, out, sx, su)
    if config.keep_every == 1:
        return runs
    steps = {"states": config.row_steps + 1, "controls": config.row_steps, "costs": config.row_steps}
    return runs | {
        name: np.stack([runs[name][:, start : start + num] for start in config.starts], axis=1)
        for name, num in steps.items()
    }


def recorded(
    config: DataConfig, out: simulation.Trajectory, sx: np.ndarray, su: np.ndarray
) -> dict[str, np.ndarray]:
    """What is written of loops ``[variants, trajectories]``, one after the other, and what decides whether it is."""
    far, us = np.abs(np.asarray(out.xs)) / sx[:, None, None], np.asarray(out.us) / su[:, None, None]
    limited = np.abs(us[..., -_tail(config) :, :]).max(-1) > 0.999 * (config.saturation or np.inf)
    found = {
        "states": np.asarray(out.xs).astype(np.float32),
        "controls": np.asarray(out.us).astype(np.float32),
        "cost": np.asarray(out.cost),
        "costs": np.asarray(out.costs),
        "peak": far.max((-1, -2)),
        "limited": limited.sum(-1),
        "end": np.asarray(out.xs)[:, :, -1] / sx[:, None],
    }
    return {name: a.reshape(-1, *a.shape[2:]) for name, a in found.items()}


def kept(
    config: DataConfig,
    designed: np.ndarray,
    start: np.ndarray,
    runs: dict[str, np.ndarray],
    P: np.ndarray,
) -> tuple[np.ndarray, dict[str, int]]:
    """Which trajectories ``[variants, trajectories]`` are kept, and how many are left out and why."""
    stays = runs["peak"] < DIVERGED  # NaN does not
    stuck = np.zeros_like(stays)
    if config.saturation is not None:
        # at its limit for half of the last quarter and further from rest, in cost, than it began
        calm = np.where(stays[..., None, None], np.stack([start, runs["end"]], axis=2), 0.0)
        value = np.einsum("vnki,vij,vnkj->vnk", calm, np.nan_to_num(P), calm)
        stuck = (runs["limited"] > 0.5 * _tail(config)) & (value[..., 1] > value[..., 0])
    has = designed[:, None]
    left_out = (~designed, has & ~stays, has & stays & stuck)
    return has & stays & ~stuck, {reason: int(a.sum()) for reason, a in zip(manifest.REASONS, left_out)}


def _units(plants: Plant, *, thinned: bool) -> dict[str, str]:
    x, u = (", ".join(s.unit for s in signals) for signals in (plants.states, plants.inputs))
    parameters = systems.parameter_fields(type(plants))
    found = {
        "variants/A": f"rows ({x})/s, columns 1/({x})",
        "variants/B": f"rows ({x})/s, columns 1/({u})",
        "variants/Q": f"rows and columns 1/({x})",
        "variants/R": f"rows and columns 1/({u})",
        "variants/K": f"rows ({u}), columns 1/({x})",
        "variants/P": f"rows and columns 1/({x}), times s",
        "variants/dt": "s",
        "variants/scale_x": x,
        "variants/scale_u": u,
        "trajectories/x0": x,
        "trajectories/states": x,
        "trajectories/controls": u,
        "trajectories/cost": "s",
    }
    if thinned:
        found["trajectories/start"] = "steps"
    return found | {f"variants/parameters/{name}": f.metadata["unit"] for name, f in parameters.items()}
