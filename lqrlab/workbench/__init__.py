"""What people see and start: figures, widgets, animation, reports, the chain of notebooks, the command line.

Each module is loaded when it is first named: the command line must not wait for JAX or matplotlib.
"""

import importlib
from typing import Any

__all__ = [
    "animate",
    "catalogue",
    "cli",
    "notebooks",
    "pipeline",
    "plots",
    "points",
    "report",
    "sweep",
    "widgets",
]

PANELS = (
    "attraction_map",
    "data_browser",
    "lqr_designer",
    "plant_explorer",
    "policy_inspector",
    "training_monitor",
)  # of widgets, importable from here


def __getattr__(name: str) -> Any:
    if name in PANELS:
        return getattr(importlib.import_module(f"{__name__}.widgets"), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, *PANELS])
