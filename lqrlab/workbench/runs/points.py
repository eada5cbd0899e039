"""Points of a sweep: a grid, the rows of a file, or random draws.

A value as typed is several at its commas (``2,4``; commas inside brackets, braces and quotes belong to a value) or, for
a random search, a range ``low:high`` or ``low:high:log``.
"""

import csv
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lqrlab.compute.files import read_bytes
from lqrlab.workbench.runs.notebooks import Parameter, Values

Checked = Callable[[Values], Values]
"""Takes what a point sets, as typed or as values, and returns all values, or refuses in words."""
_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")
_COMMA = re.compile(r",(?=(?:[^\[\]{}\"]|\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\")*$)")  # outside of brackets and quotes
_Axis = list[object] | tuple[float, float, bool, bool]
"""Values, or a range: low, high, logarithmic, whole numbers."""


def points(
    parameters: Mapping[str, Parameter],
    check: Checked,
    given: Mapping[str, str],
    rows: Sequence[Mapping[str, object]] = ({},),
    num_random: int | None = None,
    seed: int = 0,
) -> list[Values]:
    """Values that each run sets, in order and without repetition; refused unless all of them are right.

    Args:
        parameters, check: what can be set, and what checks it.
        given: parameter → values as typed.
        rows: of a list; the grid is run for each.
        num_random: draw so many points instead of the grid.
        seed: of the draws; the first k are the same however many there are.
    """
    if twice := {key for row in rows for key in row} & set(given):
        raise ValueError(f"{min(twice)}: is set by the list and by -p; leave one of them out")
    if num_random is not None and not given:
        raise ValueError(f"--random {num_random}: expected values or ranges to draw from, as in -p NAME=LOW:HIGH")
    if num_random is not None and num_random < 1:
        raise ValueError(f"--random: expected a number of points from 1 on, but found {num_random}")
    ranges = num_random is not None
    axes = {key: _axis(parameters.get(key), check, key, text, ranges) for key, text in given.items()}
    if num_random is None:
        drawn: Iterable[Sequence[object]] = itertools.product(*axes.values())
    else:  # each parameter has a stream of its own, so that adding one leaves the others as they were
        drawn = ([_draw(axis, f"{seed}/{i}/{key}") for key, axis in axes.items()] for i in range(num_random))
    made: dict[str, Values] = {}
    for row, draw in itertools.product(rows, list(drawn)):
        chosen = {**row, **dict(zip(axes, draw))}
        values = check(chosen)
        point = {key: values[key] for key in chosen}
        made.setdefault(json.dumps(point, sort_keys=True), point)
    return list(made.values())


def _axis(parameter: Parameter | None, check: Checked, key: str, text: str, ranges: bool) -> _Axis:
    between = _RANGE.fullmatch(text.strip())
    if parameter is None or parameter.type not in (int, float) or between is None:
        return [check({key: part.strip()})[key] for part in _COMMA.split(text)]
    if not ranges:
        raise ValueError(f"{key}={text}: a range is for a random search, as with --random 20")
    low, high = (float(str(check({key: part})[key])) for part in between.groups()[:2])
    log = bool(between[3])
    if not (0 if log else -float("inf")) < low < high:
        raise ValueError(f"{key}={text}: expected low < high{', both above 0 with :log' if log else ''}")
    return low, high, log, parameter.type is int


def _draw(axis: _Axis, seed: str) -> object:
    rng = random.Random(seed)  # text is hashed by SHA-512, the same in all processes
    if isinstance(axis, list):
        return rng.choice(axis)
    low, high, log, whole = axis
    if whole and not log:
        return rng.randint(int(low), int(high))
    value = low * (high / low) ** rng.random() if log else rng.uniform(low, high)
    value = min(max(float(f"{value:.4g}"), low), high)  # four digits, as a person reads them
    return round(value) if whole else value


def read_list(path: Path) -> list[dict[str, object]]:
    """The points of a CSV file (a header of parameters) or of a JSON file (a list of objects)."""
    is_json = path.suffix.lower() == ".json"
    try:
        text = read_bytes(path).decode("utf-8-sig")
        lines = csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True)
        rows = json.loads(text) if is_json else list(lines)
    except OSError as error:
        raise ValueError(f"--list {path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"--list {path}: {error}") from None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) and row for row in rows)):
        raise ValueError(f"--list {path}: expected points, a CSV with a header or a JSON list of objects")
    for number, row in enumerate(rows, 2):
        if not is_json and (None in row or None in row.values()):
            raise ValueError(f"--list {path}: line {number} has not as many values as the header")
    return rows
