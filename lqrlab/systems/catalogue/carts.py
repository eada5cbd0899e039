"""Carts with something on them or under them, and balls that roll."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, axes, cart, chain, ground, linkage, reach
from lqrlab.systems.mechanics import Rods


class CartPole(Mechanical):
    """Cart on a rail with a pole hinged to it, balanced upright; angle 0 is up, + towards +position.

    Source: D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), Inverted
    Pendulum: System Modeling; its printed A and B are these
    """

    cart_mass: Array = param(0.5, "kg", "mass of the cart", 0.05, 20.0)
    pole_mass: Array = param(0.2, "kg", "mass of the pole", 0.01, 10.0)
    pole_length: Array = param(0.3, "m", "hinge to the pole's centre of mass", 0.05, 5.0)
    pole_inertia: Array = param(0.006, "kg·m²", "pole's inertia about its centre of mass", 0.0, 5.0)
    friction: Array = param(0.1, "N·s/m", "viscous friction of the cart", 0.0, 10.0)
    gravity: Array = gravity(9.8)

    states = signals("position ± 0.5 m, angle ± 0.2 rad, velocity ± 1 m/s, angular_velocity ± 1.5 rad/s")
    inputs = signals("force ± 5 N")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        along = v[0] + self.pole_length * v[1] * jnp.cos(q[1])
        up = -self.pole_length * v[1] * jnp.sin(q[1])
        pole = 0.5 * self.pole_mass * (along**2 + up**2) + 0.5 * self.pole_inertia * v[1] ** 2
        return 0.5 * self.cart_mass * v[0] ** 2 + pole

    def potential(self, q: Array) -> Array:
        return self.pole_mass * self.gravity * self.pole_length * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.friction * v[0], 0.0])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        size = 2 * self.pole_length
        hinge = (x[0], 0.4 * size)
        pole = linkage(chain(hinge, [size], [x[1]]), 0.04 * size)
        return (ground(-3 * size, 3 * size), *cart(x[0], 0.8 * size, 0.4 * size), *pole)


class CartDoublePendulum(Mechanical):
    """Cart with two poles on top of one another, both balanced upright; angles from upright.

    Source: A. Bogdanov, Optimal control of a double inverted pendulum on a cart, Oregon Health & Science University,
    technical report CSE-04-006 (2004), section 2
    """

    cart_mass: Array = param(0.6, "kg", "mass of the cart", 0.05, 20.0)
    mass1: Array = param(0.2, "kg", "mass of the lower pole", 0.01, 10.0)
    mass2: Array = param(0.2, "kg", "mass of the upper pole", 0.01, 10.0)
    length1: Array = param(0.4, "m", "length of the lower pole", 0.05, 5.0)
    length2: Array = param(0.5, "m", "length of the upper pole", 0.05, 5.0)
    friction: Array = param(0.1, "N·s/m", "viscous friction of the cart", 0.0, 10.0)
    joint_friction: Array = param(5e-4, "N·m·s/rad", "viscous friction of each hinge", 0.0, 1.0)
    gravity: Array = gravity()

    states = signals(
        "position ± 0.3 m, lower_angle, upper_angle ± 0.05 rad",
        "velocity ± 0.6 m/s, lower_velocity, upper_velocity ± 0.3 rad/s",
    )
    inputs = signals("force ± 10 N")
    dt = 0.01

    def kinetic(self, q: Array, v: Array) -> Array:
        poles = Rods.of(self).kinetic(q[1:], v[1:], base=jnp.stack([0.0 * v[0], v[0]]))
        return 0.5 * self.cart_mass * v[0] ** 2 + poles

    def potential(self, q: Array) -> Array:
        return self.gravity * Rods.of(self).moment(q[1:])[0]

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        inner = self.joint_friction * (v[2] - v[1])
        return jnp.array([u[0] - self.friction * v[0], inner - self.joint_friction * v[1], -inner])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        roof = 0.3 * self.length1
        poles = linkage(chain((x[0], roof), [self.length1, self.length2], [x[1], x[2]]), 0.05 * self.length1)
        return (ground(-1.5, 1.5), *cart(x[0], self.length1, roof), *poles)


class GantryCrane(Mechanical):
    """Gantry crane: a trolley carries a load on a rope and must not let it swing.

    Source: Y. Fang, W. E. Dixon, D. M. Dawson and E. Zergeroglu, Nonlinear coupling control laws for an underactuated
    overhead crane system, IEEE/ASME Trans. Mechatron. 8(3), 2003, section II
    """

    trolley_mass: Array = param(5.0, "kg", "mass of the trolley", 0.1, 1e5)
    load_mass: Array = param(2.0, "kg", "mass of the load", 0.05, 1e5)
    rope_length: Array = param(1.0, "m", "length of the rope", 0.1, 50.0)
    friction: Array = param(2.0, "N·s/m", "viscous friction of the trolley", 0.0, 1e4)
    gravity: Array = gravity()

    states = signals("position ± 1 m, swing ± 0.2 rad, velocity ± 0.5 m/s, swing_rate ± 0.5 rad/s")
    inputs = signals("force ± 20 N")
    dt = 0.05

    def kinetic(self, q: Array, v: Array) -> Array:
        along = v[0] + self.rope_length * jnp.cos(q[1]) * v[1]
        up = self.rope_length * jnp.sin(q[1]) * v[1]
        return 0.5 * (self.trolley_mass * v[0] ** 2 + self.load_mass * (along**2 + up**2))

    def potential(self, q: Array) -> Array:
        return self.load_mass * self.gravity * self.rope_length * (1 - jnp.cos(q[1]))

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.friction * v[0], 0.0])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        size = self.rope_length
        load = reach((x[0], 0.0), size, np.pi - x[1])
        trolley = Box((x[0], 0.06 * size), 0.4 * size, 0.12 * size)
        rope = Line([(x[0], 0), load], "ground", 1.5)
        return (ground(-2 * size, 2 * size), rope, trolley, Box(load, 0.2 * size, 0.2 * size, x[1], "accent"))


class BallAndBeam(Mechanical):
    """Ball rolling on a beam that a motor tilts.

    Source: J. Hauser, S. Sastry and P. Kokotović, Nonlinear control via approximate input-output linearization: the
    ball and beam example, IEEE Trans. Autom. Control 37(3), 1992, section II
    """

    ball_mass: Array = param(0.05, "kg", "mass of the ball", 0.005, 2.0)
    ball_radius: Array = param(0.01, "m", "radius of the ball", 0.002, 0.1)
    ball_inertia: Array = param(2e-6, "kg·m²", "ball about its centre", 0.0, 1e-3)
    beam_inertia: Array = param(0.02, "kg·m²", "beam about its pivot", 1e-3, 5.0)
    gravity: Array = gravity()

    states = signals("position ± 0.2 m, tilt ± 0.2 rad, velocity ± 0.4 m/s, tilt_rate ± 0.6 rad/s")
    inputs = signals("torque ± 0.3 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        rolling = (self.ball_mass + self.ball_inertia / self.ball_radius**2) * v[0] ** 2
        turning = (self.ball_mass * q[0] ** 2 + self.beam_inertia + self.ball_inertia) * v[1] ** 2
        return 0.5 * (rolling + turning)

    def potential(self, q: Array) -> Array:
        return self.ball_mass * self.gravity * q[0] * jnp.sin(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([0.0, u[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The beam about its pivot; the ball larger than life."""
        along, across = axes(x[1])
        beam = Line([-0.5 * along, 0.5 * along], "body", 4.0)
        return (Disc((0, 0), 0.02, "ground"), beam, Disc(x[0] * along + 0.03 * across, 0.03, "accent"))


class BallAndPlate(Mechanical):
    """Ball rolling on a plate that two motors tilt.

    Source: F. Borrelli, Constrained Optimal Control of Linear and Hybrid Systems (2003), the ball and plate; a solid
    ball that rolls without slipping
    """

    ball_mass: Array = param(0.11, "kg", "mass of the ball", 0.005, 5.0)
    ball_radius: Array = param(0.015, "m", "radius of the ball", 0.002, 0.2)
    plate_inertia: Array = param(0.02, "kg·m²", "plate about either axis", 1e-3, 5.0)
    friction: Array = param(0.05, "N·m·s/rad", "viscous friction of either motor", 0.0, 5.0)
    gravity: Array = gravity()

    states = with_rates("x, y ± 0.1 m, tilt_x, tilt_y ± 0.15 rad", time=0.4)
    inputs = signals("torque_x, torque_y ± 0.2 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the rolling ball, which a tilting plate carries along, and the plate."""
        ball = self.ball_mass * (7 / 5 * (v[0] ** 2 + v[1] ** 2) + (q[0] * v[2] + q[1] * v[3]) ** 2)
        plate = (self.plate_inertia + 2 / 5 * self.ball_mass * self.ball_radius**2) * (v[2] ** 2 + v[3] ** 2)
        return 0.5 * (ball + plate)

    def potential(self, q: Array) -> Array:
        """Of the ball: a positive tilt lifts the plate's positive end."""
        return self.ball_mass * self.gravity * (q[0] * jnp.sin(q[2]) + q[1] * jnp.sin(q[3]))

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.concatenate([jnp.zeros(2), u - self.friction * v[2:]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        plate = (Box((0, 0), 0.5, 0.5, ink="faint"), Box((0, 0), 0.5, 0.5, ink="ground", filled=False))
        slopes = (Arrow((0, 0), (-0.5 * x[2], 0), "body"), Arrow((0, 0), (0, -0.5 * x[3]), "body"))
        return (*plate, *slopes, Disc((x[0], x[1]), self.ball_radius, "accent"))
