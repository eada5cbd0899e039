"""Panels for a person at a notebook; with nobody there, the same figure stands still."""

from lqrlab.workbench.attraction import AttractionMap, attraction_map
from lqrlab.workbench.designer import Designer, lqr_designer
from lqrlab.workbench.explorer import Explorer, plant_explorer

__all__ = ["AttractionMap", "Designer", "Explorer", "attraction_map", "lqr_designer", "plant_explorer"]
