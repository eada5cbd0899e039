"""Options that several commands have, ``-p NAME=VALUE`` among them, and what the Tab key offers for them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from lqrlab.workbench.runs import notebooks, pipeline

if TYPE_CHECKING:
    from lqrlab.systems import Plant

PATH = click.Path(path_type=Path)
EXAMPLES = {"sweep": "learning_rate=1e-3,3e-4", "generate": "variants=10"}


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Completions for a notebook, a profile or ``-p NAME=``; nothing outside of a project."""

    def offer(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        try:
            source = pipeline.find_source(context.params.get("source"))
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
            example = EXAMPLES.get(str(context.info_name), "learning_rate=1e-3")
            raise ValueError(f"-p {item}: expected NAME=VALUE, as in -p {example}")
        given[name.strip()] = value
    return given


def _enter_plants(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> None:
    """Enter the user's plants into the catalogue before anything else is looked at."""
    if files and not context.resilient_parsing:
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


def plant(name: str) -> "Plant":
    """A plant by its name in the catalogue, or from a file: a robot's, or as ``lqrlab identify`` writes it."""
    from lqrlab import systems

    return systems.load(name) if Path(name).suffix else systems.make(name)


overrides = partial(click.option, "-p", "overrides", multiple=True, metavar="NAME=VALUE", callback=_settings)
profile = partial(click.option, "--profile", shell_complete=complete("profile"))
folder = partial(click.option, "--folder", type=PATH)
source = click.option("--notebooks", "source", type=PATH, help="Folder of the notebooks.")
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
