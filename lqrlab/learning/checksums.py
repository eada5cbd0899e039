"""Digests of a folder's files, written when it is made, so that later it can be seen whether it is whole."""

import hashlib
from pathlib import Path

from lqrlab.compute.files import read_object, write_json

FILE = "sha256.json"


def write(folder: Path) -> None:
    """List all files of ``folder`` with their digests."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    write_json(folder / FILE, {path.relative_to(folder).as_posix(): digest(path) for path in files})


def flaw(folder: Path) -> str:
    """Faults of the files that :func:`write` listed; empty if there are none, or if none were listed."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    for name, path in found.items():
        if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
            return f"{name} is no regular file"
    if FILE not in found:
        return ""
    try:
        for name, expected in read_object(found[FILE]).items():
            if name not in found or found[name].is_dir():  # what lies elsewhere is not looked at
                return f"{name} is missing"
            if digest(found[name]) != expected:
                return f"{name} is not what was written"
    except (OSError, ValueError):
        return f"{FILE} cannot be read"
    return ""


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
