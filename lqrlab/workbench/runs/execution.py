"""One notebook, executed by papermill in a process of its own.

papermill changes the working directory of its whole process, and a kernel may crash it. The parent (:func:`execute`)
starts ``python -m lqrlab.workbench.runs.execution``, hands it a job as one line of JSON and reads events back, one line
of JSON each. The child holds on to the pipe: when the parent ends, however it ends, the pipe closes and the child takes
its kernel down with it.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from lqrlab.workbench.runs import run_folder, session
from lqrlab.workbench.runs.notebooks import Notebook, Values

KERNEL = "python3"
TIME_LIMIT, STOPPED = "TimeLimit", "Stopped"
"""First word of the error of a notebook that took too long, and of one whose result nobody waits for any more."""
_POLL = 1.0  # seconds between two looks whether it is still wanted
Event = dict[str, Any]
"""From the child: ``cell``, the number of the cell that starts; ``note``, a line that it prints; or ``error`` with
``source`` and ``traceback``."""
_PLAIN = ["--InteractiveShell.automagic=False"]  # else a cell of one line, run: str = "…", is the magic %run
_STARTS, _NEVER_STARTED = 3, "Kernel died before replying to kernel_info"


class CellError(RuntimeError):
    """A notebook did not run to its end: the error in one line, the failing cell, the last lines of its traceback."""

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
    nb: Notebook,
    folder: Path,
    values: Values,
    fingerprint: str,
    *,
    on_event: Callable[[Event], None] = lambda event: None,
    time_limit: float | None = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> None:
    """Execute one notebook in a folder that is held, and make sure that it came to its end.

    Args:
        nb, folder, values: notebook, folder and parameters.
        fingerprint: filed with the result.
        on_event: called with each event.
        time_limit: seconds after which the notebook is ended.
        unwanted: asked every second; the notebook is ended when it says True.

    Raises:
        CellError: a cell failed, the kernel died, the time was over, it was ended, papermill could not start, or the
            last cell wrote no result. ``notebooks/<name>.failed.ipynb`` is executed up to there.
    """
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed, partial = executed.with_suffix(".failed.ipynb"), executed.with_name(f".{nb.name}.partial.ipynb")
    executed.parent.mkdir(exist_ok=True)
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)  # so that a result is one of this execution
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    paths = {"source": nb.path, "target": partial, "cwd": nb.path.parent.parent, "folder": folder}
    job = {name: str(path) for name, path in paths.items()} | {"parameters": given}
    try:
        own = {"LQRLAB_FINGERPRINT": fingerprint}
        _in_child_that_starts(job, environment() | own, on_event, time_limit, unwanted)
        if session.fingerprint(folder, nb.name) != fingerprint:
            error = f"the notebook ended without writing {run_folder.short(result)}"
            raise CellError(error, traceback="its last cell has to be session.finish(...)")
    except CellError:
        result.unlink(missing_ok=True)
        raise
    finally:
        if partial.exists():
            os.replace(partial, failed)
    os.replace(failed, executed)


def _in_child_that_starts(job: Mapping[str, object], *args: Any) -> None:
    """:func:`_in_child`; again if its kernel never started, as when another process took the ports that it chose."""
    for _ in range(_STARTS - 1):
        try:
            return _in_child(job, *args)
        except CellError as error:
            if _NEVER_STARTED not in error.error:
                raise
    return _in_child(job, *args)


def _in_child(
    job: Mapping[str, object],
    env: Mapping[str, str],
    on_event: Callable[[Event], None],
    time_limit: float | None,
    unwanted: Callable[[], bool],
) -> None:
    failure = Event()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the child in order
        )
        assert child.stdin is not None
        assert child.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code and log say why
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        over, why = threading.Event(), list[str]()
        threading.Thread(target=_watch, args=(child.stdin, over, why, time_limit, unwanted), daemon=True).start()
        try:
            with child.stdout:
                for line in child.stdout:
                    event = json.loads(line)
                    if "error" in event:
                        failure = event
                    else:
                        on_event(event)
        finally:
            over.set()
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()  # should it still run, it ends now, its kernel first
            code = child.wait()
        if why:
            failure = {"error": why[0]}
        if failure or code:
            log.seek(0)
            error = failure.get("error") or f"the process that runs the notebook ended with code {code}"
            raise CellError(error, failure.get("source", ""), failure.get("traceback") or _tail(log.read(), 8))


def _watch(
    pipe: IO[str], over: threading.Event, why: list[str], time_limit: float | None, unwanted: Callable[[], bool]
) -> None:
    """End a child that is late or not wanted any more by closing the pipe to it, and say why."""
    deadline = time.monotonic() + (time_limit or math.inf)
    while not over.wait(min(_POLL, max(deadline - time.monotonic(), 0.0))):
        if time.monotonic() >= deadline:
            why.append(f"{TIME_LIMIT}: not finished after {time_limit:g} s")
        elif unwanted():
            why.append(f"{STOPPED}: its sweep was stopped")
        if why:
            return pipe.close()


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def _end_with_parent() -> None:
    """Wait until the pipe to the parent closes, then end the kernel and this process."""
    import psutil

    while os.read(0, 1):  # not sys.stdin: its lock would be in the way when the interpreter ends
        pass
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(130)


def main() -> int:
    """Run the job on standard input; events go to standard output, everything else to standard error."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(**event: object) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    def note(text: str) -> None:
        if lines := [line.strip() for line in text.splitlines() if line.strip()]:
            send(note=lines[-1])

    # checks web addresses in a notebook's metadata, and takes a second to import
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    import papermill
    from papermill.exceptions import PapermillExecutionError

    cells = iter(range(1, 1_000_000))
    try:
        with run_folder.use(Path(job["folder"])):
            papermill.execute_notebook(
                job["source"],
                job["target"],
                job["parameters"],
                kernel_name=KERNEL,
                extra_arguments=_PLAIN,
                cwd=job["cwd"],
                progress_bar=False,
                stdout_file=SimpleNamespace(write=note, flush=lambda: None),
                on_cell_execute=lambda **kwargs: send(cell=next(cells)),
            )
    except PapermillExecutionError as error:
        traceback = _tail("\n".join(error.traceback))
        send(error=f"{error.ename}: {error.evalue}", source=error.source, traceback=traceback)
        return 1
    except Exception as error:  # a dead kernel, a full disk: said in one line by the parent
        send(error=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
