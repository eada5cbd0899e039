"""What a sweep will do, checked before anything starts: its points, its executor, what it reads, its folder.

Points are a grid, the rows of a file or random draws. A value as typed is several at its commas (``2,4``; commas inside
brackets, braces and quotes belong to a value) or, for a random search, a range ``low:high`` or ``low:high:log``.
"""

import csv
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lqrlab.compute.files import PLANT_FILES, read_bytes
from lqrlab.workbench.runs import name_checks, notebooks, pipeline, run_folder, session, sweep_program
from lqrlab.workbench.runs.notebooks import Notebook, Values

_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is asked for: a notebook, or designs for a plant, at many points."""

    target: str | Path  # path or name of a notebook, or the name of a plant
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)  # parameter → values as typed
    rows: Sequence[Mapping[str, object]] = ({},)  # of a list: parameter → value; the grid is run for each
    num_random: int | None = None  # draw so many points instead of the grid
    seed: int = 0  # of the draws; the first k are the same however many there are
    profile: str | None = None  # that all runs have; ``quick`` by default where there is such a profile
    inputs: str | Path | None = None  # folder of a run that is read from; ``data/runs/<profile>`` by default
    folder: str | Path | None = None  # of the sweep; ``data/sweeps/<notebook>`` by default
    executor: str = "auto"  # or ``notebooks``, or ``vmap``: one program for all points
    workers: int | None = None  # runs at a time; by default half the cores, or all that a scheduler has
    scheduler: str | None = None  # address of a dask scheduler; by default a cluster on this machine
    time_limit: float | None = None  # of each run [s]
    retries: int = 1  # of a run that failed, or whose kernel or worker died
    fresh: bool = False  # remove what earlier runs left at these points
    report: bool = True  # write ``<folder>/report/index.html`` and a report of each run
    dry_run: bool = False  # say what would be done, and do nothing


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    given: Values  # what it sets
    values: Values  # all its parameters
    folder: Path  # that it has to itself, unless one program does all points
    fingerprint: str = ""  # of its result

    @property
    def record(self) -> Path:
        """The file that says how far it came."""
        return self.folder / run_folder.RUN


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """What a sweep does, checked."""

    asked: Sweep
    nb: Notebook
    executor: str  # ``notebooks`` or ``vmap``
    reason: str  # why that one
    profile: str | None
    project: Path
    folder: Path
    needs: list[str]  # the notebooks whose files are read
    source: Path | None = None  # the folder of the run that made these files
    links: dict[str, Path] = dataclasses.field(default_factory=dict)  # to them, in each run's folder
    units: dict[str, str] = dataclasses.field(default_factory=dict)  # of parameters and numbers, where known
    plants: str = dataclasses.field(
        default_factory=lambda: os.environ.get(PLANT_FILES, "")
    )  # files of the user's
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)  # runs of another id end

    def fingerprint(self, point: Point, package: str) -> str:
        """Of the result at a point, with the package and the files read as they are now."""
        source = self.source
        inputs = [session.results(source, name)["execution"] for name in self.needs] if source else []
        if self.nb.kind == "plant":  # its numbers follow from a module of the workbench, too
            inputs = [Path(__file__).with_name("plant_designs.py").read_text(encoding="utf-8")]
        return notebooks.fingerprint(self.nb, point.values, inputs, package)

    def identified(self, points: Sequence[Point]) -> list[Point]:
        """The points with the fingerprints that their results will have."""
        package = notebooks.package_hash()
        return [dataclasses.replace(p, fingerprint=self.fingerprint(p, package)) for p in points]


def planned(asked: Sweep) -> tuple[SweepPlan, list[Point]]:
    """Check everything that is asked for; a ``ValueError`` names the option or parameter and what was expected."""
    nb, profile = declared(asked.target), asked.profile
    if asked.time_limit is not None and not asked.time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {asked.time_limit:g}")
    source, common = nb.path.parent, Values()
    if nb.kind == "plant":
        project = session.project()
        if option := "--profile" if profile else "--from" if asked.inputs else "":
            raise ValueError(f"{option}: is for notebooks, but {nb.name} is a plant")
    else:
        project = source.parent
        profile = profile or ("quick" if (source / "profiles" / "quick.json").exists() else None)
        common = dict(notebooks.read_profile(source, profile).get(nb.name, {})) if profile else {}
    given = points(nb, asked, common)
    values = [_effective(nb, common, point) for point in given]
    for each in values if nb.kind == "notebook" else ():
        name_checks.check({nb.name: each}, asked.given)
    executor, reason = _executor(nb, values, asked)
    names = [f"{i:05d}" for i in range(1, len(given) + 1)]
    if executor == "notebooks":
        names = [_called(*pair) for pair in zip(given, values)]
    units = {}
    if nb.kind == "plant":
        from lqrlab.workbench.runs import plant_designs

        plant_designs.plants(nb.name, given)  # refuses what is out of range
        units = plant_designs.units(nb.name)
    folder = Path(asked.folder).expanduser() if asked.folder else project / "data" / "sweeps" / nb.name
    before = [p.stem for p in sorted(source.glob(notebooks.MAIN_JOB)) if p.stem < nb.name]
    needs = nb.metadata.get("needs", before if re.match("0[0-9]_", nb.name) else [])
    folder = Path(os.path.realpath(folder))
    plan = SweepPlan(asked, nb, executor, reason, profile, project, folder, needs, units=units)
    return plan, [Point(*fields, folder / "runs" / fields[0]) for fields in zip(names, given, values)]


def declared(target: str | Path) -> Notebook:
    """The notebook of that path or name, or what can be set of the plant of that name."""
    path = Path(target).expanduser()
    if path.suffix == ".ipynb" and path.exists():
        return notebooks.read(path.resolve())
    try:
        return notebooks.named(pipeline.find_source(), [str(target)])[0]
    except ValueError as error:  # there is no such notebook, or there are none at all
        from lqrlab import compute, systems
        from lqrlab.workbench.runs import plant_designs

        compute.setup()
        if target not in systems.names():
            near = notebooks.near(str(target), systems.names())
            raise ValueError(f"{error}; nor is there a plant of this name{near}") from None
        return plant_designs.declaration(str(target))


def _executor(nb: Notebook, values: Sequence[Values], asked: Sweep) -> tuple[str, str]:
    """What executes the points, and the reason in words."""
    options = {"--workers": asked.workers, "--scheduler": asked.scheduler, "--time-limit": asked.time_limit}
    option = next((name for name, value in options.items() if value is not None), "")
    if nb.kind == "plant":
        if option := option or "--executor notebooks" * (asked.executor == "notebooks"):
            raise ValueError(f"{option}: is for notebooks, but {nb.name} is a plant")
        return "vmap", "a plant's points need no notebook; all of them in compiled programs"
    varied = [k for k in nb.parameters if len({json.dumps(v[k]) for v in values}) > 1]
    why_not = sweep_program.why_not(nb, values, varied)
    together = "one program, without a report and checkpoints of each run"
    if asked.executor == "vmap":
        if why_not or option:
            raise ValueError(f"--executor vmap: {why_not or f'one program has no {option}'}")
        return "vmap", f"as asked for; {together}"
    if asked.executor == "notebooks":
        return "notebooks", "as asked for"
    if why_not or option:
        return "notebooks", why_not or f"{option} is given"
    if len(values) < sweep_program.MANY:
        apart = f"{len(values)} runs, each with a report and checkpoints"
        return "notebooks", f"{apart}; --executor vmap is one program"
    return "vmap", f"only {' and '.join(varied)} differ; {together}"


def _called(point: Values, values: Values) -> str:
    """A run's name: what it sets, as a person reads it, and a hash of all its parameters."""
    given = json.dumps(notebooks.without_run(values), sort_keys=True)
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    return f"{readable or 'defaults'}-{hashlib.sha256(given.encode()).hexdigest()[:6]}"


def points(nb: Notebook, asked: Sweep, profile: Values | None = None) -> list[Values]:
    """What each run sets, in order and without repetition; nothing is returned unless all values are right."""
    given = {key.removeprefix(f"{nb.name}."): text for key, text in asked.given.items()}
    rows = [{key.removeprefix(f"{nb.name}."): value for key, value in row.items()} for row in asked.rows]
    if twice := {key for row in rows for key in row} & set(given):
        raise ValueError(f"{min(twice)}: is set by the list and by -p; leave one of them out")
    count = asked.num_random
    axes = {key: _axis(nb, key, text, ranges=count is not None) for key, text in given.items()}
    if count is None:
        drawn: Iterable[Sequence[object]] = itertools.product(*axes.values())
    elif count < 1:
        raise ValueError(f"--random: expected a number of points from 1 on, but found {count}")
    else:  # each parameter has a stream of its own, so that adding one leaves the others as they were
        drawn = ([_draw(axis, f"{asked.seed}/{i}/{key}") for key, axis in axes.items()] for i in range(count))
    made: dict[str, Values] = {}
    for row, draw in itertools.product(rows, list(drawn)):
        chosen = row | dict(zip(axes, draw))
        values = _effective(nb, profile or {}, chosen)
        point = {key: values[key] for key in chosen}
        made.setdefault(json.dumps(point, sort_keys=True), point)
    return list(made.values())


def _effective(nb: Notebook, profile: Values, point: Mapping[str, object]) -> Values:
    given = {f"{nb.name}.{key}": value for key, value in point.items()}
    return notebooks.effective([nb], {nb.name: profile}, given)[nb.name]


def _axis(
    nb: Notebook, key: str, text: str, *, ranges: bool
) -> list[object] | tuple[float, float, bool, bool]:
    """The values that were typed for one parameter, or the range: low, high, logarithmic, whole numbers."""
    parameter, between = nb.parameters.get(key), _RANGE.fullmatch(text.strip())
    if parameter is None or parameter.type not in (int, float) or between is None:
        return [_effective(nb, {}, {key: part})[key] for part in _split(text)]
    if not ranges:
        raise ValueError(f"{key}={text}: a range is for a random search, as with --random 20")
    low, high = (float(str(_effective(nb, {}, {key: part})[key])) for part in between.groups()[:2])
    log = bool(between[3])
    if not (0 if log else -float("inf")) < low < high:
        raise ValueError(f"{key}={text}: expected low < high{', both above 0 with :log' if log else ''}")
    return low, high, log, parameter.type is int


def _draw(axis: list[object] | tuple[float, float, bool, bool], seed: str) -> object:
    rng = random.Random(seed)  # text is hashed by SHA-512, the same in all processes
    if isinstance(axis, list):
        return rng.choice(axis)
    low, high, log, whole = axis
    if whole and not log:
        return rng.randint(int(low), int(high))
    value = low * (high / low) ** rng.random() if log else rng.uniform(low, high)
    value = min(max(float(f"{value:.4g}"), low), high)  # four digits, as a person reads them
    return round(value) if whole else value


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


def read_list(path: Path) -> list[dict[str, object]]:
    """The points of a CSV file (a header of parameters) or of a JSON file (a list of objects)."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        lines = csv.DictReader(text.splitlines(), skipinitialspace=True, strict=True)
        rows = json.loads(text) if path.suffix.lower() == ".json" else list(lines)
    except OSError as error:
        raise ValueError(f"--list {path}: cannot be read ({error.strerror})") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"--list {path}: {error}") from None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) and row for row in rows)):
        raise ValueError(f"--list {path}: expected points, a CSV with a header or a JSON list of objects")
    for number, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise ValueError(f"--list {path}: line {number} has not as many values as the header")
    return rows
