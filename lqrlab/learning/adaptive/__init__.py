"""A controller that learns the plant while it controls it: it is told units, sample time and noise."""

from lqrlab.learning.adaptive.belief import Belief
from lqrlab.learning.adaptive.policy import AdaptivePolicy, adaptive
from lqrlab.learning.adaptive.prior import Families, Prior, families, ridge, wide

__all__ = ["AdaptivePolicy", "Belief", "Families", "Prior", "adaptive", "families", "ridge", "wide"]
