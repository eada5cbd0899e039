"""The main job: notebooks one after another, each handing the next files in one run folder.

Inside a notebook, :func:`begin` and :func:`finish` frame the work. From outside, :func:`run` checks all
parameters, executes what is not finished yet, and writes the report. A notebook is finished when its process
ended well *and* the last cell of that very execution wrote its result file.
"""

import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import lqrlab
from lqrlab.workbench.runs import execution, notebooks, session
from lqrlab.workbench.runs.session import begin, finish, headless, results, versions, write_json
from lqrlab.workbench.runs.terminal import Progress, clock

__all__ = [
    "RunError",
    "begin",
    "clear",
    "commit",
    "execute",
    "find_source",
    "finish",
    "finished",
    "headless",
    "hold",
    "read_profile",
    "results",
    "run",
    "versions",
    "write_json",
]

PRODUCTS = (
    "notebooks",
    "figures",
    "dataset",
    "checkpoints",
    "metrics.jsonl",
    "results",
    "report",
    "run.json",
)


class RunError(RuntimeError):
    """A run that stopped at a notebook; the message says where, why and what to do next."""


def run(
    profile: str = "quick",
    folder: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    only: Sequence[str] = (),
    source: str | Path | None = None,
    fresh: bool = False,
    report: bool = True,
    stream: TextIO | None = None,
) -> Path:
    """Execute the notebooks in order, each unless its result is there and up to date, then write the report.

    Args:
        profile: name of a file in ``notebooks/profiles`` that sets parameters: notebook → parameter → value.
        folder: what the run reads and writes; ``data/runs/<profile>`` in the project's folder by default.
        overrides: ``"03_training.learning_rate"``, or ``"learning_rate"`` for every notebook that has it →
            value, as Python value or as typed on a command line.
        only: names or paths of the notebooks to execute, of the main job or of those numbered from 10; the whole
            main job if left out. What they read from others is to be there already.
        source: the folder of the notebooks.
        fresh: remove what an earlier run left in ``folder``, and start anew.
        report: write ``<folder>/report``.
        stream: where progress is shown.

    Returns:
        The run's folder.

    Raises:
        ValueError: a parameter, profile or notebook is not right (nothing was started), or another run holds
            the folder.
        RunError: a notebook failed; those before it are kept.
    """
    stream = stream or sys.stdout
    source = find_source(source)
    chain = notebooks.find(source)
    chosen = notebooks.named(source, only)
    chain += [nb for nb in chosen if nb.name not in {other.name for other in chain}]
    given = read_profile(source, profile)
    deeper = {path.stem for path in source.glob("[1-9][0-9]_*.ipynb")} - {nb.name for nb in chain}
    values = notebooks.effective(chain, {k: v for k, v in given.items() if k not in deeper}, overrides or {})
    fingerprints = notebooks.fingerprints(chain, values)
    if chosen:
        chain = [nb for nb in chain if nb.name in {other.name for other in chosen}]
    folder = Path(folder).expanduser() if folder else source.parent / "data" / "runs" / profile
    folder = folder.resolve()
    with hold(folder) as lock:
        what = f"{len(chain)} notebooks" if len(chain) > 1 else chain[0].name
        print(f"lqrlab run · profile {profile} · {what} → {_short(folder)}", file=stream, flush=True)
        if fresh:
            clear(folder)
        record = {
            "profile": profile,
            "parameters": _parameters(folder, chosen)
            | {nb.name: {k: v for k, v in values[nb.name].items() if k != "run"} for nb in chain},
            "versions": session.versions(),
            "commit": commit(source),
            "platform": platform.platform(),
            "started": session.now(),
            "status": "running",
        }
        session.write_json(folder / "run.json", record)
        begun = time.monotonic()
        try:
            for nb in chain:
                if finished(folder, nb.name, fingerprints[nb.name]):
                    print(f"✓ {nb.name}  finished before", file=stream, flush=True)
                else:
                    _execute(nb, folder, values[nb.name], fingerprints[nb.name], lock, stream)
            record["status"] = "finished"
        except BaseException as error:
            record["status"] = "stopped" if isinstance(error, KeyboardInterrupt) else f"failed at {nb.name}"
            raise
        finally:
            done = [
                session.results(folder, nb.name)
                for nb in chain
                if session.result_path(folder, nb.name).exists()
            ]
            record |= {"ended": session.now(), "device": done[-1]["device"] if done else None}
            session.write_json(folder / "run.json", record)
        print(f"finished in {clock(time.monotonic() - begun)}", file=stream, flush=True)
        if report:
            from lqrlab.workbench.runs import report as reports

            print(f"report: {_short(reports.write(folder))}", file=stream, flush=True)
    return folder


def _parameters(folder: Path, chosen: Sequence[notebooks.Notebook]) -> dict[str, Any]:
    """What the other notebooks of the folder ran with, where only some are executed now."""
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))["parameters"] if chosen else {}
    except (OSError, ValueError, KeyError):
        return {}


def find_source(source: str | Path | None = None) -> Path:
    """The folder of the notebooks: the one given, else ``notebooks`` here, else that of the checkout."""
    if source is not None:
        return Path(source).resolve()
    places = [Path.cwd() / "notebooks", Path(lqrlab.__file__).parents[1] / "notebooks"]
    for place in places:
        if any(place.glob("0[0-9]_*.ipynb")):
            return place.resolve()
    raise ValueError(
        f"notebooks: none found in {' or '.join(map(str, places))}; start in the project's folder"
    )


def read_profile(source: Path, name: str) -> dict[str, dict[str, Any]]:
    """The parameters that a profile sets: notebook → parameter → value."""
    path = source / "profiles" / f"{name}.json"
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.json"))
        raise ValueError(
            f"profile: there is no {name!r} in {path.parent}; there are {', '.join(there) or 'none'}"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise ValueError(f"{path}: expected {{notebook: {{parameter: value}}}}")
    return content


def commit(folder: Path) -> str | None:
    """Commit that ``folder`` stands at, with ``+`` where files differ from it; None outside of git."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "") if head else None
    except (OSError, subprocess.SubprocessError):
        return None


def execute(
    nb: notebooks.Notebook,
    folder: Path,
    values: Mapping[str, Any],
    fingerprint: str,
    lock: int,
    *,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    time_limit: float | None = None,
) -> Path:
    """Execute one notebook in a folder that is held, and make sure that it came to its end.

    Args:
        nb, folder, values: what is run, where, with which parameters.
        fingerprint: what the result will be filed under.
        lock: from :func:`hold`; the notebook's process keeps it, too.
        on_event: see :func:`execution.execute`, as for ``time_limit`` [s].

    Returns:
        The path of the executed notebook.

    Raises:
        CellError: it failed; what was executed up to there is in ``notebooks/<name>.failed.ipynb``.
    """
    token = uuid.uuid4().hex
    executed = folder / "notebooks" / f"{nb.name}.ipynb"
    failed = executed.with_suffix(".failed.ipynb")
    result = session.result_path(folder, nb.name)
    result.unlink(missing_ok=True)
    given = {k: v for k, v in values.items() if v != nb.parameters[k].default} | {"run": str(folder)}
    try:
        execution.execute(
            nb.path,
            failed,
            given,
            cwd=nb.path.parent.parent,
            env={"LQRLAB_EXECUTION": token, "LQRLAB_FINGERPRINT": fingerprint},
            on_event=on_event,
            pass_fds=[lock],
            time_limit=time_limit,
        )
        if not finished(folder, nb.name, fingerprint, token):
            raise execution.CellError(
                f"the notebook ended without writing {_short(result)}",
                traceback="its last cell has to be session.finish(...)",
            )
    except execution.CellError:
        result.unlink(missing_ok=True)
        raise
    os.replace(failed, executed)
    return executed


def _execute(
    nb: notebooks.Notebook, folder: Path, values: dict[str, Any], fingerprint: str, lock: int, stream: TextIO
) -> None:
    """Execute one notebook and show how far it is."""
    steps = nb.steps
    progress = Progress(nb.name, len(steps), stream)
    progress.update(0, "starting Python")

    def show(event: dict[str, Any]) -> None:
        if "cell" in event:
            progress.update(event["cell"], steps[event["cell"] - 1])
        else:
            progress.update(note=event.get("note"))

    try:
        execute(nb, folder, values, fingerprint, lock, on_event=show)
    except execution.CellError as error:
        progress.close("✗", f'stopped at "{progress.title}"')
        failed = folder / "notebooks" / f"{nb.name}.failed.ipynb"
        raise RunError(_explain(nb, error, failed)) from None
    except KeyboardInterrupt:
        progress.close("■", f'interrupted at "{progress.title}"')
        raise
    progress.close("✓", f"{len(steps)} steps")


def _explain(nb: notebooks.Notebook, error: execution.CellError, failed: Path) -> str:
    parts = [f"{nb.name} failed: {error.error}"]
    if error.source:
        numbered = error.source.strip("\n").splitlines()
        parts.append("in the cell\n" + "\n".join(f"  │ {line}" for line in numbered))
    if error.traceback:
        parts.append("which said\n" + "\n".join(f"  {line}" for line in error.traceback.splitlines()))
    if failed.exists():
        parts.append(f"executed up to there: {_short(failed)}")
    parts.append("Mend the cause, then give the same command again: finished notebooks are kept.")
    return "\n".join(parts)


def finished(folder: Path, name: str, fingerprint: str, token: str | None = None) -> bool:
    """Whether the notebook ``name`` has its result in ``folder``: this one's, and its files are there."""
    try:
        result = session.results(folder, name)
    except ValueError:
        return False
    if token is not None:
        return result.get("execution") == token
    there = (folder / "notebooks" / f"{name}.ipynb").exists()
    return (
        there
        and result.get("fingerprint") == fingerprint
        and all((folder / f).exists() for f in result["files"])
    )


@contextlib.contextmanager
def hold(folder: Path, *, patience: float = 0.0, shared: bool = False) -> Iterator[int]:
    """Hold the folder: a lock of the operating system, which ends with the processes that hold it.

    Args:
        folder: of the run; it is made if need be.
        patience: how long to wait for whoever holds it [s].
        shared: with others that only read, against one who writes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + patience
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            while True:
                try:
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(0.1)
        except OSError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "?"
            raise ValueError(
                f"{_short(folder)}: another run works in this folder (process {holder}); wait for it, "
                "end it, or give another --folder"
            ) from None
        if not shared:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield fd
    finally:
        os.close(fd)


def clear(folder: Path) -> None:
    """Remove what runs make, and nothing else, from a folder that was a run's."""
    if (folder / "run.json").exists():
        for name in PRODUCTS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _short(path: Path) -> str:
    """A path as a person in this folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
