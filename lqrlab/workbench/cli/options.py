"""The frame of the command line: its group, the options that several commands have, what the Tab key offers."""

import errno
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import lqrlab
from lqrlab import installation
from lqrlab.workbench.runs import notebooks, run_folder

if TYPE_CHECKING:
    from lqrlab.systems import Plant

COMMANDS = "lqrlab.commands"  # entry points of further commands
MATTER = ("run", "report", "sweep", "systems", "doctor")
RESUMED = ("run", "sweep", "data", "train", "judge")
_DISK = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there and run the same command again")
_DISK |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that may be written to")
PATH = click.Path(path_type=Path)


class _Number(click.FloatRange):
    """A number in a range; others, and nan, are refused with the words of the option's help."""

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if 0 <= number < (self.max or float("inf")) and (number > 0 or not self.min_open):
            return number
        wanted = "a positive number" if self.min_open else "a number ≥ 0" + (f" and < {self.max}" if self.max else "")
        return self.fail(f"expected {wanted}, but found {value}: {param.help.partition('  [')[0]}", param, ctx)


POSITIVE, NOISE, SHARE = _Number(0, min_open=True), _Number(0), _Number(0, 1, max_open=True)


class _Listed(click.Group):
    """A group whose help has a whole sentence for each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first paragraph of each command's help, which the formatter wraps."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").partition("\n\n")[0]) for name, each in found.items() if each])


class _Group(_Listed):
    """Turns what went wrong into one clean line: exit code 2 for a wrong request, 1 for a failed run."""

    group_class = _Listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, the most important first; then those of extensions."""
        names = [*MATTER, *(name for name in self.commands if name not in MATTER)]
        return [*names, *importlib.metadata.entry_points(group=COMMANDS).names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """A command by its name, of this package or of an extension."""
        found = super().get_command(ctx, name)
        for point in importlib.metadata.entry_points(group=COMMANDS, name=name) if found is None else ():
            needs = installation.extras("workbench", *point.module.split("."))
            with_plants(found := getattr(installation.of_extra(point.module, needs, name), point.attr))
        return found

    def make_context(self, info_name: str | None, *more: Any, **kwargs: Any) -> click.Context:
        """That of a command as it is typed here, so that the lines on its usage are too."""
        return super().make_context(installation.program(), *more, **kwargs)

    def main(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> Any:
        args = sys.argv[1:] if args is None else args
        try:
            return super().main(args, *more, **kwargs)
        except (ValueError, OSError, ImportError, run_folder.RunError) as error:
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
            words = f"{error.message}; set values with -p, as in -p learning_rate=1e-3"
            raise click.UsageError(words, error.ctx) from None
        except ModuleNotFoundError as error:
            installation.refuse(str(ctx.invoked_subcommand), error, "[workbench]")
        except KeyboardInterrupt:
            resumes = ctx.invoked_subcommand in RESUMED
            click.echo("\nstopped" + "; the same command resumes it" * resumes, err=True)
            sys.exit(130)


def _in_words(error: OSError) -> str:
    """An error of the operating system in words: the file, what went wrong, what to do."""
    said = error.strerror or str(error) or type(error).__name__
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{said}" + (f"; {_DISK[error.errno]}" if error.errno in _DISK else "")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lqrlab.__version__, prog_name="lqrlab")
@click.option("--traceback", is_flag=True, help="Show the traceback of an error.")
def main(traceback: bool) -> None:
    """Train controllers on benchmark plants; report their excess cost."""


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completions for a notebook, a profile or ``-p NAME=``; nothing outside of a project."""

    def offer(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            source = notebooks.find_source(context.params.get("source"))
            chosen = context.params.get("target") or context.params.get("only") or ()
            if kind == "notebook":
                words = [path.stem for path in sorted(source.glob(notebooks.NUMBERED))]
                if "/" in typed or not any(word.startswith(typed) for word in words):
                    return [CompletionItem(typed, type="file")]
            elif kind == "profile":
                words = sorted(path.stem for path in (source / "profiles").glob("*.json"))
            else:
                named = notebooks.named(source, [chosen] if isinstance(chosen, str) else chosen)
                known = [p for nb in named or notebooks.find(source) for p in nb.parameters]
                words = [f"{name}=" for name in dict.fromkeys(known) if name not in notebooks.BY_OPTION]
        except ValueError:
            return []
        return [CompletionItem(word) for word in words if word.startswith(typed)]

    return offer


def _settings(context: click.Context, parameter: click.Parameter, items: tuple[str, ...]) -> dict[str, str]:
    """``NAME=VALUE`` as typed after ``-p``, taken apart."""
    given = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"-p {item}: expected NAME=VALUE, as in -p learning_rate=1e-3")
        given[name.strip()] = value
    return given


def _enter_plants(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    """Enter the user's plants into the catalogue before anything else is looked at."""
    if files and not context.resilient_parsing:
        for file in files:
            require_file(file)
        from lqrlab import compute, systems

        compute.setup()
        for file in files:
            systems.register_file(file)


def with_plants(command: click.Command) -> None:
    """Give a command, and those below it, ``--plants``."""
    if any(each.name == "plants" for each in command.params):  # loaded before, in this process
        return
    what = "Your plants: .toml, .py, .json of identify, .xml, .urdf."
    how: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": _enter_plants}
    command.params.append(click.Option(["--plants"], type=PATH, multiple=True, metavar="FILE", help=what, **how))
    for below in getattr(command, "commands", {}).values():
        with_plants(below)


def require_file(file: Path) -> None:
    """Refuse a file that is not there."""
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")


def require_plant(name: str, label: str = "NAME") -> None:
    """Refuse a name of no plant, or of no file of one, without waiting for JAX."""
    require_file(Path(name)) if Path(name).suffix else notebooks.require_family(label, name)
    if Path(name).suffix in (".toml", ".py"):
        raise ValueError(f"{label}: {name} may hold several plants; give --plants {name}, and the name of one of them")


def plant(name: str) -> "Plant":
    """A plant by its name in the catalogue, or from a file: a robot's, or as ``lqrlab identify`` writes it."""
    require_plant(name)
    from lqrlab import systems

    return systems.load(name) if Path(name).suffix else systems.make(name)


overrides = partial(click.option, "-p", "overrides", multiple=True, metavar="NAME=VALUE", callback=_settings)
profile = partial(click.option, "--profile", shell_complete=complete("profile"))
folder = partial(click.option, "--folder", type=PATH)
workers = partial(click.option, "--workers", type=click.IntRange(1))
scheduler = click.option("--scheduler", metavar="ADDRESS", help="A dask scheduler, as tcp://head:8786.")
dry_run = click.option("--dry-run", is_flag=True, help="Show what would run, without starting it.")
source = click.option("--notebooks", "source", type=PATH, help="Folder of the notebooks.")
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
