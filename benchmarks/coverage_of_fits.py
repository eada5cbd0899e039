"""Do standard errors of fitted parameters mean what they say? All families, measured states, 1 % noise.

    python tests/bench_coverage.py coverage.json --num 20

writes after each family, goes on where it stopped, and prints one row a family: how many estimates are within three
standard errors of the truth, and the root mean square of errors in units of the standard error.
"""

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from test_identification import closed_loop_log, told

from lqrlab import compute, systems


def errors(name, num):
    """Errors in standard errors, and what went wrong in words."""
    z, failed = [], []
    for seed in range(num):
        try:
            truth, log = closed_loop_log(name, seed, 200)
            found = told(name, truth, log)
            z += ((found.values - [float(getattr(truth, k)) for k in found.names]) / found.std).tolist()
        except ValueError as error:
            failed.append(str(error))
    return {"z": z, "failed": failed}


def main():
    """Families one after the other, into a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--num", type=int, default=20, help="variants of each family")
    options = parser.parse_args()
    compute.setup()
    warnings.simplefilter("ignore")
    done = json.loads(options.path.read_text()) if options.path.exists() else {}
    for name in systems.names():
        if name not in done and systems.parameter_fields(type(systems.make(name))):
            done[name] = errors(name, options.num)
            options.path.write_text(json.dumps(done))
            print(name, len(done[name]["z"]), flush=True)
    rows = {
        name: {
            "estimates": len(each["z"]),
            "within 3 [%]": 100 * np.mean(np.abs(each["z"]) < 3) if each["z"] else np.nan,
            "rms": np.sqrt(np.mean(np.square(each["z"]))) if each["z"] else np.nan,
            "refused": len(each["failed"]),
        }
        for name, each in done.items()
    }
    print(pd.DataFrame(rows).T.to_string(float_format=lambda v: f"{v:.2f}"))
    pooled = np.concatenate([each["z"] for each in done.values()])
    print(f"all {len(pooled)}: {100 * np.mean(np.abs(pooled) < 3):.1f} % within three standard errors")


if __name__ == "__main__":
    main()
