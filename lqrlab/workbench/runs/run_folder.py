"""The folder of one run: its record, users and results, where a run may write, what it removes; and as one file."""

import contextlib
import errno
import json
import os
import platform
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import threading
import time
import unicodedata
import uuid
import zipfile
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Literal

from lqrlab.compute import files
from lqrlab.installation import program, typed
from lqrlab.workbench.runs import notebooks, plant_copies, session

RUN, SWEEP = "run.json", "sweep.json"  # the record of a run and of a sweep: its presence says what a folder is
_BY_HAND = ("figures", "dataset", "checkpoints", "metrics.jsonl", "results", plant_copies.FOLDER)
PRODUCTS = ("report", "notebooks", *_BY_HAND)
"""Things that runs make in their folder, next to their record."""
USERS = ".in_use"

_OF_PERSONS = (session.BY_HAND, session.DESIGNS)  # who look at a run and work on it
_KEPT = ("notebooks", *_BY_HAND, *_OF_PERSONS)  # pages are written anew from the notebooks
DIGESTS = "sha256.json"  # the file in an archive that lists its files with their digests
_MOST_FILES, _DEEPEST, _LONGEST, _LONGEST_PART = 100_000, 32, 1000, 255
_DENSEST, _UNSUSPICIOUS = 200, 1 << 30  # what is packed more tightly is refused, unless it is small
_SCRATCH, _YOUNG = ".lqrlab-part-", 60.0  # folders of archives in the making; how long one may be without its lock [s]
_DEVICES = r"(?i:con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|/|$)"
_PART = rf"""(?!{_DEVICES})[^\\/:<>"|?*\0]+(?<![. ])"""  # of a path, on any system, that stays in its folder
_SINGLE, _FOLDERS = ("|".join(map(re.escape, names)) for names in ((RUN, DIGESTS), _KEPT))
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


@contextlib.contextmanager
def recording(path: Path, about: Record) -> Iterator[Record]:
    """Keep the record of what is done here, and of the end that it puts into the mapping: stopped, if it puts none."""
    begun, end = time.monotonic(), Record({"status": "stopped"})
    begin(path, **about)
    try:
        yield end
    finally:
        note(path, ended=session.now(), seconds=round(time.monotonic() - begun, 2), **end)


def read(path: Path) -> Record:
    """A record; empty where there is none."""
    try:
        return files.read_object(path)
    except (OSError, ValueError):
        return {}


def recorded(path: Path) -> bool:
    """True for the record of a run or sweep, not for something else of this name."""
    record = read(path)
    kinds = (dict, "versions parameters units"), (list, "plants runs"), (str, "started ended commit notebook title")
    known = all(isinstance(record.get(key), kind | None) for kind, keys in kinds for key in keys.split())
    return known and "lqrlab" in (record.get("versions") or {})


def require_record(folder: Path) -> None:
    """Refuse what is not the folder of a run, naming the near ones."""
    if not recorded(folder / RUN):
        others = [record.parent.name for record in folder.parent.glob(f"*/{RUN}") if record.parent != folder]
        advice = notebooks.near(folder.name, others) or f"; {program()} run --folder {typed(folder)} makes one"
        found = f"a damaged {RUN}" if (folder / RUN).exists() and read(folder / RUN) else f"no {RUN}, the record of one"
        wrong = f"expected the folder of a run or sweep, but found {found}"
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
    files = [f"notebooks/{name}.ipynb", *(session.results(folder, name).get("files") or ())]
    return all((folder / file).exists() for file in files)


def place(folder: str | Path, source: Path | None = None, record: str = RUN) -> Path:
    """A folder, resolved, to which a run, or the sweep of a ``record``, may write; else a ``ValueError``.

    It may be new, empty, a run's, or hold nothing but what a data set, a training or notebooks run by hand left there.
    It may not hold the notebooks (``source``), or be inside of their folder. Nothing is touched.
    """
    folder = Path(os.path.realpath(Path(folder).expanduser()))  # which ends, even where a link leads to itself
    # each may be a link to somewhere
    places = [Path(os.path.realpath(place)) for place in (folder, *(folder / name for name in PRODUCTS))]
    ours = (files.LOCK, USERS, record + files.PART)  # of a run that ended before it had a record
    found = sorted(p.name for p in folder.iterdir() if p.name not in ours) if folder.is_dir() else []
    results = [path for path in (folder / "results").glob("*.json") if read(path).get("notebook") == path.stem]
    by_hand = {*found} <= {*_BY_HAND, *_OF_PERSONS} and (results or (folder / "dataset" / "manifest.json").is_file())
    fault = ""
    if source is not None and any(source.is_relative_to(place) or place.is_relative_to(source) for place in places):
        fault = f"holds the notebooks themselves, or is inside of their folder {typed(source)}"
    elif folder in (Path(folder.anchor), Path(os.path.expanduser("~")).resolve()):
        fault = "expected a folder for this alone"
    elif folder.exists() and not folder.is_dir():
        fault = "expected a folder, but found a file"
    elif found and not recorded(folder / record) and not (record == RUN and by_hand):
        fault = f"expected a new folder or one with the record {record}, but found {found[0]} there and no such record"
    if fault:
        raise ValueError(f"--folder {typed(folder)}: {fault}; give another")
    return folder


def refuse_filled(folder: Path) -> None:
    """Raise ValueError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{typed(folder)}: is there already and not empty; give a new folder")


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
            wrong = f"holds {name}, which is not in its record of a run"
            raise ValueError(f"{typed(folder)}: {wrong}; remove it yourself, or give another --folder")
    for path in (folder / name for name in made):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    blank: Record = {"versions": session.versions(), "made": made, "status": "not started"}
    files.write_json(folder / RUN, blank, ensure_ascii=False)


@contextlib.contextmanager
def hold(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep the folder for one process that writes to it; refused if others use it for ``patience`` seconds more."""
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / USERS
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.locked(folder, patience))
            for place in users.glob("*"):
                _remove(place, patience)
        except ValueError:
            known = ", ".join(sorted({place.name.partition("-")[0] for place in users.glob("*")})) or "?"
            wrong = f"another run works in this folder (process {known})"
            raise ValueError(f"{typed(folder)}: {wrong}; wait for it, end it, or give another --folder") from None
        held.enter_context(use(folder))
        yield


@contextlib.contextmanager
def use(folder: Path) -> Iterator[None]:
    """Keep others from holding a folder that this process reads from, or in which it runs a notebook.

    Entered while the folder is held. A notebook's process outlives a parent that is killed, if only for a moment.
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


def _remove(place: Path, patience: float = 0.0) -> None:
    """Remove what a killed process left, or a ``ValueError`` while the one that made ``place`` runs."""
    with contextlib.suppress(FileNotFoundError), files.locked(place, patience):  # it may take it away itself
        shutil.rmtree(place, ignore_errors=True)


def pack(folder: Path, file: Path | None = None) -> Path:
    """Write a run to a zip archive, made whole or not at all.

    It holds the run's record, notebooks, data, results, copies of plants, kept designs, and files made by hand in
    ``by_hand``; neither its pages, nor links, nor what else lies in its folder.
    """
    require_record(folder)
    folder = folder.resolve()
    file = folder.with_name(folder.name + ".zip") if file is None else file
    places = {top: (folder / top).resolve() for top in (RUN, *_KEPT)}  # a data set that it borrows is taken along
    if file.exists():
        raise ValueError(f"{typed(file)}: is there already; give another name, or remove it")
    if any(file.resolve().is_relative_to(place) for place in (folder, *places.values())):
        raise ValueError(f"{typed(file)}: is inside of the run that it is to hold; give another place")
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{typed(file)}: there is no folder {typed(file.absolute().parent)}; make it first")
    with hold(folder), _scratch(file.absolute().parent) as scratch:
        found = {
            (Path(top) / path.relative_to(place)).as_posix(): path
            for top, place in places.items()
            for path in (place, *sorted(place.rglob("*")))
            if path.is_file() and not path.is_symlink()
        }
        if fault := _unfit(found):
            raise ValueError(f"{typed(folder)}: {fault}; nothing was packed: rename or remove it")
        with zipfile.ZipFile(scratch / "archive", "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for name, path in found.items():
                archive.write(path, name)
            archive.writestr(DIGESTS, json.dumps({name: plant_copies.digest(path) for name, path in found.items()}))
        (scratch / "archive").replace(file)
    return file


@contextlib.contextmanager
def _scratch(above: Path) -> Iterator[Path]:
    """A folder for what is not whole yet; those that killed processes left beside it are removed."""
    for left in above.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError, ValueError):  # another's, or gone by now
            inside, age = {path.name for path in left.iterdir()}, time.time() - left.stat().st_mtime
            known = inside <= {files.LOCK, "archive", "run"} and not left.is_symlink()
            if known and (files.LOCK in inside or age > _YOUNG):
                _remove(left)
    with tempfile.TemporaryDirectory(dir=above, prefix=_SCRATCH) as made, files.locked(made):
        yield Path(made)


def unpack(file: Path, folder: Path) -> list[str]:
    """Make a new folder, whole or not at all, of an untrusted file of :func:`pack`; nothing in it is executed.

    Notebooks that ask for the latest run take one that was made here, where there is one.
    Returned are the differences between this installation and the one that made the run. A ``ValueError`` refuses files
    that are missing, changed or foreign, links, names that lead out of the folder, more than fits on the disk.
    """
    refuse_filled(folder)
    if not file.is_file():
        raise ValueError(f"{typed(file)}: there is no such file")
    above = folder.absolute().parent
    try:
        above.mkdir(parents=True, exist_ok=True)
        with _scratch(above) as scratch, zipfile.ZipFile(file) as archive:
            if not (fault := _extracted(archive, scratch / "run", os.path.getsize(file))):
                if folder.is_dir():
                    folder.rmdir()
                (scratch / "run").replace(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, struct.error, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which a place before the archive's start is
            raise OSError(error.errno, f"could not be unpacked: {error.strerror}", typed(folder)) from None
        fault = f"expected an archive of lqrlab pack, but it cannot be read ({error})"
    if fault:
        raise ValueError(f"{typed(file)}: {fault}; nothing was unpacked")
    made, here = read(folder / RUN)["versions"], session.versions()
    return [f"{k} {made[k]!r:.40} there, {v!r} here" for k, v in here.items() if k in made and made[k] != v]


def _extracted(archive: zipfile.ZipFile, place: Path, packed: int) -> str:
    """Extract an archive of so many bytes whose table of contents is good; why what came of it is no run, or empty."""
    if fault := _hostile(archive, packed, shutil.disk_usage(place.parent).free):
        return fault
    archive.extractall(place)
    names, listed = {*archive.namelist()} - {DIGESTS}, files.read_object(place / DIGESTS)
    if changed := [name for name in sorted(names & {*listed}) if plant_copies.digest(place / name) != listed[name]]:
        return f"{changed[0]} is not what was written"
    if odd := sorted(names ^ {*listed}):
        return f"{odd[0]} is {'not in its list' if odd[0] in names else 'missing, which is in its list'} {DIGESTS}"
    if not recorded(place / RUN):
        return f"{RUN} is no record of a run"
    (place / DIGESTS).unlink()
    for mark in (place / RUN, place / "results"):  # older than any run that was made here
        if mark.exists():
            os.utime(mark, (0, 0))
    return ""


def _hostile(archive: zipfile.ZipFile, packed: int, room: int) -> str:
    """Why an archive of so many bytes is not unpacked, where so many are free, by its contents; empty if it is good."""
    members = archive.infolist()
    names, size = [member.filename for member in members], sum(member.file_size for member in members)
    for member in members:
        regular = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
        if not regular or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return f"holds {member.filename!r:.200}, which is no file of a run"
    if not {RUN, DIGESTS} <= {*names}:
        return f"found no {RUN}, or no {DIGESTS} in it"
    if size > min(room, max(_UNSUSPICIOUS, _DENSEST * packed)):
        return f"holds {len(members)} files of {size / 1e9:.1f} GB in all, more than fits here or than a run has"
    return _unfit(names)


def _unfit(names: Collection[str]) -> str:
    """Why files of these names are not a run's, or not on every system; empty if they are."""
    if len(names) > _MOST_FILES:
        return f"holds {len(names)} files, more than a run has"
    found, folders = set[str](), set[str]()
    for name in names:
        parts = name.split("/")
        good = re.fullmatch(_NAME, name) and name.isprintable() and len(parts) <= _DEEPEST  # else it has no bytes
        if not good or len(name.encode()) > _LONGEST or max(len(p.encode()) for p in parts) > _LONGEST_PART:
            return f"holds {name!r:.200}, which is no file of a run, or no name of a file on every system"
        same = unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
        found.add(same)
        folders |= {same.rsplit("/", i)[0] for i in range(1, len(parts))}
    if len(found) < len(names) or found & folders:
        return "holds two files of one name, but for capitals or accents, or one in the other"
    return ""
