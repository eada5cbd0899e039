"""The folder of one run: its record, its users, which results are there, where a run may write and what it removes."""

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from lqrlab.compute import files
from lqrlab.workbench.runs import notebooks, plant_copies, session

RUN, SWEEP = "run.json", "sweep.json"
"""The record of a run and of a sweep: its presence says what a folder is."""
_BY_HAND = ("figures", "dataset", "checkpoints", "metrics.jsonl", "results", plant_copies.FOLDER)
PRODUCTS = ("notebooks", "report", *_BY_HAND)
"""Things that runs make in their folder, next to their record."""
USERS = ".in_use"

_ENTERED = contextlib.ExitStack()  # closed by the end of the process

Status = Literal["not started", "running", "finished", "failed", "stopped", "timed out", "kernel died", "worker died"]
Record = dict[str, Any]
"""Record of a run (``run.json``) or sweep (``sweep.json``): status, error, started, ended, seconds, versions,
profile, commit, device and copies of the user's files of plants. A run adds its parameters, what it made, and in a
sweep its fingerprint; a sweep adds the notebook or plant, units and its runs (name, point and fingerprint of each)."""


def begin(path: Path, **fields: Any) -> None:
    """Write the record of what starts now, before it makes anything."""
    before = _made(path.parent)
    made = [name for name in PRODUCTS if name in before or not os.path.lexists(path.parent / name)]
    about: Record = {"versions": session.versions(), "platform": platform.platform(), "started": session.now()}
    about |= {"plants": plant_copies.keep(path.parent)}
    listed = {"made": made} if path.name == RUN else {}
    files.write_json(path, {**about, **listed, "status": "running", **fields}, ensure_ascii=False)


def note(path: Path, **changes: Any) -> None:
    """Put what has changed into a record."""
    files.write_json(path, {**read(path), **changes}, ensure_ascii=False)


def read(path: Path) -> Record:
    """A record; empty where there is none."""
    try:
        return files.read_object(path)
    except (OSError, ValueError):
        return {}


def recorded(path: Path) -> bool:
    """True for the record of a run or sweep, not for something else of this name."""
    versions = read(path).get("versions")
    return isinstance(versions, dict) and "lqrlab" in versions


def require_record(folder: Path) -> None:
    """Refuse what is not the folder of a run, naming the near ones."""
    if not recorded(folder / RUN):
        others = [record.parent.name for record in folder.parent.glob(f"*/{RUN}")]
        advice = notebooks.near(folder.name, others) or f"; lqrlab run --folder {folder} makes one"
        wrong = f"expected the folder of a run or sweep, but found no {RUN}, the record of one"
        raise ValueError(f"{folder}: {wrong}{advice}")


def commit(folder: Path) -> str | None:
    """Commit that ``folder`` stands at, with ``+`` where files differ from it; None outside of git."""
    describe = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def finished(folder: Path, name: str, fingerprint: str) -> bool:
    """True if the notebook ``name`` is up to date in ``folder``: its result has this fingerprint, its files exist."""
    if session.fingerprint(folder, name) != fingerprint:
        return False
    files = [f"notebooks/{name}.ipynb", *session.results(folder, name)["files"]]
    return all((folder / file).exists() for file in files)


def refuse_foreign(folder: Path, source: Path | None = None, record: str = RUN) -> None:
    """Raise ValueError unless a run, or the sweep of a ``record``, may write to a resolved ``folder``; touch nothing.

    It may be new, empty, a run's, or hold nothing but what a data set, a training or notebooks run by hand left there.
    It may not hold the notebooks (``source``), or be inside of their folder.
    """
    # each may be a link to somewhere
    places = [Path(os.path.realpath(place)) for place in (folder, *(folder / name for name in PRODUCTS))]
    ours = (files.LOCK, USERS, record + files.PART)  # of a run that ended before it had a record
    found = sorted(p.name for p in folder.iterdir() if p.name not in ours) if folder.is_dir() else []
    fault = ""
    if source is not None and any(_within(source, place) or _within(place, source) for place in places):
        fault = f"holds the notebooks themselves, or is inside of their folder {short(source)}"
    elif folder in (Path(folder.anchor), Path(os.path.expanduser("~")).resolve()):
        fault = "expected a folder for this alone"
    elif folder.exists() and not folder.is_dir():
        fault = "expected a folder, but found a file"
    elif found and not recorded(folder / record) and not (record == RUN and _by_hand(folder, found)):
        fault = f"expected a new folder or one with the record {record}, but found {found[0]} there and no such record"
    if fault:
        raise ValueError(f"--folder {short(folder)}: {fault}; give another")


def refuse_filled(folder: Path) -> None:
    """Raise ValueError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{short(folder)}: is there already and not empty; give a new folder")


def _within(place: Path, folder: Path) -> bool:
    """True if ``place`` is ``folder`` or in it, under whatever name."""
    known = [p for p in (place, *place.parents) if p.exists()] if folder.exists() else []
    return any(p.samefile(folder) for p in known)


def _by_hand(folder: Path, found: list[str]) -> bool:
    """True if all that is found was left by ``lqrlab data``, ``lqrlab train`` or notebooks run by hand."""
    results = [path for path in (folder / "results").glob("*.json") if read(path).get("notebook") == path.stem]
    return set(found) <= {*_BY_HAND} and (bool(results) or (folder / "dataset" / "manifest.json").is_file())


def _made(folder: Path) -> list[str]:
    """Products that the record of a run lists as made by it; anything else it lists does not count."""
    listed = read(folder / RUN).get("made")
    return [name for name in PRODUCTS if isinstance(listed, list) and name in listed]


def clear(folder: Path) -> None:
    """Remove what the record of a folder lists as made by runs, without a record nothing; else a ``ValueError``."""
    if not recorded(folder / RUN):
        return
    made = _made(folder)
    for name in PRODUCTS:
        if name not in made and (folder / name).exists() and not (folder / name).is_symlink():
            wrong = f"holds {name}, but its record does not say that a run made that"
            raise ValueError(f"{short(folder)}: {wrong}; remove it yourself, or give another --folder")
    for path in (folder / name for name in made):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    blank: Record = {"versions": session.versions(), "made": made, "status": "not started"}
    files.write_json(folder / RUN, blank, ensure_ascii=False)


def short(path: Path) -> str:
    """A path as a person in this folder would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


@contextlib.contextmanager
def hold(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep the folder, which is made if need be, for one process that writes to it.

    It waits ``patience`` seconds for those that :func:`use` or hold it; then a ``ValueError`` names them.
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
            known = ", ".join(sorted({place.name.partition("-")[0] for place in users.glob("*")})) or "?"
            wrong = f"another run works in this folder (process {known})"
            raise ValueError(f"{short(folder)}: {wrong}; wait for it, end it, or give another --folder") from None
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


def enter(folder: str, parent: int) -> None:
    """In a kernel: :func:`use` the run's folder until the process ends, which it does when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.killpg(os.getpgrp(), signal.SIGKILL)  # what it started ends with it

    threading.Thread(target=watch, daemon=True).start()
    _ENTERED.enter_context(use(Path(folder)))


def _in_use(place: Path) -> bool:
    """True while the process that made ``place`` runs; what a killed one left is removed."""
    try:
        with files.locked(place):
            pass
    except ValueError:
        return True
    shutil.rmtree(place, ignore_errors=True)
    return False
