"""Plants' drawings as pixels, for films of episodes."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from lqrlab.systems import Plant, drawing

COLOURS = {"body": "#30475e", "accent": "#d1495b", "ground": "#8a8a8a", "faint": "#cfd6dd", "fluid": "#7fb2d9"}
_MARGIN = 24
_SHARP = 2  # times the size, scaled down at the end: smooth edges


def frame(
    plant: Plant, x: np.ndarray, u: np.ndarray, bounds: tuple[float, ...], size: tuple[int, int] = (480, 360)
) -> np.ndarray:
    """The plant at the absolute state x [n] and input u [m] as ``[height, width, 3]`` bytes.

    Args:
        plant: one plant.
        x, u: what is not finite is drawn at the edge.
        bounds: left, right, bottom, top of the plane that is shown.
        size: width and height.
    """
    shapes = plant.drawing(*(np.nan_to_num(a, nan=0.0, posinf=1e3, neginf=-1e3) for a in (x, u)))
    wide, high = (_SHARP * side for side in size)
    left, right, bottom, top = bounds
    room = 2 * _SHARP * _MARGIN
    scale = min((wide - room) / (right - left), (high - room) / (top - bottom))
    middle = np.array([(left + right) / 2, (bottom + top) / 2])
    image = Image.new("RGB", (wide, high), "white")
    canvas = ImageDraw.Draw(image)

    def pixels(points: object) -> list[tuple[float, float]]:
        at = (np.asarray(points, float).reshape(-1, 2) - middle) * (scale, -scale) + (wide / 2, high / 2)
        return [tuple(p) for p in np.clip(at, -10 * wide, 10 * wide).tolist()]

    for shape in shapes:
        _paint(canvas, shape, pixels, scale)
    return np.asarray(image.resize(size, Image.Resampling.LANCZOS))


def _paint(canvas: ImageDraw.ImageDraw, shape: drawing.Shape, pixels: Callable, scale: float) -> None:
    colour, line = COLOURS.get(shape.ink, "#000000"), 3 * _SHARP
    match shape:
        case drawing.Line(points, _, width, _):
            canvas.line(pixels(points), colour, round(1.5 * _SHARP * float(width)), joint="curve")
        case drawing.Box(centre, width, height, angle, _, filled):
            half, across = drawing.axes(angle, width / 2)[0], drawing.axes(angle, height / 2)[1]
            corners = [half + across, across - half, -half - across, half - across]
            at = pixels(np.asarray(centre, float) + np.array(corners))
            canvas.polygon(at, colour if filled else None, colour, line)
        case drawing.Disc(centre, radius, _, filled):
            ((x, y),) = pixels(centre)
            r = abs(float(radius)) * scale
            canvas.ellipse((x - r, y - r, x + r, y + r), colour if filled else None, colour, line)
        case drawing.Spring(a, b, radius, coils):
            canvas.line(pixels(drawing.zigzag(a, b, radius, coils)), colour, line, joint="curve")
        case drawing.Arrow(a, b):
            start, end = (np.array(p) for p in pixels([a, b]))
            canvas.line([tuple(start), tuple(end)], colour, line)
            along = (end - start) / max(float(np.hypot(*(end - start))), 1.0) * 12 * _SHARP
            side = 0.5 * np.array([-along[1], along[0]])
            canvas.polygon([tuple(end), tuple(end - along + side), tuple(end - along - side)], colour)
        case drawing.Text(at, text):
            canvas.text(pixels(at)[0], text, colour, anchor="mm", font_size=12 * _SHARP)
