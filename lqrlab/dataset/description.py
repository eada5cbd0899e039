"""A plant as a network sees it: sampled, in scaled and padded coordinates."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from lqrlab import control, systems
from lqrlab.compute import checks, pytree
from lqrlab.systems import Coordinates, Linear, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Description:
    """A plant in coordinates in which its weights Q and R are the identity (Bryson's rule).

    Attributes:
        A, B: exact zero-order hold of the scaled plant, zero in padding.
        coordinates: its units and masks.
    """

    A: Float[Array, "*batch 12 12"]
    B: Float[Array, "*batch 12 6"]
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


def describe(plant: Plant) -> Description:
    """Describe a plant or a batch, seen in training or not: the plant alone decides.

    Raises:
        ValueError: weights that the scaled coordinates do not absorb: the description would not show them.

    >>> dataset.describe(systems.make("pendulum")).A.shape  # padded
    (12, 12)
    """
    systems.check_plant(plant)
    coordinates = Coordinates.of(plant)
    scaled = coordinates.scale_plant(systems.linearise(plant))
    _check_weights(scaled, coordinates)
    return _describe(scaled, coordinates)


@jax.jit
def _describe(plant: Linear, coordinates: Coordinates) -> Description:
    A, B = control.c2d(plant.A, plant.B, plant.dt)
    masked = coordinates.zero_padding
    return Description(masked(A, "x", "x"), masked(B, "x", "u"), coordinates)


def _check_weights(plant: Linear, coordinates: Coordinates) -> None:
    """Refuse a scaled, padded plant whose weights are not the identity."""
    if checks.traced(plant):
        return
    masks = {"Q": coordinates.state_mask, "R": jnp.ones_like(coordinates.input_mask)}
    for name, mask in masks.items():
        weight = getattr(plant, name)
        identity = jnp.broadcast_to(jnp.eye(weight.shape[-1]), weight.shape) * mask[..., None, :]
        if bool(jnp.max(jnp.abs(weight - identity)) > 1e-6):
            raise ValueError(
                f"plant: expected {name} to be diagonal and positive, so that the units of the signals absorb it; with "
                "cross or zero weights a network's output would not depend on them"
            )
