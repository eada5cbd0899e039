"""Many environments at once, as one compiled program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from lqrlab.compute import checks, jit_by_function
from lqrlab.extensions.environments import actions
from lqrlab.extensions.environments.core import Environment, State, Step, check_environment, told
from lqrlab.systems import Plant

_FEW = 16
"""Share of a batch, 1 / 16, up to which resets are drawn one by one."""


def batch_reset(env: Environment, keys: Array, plants: Plant | None = None) -> tuple[Array, State]:
    """:meth:`Environment.reset` of one environment per key, optionally each with its plant."""
    check_environment(env)
    _check_batch(keys)
    if plants is not None:
        env.check_family(plants)
    if checks.traced(keys, plants):
        return jax.vmap(env.reset)(keys, plants)
    return _batch_reset(env, keys, plants)


@functools.partial(jit_by_function, static_argnums=0)
def _batch_reset(env: Environment, keys: Array, plants: Plant | None) -> tuple[Array, State]:
    return jax.vmap(env.reset)(keys, plants)


def batch_step(env: Environment, keys: Array, states: State, given: Any) -> Step:
    """:meth:`Environment.step` of many environments, ``[envs, …]`` each; unfinished ones need no reset."""
    check_environment(env)
    _check_batch(keys)
    env.check_own(states)
    if checks.traced(keys, states, given):
        return advance_batch(env, keys, states, given)
    return told(env, _batch_step(env, keys, states, given))


def advance_batch(env: Environment, keys: Array, states: State, given: Any, stop: bool = True) -> Step:
    """The batch one sample on; resets are drawn only in samples in which an episode ends."""
    obs, state, reward, terminated, truncated, info = jax.vmap(env._advance)(keys, states, given)
    if stop and env.settings.on_error == "raise":
        actions.stop_if(jnp.any(info["invalid"]))
    obs, state = renewed(env, keys, terminated | truncated, obs, state)
    return obs, state, reward, terminated, truncated, info


def renewed(env: Environment, keys: Array, over: Bool[Array, " envs"], obs: Array, state: State) -> tuple[Array, State]:
    """New episodes where ``over`` is True; none are drawn where none is, and few where few are."""
    few = len(over) // _FEW

    def fresh(keys: Array, state: State) -> tuple[Array, State]:
        return jax.vmap(lambda key, state: env._reset(jax.random.fold_in(key, 0), state.problem))(keys, state)

    def all_anew() -> tuple[Array, State]:
        return chosen(over, fresh(keys, state), (obs, state))

    def some_anew() -> tuple[Array, State]:
        (at,) = jnp.nonzero(over, size=few, fill_value=len(over))
        new = fresh(keys[at], jax.tree.map(lambda a: a[at], state))
        return jax.tree.map(lambda a, b: b.at[at].set(a, mode="drop"), new, (obs, state))

    number = jnp.sum(over)
    ways = (lambda: (obs, state), some_anew, all_anew) if few else (lambda: (obs, state), all_anew)
    which = jnp.where(number == 0, 0, jnp.where(number <= few, 1, len(ways) - 1))
    return jax.lax.switch(which, ways)


def chosen(mask: Bool[Array, " envs"], new: Any, old: Any) -> Any:
    """``new`` where the mask is True, along the first axis; what has no row for each, such as a count, is new."""

    def one(a: Array, b: Array) -> Array:
        rows = jnp.shape(a)[:1] == mask.shape
        return jnp.where(mask.reshape(-1, *[1] * (a.ndim - 1)), a, b) if rows else a

    return jax.tree.map(one, new, old)


@functools.partial(jit_by_function, static_argnums=0)
def _batch_step(env: Environment, keys: Array, states: State, given: Any) -> Step:
    return advance_batch(env, keys, states, given, stop=False)


def _check_batch(keys: Any) -> None:
    typed = isinstance(keys, jax.Array) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    if not isinstance(keys, jax.Array) or keys.ndim != (1 if typed else 2) or not keys.shape[0]:
        raise ValueError(
            "keys: expected one random key for each environment, as jax.random.split(key, 1024) makes, but found "
            f"{getattr(keys, 'shape', keys)!r}"
        )
