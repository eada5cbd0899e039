"""What a sweep shows while it works: a table that is redrawn on a terminal, a line for each event in a log."""

import collections
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from lqrlab.workbench.runs.terminal import clock, table

MARKS = {"finished": "✓", "stopped": "■"}


class Board:
    """Takes in what happens to the runs of a sweep and shows it.

    Args:
        stream: where to; standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty()
        self.total = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.names: set[str] = set()
        self.running: dict[str, dict[str, Any]] = {}
        self._height, self._drawn = 0, 0.0
        self._start = time.monotonic()
        self._lock = threading.Lock()  # events come in on dask's thread

    def say(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._wipe()
            self.stream.write(text + "\n")
            self.stream.flush()

    def begin(self, names: Iterable[str], total: int, finished: int) -> None:
        """The runs that are to be done, out of so many."""
        self.names, self.total = set(names), total
        self.counts["finished before"] = finished

    def tell(self, event: Mapping[str, Any]) -> None:
        """Progress of one run, from its worker."""
        with self._lock:
            if event["run"] in self.names:  # a scheduler keeps what earlier sweeps said
                row = self.running.setdefault(event["run"], {"since": time.monotonic()})
                row.update({"note": ""}, **event)

    def settle(self, name: str, record: Mapping[str, Any], again: bool) -> None:
        """One run has ended, as its folder says; or is to be tried again."""
        status, error = record.get("status", "worker lost"), record.get("error")
        took = clock(record["seconds"]) if "seconds" in record else ""
        with self._lock:
            self.running.pop(name, None)
        if not again:
            self.names.discard(name)
            self.counts[status] += 1
        text = f"{'↻' if again else MARKS.get(status, '✗')} {name}  {status}"
        text += (f": {error}" if error else "") + (f"  ({took})" if took else "")
        self.say(text + ("; tried again" if again else ""))

    def draw(self) -> None:
        """Show the runs under way anew, twice a second on a terminal."""
        if not self.live or time.monotonic() - self._drawn < 0.5:
            return
        width, height = shutil.get_terminal_size()
        with self._lock:
            rows = [
                (name, f"{r.get('step', 0)}/{r.get('of', '?')}", clock(time.monotonic() - r["since"]),
                 r.get("note") or r.get("title", ""))
                for name, r in sorted(self.running.items())
            ]  # fmt: skip
            lines = [self._counted(), *table(rows[: height - 4]).splitlines()] if rows else [self._counted()]
            self._wipe()
            self.stream.write("".join(line[: width - 1] + "\n" for line in lines))
            self.stream.flush()
            self._height, self._drawn = len(lines), time.monotonic()

    def _counted(self) -> str:
        left = self.total - sum(self.counts.values()) - len(self.running)
        parts = [f"{n} {status}" for status, n in self.counts.items() if n]
        parts += [f"{len(self.running)} running", f"{left} waiting"]
        return " · ".join(parts) + f"  ({clock(time.monotonic() - self._start)})"

    def _wipe(self) -> None:
        if self._height:
            self.stream.write(f"\x1b[{self._height}A\x1b[J")
            self._height = 0

    def close(self) -> None:
        """Take the moving part away."""
        with self._lock:
            self._wipe()
            self.live = False

    def summary(self, frame: Any) -> str:
        """The results as they fit on a terminal: what differs between the runs, and their first numbers."""
        drop = ["run", "device", "error"]
        shown = frame[
            [c for c in frame if c not in drop and (c == "status" or frame[c].astype(str).nunique() > 1)]
        ]
        cells = [["" if v is None or v != v else v for v in row] for row in shown.astype(object).where(
            shown.notna(), None).itertuples(index=False)]  # fmt: skip
        width = shutil.get_terminal_size().columns
        text = table(cells[:40], list(shown.columns))
        more = f"\n… and {len(frame) - 40} more" if len(frame) > 40 else ""
        return "\n".join(line[:width] for line in text.splitlines()) + more
