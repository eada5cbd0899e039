"""Plants found in measured records of real machines; tests/records/README.md says where they are from."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array

from lqrlab.extensions import identification
from lqrlab.systems import Plant, param, signals

HERE = Path(__file__).parents[2] / "records"


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


def rms(a):
    return float(np.sqrt(np.mean(np.square(a))))


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
