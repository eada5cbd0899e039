"""Adaptive regulator: Bayesian estimate of A and B, a cautious design for it, probing inputs."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import expand_batch, solve
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown.belief import Belief, optimum
from lqrlab.extensions.unknown.prior import Prior, Z
from lqrlab.learning.network_policy import require_states
from lqrlab.simulation import Problem, Told, measured_or
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant, check_plant, check_size

_LARGEST_COST = 1e6  # of a belief that nothing stabilises; beyond it the design only keeps its direction
_ITERATIONS = 60  # of four steps, fewer as exp(−t/4); as many more show whether a cost to go has settled
_SURE = 0.95  # weight of a component that is taken for certain
SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], (64, M_MAX))
"""Of the probing inputs, over steps: fixed, so that the same loop is the same run."""


@pytree
@dataclasses.dataclass(frozen=True)
class RegulatorMemory:
    """Memory of an adaptive regulator, for each loop.

    Attributes:
        belief: of its plant.
        z: the last state and input, scaled.
        expected: the state that should be next.
        measured: whether the state in z was measured; else it was only expected.
        t: steps taken.
        P: cost to go of the design.
        component: the component of the belief that is nearly certain; −1 if none is.
    """

    belief: Belief
    z: Float[Array, "*batch z"]
    expected: Float[Array, "*batch n"]
    measured: Bool[Array, "*batch"]
    t: Int[Array, "*batch"]
    P: Float[Array, "*batch n n"]
    component: Int[Array, "*batch"]


@pytree
@dataclasses.dataclass(frozen=True)
class AdaptivePolicy:
    """Adaptive regulator of plants with unknown A and B; a :class:`lqrlab.simulation.Policy`.

    At each step the belief in A and B takes in what the last input did (exact Bayesian regression), a step of policy
    iteration improves the cost to go of the likeliest plant, with what is not known about it as multiplicative noise
    (so an input whose effect is uncertain is costly), and a probing input is added while the plant is new.

    The known noise is a lower bound: the belief covers five levels from there on, and the
    likeliest one acts. An impulse disturbance teaches nothing; after two of them in a row, which
    another plant would explain, all that was learned is as uncertain as at first.

    Where the prior has a network, plants at large are what it guesses them to be; the design then starts from the
    guessed plant's own cost to go.

    Attributes:
        prior: what is believed before the first step, and how boldly to act.
        told: units, sample time and noise of the plants ``[*batch]``.
        m: the plants' number of inputs.
        doublings: 2 to this power steps of policy evaluation are made a step.
        n: the plants' number of states.

    Source: J. Sternby, A simple dual control problem with an analytical solution, IEEE TAC 21 (1976), and
    B. Wittenmark, Adaptive dual control methods: an overview, IFAC 1995 (caution and probing); W. De Koning,
    Infinite horizon optimal control of linear discrete time systems with stochastic parameters, Automatica 18 (1982).
    """

    prior: Prior
    told: Told
    m: int = dataclasses.field(metadata={"static": True})
    doublings: int = dataclasses.field(default=2, metadata={"static": True})
    n: int = dataclasses.field(default=N_MAX, metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> RegulatorMemory:
        """The prior, for each loop."""
        told, lead = self.flat(batch_shape)
        memory = jax.vmap(lambda one: begin(self.prior, one))(told)
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), memory)

    @one_program
    def __call__(self, carry: RegulatorMemory, x: Array) -> tuple[RegulatorMemory, Array]:
        """Learn from x ``[*batch, *extra, n]`` and answer with u ``[*batch, *extra, m]``."""
        require_states(x, self.n)
        told, lead = self.flat(x.shape[:-1])
        seen = self.told.coordinates.scale_state(x).astype(float).reshape(math.prod(lead), N_MAX)
        num = math.prod(lead)
        flat = jax.tree.map(lambda a: a.reshape(num, *a.shape[len(lead) :]), carry)
        memory, u = jax.vmap(lambda *one: step(self.prior, self.doublings, *one))(told, flat, seen)
        memory = jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), memory)
        return memory, self.told.coordinates.unscale_input(u.reshape(*lead, M_MAX), self.m).astype(x.dtype)

    def flat(self, lead: tuple[int, ...]) -> tuple[Told, tuple[int, ...]]:
        """Prior information of each loop, one after another."""
        batch = len(self.told.batch_shape)

        def spread(a: Array) -> Array:
            core = a.shape[batch:]
            a = expand_batch(a, len(lead) + len(core), len(core))
            return jnp.broadcast_to(a, (*lead, *core)).reshape(math.prod(lead), *core)

        return jax.tree.map(spread, self.told), lead


def begin(prior: Prior, told: Told) -> RegulatorMemory:
    """The memory of one loop before its first step."""
    belief = beliefs.start(prior, told)
    P = prior.start * jnp.diag(told.state_mask.astype(float))
    nothing, unseen = jnp.zeros(N_MAX), jnp.zeros((), bool)
    return RegulatorMemory(belief, jnp.zeros(Z), nothing, unseen, jnp.zeros((), int), P, jnp.full((), -1))


def _settled(prior: Prior, told: Told, belief: Belief, P: Array, t: Array) -> Array:
    """P; in the first steps that of the guessed plant, if policy iteration on it converges and doubt adds less than
    half of the cost. A plant that counts as known has its own, at every step."""
    if prior.guess is None or not len(belief.theta):
        return P
    # a loop of as many iterations as t says has no gradient
    prior, belief, start = jax.lax.stop_gradient((prior, belief, P))
    exists, theta, spread = told.state_mask.astype(float), belief.theta[0], belief.spread[0]
    num = jnp.round(_ITERATIONS * jnp.exp(-t.astype(float) / 4)).astype(int)

    def iterated(_: Array, P: Array) -> Array:
        doubt = _doubt(prior, exists, belief, P, spread)
        return improved(theta, jnp.eye(Z) + doubt, P, 2) * exists[:, None] * exists[None]

    before = jax.lax.fori_loop(0, num, iterated, start)
    after = jax.lax.fori_loop(0, num, iterated, before)
    doubt = _doubt(prior, exists, belief, after, spread)
    act = jnp.concatenate([jnp.eye(N_MAX), -greedy(theta @ after @ theta.T + jnp.eye(Z) + doubt)]) * exists[None]
    found = jnp.trace(after) < jnp.minimum(1.2 * jnp.trace(before), _LARGEST_COST / 2)
    settled = jnp.where(found & (jnp.sum(act * (doubt @ act)) < 0.5 * jnp.sum(act * act)), after, P)
    own = optimum(theta[..., None])[0][..., 0] * exists[:, None] * exists[None]
    return jnp.where(~jnp.any(spread) & (jnp.trace(own) < _LARGEST_COST / 2), own, settled)


def step(prior: Prior, doublings: int, told: Told, memory: RegulatorMemory, x: Array) -> tuple[RegulatorMemory, Array]:
    """One plant, one step, in scaled and padded coordinates.

    It learns from steps of which both states were measured: not from the first, which has none before it, and not from
    a state that is not finite, or so large that the belief overflows. Its own prediction stands in for what is not
    finite.
    """
    measured = jnp.all(jnp.isfinite(x))
    x = measured_or(memory.expected, x)
    learned = beliefs.learn(memory.belief, prior, told, memory.z, x)
    overflown = jnp.stack([jnp.any(jnp.isnan(a)) for a in jax.tree.leaves(learned)]).any()
    known = measured & memory.measured & ~overflown
    belief = jax.tree.map(lambda old, new: jnp.where(known, new, old), memory.belief, learned)
    best = beliefs.guessed(beliefs.likeliest(belief), prior, told, memory.t)
    guesses = beliefs.hypotheses(best, prior)
    K, P, component = _designed(prior, doublings, told, best, memory, guesses)
    inputs = told.input_mask.astype(float)
    at_large = jnp.sum(jax.nn.softmax(best.odds)[: len(best.theta)])
    noise = jnp.sqrt(told.noise**2 + best.variance - beliefs.told_variance(told))
    size = jnp.sum(told.state_mask) + jnp.sum(inputs)
    u = (at_large * probe(prior.probe, size, memory.t, noise) - K @ x) * inputs
    u = jnp.clip(jnp.where(jnp.isfinite(u), u, 0.0), -told.limit, told.limit)
    z, (weights, theta, _) = jnp.concatenate([x, u]), guesses
    expected = jnp.einsum("f,fzn,z->n", weights, theta, z)
    return RegulatorMemory(belief, z, expected, measured, memory.t + 1, P, component), u


def _designed(
    prior: Prior,
    doublings: int,
    told: Told,
    belief: Belief,
    memory: RegulatorMemory,
    guesses: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array]:
    """The gain, the likeliest hypothesis's cost to go, and that hypothesis where it is nearly certain, else −1.

    The input is the best one if the next step told which hypothesis is true: it minimises the expected cost to go,
    each hypothesis's by its own P and in units of tr P, since it is the cost over the optimum that counts. What is not
    known of a plant at large is as noise that multiplies z: it adds E[δθ P δθᵀ] to the weights of z.
    """
    weights, theta, spread = guesses
    at_large = len(weights) - 1
    best = jnp.argmax(weights)
    component = jnp.where(weights[best] > _SURE, best, -1)
    P = memory.P
    if at_large:  # a family that is recognised brings its cost to go
        assert prior.known is not None
        costs = prior.known.cost[belief.family]
        new = (component >= 0) & (component < at_large) & (component != memory.component)
        P = jnp.where(new, costs[jnp.minimum(best, at_large - 1)], P)
    P = jnp.where(best == at_large, _settled(prior, told, belief, P, memory.t), P)
    doubt = _doubt(prior, told.state_mask.astype(float), belief, P, spread)
    P = improved(theta[best], jnp.eye(Z) + jnp.where(best == at_large, doubt, 0.0), P, doublings)
    H = weights[-1] / jnp.maximum(jnp.trace(P), 1.0) * (theta[-1] @ P @ theta[-1].T + doubt + jnp.eye(Z))
    if at_large:
        mine = jnp.where((jnp.arange(at_large) == component)[:, None, None], P, costs)
        of_families = jnp.einsum("fzn,fnm,fym->fzy", theta[:-1], mine, theta[:-1]) + jnp.eye(Z)[None]
        size = jnp.maximum(jnp.trace(mine, axis1=-2, axis2=-1), 1.0)
        H = H + jnp.tensordot(weights[:-1] / size, of_families, 1)
    return greedy(H), P, component


def _doubt(prior: Prior, exists: Array, belief: Belief, P: Array, spread: Array) -> Array:
    """E[δθ P δθᵀ] of rows with these covariances, times the caution."""
    rows = jnp.stack([belief.position, exists - belief.position])
    return prior.caution * jnp.tensordot(rows @ jnp.diagonal(P), spread, 1)


def improved(theta: Array, price: Array, P: Array, doublings: int) -> Array:
    """P after a step of optimistic policy iteration: of the gain that is best for P, many steps' cost, then P."""
    n = len(P)
    K = greedy(theta @ P @ theta.T + price, n)
    F, act = theta[:n].T - theta[n:].T @ K, jnp.concatenate([jnp.eye(n), -K])
    S = act.T @ price @ act
    for _ in range(doublings):
        S, F = S + F.T @ S @ F, F @ F
    P = S + F.T @ P @ F
    good, P = jnp.all(jnp.isfinite(P)), (P + P.T) / 2
    return jnp.where(good, P * jnp.minimum(1.0, _LARGEST_COST / jnp.trace(P)), _LARGEST_COST * jnp.eye(n))


def greedy(H: Array, n: int = N_MAX) -> Array:
    """The gain that minimises zᵀHz for z = [x; −Kx]."""
    return solve(H[n:, n:], H[n:, :n], definite=True)


def probe(numbers: Array, size: ArrayLike, t: Array, noise: Array) -> Float[Array, " m"]:
    """Probing inputs of step t, by :attr:`Prior.probe`, for a plant of ``size`` states and inputs; they die away."""
    constant, of_noise, times = numbers
    amplitude = (constant + of_noise * noise) * jnp.exp(-t.astype(float) / (times * jnp.asarray(size, float)))
    return amplitude * jnp.asarray(SIGNS, amplitude.dtype)[t % len(SIGNS)]


def adaptive(
    plants: Plant | Problem | Told,
    prior: Prior,
    *,
    noise: ArrayLike = 0.0,
    sensor_noise: ArrayLike = 0.0,
    limit: ArrayLike = np.inf,
    doublings: int = 2,
) -> AdaptivePolicy:
    """Adaptive regulator of plants with known units, sample time and noise, and unknown A and B.

    Args:
        plants: a plant or a batch, whose equations are not looked at; or a problem, with its noise and limits, or what
            is told of one.
        prior: what is believed beforehand.
        noise: standard deviation of the disturbance of the state at each step, in units of the state's scale.
        sensor_noise: the same of what is measured.
        limit: of the inputs, ± in units of their scale.
        doublings: 2 to this power steps of policy evaluation are made a step.

    >>> plant = systems.make("pendulum")
    >>> policy = unknown.adaptive(plant, unknown.wide())
    >>> run = simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), num_steps=200)
    >>> bool(abs(run.xs[-1]).max() < 1e-3)
    True
    """
    checks.instance("prior", prior, Prior, "a prior, as unknown.wide or unknown.ridge makes")
    checks.whole("doublings", doublings, 0, 30)
    given: dict[str, Any] = {"noise": noise, "sensor_noise": sensor_noise, "limit": limit}
    if isinstance(plants, Told | Problem):
        for name, value in given.items():
            if checks.traced(value) or not np.all(np.asarray(value) == (np.inf if name == "limit" else 0.0)):
                raise ValueError(f"{name}: expected that of the problem alone, but found another; change the problem")
        units = plants.coordinates
        check_size(units.n_max, units.m_max, getattr(plants, "plant", None))
        if isinstance(plants, Told):
            return AdaptivePolicy(prior, plants, M_MAX, doublings)
        return AdaptivePolicy(prior, plants.told("units"), plants.m, doublings, plants.n)
    check_plant(plants)
    for name, value in given.items():
        given[name] = checks.real(name, value, finite=name != "limit", low=0)
        if given[name].shape not in ((), plants.batch_shape):
            raise ValueError(f"{name}: expected one number or one a plant, but found shape {given[name].shape}")
    told = Told.units(Coordinates.of(plants), plants.dt, **given)
    return AdaptivePolicy(prior, told, plants.m, doublings, plants.n)
