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

import lqrlab
from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH, as_json, complete, main
from lqrlab.workbench.runs import notebooks, pipeline, session
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
    folder = pipeline.find_source(source)
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
    from lqrlab import compute, control, systems

    compute.setup()
    # no plant is made to be listed
    families = map(systems.family, systems.names()) if name is None else [type(options.plant(name))]
    if file:
        from lqrlab.workbench.figures import catalogue_page

        page = catalogue_page.page([name] if name else None, unfolded=bool(name))
        click.echo(page.save(file))
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


@dataclasses.dataclass(frozen=True)
class Inspection:
    """One thing looked at: whether it is good, what was seen, what to do if it could be better."""

    subject: str
    good: bool
    text: str
    remedy: str = ""


@main.command()
def doctor() -> None:
    """Check the installation and say what to do.

    Versions, devices, the notebooks' kernel, free disk.
    """
    inspections = [python(), packages(), devices(), kernel(), disk()]
    for inspection in inspections:
        click.echo(f"{'✓' if inspection.good else '✗'} {inspection.subject:<10}{inspection.text}")
        click.echo(f"  {'':<10}→ {inspection.remedy}\n" * bool(inspection.remedy), nl=False)
    sys.exit(not all(inspection.good for inspection in inspections))


def _install(extra: str = "") -> str:
    """The command that installs what is missing, in a checkout and elsewhere."""
    if not (Path(lqrlab.__file__).parents[1] / "Makefile").exists():
        return f"{sys.executable} -m pip install --upgrade 'lqrlab{extra}'"
    return f".venv/bin/pip install -c constraints.txt -e '.{extra}'" if extra else "make env"


def python() -> Inspection:
    """The interpreter, and whether it is one of a virtual or conda environment."""
    apart = sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").exists()
    remedy = "" if apart else "this is the system's Python; a virtual environment keeps lqrlab apart from it"
    text = f"{sys.version.split()[0]} in {sys.prefix}"
    return Inspection("python", sys.version_info >= (3, 11), text, remedy)


def packages() -> Inspection:
    """Required packages and their versions, each ``name>=version``."""
    lacking = []
    for wanted in importlib.metadata.requires("lqrlab") or []:
        if "extra ==" in wanted:
            continue
        name, least = wanted.split(">=")
        try:
            version = importlib.metadata.version(name)
            if _release(version) < _release(least):
                lacking.append(f"{name} {version} is not >={least}")
        except importlib.metadata.PackageNotFoundError:
            lacking.append(f"{name} is missing")
    text = "; ".join(lacking) or ", ".join(f"{k} {v}" for k, v in session.versions().items() if k in session.PACKAGES)
    return Inspection("packages", not lacking, text, _install() if lacking else "")


def _release(version: str) -> list[int]:
    """1.14rc1 → [1, 14], to be compared."""
    return [int(number) for number in re.findall(r"(?:^|\.)(\d+)", version)]


def devices() -> Inspection:
    """The devices that JAX computes on."""
    try:
        import jax

        present = jax.devices()
    except RuntimeError as error:
        return Inspection("devices", False, f"JAX finds none: {error}", "JAX_PLATFORMS=cpu computes on the CPU")
    text = ", ".join(f"{d.platform}:{d.id} {d.device_kind}" for d in present)
    idle = all(d.platform == "cpu" for d in present) and shutil.which("nvidia-smi")
    remedy = f"there is an NVIDIA driver: {_install('[cuda]')} uses the GPU" if idle else ""
    return Inspection("devices", True, text, remedy)


def kernel() -> Inspection:
    """The kernel that ``lqrlab run`` starts, which is this Python's."""
    try:
        text = f"python3 runs {sys.executable}, ipykernel {importlib.metadata.version('ipykernel')}"
        return Inspection("kernel", True, text)
    except importlib.metadata.PackageNotFoundError:
        return Inspection("kernel", False, "ipykernel is missing", f"{_install('[workbench]')} runs notebooks")


def disk(needed: float = 5.0) -> Inspection:
    """Free space where runs are written [GB]."""
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    remedy = "" if free >= needed else f"a quick run needs about {needed:g} GB; remove old runs in data/runs"
    try:
        tempfile.TemporaryFile(dir=Path.cwd()).close()
    except OSError:
        remedy = "this folder cannot be written to; start in one that can"
    return Inspection("disk", not remedy, f"{free:.0f} GB free here", remedy)
