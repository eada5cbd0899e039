"""One notebook, or one plant, at many points: those without a result are computed, one table compares all.

Each run of a notebook has a folder of its own and is done by a dask worker. The truth about it is in that folder, so it
survives a killed worker and a killed sweep. A plant's points go through compiled programs, a line of one file each.
"""

import collections
import contextlib
import io
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lqrlab.compute.files import PLANT_FILES
from lqrlab.workbench.runs import cluster, comparison, notebooks, pipeline, run_folder, session
from lqrlab.workbench.runs.run_folder import RUN, SWEEP, Status
from lqrlab.workbench.runs.sweep_plan import Plan, Point, Sweep, planned
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from distributed import Future

_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end


def sweep(asked: Sweep) -> Path:
    """Run a notebook, or design for a plant, at each point that has no result yet, and gather the results of all.

    Returns the sweep's folder: ``results.csv``, and ``runs/`` or ``numbers.jsonl``. A ``ValueError`` says what was
    refused: a parameter, an input that is missing, the folder; nothing was started.
    """
    plan = planned(asked)
    run_folder.refuse_foreign(plan.folder, plan.nb.path.parent if plan.nb else None, SWEEP)
    if asked.dry_run:
        print(f"{plan.name}: {len(plan.points)} points in {plan.folder}")
        for point in plan.points[:10]:
            print(f"  {point.given}")
        if len(plan.points) > 10:
            print(f"  and {len(plan.points) - 10} more")
        return plan.folder
    with contextlib.ExitStack() as held:
        held.enter_context(run_folder.hold(plan.folder))
        source = _source(plan) if plan.needs else None
        if source:
            with run_folder.hold(source):
                held.enter_context(run_folder.use(source))  # nobody rewrites it meanwhile
        progress = held.enter_context(Progress(even=plan.nb is None))
        _run(plan.reading(source), progress)
        progress.say(comparison.summary(plan.folder))
        progress.say(f"table: {plan.folder / 'results.csv'}")
        if asked.report:
            progress.say(f"report: {comparison.write(plan.folder)}")
    return plan.folder


def _source(plan: Plan) -> Path:
    """The folder of the run that the notebook reads from, with all that it needs there."""
    assert plan.nb is not None
    given, profile, folder = plan.asked.inputs, plan.profile, plan.nb.path.parent
    source = Path(given or folder.parent / "data" / "runs" / (profile or "default")).expanduser().resolve()
    missing = [name for name in plan.needs if not session.result_path(source, name).exists()]
    if missing and (given or profile is None):
        raise ValueError(
            f"{plan.name}: reads what {', '.join(plan.needs)} made, but {source} has no result of {missing[0]}; "
            "give --from RUN, the folder of a run that has"
        )
    if missing and profile:
        pipeline.run(profile, source, only=plan.needs, source=folder, report=False)
    return source


def _run(plan: Plan, progress: Progress) -> None:
    """Do what is missing; the sweep's record and table say how far that came."""
    record, begun = plan.folder / SWEEP, time.monotonic()
    run_folder.begin(
        record,
        notebook=str(plan.nb.path) if plan.nb else plan.name,
        title=plan.title,
        kind="notebook" if plan.nb else "plant",
        units=dict(plan.units),
        inputs=str(plan.source) if plan.source else None,
        profile=plan.profile,
        commit=run_folder.commit(plan.nb.path.parent if plan.nb else session.project()),
        runs=[{"run": p.name, "point": p.given, "fingerprint": p.fingerprint} for p in plan.points],
    )
    status: Status = "stopped"
    try:
        if plan.asked.fresh:
            _clear(plan)
        missing, total = plan.missing(), len(plan.points)
        what = f"{total} {'runs' if plan.nb else 'points'}, {total - len(missing)} finished before"
        progress.say(f"lqrlab sweep · {plan.name} · {what} → {plan.folder}")
        if missing:
            (_run_notebooks if plan.nb else _run_designs)(plan, missing, progress)
        status = "finished" if comparison.table(plan.folder)["status"].eq("finished").all() else "failed"
    finally:
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(record, status=status, ended=session.now(), seconds=seconds)
        comparison.save(plan.folder)


def _clear(plan: Plan) -> None:
    """Remove what earlier sweeps left at these points."""
    (plan.folder / comparison.NUMBERS).unlink(missing_ok=True)
    for point in plan.points if plan.nb else ():
        with run_folder.hold(plan.place(point)):
            run_folder.clear(plan.place(point))


def _run_designs(plan: Plan, missing: Sequence[Point], progress: Progress) -> None:
    """Compute the points of a plant and note each in the sweep's folder as it is known."""
    import jax

    from lqrlab import compute
    from lqrlab.workbench.runs import plant_designs

    compute.setup()
    batch, count = plant_designs.batch(plan.name, [point.given for point in missing]), 0
    progress.begin(plan.name, len(missing), "compiling")
    for known in plant_designs.designs(plan.name, batch):
        lines = [{"fingerprint": missing[i].fingerprint, **numbers} for i, numbers in known]
        comparison.add_numbers(plan.folder, lines)
        count += len(known)
        progress.step(count, "points")
    progress.end("✓", f"{count} points")
    run_folder.note(plan.folder / SWEEP, device=f"1 × {jax.devices()[0].platform}")


def _run_notebooks(plan: Plan, missing: Sequence[Point], progress: Progress) -> None:
    """Have workers do the runs, no more at a time than there are workers: one that dies takes its own run along alone.

    The sweep's table is written anew after each.
    """
    from distributed import as_completed

    asked, waiting, ended = plan.asked, list(missing), 0
    running: dict[Future, Point] = {}
    tries: collections.Counter[str] = collections.Counter()
    local = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(waiting))
    progress.begin(plan.name, len(waiting), "starting workers")
    with cluster.client(asked.scheduler, local) as client:
        futures = as_completed()

        def submit() -> None:
            slots = asked.workers or max(1, sum(client.nthreads().values())) if asked.scheduler else local
            while waiting and len(running) < slots:
                point = waiting.pop(0)
                future = client.submit(perform, plan, point, pure=False)
                running[future] = point
                futures.add(future)
            progress.step(ended, f"{len(running)} running, {len(waiting)} waiting")

        submit()
        for future in futures:
            point = running.pop(future)
            status, error = _outcome(plan, point, future)
            future.release()  # else the run is repeated when a later one takes the worker down
            tries[point.name] += 1
            if status in ("failed", "kernel died", "worker died") and tries[point.name] <= asked.retries:
                progress.say(f"↻ {point.name}  {status}: {error}; tried again")
                waiting.append(point)
            else:
                ended += 1
                mark = "✓" if status == "finished" else "✗"
                progress.say(f"{mark} {point.name}  " + (f"{status}: {error}" if error else status))
            comparison.save(plan.folder)
            submit()
    progress.end("✓", f"{ended} runs")


def _outcome(plan: Plan, point: Point, future: "Future") -> tuple[Status, str | None]:
    """Status and error of a run that ended: from its record or, where its worker died, from the worker."""
    record = plan.place(point) / RUN
    if run_folder.finished(plan.place(point), plan.name, point.fingerprint):  # even if its worker died afterwards
        run_folder.note(record, status="finished", error=None)
    elif future.status != "finished":
        problem = future.exception() if future.status == "error" else None
        died = problem is None or type(problem).__name__ == "KilledWorker"
        error = "its worker died" if died else f"{type(problem).__name__}: {problem}"
        record.parent.mkdir(parents=True, exist_ok=True)
        run_folder.note(record, status="worker died" if died else "failed", error=error, ended=session.now())
    found = run_folder.read(record)
    return found.get("status", "failed"), found.get("error")


def perform(plan: Plan, point: Point) -> None:
    """Do one run on a worker and leave the truth about it in its folder; it ends when the sweep does."""
    assert plan.nb is not None

    def unwanted() -> bool:  # after Ctrl-C: a worker of somebody's scheduler lives on
        return run_folder.read(plan.folder / SWEEP).get("status", "running") != "running"

    os.environ[PLANT_FILES] = plan.plants  # a worker of somebody's scheduler was not started from here
    if not plan.folder.is_dir():
        raise FileNotFoundError(f"{platform.node()} does not see {plan.folder}: a shared disk is needed")
    folder = plan.place(point)
    with run_folder.hold(folder, patience=_PATIENCE):
        if run_folder.finished(folder, plan.name, point.fingerprint):
            return
        if run_folder.read(folder / RUN).get("fingerprint") != point.fingerprint:
            run_folder.clear(folder)  # else an interrupted training resumes from its checkpoint
        if plan.fingerprint(point.values, notebooks.package_hash()) != point.fingerprint:
            raise ValueError("notebook, package or inputs were changed during the sweep; run the command again")
        for name in {Path(file).parts[0] for file in plan.files()}:
            link = folder / name
            if link.is_symlink():
                link.unlink()
            if not link.exists() and plan.source:
                link.symlink_to(plan.source / name)
        about: run_folder.Record = {
            "profile": plan.profile,
            "parameters": {plan.name: notebooks.without_run(point.values)},
            "commit": run_folder.commit(plan.nb.path.parent),
            "fingerprint": point.fingerprint,
        }
        with contextlib.suppress(pipeline.RunError):
            step = pipeline.Step(plan.nb, point.values, point.fingerprint)
            silent = Progress(io.StringIO())
            pipeline.execute([step], folder, about, silent, time_limit=plan.asked.time_limit, unwanted=unwanted)
