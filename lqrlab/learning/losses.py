"""What a network is trained to make small."""

import jax.numpy as jnp
from jax import Array


def masked_mse(prediction: Array, target: Array, live: Array) -> Array:
    """Mean of the squared error over live entries; what is masked has no value and no gradient.

    Args:
        prediction, target: ``[b, W, m]``.
        live: the same shape; 1 (or a weight) where an entry counts, 0 where it does not exist.
    """
    # select before subtracting: a NaN behind the mask must not reach the gradient
    error = jnp.where(live > 0, prediction, 0.0) - jnp.where(live > 0, target, 0.0)
    return jnp.sum(live * error**2) / jnp.maximum(jnp.sum(live > 0), 1)
