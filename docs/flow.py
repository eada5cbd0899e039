"""Drawings of the data's way: boxes and arrows as SVG from lines such as ``plant -> A, B | exact -> gain``."""

import html
import itertools
import re

_TALL, _RIGHT, _DOWN = 46, 30, 26  # of a box, and between boxes [px]

Place = tuple[int, int]
"""Column and row of a box."""


def picture(text: str) -> str:
    """The figure of a ``flow`` block.

    Each line is a chain of boxes. A box is named by its words; after ``|`` come smaller words below them. A box that
    is named again is the same box. It stands right of all that lead to it, in the first row that is free.
    """
    chains = [[part.strip() for part in line.split("->")] for line in text.strip().splitlines()]
    boxes: dict[str, str] = {}  # name → smaller words
    arrows: list[tuple[str, str]] = []
    for chain in chains:
        parts = [[words.strip() for words in part.partition("|")[::2]] for part in chain]
        for name, below in parts:
            boxes[name] = below or boxes.get(name, "")
        arrows += [(a, b) for (a, _), (b, _) in itertools.pairwise(parts)]
    columns = dict.fromkeys(boxes, 0)
    for _ in boxes:
        for a, b in arrows:
            columns[b] = max(columns[b], columns[a] + 1)
    if max(columns.values()) >= len(boxes):
        raise ValueError(f"flow: the arrows run in a circle:\n{text}")
    filled = dict.fromkeys(columns.values(), 0)
    places = {}
    for name in boxes:
        places[name] = (columns[name], filled[columns[name]])
        filled[columns[name]] += 1
    wide = max(max(8.2 * len(name), 6.4 * len(below)) for name, below in boxes.items()) + 16
    width = (max(filled) + 1) * (wide + _RIGHT) - _RIGHT + 12
    height = max(filled.values()) * (_TALL + _DOWN) + 4
    body = "".join(_arrow(_corner(places[a], wide), _corner(places[b], wide), wide) for a, b in arrows)
    body += "".join(_box(_corner(places[name], wide), wide, name, below) for name, below in boxes.items())
    alt = "The data's way: " + "; ".join(re.sub(r"\s*\|\s*", ", ", ", to ".join(chain)) for chain in chains)
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip = f'<defs>{tip}<path d="M0 0L8 4L0 8z"/></marker></defs>'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{html.escape(alt)}">{tip}{body}</svg>'
    return f'<figure class="flow">{svg}</figure>'


def _corner(place: Place, wide: float) -> tuple[float, float]:
    return 6 + place[0] * (wide + _RIGHT), 4 + place[1] * (_TALL + _DOWN)


def _box(corner: tuple[float, float], wide: float, name: str, below: str) -> str:
    x, y = corner
    middle = x + wide / 2
    top = f'<text x="{middle}" y="{y + (20 if below else 28)}">{html.escape(name)}</text>'
    small = f'<text class="small" x="{middle}" y="{y + 36}">{html.escape(below)}</text>' if below else ""
    return f'<rect x="{x}" y="{y}" width="{wide}" height="{_TALL}" rx="6"/>{top}{small}'


def _arrow(start: tuple[float, float], end: tuple[float, float], wide: float) -> str:
    """From the right of one box to the left of another; past boxes between them in the gap of two rows."""
    x0, y0, x1, y1 = start[0] + wide, start[1] + _TALL / 2, end[0], end[1] + _TALL / 2
    bend, far = 0.7 * _RIGHT, x1 - x0 > _RIGHT + 1
    if far and y0 == y1:  # from below to below
        x0, x1, y0 = x0 - 0.3 * wide, x1 + 0.3 * wide, y0 + _TALL / 2
        gap = y0 + 0.75 * _DOWN
        way = f"M{x0} {y0}Q{x0} {gap} {x0 + 20} {gap}H{x1 - 20}Q{x1} {gap} {x1} {y0}"
    elif far:
        gap = max(start[1], end[1]) - _DOWN / 2
        way = f"M{x0} {y0}C{x0 + bend} {y0} {x0 + bend / 3} {gap} {x0 + _RIGHT} {gap}"
        way += f"H{x1 - _RIGHT}C{x1 - bend / 3} {gap} {x1 - bend} {y1} {x1} {y1}"
    else:
        way = f"M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"
    return f'<path d="{way}" marker-end="url(#tip)"/>'
