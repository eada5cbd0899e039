"""A data set as a folder: what belongs to it, and what is in it."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import systems
from lqrlab.compute import pytree
from lqrlab.dataset import manifest, shards
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import Description, describe_scaled, make_problem
from lqrlab.dataset.shards import BadFile
from lqrlab.simulation import SampledProblem
from lqrlab.systems import Coordinates, Linear, Plant

SPLITS = ("train", "validation", "held_out")


@pytree
@dataclasses.dataclass(frozen=True)
class VariantTable:
    """Every plant of a data set as a network and as a score see it; a batch points into its rows.

    Attributes:
        description: of all variants ``[V, …]``, see :class:`Description`.
        gain: optimal gain in scaled coordinates, padded ``[V, 6, 12]``.
        problem: their sampled problems in scaled coordinates, padded ``[V, …]``, float64 where that is allowed.
        train, validation, held_out: rows of each split.
    """

    description: Description
    gain: Array
    problem: SampledProblem
    train: Array
    validation: Array
    held_out: Array

    def rows(self, split: str) -> Array:
        """Rows of a split."""
        return getattr(self, check_split(split))

    def extended(self, description: Description, problem: SampledProblem) -> "VariantTable":
        """The table with further plants behind its own, which belong to no split."""

        def join(a: Array, b: Array) -> Array:
            return jnp.concatenate([a, jnp.asarray(b, a.dtype)])

        more = (description, problem.K, problem)
        joined = jax.tree.map(join, (self.description, self.gain, self.problem), more)
        described, gain, problems = joined
        return dataclasses.replace(self, description=described, gain=gain, problem=problems)


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
        start: step of the simulated trajectory at which this one begins ``[N]``; 0 where nothing was thinned.
        x0: initial states ``[N, n]``, float64.
        states: ``[N, T+1, n]``, float32.
        controls: as they reached the plant ``[N, T, m]``, float32.
        cost: continuous cost ∫ xᵀQx + uᵀRu dt over the trajectory ``[N]``.
    """

    variant: np.ndarray
    start: np.ndarray
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
        record: what the manifest says: every file with its arrays, digests and what was left out.
    """

    path: Path
    config: DataConfig
    record: dict[str, Any]

    @property
    def shards(self) -> tuple[dict[str, Any], ...]:
        """What the manifest says of each file."""
        return tuple(self.record["shards"])

    @property
    def num_trajectories(self) -> int:
        """Trajectories in all splits; of a thinned data set its rows, each a stretch of one."""
        return sum(s["trajectories"] for s in self.shards)

    @property
    def left_out(self) -> dict[str, dict[str, int]]:
        """Per family, how many variants or trajectories are missing and why; families without gaps too."""
        return self.record["left_out"]

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
                if name not in found or manifest.header(found[name]) != said | {"sha256": None}:
                    raise BadFile(path, f"{name} is not what the manifest says it is")
                out[name] = shards.whole(path, found, name)
                if hashlib.sha256(out[name].data).hexdigest() != said["sha256"]:
                    raise BadFile(path, f"{name} has changed since it was written: its checksum differs")
        return out

    @functools.cached_property
    def tables(self) -> tuple[dict[str, np.ndarray], ...]:
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
            np.concatenate([t[name] for t in self.tables]) for name in ("family", "split", "variant", "dt")
        )
        return Variants(family.astype(str), split.astype(str), variant, dt)

    def coordinates(self, number: int, rows: np.ndarray) -> Coordinates:
        """Units of some variants of one file, by their rows in it."""
        table = self.tables[number]
        return Coordinates.from_scales(table["scale_x"][rows], table["scale_u"][rows])

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

    def column(self, name: str, split: str | None, family: str) -> np.ndarray:
        """One array of a family's variants, such as ``"K"`` or ``"parameters/mass"``, in SI units."""
        self._family(family)
        parts = [t for s, t in zip(self.shards, self.tables) if s["family"] == family]
        if name not in parts[0]:
            raise ValueError(f"name: expected one of {', '.join(parts[0])}, but found {name!r}")
        whole = np.concatenate([t[name] for t in parts])
        if split is None:
            return whole
        return whole[np.concatenate([t["split"] for t in parts]).astype(str) == check_split(split)]

    def plants(self, split: str | None, family: str) -> Plant:
        """A family's variants as physical plants, from their parameters: a batch with nonlinear dynamics."""
        cls = systems.family(self._family(family))
        fields = systems.parameter_fields(cls)
        return cls(**{name: jnp.asarray(self.column(f"parameters/{name}", split, family)) for name in fields})

    def linear(self, split: str | None, family: str) -> Linear:
        """A family's variants as linear plants, from the matrices on disk: a batch, not padded."""
        matrices = {name: self.column(name, split, family) for name in ("A", "B", "Q", "R", "dt")}
        return Linear(**{name: jnp.asarray(a) for name, a in matrices.items()})  # type: ignore[arg-type]

    def trajectories(self, split: str | None, family: str) -> Recorded:
        """A family's trajectories."""
        rows = self.rows(split, family)
        names = [f.name for f in dataclasses.fields(Recorded)]
        parts = []
        for shard, first in zip(self.shards, self.first_rows):
            if shard["family"] == family:
                there = [name for name in names if f"trajectories/{name}" in shard["arrays"]]
                found = self.read(shard, [f"trajectories/{name}" for name in there])
                runs = {name: found[f"trajectories/{name}"] for name in there}
                runs["variant"] = runs["variant"] + first
                runs.setdefault("start", np.zeros(len(runs["variant"]), np.int32))
                keep = np.isin(runs["variant"], rows)
                parts.append({name: runs[name][keep] for name in names})
        return Recorded(**{name: np.concatenate([p[name] for p in parts]) for name in names})

    def table(self) -> VariantTable:
        """All variants in the order of :attr:`variants`; designed in float64, described in float32."""
        return self._table

    @functools.cached_property
    def _table(self) -> VariantTable:
        with jax.enable_x64(True):
            parts = [_scaled(t) for t in self.tables if len(t["dt"])]
            plants, coordinates, K, P = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
            description, problem = (
                describe_scaled(plants, coordinates),
                make_problem(plants, coordinates, K, P),
            )
        wide = np.float64 if jax.config.read("jax_enable_x64") else np.float32
        described, gain = jax.tree.map(lambda a: jnp.asarray(a, np.float32), (description, K))
        problem = jax.tree.map(lambda a: jnp.asarray(a, wide), problem)
        return VariantTable(described, gain, problem, *(jnp.asarray(self.rows(s), jnp.int32) for s in SPLITS))


def _scaled(t: dict[str, np.ndarray]) -> tuple[Linear, Coordinates, np.ndarray, np.ndarray]:
    """One file's variants scaled and padded, their units, optimal gains and costs to go."""
    linear = Linear(**{name: t[name] for name in ("A", "B", "Q", "R", "dt")})  # type: ignore[arg-type]
    coordinates = Coordinates.from_scales(t["scale_x"], t["scale_u"])
    return (
        coordinates.scale_plant(linear),
        coordinates,
        coordinates.scale_gain(t["K"]),
        coordinates.scale_cost(t["P"]),
    )


def check_split(name: str) -> str:
    """The name of a split, or a ``ValueError``."""
    if name not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, but found {name!r}")
    return name


def open(path: str | Path) -> Dataset:
    """Open a data set: its manifest is read, its files are looked over but not read.

    Raises:
        BadFile: (a ``ValueError``) naming the file and why: missing, cut off, another format, another size,
            other arrays than the manifest lists, anything that leads out of the folder.
    """
    folder = Path(path)
    dataset = Dataset(folder, *manifest.read(folder))
    for shard in dataset.shards:
        file = folder / shard["file"]
        size = file.stat().st_size if file.is_file() else -1
        if size != shard["bytes"]:
            why = "is missing" if size < 0 else f"has {size} bytes where the manifest says {shard['bytes']}"
            raise BadFile(file, f"{why}; generate() with the same config makes it again")
        with shards.opened(file) as found:
            there = {name: manifest.header(item) for name, item in found.items()}
        said = {name: header | {"sha256": None} for name, header in shard["arrays"].items()}
        if there != said:
            odd = sorted(name for name in there | said if there.get(name) != said.get(name))
            raise BadFile(file, f"does not hold what the manifest says: {', '.join(odd)}")
    return dataset
