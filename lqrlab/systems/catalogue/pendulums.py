"""Pendulums: rods that hang or stand on a pivot."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, Plant, gravity, param, signals
from lqrlab.systems.drawing import Drawing, Line, chain, dial, ground, linkage, reach
from lqrlab.systems.mechanics import Rods


class Pendulum(Mechanical):
    """Pendulum held upright by a torque at its pivot; angle 0 is up.

    Source: R. Tedrake, Underactuated Robotics (2023), chapter 2, The Simple Pendulum
    """

    mass: Array = param(1.0, "kg", "mass of the bob", 0.01, 50.0)
    length: Array = param(0.5, "m", "pivot to bob", 0.05, 10.0)
    friction: Array = param(0.1, "N·m·s/rad", "viscous friction of the pivot", 0.0, 10.0)
    gravity: Array = gravity()

    states = signals("angle ± 0.3 rad, angular_velocity ± 1.5 rad/s")
    inputs = signals("torque ± 3 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * self.mass * (self.length * v[0]) ** 2

    def potential(self, q: Array) -> Array:
        return self.mass * self.gravity * self.length * jnp.cos(q[0])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.friction * v[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return (ground(-0.2, 0.2), *linkage(chain((0, 0), [self.length], [x[0]]), 0.06 * self.length))


class HangingPendulum(Pendulum):
    """Pendulum brought to rest hanging by a torque at its pivot; angle 0 is down.

    Source: H. K. Khalil, Nonlinear Systems, 3rd ed. (2002), section 1.2.1, the pendulum equation
    """

    friction: Array = param(0.05)

    states = signals("angle ± 0.5 rad, angular_velocity ± 2 rad/s")
    inputs = signals("torque ± 1 N·m")
    dt = 0.05

    def potential(self, q: Array) -> Array:
        return self.mass * self.gravity * self.length * (1 - jnp.cos(q[0]))

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return super().draw(np.pi - x, u)


class DoublePendulum(Mechanical):
    """Double pendulum on a pivot, balanced upright by a motor at the pivot alone (the Pendubot).

    Source: M. W. Spong and D. J. Block, The Pendubot: a mechatronic system for control research and education, Proc.
    34th IEEE Conf. Decision and Control (1995), section 2; uniform rods, both angles from upright
    """

    mass1: Array = param(0.8, "kg", "mass of the lower link", 0.05, 20.0)
    mass2: Array = param(0.5, "kg", "mass of the upper link", 0.05, 20.0)
    length1: Array = param(0.25, "m", "pivot to the joint between the links", 0.05, 5.0)
    length2: Array = param(0.3, "m", "length of the upper link", 0.05, 5.0)
    friction1: Array = param(0.01, "N·m·s/rad", "viscous friction of the pivot", 0.0, 5.0)
    friction2: Array = param(0.001, "N·m·s/rad", "viscous friction of the joint", 0.0, 5.0)
    gravity: Array = gravity()

    states = signals("lower_angle, upper_angle ± 0.1 rad, lower_velocity, upper_velocity ± 0.6 rad/s")
    inputs = signals("torque ± 2 N·m")
    dt = 0.01

    def kinetic(self, q: Array, v: Array) -> Array:
        return Rods.of(self).kinetic(q, v)

    def potential(self, q: Array) -> Array:
        return self.gravity * Rods.of(self).moment(q)[0]

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        inner = self.friction2 * (v[1] - v[0])
        return jnp.array([u[0] - self.friction1 * v[0] + inner, -inner])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        links = chain((0, 0), [self.length1, self.length2], [x[0], x[1]])
        return (ground(-0.1, 0.1), *linkage(links, 0.06 * self.length1))


class ReactionWheelPendulum(Plant):
    """Pendulum balanced upright by the reaction of a wheel that a motor spins at its tip.

    Source: D. J. Block, K. J. Åström and M. W. Spong, The Reaction Wheel Pendulum (2007), chapter 2; the wheel's angle,
    which nothing depends on, is left out
    """

    mass: Array = param(0.22, "kg", "pendulum and wheel", 0.02, 20.0)
    centre: Array = param(0.125, "m", "pivot to the common centre of mass", 0.02, 2.0)
    inertia: Array = param(0.0048, "kg·m²", "pendulum and wheel's mass about the pivot", 1e-5, 5.0)
    wheel_inertia: Array = param(3.2e-5, "kg·m²", "wheel about its axle", 1e-6, 0.5)
    friction: Array = param(5e-5, "N·m·s/rad", "viscous friction of the pivot", 0.0, 0.1)
    wheel_friction: Array = param(2e-6, "N·m·s/rad", "viscous friction of the axle", 0.0, 0.1)
    gravity: Array = gravity()

    states = signals("angle ± 0.05 rad, angular_velocity ± 0.4 rad/s, wheel_speed ± 100 rad/s")
    inputs = signals("torque ± 0.05 N·m")
    dt = 0.01

    def dynamics(self, x: Array, u: Array) -> Array:
        """Angular momentum of pendulum and wheel, the wheel's speed absolute."""
        angle, speed, wheel = x
        shaft = u[0] - self.wheel_friction * (wheel - speed)
        weight = self.mass * self.gravity * self.centre * jnp.sin(angle)
        tilt = (weight - self.friction * speed - shaft) / self.inertia
        return jnp.array([speed, tilt, shaft / self.wheel_inertia])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The rod with its wheel; the mark is half a degree a rad/s of its speed."""
        tip = reach((0, 0), 1.2 * self.centre, x[0])
        wheel = dial(tip, 0.4 * self.centre, np.pi / 2 - x[0] - 0.0087 * x[2])
        return (ground(-0.1, 0.1), Line([(0, 0), tip], "body", 5.0), *wheel)


class FurutaPendulum(Mechanical):
    """Rotary pendulum: a motor turns a horizontal arm that carries a pendulum, balanced upright.

    Source: B. S. Cazzolato and Z. Prime, On the Dynamics of the Furuta Pendulum, J. Control Sci. Eng. (2011), 528341,
    eqs. (33)-(34) and table 1
    """

    arm_length: Array = param(0.278, "m", "motor axis to pendulum hinge", 0.05, 2.0)
    arm_inertia: Array = param(0.0315, "kg·m²", "arm and motor about the motor axis", 1e-4, 1.0)
    pendulum_mass: Array = param(0.075, "kg", "mass of the pendulum", 0.005, 5.0)
    pendulum_length: Array = param(0.148, "m", "hinge to the pendulum's centre of mass", 0.02, 2.0)
    pendulum_inertia: Array = param(0.00386, "kg·m²", "pendulum about its centre of mass", 0.0, 1.0)
    arm_friction: Array = param(1e-4, "N·m·s/rad", "viscous friction of the motor", 0.0, 0.1)
    pendulum_friction: Array = param(2.8e-4, "N·m·s/rad", "viscous friction of the hinge", 0.0, 0.1)
    gravity: Array = gravity()

    states = signals("arm_angle ± 0.5 rad, pendulum_angle ± 0.2 rad", "arm_velocity, pendulum_velocity ± 1.5 rad/s")
    inputs = signals("torque ± 0.3 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the arm, and of a slender pendulum that swings across it."""
        sweep = self.pendulum_length * jnp.sin(q[1])
        across = self.arm_length * v[0] + self.pendulum_length * jnp.cos(q[1]) * v[1]
        up = -self.pendulum_length * jnp.sin(q[1]) * v[1]
        bob = 0.5 * self.pendulum_mass * (across**2 + up**2 + (sweep * v[0]) ** 2)
        spin = 0.5 * self.pendulum_inertia * (v[1] ** 2 + (jnp.sin(q[1]) * v[0]) ** 2)
        return 0.5 * self.arm_inertia * v[0] ** 2 + bob + spin

    def potential(self, q: Array) -> Array:
        return self.pendulum_mass * self.gravity * self.pendulum_length * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.arm_friction * v[0], -self.pendulum_friction * v[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the front, with the arm from above below it."""
        hinge = np.array([self.arm_length * np.sin(x[0]), 0.0])
        pendulum = linkage([hinge, reach(hinge, 2 * self.pendulum_length, x[1])], 0.02)
        above = np.array([0.0, -1.2 * self.arm_length])
        arm = dial(above, self.arm_length, np.pi / 2 - x[0])
        return (Line([(0, 0), hinge], "ground", 4.0), *pendulum, *arm)


class Acrobot(Mechanical):
    """Two links hanging from a bar, balanced upright by a motor at the elbow alone.

    Source: M. W. Spong, The swing up control problem for the Acrobot, IEEE Control Syst. 15(1), 1995, eqs. (1)-(2)
    """

    mass1: Array = param(1.0, "kg", "mass of the first link", 0.05, 20.0)
    mass2: Array = param(1.0, "kg", "mass of the second link", 0.05, 20.0)
    length1: Array = param(1.0, "m", "length of the first link", 0.1, 5.0)
    centre1: Array = param(0.5, "m", "pivot to the first link's centre of mass", 0.05, 5.0)
    centre2: Array = param(1.0, "m", "elbow to the second link's centre of mass", 0.05, 5.0)
    inertia1: Array = param(0.083, "kg·m²", "first link about its centre of mass", 0.0, 10.0)
    inertia2: Array = param(0.33, "kg·m²", "second link about its centre of mass", 0.0, 10.0)
    gravity: Array = gravity(9.8)

    states = signals(
        "shoulder_angle ± 0.1 rad, elbow_angle ± 0.2 rad", "shoulder_velocity ± 0.3 rad/s, elbow_velocity ± 0.6 rad/s"
    )
    inputs = signals("torque ± 10 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        spin2 = v[0] + v[1]
        elbow = self.length1 * v[0]
        link2 = elbow**2 + (self.centre2 * spin2) ** 2 + 2 * elbow * self.centre2 * spin2 * jnp.cos(q[1])
        rotation = self.inertia1 * v[0] ** 2 + self.inertia2 * spin2**2
        return 0.5 * (self.mass1 * (self.centre1 * v[0]) ** 2 + self.mass2 * link2 + rotation)

    def potential(self, q: Array) -> Array:
        first = self.mass1 * self.centre1 * jnp.cos(q[0])
        second = self.mass2 * (self.length1 * jnp.cos(q[0]) + self.centre2 * jnp.cos(q[0] + q[1]))
        return self.gravity * (first + second)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([0.0, u[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        lengths = [self.length1, 2 * self.centre2]
        bar = Line([(-0.3, 0), (0.3, 0)], "ground", 3.0)
        return (bar, *linkage(chain((0, 0), lengths, [x[0], x[0] + x[1]]), 0.05 * self.length1))
