"""lqrlab: a notebook-first workbench for optimal and learned control of dynamical systems, in JAX.

The rooms, in the order that data flows: :mod:`compute`, :mod:`systems`, :mod:`control`,
:mod:`simulation`, :mod:`dataset`, :mod:`identification`, :mod:`learning`, :mod:`evaluation`, :mod:`environments`,
:mod:`benchmarks`, :mod:`workbench`.
Each is loaded when it is first named, so that asking for one does not pay for all.
"""

import importlib
import sys
from typing import Any

__version__ = "0.2.0"
__all__ = [  # noqa: RUF022 (the order is the order of the rooms)
    "compute", "systems", "control", "simulation", "dataset", "identification", "learning", "evaluation",
    "environments", "benchmarks", "workbench",
]  # fmt: skip


if "gymnasium" in sys.modules:  # else the room registers its ids when it is named
    importlib.import_module("lqrlab.environments")


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
