"""Masses on springs."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Signal, param
from lqrlab.systems.registry import register


@register
class MassSpringDamper(Mechanical):
    """Mass on a spring and a damper, pushed by a force."""

    mass: Array = param(1.0, "kg", "mass", 0.01, 100.0)
    stiffness: Array = param(4.0, "N/m", "spring stiffness", 0.0, 1000.0)
    damping: Array = param(0.4, "N·s/m", "viscous damping", 0.0, 100.0)

    states = (Signal("position", "m", 0.5), Signal("velocity", "m/s", 1.0))
    inputs = (Signal("force", "N", 2.0),)
    dt = 0.05
    source = "K. J. Åström and R. M. Murray, Feedback Systems, 2nd ed. (2021), section 3.1, eq. (3.1)"

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the mass."""
        return 0.5 * self.mass * v[0] ** 2

    def potential(self, q: Array) -> Array:
        """Of the spring."""
        return 0.5 * self.stiffness * q[0] ** 2

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Push and damping."""
        return jnp.array([u[0] - self.damping * v[0]])
