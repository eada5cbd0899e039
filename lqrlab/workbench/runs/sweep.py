"""One notebook, or one plant, at many points: those without a result are executed, one table compares all.

Each run of a notebook has a folder of its own and is done by dask workers (:mod:`lqrlab.workbench.runs.sweep_workers`).
A plant's points go through compiled programs (:mod:`lqrlab.workbench.runs.plant_sweep`).
"""

import contextlib
import sys
import time
from pathlib import Path
from typing import TextIO

from lqrlab.workbench.runs import comparison, pipeline, plant_sweep, run_folder, session, sweep_workers
from lqrlab.workbench.runs.sweep_plan import Sweep, SweepPlan, planned
from lqrlab.workbench.runs.terminal import Progress


def sweep(asked: Sweep, stream: TextIO | None = None) -> Path:
    """Run a notebook, or design for a plant, at each point that has no result yet, and gather the results of all.

    Returns:
        The sweep's folder: ``results.csv``, and ``runs/`` or ``numbers.jsonl``.

    Raises:
        ValueError: a parameter is not right, an input is missing, another sweep holds the folder, or the folder is
            not one for a sweep; nothing was started.
    """
    plan = planned(asked)
    notebooks = plan.nb.path.parent if plan.nb else None
    run_folder.refuse_foreign(plan.folder, notebooks, run_folder.SWEEP)
    if asked.dry_run:
        lines = [f"{plan.name}: {len(plan.points)} points in {plan.folder}"]
        lines += [f"  {point.given}" for point in plan.points[:10]]
        lines += [f"  and {len(plan.points) - 10} more"] * (len(plan.points) > 10)
        (stream or sys.stdout).write("\n".join(lines) + "\n")
        return plan.folder
    with contextlib.ExitStack() as held:
        held.enter_context(run_folder.hold(plan.folder))
        source = _source(plan, stream) if plan.needs else None
        if source:
            with run_folder.hold(source):
                held.enter_context(run_folder.use(source))  # nobody rewrites it meanwhile
        progress = held.enter_context(Progress(stream, even=plan.nb is None))
        _run(plan.reading(source), progress)
        progress.say(comparison.summary(plan.folder))
        progress.say(f"table: {plan.folder / 'results.csv'}")
        if asked.report:
            progress.say(f"report: {comparison.write(plan.folder)}")
    return plan.folder


def _source(plan: SweepPlan, stream: TextIO | None) -> Path:
    """The folder of the run that the notebook reads from, with all that it needs there."""
    assert plan.nb is not None
    given, profile, notebooks = plan.asked.inputs, plan.profile, plan.nb.path.parent
    default = notebooks.parent / "data" / "runs" / (profile or "default")
    source = (Path(given).expanduser() if given else default).resolve()
    missing = [name for name in plan.needs if not session.result_path(source, name).exists()]
    if missing and (given or profile is None):
        raise ValueError(
            f"{plan.name}: reads what {', '.join(plan.needs)} made, but {source} has no result of {missing[0]}; "
            "give --from RUN, the folder of a run that has"
        )
    if missing and profile:
        pipeline.run(profile, source, only=plan.needs, source=notebooks, report=False, stream=stream)
    return source


def _run(plan: SweepPlan, progress: Progress) -> None:
    """Do what is missing; the sweep's record and table say how far that came."""
    executor = sweep_workers if plan.nb else plant_sweep
    record = plan.folder / run_folder.SWEEP
    run_folder.begin(
        record,
        notebook=str(plan.nb.path) if plan.nb else plan.name,
        title=plan.title,
        kind="notebook" if plan.nb else "plant",
        inputs=str(plan.source) if plan.source else None,
        profile=plan.profile,
        commit=run_folder.commit(plan.nb.path.parent if plan.nb else session.project()),
        units=dict(plan.units),
        runs=[{"run": p.name, "point": p.given, "fingerprint": p.fingerprint} for p in plan.points],
    )
    begun = time.monotonic()
    status: run_folder.Status = "stopped"
    try:
        if plan.asked.fresh:
            executor.clear(plan)
        missing, total = executor.missing(plan), len(plan.points)
        what = "runs" if plan.nb else "points"
        before = f"{total - len(missing)} finished before"
        progress.say(f"lqrlab sweep · {plan.name} · {total} {what}, {before} → {plan.folder}")
        if missing:
            executor.execute(plan, missing, progress)
        status = "finished" if comparison.table(plan.folder)["status"].eq("finished").all() else "failed"
    finally:
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(record, status=status, ended=session.now(), seconds=seconds)
        comparison.save(plan.folder)
