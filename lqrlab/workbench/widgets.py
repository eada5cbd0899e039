"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

from lqrlab.workbench.attraction import AttractionMap, attraction_map
from lqrlab.workbench.designer import Designer, lqr_designer
from lqrlab.workbench.explorer import Explorer, plant_explorer
from lqrlab.workbench.inspector import Inspector, policy_inspector

__all__ = [
    "AttractionMap",
    "Designer",
    "Explorer",
    "Inspector",
    "attraction_map",
    "lqr_designer",
    "plant_explorer",
    "policy_inspector",
]
