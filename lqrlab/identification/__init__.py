"""From a log to a plant: linear models, physical parameters, how sure they are, and designs that allow for it."""

from lqrlab.identification.direct import direct_lqr
from lqrlab.identification.doubt import Doubt, regret, robust_gain, under_doubt
from lqrlab.identification.estimate import Fit
from lqrlab.identification.excitation import Experiment, design, excitation, experiment
from lqrlab.identification.log import Log
from lqrlab.identification.model import Model
from lqrlab.identification.physical import fit
from lqrlab.identification.posterior import Posterior, posterior
from lqrlab.identification.reading import join, read
from lqrlab.identification.refinement import refine
from lqrlab.identification.regression import arx, least_squares
from lqrlab.identification.residuals import Residuals
from lqrlab.identification.subspace import era, orders, realise, subspace
from lqrlab.identification.subspace_batch import Realisations, subspaces

__all__ = [
    "Doubt", "Experiment", "Fit", "Log", "Model", "Posterior", "Realisations", "Residuals", "arx", "design",
    "direct_lqr", "era", "excitation", "experiment", "fit", "join", "least_squares", "orders", "posterior", "read",
    "realise", "refine", "regret", "robust_gain", "subspace", "subspaces", "under_doubt",
]  # fmt: skip
