"""When loops take a fast path, and which: the door between a rollout and its engines."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import checks
from lqrlab.simulation.engines import batch_last, matrix_powers
from lqrlab.simulation.engines.models import loops_of
from lqrlab.simulation.environment import Env
from lqrlab.simulation.noise import Noise
from lqrlab.simulation.policies import LinearPolicy
from lqrlab.simulation.recording import Arrays, Keep

MANY = 64
"""From so many loops on an engine runs; below, its compilation costs more than it saves."""


def applies(world: Env, policy: LinearPolicy, x0: Array, noise: Noise, key: Array | None) -> bool:
    """Whether these loops are many, under constant gains, and of numbers rather than within a trace.

    NumPy, which has no bfloat16, must know the numbers; and where JAX is to look for NaN, it has to see each step.
    """
    watched = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    if watched or type(policy) is not LinearPolicy or not np.issubdtype(x0.dtype, np.floating):
        return False
    many = x0.size // x0.shape[-1] >= MANY
    concrete = not checks.traced(world, policy, x0, noise, key, jnp.zeros(()))
    shared = world.dt.ndim <= len(world.batch_shape)
    return many and concrete and shared


def rollout(
    world: Env,
    K: Array,
    x0: Array,
    num_steps: int,
    keep: tuple[str, ...],
    noise: Noise,
    key: Array | None,
) -> dict[str, Array]:
    """``xs``, ``us`` and ``costs``, as far as they are kept; arguments as for the reference."""
    loops, starts = loops_of(world, K, noise), x0.reshape(-1, x0.shape[-1])
    out: Mapping[str, Any] | None = None
    if key is None and matrix_powers.applies(loops):
        out = matrix_powers.simulate(loops, starts, num_steps, keep)
    if out is None:
        out = batch_last.simulate(loops, starts, num_steps, _kept(keep), key=key, substeps=world.substeps)
    lead = x0.shape[:-1]
    return {
        name: jax.device_put(out[name].reshape(*lead, *out[name].shape[1:]), may_alias=True) for name in keep
    }


def record(
    world: Env,
    K: Array,
    x0: Array,
    num_steps: int,
    keep: Keep,
    noise: Noise,
    key: Array | None,
    extra: Any,
    total: int,
) -> Mapping[str, np.ndarray | Array]:
    """What ``keep`` wants of loops under constant gains; see :func:`lqrlab.simulation.record`."""
    loops = loops_of(world, K, noise, extra)
    starts = x0.reshape(-1, x0.shape[-1])
    return batch_last.simulate(loops, starts, num_steps, keep, key=key, substeps=world.substeps, total=total)


@functools.cache
def _kept(keep: tuple[str, ...]) -> Keep:
    def points(xs: Array, us: Array, costs: Array, t: Array, extra: Any) -> Arrays:
        return {"xs": xs}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, extra: Any) -> Arrays:
        return {name: a for name, a in (("us", us), ("costs", costs)) if name in keep}

    return Keep(points if "xs" in keep else None, intervals if {"us", "costs"} & set(keep) else None)
