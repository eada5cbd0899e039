"""Aircraft on wings."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, Signal, gravity, param, signals
from lqrlab.systems.drawing import Arrow, Disc, Drawing, Line, aircraft, axes, dial, mark


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
