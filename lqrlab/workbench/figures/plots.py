"""Figures: one style, colours that colour-blind people tell apart, units on every axis, words for each picture."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon

from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant, drawing

# M. Okabe and K. Ito, Color Universal Design (2008)
COLOURS = {
    "optimal": "#0072B2",
    "network": "#D55E00",
    "nominal gain": "#009E73",
    "no control": "#7F7F7F",
    "untrained": "#CC79A7",
}
_CYCLE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
_INKS = {"body": "#333333", "accent": "#D55E00", "ground": "#9A9A9A", "faint": "#D0D0D0", "fluid": "#56B4E9"}
FORMATS = ("pdf", "svg", "png")
_WIDTH = 7.6  # inches: the width of a report's column


def style() -> None:
    """Set matplotlib up; each function here calls it."""
    plt.rcParams.update(
        {
            "figure.dpi": 100,
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "font.size": 9,
            "axes.titlesize": 9.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E4E4E4",
            "grid.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 1.6,
            "axes.prop_cycle": plt.cycler(color=_CYCLE),
            "svg.fonttype": "none",  # letters stay letters, to be edited and searched
            "pdf.fonttype": 42,
            "svg.hashsalt": "lqrlab",  # the same figure is the same file
        }
    )


def show(figure: Figure, alt: str) -> None:
    """Display a figure with the text that stands for it where it cannot be seen, and close it."""
    from IPython.display import display

    _check_words(alt)
    display(
        {"image/png": base64.b64encode(png(figure, dpi=170)).decode(), "text/plain": alt},
        metadata={"image/png": {"alt": alt, "width": round(figure.get_figwidth() * 100)}},
        raw=True,
    )
    plt.close(figure)


def png(figure: Figure, dpi: float = 110) -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def save(figure: Figure, stem: str | Path, alt: str, *, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure for a paper: ``<stem>.pdf``, ``.svg`` and ``.png``; the text in the first two can be edited.

    Args:
        figure: any figure of matplotlib's.
        stem: path without its ending; the folder is made if need be.
        alt: words that stand for it, kept in each file's own record.
        formats: which of the three.

    Returns:
        The files' paths.

    Raises:
        ValueError: no words, another format, a path with an ending or in a folder that cannot be made.
    """
    _check_words(alt)
    if not isinstance(figure, Figure):
        raise ValueError(f"figure: expected a figure of matplotlib's, but found {type(figure).__name__}")
    wrong = [formats] if isinstance(formats, str) or not formats else [f for f in formats if f not in FORMATS]
    if wrong:
        raise ValueError(
            f"formats: expected some of {', '.join(FORMATS)}, as ('pdf',), but found {wrong[0]!r}"
        )
    style()
    stem = Path(stem).expanduser()
    if stem.suffix[1:].isalpha():  # gain_0.05 has none
        raise ValueError(
            f"stem: expected a path without an ending, but found {stem.name!r}; formats chooses the endings"
        )
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"stem: the folder {stem.parent} cannot be made ({error.strerror})") from None
    title = stem.name.replace("_", " ")
    records = {
        "pdf": {"Title": title, "Subject": alt, "CreationDate": None},
        "svg": {"Title": title, "Description": alt, "Date": None},
        "png": {"Title": title, "Description": alt},
    }
    paths = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        figure.savefig(path, dpi=300, metadata=records[kind])
        paths.append(path)
    return paths


def _check_words(alt: str) -> None:
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(
            f"alt: expected words that stand for the figure where it cannot be seen, but found {alt!r}"
        )


def grid(count: int, columns: int = 3, height: float = 1.9, **kwargs: Any) -> tuple[Figure, list[Axes]]:
    """``count`` axes in rows of ``columns``; those left over are taken away."""
    style()
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(_WIDTH, height * rows), squeeze=False, **kwargs)
    for axis in axes.flat[count:]:
        axis.remove()
    return figure, list(axes.flat[:count])


def responses(plant: Plant, runs: Mapping[str, Trajectory], title: str = "") -> Figure:
    """Every state and input over time, one line a run, as deviations from the equilibrium.

    Args:
        plant: says names and units.
        runs: label → trajectory, ``xs [T+1, n]`` of one loop; or ``[S, T+1, n]`` of loops from S initial states,
            drawn as their median within bands that hold the middle 50 % and 90 % of them at each time.
        title: above the whole.
    """
    signals = [(s, "xs", i) for i, s in enumerate(plant.states)] + [
        (s, "us", i) for i, s in enumerate(plant.inputs)
    ]
    figure, axes = grid(len(signals), 3, 1.75, sharex=True)
    for axis, (signal, kind, i) in zip(axes, signals):
        for k, (label, run) in enumerate(runs.items()):
            values, ts = np.asarray(getattr(run, kind))[..., i], np.asarray(run.ts)
            colour = COLOURS.get(label, _CYCLE[k])
            look: dict[str, Any] = {"color": colour, "label": label, "ls": ("-", "--", ":", "-.")[k % 4]}
            step: Literal["post"] | None = "post" if kind == "us" else None
            if values.ndim > 1:
                for within, alpha in (((0.05, 0.95), 0.12), ((0.25, 0.75), 0.22)):
                    low, high = np.quantile(values, within, axis=0)
                    band: dict[str, Any] = {
                        "facecolor": to_rgba(colour, alpha),
                        "edgecolor": colour,
                        "lw": 0.5,
                    }
                    axis.fill_between(ts[: len(low)], low, high, step=step, ls=look["ls"], **band)
                values = np.median(values, axis=0)
            axis.plot(ts[: len(values)], values, drawstyle="steps-post" if step else "default", **look)
        axis.set_ylabel(signal.label.replace(" [", "\n["))
    for axis in axes[-3:]:
        axis.set_xlabel("time [s]")
        axis.xaxis.set_tick_params(labelbottom=True)
    if len(runs) > 1:  # beside the curves, not on them
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=8)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def draw(axis: Axes, shapes: drawing.Drawing) -> None:
    """Draw a plant's shapes on an axis of its own."""
    for k, shape in enumerate(shapes):
        colour = _INKS[shape.ink]
        order = 2 + 0.01 * k  # back to front, as they come: left alone, every line lies over every patch
        match shape:
            case drawing.Line(points, _, width, dashed):
                axis.plot(
                    *np.asarray(points, float).T,
                    color=colour,
                    lw=width * 0.7,
                    ls="--" if dashed else "-",
                    zorder=order,
                )
            case drawing.Box():
                filled = {"facecolor": colour if shape.filled else "none", "edgecolor": colour}
                axis.add_patch(Polygon(shape.outline(), closed=True, zorder=order, **filled))
            case drawing.Disc(centre, radius):
                filled = {"facecolor": colour if shape.filled else "none", "edgecolor": colour}
                axis.add_patch(
                    Circle(tuple(np.asarray(centre, float)), float(radius), zorder=order, **filled)
                )
            case drawing.Spring():
                axis.plot(*shape.outline().T, color=colour, lw=1.0, zorder=order)
            case drawing.Arrow(a, b):
                arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
                axis.annotate("", (b[0], b[1]), (a[0], a[1]), arrowprops=arrow, zorder=order)
            case drawing.Text(at, text):
                axis.text(
                    at[0], at[1], text, ha="center", va="center", fontsize=6.5, color=colour, zorder=order
                )


def poses(
    plant: Plant,
    run: Trajectory,
    count: int = 6,
    title: str = "",
    *,
    columns: int | None = None,
    pace: float = 2.0,
) -> Figure:
    """The plant drawn at ``count`` moments of a run (``xs [T+1, n]``), closer together while it moves.

    Args:
        plant, run: one plant and one loop, as deviations from its equilibrium.
        count: how many drawings.
        title: above the whole.
        columns: drawings in a row; all of them if left out.
        pace: moments are at (0 … 1)^pace of the run: evenly spaced at 1.
    """
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    xs, us, ts = np.asarray(run.xs) + x_eq, np.asarray(run.us) + u_eq, np.asarray(run.ts)
    moments = np.unique(np.round((len(ts) - 2) * np.linspace(0, 1, count) ** pace).astype(int))
    plain = jax.tree.map(float, plant)  # drawings are NumPy's: nothing is to be computed on a device
    drawn = [plain.draw(xs[t], us[t]) for t in moments]
    left, right, bottom, top = drawing.bounds(*drawn)
    columns = min(columns or len(moments), len(moments))
    height = _WIDTH / columns * (top - bottom) / (right - left)
    figure, axes = grid(len(moments), columns, min(max(height, 0.6), 2.4) + 0.3)
    for axis, shapes, t in zip(axes, drawn, moments):
        draw(axis, shapes)
        axis.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", title=f"{ts[t]:.2f} s")
        axis.set_axis_off()
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=10)
    return figure


def gaps(scores: Mapping[str, Mapping[str, Any]], title: str = "", floor: float = 1e-3) -> Figure:
    """Excess cost over the optimum for each family, one cloud a contender, on a logarithmic axis.

    Args:
        scores: contender → family → excess cost in percent, any shape; inf marks a destabilised loop and is
            drawn at the right edge, with the share of such loops.
        title: above the axis.
        floor: percent that everything below is drawn at.
    """
    style()
    families = list(next(iter(scores.values())))
    figure, axis = plt.subplots(figsize=(_WIDTH, 0.8 + 0.5 * len(families)))
    finite = [np.asarray(v, float).ravel() for by in scores.values() for v in by.values()]
    high = max((float(v[np.isfinite(v)].max(initial=floor)) for v in finite), default=1.0)
    edge = 10 ** (np.ceil(np.log10(max(high, 100.0))) + 0.5)
    rng = np.random.default_rng(0)
    for k, (label, by_family) in enumerate(scores.items()):
        colour = COLOURS.get(label, _CYCLE[k])
        for row, family in enumerate(families):
            values = np.asarray(by_family[family], float).ravel()
            lost = ~np.isfinite(values)
            y = row + 0.7 * ((k + 0.5) / len(scores) - 0.5)
            spread = 0.1 * (rng.random(values.size) - 0.5)
            shown = np.clip(np.where(lost, edge, values), floor, edge)
            axis.scatter(
                shown, y + spread, s=4, alpha=0.35, color=colour, lw=0, label=label if not row else None
            )
            if not lost.all():
                median = np.quantile(shown, 0.5, method="higher")
                axis.plot([median] * 2, [y - 0.14, y + 0.14], color=colour, lw=2.2)
            if lost.any():
                axis.text(
                    edge * 1.25, y, f"{100 * lost.mean():.0f}% lost", color=colour, va="center", fontsize=7
                )
    optimum: dict[str, Any] = {"color": COLOURS["optimal"], "lw": 3, "label": "optimum: 0, at the left edge"}
    axis.plot([floor * 0.8] * 2, [0, 1], transform=axis.get_xaxis_transform(), clip_on=False, **optimum)
    axis.set(xscale="log", xlim=(floor * 0.8, edge * 6), ylim=(len(families) - 0.4, -0.6))
    axis.set_xlabel("cost above the optimum [%]   (bar: median; right edge: destabilised)")
    axis.set_yticks(range(len(families)), [f.replace("_", " ") for f in families])
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8, markerscale=2.5)
    if title:
        axis.set_title(title, pad=24)
    return figure


def training(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Losses, closed-loop waste and learning rate over steps, from the rows of ``metrics.jsonl``."""
    figure, axes = grid(3, 3, 2.6)
    left, middle, right = axes
    steps = [row["step"] for row in rows]
    left.plot(
        steps, [row.get("imitation", row["loss"]) for row in rows], label="training", marker="o", ms=2.5
    )
    validation = [row["validation_loss"] for row in rows]
    left.plot(steps, validation, label="unseen variants", marker="s", ms=2.5)
    left.set(yscale="log", xlabel="step", ylabel="loss over windows [1]", title="Imitation")
    left.legend(fontsize=8)
    wasted = [100 * (1 - row["validation_efficiency"]) for row in rows]
    lost = [100 * row["validation_diverged"] for row in rows]
    middle.plot(steps, wasted, label="cost wasted", marker="s", ms=2.5, color=_CYCLE[1])
    middle.plot(steps, lost, label="loops lost", marker="^", ms=2.5, color=_CYCLE[3])
    middle.set_yscale("symlog", linthresh=0.01)
    middle.set(ylim=(0, None), xlabel="step", ylabel="share [%]", title="Unseen variants' loops")
    middle.legend(fontsize=8, loc="upper right")
    right.plot(steps, [row["learning_rate"] for row in rows], color=_CYCLE[2])
    right.set(xlabel="step", ylabel="learning rate [1]", title="Schedule", ylim=(0, None))
    return figure


def parity(optimal: Any, learned: Any, groups: Sequence[str], quantity: str) -> Figure:
    """Learned against optimal values, one colour a group; on the diagonal they agree.

    Args:
        optimal, learned: ``[V, k]`` or any shapes with the groups' axis first.
        groups: a label for each row.
        quantity: what it is, with its unit.
    """
    style()
    figure, axis = plt.subplots(figsize=(_WIDTH * 0.8, 4.2))
    optimal, learned = np.asarray(optimal), np.asarray(learned)
    names = list(dict.fromkeys(groups))
    markers = "osD^v<>ph*Xd"
    for k, name in enumerate(names):
        rows = np.array([g == name for g in groups])
        x, y = optimal[rows].ravel(), learned[rows].ravel()
        live = x != 0
        axis.scatter(
            x[live], y[live], s=9, alpha=0.6, lw=0, marker=markers[k % 12], color=_CYCLE[k % 8],
            label=name.replace("_", " "),
        )  # fmt: skip
    low, high = float(optimal.min()), float(optimal.max())
    axis.plot([low, high], [low, high], color="#333333", lw=0.8, zorder=0)
    axis.set(xlabel=f"optimal {quantity}", ylabel=f"learned {quantity}", aspect="equal")
    axis.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5), markerscale=1.6)
    return figure
