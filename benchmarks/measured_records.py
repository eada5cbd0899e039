"""Plants found in measured records that may not be handed on: python -m benchmarks.measured_records FOLDER.

FOLDER holds cascaded_tanks.csv (nonlinearbenchmark.org, Cascaded Tanks; columns uEst, uVal, yEst, yVal [V], every 4 s)
and robot_arm.dat (DaISy, KU Leuven, data set 96-009; columns torque, acceleration).
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.compute import setup
from lqrlab.extensions import identification
from lqrlab.systems import Plant, param, signals


def positive(x: Array) -> Array:
    """What is positive, smoothly."""
    return jax.nn.softplus(20 * x) / 20 + 1e-3


class OverflowingTanks(Plant):
    """Two tanks in a row whose upper one spills over into the lower, levels in volts of the sensor.

    Source: M. Schoukens, J. P. Noël, Three benchmarks addressing open challenges in nonlinear system identification,
    IFAC World Congress 2017; outlets with an exponent and a linear part, and a constant inflow, are ours
    """

    pump: Array = param(0.035, "1/s", "inflow a volt", 0.001, 10.0)
    bias: Array = param(0.09, "V/s", "inflow without voltage", -1.0, 1.0)
    outlet1: Array = param(0.058, "1/s", "outlet of the upper tank", 0.001, 10.0)
    inlet2: Array = param(0.028, "1/s", "inflow of the lower tank", 0.001, 10.0)
    outlet2: Array = param(0.129, "1/s", "outlet of the lower tank", 0.001, 10.0)
    exponent1: Array = param(0.77, "1", "exponent of the upper outlet", 0.3, 1.0)
    exponent2: Array = param(0.48, "1", "exponent of the lower outlet", 0.3, 1.0)
    brim1: Array = param(16.4, "V", "level from which the upper tank spills", 3.0, 30.0)
    rate1: Array = param(1.5, "1/s", "how fast it spills", 0.02, 1.6)
    spill: Array = param(0.99, "1", "share of that which falls into the lower tank", 0.0, 1.0)
    brim2: Array = param(10.1, "V", "level from which the lower tank spills", 9.0, 20.0)
    leak1: Array = param(-0.018, "1/s", "linear part of the upper outlet", -0.02, 0.02)
    leak2: Array = param(-0.014, "1/s", "linear part of the lower outlet", -0.02, 0.02)

    states = signals("upper, lower = 5 ± 3 V")
    inputs = signals("voltage = 3 ± 2 V")
    outputs = signals("level ± 3 V")
    solve_for = ("upper", "voltage")
    dt = 4.0

    def output(self, x: Array) -> Array:
        """The sensor of the lower level."""
        return jnp.stack([10.0 - positive(10.0 - x[1])])  # the sensor ends at 10 V

    def dynamics(self, x: Array, u: Array) -> Array:
        """What flows in less what flows out."""
        over1, over2 = self.rate1 * positive(x[0] - self.brim1), 0.8 * positive(x[1] - self.brim2)
        leaving = self.outlet1 * positive(x[0]) ** self.exponent1 + self.leak1 * x[0]
        coming = self.inlet2 * positive(x[0]) ** self.exponent1 + self.spill * over1
        drained = self.outlet2 * positive(x[1]) ** self.exponent2 + self.leak2 * x[1]
        return jnp.stack([self.pump * u[0] + self.bias - leaving - over1, coming - drained - over2])


def tanks(file: Path) -> float:
    """Root mean square [V] of what the fitted tanks miss of the validation record in simulation; published: 0.34."""

    def log(which: str) -> identification.Log:
        found = identification.read(file, [f"u{which}"], [f"y{which}"], dt=4.0)
        return found.renamed({f"u{which}": "voltage", f"y{which}": "level"})

    estimation, validation = log("Est"), log("Val")
    found = identification.fit(OverflowingTanks(), estimation, starts=1, method="single", substeps=8)  # type: ignore[call-arg]
    missed = validation.ys - found.simulate(validation, found.x0[0])  # both records begin alike
    return float(np.sqrt(np.mean(np.square(missed))))


def arm(file: Path) -> tuple[int, float, float]:
    """Order that the data choose, and fit [%] of simulation and of one step ahead on the half that was not used."""
    us, ys = np.loadtxt(file).T
    log = identification.read({"torque": us, "acceleration": ys}, ["torque"], ["acceleration"], 1.0)
    estimation, validation = log.split(0.5)
    model = identification.refine(identification.subspace(estimation, method="cva"), estimation)
    return model.order, float(model.fit_percent(validation)[0]), float(model.fit_percent(validation, predicted=True)[0])


if __name__ == "__main__":
    setup()
    folder = Path(sys.argv[1])
    print(f"cascaded tanks: {tanks(folder / 'cascaded_tanks.csv'):.3f} V rms in validation")
    print(
        "robot arm: order {}, fit {:.2f} % in simulation, {:.2f} % one step ahead".format(
            *arm(folder / "robot_arm.dat")
        )
    )
