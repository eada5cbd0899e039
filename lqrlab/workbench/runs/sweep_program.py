"""Sweeps whose points need no notebook of their own: all of them in compiled programs, thousands a second.

Two kinds: *designs* for a plant (:mod:`lqrlab.workbench.runs.plant_designs`), and *trainings*, notebook 03 at several
seeds and learning rates side by side. The numbers of each point are a line of one file.
"""

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lqrlab.workbench.runs import comparison, notebooks, run_folder
from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from lqrlab.workbench.runs.plant_designs import Rows


def missing(plan: SweepPlan) -> list[Point]:
    """The points without numbers."""
    known = comparison.read_numbers(plan.folder)
    return [point for point in plan.points if point.fingerprint not in known]


def clear(plan: SweepPlan) -> None:
    """Remove what earlier sweeps left."""
    (plan.folder / comparison.NUMBERS).unlink(missing_ok=True)


def execute(plan: SweepPlan, points: Sequence[Point], progress: Progress) -> None:
    """Compute the points and note each in the sweep's folder as it is known."""
    import jax

    from lqrlab import compute

    compute.setup()
    path, mark, count = plan.folder / comparison.NUMBERS, "■", 0
    progress.begin(plan.name, len(points), "compiling")
    try:
        with path.open("a+", encoding="utf-8") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # a line that was cut short stays alone
            for known in designs(plan, points) if plan.nb is None else trainings(plan, points):
                for i, numbers in known:
                    file.write(json.dumps({"fingerprint": points[i].fingerprint, **numbers}) + "\n")
                file.flush()
                os.fsync(file.fileno())
                count += len(known)
                progress.step(count, "points")
        mark = "✓"
    finally:
        progress.end(mark, f"{count} points")
    run_folder.note(plan.folder / run_folder.SWEEP, device=f"1 × {jax.devices()[0].platform}")


def designs(plan: SweepPlan, points: Sequence[Point]) -> "Rows":
    """Design for the plant at all points."""
    from lqrlab.workbench.runs import plant_designs

    return plant_designs.designs(
        plan.name, plant_designs.plants(plan.name, [point.given for point in points])
    )


def trainings(plan: SweepPlan, points: Sequence[Point]) -> "Rows":
    """Train at all points in one program, on the data set of the plan's source."""
    from lqrlab import compute, dataset, learning
    from lqrlab.learning import seed_grid

    assert plan.source is not None
    values: list[dict[str, Any]] = [point.values for point in points]
    seeds, rates = (list(dict.fromkeys(v[k] for v in values)) for k in ("seed", "learning_rate"))
    model = notebooks.config(learning.ModelConfig, values[0], "model_options")
    curves = seed_grid.grid(
        dataset.source(
            dataset.open(plan.source / "dataset"),
            kind="auto",
            batch_size=values[0]["batch_size"],
            window=model.window,
        ),
        model,
        notebooks.config(learning.TrainConfig, values[0], "train_options"),
        seeds=seeds,
        learning_rates=rates,
        backend=notebooks.config(compute.Backend, values[0], "backend_options"),
    )
    place = [(seeds.index(v["seed"]), rates.index(v["learning_rate"])) for v in values]
    yield [(i, {k: float(a[at][-1]) for k, a in curves.metrics.items()}) for i, at in enumerate(place)]
