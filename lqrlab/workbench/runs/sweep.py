"""One notebook at many points, on dask.distributed: each run in a folder of its own, which it holds.

Points that need no notebook (a plant's parameters and weights, many seeds and learning rates of one training) go
through one compiled program instead, see :mod:`lqrlab.workbench.runs.sweep_batched`; which road is taken is said,
and why.

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

from lqrlab.workbench.runs import cluster, comparison, notebooks, pipeline, session, sweep_batched
from lqrlab.workbench.runs.sweep_points import effective, points
from lqrlab.workbench.runs.sweep_run import RECORD, TOPIC, done, note, perform, read
from lqrlab.workbench.runs.terminal import table


def sweep(
    target: str | Path,
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
    road: str = "auto",
    stream: TextIO | None = None,
) -> Path:
    """Run a notebook, or design for a plant, at each point that has no result yet, and gather the results of all.

    Args:
        target: path or name of a notebook; or the name of a plant, see ``sweep_batched.designs``.
        given, rows, num_random, seed: the points, see :func:`lqrlab.workbench.runs.sweep_points.points`.
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
        road: ``notebooks`` (each run a notebook, on dask), ``vmap`` (all in one program, where that can be) or
            ``auto``, which takes ``vmap`` for a plant and for 16 or more trainings side by side.
        stream: where progress is shown; standard output by default.

    Returns:
        The sweep's folder: ``results.csv``, ``results.parquet``, and ``runs/`` or ``numbers.jsonl``.

    Raises:
        ValueError: a parameter is not right, an input is missing, or another sweep holds the folder; nothing
            was started.
    """
    from lqrlab.workbench.runs.sweep_progress import Board

    nb = declared(target)
    path = nb.path
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {time_limit:g}")
    plant = nb.kind == "plant"
    if plant and (profile or inputs):
        raise ValueError(
            f"{'--profile' if profile else '--from'}: is for notebooks, but {nb.name} is a plant"
        )
    if not plant and profile is None and (path.parent / "profiles" / "quick.json").exists():
        profile = "quick"
    common = pipeline.read_profile(path.parent, profile).get(nb.name, {}) if profile else {}
    chosen = points(nb, given or {}, rows, num_random=num_random, seed=seed, profile=common)
    whole = [effective(nb, common, point) for point in chosen]
    asked = {"--workers": workers, "--scheduler": scheduler, "--time-limit": time_limit}
    mapped, why = _road(nb, road, whole, [name for name, value in asked.items() if value is not None])
    if plant:
        sweep_batched.plants(nb.name, chosen)  # refuses what is out of range
    home = path.parent.parent
    if plant:
        home = Path.cwd()  # unless there is a project
        with contextlib.suppress(ValueError):
            home = pipeline.find_source().parent
    folder = Path(folder).expanduser() if folder else home / "data" / "sweeps" / nb.name
    folder = folder.resolve()
    board = Board(stream)
    with contextlib.ExitStack() as held:
        held.enter_context(pipeline.hold(folder))
        needed = _needs(nb)
        source = _inputs(nb, needed, inputs, profile, board.stream) if needed else None
        if source:
            held.enter_context(pipeline.hold(source, shared=True))  # nobody rewrites it meanwhile
        links = _links(source, needed) if source else {}
        basis = [session.results(source, name).get("execution") for name in needed] if source else []
        sweep_id = uuid.uuid4().hex
        shared: dict[str, Any] = {
            "session": sweep_id,
            "notebook": str(path),
            "name": nb.name,
            "road": "vmap" if mapped else "notebooks",
            "inputs": basis,
            "links": links,
            "time_limit": time_limit,
            "retries": retries,
            "profile": profile,
            "commit": pipeline.commit(home),
        }
        jobs: list[dict[str, Any]] = []
        package = notebooks.package_hash()
        for number, (point, values) in enumerate(zip(chosen, whole), 1):
            place = folder / "runs" / (f"{number:05d}" if mapped else _called(point, values))
            fingerprint = notebooks.fingerprint(nb, values, basis, package)
            jobs.append(
                shared | {"folder": str(place), "point": point, "values": values, "fingerprint": fingerprint}
            )
        record = {
            "notebook": str(path),
            "title": nb.title,
            "road": shared["road"],
            "kind": nb.kind,
            "units": sweep_batched.units(nb.name) if plant else {},
            "inputs": str(source) if source else None,
            "profile": profile,
            "commit": shared["commit"],
            "versions": session.versions(),
            "started": session.now(),
            "status": "running",
            "session": sweep_id,
            "runs": [
                {k: job[k] for k in ("point", "fingerprint")} | {"run": Path(job["folder"]).name}
                for job in jobs
            ],
        }
        session.write_json(folder / RECORD, record)
        try:
            if fresh:
                (folder / sweep_batched.FILE).unlink(missing_ok=True)
                for job in jobs if not mapped else ():
                    with pipeline.hold(Path(job["folder"])):
                        pipeline.clear(Path(job["folder"]))
            known = sweep_batched.read(folder) if mapped else {}
            waiting = [j for j in jobs if (j["fingerprint"] not in known if mapped else not done(j))]
            there = len(jobs) - len(waiting)
            what = "points" if mapped else "runs"
            board.say(f"lqrlab sweep · {nb.name} · {len(jobs)} {what}, {there} finished before → {folder}")
            board.say(f"road: {shared['road']}: {why}")
            if waiting and mapped:
                record |= sweep_batched.conduct(nb, waiting, folder, source, board.stream)
            elif waiting:
                board.begin({Path(job["folder"]).name for job in waiting}, len(jobs), there)
                _conduct(waiting, folder, board, workers, scheduler)
            ended = comparison.table(folder)["status"].eq("finished").all()
            record["status"] = "finished" if ended else "incomplete"
        except BaseException:
            record["status"] = "stopped"
            raise
        finally:
            record |= {"ended": session.now(), "session": None}  # runs still under way see that and end
            session.write_json(folder / RECORD, record)
            board.close()
            frame = comparison.save(folder)
    head, spread = comparison.spread(frame, record)
    board.say(table(spread, head) if mapped else board.summary(frame))
    board.say(f"table: {folder / 'results.csv'} and .parquet")
    if report:
        board.say(f"report: {comparison.write(folder)}")
    return folder


def declared(target: str | Path) -> notebooks.Notebook:
    """The notebook of that path or name, or what can be set of the plant of that name."""
    try:
        path = find(target)
    except ValueError as error:  # there is no such notebook, or there are none at all
        from lqrlab import compute, systems

        compute.setup()
        if target not in systems.names():
            near = notebooks.near(str(target), systems.names())
            raise ValueError(f"{error}; nor is there a plant of this name{near}") from None
        return sweep_batched.declaration(str(target))
    return notebooks.read(path)


def _road(
    nb: notebooks.Notebook, road: str, values: Sequence[Mapping[str, Any]], asked: Sequence[str]
) -> tuple[bool, str]:
    """Whether all points go through one program, and the reason in words; ``asked`` is what only runs can have."""
    if nb.kind == "plant":
        if road == "notebooks" or asked:
            what = "--road notebooks" if road == "notebooks" else asked[0]
            raise ValueError(
                f"{what}: is for notebooks, but {nb.name} is a plant: one program does all points"
            )
        return True, "a plant's points need no notebook; all of them in compiled programs"
    varied = [k for k in nb.parameters if len({json.dumps(v[k]) for v in values}) > 1]
    why_not = sweep_batched.trainable(nb, values, varied)
    if road == "vmap":
        if why_not or asked:
            raise ValueError(f"--road vmap: {why_not or f'one program has no {asked[0]}'}")
        return True, "as asked for; one program, without a report and checkpoints of each run"
    if road == "notebooks":
        return False, "as asked for"
    if why_not or asked:
        return False, why_not or f"{asked[0]} is given"
    if len(values) < sweep_batched.MANY:
        return False, f"{len(values)} runs, each with a report and checkpoints; --road vmap is one program"
    return (
        True,
        f"only {' and '.join(varied)} differ; one program, without a report and checkpoints of each run",
    )


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
    missing = [name for name in needed if not session.result_path(source, name).exists()]
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
        for file in session.results(source, name)["files"]:
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
    note(place, status=status, error=said, session=job["session"], attempts=attempts, ended=session.now())
    return status
