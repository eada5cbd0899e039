"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

from lqrlab.workbench.panels.attraction_map import AttractionMap, attraction_map
from lqrlab.workbench.panels.data_browser import Browser, data_browser
from lqrlab.workbench.panels.lqr_designer import Designer, lqr_designer
from lqrlab.workbench.panels.plant_explorer import Explorer, plant_explorer
from lqrlab.workbench.panels.policy_inspector import Inspector, policy_inspector
from lqrlab.workbench.panels.training_monitor import Monitor, training_monitor

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
