"""The runs of a sweep side by side: one table, one page that is complete in itself."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lqrlab.compute.files import read_rows, write_atomic
from lqrlab.workbench.runs import plant_copies, run_folder, session
from lqrlab.workbench.runs.notebooks import Values
from lqrlab.workbench.runs.run_folder import Record
from lqrlab.workbench.runs.terminal import cell, clock
from lqrlab.workbench.runs.terminal import table as aligned

if TYPE_CHECKING:
    from pandas import DataFrame

NUMBERS = "numbers.jsonl"
"""The numbers of each point of a sweep over a plant, a line each."""
SHOWN = 60  # rows on the page; all are in the files next to it
_LAST = ("seconds", "device", "error")
_MOST_BYTES = 1 << 32  # ten million points


def read_numbers(folder: Path) -> dict[str, Values]:
    """Fingerprint of a point → its numbers, or its ``error``. A line that was cut short is none."""
    rows = read_rows(folder / NUMBERS, _MOST_BYTES)
    good = [row for row in rows if row and isinstance(row.get("fingerprint"), str)]
    return {row.pop("fingerprint"): row for row in good}


def _in_one_file(record: Record) -> bool:
    """True where the numbers of all points are in one file: a plant's, and trainings of earlier versions."""
    return record["kind"] == "plant" or record.get("executor") == "vmap"


def table(folder: str | Path) -> "DataFrame":
    """One row a run: status, parameters, numbers, time taken, error; a ``ValueError`` if it is no sweep."""
    import pandas as pd

    folder = Path(folder)
    record = run_folder.read(folder / run_folder.SWEEP)
    if not run_folder.recorded(folder / run_folder.SWEEP):
        raise ValueError(f"{folder}: not the folder of a sweep, it has no {run_folder.SWEEP}")
    if _in_one_file(record):
        known = read_numbers(folder)
        return pd.DataFrame([_point_row(entry, known.get(entry["fingerprint"])) for entry in record["runs"]])
    frame = pd.DataFrame([_run_row(folder, entry, record) for entry in record["runs"]])
    last = [c for c in _LAST if c in frame]
    return frame[[c for c in frame if c not in last] + last]


def _point_row(entry: Record, known: Values | None) -> Values:
    """The row of a point whose numbers are in one file, or are not."""
    status = "not started" if known is None else "failed" if "error" in known else "finished"
    numbers = dict(known or {})
    error = numbers.pop("error", "")
    return {"run": entry["run"], "status": status, **entry["point"], **numbers, "error": error}


def _run_row(folder: Path, entry: Record, sweep: Record) -> Values:
    """The row of a run that has a folder."""
    place, name = folder / "runs" / entry["run"], Path(sweep["notebook"]).stem
    run = run_folder.read(place / run_folder.RUN)
    row: Values = {"run": entry["run"], "status": run.get("status", "not started"), **entry["point"]}
    if run_folder.finished(place, name, entry["fingerprint"]):
        result = session.results(place, name)
        row |= {k: v for k, v in _flat(result["numbers"]) if k not in row}
        row |= {"status": "finished", "seconds": result["seconds"], "device": result["device"]}
    elif run.get("fingerprint", entry["fingerprint"]) != entry["fingerprint"] or row["status"] == "finished":
        row["status"], run = "not started", {}  # of other code or inputs, or its result is gone
    elif row["status"] == "running" and sweep.get("status") != "running":
        row["status"] = "stopped"
    return row | {"error": run.get("error") or ""}


def _flat(numbers: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Plain values of nested numbers under names with dots; those that are not finite as numbers again."""
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            yield prefix + key, float(value) if value in ("inf", "-inf", "nan") else value


def save(folder: Path) -> None:
    """Write ``results.csv`` in one piece."""
    write_atomic(folder / "results.csv", table(folder).to_csv(index=False))


def axes(frame: "DataFrame", record: Record) -> tuple[list[str], list[str]]:
    """Names of the parameters that differ between the runs, and of the numbers that do."""
    from pandas.api.types import is_numeric_dtype

    given = list(dict.fromkeys(k for entry in record["runs"] for k in entry["point"]))
    rest = [c for c in frame if c not in {"run", "status", *_LAST, *given} and frame[c].dtype != bool]
    numbers = [c for c in rest if is_numeric_dtype(frame[c].infer_objects()) and frame[c].nunique() > (len(frame) > 1)]
    return [k for k in given if frame[k].astype(str).nunique() > 1], numbers


def spread(frame: "DataFrame", record: Record) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows of a table: each number's unit, lowest, median, 95 % quantile and highest over all points."""
    import numpy as np

    head, rows = ("number", "unit", "lowest", "median", "p95", "highest"), []
    for name in axes(frame, record)[1]:
        values = np.sort(frame[name].dropna().to_numpy(float))
        if values.size:  # each is one of the values, so that inf among them does no harm
            at = (values[int(np.ceil(q * (values.size - 1)))] for q in (0.0, 0.5, 0.95, 1.0))
            rows.append((name, record.get("units", {}).get(name, ""), *(cell(float(v)) for v in at)))
    return head, rows


def summary(folder: Path) -> str:
    """The results as they fit on a terminal: each number's spread, or what differs between the runs."""
    frame, record = table(folder), run_folder.read(folder / run_folder.SWEEP)
    if _in_one_file(record):
        head, spreads = spread(frame, record)
        return aligned(spreads, head)
    kept = [c for c in frame if c not in ("run", "device", "error")]
    kept = [c for c in kept if c == "status" or frame[c].astype(str).nunique() > 1]
    rows = frame[kept][:40].astype(object).where(frame[kept].notna(), "")
    width = shutil.get_terminal_size().columns
    lines = [line[:width] for line in aligned(rows.to_numpy().tolist(), kept).splitlines()]
    return "\n".join(lines) + (f"\n… and {len(frame) - 40} more" if len(frame) > 40 else "")


def write(folder: str | Path) -> Path:
    """Write ``<folder>/report/index.html``, the comparison of a sweep's runs, and a report of each that has none."""
    from lqrlab.workbench.runs import comparison_figures, report

    folder = Path(folder).resolve()
    frame, record = table(folder), run_folder.read(folder / run_folder.SWEEP)
    mapped, (varying, numbers) = _in_one_file(record), axes(frame, record)
    pages = {} if mapped else _run_reports(folder, list(frame["run"]))
    first = record["runs"][0]["point"] if record["runs"] else {}
    shown = [c for c in ("status", *varying, *numbers[:8], "seconds") if c in frame]
    rows = frame.to_dict("records")
    return report.fill(
        folder / "report" / "index.html",
        "comparison.html.j2",
        title=f"Sweep of {record['title']}",
        name=folder.name,
        facts=_facts(frame, record),
        figures=comparison_figures.figures(frame, varying, numbers[:4], record.get("units", {})),
        spread=spread(frame, record) if mapped else None,
        head=shown,
        rows=[(row["run"], pages.get(row["run"]), [cell(row[c]) for c in shown]) for row in rows[:SHOWN]],
        more=max(len(rows) - SHOWN, 0),
        errors=[(row["run"], row["status"], row["error"]) for row in rows if row["error"]][:SHOWN],
        same={k: v for k, v in first.items() if k not in varying},
        versions=record["versions"],
        run=record,
    )


def _run_reports(folder: Path, names: list[str]) -> dict[str, str]:
    """Links to the reports of those runs that were executed; one that is missing or too old is written."""
    from lqrlab.workbench.runs import report

    pages = {}
    for name in names:
        place = folder / "runs" / name
        page = place / "report" / "index.html"
        if executed := [path.stat().st_mtime for path in (place / "notebooks").glob("[!.]*.ipynb")]:
            if not (page.exists() and page.stat().st_mtime > max(executed)):
                report.write(place)
            pages[name] = f"../runs/{name}/report/index.html"
    return pages


def _facts(frame: "DataFrame", record: Record) -> list[tuple[str, object]]:
    """The head of the page: what was run, on what, how long."""
    seconds = frame["seconds"].sum() if "seconds" in frame else record.get("seconds")
    devices = frame["device"].dropna() if "device" in frame else []
    outcomes = ", ".join(f"{n} {s}" for s, n in frame["status"].value_counts().items())
    facts = [
        ("Plant" if record["kind"] == "plant" else "Notebook", Path(record["notebook"]).stem),
        ("Points" if _in_one_file(record) else "Runs", outcomes),
        ("Profile", record.get("profile")),
        ("Reads from", record.get("inputs")),
        ("Plants of", ", ".join(plant_copies.names(record))),
        ("Started", record["started"].replace("T", " ")[:16]),
        ("Computing", clock(seconds) if seconds else None),
        ("Device", record.get("device") or next(iter(devices), None)),
        ("Commit", record.get("commit")),
    ]
    return [(name, value) for name, value in facts if value]
