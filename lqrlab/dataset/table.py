"""All plants of a data set, one row each, as a network and a score see them."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Float32, Int

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.dataset.description import Description
from lqrlab.simulation import SampledProblem
from lqrlab.systems import Coordinates, Linear

SPLITS = ("train", "validation", "held_out")

Columns = dict[str, np.ndarray]
"""Group ``variants`` of a file: name → array with one row a plant, in SI units."""


@pytree
@dataclasses.dataclass(frozen=True)
class VariantTable:
    """Plants in scaled, padded coordinates; a batch of windows points into the rows.

    Attributes:
        problem: their sampled problems with the optimum ``[V, …]``, float64 where that is allowed.
        coordinates: their units and masks ``[V, …]``, float32.
        gains: their optimal gains, float32, as batches have them.
        train, validation, held_out: rows of each split.
        input_std: standard deviations of a stochastic expert's inputs, scaled, where somebody has designed one.
    """

    problem: SampledProblem
    coordinates: Coordinates
    gains: Float32[Array, "V 6 12"]
    train: Int[Array, " train"]
    validation: Int[Array, " validation"]
    held_out: Int[Array, " held_out"]
    input_std: Float32[Array, "V 6"] | None = None

    def __len__(self) -> int:
        return len(self.problem.A)

    def describe(self, rows: object) -> Description:
        """Some plants as a network sees them, float32."""
        A, B, Q, R, N = (a[rows].astype(jnp.float32) for a in self.problem.sampled)
        return Description(A, B, Q, R, N, self.coordinates[rows])

    def gain(self, rows: object) -> Float[Array, "*rows 6 12"]:
        """Optimal gains of some plants, float32."""
        return self.gains[rows]

    def extended(self, problem: SampledProblem, coordinates: Coordinates) -> "VariantTable":
        """The table with further plants after its rows, which belong to no split."""
        problem, coordinates, gains = jax.tree.map(
            lambda a, b: jnp.concatenate([a, jnp.asarray(b, a.dtype)]),
            (self.problem, self.coordinates, self.gains),
            (problem, coordinates, problem.K),
        )
        return dataclasses.replace(
            self, problem=problem, coordinates=coordinates, gains=gains, input_std=None
        )


def build(parts: Sequence[Columns]) -> VariantTable:
    """The table of the plants of all files, designed in float64."""
    with jax.enable_x64(True):
        scaled = [_scaled(part) for part in parts if len(part["dt"])]
        plants, coordinates, K, P = jax.tree.map(lambda *leaves: np.concatenate(leaves), *scaled)
        problem = sampled_problem(plants, coordinates, K, P)
    split = np.concatenate([part["split"] for part in parts]).astype(str)
    rows = (jnp.asarray(np.flatnonzero(split == name), jnp.int32) for name in SPLITS)
    wide = np.float64 if jax.config.read("jax_enable_x64") else np.float32
    return VariantTable(
        jax.tree.map(lambda a: jnp.asarray(a, wide), problem),
        *jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), (coordinates, problem.K)),
        *rows,
    )


def _scaled(part: Columns) -> tuple[Linear, Coordinates, np.ndarray, np.ndarray]:
    """One file's variants scaled and padded, their units, optimal gains and costs to go."""
    linear = Linear(**{name: part[name] for name in ("A", "B", "Q", "R", "dt")})  # type: ignore[arg-type]
    coordinates = Coordinates.from_scales(part["scale_x"], part["scale_u"])
    K, P = coordinates.scale_gain(part["K"]), coordinates.scale_cost(part["P"])
    return coordinates.scale_plant(linear), coordinates, K, P


def sampled_problem(
    plant: Linear,
    coordinates: Coordinates,
    K: Float[ArrayLike, "V 6 12"],
    P: Float[ArrayLike, "V 12 12"],
    N: Float[ArrayLike, "V 12 6"] | None = None,
) -> SampledProblem:
    """The sampled problem of scaled, padded plants whose optimum is known, zero in padding.

    Args:
        plant: ``[V, …]``, as ``coordinates.scale_plant`` returns it.
        coordinates: the plants' units and masks ``[V, …]``.
        K, P: optimal gain and cost to go in scaled coordinates.
        N: cross weight of the continuous cost in scaled coordinates; none if left out.
    """
    A, B, Q, R, N = control.discretize(plant.A, plant.B, plant.Q, plant.R, plant.dt, N)
    masked = coordinates.zero_padding
    return SampledProblem(
        A=masked(A, "x", "x"),
        B=masked(B, "x", "u"),
        Q=masked(Q, "x", "x"),
        R=R,
        N=masked(N, "x", "u"),
        K=jnp.asarray(K),
        P=masked(jnp.asarray(P), "x", "x"),
    )
