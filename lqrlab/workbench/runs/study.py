"""A person's study, a folder with notebooks: how it is made, the page that it opens on, a new notebook in it."""

import os
import re
import shutil
import string
from pathlib import Path
from typing import Any

import lqrlab
from lqrlab.compute.files import read_object, write_atomic, write_json
from lqrlab.workbench.runs import notebooks, run_folder, session

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST, _LAST = 40, 99  # numbers of notebooks; those below are the workbench's
_MOST_RUNS = 3  # on the page


def make(folder: Path) -> None:
    """Make a new folder with the notebooks and profiles, to run and to change, and a README."""
    package = Path(lqrlab.__file__).parent
    packaged = package / "workbench" / "notebooks"  # of a wheel; a checkout has them next to the package
    source = packaged if packaged.is_dir() else package.parent / "notebooks"
    try:
        run_folder.refuse_filled(folder)
        shutil.copytree(source, folder / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
        about = _filled("study.txt", name=folder.resolve().name, version=lqrlab.__version__)
        write_atomic(folder / "README.md", about)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror or error})") from None


def new_notebook(name: str, folder: Path) -> tuple[Path, Path]:
    """Make ``NN_name.ipynb``, which answers a question at once, and its test; NN is the next number that is free.

    Raises:
        ValueError: a name that is none, or is there already; no number is left.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name):
        raise ValueError(
            f"NAME: expected small letters, digits and _ that begin with a letter, as my_question, but found {name!r}"
        )
    numbers = {int(path.name[:2]): path for path in folder.glob(notebooks.NUMBERED)}
    if there := [path.name for path in numbers.values() if path.stem[3:] == name]:
        raise ValueError(f"NAME: {there[0]} is there already; choose another name")
    number = max([_FIRST - 1, *numbers]) + 1
    if number > _LAST:
        raise ValueError(f"{folder}: expected a number up to {_LAST} to be free, but found {_LAST} in use")
    words = {"name": f"{number}_{name}", "title": name.replace("_", " ").capitalize(), "plain": name}
    test = session.project() / "tests" / f"test_{number}_{name}.py"
    try:
        test.parent.mkdir(exist_ok=True)
        notebook = write_atomic(folder / f"{words['name']}.ipynb", _filled("notebook.txt", **words))
        return notebook, write_atomic(test, _filled("test_notebook.txt", **words))
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be made ({error.strerror})") from None


def _filled(template: str, **words: str) -> str:
    return string.Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(words)


def start_page(source: Path) -> Path:
    """Write ``data/start.ipynb``, text with links relative to it, about the notebooks of a folder and the newest runs.

    A notebook, for JupyterLab opens a file of Markdown as its source.
    """
    data = session.project() / "data"
    lines = ["# Where to go on", "", *_runs(data), "", "## The notebooks", ""]
    for path in sorted(source.glob(notebooks.NUMBERED)):
        nb = notebooks.read(path)
        lines += [f"- **[{nb.title}]({_link(path, data)})** ({path.stem}): {nb.question}"]
    lines += ["", "By hand: open one and *Run → Run All Cells*. Headless: `lqrlab run`, or `lqrlab run 15_swing_up`."]
    data.mkdir(exist_ok=True)
    cell = {"cell_type": "markdown", "id": "start", "metadata": {}, "source": "\n".join(lines)}
    page = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return write_json(data / "start.ipynb", page, ensure_ascii=False)


def _link(path: Path, data: Path) -> str:
    return Path(os.path.relpath(path, data)).as_posix().replace(" ", "%20")


def _runs(data: Path) -> list[str]:
    """The newest runs: how they stand, where their reports are, and the answer of the newest that has one."""
    folders = [folder for folder in session.runs() if (folder / run_folder.RUN).exists()][:_MOST_RUNS]
    if not folders:
        return ["Nothing was run yet. `lqrlab run --profile tiny` takes a minute, `lqrlab run` makes the whole answer."]
    lines = ["## What was run", ""]
    for folder in folders:
        run, page = run_folder.read(folder / run_folder.RUN), folder / "report" / "index.html"
        report = f", [report]({_link(page, data)})" if page.exists() else ", no report yet"
        started = str(run.get("started") or "").replace("T", " ")[:16]
        lines += [f"- **{folder.name}**, {started}: {run.get('status')}{report}"]
    return [*lines, "", next(filter(None, map(_answer, folders)), "")]


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
