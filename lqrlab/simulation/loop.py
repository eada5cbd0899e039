"""Closed loops, many at once."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.simulation.engines import batch_last, matrix_powers, stepping
from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.policies import LinearPolicy, Policy, check_policy
from lqrlab.systems import Plant

FIELDS = ("xs", "us", "costs")

MANY = 64
"""From so many loops on the fast road is taken; below, its compilation costs more than it saves."""


@pytree
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What closed loops did, as deviations from the equilibrium.

    Attributes:
        ts: times [s] ``[*batch, T+1]``, batch axes only where plants differ in dt.
        xs: states ``[*lead, T+1, n]``.
        us: inputs that reached the plant ``[*lead, T, m]``.
        costs: continuous cost ∫ xᵀQx + uᵀRu dt of each step ``[*lead, T]``.

    A field that was not to be kept is None.
    """

    ts: Array
    xs: Array
    us: Array
    costs: Array

    @property
    def cost(self) -> Array:
        """Total cost ``[*lead]``."""
        if self.costs is None:
            raise ValueError("cost: the costs were not kept; rollout(..., keep=(..., 'costs')) keeps them")
        return jnp.sum(self.costs, axis=-1)


def rollout(
    plant: Plant | Env,
    policy: Policy,
    x0: ArrayLike,
    num_steps: int,
    dt: float | Array | None = None,
    linear: bool = False,
    *,
    key: Array | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    excitation: ArrayLike = 0.0,
    substeps: int | None = None,
    keep: tuple[str, ...] = FIELDS,
) -> Trajectory:
    """Run a policy on a plant, or on a batch of plants from many initial states.

    Many loops under constant gains go through :mod:`lqrlab.simulation.engines`, many times as fast and on all
    cores; the numbers are the same to rounding, the random ones others.

    Args:
        plant: one plant, or a batch with leading axes; or an :class:`Env` of them, which has been linearised and
            sampled before and says itself what dt, linear, limits, noise and substeps would.
        policy: a :class:`Policy`; u = policy(x), both deviations from the equilibrium.
        x0: initial deviations ``[*batch, *extra, n]``: the plants' own axes lead.
        num_steps: T.
        dt: sample time [s], or several, one for each of x0's first axes; the plant's own if left out.
        linear: simulate the linearised plant by exact zero-order hold; else Runge-Kutta 4 on the nonlinear one.
        key: random key; needed if any of the three noises is not zero.
        limits: ``(low, high)`` of the actuators, absolute, scalars or ``[m]``.
        noise: standard deviation of the disturbance of the state at each step, scalar or ``[n]``.
        sensor_noise: the same for what the policy sees, scalar or ``[n]``.
        excitation: the same for what is added to its input, scalar or ``[m]``.
        substeps: Runge-Kutta steps in a sample time.
        keep: which of ``xs``, ``us``, ``costs`` are wanted; what is not kept need not be written.

    Returns:
        :class:`Trajectory`, in x0's floating type. A loop that diverges carries inf or NaN.

    Raises:
        ValueError: shapes that do not fit, noise without a key.
    """
    x0 = jnp.asarray(x0)
    x0 = x0 if jnp.issubdtype(x0.dtype, jnp.floating) else x0.astype(float)
    if isinstance(plant, Env):
        world, plant = plant, plant.plant
        if not (dt is None and limits is None and substeps is None and linear in (False, world.linear)):
            raise ValueError("plant: an Env has its own dt, linear, limits and substeps; give them to env()")
        noise = world.noise
    else:
        world = None
    batch = plant.batch_shape
    if x0.shape[-1:] != (plant.n,) or x0.shape[: len(batch)] != batch:
        expected = "[" + ", ".join([*map(str, batch), "…", str(plant.n)]) + "]"
        raise ValueError(f"x0: expected shape {expected} for {plant.name}, but found {x0.shape}")
    if not control.checks.traced(x0) and not np.all(np.isfinite(x0)):
        raise ValueError("x0: expected finite numbers, but found inf or NaN")
    if not isinstance(num_steps, int | np.integer) or num_steps < 1:
        raise ValueError(f"num_steps: expected at least one step, but found {num_steps!r}")
    if not set(keep) <= set(FIELDS):
        raise ValueError(f"keep: expected a tuple of some of {', '.join(FIELDS)}, but found {keep!r}")
    check_policy(policy, x0, plant.m)
    noisy = tuple(
        _positive(n, a)
        for n, a in (("noise", noise), ("sensor_noise", sensor_noise), ("excitation", excitation))
    )
    if key is None and any(noisy):
        raise ValueError("key: noise, sensor_noise and excitation need a random key")
    if world is None:
        world = env(plant, dt=dt, linear=linear, limits=limits, noise=noise, substeps=substeps)
    _check_times(world.dt.shape, batch, x0.shape)
    sensors = jnp.broadcast_to(jnp.asarray(sensor_noise, x0.dtype), (plant.n,))
    push = jnp.broadcast_to(jnp.asarray(excitation, x0.dtype), (plant.m,))
    key = key if any(noisy) else None
    if isinstance(policy, LinearPolicy) and _in_bulk(world, policy, x0, sensors, push, key):
        return _bulk(world, policy, x0, sensors, push, key, int(num_steps), noisy, tuple(keep))
    world = jax.tree.map(lambda a: a.astype(x0.dtype), world)
    return _run(world, policy, x0, sensors, push, key, int(num_steps), noisy, tuple(keep))


def _in_bulk(world: Env, policy: Policy, x0: Array, *drawn: Any) -> bool:
    """Whether these loops are many, under constant gains, and of numbers rather than within a trace.

    NumPy, which has no bfloat16, must know the numbers; and where JAX is to look for NaN, it has to see each step.
    """
    watched = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    if watched or not np.issubdtype(x0.dtype, np.floating):
        return False
    many = x0.size // x0.shape[-1] >= MANY
    here = not control.checks.traced(*jax.tree.leaves((world, policy, x0, drawn, jnp.zeros(()))))
    shared = world.dt.ndim <= len(world.plant.batch_shape)
    return many and here and shared and type(policy) is LinearPolicy


def bulk_loops(world: Env, K: Array, extra: Any = None) -> batch_last.Loops:
    """A world and its gains as the batch-last engine takes them; ``extra`` as there, batch axes in front."""
    batch = world.plant.batch_shape
    depth = max(len(batch), K.ndim - 2)
    fill = ((*front, *(1,) * (depth - len(front))) for front in (batch, K.shape[:-2]))
    lead = jnp.broadcast_shapes(*fill)  # the plants' axes lead, whatever else the gains have

    def flat(a: Array, core: int) -> Array:
        a = jnp.asarray(a)
        own = a.shape[a.ndim - core :]
        shared = all(size == 1 for size in a.shape[: a.ndim - core])
        if shared:
            return a.reshape(1, *own)
        front = a.shape[: a.ndim - core]
        front = front if len(front) >= len(batch) else jnp.broadcast_shapes(front, batch)
        a = jnp.broadcast_to(a, (*front, *own)).reshape(*front, *(1,) * (depth - len(front)), *own)
        return jnp.broadcast_to(a, (*lead, *own)).reshape(-1, *own)

    model: stepping.Linear | stepping.Nonlinear
    if world.linear:
        model = stepping.Linear(*(flat(a, 2) for a in world.sampled))
    else:
        plant = jax.tree.map(lambda a: flat(a, jnp.ndim(a) - len(batch) if jnp.ndim(a) else 0), world.plant)
        model = stepping.Nonlinear(
            plant,
            flat(world.x_eq, 1),
            flat(world.u_eq, 1),
            flat(world.Q, 2),
            flat(world.R, 2),
            flat(world.dt / world.substeps, 0),
        )
    ends = (world.low, world.high)
    clipped = any(np.isfinite(a).any() for a in ends)
    low, high = (flat(a, 1) if clipped else None for a in ends)
    return batch_last.Loops(
        model, flat(K, 2), low, high, jax.tree.map(lambda a: flat(a, a.ndim - len(batch)), extra)
    )


@functools.cache
def _kept(keep: tuple[str, ...]) -> batch_last.Keep:
    def points(xs: Array, us: Array, costs: Array, t: Array, extra: Any) -> dict[str, Array]:
        return {"xs": xs}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, extra: Any) -> dict[str, Array]:
        return {name: a for name, a in (("us", us), ("costs", costs)) if name in keep}

    return batch_last.Keep(
        points if "xs" in keep else None, intervals if {"us", "costs"} & set(keep) else None
    )


def _bulk(
    world: Env,
    policy: LinearPolicy,
    x0: Array,
    sensors: Array,
    push: Array,
    key: Array | None,
    num_steps: int,
    noisy: tuple[bool, ...],
    keep: tuple[str, ...],
) -> Trajectory:
    spread = (world.noise.astype(x0.dtype), sensors, push)
    loops, starts, lead = bulk_loops(world, policy.K), x0.reshape(-1, x0.shape[-1]), x0.shape[:-1]
    out: Mapping[str, Any] | None = None
    if key is None and matrix_powers.fit(loops):
        out = matrix_powers.simulate(loops, starts, num_steps, keep)
    if out is None:
        out = batch_last.simulate(
            loops,
            starts,
            num_steps,
            _kept(keep),
            key=key,
            noise=batch_last.Noise(*(a if there else None for a, there in zip(spread, noisy))),
            substeps=world.substeps,
        )
    fields = {
        name: jax.device_put(out[name].reshape(*lead, *out[name].shape[1:]), may_alias=True) for name in keep
    }
    return _trajectory(_times(world.dt, num_steps, x0.dtype), fields)


def _trajectory(ts: Array, fields: Mapping[str, Array]) -> Trajectory:
    return Trajectory(ts, **{name: fields.get(name) for name in FIELDS})  # type: ignore[arg-type]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _times(dt: Array, num_steps: int, dtype: Any) -> Array:
    return dt.astype(dtype)[..., None] * jnp.broadcast_to(
        jnp.arange(num_steps + 1, dtype=dtype), (*dt.shape, num_steps + 1)
    )


def _check_times(times: tuple[int, ...], batch: tuple[int, ...], starts: tuple[int, ...]) -> None:
    """Refuse sample times that are not one for each of the first axes of x0."""
    fits = len(batch) <= len(times) < len(starts) and all(t in (1, s) for t, s in zip(times, starts))
    if times and not fits:
        raise ValueError(
            f"dt: expected one sample time, or as many as the first axes of x0 have (shape {starts}), but found "
            f"shape {times}; one start at several sample times is np.broadcast_to(x0, (*dt.shape, n))"
        )


def _positive(name: str, value: ArrayLike) -> bool:
    """Whether a standard deviation has to be drawn for; inside a trace nobody can tell, so it is."""
    if control.checks.traced(value):
        return True
    size = np.asarray(value)
    if not np.all(np.isfinite(size) & (size >= 0)):
        raise ValueError(f"{name}: expected a standard deviation ≥ 0, but found {value}")
    return bool(np.any(size > 0))


def _loop(
    world: Env,
    policy: Policy,
    x0: Array,
    sensors: Array,
    push: Array,
    key: Array | None,
    num_steps: int,
    noisy: tuple[bool, bool, bool],
    keep: tuple[str, ...],
) -> Trajectory:
    disturbed, sensed, excited = noisy

    def step(state: tuple[Array, Any], t: Array) -> tuple[tuple[Array, Any], tuple[Array, Array, Array]]:
        x, carry = state
        seen = x
        if key is not None:
            disturb, sense, excite = jax.random.split(jax.random.fold_in(key, t), 3)
        if sensed:
            seen = x + jax.random.normal(sense, x.shape, x.dtype) * jnp.broadcast_to(sensors, x.shape)
        carry, u = policy(carry, seen)
        u = u.astype(x.dtype)
        if excited:
            u = u + jax.random.normal(excite, u.shape, u.dtype) * jnp.broadcast_to(push, u.shape)
        u = world.saturate(u)
        after, cost = world.step(x, u, key=disturb if disturbed else None)
        return (after, carry), (after, u, cost)

    start = (x0, policy.init(x0.shape[:-1]))
    _, (xs, us, costs) = jax.lax.scan(step, start, jnp.arange(num_steps))
    xs = jnp.concatenate([x0[None], xs])
    kept = {"xs": jnp.moveaxis(xs, 0, -2), "us": jnp.moveaxis(us, 0, -2), "costs": jnp.moveaxis(costs, 0, -1)}
    ts = _times(world.dt, num_steps, x0.dtype)
    return _trajectory(ts, {name: kept[name] for name in keep})


_run = jax.jit(_loop, static_argnames=("num_steps", "noisy", "keep"))
