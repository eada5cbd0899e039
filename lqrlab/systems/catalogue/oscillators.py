"""Masses on springs, and beams that bend."""

import itertools

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, Signal, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, Spring, axes, dial, ground


class MassSpringDamper(Mechanical):
    """Mass on a spring and a damper, pushed by a force.

    Source: K. J. Åström and R. M. Murray, Feedback Systems, 2nd ed. (2021), section 3.1, eq. (3.1)
    """

    mass: Array = param(1.0, "kg", "mass", 0.01, 100.0)
    stiffness: Array = param(4.0, "N/m", "spring stiffness", 0.0, 1000.0)
    damping: Array = param(0.4, "N·s/m", "viscous damping", 0.0, 100.0)

    states = signals("position ± 0.5 m, velocity ± 1 m/s")
    inputs = signals("force ± 2 N")
    dt = 0.05

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * self.mass * v[0] ** 2

    def potential(self, q: Array) -> Array:
        return 0.5 * self.stiffness * q[0] ** 2

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0] - self.damping * v[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        wall = Line([(-2, 0), (-2, 1)], "ground", 3.0)
        block = Box((x[0], 0.3), 0.6, 0.6)
        return (ground(-2, 2), wall, Spring((-2, 0.3), (x[0] - 0.3, 0.3), 0.15), block)


class DoubleIntegrator(Mechanical):
    """Mass without friction, pushed by a force: the simplest plant there is.

    Source: K. J. Åström and R. M. Murray, Feedback Systems, 2nd ed. (2021), chapter 6, the double integrator
    """

    mass: Array = param(1.0, "kg", "mass", 0.01, 1000.0)

    states = signals("position ± 1 m, velocity ± 1 m/s")
    inputs = signals("force ± 1 N")
    dt = 0.1

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * self.mass * v[0] ** 2

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return u

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return (ground(-4, 4), Line([(0, 0), (0, -0.3)], "faint"), Box((x[0], 0.3), 0.8, 0.6))


class TwoMassSpring(Mechanical):
    """Two carts joined by a spring, the first pushed to place the second.

    Source: B. Wie and D. S. Bernstein, Benchmark problems for robust control design, J. Guid. Control Dyn. 15(5), 1992,
    1057-1059
    """

    mass1: Array = param(1.0, "kg", "mass of the cart that is pushed", 0.05, 20.0)
    mass2: Array = param(1.0, "kg", "mass of the cart that follows", 0.05, 20.0)
    stiffness: Array = param(1.0, "N/m", "stiffness of the spring between them", 0.05, 100.0)

    states = signals("position1, position2 ± 0.5 m, velocity1, velocity2 ± 0.5 m/s")
    inputs = signals("force ± 1 N")
    outputs = ("position2",)
    dt = 0.1

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * (self.mass1 * v[0] ** 2 + self.mass2 * v[1] ** 2)

    def potential(self, q: Array) -> Array:
        return 0.5 * self.stiffness * (q[1] - q[0]) ** 2

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        return jnp.array([u[0], 0.0])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        a, b = x[0] - 1, x[1] + 1
        blocks = (Box((a, 0.3), 0.6, 0.6), Box((b, 0.3), 0.6, 0.6, ink="accent"))
        return (ground(-3, 3), Spring((a + 0.3, 0.3), (b - 0.3, 0.3), 0.15), *blocks)


class MassTrain(Mechanical):
    """Train of four wagons on springs that stiffen, held in place from both ends.

    Source: L. Meirovitch, Fundamentals of Vibrations (2001), chapter 7, chains of masses; springs of Duffing's kind as
    in its chapter 12
    """

    mass: Array = param(1.0, "kg", "mass of a wagon", 0.05, 20.0)
    stiffness: Array = param(8.0, "N/m", "stiffness of a coupling at rest", 0.2, 500.0)
    hardening: Array = param(20.0, "N/m³", "cubic stiffness of a coupling", 0.0, 2000.0)
    damping: Array = param(0.2, "N·s/m", "viscous damping of a coupling", 0.0, 20.0)
    friction: Array = param(0.05, "N·s/m", "viscous friction of a wagon's wheels", 0.0, 20.0)

    states = with_rates("position1, position2, position3, position4 ± 0.3 m", time=0.3)
    inputs = signals("front_force, rear_force ± 3 N")
    dt = 0.05

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * self.mass * jnp.sum(v**2)

    def potential(self, q: Array) -> Array:
        stretch = q[:-1] - q[1:]
        return jnp.sum(0.5 * self.stiffness * stretch**2 + 0.25 * self.hardening * stretch**4)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        drag = self.damping * (v[:-1] - v[1:])
        ends = jnp.array([u[0], 0.0, 0.0, u[1]])
        return ends - self.friction * v - jnp.pad(drag, (0, 1)) + jnp.pad(drag, (1, 0))

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        at = x[:4] + np.array([3.0, 1.0, -1.0, -3.0])
        springs = [Spring((b + 0.4, 0.4), (a - 0.4, 0.4), 0.12) for a, b in itertools.pairwise(at)]
        wagons = [Box((a, 0.4), 0.8, 0.5, ink="accent" if i in (0, 3) else "body") for i, a in enumerate(at)]
        wheels = [Disc((a + s, 0.1), 0.1, "ground") for a in at for s in (-0.25, 0.25)]
        return (ground(-4.5, 4.5), *springs, *wagons, *wheels)


# Clamped-free beam: roots of cos(βL) cosh(βL) = −1 and the root factors σ of its mode shapes.
_ROOTS = np.array([1.8751040687, 4.6940911330, 7.8547574382])
_SIGMA = (np.sinh(_ROOTS) - np.sin(_ROOTS)) / (np.cosh(_ROOTS) + np.cos(_ROOTS))


class FlexibleBeam(Mechanical):
    """Flexible arm turned by a motor at its hub: the angle and three bending modes.

    Source: R. H. Cannon and E. Schmitz, Initial experiments on the end-point control of a flexible one-link robot, Int.
    J. Robot. Res. 3(3), 1984; modes of the clamped beam from L. Meirovitch, Fundamentals of Vibrations (2001), chapter
    8
    """

    length: Array = param(1.0, "m", "length of the beam", 0.1, 10.0)
    density: Array = param(0.5, "kg/m", "mass a metre of the beam", 0.02, 20.0)
    bending_stiffness: Array = param(2.0, "N·m²", "EI of the beam", 0.02, 500.0)
    hub_inertia: Array = param(0.1, "kg·m²", "motor and hub", 1e-3, 10.0)
    hub_friction: Array = param(0.02, "N·m·s/rad", "viscous friction of the motor", 0.0, 5.0)
    structural_damping: Array = param(0.002, "s", "damping over stiffness of the beam's material", 0.0, 0.05)

    states = with_rates("hub_angle ± 0.3 rad, mode1 ± 0.02 m, mode2 ± 0.004 m, mode3 ± 0.001 m", time=0.2)
    inputs = signals("torque ± 2 N·m")
    outputs = ("hub_angle", Signal("tip_position", "m", 0.3))
    dt = 0.01

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of hub and beam; modes w = Σ φᵢ ηᵢ scaled to ∫φᵢ² = L, with ∫xφᵢ = 2/βᵢ²."""
        mass, spin, bend = self.density * self.length, v[0], v[1:]
        rigid = (self.hub_inertia + mass * self.length**2 / 3 + mass * jnp.sum(q[1:] ** 2)) * spin**2
        swing = 2 * spin * mass * self.length * jnp.sum(2 / _ROOTS**2 * bend)
        return 0.5 * (rigid + swing + mass * jnp.sum(bend**2))

    def potential(self, q: Array) -> Array:
        return 0.5 * self.bending_stiffness / self.length**3 * jnp.sum(_ROOTS**4 * q[1:] ** 2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        inner = self.structural_damping * self.bending_stiffness / self.length**3 * _ROOTS**4 * v[1:]
        return jnp.concatenate([u - self.hub_friction * v[:1], -inner])

    def output(self, x: Array) -> Array:
        """Hub angle, and the tip's place along the circle it moves on."""
        tip = self.length * x[0] + 2 * jnp.sum(jnp.array([1.0, -1.0, 1.0]) * x[1:4])
        return jnp.stack([x[0], tip])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The bent beam from above; deflections to scale."""
        s = np.linspace(0, 1, 17)
        z = _ROOTS[:, None] * s
        shapes = np.cosh(z) - np.cos(z) - _SIGMA[:, None] * (np.sinh(z) - np.sin(z))
        along, across = axes(x[0])
        beam = np.outer(self.length * s, along) + np.outer(x[1:4] @ shapes, across)
        straight = Line([(0, 0), axes(x[0], self.length)[0]], "faint", 1.0, dashed=True)
        push = (beam[-1] - beam[-2]) / np.hypot(*(beam[-1] - beam[-2]))
        hub = dial((0, 0), 0.08 * self.length, x[0])
        return (straight, *hub, Line(beam, "body", 4.0), Arrow(beam[-1], beam[-1] + 0.1 * push))
