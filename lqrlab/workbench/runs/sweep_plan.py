"""What a sweep will do, checked before anything starts: its points, its folder, what it reads, its executor."""

import dataclasses
import hashlib
import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from lqrlab.workbench.runs import (
    fingerprints,
    notebooks,
    parameters,
    pipeline,
    session,
    sweep_points,
    sweep_program,
)
from lqrlab.workbench.runs.notebooks import Notebook, Values
from lqrlab.workbench.runs.sweep_points import Sweep


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep: its name, what it sets, all its parameters, the fingerprint of its result."""

    name: str
    given: Values
    values: Values
    fingerprint: str = ""


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """What a sweep does, checked.

    Attributes:
        asked: what was asked for.
        nb: the notebook or plant.
        executor, reason: ``notebooks`` or ``vmap``, and why.
        profile: of the parameters that all runs have.
        project, folder: the project's folder and the sweep's.
        needs: the notebooks whose files are read.
        source: the folder of the run that made these files.
        links: what stands for them in each run's folder: name → path, linked, not copied.
        id: identifies the sweep: a run ends when the sweep's record names another.
    """

    asked: Sweep
    nb: Notebook
    executor: str
    reason: str
    profile: str | None
    project: Path
    folder: Path
    needs: list[str]
    source: Path | None = None
    links: dict[str, Path] = dataclasses.field(default_factory=dict)
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def inputs(self) -> list[str | None]:
        """What identifies the files that the runs read."""
        source = self.source
        return [session.results(source, name)["execution"] for name in self.needs] if source else []

    def identified(self, points: Sequence[Point]) -> list[Point]:
        """The points with the fingerprints that their results will have."""
        package, inputs = fingerprints.package_hash(), self.inputs
        if self.nb.kind == "plant":  # its numbers follow from a module of the workbench, too
            inputs = [Path(__file__).with_name("plant_designs.py").read_text(encoding="utf-8")]
        return [
            dataclasses.replace(p, fingerprint=fingerprints.fingerprint(self.nb, p.values, inputs, package))
            for p in points
        ]


def planned(asked: Sweep) -> tuple[SweepPlan, list[Point]]:
    """Check everything that is asked for.

    Raises:
        ValueError: naming the option or parameter, what was expected and what came.
    """
    nb, profile = declared(asked.target), asked.profile
    if asked.time_limit is not None and not asked.time_limit > 0:
        raise ValueError(f"--time-limit: expected seconds above 0, but found {asked.time_limit:g}")
    common: Values = {}
    source = nb.path.parent
    if nb.kind == "plant":
        project = session.project()
        if profile or asked.inputs:
            what = "--profile" if profile else "--from"
            raise ValueError(f"{what}: is for notebooks, but {nb.name} is a plant")
    else:
        project = source.parent
        profile = profile or ("quick" if (source / "profiles" / "quick.json").exists() else None)
        common = dict(parameters.read_profile(source, profile).get(nb.name, {})) if profile else {}
    given = sweep_points.points(nb, asked, common)
    values = [sweep_points.effective(nb, common, point) for point in given]
    executor, reason = choose_executor(nb, values, asked)
    if nb.kind == "plant":
        from lqrlab.workbench.runs import plant_designs

        plant_designs.plants(nb.name, given)  # refuses what is out of range
    names = [f"{i:05d}" for i in range(1, len(given) + 1)]
    if executor == "notebooks":
        names = [_called(*pair) for pair in zip(given, values)]
    folder = Path(asked.folder).expanduser() if asked.folder else project / "data" / "sweeps" / nb.name
    before = [p.stem for p in sorted(source.glob(notebooks.MAIN_JOB)) if p.stem < nb.name]
    needs = nb.metadata.get("needs", before if re.match("0[0-9]_", nb.name) else [])
    plan = SweepPlan(asked, nb, executor, reason, profile, project, folder.resolve(), needs)
    return plan, [Point(*fields) for fields in zip(names, given, values)]


def declared(target: str | Path) -> Notebook:
    """The notebook of that path or name, or what can be set of the plant of that name."""
    path = Path(target).expanduser()
    if path.suffix == ".ipynb" and path.exists():
        return notebooks.read(path.resolve())
    try:
        return notebooks.named(pipeline.find_source(), [str(target)])[0]
    except ValueError as error:  # there is no such notebook, or there are none at all
        from lqrlab import compute, systems

        compute.setup()
        if target not in systems.names():
            near = notebooks.near(str(target), systems.names())
            raise ValueError(f"{error}; nor is there a plant of this name{near}") from None
        from lqrlab.workbench.runs import plant_designs

        return plant_designs.declaration(str(target))


def choose_executor(nb: Notebook, values: Sequence[Values], asked: Sweep) -> tuple[str, str]:
    """What executes the points, and the reason in words."""
    options = {
        "--workers": asked.workers,
        "--scheduler": asked.scheduler,
        "--time-limit": asked.time_limit,
    }
    option = next((name for name, value in options.items() if value is not None), "")
    if nb.kind == "plant":
        option = option or ("--executor notebooks" if asked.executor == "notebooks" else "")
        if option:
            raise ValueError(
                f"{option}: is for notebooks, but {nb.name} is a plant: one program does all points"
            )
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
    given = {k: v for k, v in values.items() if k != "run"}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:6]
    text = ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())
    readable = re.sub(r"[^\w.=,+-]+", "_", text)[:80]
    return f"{readable or 'defaults'}-{digest}"
