"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

from lqrlab.workbench.panels.attraction_map import attraction_map
from lqrlab.workbench.panels.data_browser import data_browser
from lqrlab.workbench.panels.identify_panel import identify
from lqrlab.workbench.panels.lqr_designer import lqr_designer
from lqrlab.workbench.panels.plant_explorer import plant_explorer
from lqrlab.workbench.panels.policy_inspector import policy_inspector
from lqrlab.workbench.panels.training_monitor import training_monitor

__all__ = [
    "attraction_map",
    "data_browser",
    "identify",
    "lqr_designer",
    "plant_explorer",
    "policy_inspector",
    "training_monitor",
]
