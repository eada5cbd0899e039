"""Options that several commands have: ``-p NAME=VALUE``, and what the Tab key offers for them."""

from collections.abc import Callable
from typing import Any

import click


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What the Tab key offers for a notebook, a profile or ``-p NAME=``; nothing where there is none."""

    def offer(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from lqrlab.workbench.runs import notebooks, pipeline

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


def settings(items: tuple[str, ...], example: str) -> dict[str, str]:
    """``NAME=VALUE`` as typed after ``-p``, taken apart."""
    given = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ValueError(f"-p {item}: expected NAME=VALUE, as in -p {example}")
        given[name.strip()] = value
    return given
