"""Things that fly."""

import jax.numpy as jnp
from jax import Array

from lqrlab.systems.catalogue.pendulums import gravity
from lqrlab.systems.plant import Plant, Signal, param
from lqrlab.systems.registry import register


@register
class FixedWing(Plant):
    """Small fixed-wing aircraft in the vertical plane, kept in level flight by elevator and thrust."""

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

    states = (
        Signal("airspeed", "m/s", 2.0, at=25.0),
        Signal("climb_angle", "rad", 0.1),
        Signal("angle_of_attack", "rad", 0.1, at=0.05),
        Signal("pitch_rate", "rad/s", 0.5),
    )
    inputs = (Signal("elevator", "rad", 0.2), Signal("thrust", "N", 10.0, at=10.0))
    solve_for = ("angle_of_attack", "elevator", "thrust")
    dt = 0.05
    source = (
        "R. W. Beard and T. W. McLain, Small Unmanned Aircraft (2012), section 4.2 and the Aerosonde's "
        "coefficients of table E.2; a parabolic drag polar"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """Level flight at the cruise speed; the rest is solved for."""
        zero = jnp.zeros_like(self.cruise)
        return jnp.stack([self.cruise, zero, zero + 0.05, zero]), jnp.array([0.0, 10.0])

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


@register
class Quadrotor(Plant):
    """Quadrotor in hover, driven by the thrusts of its four rotors (front, left, back, right)."""

    mass: Array = param(0.5, "kg", "mass", 0.02, 20.0)
    arm: Array = param(0.175, "m", "centre to rotor", 0.02, 1.0)
    roll_inertia: Array = param(0.0023, "kg·m²", "about the forward axis", 1e-5, 1.0)
    pitch_inertia: Array = param(0.0023, "kg·m²", "about the left axis", 1e-5, 1.0)
    yaw_inertia: Array = param(0.004, "kg·m²", "about the upward axis", 1e-5, 1.0)
    torque_ratio: Array = param(0.0245, "m", "a rotor's drag torque over its thrust", 1e-3, 0.5)
    gravity: Array = gravity()

    states = (
        *(Signal(name, "m", 0.5) for name in ("x", "y", "z")),
        *(Signal(name, "rad", 0.2) for name in ("roll", "pitch", "yaw")),
        *(Signal(name, "m/s", 1.0) for name in ("x_velocity", "y_velocity", "z_velocity")),
        *(Signal(name, "rad/s", 1.0) for name in ("roll_rate", "pitch_rate", "yaw_rate")),
    )
    inputs = tuple(Signal(f"{name}_thrust", "N", 0.5) for name in ("front", "left", "back", "right"))
    dt = 0.02
    source = (
        "R. Mahony, V. Kumar and P. Corke, Multirotor Aerial Vehicles, IEEE Robot. Autom. Mag. 19(3), 2012, "
        "eqs. (4)-(6); the size of the quadrotor of Drake's examples"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """Hover: each rotor carries a quarter of the weight."""
        return jnp.zeros(12), jnp.broadcast_to(self.mass * self.gravity / 4, (4,))

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton and Euler for a rigid body, z up, Euler angles yaw-pitch-roll."""
        (roll, pitch, yaw), velocity, (p, q, r) = x[3:6], x[6:9], x[9:]
        sr, cr, sp, cp, sy, cy = *_sc(roll), *_sc(pitch), *_sc(yaw)
        up = jnp.array([cy * sp * cr + sy * sr, sy * sp * cr - cy * sr, cp * cr])
        thrust = jnp.sum(u)
        acceleration = thrust / self.mass * up - self.gravity * jnp.array([0.0, 0.0, 1.0])
        turn = (q * sr + r * cr) / cp
        rates = jnp.array([p + turn * sp, q * cr - r * sr, turn])
        front, left, back, right = u
        spin = jnp.array(
            [
                (self.arm * (left - right) + (self.pitch_inertia - self.yaw_inertia) * q * r) / self.roll_inertia,
                (self.arm * (back - front) + (self.yaw_inertia - self.roll_inertia) * p * r) / self.pitch_inertia,
                (
                    self.torque_ratio * (front - left + back - right)
                    + (self.roll_inertia - self.pitch_inertia) * p * q
                )
                / self.yaw_inertia,
            ]
        )
        return jnp.concatenate([velocity, rates, acceleration, spin])


def _sc(angle: Array) -> tuple[Array, Array]:
    return jnp.sin(angle), jnp.cos(angle)
