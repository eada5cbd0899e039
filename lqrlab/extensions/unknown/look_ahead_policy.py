"""Look-ahead: inputs of the adaptive regulator chosen by simulated loops on plants drawn from its belief."""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import checks, one_program, pytree
from lqrlab.extensions.unknown import adaptive_policy as regulators
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown.adaptive_policy import AdaptivePolicy, RegulatorMemory
from lqrlab.extensions.unknown.belief import drawn, likeliest_at_large, optimum
from lqrlab.simulation import Told
from lqrlab.systems import N_MAX

_PROBES = ((0.1, 0), (-0.1, 0), (0.5, 7), (-0.5, 7))  # inputs that are tried beside the regulator's: size, signs
_OF_DRAWS = 4  # draws whose optimal input is tried
_FAR, _WORST = 1e3, 1e4  # a state and a cost over the optimum beyond which a loop counts as lost


@pytree
@dataclasses.dataclass(frozen=True)
class LookAheadPolicy:
    """The adaptive regulator with each input chosen by simulation, while the plant is new.

    Plants are drawn from what is believed. On each of them every candidate (the regulator's own input, half and one and
    a half times that, none, probes, and what would be optimal for some of the draws) is followed by ``steps`` steps in
    which the regulator learns and acts, then by the drawn plant's optimal cost to go. The input is the candidate with
    the least mean logarithm of that cost, within 10⁻⁴ and 10⁴ times the draw's optimum: what an input tells is worth
    what it saves later. That is one step of policy improvement, a hundred times as long as one of the regulator.

    Attributes:
        regulator: that is improved.
        num: draws.
        steps: simulated after each candidate.
        until: steps after which the regulator acts alone.
        n, m: most states and inputs that a plant has.

    Source: D. P. Bertsekas, Reinforcement learning and optimal control (2019), section 2.4 (rollout); J. Sternby (see
    :class:`AdaptivePolicy`) for what it approximates.
    """

    regulator: AdaptivePolicy
    num: int = dataclasses.field(metadata={"static": True})
    steps: int = dataclasses.field(metadata={"static": True})
    until: int = dataclasses.field(metadata={"static": True})
    n: int = dataclasses.field(metadata={"static": True})
    m: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> RegulatorMemory:
        """As the regulator's."""
        return self.regulator.init(batch_shape)

    @one_program
    def __call__(self, carry: RegulatorMemory, x: Array) -> tuple[RegulatorMemory, Array]:
        """Learn from x ``[*batch, *extra, n]`` and answer with u ``[*batch, *extra, m]``."""
        memory, u = self.regulator(carry, x)
        told, lead = self.regulator.flat(x.shape[:-1])
        num, t = math.prod(lead), jnp.max(carry.t, initial=0)
        flat = jax.tree.map(lambda a: a.reshape(num, *a.shape[len(lead) :]), memory)
        key = jax.random.fold_in(jax.random.key(0), t)  # the same for all, so that a loop is the same in any batch
        # one plant after another: candidates and draws make a batch as it is
        better = jax.lax.cond(
            t < self.until,
            lambda: jax.lax.map(lambda one: _better(self, one[0], one[1], key), (told, flat)),
            lambda: (flat.z, flat.expected),
        )
        z, expected = (a.reshape(*lead, a.shape[-1]) for a in better)
        inputs = self.regulator.told.coordinates.unscale_input(z[..., N_MAX:], self.regulator.m)
        return dataclasses.replace(memory, z=z, expected=expected), inputs.astype(u.dtype)


def look_ahead(policy: Any, *, num: int = 32, steps: int = 10, until: int = 60) -> LookAheadPolicy:
    """An adaptive regulator that chooses its first inputs by simulation; much slower.

    On dense systems, for which the belief doubts as much as it should, about half as many loops fail; on the
    catalogue's families and on random systems it is better left out (``docs/unknown_plants.md``).

    ``policy`` is a regulator of :func:`adaptive`; the numbers are those of :class:`LookAheadPolicy`.

    >>> plant = systems.make("pendulum")
    >>> policy = unknown.look_ahead(unknown.adaptive(plant, unknown.ridge()), num=4, steps=5, until=10)
    >>> run = simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), num_steps=200)
    >>> bool(abs(run.xs[-1]).max() < 1e-3)
    True
    """
    if type(policy) is not AdaptivePolicy:  # of another one's hypotheses nothing could be drawn
        raise TypeError(f"policy: expected an adaptive regulator, unknown.adaptive, but found {type(policy).__name__}")
    if not len(policy.prior.dense) + len(policy.prior.kinematic):
        raise ValueError("policy: its prior knows families alone; there is no plant at large to look ahead for")
    num, steps, until = checks.whole("num", num), checks.whole("steps", steps), checks.whole("until", until)
    masks = policy.told.state_mask, policy.told.input_mask
    if any(isinstance(mask, jax.core.Tracer) for mask in masks):
        return LookAheadPolicy(policy, num, steps, until, policy.n, policy.m)
    n, m = (int(np.asarray(mask).sum(-1).max()) for mask in masks)
    return LookAheadPolicy(policy, num, steps, until, n, m)


class _Start(NamedTuple):
    """All that candidates and draws share: the belief at large, the state, the noise and the limits."""

    theta: Array
    spread: Array
    P: Array
    x: Array
    rows: Array
    variance: Array
    caution: Array
    limit: Array
    inputs: Array


def _better(ahead: LookAheadPolicy, told: Told, memory: RegulatorMemory, key: PRNGKeyArray) -> tuple[Array, Array]:
    """One plant's z and expected state with the best candidate; as they are where families are believed in."""
    n, m, regulator = ahead.n, ahead.m, ahead.regulator
    best = beliefs.guessed(beliefs.likeliest(memory.belief), regulator.prior, told, memory.t - 1)
    exists, inputs = told.state_mask[:n].astype(float), told.input_mask[:m].astype(float)
    theta, spread, rows = likeliest_at_large(best, exists, m)
    x, own = memory.z[:n], memory.z[N_MAX : N_MAX + m]
    start = _Start(theta, spread, memory.P[:n, :n], x, rows, best.variance, regulator.prior.caution, told.limit, inputs)
    draw, noise = jax.random.split(key)
    plants = drawn(theta, spread, rows, draw, ahead.num)
    P, K, sound = (jnp.moveaxis(a, -1, 0) for a in optimum(plants))
    P = jnp.where(sound[:, None, None], P, jnp.eye(n)[None])
    signs = jnp.asarray(regulators.SIGNS[:, :m], float)
    tried = [own, 0 * own, 0.5 * own, 1.5 * own]
    tried += [own + size * signs[(memory.t + shift) % len(signs)] for size, shift in _PROBES]
    tried += [jnp.where(sound[i], -K[i] @ x, own) for i in range(min(_OF_DRAWS, ahead.num))]
    candidates = jnp.clip(jnp.stack(tried), -told.limit, told.limit) * inputs[None]
    w = (jnp.sqrt(best.variance) * exists)[None, None] * jax.random.normal(noise, (ahead.num, ahead.steps, n), float)
    each = jax.vmap(partial(_followed, start, regulator.doublings), (None, 0, 0, 0))
    costs = jax.vmap(each, (0, None, None, None))(candidates, jnp.moveaxis(plants, -1, 0), P, w)  # [candidates, draws]
    least = jnp.einsum("i,kij,j->k", x, P, x) + ahead.steps * best.variance * (
        jnp.diagonal(P, axis1=1, axis2=2) @ exists
    )
    ratios = jnp.where(jnp.isfinite(costs), jnp.clip(costs / least[None], 1 / _WORST, _WORST), _WORST)
    u = candidates[jnp.argmin(jnp.log(ratios) @ sound.astype(float))]
    at_large = jnp.sum(jax.nn.softmax(best.odds)[: len(best.theta)])
    more = jnp.where((at_large > 0.5) & jnp.all(jnp.isfinite(u)) & jnp.any(sound), u - own, 0.0)
    return memory.z.at[N_MAX : N_MAX + m].add(more), memory.expected.at[:n].add(at_large * (more @ theta[n:]))


def _followed(start: _Start, doublings: int, u: Array, plant: Array, P: Array, noise: Array) -> Array:
    """Cost on one plant of input u, then of steps in which the regulator learns and acts, then of P."""

    def step(state: tuple, w: Array) -> tuple[tuple, Array]:
        theta, spread, P, x, u, lost = state
        z = jnp.concatenate([x, u])
        after = z @ plant + w
        gone = lost | ~(jnp.max(jnp.abs(after)) < _FAR)
        after = jnp.where(gone, x, after)
        Sz = spread @ z
        gain = Sz / (start.variance + Sz @ z)[:, None]
        theta = theta + jnp.einsum("gz,gn->zn", gain, start.rows * (after - z @ theta)[None])
        spread = spread - Sz[..., None] * gain[:, None]
        price = jnp.eye(len(z)) + start.caution * jnp.tensordot(start.rows @ jnp.diagonal(P), spread, 1)
        P = regulators.improved(theta, price, P, doublings)
        K = regulators.greedy(theta @ P @ theta.T + price, len(x))
        acts = jnp.clip(-K @ after, -start.limit, start.limit) * start.inputs
        return (theta, spread, P, after, acts, gone), jnp.where(lost, 0.0, z @ z)

    begin = start.theta, start.spread, start.P, start.x, u, jnp.zeros((), bool)
    (_, _, _, x, _, lost), paid = jax.lax.scan(step, begin, noise)
    return jnp.where(lost, jnp.inf, jnp.sum(paid) + x @ P @ x)
