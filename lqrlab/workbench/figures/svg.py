"""Small drawings as SVG text that follows light and dark: elements, line styles, labels, the style sheet.

Some hundred of these fit into a page, where as many bitmaps would not. One style sheet serves all that stand on a
page; each picture carries it, so that each can stand alone.
"""

import dataclasses
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, SupportsFloat

import numpy as np
from jaxtyping import Float, Int

from lqrlab.workbench.figures.safe_html import unbroken, write_page

Pixels = Float[np.ndarray, " points"]
# light, dark: first of the labels below in order, then the rest of Okabe and Ito's
CURVES = tuple(
    zip(
        ["#0072B2", "#D55E00", "#009E73", "#737373", "#CC79A7", "#B07900", "#3A8FC0", "#000000"],
        ["#56B4E9", "#FF9147", "#2FC99A", "#A8A8A8", "#E6A0C8", "#E6B800", "#9AD0F5", "#FFFFFF"],
    )
)
INKS = {
    "paper": ("#FFFFFF", "#1B1E23"),
    "text": ("#22252A", "#DCDEE2"),
    "soft": ("#5C636E", "#9AA2AE"),
    "body": ("#333333", "#D6D8DC"),
    "accent": ("#D55E00", "#FF8A3D"),
    "ground": ("#8A8A8A", "#8F959E"),
    "faint": ("#D0D0D0", "#464B54"),
    "fluid": ("#56B4E9", "#3A8FC0"),
}
"""Colours of lines and letters, light and dark."""
LABELS = ("optimal", "network", "nominal gain", "no control", "untrained")
DASHES = ("", "5 3", "1.5 2.5", "8 2 1.5 2")


def stylesheet(name: str) -> str:
    """A style sheet of this folder, in one line."""
    return re.sub(r"\s*([{};])\s*", r"\1", (Path(__file__).parent / name).read_text(encoding="utf-8"))


def _style() -> str:
    inks = {**INKS, **{str(i): pair for i, pair in enumerate(CURVES)}}
    colours = "".join(f"--q-{name}:light-dark({light},{dark});" for name, (light, dark) in inks.items())
    shapes = "".join(f".lq-{k}{{fill:var(--q-{k});stroke:var(--q-{k})}}" for k in INKS)
    curves = "".join(f".lq-c{i}{{stroke:var(--q-{i})}}" for i in range(len(CURVES)))
    return f".lq-all{{{colours}}}{shapes}{curves}{stylesheet('svg.css')}"


STYLE = _style()


class Shown:
    """Something shown as HTML when it is the last expression of a cell; ``alt`` stands for it elsewhere."""

    html: str
    alt: str

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[dict[str, str], dict]:
        return {"text/html": self.html, "text/plain": self.alt}, {}


@dataclasses.dataclass(frozen=True)
class HtmlPage(Shown):
    """A page as HTML that needs no other file and no script."""

    html: str
    alt: str
    title: str

    def save(self, path: str | Path) -> Path:
        """Write it to a complete HTML file."""
        body = re.sub(r"<(/?)h3\b", r"<\1h2", self.html)  # in a notebook it stands under a heading
        style = (
            "<style>:root{color-scheme:light dark;background:Canvas;color:CanvasText}"
            "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 system-ui,sans-serif}</style>"
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
        )
        return write_page(path, self.title, f"<main><h1>{html.escape(self.title)}</h1>{body}</main>", style)


@dataclasses.dataclass(frozen=True)
class Picture(Shown):
    """A drawing: an SVG file, text for those who cannot see it, HTML above and below it; all but ``alt`` is markup."""

    svg: str
    alt: str
    words: str = ""
    note: str = dataclasses.field(default="", kw_only=True)

    @property
    def drawing(self) -> str:
        """The drawing as HTML."""
        return self.svg

    @property
    def html(self) -> str:  # type: ignore[override]
        """The words, the drawing and the note."""
        said, note = (f"<p>{unbroken(each)}</p>" if each else "" for each in (self.words, self.note))
        return said + self.drawing + note

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a file that ends in ``.svg`` or ``.html``, or raise a ``ValueError``."""
        path = Path(path)
        if path.suffix in (".html", ".htm"):
            return write_page(path, self.alt, self.html)
        if path.suffix != ".svg":
            raise ValueError(f"{path}: a drawing is saved as .svg or .html; the name has to end so")
        path.write_text(self.svg, encoding="utf-8")
        return path


STRIP_MARK = 'class="lq-strip"'
STRIP_SCRIPT = (Path(__file__).parent / "strip.js").read_text(encoding="utf-8")


class Axis(NamedTuple):
    """One control: its label, and a value in words and a picture for each position; None where the first one stands."""

    label: str
    words: Sequence[str]
    pictures: Sequence[Picture | None]


@dataclasses.dataclass(frozen=True)
class Strip(Picture):
    """A picture, and those for other positions of its controls, one moved at a time: sliders without a kernel.

    Where the one small script, which shows and hides pictures, does not run, the page shows the first picture.
    """

    axes: Sequence[Axis] = ()

    @property
    def html(self) -> str:  # type: ignore[override]
        """The controls and all pictures; sliders are put into their places by the script."""
        if not self.axes:
            return super().html
        rows = "".join(
            f'<div class="lq-row"><span>{html.escape(axis.label)}</span><b></b><div class="lq-slot"></div></div>'
            for axis in self.axes
        )
        style = f"<style>{STYLE}{stylesheet('strip.css')}</style>"
        first, groups = Picture(self.svg, self.alt, self.words).html, "".join(map(_group, self.axes))
        still = f'<div class="lq-still">{first}</div>{groups}<p>{self.note}</p>'
        return f'{style}<div {STRIP_MARK}><div class="lq-rows">{rows}</div>{still}</div>'


def _group(axis: Axis) -> str:
    """The pictures of one control, hidden until the script shows one; an empty one stands for the first picture."""
    frames = (
        f'<div class="lq-frame" aria-label="{html.escape(word)}">{picture.html if picture else ""}</div>'
        for word, picture in zip(axis.words, axis.pictures)
    )
    return f'<div class="lq-frames">{"".join(frames)}</div>'


def document(body: str, width: float, height: float, alt: str, *, style: str = "", bare: bool = False) -> str:
    """An ``<svg>`` around elements, with ``alt`` for those who cannot see it; a ``bare`` one has no style sheet."""
    rules = ("" if bare else STYLE) + style
    sheet = f"<style>{rules}</style>" if rules else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lq-all" viewBox="0 0 {px(width)} {px(height)}" '
        f'width="{px(width)}" height="{px(height)}" role="img" aria-label="{html.escape(alt)}">{sheet}{body}</svg>'
    )


def px(value: SupportsFloat) -> str:
    """A number of pixels, to a tenth."""
    return decimals(value, 1)


def decimals(value: SupportsFloat, count: int) -> str:
    """A number with at most ``count`` decimals and no trailing zeros."""
    text = f"{float(value):.{count}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(tag: str, marks: Mapping[str, object], body: str = "") -> str:
    """An element with its attributes; ``body`` is markup."""
    written = "".join(f' {name}="{html.escape(str(value))}"' for name, value in marks.items())
    return f"<{tag}{written}>{body}</{tag}>" if body else f"<{tag}{written}/>"


def text(x: float, y: float, words: str, *, look: str = "", anchor: str = "") -> str:
    """Words at a point: ``anchor`` is SVG's text-anchor, ``look`` a class."""
    marks = {"class": look, "x": px(x), "y": px(y), "text-anchor": anchor}
    return element("text", {name: value for name, value in marks.items() if value}, html.escape(words))


class Stroke(NamedTuple):
    """Line style of a curve: the number of its colour and its dashes."""

    colour: int
    dashes: str = ""

    def path(self, data: str) -> str:
        """A path element."""
        dashed = f' stroke-dasharray="{self.dashes}"' if self.dashes else ""
        return f'<path class="lq-curve lq-c{self.colour}"{dashed} d="{data}"/>'


def strokes(labels: Iterable[str]) -> dict[str, Stroke]:
    """A stroke for each label: the colour that it always has, or else the next that none has, and dashes in order."""
    labels, others = list(labels), (0, 1, 2, 4, 5, 6, 7)
    found = {label: LABELS.index(label) for label in labels if label in LABELS}
    for k, label in enumerate(labels):
        turned = others[k % 7 :] + others[: k % 7]
        found.setdefault(label, next((c for c in turned if c not in found.values()), turned[0]))
    return {label: Stroke(found[label], DASHES[k % 4]) for k, label in enumerate(labels)}


def legend(x: float, y: float, labels: Mapping[str, Stroke]) -> str:
    """Labels in a row, each after a piece of its line."""
    parts = []
    for words, stroke in labels.items():
        parts.append(stroke.path(f"M{px(x)} {px(y - 3.5)}h20") + text(x + 25, y, words, look="lq-b"))
        x += 25 + 6.4 * len(words) + 16
    return "".join(parts)


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Path data of straight lines through points [px]."""
    return "M" + "L".join(f"{px(x)} {px(y)}" for x, y in points)


def curve(xs: Pixels, ys: Pixels, *, steps: bool = False, tolerance: float = 0.15) -> str:
    """Path data through points, without those that make no visible difference; ``steps`` hold each y."""
    if steps:
        parts, last = [f"M{px(xs[0])} {px(ys[0])}"], ys[0]
        for x, y in zip(xs[1:], ys[1:]):
            if abs(y - last) > tolerance:
                parts.append(f"H{px(x)}V{px(y)}")
                last = y
        return "".join(parts) + f"H{px(xs[-1])}"
    keep = simplify(np.column_stack([xs if (np.diff(xs) >= 0).all() else np.arange(len(xs)), xs, ys]), tolerance)
    return polyline(zip(xs[keep], ys[keep]))


def simplify(points: Float[np.ndarray, "points d"], tolerance: float) -> Int[np.ndarray, " kept"]:
    """Indices of the points between which straight lines miss no other by more than ``tolerance``, measured upright.

    The first coordinate is the one run along: D. H. Douglas and T. K. Peucker, Cartographica 10(2), 1973.
    """
    keep = np.zeros(len(points), bool)
    keep[[0, -1]] = True
    stack = [(0, len(points) - 1)]
    t, values = points[:, 0], points[:, 1:]
    while stack:
        a, b = stack.pop()
        if b - a < 2:
            continue
        share = (t[a + 1 : b] - t[a]) / max(t[b] - t[a], 1e-300)
        off = np.abs(values[a + 1 : b] - values[a] - share[:, None] * (values[b] - values[a])).max(axis=1)
        worst = int(np.argmax(off))
        if off[worst] > tolerance:
            keep[a + 1 + worst] = True
            stack += [(a, a + 1 + worst), (a + 1 + worst, b)]
    return np.flatnonzero(keep)
