"""A data set's card with its figures: what its loops cover, how fast its plants are, one loop of each family."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lqrlab import control, dataset
from lqrlab.workbench.figures import plots, svg
from lqrlab.workbench.figures.safe_html import sanitise, write_page

_CLOSED, _OPEN, _, _PLANT = (light for light, _ in svg.CURVES[:4])


def _shards(data: dataset.Dataset) -> dict[str, int]:
    """The first file of each family that has trajectories."""
    made = [(shard["family"], number) for number, shard in enumerate(data.shards) if shard["trajectories"]]
    return {family: min(n for of, n in made if of == family) for family, _ in made}


def _rows(names: Iterable[str]) -> tuple[Figure, Axes, Axes]:
    """Two axes with a row for each family."""
    labels = [name.replace("_", " ") for name in names]
    figure, (left, right) = plots.grid(2, 2, 0.9 + 0.24 * len(labels), sharey=True)
    left.set_yticks(range(len(labels)), labels)
    left.set_ylim(len(labels) - 0.4, -0.6)
    for axis in (left, right):
        axis.grid(axis="y", visible=False)
    return figure, left, right


def coverage(data: dataset.Dataset) -> Figure:
    """Coverage of each family's loops: quantiles of scaled states and inputs, at the start and at the end."""
    shown = _shards(data)
    figure, left, right = _rows(shown)
    for row, number in enumerate(shown.values()):
        x, u = dataset.card.sample(data, number)
        steps, third = _steps(data, len(x)), max(data.config.num_steps // 3, 1)
        for axis, a in ((left, x), (right, u)):
            at = steps[:, : a.shape[1]]
            early, late = a[at < third], a[at > data.config.num_steps - third]
            for part, y, colour in ((early, row - 0.17, _OPEN), (late, row + 0.17, _CLOSED)):
                if part.size:  # if only segments were kept, perhaps none is so late
                    ends = np.quantile(part, (0.01, 0.99)), np.quantile(part, (0.25, 0.75))
                    for span, width in zip(ends, (1.2, 4.5)):
                        axis.plot(span, [y, y], color=colour, lw=width, solid_capstyle="butt")
    for axis, what in ((left, "state"), (right, "input")):
        axis.set_xscale("symlog", linthresh=1.0, linscale=1.0)
        axis.set(xlabel=f"{what} / scale [1]", title=f"{what.capitalize()}s")
    for colour, label in ((_OPEN, "first third of a loop"), (_CLOSED, "last third")):
        left.plot([], [], color=colour, lw=4.5, label=label)
    figure.legend(loc="outside lower left", ncols=2, fontsize=8)
    return figure


def _steps(data: dataset.Dataset, rows: int) -> Int[np.ndarray, "rows samples"]:
    """The step of its trajectory that each state of the first rows of a file is at."""
    return np.resize(data.config.starts, rows)[:, None] + np.arange(data.config.row_steps + 1)


def spectra(data: dataset.Dataset) -> Figure:
    """Speed and damping of each family's plants: eigenvalues of A, and of A − BK sampled."""
    names = list(dict.fromkeys(s["family"] for s in data.shards if s["variants"]))
    figure, left, right = _rows(names)
    look: dict[str, Any] = {"ls": "none", "marker": ".", "ms": 4.5, "mew": 0}
    for row, name in enumerate(names):
        A, B, K, dt = (data.column(key, None, name) for key in ("A", "B", "K", "dt"))
        F, G = map(np.asarray, control.c2d(A, B, dt))
        poles = np.linalg.eigvals(A)
        fastest = np.abs(poles).max(axis=1)
        y = row + 0.28 * np.linspace(-1, 1, len(dt))
        left.plot(poles.real.max(axis=1), y, color=_OPEN, alpha=0.5, **look)
        closed = control.settling_time(np.linalg.eigvals(F - G @ K), dt, within=np.exp(-1))
        right.plot(closed, y, color=_CLOSED, alpha=0.6, **look)
        plant = np.where(fastest > 0, 1 / np.maximum(fastest, 1e-12), np.nan)
        right.plot(plant, y, color=_PLANT, alpha=0.5, **look)
    left.axvline(0, color=plots.LINE, lw=0.8)
    left.set_xscale("symlog", linthresh=0.1)
    left.set(xlabel="least stable real part, no control [1/s]", title="Stability")
    right.set(xscale="log", xlabel="time constant [s]", title="Speed")
    for colour, label in ((_CLOSED, "slowest mode of the optimal loop"), (_PLANT, "fastest of the plant")):
        right.plot([], [], "o", ms=4, color=colour, label=label)
    figure.legend(loc="outside lower right", ncols=2, fontsize=8)
    return figure


def examples(data: dataset.Dataset) -> Figure:
    """States of one loop of each family over time, in units of their scales."""
    shown = _shards(data)
    figure, axes = plots.grid(len(shown), 3, 1.5)
    for axis, (name, number) in zip(axes, shown.items()):
        x, _ = dataset.card.sample(data, number, len(data.config.starts))
        steps = np.pad(_steps(data, len(x)), [(0, 0), (0, 1)])
        x = np.pad(x, [(0, 0), (0, 1), (0, 0)], constant_values=np.nan)  # a gap between segments
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


def write(data: dataset.Dataset, folder: Path | None = None) -> Path:
    """``card.html``, the words of ``card.md`` and the figures, in a folder, by default next to the manifest."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    words = MarkdownWithMath(renderer=IPythonRenderer(escape=True)).render(dataset.card.write(data))
    body = sanitise(words)  # the card names families and a controller: no tag in a name is one
    for figure, alt in FIGURES.items():
        image = f'<img alt="{alt}" src="data:image/png;base64,{plots.png(figure(data))}">'
        body += f"<figure>{image}<figcaption>{alt}.</figcaption></figure>"
    style = f"<style>{svg.stylesheet('data_card.css')}</style>"
    folder = folder or data.path
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(folder / "card.html", "Data card", body, style)
