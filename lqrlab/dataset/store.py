"""A data set as a folder: its files, what is in them, and the table of its plants."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Float64, Int

from lqrlab import systems
from lqrlab.compute import checks, pytree
from lqrlab.dataset import manifest, shards
from lqrlab.dataset.data_config import DataConfig
from lqrlab.dataset.manifest import Record
from lqrlab.dataset.shards import BadFile
from lqrlab.simulation import Problem, Told
from lqrlab.simulation.sampling import Continuous, Part
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Linear, Plant, pad_matrix

SPLITS = ("train", "validation", "held_out")

Columns = dict[str, np.ndarray]  # group ``variants`` of a file: name → array with one row a plant, in SI units


@pytree
@dataclasses.dataclass(frozen=True)
class VariantTable:
    """The plants of a data set as one scaled problem; a batch of windows points into its rows.

    Attributes:
        problem: the plants with their optimum ``[V, …]``, float64 where that is allowed.
        validation: rows of that split.
    """

    problem: Problem
    validation: Int[Array, " validation"]

    def __len__(self) -> int:
        return len(self.problem)

    def told(self, rows: object) -> Told:
        """Some plants as a network sees them, float32."""
        return self.problem[rows].told().astype(np.dtype(np.float32))

    def gain(self, rows: object) -> Float32[Array, "*rows 6 12"]:
        """Optimal gains of some plants."""
        return self.problem.K[rows].astype(np.float32)

    def extended(self, more: Problem) -> "VariantTable":
        """The table with further plants after its rows, which belong to no split."""
        problem = jax.tree.map(lambda a, b: jnp.concatenate([a, jnp.asarray(b, a.dtype)]), self.problem, more)
        return dataclasses.replace(self, problem=problem)


def _problem_of(tables: Sequence[Columns]) -> Problem:
    """The scaled problem of the plants of some files, sampled in float64; their optimum is in the files."""

    def part(columns: Columns) -> Part:
        plant = Continuous(*(jnp.asarray(columns[name]) for name in "ABQR"))
        units = Coordinates.from_scales(columns["scale_x"], columns["scale_u"])
        return Part(plant, units, jnp.asarray(columns["dt"]))

    full = [columns for columns in tables if len(columns["dt"])]
    with jax.enable_x64(True):
        bare = Problem.together([part(columns) for columns in full], optimum=False)
        K = np.concatenate([pad_matrix(columns["K"], M_MAX, N_MAX) for columns in full])
        P = np.concatenate([pad_matrix(columns["P"], N_MAX, N_MAX) for columns in full])
        return dataclasses.replace(bare, K=jnp.asarray(K), P=jnp.asarray(P)).scaled()


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Trajectories in SI units, as deviations from the equilibrium, in the plant's dimension.

    Attributes:
        variant: row of the data set's variants.
        start: step of the simulated trajectory at which the row begins; 0 where whole trajectories are kept.
        x0: initial states.
        states: at each sample.
        controls: inputs as they reached the plant.
        cost: continuous cost ∫ xᵀQx + uᵀRu dt over the row.
    """

    variant: Int[np.ndarray, " N"]
    start: Int[np.ndarray, " N"]
    x0: Float64[np.ndarray, "N n"]
    states: Float32[np.ndarray, "N T+1 n"]
    controls: Float32[np.ndarray, "N T m"]
    cost: Float64[np.ndarray, " N"]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A data set on disk; read on demand, with checksums.

    Attributes:
        path: its folder.
        config: what it was made from.
        record: the manifest: all files with their arrays and digests, and the count of what was left out.
    """

    path: Path
    config: DataConfig
    record: Record

    @property
    def shards(self) -> tuple[Record, ...]:
        """The manifest's entry of each file."""
        return tuple(self.record["shards"])

    @property
    def num_trajectories(self) -> int:
        """Rows in all splits: trajectories, or kept segments of them."""
        return sum(s["trajectories"] for s in self.shards)

    @property
    def left_out(self) -> dict[str, dict[str, int]]:
        """For each family, how many variants or trajectories are missing and why, zeros included."""
        return self.record["left_out"]

    def read(self, shard: Record, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Arrays of one file, compared with the manifest's digests.

        Raises:
            BadFile: the file is damaged or is another one.
        """
        path = self.path / shard["file"]
        with shards.opened(path) as (_, arrays), shards.damage(path, "is damaged"):
            found = {name: arrays[name][...] for name in names}
        headers = shards.Content(found, {}, {}).headers
        if why := manifest.changed(headers, {name: shard["arrays"][name] for name in names}):
            raise BadFile(path, why)
        return found

    @functools.cached_property
    def tables(self) -> tuple[Columns, ...]:
        """Group ``variants`` of each file."""

        def of_file(shard: Record) -> Columns:
            names = [name for name in shard["arrays"] if name.startswith("variants/")]
            return {name.removeprefix("variants/"): a for name, a in self.read(shard, names).items()}

        return tuple(of_file(shard) for shard in self.shards)

    @functools.cached_property
    def first_rows(self) -> tuple[int, ...]:
        """The row of :attr:`variants` at which each file's variants begin."""
        return tuple(int(i) for i in np.cumsum([0] + [s["variants"] for s in self.shards])[:-1])

    @functools.cached_property
    def variants(self) -> np.recarray:
        """All plants, one row each, in the files' order: ``family``, ``split``, number ``variant`` in the family."""
        names = ("family", "split", "variant")
        family, split, variant = (np.concatenate([t[name] for t in self.tables]) for name in names)
        columns = [family.astype(str), split.astype(str), variant]
        return np.rec.fromarrays(columns, dtype=[(name, a.dtype) for name, a in zip(names, columns)])

    def table(self) -> VariantTable:
        """All plants in scaled, padded coordinates, in the order of :attr:`variants`."""
        return self._table

    @functools.cached_property
    def _table(self) -> VariantTable:
        validation = jnp.asarray(np.flatnonzero(self.variants.split == "validation"), jnp.int32)
        wide = np.float64 if jax.config.read("jax_enable_x64") else np.float32
        return VariantTable(jax.tree.map(lambda a: jnp.asarray(a, wide), _problem_of(self.tables)), validation)

    def coordinates(self, number: int, rows: Int[np.ndarray, " rows"]) -> Coordinates:
        """Units of some variants of one file, by their rows in it."""
        columns = self.tables[number]
        return Coordinates.from_scales(columns["scale_x"][rows], columns["scale_u"][rows])

    def rows(self, split: str | None = None, family: str | None = None) -> Int[np.ndarray, " rows"]:
        """Rows of :attr:`variants` of a split, of a family, or of both."""
        chosen = np.ones(len(self.variants), bool)
        if split is not None:
            chosen &= self.variants.split == checks.choice("split", split, SPLITS)
        if family is not None:
            chosen &= self.variants.family == self._known(family)
        return np.flatnonzero(chosen)

    def _known(self, family: str) -> str:
        if family not in self.config.families:
            raise ValueError(f"family: {family!r} is not in {self.path}, which has {', '.join(self.config.families)}")
        return family

    def column(self, name: str, split: str | None, family: str) -> np.ndarray:
        """One array of a family's variants, such as ``"K"`` or ``"parameters/mass"``, in SI units."""
        self._known(family)
        parts = [t for s, t in zip(self.shards, self.tables) if s["family"] == family]
        checks.choice("name", name, parts[0])
        column = np.concatenate([t[name] for t in parts])
        return column if split is None else column[self.rows(split, family) - self.rows(None, family)[0]]

    def plants(self, split: str | None, family: str) -> Plant:
        """A family's variants as physical plants, from their parameters: a batch with nonlinear dynamics."""
        cls = systems.family(self._known(family))
        fields = systems.parameter_fields(cls)
        return cls(**{name: jnp.asarray(self.column(f"parameters/{name}", split, family)) for name in fields})

    def linear(self, split: str | None, family: str) -> Linear:
        """A family's variants as linear plants, from the matrices on disk: a batch, not padded."""
        matrices = {name: self.column(name, split, family) for name in ("A", "B", "Q", "R", "dt")}
        return Linear(**{name: jnp.asarray(a) for name, a in matrices.items()})  # type: ignore[arg-type]

    def trajectories(self, split: str | None, family: str) -> Recorded:
        """A family's trajectories."""
        chosen, parts = self.rows(split, family), []
        names = [f.name for f in dataclasses.fields(Recorded) if f.name != "start" or self.config.segmented]
        for shard, first in zip(self.shards, self.first_rows):
            if shard["family"] == family:
                arrays = self.read(shard, [f"trajectories/{name}" for name in names])
                part = {name: arrays[f"trajectories/{name}"] for name in names}
                part["variant"] = part["variant"] + first
                part.setdefault("start", np.zeros(len(part["variant"]), np.int32))
                keep = np.isin(part["variant"], chosen)
                parts.append({name: a[keep] for name, a in part.items()})
        return Recorded(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def open(path: str | Path) -> Dataset:
    """Open a data set: read its manifest, check its files without reading them.

    Raises:
        BadFile: (a ``ValueError``) naming the file and why: missing, cut off, another format, another size,
            other arrays than the manifest lists, anything that leads out of the folder.
    """
    folder = checks.path("path", path)
    dataset = Dataset(folder, *manifest.read(folder))
    for shard in dataset.shards:
        if why := manifest.glance(folder / shard["file"], shard):
            raise BadFile(folder / shard["file"], why)
    return dataset
