"""How close to optimal: closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.regions import Attraction, attraction
from lqrlab.evaluation.scores import Score, evaluate, settling_steps
from lqrlab.evaluation.unknown import Regret, Unknown, undescribed, unknown

__all__ = [
    "Attraction",
    "Regret",
    "Score",
    "Unknown",
    "attraction",
    "baselines",
    "evaluate",
    "settling_steps",
    "undescribed",
    "unknown",
]
