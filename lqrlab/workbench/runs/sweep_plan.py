"""Plan of a sweep, checked before anything starts: a table of points, what they read, where they go.

Points are a grid, the rows of a file, or random draws. A value as typed is several at its commas (``2,4``; commas
inside brackets, braces and quotes belong to a value) or, for a random search, a range ``low:high`` or ``low:high:log``.
"""

import contextlib
import csv
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lqrlab.compute import checks
from lqrlab.compute.files import read_bytes
from lqrlab.workbench.runs import notebooks, pipeline, session
from lqrlab.workbench.runs.notebooks import Notebook, Parameter, Values

Checked = Callable[[Values], Values]
"""Takes what a point sets, as typed or as values, and returns all values, or refuses in words."""
_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")
_COMMA = re.compile(r",(?=(?:[^\[\]{}\"]|\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\")*$)")  # outside of brackets and quotes
_Axis = list[object] | tuple[float, float, bool, bool]
"""Values, or a range: low, high, logarithmic, whole numbers."""
_FOR_NOTEBOOKS = {"profile": "profile", "inputs": "from", "workers": "workers", "scheduler": "scheduler"}
_FOR_NOTEBOOKS |= {"time_limit": "time-limit"}  # fields of a sweep and their options, which a plant does not have


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A notebook, or designs for a plant, at many points, as asked for."""

    target: str | Path  # path or name of a notebook, or the name of a plant
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)  # parameter → values as typed
    rows: Sequence[Mapping[str, object]] = ({},)  # of a list: parameter → value; the grid is run for each
    num_random: int | None = None  # draw so many points instead of the grid
    seed: int = 0  # of the draws
    profile: str | None = None  # that all runs have; ``quick`` by default where there is such a profile
    inputs: str | Path | None = None  # folder of a run that is read from; ``data/runs/<profile>`` by default
    folder: str | Path | None = None  # of the sweep; ``data/sweeps/<notebook>`` by default
    workers: int | None = None  # processes of this machine; half the cores by default
    scheduler: str | None = None  # address of a dask scheduler, whose workers do the runs instead
    time_limit: float | None = None  # of each run [s]
    retries: int = 1  # of a run that failed, or whose kernel or worker died
    fresh: bool = False  # remove what earlier runs left at these points
    report: bool = True  # write ``<folder>/report/index.html`` and a report of each run
    dry_run: bool = False  # say what would be done, and do nothing


@dataclasses.dataclass(frozen=True)
class Point:
    """One row of a sweep: its name, what it sets, all its parameters, the fingerprint of its result."""

    name: str
    given: Values
    values: Values
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep's points and places, checked."""

    asked: Sweep
    name: str  # of the notebook or plant
    title: str
    points: list[Point]
    folder: Path
    nb: Notebook | None = None  # None for a plant
    profile: str | None = None
    needs: Sequence[str] = ()  # the notebooks whose files are read
    source: Path | None = None  # the folder of the run that made these files
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of a plant's parameters and numbers

    def place(self, point: Point) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / point.name

    def files(self) -> list[str]:
        """Files that the runs read, by their paths in the folder of the run that made them."""
        return [f for name in self.needs if self.source for f in session.results(self.source, name)["files"]]

    def fingerprint(self, values: Values, package: str) -> str:
        """Of the result at a point, with the notebook and the inputs as they are now."""
        if self.nb is None:  # its numbers follow from a module of the workbench, too
            code = Path(__file__).with_name("plant_designs.py").read_text(encoding="utf-8")
            text = json.dumps([self.name, values, code, package], sort_keys=True)
            return hashlib.sha256(text.encode()).hexdigest()[:16]
        results = [session.results(self.source, name) for name in self.needs] if self.source else []
        inputs = [result["fingerprint"] or result["started"] for result in results]
        return notebooks.fingerprint(notebooks.read(self.nb.path), values, inputs, package)

    def reading(self, source: Path | None) -> "Plan":
        """The plan with the run that it reads from and the fingerprints of its results."""
        plan = dataclasses.replace(self, source=source)
        if gone := [file for file in plan.files() if source and not (source / file).exists()]:
            raise ValueError(f"{source}: {gone[0]}, which {self.name} reads, is gone; lqrlab run makes it again")
        package = notebooks.package_hash()
        made = [dataclasses.replace(p, fingerprint=plan.fingerprint(p.values, package)) for p in self.points]
        return dataclasses.replace(plan, points=made)


def planned(asked: Sweep) -> Plan:
    """Check everything that is asked for; a ``ValueError`` names the option or parameter and what was expected."""
    if asked.time_limit is not None and not asked.time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {asked.time_limit:g}")
    path, source = Path(asked.target).expanduser(), None
    if path.suffix == ".ipynb" and path.exists():
        return _of_notebook(asked, notebooks.read(path.resolve()))
    with contextlib.suppress(ValueError):  # a plant can be swept over where there are no notebooks
        source = pipeline.find_source()
    known = [path.stem for path in source.glob(notebooks.NUMBERED)] if source else []
    if source and (path.suffix == ".ipynb" or any(other.startswith(path.stem) for other in known)):
        return _of_notebook(asked, *notebooks.named(source, [str(asked.target)]))
    return _of_plant(asked, str(asked.target), known)


def _of_plant(asked: Sweep, name: str, others: Sequence[str]) -> Plan:
    from lqrlab import compute, systems
    from lqrlab.workbench.runs import plant_designs

    compute.setup()
    if name not in systems.names():
        hint = checks.did_you_mean(name, [*systems.names(), *others]) or "; lqrlab list and lqrlab systems show them"
        raise ValueError(f"{name}: is neither a notebook nor a plant{hint}")
    for field, option in _FOR_NOTEBOOKS.items():
        if getattr(asked, field) is not None:
            raise ValueError(f"--{option}: is for notebooks, but {name} is a plant")
    known = plant_designs.parameters(name)
    if not asked.given and asked.rows == ({},):
        raise ValueError(
            f"{name}: expected -p NAME=VALUES or --list, as in -p {next(iter(known))}=LOW:HIGH --random 20; "
            f"there are {', '.join(known)}"
        )

    def check(chosen: Values) -> Values:
        check_one = notebooks.check_value
        return {k: check_one(name, known, k, v, typed=True, what="plant") for k, v in chosen.items()}

    chosen = points(name, known, check, asked)
    plant_designs.batch(name, chosen)  # refuses what is out of range
    made = [Point(f"{i:05d}", point, point) for i, point in enumerate(chosen, 1)]
    title = re.split("[;:]", systems.family(name).title)[0]
    return Plan(asked, name, title, made, _folder(asked, session.project(), name), units=plant_designs.units(name))


def _of_notebook(asked: Sweep, nb: Notebook) -> Plan:
    source, profile = nb.path.parent, asked.profile
    if profile is None and (source / "profiles" / "quick.json").exists():
        profile = "quick"
    common = {nb.name: dict(notebooks.read_profile(source, profile).get(nb.name, {}) if profile else {})}

    def check(chosen: Values) -> Values:
        return notebooks.effective([nb], common, {f"{nb.name}.{k}": v for k, v in chosen.items()})[nb.name]

    made = []
    for point in points(nb.name, nb.parameters, check, asked):
        values = check(point)
        pipeline.check_names({nb.name: values}, point)
        made.append(Point(_called(point, values), point, values))
    before = [path.stem for path in sorted(source.glob(notebooks.MAIN_JOB)) if path.stem < nb.name]
    needs = nb.metadata.get("needs", before if re.match("0[0-9]_", nb.name) else [])
    return Plan(asked, nb.name, nb.title, made, _folder(asked, source.parent, nb.name), nb, profile, needs)


def _folder(asked: Sweep, project: Path, name: str) -> Path:
    folder = Path(asked.folder).expanduser() if asked.folder else project / "data" / "sweeps" / name
    return Path(os.path.realpath(folder))


def _called(point: Values, values: Values) -> str:
    """A run's name: what it sets, as a person reads it, and a hash of all its parameters."""
    given = json.dumps(notebooks.without_run(values), sort_keys=True)
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    return f"{readable or 'defaults'}-{hashlib.sha256(given.encode()).hexdigest()[:6]}"


def points(name: str, parameters: Mapping[str, Parameter], check: Checked, asked: Sweep) -> list[Values]:
    """Values that each run sets, in order and without repetition; refused unless all of them are right.

    Args:
        name: of the notebook or plant, which may stand before a parameter's, as in ``03_training.depth``.
        parameters, check: what can be set, and what checks it.
        asked: the list, for each row of which the grid, or so many draws, are run. The first k draws are the same
            however many there are.
    """

    def short(key: str) -> str:
        owner, dot, parameter = key.rpartition(".")
        return parameter if dot and owner and name.startswith(owner) else key

    rows = [{short(key): value for key, value in row.items()} for row in asked.rows]
    given, count = {short(key): text for key, text in asked.given.items()}, asked.num_random
    if twice := {key for row in rows for key in row} & set(given):
        raise ValueError(f"{min(twice)}: is set by the list and by -p; leave one of them out")
    if count is not None and not given:
        raise ValueError(f"--random {count}: expected values or ranges to draw from, as in -p NAME=LOW:HIGH")
    if count is not None and count < 1:
        raise ValueError(f"--random: expected a number of points from 1 on, but found {count}")
    axes = {key: _axis(parameters.get(key), check, key, text, count is not None) for key, text in given.items()}
    if count is None:
        drawn: Iterable[Sequence[object]] = itertools.product(*axes.values())
    else:  # each parameter has a stream of its own, so that adding one leaves the others as they were
        drawn = ([_draw(axis, f"{asked.seed}/{i}/{key}") for key, axis in axes.items()] for i in range(count))
    made: dict[str, Values] = {}
    for row, draw in itertools.product(rows, list(drawn)):
        chosen = {**row, **dict(zip(given, draw))}
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
    try:
        text = read_bytes(path).decode("utf-8-sig")
        lines = csv.DictReader(text.splitlines(), restval="", skipinitialspace=True, strict=True)
        rows = json.loads(text) if path.suffix.lower() == ".json" else list(lines)
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"--list {path}: {getattr(error, 'strerror', None) or error}") from None
    good = isinstance(rows, list) and rows and all(isinstance(row, dict) and row for row in rows)
    if not good or any(None in row for row in rows):
        wrong = "a CSV with a header and a value below each of its names, or a JSON list of objects"
        raise ValueError(f"--list {path}: expected points, {wrong}")
    return rows
