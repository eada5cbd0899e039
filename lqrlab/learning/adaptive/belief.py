"""Exact Bayesian regression of an unknown plant, step by step: a mixture of Gaussians over its matrices."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lqrlab.compute import pytree
from lqrlab.learning.adaptive.prior import Families, Prior, Z, components
from lqrlab.simulation import Told
from lqrlab.systems import N_MAX

_FLOOR = 1e-4
"""Noise that is assumed at least, in units of the state: without it the first exact equation ends all doubt."""


@pytree
@dataclasses.dataclass(frozen=True)
class Belief:
    """Belief about one plant, x⁺ = θᵀz with z = [x; u], after the steps so far; memory that does not grow.

    Attributes:
        theta: means of the plants at large ``[K, Z, 12]``.
        spread: covariances of their rows: those of positions, and the others ``[K, 2, Z, Z]``.
        odds: logarithms of the weights of plants at large, then families ``[K + F]``.
        position: which rows are positions ``[12]``.
        family: the families of the plant's size, as many as fit ``[F]``.
        w: means of their coefficients ``[F, r]``.
        W: their covariances ``[F, r, r]``.
    """

    theta: Float[Array, "*batch K z n"]
    spread: Float[Array, "*batch K 2 z z"]
    odds: Float[Array, "*batch all"]
    position: Float[Array, "*batch n"]
    family: Int[Array, "*batch F"]
    w: Float[Array, "*batch F r"]
    W: Float[Array, "*batch F r r"]


def start(prior: Prior, told: Told) -> Belief:
    """The belief in one plant before its first step."""
    theta, spread, odds, position = components(prior, told)
    known = prior.known
    if known is None:
        nothing = jnp.zeros(0)
        return Belief(theta, spread, odds, position, nothing.astype(int), nothing[:, None], nothing[:, None, None])
    size = jnp.stack([jnp.sum(told.state_mask), jnp.sum(told.input_mask)])
    fits = jnp.where(jnp.all(known.sizes == size.astype(float)[None], axis=-1), 0.0, -jnp.inf)
    log_odds, family = jax.lax.top_k(fits, known.most)
    variance = prior.inflate * known.variance[family]
    odds = jnp.concatenate([odds, log_odds])
    w, W = jnp.zeros_like(variance), variance[..., None] * jnp.eye(variance.shape[-1])[None]
    return Belief(theta, spread, odds, position, family, w, W)


def learn(belief: Belief, prior: Prior, told: Told, z: Array, x: Array) -> Belief:
    """The belief after z ``[Z]`` was followed by the state x ``[12]``: Bayes' rule, exact."""
    variance = _FLOOR**2 + told.noise**2 + 2 * told.sensor_noise**2
    exists = told.state_mask.astype(float)
    rows = jnp.stack([belief.position, exists - belief.position])
    Sz = belief.spread @ z  # [K, 2, Z]
    expected = variance + Sz @ z
    error = x[None] - jnp.einsum("kzn,z->kn", belief.theta, z)
    gain = jnp.einsum("kgz,gn->kzn", Sz / expected[..., None], rows)
    theta = belief.theta + gain * error[:, None]
    spread = belief.spread - Sz[..., :, None] * (Sz / expected[..., None])[..., None, :]
    surprise = rows.sum(-1)[None] * jnp.log(expected) + (error**2 @ rows.T) / expected
    odds = belief.odds.at[: len(theta)].add(-jnp.sum(surprise, -1) / 2)
    w, W = belief.w, belief.W
    if prior.known is not None:
        w, W, likelihood = _learn_families(belief, prior.known, variance, exists, z, x)
        odds = odds.at[len(theta) :].add(likelihood)
    return Belief(theta, spread, odds - jnp.max(odds), belief.position, belief.family, w, W)


def _learn_families(
    belief: Belief, known: Families, variance: Array, exists: Array, z: Array, x: Array
) -> tuple[Array, Array, Array]:
    """Coefficients, their covariances and the log likelihood of a step ``[F]``, row by row of x."""
    # of all families at once, which is one product of matrices for all plants, then those that fit
    num, r = known.variance.shape
    regressors = (z @ known.directions.transpose(2, 0, 1, 3).reshape(Z, -1)).reshape(num, r, N_MAX)
    errors = x[None] - (z @ known.mean.transpose(1, 0, 2).reshape(Z, -1)).reshape(num, N_MAX)
    regressors = jnp.moveaxis(regressors[belief.family], -1, 0)
    errors = errors[belief.family].T
    variance = variance + known.rest[belief.family] * jnp.sum(z * z)

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


def hypotheses(belief: Belief, prior: Prior) -> tuple[Array, Array, Array]:
    """Hypotheses about the plant: each family that fits, then plants at large as one.

    Returns:
        Weights ``[F + 1]``, θ ``[F + 1, Z, 12]``, and covariances of the rows of the last ``[2, Z, Z]``.
    """
    odds, large = jax.nn.softmax(belief.odds), len(belief.theta)
    if large:
        size = jnp.argmax(belief.odds[:large])
        theta, spread = belief.theta[size], belief.spread[size]
    else:
        theta, spread = jnp.zeros((Z, N_MAX)), jnp.zeros((2, Z, Z))
    weights, thetas = jnp.sum(odds[:large])[None], theta[None]
    if prior.known is not None:
        mean, directions = prior.known.mean[belief.family], prior.known.directions[belief.family]
        of_families = mean + jnp.einsum("fr,frzn->fzn", belief.w, directions)
        weights, thetas = jnp.concatenate([odds[large:], weights]), jnp.concatenate([of_families, thetas])
    return weights, thetas, spread
