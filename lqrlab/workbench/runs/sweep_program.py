"""Sweeps whose points need no notebook: all of them in compiled programs, thousands a second.

Two kinds. *Designs* for a plant, see :mod:`lqrlab.workbench.runs.plant_designs`; *trainings*: notebook 03 at several
seeds and learning rates, side by side in one program.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lqrlab.compute.files import read_rows
from lqrlab.workbench.runs import notebooks, run_folder
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from lqrlab.workbench.runs.plant_designs import Rows
    from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan

FILE = "numbers.jsonl"
"""What is known of each point, a line each."""
_MOST_BYTES = 1 << 32  # ten million points
MANY = 16
"""Trainings from which on one program is taken by default."""


def missing(plan: "SweepPlan", points: Sequence["Point"]) -> list["Point"]:
    """The points without numbers."""
    known = read(plan.folder)
    return [point for point in points if point.fingerprint not in known]


def clear(plan: "SweepPlan", points: Sequence["Point"]) -> None:
    """Remove what earlier sweeps left."""
    (plan.folder / FILE).unlink(missing_ok=True)


def execute(plan: "SweepPlan", points: Sequence["Point"], progress: Progress) -> None:
    """Compute the points and note each in the sweep's folder as it is known."""
    import jax

    from lqrlab import compute

    compute.setup()
    name, path = plan.nb.name, plan.folder / FILE
    progress.update(name, 0, "compiling", total=len(points))
    mark, count = "■", 0
    try:
        with path.open("a+", encoding="utf-8") as file:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # a line that was cut short stays alone
            for known in designs(plan, points) if plan.nb.kind == "plant" else trainings(plan, points):
                for i, numbers in known:
                    file.write(json.dumps({"fingerprint": points[i].fingerprint, **numbers}) + "\n")
                file.flush()
                os.fsync(file.fileno())
                count += len(known)
                progress.update(name, count, "points")
        mark = "✓"
    finally:
        progress.close(name, mark, f"{count} points")
    device = f"1 × {jax.devices()[0].platform}"
    run_folder.note(plan.folder / run_folder.SWEEP, device=device)


def read(folder: Path) -> dict[str, Values]:
    """What is known: fingerprint of a point → its numbers, or its ``error``. A line cut short is none."""
    rows = [
        row
        for row in read_rows(folder / FILE, _MOST_BYTES)
        if row and isinstance(row.get("fingerprint"), str)
    ]
    return {row.pop("fingerprint"): row for row in rows}


def why_not(nb: Notebook, values: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> str:
    """Why the notebook's points cannot be trained side by side in one program; empty where they can.

    They can where its metadata say ``{"lqrlab": {"vmap": [...]}}`` of all that differs (seeds and learning rates), the
    points are a full grid of these, and all runs take the same steps.
    """
    can = nb.metadata.get("vmap", [])
    if not can:
        return f"{nb.name} does more than one program does"
    if other := [k for k in varied if k not in can]:
        return f"{other[0]} differs, and one program has one {other[0]}"
    first, second = (len({v[k] for v in values}) for k in can)
    if len(values) != first * second:
        return f"the points are no full grid of {' and '.join(can)}"
    one = values[0]
    if one.get("dagger_rounds") or one["num_steps"] % one["report_every"]:
        return "the runs do not all take the same steps, as with dagger_rounds = 0 they would"
    if not one.get("jit", True) or one.get("debug", "off") != "off" or one.get("mesh"):
        return "mesh, jit and debug are for one run at a time"
    return ""


def designs(plan: "SweepPlan", points: Sequence["Point"]) -> "Rows":
    """Design for the plant at all points."""
    from lqrlab.workbench.runs import plant_designs

    name = plan.nb.name
    return plant_designs.designs(name, plant_designs.plants(name, [point.given for point in points]))


def trainings(plan: "SweepPlan", points: Sequence["Point"]) -> "Rows":
    """Train at all points in one program, on the data set of the plan's source."""
    from lqrlab import compute, dataset, learning
    from lqrlab.learning import seed_grid

    assert plan.source is not None
    values: list[dict[str, Any]] = [point.values for point in points]
    seeds, rates = (list(dict.fromkeys(v[k] for v in values)) for k in ("seed", "learning_rate"))
    model, loading = notebooks.config(learning.ModelConfig, values[0]), values[0].get("loading", "auto")
    sizes = {"batch_size": values[0]["batch_size"], "window": model.window}
    curves = seed_grid.grid(
        dataset.source(dataset.open(plan.source / "dataset"), kind=loading, **sizes),
        model,
        notebooks.config(learning.TrainConfig, values[0]),
        seeds=seeds,
        learning_rates=rates,
        backend=notebooks.config(compute.Backend, values[0]),
    )
    place = [(seeds.index(v["seed"]), rates.index(v["learning_rate"])) for v in values]
    yield [(i, {k: float(a[at][-1]) for k, a in curves.metrics.items()}) for i, at in enumerate(place)]
