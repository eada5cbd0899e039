"""Losses: over windows of recorded loops, and of a policy in its own closed loop.

A loss over windows of one's own is entered by ``@losses.register("name")`` and named in ``TrainConfig(loss="name")``.

A loss on the optimum's trajectories does not see what the loop does with an error. The cost of the policy's *own* loop
above the optimum is a sum along it (see :class:`lqrlab.simulation.Problem`),

    J − x0ᵀP x0 = Σ (u + Kx)ᵀ S (u + Kx),

so there is nothing to cancel, and a ratio to the optimal cost can be had in float32 near the optimum too.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab import control, simulation
from lqrlab.compute import pytree
from lqrlab.compute.configuration import Registry
from lqrlab.learning.network_policy import NetworkPolicy
from lqrlab.simulation import Problem, verdict
from lqrlab.systems import M_MAX, N_MAX

register = Registry("loss", "loss")
"""Decorator that enters a loss: a function of :class:`Predictions` to a scalar."""


@pytree
@dataclasses.dataclass(frozen=True)
class Predictions:
    """A policy's inputs for windows and the expert's (target), and the weight of an entry, 0 if there is none.

    All are ``[b, W, 6]``.
    """

    prediction: Array
    target: Array
    weight: Array


@register("masked_mse")
def masked_mse(given: Predictions) -> Array:
    """Mean squared error over existing entries; masked entries have no value and no gradient.

    >>> given = learning.losses.Predictions(jnp.array([1.0, 9.0]), jnp.zeros(2), jnp.array([1.0, 0.0]))
    >>> float(learning.losses.masked_mse(given))
    1.0
    """
    exists = given.weight > 0
    # selected before it is subtracted: a NaN behind the mask must not reach the gradient
    error = jnp.where(exists, given.prediction, 0.0) - jnp.where(exists, given.target, 0.0)
    return jnp.sum(given.weight * error**2) / jnp.maximum(jnp.sum(exists, dtype=error.dtype), 1)


def gain_excess(gain: Array, problem: Problem) -> tuple[Array, Array]:
    """Excess cost of gains relative to the optimum, over all directions of x0 alike: J/J* − 1.

    J is the trace of the Lyapunov equation's solution, so the horizon is infinite and the value exact. Where a
    loop is not stable, its cost is infinite and has no gradient; there costs are discounted just so much that
    they are finite (by less than what the loop grows by), and the gradient is that of the discounted cost, which
    leads to less growth. Of gains ``[b, 6, 12]`` (u = −Kx, scaled), with the verdict on each loop ``[b]``.

    Source: J. Perdomo, J. Umenberger, M. Simchowitz, Stabilizing via policy gradient methods, NeurIPS 2021 (discount).
    """
    gain = gain.astype(problem.A.dtype)
    state_mask = jnp.max(jnp.abs(problem.P), axis=-1) > 0
    input_mask = jnp.max(jnp.abs(problem.B), axis=-2) > 0
    gain = jnp.where(input_mask[..., :, None] & state_mask[..., None, :], gain, 0.0)
    error, closed = gain - problem.K, problem.closed_loop(gain)
    size = jax.lax.stop_gradient(control.spectral_radius(closed))
    nearly = 1 - float(jnp.finfo(closed.dtype).eps) ** 0.5 / 4  # a slower loop's cost has lost its digits
    discount = jnp.where(size < nearly, 1.0, 0.99 / size)
    X = control.dlyap(closed.mT * discount[..., None, None], error.mT @ problem.S @ error)
    paid, least = (jnp.trace(a, axis1=-2, axis2=-1) for a in (X, problem.P))
    return paid / least, verdict.of_gain(jax.lax.stop_gradient(closed))


def closed_loop(
    policy: NetworkPolicy,
    linear: bool,
    problem: Problem,
    x0: Array,
    horizon: int,
    noise: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Excess cost ``[b]`` and the verdict on each loop ``[b]``: exact for linear gains, else by a rollout.

    The policy is bound to the plants ``[b]`` in scaled, padded coordinates; ``noise`` is the standard deviation of the
    disturbance of the scaled state at each step of the rollout, which the optimal gain pays too.
    """
    if linear:
        return gain_excess(policy.context.gain.reshape(-1, M_MAX, N_MAX), problem)
    if noise:
        problem = problem.disturbed(noise=noise * policy.coordinates.state_mask)
    run = simulation.rollout(problem, policy, x0, horizon, key=key if noise else None, keep=("xs", "us"))
    sizes = verdict.size(run.xs, jnp.ones(run.xs.shape[-1:], run.xs.dtype))
    return problem.excess(run.xs, run.us), verdict.of_sizes(jax.lax.stop_gradient(sizes), linear=problem.linear)
