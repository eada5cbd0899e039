"""A run as one file: packed with the digest of each of its files; unpacked, and checked, on another machine."""

import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from lqrlab.compute import files
from lqrlab.workbench.runs import run_folder, session
from lqrlab.workbench.runs.run_folder import RUN, short

_KEPT = tuple(name for name in run_folder.PRODUCTS if name != "report")  # pages are written anew from the notebooks
_MOST_FILES = 100_000
_DENSEST, _UNSUSPICIOUS = 200, 1 << 30  # what is packed more tightly is refused, unless it is small
_PART = r"""(?![. ]+(/|$))[^\\/:<>"|?*\0]+"""  # of a path, on any system, that does not lead out of its folder
_SINGLE, _FOLDERS = ("|".join(map(re.escape, names)) for names in ((RUN, files.DIGESTS), _KEPT))
_NAME = rf"({_SINGLE}|({_FOLDERS})(/{_PART})*)"


def pack(folder: Path, file: Path | None = None) -> Path:
    """Write a run to a zip archive, made whole or not at all: its record, notebooks, data, results, copies of plants.

    Raises:
        ValueError: no run, or one that something works in; a file that is there already.
    """
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
    for name in (RUN, *_KEPT):
        top = (folder / name).resolve()
        for path in (top, *sorted(top.rglob("*"))):
            if path.is_file() and not path.is_symlink():
                yield (Path(name) / path.relative_to(top)).as_posix(), path


def unpack(file: Path, folder: Path) -> list[str]:
    """Make a new folder, whole or not at all, of an untrusted file of :func:`pack`; nothing in it is executed.

    Returns:
        Differences between this installation and the one that made the run.

    Raises:
        ValueError: no such archive; files that are missing, changed or foreign; links; names that lead out of the
            folder; more than fits on the disk, or is likely.
    """
    run_folder.refuse_filled(folder)
    above = folder.absolute().parent
    above.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(file) as archive, tempfile.TemporaryDirectory(dir=above, prefix=".unpack") as scratch:
            place = Path(scratch) / "run"
            if fault := _hostile(archive, os.path.getsize(file), shutil.disk_usage(scratch).free):
                raise ValueError(f"{short(file)}: {fault}; nothing was unpacked")
            archive.extractall(place)
            if fault := _flaw(place):
                raise ValueError(f"{short(file)}: {fault}; nothing was unpacked")
            (place / files.DIGESTS).unlink()
            if folder.is_dir():
                folder.rmdir()
            place.replace(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{short(file)}: expected an archive of lqrlab pack, but it cannot be read ({error})"
        ) from None
    made, here = run_folder.read(folder / RUN)["versions"], session.versions()
    return [f"{k} {made[k]!r:.40} there, {v!r} here" for k, v in here.items() if k in made and made[k] != v]


def _hostile(archive: zipfile.ZipFile, packed: int, room: int) -> str:
    """Why an archive is not unpacked, by its table of contents; empty if all members are files that a run has.

    Args:
        packed: size of the archive [bytes].
        room: free on the disk [bytes].
    """
    members, seen = archive.infolist(), set()
    for member in members:
        name, kind = member.filename, stat.S_IFMT(member.external_attr >> 16)
        if not re.fullmatch(_NAME, name) or kind not in (0, stat.S_IFREG):
            return f"holds {name!r:.200}, which is no file of a run"
        if name.casefold() in seen:
            return f"holds {name!r:.200} twice"
        seen.add(name.casefold())
    if not {RUN, files.DIGESTS} <= {member.filename for member in members}:
        return f"expected an archive of lqrlab pack, but found no {RUN} or no {files.DIGESTS} in it"
    size = sum(member.file_size for member in members)
    if len(members) > _MOST_FILES or size > room:
        return f"holds {len(members)} files of {size / 1e9:.1f} GB in all, where {room / 1e9:.1f} GB are free"
    if size > max(_UNSUSPICIOUS, _DENSEST * packed):
        return f"would become {size / 1e9:.1f} GB, which no run is"
    return ""


def _flaw(place: Path) -> str:
    """Why what was unpacked is no run, empty if it is one."""
    if fault := files.flaw(place):
        return fault
    found = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    if unlisted := found - {*files.read_object(place / files.DIGESTS), files.DIGESTS}:
        return f"{min(unlisted)} is not in its list of files"
    return "" if run_folder.recorded(place / RUN) else f"{RUN} is no record of a run"
