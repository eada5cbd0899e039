"""``lqrlab export``: a controller as C code."""

from pathlib import Path

import click

from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH, POSITIVE


@click.command()
@click.argument("source", metavar="PLANT|RUN")
@click.option("-o", "--output", "folder", type=PATH, required=True, help="New folder of the C code.")
@click.option("--plant", "family", help="Plant that a network controls, of the catalogue or a file.")
@click.option("--dt", type=POSITIVE, help="Sample time [s].  [default: the plant's]")
@click.option("--limit", type=float, help="Input limit, ± this.  [default: none]")
def export(source: str, folder: Path, family: str | None, dt: float | None, limit: float | None) -> None:
    """Write a controller as C99, with test vectors: of a PLANT its sampled LQR, of a training RUN its network.

    lqrlab export cart_pole -o firmware; lqrlab export data/runs/quick/checkpoints --plant cart_pole -o firmware
    """
    network = Path(source).is_dir()
    if network and family is None:
        raise ValueError("--plant: expected the plant that the network of this run is to control")
    if not network and family is not None:
        raise ValueError(f"PLANT|RUN: expected the folder of a training run beside --plant, but found {source}")
    options.require_plant(family or source, "--plant" if network else "PLANT|RUN")
    import jax

    from lqrlab import compute
    from lqrlab.extensions import deployment
    from lqrlab.simulation import Problem

    compute.setup()
    with jax.enable_x64(True):
        limits = None if limit is None else (-abs(limit), abs(limit))
        problem = Problem.of(options.plant(family or source), dt=dt, limits=limits, optimum=not network)
        checkpoints = Path(source) / "checkpoints"
        controller = problem.K if not network else str(checkpoints if checkpoints.is_dir() else source)
        written = deployment.to_c(controller, problem, folder)
    click.echo(f"wrote {written}: a controller of {problem.name}; README.md says how it is built and tested")
