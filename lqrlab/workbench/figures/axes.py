"""Axes as SVG, and the curves, circles, marks and images that are placed in their units."""

import base64
import dataclasses
import io

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.ticker import MaxNLocator
from PIL import Image

from lqrlab.workbench.figures.svg import Stroke, curve, element, px, text

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height [px], labels included."""
Range = tuple[float, float]
"""Lowest and highest value."""
Values = Float[np.ndarray, " points"]
_FAR = 1e4  # pixels from the middle: points that are farther away are put there, in their direction
_MARKS = {"○": "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0", "×": "m-4 -4l8 8m0 -8l-8 8", "+": "m-4 0h8m-4 -4v8"}


@dataclasses.dataclass(frozen=True)
class Axes:
    """A plane with two linear axes.

    Attributes:
        at: where it stands.
        x, y: values at its edges.
        margins: left, right, top and bottom, for the labels [px].
        boxed: a frame with a full grid; else a line below and horizontal grid lines.
    """

    at: Rectangle
    x: Range
    y: Range
    margins: Rectangle = (40, 14, 16, 28)
    boxed: bool = True

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, right, top and bottom of the plane [px]."""
        (left, top, width, height), m = self.at, self.margins
        return left + m[0], left + width - m[1], top + m[2], top + height - m[3]

    @property
    def aspect(self) -> float:
        """Width over height of the plane."""
        left, right, top, bottom = self.edges
        return (right - left) / (bottom - top)

    def place(self, x: Values | float, y: Values | float) -> tuple[np.ndarray, np.ndarray]:
        """Pixels of a point, or of many."""
        left, right, top, bottom = self.edges
        across = (np.asarray(x, float) - self.x[0]) / (self.x[1] - self.x[0])
        up = (np.asarray(y, float) - self.y[0]) / (self.y[1] - self.y[0])
        return left + (right - left) * across, bottom - (bottom - top) * up

    def frame(self, below: str, above: str, body: str = "") -> str:
        """Grid, ticks and edges around ``body``, which is cut off where it leaves the plane.

        The label of the horizontal axis stands below the plane, that of the vertical axis above it.
        """
        left, right, top, bottom = self.edges
        every, grid = ((50, 30), f"{px(top)}V{px(bottom)}") if self.boxed else ((45, 22), f"{px(bottom)}v3")
        parts = [text(self.at[0] + 2, self.at[1] + 10, above, look="lq-soft")]
        for v in ticks(*self.y, max(2, int((bottom - top) / every[1]))):
            y = float(self.place(0.0, v)[1])
            parts.append(f'<path class="lq-grid" d="M{px(left)} {px(y)}H{px(right)}"/>')
            parts.append(text(left - 4, y + 3.5, _number(v), anchor="end", look="lq-soft"))
        for v in ticks(*self.x, max(2, int((right - left) / every[0]))):
            x = float(self.place(v, 0.0)[0])
            parts.append(f'<path class="lq-{"grid" if self.boxed else "axis"}" d="M{px(x)} {grid}"/>')
            parts.append(text(x, bottom + 12, _number(v), anchor="middle", look="lq-soft"))
        parts.append(text(right, bottom + 23, below, anchor="end", look="lq-soft") if below else "")
        parts.append(
            element("svg", self._window | {"viewBox": " ".join(self._window.values())}, body) if body else ""
        )
        box = f"V{px(top)}H{px(left)}Z" if self.boxed else ""
        return "".join(parts) + f'<path class="lq-axis" d="M{px(left)} {px(bottom)}H{px(right)}{box}"/>'

    @property
    def _window(self) -> dict[str, str]:
        left, right, top, bottom = self.edges
        return {"x": px(left), "y": px(top), "width": px(right - left), "height": px(bottom - top)}

    def curve(self, xs: Values, ys: Values, stroke: Stroke, *, steps: bool = False) -> str:
        """A curve through points, up to the first that is not finite; a single point is a short dash."""
        good = np.isfinite(xs) & np.isfinite(ys)
        end = len(good) if good.all() else int(np.argmin(good))
        if end < 2:
            return self.curve(xs[[0, 0]], ys[[0, 0]], stroke) if end else ""
        left, right, top, bottom = self.edges
        middle = 0.5 * (left + right), 0.5 * (top + bottom)
        away = [a - m for a, m in zip(self.place(xs[:end], ys[:end]), middle)]
        nearer = _FAR / np.maximum(np.hypot(*away), _FAR)
        return stroke.path(curve(*(m + nearer * a for a, m in zip(away, middle)), steps=steps))

    def cross(self, x: float, y: float) -> str:
        """Thin lines through a point, as long as the plane."""
        (left, right, top, bottom), (across, up) = self.edges, self.place(x, y)
        data = f"M{px(left)} {px(up)}H{px(right)}M{px(across)} {px(top)}V{px(bottom)}"
        return element("path", {"class": "lq-axis", "d": data})

    def circle(self, x: float, y: float, radius: float, dashes: str = "") -> str:
        """A thin circle about a point, an ellipse where the axes differ in scale."""
        (cx, cy), (right, top) = self.place(x, y), self.place(x + radius, y + radius)
        size = {"cx": px(cx), "cy": px(cy), "rx": px(right - cx), "ry": px(cy - top)}
        return element("ellipse", {"class": "lq-axis", "stroke-dasharray": dashes or "none", **size})

    def marks(self, xs: Values, ys: Values, shape: str, stroke: Stroke) -> str:
        """A mark at each point: ``○``, ``×`` or ``+``."""
        return stroke.path("".join(f"M{px(x)} {px(y)}{_MARKS[shape]}" for x, y in zip(*self.place(xs, ys))))

    def image(self, rgba: UInt8[np.ndarray, "rows columns 4"]) -> str:
        """Pixels that fill the plane, the first row at the bottom."""
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(rgba[::-1])).save(buffer, "PNG")
        data = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        look = {"preserveAspectRatio": "none", "style": "image-rendering:pixelated", "href": data}
        return element("image", self._window | look)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers between low and high."""
    found = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [0.0 if abs(t) < slack else float(t) for t in found if low - slack <= t <= high + slack]


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
