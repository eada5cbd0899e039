"""The fast path of :func:`lqrlab.simulation.rollout`, tested equal to it: loops that the batch-last engine runs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.simulation import constant_gain
from lqrlab.simulation.constant_gain import loops_of
from lqrlab.simulation.noise import Noise, drawing
from lqrlab.simulation.policies import LinearPolicy, Policy
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.recording import Arrays, Keep

MANY = 64
"""Fewer loops are the reference scan's."""
MUCH = 1_000_000
"""Steps of all loops from which on the batch-last engine gains more than its compilation costs."""


def rollout(
    problem: Problem,
    policy: Policy,
    x0: Float[Array, "*lead n"],
    num_steps: int,
    keep: tuple[str, ...],
    key: PRNGKeyArray | None,
) -> dict[str, Array] | None:
    """``xs``, ``us``, ``costs`` and ``seen``, as far as they are kept; None for loops that are the reference scan's.

    The engine takes many loops under constant gains, outside of traces, on one device. NumPy, which has no bfloat16,
    must know the numbers; and where JAX is to look for NaN, it has to see each step.
    """
    lead, count = x0.shape[:-1], x0.size // x0.shape[-1]
    watched = jax.config.jax_debug_nans  # type: ignore[attr-defined]
    if (
        type(policy) is not LinearPolicy
        or count < MANY
        or watched
        or _shared_out(x0, policy.K, problem.A)
        or not np.issubdtype(x0.dtype, np.floating)
    ):
        return None
    if checks.traced(problem, policy, x0, key, jnp.zeros(())):
        return None
    if count * num_steps * (1 if problem.linear else problem.substeps) < MUCH:
        return None
    loops, starts = loops_of(problem, policy.K), x0.reshape(-1, x0.shape[-1])
    out = constant_gain.simulate(loops, starts, num_steps, _kept(keep), key=key, substeps=problem.substeps)
    if "seen" in keep:
        out = {**out, "seen": _seen(jnp.asarray(out["xs"]), loops.noise.sensor, key)}
    return {name: jax.device_put(out[name].reshape(*lead, *out[name].shape[1:]), may_alias=True) for name in keep}


@jax.jit
def _seen(xs: Float[Array, "loops points n"], spread: Array, key: PRNGKeyArray) -> Float[Array, "loops T n"]:
    """The states as the policies saw them: with the noise of the sensors, which is drawn again."""
    numbers = jnp.arange(len(xs), dtype=jnp.int32)
    of_loops = jnp.moveaxis(spread[numbers // (len(xs) // len(spread))], 0, -1)
    noise = drawing(key, numbers, Noise(sensor=of_loops), xs.dtype)(xs.shape[1] - 1, jnp.int32(0)).sensor
    assert noise is not None
    return xs[:, :-1] + jnp.moveaxis(noise, -1, 0)


def _shared_out(*arrays: object) -> bool:
    """True if any array is on several devices, where a scan leaves it and an engine would not."""
    return any(len(a.devices()) > 1 for a in arrays if isinstance(a, jax.Array) and not checks.traced(a))


@functools.cache
def _kept(keep: tuple[str, ...]) -> Keep:
    def points(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {"xs": xs}

    def intervals(xs: Array, us: Array, costs: Array, t: Array, extra: object) -> Arrays:
        return {name: a for name, a in (("us", us), ("costs", costs)) if name in keep}

    return Keep(points if "xs" in keep else None, intervals if {"us", "costs"} & set(keep) else None)
