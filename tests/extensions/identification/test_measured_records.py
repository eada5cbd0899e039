"""Plants found in measured records of real machines; tests/records/README.md says where they are from."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jaxtyping import Array

from lqrlab.extensions import identification
from lqrlab.systems import Plant, param, signals

HERE = Path(__file__).parents[2] / "records"
RECORDS = Path(os.environ.get("LQRLAB_RECORDS", HERE))


def positive(x):
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

    def output(self, x):
        return jnp.stack([10.0 - positive(10.0 - x[1])])  # the sensor ends at 10 V

    def dynamics(self, x, u):
        over1, over2 = self.rate1 * positive(x[0] - self.brim1), 0.8 * positive(x[1] - self.brim2)
        leaving = self.outlet1 * positive(x[0]) ** self.exponent1 + self.leak1 * x[0]
        coming = self.inlet2 * positive(x[0]) ** self.exponent1 + self.spill * over1
        drained = self.outlet2 * positive(x[1]) ** self.exponent2 + self.leak2 * x[1]
        return jnp.stack([self.pump * u[0] + self.bias - leaving - over1, coming - drained - over2])


class DiodeConverter(Plant):
    """Step-down converter whose diode keeps the coil's current from turning around; current in volts across the load.

    Source: the averaged model of R. W. Erickson and D. Maksimović, Fundamentals of Power Electronics, 3rd ed. (2020),
    chapter 2; that the voltage falls with the duty signal is the converter's of L. A. Aguirre et al. (2000)
    """

    coil: Array = param(7e4, "1/s", "load over inductance", 10.0, 1e6)
    winding: Array = param(1000.0, "1/s", "resistance over inductance", 0.0, 1e5)
    load: Array = param(400.0, "1/s", "one over load times capacitance", 10.0, 1e5)
    zero: Array = param(32.0, "V", "voltage at no duty signal", 0.0, 100.0)
    gain: Array = param(8.0, "1", "voltage that a volt of the duty signal takes away", 0.1, 100.0)

    states = signals("current, voltage = 13 ± 5 V")
    inputs = signals("duty = 2.4 ± 0.3 V")
    outputs = ("voltage",)
    solve_for = ("current", "duty")
    dt = 1e-5

    def dynamics(self, x, u):
        rate = self.coil * (self.zero - self.gain * u[0] - x[1]) - self.winding * x[0]
        held = rate * (1 - jnp.exp(-jnp.maximum(x[0], 0) / 0.3))  # the less, the nearer the current is to none
        return jnp.stack([jnp.where(rate > 0, rate, held), self.load * (x[0] - x[1])])


def needs(file, source):
    """Skips a test whose record may not be handed on and has not been put in place."""
    return pytest.mark.skipif(
        not (RECORDS / file).is_file(),
        reason=f"{file} is not here: get it from {source}, and put it into tests/records/ or LQRLAB_RECORDS",
    )


def rms(a):
    return float(np.sqrt(np.mean(np.square(a))))


@needs("cascaded_tanks.csv", "nonlinearbenchmark.org, Cascaded Tanks")
def test_the_cascaded_tanks_are_simulated_nearer_than_the_best_published_model():
    def log(which):
        found = identification.read(RECORDS / "cascaded_tanks.csv", [f"u{which}"], [f"y{which}"], dt=4.0)
        return found.renamed({f"u{which}": "voltage", f"y{which}": "level"})

    estimation, validation = log("Est"), log("Val")
    found = identification.fit(OverflowingTanks(), estimation, starts=1, method="single", substeps=8)
    missed = validation.ys - found.simulate(validation, found.x0[0])  # both records begin alike
    assert rms(missed) < 0.25  # published: 0.34 V and more


@needs("robot_arm.dat", "DaISy (KU Leuven), data set 96-009")
def test_the_robot_arm_is_simulated_on_the_half_that_was_not_used():
    us, ys = np.loadtxt(RECORDS / "robot_arm.dat").T
    log = identification.read({"torque": us, "acceleration": ys}, ["torque"], ["acceleration"], 1.0)
    estimation, validation = log.split(0.5)
    model = identification.refine(identification.subspace(estimation, method="cva"), estimation)
    assert 4 <= model.order <= 12  # chosen by the data
    assert model.fit_percent(validation)[0] > 97  # 97.55
    assert model.fit_percent(validation, predicted=True)[0] > 99.9


def buck_converter():
    """The whole record, its first part, and the rows of the second one."""
    # one goes on in the other
    frames = [pd.read_csv(HERE / f"buck_{which}.csv") for which in ("id", "valid")]
    whole = identification.read(pd.concat(frames), ["input"], ["y"], time="sampling_time")
    whole = whole.renamed({"input": "duty", "y": "voltage"})
    return whole, whole.cut(0, 0.01), slice(len(frames[0]), None)


def test_several_starts_leave_the_poor_minimum_that_one_ends_in():
    whole, estimation, after = buck_converter()
    plant, missed = DiodeConverter(coil=8500, load=36_000, zero=82, gain=3.3), []
    for starts in (1, 8):
        found = identification.fit(plant, estimation, method="single", starts=starts)
        missed.append(rms((whole.ys - found.simulate(whole, found.x0[0]))[after]))
    assert missed[0] > 0.6
    assert missed[1] < 0.2


def test_the_buck_converters_diode_explains_what_no_linear_model_does():
    whole, estimation, after = buck_converter()
    found = identification.fit(DiodeConverter(), estimation, method="single")
    missed = rms((whole.ys - found.simulate(whole, found.x0[0]))[after])
    assert missed < 0.2
    linear = identification.subspace(estimation, 3)
    linear = identification.refine(linear, estimation, focus="simulation")
    assert missed < 0.5 * rms((whole.ys - linear.simulate(whole))[after])
    # the paper's static law of a source of 24 V: 4/3 and 1/3 of it
    np.testing.assert_allclose([found.plant.zero, found.plant.gain], [32, 8], rtol=0.02)
