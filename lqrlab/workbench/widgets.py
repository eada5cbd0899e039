"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

import dataclasses
from typing import Any

import ipywidgets
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from lqrlab import control, simulation, systems
from lqrlab.systems import Plant
from lqrlab.workbench import plots
from lqrlab.workbench.explorer import Explorer, plant_explorer
from lqrlab.workbench.stage import headless

__all__ = ["Explorer", "lqr_designer", "plant_explorer"]


def lqr_designer(plant: str | Plant, *, num_steps: int | None = None) -> ipywidgets.Widget | None:
    """A panel for one plant: its parameters, weights and initial state on sliders, the closed loop as curves.

    Args:
        plant: a family of the catalogue, or one plant of your own.
        num_steps: horizon of the curves; four settling times of the nominal loop if left out.

    Returns:
        The panel, to be displayed by the cell; None without a person: the static figure has been shown then.
    """
    nominal = systems.make(plant) if isinstance(plant, str) else plant
    steps = num_steps or _horizon(nominal)
    if headless():
        _show_static(nominal, steps)
        return None
    sliders = _sliders(nominal)
    picture = ipywidgets.Image(format="png", layout={"width": "100%"})
    words = ipywidgets.HTML()

    def redraw(*_: Any) -> None:
        values = {key: slider.value for key, slider in sliders.items()}
        try:
            figure, text = _designed(nominal, values, steps)
            picture.value, words.value = plots.png(figure), text
            plt.close(figure)
        except ValueError as error:  # a setting without an answer is said in the panel, not in a traceback
            words.value = f"<b>{error}</b>"

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    panel = ipywidgets.VBox(list(sliders.values()), layout={"flex": "0 0 22rem"})
    return ipywidgets.HBox([panel, ipywidgets.VBox([words, picture], layout={"flex": "1 1 auto"})])


def _horizon(plant: Plant) -> int:
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    slowest = float(np.abs(np.asarray(control.lqrd(A, B, Q, R, plant.dt).poles)).max())
    return int(np.clip(np.log(1e-2) / np.log(min(slowest, 1 - 1e-6)) * 1.5, 40, 600))


def _show_static(plant: Plant, steps: int) -> None:
    figure, _ = _designed(plant, {}, steps)
    plots.show(figure, f"Closed loop of the nominal {plant.title} under its sampled-data LQR")


def _sliders(plant: Plant) -> dict[str, ipywidgets.Widget]:
    wide: dict[str, Any] = {"style": {"description_width": "9rem"}, "layout": {"width": "21rem"}}
    sliders: dict[str, ipywidgets.Widget] = {
        "effort": ipywidgets.FloatSlider(
            0.0, min=-3, max=3, step=0.1, description="effort weight, log10", **wide
        ),
        "initial": ipywidgets.FloatSlider(
            1.0, min=0.1, max=3, step=0.1, description="initial state, × scale", **wide
        ),
    }
    for key, field in systems.parameter_fields(type(plant)).items():
        if field.metadata["vary"] and field.default:
            default = float(getattr(plant, key))
            low, high = sorted((0.5 * default, 1.5 * default))
            low, high = max(low, field.metadata["low"]), min(high, field.metadata["high"])
            sliders[key] = ipywidgets.FloatSlider(
                default, min=low, max=high, step=(high - low) / 50, readout_format=".3g",
                description=f"{key.replace('_', ' ')} [{field.metadata['unit']}]", **wide,
            )  # fmt: skip
    return sliders


def _designed(nominal: Plant, values: dict[str, float], steps: int) -> tuple[Any, str]:
    """The figure and the sentence for one setting of the sliders."""
    values = dict(values)
    effort, initial = 10.0 ** values.pop("effort", 0.0), values.pop("initial", 1.0)
    plant = dataclasses.replace(nominal, **{k: jnp.asarray(v, float) for k, v in values.items()})  # type: ignore[type-var]
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    design = control.lqrd(A, B, Q, effort * R, plant.dt)
    x0 = initial * plant.scales[0] * np.where(np.arange(plant.n) == 0, 1.0, 0.0)
    policy = simulation.LinearPolicy(design.K)
    linear, real = (simulation.rollout(plant, policy, x0, steps, linear=flag) for flag in (True, False))
    figure = plots.responses(plant, {"linear model": linear, "nonlinear plant": real})
    slowest = float(np.abs(np.asarray(design.poles)).max())
    text = (
        f"{plant.title}. Slowest mode of the loop: |λ| = {slowest:.4f}, "
        f"time constant {-float(plant.dt) / np.log(slowest):.3g} s. "
        f"Cost of this start: {float(x0 @ design.P @ x0):.4g} at best, "
        f"{float(real.cost):.4g} on the nonlinear plant."
    )
    return figure, text
