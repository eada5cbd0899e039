"""A plant drawn at moments of many runs, as numbers in pixels, of which only those that move are kept."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from lqrlab.systems import drawing
from lqrlab.workbench.figures import keyframes, svg
from lqrlab.workbench.figures.design_grid import Grid

_FAR = 50.0  # scales of a state beyond which a run stands still
_FIT = 1.6  # share by which other runs may widen the frame of the default
_FINE = 3  # steps in a pixel
_HEAD = 6.0  # length of an arrow's head [px]

Numbers = Float[np.ndarray, "designs frames numbers"]


def drawn(g: Grid, every: int, still: int, size: tuple[float, float]) -> tuple[str, dict]:
    """The plant at a frame of its default run, part by part, and the numbers from which the script redraws the parts.

    Args:
        g: the designs and their runs.
        every: points of a run from frame to frame.
        still: the frame that is drawn.
        size: of the picture [px].

    Returns:
        Nothing for a plant whose drawing has other shapes at other times.
    """
    runs = _poses(g, every)
    looks = [keyframes.look(shape) for shape in runs[0][0]]
    if any([keyframes.look(shape) for shape in pose] != looks for run in runs for pose in run):
        return "", {}
    shapes: list[Any] = list(runs[0][0])
    plane = [np.array([[_numbers(pose[k]) for pose in run] for run in runs]) for k in range(len(shapes))]
    usual = int(np.ravel_multi_index(g.at, g.found.shape))
    frame = _frame([a for a, shape in zip(plane, shapes) if not isinstance(shape, drawing.Text)], usual)
    scale, corner = keyframes.fit(frame, size, (size[0] - 24, size[1] - 12))
    parts = [_pixels(shape, a, scale, corner) for shape, a in zip(shapes, plane)]
    counts = np.round(_FINE * np.concatenate(parts, axis=-1)).astype(int)
    ends = np.cumsum([part.shape[-1] for part in parts])
    places = np.split(counts[usual, still] / _FINE, ends[:-1])
    markup = "".join(map(_element, shapes, places))
    moving = np.flatnonzero(np.ptp(counts, axis=(0, 1)) > 1)
    return markup, {
        "sizes": [part.shape[-1] for part in parts],
        "fine": _FINE,
        "fixed": counts[usual, still].tolist(),
        "moving": moving.tolist(),
        "poses": np.diff(counts[..., moving].swapaxes(1, 2), prepend=0).tolist(),
    }


def _poses(g: Grid, every: int) -> list[list[drawing.Drawing]]:
    """Each run's drawings; one that leaves the model stands still."""
    columns = [{g.parameter: jnp.asarray(value)} if g.parameter else {} for value in g.values]
    plants = [dataclasses.replace(g.plant, **column) for column in columns]  # type: ignore[type-var]
    stills = [keyframes.plain(plant) for plant in plants]
    equilibria = [[np.asarray(a, float) for a in plant.equilibrium()] for plant in plants]
    runs = []
    for i in np.ndindex(g.found.shape):
        xs, us = g.xs[i][::every], g.us[i][::every]
        near = (np.abs(xs) <= _FAR * np.asarray(g.plant.scales[0])).all(axis=1) & np.isfinite(us).all(axis=1)
        end = len(near) if near.all() else max(int(np.argmin(near)), 1)
        (x_eq, u_eq), still = equilibria[i[2]], stills[i[2]]
        seen = zip(np.nan_to_num(xs[:end]) + x_eq, np.nan_to_num(us[:end]) + u_eq)
        poses = [still.draw(x, u) for x, u in seen]
        runs.append(poses + poses[-1:] * (len(xs) - end))
    return runs


def _numbers(shape: drawing.Shape) -> list[float]:
    """Centre and radius of a disc; the corners of all else."""
    if isinstance(shape, drawing.Disc):
        return [*np.asarray(shape.centre, float).tolist(), float(shape.radius)]
    return drawing.outline(shape).ravel().tolist()


def _frame(plane: list[Numbers], usual: int) -> tuple[float, ...]:
    """Left, right, bottom, top: all of the default run, and of the others as far as that is not much more."""

    def edges(plane: list[Numbers]) -> np.ndarray:
        points = [
            np.concatenate([a[..., :2] - a[..., 2:], a[..., :2] + a[..., 2:]])
            if a.shape[-1] == 3
            else a.reshape(*a.shape[:-1], -1, 2)
            for a in plane
        ]
        low, high = (f([f(p.reshape(-1, 2), axis=0) for p in points], axis=0) for f in (np.min, np.max))
        room = np.maximum(0.1 * np.max(high - low) - (high - low), 0.0) / 2
        return np.stack([low - room, high + room])

    first, everything = edges([a[usual : usual + 1] for a in plane]), edges(plane)
    most = 0.5 * (_FIT - 1) * (first[1] - first[0]) * np.array([[-1], [1]])
    low, high = np.clip(everything, np.minimum(first, first + most), np.maximum(first, first + most))
    return low[0], high[0], low[1], high[1]


def _pixels(shape: Any, plane: Numbers, scale: float, corner: tuple[float, float]) -> Numbers:
    """Points of a shape in pixels; an arrow gets its head."""
    turned = np.array([scale, -scale])
    if isinstance(shape, drawing.Disc):
        return np.concatenate([(plane[..., :2] - corner) * turned, scale * plane[..., 2:]], axis=-1)
    points = (plane.reshape(*plane.shape[:-1], -1, 2) - corner) * turned
    if isinstance(shape, drawing.Arrow):
        a, b = points[..., 0, :], points[..., 1, :]
        length = np.hypot(*np.moveaxis(b - a, -1, 0))[..., None]
        along = (b - a) / np.maximum(length, 1e-9) * np.minimum(length / 2, _HEAD)
        across = 0.45 * np.stack([-along[..., 1], along[..., 0]], axis=-1)
        points = np.stack([a, b, b - along + across, b, b - along - across], axis=-2)
    return points.reshape(*plane.shape[:-1], -1)


def _element(shape: Any, at: Float[np.ndarray, " numbers"]) -> str:
    """A shape as an element whose place alone the script changes."""
    filled = getattr(shape, "filled", False)
    look = f"lq-{shape.ink} lq-part" + " lq-open" * (not filled)
    match shape:
        case drawing.Text():
            look = "lq-soft lq-part" if shape.ink in ("ground", "faint") else "lq-part"
            place = {"x": svg.px(at[0]), "y": svg.px(at[1]), "text-anchor": "middle", "dy": "0.33em"}
            return svg.element("text", {"class": look, **place}, svg.html.escape(shape.text) or " ")
        case drawing.Disc():
            width = 0 if filled else 1.4
            place = dict(zip(("cx", "cy", "r"), map(svg.px, at)))
            return svg.element("circle", {"class": look, "stroke-width": width, **place})
        case drawing.Line():
            width, dashes = float(shape.width), {"stroke-dasharray": "5 4"} if shape.dashed else {}
        case _:
            widths = {drawing.Spring: 1.3, drawing.Arrow: 1.8}
            width, dashes = 0 if filled else widths.get(type(shape), 1.4), {}
    data = svg.polyline(at.reshape(-1, 2)) + "Z" * isinstance(shape, drawing.Box)
    round_ends = {"stroke-linecap": "round", "stroke-linejoin": "round", "stroke-width": svg.digits(width, 2)}
    return svg.element("path", {"class": look, "d": data, **round_ends, **dashes})
