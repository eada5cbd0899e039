"""Plants as shapes: plain data in a plane, which plots, films and panels draw.

A family's ``draw(x, u)`` returns a tuple of the shapes below, back to front, in metres (or in another unit that both
axes share). ``ink`` is the part a shape plays: ``"body"`` moves, ``"accent"`` is where to look, ``"ground"`` stands
still, ``"faint"`` is in the background, ``"fluid"`` fills a vessel.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jax import Array

from lqrlab.systems.declaration import Signal

INKS = ("body", "accent", "ground", "faint", "fluid")
Real = int | float | np.ndarray | Array  # a number
Point = Sequence[Real] | np.ndarray


@dataclasses.dataclass(frozen=True)
class Line:
    """A polyline through points [k, 2]; ``width`` in typographic points."""

    points: Sequence[Point] | np.ndarray
    ink: str = "body"
    width: Real = 2.0
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle about its centre, turned counter-clockwise by ``angle`` [rad]."""

    centre: Point
    width: Real
    height: Real
    angle: Real = 0.0
    ink: str = "body"
    filled: bool = True


@dataclasses.dataclass(frozen=True)
class Disc:
    """A disc, or a ring when not filled."""

    centre: Point
    radius: Real
    ink: str = "body"
    filled: bool = True


@dataclasses.dataclass(frozen=True)
class Spring:
    """A coil from a to b, ``radius`` wide to either side."""

    a: Point
    b: Point
    radius: Real
    coils: int = 6
    ink: str = "body"


@dataclasses.dataclass(frozen=True)
class Arrow:
    """An arrow from a to b."""

    a: Point
    b: Point
    ink: str = "accent"


@dataclasses.dataclass(frozen=True)
class Text:
    """Words centred at a point."""

    at: Point
    text: str
    ink: str = "body"


Shape = Line | Box | Disc | Spring | Arrow | Text
Drawing = tuple[Shape, ...]


def outline(shape: Shape) -> np.ndarray:
    """Points [k, 2] that a shape lies between."""
    match shape:
        case Line(points):
            return np.asarray(points, float)
        case Box(centre, width, height, angle):
            corners = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * (width / 2, height / 2)
            return np.asarray(centre, float) + corners @ np.array(axes(angle))
        case Disc(centre, radius):
            return np.asarray(centre, float) + radius * np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
        case Spring(a, b, radius, coils):
            return zigzag(a, b, radius, coils)
        case Arrow(a, b):
            return np.array([a, b], float)
        case Text(at):
            return np.array([at], float)


def bounds(*drawings: Drawing) -> tuple[float, float, float, float]:
    """(left, right, bottom, top) of all shapes of the drawings; no side shorter than a tenth of the other."""
    points = np.concatenate([outline(shape) for drawing in drawings for shape in drawing])
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.maximum(0.1 * np.max(high - low) - (high - low), 0.0) / 2
    (left, bottom), (right, top) = (low - room).tolist(), (high + room).tolist()
    return left, right, bottom, top


def axes(angle: Real, length: Real = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Two vectors of a length: turned counter-clockwise by ``angle`` [rad] from the right, and a quarter turn on."""
    along = np.asarray(length) * np.array([np.cos(angle), np.sin(angle)])
    return along, np.array([-along[1], along[0]])


def zigzag(a: Point, b: Point, radius: Real, coils: int) -> np.ndarray:
    """Points of a spring between a and b."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    along = b - a
    across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-12)
    t = np.concatenate([[0.0, 0.15], np.linspace(0.15, 0.85, 2 * coils + 1)[1:-1], [0.85, 1.0]])
    side = np.concatenate([[0.0, 0.0], np.tile([1.0, -1.0], coils)[: 2 * coils - 1], [0.0, 0.0]])
    return a + t[:, None] * along + radius * side[:, None] * across


def reach(a: Point, length: Real, angle: Real) -> np.ndarray:
    """The point ``length`` from a, ``angle`` [rad] clockwise from upright."""
    return np.asarray(a, float) + length * np.array([np.sin(angle), np.cos(angle)])


def chain(a: Point, lengths: Sequence[Real], angles: Sequence[Real] | np.ndarray) -> list[np.ndarray]:
    """a and the ends of links after one another, each angle clockwise from upright."""
    points = [np.asarray(a, float)]
    for length, angle in zip(lengths, angles):
        points.append(reach(points[-1], length, angle))
    return points


def linkage(points: Sequence[Point], radius: Real) -> Drawing:
    """Links through points, with a joint of ``radius`` at each but the last, which is the accent."""
    joints = tuple(Disc(p, radius, "ground") for p in points[:-1])
    return (Line(points, "body", 5.0), *joints, Disc(points[-1], radius, "accent"))


def ground(left: Real, right: Real, height: Real = 0.0) -> Line:
    """A floor."""
    return Line([(left, height), (right, height)], "ground", 1.5)


def mark(left: Real, right: Real, height: Real = 0.0, width: Real = 1.0) -> Line:
    """A dashed level in the background: where something is to be held."""
    return Line([(left, height), (right, height)], "faint", width, dashed=True)


def ring(centre: Point, radius: Real, ink: str = "ground") -> Disc:
    """A circle that is not filled."""
    return Disc(centre, radius, ink, filled=False)


def cart(x: Real, width: Real, height: Real) -> Drawing:
    """A cart on two wheels, its roof ``height`` above the floor."""
    wheel = 0.2 * height
    body = Box((x, wheel + 0.5 * (height - wheel)), width, height - wheel)
    return (body, *(Disc((x + s * 0.3 * width, wheel), wheel, "ground") for s in (-1, 1)))


def car(x: Real, y: Real, heading: Real, length: Real, width: Real, steer: Real = 0.0) -> Drawing:
    """A car from above, its front wheels turned by ``steer`` [rad]; angles counter-clockwise from +x."""
    (along, across), at = axes(heading), np.array([x, y])
    wheels = []
    for end, turn in ((0.35, steer), (-0.35, 0.0)):
        for side in (0.5, -0.5):
            hub = at + end * length * along + side * width * across
            wheels.append(Box(hub, 0.2 * length, 0.12 * width, heading + turn, "ground"))
    return (*wheels, Box(at, length, 0.8 * width, heading), Arrow(at, at + 0.45 * length * along))


def aircraft(pitch: Real, length: Real) -> Drawing:
    """An aircraft about the origin from the side, nose to the right at pitch 0 (counter-clockwise)."""
    along, across = axes(pitch, length)
    fin = [(-0.47, 0.0), (-0.52, 0.17), (-0.45, 0.17), (-0.35, 0.0), (-0.47, 0.0)]
    return (
        Line([a * along + b * across for a, b in fin], "body", 4.0),
        Line([-0.47 * along + 0.03 * across, -0.55 * along + 0.05 * across], "accent", 4.0),
        Box(-0.02 * along, 0.9 * length, 0.09 * length, pitch),
        Disc(0.43 * along, 0.045 * length),
        Line([0.12 * along, -0.18 * along], "accent", 5.0),
    )


def tank(x: Real, bottom: Real, width: Real, height: Real, level: Real) -> Drawing:
    """An open tank filled to ``level``; both heights from its bottom."""
    left, right, top = x - width / 2, x + width / 2, bottom + height
    fill = float(np.clip(level, 0.0, height))
    water = Box((x, bottom + fill / 2), width, fill, ink="fluid")
    return (water, Line([(left, top), (left, bottom), (right, bottom), (right, top)], "ground"))


def gauges(signals: Sequence[Signal], x: np.ndarray) -> Drawing:
    """A bar a signal, out from the middle by its deviation from the operating point over its scale."""
    shapes: list[Shape] = [Line([(0, 0.6), (0, 0.4 - len(signals))], "ground", 1.0)]
    for row, (s, value) in enumerate(zip(signals, x)):
        bar = float(np.clip((value - s.at) / s.scale, -3, 3))
        shapes += [Box((bar / 2, -row), abs(bar), 0.5, ink="accent"), Text((-4.5, -row), s.label)]
    return (*shapes, Line([(-7, 0.6), (3.2, 0.6)], "faint", 0.5))


def circuit(*elements: tuple[str, Real]) -> Drawing:
    """A closed loop of elements ``(label, share)``, each filled by its share in [-1, 1] of what is large.

    Elements stand clockwise, the source first; ``("C", 0.5)`` is a capacitor half way to its scale.
    """
    count = len(elements)
    corners = np.array([(0.0, 0.0), (0.0, 2.0), (4.0, 2.0), (4.0, 0.0), (0.0, 0.0)])
    legs = np.hypot(*np.diff(corners, axis=0).T)
    ends = np.concatenate([[0.0], np.cumsum(legs)])
    shapes: list[Shape] = [Line(corners, "ground", 1.5)]
    for i, (label, share) in enumerate(elements):
        s = 1.0 + ends[-1] * i / count
        at = np.array([np.interp(s % ends[-1], ends, corners[:, k]) for k in (0, 1)])
        fill = float(np.clip(share, -1, 1))
        shapes += [
            Box(at, 0.8, 0.6, ink="faint"),
            Box(at + np.array([0.0, 0.15 * fill]), 0.8, 0.3 * abs(fill), ink="accent"),
            Box(at, 0.8, 0.6, ink="ground", filled=False),
            Text(at, label),
        ]
    return tuple(shapes)


def dial(centre: Point, radius: Real, angle: Real, label: str = "") -> Drawing:
    """A shaft end-on: a disc with a mark, turned counter-clockwise by ``angle`` from the right."""
    middle = np.asarray(centre, float)
    hand = Line([middle, middle + axes(angle, radius)[0]], "accent", 4.0)
    words = (Text(middle - (0.0, 1.45 * radius), label),) if label else ()
    return (Disc(centre, radius, "faint"), ring(centre, radius), hand, *words)
