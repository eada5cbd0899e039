"""``lqrlab judge``: controllers side by side, on the plants of a seed, and the page."""

import functools
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from lqrlab.extensions.controllers.processes import GROUPS, parted
from lqrlab.workbench.cli.options import NOISE, PATH, POSITIVE, SHARE, require_file, require_plant

_option = functools.partial(click.option, show_default=True)


def _listed(context: click.Context, parameter: click.Parameter, value: Any) -> tuple[str, ...] | None:
    return tuple(name.strip() for part in value for name in part.split(",") if name.strip()) if value else None


@click.command()
@click.argument("words", nargs=-1, metavar="CONTROLLER...")
@_option("--plants", multiple=True, callback=_listed, help="trained, unseen, published, dense; families; files.  [all]")
@_option("--variants", type=click.IntRange(1), default=8, help="Plants of each family.")
@_option("--spread", type=SHARE, default=0.2, help="Half-width of their parameters, relative.")
@_option("--starts", type=click.IntRange(1), default=4, help="Initial states of each plant.")
@_option("--noise", type=NOISE, default=0.01, help="Noise of states and sensors, in scales; 0 for none.")
@_option("--limits", type=POSITIVE, help="Input limits, ± this in scales, for starts within and beyond them.")
@_option(
    "--told",
    type=click.Choice(["everything", "units"]),
    default="everything",
    help="Known to controllers: A and B, or the units only.",
)
@_option("--held-back", "seed", type=click.IntRange(1), metavar="SEED", help="Seed of new plants and starts.")
@_option("--time-limit", type=POSITIVE, default=600.0, help="Time limit of foreign code per scenario [s].")
@_option("--memory-limit", type=POSITIVE, default=8.0, help="Memory limit of foreign code [GiB].")
@_option("--jobs", type=click.IntRange(1), default=1, help="Controllers judged at once.")
@_option("-o", "--output", type=PATH, default="judgement.html", help="Page; a .json next to it has the numbers.")
@click.option("--compare", is_flag=True, help="Compare such .json files; only code of --plants runs.")
def judge(words: tuple[str, ...], output: Path, compare: bool, plants: tuple[str, ...] | None, **asked: Any) -> None:
    """Measure each CONTROLLER's cost above the optimum.

    CONTROLLER: lqr, lqg, clipped, mpc:20, pid[:rule], nominal, adaptive, network, none; a run's folder; mine.py[:name];
    a .json, .mat or .npz of deployment.save; a folder of C code; a .fmu; the .zip of an agent. Foreign
    code runs in a separate process; the same command resumes an interrupted judgement.

    lqrlab judge lqr network mine.py:gain --plants trained,dense -o page.html
    """
    if not words:
        raise ValueError("CONTROLLER: expected at least one, as lqr or mine.py, but found none")
    if plants is not None and not plants:
        raise ValueError("plants: expected groups, families or files of plants, but found none")
    if output.suffix == ".json":
        raise ValueError(f"output: expected the page, as {output.with_suffix('.html')}, but found {output}")
    for word in words:  # refused before anything is loaded
        require_file(Path(word)) if compare else parted(word)
    for name in {*(plants or ())} - {*GROUPS, "all"}:
        require_file(Path(name)) if Path(name).suffix in (".toml", ".py") else require_plant(name, "--plants")
    from lqrlab import compute
    from lqrlab.extensions.controllers import processes, selection
    from lqrlab.workbench.figures import judgement_page

    compute.setup()
    loops: list[tuple[str, str]] = []
    if compare:
        found = selection.compared([Path(word) for word in words], plants or ())
    else:
        options = {name: asked.pop(name) for name in ("jobs", "time_limit", "memory_limit")}
        asked |= {"plants": plants or ("all",), "seed": asked["seed"] or 0}
        chosen, folder = selection.PlantSelection(**asked), output.with_suffix(".parts")
        parts = processes.judge(words, chosen, folder, say=lambda line: click.echo(line, err=True), **options)
        found = selection.joined(parts)
        ours = {part.word: part.controller for part in parts if part.controller is not None}
        loops = judgement_page.worst(ours, parts[0].scenarios, found, key=chosen.key)
    found.save(output.with_suffix(".json"))
    click.echo(judgement_page.write(found, output, command=shlex.join(["lqrlab", *sys.argv[1:]]), loops=loops))
