"""Learning the adaptive regulator's prior, caution and probing: by gradients through its own noisy loops."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from lqrlab.compute import calculus, pytree
from lqrlab.dataset import random_systems
from lqrlab.extensions.unknown import adaptive_policy as regulator
from lqrlab.extensions.unknown.prior import Prior
from lqrlab.simulation import Problem, Told
from lqrlab.systems import M_MAX, N_MAX, Plant

_LARGEST = 1e3  # of a state: where a loop has got so far away, its gradient says nothing any more
_LIMIT = 20.0  # of the scaled inputs
_CLIP = 1.0  # of one loop's gradient: a loop near divergence must not drown all others
_MOVES = 0.02  # of a unit in a step
_SEGMENT = 10  # steps whose inner values are computed again in the backward pass


@pytree
@dataclasses.dataclass(frozen=True)
class Episodes:
    """Loops to learn from, one plant each ``[L, …]``.

    Attributes:
        problem: the plants and their optimum in scaled coordinates with Q = R = I, which the regulator is not told.
        told: what it is.
        hidden: a family that is taken out of the prior for this loop, else −1: a plant of a family never seen.
    """

    problem: Problem
    told: Told
    hidden: Float[Array, " L"]

    def __len__(self) -> int:
        return len(self.hidden)

    def __getitem__(self, rows: object) -> Self:
        """Some of the loops."""
        return jax.tree.map(lambda a: a[rows], self)


def episodes(
    batches: Sequence[Plant], key: PRNGKeyArray, *, randoms: int = 400, noises: Sequence[float] = (0.0, 0.01, 0.05)
) -> tuple[Episodes, Float[Array, " L"]]:
    """Loops of families that the prior knows, of the same families taken out of it, and of random linear systems.

    Args:
        batches: plants of each family, in the order of ``Prior.known``, all of one number.
        key: of the random systems.
        randoms: so many of them.
        noises: levels of noise, each for all plants.

    Returns:
        The loops and how often each is to be drawn: a third of the draws for each of the three kinds.
    """
    plants = Problem.of(list(batches), optimum=False).scaled()
    good, plants = _with_optimum(plants)
    family = np.repeat(np.arange(len(batches)), [len(b) for b in batches])[good].astype(float)
    _, drawn = _with_optimum(_moderate(key, randoms))
    parts, weight = [], []
    for noise in noises:
        told = _told(plants, noise)
        hiding = (np.full(len(family), -1.0), family)
        of_families = [Episodes(plants, told, jnp.asarray(hidden)) for hidden in hiding]
        # random systems have no units: where a state moves another, that is what its unit would have told
        steps = jnp.where(drawn.A > _MOVES, drawn.A, 0.1)
        of_random = Episodes(drawn, dataclasses.replace(_told(drawn, noise), steps=steps), jnp.full(len(drawn), -1.0))
        parts += [*of_families, of_random]
        share = len(family) / len(of_random)
        weight += [*(np.ones(len(part)) for part in of_families), np.full(len(of_random), share)]
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts), jnp.asarray(np.concatenate(weight))


def _told(problem: Problem, noise: float) -> Told:
    """The regulator's view of scaled plants under so much noise."""
    return problem.limited((-_LIMIT, _LIMIT)).disturbed(noise=noise).told("units")


def _with_optimum(problem: Problem) -> tuple[np.ndarray, Problem]:
    """Scaled plants that have an optimum with Q = R = I, and their problem."""
    Q, R = (jnp.broadcast_to(jnp.eye(k), (len(problem), k, k)) for k in (N_MAX, M_MAX))
    N, undesigned = jnp.zeros_like(problem.B), dict.fromkeys(("continuous", "K", "P"))
    unit = dataclasses.replace(problem, Q=Q, R=R, N=N, **undesigned).solved(check=False)  # type: ignore[arg-type]
    good = np.flatnonzero(np.asarray(unit.has_optimum))
    return good, unit[good]


def _moderate(key: PRNGKeyArray, num: int) -> Problem:
    """Random systems that can be regulated within the inputs' limit while they are learned, float64."""
    problem = random_systems(key, 4 * num)
    easy = np.flatnonzero(np.max(np.abs(np.asarray(problem.K)), (-1, -2)) < _LIMIT / 2)[:num]
    if len(easy) < num:
        raise RuntimeError(f"of {4 * num} random systems only {len(easy)} have moderate gains; draw more")
    return problem[easy].astype(float)


def numbers(prior: Prior) -> dict[str, Array]:
    """Trained numbers of a prior: the positive ones by their logarithms, log odds as they are."""
    log = {name: jnp.log(getattr(prior, name)) for name in ("half", "caution", "probe", "start", "inflate")}
    return log | {
        "dense": prior.dense.at[:, :2].set(jnp.log(prior.dense[:, :2])),
        "kinematic": prior.kinematic.at[:, :3].set(jnp.log(prior.kinematic[:, :3])),
    }


def with_numbers(prior: Prior, values: dict[str, Array]) -> Prior:
    """The prior with these learned numbers."""
    dense, kinematic = values["dense"], values["kinematic"]
    of: dict[str, Any] = {k: jnp.exp(a) for k, a in values.items() if k not in ("dense", "kinematic")}
    of["dense"] = jnp.concatenate([jnp.exp(dense[:, :2]), dense[:, 2:]], axis=-1)
    of["kinematic"] = jnp.concatenate([jnp.exp(kinematic[:, :3]), kinematic[:, 3:]], axis=-1)
    return dataclasses.replace(prior, **of)


def excess(prior: Prior, episode: Episodes, key: PRNGKeyArray, num_steps: int, doublings: int) -> Array:
    """log(J / x0ᵀP x0 …) of one loop: what it costs above the same loop under the optimal gain, as a logarithm."""
    told = episode.told
    mask = told.state_mask.astype(float)
    start, noise = jax.random.split(key)
    x0 = jax.random.normal(start, (N_MAX,), float) * mask
    w = jax.random.normal(noise, (num_steps, N_MAX), float) * (mask * told.noise)[None]
    A, B, K, P = episode.problem.A, episode.problem.B, episode.problem.K, episode.problem.P

    def cost(x: Array, u: Array) -> Array:
        return jnp.sum(x * x) + jnp.sum(u * u)

    def step(state: tuple, noise: Array) -> tuple[tuple, None]:
        x, memory, best, paid, least, lost = state
        memory, u = regulator.step(prior, doublings, told, memory, x)
        u, v = jnp.clip(u, -_LIMIT, _LIMIT), jnp.clip(-K @ best, -_LIMIT, _LIMIT)
        paid, least = paid + jnp.where(lost, 0.0, cost(x, u)), least + cost(best, v)
        after = A @ x + B @ u + noise
        lost = lost | ~(jnp.max(jnp.abs(after)) < _LARGEST)
        x = jnp.where(lost, x, after)
        return (x, memory, A @ best + B @ v + noise, paid, least, lost), None

    memory = regulator.begin(prior, told)
    odds = memory.belief.odds
    if prior.known is not None:
        families = odds.shape[-1] - memory.belief.family.shape[-1]
        out = jnp.where(memory.belief.family == episode.hidden.astype(int), -jnp.inf, 0.0)
        odds = odds.at[..., families:].add(out)
    memory = dataclasses.replace(memory, belief=dataclasses.replace(memory.belief, odds=odds))
    begin = (x0, memory, x0, jnp.zeros(()), jnp.zeros(()), jnp.zeros((), bool))
    segments = w.reshape(-1, _SEGMENT, N_MAX)
    segment = jax.checkpoint(lambda state, noises: jax.lax.scan(jax.checkpoint(step), state, noises))
    (x, _, best, paid, least, _), _ = jax.lax.scan(segment, begin, segments)
    ratio = (paid + x @ P @ x) / (least + best @ P @ best)
    return jnp.log(ratio)


Report = Callable[[dict[str, Any]], None]


def learn(
    prior: Prior,
    episodes: Episodes,
    weight: Float[Array, " L"],
    *,
    key: PRNGKeyArray,
    num_updates: int = 60,
    batch: int = 128,
    num_steps: int = 150,
    doublings: int = 2,
    learning_rate: float = 0.1,
    report: Report | None = None,
) -> Prior:
    """Improve a prior's numbers by stochastic gradients through whole loops, each with its own noise.

    Each loop's gradient is clipped by itself; a loop that diverges teaches by what it cost until then, capped.

    Args:
        prior: to begin with.
        episodes: loops to draw from.
        weight: how often each is drawn, relative.
        key: of draws, initial states and noise.
        num_updates, batch, num_steps, doublings, learning_rate: the usual ones; Adam.
        report: called after each update with step, mean loss and the share of loops above ten times the optimum.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, num_updates, 0.05))
    values = numbers(prior)
    state = optimizer.init(values)
    for i in range(num_updates):
        pick, run = jax.random.split(jax.random.fold_in(key, i))
        rows = jax.random.choice(pick, len(episodes), (batch,), p=weight / jnp.sum(weight))
        loss, failed, grads = _slope(values, prior, episodes[rows], jax.random.split(run, batch), num_steps, doublings)
        updates, state = calculus.updates(optimizer, grads, state)
        values = optax.apply_updates(values, updates)
        if report is not None:
            report({"step": i + 1, "loss": float(loss), "failed": float(failed)})
    return with_numbers(prior, values)


@partial(jax.jit, static_argnums=(4, 5))
def _slope(
    values: dict[str, Array], prior: Prior, episodes: Episodes, keys: Array, num_steps: int, doublings: int
) -> tuple[Array, Array, dict[str, Array]]:
    def one(values: dict[str, Array], episode: Episodes, key: Array) -> tuple[Array, Array]:
        found = excess(with_numbers(prior, values), episode, key, num_steps, doublings)
        return jnp.minimum(found, jnp.log(50.0)), found

    (loss, found), grads = jax.vmap(jax.value_and_grad(one, has_aux=True), in_axes=(None, 0, 0))(values, episodes, keys)
    size = jnp.sqrt(sum(jnp.sum(g * g, axis=tuple(range(1, g.ndim))) for g in jax.tree.leaves(grads)))
    good = jnp.isfinite(size) & jnp.isfinite(loss)
    factor = jnp.where(good, jnp.minimum(1.0, _CLIP / jnp.where(good, size, 1.0)), 0.0) / len(loss)
    clipped = jax.tree.map(
        lambda g: jnp.tensordot(factor, jnp.where(good.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0), 1), grads
    )
    failed: Bool[Array, " L"] = ~(found < jnp.log(10.0))  # more than ten times the optimum
    return jnp.mean(jnp.where(good, loss, jnp.log(50.0))), jnp.mean(failed.astype(float)), clipped
