"""A plant at many points of its parameters, weights and sample time: each design is tried in closed loop."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lqrlab import control, evaluation, systems
from lqrlab.compute.files import write_atomic
from lqrlab.simulation import Problem
from lqrlab.workbench.figures.plant_card import phrase
from lqrlab.workbench.runs import run_folder, session, sweep, sweep_plan
from lqrlab.workbench.runs.notebooks import Values
from lqrlab.workbench.runs.run_folder import Record
from lqrlab.workbench.runs.sweep_plan import Sweep
from lqrlab.workbench.runs.terminal import say

UNITS = {"cost": "1", "nonlinear_p95": "%", "nonlinear_median": "%", "nonlinear_diverged": "%", "time_constant": "s"}
"""Numbers of each design, and their units: ``cost``, the mean x0ᵀP x0 of typical starts; 95 % quantile and median of
the cost on the nonlinear plant above x0ᵀP x0; the share of its loops that diverge; the slowest mode's time constant."""
STARTS = 16  # initial states that each design is tried from
_AT_ONCE = 1000  # designs that one program tries


def design(asked: Sweep, points: Sequence[Values], folder: Path) -> None:
    """Design for a plant at each point and try the design; ``results.csv`` grows by a thousand points at a time."""
    name = str(asked.target)
    problem = designs(name, points)
    units = {key: p.about.partition(" [")[2][:-1] for key, p in sweep_plan.plant_parameters(name).items()} | UNITS
    about: Record = {"notebook": name, "title": phrase(systems.family(name).title), "units": units}
    about |= {"commit": run_folder.commit(session.project()), "device": f"1 × {jax.default_backend()}"}
    about["runs"] = [{"point": point} for point in points]
    frame = pd.DataFrame(points, dtype=float).assign(**dict.fromkeys(UNITS, np.nan), error="")
    frame.insert(0, "run", [f"{i:05d}" for i in range(1, len(points) + 1)])
    frame.insert(1, "status", "not started")
    with run_folder.hold(folder), sweep.recorded(folder, asked, about):
        for found in tried(problem):
            frame.loc[found.index, found.columns] = found
            write_atomic(folder / sweep.TABLE, frame.to_csv(index=False))
            say(f"  {name}  {int(found.index[-1]) + 1}/{len(points)} points")


def designs(name: str, points: Sequence[Values]) -> Problem:
    """The problems of a plant at ``points``, solved; a physical parameter out of its range is refused by its name."""
    known = sweep_plan.plant_parameters(name)
    columns = {key: np.array([point.get(key, p.default) for point in points]) for key, p in known.items()}
    plants = systems.make(name, **{key: columns[key] for key in systems.parameter_fields(systems.family(name))})
    weights = []
    for prefix, signals, weight in zip("qr", (plants.states, plants.inputs), plants.weights()):
        root = np.sqrt([columns[f"{prefix}_{signal.name}"] for signal in signals]).T
        weights.append(weight * root[:, :, None] * root[:, None, :])
    return Problem.of(plants, dt=columns["dt"], weights=(weights[0], weights[1]))


def tried(problem: Problem) -> Iterator[pd.DataFrame]:
    """The numbers of each design, ``UNITS``, by the thousand, from the same starts; or why there is none."""
    assert problem.plant is not None
    good, scale = np.asarray(problem.has_optimum), np.asarray(problem.plant.scales[0])
    poles = np.linalg.eigvals(np.nan_to_num(problem.closed_loop()))
    steps = control.settling_steps(poles[good]) if good.any() else 1
    frame = pd.DataFrame({"status": np.where(good, "finished", "failed"), "error": ""})
    frame["cost"] = np.einsum("vii,i->v", np.asarray(problem.P), scale**2)
    frame["time_constant"] = np.where(good, control.settling_time(poles, problem.dt, within=np.exp(-1)), np.nan)
    bad = [problem[int(i)] for i in np.flatnonzero(~good)]
    frame.loc[~good, "error"] = [control.diagnose(p.A, p.B, p.Q, p.R, p.N, float(p.dt)).sentences[0] for p in bad]
    x0 = problem.plant[0].initial_state(key=jax.random.key(0), num=STARTS)
    for rows in np.split(np.arange(len(frame)), range(_AT_ONCE, len(frame), _AT_ONCE)):
        if len(solved := rows[good[rows]]):
            some = problem[np.resize(solved, min(_AT_ONCE, len(frame)))]  # of one shape: one program
            starts = jnp.broadcast_to(x0, (len(some), *x0.shape))
            score = evaluation.evaluate(some.K, some, key=jax.random.key(0), x0=starts, num_steps=steps)
            median, high = np.quantile(100 * (np.asarray(score.ratio) - 1), (0.5, 0.95), axis=-1, method="higher")
            lost = 100 * np.asarray(score.diverged).mean(-1)
            names = ["nonlinear_median", "nonlinear_p95", "nonlinear_diverged"]
            frame.loc[solved, names] = np.stack([median, high, lost], axis=-1)[: len(solved)]
        yield frame.loc[rows]
