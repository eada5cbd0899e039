"""Belief about an unknown plant: exact Bayesian regression over its matrices, and plants drawn from it."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from lqrlab.compute import pytree
from lqrlab.compute.linalg import batch_last
from lqrlab.control.riccati.doubling import doubled
from lqrlab.extensions.unknown.prior import Families, Prior, Seen, Z
from lqrlab.simulation import Told
from lqrlab.systems import N_MAX

FLOOR = 1e-4
"""Noise that is assumed at least, in units of the state: without it the first exact equation ends all doubt."""

_LEVELS, _LOUD = 5, 0.1  # of the noise: from the one that is told to this
_UNTOLD = 10.0  # −log of the weight of a level that is not the one that is told
RARE, OUTLIER = 7.0, 1.0
"""−log of the share of steps in which a plant is pushed, and how far, in scales."""
CALM = 20
"""Steps as expected after which one that is not is taken for an impulse disturbance, and two for another plant."""


@pytree
@dataclasses.dataclass(frozen=True)
class Belief:
    """Belief about one plant, x⁺ = θᵀz with z = [x; u], after the steps so far; memory that does not grow.

    The mixture is held once for each of some levels of the noise, the lowest of which is the one that is told.

    Attributes:
        theta: means of the plants at large ``[K, Z, 12]``.
        spread: covariances of their rows: those of positions, and the others ``[K, 2, Z, Z]``.
        odds: logarithms of the weights of plants at large, then families ``[K + F]``.
        position: which rows are positions ``[12]``.
        family: the families of the plant's size, as many as fit ``[F]``.
        w: means of their coefficients ``[F, r]``.
        W: their covariances ``[F, r, r]``.
        variance: of the noise in a step.
        odd: probability that the last step was an impulse disturbance, not an error of the model.
        calm: steps since the model was last found wrong.
    """

    theta: Float[Array, "*batch K z n"]
    spread: Float[Array, "*batch K 2 z z"]
    odds: Float[Array, "*batch all"]
    position: Float[Array, "*batch n"]
    family: Int[Array, "*batch F"]
    w: Float[Array, "*batch F r"]
    W: Float[Array, "*batch F r r"]
    variance: Float[Array, "*batch"]
    odd: Float[Array, "*batch"]
    calm: Float[Array, "*batch"]


def start(prior: Prior, told: Told) -> Belief:
    """The belief in one plant before its first step, at each level of the noise."""
    one = _start(prior, told)
    many = jax.tree.map(lambda a: jnp.broadcast_to(a, (_LEVELS, *a.shape)), one)
    variance, odds = levels(one.variance)
    return dataclasses.replace(many, odds=many.odds + odds[:, None], variance=variance)


def levels(variance: Array) -> tuple[Float[Array, " L"], Float[Array, " L"]]:
    """Variances of the noise from the known one on, and logarithms of their weights."""
    rise = jnp.linspace(0.0, 1.0, _LEVELS)
    return variance * (jnp.maximum(_LOUD**2, variance) / variance) ** rise, jnp.where(rise > 0, -_UNTOLD, 0.0)


def _start(prior: Prior, told: Told) -> Belief:
    """At the known level."""
    theta, spread, odds, position = prior.components(told)
    known, still = prior.known, (told_variance(told), jnp.zeros(()), jnp.zeros(()))
    if known is None:
        family, w = jnp.zeros(0, int), jnp.zeros((0, 1))
        return Belief(theta, spread, odds, position, family, w, w[..., None], *still)
    size = jnp.stack([jnp.sum(told.state_mask), jnp.sum(told.input_mask)])
    fits = jnp.where(jnp.all(known.sizes == size.astype(float)[None], axis=-1), 0.0, -jnp.inf)
    log_odds, family = jax.lax.top_k(fits, known.most)
    variance = prior.inflate * known.variance[family]
    odds = jnp.concatenate([odds, log_odds])
    w, W = jnp.zeros_like(variance), variance[..., None] * jnp.eye(variance.shape[-1])[None]
    return Belief(theta, spread, odds, position, family, w, W, *still)


def told_variance(told: Told) -> Array:
    """Of a state's prediction, at the known noise."""
    return FLOOR**2 + told.noise**2 + 2 * told.sensor_noise**2


def learn(belief: Belief, prior: Prior, told: Told, z: Array, x: Array) -> Belief:
    """The belief after z ``[Z]`` was followed by the state x ``[12]``: Bayes' rule, but for disturbances and changes.

    A step that a disturbance explains better teaches as little as that is likely. After two in a row the plant is taken
    for another: what is believed stays, and is as uncertain as at first.
    """
    exists = told.state_mask.astype(float)
    fresh = jax.tree.map(lambda a: a[: len(belief.odds)], start(prior, told))  # some hold the first levels alone
    learned = jax.vmap(_learn, (0, 0, None, None, None, None))(belief, fresh, prior, exists, z, x)
    return dataclasses.replace(learned, odds=learned.odds - jnp.max(learned.odds))


def _learn(belief: Belief, fresh: Belief, prior: Prior, exists: Array, z: Array, x: Array) -> Belief:
    """Bayes' rule at one level of the noise, for a step that may be an outlier or the first of another plant."""
    large, rows = len(belief.theta), jnp.stack([belief.position, exists - belief.position])
    Sz = belief.spread @ z  # [K, 2, Z]
    expected, error = belief.variance + Sz @ z, x[None] - jnp.einsum("kzn,z->kn", belief.theta, z)
    squares = error**2 @ rows.T

    def found(expected: Array) -> Array:
        return -jnp.sum(rows.sum(-1)[None] * jnp.log(expected) + squares / expected, -1) / 2

    usual, outlier = found(expected), found(expected + OUTLIER**2)
    if prior.known is not None:
        families = _FamilyStep(belief, prior.known, exists, z, x)
        usual, outlier = (jnp.concatenate(pair) for pair in zip((usual, outlier), families.likelihoods()))
    ready = belief.calm >= CALM
    share = jax.nn.sigmoid(outlier - RARE - usual)
    odd = jnp.sum(jax.nn.softmax(belief.odds) * share)
    again = ready & (odd > 0.5) & (belief.odd > 0.5)
    taken = jnp.where(ready, 1 - share, 1.0)
    of_large = taken[:large, None, None]
    gain = of_large * jnp.einsum("kgz,gn->kzn", Sz / expected[..., None], rows)
    theta = belief.theta + gain * error[:, None]
    spread = belief.spread - of_large[..., None] * Sz[..., :, None] * (Sz / expected[..., None])[..., None, :]
    w, W = belief.w, belief.W
    if prior.known is not None:
        w, W, likelihood = families.learned(taken[large:])
        usual = usual.at[large:].set(likelihood)
    odds = belief.odds + jnp.logaddexp(usual, jnp.where(ready, outlier - RARE, -jnp.inf))
    calm = jnp.where(~ready & (odd > 0.5), 0.0, belief.calm + 1)
    learned = dataclasses.replace(belief, theta=theta, spread=spread, w=w, W=W, odds=odds, odd=odd, calm=calm)
    prior_odds = jnp.where(jnp.isneginf(belief.odds), -jnp.inf, fresh.odds)
    prior_odds = prior_odds + jax.nn.logsumexp(odds) - jax.nn.logsumexp(prior_odds)
    anew = dataclasses.replace(fresh, theta=theta, w=w, odds=prior_odds)
    return jax.tree.map(lambda old, new: jnp.where(again, new, old), learned, anew)


class _FamilyStep:
    """Those that fit, before a step: regressors ``[12, F, r]``, errors and variances of their means ``[12, F]``."""

    def __init__(self, belief: Belief, known: Families, exists: Array, z: Array, x: Array) -> None:
        # of all families at once, which is one product of matrices for all plants, then those that fit
        num, r = known.variance.shape
        regressors = (z @ known.directions.transpose(2, 0, 1, 3).reshape(Z, -1)).reshape(num, r, N_MAX)
        errors = x[None] - (z @ known.mean.transpose(1, 0, 2).reshape(Z, -1)).reshape(num, N_MAX)
        self.belief, self.exists = belief, exists
        self.regressors, self.errors = jnp.moveaxis(regressors[belief.family], -1, 0), errors[belief.family].T
        self.variance = belief.variance + known.rest[belief.family] * jnp.sum(z * z)

    def likelihoods(self) -> tuple[Array, Array]:
        """Logarithms of each family's, of the step as usual and as an outlier; as if rows were independent."""
        expected = self.variance[None] + jnp.einsum("nfr,frs,nfs->nf", self.regressors, self.belief.W, self.regressors)
        squares = (self.errors - jnp.einsum("nfr,fr->nf", self.regressors, self.belief.w)) ** 2

        def found(expected: Array) -> Array:
            return -self.exists @ (jnp.log(expected) + squares / expected) / 2

        return found(expected), found(expected + OUTLIER**2)

    def learned(self, taken: Array) -> tuple[Array, Array, Array]:
        """Coefficients, their covariances and the log likelihood of a step ``[F]``, row by row of x."""

        def row(carry: tuple[Array, Array, Array], seen: tuple[Array, Array, Array]) -> tuple:
            w, W, likelihood = carry
            h, error, here = seen
            Wh = jnp.einsum("frs,fs->fr", W, h)
            expected = self.variance + jnp.sum(h * Wh, -1)
            error = error - jnp.sum(h * w, -1)
            gain = (taken * here / expected)[:, None] * Wh
            likelihood = likelihood - here * (jnp.log(expected) + error**2 / expected) / 2
            return (w + gain * error[:, None], W - gain[..., None] * Wh[:, None], likelihood), None

        start = (self.belief.w, self.belief.W, jnp.zeros_like(self.variance))
        return jax.lax.scan(row, start, (self.regressors, self.errors, self.exists))[0]


def likeliest(belief: Belief) -> Belief:
    """The belief at the level of noise that is likeliest."""
    level = jnp.argmax(jax.nn.logsumexp(belief.odds, -1))
    return jax.tree.map(lambda a: a[level], belief)


def seen(belief: Belief, prior: Prior, told: Told, t: Array) -> Seen:
    """All that the prior's network sees of the belief at one level of the noise, after t steps."""
    means, spreads, _, _ = prior.components(told)
    kinds = jax.nn.softmax(belief.odds[: len(means)])
    kind, kinematic = jnp.argmax(kinds), jnp.sum(kinds[len(prior.dense) :])
    before = jnp.diagonal(spreads[kind], axis1=1, axis2=2)
    return Seen(means[kind], before, belief.theta[kind], belief.spread[kind], kinematic, belief.variance, t)


def guessed(belief: Belief, prior: Prior, told: Told, t: Array) -> Belief:
    """The belief at one level of the noise, in which plants at large are what the prior's network, if it has one,
    guesses them to be."""
    if prior.guess is None or not len(belief.theta):
        return belief
    theta, spread = prior.guess(told, belief.position, seen(belief, prior, told, t))
    theta, spread = (jnp.broadcast_to(a, old.shape) for a, old in ((theta, belief.theta), (spread, belief.spread)))
    return dataclasses.replace(belief, theta=theta, spread=spread)


def hypotheses(belief: Belief, prior: Prior) -> tuple[Array, Array, Array]:
    """Hypotheses about the plant: each family that fits, then plants at large as one.

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
        # a product of matrices for all plants: to gather directions would move 40 kB for each
        known, chosen = prior.known, jax.nn.one_hot(belief.family, len(prior.known), dtype=float)
        by_family = (chosen[:, :, None] * belief.w[:, None]).reshape(len(chosen), -1)
        of_families = chosen @ known.mean.reshape(len(known), -1) + by_family @ known.directions.reshape(
            by_family.shape[-1], -1
        )
        of_families = of_families.reshape(-1, Z, N_MAX)
        weights, thetas = jnp.concatenate([odds[large:], weights]), jnp.concatenate([of_families, thetas])
    return weights, thetas, spread


def likeliest_at_large(belief: Belief, exists: Array, m: int) -> tuple[Array, Array, Array]:
    """θ, covariances of its rows, and which rows are positions and which not, of the likeliest plants at large."""
    size, n = jnp.argmax(belief.odds[: len(belief.theta)]), len(exists)
    kept = jnp.asarray([*range(n), *range(N_MAX, N_MAX + m)])
    theta, spread = belief.theta[size][kept][:, :n], belief.spread[size][:, kept][:, :, kept]
    return theta, spread, jnp.stack([belief.position[:n], exists - belief.position[:n]])


def drawn(
    theta: Float[Array, "z n"], spread: Float[Array, "2 z z"], rows: Float[Array, "2 n"], key: PRNGKeyArray, num: int
) -> Float[Array, "z n num"]:
    """Plants drawn from what is believed of one."""
    white = jax.random.normal(key, (*theta.shape, num), float)
    moved = jnp.einsum("gzy,ynd,gn->znd", jax.vmap(_root)(spread), white, rows)
    return (theta[..., None] + moved) * jnp.sum(rows, 0)[None, :, None]


def optimum(theta: Float[Array, "z n num"]) -> tuple[Array, Array, Array]:
    """P ``[n, n, num]``, K ``[m, n, num]`` for Q = R = I, and whether each was found ``[num]``."""
    n = theta.shape[1]
    A, B = batch_last.t(theta[:n]), batch_last.t(theta[n:])
    P = doubled(A, batch_last.mul(B, batch_last.t(B)), jnp.broadcast_to(batch_last.eye(n, A), A.shape))
    PB = batch_last.mul(P, B)
    S = batch_last.eye(B.shape[1], A) + batch_last.mul(batch_last.t(B), PB)
    K = batch_last.mul(batch_last.inverse(S), batch_last.mul(batch_last.t(PB), A))
    cost = jnp.trace(P)
    return P, K, jnp.isfinite(cost) & (cost > 0) & jnp.all(jnp.isfinite(K), axis=(0, 1))


def _root(S: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """L with L Lᵀ = S ≥ 0, column by column: LAPACK's, called for many at once, can stop for ever on two cores."""
    least = 1e-13 * jnp.max(jnp.diagonal(S))  # what is left below it is rounding

    def column(S: Array, i: Array) -> tuple[Array, Array]:
        v = jnp.where(S[i, i] > least, S[:, i] / jnp.sqrt(jnp.maximum(S[i, i], least)), 0.0)
        return S - v[:, None] * v[None], v

    return jax.lax.scan(column, S, jnp.arange(len(S)))[1].T
