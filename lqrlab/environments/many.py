"""Many environments at once, as one compiled program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.environments import actions
from lqrlab.environments.core import Environment, Step, told
from lqrlab.environments.model import State
from lqrlab.systems import Plant


def batch_reset(env: Environment, keys: Array, plants: Plant | None = None) -> tuple[Array, State]:
    """:meth:`Environment.reset` of as many environments as there are keys, each with its plant if any are given."""
    _check_batch(keys)
    if checks.traced(keys, plants):
        return jax.vmap(env.reset)(keys, plants)
    return _batch_reset(env, keys, plants)


@functools.partial(jax.jit, static_argnums=0)
def _batch_reset(env: Environment, keys: Array, plants: Plant | None) -> tuple[Array, State]:
    return jax.vmap(env.reset)(keys, plants)


def batch_step(env: Environment, keys: Array, states: State, given: Any) -> Step:
    """:meth:`Environment.step` of many environments, ``[envs, …]`` each; what is not over costs no reset."""
    _check_batch(keys)
    if checks.traced(keys, states, given):
        return advance_batch(env, keys, states, given)
    return told(env, _batch_step(env, keys, states, given))


def advance_batch(env: Environment, keys: Array, states: State, given: Any, stop: bool = True) -> Step:
    """The batch one sample on; resets are drawn only in samples in which an episode ends."""
    obs, state, reward, terminated, truncated, info = jax.vmap(env._advance)(keys, states, given)
    if stop and env.settings.on_error in ("raise", "breakpoint"):
        actions.stop_if(jnp.any(info["invalid"]), env.settings.on_error == "breakpoint")
    over = terminated | truncated

    def again(obs: Array, state: State) -> tuple[Array, State]:
        def one(key: PRNGKeyArray, over: Bool[Array, ""], obs: Array, state: State) -> tuple[Array, State]:
            fresh = env._reset(jax.random.fold_in(key, 0), state.model)
            return jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, (obs, state))

        return jax.vmap(one)(keys, over, obs, state)

    obs, state = jax.lax.cond(jnp.any(over), again, lambda obs, state: (obs, state), obs, state)
    return obs, state, reward, terminated, truncated, info


@functools.partial(jax.jit, static_argnums=0)
def _batch_step(env: Environment, keys: Array, states: State, given: Any) -> Step:
    return advance_batch(env, keys, states, given, stop=False)


def _check_batch(keys: Any) -> None:
    typed = isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not isinstance(keys, jax.Array) or keys.ndim != (1 if typed else 2) or not keys.shape[0]:
        raise ValueError(
            "keys: expected one random key for each environment, as jax.random.split(key, 1024) makes, but found "
            f"{getattr(keys, 'shape', keys)!r}"
        )
