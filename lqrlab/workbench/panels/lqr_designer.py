"""The LQR designer: weights, sample time, delay, limits and parameters of a plant, and what becomes of its loop."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import ipywidgets
import numpy as np

from lqrlab import control
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts
from lqrlab.workbench.figures.loop_design import FREE, LATE, OVERVIEW, TICKS, LoopDesign, LoopSetting, design
from lqrlab.workbench.figures.loop_picture import VIEWS, picture
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls, copy_as_code
from lqrlab.workbench.panels.controls import button
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel

_MOST = 3  # designs that are pinned


def lqr_designer(
    plant: str | Plant, *, num_steps: int | None = None, values: Mapping[str, Any] | None = None
) -> "Designer | Picture":
    """A panel to design a plant's regulator: weights, sampling, delay, limits and parameters on sliders.

    Up to three designs are pinned and drawn beside the one that the sliders stand for. The plant is a family of the
    catalogue or one of your own; the curves take ``num_steps`` sample times, or until the nominal loop has settled.
    ``values`` is what its controls begin at, as *copy as code* writes it. Without a person it
    is the picture.
    """
    return Designer(plant, num_steps).at(values)


class Designer(Panel[LoopSetting, Picture]):
    """The panel; its controls are attributes, ``states``, ``inputs`` and ``parameters`` by name."""

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._default = default = LoopSetting.of(plant, num_steps)
        self.states, self.inputs = (
            {s.name: controls.factor_slider(f"{s.name.replace('_', ' ')}, ×") for s in signals}
            for signals in (default.plant.states, default.plant.inputs)
        )
        times = [(charts.duration(k * default.tick), k) for k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
        self.sample = ipywidgets.SelectionSlider(options=times, value=TICKS, description="sample time", **controls.WIDE)
        self.delay = controls.slider("delay [samples]", 0.0, 0.0, float(LATE), step=0.25)
        self.known = ipywidgets.Checkbox(True, description="the gain knows the delay", indent=False)
        self.limit = controls.limit_slider(FREE)
        self.size = controls.slider("initial state, ×", 1.0, 0.05, 3.0)
        self.view = ipywidgets.Dropdown(options=(OVERVIEW, *VIEWS), description="picture", **controls.WIDE)
        self.parameters = controls.parameter_sliders(default.plant)
        pages = {
            "weights": [*self.states.values(), *self.inputs.values()],
            "loop": [self.sample, self.delay, self.known, self.limit, self.size, self.view],
            "parameters": list(self.parameters.values()),
        }
        self.pinned: dict[str, tuple[LoopSetting, LoopDesign]] = {}
        self.pin = button("pin this design", self._guarded(self._pin))
        self.unpin = button("unpin all", self._guarded(self._unpin))
        super().__init__(
            [controls.tabs(pages)],
            tools=[self.pin, self.unpin],
            call=("lqr_designer", {"plant": plant, "num_steps": num_steps}),
        )
        names = ("states", "inputs", "sample", "delay", "known", "limit", "size", "view", "parameters")
        self.track(**{name: getattr(self, name) for name in names})
        self.ask()

    def _question(self) -> LoopSetting:
        states, inputs = (np.array([s.value for s in group.values()]) for group in (self.states, self.inputs))
        return dataclasses.replace(
            self._default,
            plant=controls.changed(self._default.plant, self.parameters),
            states=states,
            inputs=inputs,
            sample=self.sample.value,
            delay=round(self.delay.value * self.sample.value),
            known=self.known.value,
            limit=self.limit.value,
            size=self.size.value,
            view=self.view.value,
        )

    def _compute(self, question: LoopSetting, check: Check) -> Picture:
        return picture(question, dict(self.pinned))

    def _pin(self) -> None:
        """Draw the loop as it stands beside those that follow."""
        if len(self.pinned) >= _MOST:
            raise ValueError(f"at most {_MOST} designs are pinned; unpin those that are")
        setting = self._question()
        self.pinned[f"design {len(self.pinned) + 1}"] = setting, design(setting)
        self.ask()

    def _unpin(self) -> None:
        self.pinned.clear()
        self.ask()

    def _codes(self, question: LoopSetting) -> list[str]:
        return [copy_as_code.regulator(question), *super()._codes(question)]

    def _exported(self, question: LoopSetting) -> tuple[object, Problem]:
        s, u_eq = question, question.plant.equilibrium()[1]
        if s.delay and s.known:
            raise ValueError(
                f"export: expected a loop without delay, but found one of {s.delay / s.sample:g} samples: its policy "
                "delays the input itself, which your actuator does already"
            )
        problem = Problem.of(s.plant, dt=s.dt, limits=(u_eq - s.limits, u_eq + s.limits), optimum=False)
        return control.lqrd(*s.plant.matrices(), *s.weights, s.dt), problem
