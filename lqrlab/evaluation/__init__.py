"""How close to optimal: closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.ladder import Ladder, ladder
from lqrlab.evaluation.regions import Attraction, attraction, best_known_cost, recoveries
from lqrlab.evaluation.scores import Score, evaluate, settling_steps
from lqrlab.evaluation.unknown import Regret, Unknown, undescribed, unknown
from lqrlab.evaluation.unknown_baselines import (
    BankPolicy,
    Tuned,
    family_known,
    tune_baselines,
    unknown_baselines,
)

__all__ = [
    "Attraction",
    "BankPolicy",
    "Ladder",
    "Regret",
    "Score",
    "Tuned",
    "Unknown",
    "attraction",
    "baselines",
    "best_known_cost",
    "evaluate",
    "family_known",
    "ladder",
    "recoveries",
    "settling_steps",
    "tune_baselines",
    "undescribed",
    "unknown",
    "unknown_baselines",
]
