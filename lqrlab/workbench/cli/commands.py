"""The command line: ``lqrlab --help``. JAX is imported only by the commands that compute."""

import contextlib
import dataclasses
import errno
import importlib.metadata
import json
import math
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import lqrlab
from lqrlab.workbench.cli import data_commands, doctor, options
from lqrlab.workbench.cli.options import PATH, as_json, complete
from lqrlab.workbench.runs import notebooks, pipeline, plant_copies, run_folder

if TYPE_CHECKING:
    from lqrlab.systems import Plant

COMMANDS = "lqrlab.commands"
"""Entry points of further commands."""
MATTER = ("run", "report", "sweep", "systems", "doctor")
RESUMED = ("run", "sweep", "data", "train")
_DISK = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there and run the same command again")
_DISK |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that may be written to")


class _Group(click.Group):
    """Turns what went wrong into one clean line: exit code 2 for a wrong request, 1 for a failed run."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their short help; those of extensions by name, or asking for help would import them."""
        own = [name for name in self.list_commands(ctx) if name in self.commands and not self.commands[name].hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(formatter.width - 16)) for name in own])
        added = ", ".join(importlib.metadata.entry_points(group=COMMANDS).names)
        formatter.write_text(f"Commands of extensions: {added}.")

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, the most important first; then those of extensions."""
        names = [*MATTER, *(name for name in self.commands if name not in MATTER)]
        return [*names, *importlib.metadata.entry_points(group=COMMANDS).names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command by its name, of this package or of an extension."""
        found = super().get_command(ctx, name)
        for point in importlib.metadata.entry_points(group=COMMANDS, name=name) if found is None else ():
            options.with_plants(found := point.load())
        return found

    def main(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> Any:
        args = sys.argv[1:] if args is None else args
        try:
            return super().main(args, *more, **kwargs)
        except (ValueError, OSError, pipeline.RunError) as error:
            if "--traceback" in args:
                raise
            failed = not isinstance(error, ValueError)
            words = _in_words(error) if isinstance(error, OSError) else str(error)
            click.echo("\n" * failed + f"lqrlab: {words}", err=True)
            sys.exit(1 if failed else 2)

    def invoke(self, ctx: click.Context) -> object:
        """Ctrl-C ends with a sentence; a value without its ``-p`` is recognized."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not ("unexpected extra argument" in error.message and "=" in error.message):
                raise
            words = f"{error.message}; values are given with -p, as in -p learning_rate=1e-3"
            raise click.UsageError(words, error.ctx) from None
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in RESUMED
            click.echo("\nstopped" + "; the same command resumes it" * resumes, err=True)
            sys.exit(130)


def _in_words(error: OSError) -> str:
    """An error of the operating system in words: the file, what went wrong, what to do."""
    said = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    advice = _DISK.get(error.errno or 0)
    return f"{where}{said}" + (f"; {advice}" if advice else "")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lqrlab.__version__, prog_name="lqrlab")
@click.option("--traceback", is_flag=True, help="Show where in the code an error comes from.")
def main(traceback: bool) -> None:
    """Train controllers on benchmark plants; report their excess cost."""


@main.command()
@click.argument("only", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=complete("notebook"))
@options.profile(help="Parameters to run with: tiny, quick, full, wide or history.", default="quick", show_default=True)
@options.folder(help="Folder of the run.  [default: data/runs/PROFILE]")
@options.overrides(help="Set a parameter of the notebooks.", shell_complete=complete("parameter"))
@click.option("--like", type=PATH, metavar="RUN", help="Folder of a run: its notebooks, with the values that it had.")
@click.option("--fresh", is_flag=True, help="Remove what an earlier run left there, start from scratch.")
@click.option("--dry-run", is_flag=True, help="Say what would run, with which values, and what is kept.")
@options.source
def run(profile: str, folder: Path | None, overrides: dict[str, str], like: Path | None, **kwargs: Any) -> None:
    """Run the notebooks 01 to 04 in order, or each NOTEBOOK named, and write the report.

    What is finished and up to date is skipped, so the same command resumes an interrupted run.

    NAME is notebook.parameter, as in -p 03_training.learning_rate=1e-3, or a parameter alone for all
    notebooks that have it; lqrlab list shows them.
    """
    values: dict[str, object] = {}
    if like is not None:
        kwargs["only"], values = pipeline.recorded_values(like, kwargs["only"])
    pipeline.run(profile, folder, values | overrides, **kwargs)


@main.command()
@click.argument("target", metavar="NOTEBOOK|PLANT", shell_complete=complete("notebook"))
@options.overrides(help="Values, as in 1e-3,3e-4.", metavar="NAME=VALUES", shell_complete=complete("parameter"))
@click.option("--list", "listed", type=PATH, help="CSV or JSON file, one point a row.")
@click.option("--random", "num_random", type=int, metavar="N", help="N points drawn from values and ranges.")
@click.option("--seed", default=0, show_default=True, help="Seed of the draws.")
@options.profile(help="Parameters that all runs have.  [default: quick]")
@click.option("--from", "inputs", type=PATH, metavar="RUN", help="Run that is read.  [default: data/runs/PROFILE]")
@options.folder(help="Output folder.  [default: data/sweeps/NOTEBOOK]")
@click.option("--workers", type=click.IntRange(1), help="Number of worker processes.  [default: half the cores]")
@click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, as tcp://head:8786.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="Time limit of each run.")
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, help="Retries of a failed run.")
@click.option("--fresh", is_flag=True, help="Remove what earlier runs left at these points.")
@click.option("--report/--no-report", default=True, help="Compare the runs on a page.  [default: yes]")
@click.option("--dry-run", is_flag=True, help="Say what would run, and start nothing.")
@as_json
def sweep(target: str, overrides: dict[str, str], listed: Path | None, as_json: bool, **kwargs: Any) -> None:
    """Run a notebook, or design for a plant, at many points.

    Points with a result are skipped, so the same command runs only what is missing. Ranges are for --random:
    -p learning_rate=1e-4:1e-2:log -p depth=1:6

    A plant's points need no notebook: thousands of them go through one program. Its physical parameters, dt and
    factors of the weights (q_STATE, r_INPUT) can be set: lqrlab sweep cart_pole -p pole_length=0.1:1 -p
    q_angle=0.1:10:log --random 5000
    """
    from lqrlab.workbench.runs import sweep, sweep_plan

    rows = sweep_plan.read_list(listed) if listed else ({},)
    asked = sweep_plan.Sweep(target, overrides, rows, **kwargs)
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        folder = sweep.sweep(asked)
    if asked.dry_run:
        return
    frame = sweep.table(folder)
    if as_json:
        click.echo(frame.to_json(orient="records", lines=True).rstrip())
    if (frame["status"] != "finished").any():
        sys.exit(1)


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
        raise ValueError(
            "--one-file: expected the FOLDER of a run; the page of a sweep, and the list of all, are one file"
        )
    if folder is not None and not swept:
        run_folder.require_record(folder)
    from lqrlab.workbench.runs import report

    if folder is None:
        index = report.index(pipeline.find_source().parent / "data")
    else:
        index = report.compare(folder) if swept else report.write(folder, whole=whole)
    click.echo(index)
    if show:
        click.launch(index.resolve().as_uri())


@main.command("list")
@click.argument("names", nargs=-1, metavar="[NOTEBOOK]...", shell_complete=complete("notebook"))
@options.source
def listing(names: tuple[str, ...], source: Path | None) -> None:
    """List the notebooks, their questions and parameters, or those of each NOTEBOOK named.

    A parameter is set with -p NAME=VALUE by lqrlab run and lqrlab sweep.
    """
    from lqrlab.workbench.runs.terminal import table

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
    from lqrlab.workbench.runs.terminal import table

    compute.setup()
    # no plant is made to be listed
    families = map(systems.family, systems.names()) if name is None else [type(options.plant(name))]
    if file:
        from lqrlab.workbench.figures import catalogue_page

        page = catalogue_page.page([name] if name else None, linear=name is None, unfolded=bool(name))
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


STUDY = """# {name}

Notebooks and profiles of lqrlab {version}, yours to change. `lqrlab run --profile tiny` executes 01 to 04 of this
folder in a minute and `lqrlab run` at full size, `lqrlab run 15_swing_up` one that goes deeper; the report is in
`data/runs/<profile>/report`. By hand: `jupyter lab notebooks`. More: `lqrlab --help`.
"""


@main.command()
@click.argument("folder", type=PATH)
def init(folder: Path) -> None:
    """Make FOLDER, a study: the notebooks and profiles to run and to change, and a README."""
    package = Path(lqrlab.__file__).parent
    packaged = package / "workbench" / "notebooks"  # of a wheel; a checkout has them next to the package
    source = packaged if packaged.is_dir() else package.parent / "notebooks"
    try:
        run_folder.refuse_filled(folder)
        shutil.copytree(source, folder / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
        text = STUDY.format(name=folder.resolve().name, version=lqrlab.__version__)
        (folder / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{folder}: cannot be made ({error.strerror or error})") from None
    click.echo(f"made {folder}: cd {folder} && lqrlab run --profile tiny")


@main.command(hidden=True)
@options.source
def start(source: Path | None) -> None:
    """Write data/start.ipynb, on which make lab opens: what was run, with its answer, and all notebooks."""
    from lqrlab.workbench.runs import start_page

    click.echo(start_page.write(pipeline.find_source(source)))


@main.command()
@click.argument("name")
def new(name: str) -> None:
    """Make a notebook NN_NAME that runs, with parameters, a panel, a figure and a result, and a test of it."""
    from lqrlab.workbench.runs import new_notebook

    notebook, test = new_notebook.create(name, pipeline.find_source())
    click.echo(f"made {notebook}\nand  {test}: lqrlab run {notebook.stem}, or open it in jupyter lab")


@main.command()
@click.argument("folder", type=PATH)
@click.argument("file", type=PATH, required=False)
def pack(folder: Path, file: Path | None) -> None:
    """Write the run in FOLDER, with your files of plants, to one FILE, a zip archive.  [default: FOLDER.zip]"""
    from lqrlab.workbench.runs import archive

    click.echo(archive.pack(folder, file))


@main.command()
@click.argument("file", type=PATH)
@click.argument("folder", type=PATH, required=False)
def unpack(file: Path, folder: Path | None) -> None:
    """Check FILE, an archive of lqrlab pack, and make its run's FOLDER.  [default: data/runs/FILE]

    The archive is untrusted: nothing in it is executed.
    """
    from lqrlab.workbench.runs import archive

    folder = pipeline.find_source().parent / "data" / "runs" / file.stem if folder is None else folder
    changed = archive.unpack(file, folder)
    if changed:
        click.echo("made by other versions: " + "; ".join(changed))
    where = run_folder.short(folder.resolve())
    again = shlex.join(["lqrlab", "run", "--like", where, "--folder", f"{where}_again"])
    click.echo(f"to see it: {shlex.join(['lqrlab', 'report', where, '--open'])}\nto repeat it: {again}")
    if (plants := folder / plant_copies.FOLDER).is_dir():
        click.echo(
            f"with --plants for each file of plants in {run_folder.short(plants)}: read them first, some are programs"
        )


for command in (data_commands.data, data_commands.train, doctor.doctor):
    main.add_command(command)
options.with_plants(main)
