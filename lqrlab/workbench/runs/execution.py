"""One notebook, executed by papermill in a process of its own.

papermill changes the working directory of its process, and a kernel may crash it. The child holds on to a pipe: when
the parent ends, however it ends, the pipe closes and the child takes its kernel down with it. How far it came, and the
error of a cell, are read from the notebook that papermill writes.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lqrlab.compute.files import read_object
from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Cell, Notebook, Values
from lqrlab.workbench.runs.terminal import Progress

KERNEL = "python3"
TIME_LIMIT, STOPPED = "TimeLimit", "Stopped"
"""First word of the error of a notebook that took too long, and of one whose sweep was stopped."""
_NEVER_STARTED, _STARTS = "Kernel died before replying to kernel_info", 3
_PLAIN = ["--InteractiveShell.automagic=False"]  # else a cell of one line, run: str = "…", is the magic %run


class CellError(RuntimeError):
    """A notebook did not run to its end: the error in one line, the failing cell, the last lines of its traceback."""

    def __init__(self, error: str, source: str = "", traceback: str = "") -> None:
        super().__init__(error)
        self.error, self.source, self.traceback = error, source, traceback


def environment() -> dict[str, str]:
    """Environment variables of a headless notebook."""
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
    progress: Progress,
    *,
    time_limit: float | None = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> None:
    """Execute one notebook in a folder that is held, and make sure that it came to its end.

    ``fingerprint`` is filed with the result. Every second ``progress`` takes in the cell that runs, the heading that it
    stands under and the last line that it printed, and ``unwanted`` is called: when it says True, or after
    ``time_limit`` seconds, the notebook is ended.

    Raises:
        CellError: a cell failed, the kernel died, it was ended, papermill could not start, or the last cell wrote no
            result. ``notebooks/<name>.failed.ipynb`` is executed up to there.
    """
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed, partial = executed.with_suffix(".failed.ipynb"), executed.with_name(f".{nb.name}.partial.ipynb")
    executed.parent.mkdir(exist_ok=True)
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)  # so that a result is one of this execution
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    job = {"source": str(nb.path), "target": str(partial), "folder": str(folder), "parameters": given}
    env = environment() | {"LQRLAB_FINGERPRINT": fingerprint}

    def ended() -> str:
        number, title, printed = _at(partial)
        if number:
            progress.step(number, title or nb.name, printed)
        if time.monotonic() >= deadline:
            return f"{TIME_LIMIT}: not finished after {time_limit:g} s"
        return f"{STOPPED}: its sweep was stopped" if unwanted() else ""

    try:
        deadline = time.monotonic() + (time_limit or math.inf)
        for _ in range(_STARTS):
            partial.unlink(missing_ok=True)
            failure = _in_child(job, env, ended)
            if failure is None or _NEVER_STARTED not in failure:  # as when another process took the kernel's ports
                break
        if failure is not None:
            raise _explained(partial, failure)
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


def _in_child(job: Mapping[str, object], env: Mapping[str, str], ended: Callable[[], str]) -> str | None:
    """Do a job in a process: None, or why it was ``ended``, or what it said before it failed."""
    command, why, poll = [sys.executable, "-P", "-m", __name__], "", 0.1
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        # a session of its own: Ctrl-C reaches the parent alone, which then ends the child in order
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
        )
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code and log say why
                child.stdin.write(json.dumps(job).encode() + b"\n")
                child.stdin.flush()
            while not why and child.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(poll)
                why, poll = ended(), min(1.0, 1.5 * poll)
        finally:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()  # should it still run, it ends now, its kernel first
            code = child.wait()
            ended()  # the cell that it came to
        log.seek(0)
        said = log.read().strip() or f"the process that runs the notebook ended with code {code}"
        return why or (said if code else None)


def _cells(notebook: Path) -> list[Cell]:
    """The cells of a notebook that papermill writes; none while it does."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return read_object(notebook)["cells"]
    return []


def _at(notebook: Path) -> tuple[int, str, str]:
    """The number of the cell that runs, the heading that it stands under, and the last line that it printed."""
    number, title, printed, heading = 0, "", "", ""
    for cell in _cells(notebook):
        heading = [heading, *(text for _, text in notebooks.headings(cell))][-1]
        if cell["cell_type"] == "code" and cell["metadata"].get("papermill", {}).get("start_time"):
            lines = [line for out in cell["outputs"] for line in "".join(out.get("text", "")).splitlines()]
            number, title, printed = number + 1, heading, next((line for line in lines[::-1] if line.strip()), "")
    return number, title, printed.strip()


def _explained(notebook: Path, said: str) -> CellError:
    """The error of the cell that failed, else the last line that the process said."""
    lines = said.splitlines()
    error = re.sub(r"^[\w.]+\.(?=\w+:)", "", lines[-1])
    if error.startswith((TIME_LIMIT, STOPPED)):
        return CellError(error)
    for cell in _cells(notebook):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                error, trace = f"{output['ename']}: {output['evalue']}", "\n".join(output["traceback"])
                return CellError(error, notebooks.source(cell), "\n".join(trace.strip().splitlines()[-12:]))
    return CellError(error, traceback="\n".join(lines[-8:]))


def _end_with_parent() -> None:
    """Wait until the pipe to the parent closes, then end the kernel and this process."""
    import psutil

    while os.read(0, 1):  # not sys.stdin: its lock would be in the way when the interpreter ends
        pass
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(130)


def main() -> None:
    """Run the job on standard input."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # checks web addresses in a notebook's metadata, and takes a second to import
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    import papermill

    with run_folder.use(Path(job["folder"])):
        papermill.execute_notebook(
            job["source"],
            job["target"],
            job["parameters"],
            kernel_name=KERNEL,
            extra_arguments=_PLAIN,
            cwd=str(Path(job["source"]).parents[1]),
            progress_bar=False,
            autosave_cell_every=10,
        )


if __name__ == "__main__":
    main()
