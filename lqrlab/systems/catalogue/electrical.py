"""Motors and magnets."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.plant import Plant, Signal, param
from lqrlab.systems.registry import register


@register
class DCMotor(Plant):
    """Permanent-magnet motor turning a load to an angle, driven by its armature voltage."""

    inertia: Array = param(0.01, "kg·m²", "rotor and load", 1e-5, 1.0)
    friction: Array = param(0.1, "N·m·s/rad", "viscous friction", 0.0, 1.0)
    motor_constant: Array = param(0.01, "N·m/A", "torque a ampere, and volt a rad/s", 1e-3, 1.0)
    resistance: Array = param(1.0, "Ω", "armature resistance", 0.05, 50.0)
    inductance: Array = param(0.5, "H", "armature inductance", 1e-3, 5.0)

    states = (Signal("angle", "rad", 0.5), Signal("speed", "rad/s", 1.0), Signal("current", "A", 5.0))
    inputs = (Signal("voltage", "V", 12.0),)
    dt = 0.05
    source = (
        "D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), "
        "DC Motor Speed: System Modeling, with the angle added; its printed A and B are these"
    )

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's law for the rotor, Kirchhoff's for the armature."""
        _, speed, current = x
        torque = self.motor_constant * current - self.friction * speed
        drop = u[0] - self.resistance * current - self.motor_constant * speed
        return jnp.array([speed, torque / self.inertia, drop / self.inductance])


@register
class MagneticLevitation(Plant):
    """Steel ball held in the air under an electromagnet; the gap grows downwards."""

    mass: Array = param(0.05, "kg", "mass of the ball", 0.005, 5.0)
    magnet: Array = param(1e-4, "N·m/A²", "force = magnet · current² / gap", 1e-6, 1e-2)
    resistance: Array = param(1.0, "Ω", "coil resistance", 0.05, 50.0)
    inductance: Array = param(0.01, "H", "coil inductance", 1e-4, 1.0)
    nominal_gap: Array = param(0.01, "m", "gap to hold", 1e-3, 0.1)
    gravity: Array = param(9.8, "m/s²", "gravitational acceleration", 0.1, 30.0, vary=False)

    states = (
        Signal("gap", "m", 0.001, at=0.01),
        Signal("velocity", "m/s", 0.05),
        Signal("current", "A", 1.0, at=7.0),
    )
    inputs = (Signal("voltage", "V", 5.0, at=7.0),)
    solve_for = ("current", "voltage")
    dt = 0.005
    source = (
        "D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), "
        "State-Space Methods for Controller Design: magnetically suspended ball; its printed A and B are these"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The gap to hold; current and voltage are solved for."""
        zero = jnp.zeros_like(self.nominal_gap)
        return jnp.stack([self.nominal_gap, zero, zero + 7.0]), jnp.array([7.0])

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's law for the ball, Kirchhoff's for the coil."""
        gap, velocity, current = x
        pull = self.magnet * current**2 / gap
        drop = u[0] - self.resistance * current
        return jnp.array([velocity, self.gravity - pull / self.mass, drop / self.inductance])
