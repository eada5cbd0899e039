"""Manifest of a folder: the config that claims it at the start, the contents that seal it at the end."""

import json
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lqrlab.compute.files import LOCK, PART, read_object, write_atomic
from lqrlab.dataset.data_config import MOST_BYTES, DataConfig
from lqrlab.dataset.layout import FORMAT, REASONS, plan, wrong
from lqrlab.dataset.shards import BadFile, Content, header

CARD = "card.md"
_CONFIG, _MANIFEST = "config.json", "manifest.json"

_REMEDY = "generate() with the same config makes it again"
Record = dict[str, Any]
"""The manifest, or its entry of a file."""


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
        raise ValueError(
            f"path: expected an empty folder for the data set, but {folder} holds {', '.join(others[:5])}"
        )


def claim(folder: Path, config: DataConfig) -> None:
    """Mark a folder as that of one config, before anything is computed, and remove what a killed run half wrote."""
    check_folder(folder, config)
    if not (folder / _CONFIG).exists():
        write_atomic(folder / _CONFIG, f"{config.to_json()}\n")
    for name in (*(shard.name for shard in plan(config)), _CONFIG, _MANIFEST, CARD):
        (folder / (name + PART)).unlink(missing_ok=True)


def record(path: Path, family: str, content: Content, digests: dict[str, str]) -> Record:
    """The manifest's entry of one file."""
    return {
        "file": path.name,
        "family": family,
        "bytes": path.stat().st_size,
        "variants": len(content.arrays["variants/variant"]),
        "trajectories": len(content.arrays["trajectories/variant"]),
        "left_out": {reason: content.attributes[f"left_out_{reason}"] for reason in REASONS},
        "attributes": digests[""],
        # sorted: a file that was kept lists its arrays in another order than one that was made
        "arrays": {name: header(a) | {"sha256": digests[name]} for name, a in sorted(content.arrays.items())},
    }


def totals(config: DataConfig, records: Iterable[Record]) -> Record:
    """Numbers of variants and trajectories in all files, and of those left out in each family and why."""
    found: Record = {"variants": 0, "trajectories": 0, "left_out": {family: {} for family in config.families}}
    for entry in records:
        found["variants"] += entry["variants"]
        found["trajectories"] += entry["trajectories"]
        of = found["left_out"][entry["family"]]
        of.update({reason: of.get(reason, 0) + number for reason, number in entry["left_out"].items()})
    return found


def seal(folder: Path, config: DataConfig, records: list[Record]) -> None:
    """Write the manifest: the data set is complete from here on."""
    about = {"format": FORMAT, "config": json.loads(config.to_json())}
    manifest = about | totals(config, records) | {"shards": records}
    put(folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")


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
            raise ValueError(
                f"its format is {manifest.get('format')!r:.100}, and this version reads {FORMAT!r}"
            )
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
        for why in _wrong(entry, config):
            raise ValueError(f"{entry['file']}: {why}")
    for key, count in totals(config, entries).items():
        if manifest.get(key) != count:
            raise ValueError(f"{key}: expected {count} as in its files, but found {manifest.get(key)!r:.100}")


def _wrong(entry: Record, config: DataConfig) -> Iterator[str]:
    """Faults of a file's entry, in words."""
    yield from wrong(entry["arrays"], config)
    for key in ("bytes", "variants", "trajectories"):
        if type(entry[key]) is not int or not 0 <= entry[key] < 2**63:
            yield f"{key}: expected a whole number ≥ 0, but found {entry[key]!r:.100}"
    for key in ("variants", "trajectories"):
        if [entry[key]] != entry["arrays"][f"{key}/variant"]["shape"]:
            yield f"{key} is {entry[key]}, but its arrays have another number of rows"
    checksums = [entry.get("attributes"), *(header.get("sha256") for header in entry["arrays"].values())]
    if not all(isinstance(one, str) and re.fullmatch("[0-9a-f]{64}", one) for one in checksums):
        yield "expected a SHA-256 checksum of the attributes and of each array"
    reasons = entry["left_out"]
    if not (
        isinstance(reasons, dict)
        and reasons.keys() == REASONS.keys()
        and all(type(number) is int and number >= 0 for number in reasons.values())
    ):
        yield f"left_out: expected a count for each reason, but found {reasons!r:.100}"


def looked_over(folder: Path, entries: Iterable[Record]) -> Iterator[tuple[Path, str]]:
    """Each file that a manifest lists, and in words why it need not be read; empty if it may be what it should."""
    seen: dict[tuple[int, int], str] = {}
    for entry in entries:
        file, why = folder / entry["file"], ""
        try:
            found = file.stat()
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            yield file, f"{'is missing' if missing else f'cannot be read ({error.strerror})'}; {_REMEDY}"
            continue
        if not stat.S_ISREG(found.st_mode):
            why = f"is no regular file; {_REMEDY}"
        elif found.st_size != entry["bytes"]:
            why = f"has {found.st_size} bytes where the manifest says {entry['bytes']}; {_REMEDY}"
        elif found.st_ino:  # some file systems number no files
            same = seen.setdefault((found.st_dev, found.st_ino), file.name)
            why = "" if same == file.name else f"is the same file as {same}; {_REMEDY}"
        yield file, why
