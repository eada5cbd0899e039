"""Closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.compute.names import moved
from lqrlab.control import settling_steps
from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.ladder import Ladder, ladder
from lqrlab.evaluation.regions import Attraction, attraction
from lqrlab.evaluation.scores import Score, evaluate

__all__ = ["Attraction", "Ladder", "Score", "attraction", "baselines", "evaluate", "ladder", "settling_steps"]

__getattr__ = moved(__name__)
