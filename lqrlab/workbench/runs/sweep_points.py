"""The points of a sweep: a grid, the rows of a file or random draws, checked against what a notebook declares.

A value as typed is several at its commas (``2,4``; commas inside brackets, braces and quotes belong to a value)
or, for a random search, a range ``low:high`` or ``low:high:log``.
"""

import csv
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lqrlab.workbench.runs import notebooks
from lqrlab.workbench.runs.notebooks import Notebook

_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")


def points(
    nb: Notebook,
    given: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]] = ({},),
    *,
    num_random: int | None = None,
    seed: int = 0,
    profile: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """What each run sets, in order and without repetition; nothing is returned unless every value is right.

    Args:
        nb: the notebook.
        given: parameter → values as typed; several make a grid, or with ``num_random`` a choice or range.
        rows: parameter → value for each row of a list; the grid is run for each of them.
        num_random: draw so many points instead of the grid.
        seed: of the draws; the first ``k`` draws are the same however many there are.
        profile: parameters that every run has.

    Raises:
        ValueError: naming the parameter, what was expected and what came.
    """
    given = {_short(nb, key): text for key, text in given.items()}
    twice = {_short(nb, key) for row in rows for key in row} & set(given)
    if twice:
        raise ValueError(f"{min(twice)}: is set by the list and by -p; leave one of them out")
    axes = {key: _axis(nb, key, text, ranges=num_random is not None) for key, text in given.items()}
    if num_random is None:
        tried: Iterator[tuple[Any, ...]] = itertools.product(*(axis for axis in axes.values()))
    elif num_random < 1:
        raise ValueError(f"--random: expected a number of points from 1 on, but found {num_random}")
    else:
        tried = (_draw(nb, axes, f"{seed}/{i}") for i in range(num_random))
    drawn = [dict(zip(axes, values)) for values in tried]
    made: dict[str, dict[str, Any]] = {}
    for row in rows:
        for point in drawn:
            whole = {_short(nb, key): value for key, value in row.items()} | point
            values = effective(nb, profile or {}, whole)
            chosen = {key: values[key] for key in whole}
            made.setdefault(json.dumps(chosen, sort_keys=True), chosen)
    return list(made.values())


def effective(nb: Notebook, profile: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters that the notebook runs with at a point, checked."""
    given = {f"{nb.name}.{key}": value for key, value in point.items()}
    return notebooks.effective([nb], {nb.name: profile}, given)[nb.name]


def read_list(path: Path) -> list[dict[str, Any]]:
    """The points of a CSV file (a header of parameters) or of a JSON file (a list of objects)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            rows = json.loads(text)
        else:
            lines = csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True)
            rows = list(lines)
            for number, row in enumerate(rows, 2):
                if None in row or None in row.values():
                    raise ValueError(f"line {number} has not as many values as the header")
    except OSError as error:
        raise ValueError(f"--list {path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"--list {path}: {error}") from None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) and row for row in rows)):
        raise ValueError(f"--list {path}: expected points, a CSV with a header or a JSON list of objects")
    return rows


def split(text: str) -> list[str]:
    """``text`` at its commas, apart from those inside brackets, braces and quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c == '"':
            quote = c
        else:
            depth += (c in "[{") - (c in "]}")
        if c == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def _short(nb: Notebook, key: str) -> str:
    """The parameter's own name, of ``parameter`` or ``notebook.parameter``."""
    return key.removeprefix(f"{nb.name}.")


def _axis(nb: Notebook, key: str, text: str, *, ranges: bool) -> Any:
    """The values that were typed for one parameter, or the range as ``(low, high, log)``."""
    parameter = nb.parameters.get(key)
    between = _RANGE.fullmatch(text.strip())
    if parameter is not None and parameter.type in (int, float) and between:
        if not ranges:
            raise ValueError(
                f"{key}={text}: a range is for a random search; add --random 20, or give values as in 1,2,4"
            )
        low, high = (effective(nb, {}, {key: part})[key] for part in between.groups()[:2])
        log = bool(between[3])
        if not (0 if log else -float("inf")) < low < high:
            raise ValueError(f"{key}={text}: expected low < high{', both above 0 with :log' if log else ''}")
        return low, high, log
    return [effective(nb, {}, {key: part})[key] for part in split(text)]


def _draw(nb: Notebook, axes: Mapping[str, Any], seed: str) -> tuple[Any, ...]:
    """One point; each parameter has a stream of its own, so that adding one leaves the others as they were."""
    drawn: list[Any] = []
    for key, axis in axes.items():
        rng = random.Random(f"{seed}/{key}")  # text is hashed by SHA-512, the same in every process
        if isinstance(axis, list):
            drawn.append(rng.choice(axis))
            continue
        low, high, log = axis
        if nb.parameters[key].type is int and not log:
            drawn.append(rng.randint(low, high))
            continue
        value = low * (high / low) ** rng.random() if log else rng.uniform(low, high)
        value = min(max(float(f"{value:.4g}"), low), high)  # four digits, as a person reads them
        drawn.append(round(value) if nb.parameters[key].type is int else value)
    return tuple(drawn)
