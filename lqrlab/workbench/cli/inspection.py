"""Commands that look: at the notebooks, the plants, and the installation. JAX is imported when computing."""

import dataclasses
import importlib.metadata
import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lqrlab.installation import install
from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH, as_json, complete, main
from lqrlab.workbench.runs import notebooks, session
from lqrlab.workbench.runs.terminal import table

if TYPE_CHECKING:
    from lqrlab.systems import Plant


@main.command("list")
@click.argument("names", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=complete("notebook"))
@options.source
def listing(names: tuple[str, ...], source: Path | None) -> None:
    """List the notebooks, their questions and parameters, or those of each NOTEBOOK named.

    A parameter is set with -p NAME=VALUE by lqrlab run and lqrlab sweep.
    """
    folder = notebooks.find_source(source)
    wanted = names or [path.stem for path in sorted(folder.glob(notebooks.NUMBERED))]
    for nb in notebooks.named(folder, wanted):
        known = [p for p in nb.parameters.values() if p.name not in notebooks.BY_OPTION]
        kinds = (p.type.__name__ if type(p.type) is type else str(p.type) for p in known)
        rows = [(p.name, kind, repr(p.default), p.about) for p, kind in zip(known, kinds)]
        click.echo(f"{nb.name}: {nb.question or nb.title}")
        click.echo("\n".join(f"  {line}" for line in table(rows, wide=False).splitlines()) + "\n")


@main.command()
@click.argument("name", required=False)
@click.option("--html", "file", type=PATH, help="Write it as a page, with drawings that move.")
@as_json
def systems(name: str | None, file: Path | None, as_json: bool) -> None:
    """List the plants, or show one of them.

    Of one plant, by its name or from a file (a robot's, or of lqrlab identify): its size, source, parameters, signals
    and open-loop modes in words.
    """
    if name is not None:
        options.require_plant(name)
    from lqrlab import compute, control, systems

    compute.setup()
    # no plant is made to be listed
    families = map(systems.family, systems.names()) if name is None else [type(options.plant(name))]
    if file:
        from lqrlab.workbench.figures import catalogue_page

        click.echo(catalogue_page.page([name] if name else None, unfolded=bool(name)).save(file))
    elif as_json:
        for cls in families:
            click.echo(json.dumps(_described(cls), ensure_ascii=False))
    elif name is None:
        rows = [(c.name, len(c.states), len(c.inputs), f"{c.dt:g}", c.title, c.source) for c in families]
        click.echo(table(rows, ("name", "n", "m", "dt [s]", "title", "source"), wide=False))
    else:
        from lqrlab.workbench.figures import plant_card

        card = plant_card.card(plant := options.plant(name), equations=False)
        lines = [f"{card.name}: {card.title}", *(f"{label}: {words}" for label, words in card.facts.items())]
        lines += ["\n" + table(rows, head) for head, rows in card.tables.values()]
        lines += ["\nopen-loop poles in words:", *(f"  {words}" for words in card.modes)]
        found = control.diagnose(*plant.matrices(), *plant.weights())
        # a plant of the catalogue has a regulator, one of a file may have none
        if not math.isfinite(found.residual):
            lines += ["\nwarning:", *(f"  {words}" for words in found.sentences)]
        click.echo("\n".join(lines))


def _described(plant: "type[Plant]") -> dict[str, object]:
    """A plant for a script: what it is, its signals, its parameters with their units and ranges."""
    from lqrlab.systems import parameter_fields

    fields = parameter_fields(plant).items()
    kept = ("unit", "low", "high", "about")
    parameters = {k: {"default": f.default, **{key: f.metadata[key] for key in kept}} for k, f in fields}
    signals = {kind: [dataclasses.asdict(s) for s in getattr(plant, kind)] for kind in ("states", "inputs")}
    head = {"name": plant.name, "title": plant.title, "source": plant.source, "dt": float(plant.dt)}
    return {**head, **signals, "parameters": parameters}


@main.command()
def doctor() -> None:
    """Check the installation and suggest fixes.

    Versions, devices, the notebooks' kernel, free disk.
    """
    packages, lacking = _packages()
    devices, fault, idle = _devices()
    gigabytes, blocked = _disk()
    rows = (  # subject, whether it is good, what was seen, what to do if it could be better
        ("python", True, f"{sys.version.split()[0]} in {sys.prefix}", ""),
        ("packages", not lacking, packages, install("[workbench]") if lacking else ""),
        ("devices", not fault, devices, fault or idle),
        ("kernel", True, f"python3 runs {sys.executable}", ""),
        ("disk", not blocked, f"{gigabytes:.0f} GB free here", blocked),
    )
    for subject, good, text, remedy in rows:
        click.echo(f"{'✓' if good else '✗'} {subject:<10}{text}")
        click.echo(f"  {'':<10}→ {remedy}\n" * bool(remedy), nl=False)
    sys.exit(not all(good for _, good, *_ in rows))


def _packages() -> tuple[str, bool]:
    """Required packages with their versions, or those that are missing or too old; whether there are such."""
    wrong = []
    for wanted in importlib.metadata.requires("lqrlab") or []:
        what, _, extra = wanted.partition(";")
        if extra and "workbench" not in extra:
            continue
        name, least = re.findall(r"^[\w-]+|(?<=>=)[\w.]+", what)
        try:
            version = importlib.metadata.version(name)
            a, b = ([int(n) for n in re.findall(r"(?:^|\.)(\d+)", v)] for v in (version, least))  # 1.14rc1: [1, 14]
            if a < b:
                wrong.append(f"{name} {version} is not >={least}")
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is missing")
    here = (f"{k} {v}" for k, v in session.versions().items() if k in session.PACKAGES)
    return "; ".join(wrong) or ", ".join(here), bool(wrong)


def _devices() -> tuple[str, str, str]:
    """The devices that JAX computes on; what to do if there are none; and if there is one that it does not use."""
    try:
        import jax

        present = jax.devices()
    except RuntimeError as error:
        return f"JAX finds none: {error}", "JAX_PLATFORMS=cpu computes on the CPU", ""
    idle = all(d.platform == "cpu" for d in present) and shutil.which("nvidia-smi")
    remedy = f"there is an NVIDIA driver: {install('[cuda]')} uses the GPU" if idle else ""
    return ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in present), "", remedy


def _disk(needed: float = 5.0) -> tuple[float, str]:
    """Free space where runs are written [GB]; what to do if that is too little, or nothing can be written."""
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    try:
        tempfile.TemporaryFile(dir=Path.cwd()).close()
    except OSError:
        return free, "this folder cannot be written to; start in one that can"
    return free, "" if free >= needed else f"a quick run needs about {needed:g} GB; remove old runs in data/runs"
