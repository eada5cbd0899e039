"""Plan of a sweep, checked before anything starts: its points, its inputs, its folder."""

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import lqrlab
from lqrlab.compute import checks
from lqrlab.compute.files import PLANT_FILES, plant_files
from lqrlab.workbench.runs import notebooks, pipeline, run_folder, session
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.points import points


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
    folder: Path  # of its own; of a plant the sweep's
    fingerprint: str = ""  # of its result

    @property
    def record(self) -> Path:
        """The file that says how far it came."""
        return self.folder / run_folder.RUN


@dataclasses.dataclass(frozen=True)
class SweepPlan:
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
    links: Mapping[str, Path] = dataclasses.field(default_factory=dict)  # to them, in each run's folder
    units: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of parameters and numbers, where known
    plants: str = dataclasses.field(default_factory=lambda: os.environ.get(PLANT_FILES, ""))  # the user's files

    def fingerprint(self, values: Values, package: str) -> str:
        """Of the result at a point, with the notebook and the inputs as they are now."""
        if self.nb is None:  # its numbers follow from a module of the workbench, too
            code = Path(__file__).with_name("plant_designs.py").read_text(encoding="utf-8")
            text = json.dumps([self.name, values, code, package], sort_keys=True)
            return hashlib.sha256(text.encode()).hexdigest()[:16]
        results = [session.results(self.source, name) for name in self.needs] if self.source else []
        inputs = [result["fingerprint"] or result["started"] for result in results]
        return notebooks.fingerprint(notebooks.read(self.nb.path), values, inputs, package)

    def reading(self, source: Path | None) -> "SweepPlan":
        """The plan with the run that it reads from and the fingerprints of its results."""
        files = [(name, f) for name in self.needs if source for f in session.results(source, name)["files"]]
        links = {}
        for name, file in files:
            assert source is not None
            if not (source / file).exists():
                raise ValueError(f"{source}: {file}, made by {name}, is gone; lqrlab run makes it again")
            links[Path(file).parts[0]] = source / Path(file).parts[0]
        plan = dataclasses.replace(self, source=source, links=links)
        package = notebooks.package_hash()
        made = [dataclasses.replace(p, fingerprint=plan.fingerprint(p.values, package)) for p in self.points]
        return dataclasses.replace(plan, points=made)


def planned(asked: Sweep) -> SweepPlan:
    """Check everything that is asked for; a ``ValueError`` names the option or parameter and what was expected."""
    if asked.time_limit is not None and not asked.time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {asked.time_limit:g}")
    path = Path(asked.target).expanduser()
    if path.suffix == ".ipynb" and path.exists():
        return _of_notebook(asked, notebooks.read(path.resolve()))
    name, source = str(asked.target), None
    with contextlib.suppress(ValueError):  # a plant can be swept over where there are no notebooks
        source = pipeline.find_source()
    known = [path.stem for path in source.glob(notebooks.NUMBERED)] if source else []
    if source and (notebooks.beginning(path.stem, known) or path.suffix == ".ipynb"):
        return _of_notebook(asked, *notebooks.named(source, [name]))
    _check_plant(name, known)
    return _of_plant(asked, name)


def _check_plant(name: str, others: Sequence[str]) -> None:
    """Refuse the name of no plant, before a second of imports where it is none of the package's files either."""
    files = (Path(lqrlab.__file__).parent / "systems" / "catalogue").glob("*.py")
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    # as Plant names its subclasses
    known = [
        re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word).lower()
        for word in re.findall(r"^class (\w+)\(", text, re.M)
    ]
    if name in known or plant_files() or importlib.metadata.entry_points(group="lqrlab.plants"):
        from lqrlab import compute, systems

        compute.setup()
        known = systems.names()
    if name not in known:
        hint = checks.did_you_mean(name, [*known, *others])
        raise ValueError(
            f"{name}: is neither a notebook nor a plant{hint or '; lqrlab list and lqrlab systems show them'}"
        )


def _of_plant(asked: Sweep, name: str) -> SweepPlan:
    from lqrlab.workbench.runs import plant_designs

    options = {
        "--profile": asked.profile,
        "--from": asked.inputs,
        "--workers": asked.workers,
        "--scheduler": asked.scheduler,
        "--time-limit": asked.time_limit,
    }
    if wrong := [option for option, value in options.items() if value is not None]:
        raise ValueError(f"{wrong[0]}: is for notebooks, but {name} is a plant")
    known = plant_designs.parameters(name)

    def check(chosen: Values) -> Values:
        check_one = notebooks.check_value
        return {k: check_one(name, known, k, v, typed=True, what="plant") for k, v in chosen.items()}

    given, rows = _without_prefix(asked, name)
    if not given and rows == [{}]:
        raise ValueError(
            f"{name}: expected -p NAME=VALUES or --list, as in -p {next(iter(known))}=LOW:HIGH --random 20; "
            f"there are {', '.join(known)}"
        )
    chosen = points(known, check, given, rows, asked.num_random, asked.seed)
    plant_designs.plants(name, chosen)  # refuses what is out of range
    folder = _folder(asked, session.project(), name)
    made = [Point(f"{i:05d}", point, point, folder) for i, point in enumerate(chosen, 1)]
    return SweepPlan(asked, name, plant_designs.title(name), made, folder, units=plant_designs.units(name))


def _of_notebook(asked: Sweep, nb: Notebook) -> SweepPlan:
    source, profile, common = nb.path.parent, asked.profile, Values()
    if profile is None and (source / "profiles" / "quick.json").exists():
        profile = "quick"
    if profile:
        common = dict(notebooks.read_profile(source, profile).get(nb.name, {}))

    def check(chosen: Values) -> Values:
        given = {f"{nb.name}.{key}": value for key, value in chosen.items()}
        return notebooks.effective([nb], {nb.name: common}, given)[nb.name]

    given, rows = _without_prefix(asked, nb.name)
    chosen = points(nb.parameters, check, given, rows, asked.num_random, asked.seed)
    values = [check(point) for point in chosen]
    listed = {key for row in rows for key in row}
    for each in values:
        pipeline.check_names({nb.name: each}, {*given, *listed})
    folder = _folder(asked, source.parent, nb.name)
    names = [_called(*pair) for pair in zip(chosen, values)]
    made = [Point(*fields, folder / "runs" / fields[0]) for fields in zip(names, chosen, values)]
    before = [path.stem for path in sorted(source.glob(notebooks.MAIN_JOB)) if path.stem < nb.name]
    needs = nb.metadata.get("needs", before if re.match("0[0-9]_", nb.name) else [])
    return SweepPlan(asked, nb.name, nb.title, made, folder, nb, profile, needs)


def _without_prefix(asked: Sweep, name: str) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Values given by -p and by the list, with names of parameters alone."""

    def short(key: str) -> str:
        owner, dot, parameter = key.rpartition(".")
        return parameter if dot and owner and name.startswith(owner) else key

    rows = [{short(key): value for key, value in row.items()} for row in asked.rows]
    return {short(key): text for key, text in asked.given.items()}, rows


def _folder(asked: Sweep, project: Path, name: str) -> Path:
    folder = Path(asked.folder).expanduser() if asked.folder else project / "data" / "sweeps" / name
    return Path(os.path.realpath(folder))


def _called(point: Values, values: Values) -> str:
    """A run's name: what it sets, as a person reads it, and a hash of all its parameters."""
    given = json.dumps(notebooks.without_run(values), sort_keys=True)
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    return f"{readable or 'defaults'}-{hashlib.sha256(given.encode()).hexdigest()[:6]}"
