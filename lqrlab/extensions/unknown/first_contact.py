"""First contact: one run in which an unknown plant is regulated, then pushed, then replaced by another."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.extensions.unknown.regret import MOST, scaled_problem
from lqrlab.simulation import Policy, Problem, bind
from lqrlab.systems import Plant

EPISODES = ("regulation", "push", "another plant")
_LARGEST = 1e6  # of a scaled state: beyond it a loop is not followed


@pytree
@dataclasses.dataclass(frozen=True)
class FirstContact:
    """Loops on unknown plants in three episodes, beside the exact LQR's under the same noise and pushes.

    Attributes:
        ratio: cost of each episode, with the least that remains to be paid at its end, over that of the LQR, which is
            told the new plant at once ``[3, V]``; inf where the loop has failed by then.
        failed: whether it has ``[3, V]``: an episode cost more than :data:`MOST` times the LQR's.
    """

    ratio: Float[Array, "3 V"]
    failed: Bool[Array, "3 V"]

    def summary(self) -> dict[str, dict[str, float]]:
        """Of each episode: percent of the loops that failed by its end, and excess cost in percent (p95, median)."""
        found = {}
        for name, ratio, failed in zip(EPISODES, np.asarray(self.ratio), np.asarray(self.failed)):
            median, p95 = np.quantile(100 * (ratio - 1), (0.5, 0.95), method="higher")
            found[name] = {"failed": 100 * float(failed.mean()), "p95": float(p95), "median": float(median)}
        return found


def first_contact(
    controller: object,
    plants: Plant | Sequence[Plant] | Problem,
    then: Plant | Sequence[Plant] | Problem | None = None,
    *,
    key: PRNGKeyArray,
    noise: float | None = None,
    push: float = 1.0,
    num_steps: int = 100,
) -> FirstContact:
    """Run a controller on plants that it is not told, and do to them what it is not told either.

    Three episodes, unannounced: regulation from x0 ~ N(0, I); a push of the state; another plant, with a push. States
    and inputs are scaled; the cost is Σ |x|² + |u|².

    Args:
        controller: a function from a problem to a policy, as for :func:`score`.
        plants: plants; or their problem, see :func:`problem_of`, with the noise *that the controller is told*.
        then: the plants of the last episode, as many and of the same sizes; if left out, the inputs are reversed.
        key: of initial states, pushes and noise.
        noise: standard deviation of the disturbance that there *is*; as told, if left out.
        push: length of the pushes, in scales of the states.
        num_steps: of an episode.

    Raises:
        ValueError: plants that are not scaled, or others that do not go with them.

    >>> plants = systems.sample("pendulum", key=jax.random.key(0), num=4)
    >>> controller = lambda problem: unknown.adaptive(problem, unknown.wide())
    >>> contact = unknown.first_contact(controller, plants, key=jax.random.key(1), noise=0.01)
    >>> contact.ratio.shape
    (3, 4)
    """
    num_steps, push = checks.whole("num_steps", num_steps), checks.number("push", push, "a number ≥ 0", low=0)
    checks.random_key(key)
    plants = scaled_problem("plants", plants)
    then = dataclasses.replace(plants, B=-plants.B, K=-plants.K) if then is None else scaled_problem("then", then)
    if then.batch_shape != plants.batch_shape or not _alike(plants, then):
        raise ValueError(
            "then: expected one plant for each of plants, with as many states and inputs, but found others: the "
            f"batches are {plants.batch_shape} and {then.batch_shape}"
        )
    told = plants.told("units")
    level = told.noise
    if noise is not None:
        level = jnp.broadcast_to(checks.number("noise", noise, "a number ≥ 0", low=0), level.shape)
    mask, keys = plants.coordinates.state_mask.astype(float), jax.random.split(key, 3)
    x0 = jax.random.normal(keys[0], mask.shape, float) * mask
    pushes = jax.random.normal(keys[1], (2, *mask.shape), float) * mask[None]
    pushes = push * pushes / jnp.linalg.norm(pushes, axis=-1, keepdims=True)
    pushes = jnp.concatenate([jnp.zeros((1, *mask.shape)), pushes])
    w = jax.random.normal(keys[2], (3, num_steps, *mask.shape), float) * (mask * level[:, None])[None, None]
    return _episodes(plants, then, bind(controller, plants.hidden()), x0, pushes, w)


def _alike(a: Problem, b: Problem) -> bool:
    """True if the plants of two batches have as many states and inputs."""
    masks = ("state_mask", "input_mask")
    return all(np.array_equal(getattr(a.coordinates, mask), getattr(b.coordinates, mask)) for mask in masks)


@jax.jit
def _episodes(plants: Problem, then: Problem, policy: Policy, x0: Array, pushes: Array, w: Array) -> FirstContact:
    limit = plants.told("units").limit[:, None]
    memory, x, best = policy.init(x0.shape[:1]), x0, x0
    failed, ratios, failures = jnp.zeros(x0.shape[:1], bool), [], []
    for episode, problem in enumerate((plants, plants, then)):
        x, best = x + pushes[episode], best + pushes[episode]

        def step(state: tuple, noise: Array, problem: Problem = problem) -> tuple[tuple, None]:
            memory, x, best, paid, least = state
            memory, u = policy(memory, x)
            u, v = jnp.clip(u, -limit, limit), jnp.clip(-matvec(problem.K, best), -limit, limit)
            cost, optimum = (quadratic(problem.Q, a) + jnp.sum(b * b, -1) for a, b in ((x, u), (best, v)))
            after, after_best = (matvec(problem.A, a) + matvec(problem.B, b) + noise for a, b in ((x, u), (best, v)))
            followed = jnp.max(jnp.abs(x), -1, keepdims=True) < _LARGEST
            return (memory, jnp.where(followed, after, x), after_best, paid + cost, least + optimum), None

        nothing = jnp.zeros(x0.shape[:1])
        (memory, x, best, paid, least), _ = jax.lax.scan(step, (memory, x, best, nothing, nothing), w[episode])
        ratio = (paid + quadratic(problem.P, x)) / (least + quadratic(problem.P, best))
        failed = failed | ~(ratio <= MOST)
        ratios.append(jnp.where(failed, jnp.inf, ratio))
        failures.append(failed)
    return FirstContact(jnp.stack(ratios), jnp.stack(failures))
