"""A plant's closed loop as it is shown: where it starts, how long it takes, what becomes of it, its modes in words."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Complex, Float

from lqrlab import control, systems
from lqrlab.compute import checks
from lqrlab.simulation import Trajectory, verdict
from lqrlab.systems import Plant

Poles = Complex[np.ndarray, "*batch n"] | Float[np.ndarray, "*batch n"]


def start(plant: Plant) -> Float[np.ndarray, " n"]:
    """An initial deviation that sets everything in motion: the first half of the states, to alternating sides."""
    half = np.arange(plant.n) < (plant.n + 1) // 2
    return np.where(half, 0.8 * np.resize([1.0, -0.7, 0.9], plant.n), 0.0) * np.asarray(plant.scales[0])


def settling_steps(poles: Poles) -> int:
    """Samples after which 0.4 % of the motion of a loop with these discrete poles is left, 60 … 4000."""
    return control.settling_steps(poles, times=1.0, within=4e-3, shortest=60, longest=4000, multiple=1)


def horizon(plant: Plant, num_steps: int | None, most: int = 4000) -> int:
    """The number of samples that was asked for, or until the plant's optimal loop has settled."""
    if num_steps is not None:
        return checks.whole("num_steps", num_steps)
    poles = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).poles
    return min(settling_steps(np.asarray(poles)), most)


def time_constant(poles: Poles, dt: ArrayLike) -> Float[np.ndarray, "*batch"]:
    """Seconds in which the slowest mode of a sampled loop falls by e."""
    return control.settling_time(poles, dt, within=math.exp(-1))


def outcome(plant: Plant, run: Trajectory) -> verdict.Verdict:
    """Whether a run of one loop converged, is bounded or diverged, by the rule of :mod:`lqrlab.simulation.verdict`."""
    sizes = verdict.size(np.asarray(run.xs, float), np.asarray(plant.scales[0]))
    return verdict.Verdict(int(verdict.of_sizes(jnp.asarray(sizes))))


def mode_sentences(plant: Plant) -> list[str]:
    """The open loop's modes in words, the least stable first."""
    return [mode.sentence for mode in systems.open_loop_modes(plant)]


def plain(plant: Plant) -> Plant:
    """The plant with plain numbers for its parameters, as drawings expect: NumPy draws, no device computes."""
    return dataclasses.replace(plant, **{key: float(value) for key, value in plant.parameters.items()})  # type: ignore[type-var]


def poses(
    plant: Plant, xs: Float[np.ndarray, "times n"], us: Float[np.ndarray, "times m"]
) -> list[systems.drawing.Drawing]:
    """The plant's drawings at deviations from its equilibrium."""
    still, (x_eq, u_eq) = plain(plant), (np.asarray(a, float) for a in plant.equilibrium())
    return [still.draw(x + x_eq, u + u_eq) for x, u in zip(np.asarray(xs, float), np.asarray(us, float))]
