"""The runs of a sweep on dask workers: each executes the notebook in a folder of its own, which it holds.

The truth about a run is in its folder (its record, written by the worker, and the result that the notebook's last cell
wrote), so it survives a killed worker, a killed sweep and a lost connection. dask hands the runs out, also those whose
worker died; the worker that gets such a run reads from its record how often it has been tried.
"""

import collections
import contextlib
import itertools
import os
import platform
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lqrlab.workbench.runs import cluster, comparison, execution, fingerprints, notebooks, run_folder, session
from lqrlab.workbench.runs.run_folder import Status
from lqrlab.workbench.runs.sweep_plan import Point, SweepPlan
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from distributed import Future

TOPIC = "lqrlab-sweep"
_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end
_UNSTARTED = 5  # deaths of workers that dask forgives a run that has not even begun
_MARKS = {"finished": "✓", "stopped": "■"}
_STATUS: dict[str, Status] = {execution.TIME_LIMIT: "timed out", "DeadKernelError": "kernel died"}


def missing(plan: SweepPlan, points: Sequence[Point]) -> list[Point]:
    """The points without a result."""
    return [p for p in points if not run_folder.finished(_folder(plan, p), plan.nb.name, p.fingerprint)]


def clear(plan: SweepPlan, points: Sequence[Point]) -> None:
    """Remove what earlier runs left at these points."""
    for folder in (_folder(plan, point) for point in points):
        with run_folder.hold(folder):
            run_folder.clear(folder)


def execute(plan: SweepPlan, points: Sequence[Point], progress: Progress) -> None:
    """Have workers do the runs; the sweep's table is written anew after each."""
    from distributed import as_completed

    asked, running = plan.asked, set[str]()
    counts = collections.Counter(waiting=len(points))
    local = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(points))

    def show(event: tuple[float, dict[str, Any]]) -> None:
        sweep, name, news = (event[1][key] for key in ("sweep", "run", "news"))
        if sweep == plan.id and name in running:  # a scheduler keeps what earlier sweeps told
            progress.say(news["say"]) if "say" in news else progress.update(name, **news)

    with cluster.client(asked.scheduler, local, failures=asked.retries + _UNSTARTED) as client:
        progress.say(f"dashboard: {client.dashboard_link}")
        client.subscribe_topic(TOPIC, show)
        queue, points_of, ended = iter(points), {}, as_completed()

        def submit(most: int | None) -> None:
            for point in itertools.islice(queue, most):
                key = f"{point.name}-{uuid.uuid4().hex[:8]}"
                future = client.submit(perform, plan, point, key=key, pure=False)
                points_of[future] = point
                running.add(point.name)
                ended.add(future)

        submit(asked.workers if asked.scheduler else None)
        for future in ended:
            point = points_of.pop(future)
            status = _status(plan, point, future)
            running.discard(point.name)
            counts.update({status: 1, "waiting": -1})
            progress.head = " · ".join(f"{n} {word}" for word, n in counts.items() if n)
            error = run_folder.read(_record(plan, point)).get("error")
            progress.close(point.name, _MARKS.get(status, "✗"), f"{status}: {error}" if error else status)
            comparison.save(plan.folder)
            submit(1)


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
    _folder(plan, point).mkdir(parents=True, exist_ok=True)
    run_folder.note(_record(plan, point), status=status, error=words, sweep=plan.id, ended=session.now())
    return status


def _folder(plan: SweepPlan, point: Point) -> Path:
    return plan.folder / "runs" / point.name


def _record(plan: SweepPlan, point: Point) -> Path:
    return _folder(plan, point) / run_folder.RUN


def _attempts(plan: SweepPlan, point: Point) -> int:
    """How often this sweep has tried a run."""
    record = run_folder.read(_record(plan, point))
    return record.get("attempts", 0) if record.get("sweep") == plan.id else 0


# On the worker ------------------------------------------------------------------------------------------


class _Stopped(BaseException):
    """The sweep has ended: so must its runs."""


def perform(plan: SweepPlan, point: Point) -> Status:
    """Do one run, if need be several times, and leave the truth about it in its folder; returns how it ended."""
    folder, record = _folder(plan, point), _record(plan, point)
    if not plan.folder.is_dir():
        raise FileNotFoundError(f"{platform.node()} does not see {plan.folder}: a shared disk is needed")
    status: Status = "worker died"
    with run_folder.hold(folder, patience=_PATIENCE):
        if not missing(plan, [point]):
            return "finished"
        if _attempts(plan, point):  # dask hands out again what its worker died of
            run_folder.note(record, status=status, error="its worker died", ended=session.now())
        while status not in ("finished", "timed out", "stopped"):
            tried = _attempts(plan, point)
            if tried > plan.asked.retries:
                break
            if tried:
                error = run_folder.read(record).get("error")
                _tell(plan, point, say=f"↻ {point.name}  {status}: {error}; tried again")
            status = _attempt(plan, point, tried + 1)
    return status


def _attempt(plan: SweepPlan, point: Point, number: int) -> Status:
    """Execute the notebook once, and keep the run's record."""
    folder, record = _folder(plan, point), _record(plan, point)
    if run_folder.read(record).get("fingerprint") != point.fingerprint:
        run_folder.clear(folder)  # else an interrupted training resumes from its checkpoint
    run_folder.begin(
        record,
        profile=plan.profile,
        parameters={plan.nb.name: {k: v for k, v in point.values.items() if k != "run"}},
        commit=run_folder.commit(plan.project),
        sweep=plan.id,
        fingerprint=point.fingerprint,
        attempts=number,
        worker=f"{platform.node()}/{os.getpid()}",
    )
    begun = time.monotonic()
    status: Status = "stopped"
    error: str | None = "the sweep was stopped"
    try:
        _execute(plan, point)
        status, error = "finished", None
    except execution.CellError as problem:
        error = problem.error
        status = _STATUS.get(error.partition(":")[0], "failed")
    except _Stopped:
        pass
    finally:
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(record, status=status, error=error, ended=session.now(), seconds=seconds)
    return status


def _execute(plan: SweepPlan, point: Point) -> None:
    nb, folder = notebooks.read(plan.nb.path), _folder(plan, point)
    if fingerprints.fingerprint(nb, point.values, plan.inputs) != point.fingerprint:
        raise execution.CellError(
            "the notebook or the package was edited during the sweep; repeat the command"
        )
    for name, target in plan.links.items():
        link = folder / name
        if link.is_symlink():
            link.unlink()
        if not link.exists():
            link.symlink_to(target)
    steps, looked = nb.steps, time.monotonic()
    _tell(plan, point, step=0, total=len(steps), title="starting Python")

    def on_event(event: execution.Event) -> None:
        nonlocal looked
        if "cell" in event:
            _tell(plan, point, step=event["cell"], title=steps[event["cell"] - 1])
        elif "note" in event:
            _tell(plan, point, note=event["note"])
        if time.monotonic() - looked > 1.0:
            looked = time.monotonic()
            if run_folder.read(plan.folder / run_folder.SWEEP).get("sweep") != plan.id:
                raise _Stopped

    limit = plan.asked.time_limit
    execution.execute(nb, folder, point.values, point.fingerprint, on_event=on_event, time_limit=limit)


def _tell(plan: SweepPlan, point: Point, **news: object) -> None:
    """Send news of a run to whoever watches; outside of a worker nobody does."""
    import distributed

    with contextlib.suppress(ValueError):
        distributed.get_worker().log_event(TOPIC, {"sweep": plan.id, "run": point.name, "news": news})
