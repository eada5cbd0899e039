"""What is in a shard: plants drawn, designs, closed loops, and what of them is kept."""

import functools
from collections.abc import Callable

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import lqrlab
from lqrlab import control, simulation, systems
from lqrlab.dataset import manifest, shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import in_units
from lqrlab.dataset.plan import Shard, keys, splits
from lqrlab.systems import M_MAX, N_MAX, Linear, Plant

DIVERGED = 1e3
"""A state this many scales away from the equilibrium has left the model for good."""


Controller = Callable[[Plant], simulation.Policy]
"""From a batch of plants to the policy that runs their loops."""


def make(config: DataConfig, shard: Shard, controller: Controller | None = None) -> shards.Content:
    """Everything in one shard, computed in float64."""
    with jax.enable_x64(True):
        return _make(config, shard, controller)


def _make(config: DataConfig, shard: Shard, controller: Controller | None) -> shards.Content:
    draw, start, noise = keys(config, shard)
    # always a whole block, cut afterwards: one compiled program for all shards, and the same bits in each
    size, count = min(config.variants_per_shard, config.variants), slice(0, shard.count)
    plants = systems.sample(shard.family, key=draw, num=size, spread=config.spread)
    linear = jax.tree.map(np.asarray, systems.linearise(plants))
    sx, su = (np.broadcast_to(np.asarray(s, float), (size, s.shape[-1])) for s in plants.scales)
    scaled = in_units(linear, sx, su)
    design = jax.tree.map(np.asarray, _design()(scaled.A, scaled.B, scaled.Q, scaled.R, scaled.dt))
    gain = np.where(design.stabilizing[:, None, None], design.K, 0.0)
    if config.gain_error:  # of the loops alone: what is recorded as the optimum stays so
        off = jax.random.normal(jax.random.fold_in(start, 1), gain.shape)
        gain = gain * (1 + config.gain_error * np.asarray(off))
    x0 = _starts(plants, start, config.trajectories, sx)
    if controller is not None:
        xs, us, cost = _controlled(config, plants, controller, x0, sx, su, noise)
    else:
        run = _linear if config.linear else _nonlinear
        xs, us, cost = run(config, plants, scaled, gain, x0, sx, su, noise)

    n, m = plants.n, plants.m
    designed = design.stabilizing[count]
    kept, left_out = _kept(config, designed, xs[count], us[count], design.P[count, :n, :n])
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
    row, which = np.nonzero(kept)
    runs = {
        # rows of the table that is kept, in which variants without a design are missing
        "variant": (np.cumsum(designed) - 1)[row].astype(np.int32),
        "x0": x0[row, which],
        "states": (xs[row, which] * sx[row, None]).astype(np.float32),
        "controls": (us[row, which] * su[row, None]).astype(np.float32),
        "cost": cost[row, which],
    }
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
    return shards.Content(arrays, _units(plants), about)


def _starts(plants: Plant, key: Array, num: int, sx: np.ndarray) -> np.ndarray:
    """Initial deviations ``[size, num, n]``."""
    if type(plants).initial_state is not Plant.initial_state:
        return np.asarray(plants.initial_state(key=key, num=num))
    # what Plant.initial_state says, in one shape for all families: the program takes a second to compile
    normal = np.asarray(jax.random.normal(key, (len(sx), num, N_MAX)))
    return normal[..., : plants.n] * sx[:, None]


@functools.cache
def _design() -> Callable:
    """``control.lqrd`` as one program, compiled in a sixth of the time to run at half the speed: 14 ms a shard."""
    options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except Exception:  # another device or a jaxlib that does not know them, whatever it says then
        return jax.jit(control.lqrd)
    return jax.jit(control.lqrd, compiler_options=options)


def versions() -> dict[str, str]:
    """What computed the numbers."""
    return {
        "lqrlab": lqrlab.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": jax.default_backend(),
    }


Run = tuple[np.ndarray, np.ndarray, np.ndarray]
"""States and inputs in units of their scales ``[v, N, T+1, n]``, ``[v, N, T, m]``, and costs ``[v, N]``."""


def _linear(
    config: DataConfig,
    plants: Plant,
    scaled: Linear,
    gain: np.ndarray,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> Run:
    """All families through one compiled program: scaled, padded plants under exact zero-order hold."""
    n, m = plants.n, plants.m
    live_x, live_u = np.arange(N_MAX) < n, np.arange(M_MAX) < m
    high = np.inf if config.saturation is None else config.saturation
    out = simulation.rollout(
        scaled,
        simulation.LinearPolicy(jnp.asarray(gain)),
        np.pad(x0 / sx[:, None], [(0, 0), (0, 0), (0, N_MAX - n)]),
        config.num_steps,
        linear=True,
        key=key,
        limits=(-high, high),
        noise=config.noise * live_x,
        sensor_noise=config.sensor_noise * live_x,
        excitation=config.excitation * live_u,
        substeps=1,
    )
    return np.asarray(out.xs)[..., :n], np.asarray(out.us)[..., :m], np.asarray(out.cost)


def _nonlinear(
    config: DataConfig,
    plants: Plant,
    scaled: Linear,
    gain: np.ndarray,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> Run:
    """One family's own equations of motion, in SI units; the costs are the same in either."""
    u_eq = np.asarray(plants.equilibrium()[1])
    high = np.inf if config.saturation is None else config.saturation
    out = simulation.rollout(
        plants,
        simulation.LinearPolicy(
            jnp.asarray(gain[:, : plants.m, : plants.n] * su[:, :, None] / sx[:, None, :])
        ),
        x0,
        config.num_steps,
        key=key,
        limits=(u_eq - high * su, u_eq + high * su),
        noise=config.noise * sx[0],
        sensor_noise=config.sensor_noise * sx[0],
        excitation=config.excitation * su[0],
    )
    return (
        np.asarray(out.xs) / sx[:, None, None],
        np.asarray(out.us) / su[:, None, None],
        np.asarray(out.cost),
    )


def _controlled(
    config: DataConfig,
    plants: Plant,
    controller: Controller,
    x0: np.ndarray,
    sx: np.ndarray,
    su: np.ndarray,
    key: Array,
) -> Run:
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
    return (
        np.asarray(out.xs) / sx[:, None, None],
        np.asarray(out.us) / su[:, None, None],
        np.asarray(out.cost),
    )


def _kept(
    config: DataConfig, designed: np.ndarray, xs: np.ndarray, us: np.ndarray, P: np.ndarray
) -> tuple[np.ndarray, dict[str, int]]:
    """Which trajectories ``[variants, trajectories]`` are kept, and how many are left out and why."""
    stays = np.all(np.abs(np.nan_to_num(xs, nan=np.inf)) < DIVERGED, axis=(-1, -2))
    stuck = np.zeros_like(stays)
    if config.saturation is not None:
        # at its limit for half of the last quarter and further from rest, in cost, than it began
        tail = np.abs(us[..., -max(config.num_steps // 4, 1) :, :]) > 0.999 * config.saturation
        calm = np.where(stays[..., None, None], xs[..., [0, -1], :], 0.0)
        value = np.einsum("vnki,vij,vnkj->vnk", calm, np.nan_to_num(P), calm)
        stuck = (tail.any(-1).mean(-1) > 0.5) & (value[..., 1] > value[..., 0])
    has = designed[:, None]
    left_out = (~designed, has & ~stays, has & stays & stuck)
    return has & stays & ~stuck, {reason: int(a.sum()) for reason, a in zip(manifest.REASONS, left_out)}


def _units(plants: Plant) -> dict[str, str]:
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
    return found | {f"variants/parameters/{name}": f.metadata["unit"] for name, f in parameters.items()}
