"""Exact derivatives of functions that are called with any leading axes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def derivative(f: Callable[[Array], Array], x: Float[Array, "*loops k"]) -> Float[Array, "*loops p k"]:
    """∂f/∂x of a function that takes each loop's vector to another one, whatever the leading axes."""

    def along(direction: Array) -> Array:
        return jax.jvp(f, (x,), (jnp.broadcast_to(direction, x.shape),))[1]

    return jax.vmap(along, out_axes=-1)(jnp.eye(x.shape[-1], dtype=x.dtype))
