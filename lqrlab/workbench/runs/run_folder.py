"""The folder of one run: its record, users and results, where a run may write, what it removes; and as one file."""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from lqrlab.compute import files
from lqrlab.workbench.runs import notebooks, plant_copies, session

RUN, SWEEP = "run.json", "sweep.json"
"""The record of a run and of a sweep: its presence says what a folder is."""
_BY_HAND = ("figures", "dataset", "checkpoints", "metrics.jsonl", "results", plant_copies.FOLDER)
PRODUCTS = ("report", "notebooks", *_BY_HAND)
"""Things that runs make in their folder, next to their record."""
USERS = ".in_use"

_KEPT = ("notebooks", *_BY_HAND)  # pages are written anew from the notebooks
_MOST_FILES = 100_000
_DENSEST, _UNSUSPICIOUS = 200, 1 << 30  # what is packed more tightly is refused, unless it is small
_PART = r"""(?![. ]+(/|$))[^\\/:<>"|?*\0]+"""  # of a path, on any system, that does not lead out of its folder
_SINGLE, _FOLDERS = ("|".join(map(re.escape, names)) for names in ((RUN, files.DIGESTS), _KEPT))
_NAME = rf"({_SINGLE}|({_FOLDERS})(/{_PART})*)"
_ENTERED = contextlib.ExitStack()  # closed by the end of the process

Status = Literal["not started", "running", "finished", "failed", "stopped", "timed out", "kernel died", "worker died"]
Record = dict[str, Any]
"""Record of a run (``run.json``) or sweep (``sweep.json``): status, error, started, ended, seconds, versions,
profile, commit, device and copies of the user's files of plants. A run adds its parameters, what it made, and in a
sweep its fingerprint; a sweep adds the notebook or plant, units and its runs (name, point and fingerprint of each)."""


class RunError(RuntimeError):
    """A run that stopped at a notebook; the message says where, why and what to do next."""


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
    results = [path for path in (folder / "results").glob("*.json") if read(path).get("notebook") == path.stem]
    by_hand = {*found} <= {*_BY_HAND} and (results or (folder / "dataset" / "manifest.json").is_file())
    fault = ""
    if source is not None and any(source.is_relative_to(place) or place.is_relative_to(source) for place in places):
        fault = f"holds the notebooks themselves, or is inside of their folder {short(source)}"
    elif folder in (Path(folder.anchor), Path(os.path.expanduser("~")).resolve()):
        fault = "expected a folder for this alone"
    elif folder.exists() and not folder.is_dir():
        fault = "expected a folder, but found a file"
    elif found and not recorded(folder / record) and not (record == RUN and by_hand):
        fault = f"expected a new folder or one with the record {record}, but found {found[0]} there and no such record"
    if fault:
        raise ValueError(f"--folder {short(folder)}: {fault}; give another")


def refuse_filled(folder: Path) -> None:
    """Raise ValueError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{short(folder)}: is there already and not empty; give a new folder")


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


def pack(folder: Path, file: Path | None = None) -> Path:
    """Write a run to a zip archive, made whole or not at all: its record, notebooks, data, results, copies of plants.

    Raises:
        ValueError: no run, or one that something works in; a file that is there already.
    """
    require_record(folder)
    folder = folder.resolve()
    file = folder.with_name(folder.name + ".zip") if file is None else file
    if file.exists():
        raise ValueError(f"{short(file)}: is there already; give another name, or remove it")
    with hold(folder), tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".pack") as scratch:
        part, digests = Path(scratch) / "archive", {}
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for top in (RUN, *_KEPT):
                place = (folder / top).resolve()  # a data set that it borrows from another run is taken along
                for path in (place, *sorted(place.rglob("*"))):
                    if path.is_file() and not path.is_symlink():
                        name = (Path(top) / path.relative_to(place)).as_posix()
                        archive.write(path, name)
                        digests[name] = files.digest(path)
            archive.writestr(files.DIGESTS, json.dumps(digests))
        part.replace(file)
    return file


def unpack(file: Path, folder: Path) -> list[str]:
    """Make a new folder, whole or not at all, of an untrusted file of :func:`pack`; nothing in it is executed.

    Returns:
        Differences between this installation and the one that made the run.

    Raises:
        ValueError: no such archive; files that are missing, changed or foreign; links; names that lead out of the
            folder; more than fits on the disk, or is likely.
    """
    refuse_filled(folder)
    above = folder.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory(dir=above, prefix=".unpack") as scratch:
            place = Path(scratch) / "run"
            fault = _hostile(archive, os.path.getsize(file), shutil.disk_usage(scratch).free)
            if not fault:
                archive.extractall(place)
                fault = files.flaw(place) or ("" if recorded(place / RUN) else f"{RUN} is no record of a run")
            if not fault and {*archive.namelist()} - {*files.read_object(place / files.DIGESTS)} != {files.DIGESTS}:
                fault = f"holds files that are not in its list {files.DIGESTS}"
            if fault:
                raise ValueError(f"{short(file)}: {fault}; nothing was unpacked")
            (place / files.DIGESTS).unlink()
            if folder.is_dir():
                folder.rmdir()
            place.replace(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        wrong = f"expected an archive of lqrlab pack, but it cannot be read ({error})"
        raise ValueError(f"{short(file)}: {wrong}") from None
    made, here = read(folder / RUN)["versions"], session.versions()
    return [f"{k} {made[k]!r:.40} there, {v!r} here" for k, v in here.items() if k in made and made[k] != v]


def _hostile(archive: zipfile.ZipFile, packed: int, room: int) -> str:
    """Why an archive is not unpacked, by its table of contents; empty if all members are files that a run has.

    Args:
        packed: size of the archive [bytes].
        room: free on the disk [bytes].
    """
    members, names, size = archive.infolist(), set[str](), 0
    for member in members:
        name, kind = member.filename, stat.S_IFMT(member.external_attr >> 16)
        if not re.fullmatch(_NAME, name) or kind not in (0, stat.S_IFREG):
            return f"holds {name!r:.200}, which is no file of a run"
        names.add(name.casefold())
        size += member.file_size
    if len(names) < len(members) or not {RUN, files.DIGESTS} <= names:
        return f"found no {RUN}, no {files.DIGESTS}, or two files of one name in it"
    if len(members) > _MOST_FILES or size > min(room, max(_UNSUSPICIOUS, _DENSEST * packed)):
        return f"holds {len(members)} files of {size / 1e9:.1f} GB in all, more than fits here or than a run has"
    return ""
