"""Satellites."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, param, signals
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, axes, dial, ring
from lqrlab.systems.mechanics import euler_rates, spin_acceleration


class SatelliteAttitude(Plant):
    """Satellite that points at the Earth, turned by three reaction wheels; gravity's gradient pulls at it.

    Source: M. J. Sidi, Spacecraft Dynamics and Control (1997), chapter 4, Euler's equations and the gravity-gradient
    moment; rates are those of the body beyond the orbit's own
    """

    roll_inertia: Array = param(1200.0, "kg·m²", "about the direction of flight", 0.01, 1e6)
    pitch_inertia: Array = param(1400.0, "kg·m²", "about the orbit's normal", 0.01, 1e6)
    yaw_inertia: Array = param(900.0, "kg·m²", "about the direction of the Earth", 0.01, 1e6)
    orbit_rate: Array = param(1.1e-3, "rad/s", "angular rate of the orbit", 1e-5, 1.3e-3)

    states = signals("roll, pitch, yaw ± 0.05 rad, roll_rate, pitch_rate, yaw_rate ± 0.002 rad/s")
    inputs = signals("roll_torque, pitch_torque, yaw_torque ± 0.1 N·m")
    outputs = ("roll", "pitch", "yaw")
    dt = 1.0

    def dynamics(self, x: Array, u: Array) -> Array:
        """Euler's equations with the gradient's moment; angles roll, pitch, yaw from the local vertical."""
        (sr, sp, sy), (cr, cp, cy), n = jnp.sin(x[:3]), jnp.cos(x[:3]), self.orbit_rate
        # the orbit turns at −n about the local y axis; here that axis is seen from the body
        normal = jnp.stack([cp * sy, sr * sp * sy + cr * cy, cr * sp * sy - sr * cy])
        down = jnp.stack([-sp, sr * cp, cr * cp])
        inertia = jnp.stack([self.roll_inertia, self.pitch_inertia, self.yaw_inertia])
        gradient = 3 * n**2 * jnp.cross(down, inertia * down)
        spin_rate = spin_acceleration(inertia, x[3:] - n * normal, u + gradient)
        # seen from the body the normal turns the other way, as fast as the body turns against the orbit
        return jnp.concatenate([euler_rates(x[0], x[1], x[3:]), spin_rate + n * jnp.cross(normal, x[3:])])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side in its orbit, angles five times as large, with dials for roll and yaw."""
        turn = 5 * x[1]
        panels, body = Box((0, 0), 4.0, 0.35, turn, "accent"), Box((0, 0), 1.0, 1.0, turn)
        down = -2.0 * axes(turn)[1]
        roll = dial((3.4, 1.2), 0.6, np.pi / 2 - 5 * x[0], "roll")
        yaw = dial((3.4, -1.2), 0.6, np.pi / 2 - 5 * x[2], "yaw")
        earth = Line([(a, -3.5 - 0.02 * a**2) for a in np.linspace(-5, 5, 21)], "ground")
        return (earth, panels, body, Arrow((0, 0), down), *roll, *yaw)


class SatelliteOrbit(Plant):
    """Satellite kept on a circular orbit by radial and tangential thrust.

    Source: R. W. Brockett, Finite Dimensional Linear Systems (1970), chapter 1, satellite in an inverse square law
    force field; the angle counted from a point that runs around the orbit
    """

    gravity_constant: Array = param(
        3.986e14, "m³/s²", "gravitational constant times the Earth's mass", 0.1, 1e21, vary=False
    )
    radius: Array = param(6.778e6, "m", "radius of the orbit", 0.5, 1e9)

    states = signals(
        "distance = 6.778e6 ± 1000 m, drift ± 1.5e-4 rad",
        "radial_speed ± 1 m/s, angular_rate = 0.0011314 ± 1.5e-7 rad/s",
    )
    inputs = signals("radial_thrust, tangential_thrust ± 2e-3 m/s²")
    outputs = ("distance", "drift")
    dt = 20.0

    def _rate(self) -> Array:
        return jnp.sqrt(self.gravity_constant / self.radius**3)

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(distance=self.radius, angular_rate=self._rate())

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's laws in polar coordinates; thrust is a unit mass's."""
        radius, _, speed, rate = x
        fall = radius * rate**2 - self.gravity_constant / radius**2
        return jnp.stack([speed, rate - self._rate(), fall + u[0], (u[1] - 2 * speed * rate) / radius])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The orbit with the satellite; deviations a thousand times as large."""
        at = axes(np.pi / 2 + 1e3 * x[1], 1.0 + 1e3 * (x[0] / self.radius - 1.0))[0]
        earth = Disc((0, 0), 0.6, "faint")
        return (ring((0, 0), 1.0), earth, ring((0, 1), 0.05), Disc(at, 0.04, "accent"))
