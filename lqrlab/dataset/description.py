"""A plant as a network sees it: sampled, in scaled, padded coordinates."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control, systems
from lqrlab.compute import pytree
from lqrlab.simulation import SampledProblem
from lqrlab.systems import Coordinates, Linear, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Description:
    """What a network is told of a plant; with Bryson's weights Q and R are the identity in these coordinates.

    Attributes:
        A, B: exact zero-order hold of the scaled plant ``[*batch, 12, 12|6]``; zero in padding.
        Q, R: continuous weights of the scaled plant; zero in padding.
        coordinates: its units and masks.
    """

    A: Array
    B: Array
    Q: Array
    R: Array
    coordinates: Coordinates

    @property
    def state_mask(self) -> Array:
        """1 where a state exists, 0 in padding ``[*batch, 12]``."""
        return self.coordinates.state_mask

    @property
    def input_mask(self) -> Array:
        """1 where an input exists, 0 in padding ``[*batch, 6]``."""
        return self.coordinates.input_mask

    def __getitem__(self, rows: Any) -> "Description":
        """The descriptions of some plants."""
        return jax.tree.map(lambda a: a[rows], self)


def describe(plant: Plant) -> Description:
    """Describe a plant or a batch, seen or unseen: what is needed follows from the plant alone."""
    coordinates = Coordinates.of(plant)
    return describe_scaled(coordinates.scale_plant(systems.linearise(plant)), coordinates)


@jax.jit
def describe_scaled(plant: Linear, coordinates: Coordinates) -> Description:
    """The description of a plant that ``coordinates.scale_plant`` returned; one program for plants of all families."""
    A, B = control.c2d(plant.A, plant.B, plant.dt)
    masked = coordinates.zero_padding
    return Description(
        masked(A, "x", "x"),
        masked(B, "x", "u"),
        masked(plant.Q, "x", "x"),
        masked(plant.R, "u", "u"),
        coordinates,
    )


def make_problem(plant: Linear, coordinates: Coordinates, K: ArrayLike, P: ArrayLike) -> SampledProblem:
    """The sampled problem of scaled, padded plants whose optimum is known.

    Args:
        plant: ``[V, …]``, as ``coordinates.scale_plant`` returns it.
        coordinates: the plants' units and masks.
        K, P: optimal gain and cost to go in scaled coordinates, ``[V, 6, 12]``, ``[V, 12, 12]``.
    """
    A, B, Q, R, N = control.discretize(plant.A, plant.B, plant.Q, plant.R, plant.dt)
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
