"""What there is to say of one plant, in words and tables: the terminal prints it, the catalogue page sets it."""

import dataclasses

import numpy as np

from lqrlab import systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, demonstration

Table = tuple[tuple[str, ...], list[tuple[object, ...]]]
PARAMETERS = ("name", "value", "unit", "range", "what it is")
"""Head of a table of parameters."""


@dataclasses.dataclass(frozen=True)
class Card:
    """What there is to say of one plant.

    Attributes:
        name, title: of its family.
        facts: label → words: size, sample time, source, limits of the model.
        modes: the open loop's modes in words, the least stable first.
        equations: of motion, as LaTeX; none for a plant without a family.
        tables: caption → head and rows: parameters, states and inputs.
    """

    name: str
    title: str
    facts: dict[str, str]
    modes: list[str]
    equations: list[str]
    tables: dict[str, Table]

    @property
    def size(self) -> str:
        """Numbers of states and inputs."""
        return self.facts["size"].rpartition(",")[0]


def card(plant: Plant, *, equations: bool = True) -> Card:
    """Gather what there is to say of a plant; ``equations=False`` saves the tenth of a second that they take."""
    sampled = f"sampled every {charts.duration(float(plant.dt))}"
    counts = f"{_count(plant.n, 'state')}, {_count(plant.m, 'input')}"
    facts = {"size": f"{counts}, {sampled}", "source": plant.source, "limits": plant.limits}
    signals: list[tuple[object, ...]] = [
        (s.name, s.unit, f"{s.scale:.4g}", f"{_tidy(value, s.scale):.5g}", kind)
        for kind, of, at in zip(("state", "input"), (plant.states, plant.inputs), plant.equilibrium())
        for s, value in zip(of, np.asarray(at, float))
    ]
    parameters = [(name, f"{value:.6g}", *rest) for name, value, *rest in parameter_rows(plant)]
    tables: dict[str, Table] = {
        "Parameters": (PARAMETERS, parameters),
        "States and inputs": (("name", "unit", "large is", "equilibrium", "kind"), signals),
    }
    try:
        lines = systems.equations(plant) if equations else []
    except ValueError:  # matrices or a function of one's own: there is no text to read
        lines = []
    return Card(
        name=plant.name,
        title=plant.title,
        facts={label: words for label, words in facts.items() if words},
        modes=demonstration.mode_sentences(plant),
        equations=lines,
        tables={caption: table for caption, table in tables.items() if table[1]},
    )


def parameter_rows(plant: Plant) -> list[tuple[str, float, str, str, str]]:
    """Name, value, unit, range and meaning of each parameter; the first of a batch."""
    rows = []
    for name, field in systems.parameter_fields(type(plant)).items():
        meta = field.metadata
        span = f"{meta['low']:g} … {meta['high']:g}" + ("" if meta["vary"] else ", not varied")
        value = float(np.asarray(getattr(plant, name)).ravel()[0])
        rows.append((name, value, meta["unit"], span, meta["about"]))
    return rows


def phrase(title: str) -> str:
    """The first phrase of a title."""
    for mark in (";", ":", ","):
        title = title.split(mark)[0]
    return title


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _tidy(value: float, scale: float) -> float:
    return 0.0 if abs(value) < 1e-12 * scale else float(value)
