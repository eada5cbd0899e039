"""All plants of a data set, one row each, as a network and a score see them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int

from lqrlab.compute import pytree
from lqrlab.simulation import Problem, Told
from lqrlab.simulation.sampling import Continuous, Part
from lqrlab.systems import M_MAX, N_MAX, Coordinates, pad_matrix

SPLITS = ("train", "validation", "held_out")

Columns = dict[str, np.ndarray]
"""Group ``variants`` of a file: name → array with one row a plant, in SI units."""


@pytree
@dataclasses.dataclass(frozen=True)
class VariantTable:
    """The plants of a data set as one scaled problem; a batch of windows points into its rows.

    Attributes:
        problem: the plants with their optimum ``[V, …]``, float64 where that is allowed.
        validation: rows of that split.
        input_std: standard deviations of a stochastic expert's inputs, scaled, where somebody has designed one.
    """

    problem: Problem
    validation: Int[Array, " validation"]
    input_std: Float32[Array, "V 6"] | None = None

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
        return dataclasses.replace(self, problem=problem, input_std=None)


def problem(tables: Sequence[Columns]) -> Problem:
    """The scaled problem of the plants of some files, sampled in float64; their optimum is in the files."""
    full = [columns for columns in tables if len(columns["dt"])]
    with jax.enable_x64(True):
        bare = Problem.together([_part(columns) for columns in full], optimum=False)
        K = np.concatenate([pad_matrix(columns["K"], M_MAX, N_MAX) for columns in full])
        P = np.concatenate([pad_matrix(columns["P"], N_MAX, N_MAX) for columns in full])
        return dataclasses.replace(bare, K=jnp.asarray(K), P=jnp.asarray(P)).scaled()


def build(tables: Sequence[Columns]) -> VariantTable:
    """The table of the plants of all files, float64 where that is allowed."""
    split = np.concatenate([columns["split"] for columns in tables]).astype(str)
    validation = jnp.asarray(np.flatnonzero(split == "validation"), jnp.int32)
    wide = np.float64 if jax.config.read("jax_enable_x64") else np.float32
    return VariantTable(jax.tree.map(lambda a: jnp.asarray(a, wide), problem(tables)), validation)


def _part(columns: Columns) -> Part:
    """One file's plants and their units."""
    plant = Continuous(*(jnp.asarray(columns[name]) for name in "ABQR"))
    units = Coordinates.from_scales(columns["scale_x"], columns["scale_u"])
    return Part(plant, units, jnp.asarray(columns["dt"]))
