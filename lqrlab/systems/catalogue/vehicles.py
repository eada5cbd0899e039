"""Vehicles on the ground."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.plant import Plant, Signal, param
from lqrlab.systems.registry import register


@register
class VehicleLateral(Plant):
    """Car keeping its lane at constant speed: a single-track model steered at the front."""

    mass: Array = param(1573.0, "kg", "mass of the car", 300.0, 20000.0)
    yaw_inertia: Array = param(2873.0, "kg·m²", "inertia about the vertical", 300.0, 50000.0)
    front: Array = param(1.1, "m", "centre of mass to front axle", 0.3, 5.0)
    rear: Array = param(1.58, "m", "centre of mass to rear axle", 0.3, 5.0)
    front_stiffness: Array = param(80000.0, "N/rad", "cornering stiffness of a front tyre", 5e3, 5e5)
    rear_stiffness: Array = param(80000.0, "N/rad", "cornering stiffness of a rear tyre", 5e3, 5e5)
    speed: Array = param(30.0, "m/s", "forward speed", 2.0, 70.0)

    states = (
        Signal("lateral_position", "m", 0.5),
        Signal("heading", "rad", 0.05),
        Signal("lateral_velocity", "m/s", 0.5),
        Signal("yaw_rate", "rad/s", 0.2),
    )
    inputs = (Signal("steering", "rad", 0.05),)
    dt = 0.02
    source = (
        "R. Rajamani, Vehicle Dynamics and Control, 2nd ed. (2012), section 2.5, eqs. (2.45)-(2.46) and the "
        "passenger car of section 3.1; slip angles kept nonlinear"
    )

    def dynamics(self, x: Array, u: Array) -> Array:
        """Two tyres an axle, forces proportional to their slip angles."""
        _, heading, slide, yaw = x
        front = 2 * self.front_stiffness * (u[0] - jnp.arctan((slide + self.front * yaw) / self.speed))
        rear = -2 * self.rear_stiffness * jnp.arctan((slide - self.rear * yaw) / self.speed)
        side = front * jnp.cos(u[0])
        return jnp.array(
            [
                self.speed * jnp.sin(heading) + slide * jnp.cos(heading),
                yaw,
                (side + rear) / self.mass - self.speed * yaw,
                (self.front * side - self.rear * rear) / self.yaw_inertia,
            ]
        )
