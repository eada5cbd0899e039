"""Control of plants with unknown A and B: adaptive regulators, priors, baselines, scores."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.extensions.unknown.adaptive_policy import AdaptivePolicy, adaptive
    from lqrlab.extensions.unknown.look_ahead_policy import LookAheadPolicy, look_ahead
    from lqrlab.extensions.unknown.prior import Families, Prior, families, ridge, wide
    from lqrlab.extensions.unknown.regret import Regret, problem_of, score
    from lqrlab.extensions.unknown.unknown_baselines import baselines

__getattr__, __dir__, __all__ = lazily(__name__)
