"""Robots of other builds: on cables, with soft joints, on legs."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, gravity, param, signals, with_rates
from lqrlab.systems.catalogue.arms import Arm
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, axes, chain, dial, ground, linkage, reach
from lqrlab.systems.mechanics import PlanarBody, Rods, absolute


class Scara(Arm):
    """SCARA robot: two joints in the horizontal plane, a vertical spindle and a wrist about it.

    Source: R. M. Murray, Z. Li and S. S. Sastry, A Mathematical Introduction to Robotic Manipulation (1994), chapter 4,
    the SCARA robot
    """

    mass1: Array = param(5.0, "kg", "mass of the inner link", 0.2, 100.0)
    mass2: Array = param(3.0, "kg", "mass of the outer link", 0.2, 100.0)
    spindle_mass: Array = param(1.0, "kg", "mass of spindle and load", 0.05, 50.0)
    length1: Array = param(0.35, "m", "length of the inner link", 0.05, 2.0)
    length2: Array = param(0.25, "m", "length of the outer link", 0.05, 2.0)
    wrist_inertia: Array = param(0.01, "kg·m²", "load about the spindle", 1e-4, 2.0)
    friction: Array = param(0.5, "N·m·s/rad", "viscous friction of the arm's two joints", 0.0, 50.0)
    spindle_friction: Array = param(5.0, "N·s/m", "viscous friction of the spindle's travel", 0.0, 500.0)
    wrist_friction: Array = param(0.02, "N·m·s/rad", "viscous friction of the wrist", 0.0, 5.0)
    gravity: Array = gravity()

    states = with_rates(
        "shoulder = 0.4 ± 0.3 rad, elbow = 0.9 ± 0.3 rad", "height ± 0.05 m, wrist ± 0.5 rad", time=0.25
    )
    inputs = signals(
        "shoulder_torque ± 20 N·m, elbow_torque ± 8 N·m", "lift_force = 9.81 ± 20 N, wrist_torque ± 0.5 N·m"
    )
    dt = 0.01

    def kinetic(self, q: Array, v: Array) -> Array:
        rods, angles, spins = Rods.of(self), absolute(q[:2]), absolute(v[:2])
        tip = rods.tip_velocity(angles, spins)
        spindle = self.spindle_mass * (jnp.sum(tip**2) + v[2] ** 2)
        return rods.kinetic(angles, spins) + 0.5 * (spindle + self.wrist_inertia * (spins[1] + v[3]) ** 2)

    def potential(self, q: Array) -> Array:
        return self.spindle_mass * self.gravity * q[2]

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return u - jnp.stack([self.friction, self.friction, self.spindle_friction, self.wrist_friction]) * v

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        points = chain((0, 0), [self.length1, self.length2], np.pi / 2 - np.cumsum(x[:2]))
        tool = dial(points[-1], 0.05, x[0] + x[1] + x[3])
        right = 1.3 * (self.length1 + self.length2)
        rail = Line([(right, -0.2), (right, 0.2)], "ground")
        return (*linkage(points, 0.03), *tool, rail, Box((right, x[2]), 0.08, 0.05, ink="accent"))


class FlexibleJointRobot(Mechanical):
    """Hanging link driven through a spring by its motor, so that motor and link can disagree.

    Source: M. W. Spong, Modeling and control of elastic joint robots, ASME J. Dyn. Syst. Meas. Control 109(4), 1987,
    the single link; the size of the laboratory arm that S. Raghavan and J. K. Hedrick, Int. J. Control 59(2), 1994,
    observe
    """

    link_mass: Array = param(0.21, "kg", "mass of the link", 0.01, 20.0)
    centre: Array = param(0.15, "m", "joint to the link's centre of mass", 0.005, 2.0)
    link_inertia: Array = param(0.0093, "kg·m²", "link about the joint", 1e-4, 10.0)
    motor_inertia: Array = param(0.0037, "kg·m²", "rotor, seen through its gear", 1e-4, 10.0)
    stiffness: Array = param(0.18, "N·m/rad", "stiffness of the joint", 0.01, 1000.0)
    motor_friction: Array = param(0.0046, "N·m·s/rad", "viscous friction of the motor", 0.0, 5.0)
    gravity: Array = gravity()

    states = signals("link_angle, motor_angle ± 0.3 rad, link_velocity, motor_velocity ± 2 rad/s")
    inputs = signals("torque ± 0.2 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * (self.link_inertia * v[0] ** 2 + self.motor_inertia * v[1] ** 2)

    def potential(self, q: Array) -> Array:
        weight = self.link_mass * self.gravity * self.centre * (1 - jnp.cos(q[0]))
        return weight + 0.5 * self.stiffness * (q[0] - q[1]) ** 2

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.stack([0.0 * v[0], u[0] - self.motor_friction * v[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        link = linkage([(0, 0), reach((0, 0), 2 * self.centre, np.pi - x[0])], 0.1 * self.centre)
        return (*link, *dial((0, 0), 0.4 * self.centre, x[1] - np.pi / 2))


class CableRobot(PlanarBody):
    """Platform hung in an upright frame on four cables, each wound by a winch.

    Source: A. Pott, Cable-Driven Parallel Robots: Theory and Application (2018), chapter 3, structure equation and its
    wrench; straight cables without mass
    """

    mass: Array = param(4.0, "kg", "mass of the platform", 0.1, 500.0)
    inertia: Array = param(0.08, "kg·m²", "platform about its centre", 1e-3, 100.0)
    frame_width: Array = param(2.0, "m", "width of the frame", 1.0, 50.0)
    frame_height: Array = param(1.6, "m", "height of the frame", 0.8, 50.0)
    platform_width: Array = param(0.3, "m", "width of the platform", 0.05, 0.9)
    platform_height: Array = param(0.2, "m", "height of the platform", 0.03, 0.7)
    pretension: Array = param(40.0, "N", "tension of the lower cables at rest", 1.0, 5000.0)
    friction: Array = param(3.0, "N·s/m", "viscous drag of the platform", 0.0, 500.0)
    gravity: Array = gravity()

    states = with_rates("x, y ± 0.1 m, angle ± 0.1 rad", time=0.2)
    inputs = signals(
        "upper_left_tension, upper_right_tension = 75 ± 20 N", "lower_left_tension, lower_right_tension = 40 ± 20 N"
    )
    dt = 0.02

    _CORNERS = np.array([(-0.5, 0.5), (0.5, 0.5), (-0.5, -0.5), (0.5, -0.5)])
    # cables cross: each upper winch pulls a lower corner and the other way round, which stiffens the angle
    _CROSSED = np.array([(-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5), (0.5, 0.5)])

    def operating_point(self) -> tuple[Array, Array]:
        """The middle of the frame; the upper cables carry the weight as well."""
        across = 0.5 * (self.frame_width - self.platform_width)
        up = 0.5 * (self.frame_height + self.platform_height)
        upper = self.pretension + 0.5 * self.mass * self.gravity * jnp.hypot(across, up) / up
        return jnp.zeros(6), jnp.stack([upper, upper, self.pretension, self.pretension])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Each cable pulls its corner towards its winch; drag spread along the platform."""
        arms = jnp.asarray(self._CROSSED, q.dtype) * jnp.stack([self.platform_width, self.platform_height])[None]
        s, c = jnp.sin(q[2]), jnp.cos(q[2])
        arms = arms @ jnp.stack([jnp.stack([c, s]), jnp.stack([-s, c])])
        winches = jnp.asarray(self._CORNERS, q.dtype) * jnp.stack([self.frame_width, self.frame_height])[None]
        cables = winches - arms - q[None, :2]
        pull = (u / jnp.sqrt(jnp.sum(cables**2, axis=1)))[:, None] * cables
        turn = jnp.sum(arms[:, 0] * pull[:, 1] - arms[:, 1] * pull[:, 0])
        total = jnp.concatenate([jnp.sum(pull, axis=0), turn[None]])
        return total - self.friction * v * jnp.stack([1.0, 1.0, self.platform_width**2 / 12])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The frame, cables as thick as they are tight."""
        winches = self._CORNERS * (self.frame_width, self.frame_height)
        corners = x[:2] + (self._CROSSED * (self.platform_width, self.platform_height)) @ np.array(axes(x[2]))
        tight = np.clip(0.5 + u / 40, 0.5, 5)
        cables = [Line(ends, "accent", float(width)) for *ends, width in zip(winches, corners, tight)]
        frame = Box((0, 0), self.frame_width, self.frame_height, ink="ground", filled=False)
        return (frame, Box(x[:2], self.platform_width, self.platform_height, x[2]), *cables)


class PlanarBiped(Mechanical):
    """Walking robot of five links standing on one leg, the other in the air, a motor at every joint.

    Source: E. R. Westervelt, J. W. Grizzle, C. Chevallereau, J. H. Choi and B. Morris, Feedback Control of Dynamic
    Bipedal Robot Locomotion (2007), chapter 3 and the size of RABBIT; uniform links, the stance foot flat on the
    ground, all angles from upright
    """

    shank_mass: Array = param(3.2, "kg", "mass of a shank", 0.1, 50.0)
    thigh_mass: Array = param(6.8, "kg", "mass of a thigh", 0.1, 50.0)
    torso_mass: Array = param(12.0, "kg", "mass of the torso", 0.5, 100.0)
    shank_length: Array = param(0.4, "m", "length of a shank", 0.05, 2.0)
    thigh_length: Array = param(0.4, "m", "length of a thigh", 0.05, 2.0)
    torso_length: Array = param(0.63, "m", "length of the torso", 0.1, 2.0)
    friction: Array = param(0.5, "N·m·s/rad", "viscous friction of each joint", 0.0, 20.0)
    gravity: Array = gravity()

    states = with_rates(
        "stance_shank_angle = 0.2 ± 0.1 rad, stance_thigh_angle = -0.15 ± 0.1 rad",
        "torso_angle = 0.05 ± 0.1 rad, swing_thigh_angle = -0.4 ± 0.1 rad, swing_shank_angle = 0.1 ± 0.1 rad",
        time=0.15,
    )
    inputs = signals(
        "ankle_torque = -20.12 ± 60 N·m, stance_knee_torque = 3.58 ± 60 N·m",
        "stance_hip_torque = -11.31 ± 60 N·m, swing_hip_torque = -9.46 ± 40 N·m",
        "swing_knee_torque = 0.63 ± 15 N·m",
    )
    dt = 0.01

    # a joint's torque turns the link after it forwards and the one before it back
    _JOINTS = np.eye(5) - np.eye(5, k=1)

    def operating_point(self) -> tuple[Array, Array]:
        x, load = self.held()
        return x, jnp.asarray(np.linalg.inv(self._JOINTS)) @ load

    def _bodies(self) -> tuple[Rods, Rods, Rods]:
        """Stance leg and torso upwards, swing leg downwards from the hip."""
        mass = jnp.stack([self.shank_mass, self.thigh_mass])
        length = jnp.stack([self.shank_length, self.thigh_length])
        torso = Rods(self.torso_mass[None], self.torso_length[None])
        return Rods(mass, length), torso, Rods(mass[::-1], -length[::-1])

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of uniform rods: up the stance leg, then the torso up and the swing leg down from the hip."""
        stance, torso, swing = self._bodies()
        hip = stance.tip_velocity(q[:2], v[:2])
        above = torso.kinetic(q[2:3], v[2:3], hip) + swing.kinetic(q[3:], v[3:], hip)
        return stance.kinetic(q[:2], v[:2]) + above

    def potential(self, q: Array) -> Array:
        stance, torso, swing = self._bodies()
        at_hip = (self.torso_mass + self.shank_mass + self.thigh_mass) * stance.tip(q[:2])[0]
        moments = stance.moment(q[:2]) + torso.moment(q[2:3]) + swing.moment(q[3:])
        return self.gravity * (at_hip + moments[0])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        joints = jnp.asarray(self._JOINTS)
        return joints @ (u - self.friction * (joints.T @ v))

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        stance = chain((0, 0), [self.shank_length, self.thigh_length], x[:2])
        swing = chain(stance[-1], [-self.thigh_length, -self.shank_length], x[3:5])
        torso = [stance[-1], reach(stance[-1], self.torso_length, x[2])]
        foot = Line([(-0.08, 0), (0.12, 0)], "body", 6.0)
        legs = (Line(swing, "faint", 5.0), Line(stance, "body", 5.0))
        return (ground(-0.6, 0.6), foot, *legs, Line(torso, "body", 7.0), Disc(torso[-1], 0.07, "accent"))


class PlanarQuadruped(PlanarBody):
    """Four-legged robot seen from its side: front and hind feet stand and push the trunk.

    Source: J. Di Carlo, P. M. Wensing, B. Katz, G. Bledt and S. Kim, Dynamic locomotion in the MIT Cheetah 3 through
    convex model-predictive control, IROS 2018, its single rigid body in the sagittal plane
    """

    mass: Array = param(43.0, "kg", "mass of the trunk", 1.0, 500.0)
    inertia: Array = param(2.1, "kg·m²", "trunk about its pitch axis", 0.02, 100.0)
    front: Array = param(0.3, "m", "centre of mass to the front feet, along the ground", 0.05, 2.0)
    hind: Array = param(0.3, "m", "centre of mass to the hind feet, along the ground", 0.05, 2.0)
    height: Array = param(0.45, "m", "height of the centre of mass", 0.05, 2.0)
    gravity: Array = gravity()

    states = with_rates("x, z ± 0.05 m, pitch ± 0.1 rad", time=0.1)
    inputs = signals(
        "front_forward_force ± 100 N, front_upward_force = 210 ± 100 N",
        "hind_forward_force ± 100 N, hind_upward_force = 210 ± 100 N",
    )
    dt = 0.01

    def operating_point(self) -> tuple[Array, Array]:
        """Standing: the feet share the weight so that nothing turns."""
        share = self.mass * self.gravity / (self.front + self.hind)
        return self.point(front_upward_force=share * self.hind, hind_upward_force=share * self.front)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """The ground's push on the feet, which stay where they are; pitch lifts the front."""
        arms = jnp.stack([self.front - q[0], -self.hind - q[0]])
        turn = arms @ jnp.stack([u[1], u[3]]) + (self.height + q[1]) * (u[0] + u[2])
        return jnp.stack([u[0] + u[2], u[1] + u[3], turn])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        along, centre = axes(x[2])[0], np.array([x[0], self.height + x[1]])
        shapes: list = [ground(-1.0, 1.0)]
        size = self.mass * self.gravity / self.height
        for place, side, push in ((self.front, 1, u[:2]), (-self.hind, -1, u[2:])):
            hip, foot = centre + side * 0.8 * self.front * along, np.array([place, 0.0])
            knee = 0.5 * (hip + foot) - np.array([0.08, 0.0])
            shapes += [Line([hip, knee, foot], "body", 4.0), Arrow(foot, foot + push / size)]
        return (*shapes, Box(centre, 2 * self.front, 0.15, x[2]))
