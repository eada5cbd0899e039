"""Commands that make something: runs, sweeps, reports, data sets, studies. JAX is imported when computing."""

import contextlib
import json
import sys
import typing
from pathlib import Path
from typing import Any

import click

from lqrlab.installation import program, typed
from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH, complete, main
from lqrlab.workbench.runs import notebooks, pipeline, run_folder, session, study


@main.command()
@click.argument("only", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=complete("notebook"))
@options.profile(help="Parameters to run with: tiny, quick, full, wide or history.", default="quick", show_default=True)
@options.folder(help="Folder of the run.  [default: data/runs/PROFILE next to notebooks/]")
@options.overrides(help="Set a parameter of the notebooks.", shell_complete=complete("parameter"))
@click.option("--fresh", is_flag=True, help="Remove earlier results, start from scratch.")
@options.dry_run
@options.source
def run(profile: str, folder: Path | None, overrides: dict[str, str], **kwargs: Any) -> None:
    """Run the notebooks 01 to 04 in order, or each NOTEBOOK named, and write the report.

    Finished, up-to-date notebooks are skipped, so the same command resumes an interrupted run.

    NAME is notebook.parameter, as in -p 03_training.learning_rate=1e-3, or a parameter alone for all
    notebooks that have it; lqrlab list shows them.
    """
    pipeline.run(profile, folder, overrides, **kwargs)


@main.command()
@click.argument("target", metavar="NOTEBOOK|PLANT", shell_complete=complete("notebook"))
@options.overrides(help="Values, as in 1e-3,3e-4.", metavar="NAME=VALUES", shell_complete=complete("parameter"))
@click.option("--random", "num_random", type=click.IntRange(1), metavar="N", help="N draws from values and ranges.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
@options.profile(help="Common parameters of the runs.  [default: quick]")
@click.option("--from", "inputs", type=PATH, metavar="RUN", help="Run that is read.  [default: data/runs/PROFILE]")
@options.folder(help="Output folder.  [default: data/sweeps/NOTEBOOK or PLANT next to notebooks/]")
@options.workers(help="Number of worker processes.  [default: half the cores]")
@options.scheduler
@click.option("--time-limit", type=options.POSITIVE, metavar="SECONDS", help="Limit of each run.")
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, help="Retries of a failed run.")
@click.option("--report/--no-report", default=True, help="Compare the runs on a page.  [default: yes]")
@options.dry_run
def sweep(target: str, overrides: dict[str, str], **kwargs: Any) -> None:
    """Run a notebook, or design for a plant, at many points.

    Runs with a result are skipped, so the same command runs only what is missing. Ranges are for --random:
    -p learning_rate=1e-4:1e-2:log -p depth=1:6

    Designs for a plant need no notebook: one program computes a thousand points. Physical parameters, dt and
    factors of the weights (q_STATE, r_INPUT) can be set: lqrlab sweep cart_pole -p pole_length=0.1:1 -p
    q_angle=0.1:10:log --random 5000
    """
    from lqrlab.workbench.runs import sweep_plan

    asked = sweep_plan.Sweep(target, overrides, **kwargs)
    notebook = sweep_plan.notebook(target)
    plan = sweep_plan.planned(asked, notebook) if notebook else None
    points, folder = (plan.points, plan.folder) if plan else sweep_plan.planned_plant(asked)
    if asked.dry_run:
        sweep_plan.tell(notebook.name if notebook else target, points, folder)
        return
    if plan:
        from lqrlab.workbench.runs import sweep

        sweep.sweep(plan)
    else:
        from lqrlab.workbench.runs import plant_sweep

        plant_sweep.design(asked, points, folder)
    sys.exit(run_folder.read(folder / run_folder.SWEEP)["status"] != "finished")


@main.command()
@click.argument("folder", type=PATH, required=False)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
@click.option("--one-file", "whole", is_flag=True, help="Write all pages of a run into one file, to be mailed.")
def report(folder: Path | None, show: bool, whole: bool) -> None:
    """Write the report of a run or sweep, or list all.

    HTML files that open offline; FOLDER/report/index.html is the front page. Without FOLDER: data/index.html,
    the index of all runs and sweeps.
    """
    swept = folder is not None and (folder / run_folder.SWEEP).exists()
    if whole and (folder is None or swept):
        raise ValueError("--one-file: expected the FOLDER of a run; a sweep's page, and the list of all, are one file")
    if folder is not None and not swept:
        run_folder.require_record(folder)
    from lqrlab.workbench.runs import report

    if folder is None:
        index = report.index(notebooks.find_source().parent / "data")
    elif swept:
        from lqrlab.workbench.runs import sweep

        index = sweep.compare(folder)
    else:
        index = report.write(folder, whole=whole)
    click.echo(index)
    if show:
        click.launch(index.resolve().as_uri())


@main.command()
@click.argument("folder", type=PATH)
def init(folder: Path) -> None:
    """Make FOLDER, a study: editable notebooks and profiles, and a README."""
    study.make(folder)
    click.echo(f"made {folder}: cd {typed(folder)} && {program(folder)} run --profile tiny")


@main.command()
@click.argument("name")
def new(name: str) -> None:
    """Make a runnable notebook NN_NAME with parameters, a panel, a figure, a result, and a test."""
    notebook, test = study.new_notebook(name, notebooks.find_source())
    click.echo(f"made {notebook}\nand  {test}: {program()} run {notebook.stem}, or open it in JupyterLab")


@main.command()
@click.argument("folder", type=PATH)
@click.argument("file", type=PATH, required=False)
def pack(folder: Path, file: Path | None) -> None:
    """Write the run in FOLDER, with your files of plants, to one FILE, a zip archive.  [default: FOLDER.zip]"""
    click.echo(run_folder.pack(folder, file))


@main.command()
@click.argument("file", type=PATH)
@click.argument("folder", type=PATH, required=False)
def unpack(file: Path, folder: Path | None) -> None:
    """Check FILE, an archive of lqrlab pack, and make its run's FOLDER.  [default: data/runs/FILE]

    The archive is untrusted: nothing in it is executed.
    """
    folder = notebooks.find_source().parent / "data" / "runs" / file.stem if folder is None else folder
    changed = run_folder.unpack(file, folder)
    if changed:
        click.echo("made by other versions: " + "; ".join(changed))
    click.echo(f"to see it: {program()} report {typed(folder.resolve())} --open")


@main.group()
def data() -> None:
    """Make a data set by itself, or check one."""


@data.command()
@click.argument("path", type=PATH)
@options.overrides(help="Set a field of the config.")
@options.workers(help="Number of worker processes.")
@options.scheduler
def generate(path: Path, overrides: dict[str, str], **engine_options: Any) -> None:
    """Make a data set in the folder PATH, or complete a partial one.

    Unset fields have their defaults; -p families=pendulum,cart_pole -p variants=10. With
    -p keep_every=10 -p segment_length=64 one segment of 64 steps in every ten is kept of each trajectory.
    The bytes do not depend on the number of processes.
    """
    from lqrlab.dataset import data_config

    kinds = typing.get_type_hints(data_config.DataConfig)
    typed = {name: notebooks.from_text(value, kinds.get(name, str)) for name, value in overrides.items()}
    wanted = data_config.DataConfig.from_json(json.dumps(typed))
    notebooks.require_family("families", *wanted.families)
    from lqrlab import compute, dataset
    from lqrlab.workbench.runs import cluster
    from lqrlab.workbench.runs.terminal import say

    compute.setup()
    here = all(value is None for value in engine_options.values())

    def show(done: int, total: int, what: str) -> None:
        say(f"  {path}  {done}/{total}  {what}")

    with contextlib.nullcontext() if here else cluster.engine(**engine_options) as engine:
        made = dataset.generate(wanted, path, progress=show, engine=engine, say=say)
    rows = "segments of trajectories" if wanted.segmented else "trajectories"
    say(f"✓ {path}  {made.record['variants']} variants, {made.record['trajectories']} {rows}")
    from lqrlab.workbench.figures import data_card

    click.echo(f"card: {data_card.write(made)}")


@data.command()
@click.argument("path", type=PATH)
@click.option("--again", is_flag=True, help="Make every file again and compare it bit for bit.")
def verify(path: Path, again: bool) -> None:
    """Check the data set in PATH, or in PATH/dataset of a run, by its checksums or by making it again."""
    if not (path / "manifest.json").exists() and (path / "dataset").is_dir():
        path = path / "dataset"
    if not path.is_dir():
        raise ValueError(f"{path}: expected the folder of a data set or of a run, but found no such folder")
    from lqrlab import compute, dataset

    compute.setup()
    verdict = dataset.verify(path, again=again)
    click.echo(verdict, err=not verdict.ok)
    sys.exit(not verdict.ok)


@main.command()
@click.argument("folder", type=PATH)
@options.profile(help="Parameters to train with.", default="quick", show_default=True)
@options.overrides(help="Set a parameter of 03_training.")
@options.source
def train(folder: Path, profile: str, overrides: dict[str, str], source: Path | None) -> None:
    """Train on FOLDER/dataset as notebook 03 does, without the notebook.

    Several tasks of a Slurm step or of mpirun train as one: srun lqrlab train FOLDER. The same command resumes an
    interrupted training; lqrlab run 03_training --folder FOLDER then shows the result.
    """
    source = notebooks.find_source(source)
    (nb,) = notebooks.named(source, ("03_training",))
    values: dict[str, Any] = notebooks.effective([nb], notebooks.read_profile(source, profile), overrides)[nb.name]
    values["train_options"] = {"checkpoint_every": 5 * values["report_every"]} | values["train_options"]
    session.require(nb.name, folder, ["dataset"])
    from lqrlab import compute, dataset, learning

    compute.setup()
    compute.join()

    def line(row: dict[str, float]) -> None:
        shown = ("step", "loss", "validation_loss", "validation_efficiency", "windows_per_second")
        click.echo("  ".join(f"{name} {row[name]:.6g}" for name in shown))

    chosen = {name: values[name] for name in ("batch_size", "window", "seed")}
    model = notebooks.config(learning.ModelConfig, values, "model_options")
    training = notebooks.config(learning.TrainConfig, values, "train_options")
    backend = notebooks.config(compute.Backend, values, "backend_options")
    data = dataset.open(folder / "dataset")
    try:
        fit = learning.fit(dataset.source(data, **chosen), model, training, folder, backend=backend, progress=line)
    except learning.NonFiniteLossError as error:
        raise run_folder.RunError(str(error)) from None
    if fit.stopped:
        sys.exit(130)
