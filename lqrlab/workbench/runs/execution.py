"""One notebook, executed by papermill in a process of its own.

The parent (:func:`execute`) starts ``python -m lqrlab.workbench.runs.execution``, hands it a job as one line of
JSON and reads events back, one line of JSON each. The child holds on to the pipe: when the parent ends,
however it ends, the pipe closes and the child takes its kernel down with it.
"""

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

KERNEL = "python3"
OVER_TIME = "TimeLimit"  # how the error of a notebook that took too long begins


class CellError(RuntimeError):
    """A notebook did not run to its end.

    Attributes:
        error: type and message in one line.
        source: the failing cell, where one is known.
        traceback: the last lines that tell why.
    """

    def __init__(self, error: str, source: str = "", traceback: str = "") -> None:
        super().__init__(error)
        self.error, self.source, self.traceback = error, source, traceback


def environment() -> dict[str, str]:
    """The environment of a notebook that runs with nobody there."""
    # First on Jupyter's path, so that the kernel `python3` is this environment's, whatever else is installed.
    ours = str(Path(sys.prefix) / "share" / "jupyter")
    paths = [ours, *filter(None, os.environ.get("JUPYTER_PATH", "").split(os.pathsep))]
    return os.environ | {
        "JUPYTER_PATH": os.pathsep.join(dict.fromkeys(paths)),
        "LQRLAB_HEADLESS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def execute(
    source: Path,
    target: Path,
    parameters: dict[str, Any],
    cwd: Path,
    *,
    env: dict[str, str] | None = None,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    pass_fds: Sequence[int] = (),
    time_limit: float | None = None,
) -> None:
    """Run ``source`` with ``parameters``, write the executed notebook to ``target``.

    Args:
        source, target: notebook files; ``target`` appears in one piece, also when a cell fails.
        parameters: what to inject, as Python values.
        cwd: working directory of the kernel.
        env: environment variables on top of :func:`environment`.
        on_event: called with ``{"cell": number}`` when a code cell starts, ``{"note": text}`` when it prints,
            and ``{}`` about once a second in between.
        pass_fds: file descriptors that stay open as long as the notebook runs (a lock).
        time_limit: seconds after which it is ended; None for no limit.

    Raises:
        CellError: a cell failed, the kernel died, the time was over, or papermill could not start.
    """
    partial = target.with_name(f".{target.name}.partial.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    job = {"source": str(source), "target": str(partial), "parameters": parameters, "cwd": str(cwd)}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment() | (env or {}),
            pass_fds=pass_fds,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the child in order
        )
        assert child.stdin is not None
        assert child.stdout is not None
        failure: dict[str, Any] = {}
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code and log say why
                child.stdin.write(json.dumps(job) + "\n")
                child.stdin.flush()
            for event in _events(child.stdout):
                if "error" in event:
                    failure = event
                else:
                    on_event(event)
                if time.monotonic() > deadline:
                    failure = {"error": f"{OVER_TIME}: not finished after {time_limit:g} s"}
                    break
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()  # should it still run, it ends now, its kernel first
            code = child.wait()
        if partial.exists():
            os.replace(partial, target)
        if failure or code:
            log.seek(0)
            tail = "\n".join(log.read().strip().splitlines()[-8:])
            error = failure.get("error") or f"the process that runs the notebook ended with code {code}"
            raise CellError(error, failure.get("source", ""), failure.get("traceback") or tail)


def _events(stream: IO[str]) -> Iterator[dict[str, Any]]:
    """The child's events as they come, and an empty one for each second without."""
    lines: queue.Queue[str | None] = queue.Queue()

    def pump() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1.0)
        except queue.Empty:
            yield {}
            continue
        if line is None:
            return
        yield json.loads(line)


# The child ----------------------------------------------------------------------------------------------


class _Notes:
    """Stands in for a file: what the notebook prints becomes events."""

    def __init__(self, send: Callable[..., None]) -> None:
        self.send = send

    def write(self, text: str) -> None:
        lines = [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if lines:
            self.send(note=lines[-1])

    def flush(self) -> None:
        pass


def _end_with_parent() -> None:
    """Wait until the pipe to the parent closes, then end the kernel and this process."""
    import psutil

    while os.read(0, 1):  # not sys.stdin: its lock would be in the way when the interpreter ends
        pass
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(130)


def _tail(traceback: str, lines: int = 12) -> str:
    return "\n".join(traceback.rstrip().splitlines()[-lines:])


def main() -> int:
    """Run the job on standard input; events go to standard output, everything else to standard error."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    events: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    import papermill
    from papermill.exceptions import PapermillExecutionError

    cells = iter(range(1, 1_000_000))
    try:
        papermill.execute_notebook(
            job["source"],
            job["target"],
            job["parameters"],
            kernel_name=KERNEL,
            cwd=job["cwd"],
            progress_bar=False,
            stdout_file=_Notes(send),
            on_cell_execute=lambda **kwargs: send(cell=next(cells)),
        )
    except PapermillExecutionError as error:
        send(
            error=f"{error.ename}: {error.evalue}",
            source=error.source,
            traceback=_tail("\n".join(error.traceback)),
        )
        return 1
    except Exception as error:  # a dead kernel, a full disk: said in one line by the parent
        send(error=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
