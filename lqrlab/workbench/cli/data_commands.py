"""``lqrlab data`` and ``lqrlab train``: a data set by itself, and a policy from one, without notebooks."""

import contextlib
import json
import sys
import typing
from pathlib import Path
from typing import Any

import click

from lqrlab.workbench.cli import options
from lqrlab.workbench.cli.options import PATH
from lqrlab.workbench.runs import notebooks, pipeline


@click.group()
def data() -> None:
    """Make a data set by itself, or check one."""


@data.command()
@click.argument("path", type=PATH)
@click.option("--config", type=PATH, help="JSON file with the config.")
@options.overrides(help="Set a field of the config.")
@click.option("--workers", type=click.IntRange(1), help="Number of worker processes.")
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, as tcp://head:8786.")
@click.option("--devices", is_flag=True, help="Use all devices that JAX sees here, a shard on each.")
def generate(path: Path, config: Path | None, overrides: dict[str, str], devices: bool, **engine_options: Any) -> None:
    """Make a data set in the folder PATH, or finish one that was begun there.

    What is not set has its default; -p families=pendulum,cart_pole -p variants=10. With
    -p keep_every=10 -p segment_length=64 one segment of 64 steps in every ten is kept of each trajectory.
    The bytes do not depend on the number of processes.
    """
    import jax

    from lqrlab import compute, dataset
    from lqrlab.compute.files import read_object
    from lqrlab.workbench.figures import data_card
    from lqrlab.workbench.runs import cluster
    from lqrlab.workbench.runs.terminal import Progress

    compute.setup()
    try:
        given = read_object(config) if config else {}
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {config}: {getattr(error, 'strerror', None) or error}") from None
    dataset.DataConfig.from_dict(given)  # an error in the file is told as such
    kinds = typing.get_type_hints(dataset.DataConfig)
    typed = {name: notebooks.from_text(value, kinds.get(name, str)) for name, value in overrides.items()}
    wanted = dataset.DataConfig.from_json(json.dumps(given | typed))
    with contextlib.ExitStack() as held:
        progress = held.enter_context(Progress(even=True))

        def show(done: int, total: int, what: str) -> None:
            if done == 0:
                progress.begin(str(path), total)
            progress.step(min(done + 1, total), what)

        asked = any(value is not None for value in engine_options.values())
        engine = held.enter_context(cluster.engine(**engine_options, say=progress.say)) if asked else None
        local = jax.local_devices() if devices else None
        made = dataset.generate(wanted, path, progress=show, engine=engine, devices=local, say=progress.say)
        rows = "segments of trajectories" if wanted.segmented else "trajectories"
        progress.end("✓", f"{made.record['variants']} variants, {made.record['trajectories']} {rows}")
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
    if not verdict.ok:
        sys.exit(1)


@click.command()
@click.argument("folder", type=PATH)
@options.profile(help="Parameters to train with.", default="quick", show_default=True)
@options.overrides(help="Set a parameter of 03_training.")
@options.source
def train(folder: Path, profile: str, overrides: dict[str, str], source: Path | None) -> None:
    """Train on FOLDER/dataset as notebook 03 does, without the notebook.

    Several tasks of a Slurm step or of mpirun train as one: srun lqrlab train FOLDER. The same command resumes an
    interrupted training; lqrlab run 03_training --folder FOLDER then shows what was trained.
    """
    source = pipeline.find_source(source)
    chain, given = notebooks.named(source, ("03_training",)), notebooks.read_profile(source, profile)
    given = {name: values for name, values in given.items() if name == "03_training"}
    values: dict[str, Any] = dict(notebooks.effective(chain, given, overrides)["03_training"])
    values["train_options"] = {"checkpoint_every": 5 * values["report_every"]} | values["train_options"]
    if not (folder / "dataset").is_dir():
        raise ValueError(
            f"{folder}: expected a folder with a data set, but found no {folder / 'dataset'}; "
            f"lqrlab run 02_data_generation --folder {folder} makes one"
        )
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
        raise pipeline.RunError(str(error)) from None
    if fit.stopped:
        sys.exit(130)
