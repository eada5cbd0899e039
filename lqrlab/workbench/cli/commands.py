"""The command line: ``lqrlab --help``. JAX is imported only by the commands that compute."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

import lqrlab
from lqrlab.workbench.cli import bench, data
from lqrlab.workbench.cli.options import complete, settings

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
        from lqrlab.workbench.runs.pipeline import RunError

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
@click.argument("only", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=complete("notebook"))
@click.option(
    "--profile",
    default="quick",
    show_default=True,
    help="Parameters to run with: tiny, quick or full.",
    shell_complete=complete("profile"),
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
    shell_complete=complete("parameter"),
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
    from lqrlab.workbench.runs import pipeline

    try:
        given = settings(overrides, "learning_rate=1e-3")
        pipeline.run(profile, folder, given, only=only, source=source, fresh=fresh)
    except KeyboardInterrupt:
        click.echo("\nstopped; the same command goes on from here", err=True)
        sys.exit(130)


@main.command()
@click.argument("target", metavar="NOTEBOOK|PLANT", shell_complete=complete("notebook"))
@click.option(
    "-p",
    "overrides",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values, as in 1e-3,3e-4.",
    shell_complete=complete("parameter"),
)
@click.option("--list", "listed", type=click.Path(path_type=Path), help="CSV or JSON file, one point a row.")
@click.option("--random", "num_random", type=int, metavar="N", help="N points drawn from values and ranges.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.option(
    "--profile", help="Parameters that every run has.  [default: quick]", shell_complete=complete("profile")
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
    from lqrlab.workbench.runs import comparison, sweep_points
    from lqrlab.workbench.runs import sweep as sweeps

    given = settings(overrides, "learning_rate=1e-3,3e-4")
    rows = sweep_points.read_list(listed) if listed else ({},)
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


@main.command()
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
def report(folder: Path | None, show: bool) -> None:
    """Write the report of a run or sweep, or list all.

    HTML files that open offline; FOLDER/report/index.html is the front page. Without FOLDER: data/index.html,
    the index of all runs and sweeps.
    """
    from lqrlab.workbench.runs import comparison, pipeline, sweep_run
    from lqrlab.workbench.runs import report as reports

    if folder is None:
        index = reports.index(pipeline.find_source().parent / "data")
    else:
        index = (comparison if (folder / sweep_run.RECORD).exists() else reports).write(folder)
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
    script = kind(main, {}, "lqrlab", "_LQRLAB_COMPLETE")
    click.echo(script.source_template % script.source_vars())  # source() would start bash to ask its version


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
    from lqrlab.workbench.figures import catalogue_page
    from lqrlab.workbench.runs.terminal import table

    compute.setup()
    if file:
        click.echo(
            catalogue_page.page([name] if name else None, linear=name is None, unfolded=bool(name)).save(file)
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
    card = catalogue_page.card(plants.make(name), equations=False)
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


for command in (data.data, data.train, bench.bench, bench.doctor):
    main.add_command(command)
