"""A person's study, a folder with notebooks: how it is made, a new notebook in it."""

import re
import shutil
import string
import sys
from pathlib import Path

import lqrlab
from lqrlab import installation
from lqrlab.compute.files import write_atomic
from lqrlab.workbench.runs import notebooks, run_folder, session

_TEMPLATES = Path(__file__).parent / "templates"
_FIRST, _LAST = 40, 99  # numbers of notebooks; those below are the workbench's


def make(folder: Path) -> None:
    """Make a new folder with the notebooks and profiles, to run and to change, and a README."""
    packaged = Path(notebooks.__file__).parents[1] / "notebooks"  # of a wheel; a checkout has them by itself
    source = packaged if packaged.is_dir() else packaged.parents[2] / "notebooks"
    try:
        run_folder.refuse_filled(folder)
        shutil.copytree(source, folder / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
        typed = {"program": installation.program(folder), "python": installation.typed(sys.executable, folder)}
        about = _filled("study.txt", name=folder.resolve().name, version=lqrlab.__version__, **typed)
        write_atomic(folder / "README.md", about)
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror or error})") from None


def new_notebook(name: str, folder: Path) -> tuple[Path, Path]:
    """Make ``NN_name.ipynb``, which answers a question at once, and its test; NN is the next number that is free."""
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
