"""The runs of a sweep beside each other: one table, one figure, one page that is complete in itself."""

import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lqrlab.workbench.runs import pipeline, session, sweep_batched
from lqrlab.workbench.runs.sweep_run import RECORD, read, read_json
from lqrlab.workbench.runs.terminal import clock

SHOWN = 60  # rows on the page; all are in the files beside it


def table(folder: str | Path) -> Any:
    """One row a run, read from the runs' folders: status, parameters, numbers, time taken, attempts, error."""
    import pandas as pd

    folder = Path(folder)
    record = read_json(folder / RECORD)
    if not record:
        raise ValueError(f"{folder}: not the folder of a sweep, it has no {RECORD}")
    name, rows = Path(record["notebook"]).stem, []
    if record.get("road") == "vmap":
        return pd.DataFrame(list(_points(folder, record)))
    for entry in record["runs"]:
        place = folder / "runs" / entry["run"]
        said = read(place)
        row = {"run": entry["run"], "status": said.get("status", "not begun"), **entry["point"]}
        if pipeline.finished(place, name, entry["fingerprint"]):
            row["status"] = "finished"
            result = session.results(place, name)
            row |= {k: v for k, v in _flat(result["numbers"]) if k not in row}
            row |= {"seconds": result["seconds"], "device": result["device"]}
        elif said.get("fingerprint") not in (None, entry["fingerprint"]):
            row["status"] = "not begun"  # what is there belongs to other code or other inputs
            said = {}
        elif row["status"] == "finished":
            row["status"] = "not begun"  # and has lost its result since
        elif row["status"] == "running" and said.get("session") != record.get("session"):
            row["status"] = "stopped"
        rows.append(row | {"attempts": said.get("attempts"), "error": said.get("error") or ""})
    frame = pd.DataFrame(rows)
    last = [c for c in ("seconds", "attempts", "device", "error") if c in frame]
    frame["attempts"] = frame["attempts"].astype("Int64")
    return frame[[c for c in frame if c not in last] + last]


def _points(folder: Path, record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a sweep in one program: they are in one file, and each is there or is not."""
    known = sweep_batched.read(folder)
    for entry in record["runs"]:
        found = known.get(entry["fingerprint"])
        status = "not begun" if found is None else "failed" if "error" in found else "finished"
        numbers = {k: v for k, v in (found or {}).items() if k != "error"}
        error = (found or {}).get("error", "")
        yield {"run": entry["run"], "status": status, **entry["point"], **numbers, "error": error}


def _flat(numbers: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Plain values of nested numbers under names with dots; those that are not finite as numbers again."""
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, str) and value in ("inf", "-inf", "nan"):
            yield prefix + key, float(value)
        elif not isinstance(value, list):
            yield prefix + key, value


def save(folder: Path) -> Any:
    """Write ``results.csv`` and ``results.parquet``, each in one piece; returns the table."""
    import pandas as pd

    frame = table(folder)
    plain = frame.copy()
    for column in plain:
        kinds = {type(v) for v in plain[column] if not (isinstance(v, float) and v != v) and v is not None}
        if kinds & {list, dict} or (
            len(kinds) > 1 and not kinds <= {int, float}
        ):  # Parquet has one type a column
            said = [json.dumps(v) if isinstance(v, list | dict) else v for v in plain[column]]
            plain[column] = [None if pd.api.types.is_scalar(v) and pd.isna(v) else str(v) for v in said]
    for name, write in (("results.csv", plain.to_csv), ("results.parquet", plain.to_parquet)):
        temporary = folder / f".{name}.tmp"
        write(temporary, index=False)
        os.replace(temporary, folder / name)
    return frame


# The page -----------------------------------------------------------------------------------------------


def write(folder: str | Path) -> Path:
    """Write ``<folder>/report/index.html``, the comparison, and a report of each run that has none.

    Raises:
        ValueError: the folder is not a sweep's.
    """
    from lqrlab.workbench.runs import report

    folder = Path(folder).resolve()
    frame, record = table(folder), read_json(folder / RECORD)
    pages = {}
    mapped = record.get("road") == "vmap"
    for name in frame["run"] if not mapped else ():
        place = folder / "runs" / name
        executed = max((p.stat().st_mtime for p in (place / "notebooks").glob("[!.]*.ipynb")), default=None)
        page = place / "report" / "index.html"
        if executed and not (page.exists() and page.stat().st_mtime > executed):
            report.write(place)
        if executed:
            pages[name] = f"../runs/{name}/report/index.html"
    counts = frame["status"].value_counts()
    varying, numbers = axes(frame, record)
    shown = ["status", *varying, *numbers[:8], "seconds", "attempts"]
    seconds = frame["seconds"].sum() if "seconds" in frame else record.get("seconds")
    facts = [
        ("Plant" if record.get("kind") == "plant" else "Notebook", Path(record["notebook"]).stem),
        ("Points" if mapped else "Runs", ", ".join(f"{n} {status}" for status, n in counts.items())),
        ("Profile", record.get("profile")),
        ("Reads from", record.get("inputs")),
        ("Started", record["started"].replace("T", " ")[:16]),
        ("Computing", clock(seconds) if seconds else None),
        ("Device", record.get("device") or next(iter(frame.get("device", frame["run"][:0]).dropna()), None)),
        ("Road", "one program (vmap)" if mapped else None),
        ("Commit", record.get("commit")),
    ]
    same = {
        k: v for k, v in (record["runs"][0]["point"] if record["runs"] else {}).items() if k not in varying
    }
    return report.fill(
        folder / "report" / "index.html",
        "comparison.html.j2",
        title=f"Sweep of {record['title']}",
        name=folder.name,
        facts=[(k, v) for k, v in facts if v],
        figures=_figures(frame, varying, numbers[:4], record.get("units", {})),
        spread=spread(frame, record) if mapped else None,
        head=[c for c in shown if c in frame],
        rows=[
            (row["run"], pages.get(row["run"]), [_cell(row[c]) for c in shown if c in frame])
            for row in frame[:SHOWN].to_dict("records")
        ],
        more=max(len(frame) - SHOWN, 0),
        errors=[(r["run"], r["status"], r["error"]) for r in frame.to_dict("records") if r["error"]][:SHOWN],
        same=same,
        versions=record["versions"],
        run=record,
    )


def axes(frame: Any, record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Names of the parameters that differ between the runs, and of the numbers that do."""
    import pandas as pd

    given = list(dict.fromkeys(k for entry in record["runs"] for k in entry["point"]))
    varying = [k for k in given if frame[k].astype(str).nunique() > 1]
    rest = [c for c in frame if c not in {"run", "status", "seconds", "attempts", "device", "error", *given}]
    numeric = [c for c in rest if pd.api.types.is_numeric_dtype(frame[c].infer_objects())]
    numeric = [c for c in numeric if frame[c].dtype != bool]
    return varying, [c for c in numeric if frame[c].nunique() > 1]


def spread(frame: Any, record: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Head and rows of a table: each number's unit, lowest, median, 95 % quantile and highest over all points."""
    import numpy as np

    head, rows = ("number", "unit", "lowest", "median", "p95", "highest"), []
    for name in axes(frame, record)[1]:
        values = np.sort(frame[name].dropna().to_numpy(float))
        if values.size:  # each is one of the values, so that inf among them does no harm
            at = (values[int(np.ceil(q * (values.size - 1)))] for q in (0.0, 0.5, 0.95, 1.0))
            rows.append((name, record.get("units", {}).get(name, ""), *(_cell(float(v)) for v in at)))
    return head, rows


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figures(
    frame: Any, varying: Sequence[str], numbers: Sequence[str], units: Mapping[str, str]
) -> list[tuple[str, str]]:
    """A figure for each number over the parameters that differ: PNG in base64, and its words."""
    import base64

    import matplotlib.pyplot as plt
    import numpy as np
    import pandas as pd

    from lqrlab.workbench.figures import plots

    def label(name: str) -> str:
        return f"{name} [{units[name]}]" if name in units else name

    made = []
    varying = list(varying)[:6]
    for number in numbers if varying else ():
        whole = frame[np.isfinite(frame[number].astype(float))]
        y = whole[number].astype(float)
        if len(y) < 2:
            continue
        columns = 2 if len(varying) in (2, 4) else 3
        figure, panels = plots.grid(len(varying), columns, 2.3, sharey=True)
        for axis, parameter in zip(panels, varying):
            x = whole[parameter]
            if pd.api.types.is_numeric_dtype(x) and x.dtype != bool:
                places = x.astype(float)
                if places.min() > 0 and places.max() > 15 * places.min():
                    axis.set_xscale("log")
                if places.nunique() <= 6:
                    axis.set_xticks(sorted(places.unique()), [f"{v:g}" for v in sorted(places.unique())])
                    axis.minorticks_off()
            else:
                labels = list(dict.fromkeys(x.astype(str)))
                places = x.astype(str).map(labels.index).astype(float)
                axis.set_xticks(range(len(labels)), labels)
                axis.set_xlim(-0.5, len(labels) - 0.5)
            if len(places) > 60 and places.nunique() > 12:  # a cloud: its middle half in slices
                bins = pd.qcut(places, 12, duplicates="drop")
                at = places.groupby(bins, observed=True).median()
                low, mid, high = (y.groupby(bins, observed=True).quantile(q) for q in (0.25, 0.5, 0.75))
                axis.fill_between(at, low, high, color="#D55E00", alpha=0.25, lw=0, zorder=3)
                axis.plot(at, mid, color="#D55E00", lw=1.6, zorder=4)
            elif places.nunique() < len(places):
                middle = y.groupby(places).median()
                axis.plot(middle.index, middle, "_", ms=14, mew=1.6, color="#D55E00")
            many = len(places) > 200
            axis.plot(
                places, y, "o", ms=2 if many else 4, color="#0072B2", alpha=0.25 if many else 0.75, mew=0
            )
            axis.set_xlabel(label(parameter))
            if y.min() > 0 and y.max() > 30 * y.min():
                axis.set_yscale("log")
        for axis in panels[::columns]:
            axis.set_ylabel(label(number))
        lost = int(frame[number].notna().sum()) - len(y)
        note = f"; {lost} of {lost + len(y)} not finite, not drawn" if lost else ""
        mark = "line and band: median and middle half" if len(y) > 60 else "bar: median"
        figure.suptitle(f"{number}   ({mark}{note})", x=0.01, ha="left", fontsize=9.5, fontweight="bold")
        low, high = whole.loc[y.idxmin()], whole.loc[y.idxmax()]
        alt = f"{number} of {len(y)} runs over {', '.join(varying)}{note}: " + "; ".join(
            f"{word} {float(row[number]):.4g} at {', '.join(f'{k} = {_cell(row[k])}' for k in varying)}"
            for word, row in (("lowest", low), ("highest", high))
        )
        made.append((base64.b64encode(plots.png(figure, dpi=150)).decode(), html.escape(alt)))
        plt.close(figure)
    return made
