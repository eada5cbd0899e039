"""How close to optimal: closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.scores import Score, evaluate, settling_steps

__all__ = ["Score", "baselines", "evaluate", "settling_steps"]
