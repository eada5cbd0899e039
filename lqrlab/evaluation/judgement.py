"""A judgement: the cost of controllers above the optimum, scenario by scenario, and its file."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import checks, files
from lqrlab.evaluation.scores import Score

_KIND = "lqrlab judgement"


@dataclasses.dataclass(frozen=True, eq=False)
class Judgement:
    """The result of :func:`judge`.

    Attributes:
        scores: scenario → controller → score ``[variants, starts]``; ``NO_ANSWER`` for a verdict where it refused.
        plants: scenario → the family or design of each variant.
        refused: controller → scenario → plant → why it gave no answer there, in its own words.
        seconds: controller → median and longest time of one step of one loop [s].
        digests: scenario → digest of its plants and starts.
        left_out: scenario → variants that have no stabilizing optimum to compare with.
        recipe: how it was made, as ``save`` was told.
    """

    scores: Mapping[str, Mapping[str, Score]]
    plants: Mapping[str, tuple[str, ...]]
    refused: Mapping[str, Mapping[str, Mapping[str, str]]]
    seconds: Mapping[str, tuple[float, float]]
    digests: Mapping[str, str]
    left_out: Mapping[str, int]
    recipe: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def summary(self) -> dict[str, dict[str, dict[str, float]]]:
        """Scenario → controller → the numbers of :meth:`Score.summary`."""
        return {scenario: {name: one.summary() for name, one in by.items()} for scenario, by in self.scores.items()}

    def rows(self) -> list[dict[str, str | float]]:
        """The same as rows of a table, ``pandas.DataFrame(found.rows())``, with the time of a step [s]."""
        rows: list[dict[str, str | float]] = []
        for scenario, by in self.summary().items():
            for name, numbers in by.items():
                median, longest = self.seconds.get(name, (math.nan, math.nan))
                times = {"step [s]": median, "slowest step [s]": longest}
                rows.append({"plants": scenario, "controller": name, **numbers, **times})
        return rows

    def by_plant(self, scenario: str, controller: str) -> dict[str, dict[str, float]]:
        """Family or design → the same numbers, of one scenario and controller."""
        score, names = self.scores[scenario][controller], np.array(self.plants[scenario])
        return {name: score[np.flatnonzero(names == name)].summary() for name in dict.fromkeys(names.tolist())}

    @classmethod
    def together(cls, parts: Sequence["Judgement"]) -> "Judgement":
        """One judgement of several: other scenarios, or other controllers on the same plants and starts.

        Raises:
            ValueError: scenarios of one name with different plants or starts, by their digests; a controller twice.
        """
        scores: dict[str, dict[str, Score]] = {}
        fields: dict[str, dict[str, Any]] = {name: {} for name in ("plants", "digests", "left_out")}
        refused: dict[str, dict[str, Mapping[str, str]]] = {}
        seconds: dict[str, tuple[float, float]] = {}
        for part in parts:
            for scenario, by in part.scores.items():
                if fields["digests"].setdefault(scenario, part.digests[scenario]) != part.digests[scenario]:
                    raise ValueError(
                        f"{scenario}: expected the same plants and starts in all, but their digests differ: they were "
                        "judged with another seed or other options, so their numbers cannot be compared"
                    )
                if twice := sorted(by.keys() & scores.get(scenario, {}).keys()):
                    raise ValueError(f"{scenario}: expected each controller once, but found twice: {', '.join(twice)}")
                scores.setdefault(scenario, {}).update(by)
                fields["plants"][scenario] = part.plants[scenario]
                fields["left_out"][scenario] = part.left_out[scenario]
            for name, words in part.refused.items():
                refused.setdefault(name, {}).update(words)
            seconds = {**part.seconds, **seconds}
        return cls(scores, refused=refused, seconds=seconds, recipe=parts[0].recipe if parts else {}, **fields)

    def save(self, path: str | Path, **recipe: object) -> Path:
        """Write it as JSON, with what else is to be known of how it was made; :meth:`read` reads it back."""
        content: dict[str, object] = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        content["scores"] = {s: {name: _written(one) for name, one in by.items()} for s, by in self.scores.items()}
        content |= {"kind": _KIND, "recipe": {**self.recipe, **recipe}}
        return files.write_json(path, content, ensure_ascii=False)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """A judgement of a file that :meth:`save` wrote.

        Raises:
            ValueError: it is none, or its numbers do not go together.
        """
        try:
            found: dict[str, Any] = files.read_object(checks.path("path", path))
            if (kind := found.pop("kind")) != _KIND:
                raise ValueError(f"its kind is {kind!r:.40}")
            found["scores"] = {s: {n: _score_of(row) for n, row in by.items()} for s, by in found["scores"].items()}
            found["plants"] = {scenario: tuple(names) for scenario, names in found["plants"].items()}
            found["seconds"] = {name: (float(a), float(b)) for name, (a, b) in found["seconds"].items()}
            for scenario, by in found["scores"].items():
                if any(len(score.ratio) != len(found["plants"][scenario]) for score in by.values()):
                    raise ValueError(f"{scenario} has scores of another number of plants")
                found["digests"][scenario], found["left_out"][scenario]
            return cls(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: expected a file of Judgement.save, but found another ({error})") from None


def _written(score: Score) -> dict[str, object]:
    """A score in JSON, which has neither infinity nor NaN."""
    ratio = np.asarray(score.ratio, float)
    rows = [[None if not math.isfinite(a) else float(f"{a:.12g}") for a in row] for row in ratio.tolist()]
    found: dict[str, object] = {"ratio": rows, "verdict": np.asarray(score.verdict).tolist()}
    found |= {"lost": np.isposinf(ratio).tolist(), "reference": score.reference}
    return found if score.asked is None else found | {"asked": np.round(np.asarray(score.asked), 6).tolist()}


def _score_of(row: Mapping[str, Any]) -> Score:
    ratio = np.where(np.array(row["lost"], bool), np.inf, np.array(row["ratio"], float))  # None is NaN
    judged = np.array(row["verdict"], np.int8)
    if judged.shape != ratio.shape or ratio.ndim != 2:
        raise ValueError("costs and verdicts are not tables of one shape")
    asked = None if "asked" not in row else np.array(row["asked"], float)
    with jax.enable_x64(True):  # costs are read as they are written, whatever precision JAX is allowed
        ratio, judged, rest, asked = jax.tree.map(jnp.asarray, (ratio, judged, np.zeros(ratio.shape), asked))
    return Score(ratio, judged, rest, str(row["reference"]), asked)
