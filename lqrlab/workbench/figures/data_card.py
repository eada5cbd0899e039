"""A data set's card with its figures: what its loops cover, how fast its plants are, one loop of each family."""

import base64
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lqrlab import dataset
from lqrlab.workbench.figures import plots, svg

_OPEN, _CLOSED = "#D55E00", "#0072B2"


def left_out(data: dataset.Dataset) -> pd.DataFrame:
    """One row a family and reason: how many are missing and what that means; no row where nothing is."""
    rows = [
        {"plant": family, "missing": number, "why": dataset.card.REASONS[reason]}
        for family, reasons in data.left_out.items()
        for reason, number in reasons.items()
        if number
    ]
    return pd.DataFrame(rows, columns=["plant", "missing", "why"]).set_index("plant")


def _shards(data: dataset.Dataset) -> dict[str, int]:
    """The first file of each family that has trajectories."""
    found: dict[str, int] = {}
    for number, shard in enumerate(data.shards):
        if shard["trajectories"]:
            found.setdefault(shard["family"], number)
    return found


def coverage(data: dataset.Dataset) -> Figure:
    """Where the loops of each family go: quantiles of scaled states and inputs, at the start and at the end."""
    shown = _shards(data)
    figure, (left, right) = plots.grid(2, 2, 0.9 + 0.24 * len(shown), sharey=True)
    for row, number in enumerate(shown.values()):
        x, u = dataset.card.looked_at(data, number)
        steps, third = _steps(data, len(x)), max(data.config.num_steps // 3, 1)
        for axis, a in ((left, x), (right, u)):
            at = steps[:, : a.shape[1]]
            early, late = a[at < third], a[at > data.config.num_steps - third]
            for part, offset, colour in ((early, -0.17, _OPEN), (late, 0.17, _CLOSED)):
                if not part.size:  # of a thinned data set perhaps nothing so late is kept
                    continue
                low, first, last, high = np.quantile(part, (0.01, 0.25, 0.75, 0.99))
                axis.plot([low, high], [row + offset] * 2, color=colour, lw=1.2, solid_capstyle="butt")
                axis.plot([first, last], [row + offset] * 2, color=colour, lw=4.5, solid_capstyle="butt")
    for axis, what in ((left, "state"), (right, "input")):
        axis.set_xscale("symlog", linthresh=1.0, linscale=1.0)
        axis.set(xlabel=f"{what} / scale [1]", title=f"{what.capitalize()}s")
        axis.set_yticks(range(len(shown)), [name.replace("_", " ") for name in shown])
        axis.grid(axis="y", visible=False)
    left.invert_yaxis()
    left.plot([], [], color=_OPEN, lw=4.5, label="first third of a loop")
    left.plot([], [], color=_CLOSED, lw=4.5, label="last third")
    figure.legend(loc="outside lower left", ncols=2, fontsize=8)
    return figure


def _steps(data: dataset.Dataset, rows: int) -> np.ndarray:
    """The step of its trajectory that each state of the first rows of a file is at ``[rows, T+1]``."""
    return np.resize(data.config.starts, rows)[:, None] + np.arange(data.config.row_steps + 1)


def spectra(data: dataset.Dataset) -> Figure:
    """How fast the plants of each family are and how well damped: eigenvalues of A, and of A − BK sampled."""
    names = list(dict.fromkeys(s["family"] for s in data.shards if s["variants"]))
    figure, (left, right) = plots.grid(2, 2, 0.9 + 0.24 * len(names), sharey=True)
    for row, name in enumerate(names):
        A, dt = data.column("A", None, name), data.column("dt", None, name)
        slowest = np.linalg.eigvals(A).real.max(axis=1)
        fastest = np.abs(np.linalg.eigvals(A)).max(axis=1)
        closed = _slowest_closed(data, name)
        jitter = 0.28 * np.linspace(-1, 1, len(dt))
        left.plot(slowest, row + jitter, ".", ms=3, color=_OPEN, alpha=0.5, mew=0)
        right.plot(closed, row + jitter, ".", ms=3, color=_CLOSED, alpha=0.6, mew=0)
        plant = np.where(fastest > 0, 1 / np.maximum(fastest, 1e-12), np.nan)
        right.plot(plant, row + jitter, ".", ms=3, color="#7F7F7F", alpha=0.5, mew=0)
    left.axvline(0, color="#333333", lw=0.8)
    left.set_xscale("symlog", linthresh=0.1)
    left.set(xlabel="least stable real part, no control [1/s]", title="How unstable")
    right.set_xscale("log")
    right.set(xlabel="time constant [s]", title="How fast")
    left.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    for axis in (left, right):
        axis.grid(axis="y", visible=False)
    left.invert_yaxis()
    for colour, label in ((_CLOSED, "slowest mode of the optimal loop"), ("#7F7F7F", "fastest of the plant")):
        right.plot([], [], "o", ms=4, color=colour, label=label)
    figure.legend(loc="outside lower right", ncols=2, fontsize=8)
    return figure


def _slowest_closed(data: dataset.Dataset, name: str) -> np.ndarray:
    """Time constant [s] of the slowest mode of each variant's sampled optimal loop."""
    rows, d = data.rows(None, name), data.table(np.float64)
    A, B, K = (np.asarray(a)[rows] for a in (d.description.A, d.description.B, d.gain))
    radius = np.abs(np.linalg.eigvals(A - B @ K)).max(axis=1)
    return -data.column("dt", None, name) / np.log(np.clip(radius, 1e-12, 1 - 1e-12))


def examples(data: dataset.Dataset) -> Figure:
    """States of one loop of each family over time, in units of their scales."""
    shown = _shards(data)
    figure, axes = plots.grid(len(shown), 3, 1.5)
    for axis, (name, number) in zip(axes, shown.items()):
        x, _ = dataset.card.looked_at(data, number, len(data.config.starts))
        steps = np.pad(_steps(data, len(x)), [(0, 0), (0, 1)])
        x = np.pad(x, [(0, 0), (0, 1), (0, 0)], constant_values=np.nan)  # a gap between stretches
        axis.plot(float(data.tables[number]["dt"][0]) * steps.ravel(), x.reshape(-1, x.shape[2]), lw=1)
        axis.set(title=name.replace("_", " "))
    for axis in axes[::3]:
        axis.set_ylabel("state / scale [1]")
    for axis in axes[-3:]:
        axis.set_xlabel("time [s]")
    return figure


FIGURES = {
    coverage: "Range of scaled states and inputs of each family, in the first and the last third of its loops: "
    "thin from 1 to 99 %, thick the middle half",
    spectra: "Least stable real part of each plant without control (right of zero it is unstable), and time constants: "
    "slowest of its optimal loop, fastest of its own",
    examples: "States of one closed loop of each family over time, in units of their scales",
}
"""Each figure, and the words that stand for it."""


def write(data: dataset.Dataset) -> Path:
    """``card.html`` beside the manifest: the words of ``card.md`` and the figures, one file to open or mail."""
    from nbconvert.filters import markdown2html

    parts = [markdown2html(dataset.card.write(data))]
    for figure, alt in FIGURES.items():
        picture = base64.b64encode(plots.png(drawn := figure(data))).decode()
        plots.plt.close(drawn)
        image = f'<img alt="{alt}" src="data:image/png;base64,{picture}">'
        parts.append(f"<figure>{image}<figcaption>{alt}.</figcaption></figure>")
    head = f'<meta charset="utf-8"><title>Data card</title><style>{svg.stylesheet("data_card.css")}</style>'
    page = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'
    path = data.path / "card.html"
    path.write_text(page, encoding="utf-8")
    return path
