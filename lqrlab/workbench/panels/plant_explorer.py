"""The plant explorer: any family, its parameters and initial state on sliders, its drawing in motion."""

from typing import Any

import ipywidgets
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, simulation, systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures import animation, catalogue_page
from lqrlab.workbench.panels import live_panel
from lqrlab.workbench.runs.session import headless

_CLOSED, _OPEN = "optimal", "no control"


def plant_explorer(plant: str | Plant = "cart_pole", *, num_steps: int | None = None) -> Any:
    """A panel to get to know plants: choose one, change it, let it go from any state, with control and without.

    Args:
        plant: the family to begin with, or one plant of your own, which then is the only one to choose.
        num_steps: samples that a run takes; until the nominal loop has settled if left out.

    Returns:
        The :class:`Explorer`, to be displayed by the cell; without a person the drawing at its defaults.
    """
    if headless():
        nominal = live_panel.one_plant(plant)
        return _film(nominal, catalogue_page.start(nominal), _horizon(nominal, num_steps), _CLOSED)[0]
    return Explorer(plant, num_steps)


class Explorer(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        family: which plant.
        loop: with control or without.
        parameters, initial: name → slider, made from the plant's own declaration.
        time: moment of the drawing [s]; moving it stops the film.
        playing: whether the film runs, in the browser.
        picture, words: what came out.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._own = None if isinstance(plant, str) else live_panel.one_plant(plant)
        self._num_steps = num_steps
        names = list(systems.names()) if self._own is None else [self._own.name]
        start = plant if isinstance(plant, str) else plant.name
        if start not in names:
            systems.make(start)  # says which names there are
        self.family = ipywidgets.Dropdown(options=names, value=start, description="plant", **live_panel.WIDE)
        self.loop = ipywidgets.ToggleButtons(
            options=[_CLOSED, _OPEN], description="controller", **live_panel.WIDE
        )
        self.reset = live_panel.button("back to the defaults")
        self.playing = ipywidgets.ToggleButton(True, description="playing", icon="play")
        self.time = ipywidgets.FloatSlider(
            0.0, max=1.0, description="time [s]", readout_format=".3g", **live_panel.WIDE
        )
        self.picture, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        self.live = live_panel.Live(self._compute, self._show)
        self._moment = ipywidgets.HTML()
        self.parameters: dict[str, ipywidgets.FloatSlider] = {}
        self.initial: dict[str, ipywidgets.FloatSlider] = {}
        self._tabs = ipywidgets.Tab(layout={"width": "27rem"})
        self._speed, self._quiet = 1.0, False
        self._steps: int | None = None
        left = ipywidgets.VBox([self.family, self.loop, self._tabs, self.reset], layout={"flex": "0 0 28rem"})
        film = ipywidgets.HBox([self.playing, self.time])
        shown = [self.live.bar, self.words, self.picture, film, self._moment]
        right = ipywidgets.VBox(shown, layout={"flex": "1 1 auto"})
        super().__init__([left, right])
        self.picture.add_class("lq-explorer")
        self.family.observe(lambda _: self._choose(), names="value")
        self.loop.observe(lambda _: self._redraw(), names="value")
        self.reset.on_click(lambda _: self._choose())
        self.time.observe(lambda _: self._stop(), names="value")
        self.playing.observe(lambda _: self._show_moment(), names="value")
        self._choose()

    def _choose(self) -> None:
        """Take the chosen plant's declaration for sliders."""
        nominal = self._own or systems.make(self.family.value)
        self._nominal, self._steps = nominal, None
        # one computation a settled value: the sliders speak when they are let go
        self.parameters = live_panel.parameter_sliders(nominal, continuous_update=False)
        self.initial = {
            s.name: live_panel.slider(s.label, float(x), -3 * s.scale, 3 * s.scale, continuous_update=False)
            for s, x in zip(nominal.states, catalogue_page.start(nominal))
        }
        for slider in (*self.parameters.values(), *self.initial.values()):
            slider.observe(lambda _: self._redraw(), names="value")
        self._tabs.children = [ipywidgets.VBox(list(d.values())) for d in (self.parameters, self.initial)]
        self._tabs.titles = ("parameters", "initial state")
        self._redraw()

    def _redraw(self) -> None:
        parameters = {name: slider.value for name, slider in self.parameters.items()}
        x0 = np.array([slider.value for slider in self.initial.values()])
        self.live.ask((self._nominal, parameters, x0, self.loop.value))

    def _compute(self, asked: tuple, check: Any) -> tuple[animation.Animation, str]:
        nominal, parameters, x0, loop = asked
        self._steps = steps = self._steps or _horizon(nominal, self._num_steps)
        check()
        return _film(live_panel.altered(nominal, parameters), x0, steps, loop)

    def _show(self, answer: tuple[animation.Animation, str]) -> None:
        film, words = answer
        self.picture.value, self.words.value = film.html, words
        self._speed = film.speed
        self._quiet = True
        self.time.max = (film.seconds - animation.HOLD) * film.speed
        self.time.step = self.time.max / 200
        self.time.value = 0.0
        self._quiet = False
        self._show_moment()

    def _stop(self) -> None:
        if not self._quiet:
            self.playing.value = False
            self._show_moment()

    def _show_moment(self) -> None:
        """A style sheet of one line sets the film to a moment; no picture has to be sent."""
        rule = f"animation-delay:-{self.time.value / self._speed:.3f}s!important;animation-play-state:paused!important"
        self._moment.value = "" if self.playing.value else f"<style>.lq-explorer .lq-m{{{rule}}}</style>"


def _horizon(plant: Plant, num_steps: int | None) -> int:
    if num_steps is not None:
        return live_panel.whole("num_steps", num_steps)
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    return catalogue_page.settling(np.asarray(design.poles))


def _film(plant: Plant, x0: np.ndarray | Array, num_steps: int, loop: str) -> tuple[animation.Animation, str]:
    """The film of one loop beside the curves of the other, and what there is to say of the plant."""
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    # without control by the same program, with a gain of zero
    runs = {
        name: simulation.rollout(plant, simulation.LinearPolicy(gain * design.K), jnp.asarray(x0), num_steps)
        for name, gain in ((_CLOSED, 1.0), (_OPEN, 0.0))
    }
    other = _OPEN if loop == _CLOSED else _CLOSED
    signals = [s.name for s in (*plant.states[:5], *plant.inputs[:3])]
    film = animation.animation(
        plant, {loop: runs[loop]}, curves={other: runs[other]}, signals=signals, width=640
    )
    slowest = float(np.abs(np.asarray(design.poles)).max())
    settles = -float(plant.dt) / np.log(slowest) if 0 < slowest < 1 else 0.0
    modes = "; ".join(mode.sentence for mode in systems.open_loop_modes(plant))
    cost = float(jnp.asarray(x0) @ design.P @ jnp.asarray(x0))
    words = (
        f"{plant.title}.<br><b>Open loop:</b> {modes}.<br><b>Under its optimum:</b> slowest time constant "
        f"{settles:.2g} s; this start costs {cost:.4g}, on the nonlinear plant {float(runs[_CLOSED].cost):.4g}."
    )
    return film, words
