"""A new notebook that runs, to be changed into one's own, and a test of it."""

import re
import string
from pathlib import Path

import nbformat

from lqrlab.compute.files import write_atomic
from lqrlab.workbench.runs import notebooks, session

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST, _LAST = 40, 99  # numbers of notebooks; those below are the workbench's


def create(name: str, folder: Path) -> tuple[Path, Path]:
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
        notebook = write_atomic(folder / f"{words['name']}.ipynb", _notebook(words))
        return notebook, write_atomic(test, _filled("test_notebook.txt", words))
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be made ({error.strerror})") from None


def _filled(template: str, words: dict[str, str]) -> str:
    return string.Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(words)


def _notebook(words: dict[str, str]) -> str:
    """The notebook as text, of a template whose cells begin with ``# %%`` and their kind."""
    _, *parts = re.split(r"^# %% (\w+)\n", _filled("notebook.txt", words), flags=re.MULTILINE)
    cells = []
    for i, (kind, source) in enumerate(zip(parts[::2], parts[1::2])):
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
        metadata = {"tags": ["parameters"]} if kind == "parameters" else {}
        cells.append(make(source.rstrip("\n"), id=f"{words['name'][:2]}-{i:02d}", metadata=metadata))
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}, "lqrlab": {"needs": []}}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=about)) + "\n"
