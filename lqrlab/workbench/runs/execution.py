"""One notebook, executed by papermill in a kernel of this Python.

The kernel holds the run's folder for as long as it lives, and ends when the process that started it is gone: a run that
is killed leaves nobody behind who writes there.
"""

import contextlib
import functools
import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import papermill
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Cell, Notebook, Values
from lqrlab.workbench.runs.terminal import Progress

_NEVER_STARTED, _STARTS = "Kernel died before replying", 3  # as when another process took its ports
_ENTER = "__import__('lqrlab.workbench.runs.run_folder', fromlist=['enter']).enter"


class CellError(Exception):
    """A notebook did not run to its end: the error in one line, the failing cell, the last lines of its traceback."""

    def __init__(self, error: str, source: str = "", traceback: str = "") -> None:
        super().__init__(error)
        self.error, self.source, self.traceback = error, source, "\n".join(traceback.strip().splitlines()[-12:])


def environment() -> dict[str, str]:
    """Environment variables of a headless notebook."""
    inline = "module://matplotlib_inline.backend_inline"
    return os.environ | {"LQRLAB_HEADLESS": "1", "MPLBACKEND": inline, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def client(book: NotebookExecutionManager, **options: Any) -> PapermillNotebookClient:
    """A client of nbclient, as papermill has it, for a new kernel of this Python, whatever else is installed."""
    made = PapermillNotebookClient(book, kernel_name="python3", **options)
    made.create_kernel_manager().kernel_spec_manager.kernel_dirs = []
    return made


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

    ``fingerprint`` is filed with the result. ``progress`` takes in each cell that runs, the heading that it stands
    under, and the last line that it printed. When ``unwanted()``, asked every second, or after ``time_limit`` seconds,
    the notebook is ended.

    Raises:
        CellError: a cell failed, the kernel died, it was ended, or the last cell wrote no result.
            ``notebooks/<name>.failed.ipynb`` is executed up to there.
    """
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed, partial = executed.with_suffix(".failed.ipynb"), executed.with_name(f".{nb.name}.partial.ipynb")
    executed.parent.mkdir(exist_ok=True)
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)  # so that a result is one of this execution
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    deadline = time.monotonic() + (time_limit or math.inf)

    def ended() -> str:
        if time.monotonic() >= deadline:
            return f"TimeLimit: not finished after {time_limit:g} s"
        return "Stopped: its sweep was stopped" if unwanted() else ""

    try:
        partial.unlink(missing_ok=True)
        with _engine(nb, folder, fingerprint, progress, ended):
            for left in reversed(range(_STARTS)):
                try:
                    papermill.execute_notebook(
                        str(nb.path), str(partial), given, "lqrlab", progress_bar=False, autosave_cell_every=10
                    )
                    break
                except RuntimeError as error:
                    if not left or _NEVER_STARTED not in str(error):
                        raise
        if session.fingerprint(folder, nb.name) != fingerprint:
            lacks = f"the notebook ended without writing {run_folder.short(result)}"
            raise CellError(lacks, traceback="its last cell has to be session.finish(...)")
    except CellError:
        result.unlink(missing_ok=True)
        raise
    finally:
        if partial.exists():
            os.replace(partial, failed)
    os.replace(failed, executed)


@contextlib.contextmanager
def _engine(
    nb: Notebook, folder: Path, fingerprint: str, progress: Progress, ended: Callable[[], str]
) -> Iterator[None]:
    """papermill's engine ``lqrlab``, for a run in ``folder``; the kernel is killed when ``ended`` says why.

    A ``CellError`` says that, or why else the notebook did not come to its end.
    """
    over, running = threading.Event(), list[PapermillNotebookClient]()
    started = {"env": environment() | {"LQRLAB_FINGERPRINT": fingerprint}, "cwd": str(nb.path.parents[1])}
    number, title = 0, nb.name

    def begins(cell: Cell, cell_index: int) -> None:
        nonlocal number, title
        title = [title, *(text for _, text in notebooks.headings(cell))][-1]
        if cell["cell_type"] == "code" and notebooks.source(cell).strip():
            number += 1
            progress.step(number, title, functools.partial(_last_line, cell))

    def watch() -> None:
        while not over.wait(1.0):
            if running and ended():
                return os.killpg(running[-1].km.provisioner.pid, signal.SIGKILL)

    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:  # of what the kernel says by itself
        options = [
            "--InteractiveShell.automagic=False",  # else a cell of one line, run: str = "…", is the magic %run
            f"--IPKernelApp.exec_lines={_ENTER}({str(folder)!r}, {os.getpid()})",
        ]

        class OneNotebook(Engine):
            @classmethod
            def execute_managed_notebook(cls, book: NotebookExecutionManager, kernel_name: str, **_: Any) -> None:
                running.append(client(book, extra_arguments=options, on_cell_start=begins))
                running[-1].execute(**started, stdout=log, stderr=log)

        papermill_engines.register("lqrlab", OneNotebook)
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except papermill.PapermillExecutionError as error:
            what = f"{error.ename}: {error.evalue}"
            raise CellError(what, error.source, "\n".join(error.traceback)) from None
        except RuntimeError as error:
            log.seek(0)
            why = ended()
            raise CellError(why or f"{type(error).__name__}: {error}", traceback="" if why else log.read()) from None
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it tells of the cell that nobody waits for
            raise
        finally:
            over.set()


def _last_line(cell: Cell) -> str:
    """The last line that a cell printed so far."""
    lines = [line.strip() for out in cell["outputs"] for line in "".join(out.get("text", "")).splitlines()]
    return next(filter(None, reversed(lines)), "")
