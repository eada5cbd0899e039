"""What a network is trained to make small."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

_LOSSES: dict[str, Callable[..., Array]] = {}


def register(fn: Callable[..., Array]) -> Callable[..., Array]:
    """Enter a loss under its name (a decorator)."""
    _LOSSES[fn.__name__] = fn
    return fn


def get(name: str) -> Callable[..., Array]:
    """A registered loss."""
    if name not in _LOSSES:
        raise ValueError(f"loss: expected one of {', '.join(_LOSSES)}, but found {name!r}")
    return _LOSSES[name]


@register
def masked_mse(prediction: Array, target: Array, live: Array) -> Array:
    """Mean of the squared error over live entries; what is masked has no value and no gradient.

    Args:
        prediction, target: ``[b, W, m]``.
        live: the same shape; 1 (or a weight) where an entry counts, 0 where it does not exist.
    """
    # select before subtracting: a NaN behind the mask must not reach the gradient
    error = jnp.where(live > 0, prediction, 0.0) - jnp.where(live > 0, target, 0.0)
    return jnp.sum(live * error**2) / jnp.maximum(jnp.sum(live > 0), 1)
