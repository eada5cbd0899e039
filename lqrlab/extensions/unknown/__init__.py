"""Control of plants whose A and B are not given: adaptive regulators, priors, baselines, scores."""

from lqrlab.extensions.unknown.adaptive_policy import AdaptivePolicy, adaptive
from lqrlab.extensions.unknown.belief import Belief
from lqrlab.extensions.unknown.first_contact import FirstContact, first_contact
from lqrlab.extensions.unknown.look_ahead_policy import LookAheadPolicy, look_ahead
from lqrlab.extensions.unknown.output_policy import AdaptiveOutputPolicy, adaptive_outputs
from lqrlab.extensions.unknown.prior import Families, Prior, families, ridge, wide
from lqrlab.extensions.unknown.regret import Regret, from_outputs, problem_of, score
from lqrlab.extensions.unknown.unknown_baselines import BankPolicy, Trial, baselines, family_known, tune_baselines

__all__ = [
    "AdaptiveOutputPolicy",
    "AdaptivePolicy",
    "BankPolicy",
    "Belief",
    "Families",
    "FirstContact",
    "LookAheadPolicy",
    "Prior",
    "Regret",
    "Trial",
    "adaptive",
    "adaptive_outputs",
    "baselines",
    "families",
    "family_known",
    "first_contact",
    "from_outputs",
    "look_ahead",
    "problem_of",
    "ridge",
    "score",
    "tune_baselines",
    "wide",
]
