"""Closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.compute.names import moved
from lqrlab.control import settling_steps
from lqrlab.evaluation import certificate
from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.certificate import Certificate, certify
from lqrlab.evaluation.ladder import Ladder, ladder
from lqrlab.evaluation.regions import Attraction, attraction
from lqrlab.evaluation.scores import Score, evaluate

__all__ = [
    "Attraction",
    "Certificate",
    "Ladder",
    "Score",
    "attraction",
    "baselines",
    "certificate",
    "certify",
    "evaluate",
    "ladder",
    "settling_steps",
]

__getattr__ = moved(__name__)
