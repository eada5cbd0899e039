"""How close to optimal: closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.headroom import best_known_cost, recoveries
from lqrlab.evaluation.regions import Attraction, attraction
from lqrlab.evaluation.scores import Score, evaluate, settling_steps

__all__ = [
    "Attraction",
    "Score",
    "attraction",
    "baselines",
    "best_known_cost",
    "evaluate",
    "recoveries",
    "settling_steps",
]
