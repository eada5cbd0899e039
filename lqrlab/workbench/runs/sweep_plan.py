"""Points of a sweep, checked before anything starts: a grid of values, or random draws from values and ranges.

A value as typed is several at its commas (``2,4``; commas inside brackets, braces and quotes belong to a value) or, for
a random search, a range ``low:high`` or ``low:high:log``.
"""

import dataclasses
import hashlib
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lqrlab.compute.configuration import Positive
from lqrlab.workbench.runs import notebooks, run_folder
from lqrlab.workbench.runs.notebooks import Notebook, Parameter, Values
from lqrlab.workbench.runs.run_folder import Record

_RANGE = re.compile(r"([^:]+):([^:]+?)(:log)?")
_COMMA = re.compile(r",(?=(?:[^\[\]{}\"]|\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\")*$)")  # outside of brackets and quotes
_FOR_NOTEBOOKS = ("profile", "inputs", "workers", "scheduler", "time_limit")  # fields of a sweep
_Axis = list[object] | tuple[float, float, bool, bool]
"""Values, or a range: low, high, logarithmic, whole numbers."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A notebook, or designs for a plant, at many points, as asked for."""

    target: str | Path  # path or name of a notebook, or the name of a plant
    given: Mapping[str, str] = dataclasses.field(default_factory=dict)  # parameter → values as typed
    num_random: int | None = None  # draw so many points instead of the grid
    seed: int = 0  # of the draws
    profile: str | None = None  # that all runs have; ``quick`` by default where there is such a profile
    inputs: str | Path | None = None  # folder of a run that is read from; ``data/runs/<profile>`` by default
    folder: str | Path | None = None  # of the sweep; ``data/sweeps/<target>`` by default
    workers: int | None = None  # processes of this machine; half the cores by default
    scheduler: str | None = None  # address of a dask scheduler, whose workers do the runs instead
    time_limit: float | None = None  # of each run [s]
    retries: int = 1  # of a run that failed, or whose kernel or worker died
    report: bool = True  # write ``<folder>/report/index.html`` and a report of each run
    dry_run: bool = False  # say what would be done, and do nothing


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a notebook's sweep, checked, and their places."""

    asked: Sweep
    nb: Notebook
    folder: Path
    profile: str | None
    common: Values  # parameters of all runs
    points: Sequence[Values]  # those that each run sets
    needs: Sequence[str]  # the notebooks whose files are read
    source: Path = Path()  # the folder of the run that made these files
    links: Sequence[str] = ()  # what is linked from there
    inputs: Sequence[str] = ()  # the fingerprints of its results

    def runs(self, points: Sequence[Values]) -> list[Record]:
        """Name, point and fingerprint of runs at some points, with the notebook and the package as they are now."""
        nb, package, made = notebooks.read(self.nb.path), notebooks.package_hash(), []
        for point in points:
            values = self.common | point
            known = notebooks.fingerprint(nb, values, self.inputs, package)
            made.append({"run": _called(point, values), "point": point, "fingerprint": known})
        return made


def planned(asked: Sweep, nb: Notebook) -> Plan:
    """Check everything that is asked for; a ``ValueError`` names the option or parameter and what was expected."""
    source, profile = nb.path.parent, asked.profile
    if profile is None and (source / "profiles" / "quick.json").exists():
        profile = "quick"
    common = notebooks.effective([nb], (notebooks.read_profile(source, profile) if profile else {}), {})[nb.name]
    before = [path.stem for path in sorted(source.glob(notebooks.MAIN_JOB)) if path.stem < nb.name]
    needs = nb.metadata.get("needs", before if re.match("0[0-9]_", nb.name) else [])
    given = points(nb.name, nb.parameters, asked)
    folder = run_folder.place(asked.folder or source.parent / "data" / "sweeps" / nb.name, source, run_folder.SWEEP)
    return Plan(asked, nb, folder, profile, common, given, needs)


def planned_plant(asked: Sweep) -> tuple[list[Values], Path]:
    """The points of a plant's sweep and its folder, checked, without what computes them."""
    name = str(asked.target)
    notebooks.require_family("NOTEBOOK|PLANT", name)
    if refused := [field for field in _FOR_NOTEBOOKS if getattr(asked, field) is not None]:
        option = "from" if refused[0] == "inputs" else refused[0].replace("_", "-")
        raise ValueError(f"--{option}: is for notebooks, but {name} is a plant")
    data = notebooks.find_source(needed=False).parent / "data"
    folder = run_folder.place(asked.folder or data / "sweeps" / name, record=run_folder.SWEEP)
    known = plant_parameters(name)
    if not asked.given:
        advice = f"as in -p {next(iter(known))}=LOW:HIGH --random 20; there are {', '.join(known)}"
        raise ValueError(f"{name}: expected -p NAME=VALUES, {advice}")
    made = points(name, known, asked, "plant")
    from lqrlab import systems

    cls = systems.family(name)
    for key in systems.parameter_fields(cls).keys() & made[0].keys():
        systems.check_parameter(cls, key, [point[key] for point in made])
    return made, folder


def plant_parameters(name: str) -> dict[str, Parameter]:
    """Names that a sweep can set: the plant's parameters, its sample time, a factor for each diagonal weight."""
    from lqrlab import compute, systems

    compute.setup()
    cls, known = systems.family(name), dict[str, Parameter]()
    for key, field in systems.parameter_fields(cls).items():
        known[key] = Parameter(key, float, field.default, f"{field.metadata['about']} [{field.metadata['unit']}]")
    known["dt"] = Parameter("dt", Positive, float(cls.dt), "sample time [s]")
    for key in [f"q_{signal.name}" for signal in cls.states] + [f"r_{signal.name}" for signal in cls.inputs]:
        known[key] = Parameter(key, Positive, 1.0, "factor of the weight")
    return known


def _called(point: Values, values: Values) -> str:
    """A run's name: what it sets, as a person reads it, and a hash of all its parameters."""
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    digest = hashlib.sha256(json.dumps(notebooks.without_run(values), sort_keys=True).encode()).hexdigest()
    return f"{readable or 'defaults'}-{digest[:6]}"


def notebook(target: str) -> Notebook | None:
    """The notebook that is meant, by its path, its name or the beginning of it; None of what begins with no number."""
    path = Path(target).expanduser()
    if path.suffix == ".ipynb" and path.exists():
        return notebooks.read(path.resolve())
    if path.suffix == ".ipynb" or path.name[:1].isdigit():
        return notebooks.named(notebooks.find_source(), [target])[0]
    return None


def points(owner: str, parameters: Mapping[str, Parameter], asked: Sweep, what: str = "notebook") -> list[Values]:
    """Values that each run sets, in order and without repetition; refused unless all of them are right.

    The first k draws are the same however many there are. The owner may stand before a name: ``03_training.depth``.
    """
    count, axes = asked.num_random, dict[str, _Axis]()
    if count is not None and not asked.given:
        raise ValueError(f"--random {count}: expected values or ranges to draw from, as in -p NAME=LOW:HIGH")
    for key, text in asked.given.items():
        before, _, short = key.rpartition(".")
        name = short if before and owner.startswith(before) else key

        def check(part: str, name: str = name) -> object:
            return notebooks.check_value(owner, parameters, name, part.strip(), typed=True, what=what)

        between = _RANGE.fullmatch(text.strip())
        if between is None or name not in parameters or parameters[name].type not in (int, float, Positive):
            axes[name] = [check(part) for part in _COMMA.split(text)]
            continue
        if count is None:
            raise ValueError(f"{key}={text}: a range is for a random search, as with --random 20")
        low, high, log = float(str(check(between[1]))), float(str(check(between[2]))), bool(between[3])
        if not (0 if log else -float("inf")) < low < high:
            raise ValueError(f"{key}={text}: expected low < high{', both above 0 with :log' if log else ''}")
        axes[name] = low, high, log, parameters[name].type is int
    if count is None:
        rows = itertools.product(*(axis for axis in axes.values() if isinstance(axis, list)))
        made = [dict(zip(axes, row)) for row in rows]
    else:  # each parameter has a stream of its own, so that adding one leaves the others as they were
        made = [{key: _draw(axis, f"{asked.seed}/{i}/{key}") for key, axis in axes.items()} for i in range(count)]
    return list({json.dumps(point, sort_keys=True): point for point in made}.values())


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


def tell(name: str, given: Sequence[Values], folder: Path) -> None:
    """Print what would be done."""
    print(f"{name}: {len(given)} points in {folder}")
    print("\n".join(f"  {point}" for point in given[:10]))
