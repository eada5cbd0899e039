"""The runs of a sweep on dask workers: each executes the notebook in a folder of its own, which it holds.

The truth about a run is in its folder (its record, written by the worker, and the result that the notebook's last cell
wrote), so it survives a killed worker, a killed sweep and a lost connection. dask hands the runs out, also those whose
worker died; the worker that gets such a run reads from its record how often it has been tried.
"""

import collections
import contextlib
import dataclasses
import os
import platform
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lqrlab.compute.files import PLANT_FILES
from lqrlab.workbench.runs import cluster, comparison, notebooks, pipeline, run_folder, session
from lqrlab.workbench.runs.run_folder import Status
from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan
from lqrlab.workbench.runs.terminal import Progress, Task

if TYPE_CHECKING:
    from distributed import Future

TOPIC = "lqrlab-sweep"
_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end
_UNSTARTED = 5  # deaths of workers that dask forgives a run that has not even begun
_MARKS = {"finished": "✓", "stopped": "■"}


def missing(plan: SweepPlan, points: Sequence[Point]) -> list[Point]:
    """The points without a result."""
    return [p for p in points if not run_folder.finished(p.folder, plan.nb.name, p.fingerprint)]


def clear(plan: SweepPlan, points: Sequence[Point]) -> None:
    """Remove what earlier runs left at these points."""
    for point in points:
        with run_folder.hold(point.folder):
            run_folder.clear(point.folder)


def execute(plan: SweepPlan, points: Sequence[Point], progress: Progress) -> None:
    """Have workers do the runs, no more at a time than there are workers: one that dies takes its own run along alone.

    The sweep's table is written anew after each.
    """
    from distributed import as_completed

    asked, waiting, begun = plan.asked, list(points), time.monotonic()
    running: dict[Future, Point] = {}
    counts: collections.Counter[str] = collections.Counter()
    local = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(points))

    def show(event: tuple[float, dict[str, Any]]) -> None:
        content = event[1]
        if content["sweep"] == plan.id:  # a scheduler keeps what earlier sweeps sent
            if "say" in content:
                progress.say(content["say"])
            elif content["run"] in [point.name for point in list(running.values())]:
                progress.update(content["run"], *content["news"][0], **content["news"][1])

    with cluster.client(asked.scheduler, local, failures=asked.retries + _UNSTARTED) as client:
        progress.say(f"dashboard: {client.dashboard_link}")
        client.subscribe_topic(TOPIC, show)
        ended = as_completed()

        def submit() -> None:
            slots = asked.workers or max(1, sum(client.nthreads().values())) if asked.scheduler else local
            while waiting and len(running) < slots:
                point = waiting.pop(0)
                key = f"{point.name}-{uuid.uuid4().hex[:8]}"
                future = client.submit(perform, plan, point, key=key, pure=False)
                running[future] = point
                ended.add(future)
            words = {**counts, "running": len(running), "waiting": len(waiting)}
            pace = Task(counts.total(), len(points), begun=begun).pace
            progress.head = " · ".join(f"{number} {word}" for word, number in words.items()) + pace

        submit()
        for future in ended:
            point = running.pop(future)
            status = _status(plan, point, future)
            future.release()  # else the run is repeated when a later one takes the worker down
            counts[status] += 1
            error = run_folder.read(point.record).get("error")
            progress.close(point.name, _MARKS.get(status, "✗"), f"{status}: {error}" if error else status)
            comparison.save(plan.folder)
            submit()
    progress.head = ""


def _status(plan: SweepPlan, point: Point, future: "Future") -> Status:
    """How a run ended, from the worker or, where nothing came from there, from what it left."""
    if future.status == "finished":
        return future.result()
    if not missing(plan, [point]):
        return "finished"
    error = future.exception() if future.status == "error" else None
    died = error is None or type(error).__name__ == "KilledWorker"
    status: Status = "worker died" if died else "failed"
    words = "its worker died" if died else f"{type(error).__name__}: {error}"
    point.folder.mkdir(parents=True, exist_ok=True)
    run_folder.note(point.record, status=status, error=words, sweep=plan.id, ended=session.now())
    return status


class _Stopped(KeyboardInterrupt):
    """The sweep has ended: so must its runs."""


class _WorkerProgress(Progress):
    """Progress of a run, sent to whoever watches the sweep; about once a second it looks whether the sweep goes on."""

    def __init__(self, plan: SweepPlan, point: Point) -> None:
        super().__init__(steps=False)
        self.plan, self.name, self.looked = plan, point.name, time.monotonic()

    def say(self, text: str) -> None:
        """The sweep says itself how a run has ended."""

    def update(self, name: str, *news: Any, **more: Any) -> None:
        """Send what is new."""
        super().update(name, *news, **more)
        self.send(news=[list(news), more])
        if time.monotonic() - self.looked > 1.0:
            self.looked = time.monotonic()
            if run_folder.read(self.plan.folder / run_folder.SWEEP).get("sweep") != self.plan.id:
                raise _Stopped

    def send(self, **event: object) -> None:
        """Through dask; outside of a worker nobody watches."""
        import distributed

        with contextlib.suppress(ValueError):
            distributed.get_worker().log_event(TOPIC, {"sweep": self.plan.id, "run": self.name, **event})


def perform(plan: SweepPlan, point: Point) -> Status:
    """Do one run, if need be several times, and leave the truth about it in its folder; returns how it ended."""
    folder, record, tried = point.folder, point.record, 0
    os.environ[PLANT_FILES] = plan.plants  # a worker of somebody's scheduler was not started from here
    if not plan.folder.is_dir():
        raise FileNotFoundError(f"{platform.node()} does not see {plan.folder}: a shared disk is needed")
    with run_folder.hold(folder, patience=_PATIENCE):
        if not missing(plan, [point]):
            return "finished"
        before = run_folder.read(record)
        if before.get("sweep") == plan.id:  # dask hands out again what its worker died of
            tried = before.get("attempts", 0)
            if before.get("status") == "running":  # else it had ended before
                run_folder.note(record, status="worker died", error="its worker died", ended=session.now())
        elif before.get("fingerprint") != point.fingerprint:
            run_folder.clear(folder)  # else an interrupted training resumes from its checkpoint
        for attempt in range(tried + 1, plan.asked.retries + 2):
            progress, before = _WorkerProgress(plan, point), run_folder.read(record)
            if attempt > 1:
                progress.send(
                    say=f"↻ {point.name}  {before.get('status')}: {before.get('error')}; tried again"
                )
            with contextlib.suppress(pipeline.RunError, _Stopped):
                _attempt(plan, point, attempt, progress)
            if run_folder.read(record).get("status") in ("finished", "timed out", "stopped"):
                break
        return run_folder.read(record).get("status", "failed")


def _attempt(plan: SweepPlan, point: Point, number: int, progress: _WorkerProgress) -> None:
    nb, folder = notebooks.read(plan.nb.path), point.folder
    about: run_folder.Record = {
        "profile": plan.profile,
        "parameters": {nb.name: notebooks.without_run(point.values)},
        "commit": run_folder.commit(plan.project),
        "sweep": plan.id,
        "fingerprint": point.fingerprint,
        "attempts": number,
        "worker": f"{platform.node()}/{os.getpid()}",
    }
    now = dataclasses.replace(plan, nb=nb).fingerprint(point, notebooks.package_hash())
    if now != point.fingerprint:
        raise ValueError("notebook, package or inputs were changed during the sweep; repeat the command")
    for name, target in plan.links.items():
        link = folder / name
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(target)
    step = pipeline.Step(nb, point.values, point.fingerprint)
    pipeline.execute([step], folder, about, progress, plan.asked.time_limit)
