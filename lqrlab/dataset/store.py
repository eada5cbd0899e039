"""A data set as a folder: what belongs to it, and what is in it."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from lqrlab import systems
from lqrlab.dataset import shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import Description, describe_scaled, in_units
from lqrlab.dataset.shards import BadFile, Content
from lqrlab.systems import M_MAX, N_MAX, Linear, Plant

FORMAT = "lqrlab data set 1"
SPLITS = ("train", "validation", "held_out")
_CONFIG, _MANIFEST = "config.json", "manifest.json"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VariantTable:
    """Every plant of a data set as a network sees it; a batch points into its rows.

    Attributes:
        description: of all variants, ``[V, …]``; see :class:`Description`.
        gain: optimal gain in scaled coordinates, padded ``[V, 6, 12]``.
        train, validation, held_out: rows of each split.
    """

    description: Description
    gain: Array
    train: Array
    validation: Array
    held_out: Array

    def rows(self, split: str) -> Array:
        """Rows of a split."""
        return getattr(self, check_split(split))


@dataclasses.dataclass(frozen=True)
class Variants:
    """Every plant of a data set, one row each, in the order of the config's families and then of the draw.

    Attributes:
        family, split: names ``[V]``.
        variant: number within the family ``[V]``.
        dt: sample time [s] ``[V]``.
    """

    family: np.ndarray
    split: np.ndarray
    variant: np.ndarray
    dt: np.ndarray

    def __len__(self) -> int:
        return len(self.variant)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Trajectories in SI units, as deviations from the equilibrium, in the plant's own dimension.

    Attributes:
        variant: row of the data set's variants ``[N]``.
        x0: initial states ``[N, n]``, float64.
        states: ``[N, T+1, n]``, float32.
        controls: as they reached the plant ``[N, T, m]``, float32.
        cost: continuous cost ∫ xᵀQx + uᵀRu dt over the trajectory ``[N]``.
    """

    variant: np.ndarray
    x0: np.ndarray
    states: np.ndarray
    controls: np.ndarray
    cost: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A data set on disk; nothing is read before it is asked for, and what is read is checked.

    Attributes:
        path: its folder.
        config: what it was made from.
        manifest: what the folder says it holds; see the manifest itself.
    """

    path: Path
    config: DataConfig
    manifest: dict[str, Any]

    @property
    def shards(self) -> tuple[dict[str, Any], ...]:
        """What the manifest says of each file."""
        return tuple(self.manifest["shards"])

    @property
    def num_trajectories(self) -> int:
        """Trajectories in all splits."""
        return sum(s["trajectories"] for s in self.shards)

    @property
    def left_out(self) -> dict[str, dict[str, int]]:
        """Per family, how many variants or trajectories are missing and why; families without gaps too."""
        return self.manifest["left_out"]

    def read(self, shard: dict[str, Any], names: Sequence[str]) -> dict[str, np.ndarray]:
        """Arrays of one file, compared with the manifest's digests.

        Raises:
            BadFile: the file is damaged or is another one.
        """
        path = self.path / shard["file"]
        out = {}
        with shards.opened(path) as found:
            for name in names:
                said = shard["arrays"][name]
                if name not in found or _header(found[name]) != said | {"sha256": None}:
                    raise BadFile(path, f"{name} is not what the manifest says it is")
                try:
                    out[name] = found[name][...]
                except (OSError, RuntimeError) as error:
                    raise BadFile(path, f"{name} is damaged: {error}") from None
                if hashlib.sha256(out[name].data).hexdigest() != said["sha256"]:
                    raise BadFile(path, f"{name} has changed since it was written: its checksum differs")
        return out

    @functools.cached_property
    def _tables(self) -> tuple[dict[str, np.ndarray], ...]:
        """Group ``variants`` of each file."""

        def one(shard: dict[str, Any]) -> dict[str, np.ndarray]:
            names = [name for name in shard["arrays"] if name.startswith("variants/")]
            return {name.removeprefix("variants/"): a for name, a in self.read(shard, names).items()}

        return tuple(one(shard) for shard in self.shards)

    @functools.cached_property
    def first_rows(self) -> tuple[int, ...]:
        """The row of :attr:`variants` that each file's own table begins at."""
        return tuple(int(i) for i in np.cumsum([0] + [s["variants"] for s in self.shards])[:-1])

    @functools.cached_property
    def variants(self) -> Variants:
        """Every plant, one row each."""
        family, split, variant, dt = (
            np.concatenate([t[name] for t in self._tables]) for name in ("family", "split", "variant", "dt")
        )
        return Variants(family.astype(str), split.astype(str), variant, dt)

    def scales(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Scales of the variants of one file: states ``[v, n]``, inputs ``[v, m]``."""
        return self._tables[number]["scale_x"], self._tables[number]["scale_u"]

    def rows(self, split: str | None = None, family: str | None = None) -> np.ndarray:
        """Rows of :attr:`variants` of a split, of a family, or of both."""
        chosen = np.ones(len(self.variants), bool)
        if split is not None:
            chosen &= self.variants.split == check_split(split)
        if family is not None:
            chosen &= self.variants.family == self._family(family)
        return np.flatnonzero(chosen)

    def _family(self, family: str) -> str:
        if family not in self.config.families:
            raise ValueError(
                f"family: {family!r} is not in {self.path}, which has {', '.join(self.config.families)}"
            )
        return family

    def column(self, name: str, family: str, split: str | None = None) -> np.ndarray:
        """One array of a family's variants, such as ``"K"`` or ``"parameters/mass"``, in SI units."""
        self._family(family)
        parts = [t for s, t in zip(self.shards, self._tables) if s["family"] == family]
        if name not in parts[0]:
            raise ValueError(f"name: expected one of {', '.join(parts[0])}, but found {name!r}")
        whole = np.concatenate([t[name] for t in parts])
        if split is None:
            return whole
        return whole[np.concatenate([t["split"] for t in parts]).astype(str) == check_split(split)]

    def plants(self, family: str, split: str | None = None) -> Plant:
        """A family's variants as physical plants, from their parameters: a batch with nonlinear dynamics."""
        cls = systems.family(self._family(family))
        fields = systems.parameter_fields(cls)
        return cls(**{name: jnp.asarray(self.column(f"parameters/{name}", family, split)) for name in fields})

    def linear(self, family: str, split: str | None = None) -> Linear:
        """A family's variants as linear plants, from the matrices on disk: a batch, not padded."""
        return Linear(
            **{name: jnp.asarray(self.column(name, family, split)) for name in ("A", "B", "Q", "R", "dt")}
        )

    def trajectories(self, family: str, split: str | None = None) -> Recorded:
        """A family's trajectories."""
        rows = self.rows(split, family)
        names = [f.name for f in dataclasses.fields(Recorded)]
        parts = []
        for shard, first in zip(self.shards, self.first_rows):
            if shard["family"] == family:
                runs = self.read(shard, [f"trajectories/{name}" for name in names])
                runs["trajectories/variant"] = runs["trajectories/variant"] + first
                keep = np.isin(runs["trajectories/variant"], rows)
                parts.append({name: runs[f"trajectories/{name}"][keep] for name in names})
        return Recorded(**{name: np.concatenate([p[name] for p in parts]) for name in names})

    def table(self, dtype: DTypeLike = np.float32) -> VariantTable:
        """All variants as networks see them, in the order of :attr:`variants`."""
        with jax.enable_x64(True):
            parts = [_described(t) for t in self._tables if len(t["dt"])]
            joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves).astype(dtype), *parts)
        description, gain = joined
        return VariantTable(description, gain, *(jnp.asarray(self.rows(s), jnp.int32) for s in SPLITS))


def _described(t: dict[str, np.ndarray]) -> tuple[Description, Array]:
    """Description and scaled gain of one file's variants."""
    linear = Linear(**{name: jnp.asarray(t[name]) for name in ("A", "B", "Q", "R", "dt")})
    sx, su = t["scale_x"], t["scale_u"]
    K = t["K"] * sx[:, None, :] / su[:, :, None]
    gain = np.pad(K, [(0, 0), (0, M_MAX - su.shape[1]), (0, N_MAX - sx.shape[1])])
    sx, su = jnp.asarray(sx), jnp.asarray(su)
    return describe_scaled(in_units(linear, sx, su), sx, su), jnp.asarray(gain)


def check_split(name: str) -> str:
    """The name of a split, or a ``ValueError``."""
    if name not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, but found {name!r}")
    return name


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
    strangers = sorted(p.name for p in folder.iterdir() if not p.name.endswith(".part"))
    if strangers:
        raise ValueError(
            f"path: expected a folder of its own for the data set, but {folder} holds {', '.join(strangers[:5])}"
        )
    shards.replace(mark, lambda part: part.write_text(config.to_json() + "\n", encoding="utf-8"))


def record(path: Path, family: str, content: Content, digests: dict[str, str]) -> dict[str, Any]:
    """What the manifest says of one file."""
    prefix = "left_out_"
    return {
        "file": path.name,
        "family": family,
        "bytes": path.stat().st_size,
        "variants": len(content.arrays["variants/variant"]),
        "trajectories": len(content.arrays["trajectories/variant"]),
        "left_out": {
            k.removeprefix(prefix): v for k, v in content.attributes.items() if k.startswith(prefix)
        },
        "attributes": digests[""],
        "arrays": {name: _header(a) | {"sha256": digests[name]} for name, a in content.arrays.items()},
    }


def _header(array: Any) -> dict[str, Any]:
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
    text = json.dumps(manifest, indent=1) + "\n"
    if (folder / _MANIFEST).exists() and (folder / _MANIFEST).read_text(encoding="utf-8") == text:
        return
    shards.replace(folder / _MANIFEST, lambda part: part.write_text(text, encoding="utf-8"))


def open(path: str | Path) -> Dataset:
    """Open a data set: its manifest is read, its files are looked over but not read.

    Raises:
        BadFile: (a ``ValueError``) naming the file and why: missing, cut off, another format, another size,
            other arrays than the manifest lists, anything that leads out of the folder.
    """
    folder = Path(path)
    dataset = read_manifest(folder)
    for shard in dataset.shards:
        file = folder / shard["file"]
        size = file.stat().st_size if file.is_file() else -1
        if size != shard["bytes"]:
            why = "is missing" if size < 0 else f"has {size} bytes where the manifest says {shard['bytes']}"
            raise BadFile(file, f"{why}; generate() with the same config makes it again")
        with shards.opened(file) as found:
            there = {name: _header(item) for name, item in found.items()}
        said = {name: header | {"sha256": None} for name, header in shard["arrays"].items()}
        if there != said:
            odd = sorted(name for name in there | said if there.get(name) != said.get(name))
            raise BadFile(file, f"does not hold what the manifest says: {', '.join(odd)}")
    return dataset


def read_manifest(folder: Path) -> Dataset:
    """A data set by its manifest alone, the files not looked at."""
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
        for shard in manifest["shards"]:
            _check_record(shard, config)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise BadFile(path, f"is no manifest of a data set, or is damaged: {error!r}") from None
    return Dataset(folder, config, manifest)


def _check_record(shard: dict[str, Any], config: DataConfig) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*-\d+\.h5", shard["file"]):  # never a path to somewhere else
        raise ValueError(f"{shard['file']!r} is not the name of a shard")
    if shard["family"] not in config.families:
        raise ValueError(f"{shard['file']} is of a family that the config does not name")
    for key in ("bytes", "variants", "trajectories"):
        if not isinstance(shard[key], int) or shard[key] < 0:
            raise ValueError(f"{shard['file']}: {key} is {shard[key]!r}")
    for name, header in shard["arrays"].items():
        if set(header) != {"shape", "dtype", "sha256"}:
            raise ValueError(f"{shard['file']}: {name} is described by {sorted(header)}")
