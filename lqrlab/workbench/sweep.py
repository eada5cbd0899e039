"""One notebook at many points, on dask.distributed: each run in a folder of its own, which it holds.

The truth about a run is in its folder (``run.json``, written by whoever works on it, and the result that the
notebook's last cell wrote), so it survives a killed worker, a killed sweep and a lost connection; the table is
read from there. dask hands the runs out and tells of workers that died. On a cluster all workers must see the
sweep's folder and the notebooks under the same paths.
"""

import contextlib
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from lqrlab.workbench import cluster, comparison, notebooks, pipeline, stage
from lqrlab.workbench.points import effective, points
from lqrlab.workbench.trial import RECORD, TOPIC, done, note, perform, read


def sweep(
    notebook: str | Path,
    given: Mapping[str, str] | None = None,
    *,
    rows: Sequence[Mapping[str, Any]] = ({},),
    num_random: int | None = None,
    seed: int = 0,
    profile: str | None = None,
    inputs: str | Path | None = None,
    folder: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    time_limit: float | None = None,
    retries: int = 1,
    fresh: bool = False,
    report: bool = True,
    stream: TextIO | None = None,
) -> Path:
    """Run a notebook at each point that has no result yet, and gather the results of all.

    Args:
        notebook: path or name of a notebook.
        given, rows, num_random, seed: the points, see :func:`lqrlab.workbench.points.points`.
        profile: file of parameters that every run has; ``quick`` by default where there is one.
        inputs: folder of a run whose files the notebook reads (a data set, checkpoints). By default that of
            the profile, ``data/runs/<profile>``; what is missing there is made first.
        folder: of the sweep; ``data/sweeps/<notebook>`` in the project's folder by default.
        workers: runs at a time; by default half as many as there are cores, or all that a scheduler has.
        scheduler: address of a dask scheduler; by default a cluster of processes on this machine.
        time_limit: of each run [s].
        retries: how often a run is tried again that raised, or whose kernel or worker died.
        fresh: remove what earlier runs left at these points.
        report: write ``<folder>/report/index.html`` and a report of each run.
        stream: where progress is shown; standard output by default.

    Returns:
        The sweep's folder: ``results.csv``, ``results.parquet``, ``runs/``.

    Raises:
        ValueError: a parameter is not right, an input is missing, or another sweep holds the folder; nothing
            was started.
    """
    from lqrlab.workbench.board import Board

    path = find(notebook)
    nb = notebooks.read(path)
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {time_limit:g}")
    if profile is None and (path.parent / "profiles" / "quick.json").exists():
        profile = "quick"
    common = pipeline.read_profile(path.parent, profile).get(nb.name, {}) if profile else {}
    chosen = points(nb, given or {}, rows, num_random=num_random, seed=seed, profile=common)
    folder = Path(folder).expanduser() if folder else path.parent.parent / "data" / "sweeps" / nb.name
    folder = folder.resolve()
    board = Board(stream)
    with contextlib.ExitStack() as held:
        held.enter_context(pipeline.hold(folder))
        needed = _needs(nb)
        source = _inputs(nb, needed, inputs, profile, board.stream) if needed else None
        if source:
            held.enter_context(pipeline.hold(source, shared=True))  # nobody rewrites it meanwhile
        links = _links(source, needed) if source else {}
        basis = [stage.results(source, name).get("execution") for name in needed] if source else []
        session = uuid.uuid4().hex
        shared: dict[str, Any] = {
            "session": session,
            "notebook": str(path),
            "inputs": basis,
            "links": links,
            "time_limit": time_limit,
            "retries": retries,
            "profile": profile,
            "commit": pipeline.commit(path.parent),
        }
        jobs: list[dict[str, Any]] = []
        for point in chosen:
            values = effective(nb, common, point)
            place = folder / "runs" / _called(point, values)
            fingerprint = notebooks.fingerprint(nb, values, basis)
            jobs.append(
                shared | {"folder": str(place), "point": point, "values": values, "fingerprint": fingerprint}
            )
        record = {
            "notebook": str(path),
            "title": nb.title,
            "inputs": str(source) if source else None,
            "profile": profile,
            "commit": shared["commit"],
            "versions": stage.versions(),
            "started": stage.now(),
            "status": "running",
            "session": session,
            "runs": [
                {k: job[k] for k in ("point", "fingerprint")} | {"run": Path(job["folder"]).name}
                for job in jobs
            ],
        }
        stage.write_json(folder / RECORD, record)
        try:
            if fresh:
                for job in jobs:
                    with pipeline.hold(Path(job["folder"])):
                        pipeline.clear(Path(job["folder"]))
            waiting = [job for job in jobs if not done(job)]
            there = len(jobs) - len(waiting)
            board.say(f"lqrlab sweep · {nb.name} · {len(jobs)} runs, {there} finished before → {folder}")
            if waiting:
                board.begin({Path(job["folder"]).name for job in waiting}, len(jobs), there)
                _conduct(waiting, folder, board, workers, scheduler)
            record["status"] = "finished" if all(done(job) for job in jobs) else "incomplete"
        except BaseException:
            record["status"] = "stopped"
            raise
        finally:
            record |= {"ended": stage.now(), "session": None}  # runs still under way see that and end
            stage.write_json(folder / RECORD, record)
            board.close()
            frame = comparison.save(folder)
    board.say(board.summary(frame))
    board.say(f"table: {folder / 'results.csv'} and .parquet")
    if report:
        board.say(f"report: {comparison.write(folder)}")
    return folder


def find(notebook: str | Path) -> Path:
    """The file of a notebook that is named by its path, or as it stands in the project's folder."""
    path = Path(notebook).expanduser()
    if path.suffix == ".ipynb" and path.exists():
        return path.resolve()
    return notebooks.named(pipeline.find_source(), [str(notebook)])[0].path


# What a notebook reads ----------------------------------------------------------------------------------


def _needs(nb: notebooks.Notebook) -> list[str]:
    """Names of the notebooks whose files it reads: as its metadata say, else those of the main job before it."""
    before = [p.stem for p in sorted(nb.path.parent.glob("0[0-9]_*.ipynb")) if p.stem < nb.name]
    return nb.metadata.get("lqrlab", {}).get("needs", before if re.match("0[0-9]_", nb.name) else [])


def _inputs(
    nb: notebooks.Notebook,
    needed: Sequence[str],
    inputs: str | Path | None,
    profile: str | None,
    stream: TextIO,
) -> Path:
    """The folder of the run that the notebook reads from, with all that it needs there."""
    default = nb.path.parent.parent / "data" / "runs" / (profile or "default")
    source = (Path(inputs).expanduser() if inputs else default).resolve()
    missing = [name for name in needed if not stage.result_path(source, name).exists()]
    if missing and (inputs or profile is None):
        raise ValueError(
            f"{nb.name}: reads what {', '.join(needed)} made, but {source} has no result of {missing[0]}; "
            "give --from RUN, the folder of a run that has"
        )
    if missing:
        pipeline.run(str(profile), source, only=needed, source=nb.path.parent, report=False, stream=stream)
    return source


def _links(source: Path, needed: Sequence[str]) -> dict[str, str]:
    """What stands for the needed notebooks' files in each run's folder: name → path, linked, not copied."""
    links = {}
    for name in needed:
        for file in stage.results(source, name)["files"]:
            top = Path(file).parts[0]
            if not (source / file).exists():
                raise ValueError(f"{source}: {file}, made by {name}, is gone; lqrlab run makes it again")
            links[top] = str(source / top)
    return links


def _called(point: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """A run's name: what it sets, as a person reads it, and a hash of all its parameters."""
    given = {k: v for k, v in values.items() if k != "run"}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:6]
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    return f"{readable or 'defaults'}-{digest}"


# Here, with the workers at work -------------------------------------------------------------------------


def _conduct(
    jobs: list[dict[str, Any]], folder: Path, board: Any, workers: int | None, scheduler: str | None
) -> None:
    """Hand out the jobs, no more at a time than there are workers: who dies takes one run along, its own."""
    # a run whose worker died comes back to us, who count and decide
    waiting = list(jobs)
    running: dict[Any, dict[str, Any]] = {}
    local = workers or max(1, (os.cpu_count() or 2) // 2)
    slots, counted = 0, 0.0
    with cluster.client(scheduler, min(local, len(jobs))) as client:
        board.say(f"dashboard: {client.dashboard_link}")
        client.subscribe_topic(TOPIC, lambda event: board.tell(event[1]))
        while waiting or running:
            if waiting and time.monotonic() - counted > 0.5:  # workers come and go
                slots, counted = sum(client.nthreads().values()), time.monotonic()
                slots = min(slots, workers) if scheduler and workers else slots
            while waiting and len(running) < slots:
                job = waiting.pop(0)
                key = f"{Path(job['folder']).name}-{uuid.uuid4().hex[:8]}"
                running[client.submit(perform, job, key=key, pure=False)] = job
            time.sleep(0.05)
            board.draw()
            for future in [f for f in running if f.done()]:
                job = running.pop(future)
                status = _settle(job, future)
                again = (
                    status not in ("finished", "over time", "stopped") and _attempts(job) <= job["retries"]
                )
                board.settle(Path(job["folder"]).name, read(Path(job["folder"])), again)
                if again:
                    waiting.insert(0, job)
                else:
                    comparison.save(folder)


def _attempts(job: Mapping[str, Any]) -> int:
    record = read(Path(job["folder"]))
    return record.get("attempts", 0) if record.get("session") == job["session"] else 0


def _settle(job: dict[str, Any], future: Any) -> str:
    """How a run ended, from the worker or, where that is lost, from what it left."""
    place = Path(job["folder"])
    if future.status == "finished":
        return future.result()
    if done(job):
        return "finished"
    error = future.exception() if future.status == "error" else None
    lost = type(error).__name__ == "KilledWorker" or error is None
    record = read(place)
    begun = record.get("session") == job["session"] and record.get("status") == "running"
    if lost and not begun and job.setdefault("unlucky", 0) < 5:  # it died before this run began
        job["unlucky"] += 1
        return "worker lost"
    said = "its worker died" if lost else f"{type(error).__name__}: {error}"
    attempts = max(_attempts(job), 1) if lost else job["retries"] + 1  # a held or unseen folder stays so
    status = "worker lost" if lost else "failed"
    note(place, status=status, error=said, session=job["session"], attempts=attempts, ended=stage.now())
    return status
