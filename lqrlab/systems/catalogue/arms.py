"""Arms with a motor at every joint."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Drawing, Line, Spring, chain, ground, linkage
from lqrlab.systems.mechanics import Rods, absolute


class Arm(Mechanical):
    """A motor at each joint holds the arm where its states are declared, against gravity and friction."""

    if TYPE_CHECKING:
        friction: Array

    def operating_point(self) -> tuple[Array, Array]:
        return self.held()

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return u - self.friction * v


class RodArm(Arm):
    """Planar arm of uniform rods; angles from the link before, the shoulder's from the horizontal."""

    if TYPE_CHECKING:
        gravity: Array

    def kinetic(self, q: Array, v: Array) -> Array:
        return Rods.of(self).kinetic(absolute(q), absolute(v))

    def potential(self, q: Array) -> Array:
        return self.gravity * Rods.of(self).moment(absolute(q))[1]

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        lengths = [getattr(self, f"length{i + 1}") for i in range(self.m)]
        angles = np.pi / 2 - np.cumsum(x[: self.m])
        return (ground(-0.15, 0.15), *linkage(chain((0, 0), lengths, angles), 0.03))


class TwoLinkArm(RodArm):
    """Planar arm with a motor at shoulder and elbow, holding a bent pose against gravity.

    Source: R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), section
    4.2.3, planar arm of two links, with uniform rods
    """

    mass1: Array = param(2.0, "kg", "mass of the upper arm", 0.1, 50.0)
    mass2: Array = param(1.0, "kg", "mass of the forearm", 0.1, 50.0)
    length1: Array = param(0.5, "m", "length of the upper arm", 0.05, 3.0)
    length2: Array = param(0.4, "m", "length of the forearm", 0.05, 3.0)
    friction: Array = param(0.2, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)
    gravity: Array = gravity()

    states = signals(
        "shoulder_angle = 0.6 ± 0.3 rad, elbow_angle = 0.9 ± 0.3 rad", "shoulder_velocity, elbow_velocity ± 1 rad/s"
    )
    inputs = signals("shoulder_torque = 8.24 ± 10 N·m, elbow_torque = 0.14 ± 4 N·m")
    dt = 0.02


class ThreeLinkArm(RodArm):
    """Planar arm with motors at shoulder, elbow and wrist, holding a bent pose against gravity.

    Source: M. W. Spong, S. Hutchinson and M. Vidyasagar, Robot Modeling and Control, 2nd ed. (2020), chapter 6, planar
    arms; uniform rods, each angle from the link before
    """

    mass1: Array = param(3.0, "kg", "mass of the upper arm", 0.1, 50.0)
    mass2: Array = param(2.0, "kg", "mass of the forearm", 0.1, 50.0)
    mass3: Array = param(0.8, "kg", "mass of the hand", 0.05, 50.0)
    length1: Array = param(0.5, "m", "length of the upper arm", 0.05, 3.0)
    length2: Array = param(0.4, "m", "length of the forearm", 0.05, 3.0)
    length3: Array = param(0.2, "m", "length of the hand", 0.03, 3.0)
    friction: Array = param(0.2, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)
    gravity: Array = gravity()

    states = with_rates(
        "shoulder_angle = 0.9 ± 0.3 rad, elbow_angle = -0.8 ± 0.3 rad, wrist_angle = 0.5 ± 0.3 rad", time=0.3
    )
    inputs = signals("shoulder_torque = 20.79 ± 20 N·m, elbow_torque = 7.68 ± 8 N·m, wrist_torque = 0.65 ± 1 N·m")
    dt = 0.02


class DualArm(Arm):
    """Two planar arms on a table that hold one elastic object between their hands.

    Source: R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), chapter 6,
    two planar fingers; the object's own mass neglected
    """

    mass1: Array = param(2.0, "kg", "mass of an upper arm", 0.1, 50.0)
    mass2: Array = param(1.2, "kg", "mass of a forearm with its hand", 0.1, 50.0)
    length1: Array = param(0.4, "m", "length of an upper arm", 0.05, 3.0)
    length2: Array = param(0.35, "m", "length of a forearm", 0.05, 3.0)
    object_stiffness: Array = param(200.0, "N/m", "stiffness of what they hold, in any direction", 1.0, 2000.0)
    object_damping: Array = param(2.0, "N·s/m", "its damping", 0.0, 100.0)
    friction: Array = param(0.3, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)

    states = with_rates(
        "left_shoulder = 2.2 ± 0.2 rad, left_elbow = -1.3 ± 0.2 rad",
        "right_shoulder = 0.94 ± 0.2 rad, right_elbow = 1.3 ± 0.2 rad",
        time=0.2,
    )
    inputs = signals(
        "left_shoulder_torque ± 10 N·m, left_elbow_torque ± 5 N·m",
        "right_shoulder_torque ± 10 N·m, right_elbow_torque ± 5 N·m",
    )
    dt = 0.01

    def _gap(self, q: Array) -> Array:
        """From the left hand to the right one, apart from the distance of the shoulders."""
        angles = jnp.stack([q[0], q[0] + q[1], q[2], q[2] + q[3]])
        reach = jnp.stack([-self.length1, -self.length2, self.length1, self.length2])
        return jnp.stack([jnp.cos(angles), jnp.sin(angles)]) @ reach

    def kinetic(self, q: Array, v: Array) -> Array:
        left, right = (Rods.of(self).kinetic(absolute(q[arm]), absolute(v[arm])) for arm in (slice(0, 2), slice(2, 4)))
        return left + right

    def potential(self, q: Array) -> Array:
        """Of the object, which is not strained in the pose that the states declare."""
        strain = self._gap(q) - self._gap(jnp.array([s.at for s in self.states[:4]]))
        return 0.5 * self.object_stiffness * jnp.sum(strain**2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        (_, rate), (_, back) = jax.jvp(self._gap, (q,), (v,)), jax.vjp(self._gap, q)
        return super().forces(q, v, u) - self.object_damping * back(rate)[0]

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        lengths, half = [self.length1, self.length2], 0.6 * (self.length1 + self.length2)
        left = chain((-half, 0), lengths, np.pi / 2 - np.cumsum(x[:2]))
        right = chain((half, 0), lengths, np.pi / 2 - np.cumsum(x[2:4]))
        held = Spring(left[-1], right[-1], 0.03, ink="accent")
        return (ground(-1.6 * half, 1.6 * half), held, *linkage(left, 0.03), *linkage(right, 0.03))


_Triple = tuple[Array, Array, Array]


class SixJointArm(Arm):
    """Industrial arm with six joints from waist to tool, holding a pose against gravity.

    Source: J. J. Craig, Introduction to Robotics, 3rd ed. (2005), section 6.5, link velocities outward from the base;
    joints in the order of the PUMA 560 of its section 3.7, links as solid cylinders
    """

    upper_mass: Array = param(10.0, "kg", "mass of the upper arm", 0.5, 200.0)
    forearm_mass: Array = param(6.0, "kg", "mass of the forearm", 0.3, 200.0)
    hand_mass: Array = param(2.0, "kg", "mass of hand and tool", 0.1, 100.0)
    upper_length: Array = param(0.45, "m", "length of the upper arm", 0.1, 3.0)
    forearm_length: Array = param(0.43, "m", "length of the forearm", 0.1, 3.0)
    hand_length: Array = param(0.15, "m", "length of hand and tool", 0.03, 1.0)
    radius: Array = param(0.06, "m", "radius of the links", 0.01, 0.5)
    waist_inertia: Array = param(0.8, "kg·m²", "column about the vertical", 0.01, 100.0)
    rotor_inertia: Array = param(0.05, "kg·m²", "of each motor, seen through its gear", 1e-3, 10.0)
    friction: Array = param(2.0, "N·m·s/rad", "viscous friction of each joint", 0.0, 100.0)
    gravity: Array = gravity()

    states = with_rates(
        "waist = 0.3 ± 0.3 rad, shoulder = 0.9 ± 0.3 rad, elbow = -1.2 ± 0.3 rad",
        "roll = 0.5 ± 0.3 rad, wrist = -0.4 ± 0.3 rad, tool = 0.2 ± 0.3 rad",
        time=0.3,
    )
    inputs = signals(
        "waist_torque ± 60 N·m, shoulder_torque = 56.97 ± 80 N·m, elbow_torque = 21.3 ± 40 N·m",
        "roll_torque = 0.26 ± 6 N·m, wrist_torque = 0.97 ± 6 N·m, tool_torque ± 4 N·m",
    )
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of three cylinders, the column and the rotors; velocities in each link's own axes."""
        s, c = jnp.sin(q), jnp.cos(q)

        # plain triples of numbers: XLA fuses those, stacked vectors it does not
        def pitch(i: int, x: Array, y: Array, z: Array) -> _Triple:
            return c[i] * x + s[i] * z, y, c[i] * z - s[i] * x

        def roll(i: int, x: Array, y: Array, z: Array) -> _Triple:
            return x, c[i] * y + s[i] * z, c[i] * z - s[i] * y

        def ahead(move: _Triple, spin: _Triple, distance: Array) -> _Triple:
            return move[0], move[1] + distance * spin[2], move[2] - distance * spin[1]

        def link(mass: Array, length: Array, spin: _Triple, move: _Triple) -> Array:
            thin, thick = mass * (length**2 / 12 + self.radius**2 / 4), mass * self.radius**2 / 2
            turning = thick * spin[0] ** 2 + thin * (spin[1] ** 2 + spin[2] ** 2)
            return mass * sum(m**2 for m in ahead(move, spin, length / 2)) + turning

        upper = (s[1] * v[0], -v[1], c[1] * v[0])
        total = link(self.upper_mass, self.upper_length, upper, (0.0 * v[0],) * 3)
        x, y, z = pitch(2, *upper)
        forearm = roll(3, x, y - v[2], z)
        forearm = (forearm[0] + v[3], *forearm[1:])
        elbow = roll(3, *pitch(2, *ahead((0.0 * v[0],) * 3, upper, self.upper_length)))
        total = total + link(self.forearm_mass, self.forearm_length, forearm, elbow)
        x, y, z = pitch(4, *forearm)
        hand = roll(5, x, y - v[4], z)
        hand = (hand[0] + v[5], *hand[1:])
        wrist = roll(5, *pitch(4, *ahead(elbow, forearm, self.forearm_length)))
        total = total + link(self.hand_mass, self.hand_length, hand, wrist)
        return 0.5 * (total + self.waist_inertia * v[0] ** 2 + self.rotor_inertia * jnp.sum(v**2))

    def potential(self, q: Array) -> Array:
        """Of the links; shoulder, elbow and wrist lift, the roll turns the wrist's plane."""
        lift = q[1] + q[2]
        upper, forearm = self.upper_length * jnp.sin(q[1]), self.forearm_length * jnp.sin(lift)
        hand = self.hand_length * (jnp.sin(lift) * jnp.cos(q[4]) + jnp.cos(lift) * jnp.cos(q[3]) * jnp.sin(q[4]))
        heights = self.upper_mass * upper / 2 + self.forearm_mass * (upper + forearm / 2)
        return self.gravity * (heights + self.hand_mass * (upper + forearm + hand / 2))

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side, as somebody sees it who stands at waist angle zero."""
        waist, shoulder, lift = x[0], x[1], x[1] + x[2]
        plane = np.array([np.cos(waist), np.sin(waist), 0.0])
        up, side = np.array([0.0, 0.0, 1.0]), np.array([-np.sin(waist), np.cos(waist), 0.0])
        upper = np.cos(shoulder) * plane + np.sin(shoulder) * up
        forearm = np.cos(lift) * plane + np.sin(lift) * up
        normal = np.cos(lift) * up - np.sin(lift) * plane
        hand = np.cos(x[4]) * forearm + np.sin(x[4]) * (np.cos(x[3]) * normal - np.sin(x[3]) * side)
        steps = [self.upper_length * upper, self.forearm_length * forearm, self.hand_length * hand]
        points = np.concatenate([np.zeros((1, 3)), np.cumsum(steps, axis=0)])[:, [0, 2]]
        column = Line([(0, -0.5), (0, 0)], "ground", 8.0)
        return (ground(-0.4, 0.4, -0.5), column, *linkage(list(points), 0.03))
