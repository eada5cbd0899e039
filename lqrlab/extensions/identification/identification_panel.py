"""The identification panel: which signals and samples of a log, which model, and what comes of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ipywidgets
import jax

from lqrlab.compute import checks
from lqrlab.extensions import identification
from lqrlab.extensions.identification import Log, fit_figures
from lqrlab.extensions.identification.fit_figures import FitSummary
from lqrlab.systems import Plant, parameter_fields
from lqrlab.workbench.figures.loop_design import one_plant
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

_SHARE, _FEWEST, _LINEAR = 0.7, 20, "linear"
_ORDERS = 10


def identify(
    log: Log, plant: str | Plant | None = None, *, values: Mapping[str, Any] | None = None
) -> "Identifier | Picture":
    """A panel to find a plant in a log: choose signals, ranges of time, and a linear model or a plant's parameters.

    Shown are the outputs on the validation range with their fit, residuals, poles and step responses with what is
    uncertain, in grey those before. ``values``: as *copy as code* writes it. Without a person it is the picture.
    """
    checks.instance("log", log, Log, "a log, as identification.read makes")
    return Identifier(log, None if plant is None else one_plant(plant)).at(values)


@dataclasses.dataclass(frozen=True)
class FitRequest:
    """Signals, ranges [s] and the model that are asked for; the order of a linear one, or a plant's parameters."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    estimation: tuple[float, float]
    validation: tuple[float, float]
    order: int | None
    parameters: tuple[str, ...] = ()


def find(log: Log, plant: Plant | None, asked: FitRequest, check: Check = lambda: None) -> FitSummary:
    """The model that was asked for, found on the one range and shown on the other."""
    chosen, parts = log.chosen(asked.inputs, asked.outputs), []
    for name, (start, stop) in (("estimation", asked.estimation), ("validation", asked.validation)):
        found = round((stop - start) / log.dt)
        if found < _FEWEST:
            raise ValueError(
                f"{name}: expected a range of at least {_FEWEST} samples, {_FEWEST * log.dt:.3g} s, but found {found}; "
                "pull its ends apart"
            )
        parts.append(chosen.cut(start, stop))
    key = jax.random.key(0)
    if asked.order is not None:
        start_model = identification.subspace(parts[0], asked.order)
        check()
        model = identification.refine(start_model, parts[0])
        check()
        return fit_figures.of_model(model, parts[1], key)
    if plant is None or not asked.parameters:
        raise ValueError("parameters: expected one or more that are free, but found none chosen")
    fit = identification.fit(plant, parts[0], asked.parameters)
    check()
    return fit_figures.of_fit(fit, parts[1], key)


class Identifier(Panel[FitRequest, FitSummary]):
    """The panel; its controls are attributes, ``inputs``, ``outputs`` and ``parameters`` by name."""

    moving = ("model",)
    does = "fits the plant again for each choice of signals, ranges of time, order and free parameters"

    def __init__(self, log: Log, plant: Plant | None = None) -> None:
        self._log, self._plant = log, plant
        self._now: FitSummary | None = None
        self._before: FitSummary | None = None
        self.inputs, self.outputs = (
            {s.name: _box(s.name, True) for s in signals} for signals in (log.inputs, log.outputs)
        )
        span = max(len(u) for u, _ in log.records) * log.dt
        limits, late = {"min": 0.0, "max": span, "step": span / 200}, {"continuous_update": False, **controls.WIDE}
        self.estimation, self.validation = (
            ipywidgets.FloatRangeSlider(value=ends, description=f"{name} [s]", readout_format=".3g", **limits, **late)
            for name, ends in (("estimation", (0.0, _SHARE * span)), ("validation", (_SHARE * span, span)))
        )
        fields = {} if self._plant is None else parameter_fields(type(self._plant))
        models = [_LINEAR] if self._plant is None else [_LINEAR, self._plant.name]
        self.model = ipywidgets.ToggleButtons(options=models, description="model", **controls.WIDE)
        order = min(self._plant.n if self._plant else 2, _ORDERS)
        self.order = ipywidgets.IntSlider(value=order, min=1, max=_ORDERS, description="order", **late)
        self.parameters = {name: _box(name, bool(f.metadata["vary"])) for name, f in fields.items()}
        pages = {
            "model": [self.model, self.order, ipywidgets.HTML("free parameters:" * bool(fields))],
            "log": [ipywidgets.HTML("inputs"), *self.inputs.values(), ipywidgets.HTML("outputs")],
        }
        pages["model"] += self.parameters.values()
        pages["log"] += [*self.outputs.values(), self.estimation, self.validation]
        super().__init__([controls.tabs(pages)], call=("identify", {"log": log, "plant": plant}), settle=0.2)
        names = ("inputs", "outputs", "estimation", "validation", "model", "order", "parameters")
        self.track(**{name: getattr(self, name) for name in names})
        self.ask()

    def _question(self) -> FitRequest:
        linear = self.model.value == _LINEAR
        self.order.disabled = not linear
        for box in self.parameters.values():
            box.disabled = linear
        asked = (self.order.value, ()) if linear else (None, _ticked(self.parameters))
        records = self.estimation.value, self.validation.value
        return FitRequest(_ticked(self.inputs), _ticked(self.outputs), *records, *asked)

    def _compute(self, question: FitRequest, check: Check) -> FitSummary:
        return find(self._log, self._plant, question, check)

    def _show(self, answer: FitSummary) -> None:
        self._before, self._now = self._now, answer
        self.draw(fit_figures.picture(answer, self._before))


def _box(name: str, ticked: bool) -> ipywidgets.Checkbox:
    return ipywidgets.Checkbox(ticked, description=name.replace("_", " "), indent=False)


def _ticked(boxes: Mapping[str, ipywidgets.Checkbox]) -> tuple[str, ...]:
    return tuple(name for name, box in boxes.items() if box.value)
