"""Starts that policies trained through the simulator recover beyond the LQR, inputs limited to one scale."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.measurement import Parts, Row, main, row
from benchmarks.recovery_training import RecoveryConfig, train_recovery
from lqrlab import evaluation, predictive, simulation, systems
from lqrlab.compute.linalg import expand_batch

FAMILIES = ("cart_pole", "furuta_pendulum", "acrobot", "pendulum", "quadrotor")
SETTINGS: dict[str, dict[str, Any]] = {
    "furuta_pendulum": {"num_steps": 3000},
    "acrobot": {"num_steps": 3400, "spread": 3.0},
    "pendulum": {"num_steps": 1000},
    "quadrotor": {"num_steps": 1200},
}
"""Settings of families that are not the defaults."""
_SIZES = (1.0, 2.0, 4.0)
_TIMES = {"cart_pole": 1.5, "furuta_pendulum": 1.5, "acrobot": 1.5}
"""Target of the share at two scales, in terms of the LQR's; 1 for the others."""
_COSTED = {"quadrotor": (4.0, 16)}
"""Size and number of the starts whose cost is compared with the best known."""


def bench_recovery(
    families: Sequence[str] = FAMILIES, *, seeds: int = 3, num_steps: int | None = None
) -> Iterator[Row]:
    """Train policies from several seeds; shares of 512 starts recovered, the median over seeds with least and most.

    Of the quadrotor also what recoveries from four scales cost above the best known.
    """
    for family in families:
        plant = systems.make(family)
        u_eq, scale = plant.equilibrium()[1], plant.scales[1]
        problem = simulation.Problem.of(plant, limits=(u_eq - scale, u_eq + scale))
        policies: dict[str, simulation.Policy] = {"LQR": simulation.LinearPolicy(problem.K)}
        for seed in range(seeds):
            config = config_of(family, seed, num_steps)
            policies[f"seed {seed}"] = train_recovery(problem, config).policy
        yield from measured(problem, policies)


def measured(problem: simulation.Problem, policies: Mapping[str, simulation.Policy]) -> Iterator[Row]:
    """The rows of one plant; the first policy is the LQR."""
    key = jax.random.key(0)
    found = recoveries(problem, policies, key=key)
    for i, size in enumerate(_SIZES):
        lqr, *trained = (100 * float(each.converged[i].mean()) for each in found.values())
        target = _TIMES.get(problem.name, 1.0) * lqr if size == 2 else lqr
        yield from _rows(f"{problem.name}: starts at {size:g} scales recovered", lqr, trained, min(target, 100.0))
    if problem.name in _COSTED:
        size, num = _COSTED[problem.name]
        starts = size * problem.initial_state(key=key, num=num)
        best, paid = best_known_cost(problem, policies, starts, key=key)
        lqr, *trained = (_above(cost, best) for cost in paid.values())
        name = f"{problem.name}: recoveries from {size:g} scales above the best known cost"
        yield from _rows(name, lqr, trained, 10.0, least=False)


def recoveries(
    problem: simulation.Problem,
    policies: Mapping[str, object],
    *,
    key: Array,
    sizes: Sequence[float] = _SIZES,
    num: int = 512,
    num_steps: int = 1000,
) -> dict[str, evaluation.Attraction]:
    """Starts, of a fixed set, that each policy brings back to the equilibrium.

    Args:
        problem: of one plant, with the limits of its inputs.
        policies: name → controller, see :func:`lqrlab.simulation.bind`.
        key: random key of the starts; one key, one set.
        sizes: the starts are normal with so many state scales, ``num`` of each; the same directions in each size.
        num_steps: samples after which a loop is judged.

    Returns name → verdicts ``[sizes, num]``; ``.converged.mean(-1)`` are the shares.
    """
    directions = np.asarray(problem.initial_state(key=key, num=num), np.float32)
    starts = np.asarray(sizes, np.float32)[:, None, None] * directions
    judge = partial(evaluation.attraction, problem, num_steps=num_steps)
    return {name: judge(policy, starts) for name, policy in policies.items()}


def best_known_cost(
    problem: simulation.Problem,
    policies: Mapping[str, object],
    x0: Array,
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
        problem, policies: as of :func:`recoveries`.
        x0: initial deviations ``[starts, n]``.
        key: random key of the ``num_random`` guesses.
        horizon: samples of a trajectory; what comes after costs xᵀPx, as the LQR's.
        max_iterations: of a search.
        num_steps: samples of a policy's loop; a loop that does not converge costs inf.

    Returns cost ``[starts]``, and name → cost ``[starts]``.
    """
    x0 = jnp.asarray(x0, float)
    plant = problem.plant
    assert plant is not None
    runs = {name: simulation.rollout(problem, policy, x0, num_steps) for name, policy in policies.items()}
    paid = {name: _cost(run, problem) for name, run in runs.items()}
    guesses = [jnp.zeros((len(x0), horizon, plant.m))]
    guesses += [jnp.where(jnp.isfinite(run.us), run.us, 0.0)[:, :horizon] for run in runs.values()]
    held = -(-horizon // 10)
    spread = expand_batch((problem.high - problem.low) / 4, 4)
    noise = spread * jax.random.normal(key, (num_random, len(x0), held, plant.m))
    guesses += list(jnp.repeat(noise, 10, axis=2)[:, :, :horizon])
    assert problem.continuous is not None
    plans = predictive.ilqr(
        plant.dynamics,
        x0 + problem.x_eq[None],
        problem.continuous.Q,
        problem.continuous.R,
        horizon,
        problem.P,
        dt=problem.dt,
        goal=(problem.x_eq, problem.u_eq),
        limits=simulation.Limits(u=(problem.low + problem.u_eq, problem.high + problem.u_eq)),
        search=predictive.Search(
            expand_batch(problem.u_eq, 4) + problem.saturate(jnp.stack(guesses)), 1e-5, max_iterations
        ),
    )
    found = np.where(np.isfinite(plans.cost), plans.cost, np.inf)
    return np.min([*found, *paid.values()], axis=0), paid


def _cost(run: simulation.Trajectory, problem: simulation.Problem) -> np.ndarray:
    """Of each loop, inf where it does not converge."""
    judged = simulation.verdict.of_sizes(simulation.verdict.size(run.xs, problem.scale_x), linear=problem.linear)
    return np.where(judged == simulation.Verdict.CONVERGED, run.cost, np.inf)


def _rows(name: str, lqr: float, trained: list[float], target: float, *, least: bool = True) -> Iterator[Row]:
    yield row(f"{name}, LQR", lqr, "%")
    yield row(f"{name}, median of {len(trained)} seeds", statistics.median(trained), "%", target, least=least)
    yield row(f"{name}, least", min(trained), "%")
    yield row(f"{name}, most", max(trained), "%")


def _above(cost: np.ndarray, best: np.ndarray) -> float:
    """Percent by which the costs of the starts recovered are above the best known of the same starts, in sum."""
    good = np.isfinite(cost)
    return 100 * float(cost[good].sum() / best[good].sum() - 1) if good.any() else math.inf


def config_of(family: str, seed: int, num_steps: int | None = None) -> RecoveryConfig:
    """The settings for a family."""
    config = RecoveryConfig(seed=seed, **SETTINGS.get(family, {}))
    if num_steps is None:
        return config
    every = math.gcd(num_steps, config.report_every)
    return dataclasses.replace(config, num_steps=num_steps, report_every=every)


PARTS: Parts = {"recovered": (bench_recovery, {"families": ("pendulum",), "seeds": 1, "num_steps": 2})}

if __name__ == "__main__":
    main(PARTS)
