"""Losses over windows of recorded loops.

A loss of one's own is entered by ``@losses.register("name")`` and named in ``TrainConfig(loss="name")``. What a
policy costs in its own closed loop is in :mod:`lqrlab.learning.closed_loop_cost`.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array

from lqrlab.compute import pytree
from lqrlab.compute.registry import Registry

register = Registry("loss", "loss")
"""Decorator that enters a loss: a function of :class:`Predictions` to a scalar."""


@pytree
@dataclasses.dataclass(frozen=True)
class Predictions:
    """A policy's inputs for windows and the expert's, all ``[b, W, 6]`` unless said otherwise.

    Attributes:
        prediction: the policy's input, or its mean.
        target: the expert's.
        weight: of an entry; 0 where it does not exist.
        log_std: logarithm of the policy's standard deviation (zero where the model has none).
        expert_std: standard deviation of the expert's; zero where nobody has designed a stochastic expert.
    """

    prediction: Array
    target: Array
    weight: Array
    log_std: Array
    expert_std: Array


@register("masked_mse")
def masked_mse(given: Predictions) -> Array:
    """Mean of the squared error over existing entries; what is masked has no value and no gradient.

    >>> zero = jnp.zeros(2)
    >>> given = learning.losses.Predictions(jnp.array([1.0, 9.0]), zero, jnp.array([1.0, 0.0]), zero, zero)
    >>> float(learning.losses.masked_mse(given))
    1.0
    """
    return _mean(_error(given) ** 2, given.weight)


@register("gaussian_kl")
def gaussian_kl(given: Predictions) -> Array:
    """Mean over existing entries of KL(expert ‖ policy) for independent Gaussians; zero only where they are equal.

    The expert is the LQG regulator of each window's plant, N(−Kx, expert_std²), see
    :func:`lqrlab.learning.expert_std`. Where its inputs are correlated, these are their marginals, which the
    best policy of independent inputs has too.
    """
    # the expert's standard deviation over the policy's
    log_ratio = jnp.where(given.weight > 0, jnp.log(given.expert_std) - given.log_std, 0.0)
    kl = -log_ratio + (jnp.exp(2 * log_ratio) * (1 + (_error(given) / given.expert_std) ** 2) - 1) / 2
    return _mean(kl, given.weight)


def _error(given: Predictions) -> Array:
    """Selected before it is subtracted: a NaN behind the mask must not reach the gradient."""
    exists = given.weight > 0
    return jnp.where(exists, given.prediction, 0.0) - jnp.where(exists, given.target, 0.0)


def _mean(values: Array, weight: Array) -> Array:
    return jnp.sum(weight * values) / jnp.maximum(jnp.sum(weight > 0, dtype=values.dtype), 1)
