"""One notebook, or one plant, at many points: the points without a result are executed, one table compares all.

Two executors. ``notebooks``: each run a notebook in a folder of its own, on dask workers
(:mod:`lqrlab.workbench.runs.sweep_workers`). ``vmap``: all points in one compiled program
(:mod:`lqrlab.workbench.runs.sweep_program`). Which one is taken is said, and why.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from lqrlab.workbench.runs import comparison, pipeline, run_folder, session, sweep_program, sweep_workers
from lqrlab.workbench.runs.sweep_plan import Point, Sweep, SweepPlan, planned
from lqrlab.workbench.runs.terminal import Progress


def sweep(asked: Sweep, stream: TextIO | None = None) -> Path:
    """Run a notebook, or design for a plant, at each point that has no result yet, and gather the results of all.

    Returns:
        The sweep's folder: ``results.csv``, ``results.parquet``, and ``runs/`` or ``numbers.jsonl``.

    Raises:
        ValueError: a parameter is not right, an input is missing, another sweep holds the folder, or the folder is
            not one for a sweep; nothing was started.
    """
    plan, points = planned(asked)
    notebooks = None if plan.nb.kind == "plant" else plan.nb.path.parent
    run_folder.refuse_foreign(plan.folder, notebooks, run_folder.SWEEP)
    if asked.dry_run:
        lines = [
            f"{plan.nb.name}: {len(points)} points in {plan.folder}",
            f"executor: {plan.executor}: {plan.reason}",
        ]
        lines += [f"  {point.given}" for point in points[:10]] + [f"  and {len(points) - 10} more"] * (
            len(points) > 10
        )
        (stream or sys.stdout).write("\n".join(lines) + "\n")
        return plan.folder
    with contextlib.ExitStack() as held:
        held.enter_context(run_folder.hold(plan.folder))
        if plan.needs:
            source = _source(plan, stream)
            with run_folder.hold(source):
                held.enter_context(run_folder.use(source))  # nobody rewrites it meanwhile
            plan = dataclasses.replace(plan, source=source, links=_links(source, plan.needs))
        together = plan.executor == "vmap"
        progress = held.enter_context(Progress(stream, steps=together, even=together))
        _run(plan, plan.identified(points), progress)
        progress.say(comparison.summary(plan.folder))
        progress.say(f"table: {plan.folder / 'results.csv'} and .parquet")
        if asked.report:
            progress.say(f"report: {comparison.write(plan.folder)}")
    return plan.folder


def _source(plan: SweepPlan, stream: TextIO | None) -> Path:
    """The folder of the run that the notebook reads from, with all that it needs there."""
    given, profile, needs = plan.asked.inputs, plan.profile, plan.needs
    default = plan.project / "data" / "runs" / (profile or "default")
    source = (Path(given).expanduser() if given else default).resolve()
    missing = [name for name in needs if not session.result_path(source, name).exists()]
    if missing and (given or profile is None):
        raise ValueError(
            f"{plan.nb.name}: reads what {', '.join(needs)} made, but {source} has no result of {missing[0]}; "
            "give --from RUN, the folder of a run that has"
        )
    if missing and profile:
        pipeline.run(profile, source, only=needs, source=plan.nb.path.parent, report=False, stream=stream)
    return source


def _links(source: Path, needs: Sequence[str]) -> dict[str, Path]:
    links = {}
    for name in needs:
        for file in session.results(source, name)["files"]:
            if not (source / file).exists():
                raise ValueError(f"{source}: {file}, made by {name}, is gone; lqrlab run makes it again")
            links[Path(file).parts[0]] = source / Path(file).parts[0]
    return links


def _run(plan: SweepPlan, points: Sequence[Point], progress: Progress) -> None:
    """Do what is missing; the sweep's record and table say how far that came."""
    executor = sweep_program if plan.executor == "vmap" else sweep_workers
    record = plan.folder / run_folder.SWEEP
    run_folder.begin(
        record,
        notebook=str(plan.nb.path),
        title=plan.nb.title,
        kind=plan.nb.kind,
        executor=plan.executor,
        inputs=str(plan.source) if plan.source else None,
        profile=plan.profile,
        commit=run_folder.commit(plan.project),
        sweep=plan.id,
        units=plan.units,
        runs=[{"run": p.name, "point": p.given, "fingerprint": p.fingerprint} for p in points],
    )
    begun = time.monotonic()
    status: run_folder.Status = "stopped"
    try:
        if plan.asked.fresh:
            executor.clear(plan, points)
        missing = executor.missing(plan, points)
        what = f"{len(points)} {'points' if plan.executor == 'vmap' else 'runs'}"
        before = f"{len(points) - len(missing)} finished before"
        progress.say(f"lqrlab sweep · {plan.nb.name} · {what}, {before} → {plan.folder}")
        progress.say(f"executor: {plan.executor}: {plan.reason}")
        if missing:
            executor.execute(plan, missing, progress)
        status = "finished" if comparison.table(plan.folder)["status"].eq("finished").all() else "failed"
    finally:  # runs still under way see that their sweep is gone, and end
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(record, status=status, sweep=None, ended=session.now(), seconds=seconds)
        comparison.save(plan.folder)
