"""Plants from logs: linear models, physical parameters, their uncertainty, and designs that allow for it."""

from lqrlab.extensions.identification.excitation import Experiment, design, excitation, experiment
from lqrlab.extensions.identification.fitted_plant import FittedPlant
from lqrlab.extensions.identification.log import Log
from lqrlab.extensions.identification.model import LinearModel
from lqrlab.extensions.identification.physical import fit
from lqrlab.extensions.identification.reading import join, read
from lqrlab.extensions.identification.refinement import refine
from lqrlab.extensions.identification.regression import direct_lqr, least_squares
from lqrlab.extensions.identification.residuals import Residuals
from lqrlab.extensions.identification.subspace import orders, subspace
from lqrlab.extensions.identification.uncertainty import CostUncertainty, regret, robust_gain, under_uncertainty

__all__ = [
    "CostUncertainty",
    "Experiment",
    "FittedPlant",
    "LinearModel",
    "Log",
    "Residuals",
    "design",
    "direct_lqr",
    "excitation",
    "experiment",
    "fit",
    "join",
    "least_squares",
    "orders",
    "read",
    "refine",
    "regret",
    "robust_gain",
    "subspace",
    "under_uncertainty",
]
