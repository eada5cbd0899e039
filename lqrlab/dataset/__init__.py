"""Data sets on disk, optimally controlled trajectories of many plants, and the sources that feed a learner."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.dataset import card, sources
    from lqrlab.dataset.data_config import DataConfig, fold
    from lqrlab.dataset.generation import Report, generate, verify
    from lqrlab.dataset.random_linear import random_systems
    from lqrlab.dataset.shards import BadFile
    from lqrlab.dataset.sources import Source, source
    from lqrlab.dataset.store import SPLITS, Dataset, Recorded, VariantTable, open
    from lqrlab.dataset.windows import Batch, Windows, WindowSet

__getattr__, __dir__, __all__ = lazily(__name__)
