"""``lqrlab identify``: a plant from a log."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH, POSITIVE, as_json

if TYPE_CHECKING:
    from lqrlab.extensions.identification import FittedPlant, LinearModel


def _listed(context: click.Context, parameter: click.Parameter, value: Any) -> list[str]:
    return [name.strip() for part in value for name in part.split(",")]


@click.command()
@click.argument("file", type=PATH, metavar="LOG")
@click.option("--input", "inputs", multiple=True, required=True, callback=_listed, help="Input columns, as force.")
@click.option(
    "--output", "outputs", multiple=True, required=True, callback=_listed, help="Outputs, as 'position,angle [deg]'."
)
@click.option("--plant", "family", help="Plant to fit, of the catalogue or a file.  [default: a linear model]")
@click.option("--parameter", "parameters", multiple=True, callback=_listed, help="Parameters to fit.  [default: all]")
@click.option("--order", type=click.IntRange(1), help="Model order.  [default: minimum BIC]")
@click.option("--dt", type=POSITIVE, help="Sample time [s].  [default: from the time column]")
@click.option("--time", help="Name of the time column.")
@click.option("--validation", type=options.SHARE, default=0.3, show_default=True, help="Held-out share of each record.")
@click.option("-o", "target", type=PATH, help="Write the plant as JSON, for systems.load and lqrlab systems.")
@as_json
def identify(
    file: Path,
    inputs: list[str],
    outputs: list[str],
    family: str | None,
    parameters: list[str],
    order: int | None,
    dt: float | None,
    time: str | None,
    validation: float,
    target: Path | None,
    as_json: bool,
) -> None:
    """Identify a plant from a LOG (CSV, Excel, Parquet, HDF5, .mat, whitespace table), with its uncertainty.

    Fits physical parameters with --plant, else a linear model by subspace and prediction error:
    lqrlab identify log.csv --input force --output position,angle --plant cart_pole -o plant.json
    """
    options.require_file(file)
    if family is not None:
        options.require_plant(family, "--plant")
    from lqrlab import compute
    from lqrlab.compute.files import write_json
    from lqrlab.extensions import identification

    compute.setup()
    log = identification.read(file, inputs, outputs, dt, time)
    first, last = log.split(1 - validation)
    found: FittedPlant | LinearModel
    if family is None:
        found = identification.refine(identification.subspace(first, order), first)
        held_out, content = found.fit_percent(last), _linear(found)
        said = [f"order {found.order}, poles {', '.join(f'{p:.4g}' for p in found.poles)}"]
        said += found.residuals(first).sentences
    else:
        found = identification.fit(options.plant(family), first, parameters or None)
        held_out = identification.residuals.fit_percent(last.ys, found.simulate(last))
        content, said = found.described(), [str(found), *found.residuals().sentences]
    percent = {s.name: round(float(v), 2) for s, v in zip(log.outputs, held_out)}
    content |= {"fit on the held-out part [%]": percent, "log": file.name, "remarks": log.remarks()}
    if target:
        write_json(target, content, ensure_ascii=False)
    if as_json:
        click.echo(json.dumps(content, ensure_ascii=False))
    else:
        click.echo("\n".join([*log.remarks(), *said, _words(percent), *([f"wrote {target}"] if target else [])]))


def _words(percent: dict[str, float]) -> str:
    return "fit on the held-out part: " + ", ".join(f"{name} {value:.1f} %" for name, value in percent.items())


def _linear(model: "LinearModel") -> dict[str, Any]:
    """The file's content, as systems.load reads it."""
    plant = model.plant()
    content = {name: getattr(plant, name).tolist() for name in ("A", "B", "C", "Q", "R")}
    for kind in ("states", "inputs"):
        content[kind] = [f"{s.name} [{s.unit}]" for s in getattr(plant, kind)]
    return {**content, "dt": model.dt, "K": model.K.tolist(), "noise": model.noise.tolist()}
