"""The data browser: what a data set holds, trajectory by trajectory, with the optimum of the same plant and start."""

import dataclasses
import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from lqrlab import dataset, simulation, systems
from lqrlab.simulation import Problem, Trajectory
from lqrlab.workbench.figures import charts, digits, svg
from lqrlab.workbench.figures.loop_design import poles_of
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.controls import WIDE
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

_WIDTH, _TALL = 860.0, 290.0
_ALL = "all splits"


def data_browser(path: str | Path, *, values: Mapping[str, Any] | None = None) -> "Browser | Picture":
    """A panel to browse the data set in a folder; a ``BadFile`` if there is none, or a damaged one.

    ``values`` is what its controls begin at, as *copy as code* writes it. Without a person it is the first trajectory.
    """
    return Browser(dataset.open(path)).at(values)


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The trajectories of one family and split."""

    data: dataset.Dataset
    family: str
    split: str | None  # None for all splits
    plants: systems.Linear  # the variants' linear models, a batch
    rows: Int[np.ndarray, " V"]  # where they stand in the data set's variants
    runs: dataset.Recorded

    @classmethod
    def of(cls, data: dataset.Dataset, family: str, split: str | None) -> "Selection":
        """Read, and compare with the checksums."""
        asked = split, family
        return cls(data, family, split, data.linear(*asked), data.rows(*asked), data.trajectories(*asked))

    @property
    def signals(self) -> list[charts.PlottedSignal]:
        """States and inputs by the family's names; a plant that is not registered here has x1, …, u1, …."""
        return charts.channels(systems.family(self.family) if self.family in systems.names() else self.plants)

    def column(self, name: str, variant: int) -> np.ndarray:
        """A number or a matrix of a variant, as it is on disk."""
        return self.data.column(name, self.split, self.family)[variant]

    def problem(self, variant: int) -> Problem:
        """A variant's linear problem, with the optimum that is on disk."""
        problem = Problem.of(self.plants[variant], linear=True, optimum=False)
        K, P = (jnp.asarray(self.column(name, variant)) for name in "KP")
        return dataclasses.replace(problem, K=K, P=P)

    def parameters(self, variant: int) -> dict[str, float]:
        """A variant's parameters by name in words."""
        table = self.data.tables[[s["family"] for s in self.data.shards].index(self.family)]
        names = (name.removeprefix("parameters/") for name in table if name.startswith("parameters/"))
        return {name.replace("_", " "): float(self.column(f"parameters/{name}", variant)) for name in names}


def picture(chosen: Selection, variant: int, number: int) -> Picture:
    """One trajectory and the optimum, and the poles, with the words above them.

    ``number`` counts the variant's trajectories or their segments. A ``ValueError`` if nothing was kept of it.
    """
    numbers = np.flatnonzero(chosen.runs.variant == chosen.rows[variant])
    if not len(numbers):
        missing = left_out(chosen.data, chosen.family)
        raise ValueError(f"{chosen.family}, variant {variant}: no trajectory of it was kept; {missing}")
    at = int(numbers[min(number, len(numbers) - 1)])
    xs, us = (np.asarray(a[at], float) for a in (chosen.runs.states, chosen.runs.controls))
    dt = float(np.asarray(chosen.plants.dt)[variant])
    problem = chosen.problem(variant)
    x0 = jnp.asarray(chosen.runs.x0[at], float)
    best = jax.tree.map(np.asarray, simulation.rollout(problem, problem.K, x0, len(us)))
    recorded = Trajectory(dt * np.arange(len(xs)), xs, us, None)  # type: ignore[arg-type]
    runs, signals = {"optimal": best, "as recorded": recorded}, chosen.signals
    left = (0, 0, _WIDTH - 310)
    traces, bottom = charts.responses(signals, runs, left, columns=1 + (len(signals) > 3), named=True, height=_TALL)
    poles = {"optimal": poles_of(problem), "no control": np.linalg.eigvals(np.asarray(problem.A))}
    body = traces + charts.pole_map((_WIDTH - 300, 0, 300, _TALL + 24), poles)
    alt = f"{chosen.family}: one recorded trajectory and its optimum, poles"
    file = svg.document(body, _WIDTH, max(bottom, _TALL + 24), alt)
    return Picture(file, alt, _words(chosen, variant, at, recorded))


def _words(chosen: Selection, variant: int, at: int, recorded: Trajectory) -> str:
    dt, P, data = float(np.asarray(chosen.plants.dt)[variant]), chosen.column("P", variant), chosen.data
    x0, end = np.asarray(chosen.runs.x0[at], float), recorded.xs[-1]
    least, rest, paid = float(x0 @ P @ x0), float(end @ P @ end), float(chosen.runs.cost[at])
    row = chosen.rows[variant]
    values = (f"{name} {digits(value, 4)}" for name, value in chosen.parameters(variant).items())
    split = html.escape(str(data.variants.split[row]))
    took = f"{digits(float(recorded.ts[-1]))} s"
    if data.config.keep_every > 1:
        took += f" from {digits(dt * chosen.runs.start[at])} s on"
    excess = f"{digits(100 * ((paid + rest) / least - 1))} % above" if least > 0 else "not comparable with"
    return (
        f"<b>{html.escape(chosen.family)}</b>, variant {data.variants.variant[row]} ({split}): "
        f"{html.escape(', '.join(values))}.<br>"
        f"<b>Cost.</b> The optimum from this start is x0ᵀP x0 = {digits(least, 4)}. Recorded: {digits(paid, 4)} in "
        f"{took}, and {digits(rest)} cost-to-go at the end: {excess} the optimum.<br>"
        f"<b>Excluded.</b> {left_out(data, chosen.family)}"
    )


def left_out(data: dataset.Dataset, family: str) -> str:
    """Number of a family's missing runs, and the reasons, in words."""
    missing = [f"{count:,} {dataset.card.REASONS[why]}" for why, count in data.left_out[family].items() if count]
    whole = f"of {data.config.variants:,} variants × {data.config.trajectories:,} trajectories"
    return f"{', '.join(missing) or 'Nothing'}, {whole}."


BrowserQuestion = tuple[str, str | None, int, int]
"""Family, split, numbers of the variant and of its trajectory."""


class Browser(Panel[BrowserQuestion, Picture]):
    """The panel; its controls are attributes."""

    moving = ("variant", "trajectory")
    does = "shows each trajectory of the data set and the optimum from its start, by family, split and variant"

    def __init__(self, data: dataset.Dataset) -> None:
        self._data = data
        self._chosen: Selection | None = None
        self.family = ipywidgets.Dropdown(options=data.config.families, description="family", **WIDE)
        self.split = ipywidgets.Dropdown(options=[_ALL], description="split", **WIDE)
        rows = "trajectory" if data.config.keep_every == 1 else "segment"
        self.variant, self.trajectory = (
            ipywidgets.IntSlider(0, 0, 0, description=label, **WIDE) for label in ("variant", rows)
        )
        shown = [controls.rows([self.family, self.split]), controls.rows([self.variant, self.trajectory])]
        super().__init__(shown, call=("data_browser", {"path": data.path}))
        self.track(then=self._choose_family, family=self.family)
        self.track(then=self._choose_split, split=self.split)
        self.track(variant=self.variant, trajectory=self.trajectory)
        self._choose_family()

    def _choose_family(self) -> None:
        with self.quietly():
            present = [s for s in dataset.store.SPLITS if len(self._data.rows(s, self.family.value))]
            self.split.options = [_ALL, *present]
        self._choose_split()

    def _choose_split(self) -> None:
        with self.quietly():
            config, split = self._data.config, self._question()[1]
            self.variant.value = self.trajectory.value = 0
            self.variant.max = max(len(self._data.rows(split, self.family.value)) - 1, 0)
            self.trajectory.max = config.trajectories * len(config.starts) - 1
        self.ask()

    def _question(self) -> BrowserQuestion:
        split = None if self.split.value == _ALL else self.split.value
        return self.family.value, split, self.variant.value, self.trajectory.value

    def _compute(self, question: BrowserQuestion, check: Check) -> Picture:
        family, split, variant, number = question
        if self._chosen is None or (self._chosen.family, self._chosen.split) != (family, split):
            self._chosen = Selection.of(self._data, family, split)
        check()
        return picture(self._chosen, variant, number)
