"""What is a regulator worth that comes from a log? Logs of 30 s of machines known but for their class, 1 % noise.

    python tests/bench_logs.py logs.json --num 200

fits the parameters of each family's variants, designs for the estimate, and says what its gain costs above the true
machine's optimum, for each length of log. Writes after each variant and goes on where it stopped.
"""

import argparse
import json
import warnings
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from test_identification import closed_loop_log

from lqrlab import compute, control, systems
from lqrlab.extensions import identification

FAMILIES = ("cart_pole", "furuta_pendulum", "quadrotor")
LENGTHS = (3.0, 10.0, 30.0)


def excess(name, seed):
    """Cost above the optimum [%] of the regulator from each length of one log, inf where it does not stabilise."""
    nominal = systems.make(name)
    truth, log = closed_loop_log(name, seed, round(LENGTHS[-1] / nominal.dt), spread=0.2)
    truth = jax.tree.map(lambda a: np.asarray(a)[None], truth)
    found = {}
    for length in LENGTHS:
        plant = identification.fit(nominal, log.cut(0, length)).plant
        gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
        found[f"{length:g} s"] = 100 * identification.under_uncertainty(truth, gain).quantile(1.0)
    rough = control.lqrd(*nominal.matrices(), *nominal.weights(), nominal.dt).K
    return {"no log": 100 * identification.under_uncertainty(truth, rough).quantile(1.0)} | found


def main():
    """Families one after the other, into a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--num", type=int, default=200, help="variants of each family")
    parser.add_argument("--families", nargs="+", default=FAMILIES)
    options = parser.parse_args()
    compute.setup()
    warnings.simplefilter("ignore")
    done = json.loads(options.path.read_text()) if options.path.exists() else {}
    for name in options.families:
        for seed in range(options.num):
            if str(seed) not in done.setdefault(name, {}):
                try:
                    done[name][str(seed)] = excess(name, seed)
                except ValueError as error:  # the rough regulator did not hold the machine, most likely
                    done[name][str(seed)] = str(error)
                options.path.write_text(json.dumps(done))
        refused = {seed: row for seed, row in done[name].items() if isinstance(row, str)}
        table = pd.DataFrame([row for row in done[name].values() if not isinstance(row, str)])
        shown = table.quantile([0.5, 0.95, 1.0], interpolation="higher").rename(
            {0.5: "median", 0.95: "p95", 1.0: "worst"}
        )
        shown.loc["not stable"] = np.isinf(table).sum()
        print(
            f"{name}: cost above the optimum [%] of {len(table)} machines, {len(refused)} without a log {refused}"
        )
        print(shown.to_string(float_format=lambda v: f"{v:.3g}"), flush=True)


if __name__ == "__main__":
    main()
