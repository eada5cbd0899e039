"""What a folder says it holds: the config that claims it at the start, the manifest that seals it at the end."""

import json
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lqrlab.compute.files import LOCK, PART, read_object, write_atomic
from lqrlab.dataset import layout
from lqrlab.dataset.data_config import MOST_BYTES, DataConfig
from lqrlab.dataset.plan import Shard, plan
from lqrlab.dataset.shards import BadFile, Content, header

FORMAT = "lqrlab data set 1"
CARD = "card.md"
_CONFIG, _MANIFEST = "config.json", "manifest.json"

REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimal gain, and all their trajectories",
    "diverged": "trajectories that diverged: a state beyond 1000 scales (and 1000 times its start), or still growing",
    "saturated": "trajectories whose input stayed at its limit while the state moved away",
}
"""Why a variant (the first) or a trajectory may be left out."""

_REMEDY = "generate() with the same config makes it again"

Record = dict[str, Any]
"""The manifest's entry of a file."""


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
    """Mark a folder as that of one config, before anything is computed; see :func:`check_folder`."""
    check_folder(folder, config)
    if not (folder / _CONFIG).exists():
        write_atomic(folder / _CONFIG, f"{config.to_json()}\n")


def remove_partial(folder: Path, config: DataConfig) -> None:
    """Remove the half-written files of a killed run, and no other ones, from a folder that is claimed."""
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


def seal(folder: Path, config: DataConfig, records: list[Record]) -> None:
    """Write the manifest: the data set is complete from here on."""
    left_out: dict[str, dict[str, int]] = {family: {} for family in config.families}
    for r in records:
        of = left_out[r["family"]]
        of.update({reason: of.get(reason, 0) + number for reason, number in r["left_out"].items()})
    manifest = {
        "format": FORMAT,
        "config": json.loads(config.to_json()),
        "variants": sum(r["variants"] for r in records),
        "trajectories": sum(r["trajectories"] for r in records),
        "left_out": left_out,
        "shards": records,
    }
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
    shards = _typed("shards", manifest.get("shards"), list)
    planned = plan(config)
    listed = [_typed("an entry of shards", shard, dict).get("file") for shard in shards]
    if listed != [shard.name for shard in planned]:
        odd = sorted({str(name) for name in listed} ^ {shard.name for shard in planned})
        raise ValueError(f"the files it lists are not those of its config: {', '.join(odd[:5])}")
    for place, entry in zip(planned, shards):
        why = next(_wrong(entry, config, place), "")
        if why:
            raise ValueError(f"{place.name}: {why}")
    for key in ("variants", "trajectories"):
        _typed(key, manifest.get(key), int)
    if manifest.get("left_out", {}).keys() != set(config.families):
        raise ValueError("left_out: expected a count for each family")
    for reasons in manifest["left_out"].values():
        _check_left_out(reasons)


def _wrong(entry: Record, config: DataConfig, place: Shard) -> Iterator[str]:
    """What is wrong with the entry of a file, in words."""
    if entry.get("family") != place.family:
        yield f"family: expected {place.family}, but found {entry.get('family')!r:.100}"
    for key in ("bytes", "variants", "trajectories"):
        if not 0 <= _typed(key, entry.get(key), int) < 2**63:
            yield f"{key} is {entry[key]!s:.100}"
    _check_left_out(entry.get("left_out"))
    _typed("attributes", entry.get("attributes"), str)
    arrays = _typed("arrays", entry.get("arrays"), dict)
    for name, described in arrays.items():
        if _typed(name, described, dict).keys() != {"shape", "dtype", "sha256"}:
            yield f"{name} is described by {sorted(described)}"
    if absent := layout.missing(arrays, config):
        yield absent
    for key in ("variants", "trajectories"):
        if [entry[key]] != arrays[f"{key}/variant"]["shape"]:
            yield f"{key} is {entry[key]}, but its arrays have another number of rows"


def _check_left_out(reasons: object) -> None:
    """Refuse what does not count what was left out, for each reason."""
    if not (
        isinstance(reasons, dict)
        and reasons.keys() <= REASONS.keys()
        and all(type(number) is int and number >= 0 for number in reasons.values())
    ):
        raise ValueError(f"left_out: expected a count for each reason, but found {reasons!r:.100}")


def _typed(name: str, value: Any, kind: type) -> Any:
    """``value``, which is of this type, or a ``ValueError``."""
    if type(value) is not kind:
        words = {int: "a whole number", str: "a text", list: "a list", dict: "a table of names and values"}
        raise ValueError(f"{name}: expected {words[kind]}, but found {value!r:.100}")
    return value


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
