"""The adaptive regulator: it believes, designs for what it believes, and probes what it does not know."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from lqrlab.compute import pytree
from lqrlab.compute.linalg import expand_batch, solve
from lqrlab.learning.adaptive import belief as beliefs
from lqrlab.learning.adaptive.belief import Belief
from lqrlab.learning.adaptive.known import Known
from lqrlab.learning.adaptive.prior import Prior, Z
from lqrlab.systems import M_MAX, N_MAX, Plant

_LARGEST_COST = 1e6  # of a belief that nothing stabilises; beyond it the design only keeps its direction
_SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], (64, M_MAX))
"""Of the probing inputs, over steps: fixed, so that the same loop is the same run."""


@pytree
@dataclasses.dataclass(frozen=True)
class Memory:
    """What an adaptive regulator remembers of each loop.

    Attributes:
        belief: of its plant.
        z: the last state and input, scaled.
        t: steps taken.
        P: cost to go of the design.
        component: the likeliest component of the belief.
    """

    belief: Belief
    z: Float[Array, "*batch z"]
    t: Int[Array, "*batch"]
    P: Float[Array, "*batch n n"]
    component: Int[Array, "*batch"]


@pytree
@dataclasses.dataclass(frozen=True)
class AdaptivePolicy:
    """A regulator of plants that nobody has described to it; a :class:`lqrlab.simulation.Policy`.

    At each step the belief in A and B takes in what the last input did (exact Bayesian regression), a few sweeps of
    value iteration carry the cost to go on for the likeliest plant, with what is not known about it as multiplicative
    noise (so an input whose effect is uncertain is dear), and an input that probes is added while it is new.

    Attributes:
        prior: what is believed before the first step, and how boldly to act.
        known: what is known of the plants ``[*batch]``.
        m: the plants' number of inputs.
        sweeps: of value iteration a step.

    Source: J. Sternby, A simple dual control problem with an analytical solution, IEEE TAC 21 (1976), and
    B. Wittenmark, Adaptive dual control methods: an overview, IFAC 1995 (caution and probing); W. De Koning,
    Infinite horizon optimal control of linear discrete time systems with stochastic parameters, Automatica 18 (1982).
    """

    prior: Prior
    known: Known
    m: int = dataclasses.field(metadata={"static": True})
    sweeps: int = dataclasses.field(default=6, metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> Memory:
        """The prior, for each loop."""
        known, lead = self._flat(batch_shape)
        memory = jax.vmap(lambda one: begin(self.prior, one))(known)
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), memory)

    def __call__(self, carry: Memory, x: Array) -> tuple[Memory, Array]:
        """Learn from x ``[*batch, *extra, n]`` and answer with u ``[*batch, *extra, m]``."""
        known, lead = self._flat(x.shape[:-1])
        seen = self.known.coordinates.scale_state(x).astype(float).reshape(math.prod(lead), N_MAX)
        num = math.prod(lead)
        flat = jax.tree.map(lambda a: a.reshape(num, *a.shape[len(lead) :]), carry)
        memory, u = jax.vmap(lambda *one: step(self.prior, self.sweeps, *one))(known, flat, seen)
        memory = jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), memory)
        return memory, self.known.coordinates.unscale_input(u.reshape(*lead, M_MAX), self.m).astype(x.dtype)

    def _flat(self, lead: tuple[int, ...]) -> tuple[Known, tuple[int, ...]]:
        """What is known of each loop, one after another."""
        batch = self.known.noise.ndim

        def spread(a: Array) -> Array:
            core = a.shape[batch:]
            a = expand_batch(a, len(lead) + len(core), len(core))
            return jnp.broadcast_to(a, (*lead, *core)).reshape(math.prod(lead), *core)

        return jax.tree.map(spread, self.known), lead


def begin(prior: Prior, known: Known) -> Memory:
    """The memory of one loop before its first step."""
    belief = beliefs.start(prior, known)
    P = prior.start * jnp.diag(known.coordinates.state_mask.astype(float))
    return Memory(belief, jnp.zeros(Z), jnp.zeros((), int), P, jnp.full((), -1))


def step(prior: Prior, sweeps: int, known: Known, memory: Memory, x: Array) -> tuple[Memory, Array]:
    """One plant, one step, in scaled and padded coordinates."""
    learned = beliefs.learn(memory.belief, prior, known, memory.z, x)
    first = memory.t == 0
    belief = jax.tree.map(lambda old, new: jnp.where(first, old, new), memory.belief, learned)
    which, weights, theta = beliefs.likeliest(belief, prior)
    large, P = belief.spread.shape[0], memory.P
    if prior.known is not None:  # a family that is recognised brings its cost to go
        family = belief.family[jnp.maximum(which[0] - large, 0)]
        P = jnp.where((which[0] >= large) & (which[0] != memory.component), prior.known.cost[family], P)
    P, K = _designed(prior, sweeps, belief, known, P, (which, weights, theta))
    inputs = known.coordinates.input_mask.astype(float)
    u = (_probe(prior, known, memory.t, jnp.sum(jnp.where(which < large, weights, 0.0))) - K @ x) * inputs
    u = jnp.where(jnp.isfinite(u), u, 0.0)
    return Memory(belief, jnp.concatenate([x, u]), memory.t + 1, P, which[0]), u


def _designed(
    prior: Prior,
    sweeps: int,
    belief: Belief,
    known: Known,
    P: Array,
    likeliest: tuple[Array, Array, Array],
) -> tuple[Array, Array]:
    """Cost to go and gain after some sweeps of value iteration, from P on, for the two likeliest components.

    What is not known of θ is as noise that multiplies z: it adds E[δθ P δθᵀ] to the weights of z. That price is
    computed from the last step's P.
    """
    which, weights, theta = likeliest
    mean, between, large = jnp.tensordot(weights, theta, 1), theta[0] - theta[1], len(belief.spread)
    price = jnp.eye(Z) + prior.doubt * weights[0] * weights[1] * (between @ P @ between.T)
    if large:
        share = jnp.where(which < large, weights, 0.0)
        spread = jnp.tensordot(share, belief.spread[jnp.minimum(which, large - 1)], 1)
        exists = known.coordinates.state_mask.astype(float)
        rows = jnp.stack([belief.position, exists - belief.position])
        price = price + prior.caution * jnp.tensordot(rows @ jnp.diagonal(P), spread, 1)
    K = jnp.zeros((M_MAX, N_MAX))
    for _ in range(sweeps):
        H = mean @ P @ mean.T + price
        K = solve(H[N_MAX:, N_MAX:], H[N_MAX:, :N_MAX], definite=True)
        P = H[:N_MAX, :N_MAX] - H[:N_MAX, N_MAX:] @ K
        P = (P + P.T) / 2
        P = P * jnp.minimum(1.0, _LARGEST_COST / jnp.trace(P))
    return P, K


def _probe(prior: Prior, known: Known, t: Array, at_large: Array) -> Array:
    """The probing input of a step: as strong as the plant is unknown, and dying away."""
    size = jnp.sum(known.coordinates.state_mask) + jnp.sum(known.coordinates.input_mask)
    constant, of_noise, times = prior.probe
    amplitude = (constant + of_noise * known.noise) * jnp.exp(-t.astype(float) / (times * size.astype(float)))
    return at_large * amplitude * jnp.asarray(_SIGNS)[t % len(_SIGNS)]


def adaptive(
    plants: Plant | Known,
    prior: Prior,
    *,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    sweeps: int = 6,
) -> AdaptivePolicy:
    """A regulator for plants of which only units, sample time and noise are told.

    Args:
        plants: a plant or a batch, whose equations are not looked at; or what is known of one.
        prior: what is believed beforehand.
        noise: standard deviation of the disturbance of the state at each step, in units of the state's scale.
        sensor_noise: the same of what is measured.
        sweeps: of value iteration a step.

    >>> plant = systems.make("pendulum")
    >>> policy = learning.adaptive(plant, learning.wide())
    >>> run = simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), num_steps=200)
    >>> bool(abs(run.xs[-1]).max() < 1e-3)
    True
    """
    if isinstance(plants, Known):
        return AdaptivePolicy(prior, plants, M_MAX, sweeps)
    known = Known.of(plants, noise=noise, sensor_noise=sensor_noise)
    return AdaptivePolicy(prior, known, plants.m, sweeps)
