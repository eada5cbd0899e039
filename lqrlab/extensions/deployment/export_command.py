"""``lqrlab export``: a controller as C code."""

import os
from pathlib import Path
from typing import Any

import click

from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH

_NAMES = dict(lqr="LQR", lqg="LQG", clipped="clipped LQR", mpc="MPC", pid="PID", nominal="LQR of the default plant")
_NAMES |= dict(adaptive="adaptive regulator", network="network regulator", none="no control")


@click.command()
@click.argument("source", metavar="PLANT|CONTROLLER")
@click.option("-o", "--output", "folder", type=PATH, required=True, help="Folder of the C code, new or to be replaced.")
@click.option("--plant", "family", help="Plant that CONTROLLER controls, of the catalogue or a file.")
@click.option("--name", default="controller", show_default=True, help="Start of all symbols and file names.")
@click.option("--dt", type=options.POSITIVE, help="Sample time [s].  [default: the plant's]")
@click.option("--limit", type=options.POSITIVE, help="Input limit: each input stays within ± this.  [default: none]")
def export(source: str, folder: Path, family: str | None, name: str, dt: float | None, limit: float | None) -> None:
    """Write C99 code with test vectors: a PLANT's sampled LQR, or a CONTROLLER for --plant.

    CONTROLLER: lqr, lqg, mpc:20, pid[:rule], network, a run's folder, mine.py[:name], or a .json, .mat or
    .npz of deployment.save. lqg, pid and a StateSpace get measured outputs, the others the plant's state. Controllers
    of different names link into one program.

    lqrlab export cart_pole -o firmware; lqrlab export lqg --plant cart_pole --name lqg -o firmware
    """
    from lqrlab.extensions.controllers.processes import BUILT_IN, parted
    from lqrlab.extensions.deployment.c_code import check_folder, check_name

    check_name(name)
    check_folder(folder, name)
    if family is not None:
        parted(source)  # refused before anything is loaded
    elif Path(source).is_dir() or source.partition(":")[0] in BUILT_IN:
        raise ValueError(f"--plant: expected the plant that {source} is to control, as --plant cart_pole")
    options.require_plant(family or source, "--plant" if family else "PLANT|CONTROLLER")
    import jax

    from lqrlab import compute
    from lqrlab.extensions.deployment import c_files
    from lqrlab.simulation import Problem

    compute.setup()
    word, _, rest = source.partition(":")
    what = "network of " * Path(source).is_dir() + os.path.relpath(source)
    what = _NAMES[word] + f" ({rest})" * bool(rest) if word in _NAMES else what
    what = f"{what if family else 'LQR'} for {Path(family or source).name}"
    click.echo(f"designing {what} …", err=True)
    with jax.enable_x64(True):
        limits = None if limit is None else (-limit, limit)
        problem = Problem.of(options.plant(family or source), dt=dt, limits=limits, optimum=family is None)
        controller: Any = problem.K
        if family is not None:
            from lqrlab.extensions.controllers.loading import load

            controller = load(source)
            if hasattr(controller, "gains") and problem.plant is not None:  # one for each of many plants
                padded = controller.gains((problem.name,), Problem.of([problem.plant]))
                controller = getattr(controller, "K", padded[0, : problem.m, : problem.n])
        written = c_files.to_c(controller, problem, folder, name=name, source=what)
    click.echo(f"wrote {written}: {what}; README.md describes build and test")
