"""The controls that panels have in common: sliders of parameters, initial states and limits, choosers, tabs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import systems
from lqrlab.systems import Plant, Signal
from lqrlab.workbench.figures import example_loop

Sliders = dict[str, ipywidgets.FloatSlider]
WIDE: dict[str, Any] = {
    "style": {"description_width": "11rem"},
    "layout": {"width": "29.5rem", "max_width": "100%"},
}
FREE = 100.0  # limits from here on, in units of a large input, count as none
REACH = 3.0  # how far sliders of an initial state go, in scales of the states


def slider(label: str, value: float, low: float, high: float, **options: object) -> ipywidgets.FloatSlider:
    """A slider with a label, in about 200 steps, one of which is its value."""
    value, step = min(max(value, low), high), (high - low) / 200
    if value > low:  # a browser moves what is off the grid onto it, and reports a change
        step = (value - low) / max(round((value - low) / step), 1)
    return ipywidgets.FloatSlider(
        value, min=low, max=high, readout_format=".3g", description=label, **{"step": step, **WIDE, **options}
    )


def button(label: str, then: Callable[[], None]) -> ipywidgets.Button:
    """A button as wide as its words."""
    made = ipywidgets.Button(description=label, layout={"width": "auto"})
    made.on_click(lambda _: then())
    return made


def tabs(pages: Mapping[str, Sequence[ipywidgets.Widget]]) -> ipywidgets.Tab:
    """Pages of controls, by title."""
    boxes = [ipywidgets.VBox(list(page)) for page in pages.values()]
    return ipywidgets.Tab(boxes, titles=tuple(pages), layout={"width": "33rem", "max_width": "100%"})


def parameter_sliders(plant: Plant, **options: object) -> Sliders:
    """A slider a parameter, from a third to three times its value within its range, or over its whole range."""
    sliders = {}
    for name, field in systems.parameter_fields(type(plant)).items():
        value, low, high = float(getattr(plant, name)), field.metadata["low"], field.metadata["high"]
        if value:
            near = sorted((value / 3, 3 * value))
            low, high = max(low, near[0]), min(high, near[1])
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
        for s, x in zip(plant.states, example_loop.start(plant))
    }


def limit_slider(value: float, **options: object) -> ipywidgets.FloatLogSlider:
    """A slider for limits of the inputs, in units of what counts as large."""
    look: dict[str, Any] = {"readout_format": ".2g", "description": "limit, × large input", **WIDE, **options}
    return ipywidgets.FloatLogSlider(min(value, FREE), min=-1.5, max=2, step=0.05, **look)


def limit_words(limit: float) -> str:
    """A limit in a sentence."""
    return "no limits" if limit >= FREE else f"inputs limited to {limit:.2g} × what counts as large"


def largest_inputs(plant: Plant, limit: float) -> Float[Array, " m"]:
    """Limits of the inputs as deviations, inf for none; ``limit`` is in units of a large input."""
    return jnp.asarray(plant.scales[1]) * (limit if limit < FREE else jnp.inf)


def plane_choosers(states: Sequence[Signal], across: int, up: int) -> list[ipywidgets.Dropdown]:
    """Two lists of states, which make a plane."""
    options = [(s.label, i) for i, s in enumerate(states)]
    return [
        ipywidgets.Dropdown(options=options, value=value, description=label, **WIDE)
        for label, value in (("across", across), ("up", up))
    ]


def call(function: str, arguments: Mapping[str, object], values: Mapping[str, object]) -> str:
    """Code that makes a panel with its controls at such values; an object that cannot be written goes by its name."""
    given = {name: value for name, value in arguments.items() if value is not None}
    written = [f"{name}={_literal(value) or name}" for name, value in given.items()]
    if values:
        # ten digits: a browser moves what is off a slider's grid onto it
        numbers = {k: float(f"{v:.10g}") if isinstance(v, float) else v for k, v in values.items()}
        written.append("values={" + ", ".join(f"{k!r}: {v!r}" for k, v in numbers.items()) + "}")
    makes = any(part.partition("=")[2].startswith("systems.") for part in written)
    lines = ["from lqrlab import systems"] * makes + ["from lqrlab.workbench import widgets", ""]
    return "\n".join([*lines, f"widgets.{function}({', '.join(written)})"])


def _literal(value: object) -> str:
    """A value as code; nothing for what has none."""
    if isinstance(value, Plant):
        if value.name not in systems.names() or type(value) is not systems.family(value.name):
            return ""
        usual = systems.make(value.name).parameters
        moved = {k: float(v) for k, v in value.parameters.items() if float(v) != float(usual[k])}
        return f"systems.make({value.name!r}{''.join(f', {k}={v!r}' for k, v in moved.items())})"
    if isinstance(value, Path):
        return repr(str(value))
    return repr(value) if isinstance(value, str | int | float | list | tuple) else ""


def revealing_plane(plant: Plant) -> tuple[int, int]:
    """Two states worth looking at: of coordinates and of rates the one that the least stable mode moves most."""
    if plant.n < 2:
        raise ValueError(
            f"plant: expected two states or more to make a plane of, but {plant.name} has {plant.n}"
        )
    poles, modes = np.linalg.eig(np.asarray(plant.matrices()[0]))
    size = np.abs(modes[:, int(np.argmax(poles.real))]) / np.asarray(plant.scales[0])
    half = (plant.n + 1) // 2
    return int(np.argmax(size[:half])), half + int(np.argmax(size[half:]))


def one_plant(plant: object) -> Plant:
    """A family at its defaults, or one plant of your own; a ``ValueError`` for anything else, or a batch."""
    if isinstance(plant, str):
        return systems.make(plant)
    if not isinstance(plant, Plant):
        raise ValueError(
            "plant: expected the name of a family, as 'cart_pole', or one plant, as of systems.make or "
            f"systems.from_matrices, but found {type(plant).__name__}"
        )
    systems.check_plant(plant, one=True)
    return plant
