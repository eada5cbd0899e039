"""Robust control: H2, H∞, µ, structured synthesis, model reduction, uncertain plants, worst cases."""

from lqrlab.extensions.robust.h2_synthesis import h2syn
from lqrlab.extensions.robust.hinf_synthesis import hinfsyn
from lqrlab.extensions.robust.mixed_sensitivity import mixsyn, ncfsyn
from lqrlab.extensions.robust.model_reduction import Reduction, balred
from lqrlab.extensions.robust.mu_synthesis import MuSynthesis, musyn
from lqrlab.extensions.robust.norm_requirement import NormRequirement
from lqrlab.extensions.robust.robust_stability import RobustStability, robust_stability
from lqrlab.extensions.robust.structured_singular_value import StructuredSingularValue, mu
from lqrlab.extensions.robust.structured_synthesis import hinfstruct
from lqrlab.extensions.robust.synthesis_result import Synthesis
from lqrlab.extensions.robust.uncertain_plant import UncertainPlant
from lqrlab.extensions.robust.worst_case_gain import WorstCaseGain, worst_case_gain

__all__ = [
    "MuSynthesis",
    "NormRequirement",
    "Reduction",
    "RobustStability",
    "StructuredSingularValue",
    "Synthesis",
    "UncertainPlant",
    "WorstCaseGain",
    "balred",
    "h2syn",
    "hinfstruct",
    "hinfsyn",
    "mixsyn",
    "mu",
    "musyn",
    "ncfsyn",
    "robust_stability",
    "worst_case_gain",
]
