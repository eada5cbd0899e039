"""Making of environments: arguments checked, plants drawn, linearised and solved once."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import simulation, systems
from lqrlab.extensions.environments.core import Environment
from lqrlab.extensions.environments.settings import Limits, Settings
from lqrlab.simulation import Problem
from lqrlab.systems import Plant

_HANGING = {"pendulum": "angle", "cart_pole": "angle", "acrobot": "shoulder_angle"}
"""Families that can swing up, and the angle that is half a turn away where they hang."""
_ENOUGH = 6.0  # standard deviations of the optimum's first input that actuators of "plant" reach
_MOST_LEVELS = 1 << 16


def make(
    plant: str | Path | Plant | type[Plant],
    *,
    task: str = "regulate",
    linear: bool = False,
    horizon: int = 200,
    spread: float = 0.0,
    limits: str | Limits | None = "plant",
    observe: str = "state",
    units: str = "physical",
    reward: str | Callable = "cost",
    **more: Any,
) -> Environment:
    """A plant as an environment: signals are deviations from the equilibrium, u = −Kx is the optimum's action.

    Args:
        plant: a family's name, a plant or a batch of plants (each reset draws one), a class of plants, or a file.
        task, linear, horizon, spread, limits, observe, units, reward: see :class:`Settings`.
        more: the other fields of :class:`Settings`: sample time, noise, delay, actions, the end of an episode,
            limits of states, what an invalid action does, precision.

    Raises:
        ValueError: says which argument is wrong, and what to do; a plant without a stabilizing optimum.

    >>> env = environments.make("pendulum", linear=True)
    >>> obs, state = env.reset(jax.random.key(0))
    >>> obs, state, reward, terminated, truncated, info = env.step(jax.random.key(1), state, jnp.zeros(1))
    >>> obs.shape, bool(terminated), bool(info["ratio"] > 1)
    ((2,), False, True)
    """
    everyday = {"task": task, "linear": linear, "horizon": horizon, "spread": spread, "limits": limits}
    return _made(plant, Settings.from_dict(more | everyday | {"observe": observe, "units": units, "reward": reward}))


def _made(plant: Any, settings: Settings) -> Environment:
    dtype = settings.dtype
    with jax.enable_x64(True):
        plants = _plants(plant, settings)
        pool = _pool(plants, settings)
        offset, (unit_x, unit_u) = _offset(plants, settings.task), _units(pool, plants, settings)
        spread = np.asarray(pool.scale_x) ** 2 * (settings.start or 1.0) ** 2
        mean = np.einsum("vii,vi->v", pool.P, spread) + np.asarray(pool.optimal_cost(np.tile(offset, (len(pool), 1))))
        typical = float(np.mean(mean))
        box = None if pool.limits is None else pool.limits.x
        ends = None if box is None else (np.asarray(box[0][0, 0], dtype), np.asarray(box[1][0, 0], dtype))
        pool = jax.tree.map(np.asarray, pool.astype(np.dtype(dtype)))
    levels, m = settings.levels, plants.m
    if levels and not np.all(np.isfinite(pool.high)):
        raise ValueError("action: a grid of levels needs limits; leave limits='plant', or give (low, high)")
    if levels and (levels < 2 or levels**m > _MOST_LEVELS):
        raise ValueError(
            f"action: expected at least 2 levels and at most {_MOST_LEVELS} points, but found {levels} for {m} "
            "inputs; take fewer levels, or a structured action such as InputChannel"
        )
    noise = np.asarray(settings.sensor_noise)
    sensor = np.broadcast_to(noise, unit_x.shape) if noise.any() else None
    leaves, tree = jax.tree.flatten(pool)
    identity = (tree, *((a.dtype.str, a.shape, a.tobytes()) for a in leaves), settings)
    made = Environment(pool, settings, plants.name, offset, unit_x, unit_u, sensor, ends, typical, identity)
    if not np.isfinite([made.action_low, made.action_high]).all():
        warnings.warn(
            "limits: actions without bounds, which most agents cannot draw or scale; leave limits='plant', or give "
            "(low, high)",
            stacklevel=3,
        )
    return made


def _units(pool: Problem, plants: Plant, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Units of states (or outputs) and inputs."""
    outputs = settings.observe == "outputs"
    if settings.units == "physical":
        return np.ones(len(plants.outputs) if outputs else plants.n), np.ones(plants.m)
    unit_u = np.asarray(plants.scales[1]).reshape(-1, plants.m)[0]
    if settings.units == "limits":
        far = np.abs([pool.low[0], pool.high[0]]).max(0)
        unit_u = np.where(np.isfinite(far) & (far > 0), far, unit_u)
    return np.ones(len(plants.outputs)) if outputs else np.asarray(pool.scale_x[0]), unit_u


def _plants(plant: Any, settings: Settings) -> Plant:
    """One plant, or a batch with one leading axis."""
    spread = settings.spread
    if isinstance(plant, type) and issubclass(plant, Plant):
        systems.check(plant)
        plant = plant(**{name: jnp.asarray(f.default, float) for name, f in systems.parameter_fields(plant).items()})
    elif isinstance(plant, Path) or (isinstance(plant, str) and Path(plant).suffix in (".npz", ".mat", ".json")):
        plant = systems.load(plant)
    if isinstance(plant, str):
        if not spread:
            return systems.make(plant)
        return systems.sample(plant, key=jax.random.key(settings.seed), num=settings.variants, spread=spread)
    systems.check_plant(plant)
    if spread:
        raise ValueError(
            "spread: only families of the catalogue have ranges to vary in; enter the plant with "
            "systems.register(plant, name=...) and give its name, or give a batch of plants"
        )
    if len(plant.batch_shape) > 1:
        raise ValueError(f"plant: expected a batch with one axis, but found {plant.batch_shape}")
    return jax.tree.map(lambda a: jnp.asarray(a, float), plant)


def _pool(plants: Plant, settings: Settings) -> Problem:
    """The plants' problem ``[variants, …]``, in float64."""
    limits = settings.limits
    ends = None if isinstance(limits, str | None) else (np.asarray(limits[0]), np.asarray(limits[1]))
    at = np.asarray(plants.equilibrium()[0])[..., None, :]
    of_states = None if settings.x_limits is None else tuple(np.asarray(end) + at for end in settings.x_limits)
    given, noise = simulation.Limits(u=ends, x=of_states), np.asarray(settings.noise)
    pool = Problem.of(plants, dt=settings.dt, linear=settings.linear, limits=given, noise=noise)
    if not pool.batch_shape:
        pool = jax.tree.map(lambda a: a[None], pool)
    good = np.asarray(pool.has_optimum)
    if not good.all():
        raise ValueError(
            f"plant: {int(np.sum(~good))} of {good.size} have no stabilizing optimum to compare with; "
            "control.diagnose(A, B, Q, R) names the mode that is not stabilizable or has no weight"
        )
    if limits == "plant":
        # σ of Kx at the start
        first = jnp.sqrt(jnp.sum((pool.K * pool.scale_x[:, None, :]) ** 2, -1)) * settings.start
        half = jnp.maximum(_ENOUGH * jnp.max(first, 0), pool.scale_u[0])
    elif limits is None:
        half = jnp.full(pool.m, jnp.inf)
    else:
        return pool
    half = jnp.broadcast_to(half, (len(pool), 1, pool.m))
    return dataclasses.replace(pool, limits=dataclasses.replace(pool.limits or simulation.Limits(), u=(-half, half)))


def _offset(plants: Plant, task: str) -> np.ndarray:
    """Centre of the starts: the equilibrium, or half a turn from it."""
    offset = np.zeros(plants.n)
    if task == "swing_up":
        if plants.name not in _HANGING:
            raise ValueError(f"task: expected one of {', '.join(_HANGING)} to swing up, but found {plants.name}")
        offset[[s.name for s in plants.states].index(_HANGING[plants.name])] = np.pi
    return offset
