"""Copies of the user's files of plants in the folder of a run, so that the folder alone can be repeated."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from lqrlab.compute.files import digest, plant_files

FOLDER = "plants"
_TEXTS = (".toml", ".py", ".xml", ".mjcf", ".urdf")  # files that may name others
_NAMED = (*_TEXTS, ".json", ".npz", ".mat", ".csv", ".stl", ".obj", ".msh", ".dae", ".png")
"""Files that are copied where they are named: those of plants, meshes and textures, no keys or letters."""
_QUOTED = re.compile(r"""["']([^"'\n]{1,200})["']""")


def keep(folder: Path) -> list[dict[str, str]]:
    """Copy the user's files of plants to ``folder/plants``: of each the copy's path from ``folder``, and its SHA-256.

    Copies of files that differ lie apart, in folders named by their checksum.
    """
    return [_keep(Path(file), folder) for file in plant_files()]


def _keep(file: Path, folder: Path) -> dict[str, str]:
    place = folder / FOLDER / checksum(file)[:12]
    for part in parts(file):
        target = place / part.relative_to(file.parent)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{os.getpid()}.part")
            shutil.copyfile(part, partial)
            partial.replace(target)
    name = (place / file.name).relative_to(folder).as_posix()
    return {"file": name, "sha256": digest(file)}


def checksum(file: Path) -> str:
    """SHA-256 of a file of plants and of all files that it names."""
    total = hashlib.sha256()
    for part in parts(file):
        total.update(part.relative_to(file.parent).as_posix().encode() + b"\0" + part.read_bytes())
    return total.hexdigest()


def parts(file: Path) -> list[Path]:
    """A file of plants and the files below its folder that it names between quotes: a robot's, its meshes."""
    found = [file]
    for text in found:  # which grows
        found += {*_named(text, file.parent)} - {*found}
    return [file, *sorted(found[1:])]


def _named(file: Path, root: Path) -> Iterator[Path]:
    """Files below ``root`` that a text names, from its own folder or from one that it names too (``meshdir``)."""
    if file.suffix not in _TEXTS:
        return
    words = dict.fromkeys(_QUOTED.findall(file.read_text(encoding="utf-8", errors="replace")))
    paths = [Path(word) for word in words if any(c.isalpha() for c in word)]
    folders = [Path(), *(path for path in paths if path != Path() and (file.parent / path).is_dir())]
    for folder, path in product(folders, paths):
        named = file.parent / folder / path
        hidden = any(part.startswith(".") for part in (*folder.parts, *path.parts))
        if hidden or path.suffix.lower() not in _NAMED or not named.is_file():
            continue
        if named.resolve().is_relative_to(root.resolve()):
            yield named


def names(record: Mapping[str, Any]) -> list[str]:
    """Names of the files of plants in the record of a run or sweep, also in one that holds whole paths."""
    files = (entry.get("file", "") if isinstance(entry, dict) else entry for entry in record.get("plants") or [])
    return [Path(str(file)).name for file in files]
