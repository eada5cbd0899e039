"""``lqrlab judge``: controllers side by side, on the plants of a seed, and the page."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from lqrlab.extensions.controllers.processes import parted
from lqrlab.workbench.cli.options import PATH


def _listed(context: click.Context, parameter: click.Parameter, value: Any) -> tuple[str, ...]:
    return tuple(name.strip() for part in value for name in part.split(",") if name.strip())


@click.command()
@click.argument("words", nargs=-1, metavar="CONTROLLER...")
@click.option(
    "--plants",
    multiple=True,
    default=("all",),
    show_default=True,
    callback=_listed,
    metavar="PLANTS",
    help="trained, unseen, published, dense, all; families; files of plants.",
)
@click.option("--variants", default=8, show_default=True, help="Plants of each family.")
@click.option("--spread", default=0.2, show_default=True, help="Half-width of their parameters, relative.")
@click.option("--starts", default=4, show_default=True, help="Initial states of each plant.")
@click.option("--noise", default=0.01, show_default=True, help="Noise of states and sensors, in scales; 0 for none.")
@click.option("--limits", type=float, help="Input limits, ± this in scales, for starts within and beyond them.")
@click.option(
    "--told",
    type=click.Choice(["everything", "units"]),
    default="everything",
    show_default=True,
    help="Whether controllers are told A and B.",
)
@click.option(
    "--held-back",
    "seed",
    type=click.IntRange(1),
    metavar="SEED",
    help="Seed of plants that nobody has tuned to.  [default: the public list]",
)
@click.option(
    "--time-limit",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    help="Seconds that code which is not ours has for one scenario.",
)
@click.option("--memory-limit", type=click.FloatRange(0.5), default=8.0, show_default=True, help="GiB that it has.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Controllers judged at once.")
@click.option("-o", "--output", type=PATH, default="judgement.html", show_default=True, help="Page; .json beside it.")
@click.option("--compare", is_flag=True, help="CONTROLLERs are results, .json, of earlier judgements.")
def judge(
    words: tuple[str, ...],
    output: Path,
    compare: bool,
    seed: int | None,
    time_limit: float,
    memory_limit: float,
    jobs: int,
    **asked: Any,
) -> None:
    """Judge each CONTROLLER by its cost above the least that any controller could pay.

    CONTROLLER: lqr, clipped, mpc:20, pid[:rule], nominal, adaptive, network, none; a run's folder; mine.py[:name];
    a .json, .mat or .npz of deployment.save; a folder of C code; a .fmu; the .zip of an agent. Code that is not
    ours runs in a process of its own; the same command goes on where it was ended.

    lqrlab judge lqr network mine.py:gain --plants trained,dense -o page.html
    """
    if not words:
        raise ValueError("CONTROLLER: expected at least one, as lqr or mine.py, but found none")
    for word in words:
        if not compare:
            parted(word)  # refused before anything is loaded
        elif not Path(word).is_file():
            raise ValueError(f"CONTROLLER: expected results of lqrlab judge, .json, but {word} is no file")
    from lqrlab import compute
    from lqrlab.extensions.controllers import processes, selection

    compute.setup()
    if compare:
        found = selection.compared([Path(word) for word in words])
    else:
        chosen = selection.Selection(seed=seed or 0, **asked)
        limits = {"jobs": jobs, "time_limit": time_limit, "memory_limit": memory_limit}
        found = processes.judge(
            words, chosen, output.with_suffix(".parts"), say=lambda line: click.echo(line, err=True), **limits
        )
    found.save(output.with_suffix(".json"))
    from lqrlab.workbench.figures import judgement_page

    click.echo(judgement_page.write(found, output, command=shlex.join(["lqrlab", *sys.argv[1:]])))
    click.echo(output.with_suffix(".json"))
