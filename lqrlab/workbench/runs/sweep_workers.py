"""The runs of a sweep on dask workers: each executes the notebook in a folder of its own, which it holds.

The truth about a run is in its folder (its record, and the result that the notebook's last cell wrote), so it survives
a killed worker, a killed sweep and a lost connection.
"""

import collections
import contextlib
import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lqrlab.compute.files import PLANT_FILES
from lqrlab.workbench.runs import cluster, comparison, notebooks, pipeline, run_folder, session
from lqrlab.workbench.runs.run_folder import Status
from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from distributed import Future

_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end
_UNSTARTED = 5  # times that a worker may die before it begins a run
_AGAIN: tuple[Status, ...] = ("failed", "kernel died", "worker died")


def missing(plan: SweepPlan) -> list[Point]:
    """The points without a result."""
    return [p for p in plan.points if not run_folder.finished(p.folder, plan.name, p.fingerprint)]


def clear(plan: SweepPlan) -> None:
    """Remove what earlier runs left."""
    for point in plan.points:
        with run_folder.hold(point.folder):
            run_folder.clear(point.folder)


def execute(plan: SweepPlan, points: Sequence[Point], progress: Progress) -> None:
    """Have workers do the runs, no more at a time than there are workers: one that dies takes its own run along alone.

    The sweep's table is written anew after each.
    """
    from distributed import as_completed

    asked, waiting, ended = plan.asked, list(points), 0
    running: dict[Future, Point] = {}
    tries: collections.Counter[str] = collections.Counter()
    deaths: collections.Counter[str] = collections.Counter()
    local = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(points))
    progress.begin(plan.name, len(points), "starting workers")
    with cluster.client(asked.scheduler, local) as client:
        futures = as_completed()

        def submit() -> None:
            slots = asked.workers or max(1, sum(client.nthreads().values())) if asked.scheduler else local
            while waiting and len(running) < slots:
                point = waiting.pop(0)
                point.folder.mkdir(parents=True, exist_ok=True)
                run_folder.note(point.record, status="not started")
                future = client.submit(perform, plan, point, pure=False)
                running[future] = point
                futures.add(future)
            progress.step(ended, f"{len(running)} running, {len(waiting)} waiting")

        submit()
        for future in futures:
            point = running.pop(future)
            status = _status(plan, point, future)
            future.release()  # else the run is repeated when a later one takes the worker down
            error = run_folder.read(point.record).get("error")
            unstarted = status == "not started"  # its worker died of another run, or while it began
            tries[point.name] += not unstarted
            deaths[point.name] += unstarted
            if unstarted and deaths[point.name] > _UNSTARTED:
                status, error = ("worker died", f"its worker died {deaths[point.name]} times before the run began")
                run_folder.note(point.record, status=status, error=error, ended=session.now())
                unstarted = False
                tries[point.name] = asked.retries + 1
            if unstarted or (status in _AGAIN and tries[point.name] <= asked.retries):
                progress.say(f"↻ {point.name}  {status}: {error}; tried again")
                waiting.append(point)
            else:
                ended += 1
                mark = "✓" if status == "finished" else "✗"
                progress.say(f"{mark} {point.name}  " + (f"{status}: {error}" if error else status))
            comparison.save(plan.folder)
            submit()
    progress.end("✓" if ended == len(points) else "■", f"{ended} runs")


def _status(plan: SweepPlan, point: Point, future: "Future") -> Status:
    """Status in which a run ended: from its record or, where its worker died, from the worker."""
    error = future.exception() if future.status == "error" else None
    if run_folder.finished(point.folder, plan.name, point.fingerprint):  # even if its worker died afterwards
        run_folder.note(point.record, status="finished", error=None)
        return "finished"
    if future.status == "finished":
        return run_folder.read(point.record).get("status", "failed")
    died = error is None or type(error).__name__ == "KilledWorker"
    if died and run_folder.read(point.record).get("status") == "not started":
        return "not started"
    status: Status = "worker died" if died else "failed"
    words = "its worker died" if died else f"{type(error).__name__}: {error}"
    run_folder.note(point.record, status=status, error=words, ended=session.now())
    return status


def perform(plan: SweepPlan, point: Point) -> None:
    """Do one run and leave the truth about it in its folder; it ends when the record says that the sweep did."""
    assert plan.nb is not None

    def unwanted() -> bool:  # after Ctrl-C: a worker of somebody's scheduler lives on
        return run_folder.read(plan.folder / run_folder.SWEEP).get("status", "running") != "running"

    os.environ[PLANT_FILES] = plan.plants  # a worker of somebody's scheduler was not started from here
    if not plan.folder.is_dir():
        raise FileNotFoundError(f"{platform.node()} does not see {plan.folder}: a shared disk is needed")
    with run_folder.hold(point.folder, patience=_PATIENCE):
        if run_folder.finished(point.folder, plan.name, point.fingerprint):
            return run_folder.note(point.record, status="finished", error=None)
        if run_folder.read(point.record).get("fingerprint") != point.fingerprint:
            run_folder.clear(point.folder)  # else an interrupted training resumes from its checkpoint
        if plan.fingerprint(point.values, notebooks.package_hash()) != point.fingerprint:
            raise ValueError("notebook, package or inputs were changed during the sweep; run the command again")
        for name, target in plan.links.items():
            link = point.folder / name
            if link.is_symlink():
                link.unlink()
            if not link.exists():
                link.symlink_to(target)
        about: run_folder.Record = {
            "profile": plan.profile,
            "parameters": {plan.name: notebooks.without_run(point.values)},
            "commit": run_folder.commit(plan.nb.path.parent),
            "fingerprint": point.fingerprint,
        }
        with contextlib.suppress(pipeline.RunError):
            step = pipeline.Step(plan.nb, point.values, point.fingerprint)
            limit = plan.asked.time_limit
            pipeline.execute([step], point.folder, about, time_limit=limit, unwanted=unwanted)
    return None
