"""Moving shapes as SVG: each is drawn once and carried along by CSS keyframes, as few as the eye needs.

No script and no bitmap: a browser, a notebook and a mail's attachment all play it, sharp at any size.
"""

import dataclasses
import hashlib
import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike, Bool, Float

from lqrlab.systems import Plant, drawing
from lqrlab.workbench.figures.svg import decimals, element, polyline, px, simplify, text

Marks = dict[str, object]
"""An element's attributes."""
PerFrame = Float[np.ndarray, " frames"]
Points = Float[np.ndarray, "frames 2"]
Path = Float[np.ndarray, "frames 5"]
"""In each frame x, y [px], turn [rad] and scale along and across itself."""
_TOLERANCE = 0.35  # pixels that a shape may be off between two keyframes
_HEAD = 8.0  # length of an arrow's head [px]
_STEP = ";animation-timing-function:step-end"


class Film:
    """Makes elements that move and gathers the keyframes that move them.

    ``times`` are shares of a loop of ``seconds``, from 0; after the last frame all stands still until the loop ends.
    """

    def __init__(self, times: PerFrame, seconds: float) -> None:
        self.times, self.seconds = np.asarray(times, float), seconds
        self._names: dict[str, str] = {}
        self._tag = f"lq-m{seconds:g}".replace(".", "-")

    @property
    def style(self) -> str:
        """The style sheet that moves what was made."""
        frames = "".join(f"@keyframes {name}{{{rule}}}" for rule, name in self._names.items())
        return f".{self._tag}{{animation:{self.seconds:g}s linear infinite}}{frames}" if frames else ""

    def _animated(self, rule: str, marks: Marks) -> Marks:
        """An element's attributes with those that animate it."""
        digest = hashlib.sha1(f"{self.seconds:g}{rule}".encode()).hexdigest()[:7]
        look = f"{marks.get('class', '')} lq-m {self._tag}".strip()
        name = self._names.setdefault(rule, "q" + digest)
        return {**marks, "class": look, "style": f"animation-name:{name}"}

    def _rule(self, keep: Iterable[int], declaration: Callable[[int], str], more: str = "") -> str:
        """Keyframes at some frames; the last holds to the end of the loop."""
        frames = {int(i): declaration(int(i)) for i in keep}
        rule = "".join(f"{self._share(i)}{{{f}{more}}}" for i, f in frames.items())
        return rule + f"to{{{frames[max(frames)]}}}"

    def _share(self, frame: int) -> str:
        return f"{decimals(100 * self.times[frame], 2)}%"

    def carry(self, tag: str, marks: Marks, path: Path, size: tuple[float, float], words: str = "") -> str:
        """An element, given as it stands unturned at its origin, carried along a path.

        ``size`` is how far it reaches from its origin along and across [px].
        """
        path = np.array(path, float)
        path[:, 2] = np.unwrap(path[:, 2])
        weight = np.array([1, 1, max(*size, 1.0), *size])
        scaled = bool((np.abs(path[:, 3:] - 1) * size).max() > _TOLERANCE)
        turned = bool(np.abs(path[:, 2]).max() * weight[2] > 0.05)

        def form(i: int, unit: str = "", deg: str = "", comma: str = " ") -> str:
            x, y, turn, along, across = path[i]
            words = f"translate({px(x)}{unit}{comma}{px(y)}{unit})"
            words += f"rotate({decimals(np.degrees(turn), 1)}{deg})" if turned else ""
            return words + (f"scale({decimals(along, 3)}{comma}{decimals(across, 3)})" if scaled else "")

        marks = {**marks, "transform": form(0)} | ({"vector-effect": "non-scaling-stroke"} if scaled else {})
        weighted = path * weight
        if np.ptp(weighted, axis=0).max() > _TOLERANCE / 2:
            keep = simplify(np.column_stack([self.times, weighted]), _TOLERANCE)
            marks = self._animated(self._rule(keep, lambda i: f"transform:{form(i, 'px', 'deg', ',')}"), marks)
        return element(tag, marks, words)

    def widen(self, markup: str, widths: PerFrame) -> str:
        """Markup whose lines change their width [points]."""
        if np.ptp(widths) < 0.05:
            return markup
        keep = simplify(np.column_stack([self.times, widths]), 0.1)
        rule = self._rule(keep, lambda i: f"stroke-width:{decimals(widths[i], 2)}")
        return element("g", self._animated(rule, {}), markup)

    def shown(self, markup: str, frames: Bool[np.ndarray, " frames"]) -> str:
        """Markup that is seen in some frames only."""
        if frames.all():
            return markup
        turns = [0, *(np.flatnonzero(np.diff(frames)) + 1)]
        rule = self._rule(turns, lambda i: f"opacity:{int(frames[i])}", _STEP)
        return element("g", self._animated(rule, {"opacity": int(frames[0])}), markup)

    def cursor(self, left: float, right: float, top: float, bottom: float) -> str:
        """A vertical line that runs from left to right while the film plays [px]."""
        count = len(self.times)
        along = np.column_stack([np.linspace(left, right, count), np.full(count, top)])
        mark: Marks = {"class": "lq-mark", "d": f"M0 0V{px(bottom - top)}"}
        return self.carry("path", mark, _path(along, 0.0, np.ones(2))[0], (0.0, 0.0))

    def clock(self, x: float, y: float, words: Sequence[str]) -> str:
        """Words one after another at a place, spread evenly over the time until the last frame."""
        rule = f"0%{{transform:none;animation-timing-function:steps({len(words) - 1})}}"
        rule += f"{self._share(-1)},to{{transform:translateY({-20 * (len(words) - 1)}px)}}"
        strip = "".join(text(0, 14 + 20 * i, w) for i, w in enumerate(words))
        window = {"x": px(x), "y": px(y), "width": 110, "height": 19}
        return element("svg", window, element("g", self._animated(rule, {}), strip))


def shapes(film: Film, drawings: Sequence[drawing.Drawing], scale: float, corner: tuple[float, float]) -> str:
    """A plant's drawings, one a frame, as elements that move; a shape's place in the tuple says which it is.

    ``scale`` is in pixels a unit of the drawing, ``corner`` the drawing's (left, top) at the pixel (0, 0).
    """
    pen, made = _Pen(film, scale, corner), []
    for i in range(max(map(len, drawings))):
        frames = [d[i] if i < len(d) else None for d in drawings]
        looks = [look(shape) for shape in frames]
        for kind in dict.fromkeys(looks):
            if kind is None:
                continue
            present = np.array([other == kind for other in looks])
            # where it is absent it waits at its nearest place
            known = np.flatnonzero(present)
            nearest = known[np.abs(known[None] - np.arange(len(frames))[:, None]).argmin(axis=1)]
            made.append(film.shown(pen.draw([frames[k] for k in nearest]), present))
    return "".join(made)


def fit(
    bounds: tuple[float, ...], size: tuple[float, float], room: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Scale and corner, as :func:`shapes` takes them, that put ``bounds`` amid ``size``, within ``room`` [px]."""
    left, right, bottom, top = bounds
    scale = min(room[0] / (right - left), room[1] / (top - bottom))
    return scale, (0.5 * (left + right - size[0] / scale), 0.5 * (bottom + top + size[1] / scale))


def still(drawn: drawing.Drawing, bounds: tuple[float, ...], width: float, height: float) -> str:
    """One drawing without motion, in a picture of a size [px]."""
    return shapes(Film(np.zeros(1), 1.0), [drawn], *fit(bounds, (width, height), (width - 8, height - 8)))


def plain(plant: Plant) -> Plant:
    """The plant with plain numbers for its parameters, as drawings expect: NumPy draws, no device computes."""
    return dataclasses.replace(plant, **{key: float(value) for key, value in plant.parameters.items()})  # type: ignore[type-var]


def poses(plant: Plant, xs: Float[np.ndarray, "times n"], us: Float[np.ndarray, "times m"]) -> list[drawing.Drawing]:
    """The plant's drawings at deviations from its equilibrium."""
    still, (x_eq, u_eq) = plain(plant), (np.asarray(a, float) for a in plant.equilibrium())
    return [still.draw(x + x_eq, u + u_eq) for x, u in zip(np.asarray(xs, float), np.asarray(us, float))]


def look(shape: drawing.Shape | None) -> tuple | None:
    """Features of a shape that cannot move: shapes that look alike are one piece."""
    if shape is None:
        return None
    fixed = (getattr(shape, name, None) for name in ("ink", "filled", "dashed", "text", "coils"))
    return (type(shape), *fixed, len(shape.points) if isinstance(shape, drawing.Line) else 0)


class _Pen:
    """Draws a shape, given as it is in each frame."""

    def __init__(self, film: Film, scale: float, corner: tuple[float, float]) -> None:
        self.film, self.scale, self.corner = film, scale, corner

    def draw(self, frames: Sequence[Any]) -> str:
        first, ink = frames[0], f"lq-{frames[0].ink}"
        line: Marks = {"class": f"{ink} lq-open"}
        match first:
            case drawing.Line():
                return self.line(frames, line)
            case drawing.Arrow():
                return self.arrow(frames, ink)
            case drawing.Spring():
                a, length, turn = _polar(self.pixels(frames, "a"), self.pixels(frames, "b"))
                path, (long, wide) = _path(a, turn, np.column_stack([length, self.sizes(frames, "radius")]))
                coil = polyline(drawing.zigzag((0, 0), (long, 0), wide, first.coils))
                line |= {"stroke-width": 1.3, "stroke-linejoin": "round", "d": coil}
                return self.film.carry("path", line, path, (long, wide))
            case drawing.Text():
                look: Marks = {"class": "lq-soft"} if first.ink in ("ground", "faint") else {}
                look |= {"text-anchor": "middle", "dy": "0.33em"}
                path, _ = _path(self.pixels(frames, "at"), 0.0, np.ones(2))
                return self.film.carry("text", look, path, (1.0, 1.0), html.escape(first.text))
        filled = {"class": ink, "stroke-width": 0} if first.filled else line | {"stroke-width": 1.4}
        at = self.pixels(frames, "centre")
        if isinstance(first, drawing.Disc):
            path, (radius, _) = _path(at, 0.0, self.sizes(frames, "radius", "radius"))
            return self.film.carry("circle", filled | {"r": px(radius)}, path, (radius, radius))
        turns = np.array([-float(f.angle) for f in frames])
        path, (wide, tall) = _path(at, turns, self.sizes(frames, "width", "height"))
        box = {"x": px(-wide / 2), "y": px(-tall / 2), "width": px(wide), "height": px(tall)}
        return self.film.carry("rect", filled | box, path, (wide / 2, tall / 2))

    def line(self, frames: Sequence[drawing.Line], marks: Marks) -> str:
        """In one piece if it is stiff, else piece by piece."""
        widths = np.array([f.width for f in frames], float)
        marks |= {"stroke-width": decimals(widths[0], 2)} if np.ptp(widths) < 0.05 else {}
        marks |= {"stroke-dasharray": "5 4"} if frames[0].dashed else {}
        marks |= {"stroke-linecap": "round"}
        points = self.pixels(frames, "points")
        z = points[..., 0] + 1j * points[..., 1]
        about = z - z[:, :1]
        turn = np.angle(np.sum(about * np.conj(about[0]), axis=1))
        if np.abs(about - np.exp(1j * turn)[:, None] * about[0]).max() < _TOLERANCE:
            reach = float(np.abs(about[0]).max())
            marks |= {"stroke-linejoin": "round", "d": polyline((p.real, p.imag) for p in about[0])}
            path, _ = _path(points[:, 0], turn, np.ones(2))
            return self.film.widen(self.film.carry("path", marks, path, (reach, reach)), widths)
        ends = (points[:, k : k + 2].swapaxes(0, 1) for k in range(z.shape[1] - 1))
        return self.film.widen("".join(self.straight(*_polar(*pair), marks) for pair in ends), widths)

    def arrow(self, frames: Sequence[drawing.Arrow], ink: str) -> str:
        """A shaft and a head, which shrinks with a short arrow."""
        a, length, turn = _polar(self.pixels(frames, "a"), self.pixels(frames, "b"))
        head = np.minimum(length / (2 * _HEAD), 1.0)
        look: Marks = {"class": f"{ink} lq-open", "stroke-width": 1.8}
        shaft = self.straight(a, length - 0.8 * _HEAD * head, turn, look)
        tips = a + length[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
        tip: Marks = {"class": ink, "stroke-width": 0.5, "d": f"M0 0L{px(-_HEAD)} 3.6V-3.6Z"}
        path = np.column_stack([tips, turn, head, head])
        return shaft + self.film.carry("path", tip, path, (_HEAD, 3.6))

    def straight(self, a: Points, length: PerFrame, turn: PerFrame, marks: Marks) -> str:
        """A straight line that moves, turns and changes its length."""
        path, (most, _) = _path(a, turn, np.column_stack([length, np.ones_like(length)]))
        return self.film.carry("path", marks | {"d": f"M0 0H{px(most)}"}, path, (most, 0.0))

    def pixels(self, frames: Sequence[drawing.Shape], name: str) -> Float[np.ndarray, "frames *points 2"]:
        """A point or points of the shape."""
        p = np.asarray([getattr(f, name) for f in frames], float)
        return np.stack([p[..., 0] - self.corner[0], self.corner[1] - p[..., 1]], axis=-1) * self.scale

    def sizes(self, frames: Sequence[drawing.Shape], *names: str) -> Float[np.ndarray, "frames sizes"]:
        """Lengths of the shape in pixels."""
        return self.scale * np.abs(np.array([[float(getattr(f, name)) for name in names] for f in frames]))


def _path(at: Points, turn: ArrayLike, sizes: Float[np.ndarray, "*frames 2"]) -> tuple[Path, tuple[float, float]]:
    """A path whose scale is the sizes' share of the largest, and the largest."""
    sizes = np.broadcast_to(sizes, (len(at), 2))
    along, across = (max(float(most), 1e-3) for most in sizes.max(axis=0))
    turns = np.broadcast_to(np.asarray(turn, float), (len(at),))
    return np.column_stack([at, turns, sizes / (along, across)]), (along, across)


def _polar(a: Points, b: Points) -> tuple[Points, PerFrame, PerFrame]:
    """Starts, lengths and turns of the ways from a to b; a way without length keeps the turn before it."""
    way = b - a
    length, turn = np.hypot(*way.T), np.arctan2(way[:, 1], way[:, 0])
    short = length < 0.05
    if short.any() and not short.all():
        known = np.flatnonzero(~short)
        before = known[np.maximum(np.searchsorted(known, np.arange(len(turn)), side="right") - 1, 0)]
        turn = turn[before]
    return a, length, turn
