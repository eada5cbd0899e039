"""Closed-loop scores against the true optimum, and the baselines that give them meaning."""

from lqrlab.control import settling_steps
from lqrlab.evaluation import certificate
from lqrlab.evaluation.baselines import baselines
from lqrlab.evaluation.certificate import Certificate, certify
from lqrlab.evaluation.first_contact import FirstContact, first_contact
from lqrlab.evaluation.ladder import Ladder, ladder
from lqrlab.evaluation.regions import Attraction, attraction, best_known_cost, recoveries
from lqrlab.evaluation.robust_stability import RobustStability, robust_stability
from lqrlab.evaluation.scores import Score, evaluate
from lqrlab.evaluation.unknown import Regret, from_outputs, unknown, unknown_problem
from lqrlab.evaluation.unknown_baselines import BankPolicy, Trial, family_known, tune_baselines, unknown_baselines
from lqrlab.evaluation.worst_case_gain import WorstCaseGain, worst_case_gain

__all__ = [
    "Attraction",
    "BankPolicy",
    "Certificate",
    "FirstContact",
    "Ladder",
    "Regret",
    "RobustStability",
    "Score",
    "Trial",
    "WorstCaseGain",
    "attraction",
    "baselines",
    "best_known_cost",
    "certificate",
    "certify",
    "evaluate",
    "family_known",
    "first_contact",
    "from_outputs",
    "ladder",
    "recoveries",
    "robust_stability",
    "settling_steps",
    "tune_baselines",
    "unknown",
    "unknown_baselines",
    "unknown_problem",
    "worst_case_gain",
]
