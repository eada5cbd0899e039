"""The LQR designer: weights, sample time, delay, limits and parameters of a plant, and what becomes of its loop."""

import dataclasses
import html
from typing import Any

import ipywidgets
import numpy as np

from lqrlab.systems import Plant
from lqrlab.workbench.figures import svg
from lqrlab.workbench.figures.design_card import picture, quantity
from lqrlab.workbench.panels import live_panel
from lqrlab.workbench.panels.regulator import FREE, LATE, TICKS, Setting
from lqrlab.workbench.runs.session import headless


def lqr_designer(plant: str | Plant, *, num_steps: int | None = None) -> Any:
    """A panel to design a plant's regulator: weights, sampling, delay, limits and parameters on sliders.

    Args:
        plant: a family of the catalogue, or one plant of your own.
        num_steps: sample times that the curves take; until the nominal loop has settled if left out.

    Returns:
        The :class:`Designer`, to be displayed by the cell; without a person the picture at its defaults.
    """
    if headless():
        return picture(Setting.of(plant, num_steps))
    return Designer(plant, num_steps)


class Designer(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        states, inputs: name → slider of log10 of the factor of its weight.
        sample, delay, known, limit, size: sample time, delay, whether it is known, limits, initial state.
        parameters: name → slider.
        picture, words, code: what came out.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._default = Setting.of(plant, num_steps)
        own = self._default.plant
        self.states, self.inputs = (
            {s.name: live_panel.slider(s.name.replace("_", " "), 0.0, -3.0, 3.0) for s in signals}
            for signals in (own.states, own.inputs)
        )
        grid = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
        self.sample = ipywidgets.SelectionSlider(
            options=[(quantity(k * self._default.tick), k) for k in grid],
            value=TICKS, description="sample time", **live_panel.WIDE,
        )  # fmt: skip
        self.delay = live_panel.slider("delay [samples]", 0.0, 0.0, float(LATE), step=0.25)
        self.known = ipywidgets.Checkbox(True, description="the gain knows the delay", indent=False)
        self.limit = ipywidgets.FloatLogSlider(
            FREE,
            min=-1.5,
            max=2,
            step=0.05,
            description="limit, × large input",
            readout_format=".2g",
            **live_panel.WIDE,
        )
        self.size = live_panel.slider("initial state, ×", 1.0, 0.05, 3.0)
        self.parameters = live_panel.parameter_sliders(own)
        self.reset = live_panel.button("back to the defaults")
        self.picture, self.words, self.code = (ipywidgets.HTML() for _ in range(3))
        self.live = live_panel.Live(lambda setting, check: (picture(setting), setting.code), self._show)
        loop = [self.sample, self.delay, self.known, self.limit, self.size]
        note = ipywidgets.HTML("log10 of the factor of each weight")
        pages = {
            "weights": [note, *self.states.values(), *self.inputs.values()],
            "loop": loop,
            "parameters": list(self.parameters.values()),
        }
        tabs = ipywidgets.Tab([ipywidgets.VBox(page) for page in pages.values()], layout={"width": "27rem"})
        tabs.titles = tuple(pages)
        code = ipywidgets.Accordion([self.code], layout={"width": "27rem"})
        code.titles = ("copy as code",)
        left = ipywidgets.VBox([tabs, self.reset, code], layout={"flex": "0 0 28rem"})
        right = ipywidgets.VBox([self.live.bar, self.words, self.picture], layout={"flex": "1 1 auto"})
        super().__init__([left, right])
        self._controls = [*self.states.values(), *self.inputs.values(), *loop, *self.parameters.values()]
        self._start = [control.value for control in self._controls]
        self._quiet = False
        for control_ in self._controls:
            control_.observe(lambda _: self._ask(), names="value")
        self.reset.on_click(lambda _: self._reset())
        self._ask()

    @property
    def setting(self) -> Setting:
        """What the sliders say."""
        default, k = self._default, self.sample.value
        factors = (np.array([10.0**s.value for s in group.values()]) for group in (self.states, self.inputs))
        values = live_panel.moved(self.parameters, default.plant)
        return dataclasses.replace(
            default,
            plant=live_panel.altered(default.plant, values),
            states=next(factors),
            inputs=next(factors),
            sample=k,
            delay=round(self.delay.value * k),
            known=self.known.value,
            limit=self.limit.value,
            size=self.size.value,
        )

    def _ask(self) -> None:
        if not self._quiet:
            self.live.ask(self.setting)

    def _show(self, answer: tuple[svg.Picture, str]) -> None:
        drawn, code = answer
        self.picture.value, self.words.value = drawn.svg, drawn.words
        copied = html.escape(code)
        self.code.value = (
            '<button class="jupyter-button" onclick="navigator.clipboard.writeText('
            "this.nextElementSibling.textContent);this.textContent='copied'\">copy</button>"
            f'<pre style="user-select:all;white-space:pre-wrap;line-height:1.35">{copied}</pre>'
        )

    def _reset(self) -> None:
        self._quiet = True
        for control_, value in zip(self._controls, self._start):
            control_.value = value
        self._quiet = False
        self._ask()
