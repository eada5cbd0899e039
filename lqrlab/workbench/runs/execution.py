"""One notebook, executed by papermill in a kernel of this Python.

The kernel holds the run's folder for as long as it lives, and ends when the process that started it is gone: a run that
is killed leaves nobody behind who writes there.
"""

import logging
import os
import signal
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Cell, Notebook, Values
from lqrlab.workbench.runs.terminal import clock

_PLAIN = "--InteractiveShell.automagic=False"  # else a cell of one line, run: str = "…", is the magic %run
_ENTER = "__import__('lqrlab.workbench.runs.run_folder', fromlist=['enter']).enter"


class CellError(Exception):
    """A notebook did not run to its end: why, in one line, and the cell and the end of what it said."""


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
    nb: Notebook, folder: Path, values: Values, fingerprint: str, say: Callable[[str], None], ended: Callable[[], str]
) -> None:
    """Execute one notebook in a folder that is held, and make sure that it came to its end.

    ``fingerprint`` is filed with the result. ``say`` gets a line for each heading that is come to, and for the end.
    ``ended`` is asked every second; when it says why, the kernel is killed.

    Raises:
        CellError: a cell failed, the kernel died, it was ended, or the last cell wrote no result.
            ``notebooks/<name>.failed.ipynb`` is executed up to there.
    """
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed, partial = executed.with_suffix(".failed.ipynb"), executed.with_name(f".{nb.name}.partial.ipynb")
    executed.parent.mkdir(exist_ok=True)
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)  # so that a result is one of this execution
    partial.unlink(missing_ok=True)
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    env = environment() | {"LQRLAB_FINGERPRINT": fingerprint}
    begun = time.monotonic()

    def told(mark: str, words: str) -> None:
        say(f"{mark} {nb.name}  {words}  ({clock(time.monotonic() - begun)})")

    try:
        _run(nb, partial, given, env, told, ended)
        if session.fingerprint(folder, nb.name) != fingerprint:
            raise CellError(
                f"the notebook ended without writing {run_folder.short(result)}",
                "its last cell has to be session.finish(...)",
            )
    except (CellError, KeyboardInterrupt) as end:
        result.unlink(missing_ok=True)
        told("✗", "failed" if isinstance(end, CellError) else "interrupted")
        raise
    finally:
        if partial.exists():
            os.replace(partial, failed)
    os.replace(failed, executed)
    told("✓", "finished")


def _run(
    nb: Notebook, target: Path, given: Values, env: dict, told: Callable[[str, str], None], ended: Callable[[], str]
) -> None:
    """Execute a notebook by an engine of papermill's; a ``CellError`` says why it did not come to its end."""
    over, clients = threading.Event(), list[PapermillNotebookClient]()

    def begins(cell: Cell, cell_index: int) -> None:
        for _, title in notebooks.headings(cell):
            told(" ", title)

    def watch() -> None:
        while not over.wait(1.0):
            if clients and ended():
                return os.killpg(clients[-1].km.provisioner.pid, signal.SIGKILL)

    class OneNotebook(Engine):
        @classmethod
        def execute_managed_notebook(cls, book: NotebookExecutionManager, kernel_name: str, **_: Any) -> None:
            enter = f"--IPKernelApp.exec_lines={_ENTER}({given['run']!r}, {os.getpid()})"
            clients.append(client(book, extra_arguments=[_PLAIN, enter], on_cell_start=begins))
            clients[-1].execute(env=env, cwd=str(nb.path.parents[1]), stdout=log, stderr=log)

    papermill_engines.register("lqrlab", OneNotebook)
    threading.Thread(target=watch, daemon=True).start()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:  # of what the kernel says by itself
        try:
            papermill.execute_notebook(
                str(nb.path), str(target), given, "lqrlab", progress_bar=False, autosave_cell_every=10
            )
        except papermill.PapermillExecutionError as error:
            cell = textwrap.indent(error.source.strip("\n"), "  │ ", bool)
            shown = f"in the cell\n{cell}\nwith the traceback\n{_end(chr(10).join(error.traceback))}"
            raise CellError(f"{error.ename}: {error.evalue}", shown) from None
        except RuntimeError as error:
            log.seek(0)
            raise CellError(ended() or f"{type(error).__name__}: {error}", _end(log.read())) from None
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it tells of the cell that nobody waits for
            raise
        finally:
            over.set()


def _end(text: str) -> str:
    """The last lines of what a kernel said."""
    return textwrap.indent("\n".join(text.strip().splitlines()[-12:]), "  ")
