"""A plant as a network sees it: sampled, in scaled and padded coordinates."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab import control, systems
from lqrlab.compute import checks, pytree
from lqrlab.systems import Coordinates, Linear, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Description:
    """A plant and what it is to be regulated for, sampled, in scaled and padded coordinates.

    Attributes:
        A, B: exact zero-order hold of the scaled plant, zero in padding.
        Q, R, N: weights of a step (van Loan), zero in padding but for the diagonal of R.
        coordinates: its units and masks.
    """

    A: Float[Array, "*batch 12 12"]
    B: Float[Array, "*batch 12 6"]
    Q: Float[Array, "*batch 12 12"]
    R: Float[Array, "*batch 6 6"]
    N: Float[Array, "*batch 12 6"]
    coordinates: Coordinates

    @property
    def state_mask(self) -> Float[Array, "*batch 12"]:
        """1 where a state exists, 0 in padding."""
        return self.coordinates.state_mask

    @property
    def input_mask(self) -> Float[Array, "*batch 6"]:
        """1 where an input exists, 0 in padding."""
        return self.coordinates.input_mask

    def __getitem__(self, rows: object) -> "Description":
        """The descriptions of some plants."""
        return jax.tree.map(lambda a: a[rows], self)


def describe(plant: Plant, N: ArrayLike | None = None) -> Description:
    """Describe a plant or a batch, seen in training or not, with any weights.

    Args:
        plant: with the weights Q and R that it declares.
        N: cross weight of the cost ∫ xᵀQx + uᵀRu + 2xᵀNu ``[*batch, n, m]``; none if left out.

    >>> dataset.describe(systems.make("pendulum")).A.shape  # padded
    (12, 12)
    """
    systems.check_plant(plant)
    coordinates = Coordinates.of(plant)
    linear = systems.linearise(plant)
    cross = jnp.zeros_like(linear.B) if N is None else control.checks.matrices(N=(N, "nm"))[0]
    cross = jnp.broadcast_to(cross.astype(linear.B.dtype), linear.B.shape)
    return _describe(coordinates.scale_plant(linear), coordinates.scale_cross(cross), coordinates)


@jax.jit
def _describe(plant: Linear, N: Array, coordinates: Coordinates) -> Description:
    A, B, Q, R, N = control.discretize(plant.A, plant.B, plant.Q, plant.R, plant.dt, N)
    masked = coordinates.zero_padding
    A, B, Q, N = masked(A, "x", "x"), masked(B, "x", "u"), masked(Q, "x", "x"), masked(N, "x", "u")
    return Description(A, B, Q, R, N, coordinates)


def check_absorbed(plant: Plant, N: ArrayLike | None = None) -> None:
    """Refuse, for a network that is told A and B alone, weights that the scaled coordinates do not absorb.

    Raises:
        ValueError: a cross weight, or Q or R that are not the identity in scaled coordinates. Not inside a trace.
    """
    if checks.traced(plant, N):
        return
    coordinates = Coordinates.of(plant)
    scaled = coordinates.scale_plant(systems.linearise(plant))
    masks = {"Q": coordinates.state_mask, "R": jnp.ones_like(coordinates.input_mask)}
    for name, mask in masks.items():
        weight = getattr(scaled, name)
        identity = jnp.broadcast_to(jnp.eye(weight.shape[-1]), weight.shape) * mask[..., None, :]
        if bool(jnp.max(jnp.abs(weight - identity)) > 1e-6):
            raise ValueError(
                f"plant: expected {name} to be diagonal and positive, so that the units of the signals absorb it; this "
                "kind of network is not told the weights, so its output would not depend on them; kind='matrix' is"
            )
    if N is not None and np.any(np.asarray(N)):
        raise ValueError(
            "N: expected no cross weight: this kind of network is not told the weights, so its output would not depend "
            "on it; kind='matrix' is"
        )
