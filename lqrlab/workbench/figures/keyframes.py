"""Moving shapes as SVG: each is drawn once and carried along by CSS keyframes, as few as the eye needs.

No script and no bitmap: a browser, a notebook and a mail's attachment all play it, sharp at any size.
"""

import hashlib
import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from lqrlab.systems import drawing
from lqrlab.workbench.figures.svg import _n as n
from lqrlab.workbench.figures.svg import element, simplify, text

_MISSED = 0.35  # pixels that a shape may be off between two keyframes
_HEAD = 8.0  # length of an arrow's head [px]
_STEP = "animation-timing-function:step-end"


class Film:
    """Makes elements that move and gathers the keyframes that move them.

    Args:
        times: of the frames, as shares of a loop, ``[F]``, from 0; after the last all stands still until the loop ends.
        seconds: that one loop takes on the wall.
    """

    def __init__(self, times: np.ndarray, seconds: float) -> None:
        self.times, self.seconds = np.asarray(times, float), seconds
        self._names: dict[str, str] = {}

    @property
    def style(self) -> str:
        """The style sheet that moves what was made; for those who ask for less motion it waits to be started."""
        frames = "".join(f"@keyframes {name}{{{rule}}}" for rule, name in self._names.items())
        return f".lq-{self._tag}{{animation:{self.seconds:g}s linear infinite}}{frames}" if frames else ""

    @property
    def _tag(self) -> str:
        return f"m{self.seconds:g}".replace(".", "-")

    def _animated(self, rule: str) -> dict[str, str]:
        digest = hashlib.sha1(f"{self.seconds:g}{rule}".encode()).hexdigest()[:7]
        return {
            "class": f"lq-m lq-{self._tag}",
            "style": f"animation-name:{self._names.setdefault(rule, 'q' + digest)}",
        }

    def carry(
        self, tag: str, marks: dict[str, Any], path: np.ndarray, size: tuple[float, float], words: str = ""
    ) -> str:
        """An element carried along.

        Args:
            tag, marks, words: the element as it stands at its own origin, unturned.
            path: x, y [px], turn [rad] and stretch along and across itself, ``[F, 5]``.
            size: how far it reaches from its origin along and across [px].
        """
        path = np.array(path, float)
        path[:, 2] = np.unwrap(path[:, 2])
        weight = np.array([1, 1, max(*size, 1.0), *size])
        scaled = bool((np.abs(path[:, 3:] - 1) * size).max() > _MISSED)
        turned = bool(np.abs(path[:, 2]).max() * weight[2] > 0.05)

        def form(row: np.ndarray, px: str = "", deg: str = "", comma: str = " ") -> str:
            words = f"translate({n(row[0])}{px}{comma}{n(row[1])}{px})"
            words += f"rotate({_digits(np.degrees(row[2]), 1)}{deg})" if turned else ""
            return words + (f"scale({_digits(row[3], 3)}{comma}{_digits(row[4], 3)})" if scaled else "")

        marks = {**marks, "transform": form(path[0])} | (
            {"vector-effect": "non-scaling-stroke"} if scaled else {}
        )
        weighted = path * weight
        if np.ptp(weighted, axis=0).max() > _MISSED / 2:
            keep = simplify(np.column_stack([self.times, weighted]), _MISSED)
            forms = {i: f"{{transform:{form(path[i], 'px', 'deg', ',')}}}" for i in keep}
            rule = "".join(f"{_percent(self.times[i])}{forms[i]}" for i in keep) + f"to{forms[keep[-1]]}"
            marks = _merged(marks, self._animated(rule))
        return element(tag, marks, words)

    def widen(self, markup: str, widths: np.ndarray) -> str:
        """What is in ``markup`` with lines of a width that changes, ``[F]`` in points."""
        if np.ptp(widths) < 0.05:
            return markup
        keep = simplify(np.column_stack([self.times, widths]), 0.1)
        forms = {i: f"{{stroke-width:{_digits(widths[i], 2)}}}" for i in keep}
        rule = "".join(f"{_percent(self.times[i])}{forms[i]}" for i in keep) + f"to{forms[keep[-1]]}"
        return element("g", self._animated(rule), markup)

    def shown(self, markup: str, frames: np.ndarray) -> str:
        """What is in ``markup``, there only in some frames (``[F]`` of bool)."""
        if frames.all():
            return markup
        turns = [0, *(np.flatnonzero(np.diff(frames)) + 1)]
        rule = "".join(f"{_percent(self.times[i])}{{opacity:{int(frames[i])};{_STEP}}}" for i in turns)
        rule += f"to{{opacity:{int(frames[-1])}}}"
        return element("g", _merged({"opacity": int(frames[0])}, self._animated(rule)), markup)

    def clock(self, x: float, y: float, words: Sequence[str]) -> str:
        """Words one after another at a place, spread evenly over the time until the last frame."""
        last, far = self.times[-1], -20 * (len(words) - 1)
        rule = f"0%{{transform:none;animation-timing-function:steps({len(words) - 1})}}"
        rule += f"{_percent(last)},to{{transform:translateY({far}px)}}"
        strip = "".join(text(0, 14 + 20 * i, w) for i, w in enumerate(words))
        window = {"x": n(x), "y": n(y), "width": 110, "height": 19}
        return element("svg", window, element("g", self._animated(rule), strip))


def _merged(marks: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    classes = " ".join(str(m["class"]) for m in (marks, more) if "class" in m)
    return {**marks, **more} | ({"class": classes} if classes else {})


def _percent(share: float) -> str:
    return f"{_digits(100 * share, 2)}%"


def _digits(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


# Shapes ----------------------------------------------------------------------------------------------------


def shapes(film: Film, drawings: Sequence[drawing.Drawing], scale: float, corner: tuple[float, float]) -> str:
    """A plant's drawings, one a frame, as elements that move.

    Args:
        film: takes the keyframes.
        drawings: one a frame, back to front; a shape's place in the tuple says which it is.
        scale: pixels a unit of the drawing.
        corner: the drawing's (left, top) at the pixel (0, 0).
    """
    made = []
    for i in range(max(map(len, drawings))):
        frames = [d[i] if i < len(d) else None for d in drawings]
        looks = [_look(shape) for shape in frames]
        for look in dict.fromkeys(looks):
            if look is None:
                continue
            there = np.array([other == look for other in looks])
            # where it is not there it waits at its nearest place
            known = np.flatnonzero(there)
            nearest = known[np.abs(known[None] - np.arange(len(frames))[:, None]).argmin(axis=1)]
            made.append(film.shown(_shape(film, [frames[k] for k in nearest], scale, corner), there))
    return "".join(made)


def _look(shape: drawing.Shape | None) -> tuple | None:
    """What of a shape cannot move: shapes that look alike are one piece."""
    if shape is None:
        return None
    fixed = (getattr(shape, name, None) for name in ("ink", "filled", "dashed", "text", "coils"))
    points = len(shape.points) if isinstance(shape, drawing.Line) else 0
    return (type(shape), *fixed, points)


def _shape(film: Film, frames: Sequence[Any], scale: float, corner: tuple[float, float]) -> str:
    first = frames[0]
    kind: dict[str, Any] = {"class": f"lq-{first.ink}"}

    def pixels(points: Any) -> np.ndarray:
        p = np.asarray(points, float)
        return np.stack([p[..., 0] - corner[0], corner[1] - p[..., 1]], axis=-1) * scale

    match first:
        case drawing.Line():
            widths = np.array([f.width for f in frames], float)
            points = pixels([f.points for f in frames])
            width = {"stroke-width": _digits(widths[0], 2)} if np.ptp(widths) < 0.05 else {}
            dashes = {"stroke-dasharray": "5 4"} if first.dashed else {}
            marks: dict[str, Any] = {
                "class": f"lq-{first.ink} lq-open",
                **width,
                **dashes,
                "stroke-linecap": "round",
            }
            return film.widen(_line(film, points, marks), widths)
        case drawing.Box():
            sides = scale * np.abs(np.array([(f.width, f.height) for f in frames], float))
            most = np.maximum(sides.max(axis=0), 1e-3)
            path = _path(pixels([f.centre for f in frames]), [-float(f.angle) for f in frames], sides / most)
            box = {"x": n(-most[0] / 2), "y": n(-most[1] / 2), "width": n(most[0]), "height": n(most[1])}
            return film.carry("rect", _filled(first) | box, path, (most[0] / 2, most[1] / 2))
        case drawing.Disc():
            radius = scale * np.array([abs(float(f.radius)) for f in frames])
            most = max(radius.max(), 1e-3)
            path = _path(pixels([f.centre for f in frames]), 0.0, (radius / most)[:, None])
            return film.carry("circle", _filled(first) | {"r": n(most)}, path, (most, most))
        case drawing.Spring():
            a, length, turn = _polar(pixels([f.a for f in frames]), pixels([f.b for f in frames]))
            radius = scale * np.array([float(f.radius) for f in frames])
            most, wide = max(length.max(), 1e-3), max(radius.max(), 1e-3)
            coil = drawing.zigzag((0, 0), (most, 0), wide, first.coils)
            data = "M" + "L".join(f"{n(x)} {n(y)}" for x, y in coil)
            path = _path(a, turn, np.stack([length / most, radius / wide], axis=1))
            marks = {
                "class": f"lq-{first.ink} lq-open",
                "stroke-width": 1.3,
                "stroke-linejoin": "round",
                "d": data,
            }
            return film.carry("path", marks, path, (most, wide))
        case drawing.Arrow():
            a, length, turn = _polar(pixels([f.a for f in frames]), pixels([f.b for f in frames]))
            head = np.minimum(length / (2 * _HEAD), 1.0)
            shaft, tips = length - 0.8 * _HEAD * head, a + length[:, None] * _unit(turn)
            most = max(shaft.max(), 1e-3)
            marks = {"class": f"lq-{first.ink} lq-open", "stroke-width": 1.8, "d": f"M0 0H{n(most)}"}
            line = film.carry(
                "path", marks, _path(a, turn, np.stack([shaft / most, np.ones_like(shaft)], 1)), (most, 0.0)
            )
            data = f"M0 0L{n(-_HEAD)} 3.6V-3.6Z"
            tip = {**kind, "stroke-width": 0.5, "d": data}
            return line + film.carry("path", tip, _path(tips, turn, head[:, None]), (_HEAD, 3.6))
    path = _path(pixels([f.at for f in frames]), 0.0, np.ones((len(frames), 1)))
    look = {
        "class": "lq-soft" if first.ink in ("ground", "faint") else "",
        "text-anchor": "middle",
        "dy": "0.33em",
    }
    return film.carry("text", {k: v for k, v in look.items() if v}, path, (1.0, 1.0), html.escape(first.text))


def _line(film: Film, points: np.ndarray, marks: dict[str, Any]) -> str:
    """A polyline, points [F, k, 2] in pixels: in one piece if it is stiff, else piece by piece."""
    z = points[..., 0] + 1j * points[..., 1]
    about = z - z[:, :1]
    turn = np.angle(np.sum(about * np.conj(about[0]), axis=1))
    if np.abs(about - np.exp(1j * turn)[:, None] * about[0]).max() < _MISSED:
        data = "M" + "L".join(f"{n(p.real)} {n(p.imag)}" for p in about[0])
        reach = float(np.abs(about[0]).max())
        path = _path(points[:, 0], turn, np.ones((len(z), 1)))
        return film.carry("path", {**marks, "stroke-linejoin": "round", "d": data}, path, (reach, reach))
    pieces = []
    for k in range(points.shape[1] - 1):
        a, length, turn = _polar(points[:, k], points[:, k + 1])
        most = max(length.max(), 1e-3)
        path = _path(a, turn, np.stack([length / most, np.ones_like(length)], axis=1))
        pieces.append(film.carry("path", {**marks, "d": f"M0 0H{n(most)}"}, path, (most, 0.0)))
    return "".join(pieces)


def _filled(shape: Any) -> dict[str, Any]:
    solid: dict[str, Any] = {"class": f"lq-{shape.ink}", "stroke-width": 0}
    return solid if shape.filled else {"class": f"lq-{shape.ink} lq-open", "stroke-width": 1.4}


def _path(at: np.ndarray, turn: Any, segment_length: np.ndarray) -> np.ndarray:
    count = len(at)
    turns = np.broadcast_to(np.asarray(turn, float), (count,))
    return np.column_stack([at, turns, np.broadcast_to(segment_length, (count, 2))])


def _polar(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts, lengths and turns of the ways from a to b; a way without length keeps the turn before it."""
    way = b - a
    length, turn = np.hypot(*way.T), np.arctan2(way[:, 1], way[:, 0])
    short = length < 0.05
    if short.any() and not short.all():
        known = np.flatnonzero(~short)
        before = known[np.maximum(np.searchsorted(known, np.arange(len(turn)), side="right") - 1, 0)]
        turn = turn[before]
    return a, length, turn


def _unit(turn: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)
