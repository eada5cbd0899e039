"""Executed notebooks as a report: HTML files that need no network and no other file, and can be read without a script.

LaTeX becomes MathML, images are inlined with a text that stands for them, and what would load anything from elsewhere
is taken out. The front page gathers the outputs of the cells that are tagged ``summary``.
"""

import base64
import contextlib
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import nbformat

from lqrlab.compute import files
from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.safe_html import policy
from lqrlab.workbench.runs import notebooks, plant_copies, run_folder, session, sweep
from lqrlab.workbench.runs.cells import Cells
from lqrlab.workbench.runs.terminal import cell, clock

if TYPE_CHECKING:
    from pandas import DataFrame

TEMPLATES = Path(__file__).parent / "templates"
_SHOWN = 60  # rows on the page of a sweep; all are in results.csv


@dataclasses.dataclass
class NotebookPage:
    """One executed notebook, rendered as HTML: the page ``<name>.html``."""

    name: str
    title: str  # first heading
    cells: Cells
    body: str  # all cells
    summary: str  # outputs of the cells tagged ``summary``
    parameters: list[tuple[str, object, object, str]]  # name, value, default and meaning of each
    facts: list[tuple[str, str]]  # for its head: seed, time, duration, device
    failed: bool  # whether it stopped at an error


_GENERATOR = b'name="generator" content="lqrlab"'  # in templates/base.html.j2


def write(folder: str | Path, *, whole: bool = False) -> Path:
    """Write a run's report from its executed notebooks; returns the front page, ``<folder>/report/index.html``.

    With ``whole`` all of it is written into one file, to be mailed: ``<folder>/report/<folder>.html``.

    Raises:
        ValueError: the folder is not a run's, or holds no executed notebook.
    """
    folder = Path(folder)
    run_folder.require_record(folder)
    paths = sorted((folder / "notebooks").glob("[0-9]*.ipynb"), reverse=True)  # of two the one that failed
    executed = {path.name.partition(".")[0]: path for path in paths}
    if not executed:
        raise ValueError(f"{folder}: no executed notebook; lqrlab run --folder {folder} makes them")
    run = run_folder.read(folder / run_folder.RUN)
    pages = [render(executed[name]) for name in sorted(executed)]
    shared: dict[str, Any] = {"pages": pages, "run": run, "folder": folder.resolve().name}
    shared |= {"versions": run["versions"], "plants": plant_copies.names(run)}
    if whole:
        for page in pages:
            page.body = _within_one_file(page.name, page.body, [other.name for other in pages])
        script = svg.STRIP_SCRIPT if any(svg.STRIP_MARK in page.body for page in pages) else ""
        name = f"{shared['folder']}.html"
        return fill(folder / "report" / name, "index.html.j2", script, whole=True, **shared)
    for page in pages:
        script = svg.STRIP_SCRIPT if svg.STRIP_MARK in page.body else ""
        fill(folder / "report" / f"{page.name}.html", "page.html.j2", script, page=page, **shared)
    return fill(folder / "report" / "index.html", "index.html.j2", **shared)


def _within_one_file(name: str, body: str, names: Sequence[str]) -> str:
    """A page's body with the names of pages before its anchors, for two may have headings of one name."""
    anchors = set(re.findall(r'<h[1-6] id="([^"]*)"', body))
    body = re.sub(r'(<h[1-6] id=")', rf"\g<1>{name}-", body)

    def link(found: re.Match[str]) -> str:
        page, anchor = found[1] or name, found[2] or ""
        if page not in names or (not found[1] and anchor not in anchors):
            return found[0]
        return f'href="#{page}{"-" * bool(anchor)}{anchor}"'

    return re.sub(r'href="(?:([\w.-]+)\.html)?(?:#([^"]*))?"', link, body)


def fill(path: Path, template: str, script: str = "", **values: object) -> Path:
    """Write a page from one of our templates, in one piece; nothing is loaded, and no script but this one runs."""
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = {"style": style, "script": script, "policy": policy(script)}
    return files.write_atomic(path, _filled(template, **ours, **values))


def _filled(template: str, **values: object) -> str:
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["value"] = _value
    return environment.get_template(template).render(**values)


def index(data: str | Path) -> Path:
    """Write ``<data>/index.html``: all runs and sweeps in ``data/runs`` and ``data/sweeps``, the latest first.

    Raises:
        ValueError: there is none; a page of that name is not lqrlab's.
    """
    data = Path(data).resolve()
    old = data / "index.html"
    if old.exists() and _GENERATOR not in old.read_bytes()[:1000]:
        raise ValueError(f"{old}: expected a list of runs to write anew, but found another page; move it away")
    listed: dict[str, list[tuple[object, ...]]] = {}
    for kind, name in (("Runs", run_folder.RUN), ("Sweeps", run_folder.SWEEP)):
        records = [(run_folder.read(path), path.parent) for path in data.glob(f"{kind.lower()}/*/{name}")]
        listed[kind] = []
        for record, folder in sorted(records, key=lambda pair: str(pair[0].get("started")), reverse=True):
            page = folder / "report" / "index.html"
            link = page.relative_to(data).as_posix() if page.exists() else ""
            about = record.get("profile") or "–"
            if kind == "Sweeps":
                about = f"{record.get('title')}, {len(record.get('runs', []))} points"
            started = str(record.get("started") or "–").replace("T", " ")[:16]
            head = (link, folder.name + " (no report yet)" * (not link))
            listed[kind].append((head, record.get("status"), about, started, record.get("commit") or "–"))
    if not any(listed.values()):
        raise ValueError(f"{data}: no run and no sweep to list; lqrlab run makes one")
    return fill(data / "index.html", "runs.html.j2", listed=listed, versions=session.versions(), run={})


def compare(folder: str | Path) -> Path:
    """Write ``<folder>/report/index.html``, the comparison of a sweep's runs, and a report of each that has none."""
    folder = Path(folder).resolve()
    frame, record = sweep.table(folder), run_folder.read(folder / run_folder.SWEEP)
    plant, (varying, numbers) = record["kind"] == "plant", sweep.axes(frame, record)
    shown = [c for c in ("status", *varying, *numbers[:8], "seconds") if c in frame]
    rows, head = frame.to_dict("records"), sweep.spread(frame, numbers, record.get("units", {})) if plant else None
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
    return fill(
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
    place = folder / "runs" / run
    page, executed = place / "report" / "index.html", [*(place / "notebooks").glob("[!.]*.ipynb")]
    if not executed:
        return None
    if not page.exists() or page.stat().st_mtime <= max(path.stat().st_mtime for path in executed):
        write(place)
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


def render(path: Path) -> NotebookPage:
    """Render one executed notebook, ``<run>/notebooks/<name>.ipynb`` or ``<name>.failed.ipynb``."""
    declared, name = notebooks.read(path), path.name.partition(".")[0]
    cells = Cells(nbformat.read(path, 4))
    given = cells.nb.metadata.get("papermill", {}).get("parameters", {})
    parameters = [
        (p.name, given.get(p.name, p.default), p.default, p.about)
        for p in declared.parameters.values()
        if p.name not in notebooks.BY_OPTION
    ]
    facts = [("Seed", str(value)) for key, value, *_ in parameters if key == "seed"]
    with contextlib.suppress(ValueError):  # none was written
        result = session.results(path.parents[1], name)
        facts += [("Run on", result["started"].replace("T", " ")[:16]), ("Took", clock(result["seconds"]))]
        facts += [("Device", result["device"])]
    return NotebookPage(
        name=name,
        title=declared.title,
        cells=cells,
        body=_filled("cells.html.j2", cells=cells, outputs_only=False),
        summary=_filled("cells.html.j2", cells=cells, outputs_only=True),
        parameters=parameters,
        facts=facts,
        failed=path.name.endswith(".failed.ipynb"),
    )


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
