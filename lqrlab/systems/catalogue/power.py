"""Power electronics (averaged over a switching period) and power systems."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems.declaration import Signal, param
from lqrlab.systems.drawing import Arrow, Disc, Drawing, Line, Text, circuit, dial
from lqrlab.systems.plant import Plant
from lqrlab.systems.registry import register

_ERICKSON = "R. W. Erickson and D. Maksimović, Fundamentals of Power Electronics, 3rd ed. (2020), "


def _source(value: float) -> Array:
    return param(value, "V", "voltage of the source", 1.0, 2000.0)


def _coil(value: float) -> Array:
    return param(value, "H", "inductance of the coil", 1e-7, 1.0)


def _winding(value: float) -> Array:
    return param(value, "Ω", "resistance of the coil", 0.0, 10.0)


def _capacitor(value: float) -> Array:
    return param(value, "F", "capacitance", 1e-7, 1.0)


def _load(value: float) -> Array:
    return param(value, "Ω", "resistance of the load", 0.05, 1e4)


@register
class BuckConverter(Plant):
    """Step-down converter: its duty cycle sets how much of the source's voltage the load gets."""

    source_voltage: Array = _source(24.0)
    inductance: Array = _coil(1e-4)
    winding: Array = _winding(0.05)
    capacitance: Array = _capacitor(1e-4)
    load: Array = _load(5.0)
    output_voltage: Array = param(10.0, "V", "voltage to hold", 0.5, 1000.0)

    states = (Signal("current", "A", 2.0, at=2.0), Signal("voltage", "V", 2.0, at=10.0))
    inputs = (Signal("duty", "1", 0.2, at=0.42),)
    outputs = ("voltage",)
    dt = 2e-5
    source = _ERICKSON + "chapter 2 and section 7.2, averaged model"
    limits = (
        "At ±50%, 2% of variants ask for more than the source's voltage (a duty above one): the averaged "
        "equations hold, a real switch could only stay closed."
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The voltage to hold, the load's current through the coil."""
        current = self.output_voltage / self.load
        duty = (self.output_voltage + self.winding * current) / self.source_voltage
        return jnp.stack([current, self.output_voltage]), duty[None]

    def dynamics(self, x: Array, u: Array) -> Array:
        """Coil and capacitor, averaged over a switching period."""
        current, voltage = x
        coil = u[0] * self.source_voltage - self.winding * current - voltage
        return jnp.stack([coil / self.inductance, (current - voltage / self.load) / self.capacitance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Source, coil, capacitor and load, each as full as it is."""
        return _converter(x, u, self.output_voltage, self.load)


@register
class BoostConverter(Plant):
    """Step-up converter: the coil is charged from the source and emptied into the load on top of it."""

    source_voltage: Array = _source(12.0)
    inductance: Array = _coil(2e-4)
    winding: Array = _winding(0.05)
    capacitance: Array = _capacitor(2e-4)
    load: Array = _load(20.0)
    output_voltage: Array = param(24.0, "V", "voltage to hold", 1.0, 2000.0)

    states = (Signal("current", "A", 2.0, at=2.4), Signal("voltage", "V", 3.0, at=24.0))
    inputs = (Signal("duty", "1", 0.2, at=0.5),)
    outputs = ("voltage",)
    dt = 5e-5
    source = _ERICKSON + "sections 2.3 and 7.2, averaged model"
    limits = (
        "Beyond ±33% some variants' sources exceed the voltage to hold, and the duty at rest is negative (2% "
        "of variants at ±40%, 7% at ±50%): the averaged equations hold, a real switch could only stay open."
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The voltage to hold; the coil carries the load's current over the share of time it feeds it."""
        loss = 4 * self.winding * self.output_voltage**2 / self.load
        share = (self.source_voltage + jnp.sqrt(self.source_voltage**2 - loss)) / (2 * self.output_voltage)
        current = self.output_voltage / (self.load * share)
        return jnp.stack([current, self.output_voltage]), (1 - share)[None]

    def dynamics(self, x: Array, u: Array) -> Array:
        """Coil and capacitor, averaged over a switching period."""
        current, voltage = x
        share = 1 - u[0]
        coil = self.source_voltage - self.winding * current - share * voltage
        return jnp.stack([coil / self.inductance, (share * current - voltage / self.load) / self.capacitance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Source, coil, capacitor and load, each as full as it is."""
        return _converter(x, u, self.output_voltage, self.load)


@register
class BuckBoostConverter(Plant):
    """Inverting converter: the coil is charged from the source and emptied into the load alone."""

    source_voltage: Array = _source(12.0)
    inductance: Array = _coil(2e-4)
    winding: Array = _winding(0.05)
    capacitance: Array = _capacitor(2e-4)
    load: Array = _load(20.0)
    output_voltage: Array = param(15.0, "V", "size of the (negative) voltage to hold", 0.5, 2000.0)

    states = (Signal("current", "A", 2.0, at=1.7), Signal("voltage", "V", 3.0, at=15.0))
    inputs = (Signal("duty", "1", 0.2, at=0.56),)
    outputs = ("voltage",)
    dt = 5e-5
    source = _ERICKSON + "chapter 2 and section 7.2, averaged model"

    def operating_point(self) -> tuple[Array, Array]:
        """The voltage to hold; the coil carries the load's current over the share of time it feeds it."""
        both = self.source_voltage + self.output_voltage
        loss = 4 * both * self.winding * self.output_voltage / self.load
        share = (self.source_voltage + jnp.sqrt(self.source_voltage**2 - loss)) / (2 * both)
        return jnp.stack([self.output_voltage / (self.load * share), self.output_voltage]), (1 - share)[None]

    def dynamics(self, x: Array, u: Array) -> Array:
        """Coil and capacitor, averaged over a switching period."""
        current, voltage = x
        share = 1 - u[0]
        coil = u[0] * self.source_voltage - self.winding * current - share * voltage
        return jnp.stack([coil / self.inductance, (share * current - voltage / self.load) / self.capacitance])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Source, coil, capacitor and load, each as full as it is."""
        return _converter(x, u, self.output_voltage, self.load)


def _converter(x: np.ndarray, u: np.ndarray, voltage: Any, load: Any) -> Drawing:
    """A converter's loop; coil and capacitor are half full at rest."""
    coil, capacitor = 0.25 * x[0] * load / voltage, 0.5 * x[1] / voltage
    return circuit(("duty", u[0]), ("L", coil), ("C", capacitor), ("load", capacitor))


@register
class GridInverter(Plant):
    """Inverter that feeds a grid through two coils and a capacitor, in the grid's turning frame."""

    inverter_coil: Array = param(1.8e-3, "H", "inductance on the inverter's side", 1e-5, 0.1)
    grid_coil: Array = param(9e-4, "H", "inductance on the grid's side", 1e-5, 0.1)
    capacitance: Array = param(1e-5, "F", "capacitance of the filter", 1e-7, 1e-2)
    inverter_winding: Array = param(0.1, "Ω", "resistance on the inverter's side", 0.0, 10.0)
    grid_winding: Array = param(0.1, "Ω", "resistance on the grid's side", 0.0, 10.0)
    grid_voltage: Array = param(
        325.0, "V", "amplitude of the grid's phase voltage", 10.0, 20000.0, vary=False
    )
    grid_frequency: Array = param(314.159, "rad/s", "angular frequency of the grid", 50.0, 3000.0, vary=False)
    current: Array = param(15.0, "A", "current to feed, in phase with the grid", 0.0, 5000.0)

    states = (
        Signal("inverter_current_d", "A", 5.0, at=15.0),
        Signal("inverter_current_q", "A", 5.0),
        Signal("capacitor_voltage_d", "V", 40.0, at=325.0),
        Signal("capacitor_voltage_q", "V", 40.0),
        Signal("grid_current_d", "A", 5.0, at=15.0),
        Signal("grid_current_q", "A", 5.0),
    )
    inputs = (Signal("inverter_voltage_d", "V", 60.0, at=325.0), Signal("inverter_voltage_q", "V", 60.0))
    outputs = ("grid_current_d", "grid_current_q")
    dt = 5e-5
    source = (
        "R. Teodorescu, M. Liserre and P. Rodríguez, Grid Converters for Photovoltaic and Wind Power Systems "
        "(2011), chapters 9 and 11, inverter with LCL filter"
    )

    def operating_point(self) -> tuple[Array, Array]:
        """The current to feed; from the grid back through the filter, Kirchhoff's laws give the rest."""
        w, zero = self.grid_frequency, 0.0 * self.current
        grid = jnp.stack([self.current, zero])
        capacitor = (
            jnp.stack([self.grid_voltage, zero])
            + self.grid_winding * grid
            + w * self.grid_coil * _turned(grid)
        )
        inverter = grid + w * self.capacitance * _turned(capacitor)
        drive = capacitor + self.inverter_winding * inverter + w * self.inverter_coil * _turned(inverter)
        return jnp.concatenate([inverter, capacitor, grid]), drive

    def dynamics(self, x: Array, u: Array) -> Array:
        """Coils and capacitor; the turning frame couples d and q."""
        inverter, capacitor, grid = x[:2], x[2:4], x[4:]
        w = self.grid_frequency
        outside = jnp.stack([self.grid_voltage, 0.0 * self.grid_voltage])
        first = (u - capacitor - self.inverter_winding * inverter) / self.inverter_coil - w * _turned(
            inverter
        )
        middle = (inverter - grid) / self.capacitance - w * _turned(capacitor)
        last = (capacitor - outside - self.grid_winding * grid) / self.grid_coil - w * _turned(grid)
        return jnp.concatenate([first, middle, last])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Phasors in the grid's frame: voltages to scale on the left, currents on the right."""
        arrows = [Arrow((0, 0), x[2:4] / self.grid_voltage), Arrow((0, 0), u / self.grid_voltage, "body")]
        right = np.array([3.0, 0.0])
        arrows += [Arrow(right, right + x[4:] / 15.0), Arrow(right, right + x[:2] / 15.0, "body")]
        rings = (Disc((0, 0), 1.0, "ground", filled=False), Disc(right, 1.0, "ground", filled=False))
        words = (Text((0.0, -1.3), "voltage"), Text((3.0, -1.3), "current"))
        return (*rings, *words, *arrows)


def _turned(a: Array) -> Array:
    """A quarter turn ahead: j a."""
    return jnp.stack([-a[1], a[0]])


@register
class TwoAreaPower(Plant):
    """Two power areas that share a tie line, each keeping its frequency with one turbine."""

    inertia_time: Array = param(20.0, "s", "time constant of an area", 2.0, 200.0)
    area_gain: Array = param(120.0, "Hz", "frequency gained a unit of spare power", 5.0, 1000.0)
    turbine_time: Array = param(0.3, "s", "time constant of a turbine", 0.02, 5.0)
    governor_time: Array = param(0.08, "s", "time constant of a governor", 0.01, 2.0)
    droop: Array = param(2.4, "Hz", "frequency lost a unit of power", 0.2, 20.0)
    tie: Array = param(0.545, "1/rad", "power over the tie line a unit of frequency and time, 2πT", 0.02, 5.0)

    states = (
        *(
            s
            for area in (1, 2)
            for s in (
                Signal(f"frequency{area}", "Hz", 0.05),
                Signal(f"turbine{area}", "1", 0.02),
                Signal(f"governor{area}", "1", 0.02),
            )
        ),
        Signal("tie_angle", "1/(2π) rad", 0.05),
    )
    inputs = (Signal("command1", "1", 0.05), Signal("command2", "1", 0.05))
    outputs = ("frequency1", "frequency2", Signal("tie_power", "1", 0.02))
    dt = 0.05
    source = (
        "C. E. Fosha and O. I. Elgerd, The megawatt-frequency control problem: a new approach via optimal "
        "control theory, IEEE Trans. Power App. Syst. PAS-89(4), 1970; the tie line's sine kept, powers a "
        "unit of the rating"
    )

    def _tie_power(self, angle: Array) -> Array:
        return self.tie * jnp.sin(2 * jnp.pi * angle) / (2 * jnp.pi)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Each area's swing, turbine and governor; the tie line's angle."""
        flow = self._tie_power(x[6])

        def area(
            frequency: Array, turbine: Array, governor: Array, command: Array, out: Array
        ) -> list[Array]:
            return [
                (self.area_gain * (turbine - out) - frequency) / self.inertia_time,
                (governor - turbine) / self.turbine_time,
                (command - frequency / self.droop - governor) / self.governor_time,
            ]

        first = area(x[0], x[1], x[2], u[0], flow)
        return jnp.stack([*first, *area(x[3], x[4], x[5], u[1], -flow), x[0] - x[3]])

    def output(self, x: Array) -> Array:
        """Both frequencies and the power over the tie line."""
        return jnp.stack([x[0], x[3], self._tie_power(x[6])])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Two areas with a dial for each frequency, the tie line's power as an arrow."""
        first = dial((0, 0), 1.0, np.pi / 2 - 10 * x[0], "area 1")
        second = dial((5, 0), 1.0, np.pi / 2 - 10 * x[3], "area 2")
        line = Line([(1, 0), (4, 0)], "ground", 3.0)
        flow = 40 * self.tie * np.sin(2 * np.pi * x[6]) / (2 * np.pi)
        return (line, *first, *second, Arrow((2.5, 0.3), (2.5 + flow, 0.3)))
