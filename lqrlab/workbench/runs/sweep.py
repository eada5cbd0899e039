"""One notebook at many points: those without a result are run, one table compares all.

Each run is a dask future. The truth about it is in its folder, and survives a killed worker and a killed sweep.
"""

import contextlib
import dataclasses
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from lqrlab.compute.files import PLANT_FILES, write_atomic
from lqrlab.installation import program
from lqrlab.workbench.runs import cluster, notebooks, pipeline, plant_copies, run_folder, session
from lqrlab.workbench.runs.notebooks import Values
from lqrlab.workbench.runs.run_folder import RUN, SWEEP, Record, RunError
from lqrlab.workbench.runs.sweep_plan import Plan, Sweep
from lqrlab.workbench.runs.terminal import cell, clock, say

TABLE = "results.csv"
SHOWN = 60  # rows on the terminal and on the page; all are in the table
_PATIENCE = 30.0  # seconds that a run waits for its folder: what a killed worker left is about to end


def sweep(plan: Plan) -> Path:
    """Run a notebook at each point that has no result yet; gather the results of all in the folder: ``results.csv``."""
    name, folder = plan.nb.name, plan.folder
    with contextlib.ExitStack() as held:
        held.enter_context(run_folder.hold(folder))
        plan = with_inputs(plan, held)
        runs = plan.runs(plan.points)
        about: Record = {"notebook": str(plan.nb.path), "title": plan.nb.title, "profile": plan.profile, "runs": runs}
        about |= {"inputs": str(plan.source) if plan.needs else None, "commit": run_folder.commit(plan.nb.path.parent)}
        with recorded(folder, plan.asked, about):
            held.callback(save, folder)  # with the runs that a Ctrl-C stopped
            done = save(folder)["status"].eq("finished")
            say(f"lqrlab sweep · {name} · {len(done)} runs, {done.sum()} finished before → {folder}")
            if missing := [run for run, known in zip(runs, done) if not known]:
                _run(plan, missing)
    return folder


def with_inputs(plan: Plan, held: contextlib.ExitStack) -> Plan:
    """The plan with the run that its notebook reads from, which nobody rewrites while ``held``."""
    given, folder = plan.asked.inputs, plan.nb.path.parent
    source = Path(given or folder.parent / "data" / "runs" / (plan.profile or "default")).expanduser().resolve()
    if missing := [name for name in plan.needs if not session.result_path(source, name).exists()]:
        if given or plan.profile is None:
            raise ValueError(
                f"{plan.nb.name}: reads what {', '.join(plan.needs)} made, but {source} has no result of {missing[0]}; "
                "give --from RUN, the folder of a run that has"
            )
        pipeline.run(plan.profile, source, only=plan.needs, source=folder, report=False)
    if plan.needs:
        with run_folder.hold(source):
            held.enter_context(run_folder.use(source))
    results = [session.results(source, name) for name in plan.needs]
    files = [file for result in results for file in result["files"]]
    if gone := [file for file in files if not (source / file).exists()]:
        raise ValueError(f"{source}: {gone[0]}, which {plan.nb.name} reads, is gone; {program()} run makes it again")
    inputs = [result["fingerprint"] or result["started"] for result in results]
    links = sorted({Path(file).parts[0] for file in files})
    return dataclasses.replace(plan, source=source, links=links, inputs=inputs)


def _run(plan: Plan, missing: Sequence[Record]) -> None:
    """Have workers do the runs, one at a time, and write the table after each; dask tries again what failed."""
    from distributed import KilledWorker, as_completed

    asked, plants = plan.asked, os.environ.get(PLANT_FILES, "")
    workers = min(asked.workers or max(1, (os.cpu_count() or 2) // 2), len(missing))
    with cluster.client(asked.scheduler, workers, failures=asked.retries) as client:
        options = {"pure": False, "retries": asked.retries}
        futures = {client.submit(perform, plan, run, plants, **options): run["run"] for run in missing}
        for count, future in enumerate(as_completed(list(futures)), 1):
            name = futures.pop(future)  # else dask repeats it when a later one takes the worker down
            problem, place = future.exception(), plan.folder / "runs" / name
            if problem is not None and not isinstance(problem, RunError):  # which its record does not say yet
                place.mkdir(parents=True, exist_ok=True)
                said: Record = {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}
                if isinstance(problem, KilledWorker):
                    said = {"status": "worker died", "error": "its worker died"}
                run_folder.note(place / RUN, ended=session.now(), **said)
            status, error = save(plan.folder).set_index("run").loc[name, ["status", "error"]]
            mark, why = "✓" if status == "finished" else "✗", f": {error}" if error else ""
            say(f"{mark} {count}/{len(missing)}  {name}  {status}{why}")


def perform(plan: Plan, run: Record, plants: str) -> None:
    """Do one run on a worker, until the sweep ends; a ``RunError`` where trying again may help."""
    limit, name, fingerprint = plan.asked.time_limit, plan.nb.name, run["fingerprint"]

    def ended() -> str:
        if limit is not None and time.monotonic() - begun >= limit:
            return f"TimeLimit: not finished after {limit:g} s"
        # after Ctrl-C: a worker of somebody's scheduler lives on
        status = run_folder.read(plan.folder / SWEEP).get("status", "running")
        return "Stopped: its sweep was stopped" if status != "running" else ""

    os.environ[PLANT_FILES] = plants  # a worker of somebody's scheduler was not started from here
    if not plan.folder.is_dir():
        raise FileNotFoundError(f"{platform.node()} does not see {plan.folder}: a shared disk is needed")
    folder = plan.folder / "runs" / run["run"]
    with run_folder.hold(folder, patience=_PATIENCE):
        if run_folder.finished(folder, name, fingerprint):
            return
        if run_folder.read(folder / RUN).get("fingerprint") != fingerprint:
            run_folder.clear(folder)  # else an interrupted training resumes from its checkpoint
        if plan.runs([run["point"]]) != [run]:
            raise ValueError("notebook or package were changed during the sweep; run the command again")
        for link in map(folder.joinpath, plan.links):
            if link.is_symlink():
                link.unlink()
            if not link.exists():
                link.symlink_to(plan.source / link.name)
        values = plan.common | run["point"]
        about: Record = {"profile": plan.profile, "parameters": {name: notebooks.without_run(values)}}
        about |= {"commit": run_folder.commit(plan.nb.path.parent), "fingerprint": fingerprint}
        from lqrlab.workbench.runs import execution  # and papermill: a second

        begun = time.monotonic()
        try:
            step = notebooks.Step(plan.nb, values, fingerprint)
            execution.execute([step], folder, about, lambda line: None, ended)
        except RunError:
            if run_folder.read(folder / RUN)["status"] not in ("timed out", "stopped"):
                raise


# The table -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recorded(folder: Path, asked: Sweep, about: Record) -> Iterator[None]:
    """Keep the record of a sweep whose folder is held; in the end say what its table holds, and write its page."""
    with run_folder.recording(folder / SWEEP, about) as end:
        yield
        end["status"] = "finished" if read(folder)["status"].eq("finished").all() else "failed"
    say(summary(folder))
    say(f"table: {folder / TABLE}")
    if asked.report:
        say(f"report: {compare(folder)}")


def save(folder: Path) -> pd.DataFrame:
    """Gather what the folders of the runs hold in the table: status, parameters, numbers, time taken, error."""
    record = run_folder.read(folder / SWEEP)
    frame = pd.DataFrame([_row(folder, entry, record) for entry in record["runs"]]).infer_objects()
    last = [c for c in ("seconds", "device", "error") if c in frame]
    frame = frame[[c for c in frame if c not in last] + last]
    write_atomic(folder / TABLE, frame.to_csv(index=False))
    return frame


def _row(folder: Path, entry: Record, sweep: Record) -> Values:
    """Status, parameters and error of a run; its numbers, its parameters left out, where it has a result."""
    place, name = folder / "runs" / entry["run"], Path(sweep["notebook"]).stem
    run, row = run_folder.read(place / RUN), {"run": entry["run"], "status": "finished", **entry["point"]}
    status, error = run.get("status", "not started"), run.get("error") or ""
    if run_folder.finished(place, name, entry["fingerprint"]):
        result = session.results(place, name)
        flat: Values = next(iter(pd.json_normalize(result["numbers"]).to_dict("records")), {})
        row |= {k: v for k, v in flat.items() if k not in row and not isinstance(v, list)}
        return row | {"seconds": result["seconds"], "device": result["device"], "error": ""}
    if run.get("fingerprint", entry["fingerprint"]) != entry["fingerprint"] or status == "finished":
        status, error = "not started", ""  # of other code or inputs, or its result is gone
    elif status == "running" and sweep.get("status") != "running":
        status = "stopped"
    return row | {"status": status, "error": error}


def read(folder: Path) -> pd.DataFrame:
    """The table as it was written last; a ``ValueError`` if the folder is no sweep's, or somebody's edits show."""
    record, there = run_folder.read(folder / SWEEP), run_folder.recorded(folder / SWEEP)
    points = [entry.get("point") if isinstance(entry, dict) else None for entry in (there and record.get("runs")) or ()]
    whole = all(map(record.get, ("runs", "notebook", "title", "started"))) and all(isinstance(a, dict) for a in points)
    if not there or not whole:
        raise ValueError(f"{folder}: not the folder of a sweep, it has no {SWEEP}{', or a damaged one' * there}")
    try:
        frame = pd.read_csv(folder / TABLE, dtype={"run": str, "error": str})
        return frame.fillna({"error": ""}).astype({"status": str})
    except (ValueError, KeyError) as error:
        made = "the same sweep makes it again"
        raise ValueError(f"{folder / TABLE}: not the table of a sweep ({error}); {made}") from None


def axes(frame: pd.DataFrame, record: Record) -> tuple[list[str], list[str]]:
    """Names of the parameters that differ between the runs, and of the numbers that do."""
    given = list(dict.fromkeys(k for entry in record["runs"] for k in entry["point"] if k in frame))
    rest = frame.select_dtypes("number").drop(columns=["seconds", *given], errors="ignore")
    numbers = [c for c in rest if rest[c].nunique() > (len(frame) > 1)]
    return [k for k in given if frame[k].astype(str).nunique() > 1], numbers


def spread(frame: pd.DataFrame, numbers: Sequence[str], units: Mapping[str, str]) -> pd.DataFrame:
    """Each number's unit, lowest, median, 95 % quantile and highest over all points."""
    # each is one of the values, so that inf among them does no harm
    made = frame[list(numbers)].quantile([0.0, 0.5, 0.95, 1.0], interpolation="higher").T
    made.columns = ["lowest", "median", "p95", "highest"]
    made.insert(0, "unit", [units.get(name, "") for name in numbers])
    return made


def summary(folder: Path) -> str:
    """The results as they fit on a terminal: what differs between the runs, or of many each number's spread."""
    frame, record = read(folder), run_folder.read(folder / SWEEP)
    varying, numbers = axes(frame, record)
    if len(frame) > SHOWN:
        return spread(frame, numbers, record.get("units", {})).to_string(float_format=cell)
    shown = frame[[c for c in ("status", *varying, *numbers, "seconds") if c in frame]]
    return shown.to_string(index=False, na_rep="", float_format=cell, line_width=shutil.get_terminal_size().columns)


def compare(folder: str | Path) -> Path:
    """Write ``<folder>/report/index.html``, the comparison of a sweep, and a report of each run that has none."""
    from lqrlab.workbench.runs import report  # and nbconvert: a second

    folder = Path(folder).resolve()
    frame, record = read(folder), run_folder.read(folder / SWEEP)
    varying, numbers = axes(frame, record)
    head = [c for c in ("status", *varying, *numbers[:8], "seconds") if c in frame]
    unit = {name: f" [{unit}]" for name, unit in record.get("units", {}).items() if unit not in ("", "1")}
    names = {name: name.replace("_", " ") + unit.get(name, "") for name in frame}
    over = spread(frame, numbers, record.get("units", {})).itertuples() if len(frame) > SHOWN else ()
    shown = frame.head(SHOWN).to_dict("records")
    return report.fill(
        folder / "report" / "index.html",
        "comparison.html.j2",
        title=f"Sweep of {record['title']}",
        name=folder.name,
        took=clock(record.get("seconds") or 0.0),
        points=frame["status"].value_counts().to_dict(),
        plants=plant_copies.names(record),
        figures=_figures(frame, varying[:6], numbers[:4], names),
        spread=[(name.replace("_", " "), *map(cell, row)) for name, *row in over],
        head=[names[name] for name in head],
        rows=[((_page(folder, r["run"]), str(i)), *(cell(r[c]) for c in head)) for i, r in enumerate(shown, 1)],
        more=len(frame) - len(shown),
        errors=frame[frame["error"] != ""].head(SHOWN)[["run", "status", "error"]].to_numpy().tolist(),
        versions=record["versions"],
        run=record,
    )


def _page(folder: Path, run: str) -> str | None:
    """The link to the report of a run; one that is missing or too old is written."""
    place = folder / "runs" / run
    page, executed = place / "report" / "index.html", [*(place / "notebooks").glob("[!.]*.ipynb")]
    if not executed:
        return None
    if not page.exists() or page.stat().st_mtime <= max(path.stat().st_mtime for path in executed):
        from lqrlab.workbench.runs import report

        report.write(place)
    return f"../runs/{run}/report/index.html"


def _figures(frame: pd.DataFrame, varying: list[str], numbers: list[str], names: Values) -> list[tuple[str, str]]:
    """For each number its values over the parameters that differ: PNG in base64, and the words that stand for it."""
    from lqrlab.workbench.figures import plots

    made = []
    for number in numbers if varying else ():
        finite = frame[frame[number].abs() < float("inf")].sort_values(number)
        if len(finite) < 2:
            continue
        figure, panels = plots.grid(len(varying), 3, 2.3, sharey=True)
        for axis, name in zip(panels, varying):
            values = finite[name] if finite[name].dtype.kind in "if" else finite[name].astype(str)
            axis.plot(values, finite[number], ".", color=plots.MAIN, alpha=0.5)
            axis.set(xlabel=names[name], ylabel=names[number] if axis is panels[0] else "")
        low, high = (f"{cell(float(row[number]))} at {row['run']}" for _, row in finite.iloc[[0, -1]].iterrows())
        words = f"{names[number]} of {len(finite)} runs over {', '.join(varying)}: lowest {low}, highest {high}"
        made.append((plots.png(figure, dpi=150), words))
    return made
