"""Use everything again and again, and see whether anything grows: ``make soak``, ``python tools/soak.py --hours 0.1``.

A round makes each panel, moves its sliders and closes it; runs loops of plants whose dynamics are new functions, as a
notebook's cell that is run again makes them; designs regulators; reads each kind of source; and trains with a new
seed, which is a new program, in a new folder. After each round the process's memory, open handles, threads and child
processes are counted. Once the caches are full, their slopes must be zero: see :data:`BOUNDS`.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import psutil

from lqrlab import control, dataset, evaluation, learning, simulation, systems
from lqrlab.workbench import widgets

BOUNDS = {"MiB": 0.5, "handles": 0.01, "threads": 0.01, "children": 0.01, "widgets": 0.01}
"""The largest slopes a round that count as flat: what JAX and Orbax note of each new program and folder, and none."""
WARM = 20  # rounds that fill the caches of the last few functions

SMALL = learning.ModelConfig(kind="gain", window=1, hidden=16)
TRAIN = {"num_steps": 4, "batch_size": 8, "plants": 8, "closed_loop": 0.0, "steps_per_dispatch": 2}
TRAIN |= {"report_every": 4, "checkpoint_every": 4}


def data(place: Path, seed: int = 0) -> dataset.Dataset:
    """A data set of two families."""
    return dataset.generate(_config(seed), place / f"data-{seed}")


def _config(seed: int) -> dataset.DataConfig:
    return dataset.DataConfig(
        families=("mass_spring_damper", "pendulum"), variants=3, trajectories=2, num_steps=20, seed=seed
    )


def panels(data: dataset.Dataset, place: Path, number: int) -> None:
    """Each panel is made, a slider of it is moved, and it is closed."""
    run = place / "watched"
    made = (
        lambda: widgets.lqr_designer("pendulum", num_steps=20),
        lambda: widgets.mpc_designer("pendulum", num_steps=20),
        lambda: widgets.loop_shaper("pendulum"),
        lambda: widgets.policy_inspector(simulation.no_control, "pendulum", num_steps=20),
        lambda: widgets.attraction_map("pendulum", num=600, num_steps=20),
        lambda: widgets.data_browser(data.path),
        lambda: widgets.training_monitor(run, interval=0.05),
    )
    for make in made:
        panel = make()
        panel.live.wait()
        for slider in [w for w in _beneath(panel) if hasattr(w, "readout")][:2]:
            slider.value = slider.min + (0.3 + 0.05 * (number % 8)) * (slider.max - slider.min)
            panel.live.wait()
        if panel.live.status.value:
            raise RuntimeError(f"{type(panel).__name__}: {panel.live.status.value}")
        panel.close()


def _beneath(widget) -> list:
    children = getattr(widget, "children", ())
    return [*children, *(below for child in children for below in _beneath(child))]


def rollouts(data: dataset.Dataset, place: Path, number: int) -> None:
    """Loops, scores and a trajectory of plants whose dynamics are new functions."""
    for gain in (1.0, 2.0):
        plant = systems.from_dynamics(lambda x, u, g=gain: -g * x + x**3 + u, x_eq=[0.0], u_eq=[0.0], Q=[[1.0]],
                                      R=[[1.0]], dt=0.1)  # fmt: skip
        policy = simulation.LinearPolicy(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
        simulation.rollout(plant, policy, [0.5], 20)
        evaluation.attraction(plant, policy, np.linspace(-1.5, 1.5, 8)[:, None], num_steps=20)


def designs(data: dataset.Dataset, place: Path, number: int) -> None:
    """Regulators of new numbers, one at a time and in a batch."""
    rng = np.random.default_rng(number)
    A, B = rng.normal(size=(50, 3, 3)), rng.normal(size=(50, 3, 1))
    control.lqr(A, B, np.eye(3), np.eye(1))
    control.lqrd(A[0], B[0], np.eye(3), np.eye(1), 0.1)
    control.margins(A[0], B[0], control.lqr(A[0], B[0], np.eye(3), np.eye(1)).K)


def sources(data: dataset.Dataset, place: Path, number: int) -> None:
    """Each kind of source: opened, read in part, left."""
    for kind in dataset.sources.KINDS:
        opened = dataset.source(dataset.open(data.path), kind=kind, batch_size=4, window=3, seed=number)
        reading = iter(opened)
        jax.block_until_ready([next(reading), next(reading)])
        reading.close()


def training(data: dataset.Dataset, place: Path, number: int) -> None:
    """A few steps in a new folder."""
    source = dataset.source(data, batch_size=8, window=1)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        learning.fit(source, SMALL, learning.TrainConfig(**TRAIN, seed=number), folder)
        learning.load(Path(folder) / "checkpoints")


WORK = (panels, rollouts, designs, sources, training)


def measured() -> dict[str, float]:
    """What must not grow."""
    import ipywidgets

    gc.collect()
    process = psutil.Process()
    return {
        "MiB": process.memory_info().rss / 2**20,
        "handles": process.num_fds() if os.name == "posix" else process.num_handles(),
        "threads": process.num_threads(),
        "children": len(process.children(recursive=True)),
        "widgets": len(ipywidgets.widgets.widget._instances),
    }


def slope(values: Sequence[float]) -> float:
    """Growth a round: the median over all pairs of rounds, so that a single leap does not count."""
    y = np.asarray(values, float)
    i, j = np.triu_indices(len(y), 1)
    return float(np.median((y[j] - y[i]) / (j - i)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Rounds until the time is up; 1 if anything grows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--only", default="", help="kinds of work, separated by commas")
    given = parser.parse_args(arguments)
    os.environ["JPY_SESSION_NAME"] = "soak"  # somebody is there: panels are alive
    os.environ.pop("LQRLAB_HEADLESS", None)
    work = [w for w in WORK if not given.only or w.__name__ in given.only.split(",")]
    begun, said, counted = time.monotonic(), -60.0, []
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        place = Path(folder)
        made = data(place)
        while time.monotonic() < begun + 3600 * given.hours or len(counted) < WARM + 2:
            times = []
            for one in work:
                start = time.monotonic()
                one(made, place, len(counted))
                times.append(f"{one.__name__} {time.monotonic() - start:.1f}")
            counted.append(measured())
            if time.monotonic() - said >= 60:
                said = time.monotonic()
                minutes, counts = (said - begun) / 60, _words(counted[-1])
                print(f"{minutes:4.0f} min, round {len(counted):4d}: {counts}; s: {', '.join(times)}", flush=True)
    slopes = {name: slope([c[name] for c in counted[WARM:]]) for name in BOUNDS}
    grows = [name for name, bound in BOUNDS.items() if slopes[name] > bound]
    print(f"{len(counted)} rounds; a round after the first {WARM}: {_words(slopes)}: "
          + (f"growing: {', '.join(grows)}" if grows else "flat"))  # fmt: skip
    return bool(grows)


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{value:.4g} {name}" for name, value in values.items())


if __name__ == "__main__":
    from lqrlab import compute

    compute.setup()
    sys.exit(main())
