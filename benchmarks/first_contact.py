"""First contact: an unknown plant is regulated, pushed and replaced, under noise that the controller is not told."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from lqrlab.compute import jit_by_function, pytree
from lqrlab.compute.linalg import matvec, quadratic
from lqrlab.extensions.unknown.regret import MOST
from lqrlab.simulation import Policy, Problem, bind

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
    plants: Problem,
    then: Problem | None = None,
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
        controller: a function from a problem to a policy, as for ``unknown.score``.
        plants: a problem of ``unknown.problem_of``, with the noise *that the controller is told*.
        then: the plants of the last episode, as many and of the same sizes; if left out, the inputs are reversed.
        key: of initial states, pushes and noise.
        noise: standard deviation of the disturbance that there *is*; as told, if left out.
        push: length of the pushes, in scales of the states.
        num_steps: of an episode.
    """
    if then is None:
        then = dataclasses.replace(plants, B=-plants.B, K=-plants.K)
    level = plants.told("units").noise
    if noise is not None:
        level = jnp.full_like(level, noise)
    mask, keys = plants.coordinates.state_mask.astype(float), jax.random.split(key, 3)
    x0 = jax.random.normal(keys[0], mask.shape, float) * mask
    pushes = jax.random.normal(keys[1], (2, *mask.shape), float) * mask[None]
    pushes = push * pushes / jnp.linalg.norm(pushes, axis=-1, keepdims=True)
    pushes = jnp.concatenate([jnp.zeros((1, *mask.shape)), pushes])
    w = jax.random.normal(keys[2], (3, num_steps, *mask.shape), float) * (mask * level[:, None])[None, None]
    return _episodes(plants, then, bind(controller, plants.hidden()), x0, pushes, w)


@jit_by_function
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
