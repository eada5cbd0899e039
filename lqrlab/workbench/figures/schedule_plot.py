"""Gains over a parameter of the plant: what a gain schedule would do, and what one gain for all costs."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lqrlab import control, systems
from lqrlab.simulation import Problem
from lqrlab.workbench.figures import plots
from lqrlab.workbench.figures.loop_design import LoopDesign, LoopSetting, reach

_POINTS = 41


def schedule(s: LoopSetting, result: LoopDesign) -> Figure:
    """Entries of the optimal gain over the parameter, and the cost of the design shown above each one's optimum.

    Raises:
        ValueError: the plant has no parameters.
    """
    if not s.scheduled:
        raise ValueError(f"gain schedule: {s.plant.name} has no parameters that a gain could follow")
    values = np.linspace(*reach(s.plant, s.scheduled), _POINTS)
    moved = {s.scheduled: jnp.asarray(values)}
    plants = dataclasses.replace(s.plant.broadcast_to((_POINTS,)), **moved)  # type: ignore[type-var]
    Q, R = (np.asarray(W) for W in plants.weights())
    weights = tuple(W * np.sqrt(np.outer(f, f)) for W, f in ((Q, s.states), (R, s.inputs)))
    problem = Problem.of(plants, dt=s.dt, linear=True, weights=weights)  # type: ignore[arg-type]
    sizes, (x, u) = np.asarray(s.plant.scales[0]) ** 2, (np.asarray(a) for a in s.plant.scales)
    excess = np.empty(_POINTS)
    for i, least in enumerate(np.asarray(problem.P)):
        one = control.Sampled(*(np.asarray(a)[i] for a in problem.sampled))
        excess[i] = 100 * (np.diagonal(result.undelayed.price(one)) @ sizes / (np.diagonal(least) @ sizes) - 1)
    figure, (gains, costs) = plots.grid(2, 2, 2.8)
    for i, state in enumerate(s.plant.states):
        for j, signal in enumerate(s.plant.inputs):
            label = state.name if s.plant.m == 1 else f"{state.name} → {signal.name}"
            gains.plot(values, np.asarray(problem.K)[:, j, i] * x[i] / u[j], label=label.replace("_", " "))
    name, unit = s.scheduled.replace("_", " "), systems.parameter_fields(type(s.plant))[s.scheduled].metadata["unit"]
    gains.set(title="Optimal gain K, in the signals' scales", xlabel=f"{name} [{unit}]")
    if s.plant.n * s.plant.m <= 12:
        gains.legend(fontsize=7)
    costs.plot(values, np.where(np.isfinite(excess), excess, np.nan))
    costs.set(title="This design above each one's optimum [%]", xlabel=f"{name} [{unit}]")
    costs.set_ylim(bottom=min(0.0, costs.get_ylim()[0]))
    lost = ~np.isfinite(excess)
    costs.fill_between(values, *costs.get_ylim(), where=lost, color=plots.SECOND, alpha=0.15, lw=0, label="unstable")
    if lost.any():
        costs.legend(fontsize=8)
    for axis in (gains, costs):
        axis.axvline(float(getattr(s.plant, s.scheduled)), color=plots.LINE, ls=":", lw=1)
    return figure
