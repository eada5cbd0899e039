"""The folder of one run: its record, who uses it, which results are there, and what a run may remove from it."""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from lqrlab.compute import files
from lqrlab.workbench.runs import session
from lqrlab.workbench.runs.notebooks import Values

RUN, SWEEP = "run.json", "sweep.json"
"""The record of a run and of a sweep: its presence says what a folder is."""
PRODUCTS = ("notebooks", "figures", "dataset", "checkpoints", "metrics.jsonl", "results", "report", RUN)
"""What runs make in their folder."""
USERS = ".in_use"

Status = Literal[
    "not started", "running", "finished", "failed", "stopped", "timed out", "kernel died", "worker died"
]


class Entry(TypedDict):
    """One run of a sweep: its name, the parameters that it sets, and its fingerprint."""

    run: str
    point: Values
    fingerprint: str


class Record(TypedDict, total=False):
    """What a run (``run.json``) or sweep (``sweep.json``) says of itself."""

    status: Status
    error: str | None
    started: str
    ended: str
    seconds: float
    profile: str | None
    versions: dict[str, str]
    commit: str | None
    platform: str
    device: str | None
    sweep: str | None  # identifies the sweep
    # of a run
    parameters: dict[str, Values]
    fingerprint: str
    attempts: int
    worker: str
    # of a sweep
    notebook: str
    title: str
    kind: str
    executor: str
    units: dict[str, str]
    inputs: str | None
    runs: list[Entry]


def begin(path: Path, **fields: Unpack[Record]) -> None:
    """Write the record of what starts now."""
    about = {"versions": session.versions(), "platform": platform.platform(), "started": session.now()}
    files.write_json(path, {**about, "status": "running", **fields}, ensure_ascii=False)


def note(path: Path, **changes: Unpack[Record]) -> None:
    """Put what has changed into a record."""
    files.write_json(path, {**read(path), **changes}, ensure_ascii=False)


def read(path: Path) -> Record:
    """A record; empty where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def commit(folder: Path) -> str | None:
    """Commit that ``folder`` stands at, with ``+`` where files differ from it; None outside of git."""
    describe = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def finished(folder: Path, name: str, fingerprint: str, execution: str | None = None) -> bool:
    """Whether the notebook ``name`` has its result in ``folder``: up to date, with its files, or of one execution."""
    try:
        result = session.results(folder, name)
    except ValueError:
        return False
    if execution is not None:
        return result.get("execution") == execution
    made = [folder / "notebooks" / f"{name}.ipynb", *(folder / file for file in result["files"])]
    return result.get("fingerprint") == fingerprint and all(path.exists() for path in made)


def clear(folder: Path) -> None:
    """Remove what runs make, and nothing else, from a folder that was a run's."""
    if (folder / RUN).exists():
        for name in PRODUCTS:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def short(path: Path) -> str:
    """A path as a person in this folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def hold(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep the folder, which is made if need be, for one process that writes to it.

    For so many seconds it waits for those that write to it or read from it, and for the notebooks that they started;
    then a ``ValueError`` names them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience
    users = folder / USERS
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.locked(folder, patience))
            while any([_in_use(place) for place in users.glob("*")]):
                if time.monotonic() >= deadline:
                    raise ValueError
                time.sleep(0.1)
        except ValueError:
            known = sorted({place.name.partition("-")[0] for place in users.glob("*")})
            raise ValueError(
                f"{short(folder)}: another run works in this folder (process {', '.join(known) or '?'}); wait for "
                "it, end it, or give another --folder"
            ) from None
        held.enter_context(use(folder))
        yield


@contextlib.contextmanager
def use(folder: Path) -> Iterator[None]:
    """Keep others from holding a folder that this process reads from, or in which it runs a notebook.

    To be entered while this process, or the one that started it, holds the folder. A notebook's process outlives a
    parent that is killed, if only for a moment: nobody else comes in before it has ended.
    """
    place = folder / USERS / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    place.mkdir(parents=True)
    with files.locked(place):
        yield
    shutil.rmtree(place, ignore_errors=True)


def _in_use(place: Path) -> bool:
    """Whether the process that made ``place`` still runs; what a killed one left is removed."""
    try:
        with files.locked(place):
            pass
    except ValueError:
        return True
    shutil.rmtree(place, ignore_errors=True)
    return False
