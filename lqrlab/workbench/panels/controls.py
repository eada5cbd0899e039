"""The controls that panels have in common: sliders of parameters and initial states, a plane, designs to go back to."""

import contextlib
import dataclasses
import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import jax.numpy as jnp
import numpy as np
import traitlets

from lqrlab import systems
from lqrlab.compute import files
from lqrlab.systems import Plant, Signal
from lqrlab.workbench.figures import loop_design
from lqrlab.workbench.figures.charts import Axes
from lqrlab.workbench.figures.loop_design import FREE, input_unit, start
from lqrlab.workbench.panels.live_panel import sentence
from lqrlab.workbench.runs import session
from lqrlab.workbench.runs.session import DESIGNS

Sliders = dict[str, ipywidgets.FloatSlider]
WIDE: dict[str, Any] = {
    "style": {"description_width": "9.5rem"},
    "layout": {"flex": "1 1 24.5rem", "max_width": "36rem", "min_width": "min(24.5rem, 100%)"},
}
REACH = 3.0  # how far sliders of an initial state go, in scales of the states
_LONGEST = 60  # letters of the name of a design


def slider(label: str, value: float, low: float, high: float, **options: object) -> ipywidgets.FloatSlider:
    """A slider with a label, in about 200 steps, one of which is its value."""
    look: dict[str, Any] = {"readout_format": ".3g", "step": (high - low) / 200, **WIDE, **options}
    return on_grid(ipywidgets.FloatSlider(min(max(value, low), high), min=low, max=high, description=label, **look))


def log_slider(
    label: str, value: float, low: float, high: float, *, step: float | None = None, **options: object
) -> ipywidgets.FloatLogSlider:
    """A slider from 10^low to 10^high, in such steps, or in about 200, one of which is its value."""
    look: dict[str, Any] = {"readout_format": ".3g", "description": label, **WIDE, **options}
    made = ipywidgets.FloatLogSlider(value, min=low, max=high, step=step or (high - low) / 200, **look)
    return made if step else on_grid(made)


def on_grid(slider: Any) -> Any:
    """The slider, its value one of its steps: a browser moves what is off the grid onto it, and reports a change."""
    away = (np.log10(slider.value) if hasattr(slider, "base") else slider.value) - slider.min
    if away > 0:
        slider.step = away / max(round(away / slider.step), 1)
    return slider


def factor_slider(label: str, **options: object) -> ipywidgets.FloatLogSlider:
    """A slider for a factor from a thousandth to a thousand, one at first."""
    return log_slider(label, 1.0, -3.0, 3.0, step=0.03, **options)


def move_to(slider: ipywidgets.FloatSlider, value: float) -> None:
    """Set a slider to its step nearest to a value, rounded as in a browser, which reports a change to all else."""
    span, share = slider.max - slider.min, 100 * slider.step / (slider.max - slider.min)
    slider.value = round(100 * (value - slider.min) / span / share) * share * span / 100 + slider.min


def button(label: str, then: Callable[[], None]) -> ipywidgets.Button:
    """A button as wide as its words."""
    made = ipywidgets.Button(description=label, layout={"width": "auto"})
    made.on_click(lambda _: then())
    return made


def checkbox(label: str) -> ipywidgets.Checkbox:
    """A box that is ticked, as wide as its words."""
    return ipywidgets.Checkbox(True, description=label, indent=False, layout={"width": "auto", "margin": "2px 1.5rem"})


def tabs(pages: Mapping[str, Sequence[ipywidgets.Widget]]) -> ipywidgets.Tab:
    """Pages of controls, by title."""
    return ipywidgets.Tab([rows(page) for page in pages.values()], titles=tuple(pages))


def rows(page: Sequence[ipywidgets.Widget]) -> ipywidgets.Box:
    """Controls side by side, as many as there is room for."""
    return ipywidgets.Box(list(page), layout={"flex_flow": "row wrap"})


def parameter_sliders(plant: Plant, **options: object) -> Sliders:
    """A slider a parameter, from a third to three times its value within its range, or over its whole range."""
    sliders = {}
    for name, field in systems.parameter_fields(type(plant)).items():
        value, (low, high) = float(getattr(plant, name)), loop_design.reach(plant, name)
        label = f"{name.replace('_', ' ')} [{field.metadata['unit']}]"
        sliders[name] = slider(label, value, low, high, tooltip=field.metadata["about"], **options)
    return sliders


def changed(plant: Plant, sliders: Sliders) -> Plant:
    """The plant with the parameters whose sliders were moved; one of the catalogue is checked against its ranges."""
    old = {name: float(value) for name, value in plant.parameters.items()}
    new = {k: s.value for k, s in sliders.items() if abs(s.value - old[k]) > 1e-9 * abs(s.max - s.min)}
    if new and plant.name in systems.names() and type(plant) is systems.family(plant.name):
        return systems.make(plant.name, **old | new)
    return dataclasses.replace(plant, **{k: jnp.asarray(v, float) for k, v in new.items()})  # type: ignore[type-var]


def initial_sliders(plant: Plant, **options: object) -> Sliders:
    """A slider for each state's initial deviation."""
    return {
        s.name: slider(s.label, float(x), -REACH * s.scale, REACH * s.scale, **options)
        for s, x in zip(plant.states, start(plant))
    }


def limit_slider(
    value: float, label: str = "limit", plant: Plant | None = None, **options: object
) -> ipywidgets.FloatLogSlider:
    """A slider for limits of the inputs, a ``value`` of them in scales; in their unit if that of all is the same."""
    (unit, scale), at_end = input_unit(plant), {"tooltip": "the right end: no limit"}
    low, words = math.log10(scale) - 1.5, f"{label} [{unit}]" if unit != "× scale" else f"{label}, {unit}"
    return log_slider(words, scale * min(value, FREE), low, low + 3.5, step=0.05, **at_end | options)


def limit_of(value: float, plant: Plant) -> float:
    """The limit, in scales of the inputs, that such a slider of a plant stands at."""
    limit = value / input_unit(plant)[1]
    return limit if limit < 0.99 * FREE else FREE  # a browser moves it onto its grid


def positions(control: ipywidgets.Widget, most: int) -> dict[str, Any]:
    """Some values of a control over its range, its own among them, by their words."""
    options = list(getattr(control, "options", ()))
    if options:
        chosen = [option if isinstance(option, tuple) else (str(option), option) for option in options]
        own = next(i for i, (_, value) in enumerate(chosen) if value == control.value)
        at = {own, *np.linspace(0, len(chosen) - 1, min(most, len(chosen))).round().astype(int).tolist()}
        return {str(chosen[i][0]): chosen[i][1] for i in sorted(at)}
    if not hasattr(control, "max"):
        return {str(value): value for value in (False, True)}
    values = np.linspace(control.min, control.max, most)
    if base := getattr(control, "base", None):
        values = base**values
    values[np.argmin(np.abs(values - control.value))] = control.value
    if isinstance(control.value, int):
        return {str(value): value for value in dict.fromkeys(round(float(v)) for v in values)}
    for digits in range(3, 17):  # as many as keep the words different
        words = [f"{value:.{digits}g}" for value in values]
        if len(set(words)) == len(set(values)):
            break
    return {word: float(value) for word, value in zip(words, values)}


class ClickPlane(anywidget.AnyWidget):
    """An SVG picture around a plane that tells where it is clicked or dragged, in any front end that shows widgets.

    ``frame`` is where in it the plane is (left, right, top, bottom as shares of its width and height), ``point`` where
    it was clicked or dragged to last (0 … 1), ``start`` where the button was pressed, and when [ms]: set before.
    """

    # as a path, anywidget would watch the file and hold every plane for ever
    _esm = Path(__file__).with_name("click_plane.js").read_text(encoding="utf-8")
    svg: Any = traitlets.Unicode("").tag(sync=True)
    value = property(lambda self: self.svg, lambda self, drawing: self.set_trait("svg", drawing))
    frame: Any = traitlets.List([0.0, 1.0, 0.0, 1.0]).tag(sync=True)
    point: Any = traitlets.List([]).tag(sync=True)
    start: Any = traitlets.List([]).tag(sync=True)

    def at(self, axes: Axes, name: str = "point") -> complex:
        """x + iy of such a place in the axes that the plane has."""
        ends = zip((axes.x, axes.y), getattr(self, name))
        return complex(*(low + share * (high - low) for (low, high), share in ends))


def plane_choosers(states: Sequence[Signal], across: int, up: int) -> list[ipywidgets.Dropdown]:
    """Two lists of states, which make a plane."""
    options = [(s.label, i) for i, s in enumerate(states)]
    return [
        ipywidgets.Dropdown(options=options, value=value, description=label, **WIDE)
        for label, value in (("across", across), ("up", up))
    ]


def revealing_plane(plant: Plant) -> tuple[int, int]:
    """Two states worth looking at: of coordinates and of rates the one that the least stable mode moves most."""
    if plant.n < 2:
        raise ValueError(f"plant: expected two states or more to make a plane of, but {plant.name} has {plant.n}")
    poles, modes = np.linalg.eig(np.asarray(plant.matrices()[0]))
    size = np.abs(modes[:, int(np.argmax(poles.real))]) / np.asarray(plant.scales[0])
    half = (plant.n + 1) // 2
    return int(np.argmax(size[:half])), half + int(np.argmax(size[half:]))


class Said(ipywidgets.HTML):
    """A sentence in a panel, often one of what went wrong."""

    def say(self, words: str) -> None:
        """Show it."""
        self.value = html.escape(words)


def guarded(then: Callable[[], None], say: Callable[[str], None]) -> Callable[..., None]:
    """The same, with what goes wrong said; in a callback nobody else would hear of it."""

    def run(*_: object) -> None:
        try:
            then()
        except Exception as error:
            say(sentence(error))

    return run


class KeptDesigns(ipywidgets.VBox):
    """A name, and buttons that keep what a panel stands at under it, go back to what was kept, or forget that.

    The file is ``designs.json`` of the run begun last, else of this folder; ``call`` is the code that makes the panel.
    """

    def __init__(self, call: str, values: Callable[[], Mapping[str, Any]], go: Callable[[Mapping[str, Any]], None]):
        self._call, self._folder, self._values, self._go = call, session.begun() or Path.cwd(), values, go
        self.name, self.said = ipywidgets.Combobox(placeholder="a name", layout={"width": "14rem"}), Said()
        self.keep, self.take, self.forget = (
            button(label, guarded(then, self.said.say))
            for label, then in (("keep", self._keep), ("go to it", self._take), ("forget it", self._forget))
        )
        super().__init__([rows([self.name, self.keep, self.take, self.forget]), self.said])
        with contextlib.suppress(ValueError, OSError):  # said when it is used
            self._read()

    def _read(self) -> dict[str, Mapping[str, Any]]:
        """The designs of this panel by name, which it offers; a ``ValueError`` for a file that somebody broke."""
        self.said.value, path = "", self._folder / DESIGNS
        mine = files.read_object(path).get(self._call, {}) if path.exists() else {}
        if not isinstance(mine, dict) or not all(isinstance(values, dict) for values in mine.values()):
            raise ValueError(
                f"{path}: expected designs by name for {self._call}, but found something else; move it away"
            )
        self.name.options = [*mine]
        return mine

    def _write(self, name: str, values: Mapping[str, Any] | None) -> None:
        """Keep a design of this name, or with None forget it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with files.locked(self._folder, patience=5.0):
            path, mine = self._folder / DESIGNS, self._read()
            others = files.read_object(path) if path.exists() else {}
            kept = {n: v for n, v in mine.items() if n != name} | ({} if values is None else {name: dict(values)})
            files.write_json(path, others | {self._call: kept}, ensure_ascii=False)
        self.name.value, self.name.options = "", [*kept]  # an empty name offers all

    def _keep(self) -> None:
        name = self.name.value.strip()
        if not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise ValueError(f"name: expected 1 to {_LONGEST} letters to find the design by, but found {name!r}")
        self._write(name, self._values())
        self.said.value = f"Kept in <code>{html.escape(str(self._folder / DESIGNS))}</code>."

    def _chosen(self) -> str:
        name, kept = self.name.value.strip(), self._read()
        if name not in kept:
            raise ValueError(f"name: expected a kept design, {', '.join(kept) or 'none yet'}, but found {name!r}")
        return name

    def _take(self) -> None:
        self._go(self._read()[self._chosen()])

    def _forget(self) -> None:
        self._write(self._chosen(), None)
