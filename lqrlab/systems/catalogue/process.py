"""Tanks, reactors, heat and populations."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Plant, gravity, param, signals
from lqrlab.systems.drawing import Arrow, Box, Drawing, Line, Real, Text, dial, ground, mark, tank


def _flow(hole: Array, gravity: Array, level: Array) -> Array:
    """Torricelli's law: what runs out of a hole below ``level`` [m³/s]."""
    return hole * jnp.sqrt(2 * gravity * level)


def _column(x: float, height: Real, label: str, level: float = 1.0, thin: bool = False) -> Drawing:
    """A labelled column with a mark at the level that its quantity is to be held at."""
    tall, (wide, half) = max(float(height), 0.0), (0.14, 0.15) if thin else (0.7, 0.5)
    bar = Box((x, tall / 2), wide, tall, ink="accent")
    return (bar, Text((x, -0.12 if thin else -0.15), label), mark(x - half, x + half, level, 1.5))


class CoupledTanks(Plant):
    """Two tanks in a row, one draining into the other, filled by a pump; the lower level is to be held.

    Source: Quanser Inc., Coupled Tanks workbook, configuration 2
    """

    area: Array = param(1.554e-3, "m²", "cross-section of a tank", 1e-4, 100.0)
    hole1: Array = param(1.781e-5, "m²", "outlet of the upper tank", 1e-6, 1.0)
    hole2: Array = param(1.781e-5, "m²", "outlet of the lower tank", 1e-6, 1.0)
    pump: Array = param(3.3e-6, "m³/(s·V)", "flow of the pump a volt", 1e-7, 1.0)
    level: Array = param(0.15, "m", "lower level to hold", 0.01, 10.0)
    gravity: Array = gravity()

    states = signals("upper_level, lower_level = 0.15 ± 0.03 m")
    inputs = signals("voltage = 9.3 ± 3 V")
    outputs = ("lower_level",)
    dt = 0.5
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """The lower level to hold; what runs through is the same everywhere."""
        upper = self.level * (self.hole2 / self.hole1) ** 2
        pumped = _flow(self.hole2, self.gravity, self.level)
        return self.point(upper_level=upper, lower_level=self.level, voltage=pumped / self.pump)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Volume is kept; outlets follow Torricelli's law."""
        first, second = _flow(self.hole1, self.gravity, x[0]), _flow(self.hole2, self.gravity, x[1])
        return jnp.stack([self.pump * u[0] - first, first - second]) / self.area

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        high = 2 * self.level
        lower, upper = tank(0, 0, high, high, x[1]), tank(0, 1.3 * high, high, high, x[0])
        inflow = Arrow((0, 2.6 * high), (0, 2.6 * high - 0.03 * high * u[0]))
        return (*lower, *upper, mark(-0.6 * high, 0.6 * high, self.level), inflow)


class QuadrupleTank(Plant):
    """Four tanks fed crosswise by two pumps; the two lower levels are to be held.

    Source: K. H. Johansson, The quadruple-tank process, IEEE Trans. Control Syst. Technol. 8(3), 2000, section II, its
    minimum-phase setting

    Limits: Where the splits add up to less than one (3% of variants at ±30%, 15% at ±50%) the plant is
    non-minimum-phase, which LQR does not mind; small outlets at ±50% stand for tanks of 2.6 m.
    """

    area1: Array = param(28e-4, "m²", "cross-section of the left tanks", 1e-4, 100.0)
    area2: Array = param(32e-4, "m²", "cross-section of the right tanks", 1e-4, 100.0)
    hole1: Array = param(0.071e-4, "m²", "outlets of the left tanks", 1e-7, 1.0)
    hole2: Array = param(0.057e-4, "m²", "outlets of the right tanks", 1e-7, 1.0)
    pump1: Array = param(3.33e-6, "m³/(s·V)", "flow of the first pump a volt", 1e-7, 1.0)
    pump2: Array = param(3.35e-6, "m³/(s·V)", "flow of the second pump a volt", 1e-7, 1.0)
    split1: Array = param(0.7, "1", "share of the first pump's flow that goes to the lower left", 0.05, 0.95)
    split2: Array = param(0.6, "1", "share of the second pump's flow that goes to the lower right", 0.05, 0.95)
    voltage: Array = param(3.0, "V", "voltage of both pumps at rest", 0.5, 24.0)
    gravity: Array = gravity()

    states = signals(
        "lower_left = 0.124 ± 0.02 m, lower_right = 0.127 ± 0.02 m",
        "upper_left = 0.018 ± 0.005 m, upper_right = 0.014 ± 0.005 m",
    )
    inputs = signals("voltage1, voltage2 = 3 ± 1 V")
    outputs = ("lower_left", "lower_right")
    dt = 1.0
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """The levels at which each outlet runs as fast as its tank is fed."""
        lower, upper = self._fed(self.voltage)
        flow = jnp.concatenate([lower + upper, upper])
        return (flow / self._holes()) ** 2 / (2 * self.gravity), jnp.broadcast_to(self.voltage, (2,))

    def _holes(self) -> Array:
        return jnp.stack([self.hole1, self.hole2, self.hole1, self.hole2])

    def _fed(self, voltage: Array) -> tuple[Array, Array]:
        """Flows that the pumps feed into the lower and, crosswise, into the upper tanks."""
        pumped = jnp.stack([self.pump1, self.pump2]) * voltage
        split = jnp.stack([self.split1, self.split2])
        return split * pumped, ((1 - split) * pumped)[::-1]

    def dynamics(self, x: Array, u: Array) -> Array:
        """Volume is kept; outlets follow Torricelli's law."""
        out, (lower, upper) = _flow(self._holes(), self.gravity, x), self._fed(u)
        gained = jnp.concatenate([lower + out[2:], upper]) - out
        return gained / jnp.stack([self.area1, self.area2, self.area1, self.area2])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        places = ((-0.08, 0, 0.2), (0.08, 0, 0.2), (-0.08, 0.26, 0.1), (0.08, 0.26, 0.1))
        tanks = [tank(left, low, 0.1, high, level) for (left, low, high), level in zip(places, x)]
        pumps = [dial((left, 0.1), 0.04, np.pi / 2 - 0.4 * v) for left, v in zip((-0.22, 0.22), u)]
        return tuple(shape for group in (*tanks, *pumps) for shape in group)


class StirredTankReactor(Plant):
    """Stirred tank in which a reaction heats itself, held at an unstable temperature by its jacket.

    Source: D. E. Seborg, T. F. Edgar and D. A. Mellichamp, Process Dynamics and Control, 2nd ed. (2004), section 2.4.6
    and example 2.5

    Limits: Wide variants react so fast or so slowly at the temperature held that the jacket at rest is colder or hotter
    than any coolant (259 to 324 K at ±20%, down to 136 K at ±50%).
    """

    turnover: Array = param(1 / 60, "1/s", "feed over volume", 1e-5, 1.0)
    rate_constant: Array = param(1.2e9, "1/s", "reaction rate at infinite temperature", 1e3, 1e18)
    activation: Array = param(8750.0, "K", "activation energy over the gas constant", 1000.0, 30000.0, vary=False)
    heat_rise: Array = param(209.2, "K·L/mol", "temperature gained by what reacts", 1.0, 2000.0)
    exchange: Array = param(0.0348675, "1/s", "heat exchange with the jacket over heat capacity", 1e-5, 5.0)
    feed_concentration: Array = param(1.0, "mol/L", "concentration of the feed", 0.01, 50.0)
    feed_temperature: Array = param(350.0, "K", "temperature of the feed", 250.0, 500.0, vary=False)
    temperature: Array = param(350.0, "K", "temperature to hold", 300.0, 450.0, vary=False)

    states = signals("concentration = 0.5 ± 0.05 mol/L, reactor_temperature = 350 ± 2 K")
    inputs = signals("jacket_temperature = 300 ± 10 K")
    outputs = ("reactor_temperature",)
    dt = 2.0

    def _rate(self, temperature: Array) -> Array:
        return self.rate_constant * jnp.exp(-self.activation / temperature)

    def operating_point(self) -> tuple[Array, Array]:
        """The temperature to hold; concentration and jacket follow from the two balances."""
        rate, hot = self._rate(self.temperature), self.temperature
        concentration = self.turnover * self.feed_concentration / (self.turnover + rate)
        heat = self.turnover * (self.feed_temperature - hot) + self.heat_rise * rate * concentration
        jacket = hot - heat / self.exchange
        return self.point(concentration=concentration, reactor_temperature=hot, jacket_temperature=jacket)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Balances of the reactant and of heat; the rate follows Arrhenius."""
        concentration, hot = x
        reacting = self._rate(hot) * concentration
        fed, warmed = self.feed_concentration - concentration, self.feed_temperature - hot
        heat = self.turnover * warmed + self.heat_rise * reacting + self.exchange * (u[0] - hot)
        return jnp.stack([self.turnover * fed - reacting, heat])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The tank, filled by the share that has not reacted; thermometers about the wanted heat and about 300 K."""
        vessel = tank(0, 0, 1.0, 1.2, x[0] / self.feed_concentration)
        stirrer = (Line([(0, 1.5), (0, 0.3)], "ground"), Line([(-0.2, 0.3), (0.2, 0.3)], "ground", 4.0))
        inside, jacket = np.clip([0.8 + (x[1] - self.temperature) / 10, 0.8 + (u[0] - 300) / 50], 0.02, 1.6)
        tubes = (*_column(0.9, inside, "tank", 0.8, True), *_column(1.5, jacket, "jacket", 0.8, True))
        return (*vessel, *stirrer, *tubes)


class HeatedRod(Plant):
    """Rod in nine pieces, heated or cooled at either end, losing heat along its length.

    Source: F. P. Incropera, D. P. DeWitt, T. L. Bergman and A. S. Lavine, Fundamentals of Heat and Mass Transfer, 6th
    ed. (2007), sections 3.6.1 (fins) and 5.10 (finite differences)
    """

    length: Array = param(0.5, "m", "length of the rod", 0.05, 10.0)
    conductivity: Array = param(205.0, "W/(m·K)", "heat conductivity", 10.0, 450.0)
    heat_capacity: Array = param(2.43e6, "J/(m³·K)", "heat capacity a unit of volume", 1e5, 1e7)
    radius: Array = param(0.01, "m", "radius of the rod", 1e-3, 0.1)
    convection: Array = param(15.0, "W/(m²·K)", "heat lost to the air", 0.0, 500.0)
    emissivity: Array = param(0.3, "1", "share of a black body's radiation", 0.0, 1.0)
    ambient: Array = param(293.0, "K", "temperature around, which it is to be brought to", 200.0, 500.0, vary=False)

    states = signals(*(f"temperature{i} = 293 ± 5 K" for i in range(1, 10)))
    inputs = signals("left_heat, right_heat ± 10 W")
    outputs = ("temperature1", "temperature5", "temperature9")
    dt = 2.0

    def operating_point(self) -> tuple[Array, Array]:
        return jnp.broadcast_to(self.ambient, (9,)), jnp.zeros(2)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Heat conducted between neighbours, lost to the air, radiated, and put in at the ends."""
        piece, section = self.length / 9, jnp.pi * self.radius**2
        between = self.conductivity * section / piece * (x[1:] - x[:-1])
        outside = 2 * jnp.pi * self.radius * piece
        lost = self.convection * (x - self.ambient) + 5.670374e-8 * self.emissivity * (x**4 - self.ambient**4)
        put_in = jnp.concatenate([u[:1], jnp.zeros(7), u[1:]])
        gained = put_in + jnp.pad(between, (0, 1)) - jnp.pad(between, (1, 0)) - outside * lost
        return gained / (self.heat_capacity * section * piece)

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        shapes: list = [ground(-0.5, 9.5)]
        for i, excess in enumerate((x - self.ambient) / 5.0):
            warm = Box((i + 0.5, excess / 2), 0.6, abs(excess), ink="accent")
            shapes += [Box((i + 0.5, -0.3), 0.95, 0.4), warm]
        left, right = (-0.6 + 0.05 * u[0], -0.3), (9.6 - 0.05 * u[1], -0.3)
        return (*shapes, Arrow((-0.6, -0.3), left), Arrow((9.6, -0.3), right))


class LotkaVolterra(Plant):
    """Prey and predators, kept at their balance by taking some predators away or adding some.

    Source: J. D. Murray, Mathematical Biology I, 3rd ed. (2002), section 3.1; time in units of its choice
    """

    growth: Array = param(1.0, "1/s", "growth of the prey alone", 0.01, 20.0)
    hunting: Array = param(0.02, "1/s", "prey lost a predator", 1e-4, 5.0)
    yield_: Array = param(0.01, "1/s", "growth of the predators a prey", 1e-4, 5.0)
    hunger: Array = param(0.8, "1/s", "loss of predators alone", 0.01, 20.0)

    states = signals("prey = 80 ± 15 1, predators = 50 ± 10 1")
    inputs = signals("added_predators ± 20 1/s")
    dt = 0.05

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(prey=self.hunger / self.yield_, predators=self.growth / self.hunting)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Each meets the other as often as there are of both."""
        prey, predators = x
        prey_rate = prey * (self.growth - self.hunting * predators)
        return jnp.stack([prey_rate, predators * (self.yield_ * prey - self.hunger) + u[0]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        prey, predators = x[0] * self.yield_ / self.hunger, x[1] * self.hunting / self.growth
        return (ground(-0.8, 2.3), *_column(0.0, prey, "prey"), *_column(1.5, predators, "predators"))


class PredatorPrey(Plant):
    """Hares with limited food and lynxes with limited appetite, steered by how well the hares are fed.

    Source: K. J. Åström and R. M. Murray, Feedback Systems, 1st ed. (2008), section 3.7 (eq. (3.31)) and example 6.5,
    which prints the linearised model; time in years

    Limits: Beyond about ±28% some variants have no coexistence: their lynxes' balance needs more hares than the food
    supports, and the operating point holds a negative number of lynxes (3% of variants at ±40%, 8% at ±50%; one in a
    thousand then has no stabilizing gain).
    """

    growth: Array = param(1.6, "1/s", "growth of the hares", 0.05, 20.0)
    capacity: Array = param(125.0, "1", "hares that the food supports", 10.0, 1e5)
    hunting: Array = param(3.2, "1/s", "hares a lynx eats at most", 0.1, 50.0)
    appetite: Array = param(50.0, "1", "hares at which it eats half of that", 1.0, 1e4)
    yield_: Array = param(0.6, "1", "lynxes gained a hare eaten", 0.01, 5.0)
    death: Array = param(0.56, "1/s", "loss of lynxes", 0.01, 10.0)

    states = signals("hares = 20.6 ± 4 1, lynxes = 29.5 ± 5 1")
    inputs = signals("feeding ± 0.5 1/s")
    dt = 0.05

    def _balance(self) -> tuple[Real, Real]:
        """Hares and lynxes at which births and deaths balance."""
        hares = self.death * self.appetite / (self.yield_ * self.hunting - self.death)
        return hares, self.growth * (1 - hares / self.capacity) * (self.appetite + hares) / self.hunting

    def operating_point(self) -> tuple[Array, Array]:
        hares, lynxes = self._balance()
        return self.point(hares=hares, lynxes=lynxes)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Logistic growth of the hares, saturating appetite of the lynxes."""
        hares, lynxes = x
        eaten = self.hunting * hares * lynxes / (self.appetite + hares)
        born = (self.growth + u[0]) * hares * (1 - hares / self.capacity)
        return jnp.stack([born - eaten, self.yield_ * eaten - self.death * lynxes])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        hares, lynxes = (level / abs(rest) for level, rest in zip(x, self._balance()))
        return (ground(-0.8, 2.3), *_column(0.0, hares, "hares"), *_column(1.5, lynxes, "lynxes"))
