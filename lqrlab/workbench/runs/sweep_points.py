"""The points of a sweep: a grid, the rows of a file or random draws, checked against what a notebook declares.

A value as typed is several at its commas (``2,4``; commas inside brackets, braces and quotes belong to a value)
or, for a random search, a range ``low:high`` or ``low:high:log``.
"""

import csv
import dataclasses
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lqrlab.workbench.runs import parameters
from lqrlab.workbench.runs.notebooks import Notebook, Values

_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is asked for: a notebook, or designs for a plant, at many points.

    Attributes:
        target: path or name of a notebook; or the name of a plant, see ``plant_designs.designs``.
        given: parameter → values as typed; several make a grid, or with ``num_random`` a choice or range.
        rows: parameter → value for each row of a list; the grid is run for each of them.
        num_random: draw so many points instead of the grid.
        seed: of the draws; the first ``k`` draws are the same however many there are.
        profile: parameters that all runs have; ``quick`` by default where the notebooks have such a profile.
        inputs: folder of a run whose files the notebook reads (a data set, checkpoints). By default that of
            the profile, ``data/runs/<profile>``; what is missing there is made first.
        folder: of the sweep; ``data/sweeps/<notebook>`` in the project's folder by default.
        executor: ``notebooks`` (each run a notebook, on dask), ``vmap`` (all in one program, where that can be) or
            ``auto``, which takes ``vmap`` for a plant and for 16 or more trainings that may stand in one program.
        workers: runs at a time; by default half as many as there are cores, or all that a scheduler has.
        scheduler: address of a dask scheduler; by default a cluster of processes on this machine.
        time_limit: of each run [s].
        retries: how often a run is tried again that failed, or whose kernel or worker died.
        fresh: remove what earlier runs left at these points.
        report: write ``<folder>/report/index.html`` and a report of each run.
    """

    target: str | Path
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rows: Sequence[Mapping[str, object]] = ({},)
    num_random: int | None = None
    seed: int = 0
    profile: str | None = None
    inputs: str | Path | None = None
    folder: str | Path | None = None
    executor: str = "auto"
    workers: int | None = None
    scheduler: str | None = None
    time_limit: float | None = None
    retries: int = 1
    fresh: bool = False
    report: bool = True


@dataclasses.dataclass(frozen=True)
class _Interval:
    """A range to draw from; a draw has four digits, as a person reads them."""

    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, rng: random.Random) -> float:
        if self.whole and not self.log:
            return rng.randint(int(self.low), int(self.high))
        low, high = self.low, self.high
        value = low * (high / low) ** rng.random() if self.log else rng.uniform(low, high)
        value = min(max(float(f"{value:.4g}"), low), high)
        return round(value) if self.whole else value


def points(nb: Notebook, asked: Sweep, profile: Values | None = None) -> list[Values]:
    """What each run sets, in order and without repetition; nothing is returned unless all values are right.

    Raises:
        ValueError: naming the parameter, what was expected and what came.
    """
    given = {_short(nb, key): text for key, text in asked.given.items()}
    twice = {_short(nb, key) for row in asked.rows for key in row} & set(given)
    if twice:
        raise ValueError(f"{min(twice)}: is set by the list and by -p; leave one of them out")
    random_search = asked.num_random is not None
    axes = {key: _axis(nb, key, text, ranges=random_search) for key, text in given.items()}
    if asked.num_random is None:
        tried: Iterable[Sequence[object]] = itertools.product(*axes.values())  # type: ignore[arg-type]
    elif asked.num_random < 1:
        raise ValueError(f"--random: expected a number of points from 1 on, but found {asked.num_random}")
    else:
        tried = (
            [_drawn(a, f"{asked.seed}/{i}/{k}") for k, a in axes.items()] for i in range(asked.num_random)
        )
    drawn = [dict(zip(axes, values)) for values in tried]
    made: dict[str, Values] = {}
    for row, point in itertools.product(asked.rows, drawn):
        whole = {_short(nb, key): value for key, value in row.items()} | point
        values = effective(nb, profile or {}, whole)
        chosen = {key: values[key] for key in whole}
        made.setdefault(json.dumps(chosen, sort_keys=True), chosen)
    return list(made.values())


def effective(nb: Notebook, profile: Values, point: Mapping[str, object]) -> Values:
    """All parameters that the notebook runs with at a point, checked."""
    given = {f"{nb.name}.{key}": value for key, value in point.items()}
    return parameters.effective([nb], {nb.name: profile}, given)[nb.name]


def read_list(path: Path) -> list[dict[str, object]]:
    """The points of a CSV file (a header of parameters) or of a JSON file (a list of objects)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            rows = json.loads(text)
        else:
            rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True))
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


def _split(text: str) -> list[str]:
    """``text`` at its commas, apart from those inside brackets, braces and quotes."""
    parts, depth, quoted = [""], 0, False
    for c in text:
        quoted ^= c == '"'
        depth += 0 if quoted else (c in "[{") - (c in "]}")
        if c == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts]


def _short(nb: Notebook, key: str) -> str:
    """The parameter's name alone, of ``parameter`` or ``notebook.parameter``."""
    return key.removeprefix(f"{nb.name}.")


def _axis(nb: Notebook, key: str, text: str, *, ranges: bool) -> list[object] | _Interval:
    """The values that were typed for one parameter, or the range."""
    parameter = nb.parameters.get(key)
    between = _RANGE.fullmatch(text.strip())
    if parameter is None or parameter.type not in (int, float) or between is None:
        return [effective(nb, {}, {key: part})[key] for part in _split(text)]
    if not ranges:
        raise ValueError(
            f"{key}={text}: a range is for a random search; add --random 20, or give values as in 1,2,4"
        )
    ends = [effective(nb, {}, {key: part})[key] for part in between.groups()[:2]]
    low, high = (float(end) for end in ends)  # type: ignore[arg-type]
    log = bool(between[3])
    if not (0 if log else -float("inf")) < low < high:
        raise ValueError(f"{key}={text}: expected low < high{', both above 0 with :log' if log else ''}")
    return _Interval(low, high, log, whole=parameter.type is int)


def _drawn(axis: list[object] | _Interval, seed: str) -> object:
    """One value; each parameter has a stream of its own, so that adding one leaves the others as they were."""
    rng = random.Random(seed)  # text is hashed by SHA-512, the same in all processes
    return axis.draw(rng) if isinstance(axis, _Interval) else rng.choice(axis)
