"""The command line: ``lqrlab --help``. JAX is imported only by the commands that compute."""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import lqrlab


def _complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What the Tab key offers for a notebook, a profile or ``-p NAME=``; nothing where there is none."""

    def offer(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from lqrlab.workbench import notebooks, pipeline

        try:
            source = pipeline.find_source(context.params.get("source"))
            named = context.params.get("target") or context.params.get("only") or ()
            if kind == "notebook":
                words = [path.stem for path in sorted(source.glob("[0-9][0-9]_*.ipynb"))]
                if "/" in typed or not any(word.startswith(typed) for word in words):
                    return [CompletionItem(typed, type="file")]
            elif kind == "profile":
                words = sorted(path.stem for path in (source / "profiles").glob("*.json"))
            else:
                chosen = notebooks.named(source, [named] if isinstance(named, str) else named)
                every = [p for nb in chosen or notebooks.find(source) for p in nb.parameters]
                words = [f"{name}=" for name in dict.fromkeys(every) if name != "run"]
        except ValueError:
            return []
        return [CompletionItem(word) for word in words if word.startswith(typed)]

    return offer


MATTER = ("run", "report", "sweep", "systems", "doctor")


class _Group(click.Group):
    """Turns what went wrong into one clean line: exit code 2 for a wrong request, 1 for a failed run."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What matters most comes first, not the alphabet."""
        names = list(self.commands)
        first = [name for name in MATTER if name in names] or names
        width = formatter.width - 6 - max(map(len, names))
        for title, listed in (("Commands", first), ("Further", [n for n in names if n not in first])):
            if listed:
                with formatter.section(title):
                    formatter.write_dl([(n, self.commands[n].get_short_help_str(width)) for n in listed])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        from lqrlab.workbench.pipeline import RunError

        try:
            return super().main(*args, **kwargs)
        except ValueError as error:
            if "--traceback" in sys.argv:
                raise
            click.echo(f"lqrlab: {error}", err=True)
            sys.exit(2)
        except RunError as error:
            if "--traceback" in sys.argv:
                raise
            click.echo(f"\nlqrlab: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lqrlab.__version__, prog_name="lqrlab")
@click.option("--traceback", is_flag=True, help="Show where in the code an error comes from.")
def main(traceback: bool) -> None:
    """Optimal and learned control of dynamical systems: plants in, an honest score out."""


@main.command()
@click.argument("only", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=_complete("notebook"))
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    help="Parameters to run with: tiny, quick or full.",
    shell_complete=_complete("profile"),
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Folder of the run.  [default: data/runs/PROFILE]"
)
@click.option(
    "-p",
    "overrides",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a parameter of the notebooks.",
    shell_complete=_complete("parameter"),
)
@click.option("--fresh", is_flag=True, help="Remove what an earlier run left in the folder, start anew.")
@click.option("--notebooks", "source", type=click.Path(path_type=Path), help="Folder of the notebooks.")
def run(
    only: tuple[str, ...],
    profile: str,
    folder: Path | None,
    overrides: tuple[str, ...],
    fresh: bool,
    source: Path | None,
) -> None:
    """Run the notebooks 01 to 09 in order, or each NOTEBOOK named, and write the report.

    What is finished and up to date is skipped, so the same command goes on after an interruption.

    NAME is notebook.parameter, as in -p 03_training.learning_rate=1e-3, or a parameter alone for every
    notebook that has it.
    """
    from lqrlab.workbench import pipeline

    try:
        given = _given(overrides, "learning_rate=1e-3")
        pipeline.run(profile, folder, given, only=only, source=source, fresh=fresh)
    except KeyboardInterrupt:
        click.echo("\nstopped; the same command goes on from here", err=True)
        sys.exit(130)


@main.command()
@click.argument("target", metavar="NOTEBOOK|PLANT", shell_complete=_complete("notebook"))
@click.option(
    "-p",
    "overrides",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values, as in 1e-3,3e-4.",
    shell_complete=_complete("parameter"),
)
@click.option("--list", "listed", type=click.Path(path_type=Path), help="CSV or JSON file, one point a row.")
@click.option("--random", "num_random", type=int, metavar="N", help="N points drawn from values and ranges.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option(
    "--profile", help="Parameters that every run has.  [default: quick]", shell_complete=_complete("profile")
)
@click.option(
    "--from",
    "inputs",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Folder of the run whose data set (checkpoints, …) is used.  [default: data/runs/PROFILE]",
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Of the sweep.  [default: data/sweeps/NOTEBOOK]"
)
@click.option(
    "--road",
    type=click.Choice(["auto", "notebooks", "vmap"]),
    default="auto",
    show_default=True,
    help="A notebook a point, or all points in one program.",
)
@click.option("--workers", type=click.IntRange(1), help="Runs at a time.  [default: half the cores]")
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, as tcp://head:8786.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Of each run.")
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, help="Of a run that fails.")
@click.option("--fresh", is_flag=True, help="Remove what earlier runs left at these points.")
@click.option("--report/--no-report", default=True, help="Compare the runs on a page.  [default: yes]")
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, one run a line; progress aside.")
def sweep(target: str, overrides: tuple[str, ...], listed: Path | None, as_json: bool, **kwargs: Any) -> None:
    """Run a notebook, or design for a plant, at many points.

    Points with a result are skipped, so the same command runs only what is missing. Ranges are for --random:
    -p learning_rate=1e-4:1e-2:log -p depth=1:6

    A plant's points need no notebook: thousands of them go through one program. Its physical parameters, dt and
    factors of the weights (q_STATE, r_INPUT) can be set: lqrlab sweep cart_pole -p pole_length=0.1:1 -p
    q_angle=0.1:10:log --random 5000
    """
    from lqrlab.workbench import comparison, points
    from lqrlab.workbench import sweep as sweeps

    given = _given(overrides, "learning_rate=1e-3,3e-4")
    rows = points.read_list(listed) if listed else ({},)
    try:
        folder = sweeps.sweep(target, given, rows=rows, stream=sys.stderr if as_json else None, **kwargs)
    except KeyboardInterrupt:
        click.echo("\nstopped; the same command goes on from here", err=True)
        sys.exit(130)
    frame = comparison.table(folder)
    if as_json:
        click.echo(frame.to_json(orient="records", lines=True).rstrip())
    if (frame["status"] != "finished").any():
        sys.exit(1)


def _given(items: tuple[str, ...], example: str) -> dict[str, str]:
    """``NAME=VALUE`` as typed after ``-p``, taken apart."""
    given = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"-p {item}: expected NAME=VALUE, as in -p {example}")
        given[name.strip()] = value
    return given


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def report(folder: Path | None, show: bool) -> None:
    """Write the report of a run or sweep, or list all.

    HTML files that open offline; FOLDER/report/index.html is the front page. Without FOLDER: data/index.html,
    the index of all runs and sweeps.
    """
    from lqrlab.workbench import comparison, pipeline, trial
    from lqrlab.workbench import report as reports

    if folder is None:
        index = reports.index(pipeline.find_source().parent / "data")
    else:
        index = (comparison if (folder / trial.RECORD).exists() else reports).write(folder)
    click.echo(index)
    if show:
        click.launch(index.resolve().as_uri())


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes the Tab key complete lqrlab.

    bash: eval "$(lqrlab completion bash)" in ~/.bashrc; zsh likewise in ~/.zshrc; fish: lqrlab completion fish >
    ~/.config/fish/completions/lqrlab.fish. Notebooks, profiles and
    the notebooks' parameters complete, too.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(main, {}, "lqrlab", "_LQRLAB_COMPLETE")
    click.echo(
        complete.source_template % complete.source_vars()
    )  # source() would start bash to ask its version


@main.group()
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
    -p thinning=10 -p stretch=64 one stretch of 64 steps in every ten is kept of each trajectory.
    Whoever makes it, in one process or many, the bytes are the same.
    """
    import contextlib

    import jax

    from lqrlab import compute, dataset
    from lqrlab.workbench import cluster, datacard
    from lqrlab.workbench.notebooks import retyped
    from lqrlab.workbench.terminal import Progress

    compute.setup()
    try:
        text = config.read_text() if config else "{}"
    except OSError as error:
        raise ValueError(f"--config {config}: cannot be read ({error.strerror})") from None
    dataset.DataConfig.from_json(text)  # what is wrong in the file is told as such
    given = json.loads(text) | retyped(dataset.DataConfig, _given(overrides, "variants=10"))
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
    rows = "trajectories" if wanted.thinning == 1 else "stretches of trajectories"
    progress.close("✓", f"{record['variants']} variants, {record['trajectories']} {rows}")
    click.echo(f"card: {datacard.write(made)}")


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


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--profile", default="quick", show_default=True, shell_complete=_complete("profile"))
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
    from lqrlab.workbench import notebooks, pipeline

    if processes > 1 and not compute.grouped():
        sys.exit(compute.start([sys.executable, "-m", "lqrlab.workbench", *sys.argv[1:]], processes))
    compute.setup()
    compute.join()
    source = pipeline.find_source(source)
    chain = notebooks.named(source, ("03_training",))
    given = {name: v for name, v in pipeline.read_profile(source, profile).items() if name == "03_training"}
    values = notebooks.effective(chain, given, _given(overrides, "learning_rate=1e-3"))["03_training"]
    values["checkpoint_every"] = 5 * values["report_every"]

    def those(kind: Any) -> Any:
        return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})

    def line(row: dict[str, Any]) -> None:
        shown = ("step", "loss", "validation_loss", "validation_efficiency", "windows_per_second")
        click.echo("  ".join(f"{name} {row[name]:.6g}" for name in shown))

    configs = those(learning.ModelConfig), those(learning.TrainConfig)
    given_data = dataset.open(folder / "dataset")
    fit = learning.fit(given_data, *configs, folder, backend=those(compute.Backend), progress=line)
    if fit.stopped:
        sys.exit(130)


@main.group()
def bench() -> None:
    """Measure how fast this machine is, beside other libraries."""


@bench.command("control")
@click.option("--states", multiple=True, type=int, default=(2, 4, 6, 12), help="Dimension; may be repeated.")
@click.option("--num", default=10_000, show_default=True, help="Problems of each dimension.")
@click.option(
    "--hard", is_flag=True, help="Not how fast but how sure: stiff and badly scaled problems, n = 1 … 12."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def bench_control(states: tuple[int, ...], num: int, hard: bool, as_json: bool) -> None:
    """Riccati designs in bulk, beside SciPy's, slycot's and contrax's on the same problems."""
    from lqrlab import compute
    from lqrlab.evaluation import acceptance, bench_control

    compute.setup()
    _figures(
        acceptance.acceptance(num=num) if hard else bench_control.bench_control(states, num=num), as_json
    )


@bench.command("data")
@click.option("--large", is_flag=True, help="Only: stream 10 GB within 1 GiB of memory; some minutes.")
@click.option("--regenerate", is_flag=True, help="Only: make 10⁸ windows, 3 GB, on the disk; some minutes.")
@click.option("--loaders", is_flag=True, help="Only the loaders.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def bench_data(large: bool, regenerate: bool, loaders: bool, as_json: bool) -> None:
    """Closed loops beside NumPy, generation beside raw files, loaders beside PyTorch's and grain's if there."""
    from lqrlab import compute
    from lqrlab.evaluation import bench_data, bench_loading

    compute.setup()
    if large:
        rows = bench_loading.bench_large()
    elif regenerate:
        rows = bench_data.bench_regeneration()
    else:
        rows = bench_loading.bench_loading() if loaders else bench_data.bench_data()
    _figures(rows, as_json)


@bench.command("train")
@click.option("--repeats", default=10, show_default=True, help="Steps of which the fastest counts.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def bench_train(repeats: int, as_json: bool) -> None:
    """Train steps compiled and eager, and the transformer beside PyTorch's (if that is installed)."""
    from lqrlab import compute
    from lqrlab.evaluation import bench_train

    compute.setup()
    _figures(bench_train.bench_train(repeats=repeats), as_json)


def _figures(rows: Sequence[Any], as_json: bool) -> None:
    """A benchmark's rows as a table, or one JSON object a line."""
    from lqrlab.workbench.terminal import table

    if as_json:
        for row in rows:
            click.echo(json.dumps(dataclasses.asdict(row)))
        return
    said = {True: "yes", False: "no", None: ""}
    cells = [
        (r.name, f"{r.value:.4g}", r.unit, "" if r.target is None else f"{r.target:g}", said[r.reached])
        for r in rows
    ]
    click.echo(table(cells, ("figure", "value", "unit", "target", "reached")))


@main.command()
@click.argument("name", required=False)
@click.option(
    "--html", "file", type=click.Path(path_type=Path), help="Write it as a page, with drawings that move."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a plant.")
def systems(name: str | None, file: Path | None, as_json: bool) -> None:
    """List the plants, or show one of them.

    Of one plant: its size, source, parameters, signals and open-loop modes in words.
    """
    from lqrlab import compute
    from lqrlab import systems as plants
    from lqrlab.workbench import catalogue
    from lqrlab.workbench.terminal import table

    compute.setup()
    if file:
        click.echo(
            catalogue.page([name] if name else None, linear=name is None, unfolded=bool(name)).save(file)
        )
        return
    if as_json:
        for plant in [plants.make(family) for family in ([name] if name else plants.names())]:
            click.echo(json.dumps(_described(plant), ensure_ascii=False))
        return
    if name is None:
        listed = [plants.make(family) for family in plants.names()]
        rows = [(p.name, p.n, p.m, f"{p.dt:g}", p.title, p.source) for p in listed]
        click.echo(table(rows, ("name", "n", "m", "dt [s]", "title", "source"), wide=False))
        return
    card = catalogue.card(plants.make(name), equations=False)
    click.echo(f"{card.name}: {card.title}")
    for label, words in card.facts.items():
        click.echo(f"{label}: {words}")
    for head, rows in card.tables.values():
        click.echo("\n" + table(rows, head))
    click.echo("\nopen-loop poles in words:")
    for words in card.modes:
        click.echo(f"  {words}")


def _described(plant: Any) -> dict[str, Any]:
    """A plant for a script: what it is, its signals, its parameters with their units and ranges."""
    from lqrlab.systems import parameter_fields

    signals = {kind: [dataclasses.asdict(s) for s in getattr(plant, kind)] for kind in ("states", "inputs")}
    parameters = {
        key: {"default": f.default, **{k: f.metadata[k] for k in ("unit", "low", "high", "about")}}
        for key, f in parameter_fields(type(plant)).items()
    }
    said = {"name": plant.name, "title": plant.title, "source": plant.source, "dt": float(plant.dt)}
    return said | signals | {"parameters": parameters}


@main.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a finding.")
def doctor(as_json: bool) -> None:
    """Check the installation and say what to do.

    Versions, devices, the notebooks' kernel, disk and memory.
    """
    from lqrlab.workbench import doctor as examination

    findings = examination.examine()
    for finding in findings:
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(finding), ensure_ascii=False))
            continue
        click.echo(f"{'✓' if finding.good else '✗'} {finding.subject:<10}{finding.text}")
        if finding.remedy:
            click.echo(f"  {'':<10}→ {finding.remedy}")
    if not all(finding.good for finding in findings):
        sys.exit(1)
