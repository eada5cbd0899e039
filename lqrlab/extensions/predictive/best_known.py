"""Gains beyond the LQR: starts that policies bring back, and the least cost that is known of each."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab import simulation
from lqrlab.compute import checks
from lqrlab.compute.linalg import expand_batch
from lqrlab.evaluation import Attraction, attraction
from lqrlab.extensions.predictive.iterative_lqr import Search, ilqr
from lqrlab.simulation import Limits, Problem


def recoveries(
    problem: Problem,
    policies: Mapping[str, object],
    *,
    key: Array,
    sizes: Sequence[float] = (1.0, 2.0, 4.0),
    num: int = 512,
    num_steps: int = 1000,
) -> dict[str, Attraction]:
    """Starts, of a fixed set, that each policy brings back to the equilibrium.

    Args:
        problem: of one plant, with the limits of its inputs.
        policies: name → controller, see :func:`lqrlab.simulation.bind`.
        key: random key of the starts; one key, one set.
        sizes: the starts are normal with so many state scales; the same directions in each size.
        num: starts of a size.
        num_steps: samples after which a loop is judged.

    Returns:
        Name → verdicts ``[sizes, num]``; ``.converged.mean(-1)`` are the shares.
    """
    checks.whole("num", num)
    starts = starts_of(problem, key=key, sizes=sizes, num=num)
    return {name: attraction(problem, policy, starts, num_steps=num_steps) for name, policy in policies.items()}


def starts_of(problem: Problem, *, key: Array, sizes: Sequence[float], num: int) -> np.ndarray:
    """Initial deviations ``[sizes, num, n]`` in float32, one set of directions in all sizes."""
    directions = np.asarray(problem.initial_state(key=key, num=num), np.float32)
    return np.asarray(sizes, np.float32)[:, None, None] * directions


def best_known_cost(
    problem: Problem,
    policies: Mapping[str, object],
    x0: ArrayLike,
    *,
    key: Array,
    horizon: int = 250,
    num_random: int = 1,
    max_iterations: int = 100,
    num_steps: int = 1000,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The least cost from each start that anything here finds, and what each policy pays.

    Iterative LQR from several first guesses: the equilibrium's inputs, the inputs of each policy's own loop, and random
    ones. Its optima are local, so the least of all of them and of the policies' own costs counts; a bound from above
    on the optimum, no more.

    Args:
        problem: of one plant, with the limits of its inputs.
        policies: name → controller, see :func:`lqrlab.simulation.bind`.
        x0: initial deviations ``[starts, n]``.
        key: random key of the random guesses.
        horizon: samples of a trajectory; what comes after costs xᵀPx, as the LQR's.
        num_random: random guesses.
        max_iterations: of a search.
        num_steps: samples of a policy's loop; a loop that does not converge costs inf.

    Returns:
        Cost ``[starts]``, and name → cost ``[starts]``.
    """
    x0 = jnp.asarray(checks.real("x0", x0), float)
    plant = problem.plant
    if plant is None or problem.batch_shape or problem.limits is None or problem.low is None:
        raise ValueError(f"problem: expected one plant with limits of its inputs, but found {problem.name}")
    runs = {name: simulation.rollout(problem, policy, x0, num_steps) for name, policy in policies.items()}
    paid = {name: _cost(run, problem) for name, run in runs.items()}
    guesses = [jnp.zeros((len(x0), horizon, plant.m))]
    guesses += [jnp.where(jnp.isfinite(run.us), run.us, 0.0)[:, :horizon] for run in runs.values()]
    held = -(-horizon // 10)
    spread = expand_batch((problem.high - problem.low) / 4, 4)
    noise = spread * jax.random.normal(key, (num_random, len(x0), held, plant.m))
    guesses += list(jnp.repeat(noise, 10, axis=2)[:, :, :horizon])
    assert problem.continuous is not None
    plans = ilqr(
        plant.dynamics,
        x0 + problem.x_eq[None],
        problem.continuous.Q,
        problem.continuous.R,
        horizon,
        problem.P,
        dt=problem.dt,
        goal=(problem.x_eq, problem.u_eq),
        limits=Limits(u=(problem.low + problem.u_eq, problem.high + problem.u_eq)),
        search=Search(expand_batch(problem.u_eq, 4) + problem.saturate(jnp.stack(guesses)), 1e-5, max_iterations),
    )
    found = np.where(np.isfinite(plans.cost), plans.cost, np.inf)
    return np.min([*found, *paid.values()], axis=0), paid


def _cost(run: simulation.Trajectory, problem: Problem) -> np.ndarray:
    """Of each loop, inf where it does not converge."""
    judged = simulation.verdict.of_sizes(simulation.verdict.size(run.xs, problem.scale_x))
    return np.where(judged == simulation.Verdict.CONVERGED, run.cost, np.inf)
