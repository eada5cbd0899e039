"""Motors, magnets and circuits of coils and capacitors."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, gravity, param, signals
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, circuit, dial, mark, ring


def quarter_turn(a: Array) -> Array:
    """A vector [2] turned a quarter ahead: j a."""
    return jnp.stack([-a[1], a[0]])


class DCMotor(Plant):
    """Permanent-magnet motor turning a load to an angle, driven by its armature voltage.

    Source: D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), DC Motor
    Speed: System Modeling, with the angle added; its printed A and B are these
    """

    inertia: Array = param(0.01, "kg·m²", "rotor and load", 1e-5, 1.0)
    friction: Array = param(0.1, "N·m·s/rad", "viscous friction", 0.0, 1.0)
    motor_constant: Array = param(0.01, "N·m/A", "torque a ampere, and volt a rad/s", 1e-3, 1.0)
    resistance: Array = param(1.0, "Ω", "armature resistance", 0.05, 50.0)
    inductance: Array = param(0.5, "H", "armature inductance", 1e-3, 5.0)

    states = signals("angle ± 0.5 rad, speed ± 1 rad/s, current ± 5 A")
    inputs = signals("voltage ± 12 V")
    outputs = ("angle",)
    dt = 0.05

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's law for the rotor, Kirchhoff's for the armature."""
        _, speed, current = x
        torque = self.motor_constant * current - self.friction * speed
        drop = u[0] - self.resistance * current - self.motor_constant * speed
        return jnp.array([speed, torque / self.inertia, drop / self.inductance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        loop = circuit(("u", u[0] / 12), ("R", 0.0), ("L", x[2] / 5))
        return (*loop, *dial((6.0, 1.0), 1.0, x[0], "load"))


class MagneticLevitation(Plant):
    """Steel ball held in the air under an electromagnet; the gap grows downwards.

    Source: D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), State-Space
    Methods for Controller Design: magnetically suspended ball; its printed A and B are these
    """

    mass: Array = param(0.05, "kg", "mass of the ball", 0.005, 5.0)
    magnet: Array = param(1e-4, "N·m/A²", "force = magnet · current² / gap", 1e-6, 1e-2)
    resistance: Array = param(1.0, "Ω", "coil resistance", 0.05, 50.0)
    inductance: Array = param(0.01, "H", "coil inductance", 1e-4, 1.0)
    nominal_gap: Array = param(0.01, "m", "gap to hold", 1e-3, 0.1)
    gravity: Array = gravity(9.8)

    states = signals("gap = 0.01 ± 0.001 m, velocity ± 0.05 m/s, current = 7 ± 1 A")
    inputs = signals("voltage = 7 ± 5 V")
    outputs = ("gap",)
    dt = 0.005

    def operating_point(self) -> tuple[Array, Array]:
        current = jnp.sqrt(self.mass * self.gravity * self.nominal_gap / self.magnet)
        return self.point(gap=self.nominal_gap, current=current, voltage=self.resistance * current)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's law for the ball, Kirchhoff's for the coil."""
        gap, velocity, current = x
        pull = self.magnet * current**2 / gap
        drop = u[0] - self.resistance * current
        return jnp.array([velocity, self.gravity - pull / self.mass, drop / self.inductance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Magnet, ball and the gap, which is ten ball radii at rest."""
        ball, size = -x[0] / self.nominal_gap, 0.3
        coil = Box((0, 0.5), 0.25 * abs(x[2]) / 7.0, 1.0, ink="accent")
        return (Box((0, 0.5), 1.2, 1.0, ink="ground"), coil, mark(-1, 1, -1), Disc((0, ball - size), size))


class PMSM(Plant):
    """Permanent-magnet synchronous motor held at a speed through its two rotor-frame voltages.

    Source: P. C. Krause, O. Wasynczuk, S. D. Sudhoff and S. Pekarek, Analysis of Electric Machinery and Drive Systems,
    3rd ed. (2013), chapter 4, permanent-magnet ac machine in the rotor's frame
    """

    resistance: Array = param(0.5, "Ω", "resistance of a phase", 0.005, 50.0)
    inductance_d: Array = param(0.0032, "H", "inductance along the magnets", 1e-5, 1.0)
    inductance_q: Array = param(0.0045, "H", "inductance across the magnets", 1e-5, 1.0)
    flux: Array = param(0.12, "V·s", "flux of the magnets", 1e-3, 5.0)
    pole_pairs: Array = param(4.0, "1", "pairs of poles", 1.0, 50.0, vary=False)
    inertia: Array = param(0.002, "kg·m²", "rotor and load", 1e-6, 10.0)
    friction: Array = param(0.001, "N·m·s/rad", "viscous friction", 0.0, 1.0)
    load: Array = param(1.0, "N·m", "constant load torque", 0.0, 100.0)
    speed: Array = param(100.0, "rad/s", "speed to hold", 1.0, 1000.0)

    states = signals("current_d ± 3 A, current_q = 1.5 ± 3 A, rotor_speed = 100 ± 10 rad/s")
    inputs = signals("voltage_d ± 20 V, voltage_q = 50 ± 20 V")
    dt = 5e-4

    def operating_point(self) -> tuple[Array, Array]:
        """No current along the magnets; the other carries load and friction."""
        current = (self.load + self.friction * self.speed) / (1.5 * self.pole_pairs * self.flux)
        spin = self.pole_pairs * self.speed
        along, across = -spin * self.inductance_q * current, self.resistance * current + spin * self.flux
        return self.point(current_q=current, rotor_speed=self.speed, voltage_d=along, voltage_q=across)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Kirchhoff's law along and across the magnets, Newton's for the rotor."""
        along, across, speed = x
        spin = self.pole_pairs * speed
        rate_d = (u[0] - self.resistance * along + spin * self.inductance_q * across) / self.inductance_d
        back = spin * (self.inductance_d * along + self.flux)
        rate_q = (u[1] - self.resistance * across - back) / self.inductance_q
        pull = (self.flux + (self.inductance_d - self.inductance_q) * along) * across
        torque = 1.5 * self.pole_pairs * pull - self.friction * speed - self.load
        return jnp.stack([rate_d, rate_q, torque / self.inertia])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        rotor = (ring((0, 0), 1.0), Box((0, 0), 1.6, 0.4), Disc((0, 0), 0.2, "ground"))
        speed = dial((3.0, 0.0), 1.0, np.pi / 2 - (x[2] / self.speed - 1) * 2, "speed")
        return (*rotor, Arrow((0, 0), x[:2] / 3.0), *speed)


class InductionMotor(Plant):
    """Induction motor held at a speed, driven by stator voltages in a frame that turns with the supply.

    Source: P. C. Krause, O. Wasynczuk, S. D. Sudhoff and S. Pekarek, Analysis of Electric Machinery and Drive Systems,
    3rd ed. (2013), chapter 6, symmetrical induction machine, with the 3-hp machine of its table
    """

    stator_resistance: Array = param(0.435, "Ω", "resistance of the stator", 0.005, 50.0)
    rotor_resistance: Array = param(0.816, "Ω", "resistance of the rotor", 0.005, 50.0)
    leakage: Array = param(0.002, "H", "leakage inductance of either", 1e-5, 1.0)
    magnetising: Array = param(0.0693, "H", "inductance they share", 1e-4, 10.0)
    pole_pairs: Array = param(2.0, "1", "pairs of poles", 1.0, 50.0, vary=False)
    inertia: Array = param(0.089, "kg·m²", "rotor and load", 1e-5, 100.0)
    friction: Array = param(0.02, "N·m·s/rad", "viscous friction", 0.0, 10.0)
    supply: Array = param(377.0, "rad/s", "angular frequency of the supply", 50.0, 1000.0, vary=False)
    slip: Array = param(0.02, "1", "slip at which it runs", 0.002, 0.05)
    voltage: Array = param(180.0, "V", "amplitude of a phase's voltage", 5.0, 1000.0)

    states = signals(
        "stator_current_d = 4.2 ± 5 A, stator_current_q = -6.7 ± 5 A, rotor_flux_d = -0.009 ± 0.05 V·s",
        "rotor_flux_q = -0.459 ± 0.05 V·s, rotor_speed = 184.7 ± 5 rad/s",
    )
    inputs = signals("voltage_d = 180 ± 30 V, voltage_q ± 30 V")
    outputs = ("stator_current_d", "stator_current_q", "rotor_speed")
    dt = 1e-3

    def _inductances(self) -> tuple[Array, Array, Array]:
        """Of a winding, the share of it that couples to the other, and the stator's transient one."""
        winding = self.leakage + self.magnetising
        return winding, self.magnetising / winding, winding - self.magnetising**2 / winding

    def _torque(self, current: Array, flux: Array) -> Array:
        return 1.5 * self.pole_pairs * self._inductances()[1] * (quarter_turn(flux) @ current)

    def _steady(self) -> tuple[Array, Array, Array]:
        """Currents, fluxes and shaft speed at the slip, from the circuit of the standing machine."""
        (winding, ratio, transient), w = self._inductances(), self.supply
        # rotor: Rr ir + j s ψr = 0 with ψr = Lr ir + Lm is, so ψr = Lm is / (1 + j s Lr / Rr)
        lag = self.slip * w * winding / self.rotor_resistance
        scale = self.magnetising / (1 + lag**2)
        # stator: v = Rs is + j w (σLs is + Lm/Lr ψr); all as 2 x 2 rotations
        real = self.stator_resistance + w * ratio * scale * lag
        imag = w * (transient + ratio * scale)
        current = self.voltage * jnp.stack([real, -imag]) / (real**2 + imag**2)
        flux = scale * (current - lag * quarter_turn(current))
        return current, flux, (1 - self.slip) * w / self.pole_pairs

    def operating_point(self) -> tuple[Array, Array]:
        current, flux, speed = self._steady()
        return jnp.concatenate([current, flux, speed[None]]), self.point(voltage_d=self.voltage)[1]

    def dynamics(self, x: Array, u: Array) -> Array:
        """Kirchhoff's laws of stator and rotor, Newton's for the shaft; the load is what the slip implies."""
        current, flux, speed = x[:2], x[2:4], x[4]
        winding, ratio, transient = self._inductances()
        slip = self.supply - self.pole_pairs * speed
        lost = self.rotor_resistance / winding * (flux - self.magnetising * current)
        rotor = -lost - slip * quarter_turn(flux)
        spun = self.supply * quarter_turn(transient * current + ratio * flux)
        stator = (u - self.stator_resistance * current - spun - ratio * rotor) / transient
        *rest, speed_at_rest = self._steady()
        torque = self._torque(current, flux) - self._torque(*rest) - self.friction * (speed - speed_at_rest)
        return jnp.concatenate([stator, rotor, (torque / self.inertia)[None]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        current, flux = Arrow((0, 0), x[:2] / 20.0), Arrow((0, 0), 2.0 * x[2:4], "body")
        speed = np.pi / 2 - (x[4] * self.pole_pairs / self.supply - 1) * 10
        frame = (ring((0, 0), 1.0), Line([(0, 0), (1, 0)], "faint", 1.0))
        return (*frame, flux, current, *dial((3.0, 0.0), 1.0, speed, "speed"))


class RLC(Plant):
    """Resistor, coil and capacitor; a subclass says how they are joined."""

    resistance: Array = param(2.0, "Ω", "resistance", 0.01, 1e4)
    inductance: Array = param(1e-3, "H", "inductance", 1e-6, 10.0)
    capacitance: Array = param(1e-4, "F", "capacitance", 1e-9, 1.0)

    dt = 1e-4


class SeriesRLC(RLC):
    """Resistor, coil and capacitor in a row behind a voltage source.

    Source: N. S. Nise, Control Systems Engineering, 6th ed. (2011), chapter 3, the RLC network in state space
    """

    states = signals("capacitor_voltage ± 5 V, current ± 1.5 A")
    inputs = signals("voltage ± 5 V")
    outputs = ("capacitor_voltage",)

    def dynamics(self, x: Array, u: Array) -> Array:
        voltage, current = x
        drop = u[0] - self.resistance * current - voltage
        return jnp.stack([current / self.capacitance, drop / self.inductance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return circuit(("u", u[0] / 5), ("R", self.resistance * x[1] / 5), ("L", x[1] / 1.5), ("C", x[0] / 5))


class ParallelRLC(RLC):
    """Resistor, coil and capacitor side by side at a current source.

    Source: C. K. Alexander and M. N. O. Sadiku, Fundamentals of Electric Circuits, 5th ed. (2013), chapter 8, the
    parallel RLC circuit
    """

    resistance: Array = param(20.0, low=0.1, high=1e6)

    states = signals("voltage ± 5 V, coil_current ± 1.5 A")
    inputs = signals("current ± 1.5 A")
    outputs = ("voltage",)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Kirchhoff's current law; the coil's current grows with the voltage."""
        voltage, coil = x
        left = u[0] - voltage / self.resistance - coil
        return jnp.stack([left / self.capacitance, voltage / self.inductance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        drain = x[0] / self.resistance / 1.5
        return circuit(("i", u[0] / 1.5), ("C", x[0] / 5), ("L", x[1] / 1.5), ("R", drain))
