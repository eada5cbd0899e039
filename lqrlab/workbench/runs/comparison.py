"""The runs of a sweep side by side: one table, one page that is complete in itself."""

import base64
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lqrlab.compute.files import read_rows, write_atomic
from lqrlab.workbench.runs import plant_copies, run_folder, session
from lqrlab.workbench.runs.notebooks import Values
from lqrlab.workbench.runs.run_folder import RUN, SWEEP, Record
from lqrlab.workbench.runs.terminal import cell, clock

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = "numbers.jsonl"
"""The numbers of each point of a sweep over a plant, a line each."""
_SHOWN = 60  # rows on the page; all are in results.csv
_LAST = ("seconds", "device", "error")
_MOST_BYTES = 1 << 32  # ten million points


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
    if record["kind"] == "plant":
        known = read_numbers(folder)
        return pd.DataFrame([_point_row(entry, known.get(entry["fingerprint"])) for entry in record["runs"]])
    frame = pd.DataFrame([_run_row(folder, entry, record) for entry in record["runs"]]).infer_objects()
    last = [c for c in _LAST if c in frame]
    return frame[[c for c in frame if c not in last] + last]


def _point_row(entry: Record, known: Values | None) -> Values:
    status = "not started" if known is None else "failed" if "error" in known else "finished"
    numbers = dict(known or {})
    error = numbers.pop("error", "")
    return {"run": entry["run"], "status": status, **entry["point"], **numbers, "error": error}


def _run_row(folder: Path, entry: Record, sweep: Record) -> Values:
    import pandas as pd

    place, name = folder / "runs" / entry["run"], Path(sweep["notebook"]).stem
    run = run_folder.read(place / RUN)
    row: Values = {"run": entry["run"], "status": run.get("status", "not started"), **entry["point"]}
    if run_folder.finished(place, name, entry["fingerprint"]):
        result = session.results(place, name)
        flat = next(iter(pd.json_normalize(result["numbers"]).to_dict("records")), {})
        plain = {k: float(v) if v in ("inf", "-inf", "nan") else v for k, v in flat.items() if not isinstance(v, list)}
        row = plain | row | {"status": "finished", "seconds": result["seconds"], "device": result["device"]}
        row = {key: row[key] for key in ("run", "status", *entry["point"], *row)}
    elif run.get("fingerprint", entry["fingerprint"]) != entry["fingerprint"] or row["status"] == "finished":
        row["status"], run = "not started", {}  # of other code or inputs, or its result is gone
    elif row["status"] == "running" and sweep.get("status") != "running":
        row["status"] = "stopped"
    return row | {"error": run.get("error") or ""}


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


def write(folder: str | Path) -> Path:
    """Write ``<folder>/report/index.html``, the comparison of a sweep's runs, and a report of each that has none."""
    from lqrlab.workbench.runs import report

    folder = Path(folder).resolve()
    frame, record = table(folder), run_folder.read(folder / SWEEP)
    plant, (varying, numbers) = record["kind"] == "plant", axes(frame, record)
    shown = [c for c in ("status", *varying, *numbers[:8], "seconds") if c in frame]
    rows, head = frame.to_dict("records"), spread(frame, numbers, record.get("units", {})) if plant else None
    facts = [
        ("Plant" if plant else "Notebook", Path(record["notebook"]).stem),
        ("Points" if plant else "Runs", ", ".join(f"{n} {s}" for s, n in frame["status"].value_counts().items())),
        ("Profile", record.get("profile")),
        ("Reads from", record.get("inputs")),
        ("Plants of", ", ".join(plant_copies.names(record))),
        ("Started", record["started"].replace("T", " ")[:16]),
        ("Took", clock(record.get("seconds") or 0.0)),
        ("Device", record.get("device")),
        ("Commit", record.get("commit")),
    ]
    return report.fill(
        folder / "report" / "index.html",
        "comparison.html.j2",
        title=f"Sweep of {record['title']}",
        name=folder.name,
        facts=[(name, value) for name, value in facts if value],
        figures=_figures(frame, varying[:6], numbers[:4]),
        spread=None if head is None else [(name, *map(cell, row)) for name, *row in head.itertuples()],
        head=shown,
        rows=[
            ((None if plant else _page(folder, row["run"]), str(i)), *(cell(row[c]) for c in shown))
            for i, row in enumerate(rows[:_SHOWN], 1)
        ],
        more=max(len(rows) - _SHOWN, 0),
        errors=[(row["run"], row["status"], row["error"]) for row in rows if row["error"]][:_SHOWN],
        versions=record["versions"],
        run=record,
    )


def _page(folder: Path, run: str) -> str | None:
    """The link to the report of a run; one that is missing or too old is written."""
    from lqrlab.workbench.runs import report

    place = folder / "runs" / run
    page, executed = place / "report" / "index.html", [*(place / "notebooks").glob("[!.]*.ipynb")]
    if not executed:
        return None
    if not page.exists() or page.stat().st_mtime <= max(path.stat().st_mtime for path in executed):
        report.write(place)
    return f"../runs/{run}/report/index.html"


def _figures(frame: "DataFrame", varying: Sequence[str], numbers: Sequence[str]) -> list[tuple[str, str]]:
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
            axis.set(xlabel=name, ylabel=number if axis is panels[0] else "")
        low, high = (f"{cell(float(row[number]))} at {row['run']}" for _, row in finite.iloc[[0, -1]].iterrows())
        words = f"{number} of {len(finite)} runs over {', '.join(varying)}: lowest {low}, highest {high}"
        made.append((base64.b64encode(plots.png(figure, dpi=150)).decode(), words))
        plots.plt.close(figure)
    return made
