"""What the command line shows: tasks that move on a terminal, sparse lines in a log, plain tables."""

import contextlib
import dataclasses
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console, Group


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), *, wide: bool = True) -> str:
    """Rows as aligned columns, numbers to the right; cut to a person's terminal if not ``wide``."""
    body = [[f"{v:.6g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    lines = ([list(header)] if header else []) + body
    columns = [
        (max(map(len, column)), all(map(_is_number, column[bool(header) :]))) for column in zip(*lines)
    ]
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


def clock(seconds: float) -> str:
    """Seconds as ``0:07`` or ``1:02:03``."""
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


@dataclasses.dataclass
class Task:
    """How far one thing is that takes its time."""

    step: int = 0
    total: int = 1
    title: str = ""
    note: str = ""
    begun: float = dataclasses.field(default_factory=time.monotonic)
    logged: tuple[str, str] = ("", "")
    logged_at: float = 0.0

    @property
    def took(self) -> str:
        """The time since it began."""
        return clock(time.monotonic() - self.begun)

    @property
    def pace(self) -> str:
        """Steps a second since it began, and the time left at that pace."""
        rate = self.step / max(time.monotonic() - self.begun, 1e-3)
        return f", {rate:.3g}/s, {clock((self.total - self.step) / rate)} left" if self.step else ""

    @property
    def words(self) -> str:
        """Its step in words."""
        return f"{self.title} · {self.note}" if self.note else self.title


class Progress:
    """Shows how far tasks are: each a line that moves on a terminal, a line at each new step in a log.

    Args:
        stream: where to; standard output by default.
        steps: whether a log has a line for each step, or only what is said and what has ended.
        interval: seconds between two lines of a log within one step; where nothing is new, how far it is stands there.
        even: whether steps take equally long, so that their rate tells the time left.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        steps: bool = True,
        interval: float = 15.0,
        even: bool = False,
    ) -> None:
        self.stream, self.steps, self.interval, self.even = stream or sys.stdout, steps, interval, even
        self._said = time.monotonic()
        self.tasks: dict[str, Task] = {}
        self.head = ""  # a line above the tasks, on a terminal
        self._live = contextlib.ExitStack()
        self._console: Console | None = None

    def __enter__(self) -> Self:
        if self.stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._console = Console(file=self.stream, highlight=False)
            self._live.enter_context(Live(console=self._console, transient=True, get_renderable=self._moving))
        else:
            ended = threading.Event()
            self._live.callback(ended.set)
            threading.Thread(target=self._break_silence, args=(ended,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.close()
        self._console = None

    def _break_silence(self, ended: threading.Event) -> None:
        """A log in which nothing is new says how far things are."""
        while not ended.wait(self.interval / 15):
            if time.monotonic() - self._said < self.interval * 14 / 15:
                continue
            tasks = list(self.tasks.items())
            shown = [
                f"{name}  {task.step}/{task.total}  {task.words}  ({task.took}{task.pace * self.even})"
                for name, task in tasks[:3]
            ]
            more = [f"and {len(tasks) - 3} more"] * (len(tasks) > 3)
            if lines := [line for line in (self.head, *shown, *more) if line]:
                self.say("\n".join(f"  {line}" for line in lines))

    def say(self, text: str) -> None:
        """A line that stays."""
        self._said = time.monotonic()
        if self._console:
            self._console.print(text, markup=False, soft_wrap=True)
        else:
            self.stream.write(text + "\n")
            self.stream.flush()

    def update(
        self,
        name: str,
        step: int | None = None,
        title: str | None = None,
        note: str | None = None,
        total: int | None = None,
    ) -> None:
        """Take in what is new of a task (a new step clears the note) and show it where it is time to."""
        task = self.tasks.setdefault(name, Task())
        changes = {"step": step, "total": total, "title": title, "note": "" if step is not None else note}
        for key, value in changes.items():
            setattr(task, key, getattr(task, key) if value is None else value)
        now, news = time.monotonic(), (task.title, task.note)
        due = task.title != task.logged[0] or (now - task.logged_at >= self.interval and news != task.logged)
        if self._console is None and self.steps and task.step and due:
            task.logged, task.logged_at = news, now
            self.say(f"  {name}  {task.step:>2}/{task.total}  {task.words}  ({task.took})")

    def close(self, name: str, mark: str, text: str) -> None:
        """End a task with a line that stays: a mark, its name, a text, the time taken."""
        self.say(f"{mark} {name}  {text}  ({self.tasks.pop(name, Task()).took})")

    def _moving(self) -> "Group":
        """The tasks under way, as many as fit on the terminal."""
        from rich.console import Group
        from rich.table import Table

        grid = Table.grid(padding=(0, 2), expand=True)
        for options in ({"no_wrap": True}, {"justify": "right"}, {"ratio": 1, "no_wrap": True}, {}):
            grid.add_column(**options)
        for name, task in sorted(self.tasks.items())[: shutil.get_terminal_size().lines - 4]:
            grid.add_row(name, f"{task.step}/{task.total}", task.words, task.took)
        return Group(self.head, grid) if self.head else Group(grid)
