"""Baselines for a controller of unknown plants: the textbook's answers, tuned on training families only."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown import prior as prior_module
from lqrlab.extensions.unknown.adaptive_policy import AdaptivePolicy, RegulatorMemory, adaptive
from lqrlab.extensions.unknown.belief import Belief, drawn, likeliest_at_large, optimum, told_variance
from lqrlab.extensions.unknown.prior import Families, Prior, wide
from lqrlab.extensions.unknown.regret import ConstantGain
from lqrlab.simulation import Policy, Problem, Told, sent_or
from lqrlab.systems import M_MAX, N_MAX


@pytree
@dataclasses.dataclass(frozen=True)
class SampledPolicy:
    """The textbook's answers to the price of learning: control for a plant drawn from what is believed, or its mean.

    The belief is recursive least squares with unknown noise, of ridge regression. Every ``hold`` steps ``num`` plants
    are drawn from it, and the optimal gain of the one whose optimal cost is least acts from then on: one draw is
    Thompson sampling, many are optimism in the face of uncertainty (OFU), none is the mean. With ``explore`` steps the
    inputs are random for so long, and the gain that is then designed is kept: explore, then commit.

    Attributes:
        prior: :func:`lqrlab.unknown.ridge`.
        told: units and noise of the plants ``[*batch]``.
        num, hold, explore: see above.
        amplitude: standard deviation of the random inputs.

    Source: M. Abeille and A. Lazaric, Thompson sampling for linear-quadratic control problems, AISTATS 2017;
    Y. Abbasi-Yadkori and C. Szepesvári, Regret bounds for the adaptive control of linear quadratic systems, COLT 2011,
    its confidence set by draws; S. Dean et al., On the sample complexity of the linear quadratic regulator, 2020.
    """

    prior: Prior
    told: Told
    num: int = dataclasses.field(metadata={"static": True})
    hold: int = dataclasses.field(default=10, metadata={"static": True})
    explore: int = dataclasses.field(default=0, metadata={"static": True})
    amplitude: float = dataclasses.field(default=0.5, metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[RegulatorMemory, Array]:
        """The memory of :class:`lqrlab.unknown.AdaptivePolicy`, and a gain of zeros."""
        return self._regression.init(batch_shape), jnp.zeros((*batch_shape, M_MAX, N_MAX))

    @property
    def _regression(self) -> AdaptivePolicy:
        return AdaptivePolicy(self.prior, self.told, M_MAX, 0)

    def __call__(self, carry: tuple[RegulatorMemory, Array], x: Array) -> tuple[tuple[RegulatorMemory, Array], Array]:
        """Learn from x ``[*batch, *extra, 12]``, draw if it is time, and answer with u ``[…, 6]``."""
        memory, K = carry
        steps = memory.t.ravel()[0]
        learned, _ = self._regression(memory, x)
        when = steps == self.explore if self.explore else steps % self.hold == 0
        K = jax.lax.cond(when, lambda: self._drawn(learned.belief, steps, K), lambda: K)
        mask = expand_batch(self.told.coordinates.input_mask.astype(float), x.ndim)
        limit = expand_batch(self.told.limit, x.ndim - 1, 0)[..., None]
        random = self.amplitude * jax.random.normal(
            jax.random.fold_in(jax.random.key(1), steps), (*x.shape[:-1], M_MAX)
        )
        u = jnp.where(steps < self.explore, random, -(K @ x[..., None])[..., 0])
        u = jnp.clip(jnp.where(jnp.isfinite(u), u, 0.0) * mask, -limit, limit)
        z = jnp.concatenate([learned.z[..., :N_MAX], u], axis=-1)
        return (dataclasses.replace(learned, z=z), K), u

    def _drawn(self, belief: Belief, steps: Array, before: Array) -> Array:
        """Optimal gains of the cheapest plants of the draws ``[*batch, 6, 12]``; as before where none has one."""
        lead = before.shape[:-2]
        loops, num = math.prod(lead), max(self.num, 1)
        flat = jax.tree.map(lambda a: a.reshape(loops, *a.shape[len(lead) :]), belief)
        exists = expand_batch(self.told.coordinates.state_mask.astype(float), len(lead) + 1)
        exists = jnp.broadcast_to(exists, (*lead, N_MAX)).reshape(loops, N_MAX)
        likely = jax.vmap(beliefs.likeliest)(flat)
        mean, spread, rows = jax.vmap(likeliest_at_large, (0, 0, None))(likely, exists, M_MAX)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), steps), loops)
        theta = jax.vmap(drawn, (0, 0, 0, 0, None))(mean, spread * min(self.num, 1), rows, keys, num)
        P, K, sound = optimum(jnp.moveaxis(theta, 0, -2).reshape(*mean.shape[1:], loops * num))
        cost = jnp.where(sound, jnp.trace(P), jnp.inf).reshape(loops, num)
        at = jnp.arange(loops) * num + jnp.argmin(cost, axis=1)
        K = jnp.moveaxis(K[..., at], -1, 0)
        return jnp.where(sound[at][:, None, None], K, before.reshape(K.shape)).reshape(before.shape)


Controller = Callable[[Problem], Policy]
"""From the problem of plants that are not described to a policy for them."""

DRAWS = {"Thompson sampling": 1, "optimism": 16, "explore, then commit": 0}
"""Plants that each draws from its belief."""
_LAST = -1e6  # log odds of what is believed only where nothing else can be

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "ridge": {"size": 0.1, "input_size": 0.3, "probe": 0.15, "doublings": 1},
    "cautious ridge": {"size": 0.1, "input_size": 0.3, "probe": 0.15, "doublings": 1, "caution": 1.0},
    "training plants of this size": {"inflate": 1.0, "rank": 24},
    "likeliest family": {"inflate": 4.0},
    "bank of 500": {"misfit": 0.1},
    "family known": {"inflate": 4.0},
    "Thompson sampling": {"size": 0.03, "input_size": 1.0, "hold": 1},
    "optimism": {"size": 0.1, "input_size": 1.0, "hold": 1},
    "explore, then commit": {"explore": 10, "amplitude": 0.3},
}
"""The best of a grid each, on plants of the training families (``benchmarks/baseline_grid.py``)."""


def baseline(
    name: str, training: Sequence[Told], family: Int[np.ndarray, " V"] | None = None, **settings: float
) -> Controller:
    """One of the baselines, with its settings of :data:`SETTINGS` where none are given.

    Args:
        name: which.
        training: plants of each family that may be known beforehand.
        family: from which of these families each plant to be controlled is; needed where the family is known.
        settings: values in the place of these.
    """
    given: Mapping[str, Any] = {**SETTINGS[name], **settings}
    if name == "family known":
        assert family is not None, "a family is known of some plants"
        return family_known(training, family, **given)
    if name == "bank of 500":
        return bank(training, **given)
    if name in DRAWS:
        prior = ridge(given.get("size", 0.1), given.get("input_size", 1.0), 0.0)
        how = {key: given[key] for key in ("hold", "explore", "amplitude") if key in given}
        return lambda problem: SampledPolicy(prior, problem.told("units"), DRAWS[name], **how)
    doublings = int(given.get("doublings", 5))
    numbers = {key: value for key, value in given.items() if key != "doublings"}
    if name in ("ridge", "cautious ridge"):
        prior = ridge(**numbers)
    elif name == "likeliest family":
        prior = likeliest(training, **numbers)
    else:
        prior = of_size(training, **numbers)
    return lambda problem: adaptive(problem, prior, doublings=doublings)


def ridge(size: float, input_size: float, probe: float, caution: float = 0.0) -> Prior:
    """Recursive ridge regression towards x⁺ = x, and the design for its mean: certainty equivalence.

    Args:
        size: standard deviation of the entries of A − I.
        input_size: of those of B.
        probe: amplitude of the probing input at the start.
        caution: share of the covariance that is multiplicative noise in the design.
    """
    prior = prior_module.ridge(caution=caution, probe=probe)
    return dataclasses.replace(prior, dense=jnp.array([[size, input_size, 0.0]]))


def of_size(training: Sequence[Told], inflate: float, rank: float) -> Prior:
    """Mean and covariance of all training plants with as many states and inputs; where there are none, ridge."""
    groups: dict[tuple[int, int], list[Told]] = {}
    for d in training:
        groups.setdefault(_size(d), []).append(d)
    pooled = [jax.tree.map(lambda *a: jnp.concatenate(a), *group) for group in groups.values()]
    base = ridge(**{name: value for name, value in SETTINGS["ridge"].items() if name != "doublings"})
    return dataclasses.replace(
        base,
        dense=base.dense.at[0, 2].set(_LAST),
        inflate=jnp.array(inflate),
        known=prior_module.families(pooled, rank=int(rank)),
    )


def likeliest(training: Sequence[Told], inflate: float) -> Prior:
    """The likeliest of the training families, and certainty equivalence from its prior; no control of other sizes."""
    return _families_alone(prior_module.families(training), inflate)


def _families_alone(families: Families, inflate: float) -> Prior:
    base = wide(families)
    return dataclasses.replace(
        base, dense=base.dense[:0], kinematic=base.kinematic[:0], caution=jnp.array(0.0), inflate=jnp.array(inflate)
    )


@pytree
@dataclasses.dataclass(frozen=True)
class BankPolicy:
    """The gains of some plants that are known, each weighted by how well its plant explains what was seen.

    Attributes:
        theta: the plants, x⁺ = θᵀ[x; u] ``[V, 18, 12]``.
        K: their optimal gains ``[V, 6, 12]``.
        sizes: their numbers of states and inputs ``[V, 2]``; only plants of the right size have a say.
        misfit: error that a plant of the bank may make a step, per unit of [x; u].
        told: units and noise of the plants to control ``[*batch]``.
    """

    theta: Float[Array, "V z n"]
    K: Float[Array, "V m n"]
    sizes: Float[Array, "V 2"]
    misfit: Float[Array, ""]
    told: Told

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array]:
        """The last state and input, and the log odds of each plant of the bank."""
        masks = self.told.coordinates.state_mask, self.told.coordinates.input_mask
        size = jnp.stack([jnp.sum(mask, -1) for mask in masks], -1)
        fits = jnp.all(size[..., None, :] == jnp.expand_dims(self.sizes, tuple(range(size.ndim - 1))), -1)
        odds = jnp.where(fits, 0.0, -jnp.inf)
        odds = jnp.broadcast_to(expand_batch(odds, len(batch_shape) + 1), (*batch_shape, len(self.K)))
        return jnp.zeros((*batch_shape, N_MAX + M_MAX)), odds

    def __call__(self, carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        """Weigh the plants by how they explain x ``[*batch, *extra, 12]``, and answer with u ``[…, 6]``."""
        z, odds = carry
        variance = expand_batch(told_variance(self.told), x.ndim - 1, 0) + self.misfit**2 * jnp.sum(z * z, -1)
        flat = jnp.moveaxis(self.theta, 1, 0).reshape(N_MAX + M_MAX, -1)
        error = x[..., None, :] - (z @ flat).reshape(*x.shape[:-1], len(self.K), N_MAX)
        likelihood = -jnp.sum(error**2, -1) / (2 * variance[..., None])
        seen = jnp.all(jnp.isfinite(jnp.concatenate([x, z], axis=-1)), axis=-1, keepdims=True)
        started = jnp.any(z != 0, axis=-1, keepdims=True) & seen
        odds = odds + jnp.where(started, likelihood, 0.0)
        odds = odds - jnp.maximum(jnp.max(odds, -1, keepdims=True), -1e30)
        weights = jax.nn.softmax(jnp.where(jnp.isfinite(odds), odds, -jnp.inf))
        K = (weights @ self.K.reshape(len(self.K), -1)).reshape(*x.shape[:-1], M_MAX, N_MAX)
        u = -(K @ x[..., None])[..., 0] * expand_batch(self.told.coordinates.input_mask, x.ndim)
        u = sent_or(z[..., N_MAX:], u, x)
        limit = expand_batch(self.told.limit, x.ndim - 1, 0)[..., None]
        u = jnp.clip(jnp.where(jnp.isfinite(u), u, 0.0), -limit, limit)
        return (jnp.concatenate([x, u], -1), odds), u


def bank(training: Sequence[Told], misfit: float, num: int = 500) -> Controller:
    """The gains of ``num`` training plants, as many of each family, by likelihood."""
    each = num // len(training)
    plants = jax.tree.map(lambda *a: jnp.concatenate([b[:each] for b in a]), *training)
    A, B = plants.A, plants.B
    K = control.dlqr(A, B, np.eye(N_MAX), np.eye(M_MAX)).K
    theta = jnp.concatenate([jnp.swapaxes(A, -1, -2), jnp.swapaxes(B, -1, -2)], axis=-2)
    sizes = jnp.stack([jnp.sum(plants.state_mask, -1), jnp.sum(plants.input_mask, -1)], -1)
    return lambda problem: BankPolicy(theta, K, sizes, jnp.asarray(misfit), problem.told("units"))


@pytree
@dataclasses.dataclass(frozen=True)
class _EachItsOwn:
    """A policy of its own for each plant ``[V, …]``."""

    policies: AdaptivePolicy

    def init(self, batch_shape: tuple[int, ...]) -> object:
        return jax.vmap(lambda policy: policy.init(batch_shape[1:]))(self.policies)

    def __call__(self, carry: object, x: Array) -> tuple[object, Array]:
        return jax.vmap(lambda policy, carry, x: policy(carry, x))(self.policies, carry, x)


def family_known(
    training: Sequence[Told], family: Int[np.ndarray, " V"], inflate: float = SETTINGS["family known"]["inflate"]
) -> Controller:
    """Certainty equivalence from the prior of the plant's own family, whichever it is: one bracket of the table.

    Args:
        training: other plants of each family.
        family: from which of them each plant to be controlled is.
        inflate: factor on the families' variances.
    """
    families = prior_module.families(training)
    own = jax.tree.map(lambda a: a[family][:, None], families)
    own = dataclasses.replace(own, most=1)
    base = _families_alone(jax.tree.map(lambda a: a[:1], families), inflate)
    rest = dataclasses.replace(base, known=None)
    spread = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(family), *a.shape)), rest)
    prior = dataclasses.replace(spread, known=own)
    return lambda problem: _EachItsOwn(AdaptivePolicy(prior, problem.told("units"), M_MAX))


def baselines(training: Sequence[Told]) -> dict[str, Controller]:
    """Controllers to compare with, tuned on the training families by ``python -m benchmarks.unknown_plants tune``.

    Args:
        training: at least 50 plants of each family that may be known beforehand.
    """
    nothing = {"no control": lambda problem: ConstantGain(jnp.zeros((*problem.batch_shape, M_MAX, N_MAX)))}
    return nothing | {name: baseline(name, training) for name in SETTINGS if name != "family known"}


def _size(d: Told) -> tuple[int, int]:
    return int(d.state_mask[0].sum()), int(d.input_mask[0].sum())
