"""What a folder says it holds: the config it is claimed for at the start, the manifest that seals it."""

import json
from pathlib import Path
from typing import Any

from lqrlab.compute.files import LOCK, PART, write_atomic
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.plan import plan
from lqrlab.dataset.shards import BadFile, Content

FORMAT = "lqrlab data set 1"
_CONFIG, _MANIFEST = "config.json", "manifest.json"
REASONS = ("no_stabilizing_design", "diverged", "saturated")
"""Why a variant (the first) or a trajectory may be left out."""

_ARRAYS = {
    *(f"variants/{name}" for name in ("family", "variant", "split", "dt", "scale_x", "scale_u", *"ABQRKP")),
    *(f"trajectories/{name}" for name in ("variant", "x0", "states", "controls", "cost")),
}


def claim(folder: Path, config: DataConfig) -> None:
    """Mark a folder as that of one config, before anything is computed.

    Raises:
        ValueError: it is another config's (the differing keys are named), or holds files of some other kind.
    """
    mark = folder / _CONFIG
    if mark.exists():
        try:
            there = DataConfig.from_json(mark.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise BadFile(mark, f"is no config of a data set: {error}") from None
        if there != config:
            raise ValueError(
                f"path: {folder} holds a data set of another config: {', '.join(there.differences(config))}; "
                "use another folder, or delete this one"
            )
        return
    strangers = sorted(p.name for p in folder.iterdir() if p.name not in (LOCK, _CONFIG + PART))
    if strangers:
        raise ValueError(
            f"path: expected a folder of its own for the data set, but {folder} holds "
            f"{', '.join(strangers[:5])}"
        )
    write_atomic(mark, f"{config.to_json()}\n")


def remove_partial(folder: Path, config: DataConfig) -> None:
    """Remove what a killed run left half written: files of the data set itself, none of anybody else's."""
    for name in (*(shard.name for shard in plan(config)), _CONFIG, _MANIFEST):
        (folder / (name + PART)).unlink(missing_ok=True)


def record(path: Path, family: str, content: Content, digests: dict[str, str]) -> dict[str, Any]:
    """What the manifest says of one file."""
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


def header(array: Any) -> dict[str, Any]:
    """Shape and type of an array, with room for its digest."""
    return {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": None}


def seal(folder: Path, config: DataConfig, records: list[dict[str, Any]]) -> None:
    """Write the manifest: the data set is whole from here on."""
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
    """Write a text, unless it is there already."""
    if not (path.exists() and path.read_text(encoding="utf-8", errors="replace") == text):
        write_atomic(path, text)


def read(folder: Path) -> tuple[DataConfig, dict[str, Any]]:
    """The config and the manifest of a sealed folder; the files are not looked at."""
    path = folder / _MANIFEST
    if not path.is_file():
        began = (folder / _CONFIG).is_file()
        why = (
            "was begun but not finished; call generate() again with the same config"
            if began
            else "is no data set"
        )
        raise BadFile(folder, f"has no {_MANIFEST}: it {why}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']!r}, and this version reads {FORMAT!r}")
        config = DataConfig.from_json(json.dumps(manifest["config"]))
        _check(manifest, config)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadFile(path, f"is no manifest of a data set, or is damaged: {error!r}") from None
    return config, manifest


def _check(manifest: dict[str, Any], config: DataConfig) -> None:
    """Refuse a manifest that is not of the config's own plan; so no name in it can lead anywhere else."""
    wanted = _ARRAYS | ({"trajectories/start"} if config.keep_every > 1 else set())
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
        raise ValueError("there is no account of what was left out")
