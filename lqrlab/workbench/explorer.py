"""The plant explorer: any family, its parameters and initial state on sliders, its drawing in motion."""

import dataclasses
import html
from typing import Any

import ipywidgets
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, simulation, systems
from lqrlab.systems import Plant
from lqrlab.workbench import animate, catalogue
from lqrlab.workbench.stage import headless

_WIDE: dict[str, Any] = {"style": {"description_width": "11rem"}, "layout": {"width": "24rem"}}
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
        nominal = systems.make(plant) if isinstance(plant, str) else plant
        return _film(nominal, catalogue.start(nominal), num_steps or _horizon(nominal), _CLOSED)[0]
    return Explorer(plant, num_steps)


class Explorer(ipywidgets.HBox):
    """The panel; its parts are attributes.

    Attributes:
        family: which plant.
        loop: with control or without.
        parameters, initial: name → slider, made from the plant's own declaration.
        time: moment of the drawing [s]; moving it stops the film.
        playing: whether the film runs, in the browser.
        picture, words, status: what came out.
    """

    def __init__(self, plant: str | Plant, num_steps: int | None = None) -> None:
        self._own = None if isinstance(plant, str) else plant
        self._num_steps = num_steps
        names = list(systems.names()) if self._own is None else [self._own.name]
        start = plant if isinstance(plant, str) else plant.name
        if start not in names:
            systems.make(start)  # says which names there are
        self.family = ipywidgets.Dropdown(options=names, value=start, description="plant", **_WIDE)
        self.loop = ipywidgets.ToggleButtons(options=[_CLOSED, _OPEN], description="controller", **_WIDE)
        self.reset = ipywidgets.Button(description="back to the defaults")
        self.playing = ipywidgets.ToggleButton(True, description="playing", icon="play")
        self.time = ipywidgets.FloatSlider(
            0.0, max=1.0, description="time [s]", readout_format=".3g", **_WIDE
        )
        self.picture, self.words, self.status = (ipywidgets.HTML() for _ in range(3))
        self._moment = ipywidgets.HTML()
        self.parameters: dict[str, ipywidgets.FloatSlider] = {}
        self.initial: dict[str, ipywidgets.FloatSlider] = {}
        self._tabs = ipywidgets.Tab(layout={"width": "27rem"})
        self._speed, self._quiet = 1.0, False
        self._steps: int | None = None
        left = ipywidgets.VBox([self.family, self.loop, self._tabs, self.reset], layout={"flex": "0 0 28rem"})
        film = ipywidgets.HBox([self.playing, self.time])
        shown = [self.status, self.words, self.picture, film, self._moment]
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
        self.parameters = _parameter_sliders(nominal)
        self.initial = {
            s.name: _slider(s.label, float(x), -3 * s.scale, 3 * s.scale)
            for s, x in zip(nominal.states, catalogue.start(nominal))
        }
        for slider in (*self.parameters.values(), *self.initial.values()):
            slider.observe(lambda _: self._redraw(), names="value")
        self._tabs.children = [ipywidgets.VBox(list(d.values())) for d in (self.parameters, self.initial)]
        self._tabs.titles = ("parameters", "initial state")
        self._redraw()

    def _plant(self) -> Plant:
        values = {name: slider.value for name, slider in self.parameters.items()}
        if self._own is None:
            return systems.make(self.family.value, **values)
        return dataclasses.replace(self._own, **{k: jnp.asarray(v) for k, v in values.items()})  # type: ignore[type-var]

    def _redraw(self) -> None:
        """Compute for the sliders as they stand; what goes wrong is said in the panel."""
        self.status.value = "<i>computing…</i>"
        try:
            steps = self._steps or self._num_steps or _horizon(self._nominal)
            self._steps = steps
            x0 = np.array([slider.value for slider in self.initial.values()])
            film, words = _film(self._plant(), x0, steps, self.loop.value)
        except ValueError as error:
            self.status.value = f"<b>{html.escape(str(error).splitlines()[0])}</b>"
            return
        except KeyboardInterrupt:
            self.status.value = "<b>interrupted; what is shown is from before</b>"
            return
        self.picture.value, self.words.value, self.status.value = film.html, words, ""
        self._speed = film.speed
        self._quiet = True
        self.time.max = (film.seconds - animate.HOLD) * film.speed
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


def _slider(label: str, value: float, low: float, high: float) -> ipywidgets.FloatSlider:
    # one computation a settled value: the slider speaks when it is let go
    return ipywidgets.FloatSlider(
        min(max(value, low), high), min=low, max=high, step=(high - low) / 200,
        readout_format=".3g", description=label, continuous_update=False, **_WIDE,
    )  # fmt: skip


def _parameter_sliders(plant: Plant) -> dict[str, ipywidgets.FloatSlider]:
    """A slider a parameter, from a third to three times its default within its range, or over its whole range."""
    sliders = {}
    for name, f in systems.parameter_fields(type(plant)).items():
        value, low, high = float(getattr(plant, name)), f.metadata["low"], f.metadata["high"]
        if value:
            near = sorted((value / 3, 3 * value))
            low, high = max(low, near[0]), min(high, near[1])
        sliders[name] = _slider(f"{name.replace('_', ' ')} [{f.metadata['unit']}]", value, low, high)
        sliders[name].tooltip = f.metadata["about"]
    return sliders


def _horizon(plant: Plant) -> int:
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    return catalogue.settling(np.asarray(design.poles))


def _film(plant: Plant, x0: np.ndarray | Array, num_steps: int, loop: str) -> tuple[animate.Animation, str]:
    """The film of one loop beside the curves of the other, and what there is to say of the plant."""
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    # without control by the same program, with a gain of zero
    runs = {
        name: simulation.rollout(plant, simulation.LinearPolicy(gain * design.K), jnp.asarray(x0), num_steps)
        for name, gain in ((_CLOSED, 1.0), (_OPEN, 0.0))
    }
    other = _OPEN if loop == _CLOSED else _CLOSED
    signals = [s.name for s in (*plant.states[:5], *plant.inputs[:3])]
    film = animate.animation(
        plant, {loop: runs[loop]}, curves={other: runs[other]}, signals=signals, width=640
    )
    slowest = float(np.abs(np.asarray(design.poles)).max())
    settles = -float(plant.dt) / np.log(slowest) if 0 < slowest < 1 else 0.0
    modes = "; ".join(mode.sentence for mode in systems.modes(plant))
    cost = float(jnp.asarray(x0) @ design.P @ jnp.asarray(x0))
    words = (
        f"{plant.title}.<br><b>Open loop:</b> {modes}.<br><b>Under its optimum:</b> slowest time constant "
        f"{settles:.2g} s; this start costs {cost:.4g}, on the nonlinear plant {float(runs[_CLOSED].cost):.4g}."
    )
    return film, words
