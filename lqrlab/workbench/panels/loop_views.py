"""Further pictures of a design in the designer: the figures of :mod:`loop_plots`, of its own loop."""

import base64
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from lqrlab.workbench.figures import loop_plots, plots, svg
from lqrlab.workbench.panels.loop_design import LoopDesign, LoopSetting


def _bode(s: LoopSetting, d: LoopDesign) -> Figure:
    return loop_plots.bode({"loop gain": (d.A, d.B, d.K), "closed loop": (d.A - d.B @ d.K, d.B, d.K)}, s.dt)


def _nyquist(s: LoopSetting, d: LoopDesign) -> Figure:
    return loop_plots.nyquist({"loop gain": (d.A, d.B, d.K)}, s.dt)


def _root_locus(s: LoopSetting, d: LoopDesign) -> Figure:
    return loop_plots.root_locus(d.A, d.B, d.K, s.dt)


def _pole_zero(s: LoopSetting, d: LoopDesign) -> Figure:
    return loop_plots.pole_zero(d.A - d.B @ d.K, d.B, _first_output(s, d), dt=s.dt)


def _step(s: LoopSetting, d: LoopDesign) -> Figure:
    closed = d.A - d.B @ d.K, d.B, _first_output(s, d)
    return loop_plots.step({"closed loop": closed}, s.dt, s.ticks // s.sample)


def _first_output(s: LoopSetting, d: LoopDesign) -> np.ndarray:
    return np.eye(s.plant.n, len(d.A))[:1]


def _phase_plane(s: LoopSetting, d: LoopDesign) -> Figure:
    """The first state and that of the second half which is its rate in a mechanical plant; the others at rest."""
    plant, pair, limit = s.plant, [0, s.plant.n // 2], np.asarray(s.limits)
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    size = 1.2 * np.maximum(
        np.nanmax(np.abs(d.built.xs[:, pair]), axis=0), 0.1 * np.asarray(plant.scales[0])[pair]
    )

    def rates(points: np.ndarray) -> np.ndarray:
        x = np.zeros((len(points), plant.n))
        x[:, pair] = points
        u = np.clip(-x @ d.K[:, : plant.n].T, -limit, limit)
        return np.asarray(plant.dynamics(jnp.asarray(x_eq + x), jnp.asarray(u_eq + u)))[:, pair]

    names = plant.states[pair[0]].label, plant.states[pair[1]].label
    box = (-size[0], size[0]), (-size[1], size[1])
    return loop_plots.phase_plane(rates, box, labels=names, runs=[d.built.xs[:, pair]])


VIEWS: dict[str, Callable[[LoopSetting, LoopDesign], Figure]] = {
    "Bode": _bode,
    "Nyquist": _nyquist,
    "root locus": _root_locus,
    "poles and zeros": _pole_zero,
    "step": _step,
    "phase plane": _phase_plane,
}


def drawn(setting: LoopSetting, design: LoopDesign, alt: str) -> str:
    """The setting's view of a design as an SVG document that holds it as an image."""
    figure = VIEWS[setting.view](setting, design)
    width, height = (100 * float(a) for a in figure.get_size_inches())
    data = base64.b64encode(plots.png(figure, dpi=200)).decode()
    image = f'<image width="{svg.px(width)}" height="{svg.px(height)}" href="data:image/png;base64,{data}"/>'
    return svg.document(image, width, height, alt)
