"""``lqrlab list``: the notebooks, their questions and their parameters."""

from pathlib import Path

import click

from lqrlab.workbench.cli import options
from lqrlab.workbench.runs import notebooks, pipeline
from lqrlab.workbench.runs.terminal import table


@click.command("list")
@click.argument("names", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=options.complete("notebook"))
@options.source
def listing(names: tuple[str, ...], source: Path | None) -> None:
    """List the notebooks, their questions and parameters, or those of each NOTEBOOK named.

    A parameter is set with -p NAME=VALUE by lqrlab run and lqrlab sweep.
    """
    folder = pipeline.find_source(source)
    wanted = names or [path.stem for path in sorted(folder.glob(notebooks.NUMBERED))]
    for nb in notebooks.named(folder, wanted):
        click.echo(f"{nb.name}: {nb.question or nb.title}")
        click.echo("\n".join(f"  {line}" for line in table(_rows(nb), wide=False).splitlines()) + "\n")


def _rows(nb: notebooks.Notebook) -> list[tuple[str, str, str, str]]:
    return [
        (p.name, p.type.__name__ if type(p.type) is type else str(p.type), repr(p.default), p.about)
        for p in nb.parameters.values()
        if p.name not in notebooks.BY_OPTION
    ]
