"""Figures by matplotlib: one style, colours that colour-blind people tell apart, units on all axes."""

import base64
import io
import textwrap
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from jaxtyping import ArrayLike, Float
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant
from lqrlab.workbench.figures import charts, svg

COLOURS = {label: colour for label, (colour, _) in zip(svg.LABELS, svg.CURVES)}
"""The colour that a label always has, in all figures."""
MAIN, SECOND, LINE = svg.CURVES[0][0], svg.CURVES[1][0], svg.INKS["body"][0]
"""The first two colours of curves, and that of axes and boundaries."""
_DASHES = dict(zip(svg.DASHES, ("-", "--", ":", "-.")))  # matplotlib's names
_WIDTH = 7.6  # inches: the width of a report's column


def style() -> None:
    """Set matplotlib up; each function here calls it."""
    plt.style.use(Path(__file__).with_suffix(".mplstyle"))
    plt.rcParams["axes.prop_cycle"] = plt.cycler(color=palette(range(7)))


def palette(labels: Iterable[object]) -> list[str]:
    """The colours of labels, each on white."""
    return [svg.CURVES[stroke.colour][0] for stroke in svg.strokes(map(str, labels)).values()]


def looks(labels: Iterable[object]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of each label's curve, and the label, as matplotlib takes them."""
    return {
        label: {"color": svg.CURVES[stroke.colour][0], "ls": _DASHES[stroke.dashes], "label": label}
        for label, stroke in svg.strokes(map(str, labels)).items()
    }


def show(figure: Figure, alt: str) -> None:
    """Display a figure with the text that stands for it where it cannot be seen, and close it."""
    from IPython.display import display

    _check_words(alt)
    width = round(figure.get_figwidth() * 100)
    shown = {"image/png": png(figure, dpi=170), "text/plain": alt}
    display(shown, metadata={"image/png": {"alt": alt, "width": width}}, raw=True)


def png(figure: Figure, dpi: float = 110) -> str:
    """A figure as a PNG file in base64; it is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()


def picture(figure: Figure, alt: str) -> svg.Picture:
    """A figure as a picture, which panels show; it is closed."""
    width, height = (100 * float(a) for a in figure.get_size_inches())
    data = f"data:image/png;base64,{png(figure, dpi=200)}"
    image = f'<image width="{svg.px(width)}" height="{svg.px(height)}" href="{data}"/>'
    return svg.Picture(svg.document(image, width, height, alt), alt)


def save(figure: Figure, stem: str | Path, alt: str) -> list[Path]:
    """Write a figure for a paper, ``<stem>.pdf``, ``.svg`` (both with text) and ``.png``, with ``alt`` in each file."""
    _check_words(alt)
    if not isinstance(figure, Figure):
        raise ValueError(f"figure: expected a figure of matplotlib's, but found {type(figure).__name__}")
    style()
    stem = Path(stem).expanduser()
    if stem.suffix[1:].isalpha():  # gain_0.05 has none
        raise ValueError(f"stem: expected a path without an ending, but found {stem.name!r}")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"stem: the folder {stem.parent} cannot be made ({error.strerror})") from None
    title = stem.name.replace("_", " ")
    records: dict[str, dict[str, str | None]] = {
        "pdf": {"Title": title, "Subject": alt, "CreationDate": None},
        "svg": {"Title": title, "Description": alt, "Date": None},
        "png": {"Title": title, "Description": alt},
    }
    paths = {kind: stem.with_name(f"{stem.name}.{kind}") for kind in records}
    for kind, path in paths.items():
        figure.savefig(path, dpi=300, metadata=records[kind])
    return list(paths.values())


def _check_words(alt: object) -> None:
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"alt: expected a description of the figure, but found {alt!r}")


def grid(count: int, columns: int = 3, height: float = 1.9, **options: Any) -> tuple[Figure, list[Axes]]:
    """``count`` axes in rows of ``columns``; those left over are taken away."""
    style()
    columns = min(columns, count)
    rows = -(-count // columns)
    # in a panel's thread a figure that pyplot does not know, else it would show it under some cell
    made = plt.figure if threading.current_thread() is threading.main_thread() else Figure
    figure = made(figsize=(_WIDTH, height * rows))
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def responses(plant: Plant, runs: Mapping[str, Trajectory], title: str = "") -> Figure:
    """All states and inputs over time, one line a run (label → trajectory), as deviations from the equilibrium.

    Of loops from S initial states, ``xs [S, T+1, n]``, it is the median within bands of the middle 50 % and 90 %.
    """
    channels = charts.channels(plant)
    figure, axes = grid(len(channels), 3, 1.75, sharex=True)
    for axis, channel in zip(axes, channels):
        for run, look in zip(runs.values(), looks(runs).values()):
            ts, values = channel.curve(run)
            if values.ndim > 1:
                _bands(axis, ts, values, channel.held, look)
                values = np.median(values, axis=0)
            axis.plot(ts, values, drawstyle="steps-post" if channel.held else "default", **look)
        name, _, unit = channel.signal.label.partition(" [")  # in lines no longer than a small axis is high
        axis.set_ylabel("\n".join([*textwrap.wrap(name, 14, break_long_words=False), f"[{unit}"]))
    for axis in axes[-3:]:
        axis.set_xlabel("time [s]")
        axis.xaxis.set_tick_params(labelbottom=True)
    if len(runs) > 1:  # outside the axes, not on the curves
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def _bands(
    axis: Axes,
    ts: Float[np.ndarray, " times"],
    values: Float[np.ndarray, "runs samples"],
    held: bool,
    look: dict[str, Any],
) -> None:
    """Between which values the middle 90 % and 50 % of the runs are at each time."""
    for within, alpha in (((0.05, 0.95), 0.12), ((0.25, 0.75), 0.22)):
        low, high = np.quantile(values, within, axis=0)
        ink = {"facecolor": to_rgba(look["color"], alpha), "edgecolor": look["color"], "lw": 0.5}
        axis.fill_between(ts, low, high, step="post" if held else None, ls=look["ls"], **ink)


def gaps(scores: Mapping[str, Mapping[str, ArrayLike]], title: str = "") -> Figure:
    """Excess cost over the optimum [%], policy → family → values, one cloud a policy, on a logarithmic axis.

    inf, of a loop that does not converge, is drawn at ∞ outside of the numbered axis, with the share of such loops.
    """
    style()
    floor = 1e-3  # percent that everything below is drawn at
    families = list(next(iter(scores.values())))
    figure, axis = plt.subplots(figsize=(_WIDTH, 0.8 + 0.5 * len(families)))
    finite = [v[np.isfinite(v)] for by in scores.values() for v in map(np.asarray, by.values())]
    high = max((float(v.max(initial=floor)) for v in finite), default=1.0)
    last = np.ceil(np.log10(max(high, 100.0)))  # the numbered axis ends at this power of ten
    end, infinite = 10**last, 10 ** (last + 0.7)
    rng = np.random.default_rng(0)
    for k, ((label, by_family), colour) in enumerate(zip(scores.items(), palette(scores))):
        for row, family in enumerate(families):
            values = np.asarray(by_family[family], float).ravel()
            lost = ~np.isfinite(values)
            y = row + 0.7 * ((k + 0.5) / len(scores) - 0.5)
            jitter = 0.1 * (rng.random(values.size) - 0.5)
            shown = np.where(lost, infinite, np.clip(values, floor, end))
            axis.scatter(shown, y + jitter, s=6, alpha=0.6, color=colour, lw=0, label=None if row else label)
            median = np.quantile(values, 0.5, method="higher")
            if np.isfinite(median):
                axis.plot([max(median, floor)] * 2, [y - 0.14, y + 0.14], color=colour, lw=2.2)
            if lost.any():
                share = f"{100 * lost.mean():.0f} % do not converge"
                share += "" if np.isfinite(median) else ", median ∞"
                axis.text(infinite * 1.25, y, share, color=colour, va="center", fontsize=7)
    optimum: dict[str, Any] = {"color": COLOURS["optimal"], "lw": 3, "label": "optimum: 0, at the left edge"}
    axis.plot([floor * 0.8] * 2, [0, 1], transform=axis.get_xaxis_transform(), clip_on=False, **optimum)
    axis.set(xscale="log", xlim=(floor * 0.8, infinite * 10), ylim=(len(families) - 0.4, -0.6))
    decades = 10.0 ** np.arange(np.log10(floor), last + 1)
    axis.set_xticks([*decades, infinite], [*(f"{d:g}" for d in decades), "∞"])
    axis.minorticks_off()
    axis.spines["bottom"].set_bounds(floor * 0.8, end)
    axis.axvspan(10 ** (last + 0.35), infinite * 10, color="#999999", alpha=0.1, lw=0)
    axis.set_xlabel("cost above the optimum [%]   (bar: median; ∞: does not converge)")
    axis.set_yticks(range(len(families)), [f.replace("_", " ") for f in families])
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, markerscale=2.5)
    if title:
        axis.set_title(title, pad=24)
    return figure
