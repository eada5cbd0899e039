"""Manifest of a folder: the config that claims it at the start, the contents that seal it at the end."""

import contextlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lqrlab.compute import checks
from lqrlab.compute.files import LOCK, PART, read_object, write_atomic
from lqrlab.dataset import shards
from lqrlab.dataset.data_config import MOST_BYTES, DataConfig
from lqrlab.dataset.layout import FORMAT, REASONS, plan, wrong
from lqrlab.dataset.shards import BadFile, Content

CARD = "card.md"
_CONFIG, _MANIFEST = "config.json", "manifest.json"
_GROUPS = ("variants", "trajectories")

Record = dict[str, Any]
"""The manifest, or its entry of a file."""
Headers = Mapping[str, dict[str, Any]]
"""Name of an array → its shape, type and digest."""


def check_folder(folder: Path, config: DataConfig) -> None:
    """Refuse a folder in which this config's data set cannot be made.

    Raises:
        ValueError: it belongs to another config (the differing keys are named), or holds other files.
    """
    mark = folder / _CONFIG
    if mark.exists():
        try:
            old = DataConfig.from_dict(read_object(mark, MOST_BYTES))
        except (ValueError, OSError) as error:
            raise BadFile(mark, f"is no config of a data set: {error}") from None
        if old != config:
            raise ValueError(
                f"path: {folder} holds a data set of another config: {', '.join(old.differences(config))}; "
                "use another folder, or delete this one"
            )
        return
    others = sorted(p.name for p in folder.iterdir() if p.name not in (LOCK, _CONFIG + PART))
    if others:
        raise ValueError(f"path: expected an empty folder for the data set, but {folder} holds {', '.join(others[:5])}")


def claim(folder: Path, config: DataConfig) -> None:
    """Mark a folder as that of one config, before anything is computed, and remove what a killed run half wrote."""
    check_folder(folder, config)
    if not (folder / _CONFIG).exists():
        write_atomic(folder / _CONFIG, f"{config.to_json()}\n")
    for name in (*(shard.name for shard in plan(config)), _CONFIG, _MANIFEST, CARD):
        (folder / (name + PART)).unlink(missing_ok=True)


def record(path: Path, content: Content) -> Record:
    """The manifest's entry of one file."""
    return {
        "file": path.name,
        "family": content.attributes.get("family"),
        "bytes": path.stat().st_size,
        **{group: len(content.arrays.get(f"{group}/variant", ())) for group in _GROUPS},
        "left_out": {reason: content.attributes.get(f"left_out_{reason}") for reason in REASONS},
        "attributes": content.about,
        "arrays": content.headers,
    }


def of_entries(config: DataConfig, entries: Sequence[Record]) -> Record:
    """The manifest that follows from a config and the entries of its files: with their sums."""
    left_out: dict[str, dict[str, int]] = {family: {} for family in config.families}
    for entry in entries:
        of = left_out[entry["family"]]
        of.update({reason: of.get(reason, 0) + number for reason, number in entry["left_out"].items()})
    return {
        "format": FORMAT,
        "config": json.loads(config.to_json()),
        **{group: sum(entry[group] for entry in entries) for group in _GROUPS},
        "left_out": left_out,
        "shards": entries,
    }


def seal(folder: Path, config: DataConfig, entries: Sequence[Record]) -> None:
    """Write the manifest: the data set is complete from here on."""
    put(folder / _MANIFEST, json.dumps(of_entries(config, entries), indent=1) + "\n")


def put(path: Path, text: str) -> None:
    """Write a text, unless the file holds it already."""
    if not (path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text):
        write_atomic(path, text)


def read(folder: Path) -> tuple[DataConfig, Record]:
    """The config and the manifest of a sealed folder; the files are not looked at.

    Raises:
        BadFile: there is no manifest, or one that no data set of this version has, whatever else it is.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        why = "is no data set"
        if (folder / _CONFIG).is_file():
            why = "was begun but not finished; call generate() again with the same config"
        raise BadFile(folder, f"has no {_MANIFEST}: it {why}")
    try:
        manifest = read_object(path)
        if manifest.get("format") != FORMAT:
            raise ValueError(f"its format is {manifest.get('format')!r:.100}, and this version reads {FORMAT!r}")
        settings = manifest.get("config")
        if len(json.dumps(settings)) > MOST_BYTES:
            raise ValueError(f"config: expected at most {MOST_BYTES} bytes")
        config = DataConfig.from_dict(settings)
        _check(manifest, config)
    except Exception as error:  # its author may be anyone: of what it is made there is no end
        what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        raise BadFile(path, f"is no manifest of a data set, or is damaged: {what:.300}") from None
    return config, manifest


def _check(manifest: Record, config: DataConfig) -> None:
    """Refuse a manifest with other files than its config makes; so no name in it can lead out of the folder."""
    entries = manifest["shards"]
    listed = [(entry["file"], entry["family"]) for entry in entries]
    planned = [(shard.name, shard.family) for shard in plan(config)]
    if listed != planned:
        odd = sorted({str(name) for name, _ in {*listed} ^ {*planned}})
        raise ValueError(f"the files it lists are not those of its config: {', '.join(odd[:5])}")
    for entry in entries:
        check_entry(entry, config)
    for key, value in of_entries(config, entries).items():
        # an older version wrote fewer settings into the config
        if key != "config" and manifest.get(key) != value:
            raise ValueError(f"{key}: expected {value} as in its files, but found {manifest.get(key)!r:.100}")


def check_entry(entry: Record, config: DataConfig) -> None:
    """Refuse an entry, made from a file or listed, that no file of the config's data set has.

    Raises:
        ValueError: says all that is wrong with its arrays, or the first that is wrong with the rest.
    """
    if odd := list(wrong(entry["arrays"], config)):
        raise ValueError("; ".join(odd))
    for key in ("bytes", *_GROUPS):
        checks.whole(key, entry[key], 0, 2**63 - 1)
    for group in _GROUPS:
        if [entry[group]] != entry["arrays"][f"{group}/variant"]["shape"]:
            raise ValueError(f"{group} is {entry[group]}, but its arrays have another number of rows")
    digests = [entry["attributes"], *(header["sha256"] for header in entry["arrays"].values())]
    if not all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one) for one in digests):
        raise ValueError("expected a SHA-256 checksum of the attributes and of each array")
    counts = entry["left_out"]
    known = isinstance(counts, dict) and counts.keys() == REASONS.keys()
    if not known or not all(type(number) is int and number >= 0 for number in counts.values()):
        raise ValueError(f"left_out: expected a count for each reason, but found {counts!r:.100}")


def changed(found: Headers, listed: Headers) -> str:
    """Arrays that are others than those listed, in words; empty if none are."""
    odd = [name for name in sorted(found.keys() | listed.keys()) if found.get(name) != listed.get(name)]
    return f"{', '.join(odd[:5])} {'is' if len(odd) == 1 else 'are'} not what the manifest lists" if odd else ""


def looked_over(folder: Path, entries: Iterable[Record]) -> Iterator[tuple[Path, str]]:
    """Each file that a manifest lists, and in words what is wrong with it at a glance: no array of it is read."""
    seen: dict[tuple[int, int], str] = {}
    for entry in entries:
        file = folder / entry["file"]
        why = _glance(file, entry, seen)
        yield file, f"{why}; generate() with the same config makes it again" if why else ""


def _glance(file: Path, entry: Record, seen: dict[tuple[int, int], str]) -> str:
    with contextlib.suppress(OSError):  # told below
        about = file.stat()
        if stat.S_ISREG(about.st_mode) and about.st_size != entry["bytes"]:
            return f"has {about.st_size} bytes where the manifest says {entry['bytes']}"
        # some file systems number no files
        same = seen.setdefault((about.st_dev, about.st_ino), file.name) if about.st_ino else file.name
        if same != file.name:
            return f"is the same file as {same}"
    try:
        with shards.opened(file) as arrays:
            found = {name: shards.header(array) for name, array in arrays.items()}
    except BadFile as error:
        return error.why
    return changed(found, {name: header | {"sha256": ""} for name, header in entry["arrays"].items()})
