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
from lqrlab.compute import quick_jit
from lqrlab.dataset import manifest, shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import Shard, keys, splits
from lqrlab.simulation import Env, Keep, LinearPolicy, Noise, SampledProblem, verdict
from lqrlab.systems import N_MAX, Coordinates, Linear, Plant

Controller = Callable[[Plant], simulation.Policy]
"""From a batch of plants to the policy that runs their loops."""


class Designs(NamedTuple):
    """Plants of one family with their optimum, float64 in host memory.

    Attributes:
        plants: ``[v]``.
        linear: linearised, in SI units.
        coordinates: their units and masks.
        problem: the sampled problem in scaled coordinates, padded; the gain is 0 where there is no optimum.
        stabilizing: whether there is a stabilizing optimum ``[v]``.
    """

    plants: Plant
    linear: Linear
    coordinates: Coordinates
    problem: SampledProblem
    stabilizing: np.ndarray


def make(config: DataConfig, shard: Shard, controller: Controller | None = None) -> shards.Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        draw, begin, noise = keys(config, shard)
        # always a whole block, cut afterwards: one compiled program for all shards, and the same bits in each
        size = min(config.variants_per_shard, config.variants)
        plants = systems.sample(shard.family, key=draw, num=size, spread=config.spread)
        designs = designed(plants)
        x0 = initial_states(plants, begin, config.trajectories, designs.coordinates)
        off = jax.random.fold_in(begin, 1)
        runs = simulate(config, designs, x0, noise, gain_key=off, controller=controller)
        return _content(config, shard, designs, x0, runs)


def designed(plants: Plant) -> Designs:
    """Linearise, scale, sample and design; one program for plants of all families."""
    linear = jax.tree.map(np.asarray, systems.linearise(plants))
    coordinates = jax.tree.map(lambda a: np.asarray(a, float), Coordinates.of(plants))
    scaled = coordinates.scale_plant(linear)
    sampled, design = jax.tree.map(
        np.asarray, _sampled_and_designed()(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt)
    )
    gain = np.where(design.stabilizing[:, None, None], design.K, 0.0)
    problem = SampledProblem(**sampled._asdict(), K=gain, P=design.P)  # type: ignore[arg-type]  # NumPy's
    return Designs(plants, linear, coordinates, problem, design.stabilizing)


@functools.cache
def _sampled_and_designed() -> Callable:
    def both(*problem: Array) -> tuple[control.Sampled, control.LQR]:
        return control.discretize(*problem), control.lqrd(*problem)

    return quick_jit(both)


def initial_states(plants: Plant, key: Array, num: int, coordinates: Coordinates) -> np.ndarray:
    """Initial deviations ``[v, num, n]``."""
    if type(plants).initial_state is not Plant.initial_state:
        return np.asarray(plants.initial_state(key=key, num=num))
    # what Plant.initial_state says, in one shape for all families: the program takes a second to compile
    normal = np.asarray(jax.random.normal(key, (len(coordinates.scale_x), num, N_MAX)))
    return coordinates.unscale_state(normal, plants.n)


# Closed loops ------------------------------------------------------------------------------------------------


class _Units(NamedTuple):
    """What states and inputs of a simulation are multiplied by for SI units, and for units of their scales."""

    x: Array | np.ndarray
    u: Array | np.ndarray
    relative_x: Array | np.ndarray
    relative_u: Array | np.ndarray


def simulate(
    config: DataConfig,
    designs: Designs,
    x0: np.ndarray,
    key: Array,
    *,
    gain_key: Array,
    controller: Controller | None = None,
) -> dict[str, np.ndarray]:
    """Run the loops that the config describes, from x0 ``[v, s, n]`` in SI units.

    Args:
        config: how.
        designs: the plants, their optimum.
        x0: initial deviations.
        key: of the noise.
        gain_key: of the errors of the gains, if the config wants any.
        controller: runs the loops in place of the optimum.

    Returns:
        Name → array ``[v, s, …]``: what is written of each loop (``states``, ``controls``, ``cost``, of segments
        ``costs``), and what decides whether it is (``peak``, ``before``, ``last``, ``limited``, ``end``).
    """
    gain = np.asarray(designs.problem.K)
    if config.gain_error:  # of the loops alone: what is recorded as the optimum stays so
        error = jax.random.normal(gain_key, gain.shape)
        gain = gain * (1 + config.gain_error * np.asarray(error))
    scaled = config.linear and controller is None
    world, K, units = (_scaled_env if scaled else _si_env)(config, designs, gain)
    policy = LinearPolicy(jnp.asarray(K)) if controller is None else controller(designs.plants)
    n, m = x0.shape[-1], designs.plants.m
    sizes = (config.noise, config.sensor_noise, config.excitation)
    if scaled:
        x0 = designs.coordinates.scale_state(x0)[..., :n]
        scale_x, scale_u = jnp.ones(n), jnp.ones(m)
    else:
        coordinates = designs.coordinates
        scale_x, scale_u = jnp.asarray(coordinates.scale_x[0, :n]), jnp.asarray(coordinates.scale_u[0, :m])
    scales = (scale_x, scale_x, scale_u)
    spreads = (size * scale if size else None for size, scale in zip(sizes, scales))
    out = simulation.record(
        world,
        policy,
        jnp.asarray(x0),
        config.num_steps,
        _keep(config),
        key=key if any(sizes) else None,
        noise=Noise(*spreads),
        extra=units,
        total=config.variants * config.trajectories,
    )
    lead = x0.shape[:2]
    shaped = {name: np.asarray(a).reshape(*lead, *a.shape[1:]) for name, a in out.items()}
    return shaped | {"end": shaped["end"] * units.relative_x[:, None]}


def _scaled_env(config: DataConfig, designs: Designs, gain: np.ndarray) -> tuple[Env, np.ndarray, _Units]:
    """Linear plants under exact zero-order hold, in units of their scales."""
    n, m = designs.plants.n, designs.plants.m
    sizes = {"A": (n, n), "B": (n, m), "Q": (n, n), "R": (m, m), "N": (n, m), "K": (m, n), "P": (n, n)}
    problem = SampledProblem(
        **{name: jnp.asarray(getattr(designs.problem, name)[:, :i, :j]) for name, (i, j) in sizes.items()}
    )
    limit = np.inf if config.saturation is None else config.saturation
    scale_x, scale_u = designs.coordinates.scale_x[:, :n], designs.coordinates.scale_u[:, :m]
    units = _Units(scale_x, scale_u, np.ones((1, n)), np.ones((1, m)))
    return Env.of_problem(problem, limit=limit), gain[:, :m, :n], units


def _si_env(config: DataConfig, designs: Designs, gain: np.ndarray) -> tuple[Env, np.ndarray, _Units]:
    """One family's own equations of motion (or the linear plant), in SI units; the costs are the same in either."""
    plants, coordinates = designs.plants, designs.coordinates
    n, m = plants.n, plants.m
    scale_x, scale_u = coordinates.scale_x[:, :n], coordinates.scale_u[:, :m]
    high = np.inf if config.saturation is None else config.saturation
    u_eq = np.asarray(plants.equilibrium()[1])
    world = simulation.env(
        plants, linear=config.linear, limits=(u_eq - high * scale_u, u_eq + high * scale_u)
    )
    units = _Units(np.ones((1, n)), np.ones((1, m)), 1 / scale_x, 1 / scale_u)
    return world, coordinates.unscale_gain(gain, n, m), units


@functools.cache
def _keep(config: DataConfig) -> Keep:
    """What of a loop is written, and what decides whether it is."""
    third, last = verdict.quarters(config.num_steps)
    tail = config.num_steps - _tail(config)

    def points(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        return {"states": (xs * units.x[None]).astype(jnp.float32)}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        controls = {"controls": (us * units.u[None]).astype(jnp.float32)}
        return controls if config.keep_every == 1 else controls | {"costs": costs}

    def sums(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        if config.saturation is None:
            return {"cost": costs}
        at_limit = _largest(us, units.relative_u) > 0.999 * config.saturation
        late = (t >= tail) & (t < config.num_steps)
        return {"cost": costs, "limited": (at_limit & late[:, None]).astype(costs.dtype)}

    def peaks(xs: Array, us: Array, costs: Array, t: Array, units: _Units) -> dict[str, Array]:
        size = _largest(xs, units.relative_x)
        if _disturbed(config):  # growth says nothing then
            return {"peak": size}
        before, after = ((t >= third) & (t < last))[:, None], (t >= last)[:, None]
        return {"peak": size, "before": jnp.where(before, size, 0), "last": jnp.where(after, size, 0)}

    keep = Keep(points, intervals, sums, peaks)
    return keep if config.keep_every == 1 else keep._replace(starts=config.starts, length=config.row_steps)


def _largest(a: Array, relative: Array | np.ndarray) -> Array:
    """max |a_i| · relative_i over components, ``[t, k, loop]`` → ``[t, loop]``."""
    return functools.reduce(jnp.maximum, (jnp.abs(a[:, i] * relative[i][None]) for i in range(a.shape[1])))


def _disturbed(config: DataConfig) -> bool:
    return any((config.excitation, config.noise, config.sensor_noise))


def _tail(config: DataConfig) -> int:
    """Samples of the last quarter."""
    return max(config.num_steps // 4, 1)


def kept(
    config: DataConfig, designs: Designs, x0: np.ndarray, runs: dict[str, np.ndarray]
) -> tuple[np.ndarray, dict[str, int]]:
    """Which loops ``[v, s]`` are kept, and how many are left out and why.

    A loop is left out if it diverges (:mod:`lqrlab.simulation.verdict`), or if its input was at its limit for half of
    the last quarter while the state moved away: further from rest, in cost, than where it began.
    """
    n = x0.shape[-1]
    start = designs.coordinates.scale_state(x0)[..., :n]
    quarters = (runs.get(name, runs["peak"]) for name in ("before", "last"))
    judged = verdict.of_peaks(np.abs(start).max(-1), runs["peak"], *quarters, disturbed=_disturbed(config))
    stays = np.asarray(judged) != verdict.Verdict.DIVERGED
    stuck = np.zeros_like(stays)
    if config.saturation is not None:
        calm = np.where(stays[..., None, None], np.stack([start, runs["end"]], axis=2), 0.0)
        value = np.einsum("vski,vij,vskj->vsk", calm, np.nan_to_num(designs.problem.P[:, :n, :n]), calm)
        stuck = (runs["limited"] > 0.5 * _tail(config)) & (value[..., 1] > value[..., 0])
    has = designs.stabilizing[:, None]
    left_out = (~designs.stabilizing, has & ~stays, has & stays & stuck)
    return has & stays & ~stuck, {reason: int(a.sum()) for reason, a in zip(manifest.REASONS, left_out)}


# What is written ---------------------------------------------------------------------------------------------


def _content(
    config: DataConfig, shard: Shard, designs: Designs, x0: np.ndarray, runs: dict[str, np.ndarray]
) -> shards.Content:
    count = slice(0, shard.count)
    first = jax.tree.map(lambda a: a[count] if np.ndim(a) else a, designs)
    x0, runs = x0[count], {name: a[count] for name, a in runs.items()}
    chosen, left_out = kept(config, first, x0, runs)
    rows = {name: _where(chosen, a) for name, a in _rows(config, x0, runs).items()}
    # rows of the table that is kept, in which variants without a design are missing
    of = (np.cumsum(first.stabilizing) - 1)[np.nonzero(chosen)[0]].astype(np.int32)
    written = {"variant": np.repeat(of, len(config.starts)), **rows}
    if config.keep_every > 1:
        written["start"] = np.tile(np.array(config.starts, np.int32), len(of))
    table = variant_table(config, shard, designs)
    arrays = {
        f"variants/{name}": np.ascontiguousarray(a[count][first.stabilizing]) for name, a in table.items()
    }
    arrays |= {f"trajectories/{name}": np.ascontiguousarray(a) for name, a in written.items()}
    plants = designs.plants
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
    return shards.Content(arrays, _units(plants, segments=config.keep_every > 1), about, config.compression)


def variant_table(config: DataConfig, shard: Shard, designs: Designs) -> dict[str, np.ndarray]:
    """What is written of each plant, in SI units: one row a variant of a whole block."""
    plants, linear, coordinates = designs.plants, designs.linear, designs.coordinates
    n, m, size = plants.n, plants.m, len(designs.stabilizing)
    split = np.resize(splits(config, shard.family)[shard.first : shard.first + shard.count], size)
    table = {
        "family": np.full(size, shard.family, dtype=f"S{len(shard.family)}"),
        "variant": np.arange(shard.first, shard.first + size, dtype=np.int32),
        "split": split,
        "A": linear.A,
        "B": linear.B,
        "Q": linear.Q,
        "R": linear.R,
        "K": coordinates.unscale_gain(designs.problem.K, n, m),
        "P": coordinates.unscale_cost(designs.problem.P, n),
        "dt": linear.dt,
        "scale_x": coordinates.scale_x[:, :n],
        "scale_u": coordinates.scale_u[:, :m],
    }
    for name, value in plants.parameters.items():
        table[f"parameters/{name}"] = np.broadcast_to(np.asarray(value), (size,))
    return jax.tree.map(np.asarray, table)


def _rows(config: DataConfig, x0: np.ndarray, runs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What of each loop is written ``[variants, trajectories, rows, …]``: all of it, or its segments."""
    if config.keep_every == 1:
        whole = {name: runs[name] for name in ("states", "controls", "cost")}
        return {name: a[:, :, None] for name, a in ({"x0": x0} | whole).items()}
    # a later row's start is known as its first state is
    starts = np.concatenate([x0[:, :, None], runs["states"][:, :, 1:, 0]], axis=2)
    return {
        "x0": starts,
        "states": runs["states"],
        "controls": runs["controls"],
        "cost": runs["costs"].sum(-1),
    }


def _where(chosen: np.ndarray, a: np.ndarray) -> np.ndarray:
    """The rows of the loops that are kept, one after the other; uncopied where all are."""
    return (a if chosen.all() else a[chosen]).reshape(-1, *a.shape[3:])


def versions() -> dict[str, str]:
    """What computed the numbers."""
    return {
        "lqrlab": lqrlab.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": jax.default_backend(),
    }


def _units(plants: Plant, *, segments: bool) -> dict[str, str]:
    x, u = (", ".join(s.unit for s in signals) for signals in (plants.states, plants.inputs))
    parameters = systems.parameter_fields(type(plants))
    units = {
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
    if segments:
        units["trajectories/start"] = "steps"
    return units | {f"variants/parameters/{name}": f.metadata["unit"] for name, f in parameters.items()}
