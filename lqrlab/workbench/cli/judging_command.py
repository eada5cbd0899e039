"""``lqrlab judge``: controllers side by side, on the plants of a seed, and the page."""

from pathlib import Path
from typing import Any

import click

from lqrlab.workbench.cli.options import PATH

GROUPS = ("trained", "unseen", "published", "dense", "all")
PUBLIC_SEED = 0


@click.command()
@click.argument("controllers", nargs=-1, metavar="CONTROLLER...")
@click.option(
    "--on",
    "plants",
    multiple=True,
    metavar="PLANTS",
    help=f"Families, a file of plants, or {', '.join(GROUPS)}.  [default: all]",
)
@click.option("--variants", default=8, show_default=True, help="Plants of each family.")
@click.option("--spread", default=0.2, show_default=True, help="Half-width of their parameters, relative.")
@click.option("--starts", default=4, show_default=True, help="Initial states of each plant.")
@click.option("--noise", default=0.01, show_default=True, help="Noise of states and sensors, in scales; 0 for none.")
@click.option(
    "--limits", "limit", type=float, help="Input limits, ± this in scales; compared with the optimum within them."
)
@click.option(
    "--told",
    type=click.Choice(["everything", "units"]),
    default="everything",
    show_default=True,
    help="Whether controllers are given A and B.",
)
@click.option("--held-back", "seed", type=int, help="Seed of fresh plants.  [default: the public list]")
@click.option("--time-limit", default=600.0, show_default=True, help="Seconds a controller has for one rung.")
@click.option("--memory-limit", default=8.0, show_default=True, help="GiB that a controller's process may take.")
@click.option("--jobs", default=1, show_default=True, help="Controllers judged at once.")
@click.option("-o", "--output", type=PATH, default="judgement.html", show_default=True, help="Page; .json beside it.")
@click.option("--compare", type=PATH, multiple=True, help="Results of earlier judgements, side by side.")
@click.option("--here", is_flag=True, hidden=True)
def judge(controllers: tuple[str, ...], output: Path, compare: tuple[Path, ...], here: bool, **asked: Any) -> None:
    """Judge each CONTROLLER by its cost above the least that any controller could pay.

    CONTROLLER: lqr, clipped, mpc:20, pid, nominal, adaptive, network, none; a run's folder; my_controller.py[:name];
    a .json, .mat or .npz of deployment.save; a folder of C code; a .fmu; the .zip of an agent. Code that is not
    ours runs in a process of its own. The same command resumes.

    lqrlab judge lqr network my_controller.py:gain --on trained -o page.html
    """
    from lqrlab import compute, evaluation
    from lqrlab.extensions.judging import page, processes

    compute.setup()
    if here:
        (word,) = controllers
        processes.run_here(word, output, asked)
        return
    if not controllers and not compare:
        raise ValueError("CONTROLLER: expected at least one, as lqr or my_controller.py, but found none")
    found = [evaluation.read(path) for path in compare]
    if controllers:
        found.insert(0, processes.run(controllers, output, asked, say=lambda words: click.echo(words, err=True)))
    joined = evaluation.together(found)
    if compare and asked["seed"] is None and not controllers:
        processes.check_public(joined)
    saved = joined.save(output.with_suffix(".json"), **{k: v for k, v in asked.items() if v is not None})
    click.echo(page.write(joined, output, recipe=asked, command=" ".join(["lqrlab judge", *controllers])))
    click.echo(saved)
