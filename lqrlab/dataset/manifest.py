"""The files that a config makes, and the manifest of a folder: a config claims it, the entries of its files seal it."""

import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, Shaped

from lqrlab.compute.files import LOCK, PART, read_object, write_atomic
from lqrlab.dataset import shards
from lqrlab.dataset.data_config import MOST_BYTES, DataConfig
from lqrlab.dataset.shards import BadFile, Content, Headers
from lqrlab.systems import M_MAX, N_MAX, Plant, parameter_fields

FORMAT = "lqrlab data set 1"
CARD = "card.md"
_CONFIG, _MANIFEST = "config.json", "manifest.json"
_GROUPS = ("variants", "trajectories")

Record = dict[str, Any]  # the manifest, or its entry of a file

REASONS = {
    "no_stabilizing_design": "variants without a stabilizing optimal gain, and all their trajectories",
    "diverged": "trajectories that diverged: a state beyond 1000 scales (and 1000 times its start), or still growing",
    "saturated": "trajectories whose input stayed at its limit",
}
"""Why a variant (the first) or a trajectory may be left out; the last: by earlier versions, whose inputs had limits."""

# The files that a config makes ------------------------------------------------------------------------------

_REAL, _SINGLE, _WHOLE, _TEXT = "<f8", "<f4", "<i[48]", r"\|S\d{1,3}"  # types as NumPy writes them
_PARAMETER = "<[fi][48]"
_PARAMETERS = "variants/parameters/"

_ARRAYS = {
    "variants/family": (_TEXT, "v", ""),
    "variants/variant": (_WHOLE, "v", ""),
    "variants/split": (_TEXT, "v", ""),
    "variants/dt": (_REAL, "v", "s"),
    "variants/scale_x": (_REAL, "vn", "{x}"),
    "variants/scale_u": (_REAL, "vm", "{u}"),
    "variants/A": (_REAL, "vnn", "rows ({x})/s, columns 1/({x})"),
    "variants/B": (_REAL, "vnm", "rows ({x})/s, columns 1/({u})"),
    "variants/Q": (_REAL, "vnn", "rows and columns 1/({x})"),
    "variants/R": (_REAL, "vmm", "rows and columns 1/({u})"),
    "variants/K": (_REAL, "vmn", "rows ({u}), columns 1/({x})"),
    "variants/P": (_REAL, "vnn", "rows and columns 1/({x}), times s"),
    "trajectories/variant": (_WHOLE, "r", ""),
    "trajectories/x0": (_REAL, "rn", "{x}"),
    "trajectories/states": (_SINGLE, "rsn", "{x}"),
    "trajectories/controls": (_SINGLE, "rtm", "{u}"),
    "trajectories/cost": (_REAL, "r", "s"),
    "trajectories/start": (_WHOLE, "r", "steps"),
}
"""Type, axes and unit of each array of a file; v plants of n states and m inputs, r rows of t steps and s samples."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A block of variants of one family, which becomes a file; its random numbers follow from this and the seed."""

    family: str
    block: int
    first: int
    count: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.family}-{self.block:05d}.h5"


def plan(config: DataConfig) -> tuple[Shard, ...]:
    """All shards of a data set in order: families as the config lists them, then variants."""
    size = config.variants_per_shard
    parts = [(first // size, first, min(size, config.variants - first)) for first in range(0, config.variants, size)]
    return tuple(Shard(family, *part) for family in config.families for part in parts)


def keys(config: DataConfig, shard: Shard) -> Key[Array, "3"]:
    """Three random keys of a shard, from the seed, the family's name and the block alone."""
    key = jax.random.key(config.seed, impl="threefry2x32")
    key = jax.random.fold_in(jax.random.fold_in(key, zlib.crc32(shard.family.encode())), shard.block)
    return jax.random.split(key, 3)


@functools.lru_cache(4)  # all files of a family ask for it
def splits(config: DataConfig, family: str) -> Shaped[np.ndarray, " variants"]:
    """The name of the split of each variant of a family; not to be written to."""
    if family in (config.held_out or ()):
        return np.full(config.variants, "held_out", dtype="S10")
    word = f"{config.seed}/{family}/split".encode()
    order = np.random.Generator(np.random.PCG64(zlib.crc32(word))).permutation(config.variants)
    split = np.full(config.variants, "train", dtype="S10")
    split[order[: config.num_validation]] = "validation"
    return split


def _arrays(config: DataConfig) -> dict[str, tuple[str, str, str]]:
    """The arrays of each file, but for the parameters of its plants."""
    return {name: a for name, a in _ARRAYS.items() if config.segmented or name != "trajectories/start"}


def units(config: DataConfig, plants: Plant) -> dict[str, str]:
    """The unit of each array that has one."""
    x, u = (", ".join(signal.unit for signal in signals) for signals in (plants.states, plants.inputs))
    found = {name: unit.format(x=x, u=u) for name, (_, _, unit) in _arrays(config).items() if unit}
    parameters = parameter_fields(type(plants)).items()
    return found | {f"{_PARAMETERS}{name}": field.metadata["unit"] for name, field in parameters}


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


def check_entry(entry: Record, config: DataConfig, shard: Shard) -> None:
    """Refuse a manifest's entry that the config's file of this shard cannot have; looks at no number in its arrays."""
    left_out, headers, known = entry["left_out"], entry["arrays"], _arrays(config)
    undesigned, *loops = (left_out[reason] for reason in REASONS)
    variants = shard.count - undesigned
    rows = (variants * config.trajectories - sum(loops)) * len(config.starts)
    planned = {"file": shard.name, "family": shard.family, "variants": variants, "trajectories": rows}
    for key, expected in planned.items():
        if entry[key] != expected:
            what = f"{expected}, what the config makes without what was left out"
            raise ValueError(f"{key}: expected {what}, but found {entry[key]!r:.50}")
    if absent := [name for name in known if name not in headers]:
        raise ValueError(f"{', '.join(absent)} are missing")
    B = headers["variants/B"]["shape"]
    if not (len(B) == 3 and 1 <= B[1] <= N_MAX and 1 <= B[2] <= M_MAX):
        raise ValueError(f"variants/B: expected at most {N_MAX} states and {M_MAX} inputs, but found shape {B}")
    sizes = dict(zip("vnmrts", (variants, *B[1:], rows, config.row_steps, config.row_steps + 1)))
    for name, header in headers.items():
        kind, axes, _ = known.get(name, (_PARAMETER, "v", ""))
        shape = [sizes[axis] for axis in axes]
        if name not in known and not name.startswith(_PARAMETERS):
            raise ValueError(f"{name} is no array of a data set")
        if header["shape"] != shape:
            raise ValueError(f"{name}: expected shape {shape}, but found {header['shape']}")
        if not re.fullmatch(kind, header["dtype"]):
            raise ValueError(f"{name} holds {header['dtype']}, not the type of a data set")


def changed(found: Record | Headers, listed: Record | Headers) -> str:
    """Arrays or other things that are not those listed, in words; empty if none are."""
    odd = [name for name in sorted(found.keys() | listed.keys()) if found.get(name) != listed.get(name)]
    return f"{', '.join(odd[:5])} {'is' if len(odd) == 1 else 'are'} not what the manifest lists" if odd else ""


def check_folder(folder: Path, config: DataConfig) -> None:
    """Refuse a folder of another config, whose differing keys are named, or of other files."""
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
    write_atomic(folder / _MANIFEST, json.dumps(of_entries(config, entries), indent=1) + "\n")


def read(folder: Path) -> tuple[DataConfig, Record]:
    """The config and the manifest of a sealed folder; the files are not looked at.

    Raises:
        BadFile: there is no manifest, or one that no data set of this version has, whatever else it is.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        begun = "was begun but not finished; call generate() again with the same config"
        why = begun if (folder / _CONFIG).is_file() else "is no data set"
        raise BadFile(folder, f"has no {_MANIFEST}: it {why}")
    try:
        manifest = read_object(path)
        if manifest.get("format") != FORMAT:
            raise ValueError(f"its format is {manifest.get('format')!r:.100}, and this version reads {FORMAT!r}")
        settings = manifest.get("config")
        if len(json.dumps(settings)) > MOST_BYTES:
            raise ValueError(f"config: expected at most {MOST_BYTES} bytes")
        config = DataConfig.from_dict(settings)
        entries, planned = manifest["shards"], plan(config)
        if len(entries) != len(planned):
            raise ValueError(f"shards: expected the {len(planned)} files of its config, but found {len(entries)}")
        for entry, shard in zip(entries, planned):
            check_entry(entry, config, shard)
        for key, value in of_entries(config, entries).items():
            # an older version wrote fewer settings into the config
            if key != "config" and manifest.get(key) != value:
                raise ValueError(f"{key}: expected {value!r:.100} as in the files of its config, but found another")
    except Exception as error:  # its author may be anyone: of what it is made there is no end
        what = str(error) if isinstance(error, ValueError | OSError) else repr(error)
        raise BadFile(path, f"is no manifest of a data set, or is damaged: {what:.300}") from None
    return config, manifest


def glance(file: Path, entry: Record) -> str:
    """Faults of a file that the manifest lists, in words, as far as they are seen before an array of it is read."""
    try:
        with shards.opened(file) as (_, arrays):
            found = {name: shards.header(array) for name, array in arrays.items()}
        why = changed(found, {name: {key: a[key] for key in ("shape", "dtype")} for name, a in entry["arrays"].items()})
    except shards.Busy as error:
        return error.why
    except BadFile as error:
        why = error.why
    if file.is_file() and (size := file.stat().st_size) != entry["bytes"]:
        why = f"has {size} bytes where the manifest says {entry['bytes']!r:.50}"
    return f"{why}; generate() with the same config makes it again" if why else ""
