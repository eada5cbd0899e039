"""Arms with a motor at every joint."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab.systems.declaration import Signal, gravity, param, with_rates
from lqrlab.systems.drawing import Drawing, Line, Spring, chain, ground, linkage
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.registry import register


def rods_kinetic(mass: Array, length: Array, angle: ArrayLike, spin: ArrayLike) -> Array:
    """Kinetic energy of uniform rods hinged end to end in a plane.

    Args:
        mass, length: of each rod, ``[k]``.
        angle, spin: absolute angle and its rate, ``[k]``.
    """
    ends = (length * spin)[None] * jnp.stack([-jnp.sin(angle), jnp.cos(angle)])
    # a rod's centre moves with all ends before it and half its own
    centres = ends @ (np.triu(np.ones((len(mass),) * 2), 1) + np.eye(len(mass)) / 2)
    return 0.5 * jnp.sum(mass * jnp.sum(centres**2, axis=0) + mass * (length * spin) ** 2 / 12)


def rods_height(mass: Array, length: Array, angle: ArrayLike) -> Array:
    """Σ mass · height of such rods' centres, angles counter-clockwise from the horizontal."""
    return mass @ (
        (np.tril(np.ones((len(mass),) * 2), -1) + np.eye(len(mass)) / 2) @ (length * jnp.sin(angle))
    )


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
    inputs = (Signal("shoulder_torque", "N·m", 10.0, at=8.24), Signal("elbow_torque", "N·m", 4.0, at=0.14))
    dt = 0.02
    drawn_in = "m"
    source = (
        "R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), "
        "section 4.2.3, planar arm of two links, with uniform rods"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The pose, held by torques that balance gravity."""
        return self.held([0.6, 0.9])

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

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Two links from the shoulder."""
        angles = np.pi / 2 - np.cumsum(x[:2])
        return (ground(-0.15, 0.15), *linkage(chain((0, 0), [self.length1, self.length2], angles), 0.03))


@register
class ThreeLinkArm(Mechanical):
    """Planar arm with motors at shoulder, elbow and wrist, holding a bent pose against gravity."""

    mass1: Array = param(3.0, "kg", "mass of the upper arm", 0.1, 50.0)
    mass2: Array = param(2.0, "kg", "mass of the forearm", 0.1, 50.0)
    mass3: Array = param(0.8, "kg", "mass of the hand", 0.05, 50.0)
    length1: Array = param(0.5, "m", "length of the upper arm", 0.05, 3.0)
    length2: Array = param(0.4, "m", "length of the forearm", 0.05, 3.0)
    length3: Array = param(0.2, "m", "length of the hand", 0.03, 3.0)
    friction: Array = param(0.2, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)
    gravity: Array = gravity()

    states = with_rates(
        Signal("shoulder_angle", "rad", 0.3, at=0.9),
        Signal("elbow_angle", "rad", 0.3, at=-0.8),
        Signal("wrist_angle", "rad", 0.3, at=0.5),
        time=0.3,
    )
    inputs = (
        Signal("shoulder_torque", "N·m", 20.0, at=20.79),
        Signal("elbow_torque", "N·m", 8.0, at=7.68),
        Signal("wrist_torque", "N·m", 1.0, at=0.65),
    )
    dt = 0.02
    drawn_in = "m"
    source = (
        "M. W. Spong, S. Hutchinson and M. Vidyasagar, Robot Modeling and Control, 2nd ed. (2020), chapter "
        "6, planar arms; uniform rods, each angle from the link before"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The pose, held by torques that balance gravity."""
        return self.held([0.9, -0.8, 0.5])

    def _rods(self) -> tuple[Array, Array]:
        return jnp.stack([self.mass1, self.mass2, self.mass3]), jnp.stack(
            [self.length1, self.length2, self.length3]
        )

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of three uniform rods."""
        return rods_kinetic(*self._rods(), _FROM_JOINTS[:3, :3] @ q, _FROM_JOINTS[:3, :3] @ v)

    def potential(self, q: Array) -> Array:
        """Of the links."""
        return self.gravity * rods_height(*self._rods(), _FROM_JOINTS[:3, :3] @ q)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques and friction."""
        return u - self.friction * v

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Three links from the shoulder."""
        lengths = [self.length1, self.length2, self.length3]
        return (ground(-0.15, 0.15), *linkage(chain((0, 0), lengths, np.pi / 2 - np.cumsum(x[:3])), 0.03))


_FROM_JOINTS = np.tril(np.ones((6, 6)))
"""Sums joint angles to absolute ones."""


@register
class DualArm(Mechanical):
    """Two planar arms on a table that hold one elastic object between their hands."""

    mass1: Array = param(2.0, "kg", "mass of an upper arm", 0.1, 50.0)
    mass2: Array = param(1.2, "kg", "mass of a forearm with its hand", 0.1, 50.0)
    length1: Array = param(0.4, "m", "length of an upper arm", 0.05, 3.0)
    length2: Array = param(0.35, "m", "length of a forearm", 0.05, 3.0)
    object_stiffness: Array = param(
        200.0, "N/m", "stiffness of what they hold, in any direction", 1.0, 2000.0
    )
    object_damping: Array = param(2.0, "N·s/m", "its damping", 0.0, 100.0)
    friction: Array = param(0.3, "N·m·s/rad", "viscous friction of each joint", 0.0, 10.0)

    states = with_rates(
        Signal("left_shoulder", "rad", 0.2, at=2.2),
        Signal("left_elbow", "rad", 0.2, at=-1.3),
        Signal("right_shoulder", "rad", 0.2, at=0.94),
        Signal("right_elbow", "rad", 0.2, at=1.3),
        time=0.2,
    )
    inputs = tuple(
        Signal(f"{side}_{joint}_torque", "N·m", size)
        for side in ("left", "right")
        for joint, size in (("shoulder", 10.0), ("elbow", 5.0))
    )
    dt = 0.01
    drawn_in = "m"
    source = (
        "R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), "
        "chapter 6, two planar fingers; the object's own mass neglected"
    )

    _POSE = np.array([2.2, -1.3, 0.94, 1.3])

    def operating_point(self) -> tuple[Array, Array]:
        """The pose in which the object is not strained."""
        return jnp.concatenate([jnp.asarray(self._POSE), jnp.zeros(4)]), jnp.zeros(4)

    def _gap(self, q: Array) -> Array:
        """From the left hand to the right one, apart from the distance of the shoulders."""
        angles = jnp.stack([q[0], q[0] + q[1], q[2], q[2] + q[3]])
        reach = jnp.stack([-self.length1, -self.length2, self.length1, self.length2])
        return jnp.stack([jnp.cos(angles) @ reach, jnp.sin(angles) @ reach])

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of two arms of two uniform rods."""
        arm = jnp.stack([self.mass1, self.mass2]), jnp.stack([self.length1, self.length2])
        two = _FROM_JOINTS[:2, :2]
        return sum(
            (rods_kinetic(*arm, two @ q[s], two @ v[s]) for s in (slice(0, 2), slice(2, 4))), jnp.zeros(())
        )

    def potential(self, q: Array) -> Array:
        """Of the object, strained by what the hands are away from the pose."""
        strain = self._gap(q) - self._gap(jnp.asarray(self._POSE))
        return 0.5 * self.object_stiffness * jnp.sum(strain**2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques, friction of the joints and damping of the object."""
        rate, back = jax.vjp(self._gap, q)[1], jax.jvp(self._gap, (q,), (v,))[1]
        return u - self.friction * v - self.object_damping * rate(back)[0]

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Both arms from above, the object between them."""
        lengths, half = [self.length1, self.length2], 0.6 * (self.length1 + self.length2)
        left = chain((-half, 0), lengths, np.pi / 2 - np.cumsum(x[:2]))
        right = chain((half, 0), lengths, np.pi / 2 - np.cumsum(x[2:4]))
        table = Line([(-1.6 * half, 0), (1.6 * half, 0)], "ground", 1.5)
        return (
            table,
            Spring(left[-1], right[-1], 0.03, ink="accent"),
            *linkage(left, 0.03),
            *linkage(right, 0.03),
        )


_Triple = tuple[Array, Array, Array]


@register
class SixJointArm(Mechanical):
    """Industrial arm with six joints from waist to tool, holding a pose against gravity."""

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
        *(
            Signal(name, "rad", 0.3, at=at)
            for name, at in zip(
                ("waist", "shoulder", "elbow", "roll", "wrist", "tool"), (0.3, 0.9, -1.2, 0.5, -0.4, 0.2)
            )
        ),
        time=0.3,
    )
    inputs = tuple(
        Signal(f"{joint}_torque", "N·m", size, at=at)
        for joint, size, at in (
            *(("waist", 60.0, 0.0), ("shoulder", 80.0, 56.97), ("elbow", 40.0, 21.3)),
            *(("roll", 6.0, 0.26), ("wrist", 6.0, 0.97), ("tool", 4.0, 0.0)),
        )
    )
    dt = 0.02
    drawn_in = "m"
    source = (
        "J. J. Craig, Introduction to Robotics, 3rd ed. (2005), section 6.5, link velocities outward from "
        "the base; joints in the order of the PUMA 560 of its section 3.7, links as solid cylinders"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The pose, held by torques that balance gravity."""
        return self.held([0.3, 0.9, -1.2, 0.5, -0.4, 0.2])

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
        hand = self.hand_length * (
            jnp.sin(lift) * jnp.cos(q[4]) + jnp.cos(lift) * jnp.cos(q[3]) * jnp.sin(q[4])
        )
        heights = self.upper_mass * upper / 2 + self.forearm_mass * (upper + forearm / 2)
        return self.gravity * (heights + self.hand_mass * (upper + forearm + hand / 2))

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques and friction."""
        return u - self.friction * v

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
