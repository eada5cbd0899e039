"""Robots on wheels. Those that follow a line are described by how far they are from where they should be."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, Plant, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, axes, dial, ground, mark, reach, ring


def _on_line(x: np.ndarray, size: Array | float) -> Drawing:
    """A robot from above on the line it follows, its place along it marked by a ring."""
    (along, across), at = axes(x[2], size), x[:2]
    path = (mark(-4 * size, 4 * size, 0.0, 1.5), ring((0, 0), 0.5 * size, "faint"))
    wheels = [Box(at + s * across, 0.5 * size, 0.12 * size, x[2], "ground") for s in (-0.5, 0.5)]
    return (*path, *wheels, Disc(at, 0.45 * size), Arrow(at, at + 0.8 * along))


class UnicycleRobot(Plant):
    """Robot on one steered wheel that follows a point moving along a straight line.

    Source: B. Siciliano, L. Sciavicco, L. Villani and G. Oriolo, Robotics: Modelling, Planning and Control (2009),
    section 11.2.1, the unicycle, and 11.6, tracking in the frame of the reference
    """

    cruise: Array = param(0.5, "m/s", "speed of the point it follows", 0.05, 10.0)
    slip: Array = param(0.0, "m", "how far ahead of the wheel its reference point lies", 0.0, 0.5)

    states = signals("along, across ± 0.2 m, heading ± 0.3 rad")
    inputs = signals("speed = 0.5 ± 0.3 m/s, turn_rate ± 1 rad/s")
    dt = 0.05
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(speed=self.cruise)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Rolling without sideways slip, in the frame of the moving point."""
        s, c = jnp.sin(x[2]), jnp.cos(x[2])
        swing = self.slip * u[1]
        return jnp.stack([u[0] * c - swing * s - self.cruise, u[0] * s + swing * c, u[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return _on_line(x, 0.3)


class DifferentialDriveRobot(Plant):
    """Robot on two driven wheels that follows a point moving along a straight line.

    Source: B. Siciliano, L. Sciavicco, L. Villani and G. Oriolo, Robotics: Modelling, Planning and Control (2009),
    section 11.4, dynamic model of the unicycle with two driven wheels
    """

    mass: Array = param(10.0, "kg", "mass of the robot", 0.2, 500.0)
    inertia: Array = param(0.4, "kg·m²", "robot about the vertical", 0.002, 100.0)
    wheel_radius: Array = param(0.08, "m", "radius of the wheels", 0.01, 0.5)
    track: Array = param(0.4, "m", "distance of the wheels", 0.05, 2.0)
    friction: Array = param(5.0, "N·s/m", "viscous rolling friction", 0.1, 200.0)
    turn_friction: Array = param(0.2, "N·m·s/rad", "viscous friction of turning", 0.005, 50.0)
    cruise: Array = param(0.6, "m/s", "speed of the point it follows", 0.05, 5.0)

    states = signals("along, across ± 0.2 m, heading ± 0.3 rad, speed = 0.6 ± 0.3 m/s, yaw_rate ± 0.6 rad/s")
    inputs = signals("left_torque, right_torque = 0.12 ± 1 N·m")
    outputs = ("along", "across", "heading")
    dt = 0.05
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """On the point, as fast as it; the torques overcome friction."""
        torque = 0.5 * self.wheel_radius * self.friction * self.cruise
        return self.point(speed=self.cruise, left_torque=torque, right_torque=torque)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Kinematics in the frame of the moving point, then forces and moment."""
        heading, speed, yaw = x[2:]
        force = (u[0] + u[1]) / self.wheel_radius - self.friction * speed
        moment = 0.5 * self.track * (u[1] - u[0]) / self.wheel_radius - self.turn_friction * yaw
        along, across = speed * jnp.cos(heading) - self.cruise, speed * jnp.sin(heading)
        return jnp.stack([along, across, yaw, force / self.mass, moment / self.inertia])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return _on_line(x, self.track)


class OmnidirectionalRobot(Mechanical):
    """Robot on three omnidirectional wheels, which may move any way without turning first.

    Source: H. P. Oliveira, A. J. Sousa, A. P. Moreira and P. J. Costa, Modeling and assessing of omni-directional
    robots with three and four wheels, in Contemporary Robotics (2009), three wheels at 120 degrees
    """

    mass: Array = param(8.0, "kg", "mass of the robot", 0.2, 500.0)
    inertia: Array = param(0.15, "kg·m²", "robot about the vertical", 0.002, 100.0)
    wheel_radius: Array = param(0.05, "m", "radius of the wheels", 0.01, 0.5)
    arm: Array = param(0.2, "m", "centre to wheels", 0.03, 2.0)
    friction: Array = param(4.0, "N·s/m", "viscous rolling friction of a wheel", 0.0, 200.0)

    states = with_rates("x, y ± 0.3 m, heading ± 0.3 rad")
    inputs = signals("torque1, torque2, torque3 ± 0.5 N·m")
    dt = 0.05

    _WHEELS = np.pi / 3 + 2 * np.pi / 3 * np.arange(3)

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + self.inertia * v[2] ** 2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Each wheel pushes along its rolling direction [2] and slides freely across it."""
        at = q[2] + jnp.asarray(self._WHEELS, q.dtype)
        rolling = jnp.stack([-jnp.sin(at), jnp.cos(at)], axis=1)
        push = u / self.wheel_radius - self.friction * (rolling @ v[:2] + self.arm * v[2])
        return jnp.concatenate([push @ rolling, self.arm * jnp.sum(push)[None]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        at, nose = x[:2], x[:2] + axes(x[2], self.arm)[0]
        wide, long = 0.25 * self.arm, 0.6 * self.arm
        wheels = [Box(at + axes(a, self.arm)[0], wide, long, a, "ground") for a in x[2] + self._WHEELS]
        return (ring((0, 0), self.arm, "faint"), *wheels, Disc(at, 0.8 * self.arm), Arrow(at, nose))


class Segway(Mechanical):
    """Two-wheeled robot that balances upright while it drives and turns.

    Source: K. Pathak, J. Franch and S. K. Agrawal, Velocity and position control of a wheeled inverted pendulum by
    partial feedback linearization, IEEE Trans. Robot. 21(3), 2005, section II; the place along the path as first
    coordinate
    """

    body_mass: Array = param(4.0, "kg", "mass of the body", 0.1, 150.0)
    wheel_mass: Array = param(0.4, "kg", "mass of a wheel", 0.01, 20.0)
    wheel_radius: Array = param(0.1, "m", "radius of the wheels", 0.01, 0.5)
    track: Array = param(0.35, "m", "distance of the wheels", 0.05, 1.5)
    height: Array = param(0.3, "m", "axle to the body's centre of mass", 0.03, 2.0)
    pitch_inertia: Array = param(0.12, "kg·m²", "body about the axle's direction, at its centre", 1e-3, 50.0)
    yaw_inertia: Array = param(0.05, "kg·m²", "body about the vertical, upright", 1e-3, 50.0)
    friction: Array = param(0.01, "N·m·s/rad", "viscous friction between wheel and body", 0.0, 1.0)
    gravity: Array = gravity()

    states = with_rates("path ± 0.3 m, pitch ± 0.15 rad, yaw ± 0.3 rad", time=0.4)
    inputs = signals("left_torque, right_torque ± 2 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the body and the wheels, which are discs that roll."""
        s, c = jnp.sin(q[1]), jnp.cos(q[1])
        along, up = v[0] + self.height * c * v[1], self.height * s * v[1]
        turning = self.yaw_inertia * c**2 + (self.pitch_inertia + self.body_mass * self.height**2) * s**2
        wheels = 3 * self.wheel_mass * (v[0] ** 2 + (0.5 * self.track * v[2]) ** 2)
        about = 0.5 * self.wheel_mass * (self.wheel_radius * v[2]) ** 2
        body = self.body_mass * (along**2 + up**2) + self.pitch_inertia * v[1] ** 2 + turning * v[2] ** 2
        return 0.5 * (body + wheels + about)

    def potential(self, q: Array) -> Array:
        return self.body_mass * self.gravity * self.height * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques between body and wheels; the path bends with the yaw, which does no work."""
        turning = 0.5 * self.track * v[2]
        wheels = jnp.stack([v[0] - turning, v[0] + turning]) / self.wheel_radius
        torque = u - self.friction * (wheels - v[1])
        sideways = self.body_mass * self.height * jnp.sin(q[1]) * v[2]
        drive = (torque[0] + torque[1]) / self.wheel_radius + sideways * v[2]
        steer = 0.5 * self.track * (torque[1] - torque[0]) / self.wheel_radius - sideways * v[0]
        return jnp.stack([drive, -torque[0] - torque[1], steer])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side; the dial in the sky is the yaw."""
        size, axle = self.height, (x[0], self.wheel_radius)
        head = reach(axle, 1.8 * size, x[1])
        compass = dial((2.2 * size, 1.6 * size), 0.3 * size, x[2], "yaw")
        wheel = dial(axle, self.wheel_radius, -x[0] / self.wheel_radius)
        body = (Line([axle, head], "body", 8.0), Disc(head, 0.15 * size))
        return (ground(-3 * size, 3 * size), *wheel, *body, *compass)
