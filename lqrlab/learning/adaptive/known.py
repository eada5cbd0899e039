"""What a controller is told of a plant that nobody has described to it."""

import dataclasses
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import pytree
from lqrlab.systems import Coordinates, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Known:
    """Units, sample time and noise of a plant or a batch; neither A nor B, nor to which family it belongs.

    Attributes:
        coordinates: units of the signals, and with their masks how many there are.
        steps: how far state i moves in a sample time where it is the integral of state j, which is one unit: dt times
            j's unit over i's ``[*batch, 12, 12]``.
        noise: standard deviation of the disturbance of the scaled state at each step.
        sensor_noise: the same of the measured state.
        limit: of the scaled inputs, ±; what is asked for beyond it does not arrive.
    """

    coordinates: Coordinates
    steps: Float[Array, "*batch n n"]
    noise: Float[Array, "*batch"]
    sensor_noise: Float[Array, "*batch"]
    limit: Float[Array, "*batch"]

    @classmethod
    def of(
        cls,
        plant: Plant,
        *,
        noise: ArrayLike = 0.0,
        sensor_noise: ArrayLike = 0.0,
        limit: ArrayLike = np.inf,
    ) -> Self:
        """Of a plant or a batch, whose equations are not looked at.

        >>> learning.Known.of(systems.make("pendulum"), noise=0.01).coordinates.scale_x.shape
        (12,)
        """
        lead, coordinates = plant.batch_shape, Coordinates.of(plant)
        scale, dt = coordinates.scale_x, jnp.broadcast_to(plant.dt, lead)
        steps = dt[..., None, None] * scale[..., None, :] / scale[..., :, None]
        return cls(
            coordinates,
            steps,
            *(jnp.broadcast_to(jnp.asarray(a, float), lead) for a in (noise, sensor_noise, limit)),
        )

    def scaled(self) -> Self:
        """The same for signals that are scaled and padded already."""
        ones = jnp.ones_like(self.coordinates.scale_x), jnp.ones_like(self.coordinates.scale_u)
        units = Coordinates(*ones, self.coordinates.state_mask, self.coordinates.input_mask)
        return dataclasses.replace(self, coordinates=units)
