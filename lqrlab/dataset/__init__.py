"""What is on disk, and what a learner is fed from: optimally controlled trajectories of many plants."""

from lqrlab.dataset import card, consistency, description, sources
from lqrlab.dataset.config import DataConfig
from lqrlab.dataset.description import Description, describe
from lqrlab.dataset.generation import generate
from lqrlab.dataset.random_linear import random_systems
from lqrlab.dataset.shards import BadFile
from lqrlab.dataset.sources import Source, source
from lqrlab.dataset.store import Dataset, Recorded, Variants, VariantTable, open
from lqrlab.dataset.verification import Report, verify
from lqrlab.dataset.windows import Batch, Windows, WindowSet

__all__ = [
    "BadFile",
    "Batch",
    "DataConfig",
    "Dataset",
    "Description",
    "Recorded",
    "Report",
    "Source",
    "VariantTable",
    "Variants",
    "WindowSet",
    "Windows",
    "card",
    "consistency",
    "describe",
    "description",
    "generate",
    "open",
    "random_systems",
    "source",
    "sources",
    "verify",
]
