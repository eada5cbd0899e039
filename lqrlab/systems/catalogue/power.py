"""Power electronics (averaged over a switching period) and power systems."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, Signal, param, signals
from lqrlab.systems.catalogue.electrical import quarter_turn
from lqrlab.systems.drawing import Arrow, Drawing, Line, Text, circuit, dial, ring


class Converter(Plant):
    """Switched converter with a coil and a capacitor, averaged over a switching period."""

    source_voltage: Array = param(24.0, "V", "voltage of the source", 1.0, 2000.0)
    inductance: Array = param(1e-4, "H", "inductance of the coil", 1e-7, 1.0)
    winding: Array = param(0.05, "Ω", "resistance of the coil", 0.0, 10.0)
    capacitance: Array = param(1e-4, "F", "capacitance", 1e-7, 1.0)
    load: Array = param(5.0, "Ω", "resistance of the load", 0.05, 1e4)
    output_voltage: Array = param(10.0, "V", "voltage to hold", 0.5, 1000.0)

    def _shares(self, duty: Array) -> tuple[Array | float, Array | float]:
        """Shares of time in which the coil is joined to the source and to the load."""
        raise NotImplementedError

    def dynamics(self, x: Array, u: Array) -> Array:
        current, voltage = x
        charged, emptied = self._shares(u[0])
        coil = charged * self.source_voltage - self.winding * current - emptied * voltage
        rates = coil / self.inductance, (emptied * current - voltage / self.load) / self.capacitance
        return jnp.stack(rates)

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Source, coil, capacitor and load, each as full as it is; coil and capacitor are half full at rest."""
        coil, capacitor = 0.25 * x[0] * self.load / self.output_voltage, 0.5 * x[1] / self.output_voltage
        return circuit(("duty", u[0]), ("L", coil), ("C", capacitor), ("load", capacitor))


class BuckConverter(Converter):
    """Step-down converter: its duty cycle sets how much of the source's voltage the load gets.

    Source: R. W. Erickson and D. Maksimović, Fundamentals of Power Electronics, 3rd ed. (2020), chapter 2 and section
    7.2, averaged model

    Limits: At ±50%, 2% of variants ask for more than the source's voltage (a duty above one): the averaged equations
    hold, a real switch could only stay closed.
    """

    states = signals("current = 2 ± 2 A, voltage = 10 ± 2 V")
    inputs = signals("duty = 0.42 ± 0.2 1")
    outputs = ("voltage",)
    dt = 2e-5

    def operating_point(self) -> tuple[Array, Array]:
        current = self.output_voltage / self.load
        duty = (self.output_voltage + self.winding * current) / self.source_voltage
        return self.point(current=current, voltage=self.output_voltage, duty=duty)

    def _shares(self, duty: Array) -> tuple[Array | float, Array | float]:
        return duty, 1.0


class BoostConverter(Converter):
    """Step-up converter: the coil is charged from the source and emptied into the load on top of it.

    Source: R. W. Erickson and D. Maksimović, Fundamentals of Power Electronics, 3rd ed. (2020), sections 2.3 and 7.2,
    averaged model

    Limits: Beyond ±33% some variants' sources exceed the voltage to hold, and the duty at rest is negative (2% of
    variants at ±40%, 7% at ±50%): the averaged equations hold, a real switch could only stay open.
    """

    source_voltage: Array = param(12.0)
    inductance: Array = param(2e-4)
    capacitance: Array = param(2e-4)
    load: Array = param(20.0)
    output_voltage: Array = param(24.0, low=1.0, high=2000.0)

    states = signals("current = 2.4 ± 2 A, voltage = 24 ± 3 V")
    inputs = signals("duty = 0.5 ± 0.2 1")
    outputs = ("voltage",)
    dt = 5e-5

    def _swing(self) -> Array:
        """Difference of the coil's voltages while it is charged and while it feeds the load."""
        return self.output_voltage

    def operating_point(self) -> tuple[Array, Array]:
        """The voltage to hold; the coil carries the load's current over the share of time it feeds it."""
        swing = self._swing()
        loss = 4 * swing * self.winding * self.output_voltage / self.load
        share = (self.source_voltage + jnp.sqrt(self.source_voltage**2 - loss)) / (2 * swing)
        current = self.output_voltage / (self.load * share)
        return self.point(current=current, voltage=self.output_voltage, duty=1 - share)

    def _shares(self, duty: Array) -> tuple[Array | float, Array | float]:
        return 1.0, 1 - duty


class BuckBoostConverter(BoostConverter):
    """Inverting converter: the coil is charged from the source and emptied into the load alone.

    Source: R. W. Erickson and D. Maksimović, Fundamentals of Power Electronics, 3rd ed. (2020), chapter 2 and section
    7.2, averaged model
    """

    output_voltage: Array = param(15.0, about="size of the (negative) voltage to hold", low=0.5)

    states = signals("current = 1.7 ± 2 A, voltage = 15 ± 3 V")
    inputs = signals("duty = 0.56 ± 0.2 1")
    limits = ""

    def _swing(self) -> Array:
        return self.source_voltage + self.output_voltage

    def _shares(self, duty: Array) -> tuple[Array | float, Array | float]:
        return duty, 1 - duty


class GridInverter(Plant):
    """Inverter that feeds a grid through two coils and a capacitor, in the grid's turning frame.

    Source: R. Teodorescu, M. Liserre and P. Rodríguez, Grid Converters for Photovoltaic and Wind Power Systems (2011),
    chapters 9 and 11, inverter with LCL filter
    """

    inverter_coil: Array = param(1.8e-3, "H", "inductance on the inverter's side", 1e-5, 0.1)
    grid_coil: Array = param(9e-4, "H", "inductance on the grid's side", 1e-5, 0.1)
    capacitance: Array = param(1e-5, "F", "capacitance of the filter", 1e-7, 1e-2)
    inverter_winding: Array = param(0.1, "Ω", "resistance on the inverter's side", 0.0, 10.0)
    grid_winding: Array = param(0.1, "Ω", "resistance on the grid's side", 0.0, 10.0)
    grid_voltage: Array = param(325.0, "V", "amplitude of the grid's phase voltage", 10.0, 20000.0, vary=False)
    grid_frequency: Array = param(314.159, "rad/s", "angular frequency of the grid", 50.0, 3000.0, vary=False)
    current: Array = param(15.0, "A", "current to feed, in phase with the grid", 0.0, 5000.0)

    states = signals(
        "inverter_current_d = 15 ± 5 A, inverter_current_q ± 5 A, capacitor_voltage_d = 325 ± 40 V",
        "capacitor_voltage_q ± 40 V, grid_current_d = 15 ± 5 A, grid_current_q ± 5 A",
    )
    inputs = signals("inverter_voltage_d = 325 ± 60 V, inverter_voltage_q ± 60 V")
    outputs = ("grid_current_d", "grid_current_q")
    dt = 5e-5

    def operating_point(self) -> tuple[Array, Array]:
        """The current to feed; from the grid back through the filter, Kirchhoff's laws give the rest."""
        w, zero = self.grid_frequency, 0.0 * self.current
        grid, outside = jnp.stack([self.current, zero]), jnp.stack([self.grid_voltage, zero])
        capacitor = outside + self.grid_winding * grid + w * self.grid_coil * quarter_turn(grid)
        inverter = grid + w * self.capacitance * quarter_turn(capacitor)
        drive = capacitor + self.inverter_winding * inverter + w * self.inverter_coil * quarter_turn(inverter)
        return jnp.concatenate([inverter, capacitor, grid]), drive

    def dynamics(self, x: Array, u: Array) -> Array:
        """Coils and capacitor; the turning frame couples d and q."""
        inverter, capacitor, grid = x[:2], x[2:4], x[4:]
        outside = jnp.stack([self.grid_voltage, 0.0 * self.grid_voltage])
        first = (u - capacitor - self.inverter_winding * inverter) / self.inverter_coil
        middle = (inverter - grid) / self.capacitance
        last = (capacitor - outside - self.grid_winding * grid) / self.grid_coil
        turning = jnp.concatenate([quarter_turn(pair) for pair in (inverter, capacitor, grid)])
        return jnp.concatenate([first, middle, last]) - self.grid_frequency * turning

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Phasors in the grid's frame: voltages to scale on the left, currents on the right."""
        left, right = np.array([0.0, 0.0]), np.array([3.0, 0.0])
        arrows = [Arrow(left, x[2:4] / self.grid_voltage), Arrow(left, u / self.grid_voltage, "body")]
        arrows += [Arrow(right, right + x[4:] / 15.0), Arrow(right, right + x[:2] / 15.0, "body")]
        words = (Text((0.0, -1.3), "voltage"), Text((3.0, -1.3), "current"))
        return (ring(left, 1.0), ring(right, 1.0), *words, *arrows)


class TwoAreaPower(Plant):
    """Two power areas that share a tie line, each keeping its frequency with one turbine.

    Source: C. E. Fosha and O. I. Elgerd, The megawatt-frequency control problem: a new approach via optimal control
    theory, IEEE Trans. Power App. Syst. PAS-89(4), 1970; the tie line's sine kept, powers a unit of the rating
    """

    inertia_time: Array = param(20.0, "s", "time constant of an area", 2.0, 200.0)
    area_gain: Array = param(120.0, "Hz", "frequency gained a unit of spare power", 5.0, 1000.0)
    turbine_time: Array = param(0.3, "s", "time constant of a turbine", 0.02, 5.0)
    governor_time: Array = param(0.08, "s", "time constant of a governor", 0.01, 2.0)
    droop: Array = param(2.4, "Hz", "frequency lost a unit of power", 0.2, 20.0)
    tie: Array = param(0.545, "1/rad", "power over the tie line a unit of frequency and time, 2πT", 0.02, 5.0)

    states = signals(
        "frequency1 ± 0.05 Hz, turbine1, governor1 ± 0.02 1",
        "frequency2 ± 0.05 Hz, turbine2, governor2 ± 0.02 1, tie_angle ± 0.05 1/(2π) rad",
    )
    inputs = signals("command1, command2 ± 0.05 1")
    outputs = ("frequency1", "frequency2", Signal("tie_power", "1", 0.02))
    dt = 0.05

    def _tie_power(self, angle: Array) -> Array:
        return self.tie * jnp.sin(2 * jnp.pi * angle) / (2 * jnp.pi)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Each area's swing, turbine and governor; the tie line's angle."""
        flow = self._tie_power(x[6])

        def area(x: Array, command: Array, out: Array) -> list[Array]:
            frequency, turbine, governor = x
            return [
                (self.area_gain * (turbine - out) - frequency) / self.inertia_time,
                (governor - turbine) / self.turbine_time,
                (command - frequency / self.droop - governor) / self.governor_time,
            ]

        first, second = area(x[:3], u[0], flow), area(x[3:6], u[1], -flow)
        return jnp.stack([*first, *second, x[0] - x[3]])

    def output(self, x: Array) -> Array:
        return jnp.stack([x[0], x[3], self._tie_power(x[6])])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        first = dial((0, 0), 1.0, np.pi / 2 - 10 * x[0], "area 1")
        second = dial((5, 0), 1.0, np.pi / 2 - 10 * x[3], "area 2")
        line = Line([(1, 0), (4, 0)], "ground", 3.0)
        flow = 40 * self.tie * np.sin(2 * np.pi * x[6]) / (2 * np.pi)
        return (line, *first, *second, Arrow((2.5, 0.3), (2.5 + flow, 0.3)))
