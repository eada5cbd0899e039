"""Copies of the user's files of plants in the folder of a run, so that the folder alone can be repeated."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lqrlab.compute.files import plant_files, write_atomic

FOLDER = "plants"
_TEXTS = (".toml", ".py", ".xml", ".mjcf", ".urdf")  # files that may name others
_NAMED = (*_TEXTS, ".json", ".npz", ".mat", ".csv", ".stl", ".obj", ".msh", ".dae", ".png")
"""Files that are copied where they are named: those of plants, meshes and textures, no keys or letters."""
_QUOTED = re.compile(r"""["']([^"'\n]{1,200})["']""")


def keep(folder: Path) -> list[dict[str, str]]:
    """Copy the user's files of plants to ``folder/plants/CHECKSUM``: each copy's path from ``folder``, its SHA-256."""
    kept = []
    for file in map(Path, plant_files()):
        place = Path(FOLDER, checksum(file)[:12])
        for part in parts(file):
            target = folder / place / part.relative_to(file.parent)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target, part.read_bytes())
        kept.append({"file": (place / file.name).as_posix(), "sha256": digest(file)})
    return kept


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(file: Path) -> str:
    """SHA-256 of a file of plants and of all files that it names."""
    total = hashlib.sha256()
    for part in parts(file):
        total.update(part.relative_to(file.parent).as_posix().encode() + b"\0" + part.read_bytes())
    return total.hexdigest()


def parts(file: Path) -> list[Path]:
    """A file of plants, and the files below that it names between quotes, from its folder or from one that it names."""
    found = [file]
    for text in found:  # which grows
        words = set(_QUOTED.findall(text.read_text(errors="replace"))) if text.suffix in _TEXTS else set()
        folders = ["", *(word for word in words if (text.parent / word).is_dir())]
        named = {text.parent / folder / word for folder in folders for word in words}
        found += [path for path in named - {*found} if _below(path, file.parent)]
    return [file, *sorted(found[1:])]


def _below(path: Path, root: Path) -> bool:
    """True for a file that may be copied and is not hidden, in ``root`` and not only by a link."""
    if path.suffix.lower() not in _NAMED or not path.is_relative_to(root) or not path.is_file():
        return False
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return not hidden and path.resolve().is_relative_to(root.resolve())


def names(record: Mapping[str, Any]) -> list[str]:
    """Names of the files of plants in the record of a run or sweep, also in one that holds whole paths."""
    files = (entry.get("file", "") if isinstance(entry, dict) else entry for entry in record.get("plants") or [])
    return [Path(str(file)).name for file in files]
