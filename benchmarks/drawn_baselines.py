"""Baselines for unknown plants that draw from what they believe: Thompson sampling, optimism, explore and commit."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from lqrlab import unknown
from lqrlab.compute import one_program, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown import unknown_baselines
from lqrlab.extensions.unknown.adaptive_policy import AdaptivePolicy, RegulatorMemory
from lqrlab.extensions.unknown.belief import Belief, drawn, likeliest_at_large, optimum
from lqrlab.extensions.unknown.prior import Prior
from lqrlab.extensions.unknown.unknown_baselines import Controller
from lqrlab.simulation import Told
from lqrlab.systems import M_MAX, N_MAX

DRAWS = {"Thompson sampling": 1, "optimism": 16, "explore, then commit": 0}
"""Plants that each draws from its belief."""

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "Thompson sampling": {"size": 0.03, "input_size": 1.0, "hold": 1},
    "optimism": {"size": 0.1, "input_size": 1.0, "hold": 1},
    "explore, then commit": {"explore": 10, "amplitude": 0.3},
}
"""The best of a grid each, on plants of the training families (``benchmarks/baseline_grid.py``)."""


def baselines(training: Sequence[Told]) -> dict[str, Controller]:
    """Those of :func:`lqrlab.unknown.baselines`, and these."""
    return unknown.baselines(training) | {name: baseline(name, training) for name in SETTINGS}


def baseline(name: str, training: Sequence[Told], **settings: float) -> Controller:
    """One of them by name, with its settings of :data:`SETTINGS` where none are given."""
    if name not in DRAWS:
        return unknown_baselines.baseline(name, training, **settings)
    given = dict(SETTINGS[name]) | settings
    prior = unknown.ridge(size=given.pop("size", 0.1), input_size=given.pop("input_size", 1.0), probe=0.0)
    return lambda problem: SampledPolicy(prior, problem.told("units"), DRAWS[name], **given)  # type: ignore[arg-type]


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

    @one_program
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
