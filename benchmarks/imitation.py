"""Networks taught by a predictive controller, next to it and to the clipped LQR: cost over the constrained optimum.

Each plant is linear, with limits of its inputs and of one state; the starts are those from which the optimum exists.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.measurement import Parts, Row, main, row
from lqrlab import predictive, simulation, systems


class Setting(NamedTuple):
    """Limit of the inputs' deviations, and of a state; size of the starts, in state scales."""

    u: float
    state: str
    x: float
    start: float


SETTINGS = {
    "cart_pole": Setting(10.0, "velocity", 0.8, 0.6),
    "mass_train": Setting(1.0, "position4", 0.4, 1.0),
    "quadrotor": Setting(0.3, "z_velocity", 0.8, 0.8),
}
HORIZON, SAMPLES = 25, 400


def bench_imitation(
    families: Sequence[str] = tuple(SETTINGS), *, starts: int = 128, seed: int = 0, brief: bool = False
) -> Iterator[Row]:
    """Excess over the constrained optimum and violations, in %, of the network alone and behind a safety filter."""
    for family in families:
        setting, plant = SETTINGS[family], systems.make(family)
        u_eq = np.asarray(plant.equilibrium()[1])
        high = np.full(plant.n, np.inf)
        high[[state.name for state in plant.states].index(setting.state)] = setting.x
        x_eq = np.asarray(plant.equilibrium()[0])
        limits = simulation.Limits(u=(u_eq - setting.u, u_eq + setting.u), x=(x_eq - high, x_eq + high))
        problem = simulation.Problem.of(plant, limits=limits, linear=True)
        scale = np.asarray(problem.scale_x)
        x0 = np.random.default_rng(1).normal(size=(starts, plant.n)) * scale * setting.start
        x0 = np.clip(x0, -high, high)
        best = predictive.optimum(problem, x0, longest=256)
        held = np.asarray(best.found)
        yield row(f"{family}: starts that have an optimum", 100 * float(held.mean()), "%")
        price = 1e3 * float(jnp.max(jnp.diag(problem.Q)))
        teacher = predictive.mpc(problem, HORIZON, soft=(0.0, price))
        config = predictive.ImitationConfig(seed=seed, spread=2 * setting.start)
        if brief:
            config = predictive.ImitationConfig(rounds=1, loops=8, samples=10, labels=32, num_steps=2, width=8)
        network = predictive.imitate(teacher, problem, config).policy
        contenders = {
            "clipped LQR": problem.K,
            f"MPC {HORIZON}": teacher,
            "network": network,
            "network, filtered": predictive.filtered(network, problem),
        }
        for name, controller in contenders.items():
            run = simulation.rollout(problem, controller, jnp.asarray(x0[held]), SAMPLES)
            end = np.asarray(run.xs[:, -1])
            paid = np.asarray(run.cost) + np.einsum("bi,ij,bj->b", end, problem.P, end)
            excess = 100 * (paid / np.asarray(best.cost)[held] - 1)
            beyond = (np.maximum(np.abs(run.xs) - high, 0) / scale).max((1, 2))
            yield row(f"{family}: {name}, median over the optimum", float(np.median(excess)), "%")
            yield row(f"{family}: {name}, p95", float(np.quantile(excess, 0.95)), "%")
            yield row(
                f"{family}: {name}, loops that break a limit by a thousandth", 100 * float((beyond > 1e-3).mean()), "%"
            )


PARTS: Parts = {"imitated": (bench_imitation, {"families": ("cart_pole",), "starts": 4, "brief": True})}

if __name__ == "__main__":
    main(PARTS)
