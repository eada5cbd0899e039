"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

import importlib.metadata
from typing import Any

from lqrlab.workbench.panels.attraction_map import attraction_map
from lqrlab.workbench.panels.data_browser import data_browser
from lqrlab.workbench.panels.loop_shaper import loop_shaper
from lqrlab.workbench.panels.lqr_designer import lqr_designer
from lqrlab.workbench.panels.mpc_designer import mpc_designer
from lqrlab.workbench.panels.plant_explorer import plant_explorer
from lqrlab.workbench.panels.policy_inspector import policy_inspector
from lqrlab.workbench.panels.training_monitor import training_monitor

PANELS = "lqrlab.panels"
"""Entry points of extensions' panels."""
__all__ = [
    "attraction_map",
    "data_browser",
    "loop_shaper",
    "lqr_designer",
    "mpc_designer",
    "plant_explorer",
    "policy_inspector",
    "training_monitor",
]


def __getattr__(name: str) -> Any:
    for point in importlib.metadata.entry_points(group=PANELS, name=name):
        return point.load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *importlib.metadata.entry_points(group=PANELS).names])
