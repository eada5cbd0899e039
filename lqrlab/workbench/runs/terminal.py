"""What the command line shows: one line that moves on a terminal, sparse lines in a log, plain tables."""

import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def table(rows: Iterable[Sequence[Any]], header: Sequence[str] = (), *, wide: bool = True) -> str:
    """Rows as aligned columns, numbers to the right; cut to a person's terminal if not ``wide``."""
    body = [[_cell(v) for v in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in body) for i in range(len(body[0]))] if body else []
    lines = ([list(header)] if header else []) + body
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []

    def layout(line: list[str]) -> str:
        padded = (v.rjust(w) if right else v.ljust(w) for v, w, right in zip(line, widths, numeric))
        return "  ".join(padded).rstrip()

    shown = [layout(line) for line in lines]
    if header:
        shown.insert(1, "  ".join("-" * w for w in widths))
    if not wide and sys.stdout.isatty():  # into a file or a pipe goes all of it
        width = shutil.get_terminal_size().columns
        shown = [line if len(line) <= width else line[: width - 1] + "…" for line in shown]
    return "\n".join(shown)


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def clock(seconds: float) -> str:
    """Seconds as ``0:07`` or ``1:02:03``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


class Progress:
    """Shows how far one task is: rewrites one line on a terminal, in a log adds a line at each new step.

    Args:
        label: what is under way.
        total: number of steps.
        stream: where to; standard output by default.
        every: seconds between two lines of a log within one step.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None, every: float = 15.0) -> None:
        self.label, self.total, self.every = label, total, every
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.start = time.monotonic()
        self.step, self.title, self.note = 0, "", ""
        self._shown: tuple[str, str] = ("", "")
        self._last = 0.0

    def update(self, step: int | None = None, title: str | None = None, note: str | None = None) -> None:
        """Take in what is new (a new step clears the note) and show it where it is time to."""
        if step is not None:
            self.step, self.note = step, ""
        self.title = self.title if title is None else title
        self.note = self.note if note is None else note
        line = f"  {self.label}  {self.step:>2}/{self.total}  {self.title}"
        if self.note:
            line += f" · {self.note}"
        took = clock(time.monotonic() - self.start)
        if self.live:
            width = shutil.get_terminal_size().columns - len(took) - 3
            text = line if len(line) <= width else line[: width - 1] + "…"
            self._write(f"\r\x1b[2K{text.ljust(width)}  {took}")
        else:
            now = time.monotonic()
            new_title = self.title != self._shown[0]
            due = now - self._last >= self.every and (self.title, self.note) != self._shown
            if self.step and (new_title or due):
                self._write(f"{line}  ({took})\n")
                self._shown, self._last = (self.title, self.note), now

    def close(self, mark: str, text: str) -> None:
        """Leave one last line: a mark, the label, a text, the time taken."""
        clear = "\r\x1b[2K" if self.live else ""
        self._write(f"{clear}{mark} {self.label}  {text}  ({clock(time.monotonic() - self.start)})\n")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
