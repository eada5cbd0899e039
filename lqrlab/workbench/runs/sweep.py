"""One notebook, or one plant, at many points: those without a result are computed, one table compares all.

Each run of a notebook has a folder of its own and is a dask future. The truth about it is in that folder, so it
survives a killed worker and a killed sweep. A plant's points go through compiled programs, a line of one file each.
"""

import contextlib
import json
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lqrlab.compute.files import PLANT_FILES, read_rows, write_atomic
from lqrlab.workbench.runs import cluster, notebooks, pipeline, run_folder, session
from lqrlab.workbench.runs.notebooks import Values
from lqrlab.workbench.runs.run_folder import RUN, SWEEP, Record, Status
from lqrlab.workbench.runs.sweep_plan import Plan, Point, Sweep, planned
from lqrlab.workbench.runs.terminal import Progress

if TYPE_CHECKING:
    from distributed import Future
    from pandas import DataFrame

NUMBERS = "numbers.jsonl"
"""The numbers of each point of a sweep over a plant, a line each."""
_MOST_BYTES = 1 << 32  # ten million points
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
        print("\n".join(f"  {point.given}" for point in plan.points[:10]))
        return plan.folder
    with contextlib.ExitStack() as held:
        held.enter_context(run_folder.hold(plan.folder))
        source = _source(plan) if plan.needs else None
        if source:
            with run_folder.hold(source):
                held.enter_context(run_folder.use(source))  # nobody rewrites it meanwhile
        progress = held.enter_context(Progress(even=plan.nb is None))
        _run(plan.reading(source), progress)
        progress.say(summary(plan.folder))
        progress.say(f"table: {plan.folder / 'results.csv'}")
        if asked.report:
            from lqrlab.workbench.runs import report

            progress.say(f"report: {report.compare(plan.folder)}")
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
    status: Status = "stopped"
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
    try:
        if plan.asked.fresh:
            (plan.folder / NUMBERS).unlink(missing_ok=True)
            for point in plan.points if plan.nb else ():
                with run_folder.hold(plan.place(point)):
                    run_folder.clear(plan.place(point))
        # a plant's point that has no design has its answer, too
        done = table(plan.folder)["status"].isin(["finished"] if plan.nb else ["finished", "failed"])
        missing = [point for point, known in zip(plan.points, done) if not known]
        what = f"{len(done)} {'runs' if plan.nb else 'points'}, {done.sum()} finished before"
        progress.say(f"lqrlab sweep · {plan.name} · {what} → {plan.folder}")
        if missing:
            (_run_notebooks if plan.nb else _run_designs)(plan, missing, progress)
        status = "finished" if table(plan.folder)["status"].eq("finished").all() else "failed"
    finally:
        seconds = round(time.monotonic() - begun, 2)
        run_folder.note(record, status=status, ended=session.now(), seconds=seconds)
        save(plan.folder)


def _run_designs(plan: Plan, missing: Sequence[Point], progress: Progress) -> None:
    """Compute the points of a plant and note each in the sweep's folder as it is known."""
    import jax

    from lqrlab import compute
    from lqrlab.workbench.runs import plant_designs

    compute.setup()
    batch, count = plant_designs.batch(plan.name, [point.given for point in missing]), 0
    progress.begin(plan.name, len(missing), "compiling")
    for known in plant_designs.designs(plan.name, batch):
        add_numbers(plan.folder, [{"fingerprint": missing[i].fingerprint, **numbers} for i, numbers in known])
        count += len(known)
        progress.step(count, "points")
    progress.end("✓", f"{count} points")
    run_folder.note(plan.folder / SWEEP, device=f"1 × {jax.devices()[0].platform}")


def _run_notebooks(plan: Plan, missing: Sequence[Point], progress: Progress) -> None:
    """Have workers do the runs, each one at a time: one that dies takes its own run along alone.

    dask tries again what failed and what a worker took along. The sweep's table is written anew after each run.
    """
    from distributed import as_completed

    asked, plants = plan.asked, os.environ.get(PLANT_FILES, "")
    workers = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(missing))
    progress.begin(plan.name, len(missing), "starting workers")
    with cluster.client(asked.scheduler, workers, failures=asked.retries) as client:
        options = {"pure": False, "retries": asked.retries}
        futures = {client.submit(perform, plan, point, plants, **options): point for point in missing}
        progress.step(0, "running")
        for count, future in enumerate(as_completed(list(futures)), 1):
            point = futures.pop(future)  # else dask repeats it when a later one takes the worker down
            status, error = _outcome(plan, point, future)
            mark = "✓" if status == "finished" else "✗"
            progress.say(f"{mark} {point.name}  " + (f"{status}: {error}" if error else status))
            progress.step(count, "running")
            save(plan.folder)
    progress.end("✓", f"{len(missing)} runs")


def _outcome(plan: Plan, point: Point, future: "Future") -> tuple[Status, str | None]:
    """Status and error of a run that ended: from its record or, where its worker died, from the worker."""
    record = plan.place(point) / RUN
    problem = future.exception() if future.status == "error" else None
    if run_folder.finished(plan.place(point), plan.name, point.fingerprint):  # even if its worker died afterwards
        run_folder.note(record, status="finished", error=None)
    elif future.status != "finished" and not isinstance(problem, pipeline.RunError):  # which its record tells
        died = problem is None or type(problem).__name__ == "KilledWorker"
        error = "its worker died" if died else f"{type(problem).__name__}: {problem}"
        record.parent.mkdir(parents=True, exist_ok=True)
        run_folder.note(record, status="worker died" if died else "failed", error=error, ended=session.now())
    found = run_folder.read(record)
    return found.get("status", "failed"), found.get("error")


def perform(plan: Plan, point: Point, plants: str) -> None:
    """Do one run on a worker, with such files of plants, and leave the truth about it in its folder.

    It ends when the sweep does; raises a ``RunError`` where trying again may help.
    """
    assert plan.nb is not None

    limit = plan.asked.time_limit

    def ended() -> str:
        if limit is not None and time.monotonic() - begun >= limit:
            return f"TimeLimit: not finished after {limit:g} s"
        # after Ctrl-C: a worker of somebody's scheduler lives on
        status = run_folder.read(plan.folder / SWEEP).get("status", "running")
        return "Stopped: its sweep was stopped" if status != "running" else ""

    os.environ[PLANT_FILES] = plants  # a worker of somebody's scheduler was not started from here
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
        about: Record = {
            "profile": plan.profile,
            "parameters": {plan.name: notebooks.without_run(point.values)},
            "commit": run_folder.commit(plan.nb.path.parent),
            "fingerprint": point.fingerprint,
        }
        step = pipeline.Step(plan.nb, point.values, point.fingerprint)
        begun = time.monotonic()
        try:
            pipeline.execute([step], folder, about, lambda line: None, ended)
        except pipeline.RunError:
            if run_folder.read(folder / RUN)["status"] not in ("timed out", "stopped"):
                raise


# The table -------------------------------------------------------------------------------------------------


def add_numbers(folder: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Note the numbers of points, each with its fingerprint."""
    with (folder / NUMBERS).open("ab") as file:
        # the line before may have been cut short: it stays alone
        file.write(b"\n" + "".join(json.dumps(row) + "\n" for row in rows).encode())
        file.flush()
        os.fsync(file.fileno())


def read_numbers(folder: Path) -> dict[str, Values]:
    """Fingerprint of a point → its numbers, or its ``error``. A line that was cut short is none."""
    rows = read_rows(folder / NUMBERS, _MOST_BYTES)
    good = [row for row in rows if row and isinstance(row.get("fingerprint"), str)]
    return {row.pop("fingerprint"): row for row in good}


def table(folder: str | Path) -> "DataFrame":
    """One row a run: status, parameters, numbers, time taken, error; a ``ValueError`` if it is no sweep."""
    import pandas as pd

    folder = Path(folder)
    record = run_folder.read(folder / SWEEP)
    if not run_folder.recorded(folder / SWEEP):
        raise ValueError(f"{folder}: not the folder of a sweep, it has no {SWEEP}")
    known = read_numbers(folder) if record["kind"] == "plant" else {}
    rows = []
    for entry in record["runs"]:
        row = _of_run(folder, entry, record) if record["kind"] == "notebook" else _of_point(known, entry)
        rows.append({"run": entry["run"], "status": row.pop("status"), **entry["point"], **row})
    frame = pd.DataFrame(rows).infer_objects()
    last = [c for c in ("seconds", "device", "error") if c in frame]
    return frame[[c for c in frame if c not in last] + last]


def _of_point(known: Mapping[str, Values], entry: Record) -> Values:
    numbers = known.get(entry["fingerprint"])
    status = "not started" if numbers is None else "failed" if "error" in numbers else "finished"
    return {"status": status, "error": ""} | (numbers or {})


def _of_run(folder: Path, entry: Record, sweep: Record) -> Values:
    """Status and error of a run, and its numbers, its parameters left out, where it has a result."""
    import pandas as pd

    place, name = folder / "runs" / entry["run"], Path(sweep["notebook"]).stem
    run = run_folder.read(place / RUN)
    status, error = run.get("status", "not started"), run.get("error") or ""
    if run_folder.finished(place, name, entry["fingerprint"]):
        result = session.results(place, name)
        flat: Values = next(iter(pd.json_normalize(result["numbers"]).to_dict("records")), {})
        plain = {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in flat.items() if not isinstance(v, list)}
        plain = {k: v for k, v in plain.items() if k not in entry["point"]}
        about = {"seconds": result["seconds"], "device": result["device"]}
        return plain | about | {"status": "finished", "error": error}
    if run.get("fingerprint", entry["fingerprint"]) != entry["fingerprint"] or status == "finished":
        status, error = "not started", ""  # of other code or inputs, or its result is gone
    elif status == "running" and sweep.get("status") != "running":
        status = "stopped"
    return {"status": status, "error": error}


def save(folder: Path) -> None:
    """Write ``results.csv`` in one piece."""
    write_atomic(folder / "results.csv", table(folder).to_csv(index=False))


def axes(frame: "DataFrame", record: Record) -> tuple[list[str], list[str]]:
    """Names of the parameters that differ between the runs, and of the numbers that do."""
    given = list(dict.fromkeys(k for entry in record["runs"] for k in entry["point"]))
    rest = frame.select_dtypes("number").drop(columns=["seconds", *given], errors="ignore")
    numbers = [c for c in rest if rest[c].nunique() > (len(frame) > 1)]
    return [k for k in given if frame[k].astype(str).nunique() > 1], numbers


def spread(frame: "DataFrame", numbers: Sequence[str], units: Mapping[str, str]) -> "DataFrame":
    """Each number's unit, lowest, median, 95 % quantile and highest over all points."""
    # each is one of the values, so that inf among them does no harm
    made = frame[list(numbers)].quantile([0.0, 0.5, 0.95, 1.0], interpolation="higher").T
    made.columns = ["lowest", "median", "p95", "highest"]
    made.insert(0, "unit", [units.get(name, "") for name in numbers])
    return made


def summary(folder: Path) -> str:
    """The results as they fit on a terminal: each number's spread, or what differs between the runs."""
    frame, record = table(folder), run_folder.read(folder / SWEEP)
    if record["kind"] == "plant":
        return spread(frame, axes(frame, record)[1], record.get("units", {})).to_string(float_format="{:.4g}".format)
    kept = [c for c in frame.columns.difference(["run", "device", "error"], sort=False)]
    kept = [c for c in kept if c == "status" or frame[c].astype(str).nunique() > 1]
    width = shutil.get_terminal_size().columns
    return frame[kept].to_string(index=False, max_rows=40, na_rep="", float_format="{:.6g}".format, line_width=width)
