"""A run as one file: packed with the digest of each of its files; unpacked, and checked, on another machine."""

import json
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from lqrlab.workbench.runs import run_folder, session
from lqrlab.workbench.runs.run_folder import RUN, short

_KEPT = tuple(name for name in run_folder.PRODUCTS if name != "report")  # pages are written anew from the notebooks
_MOST_FILES, _MOST_BYTES = 100_000, 1 << 40
_DENSEST, _UNSUSPICIOUS = 200, 1 << 30  # what is packed more tightly is refused, unless it is small


def pack(folder: Path, file: Path | None = None) -> Path:
    """Write a run to a zip archive, made whole or not at all: its record, notebooks, data, results, copies of plants.

    Raises:
        ValueError: no run, or one that something works in; a file that is there already.
    """
    from lqrlab.compute import files

    run_folder.require_record(folder)
    folder = folder.resolve()
    file = folder.with_name(folder.name + ".zip") if file is None else file
    if file.exists():
        raise ValueError(f"{short(file)}: is there already; give another name, or remove it")
    with run_folder.hold(folder), tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=".pack") as scratch:
        part = Path(scratch) / "archive"
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            digests = {}
            for name, path in _files(folder):
                archive.write(path, name)
                digests[name] = files.digest(path)
            archive.writestr(files.DIGESTS, json.dumps(digests))
        part.replace(file)
    return file


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The run's files by their names in the archive; a data set that it borrows from another run is taken along."""
    yield RUN, folder / RUN
    for name in _KEPT:
        top = (folder / name).resolve()
        if top.is_file():
            yield name, top
        for path in sorted(top.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield f"{name}/{path.relative_to(top).as_posix()}", path


def unpack(file: Path, folder: Path) -> list[str]:
    """Make a new folder, whole or not at all, of an untrusted file of :func:`pack`; nothing in it is executed.

    Returns:
        Differences between this installation and the one that made the run.

    Raises:
        ValueError: no such archive; files that are missing, changed or foreign; links; names that lead out of the
            folder; more than fits on the disk, or is likely.
    """
    from lqrlab.compute import files

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{short(folder)}: is there already and not empty; give a new folder")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(file) as archive:
            members = _checked(archive, file, folder.absolute().parent)
            with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=".unpack") as scratch:
                place = Path(scratch) / "run"
                for member in members:
                    target = place / member.filename
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(member) as source, target.open("xb") as out:
                        shutil.copyfileobj(source, out)
                fault = files.flaw(place) or _strange(place)
                if fault:
                    raise ValueError(f"{short(file)}: {fault}; nothing was unpacked")
                (place / files.DIGESTS).unlink()
                if folder.is_dir():
                    folder.rmdir()
                place.replace(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{short(file)}: expected an archive of lqrlab pack, but it cannot be read ({error})"
        ) from None
    made = run_folder.read(folder / RUN)["versions"]
    here = session.versions()
    return [f"{k} {made[k]!r:.40} there, {v!r} here" for k, v in here.items() if k in made and made[k] != v]


def _checked(archive: zipfile.ZipFile, file: Path, place: Path) -> list[zipfile.ZipInfo]:
    """The members of an archive, if all of them are files that a run has."""
    from lqrlab.compute import files

    members, seen = archive.infolist(), set()
    for member in members:
        name, kind = member.filename, stat.S_IFMT(member.external_attr >> 16)
        parts = PurePosixPath(name).parts
        plain = (
            not set(name) & set('\\:\0<>"|?*') and all(part.strip(". ") for part in parts) and name == "/".join(parts)
        )
        if not plain or parts[0] not in (RUN, files.DIGESTS, *_KEPT) or kind not in (0, stat.S_IFREG):
            raise ValueError(f"{short(file)}: holds {name!r:.200}, which is no file of a run; nothing was unpacked")
        if name.casefold() in seen:
            raise ValueError(f"{short(file)}: holds {name!r:.200} twice; nothing was unpacked")
        seen.add(name.casefold())
    if not {RUN, files.DIGESTS} <= {member.filename for member in members}:
        raise ValueError(
            f"{short(file)}: expected an archive of lqrlab pack, but found no {RUN} or no {files.DIGESTS} in it"
        )
    size, room = sum(member.file_size for member in members), shutil.disk_usage(place).free
    if len(members) > _MOST_FILES or size > min(room, _MOST_BYTES):
        raise ValueError(
            f"{short(file)}: holds {len(members)} files of {size / 1e9:.1f} GB in all, where {room / 1e9:.1f} GB are "
            f"free and {_MOST_FILES} files are the most; nothing was unpacked"
        )
    if size > max(_UNSUSPICIOUS, _DENSEST * os.path.getsize(file)):
        raise ValueError(f"{short(file)}: would become {size / 1e9:.1f} GB, which no run is; nothing was unpacked")
    return members


def _strange(place: Path) -> str:
    """Why a folder is no run, empty if it is one: files that its list does not know, a record that is none."""
    from lqrlab.compute import files

    known = {*files.read_object(place / files.DIGESTS), files.DIGESTS}
    for path in place.rglob("*"):
        if path.is_file() and path.relative_to(place).as_posix() not in known:
            return f"{path.relative_to(place).as_posix()} is not in its list of files"
    return "" if run_folder.recorded(place / RUN) else f"{RUN} is no record of a run"
