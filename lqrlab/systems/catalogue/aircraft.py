"""Aircraft on wings, on rotors and on jets."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, Signal, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, Real, Text, aircraft, axes, dial, ground, mark, ring
from lqrlab.systems.mechanics import PlanarBody, euler_rates, spin_acceleration


class FixedWing(Plant):
    """Small fixed-wing aircraft in the vertical plane, kept in level flight by elevator and thrust.

    Source: R. W. Beard and T. W. McLain, Small Unmanned Aircraft (2012), section 4.2 and the Aerosonde's coefficients
    of table E.2; a parabolic drag polar

    Limits: Lift stays proportional to the angle of attack, so variants that fly slowly trim beyond any real stall (0.26
    rad at worst at ±20%, 1.2 rad at ±50%).
    """

    mass: Array = param(13.5, "kg", "mass", 0.5, 200.0)
    pitch_inertia: Array = param(1.135, "kg·m²", "inertia about the pitch axis", 0.01, 100.0)
    wing_area: Array = param(0.55, "m²", "wing area", 0.05, 20.0)
    chord: Array = param(0.18994, "m", "mean chord", 0.03, 3.0)
    air_density: Array = param(1.2682, "kg/m³", "density of the air", 0.2, 1.5, vary=False)
    lift_slope: Array = param(3.45, "1/rad", "lift coefficient a rad of angle of attack", 1.0, 8.0)
    drag_zero: Array = param(0.03, "1", "drag coefficient at zero lift", 0.005, 0.2)
    moment_slope: Array = param(-0.38, "1/rad", "pitching moment a rad of angle of attack", -3.0, -0.02)
    pitch_damping: Array = param(-3.6, "1", "pitching moment a unit pitch rate", -40.0, -0.1)
    elevator_power: Array = param(-0.5, "1/rad", "pitching moment a rad of elevator", -4.0, -0.05)
    cruise: Array = param(25.0, "m/s", "airspeed to hold", 8.0, 100.0)
    gravity: Array = gravity()

    states = signals(
        "airspeed = 25 ± 2 m/s, climb_angle ± 0.1 rad", "angle_of_attack = 0.05 ± 0.1 rad, pitch_rate ± 0.5 rad/s"
    )
    inputs = signals("elevator ± 0.2 rad, thrust = 10 ± 10 N")
    solve_for = ("angle_of_attack", "elevator", "thrust")
    dt = 0.05

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(airspeed=self.cruise)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Forces along and across the path, moment about the pitch axis."""
        airspeed, climb, attack, pitch_rate = x
        elevator, thrust = u
        pressure = 0.5 * self.air_density * airspeed**2 * self.wing_area
        lift_coefficient = 0.28 + self.lift_slope * attack - 0.36 * elevator
        # induced drag of a wing of aspect ratio 15 and Oswald's factor 0.9
        drag = pressure * (self.drag_zero + lift_coefficient**2 / (jnp.pi * 0.9 * 15.0))
        lift = pressure * lift_coefficient
        rate = self.chord * pitch_rate / (2 * airspeed)
        moment = -0.02338 + self.moment_slope * attack + self.pitch_damping * rate + self.elevator_power * elevator
        weight = self.mass * self.gravity
        along = thrust * jnp.cos(attack) - drag - weight * jnp.sin(climb)
        climb_rate = (thrust * jnp.sin(attack) + lift - weight * jnp.cos(climb)) / (self.mass * airspeed)
        pitch_acceleration = pressure * self.chord * moment / self.pitch_inertia
        return jnp.array([along / self.mass, climb_rate, pitch_rate - climb_rate, pitch_acceleration])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        path = Arrow((0, 0), axes(x[1], 0.08 * x[0])[0])
        return (mark(-2, 2.5), *aircraft(x[1] + x[2], 2.0), path)


class Airliner(Plant):
    """Large airliner in cruise, held in level flight by elevator and thrust.

    Source: R. K. Heffley and W. F. Jewell, Aircraft Handling Qualities Data, NASA CR-2144 (1972), Boeing 747 at 40,000
    ft and Mach 0.8, in the rounding of S. Boyd, EE263 Introduction to Linear Dynamical Systems (Stanford), lecture
    'Examples of autonomous systems'; rigid-body motion kept nonlinear
    """

    speed_drag: Array = param(0.003, "1/s", "loss of forward acceleration a unit of forward speed, −Xu", 0.0, 0.1)
    lift_push: Array = param(0.039, "1/s", "forward acceleration a unit of downward speed, Xw", 0.0, 0.5)
    speed_lift: Array = param(0.065, "1/s", "upward acceleration a unit of forward speed, −Zu", 0.0, 1.0)
    heave_damping: Array = param(0.319, "1/s", "upward acceleration a unit of downward speed, −Zw", 0.05, 3.0)
    speed_pitch: Array = param(0.000656168, "rad/(m·s)", "pitching a unit of forward speed, Mu", -0.01, 0.01)
    pitch_stiffness: Array = param(0.00331365, "rad/(m·s)", "righting a unit of downward speed, −Mw", 1e-4, 0.1)
    pitch_damping: Array = param(0.429, "1/s", "damping of pitch, −Mq", 0.05, 5.0)
    elevator_push: Array = param(0.3048, "m/s²", "forward acceleration a rad of elevator", -10.0, 10.0)
    elevator_lift: Array = param(5.4864, "m/s²", "upward acceleration a rad of elevator", 0.0, 50.0)
    elevator_power: Array = param(1.16, "1/s²", "pitching down a rad of elevator", 0.05, 50.0)
    thrust_lift: Array = param(0.04, "1", "upward acceleration over forward, of thrust", 0.0, 0.5)
    thrust_pitch: Array = param(0.0196194, "rad/m", "pitching up over forward acceleration, of thrust", 0.0, 0.5)
    cruise: Array = param(235.9152, "m/s", "airspeed to hold", 80.0, 300.0)
    gravity: Array = gravity(9.81456)

    states = signals(
        "forward_velocity = 235.9152 ± 5 m/s, down_velocity ± 3 m/s", "pitch_rate ± 0.03 rad/s, pitch ± 0.05 rad"
    )
    inputs = signals("elevator ± 0.05 rad, thrust_over_mass ± 0.5 m/s²")
    outputs = ("forward_velocity", Signal("climb_rate", "m/s", 3.0))
    dt = 0.1

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(forward_velocity=self.cruise)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Aerodynamic forces linear in the deviations from cruise, motion and weight exact."""
        forward, down, rate, pitch = x
        gain = forward - self.cruise
        push = -self.speed_drag * gain + self.lift_push * down + self.elevator_push * u[0] + u[1]
        lift = self.speed_lift * gain + self.heave_damping * down
        lift = lift + self.elevator_lift * u[0] + self.thrust_lift * u[1]
        turn = self.speed_pitch * gain - self.pitch_stiffness * down - self.pitch_damping * rate
        turn = turn - self.elevator_power * u[0] + self.thrust_pitch * u[1]
        weight = self.gravity * jnp.stack([-jnp.sin(pitch), jnp.cos(pitch) - 1])
        return jnp.stack([push - rate * down + weight[0], rate * forward - lift + weight[1], turn, rate])

    def output(self, x: Array) -> Array:
        return jnp.stack([x[0], x[0] * jnp.sin(x[3]) - x[1] * jnp.cos(x[3])])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side, angles five times as large, with the path it flies along."""
        climb = 5 * (x[3] - np.arctan2(x[1], x[0]))
        path = Arrow((0, 0), axes(climb, x[0] / self.cruise * 2)[0])
        return (mark(-2, 2.5), *aircraft(5 * x[3], 2.0), path)


class FixedWingLateral(Plant):
    """Airliner flying straight ahead: sideslip, yaw, roll and bank under rudder and aileron.

    Source: The MathWorks, Control System Toolbox: Yaw Damper Design for a 747 Jet Aircraft, whose printed A and B these
    are (G. F. Franklin, J. D. Powell and A. Emami-Naeini, Feedback Control of Dynamic Systems, section 10.3)
    """

    side_force: Array = param(-0.0558, "1/s", "side force a unit of sideslip, over momentum", -1.0, 0.0)
    attack: Array = param(0.08029, "rad", "angle of attack in trim", 0.0, 0.3)
    weathervane: Array = param(0.598, "1/s²", "yawing a unit of sideslip", 0.05, 20.0)
    yaw_damping: Array = param(-0.115, "1/s", "yawing a unit of yaw rate", -5.0, 0.0)
    roll_yaw: Array = param(-0.0318, "1/s", "yawing a unit of roll rate", -1.0, 1.0)
    dihedral: Array = param(-3.05, "1/s²", "rolling a unit of sideslip", -60.0, 0.0)
    yaw_roll: Array = param(0.388, "1/s", "rolling a unit of yaw rate", -5.0, 5.0)
    roll_damping: Array = param(-0.465, "1/s", "rolling a unit of roll rate", -10.0, -0.01)
    rudder_side: Array = param(0.00729, "1/s", "side force a unit of rudder", 0.0, 1.0)
    rudder_yaw: Array = param(-0.475, "1/s²", "yawing a unit of rudder", -20.0, -0.01)
    rudder_roll: Array = param(0.153, "1/s²", "rolling a unit of rudder", 0.0, 20.0)
    aileron_yaw: Array = param(0.00775, "1/s²", "yawing a unit of aileron", -5.0, 5.0)
    aileron_roll: Array = param(0.143, "1/s²", "rolling a unit of aileron", 0.01, 50.0)
    speed: Array = param(235.9, "m/s", "airspeed", 30.0, 300.0)
    gravity: Array = gravity()

    states = signals("sideslip ± 0.05 rad, yaw_rate ± 0.03 rad/s, roll_rate ± 0.1 rad/s, bank ± 0.1 rad")
    inputs = signals("rudder ± 0.1 rad, aileron ± 0.3 rad")
    outputs = ("yaw_rate", "bank")
    dt = 0.1

    def dynamics(self, x: Array, u: Array) -> Array:
        """Aerodynamic force and moments linear in their causes, turning and weight exact."""
        slip, yaw, roll, bank = x
        # gravity pulls towards the lower wing, at the trim's angle of attack
        weight = self.gravity / self.speed * jnp.cos(self.attack) * jnp.sin(bank)
        side = self.side_force * slip + self.rudder_side * u[0] + weight
        turn = jnp.sin(self.attack) * roll - jnp.cos(self.attack) * yaw
        yawing = self.weathervane * slip + self.yaw_damping * yaw + self.roll_yaw * roll
        yawing = yawing + self.rudder_yaw * u[0] + self.aileron_yaw * u[1]
        rolling = self.dihedral * slip + self.yaw_roll * yaw + self.roll_damping * roll
        rolling = rolling + self.rudder_roll * u[0] + self.aileron_roll * u[1]
        return jnp.stack([side + turn, yawing, rolling, roll + jnp.tan(self.attack) * yaw * jnp.cos(bank)])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        along, normal = axes(-x[3])
        wings, fin = Line([-2 * along, 2 * along], "body", 5.0), Line([(0, 0), 0.8 * normal], "body", 4.0)
        slip = dial((-1.6, -1.6), 0.4, np.pi / 2 - 4 * x[0], "sideslip")
        yaw = dial((1.6, -1.6), 0.4, np.pi / 2 - 4 * x[1], "yaw rate")
        return (mark(-2.5, 2.5), wings, fin, Disc((0, 0), 0.3, "accent"), *slip, *yaw)


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
