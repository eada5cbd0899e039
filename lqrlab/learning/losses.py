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


def masked_mse(prediction: Array, target: Array, weight: Array) -> Array:
    """Mean of the squared error over existing entries; what is masked has no value and no gradient.

    Args:
        prediction, target: ``[b, W, m]``.
        weight: the same shape; 1 where an entry counts, 0 where it does not exist.

    >>> float(learning.losses.masked_mse(jnp.array([1.0, 9.0]), jnp.zeros(2), jnp.array([1.0, 0.0])))
    1.0
    """
    # select before subtracting: a NaN behind the mask must not reach the gradient
    error = jnp.where(weight > 0, prediction, 0.0) - jnp.where(weight > 0, target, 0.0)
    return jnp.sum(weight * error**2) / jnp.maximum(jnp.sum(weight > 0, dtype=weight.dtype), 1)


def gaussian_kl(mean: Array, log_std: Array, expert_mean: Array, expert_std: Array, weight: Array) -> Array:
    """Mean over existing entries of KL(expert ‖ policy) for independent Gaussians; zero only where they are equal.

    The expert is the LQG regulator of each window's plant, N(−Kx, expert_std²), see
    :func:`lqrlab.learning.expert_std`. Where its inputs are correlated, these are their marginals, which the
    best policy of independent inputs has too.

    Args:
        mean, log_std: the policy's, ``[b, W, m]``.
        expert_mean: ``[b, W, m]``.
        expert_std: above 0, broadcast against them.
        weight: 1 where an entry counts, 0 where it does not exist.
    """
    exists = weight > 0
    error = jnp.where(exists, mean, 0.0) - jnp.where(exists, expert_mean, 0.0)
    # the expert's standard deviation over the policy's
    log_ratio = jnp.where(exists, jnp.log(expert_std) - log_std, 0.0)
    kl = -log_ratio + (jnp.exp(2 * log_ratio) * (1 + (error / expert_std) ** 2) - 1) / 2
    return jnp.sum(weight * kl) / jnp.maximum(jnp.sum(exists, dtype=kl.dtype), 1)


@register("masked_mse")
def _masked_mse(predictions: Predictions) -> Array:
    return masked_mse(predictions.prediction, predictions.target, predictions.weight)


@register("gaussian_kl")
def _gaussian_kl(predictions: Predictions) -> Array:
    return gaussian_kl(
        predictions.prediction, predictions.log_std, predictions.target, predictions.expert_std, predictions.weight
    )
