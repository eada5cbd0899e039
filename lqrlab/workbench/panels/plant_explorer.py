"""The plant explorer: any family, its parameters and initial state on sliders, its drawing in motion."""

import dataclasses
import html
from collections.abc import Mapping
from typing import Any

import ipywidgets
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import simulation, systems
from lqrlab.simulation import Problem
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, loop_design, plant_card
from lqrlab.workbench.figures.animation import HOLD, Animation, animation
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels import controls
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel, close_all

_CLOSED, _OPEN = "optimal", "no control"


def plant_explorer(
    plant: str | Plant = "cart_pole", *, num_steps: int | None = None, values: Mapping[str, Any] | None = None
) -> "Explorer | Animation | Picture":
    """A panel to get to know plants: choose one, change it, let it go from any state, with control and without.

    It begins with a family; one plant of your own is the only one to choose. A run takes ``num_steps`` samples, or
    until the nominal loop has settled. ``values`` is what its controls begin at, as *copy as
    code* writes it. Without a person it is the drawing.
    """
    return Explorer(plant, num_steps).at(values)


ExplorerQuestion = tuple[Plant, Plant, np.ndarray, str]
"""The plant at its defaults and as changed, the initial state, the loop to draw."""


class Explorer(Panel[ExplorerQuestion, Animation]):
    """The panel; its controls are attributes, ``parameters`` and ``initial`` by name.

    ``time`` is the moment of the drawing [s]; moving it stops the film. For that ``moment`` holds a style sheet of
    one line; no picture has to be sent.
    """

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._given = None if isinstance(plant, str) else loop_design.one_plant(plant)
        self._num_steps, self._speed = num_steps, 1.0
        self._horizons: dict[str, int] = {}
        names = list(systems.names()) if self._given is None else [self._given.name]
        start = plant if isinstance(plant, str) else plant.name
        if start not in names:
            systems.make(start)  # says which names there are
        self.family = ipywidgets.Dropdown(options=names, value=start, description="plant", **controls.WIDE)
        loops = [_CLOSED, _OPEN]
        self.loop = ipywidgets.Dropdown(options=loops, description="controller", **controls.WIDE)
        self.playing = ipywidgets.ToggleButton(True, description="playing", icon="play")
        self.time = controls.slider("time [s]", 0.0, 0.0, 1.0)
        self.moment = ipywidgets.HTML()
        self._pages = ipywidgets.VBox()
        call = "plant_explorer", {"plant": plant, "num_steps": num_steps}
        super().__init__(
            [self.family, self.loop, self._pages], tools=[self.playing, self.time], beneath=[self.moment], call=call
        )
        self.picture.add_class("lq-explorer")
        self.track(then=self._choose, family=self.family)
        self.track(loop=self.loop)
        self.watch(self.time, then=self._stop)
        self.watch(self.playing, then=self._show_moment)
        self._choose()

    def _choose(self) -> None:
        """Take the chosen plant's declaration for sliders."""
        self._nominal = nominal = self._given or systems.make(self.family.value)
        # one computation a settled value: the sliders speak when they are let go
        self.parameters = controls.parameter_sliders(nominal, continuous_update=False)
        self.initial = controls.initial_sliders(nominal, continuous_update=False)
        pages = {"parameters": list(self.parameters.values()), "initial state": list(self.initial.values())}
        self.track(parameters=self.parameters, initial=self.initial)
        before, self._pages.children = self._pages.children, [controls.tabs(pages)]
        close_all(before)
        self.ask()

    def _question(self) -> ExplorerQuestion:
        x0 = np.array([slider.value for slider in self.initial.values()])
        return self._nominal, controls.changed(self._nominal, self.parameters), x0, self.loop.value

    def _compute(self, question: ExplorerQuestion, check: Check) -> Animation:
        nominal, plant, x0, loop = question
        if nominal.name not in self._horizons:
            self._horizons[nominal.name] = loop_design.horizon(nominal, self._num_steps)
        check()
        return film(plant, x0, self._horizons[nominal.name], loop)

    def _show(self, answer: Animation) -> None:
        self.draw(answer)
        self._speed = answer.speed
        with self.quietly():
            self.time.max = (answer.seconds - HOLD) * answer.speed
            self.time.step = self.time.max / 200
            self.time.value = 0.0
        self._show_moment()

    def _stop(self) -> None:
        if not self._quiet:
            self.playing.value = False
            self._show_moment()

    def _show_moment(self) -> None:
        rule = f"animation-delay:-{self.time.value / self._speed:.3f}s!important;animation-play-state:paused!important"
        self.moment.value = "" if self.playing.value else f"<style>.lq-explorer .lq-m{{{rule}}}</style>"


def film(plant: Plant, x0: Float[np.ndarray | Array, " n"], num_steps: int, loop: str) -> Animation:
    """The film of one loop above the curves of the other, and what there is to say of the plant."""
    problem, x0 = Problem.of(plant), jnp.asarray(x0)
    # without control by the same program, with a gain of zero
    runs = {
        name: simulation.rollout(problem, simulation.LinearPolicy(gain * problem.K), x0, num_steps)
        for name, gain in ((_CLOSED, 1.0), (_OPEN, 0.0))
    }
    other = _OPEN if loop == _CLOSED else _CLOSED
    signals = [s.name for s in (*plant.states[:5], *plant.inputs[:3])]
    drawn = animation(plant, {loop: runs[loop]}, curves={other: runs[other]}, signals=signals, width=640)
    lasts = loop_design.time_constant(loop_design.poles_of(problem), float(plant.dt))
    cost = float(problem.optimal_cost(x0))
    assert problem.continuous is not None
    modes = "; ".join(plant_card.mode_sentences(plant, problem.continuous.A))
    words = (
        f"{html.escape(plant.title)}.<br><b>Open loop:</b> {html.escape(modes)}.<br>"
        f"<b>Under its optimum:</b> slowest time constant {charts.duration(lasts)}; this start costs {cost:.4g}, "
        f"on the nonlinear plant {float(runs[_CLOSED].cost):.4g}."
    )
    return dataclasses.replace(drawn, words=words)
