"""The points of a sweep over a plant: designs in compiled programs, thousands a second, without a notebook.

The numbers of each point (:mod:`lqrlab.workbench.runs.plant_designs`) are a line of one file.
"""

import json
import os
from collections.abc import Sequence

from lqrlab.workbench.runs import comparison, run_folder
from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan
from lqrlab.workbench.runs.terminal import Progress


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
    from lqrlab.workbench.runs import plant_designs

    compute.setup()
    batch = plant_designs.plants(plan.name, [point.given for point in points])
    path, mark, count = plan.folder / comparison.NUMBERS, "■", 0
    progress.begin(plan.name, len(points), "compiling")
    try:
        with path.open("a+", encoding="utf-8") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # a line that was cut short stays alone
            for known in plant_designs.designs(plan.name, batch):
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
