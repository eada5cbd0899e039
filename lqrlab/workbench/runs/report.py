"""Executed notebooks as a report: HTML files that need no network, no script and no other file.

nbconvert walks through the notebooks with a template of ours (``templates/cells.html.j2``), LaTeX becomes
MathML, images are inlined with a text that stands for them, and what would load anything from elsewhere is
taken out. The front page gathers the outputs of the cells that are tagged ``summary``.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from bs4 import BeautifulSoup

from lqrlab.workbench.runs import notebooks, session
from lqrlab.workbench.runs.cells import TEMPLATES, Exporter, clean, origin, tidy
from lqrlab.workbench.runs.terminal import clock


@dataclasses.dataclass
class Page:
    """One executed notebook, rendered.

    Attributes:
        name: of the notebook; the page is ``<name>.html``.
        title: its first heading.
        lead: its first paragraph, as HTML.
        body: all cells, as HTML.
        summary: outputs of the cells tagged ``summary``, as HTML.
        contents: level, anchor and HTML text of each heading.
        parameters: name, value, default and meaning of each parameter.
        result: what the notebook wrote at its end; empty where it did not.
        failed: whether it stopped at an error.
    """

    name: str
    title: str
    lead: str
    body: str
    summary: str
    contents: list[tuple[int, str, str]]
    parameters: list[tuple[str, Any, Any, str]]
    result: dict[str, Any]
    failed: bool = False

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What the head of the page tells: when, on what, how long."""
        values = {name: value for name, value, *_ in self.parameters}
        result = self.result
        rows = [
            ("Seed", values.get("seed")),
            ("Run on", str(result.get("started", "")).replace("T", " ")[:16]),
            ("Took", clock(result["seconds"]) if "seconds" in result else None),
            ("Device", result.get("device")),
        ]
        return [(name, str(value)) for name, value in rows if value not in (None, "")]


def write(folder: str | Path) -> Path:
    """Write ``<folder>/report`` from the executed notebooks in ``<folder>/notebooks``.

    Args:
        folder: a run's folder.

    Returns:
        The path of the front page, ``report/index.html``.

    Raises:
        ValueError: the folder holds no executed notebook.
    """
    folder = Path(folder)
    executed = {p.stem: p for p in sorted((folder / "notebooks").glob("[0-9]*.ipynb")) if "." not in p.stem}
    failed = {p.name.removesuffix(".failed.ipynb"): p for p in (folder / "notebooks").glob("*.failed.ipynb")}
    if not executed | failed:
        raise ValueError(
            f"{folder}: no executed notebook to report on; lqrlab run --folder {folder} makes them"
        )
    run = _json(folder / "run.json")
    pages = []
    for name, path in sorted((executed | failed).items()):
        result = _json(folder / "results" / f"{name}.json")
        pages.append(render(path, result, name=name, failed=name in failed))
    target = folder / "report"
    target.mkdir(exist_ok=True)
    shared = {
        "pages": pages,
        "run": run,
        "folder": folder.resolve().name,
        "versions": run.get("versions") or next((p.result["versions"] for p in pages if p.result), {}),
    }
    for page in pages:
        fill(target / f"{page.name}.html", "page.html.j2", page=page, **shared)
    return fill(target / "index.html", "index.html.j2", **shared)


def fill(path: Path, template: str, **values: Any) -> Path:
    """Write a page from one of our templates, in one piece; what is loaded from elsewhere has no place in it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True
    )
    environment.filters["value"] = _value
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    return _replace(path, environment.get_template(template).render(style=style, **values))


def index(data: str | Path) -> Path:
    """Write ``<data>/index.html``: all runs and sweeps in ``data/runs`` and ``data/sweeps``, the latest first.

    Raises:
        ValueError: there is none.
    """
    data = Path(data).resolve()
    listed: dict[str, list[dict[str, Any]]] = {"Runs": [], "Sweeps": []}
    for kind, record in (("Runs", "run.json"), ("Sweeps", "sweep.json")):
        for path in data.glob(f"{kind.lower()}/*/{record}"):
            found = _json(path)
            page = path.parent / "report" / "index.html"
            where = page.relative_to(data).as_posix() if page.exists() else ""
            listed[kind].append({"name": path.parent.name, "page": where, **found})
        listed[kind].sort(key=lambda entry: str(entry.get("started")), reverse=True)
    if not any(listed.values()):
        raise ValueError(f"{data}: no run and no sweep to list; lqrlab run makes one")
    return fill(data / "index.html", "runs.html.j2", listed=listed, versions=session.versions(), run={})


def render(path: Path, result: dict[str, Any] | None = None, *, name: str = "", failed: bool = False) -> Page:
    """Render one executed notebook."""
    nb = nbformat.read(path, 4)
    declared = notebooks.read(path)
    given = nb.metadata.get("papermill", {}).get("parameters", {})
    parameters = [
        (p.name, given.get(p.name, p.default), p.default, p.about)
        for p in declared.parameters.values()
        if p.name != "run"
    ]
    tidy(nb)
    exporter = Exporter()
    body, _ = exporter.from_notebook_node(nb, {"metadata": {"path": origin(nb)}})
    contents = list(exporter.contents)
    front = [cell for cell in nb.cells if cell.cell_type == "code" and "summary" in notebooks.tags(cell)]
    summary, _ = exporter.from_notebook_node(nbformat.v4.new_notebook(cells=front), {"outputs_only": True})
    lead = next(
        (p for p in BeautifulSoup(body, "html.parser").select(".prose > p") if p.get_text(strip=True)), ""
    )
    return Page(
        name=name or path.stem,
        title=declared.title,
        lead=str(lead),
        body=clean(body),
        summary=clean(summary),
        contents=contents,
        parameters=parameters,
        result=result or {},
        failed=failed,
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return path


def _value(value: Any) -> str:
    return (
        f"{value:g}"
        if isinstance(value, float)
        else ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
    )
