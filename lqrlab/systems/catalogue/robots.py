"""Arms and legs."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.catalogue.pendulums import gravity
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Signal, param
from lqrlab.systems.registry import register


@register
class TwoLinkArm(Mechanical):
    """Planar arm with a motor at shoulder and elbow, holding a bent pose against gravity."""

    mass1: Array = param(2.0, "kg", "mass of the upper arm", 0.1, 50.0)
    mass2: Array = param(1.0, "kg", "mass of the forearm", 0.1, 50.0)
    length1: Array = param(0.5, "m", "length of the upper arm", 0.05, 3.0)
    length2: Array = param(0.4, "m", "length of the forearm", 0.05, 3.0)
    friction: Array = param(0.2, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)
    gravity: Array = gravity()

    states = (
        Signal("shoulder_angle", "rad", 0.3, at=0.6),
        Signal("elbow_angle", "rad", 0.3, at=0.9),
        Signal("shoulder_velocity", "rad/s", 1.0),
        Signal("elbow_velocity", "rad/s", 1.0),
    )
    inputs = (Signal("shoulder_torque", "N·m", 10.0), Signal("elbow_torque", "N·m", 4.0))
    solve_for = ("shoulder_torque", "elbow_torque")
    dt = 0.02
    source = (
        "R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), "
        "section 4.2.3, planar arm of two links, with uniform rods"
    )

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of two uniform rods."""
        spin2 = v[0] + v[1]
        elbow, centre2 = self.length1 * v[0], 0.5 * self.length2
        link1 = self.mass1 * (self.length1 * v[0]) ** 2 / 3
        carried = elbow**2 + (centre2 * spin2) ** 2 + 2 * elbow * centre2 * spin2 * jnp.cos(q[1])
        return 0.5 * (link1 + self.mass2 * carried + self.mass2 * (self.length2 * spin2) ** 2 / 12)

    def potential(self, q: Array) -> Array:
        """Of both links; the shoulder's angle is measured from the horizontal."""
        first = self.mass1 * 0.5 * self.length1 * jnp.sin(q[0])
        second = self.mass2 * (self.length1 * jnp.sin(q[0]) + 0.5 * self.length2 * jnp.sin(q[0] + q[1]))
        return self.gravity * (first + second)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques and friction."""
        return u - self.friction * v
