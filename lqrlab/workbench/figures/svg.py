"""Small pictures as text: curves on axes and a plant's shapes in SVG that follows light and dark.

Some hundred of these fit into a page, where as many bitmaps would not. One style sheet serves all that stand on a
page; each picture carries it, so that each can stand alone.
"""

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

# of curves, in order: optimal, network, nominal gain, no control, untrained (as plots.COLOURS), then the rest of
# Okabe and Ito's; on dark paper each a lighter one of the same hue
LIGHT = ("#0072B2", "#D55E00", "#009E73", "#737373", "#CC79A7", "#B07900", "#3A8FC0", "#000000")
_DARK = ("#56B4E9", "#FF9147", "#2FC99A", "#A8A8A8", "#E6A0C8", "#E6B800", "#9AD0F5", "#FFFFFF")
LABELS = ("optimal", "network", "nominal gain", "no control", "untrained")
DASHES = ("", "5 3", "1.5 2.5", "8 2 1.5 2")
INKS = ("paper", "body", "accent", "ground", "faint", "fluid", "text", "soft")
_SCHEMES = (
    (("#FFFFFF", "#333333", "#D55E00", "#8A8A8A", "#D0D0D0", "#56B4E9", "#22252A", "#5C636E"), LIGHT),
    (("#1B1E23", "#D6D8DC", "#FF8A3D", "#8F959E", "#464B54", "#3A8FC0", "#DCDEE2", "#9AA2AE"), _DARK),
)


def _scheme(inks: Sequence[str], curves: Sequence[str]) -> str:
    named = [*zip(INKS, inks), *((str(i), c) for i, c in enumerate(curves))]
    return "".join(f"--q-{name}:{colour};" for name, colour in named)


def _style() -> str:
    light, dark = (_scheme(*s) for s in _SCHEMES)
    inks = "".join(
        f".lq-{k}{{fill:var(--q-{k});stroke:var(--q-{k})}}" for k in INKS if k not in ("text", "soft")
    )
    curves = "".join(f".lq-c{i}{{stroke:var(--q-{i})}}" for i in range(len(LIGHT)))
    return (
        f".lq-all{{{light}}}@media (prefers-color-scheme:dark){{.lq-all{{{dark}}}}}"
        f'[data-jp-theme-light="true"] .lq-all{{{light}}}[data-jp-theme-light="false"] .lq-all{{{dark}}}'
        f"@media print{{.lq-all{{{light}}}}}"
        ".lq-all{background:var(--q-paper);font:10.5px system-ui,sans-serif;"
        "font-variant-numeric:lining-nums tabular-nums;border-radius:4px;max-width:100%;height:auto}"
        ".lq-all text{fill:var(--q-text);stroke:none}.lq-all text.lq-soft{fill:var(--q-soft)}"
        ".lq-all .lq-b{font-weight:600}"
        f"{inks}{curves}.lq-open{{fill:none}}.lq-curve{{fill:none;stroke-width:1.5;stroke-linejoin:round}}"
        ".lq-grid{stroke:var(--q-faint);stroke-width:.6;fill:none;opacity:.7}"
        ".lq-axis{stroke:var(--q-ground);stroke-width:.8;fill:none}"
        ".lq-mark{stroke:var(--q-text);stroke-width:1;opacity:.55}"
    )


STYLE = _style()


def picture(body: str, width: float, height: float, alt: str, *, style: str = "", bare: bool = False) -> str:
    """An ``<svg>`` of ``width`` × ``height`` pixels around ``body``.

    Args:
        body: elements.
        width, height: in pixels at which letters have their size; it shrinks on narrow screens.
        alt: what stands for it where it cannot be seen.
        style: rules of its own.
        bare: leave the common style sheet out; another picture of the page has it.
    """
    rules = ("" if bare else STYLE) + style
    sheet = f"<style>{rules}</style>" if rules else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="lq-all" viewBox="0 0 {_n(width)} {_n(height)}" '
        f'width="{_n(width)}" height="{_n(height)}" role="img" aria-label="{html.escape(alt)}">{sheet}{body}</svg>'
    )


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing that the last expression of a cell shows.

    Attributes:
        svg: a complete SVG file, as :func:`picture` makes.
        alt: what stands for it where it cannot be seen.
        words: HTML that is shown above it.
    """

    svg: str
    alt: str
    words: str = ""

    @property
    def html(self) -> str:
        """The words and the drawing."""
        return f"<p>{self.words}</p>{self.svg}" if self.words else self.svg

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict]:
        return {"text/html": self.html, "text/plain": self.alt}, {}

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a file that ends in ``.svg``."""
        path = Path(path)
        if path.suffix != ".svg":
            raise ValueError(f"{path}: a drawing is saved as .svg; the name has to end so")
        path.write_text(self.svg, encoding="utf-8")
        return path


def element(tag: str, marks: Mapping[str, Any], body: str = "") -> str:
    """An element with its attributes; ``body`` is markup."""
    written = "".join(f' {name}="{html.escape(str(value))}"' for name, value in marks.items())
    return f"<{tag}{written}>{body}</{tag}>" if body else f"<{tag}{written}/>"


def text(x: float, y: float, words: str, *, look: str = "", anchor: str = "", more: str = "") -> str:
    """Words at a point: ``anchor`` is SVG's text-anchor, ``look`` a class."""
    marks = (f' class="{look}"' if look else "") + (f' text-anchor="{anchor}"' if anchor else "") + more
    return f'<text x="{_n(x)}" y="{_n(y)}"{marks}>{html.escape(words)}</text>'


def colour(label: str, index: int) -> int:
    """The colour of a run: that of its name if it has one, else the next."""
    if label in LABELS:
        return LABELS.index(label)
    return (0, 1, 2, 4, 5, 6, 7)[index % 7]


def duration_unit(seconds: float) -> tuple[str, float]:
    """A unit of time in which ``seconds`` is a handy number, and how many seconds it has."""
    for unit, size in (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0)):
        if seconds < 300 * size or (unit == "s" and seconds < 600):
            return unit, size
    return ("h", 3600.0) if seconds < 3e5 else ("d", 86400.0)


def ticks(low: float, high: float, count: int = 3) -> list[float]:
    """Round numbers between low and high."""
    found = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [0.0 if abs(t) < slack else float(t) for t in found if low - slack <= t <= high + slack]


def curve(xs: np.ndarray, ys: np.ndarray, *, steps: bool = False, tolerance: float = 0.15) -> str:
    """Path data through points in pixels, without those that nobody would miss."""
    if steps:
        parts, last = [f"M{_n(xs[0])} {_n(ys[0])}"], ys[0]
        for x, y in zip(xs[1:], ys[1:]):
            if abs(y - last) > tolerance:
                parts.append(f"H{_n(x)}V{_n(y)}")
                last = y
        return "".join(parts) + f"H{_n(xs[-1])}"
    keep = simplify(np.stack([xs, ys], axis=1), tolerance)
    points = [f"{_n(x)} {_n(y)}" for x, y in zip(xs[keep], ys[keep])]
    return "M" + "L".join(points)


def simplify(points: np.ndarray, tolerance: float) -> np.ndarray:
    """Indices of the points [k, d] between which straight lines miss no other by more than ``tolerance``.

    The first coordinate is the one run along (time), the distance is in the others: D. H. Douglas and T. K. Peucker,
    Cartographica 10(2), 1973, measured upright.
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


def chart(
    at: tuple[float, float, float, float],
    curves: Sequence[tuple[np.ndarray, np.ndarray, int, str]],
    title: str,
    unit: str,
    until: float,
    *,
    steps: bool = False,
    time: bool = True,
    lead: int = 0,
) -> tuple[str, float, float]:
    """Curves over time on axes with units.

    Args:
        at: left, top, width, height of all of it, labels included.
        curves: each ``(times [k] in s, values [k], colour, dashes)``; what is not finite ends a curve.
        title, unit: of what is shown.
        until: the last time [s].
        steps: whether values hold until the next.
        time: whether to write the time's unit below.
        lead: how many of the curves decide what is seen; others leave the picture at its edge. All if 0.

    Returns:
        The elements, and the pixels at which time 0 and time ``until`` stand.
    """
    left, top, width, height = at
    x0, x1, y0, y1 = left + 30, left + width - 6, top + 16, top + height - (25 if time else 14)
    name, size = duration_unit(until)
    low, high = _range(curves[: lead or None])
    if lead and len(curves) > lead:
        span = max(high - low, 1e-12)
        wide = _range(curves)
        low, high = max(wide[0], low - span), min(wide[1], high + span)
    low, high = (
        (low - 1, high + 1) if high - low < 1e-12 else (low - 0.06 * (high - low), high + 0.06 * (high - low))
    )
    power = math.floor(math.log10(max(abs(low), abs(high))))
    power = 0 if -2 <= power < 4 else 3 * (power // 3)
    factor = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    words = f"{title} [{f'10{factor} ' if power else ''}{unit}]"
    longest = int((width - 4) / 5.6)
    parts = [
        text(
            left + 2, top + 10, words if len(words) <= longest else words.replace(" of ", " "), look="lq-soft"
        )
    ]

    def px(t: Any) -> Any:
        return x0 + (x1 - x0) * np.asarray(t, float) / until

    def py(v: Any) -> Any:
        return y1 - (y1 - y0) * (np.asarray(v, float) - low) / (high - low)

    for v in ticks(low, high, max(2, int((y1 - y0) / 22))):
        parts.append(f'<path class="lq-grid" d="M{_n(x0)} {_n(py(v))}H{_n(x1)}"/>')
        label = f"{v / 10.0**power:.4g}".replace("-", "−")
        parts.append(text(x0 - 4, float(py(v)) + 3.5, label, anchor="end", look="lq-soft"))
    marks = ticks(0.0, until / size, max(2, int((x1 - x0) / 45)))
    for t in marks:
        x = float(px(t * size))
        parts.append(f'<path class="lq-axis" d="M{_n(x)} {_n(y1)}v3"/>')
        parts.append(text(x, y1 + 12, f"{t:g}", anchor="middle", look="lq-soft"))
    if time:
        parts.append(text(x1, y1 + 23, f"time [{name}]", anchor="end", look="lq-soft"))
    parts.append(f'<path class="lq-axis" d="M{_n(x0)} {_n(y1)}H{_n(x1)}"/>')
    for ts, vs, index, dashes in curves:
        seen = np.isfinite(vs) & (ts <= until * (1 + 1e-9)) & (vs >= low) & (vs <= high)
        end = len(seen) if seen.all() else int(np.argmin(seen)) + 1
        vs = np.clip(np.nan_to_num(vs[:end], nan=high), low, high)
        if end > 1:
            marks_ = f' stroke-dasharray="{dashes}"' if dashes else ""
            path = curve(px(ts[:end]), py(vs[:end]), steps=steps)
            parts.append(f'<path class="lq-curve lq-c{index}"{marks_} d="{path}"/>')
    return "".join(parts), float(x0), float(x1)


def axes(
    at: tuple[float, float, float, float],
    horizontal: tuple[float, float, str],
    vertical: tuple[float, float, str],
    body: str = "",
) -> str:
    """A frame with ticks around elements that are written in fractions of it.

    Args:
        at: left, top, width, height of all of it, labels included.
        horizontal, vertical: lowest and highest value and the label.
        body: elements in a plane that is 1 wide and 1 high, upwards; what leaves it is cut off.
    """
    left, top = at[:2]
    x0, x1, y0, y1 = frame(at)
    (low, high, below), (least, most, aside) = horizontal, vertical
    parts = [text(left + 2, top + 10, aside, look="lq-soft")]
    for v in ticks(low, high, max(2, int((x1 - x0) / 50))):
        x = x0 + (x1 - x0) * (v - low) / (high - low)
        parts.append(f'<path class="lq-grid" d="M{_n(x)} {_n(y0)}V{_n(y1)}"/>')
        parts.append(text(x, y1 + 12, f"{v:.4g}".replace("-", "−"), anchor="middle", look="lq-soft"))
    for v in ticks(least, most, max(2, int((y1 - y0) / 30))):
        y = y1 - (y1 - y0) * (v - least) / (most - least)
        parts.append(f'<path class="lq-grid" d="M{_n(x0)} {_n(y)}H{_n(x1)}"/>')
        parts.append(text(x0 - 4, y + 3.5, f"{v:.4g}".replace("-", "−"), anchor="end", look="lq-soft"))
    parts.append(text(x1, y1 + 23, below, anchor="end", look="lq-soft"))
    window = {"x": _n(x0), "y": _n(y0), "width": _n(x1 - x0), "height": _n(y1 - y0)}
    inner = {"viewBox": "0 0 1 1", "preserveAspectRatio": "none"}
    parts.append(element("svg", window | inner, body) if body else "")
    parts.append(
        f'<rect class="lq-axis" x="{_n(x0)}" y="{_n(y0)}" width="{_n(x1 - x0)}" height="{_n(y1 - y0)}"/>'
    )
    return "".join(parts)


def frame(at: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of the plane that :func:`axes` frames [px]."""
    left, top, width, height = at
    return left + 40, left + width - 14, top + 16, top + height - 28


def _range(curves: Sequence[tuple[np.ndarray, np.ndarray, int, str]]) -> tuple[float, float]:
    values = np.concatenate([v[np.isfinite(v)] for _, v, _, _ in curves] + [np.zeros(1)])
    return float(values.min()), float(values.max())


def legend(x: float, y: float, labels: Sequence[tuple[str, int, str]]) -> str:
    """Labels one beside another, each behind a piece of its line."""
    parts = []
    for words, index, dashes in labels:
        marks = f' stroke-dasharray="{dashes}"' if dashes else ""
        parts.append(f'<path class="lq-curve lq-c{index}"{marks} d="M{_n(x)} {_n(y - 3.5)}h20"/>')
        parts.append(text(x + 25, y, words, look="lq-b"))
        x += 25 + 6.4 * len(words) + 16
    return "".join(parts)


def _n(value: Any) -> str:
    """A number of pixels in as few letters as it takes."""
    text = f"{float(value):.1f}"
    return "0" if text in ("-0.0", "0.0") else text.removesuffix(".0")
