"""What a controller pays under noise, pushes and changes of its plant, beside the LQR under the same."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import jit_by_function
from lqrlab.evaluation.scores import Score
from lqrlab.simulation import LinearPolicy, Policy, Problem, Verdict, step, verdict

_LARGEST = 1e6  # scales of a state: beyond it a loop is not followed


def disturbed(
    problems: tuple[Problem, ...], policy: Policy, x0: Array, pushes: Array, key: PRNGKeyArray, num_steps: int
) -> Score:
    """Run a policy through episodes, one a problem, each begun by a push of the state, and score the last of them.

    The reference is the exact LQR of each episode's plant from its first sample on, under the same noise and pushes:
    it sees what the policy sees. The state at the end counts as x_TᵀP x_T.

    Args:
        problems: with their noise; the policy is not told when one follows another.
        policy: bound to the first.
        x0: ``[V, S, n]``.
        pushes: ``[episodes, V, S, n]``.
        key: of the noise.
        num_steps: of an episode.
    """
    ratio, judged = _followed(tuple(problems), policy, x0, pushes, key, num_steps)
    return Score(ratio, judged, jnp.zeros_like(ratio), reference="LQR")


@functools.partial(jit_by_function, static_argnames="num_steps")
def _followed(
    problems: tuple[Problem, ...], policy: Policy, x0: Array, pushes: Array, key: PRNGKeyArray, num_steps: int
) -> tuple[Array, Array]:
    memory, x, best, gone = policy.init(x0.shape[:-1]), x0, x0, jnp.zeros(x0.shape[:-1], bool)
    for episode, problem in enumerate(problems):
        loops = memory, x + pushes[episode], best + pushes[episode], gone
        (memory, x, best, gone), (paid, least) = _episode(
            problem, policy, loops, jax.random.fold_in(key, episode), num_steps
        )
        ratio = (paid + problem.optimal_cost(x)) / (least + problem.optimal_cost(best))
    judged = jnp.where(gone, Verdict.DIVERGED, Verdict.BOUNDED).astype(jnp.int8)
    return jnp.where(gone, jnp.inf, ratio), judged


def _episode(problem: Problem, policy: Policy, loops: tuple, key: Array, num_steps: int) -> tuple[Any, Any]:
    """The loops after so many samples, and what the policy and the LQR have paid in them."""
    optimum, scale = LinearPolicy(problem.K), problem.scale_x

    def sample(state: tuple, t: Array) -> tuple[tuple, None]:
        (memory, x, best, gone), (paid, least) = state
        noise = jax.random.fold_in(key, t)
        after, memory, (u, cost) = step(problem, policy, x, memory, noise)
        after_best, _, (_, optimal) = step(problem, optimum, best, None, noise)
        gone = gone | ~(verdict.size(after, scale) < _LARGEST) | ~jnp.isfinite(u).all(-1)
        loops = memory, jnp.where(gone[..., None], x, after), after_best, gone
        return (loops, (paid + cost, least + optimal)), None

    nothing = jnp.zeros(loops[1].shape[:-1])
    return jax.lax.scan(sample, (loops, (nothing, nothing)), jnp.arange(num_steps))[0]
