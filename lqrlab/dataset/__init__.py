"""What is on disk: optimally controlled trajectories of many plants; made, checked, and fed to a learner."""

from lqrlab.dataset import card, description
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import Description, describe, scaled_gain
from lqrlab.dataset.generation import generate
from lqrlab.dataset.problem import Problem, make_problem, problems
from lqrlab.dataset.random_linear import random_systems
from lqrlab.dataset.shards import BadFile
from lqrlab.dataset.sources.loading import Loader, loader
from lqrlab.dataset.sources.simulated import live
from lqrlab.dataset.store import Dataset, Recorded, Variants, VariantTable, open
from lqrlab.dataset.verification import Report, verify
from lqrlab.dataset.windows import Batch, Resident, resident

__all__ = [
    "BadFile",
    "Batch",
    "DataConfig",
    "Dataset",
    "Description",
    "Loader",
    "Problem",
    "Recorded",
    "Report",
    "Resident",
    "VariantTable",
    "Variants",
    "card",
    "describe",
    "description",
    "generate",
    "live",
    "loader",
    "make_problem",
    "open",
    "problems",
    "random_systems",
    "resident",
    "scaled_gain",
    "verify",
]
