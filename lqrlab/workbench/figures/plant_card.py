"""A plant described in words and tables: the terminal prints it, the catalogue page sets it."""

import dataclasses
import html
import re
from collections.abc import Iterable

import numpy as np
from jaxtyping import ArrayLike

from lqrlab import control, systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, symbolic

Table = tuple[tuple[str, ...], list[tuple]]
PARAMETERS = ("name", "value", "unit", "range", "what it is")
"""Head of a table of parameters."""


@dataclasses.dataclass(frozen=True)
class Card:
    """A plant in words and tables."""

    name: str
    title: str
    size: str
    facts: dict[str, str]  # label → words: size, sample time, source, limits of the model
    modes: list[str]  # of the open loop, in words, the least stable first
    equations: list[str]  # of motion, as LaTeX; none for a plant without a family
    tables: dict[str, Table]  # caption → head and rows: parameters, states and inputs


def card(plant: Plant, *, equations: bool = True, A: ArrayLike | None = None) -> Card:
    """Gather what there is to say of a plant; ``equations=False`` saves the tenth of a second that they take.

    ``A`` is that of the plant if it has been linearised already.
    """
    counts = ((plant.n, "state"), (plant.m, "input"))
    size = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts)
    about = f"{size}, sampled every {charts.duration(float(plant.dt))}"
    facts = {"size": about, "source": plant.source, "limits": plant.limits}
    signals = [
        (s.name, s.unit, f"{s.scale:.4g}", f"{value if abs(value) > 1e-12 * s.scale else 0.0:.5g}", kind)
        for kind, of, at in zip(("state", "input"), (plant.states, plant.inputs), plant.equilibrium())
        for s, value in zip(of, np.asarray(at, float))
    ]
    parameters = [(name, f"{value:.6g}", *rest) for name, value, *rest in parameter_rows(plant)]
    tables: dict[str, Table] = {
        "Parameters": (PARAMETERS, parameters),
        "States and inputs": (("name", "unit", "scale", "equilibrium", "kind"), signals),
    }
    try:
        lines = symbolic.equations(plant) if equations else []
    except ValueError:  # matrices or a function of one's own: there is no text to read
        lines = []
    facts = {label: words for label, words in facts.items() if words}
    tables = {caption: table for caption, table in tables.items() if table[1]}
    modes = [words for _, words in control.modes_in_words(plant, A)]
    return Card(plant.name, plant.title, size, facts, modes, lines, tables)


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
    """The first phrase of a title, which is enough to tell the plants of the catalogue apart."""
    return re.split("[;:]", title)[0]


def html_table(caption: str, table: Table) -> str:
    """A table as HTML; all that stands in it is text."""

    def row(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    head, rows = table
    body = "".join(row(cells, "td") for cells in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    )
