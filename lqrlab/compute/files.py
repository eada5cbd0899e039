"""Files that are whole or not there, and folders that one process holds at a time."""

import contextlib
import errno
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock

PART = ".part"  # ending of a file that is not whole yet
LOCK = ".lock"  # the file in a folder that whoever works there holds
PLANT_FILES = "LQRLAB_PLANTS"
"""Environment variable: files of the user's plants, for the processes that are started from one that was given them."""

_NOT_NOW = {errno.EAGAIN, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.EMFILE, errno.ENFILE}
_MOST_BYTES = 1 << 27  # of JSON: some ten seconds and a gigabyte to read


def plant_files() -> list[str]:
    """The user's files of plants that this process was given."""
    return [file for file in os.environ.get(PLANT_FILES, "").split(os.pathsep) if file]


def require_readable(file: Path, endings: Iterable[str], most: int | None = None) -> None:
    """Refuse a file of another kind, one that is not there, and one of more bytes."""
    if file.suffix.lower() not in endings:
        raise ValueError(f"{file}: expected a file ending in {', '.join(endings)}, but found {file.suffix!r}")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if most and (size := file.stat().st_size) > most:
        raise ValueError(f"{file}: expected at most {most >> 20} MiB, but found {size / 2**20:.0f} MiB")


def write_atomic(path: str | Path, data: str | bytes | memoryview) -> Path:
    """Give a file new contents: a process killed at any moment leaves the old ones or the new ones.

    They are written under another name in the same folder, flushed and renamed; then the folder is flushed.

    Raises:
        OSError: says which file could not be written and why (a full disk, a folder that may not be written to).
    """
    path = Path(path)
    part = path.with_name(path.name + PART)
    try:
        # of a killed process; if it is a link, what it points at is not written to
        part.unlink(missing_ok=True)
        with open(part, "xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise OSError(error.errno, f"could not be written: {error.strerror}", str(path)) from error
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path


def write_json(path: str | Path, content: object, **options: Any) -> Path:
    """:func:`write_atomic` of ``content`` as JSON."""
    return write_atomic(path, json.dumps(content, indent=2, **options) + "\n")


def read_bytes(path: str | Path, most: int = _MOST_BYTES) -> bytes:
    """The content of a file that anyone may have written; the caller names it in a ``ValueError``.

    That says that it is no regular file, or has more than ``most`` bytes.
    """
    path = Path(path)
    if not path.is_file():  # a pipe would be waited for, a device has no end
        raise ValueError("expected a regular file, but found none")
    if (size := path.stat().st_size) > most:
        raise ValueError(f"expected a file of at most {most} bytes, but found {size} bytes")
    return path.read_bytes()


def not_now(error: BaseException) -> str:
    """Why a file cannot be read now, with which nothing else need be wrong; empty if an error does not say that."""
    number = getattr(error, "errno", None)
    if number == errno.EAGAIN:
        return "is locked: another process has it open and may be writing; wait for it, or end it"
    return f"cannot be read now: {os.strerror(number)}" if number in _NOT_NOW else ""


def read_object(path: str | Path, most: int = _MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file that anyone may have written; a ``ValueError`` if it is none: :func:`read_bytes`."""
    data = read_bytes(path, most)
    try:
        content = json.loads(data, object_pairs_hook=distinct)
    except RecursionError:
        raise ValueError("expected a JSON object, but found one that is nested too deeply to be read") from None
    except ValueError as error:
        raise ValueError(f"expected a JSON object, but found no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object, but found a JSON value of type {type(content).__name__}")
    return content


def distinct(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """For ``json.loads``: an object whose entries have different names; of two alike it would take the last."""
    found = dict(entries)
    if len(found) < len(entries):
        twins = sorted(name for name, count in Counter(name for name, _ in entries).items() if count > 1)
        raise ValueError(f"two entries of one object are called {', '.join(twins)}")
    return found


def read_rows(path: str | Path) -> list[dict[str, Any] | None]:
    """The JSON objects in the lines of a file, none if it is not there; None for a line that is something else."""
    try:
        lines = read_bytes(path).splitlines() if os.path.lexists(path) else []
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    found: list[dict[str, Any] | None] = []
    for line in lines:
        row = None
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line.decode(), object_pairs_hook=distinct)
        found.append(row if isinstance(row, dict) else None)
    return found


@contextlib.contextmanager
def locked(folder: str | Path, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder, so that two processes do not write to it at once; the lock ends with the process.

    After ``patience`` [s] of waiting, a ``ValueError`` says that another process holds it.
    """
    try:
        with filelock.FileLock(Path(folder) / LOCK, timeout=patience):
            yield
    except filelock.Timeout:
        raise ValueError(
            f"{folder}: the folder is locked by another process that writes to it; wait for it, or end it"
        ) from None
