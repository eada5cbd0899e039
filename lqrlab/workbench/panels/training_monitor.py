"""The training monitor: loss and closed-loop score of a run while it trains, here or in another process."""

import contextlib
import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ipywidgets
import numpy as np

from lqrlab import learning
from lqrlab.workbench.figures import svg
from lqrlab.workbench.panels import live_panel
from lqrlab.workbench.runs.session import headless

_WIDTH, _TALL = 860.0, 190.0


def training_monitor(run: str | Path, *, every: float = 1.0) -> Any:
    """A panel that follows the training in a run's folder, whoever does it: this notebook, another, ``lqrlab run``.

    Where this notebook trains, hand it to the loop, ``learning.fit(…, progress=monitor.progress)``, so that the button
    is heard while the cell is running.

    Args:
        run: the run's folder, in which ``metrics.jsonl`` is or will be.
        every: seconds between two looks at the file.

    Returns:
        The :class:`Monitor`, to be displayed by the cell; without a person the curves as they are.
    """
    if headless():
        rows = read(Path(run))
        return picture(rows) if rows else ipywidgets.HTML(_waiting(Path(run)))
    return Monitor(run, every=every)


def read(run: Path) -> list[dict[str, Any]]:
    """The rows of ``metrics.jsonl``; a line that is still being written is left for the next time."""
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def _waiting(run: Path) -> str:
    return f"nothing to be seen yet: {run} has no metrics.jsonl with a row in it"


def picture(rows: Sequence[Mapping[str, Any]], total: int | None = None) -> svg.Picture:
    """Loss and closed-loop score over steps, with the words above it."""
    steps = np.array([row["step"] for row in rows], float)
    loss = np.array([row["loss"] for row in rows], float)
    waste = np.array([100 * (1 - row["validation_efficiency"]) for row in rows], float)
    lost = np.array([100 * row["validation_diverged"] for row in rows], float)
    wide = (_WIDTH - 10) / 2
    until = max(float(total or 0), float(steps[-1]), 1.0)
    seen = np.array([row["validation_loss"] for row in rows], float)
    imitation = np.array([row.get("imitation", row["loss"]) for row in rows], float)
    left = {"loss": loss, "its imitation": imitation, "imitation, unseen": seen}
    right = {"cost wasted": waste, "loops lost": lost}
    body = _logarithmic((0.0, 0.0, wide, _TALL), steps, until, left, "loss [1]")
    body += _logarithmic((wide + 10, 0.0, wide, _TALL), steps, until, right, "share [%]", floor=1e-3)
    best = int(np.argmin(waste))
    alt = f"Training and validation loss, and closed-loop waste, over {int(steps[-1])} steps"
    of = f" of {total}" if total else ""
    pace = rows[-1].get("windows_per_second", float("nan"))
    words = (
        f"Step {int(steps[-1]):,}{of}: loss {loss[-1]:.4g}; loops of unseen variants waste {waste[-1]:.3g} % of what "
        f"they pay, {lost[-1]:.3g} % are lost. Best so far: {waste[best]:.3g} % at step {int(steps[best]):,}, which is "
        f"kept. {pace:,.0f} windows/s."
    )
    return svg.Picture(svg.picture(body, _WIDTH, _TALL + 8, alt), alt, words)


def _logarithmic(
    at: tuple[float, float, float, float],
    steps: np.ndarray,
    until: float,
    curves: Mapping[str, np.ndarray],
    label: str,
    floor: float = 1e-12,
) -> str:
    """Curves over steps on a logarithmic axis; what is below ``floor`` is drawn there."""
    logs = {
        name: np.log10(np.maximum(np.nan_to_num(v, nan=floor, posinf=1e12), floor))
        for name, v in curves.items()
    }
    every = np.concatenate(list(logs.values()))
    low, high = float(np.floor(every.min())), float(np.ceil(every.max()))
    high = max(high, low + 1)
    x0, x1, y0, y1 = svg.frame(at)
    parts = []
    for k, values in enumerate(logs.values()):
        xs, ys = x0 + (x1 - x0) * steps / until, y1 - (y1 - y0) * (values - low) / (high - low)
        data = svg.curve(xs, ys) if len(xs) > 1 else f"M{xs[0]:.1f} {ys[0]:.1f}h2"
        parts.append(f'<path class="lq-curve lq-c{k}" stroke-dasharray="{svg.DASHES[k]}" d="{data}"/>')
    shown = [(name, k, svg.DASHES[k]) for k, name in enumerate(curves)]
    names = svg.legend(x0 + 8, y0 + 12, shown)
    return svg.axes(at, (0.0, until, "step"), (low, high, f"log10 of {label}")) + "".join(parts) + names


class Monitor(ipywidgets.VBox):
    """The panel; its parts are attributes.

    Attributes:
        picture, words: what came out.
        keep: the button that ends the training and keeps the best.
        live: the work; ``live.wait()`` until it is done.
    """

    def __init__(self, run: str | Path, *, every: float = 1.0) -> None:
        self._run, self._rows = Path(run), -1
        self.picture, self.words = ipywidgets.HTML(), ipywidgets.HTML()
        self.keep = ipywidgets.Button(
            description="stop and keep", icon="stop", tooltip="end the training, keep the best"
        )
        self.live = live_panel.Live(lambda rows, check: picture(rows, self._total()), self._show)
        super().__init__([self.live.bar, self.words, self.picture, self.keep])
        self.keep.on_click(lambda _: self._stop())
        self.words.value = _waiting(self._run)
        self._closed = threading.Event()
        self.look()
        threading.Thread(target=_follow, args=(weakref.ref(self), self._closed, every), daemon=True).start()

    def look(self) -> None:
        """Read the file again, and show what is new."""
        rows = read(self._run)
        if rows and len(rows) != self._rows:
            self._rows = len(rows)
            self.live.ask(rows)

    def progress(self, row: Mapping[str, Any]) -> None:
        """For ``learning.fit(…, progress=…)``: show the new row, and hear the button while the cell is running."""
        self.look()
        _hear()

    def close(self) -> None:
        """Follow the run no longer."""
        self._closed.set()
        super().close()

    def _total(self) -> int | None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return json.loads((self._run / "checkpoints" / "settings.json").read_text())["train"]["num_steps"]
        return None

    def _stop(self) -> None:
        try:
            learning.stop(self._run)
        except ValueError as error:
            self.live.say(live_panel.sentence(error))
            return
        self.keep.disabled = True
        self.keep.description = "stopping…"

    def _show(self, drawn: svg.Picture) -> None:
        self.picture.value, self.words.value = drawn.svg, drawn.words


def _follow(monitor: Any, closed: threading.Event, every: float) -> None:
    """Look again and again, as long as there is a panel."""
    while not closed.wait(every):
        panel = monitor()
        if panel is None:
            return
        with contextlib.suppress(OSError):  # the next look will do
            panel.look()
        del panel


def _hear() -> None:
    """Let the kernel handle what has been clicked since the cell began."""
    from IPython import get_ipython

    if hasattr(get_ipython(), "kernel"):
        import jupyter_ui_poll

        with jupyter_ui_poll.ui_events() as poll:
            poll(10)
