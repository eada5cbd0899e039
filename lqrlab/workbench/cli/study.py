"""``lqrlab init``: a folder to work in, with the notebooks and profiles of this installation."""

import shutil
from pathlib import Path

import click

import lqrlab
from lqrlab.workbench.cli.options import PATH

README = """# {name}

Notebooks and profiles of lqrlab {version}. They are yours to change; `lqrlab run` executes those of this folder.

    lqrlab run                    # 01 to 04 and a report: data/runs/quick/report/index.html
    lqrlab run --profile tiny     # the same in a minute, to see that everything works
    lqrlab run 15_swing_up        # one that goes deeper
    lqrlab doctor                 # is the installation whole?
    jupyter lab notebooks         # by hand

What a run makes is in `data/runs/<profile>`. `lqrlab run --help`, `lqrlab sweep --help`: parameters and sweeps.
"""


def packaged() -> Path:
    """The notebooks that come with the package: in a wheel part of it, in a checkout next to it."""
    package = Path(lqrlab.__file__).parent
    wheel = package / "workbench" / "notebooks"
    return wheel if wheel.is_dir() else package.parent / "notebooks"


@click.command()
@click.argument("folder", type=PATH)
def init(folder: Path) -> None:
    """Make FOLDER, a study: the notebooks and profiles to run and to change, and a README."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder}: is there already and not empty; give a new folder")
        kept = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(packaged(), folder / "notebooks", ignore=kept)
        text = README.format(name=folder.resolve().name, version=lqrlab.__version__)
        (folder / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror or error})") from None
    click.echo(f"made {folder}: cd {folder} && lqrlab run --profile tiny")
