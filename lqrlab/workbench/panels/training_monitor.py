"""The training monitor: loss and closed-loop score of a run while it trains, here or in another process."""

import contextlib
import dataclasses
import html
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets

from lqrlab import learning
from lqrlab.compute.files import read_object, read_rows
from lqrlab.learning.fitting import METRICS
from lqrlab.workbench.figures import charts, digits, svg, tables
from lqrlab.workbench.figures.svg import Picture
from lqrlab.workbench.panels.live_panel import Check
from lqrlab.workbench.panels.panel import Panel
from lqrlab.workbench.runs.session import headless

_WIDTH, _TALL, _MOST_STEPS = 860.0, 260.0, 1e15
_SHOWN = ("step", "loss", "validation_loss", "validation_efficiency", "validation_diverged", "windows_per_second")
_CHARTS = (  # label, floor, name → column
    ("loss [1]", 1e-12, {"loss": "loss", "imitation": "imitation", "imitation, unseen variants": "validation"}),
    ("share [%]", 1e-3, {name: f"{name} [%]" for name in ("1 − efficiency", "loops diverged")}),
)
Row = dict[str, Any]
"""A line of ``metrics.jsonl``."""


def training_monitor(run: str | Path, *, interval: float = 1.0) -> "Monitor | Picture | ipywidgets.HTML":
    """A panel that follows the training in a run's folder, whoever does it; it looks each ``interval`` seconds.

    A notebook that trains hands it on, ``learning.fit(…, progress=monitor.progress)``: the button is then heard while
    the cell is running. Without a person it is the curves as they are.
    """
    if not headless():
        return Monitor(run, interval=interval)
    rows = read(Path(run))
    return dataclasses.replace(picture(rows), note=Monitor.note()) if rows else ipywidgets.HTML(_waiting(Path(run)))


def read(run: Path) -> list[Row]:
    """The rows of a run's metrics, of a step the last; a line that is still being written is left for the next time."""
    found = [
        row for row in read_rows(run / METRICS) if row and all(isinstance(row.get(n), int | float) for n in _SHOWN)
    ]
    return [*{row["step"]: row for row in found if abs(row["step"]) < _MOST_STEPS}.values()]


def _waiting(run: Path) -> str:
    return f"nothing to be seen yet: {html.escape(str(run))} has no metrics.jsonl with a row in it"


def picture(rows: Sequence[Row], total: int | None = None) -> Picture:
    """Loss and closed-loop score over steps, with the words above it."""
    log = tables.training(rows).dropna(axis="columns", how="all")  # a loss without imitation has no such part
    last, best = log.iloc[-1], log.loc[log["1 − efficiency [%]"].idxmin()]
    x, wide, body = (0.0, max(float(total or 0), last["step"], 1.0)), (_WIDTH - 20) / 2, ""
    for k, (label, floor, columns) in enumerate(_CHARTS):
        at, curves = (k * (wide + 10), 0.0, wide, _TALL), {n: log[c].to_numpy() for n, c in columns.items() if c in log}
        body += charts.logarithmic(at, log["step"].to_numpy(), curves, ("step", label), x=x, floor=floor)
    alt = f"Training and validation loss, and 1 − efficiency of closed loops, over {last['step']:.0f} steps"
    now, most = (100 - row["1 − efficiency [%]"] for row in (last, best))
    words = (
        f"Step {last['step']:,.0f}{f' of {total}' if total else ''}: loss {digits(last['loss'], 4)}; loops of unseen "
        f"variants have efficiency {digits(now, 5)} %, {digits(last['loops diverged [%]'])} % diverge. "
        f"Best so far: {digits(most, 5)} % at step {best['step']:,.0f}, which is kept. "
        f"{rows[-1]['windows_per_second']:,.0f} windows/s."
    )
    return Picture(svg.document(body, _WIDTH, _TALL + 8, alt), alt, words)


class Monitor(Panel[list[Row], Picture]):
    """The panel; its button ``keep`` ends the training and keeps the best."""

    does = "follows the training while it runs; a button ends it and keeps the best"
    first = "as soon as metrics.jsonl has a row"

    def __init__(self, run: str | Path, *, interval: float = 1.0) -> None:
        self._run, self._rows = Path(run), 0
        tooltip = "end the training, keep the best"
        self.keep = ipywidgets.Button(description="stop and keep", icon="stop", tooltip=tooltip)
        self.keep.on_click(self._guarded(self._stop))
        super().__init__([], beneath=[self.keep], call=("training_monitor", {"run": self._run}))
        self.reset.layout.display = "none"  # it has nothing to be moved
        self.words.value = _waiting(self._run)
        self._closed = threading.Event()
        self._guarded(self.look)()
        threading.Thread(target=_follow, args=(weakref.ref(self), self._closed, interval), daemon=True).start()

    def look(self) -> None:
        """Read the file again, and show what is new."""
        try:
            rows = read(self._run)
        except OSError:  # the next look will do
            return
        if len(rows) != self._rows:
            anew, self._rows = len(rows) < self._rows, len(rows)
            self._button(rows, anew)
            self.live.ask(rows)

    def progress(self, row: Row) -> None:
        """For ``learning.fit(…, progress=…)``: show the new row, and hear the button while the cell is running."""
        self.look()
        _hear()

    def close(self) -> None:
        """Follow the run no longer."""
        self._closed.set()
        super().close()

    def _compute(self, question: list[Row], check: Check) -> Picture:
        return picture(question, self._total())

    def _total(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return int(read_object(self._run / "checkpoints" / "settings.json")["train"]["num_steps"])
        return None

    def _button(self, rows: list[Row], anew: bool) -> None:
        """A training that was told to stop reports once more, and has stopped; one begun anew can be stopped again."""
        stopping, total = self.keep.disabled and not anew, self._total()
        finished = bool(rows and total) and rows[-1]["step"] >= total
        self.keep.disabled = stopping or finished
        words = "stopped, best kept" if stopping else "finished" if finished else "stop and keep"
        self.keep.description, self.keep.icon = words, "check" if self.keep.disabled else "stop"

    def _stop(self) -> None:
        self.look()
        learning.stop(self._run)
        if not self.keep.disabled:
            self.keep.disabled, self.keep.description = True, "stopping…"


def _follow(monitor: "weakref.ref[Monitor]", closed: threading.Event, interval: float) -> None:
    """Look again and again, as long as there is a panel."""
    while not closed.wait(interval):
        panel = monitor()
        if panel is None:
            return
        panel._guarded(panel.look)()
        del panel


def _hear() -> None:
    """Let the kernel handle what has been clicked since the cell began."""
    from IPython import get_ipython

    if hasattr(get_ipython(), "kernel"):
        import jupyter_ui_poll

        with jupyter_ui_poll.ui_events() as poll:
            poll(10)
