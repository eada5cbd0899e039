"""How close to optimal: closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.ladder import Ladder, ladder
from lqrlab.evaluation.regions import Attraction, attraction
from lqrlab.evaluation.scores import Score, evaluate, settling_steps

__all__ = ["Attraction", "Ladder", "Score", "attraction", "baselines", "evaluate", "ladder", "settling_steps"]
