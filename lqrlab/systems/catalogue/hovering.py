"""Aircraft that hover: rotors and jets."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, Real, Text, axes, dial, ground, ring
from lqrlab.systems.mechanics import PlanarBody, euler_rates, spin_acceleration


class Quadrotor(Plant):
    """Quadrotor in hover, driven by the thrusts of its four rotors (front, left, back, right).

    Source: R. Mahony, V. Kumar and P. Corke, Multirotor Aerial Vehicles, IEEE Robot. Autom. Mag. 19(3), 2012, eqs.
    (4)-(6); the size of the quadrotor of Drake's examples
    """

    mass: Array = param(0.5, "kg", "mass", 0.02, 20.0)
    arm: Array = param(0.175, "m", "centre to rotor", 0.02, 1.0)
    roll_inertia: Array = param(0.0023, "kg·m²", "about the forward axis", 1e-5, 1.0)
    pitch_inertia: Array = param(0.0023, "kg·m²", "about the left axis", 1e-5, 1.0)
    yaw_inertia: Array = param(0.004, "kg·m²", "about the upward axis", 1e-5, 1.0)
    torque_ratio: Array = param(0.0245, "m", "a rotor's drag torque over its thrust", 1e-3, 0.5)
    gravity: Array = gravity()

    states = signals(
        "x, y, z ± 0.5 m, roll, pitch, yaw ± 0.2 rad",
        "x_velocity, y_velocity, z_velocity ± 1 m/s, roll_rate, pitch_rate, yaw_rate ± 1 rad/s",
    )
    inputs = signals("front_thrust, left_thrust, back_thrust, right_thrust = 1.22625 ± 0.5 N")
    dt = 0.02
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """Hover: each rotor carries a quarter of the weight."""
        return jnp.zeros(12), jnp.broadcast_to(self.mass * self.gravity / 4, (4,))

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton and Euler for a rigid body, z up, Euler angles yaw-pitch-roll."""
        (sr, sp, sy), (cr, cp, cy) = jnp.sin(x[3:6]), jnp.cos(x[3:6])
        up = jnp.stack([cy * sp * cr + sy * sr, sy * sp * cr - cy * sr, cp * cr])
        weight = self.gravity * jnp.array([0.0, 0.0, 1.0])
        front, left, back, right = u
        drag = self.torque_ratio * (front - left + back - right)
        moment = jnp.stack([self.arm * (left - right), self.arm * (back - front), drag])
        inertia = jnp.stack([self.roll_inertia, self.pitch_inertia, self.yaw_inertia])
        rates, spin_rate = euler_rates(x[3], x[4], x[9:]), spin_acceleration(inertia, x[9:], moment)
        return jnp.concatenate([x[6:9], rates, jnp.sum(u) / self.mass * up - weight, spin_rate])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From behind on the left, from above on the right; arrows are thrusts."""
        arm, place, centre = self.arm, x[1:3], np.array([10 * self.arm + x[0], x[1]])
        tilt, normal = axes(-x[3])
        left, right, size = place - arm * tilt, place + arm * tilt, 0.8 * arm / (self.mass * self.gravity / 4)
        behind = (Line([left, right], "body", 5.0), Disc(place, 0.25 * arm, "accent"))
        thrusts = [Arrow(end, end + size * thrust * normal) for end, thrust in ((left, u[1]), (right, u[3]))]
        rotors = [Disc(centre + axes(x[5] + k * np.pi / 2, arm)[0], 0.4 * arm, "faint") for k in range(4)]
        body = (Disc(centre, 0.25 * arm), Arrow(centre, centre + axes(x[5], arm)[0]))
        views = ((0.0, "from behind"), (10 * arm, "from above"))
        goals = [ring((middle, 0), arm, "faint") for middle, _ in views]
        words = [Text((middle, -2.2 * arm), text, "faint") for middle, text in views]
        return (*goals, *words, *behind, *thrusts, *rotors, *body)


class PlanarQuadrotor(PlanarBody):
    """Quadrotor in a vertical plane, driven by the thrusts of two rotors.

    Source: R. Tedrake, Underactuated Robotics (2023), chapter 3, planar quadrotor, and its example's parameters
    """

    mass: Array = param(0.486, "kg", "mass", 0.02, 20.0)
    arm: Array = param(0.25, "m", "centre to rotor", 0.02, 1.0)
    inertia: Array = param(0.00383, "kg·m²", "about the pitch axis", 1e-5, 1.0)
    gravity: Array = gravity()

    states = with_rates("x, z ± 0.5 m, pitch ± 0.2 rad")
    inputs = signals("right_thrust, left_thrust = 2.4 ± 1 N")
    dt = 0.02

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(right_thrust=self.mass * self.gravity / 2, left_thrust=self.mass * self.gravity / 2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Thrusts across the arm; a positive pitch turns left, counter-clockwise."""
        total = u[0] + u[1]
        return jnp.stack([-total * jnp.sin(q[2]), total * jnp.cos(q[2]), self.arm * (u[0] - u[1])])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        (along, normal), hover = axes(x[2], self.arm), self.mass * self.gravity / 2
        ends = ((x[:2] + along, u[0] / hover), (x[:2] - along, u[1] / hover))
        arrows = [Arrow(end, end + 0.8 * thrust * normal) for end, thrust in ends]
        arm = Line([x[:2] - along, x[:2] + along], "body", 5.0)
        return (ring((0, 0), self.arm, "faint"), arm, *arrows, Disc(x[:2], 0.2 * self.arm, "accent"))


class VTOL(PlanarBody):
    """Jet aircraft in hover on vectored thrust: pushed sideways and upwards in its own axes.

    Source: K. J. Åström and R. M. Murray, Feedback Systems, 1st ed. (2008), example 2.9 (eq. (2.26)), and the
    vectored-thrust aircraft of the python-control examples
    """

    mass: Array = param(4.0, "kg", "mass", 0.1, 20000.0)
    inertia: Array = param(0.0475, "kg·m²", "about the roll axis", 1e-3, 1e5)
    arm: Array = param(0.25, "m", "centre of mass to the thrust's line", 0.02, 5.0)
    damping: Array = param(0.05, "N·s/m", "drag of sideways and vertical flight", 0.0, 500.0)
    gravity: Array = gravity(9.8)

    states = with_rates("x, y ± 0.5 m, roll ± 0.2 rad")
    inputs = signals("side_force ± 2 N, lift = 39.2 ± 10 N")
    dt = 0.02

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(lift=self.mass * self.gravity)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        s, c = jnp.sin(q[2]), jnp.cos(q[2])
        drag = self.damping * v
        return jnp.stack([c * u[0] - s * u[1] - drag[0], s * u[0] + c * u[1] - drag[1], self.arm * u[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        (along, normal), weight = axes(x[2], self.arm), self.mass * self.gravity
        below = x[:2] - normal
        push = Arrow(below, below + 5 * u[0] / weight * along)
        lift = Arrow(below, below - 1.2 * u[1] / weight * normal)
        wings = Line([x[:2] - 2.5 * along, x[:2] + 2.5 * along], "body", 5.0)
        body = Box(x[:2], self.arm, self.arm, x[2])
        return (ground(-1, 1, -1.0), ring((0, 0), self.arm, "faint"), wings, body, push, lift)


class Helicopter(Plant):
    """Helicopter in hover: main rotor with two cyclic angles, tail rotor, six degrees of freedom.

    Source: V. Gavrilets, B. Mettler and E. Feron, Nonlinear model for a small-size acrobatic helicopter, AIAA
    2001-4333: rigid body, hub stiffness and steady flapping; the size of its X-Cell 60
    """

    mass: Array = param(8.2, "kg", "mass", 0.2, 20000.0)
    roll_inertia: Array = param(0.18, "kg·m²", "about the forward axis", 1e-3, 1e5)
    pitch_inertia: Array = param(0.34, "kg·m²", "about the right axis", 1e-3, 1e5)
    yaw_inertia: Array = param(0.28, "kg·m²", "about the downward axis", 1e-3, 1e5)
    hub_stiffness: Array = param(54.0, "N·m/rad", "moment of the hub a rad of blade flapping", 0.0, 1e6)
    hub_height: Array = param(0.235, "m", "centre of mass to the main rotor", 0.02, 5.0)
    tail_length: Array = param(0.91, "m", "centre of mass to the tail rotor", 0.1, 20.0)
    tail_height: Array = param(0.08, "m", "centre of mass to the tail rotor's height", 0.0, 5.0)
    flap_time: Array = param(0.1, "s", "time in which the blades follow the body", 0.01, 1.0)
    flap_speed: Array = param(0.004, "s/m", "blades' flapping back a unit of airspeed", 0.0, 0.1)
    heave_damping: Array = param(5.0, "N·s/m", "thrust lost a unit of climb", 0.0, 5000.0)
    side_drag: Array = param(0.6, "N·s/m", "drag of fuselage and rotor a unit of speed", 0.0, 500.0)
    yaw_damping: Array = param(0.3, "N·m·s/rad", "moment of the tail rotor against yaw", 0.0, 1e4)
    torque_ratio: Array = param(0.06, "m", "main rotor's drag torque over its thrust", 1e-3, 2.0)
    gravity: Array = gravity()

    states = signals(
        "forward_velocity, right_velocity, down_velocity ± 0.5 m/s, roll = 0.07 ± 0.15 rad, pitch ± 0.15 rad",
        "roll_rate, pitch_rate, yaw_rate ± 0.4 rad/s",
    )
    inputs = signals("lift = 80 ± 15 N, roll_cyclic, pitch_cyclic ± 0.05 rad, tail_thrust = -5.3 ± 3 N")
    solve_for = ("roll", "lift", "roll_cyclic", "tail_thrust")
    outputs = ("roll", "pitch", "roll_rate", "pitch_rate", "yaw_rate", "down_velocity")
    dt = 0.02

    def operating_point(self) -> tuple[Array, Array]:
        """Hover: the tail rotor holds the main rotor's torque, a little bank its side force."""
        weight = self.mass * self.gravity
        tail = -self.torque_ratio * weight / self.tail_length
        return self.point(roll=-tail / weight, lift=weight, tail_thrust=tail)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton and Euler in the body's axes (forward, right, down)."""
        velocity, (roll, pitch), spin = x[:3], x[3:5], x[5:]
        lift = u[0] + self.heave_damping * velocity[2]
        # steady flapping: the disc leans right and back, lags the body and is blown back by airspeed
        right = u[1] - self.flap_time * spin[0] - self.flap_speed * velocity[1]
        back = u[2] - self.flap_time * spin[1] + self.flap_speed * velocity[0]
        tilt_right, tilt_back = lift * jnp.sin(right), lift * jnp.sin(back)
        down = jnp.stack([-jnp.sin(pitch), jnp.cos(pitch) * jnp.sin(roll), jnp.cos(pitch) * jnp.cos(roll)])
        rotors = jnp.stack([-tilt_back, tilt_right + u[3], -lift * jnp.cos(right) * jnp.cos(back)])
        drag = self.side_drag * velocity * jnp.array([1.0, 1.0, 0.0])
        acceleration = (rotors - drag) / self.mass + self.gravity * down - jnp.cross(spin, velocity)
        moment_x = self.hub_stiffness * right + self.hub_height * tilt_right + self.tail_height * u[3]
        moment_y = self.hub_stiffness * back + self.hub_height * tilt_back
        moment_z = -self.torque_ratio * lift - self.tail_length * u[3] - self.yaw_damping * spin[2]
        moment = jnp.stack([moment_x, moment_y, moment_z])
        inertia = jnp.stack([self.roll_inertia, self.pitch_inertia, self.yaw_inertia])
        spin_rate = spin_acceleration(inertia, spin, moment)
        return jnp.concatenate([acceleration, euler_rates(roll, pitch, spin)[:2], spin_rate])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the right and from behind, with arrows for its velocity; the dial shows how fast it yaws."""
        size = self.tail_length

        def view(left: Real, angle: float, sideways: float, tail: bool) -> Drawing:
            at, (along, up) = np.array([left, 0.0]), axes(angle, size)
            boom = [Line([at, at - along, at - along + 0.2 * up], "body", 4.0)] if tail else []
            body, hub = (Line([at, at + 0.4 * up], "ground"), Disc(at, 0.25 * size, "faint")), at + 0.4 * up
            flies = Arrow(at, at + size * np.array([sideways, -x[2]]), "body")
            return (*boom, *body, flies, Line([hub - along, hub + along], "accent", 3.0))

        yaw = dial((2.0 * size, -0.2 * size), 0.45 * size, np.pi / 2 - 2 * x[7], "yaw rate")
        return (*view(0.0, x[4], x[0], True), *view(4.0 * size, -x[3], x[1], False), *yaw)
