"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

from lqrlab.workbench.attraction import AttractionMap, attraction_map
from lqrlab.workbench.browser import Browser, data_browser
from lqrlab.workbench.designer import Designer, lqr_designer
from lqrlab.workbench.explorer import Explorer, plant_explorer
from lqrlab.workbench.inspector import Inspector, policy_inspector
from lqrlab.workbench.monitor import Monitor, training_monitor

__all__ = [
    "AttractionMap",
    "Browser",
    "Designer",
    "Explorer",
    "Inspector",
    "Monitor",
    "attraction_map",
    "data_browser",
    "lqr_designer",
    "plant_explorer",
    "policy_inspector",
    "training_monitor",
]
