"""Pendulums, alone and on carts, and balls that roll."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, Plant, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, axes, cart, chain, dial, ground, linkage, reach
from lqrlab.systems.mechanics import Rods


class Pendulum(Mechanical):
    """Pendulum held upright by a torque at its pivot; angle 0 is up.

    Source: R. Tedrake, Underactuated Robotics (2023), chapter 2, The Simple Pendulum
    """

    mass: Array = param(1.0, "kg", "mass of the bob", 0.01, 50.0)
    length: Array = param(0.5, "m", "pivot to bob", 0.05, 10.0)
    friction: Array = param(0.1, "N·m·s/rad", "viscous friction of the pivot", 0.0, 10.0)
    gravity: Array = gravity()

    states = signals("angle ± 0.3 rad, angular_velocity ± 1.5 rad/s")
    inputs = signals("torque ± 3 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * self.mass * (self.length * v[0]) ** 2

    def potential(self, q: Array) -> Array:
        return self.mass * self.gravity * self.length * jnp.cos(q[0])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.friction * v[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return (ground(-0.2, 0.2), *linkage(chain((0, 0), [self.length], [x[0]]), 0.06 * self.length))


class HangingPendulum(Pendulum):
    """Pendulum brought to rest hanging by a torque at its pivot; angle 0 is down.

    Source: H. K. Khalil, Nonlinear Systems, 3rd ed. (2002), section 1.2.1, the pendulum equation
    """

    friction: Array = param(0.05)

    states = signals("angle ± 0.5 rad, angular_velocity ± 2 rad/s")
    inputs = signals("torque ± 1 N·m")
    dt = 0.05

    def potential(self, q: Array) -> Array:
        return self.mass * self.gravity * self.length * (1 - jnp.cos(q[0]))

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return super().draw(np.pi - x, u)


class DoublePendulum(Mechanical):
    """Double pendulum on a pivot, balanced upright by a motor at the pivot alone (the Pendubot).

    Source: M. W. Spong and D. J. Block, The Pendubot: a mechatronic system for control research and education, Proc.
    34th IEEE Conf. Decision and Control (1995), section 2; uniform rods, both angles from upright
    """

    mass1: Array = param(0.8, "kg", "mass of the lower link", 0.05, 20.0)
    mass2: Array = param(0.5, "kg", "mass of the upper link", 0.05, 20.0)
    length1: Array = param(0.25, "m", "pivot to the joint between the links", 0.05, 5.0)
    length2: Array = param(0.3, "m", "length of the upper link", 0.05, 5.0)
    friction1: Array = param(0.01, "N·m·s/rad", "viscous friction of the pivot", 0.0, 5.0)
    friction2: Array = param(0.001, "N·m·s/rad", "viscous friction of the joint", 0.0, 5.0)
    gravity: Array = gravity()

    states = signals("lower_angle, upper_angle ± 0.1 rad, lower_velocity, upper_velocity ± 0.6 rad/s")
    inputs = signals("torque ± 2 N·m")
    dt = 0.01

    def kinetic(self, q: Array, v: Array) -> Array:
        return Rods.of(self).kinetic(q, v)

    def potential(self, q: Array) -> Array:
        return self.gravity * Rods.of(self).moment(q)[0]

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        inner = self.friction2 * (v[1] - v[0])
        return jnp.array([u[0] - self.friction1 * v[0] + inner, -inner])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        links = chain((0, 0), [self.length1, self.length2], [x[0], x[1]])
        return (ground(-0.1, 0.1), *linkage(links, 0.06 * self.length1))


class ReactionWheelPendulum(Plant):
    """Pendulum balanced upright by the reaction of a wheel that a motor spins at its tip.

    Source: D. J. Block, K. J. Åström and M. W. Spong, The Reaction Wheel Pendulum (2007), chapter 2; the wheel's angle,
    which nothing depends on, is left out
    """

    mass: Array = param(0.22, "kg", "pendulum and wheel", 0.02, 20.0)
    centre: Array = param(0.125, "m", "pivot to the common centre of mass", 0.02, 2.0)
    inertia: Array = param(0.0048, "kg·m²", "pendulum and wheel's mass about the pivot", 1e-5, 5.0)
    wheel_inertia: Array = param(3.2e-5, "kg·m²", "wheel about its axle", 1e-6, 0.5)
    friction: Array = param(5e-5, "N·m·s/rad", "viscous friction of the pivot", 0.0, 0.1)
    wheel_friction: Array = param(2e-6, "N·m·s/rad", "viscous friction of the axle", 0.0, 0.1)
    gravity: Array = gravity()

    states = signals("angle ± 0.05 rad, angular_velocity ± 0.4 rad/s, wheel_speed ± 100 rad/s")
    inputs = signals("torque ± 0.05 N·m")
    dt = 0.01

    def dynamics(self, x: Array, u: Array) -> Array:
        """Angular momentum of pendulum and wheel, the wheel's speed absolute."""
        angle, speed, wheel = x
        shaft = u[0] - self.wheel_friction * (wheel - speed)
        weight = self.mass * self.gravity * self.centre * jnp.sin(angle)
        tilt = (weight - self.friction * speed - shaft) / self.inertia
        return jnp.array([speed, tilt, shaft / self.wheel_inertia])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The rod with its wheel; the mark is half a degree a rad/s of its speed."""
        tip = reach((0, 0), 1.2 * self.centre, x[0])
        wheel = dial(tip, 0.4 * self.centre, np.pi / 2 - x[0] - 0.0087 * x[2])
        return (ground(-0.1, 0.1), Line([(0, 0), tip], "body", 5.0), *wheel)


class FurutaPendulum(Mechanical):
    """Rotary pendulum: a motor turns a horizontal arm that carries a pendulum, balanced upright.

    Source: B. S. Cazzolato and Z. Prime, On the Dynamics of the Furuta Pendulum, J. Control Sci. Eng. (2011), 528341,
    eqs. (33)-(34) and table 1
    """

    arm_length: Array = param(0.278, "m", "motor axis to pendulum hinge", 0.05, 2.0)
    arm_inertia: Array = param(0.0315, "kg·m²", "arm and motor about the motor axis", 1e-4, 1.0)
    pendulum_mass: Array = param(0.075, "kg", "mass of the pendulum", 0.005, 5.0)
    pendulum_length: Array = param(0.148, "m", "hinge to the pendulum's centre of mass", 0.02, 2.0)
    pendulum_inertia: Array = param(0.00386, "kg·m²", "pendulum about its centre of mass", 0.0, 1.0)
    arm_friction: Array = param(1e-4, "N·m·s/rad", "viscous friction of the motor", 0.0, 0.1)
    pendulum_friction: Array = param(2.8e-4, "N·m·s/rad", "viscous friction of the hinge", 0.0, 0.1)
    gravity: Array = gravity()

    states = signals("arm_angle ± 0.5 rad, pendulum_angle ± 0.2 rad", "arm_velocity, pendulum_velocity ± 1.5 rad/s")
    inputs = signals("torque ± 0.3 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the arm, and of a slender pendulum that swings across it."""
        sweep = self.pendulum_length * jnp.sin(q[1])
        across = self.arm_length * v[0] + self.pendulum_length * jnp.cos(q[1]) * v[1]
        up = -self.pendulum_length * jnp.sin(q[1]) * v[1]
        bob = 0.5 * self.pendulum_mass * (across**2 + up**2 + (sweep * v[0]) ** 2)
        spin = 0.5 * self.pendulum_inertia * (v[1] ** 2 + (jnp.sin(q[1]) * v[0]) ** 2)
        return 0.5 * self.arm_inertia * v[0] ** 2 + bob + spin

    def potential(self, q: Array) -> Array:
        return self.pendulum_mass * self.gravity * self.pendulum_length * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.arm_friction * v[0], -self.pendulum_friction * v[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the front, with the arm from above below it."""
        hinge = np.array([self.arm_length * np.sin(x[0]), 0.0])
        pendulum = linkage([hinge, reach(hinge, 2 * self.pendulum_length, x[1])], 0.02)
        above = np.array([0.0, -1.2 * self.arm_length])
        arm = dial(above, self.arm_length, np.pi / 2 - x[0])
        return (Line([(0, 0), hinge], "ground", 4.0), *pendulum, *arm)


class Acrobot(Mechanical):
    """Two links hanging from a bar, balanced upright by a motor at the elbow alone.

    Source: M. W. Spong, The swing up control problem for the Acrobot, IEEE Control Syst. 15(1), 1995, eqs. (1)-(2)
    """

    mass1: Array = param(1.0, "kg", "mass of the first link", 0.05, 20.0)
    mass2: Array = param(1.0, "kg", "mass of the second link", 0.05, 20.0)
    length1: Array = param(1.0, "m", "length of the first link", 0.1, 5.0)
    centre1: Array = param(0.5, "m", "pivot to the first link's centre of mass", 0.05, 5.0)
    centre2: Array = param(1.0, "m", "elbow to the second link's centre of mass", 0.05, 5.0)
    inertia1: Array = param(0.083, "kg·m²", "first link about its centre of mass", 0.0, 10.0)
    inertia2: Array = param(0.33, "kg·m²", "second link about its centre of mass", 0.0, 10.0)
    gravity: Array = gravity(9.8)

    states = signals(
        "shoulder_angle ± 0.1 rad, elbow_angle ± 0.2 rad", "shoulder_velocity ± 0.3 rad/s, elbow_velocity ± 0.6 rad/s"
    )
    inputs = signals("torque ± 10 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        spin2 = v[0] + v[1]
        elbow = self.length1 * v[0]
        link2 = elbow**2 + (self.centre2 * spin2) ** 2 + 2 * elbow * self.centre2 * spin2 * jnp.cos(q[1])
        rotation = self.inertia1 * v[0] ** 2 + self.inertia2 * spin2**2
        return 0.5 * (self.mass1 * (self.centre1 * v[0]) ** 2 + self.mass2 * link2 + rotation)

    def potential(self, q: Array) -> Array:
        first = self.mass1 * self.centre1 * jnp.cos(q[0])
        second = self.mass2 * (self.length1 * jnp.cos(q[0]) + self.centre2 * jnp.cos(q[0] + q[1]))
        return self.gravity * (first + second)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([0.0, u[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        lengths = [self.length1, 2 * self.centre2]
        bar = Line([(-0.3, 0), (0.3, 0)], "ground", 3.0)
        return (bar, *linkage(chain((0, 0), lengths, [x[0], x[0] + x[1]]), 0.05 * self.length1))


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
