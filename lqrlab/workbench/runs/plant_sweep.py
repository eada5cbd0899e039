"""A plant at many points of its parameters, weights and sample time: each design is tried in closed loop."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from lqrlab import compute, control, evaluation, systems
from lqrlab.compute import checks
from lqrlab.compute.configuration import Positive
from lqrlab.compute.files import write_atomic
from lqrlab.installation import program
from lqrlab.simulation import Problem
from lqrlab.workbench.figures.plant_card import phrase
from lqrlab.workbench.runs import run_folder, session, sweep, sweep_plan
from lqrlab.workbench.runs.notebooks import Parameter, Values
from lqrlab.workbench.runs.run_folder import Record
from lqrlab.workbench.runs.sweep_plan import Sweep
from lqrlab.workbench.runs.terminal import say

UNITS = {"cost": "1", "nonlinear_p95": "%", "nonlinear_median": "%", "nonlinear_diverged": "%", "time_constant": "s"}
"""Numbers of each design, and their units: ``cost``, the mean x0ᵀP x0 of typical starts; 95 % quantile and median of
the cost on the nonlinear plant above x0ᵀP x0; the share of its loops that diverge; the slowest mode's time constant."""
STARTS = 16  # initial states that each design is tried from
_AT_ONCE = 1000  # designs that one program tries
_FOR_NOTEBOOKS = ("profile", "inputs", "workers", "scheduler", "time_limit")  # fields of a sweep


def design(asked: Sweep) -> Path:
    """Design for a plant at each point and try the design; ``results.csv`` grows by a thousand points at a time.

    Returns the sweep's folder. A ``ValueError`` says what was refused: the plant, a parameter, the folder; nothing was
    started.
    """
    compute.setup()
    name = str(asked.target)
    if name not in systems.names():
        advice = checks.did_you_mean(name, systems.names()) or f"; {program()} list, or systems, shows them"
        raise ValueError(f"{name}: is neither a notebook nor a plant{advice}")
    if refused := [field for field in _FOR_NOTEBOOKS if getattr(asked, field) is not None]:
        option = "from" if refused[0] == "inputs" else refused[0].replace("_", "-")
        raise ValueError(f"--{option}: is for notebooks, but {name} is a plant")
    known = parameters(name)
    if not asked.given:
        advice = f"as in -p {next(iter(known))}=LOW:HIGH --random 20; there are {', '.join(known)}"
        raise ValueError(f"{name}: expected -p NAME=VALUES, {advice}")
    points = sweep_plan.points(name, known, asked, "plant")
    problem = designs(name, points)
    default = session.project() / "data" / "sweeps" / name
    folder = run_folder.place(asked.folder or default, record=run_folder.SWEEP)
    if asked.dry_run:
        return sweep_plan.tell(name, points, folder)
    about: Record = {"notebook": name, "title": phrase(systems.family(name).title), "units": UNITS}
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
    return folder


def parameters(name: str) -> dict[str, Parameter]:
    """Names that a sweep can set: the plant's parameters, its sample time, a factor for each diagonal weight."""
    cls, known = systems.family(name), {}
    for key, field in systems.parameter_fields(cls).items():
        known[key] = Parameter(key, float, field.default, f"{field.metadata['about']} [{field.metadata['unit']}]")
    known["dt"] = Parameter("dt", Positive, float(cls.dt), "sample time [s]")
    for key in [f"q_{signal.name}" for signal in cls.states] + [f"r_{signal.name}" for signal in cls.inputs]:
        known[key] = Parameter(key, Positive, 1.0, "factor of the weight")
    return known


def designs(name: str, points: Sequence[Values]) -> Problem:
    """The problems of a plant at ``points``, solved; a physical parameter out of its range is refused by its name."""
    columns = {key: np.array([point.get(key, p.default) for point in points]) for key, p in parameters(name).items()}
    plants = systems.make(name, **{key: columns[key] for key in systems.parameter_fields(systems.family(name))})
    weights = []
    for prefix, signals, weight in zip("qr", (plants.states, plants.inputs), plants.weights()):
        root = np.sqrt([columns[f"{prefix}_{signal.name}"] for signal in signals]).T
        weights.append(weight * root[:, :, None] * root[:, None, :])
    return Problem.of(plants, dt=columns["dt"], weights=(weights[0], weights[1]))


def tried(problem: Problem) -> Iterator[pd.DataFrame]:
    """The numbers of each design, by the thousand, ``UNITS``; or why there is none that stabilises.

    All are tried from the same starts, for as long as the slowest needs to settle.
    """
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
