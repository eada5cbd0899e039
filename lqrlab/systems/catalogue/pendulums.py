"""Pendulums and their relatives: one or two hinges, gravity, fewer inputs than joints."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Signal, param
from lqrlab.systems.registry import register


def gravity(value: float = 9.81) -> Array:
    """Gravity as a parameter: the same for all variants, but another planet may be asked for."""
    return param(value, "m/s²", "gravitational acceleration", 0.1, 30.0, vary=False)


@register
class Pendulum(Mechanical):
    """Pendulum held upright by a torque at its pivot; angle 0 is up."""

    mass: Array = param(1.0, "kg", "mass of the bob", 0.01, 50.0)
    length: Array = param(0.5, "m", "pivot to bob", 0.05, 10.0)
    friction: Array = param(0.1, "N·m·s/rad", "viscous friction of the pivot", 0.0, 10.0)
    gravity: Array = gravity()

    states = (Signal("angle", "rad", 0.3), Signal("angular_velocity", "rad/s", 1.5))
    inputs = (Signal("torque", "N·m", 3.0),)
    dt = 0.02
    source = "R. Tedrake, Underactuated Robotics (2023), chapter 2, The Simple Pendulum"

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the bob."""
        return 0.5 * self.mass * (self.length * v[0]) ** 2

    def potential(self, q: Array) -> Array:
        """Of the bob, zero at the pivot's height."""
        return self.mass * self.gravity * self.length * jnp.cos(q[0])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torque and friction."""
        return jnp.array([u[0] - self.friction * v[0]])


@register
class CartPole(Mechanical):
    """Cart on a rail with a pole hinged to it, balanced upright; angle 0 is up, positive towards +position."""

    cart_mass: Array = param(0.5, "kg", "mass of the cart", 0.05, 20.0)
    pole_mass: Array = param(0.2, "kg", "mass of the pole", 0.01, 10.0)
    pole_length: Array = param(0.3, "m", "hinge to the pole's centre of mass", 0.05, 5.0)
    pole_inertia: Array = param(0.006, "kg·m²", "pole's inertia about its centre of mass", 0.0, 5.0)
    friction: Array = param(0.1, "N·s/m", "viscous friction of the cart", 0.0, 10.0)
    gravity: Array = gravity(9.8)

    states = (
        Signal("position", "m", 0.5),
        Signal("angle", "rad", 0.2),
        Signal("velocity", "m/s", 1.0),
        Signal("angular_velocity", "rad/s", 1.5),
    )
    inputs = (Signal("force", "N", 5.0),)
    dt = 0.02
    source = (
        "D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), "
        "Inverted Pendulum: System Modeling; its printed A and B are these"
    )

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the cart, and of the pole's translation and rotation."""
        along = v[0] + self.pole_length * v[1] * jnp.cos(q[1])
        up = -self.pole_length * v[1] * jnp.sin(q[1])
        pole = 0.5 * self.pole_mass * (along**2 + up**2) + 0.5 * self.pole_inertia * v[1] ** 2
        return 0.5 * self.cart_mass * v[0] ** 2 + pole

    def potential(self, q: Array) -> Array:
        """Of the pole."""
        return self.pole_mass * self.gravity * self.pole_length * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Push and friction on the cart, nothing at the hinge."""
        return jnp.array([u[0] - self.friction * v[0], 0.0])


@register
class FurutaPendulum(Mechanical):
    """Rotary pendulum: a motor turns a horizontal arm that carries a pendulum, balanced upright."""

    arm_length: Array = param(0.278, "m", "motor axis to pendulum hinge", 0.05, 2.0)
    arm_inertia: Array = param(0.0315, "kg·m²", "arm and motor about the motor axis", 1e-4, 1.0)
    pendulum_mass: Array = param(0.075, "kg", "mass of the pendulum", 0.005, 5.0)
    pendulum_length: Array = param(0.148, "m", "hinge to the pendulum's centre of mass", 0.02, 2.0)
    pendulum_inertia: Array = param(0.00386, "kg·m²", "pendulum about its centre of mass", 0.0, 1.0)
    arm_friction: Array = param(1e-4, "N·m·s/rad", "viscous friction of the motor", 0.0, 0.1)
    pendulum_friction: Array = param(2.8e-4, "N·m·s/rad", "viscous friction of the hinge", 0.0, 0.1)
    gravity: Array = gravity()

    states = (
        Signal("arm_angle", "rad", 0.5),
        Signal("pendulum_angle", "rad", 0.2),
        Signal("arm_velocity", "rad/s", 1.5),
        Signal("pendulum_velocity", "rad/s", 1.5),
    )
    inputs = (Signal("torque", "N·m", 0.3),)
    dt = 0.02
    source = (
        "B. S. Cazzolato and Z. Prime, On the Dynamics of the Furuta Pendulum, J. Control Sci. Eng. (2011), "
        "528341, eqs. (33)-(34) and table 1"
    )

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the arm, and of a slender pendulum that swings across it."""
        sweep = self.pendulum_length * jnp.sin(q[1])
        across = self.arm_length * v[0] + self.pendulum_length * jnp.cos(q[1]) * v[1]
        up = -self.pendulum_length * jnp.sin(q[1]) * v[1]
        bob = 0.5 * self.pendulum_mass * (across**2 + up**2 + (sweep * v[0]) ** 2)
        spin = 0.5 * self.pendulum_inertia * (v[1] ** 2 + (jnp.sin(q[1]) * v[0]) ** 2)
        return 0.5 * self.arm_inertia * v[0] ** 2 + bob + spin

    def potential(self, q: Array) -> Array:
        """Of the pendulum."""
        return self.pendulum_mass * self.gravity * self.pendulum_length * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Motor torque and friction."""
        return jnp.array([u[0] - self.arm_friction * v[0], -self.pendulum_friction * v[1]])


@register
class Acrobot(Mechanical):
    """Two links hanging from a bar, balanced upright by a motor at the elbow alone."""

    mass1: Array = param(1.0, "kg", "mass of the first link", 0.05, 20.0)
    mass2: Array = param(1.0, "kg", "mass of the second link", 0.05, 20.0)
    length1: Array = param(1.0, "m", "length of the first link", 0.1, 5.0)
    centre1: Array = param(0.5, "m", "pivot to the first link's centre of mass", 0.05, 5.0)
    centre2: Array = param(1.0, "m", "elbow to the second link's centre of mass", 0.05, 5.0)
    inertia1: Array = param(0.083, "kg·m²", "first link about its centre of mass", 0.0, 10.0)
    inertia2: Array = param(0.33, "kg·m²", "second link about its centre of mass", 0.0, 10.0)
    gravity: Array = gravity(9.8)

    states = (
        Signal("shoulder_angle", "rad", 0.1),
        Signal("elbow_angle", "rad", 0.2),
        Signal("shoulder_velocity", "rad/s", 0.3),
        Signal("elbow_velocity", "rad/s", 0.6),
    )
    inputs = (Signal("torque", "N·m", 10.0),)
    dt = 0.02
    source = "M. W. Spong, The swing up control problem for the Acrobot, IEEE Control Syst. 15(1), 1995, eqs. (1)-(2)"

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of both links' translation and rotation."""
        spin2 = v[0] + v[1]
        elbow = self.length1 * v[0]
        link2 = elbow**2 + (self.centre2 * spin2) ** 2 + 2 * elbow * self.centre2 * spin2 * jnp.cos(q[1])
        rotation = self.inertia1 * v[0] ** 2 + self.inertia2 * spin2**2
        return 0.5 * (self.mass1 * (self.centre1 * v[0]) ** 2 + self.mass2 * link2 + rotation)

    def potential(self, q: Array) -> Array:
        """Of both links, angles from upright."""
        first = self.mass1 * self.centre1 * jnp.cos(q[0])
        second = self.mass2 * (self.length1 * jnp.cos(q[0]) + self.centre2 * jnp.cos(q[0] + q[1]))
        return self.gravity * (first + second)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torque at the elbow."""
        return jnp.array([0.0, u[0]])


@register
class BallAndBeam(Mechanical):
    """Ball rolling on a beam that a motor tilts."""

    ball_mass: Array = param(0.05, "kg", "mass of the ball", 0.005, 2.0)
    ball_radius: Array = param(0.01, "m", "radius of the ball", 0.002, 0.1)
    ball_inertia: Array = param(2e-6, "kg·m²", "ball about its centre", 0.0, 1e-3)
    beam_inertia: Array = param(0.02, "kg·m²", "beam about its pivot", 1e-3, 5.0)
    gravity: Array = gravity()

    states = (
        Signal("position", "m", 0.2),
        Signal("tilt", "rad", 0.2),
        Signal("velocity", "m/s", 0.4),
        Signal("tilt_rate", "rad/s", 0.6),
    )
    inputs = (Signal("torque", "N·m", 0.3),)
    dt = 0.02
    source = (
        "J. Hauser, S. Sastry and P. Kokotović, Nonlinear control via approximate input-output linearization: "
        "the ball and beam example, IEEE Trans. Autom. Control 37(3), 1992, section II"
    )

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the rolling ball and the turning beam."""
        rolling = (self.ball_mass + self.ball_inertia / self.ball_radius**2) * v[0] ** 2
        turning = (self.ball_mass * q[0] ** 2 + self.beam_inertia + self.ball_inertia) * v[1] ** 2
        return 0.5 * (rolling + turning)

    def potential(self, q: Array) -> Array:
        """Of the ball."""
        return self.ball_mass * self.gravity * q[0] * jnp.sin(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torque on the beam."""
        return jnp.array([0.0, u[0]])
