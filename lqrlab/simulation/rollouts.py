"""Closed loops, many at once."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.simulation.environment import Env, env
from lqrlab.simulation.policies import Policy
from lqrlab.systems import Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What closed loops did, as deviations from the equilibrium.

    Attributes:
        ts: times [s] ``[*batch, T+1]``, batch axes only where plants differ in dt.
        xs: states ``[*lead, T+1, n]``.
        us: inputs that reached the plant ``[*lead, T, m]``.
        costs: continuous cost ∫ xᵀQx + uᵀRu dt of each step ``[*lead, T]``.
    """

    ts: Array
    xs: Array
    us: Array
    costs: Array

    @property
    def cost(self) -> Array:
        """Total cost ``[*lead]``."""
        return jnp.sum(self.costs, axis=-1)


def rollout(
    plant: Plant,
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
) -> Trajectory:
    """Run a policy on a plant, or on a batch of plants from many initial states.

    Args:
        plant: one plant, or a batch with leading axes.
        policy: a :class:`Policy`; u = policy(x), both deviations from the equilibrium.
        x0: initial deviations ``[*batch, *extra, n]``: the plants' own axes lead.
        num_steps: T.
        dt: sample time [s]; the plant's own if left out.
        linear: simulate the linearised plant by exact zero-order hold; else Runge-Kutta 4 on the nonlinear one.
        key: random key; needed if any of the three noises is not zero.
        limits: ``(low, high)`` of the actuators, absolute, scalars or ``[m]``.
        noise: standard deviation of the disturbance of the state at each step, scalar or ``[n]``.
        sensor_noise: the same for what the policy sees, scalar or ``[n]``.
        excitation: the same for what is added to its input, scalar or ``[m]``.
        substeps: Runge-Kutta steps in a sample time.

    Returns:
        :class:`Trajectory`, in x0's floating type. A loop that diverges carries inf or NaN.

    Raises:
        ValueError: shapes that do not fit, noise without a key.
    """
    x0 = jnp.asarray(x0)
    x0 = x0 if jnp.issubdtype(x0.dtype, jnp.floating) else x0.astype(float)
    batch = plant.batch_shape
    if x0.shape[-1:] != (plant.n,) or x0.shape[: len(batch)] != batch:
        expected = "[" + ", ".join([*map(str, batch), "…", str(plant.n)]) + "]"
        raise ValueError(f"x0: expected shape {expected} for {plant.name}, but found {x0.shape}")
    if not control.checks.traced(x0) and not bool(jnp.all(jnp.isfinite(x0))):
        raise ValueError("x0: expected finite numbers, but found inf or NaN")
    if not isinstance(num_steps, int | np.integer) or num_steps < 1:
        raise ValueError(f"num_steps: expected at least one step, but found {num_steps!r}")
    _check_policy(policy, x0, plant.m)
    noisy = tuple(
        _positive(n, a)
        for n, a in (("noise", noise), ("sensor_noise", sensor_noise), ("excitation", excitation))
    )
    if key is None and any(noisy):
        raise ValueError("key: noise, sensor_noise and excitation need a random key")
    world = env(plant, dt=dt, linear=linear, limits=limits, noise=noise, substeps=substeps)
    world = jax.tree.map(lambda a: a.astype(x0.dtype), world)
    sensors = jnp.broadcast_to(jnp.asarray(sensor_noise, x0.dtype), (plant.n,))
    push = jnp.broadcast_to(jnp.asarray(excitation, x0.dtype), (plant.m,))
    return _run(world, policy, x0, sensors, push, key, num_steps, noisy)


def _check_policy(policy: Policy, x0: Array, m: int) -> None:
    """Refuse what is no policy for this plant, in words rather than from inside a trace."""
    if not (hasattr(policy, "init") and callable(policy)):
        raise ValueError(
            f"policy: expected something with init(batch_shape) and __call__(carry, x), such as LinearPolicy(K), "
            f"but found {type(policy).__name__}"
        )
    try:
        _, u = jax.eval_shape(lambda p, x: p(p.init(x.shape[:-1]), x), policy, x0)
    except Exception as error:
        raise ValueError(f"policy: fails on states of shape {x0.shape}: {error}") from error
    if u.shape != (*x0.shape[:-1], m):
        raise ValueError(f"policy: expected inputs of shape {(*x0.shape[:-1], m)}, but found {u.shape}")


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
    ts = world.dt[..., None] * jnp.broadcast_to(
        jnp.arange(num_steps + 1, dtype=x0.dtype), (*world.dt.shape, num_steps + 1)
    )
    return Trajectory(ts, jnp.moveaxis(xs, 0, -2), jnp.moveaxis(us, 0, -2), jnp.moveaxis(costs, 0, -1))


_run = jax.jit(_loop, static_argnames=("num_steps", "noisy"))
