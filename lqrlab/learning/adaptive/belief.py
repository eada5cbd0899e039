"""Exact Bayesian regression of an unknown plant, step by step: a mixture of Gaussians over its matrices."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lqrlab.compute import pytree
from lqrlab.learning.adaptive.known import Known
from lqrlab.learning.adaptive.prior import Families, Prior, components

_FLOOR = 1e-4
"""Noise that is assumed at least, in units of the state: without it the first exact equation ends all doubt."""


@pytree
@dataclasses.dataclass(frozen=True)
class Belief:
    """What is believed of one plant, x⁺ = θᵀz with z = [x; u], after the steps so far; memory that does not grow.

    Attributes:
        theta: means of the plants at large ``[K, Z, 12]``.
        spread: covariances of their rows: those of positions, and the others ``[K, 2, Z, Z]``.
        odds: logarithms of the weights of plants at large, then families ``[K + F]``.
        position: which rows are positions ``[12]``.
        w: means of the families' coefficients ``[F, r]``.
        W: their covariances ``[F, r, r]``.
    """

    theta: Float[Array, "*batch K z n"]
    spread: Float[Array, "*batch K 2 z z"]
    odds: Float[Array, "*batch all"]
    position: Float[Array, "*batch n"]
    w: Float[Array, "*batch F r"]
    W: Float[Array, "*batch F r r"]


def start(prior: Prior, known: Known) -> Belief:
    """The belief in one plant before its first step."""
    theta, spread, odds, position = components(prior, known)
    of_families = prior.known
    if of_families is None:
        return Belief(theta, spread, odds, position, jnp.zeros((0, 0)), jnp.zeros((0, 0, 0)))
    size = jnp.stack([jnp.sum(known.coordinates.state_mask), jnp.sum(known.coordinates.input_mask)])
    fits = jnp.all(of_families.sizes == size.astype(float), axis=-1)
    odds = jnp.concatenate([odds, jnp.where(fits, 0.0, -jnp.inf)])
    W = prior.inflate * of_families.variance[..., None] * jnp.eye(of_families.variance.shape[-1])
    return Belief(theta, spread, odds, position, jnp.zeros(of_families.variance.shape), W)


def learn(belief: Belief, prior: Prior, known: Known, z: Array, x: Array) -> Belief:
    """The belief after z ``[Z]`` was followed by the state x ``[12]``: Bayes' rule, exact."""
    variance = _FLOOR**2 + known.noise**2 + 2 * known.sensor_noise**2
    exists = known.coordinates.state_mask.astype(float)
    rows = jnp.stack([belief.position, exists - belief.position])
    Sz = belief.spread @ z  # [K, 2, Z]
    expected = variance + Sz @ z
    error = x - jnp.einsum("kzn,z->kn", belief.theta, z)
    gain = jnp.einsum("kgz,gn->kzn", Sz / expected[..., None], rows)
    theta = belief.theta + gain * error[:, None]
    spread = belief.spread - Sz[..., :, None] * (Sz / expected[..., None])[..., None, :]
    surprise = rows.sum(-1) * jnp.log(expected) + (error**2 @ rows.T) / expected
    odds = belief.odds.at[: len(theta)].add(-jnp.sum(surprise, -1) / 2)
    w, W = belief.w, belief.W
    if prior.known is not None:
        w, W, likelihood = _learn_families(belief, prior.known, variance, exists, z, x)
        odds = odds.at[len(theta) :].add(likelihood)
    return Belief(theta, spread, odds - jnp.max(odds), belief.position, w, W)


def _learn_families(
    belief: Belief, known: Families, variance: Array, exists: Array, z: Array, x: Array
) -> tuple[Array, Array, Array]:
    """Coefficients, their covariances and the log likelihood of a step ``[F]``, row by row of x."""
    regressors = jnp.einsum("frzn,z->nfr", known.directions, z)
    errors = x[:, None] - jnp.einsum("fzn,z->nf", known.mean, z)
    variance = variance + known.rest * jnp.sum(z * z)

    def row(carry: tuple[Array, Array, Array], seen: tuple[Array, Array, Array]) -> tuple:
        w, W, likelihood = carry
        h, error, here = seen
        Wh = jnp.einsum("frs,fs->fr", W, h)
        expected = variance + jnp.sum(h * Wh, -1)
        error = error - jnp.sum(h * w, -1)
        gain = here * Wh / expected[:, None]
        likelihood = likelihood - here * (jnp.log(expected) + error**2 / expected) / 2
        return (w + gain * error[:, None], W - gain[..., None] * Wh[:, None], likelihood), None

    start = (belief.w, belief.W, jnp.zeros_like(variance))
    return jax.lax.scan(row, start, (regressors, errors, exists))[0]


def likeliest(
    belief: Belief, prior: Prior
) -> tuple[Int[Array, " 2"], Float[Array, " 2"], Float[Array, "2 z n"]]:
    """The two likeliest components: which, their weights, their θ."""
    odds, which = jax.lax.top_k(belief.odds, 2)
    means = belief.theta
    if prior.known is not None:
        known = prior.known
        means = jnp.concatenate([means, known.mean + jnp.einsum("fr,frzn->fzn", belief.w, known.directions)])
    return which, jax.nn.softmax(odds), means[which]
