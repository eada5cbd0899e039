"""Selections of plants for the judge, and its parts: one for each controller and scenario."""

import collections
import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import Array

import lqrlab
from lqrlab import evaluation, learning, systems
from lqrlab.compute.configuration import Config, Count, NonNegative, OneOf, Positive, Seed, Share
from lqrlab.evaluation import Judgement, Scenario, judging
from lqrlab.evaluation.scores import NO_ANSWER
from lqrlab.extensions.controllers import processes
from lqrlab.extensions.controllers.processes import GROUPS
from lqrlab.extensions.predictive import reference
from lqrlab.simulation import Verdict
from lqrlab.systems import catalogue


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlantSelection(Config):
    """Plants and scenarios, as options of ``lqrlab judge``.

    Attributes:
        plants: groups (``trained``, ``unseen``, ``published``, ``dense``, ``all``), families, files of plants.
        variants: plants of each family.
        spread: half-width of their parameters, relative.
        starts: initial states of each plant.
        noise: of states and sensors, in scales of the states; 0 for no scenarios with noise.
        limits: of the inputs, ± this in their scales; None for no scenarios with limits.
        told: whether controllers are given A and B, ``"everything"``, or ``"units"`` alone.
        seed: of plants and starts; 0 is the public list, others are held back.
    """

    plants: tuple[str, ...] = ("all",)
    variants: Count = 8
    spread: Share = 0.2
    starts: Count = 4
    noise: NonNegative = 0.01
    limits: Positive | None = None
    told: Annotated[str, OneOf("everything", "units")] = "everything"
    seed: Seed = 0

    @property
    def key(self) -> Array:
        """Random key of plants and starts."""
        return jax.random.key(self.seed)

    @property
    def digest(self) -> str:
        """Digest of the selection, and of the files that it names."""
        seen = hashlib.sha256(f"{lqrlab.__version__} {self.to_json()}".encode())
        for file in map(Path, self.plants):
            seen.update(file.read_bytes() if file.suffix and file.is_file() else b"")
        return seen.hexdigest()[:16]


def scenarios_of(selection: PlantSelection) -> dict[str, Scenario]:
    """The scenarios of a selection: of its groups in the order of :func:`lqrlab.evaluation.suite`, then of its plants.

    The trained families are those of the network that is shipped. A file is entered as a family of the file's name.

    Raises:
        ValueError: nothing selected; a name that is no group, family or file, with the nearest.
    """
    if not selection.plants:
        raise ValueError(f"plants: expected {', '.join(GROUPS)}, all, families or files of plants, but found none")
    trained = list(learning.weight_files.card("regulator")["trained"])
    options = {name: getattr(selection, name) for name in ("variants", "spread", "noise")} | {"limit": selection.limits}
    groups = GROUPS if "all" in selection.plants else [name for name in GROUPS if name in selection.plants]
    found: dict[str, Scenario] = {}
    if groups:
        others = [name for name in catalogue.places() if name not in trained] if "unseen" in groups else []
        every = evaluation.suite(trained, key=selection.key, others=others, **options)
        found = {name: one for name, one in every.items() if one.group in groups}
    each = [name for name in selection.plants if name not in (*GROUPS, "all")]
    if names := [one for name in each for one in (systems.register_file(name) if Path(name).suffix else [name])]:
        label = ", ".join(names) if len(names) < 4 else f"{len(names)} families"
        group = "trained" if set(names) <= set(trained) else "unseen"
        for name, one in evaluation.suite(names, key=selection.key, others=[], **options).items():
            if one.group == "trained":
                own = name.replace("trained families", label) if "trained families" in name else f"{label}, {name}"
                found[own] = dataclasses.replace(one, group=group)
    if selection.told == "units":
        untold = {name: dataclasses.replace(one, told="units") for name, one in found.items()}
        found = {name if found[name].told == "units" else f"{name}, untold": one for name, one in untold.items()}
    return found


def verify(judgement: Judgement, trusted: Sequence[str] = ()) -> list[str]:
    """Reasons why scenarios of a judgement do not match its recipe or are impossible.

    Plants and starts are drawn again, costs are not computed again. Files of code are run only if ``trusted``.
    """
    try:
        selection = PlantSelection.from_dict(judgement.recipe["selection"])
        code = [name for name in selection.plants if Path(name).suffix == ".py" and name not in trusted]
        if code:
            return [f"its plants are those of {code[0]}, code that would be executed; --plants {code[0]} allows it"]
        scenarios = scenarios_of(selection)
        strange = {scenario for by in judgement.refused.values() for scenario in by} - judgement.scores.keys()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return [f"its recipe cannot be followed here: {error}"]
    found = [f"{name}: it has refusals, and no costs" for name in strange]
    found += [f"{name}: it is of the recipe, and missing" for name in scenarios if name not in judgement.scores]
    for name in judgement.scores:
        if name not in scenarios:
            found.append(f"{name}: it is not of the recipe")
            continue
        again = judging.digest(scenarios[name], judging.key_of(selection.key, name), selection.starts)
        if again != judgement.digests[name]:
            found.append(f"{name}: its plants or starts are not those of the recipe")
        else:
            found += [f"{name}: {words}" for words in _impossible(judgement, name, scenarios[name], selection.starts)]
    return found


def _impossible(judgement: Judgement, name: str, scenario: Scenario, starts: int) -> list[str]:
    """Words for all that no loops on the plants of a scenario can have had."""
    drawn = [family for family, batch in scenario.plants.items() for _ in range(len(batch))]
    named, rest = judgement.plants[name], collections.Counter(drawn)
    rest.subtract(named)
    every = {controller for by in judgement.scores.values() for controller in by}
    found = [f"{controller} is missing" for controller in sorted(every - judgement.scores[name].keys())]
    if not all(one.get(name, {}).keys() <= set(named) for one in judgement.refused.values()):
        found.append("plants without an answer are not those of the recipe")
    if min(rest.values()) < 0 or sum(rest.values()) != judgement.left_out[name]:
        found.append("its table of plants is not that of the recipe")
    reference = "LQR" if scenario.noise or scenario.events or scenario.told == "units" else "unconstrained"
    for controller, score in judgement.scores[name].items():
        ratio, answered, asked = np.asarray(score.ratio), score.answered, score.asked
        lowest = np.nanmin(np.where(answered, ratio, np.inf), initial=np.inf)
        if ratio.shape != (len(named), starts) or (asked is not None and asked.shape != ratio.shape):
            found.append(f"{controller} has a table of costs of another shape")
        elif scenario.limit is None and answered.any() and score.reference != reference:
            found.append(f"{controller} is compared with {score.reference}, not with {reference}")
        elif not np.isin(score.verdict, (NO_ANSWER, *Verdict)).all():
            found.append(f"{controller} has unknown verdicts")
        elif lowest < (0.0 if reference == "LQR" else 0.999):
            found.append(f"{controller} costs {lowest:.3g} of the optimum, which is impossible")
        elif scenario.limit is None and np.isnan(ratio[answered]).any():
            found.append(f"{controller} has loops without cost that did not diverge")
    return found


def compared(files: Sequence[Path], trusted: Sequence[str] = ()) -> Judgement:
    """Compare judgements of several files, each verified; controllers are named with their file.

    Plants and starts are verified, see :func:`verify`, which the recipe says; costs are as the files say.

    Raises:
        ValueError: no file of a judgement; plants or starts that are not those of its recipe, or differ between files.
    """
    found: list[Judgement] = []
    controllers: dict[str, object] = {}
    stems = [file.stem for file in files]
    names = stems if len(set(stems)) == len(stems) else [str(file) for file in files]
    for file, stem in zip(files, names):
        one = Judgement.read(file)
        if words := verify(one, trusted):
            raise ValueError(f"{file}: expected the plants and starts of its recipe, but found: {'; '.join(words)}")
        called = functools.partial(_called, stem)
        scores = {scenario: called(by) for scenario, by in one.scores.items()}
        digests = one.recipe.get("controllers")
        digests = called(digests) if isinstance(digests, Mapping) else {}
        tables = {"refused": called(one.refused), "seconds": called(one.seconds)}
        controllers |= digests
        found.append(dataclasses.replace(one, scores=scores, **tables))
    versions = dict.fromkeys(str(one.recipe.get("version", "unknown")) for one in found)
    recipe = {**found[0].recipe, "controllers": controllers, "version": ", ".join(versions)}
    recipe["verified"] = "plants and starts were drawn again; the costs are those of the files"
    return dataclasses.replace(Judgement.together(found), recipe=recipe)


def _called(stem: str, table: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name} ({stem})": value for name, value in table.items()}


@dataclasses.dataclass
class Parts:
    """The files of a controller in a folder, one for each scenario that has been judged."""

    word: str
    selection: PlantSelection
    scenarios: Mapping[str, Scenario]
    place: Path
    controller: object = None

    def file(self, name: str) -> Path:
        """The part of a scenario."""
        return self.place / f"{zlib.crc32(name.encode()):08x}.json"

    def left(self) -> list[str]:
        """Scenarios that have no part yet."""
        return [name for name in self.scenarios if not self.file(name).exists()]

    def write(self, name: str, controller: object) -> None:
        """The part of a scenario, by a controller."""
        key, starts, one = self.selection.key, self.selection.starts, {name: self.scenarios[name]}
        found = evaluation.judge({self.word: controller}, one, key=key, starts=starts, reference=reference)
        self.place.mkdir(parents=True, exist_ok=True)
        found.save(self.file(name))


def joined(parts: Sequence[Parts]) -> Judgement:
    """The judgement of all parts, with what is to be known of how it was made."""
    selection = parts[0].selection
    each = [Judgement.read(part.file(name)) for name in parts[0].scenarios for part in parts]
    seconds: dict[str, tuple[float, float]] = {}
    for part in each:  # where a step takes longest: within limits, of an MPC
        seconds |= {name: max(seconds.get(name, times), times) for name, times in part.seconds.items()}
    recipe = {
        "selection": json.loads(selection.to_json()),
        "version": lqrlab.__version__,
        "controllers": {part.word: processes.identity(part.word) for part in parts},
    }
    return dataclasses.replace(Judgement.together(each), recipe=recipe, seconds=seconds)
