"""From a log to a plant: linear models, physical parameters, how sure they are, and designs that allow for it."""

from lqrlab.identification.log import Log
from lqrlab.identification.model import Model
from lqrlab.identification.reading import join, read
from lqrlab.identification.refinement import refine
from lqrlab.identification.residuals import Residuals
from lqrlab.identification.subspace import arx, era, least_squares, orders, realise, subspace

__all__ = [
    "Log", "Model", "Residuals", "arx", "era", "join", "least_squares", "orders", "read", "realise", "refine",
    "subspace",
]  # fmt: skip
