"""Output of the command line: plain lines of progress, aligned tables."""

import datetime
import re
import shutil
import sys
from collections.abc import Iterable, Sequence

from lqrlab.workbench.figures import digits

_NUMBER = re.compile("[-+−.,0-9]+(·10[⁻⁰¹²³⁴-⁹]+)?|[-−]?(∞|inf)|nan|–").fullmatch


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = (), *, wide: bool = True) -> str:
    """Rows as aligned columns, numbers to the right; cut to a person's terminal if not ``wide``."""
    body = [[digits(v, 6) if isinstance(v, float) else str(v) for v in row] for row in rows]
    lines = ([list(header)] if header else []) + body
    columns = [(max(map(len, column)), all(map(_NUMBER, column[bool(header) :]))) for column in zip(*lines)]
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


def cell(value: object) -> str:
    """A value of a table in a few digits."""
    return "–" if value is None else digits(value, 4) if isinstance(value, float) else str(value)


def clock(seconds: float) -> str:
    """Seconds as ``0:00:07`` or ``1:02:03``."""
    return str(datetime.timedelta(seconds=int(seconds)))


def say(text: str) -> None:
    """Write a line at once, into a log too."""
    print(text, flush=True)
