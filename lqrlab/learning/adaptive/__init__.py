"""A controller that learns the plant while it controls it: it is told units, sample time and noise."""

from lqrlab.learning.adaptive.belief import Belief
from lqrlab.learning.adaptive.look_ahead_policy import LookAheadPolicy, look_ahead
from lqrlab.learning.adaptive.output_policy import AdaptiveOutputPolicy, adaptive_outputs
from lqrlab.learning.adaptive.policy import AdaptivePolicy, adaptive
from lqrlab.learning.adaptive.prior import Families, Prior, families, ridge, wide

__all__ = [
    "AdaptiveOutputPolicy",
    "AdaptivePolicy",
    "Belief",
    "Families",
    "LookAheadPolicy",
    "Prior",
    "adaptive",
    "adaptive_outputs",
    "families",
    "look_ahead",
    "ridge",
    "wide",
]
