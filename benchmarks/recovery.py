"""Starts that policies trained through the simulator recover beyond the LQR, inputs limited to one scale."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from benchmarks.measurement import Parts, Row, main, row
from lqrlab import predictive, simulation, systems

FAMILIES = ("cart_pole", "furuta_pendulum", "acrobot", "pendulum", "quadrotor")
SETTINGS: dict[str, dict[str, float]] = {
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
            policies[f"seed {seed}"] = predictive.train_recovery(problem, config).policy
        yield from measured(problem, policies)


def measured(problem: simulation.Problem, policies: Mapping[str, simulation.Policy]) -> Iterator[Row]:
    """The rows of one plant; the first policy is the LQR."""
    key = jax.random.key(0)
    found = predictive.recoveries(problem, policies, key=key, sizes=_SIZES)
    for i, size in enumerate(_SIZES):
        lqr, *trained = (100 * float(each.converged[i].mean()) for each in found.values())
        target = _TIMES.get(problem.name, 1.0) * lqr if size == 2 else lqr
        yield from _rows(f"{problem.name}: starts at {size:g} scales recovered", lqr, trained, min(target, 100.0))
    if problem.name in _COSTED:
        size, num = _COSTED[problem.name]
        starts = size * problem.initial_state(key=key, num=num)
        best, paid = predictive.best_known_cost(problem, policies, starts, key=key)
        lqr, *trained = (_above(cost, best) for cost in paid.values())
        name = f"{problem.name}: recoveries from {size:g} scales above the best known cost"
        yield from _rows(name, lqr, trained, 10.0, least=False)


def _rows(name: str, lqr: float, trained: list[float], target: float, *, least: bool = True) -> Iterator[Row]:
    yield row(f"{name}, LQR", lqr, "%")
    yield row(f"{name}, median of {len(trained)} seeds", statistics.median(trained), "%", target, least=least)
    yield row(f"{name}, least", min(trained), "%")
    yield row(f"{name}, most", max(trained), "%")


def _above(cost: np.ndarray, best: np.ndarray) -> float:
    """Percent by which the costs of the starts recovered are above the best known of the same starts, in sum."""
    good = np.isfinite(cost)
    return 100 * float(cost[good].sum() / best[good].sum() - 1) if good.any() else math.inf


def config_of(family: str, seed: int, num_steps: int | None = None) -> predictive.RecoveryConfig:
    """The settings for a family."""
    config = predictive.RecoveryConfig(seed=seed, **SETTINGS.get(family, {}))
    if num_steps is None:
        return config
    every = math.gcd(num_steps, config.report_every)
    return dataclasses.replace(config, num_steps=num_steps, report_every=every)


PARTS: Parts = {"recovered": (bench_recovery, {"families": ("pendulum",), "seeds": 1, "num_steps": 2})}

if __name__ == "__main__":
    main(PARTS)
