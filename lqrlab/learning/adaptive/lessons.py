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

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.dataset import describe, random_systems
from lqrlab.learning.adaptive import policy as regulator
from lqrlab.learning.adaptive.known import Known
from lqrlab.learning.adaptive.prior import Prior
from lqrlab.simulation import SampledProblem
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant

_LARGEST = 1e3  # of a state: where a loop has got so far away, its gradient says nothing any more
_LIMIT = 20.0  # of the scaled inputs
_CLIP = 1.0  # of one loop's gradient: a loop near divergence must not drown all others
_MOVES = 0.02  # of a unit in a step
_SEGMENT = 10  # steps whose inner values are computed again in the backward pass


@pytree
@dataclasses.dataclass(frozen=True)
class Lessons:
    """Loops to learn from, one plant each, in scaled, padded coordinates ``[L, …]``.

    Attributes:
        problem: the plants and their optimum, Q = R = I, which the regulator is not told.
        known: what it is told.
        hidden: a family that is taken out of the prior for this loop, else −1: a plant of a family never seen.
    """

    problem: SampledProblem
    known: Known
    hidden: Float[Array, " L"]

    def __len__(self) -> int:
        return len(self.hidden)

    def __getitem__(self, rows: object) -> Self:
        """Some of the loops."""
        return jax.tree.map(lambda a: a[rows], self)

    @classmethod
    def of(cls, A: Array, B: Array, known: Known, hidden: int = -1) -> Self:
        """A loop of each of some plants ``[L, …]``; those without an optimum are left out."""
        A, B = A.astype(float), B.astype(float)
        Q, R = (jnp.broadcast_to(jnp.eye(k), (len(A), k, k)) for k in (N_MAX, M_MAX))
        problem, stabilizing = SampledProblem.of(control.Sampled(A, B, Q, R, jnp.zeros_like(B)))
        return cls(problem, known, jnp.full(len(A), float(hidden)))[np.asarray(stabilizing)]


def lessons(
    batches: Sequence[Plant],
    key: PRNGKeyArray,
    *,
    randoms: int = 400,
    noises: Sequence[float] = (0.0, 0.01, 0.05),
) -> tuple[Lessons, Float[Array, " L"]]:
    """Loops of families that the prior knows, of the same families taken out of it, and of random linear systems.

    Args:
        batches: plants of each family, in the order of ``Prior.known``, all of one number.
        key: of the random systems.
        randoms: so many of them.
        noises: levels of noise, each for all plants.

    Returns:
        The loops and how often each is to be drawn: a third of the draws for each of the three kinds.
    """
    described = [describe(plants) for plants in batches]
    drawn, coordinates = _moderate(key, randoms)
    # these have no units: where a state moves another, that is what its unit would have told
    steps = jnp.where(drawn.A > _MOVES, drawn.A, 0.1)
    parts, weight = [], []
    for noise in noises:
        of_families = [
            Lessons.of(d.A, d.B, Known.of(plants, noise=noise, limit=_LIMIT).scaled(), hidden)
            for k, (d, plants) in enumerate(zip(described, batches))
            for hidden in (-1, k)
        ]
        told = (jnp.full(randoms, value) for value in (noise, 0.0, _LIMIT))
        of_random = Lessons.of(drawn.A, drawn.B, Known(coordinates, steps, *told))
        parts += [*of_families, of_random]
        share = sum(map(len, of_families)) / 2 / len(of_random)
        weight += [*(np.ones(len(part)) for part in of_families), np.full(len(of_random), share)]
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts), jnp.asarray(np.concatenate(weight))


def _moderate(key: PRNGKeyArray, num: int) -> tuple[SampledProblem, Coordinates]:
    """Random systems that can be regulated within the inputs' limit while they are learned, float64."""
    problem, coordinates = random_systems(key, 4 * num)
    easy = np.flatnonzero(np.max(np.abs(np.asarray(problem.K)), (-1, -2)) < _LIMIT / 2)[:num]
    if len(easy) < num:
        raise RuntimeError(f"of {4 * num} random systems only {len(easy)} have moderate gains; draw more")
    return jax.tree.map(lambda a: jnp.asarray(a[easy], float), (problem, coordinates))


def numbers(prior: Prior) -> dict[str, Array]:
    """What is learned of a prior: its positive numbers by their logarithms, log odds as they are."""
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


def excess(prior: Prior, lesson: Lessons, key: PRNGKeyArray, num_steps: int, doublings: int) -> Array:
    """log(J / x0ᵀP x0 …) of one loop: what it costs above the same loop under the optimal gain, as a logarithm."""
    known = lesson.known
    mask = known.coordinates.state_mask.astype(float)
    start, noise = jax.random.split(key)
    x0 = jax.random.normal(start, (N_MAX,), float) * mask
    w = jax.random.normal(noise, (num_steps, N_MAX), float) * (mask * known.noise)[None]
    A, B, K, P = lesson.problem.A, lesson.problem.B, lesson.problem.K, lesson.problem.P

    def cost(x: Array, u: Array) -> Array:
        return jnp.sum(x * x) + jnp.sum(u * u)

    def step(state: tuple, noise: Array) -> tuple[tuple, None]:
        x, memory, best, paid, least, diverged = state
        memory, u = regulator.step(prior, doublings, known, memory, x)
        u, v = jnp.clip(u, -_LIMIT, _LIMIT), jnp.clip(-K @ best, -_LIMIT, _LIMIT)
        paid, least = paid + jnp.where(diverged, 0.0, cost(x, u)), least + cost(best, v)
        after = A @ x + B @ u + noise
        diverged = diverged | ~(jnp.max(jnp.abs(after)) < _LARGEST)
        x = jnp.where(diverged, x, after)
        return (x, memory, A @ best + B @ v + noise, paid, least, diverged), None

    memory = regulator.begin(prior, known)
    odds = memory.belief.odds
    if prior.known is not None:
        families = len(odds) - memory.belief.family.shape[0]
        out = jnp.where(memory.belief.family == lesson.hidden.astype(int), -jnp.inf, 0.0)
        odds = odds.at[families:].add(out)
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
    lessons: Lessons,
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
        lessons: loops to draw from.
        weight: how often each is drawn, relative.
        key: of draws, initial states and noise.
        num_updates, batch, num_steps, doublings, learning_rate: the usual ones; Adam.
        report: called after each update with step, mean loss and the share of loops that diverged.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(learning_rate, num_updates, 0.05))
    values = numbers(prior)
    state = optimizer.init(values)
    for i in range(num_updates):
        pick, run = jax.random.split(jax.random.fold_in(key, i))
        rows = jax.random.choice(pick, len(lessons), (batch,), p=weight / jnp.sum(weight))
        loss, diverged, grads = _slope(
            values, prior, lessons[rows], jax.random.split(run, batch), num_steps, doublings
        )
        with jax.numpy_dtype_promotion("standard"):  # Adam takes powers of its decay by a count of steps
            updates, state = optimizer.update(grads, state)
        values = optax.apply_updates(values, updates)
        if report is not None:
            report({"step": i + 1, "loss": float(loss), "diverged": float(diverged)})
    return with_numbers(prior, values)


@partial(jax.jit, static_argnums=(4, 5))
def _slope(
    values: dict[str, Array], prior: Prior, lessons: Lessons, keys: Array, num_steps: int, doublings: int
) -> tuple[Array, Array, dict[str, Array]]:
    def one(values: dict[str, Array], lesson: Lessons, key: Array) -> tuple[Array, Array]:
        found = excess(with_numbers(prior, values), lesson, key, num_steps, doublings)
        return jnp.minimum(found, jnp.log(50.0)), found

    (loss, found), grads = jax.vmap(jax.value_and_grad(one, has_aux=True), in_axes=(None, 0, 0))(
        values, lessons, keys
    )
    size = jnp.sqrt(sum(jnp.sum(g * g, axis=tuple(range(1, g.ndim))) for g in jax.tree.leaves(grads)))
    good = jnp.isfinite(size) & jnp.isfinite(loss)
    factor = jnp.where(good, jnp.minimum(1.0, _CLIP / jnp.where(good, size, 1.0)), 0.0) / len(loss)
    clipped = jax.tree.map(
        lambda g: jnp.tensordot(factor, jnp.where(good.reshape(-1, *[1] * (g.ndim - 1)), g, 0.0), 1), grads
    )
    diverged: Bool[Array, " L"] = ~(found < jnp.log(10.0))
    return jnp.mean(jnp.where(good, loss, jnp.log(50.0))), jnp.mean(diverged.astype(float)), clipped
