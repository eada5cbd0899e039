"""Output of the command line: plain lines of progress, aligned tables."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TextIO


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), *, wide: bool = True) -> str:
    """Rows as aligned columns, numbers to the right; cut to a person's terminal if not ``wide``."""
    body = [[f"{v:.6g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    lines = ([list(header)] if header else []) + body
    columns = [(max(map(len, column)), all(map(_is_number, column[bool(header) :]))) for column in zip(*lines)]
    if header:
        lines.insert(1, ["-" * width for width, _ in columns])
    shown = [
        "  ".join(v.rjust(w) if number else v.ljust(w) for v, (w, number) in zip(line, columns)).rstrip()
        for line in lines
    ]
    if not wide and sys.stdout.isatty():  # into a file or a pipe goes all of it
        width = shutil.get_terminal_size().columns
        shown = [line if len(line) <= width else line[: width - 1] + "…" for line in shown]
    return "\n".join(shown)


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return float(text) is not None
    return False


def cell(value: object) -> str:
    """A value of a table in a few digits."""
    if value is None or value != value:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """Seconds as ``0:07`` or ``1:02:03``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def say(text: str) -> None:
    """Write a line at once, into a log too."""
    print(text, flush=True)


class Progress:
    """Plain lines that say how far something is: one for each new step, one for each that ends.

    Within a step, and where nothing is new, the state is said again every ``interval`` seconds, so that a log is never
    silent for long.

    Args:
        stream: where to; standard output by default.
        interval: seconds between two lines within one step.
        even: whether steps take equally long: their rate then tells the time left.
    """

    def __init__(self, stream: TextIO | None = None, *, interval: float = 15.0, even: bool = False) -> None:
        self.stream, self.interval, self.even = stream or sys.stdout, interval, even
        self.title = self._name = ""
        self._note: Callable[[], str] = str
        self._step, self._total, self._begun = 0, 1, time.monotonic()
        self._said, self._ended = time.monotonic(), threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _break_silence(self) -> None:
        while not self._ended.wait(self.interval / 15):
            if self._name and time.monotonic() - self._said >= self.interval:
                self._say_state(pace=self.even)

    def say(self, text: str) -> None:
        """Write a line."""
        self._said = time.monotonic()
        self.stream.write(text + "\n")
        self.stream.flush()

    def begin(self, name: str, total: int, title: str = "") -> None:
        """Start with what has ``total`` steps; ``title`` says what happens before the first."""
        self._name, self._total, self._step, self._begun = name, total, 0, time.monotonic()
        self.title, self._note = title, str

    def step(self, number: int, title: str, note: Callable[[], str] = str) -> None:
        """Take in which step it is at, and who tells what there is to say of it; a line is due if its title is new."""
        new, self._step, self.title, self._note = title != self.title, number, title, note
        if new:
            self._say_state()

    def _say_state(self, pace: bool = False) -> None:
        took, note, left = time.monotonic() - self._begun, self._note(), ""
        words = f"{self.title} · {note}" if note else self.title
        if pace and self._step:
            rate = self._step / max(took, 1e-3)
            left = f", {rate:.3g}/s, {clock((self._total - self._step) / rate)} left"
        self.say(f"  {self._name}  {self._step:>2}/{self._total}  {words}  ({clock(took)}{left})")

    def end(self, mark: str, text: str) -> None:
        """Say how it ended: a mark, its name, a text, the time it took."""
        self.say(f"{mark} {self._name}  {text}  ({clock(time.monotonic() - self._begun)})")
        self._name = ""
