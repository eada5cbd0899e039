"""Benchmarks of lqrlab, each a module with parts: python -m benchmarks.control [part] [--quick] [--json].

python -m benchmarks                  this list
python -m benchmarks all FILE         control, simulation, data, environments, training, identification and startup
                                      into one file; about half an hour; resumes when the command is repeated
python -m benchmarks compare OLD NEW  ratios that are more than 20 % worse in NEW; exit status 1 if any is
"""

import dataclasses
import importlib
import sys
from pathlib import Path

from benchmarks import records
from benchmarks.measurement import show
from lqrlab.compute import setup

MODULES = (
    "control",
    "simulation",
    "data",
    "environments",
    "training",
    "identification",
    "startup",
    "panels",
    "unknown_plants",
    "recovery",
    "imitation",
    "constrained_network",
    "learned_agents",
    "mpc",
    "realtime",
    "pid",
    "robust",
)


def main(words: list[str]) -> int:
    """List, measure all, or compare; the exit status."""
    match words:
        case ["all", path]:
            setup()
            show([dataclasses.asdict(row) for row in records.measure_all(Path(path))])
        case ["compare", old, new]:
            changes = records.compare(Path(old), Path(new))
            worse = [change for change in changes if change.regression]
            show([dataclasses.asdict(change) for change in worse or changes[:3]])
            print(f"{len(worse)} of {len(changes)} ratios are more than 20 % worse")
            return int(bool(worse))
        case _:
            print(__doc__)
            for name in MODULES:
                module = importlib.import_module(f"benchmarks.{name}")
                print(f"benchmarks.{name}: {(module.__doc__ or '').splitlines()[0]}")
                print(f"    parts: {', '.join(module.PARTS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
