"""The page that JupyterLab opens on: what was run, with its answer, and the notebooks by their questions."""

import os
from pathlib import Path
from typing import Any

import nbformat

from lqrlab.compute.files import read_object, write_atomic
from lqrlab.workbench.runs import notebooks, run_folder, session

FILE = "start.ipynb"
_MOST_RUNS = 3


def write(source: Path) -> Path:
    """Write ``data/start.ipynb``, text with links relative to it, about the notebooks of a folder and the newest runs.

    A notebook, for JupyterLab opens a file of Markdown as its source.
    """
    data = session.project() / "data"
    lines = ["# Where to go on", "", *_runs(data), "## The notebooks", ""]
    for path in sorted(source.glob(notebooks.NUMBERED)):
        nb = notebooks.read(path)
        lines += [f"- **[{nb.title}]({_link(path, data)})** ({path.stem}): {nb.question}"]
    lines += ["", "By hand: open one and *Run → Run All Cells*. Headless: `lqrlab run`, or `lqrlab run 15_swing_up`."]
    data.mkdir(exist_ok=True)
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("\n".join(lines), id="start")])
    return write_atomic(data / FILE, nbformat.writes(page) + "\n")


def _link(path: Path, data: Path) -> str:
    return Path(os.path.relpath(path, data)).as_posix().replace(" ", "%20")


def _runs(data: Path) -> list[str]:
    """The newest runs: how they stand, where their reports are, and the answer of the newest that has one."""
    folders = [folder for folder in session.runs() if (folder / run_folder.RUN).exists()][:_MOST_RUNS]
    if not folders:
        return [
            "Nothing was run yet. `lqrlab run --profile tiny` takes a minute, `lqrlab run` makes the whole answer.",
            "",
        ]
    lines, answer = ["## What was run", ""], ""
    for folder in folders:
        run, page = run_folder.read(folder / run_folder.RUN), folder / "report" / "index.html"
        report = f", [report]({_link(page, data)})" if page.exists() else ", no report yet"
        started = str(run.get("started") or "").replace("T", " ")[:16]
        lines += [f"- **{folder.name}**, {started}: {run.get('status')}{report}", *_designs(folder)]
        answer = answer or _answer(folder)
    return [*lines, "", *([answer, ""] if answer else [])]


def _designs(folder: Path) -> list[str]:
    """The designs that were kept in a run's panels: the line that makes the panel, and their names; at most ten."""
    try:
        kept = read_object(folder / session.DESIGNS)
        named = [(call, name) for call, designs in kept.items() for name in designs]
    except (ValueError, OSError, TypeError):  # none, or a broken file
        return []
    return [f"  - kept design {_quoted(name)} of {_quoted(call)}" for call, name in named[:10]]


def _quoted(words: str) -> str:
    """As code, which is no markup."""
    return f"`{words.replace('`', '´').replace(chr(10), ' ')[:120]}`"


def _answer(folder: Path) -> str:
    """The Markdown that the run's last notebook put out; nothing where it did not get so far."""
    for path in sorted((folder / "notebooks").glob("04_*.ipynb")):
        try:
            cells: list[dict[str, Any]] = read_object(path)["cells"]
            data = [out.get("data", {}) for cell in cells for out in cell.get("outputs", [])]
            return next("".join(d["text/markdown"]) for d in data if "text/markdown" in d)
        except (ValueError, LookupError, TypeError, AttributeError, StopIteration):  # without it, or a broken file
            pass
    return ""
