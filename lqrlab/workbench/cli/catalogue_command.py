"""``lqrlab systems``: the plants, or one of them in full."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lqrlab.workbench.cli.options import PATH

if TYPE_CHECKING:
    from lqrlab.systems import Plant


@click.command()
@click.argument("name", required=False)
@click.option("--html", "file", type=PATH, help="Write it as a page, with drawings that move.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a plant.")
def systems(name: str | None, file: Path | None, as_json: bool) -> None:
    """List the plants, or show one of them.

    Of one plant: its size, source, parameters, signals and open-loop modes in words.
    """
    from lqrlab import compute
    from lqrlab import systems as plants
    from lqrlab.workbench.figures import catalogue_page
    from lqrlab.workbench.runs.terminal import table

    compute.setup()
    if file:
        page = catalogue_page.page([name] if name else None, linear=name is None, unfolded=bool(name))
        click.echo(page.save(file))
    elif as_json:
        for plant in map(plants.make, [name] if name else plants.names()):
            click.echo(json.dumps(_described(plant), ensure_ascii=False))
    elif name is None:
        listed = [plants.make(family) for family in plants.names()]
        rows = [(p.name, p.n, p.m, f"{p.dt:g}", p.title, p.source) for p in listed]
        click.echo(table(rows, ("name", "n", "m", "dt [s]", "title", "source"), wide=False))
    else:
        card = catalogue_page.card(plants.make(name), equations=False)
        lines = [f"{card.name}: {card.title}", *(f"{label}: {words}" for label, words in card.facts.items())]
        lines += ["\n" + table(rows, head) for head, rows in card.tables.values()]
        lines += ["\nopen-loop poles in words:", *(f"  {words}" for words in card.modes)]
        click.echo("\n".join(lines))


def _described(plant: "Plant") -> dict[str, object]:
    """A plant for a script: what it is, its signals, its parameters with their units and ranges."""
    from lqrlab.systems import parameter_fields

    parameters = {
        key: {"default": f.default, **{k: f.metadata[k] for k in ("unit", "low", "high", "about")}}
        for key, f in parameter_fields(type(plant)).items()
    }
    signals = {kind: [dataclasses.asdict(s) for s in getattr(plant, kind)] for kind in ("states", "inputs")}
    head = {"name": plant.name, "title": plant.title, "source": plant.source, "dt": float(plant.dt)}
    return {**head, **signals, "parameters": parameters}
