"""The data browser: what a data set holds, trajectory by trajectory, beside the optimum of the same plant and start."""

import dataclasses
import html
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np

from lqrlab import control, dataset, systems
from lqrlab.dataset.store import SPLITS
from lqrlab.systems import Signal
from lqrlab.workbench.figures import animation, svg
from lqrlab.workbench.figures.design_card import pole_map
from lqrlab.workbench.panels import live_panel
from lqrlab.workbench.runs.session import headless

_WIDTH = 860.0
_EVERY = "all splits"
REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimum",
    "diverged": "trajectories that diverged",
    "saturated": "trajectories that stayed at their limits",
}


def data_browser(path: str | Path) -> Any:
    """A panel to leaf through a data set: family, split, variant, trajectory.

    Args:
        path: its folder.

    Returns:
        The :class:`Browser`, to be displayed by the cell; without a person the first trajectory.

    Raises:
        BadFile: it is no data set, or is damaged.
    """
    data = dataset.open(path)
    if headless():
        shelf = Shelf.of(data, data.config.families[0], None)
        return picture(shelf, 0, 0)
    return Browser(data)


@dataclasses.dataclass(frozen=True, eq=False)
class Shelf:
    """The trajectories of one family and split.

    Attributes:
        data: the data set.
        family, split: which; None for all splits.
        rows: rows of the data set's variants ``[V]``.
        runs: their trajectories.
        columns: A, B, Q, R, K, P and dt of the variants, by name ``[V, …]``.
        parameters: name → values ``[V]``.
        states, inputs: what the signals are called.
    """

    data: dataset.Dataset
    family: str
    split: str | None
    rows: np.ndarray
    runs: dataset.Recorded
    columns: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]
    states: tuple[Signal, ...]
    inputs: tuple[Signal, ...]

    @classmethod
    def of(cls, data: dataset.Dataset, family: str, split: str | None) -> "Shelf":
        """Read, and compare with the checksums."""
        columns = {name: data.column(name, split, family) for name in (*"ABQRKP", "dt")}
        names = data.tables[[s["family"] for s in data.shards].index(family)]
        parameters = {
            name.removeprefix("parameters/"): data.column(name, split, family)
            for name in names
            if name.startswith("parameters/")
        }
        if family in systems.names():
            states, inputs = systems.family(family).states, systems.family(family).inputs
        else:  # somebody's own plant, not registered here
            n, m = columns["B"].shape[1:]
            states = tuple(Signal(f"x{i + 1}", "1", 1.0) for i in range(n))
            inputs = tuple(Signal(f"u{i + 1}", "1", 1.0) for i in range(m))
        rows = data.rows(split, family)
        return cls(
            data, family, split, rows, data.trajectories(split, family), columns, parameters, states, inputs
        )

    def of_variant(self, variant: int) -> np.ndarray:
        """Numbers of a variant's trajectories in :attr:`runs`."""
        return np.flatnonzero(self.runs.variant == self.rows[variant])


def optimum(shelf: Shelf, variant: int, x0: np.ndarray, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """States and inputs of the variant's own optimum from x0 ``[n]``, exact between samples."""
    A, B, K, dt = (shelf.columns[name][variant] for name in ("A", "B", "K", "dt"))
    a, b = (np.asarray(M) for M in control.c2d(A, B, dt))
    xs, us = [x0], []
    for _ in range(num_steps):
        us.append(-K @ xs[-1])
        xs.append(a @ xs[-1] + b @ us[-1])
    return np.array(xs), np.array(us)


def picture(shelf: Shelf, variant: int, number: int, signal: int | None = None) -> svg.Picture:
    """One trajectory beside the optimum, the spectrum of a signal and the poles, with the words above them.

    Args:
        shelf: the family and split.
        variant: which of its plants.
        number: which of the variant's trajectories, or of their stretches.
        signal: whose spectrum: states first, then inputs; the first input if left out.

    Raises:
        ValueError: nothing was kept of this variant.
    """
    found = shelf.of_variant(variant)
    if not len(found):
        raise ValueError(
            f"{shelf.family}, variant {variant}: no trajectory of it was kept; {left_out(shelf.data, shelf.family)}"
        )
    at = found[min(number, len(found) - 1)]
    xs, us = np.asarray(shelf.runs.states[at], float), np.asarray(shelf.runs.controls[at], float)
    dt, P = float(shelf.columns["dt"][variant]), shelf.columns["P"][variant]
    best_xs, best_us = optimum(shelf, variant, np.asarray(shelf.runs.x0[at], float), len(us))
    ts = dt * np.arange(len(xs))
    runs = {"optimal": (ts, best_xs, best_us), "as recorded": (ts, xs, us)}
    shown = [(label, svg.colour(label, k), svg.DASHES[k]) for k, label in enumerate(runs)]
    signals = [(s, "xs", i) for i, s in enumerate(shelf.states)] + [
        (s, "us", i) for i, s in enumerate(shelf.inputs)
    ]
    traces, bottom = animation.charts(signals, runs, float(ts[-1]), (22, _WIDTH), columns=3)
    signal = len(shelf.states) if signal is None else signal
    A, B, K = (shelf.columns[name][variant] for name in "ABK")
    a, b = (np.asarray(M) for M in control.c2d(A, B, dt))
    poles = {"optimal": np.linalg.eigvals(a - b @ K), "no control": np.linalg.eigvals(a)}
    body = svg.legend(2, 14, shown) + traces
    body += _spectrum((0, bottom + 6, 540, 190), runs, signals[signal], dt)
    body += pole_map((560, bottom + 6, 300, 190), poles)
    x0, end = np.asarray(shelf.runs.x0[at], float), xs[-1]
    least, rest, paid = float(x0 @ P @ x0), float(end @ P @ end), float(shelf.runs.cost[at])
    row = shelf.rows[variant]
    split, name = str(shelf.data.variants.split[row]), int(shelf.data.variants.variant[row])
    around = ", ".join(
        f"{key.replace('_', ' ')} {values[variant]:.4g}" for key, values in shelf.parameters.items()
    )
    took = f"{ts[-1]:.3g} s"
    if shelf.data.config.keep_every > 1:
        took += f" from {dt * shelf.runs.start[at]:.3g} s on"
    excess = f"{100 * ((paid + rest) / least - 1):.3g} % above" if least > 0 else "not comparable with"
    words = (
        f"<b>{html.escape(shelf.family)}</b>, variant {name} ({split}): {html.escape(around)}.<br>"
        f"<b>Cost.</b> The optimum from this start is x0ᵀP x0 = {least:.4g}. Recorded: {paid:.4g} in {took}, "
        f"and {rest:.3g} still to be paid at the end: {excess} the optimum.<br>"
        f"<b>Left out.</b> {left_out(shelf.data, shelf.family)}"
    )
    alt = f"{shelf.family}: one recorded trajectory beside its optimum, the spectrum of a signal, poles"
    return svg.Picture(svg.picture(body, _WIDTH + 8, bottom + 204, alt), alt, words)


def left_out(data: dataset.Dataset, family: str) -> str:
    """What a family lacks, and why, in words."""
    missing = [f"{count:,} {REASONS.get(why, why)}" for why, count in data.left_out[family].items() if count]
    config = data.config
    whole = f"of {config.variants:,} variants × {config.trajectories:,} trajectories"
    return f"{', '.join(missing)}, {whole}." if missing else f"Nothing, {whole}."


def _spectrum(
    at: tuple[float, float, float, float],
    runs: Mapping[str, tuple],
    signal: tuple[Signal, str, int],
    dt: float,
) -> str:
    """Amplitudes of a signal over frequency, both logarithmic."""
    about, kind, index = signal
    curves = {}
    for label, (_, xs, us) in runs.items():
        values = (xs if kind == "xs" else us)[:, index]
        curves[label] = 2 * np.abs(np.fft.rfft(values))[1:] / len(values)
        frequencies = np.fft.rfftfreq(len(values), dt)[1:]
    if not len(frequencies):
        return ""
    logs = {label: np.log10(np.maximum(c, 1e-12)) for label, c in curves.items()}
    every = np.concatenate(list(logs.values()))
    high = math.ceil(every.max())
    low = max(math.floor(every.min()), high - 8)
    left, right = math.log10(frequencies[0]), math.log10(frequencies[-1])
    right = right if right > left else left + 1
    x0, x1, y0, y1 = svg.frame(at)
    across, up = (
        (left, right, "log10 of frequency [Hz]"),
        (low, high, f"log10 of spectrum of {about.name} [{about.unit}]"),
    )
    parts = [svg.axes(at, across, up)]
    for k, (label, values) in enumerate(logs.items()):
        xs = x0 + (x1 - x0) * (np.log10(frequencies) - left) / (right - left)
        ys = y1 - (y1 - y0) * (np.maximum(values, low) - low) / (high - low)
        data = svg.curve(xs, ys) if len(xs) > 1 else ""
        dashes = f' stroke-dasharray="{svg.DASHES[k]}"' if svg.DASHES[k] else ""
        parts.append(f'<path class="lq-curve lq-c{svg.colour(label, k)}"{dashes} d="{data}"/>')
    return "".join(parts)


class Browser(ipywidgets.VBox):
    """The panel; its parts are attributes.

    Attributes:
        family, split, variant, trajectory: what is looked at.
        signal: whose spectrum.
        picture, words: what came out.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(self, data: dataset.Dataset) -> None:
        self._data, self._quiet = data, False
        self._shelf: Shelf | None = None
        self.family = ipywidgets.Dropdown(
            options=list(data.config.families), description="family", **live_panel.WIDE
        )
        self.split = ipywidgets.Dropdown(options=[_EVERY], description="split", **live_panel.WIDE)
        self.variant = ipywidgets.IntSlider(0, 0, 0, description="variant", **live_panel.WIDE)
        row = "trajectory" if data.config.keep_every == 1 else "segment_length"
        self.trajectory = ipywidgets.IntSlider(0, 0, 0, description=row, **live_panel.WIDE)
        self.signal = ipywidgets.Dropdown(options=[("-", 0)], description="spectrum of", **live_panel.WIDE)
        self.picture, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        self.live = live_panel.Live(self._compute, self._show)
        first = ipywidgets.HBox([self.family, self.split, self.signal])
        second = ipywidgets.HBox([self.variant, self.trajectory])
        super().__init__([first, second, self.live.bar, self.words, self.picture])
        self.family.observe(lambda _: self._choose(), names="value")
        self.split.observe(lambda _: self._ask(fresh=True), names="value")
        for control_ in (self.variant, self.trajectory, self.signal):
            control_.observe(lambda _: self._ask(), names="value")
        self._choose()

    def _choose(self) -> None:
        """Take the chosen family's splits."""
        family = self.family.value
        there = [s for s in SPLITS if len(self._data.rows(s, family))]
        self._quiet = True
        self.split.options = [_EVERY, *there]
        self._quiet = False
        self._ask(fresh=True)

    def _ask(self, *, fresh: bool = False) -> None:
        if self._quiet:
            return
        split = None if self.split.value == _EVERY else self.split.value
        if fresh:
            self._quiet = True
            self.variant.value = self.trajectory.value = 0
            self.variant.max = max(len(self._data.rows(split, self.family.value)) - 1, 0)
            self.trajectory.max = self._data.config.trajectories * len(self._data.config.starts) - 1
            self._quiet = False
        signal = None if fresh else self.signal.value
        self.live.ask((self.family.value, split, self.variant.value, self.trajectory.value, signal))

    def _compute(self, asked: tuple, check: Any) -> tuple[svg.Picture, Shelf]:
        family, split, variant, number, signal = asked
        if self._shelf is None or (self._shelf.family, self._shelf.split) != (family, split):
            self._shelf = Shelf.of(self._data, family, split)
        check()
        return picture(self._shelf, variant, number, signal), self._shelf

    def _show(self, answer: tuple[svg.Picture, Shelf]) -> None:
        drawn, shelf = answer
        self.picture.value, self.words.value = drawn.svg, drawn.words
        names = [(s.name.replace("_", " "), i) for i, s in enumerate((*shelf.states, *shelf.inputs))]
        if [*self.signal.options] != names:
            self._quiet = True
            self.signal.options = names
            self.signal.value = len(shelf.states)
            self._quiet = False
