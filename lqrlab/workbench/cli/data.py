"""``lqrlab data`` and ``lqrlab train``: a data set by itself, and a policy from one, without notebooks."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from lqrlab.workbench.cli.options import complete, settings


@click.group()
def data() -> None:
    """Make a data set by itself, or check one."""


@data.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--config", type=click.Path(path_type=Path), help="JSON file with what to make.")
@click.option("-p", "overrides", multiple=True, metavar="NAME=VALUE", help="Set a part of the config.")
@click.option("--workers", type=click.IntRange(1), help="Make it in so many processes of this machine.")
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, as tcp://head:8786.")
@click.option("--devices", is_flag=True, help="Use all devices that JAX sees here, a shard on each.")
def generate(
    path: Path,
    config: Path | None,
    overrides: tuple[str, ...],
    workers: int | None,
    scheduler: str | None,
    devices: bool,
) -> None:
    """Make a data set in the folder PATH, or finish one that was begun there.

    What is not set has its default; -p families=pendulum,cart_pole -p variants=10. With
    -p keep_every=10 -p segment_length=64 one stretch of 64 steps in every ten is kept of each trajectory.
    Whoever makes it, in one process or many, the bytes are the same.
    """
    import contextlib

    import jax

    from lqrlab import compute, dataset
    from lqrlab.workbench.figures import data_card
    from lqrlab.workbench.runs import cluster
    from lqrlab.workbench.runs.notebooks import retyped
    from lqrlab.workbench.runs.terminal import Progress

    compute.setup()
    try:
        text = config.read_text() if config else "{}"
    except OSError as error:
        raise ValueError(f"--config {config}: cannot be read ({error.strerror})") from None
    dataset.DataConfig.from_json(text)  # what is wrong in the file is told as such
    given = json.loads(text) | retyped(dataset.DataConfig, settings(overrides, "variants=10"))
    wanted = dataset.DataConfig.from_json(json.dumps(given))
    progress = Progress(str(path), 1)

    def show(done: int, total: int, what: str) -> None:
        progress.total = total
        progress.update(min(done + 1, total), what)

    with contextlib.ExitStack() as held:
        engine = None
        if workers or scheduler is not None:
            engine = held.enter_context(
                cluster.engine(
                    workers=workers, scheduler=scheduler, say=lambda text: progress.update(note=text)
                )
            )
        made = dataset.generate(
            wanted, path, progress=show, engine=engine, devices=jax.local_devices() if devices else None
        )
    record = made.record
    rows = "trajectories" if wanted.keep_every == 1 else "stretches of trajectories"
    progress.close("✓", f"{record['variants']} variants, {record['trajectories']} {rows}")
    click.echo(f"card: {data_card.write(made)}")


@data.command()
@click.argument("path", type=click.Path(path_type=Path))
def verify(path: Path) -> None:
    """Check the data set in PATH: checksums, counts, split, and the laws that its numbers obey."""
    from lqrlab import compute, dataset

    compute.setup()
    found = dataset.verify(path)
    click.echo(found, err=not found.ok)
    if not found.ok:
        sys.exit(1)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--profile", default="quick", show_default=True, shell_complete=complete("profile"))
@click.option("-p", "overrides", multiple=True, metavar="NAME=VALUE", help="Set a parameter of 03_training.")
@click.option("--processes", default=1, show_default=True, help="Processes here that train as one.")
@click.option("--notebooks", "source", type=click.Path(path_type=Path), help="Folder of the notebooks.")
def train(
    folder: Path, profile: str, overrides: tuple[str, ...], processes: int, source: Path | None
) -> None:
    """Train on FOLDER/dataset as notebook 03 does, without the notebook, on one process or on several.

    Several tasks of a Slurm step find each other: srun lqrlab train FOLDER. Interrupted, the same command goes on;
    lqrlab run 03_training --folder FOLDER then shows what was trained.
    """
    from lqrlab import compute, dataset, learning
    from lqrlab.workbench.runs import notebooks, pipeline

    if processes > 1 and not compute.grouped():
        sys.exit(compute.start([sys.executable, "-m", "lqrlab.workbench", *sys.argv[1:]], processes))
    compute.setup()
    compute.join()
    source = pipeline.find_source(source)
    chain = notebooks.named(source, ("03_training",))
    given = {name: v for name, v in pipeline.read_profile(source, profile).items() if name == "03_training"}
    values = notebooks.effective(chain, given, settings(overrides, "learning_rate=1e-3"))["03_training"]
    values["checkpoint_every"] = 5 * values["report_every"]

    def those(kind: Any) -> Any:
        return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})

    def line(row: dict[str, Any]) -> None:
        shown = ("step", "loss", "validation_loss", "validation_efficiency", "windows_per_second")
        click.echo("  ".join(f"{name} {row[name]:.6g}" for name in shown))

    configs = those(learning.ModelConfig), those(learning.TrainConfig)
    chosen = {name: values[name] for name in ("batch_size", "window", "seed")}
    windows = dataset.source(dataset.open(folder / "dataset"), kind=values["loading"], **chosen)
    fit = learning.fit(windows, *configs, folder, backend=those(compute.Backend), progress=line)
    if fit.stopped:
        sys.exit(130)
