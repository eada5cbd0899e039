"""Robust control: H2, H∞, µ, structured synthesis, model reduction, uncertain plants, worst cases."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.robust.box_certificates import (
        RobustStability,
        WorstCaseGain,
        robust_stability,
        worst_case_gain,
    )
    from lqrlab.extensions.robust.h2_synthesis import h2syn
    from lqrlab.extensions.robust.hinf_synthesis import hinfsyn, mixsyn, ncfsyn
    from lqrlab.extensions.robust.model_reduction import Reduction, balred
    from lqrlab.extensions.robust.mu_synthesis import MuSynthesis, musyn
    from lqrlab.extensions.robust.structured_singular_value import StructuredSingularValue, mu
    from lqrlab.extensions.robust.structured_synthesis import NormRequirement, hinfstruct
    from lqrlab.extensions.robust.synthesis_result import Synthesis
    from lqrlab.extensions.robust.uncertain_loop import UncertainPlant

__getattr__, __dir__, __all__ = lazily(__name__)
