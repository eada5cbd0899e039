"""What a folder says it holds: the config that claims it at the start, the manifest that seals it at the end."""

import json
from pathlib import Path
from typing import Any

from lqrlab.compute.files import LOCK, PART, write_atomic
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import plan
from lqrlab.dataset.shards import BadFile, Content, header

FORMAT = "lqrlab data set 1"
_CONFIG, _MANIFEST = "config.json", "manifest.json"

REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimal gain, and all their trajectories",
    "diverged": "trajectories that diverged: a state beyond 1000 scales (and 1000 times its start), or still growing",
    "saturated": "trajectories whose input stayed at its limit while the state moved away",
}
"""Why a variant (the first) or a trajectory may be left out."""

_ARRAYS = {
    *(f"variants/{name}" for name in ("family", "variant", "split", "dt", "scale_x", "scale_u", *"ABQRKP")),
    *(f"trajectories/{name}" for name in ("variant", "x0", "states", "controls", "cost")),
}

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
            old = DataConfig.from_json(mark.read_text(encoding="utf-8"))
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
    """Remove the half-written files of a killed run, and no other ones."""
    for name in (*(shard.name for shard in plan(config)), _CONFIG, _MANIFEST):
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
    if not (path.exists() and path.read_text(encoding="utf-8", errors="replace") == text):
        write_atomic(path, text)


def read(folder: Path) -> tuple[DataConfig, Record]:
    """The config and the manifest of a sealed folder; the files are not looked at."""
    path = folder / _MANIFEST
    if not path.is_file():
        why = "is no data set"
        if (folder / _CONFIG).is_file():
            why = "was begun but not finished; call generate() again with the same config"
        raise BadFile(folder, f"has no {_MANIFEST}: it {why}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}, and this version reads {FORMAT!r}")
        config = DataConfig.from_dict(manifest["config"])
        _check(manifest, config)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadFile(path, f"is no manifest of a data set, or is damaged: {error!r}") from None
    return config, manifest


def _check(manifest: Record, config: DataConfig) -> None:
    """Refuse a manifest with other files than its config makes; so no name in it can lead out of the folder."""
    wanted = _ARRAYS | ({"trajectories/start"} if config.segmented else set())
    planned = [(shard.name, shard.family) for shard in plan(config)]
    listed = [(shard["file"], shard["family"]) for shard in manifest["shards"]]
    if listed != planned:
        odd = sorted(str(name) for name, _ in set(listed) ^ set(planned))
        raise ValueError(f"the files it lists are not those of its config: {', '.join(odd[:5])}")
    for shard in manifest["shards"]:
        for key in ("bytes", "variants", "trajectories"):
            if not isinstance(shard[key], int) or shard[key] < 0:
                raise ValueError(f"{shard['file']}: {key} is {shard[key]!r}")
        for name, entry in shard["arrays"].items():
            if set(entry) != {"shape", "dtype", "sha256"}:
                raise ValueError(f"{shard['file']}: {name} is described by {sorted(entry)}")
        missing = sorted(wanted - set(shard["arrays"]))
        if missing:
            raise ValueError(f"{shard['file']}: {', '.join(missing)} are missing")
    if not isinstance(manifest["left_out"], dict):
        raise ValueError("the count of what was left out is missing")
