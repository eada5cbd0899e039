"""What policies trained through the simulator recover beyond the LQR, with its inputs limited to one scale."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence

import jax

from lqrlab import control, evaluation, learning, simulation, systems
from lqrlab.benchmarks.measurement import Row, row

FAMILIES = ("cart_pole", "furuta_pendulum", "acrobot", "pendulum", "quadrotor")
SETTINGS: dict[str, dict[str, float]] = {
    "furuta_pendulum": {"num_steps": 3000},
    "acrobot": {"num_steps": 3500, "spread": 3.0},
    "pendulum": {"num_steps": 1000},
    "quadrotor": {"num_steps": 1200},
}
"""What is set otherwise than by default for a family."""
_SIZES = (1.0, 2.0, 4.0)
_TIMES = {"cart_pole": 1.5, "furuta_pendulum": 1.5, "acrobot": 1.5}
"""Target of the share at two scales, in terms of the LQR's; 1 for the others."""


def bench_recovery(
    families: Sequence[str] = FAMILIES, *, seeds: int = 3, num_steps: int | None = None
) -> Iterator[Row]:
    """Train policies from several seeds; shares of 512 starts recovered, the median over seeds with least and most."""
    for family in families:
        plant = systems.make(family)
        u_eq, scale = plant.equilibrium()[1], plant.scales[1]
        limits = u_eq - scale, u_eq + scale
        gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
        policies: dict[str, simulation.Policy] = {"LQR": simulation.LinearPolicy(gain)}
        for seed in range(seeds):
            config = config_of(family, seed, num_steps)
            policies[f"seed {seed}"] = learning.train_recovery(plant, limits, config).policy
        found = evaluation.recoveries(plant, policies, key=jax.random.key(0), limits=limits, sizes=_SIZES)
        shares = {name: 100 * each.converged.mean(-1) for name, each in found.items()}
        for i, size in enumerate(_SIZES):
            lqr, *trained = (float(each[i]) for each in shares.values())
            target = _TIMES.get(family, 1.0) * lqr if size == 2 else lqr
            name = f"{family}: starts at {size:g} scales recovered"
            yield row(f"{name}, LQR", lqr, "%")
            yield row(f"{name}, median of {seeds} seeds", statistics.median(trained), "%", min(target, 100.0))
            yield row(f"{name}, least", min(trained), "%")
            yield row(f"{name}, most", max(trained), "%")


def config_of(family: str, seed: int, num_steps: int | None = None) -> learning.RecoveryConfig:
    """The settings for a family."""
    config = learning.RecoveryConfig(seed=seed, **SETTINGS.get(family, {}))  # type: ignore[arg-type]
    return config if num_steps is None else dataclasses.replace(config, num_steps=num_steps)
