"""Notebooks, executed one after another by papermill, each in a kernel of this Python.

The kernel holds the run's folder, and ends when the process that started it is gone. A notebook is finished when its
process ended well *and* the last cell of that very execution wrote its result file.
"""

import logging
import os
import signal
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import papermill
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines

from lqrlab.installation import typed
from lqrlab.workbench.runs import notebooks, run_folder, session
from lqrlab.workbench.runs.notebooks import Cell, Notebook, Step, Values
from lqrlab.workbench.runs.run_folder import Record, RunError, Status
from lqrlab.workbench.runs.terminal import clock, say

_PLAIN = "--InteractiveShell.automagic=False"  # else a cell of one line, run: str = "…", is the magic %run
_ENTER = "__import__('lqrlab.workbench.runs.run_folder', fromlist=['enter']).enter"
_STATUS: dict[str, Status] = {"TimeLimit": "timed out", "Stopped": "stopped", "DeadKernelError": "kernel died"}


def environment() -> dict[str, str]:
    """Environment variables of a headless notebook."""
    inline = "module://matplotlib_inline.backend_inline"
    return os.environ | {"LQRLAB_HEADLESS": "1", "MPLBACKEND": inline, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


class _Client(PapermillNotebookClient):
    heard: Callable[[str], object] = str  # is given what a running cell prints

    def process_message(self, msg: dict, *more: Any) -> Any:
        if msg["msg_type"] == "stream" and msg["content"]["name"] == "stdout":
            self.heard(msg["content"]["text"])
        return super().process_message(msg, *more)


def client(book: NotebookExecutionManager, **options: Any) -> _Client:
    """A client of nbclient, as papermill has it, for a new kernel of this Python, whatever else is installed."""
    made = _Client(book, kernel_name="python3", **options)
    made.create_kernel_manager().kernel_spec_manager.kernel_dirs = []
    return made


def execute(
    steps: Sequence[Step], folder: Path, about: Record, say: Callable[[str], None] = say, ended: Callable[[], str] = str
) -> None:
    """Execute what is not up to date in a folder that is held; its record, with ``about``, says how far that came.

    ``say`` gets a line for each heading; ``ended`` is asked every second: when it says why, the kernel is killed.
    A ``RunError`` says that a cell failed, the kernel died, it was ended, or the last cell wrote no result.
    """
    with run_folder.recording(folder / run_folder.RUN, about) as end:
        for step in steps:
            name = step.nb.name
            if run_folder.finished(folder, name, step.fingerprint):
                say(f"✓ {name}  finished before")
            elif problem := _executed(step, folder, say, ended):
                why, *details = problem
                error = f"{name} failed: {why}"
                end |= {"status": _STATUS.get(why.partition(":")[0], "failed"), "error": error}
                advice = "Fix the cause and run the same command again: finished notebooks are kept."
                executed = f"executed up to there: {typed(folder / 'notebooks' / f'{name}.failed.ipynb')}"
                raise RunError("\n".join([error, *details, executed, advice]))
            end["device"] = session.results(folder, name)["device"]
        end["status"] = "finished"


def _executed(step: Step, folder: Path, say: Callable[[str], None], ended: Callable[[], str]) -> list[str]:
    """Execute one notebook and file it; why it did not come to its end, in one line and in others, or nothing."""
    nb, executed = step.nb, folder / "notebooks" / f"{step.nb.name}.ipynb"
    failed, partial = executed.with_suffix(".failed.ipynb"), executed.with_name(f".{nb.name}.partial.ipynb")
    executed.parent.mkdir(exist_ok=True)
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)  # so that a result is one of this execution
    partial.unlink(missing_ok=True)
    given = {k: v for k, v in step.values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    env = environment() | {"LQRLAB_FINGERPRINT": step.fingerprint}
    begun, end = time.monotonic(), "interrupted"

    def told(mark: str, words: str) -> None:
        say(f"{mark} {nb.name}  {words}  ({clock(time.monotonic() - begun)})")

    try:
        problem = _run(nb, partial, given, env, told, ended)
        if not problem and session.fingerprint(folder, nb.name) != step.fingerprint:
            wrong = f"the notebook ended without writing {typed(result)}"
            problem = [wrong, "its last cell has to be session.finish(...)"]
        end = "failed" if problem else "finished"
    finally:
        if partial.exists():
            os.replace(partial, failed)
        if end == "finished":
            os.replace(failed, executed)
        else:
            result.unlink(missing_ok=True)
        told("✓" if end == "finished" else "✗", end)
    return problem


def _run(
    nb: Notebook, target: Path, given: Values, env: dict, told: Callable[[str, str], None], ended: Callable[[], str]
) -> list[str]:
    """Execute a notebook by an engine of papermill's; why it did not come to its end, and what it said, or nothing."""
    over, clients, spoken = threading.Event(), list[_Client](), [time.monotonic()]

    def begins(cell: Cell, cell_index: int) -> None:
        for _, title in notebooks.headings(cell):
            told(" ", title)

    def heard(text: str) -> None:
        if time.monotonic() - spoken[0] > 5 and text.strip():  # seconds
            spoken[0] = time.monotonic()
            told(" ", f"  {text.strip().splitlines()[-1][:140]}")

    def watch() -> None:
        while not over.wait(1.0):
            if clients and ended():
                return os.killpg(clients[-1].km.provisioner.pid, signal.SIGKILL)

    class OneNotebook(Engine):
        @classmethod
        def execute_managed_notebook(cls, book: NotebookExecutionManager, kernel_name: str, **_: Any) -> None:
            enter = f"--IPKernelApp.exec_lines={_ENTER}({given['run']!r}, {os.getpid()})"
            clients.append(client(book, extra_arguments=[_PLAIN, enter], on_cell_start=begins))
            clients[-1].heard = heard
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
            return [f"{error.ename}: {error.evalue}", shown]
        except RuntimeError as error:
            log.seek(0)
            return [ended() or f"{type(error).__name__}: {error}", _end(log.read())]
        except KeyboardInterrupt:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # else it tells of the cell that nobody waits for
            raise
        finally:
            over.set()
    return []


def _end(text: str) -> str:
    """The last lines of what a kernel said."""
    return textwrap.indent("\n".join(text.strip().splitlines()[-12:]), "  ")
