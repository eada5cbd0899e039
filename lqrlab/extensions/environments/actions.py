"""Structured actions: which inputs an agent addresses, and with what. Each is a pytree, so ``vmap`` batches it.

What is not addressed is zero, the equilibrium. An index that is out of range makes the input NaN, as a NaN in the
action itself does; ``on_error`` decides what becomes of that. A wrong shape is refused at once, also inside ``jit``.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from lqrlab.compute import checks, pytree

if TYPE_CHECKING:
    from lqrlab.extensions.environments.core import Environment


class Action:
    """The decision of an agent in a step."""

    def to_input(self, env: "Environment") -> Array:
        """The input ``[m]`` in the environment's units, NaN if the action is invalid."""
        raise NotImplementedError


@pytree
@dataclasses.dataclass(frozen=True)
class InputChannel(Action):
    """One input by its number, or several, ``[k]`` with as many values."""

    index: ArrayLike
    value: ArrayLike

    def to_input(self, env: "Environment") -> Array:
        """``value`` at ``index``."""
        index, valid = _index("index", self.index, env.m, env, most_axes=1)
        value = _values("value", self.value, index.shape, env)
        return jnp.where(valid, jnp.zeros(env.m, env.dtype).at[index].set(value), jnp.nan)


@pytree
@dataclasses.dataclass(frozen=True)
class Mask(Action):
    """The inputs where ``mask [m]`` is True, of ``values [m]``."""

    mask: ArrayLike
    values: ArrayLike

    def to_input(self, env: "Environment") -> Array:
        """``values`` where the mask is True."""
        mask = jnp.asarray(self.mask)
        if mask.shape != (env.m,) or mask.dtype != bool:
            raise ValueError(
                f"mask: expected {env.m} truth values, one an input, but found {mask.dtype} of shape {mask.shape}"
            )
        return jnp.where(mask, _values("values", self.values, (env.m,), env), 0)


def input_of(action: Any, env: "Environment") -> Array:
    """The input of an action: of a structure, of all inputs, or of the index of a grid."""
    if isinstance(action, Action):
        return action.to_input(env)
    if not (levels := env.settings.levels):
        return _values("action", action, (env.m,), env)
    index, valid = _index("action", action, levels**env.m, env)
    places = levels ** jnp.arange(env.m - 1, -1, -1, jnp.int32)  # the last input moves fastest
    low, high = (jnp.asarray(a, env.dtype) for a in (env.action_low, env.action_high))
    share = (index // places % levels).astype(env.dtype) / (levels - 1)
    return jnp.where(valid, low + (high - low) * share, jnp.nan)


def _values(name: str, value: ArrayLike, shape: tuple[int, ...], env: "Environment") -> Array:
    array = jnp.asarray(checks.real(name, value))
    if array.shape != shape:
        raise ValueError(
            f"{name}: expected inputs of shape {shape}, but found shape {array.shape}; many environments at once go "
            "through batch_step"
        )
    return array.astype(env.dtype)


def _index(name: str, value: ArrayLike, size: int, env: "Environment", most_axes: int = 0) -> tuple[Array, Array]:
    """Whole numbers as int32, clipped where the environment clips; and whether all are in range."""
    array = jnp.asarray(checks.real(name, value))
    if array.ndim > most_axes or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name}: expected a whole number from 0 to {size - 1}, but found {array.dtype} of shape {array.shape}"
        )
    array = array.astype(jnp.int32)
    array = jnp.clip(array, 0, size - 1) if env.settings.on_error == "clip" else array
    return array, jnp.all((array >= 0) & (array < size))


def settled(u: Array, env: "Environment") -> tuple[Array, Array]:
    """An input ``[m]`` as ``on_error`` wants it, and whether it was invalid."""
    bad = ~jnp.all(jnp.isfinite(u))
    if env.settings.on_error == "clip":
        u = jnp.clip(u, jnp.asarray(env.action_low, u.dtype), jnp.asarray(env.action_high, u.dtype))
        return jnp.where(jnp.isfinite(u), u, jnp.zeros_like(u)), bad
    return u, bad


def refuse() -> None:
    """Say that an action was invalid."""
    raise ValueError(
        "action: expected finite inputs and an index in range, but found NaN, inf or an index that is not there; "
        "on_error='clip' takes the nearest valid action, 'nan' ends the episode of that environment alone"
    )


def stop_if(bad: Array) -> None:
    """Raise from compiled code where ``bad`` is True; of a batch once, where any is.

    A condition stays one under ``vmap``, so that good actions never call the host.
    """
    _watch(jax.lax.stop_gradient(bad))


@jax.custom_batching.custom_vmap
@jax.jit
def _watch(bad: Array) -> Array:
    jax.lax.cond(bad, lambda: jax.debug.callback(refuse), lambda: None)
    return bad


@_watch.def_vmap
def _(size: int, batched: list[bool], bad: Array) -> tuple[Array, bool]:
    return _watch(jnp.any(bad)), False
