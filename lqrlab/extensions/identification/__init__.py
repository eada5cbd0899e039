"""Plants from logs: linear models, physical parameters, their uncertainty, and designs under it."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.identification.fitted_plant import FittedPlant
    from lqrlab.extensions.identification.input_design import Experiment, design, excitation, experiment
    from lqrlab.extensions.identification.log import Log
    from lqrlab.extensions.identification.model import LinearModel
    from lqrlab.extensions.identification.physical import fit
    from lqrlab.extensions.identification.reading import join, read
    from lqrlab.extensions.identification.refinement import refine
    from lqrlab.extensions.identification.regression import direct_lqr, least_squares
    from lqrlab.extensions.identification.residuals import Residuals
    from lqrlab.extensions.identification.subspace_method import orders, subspace
    from lqrlab.extensions.identification.uncertainty import CostUncertainty, regret, robust_gain, under_uncertainty

__getattr__, __dir__, __all__ = lazily(__name__)
