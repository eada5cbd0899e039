"""One network for all plants: models, losses, the train step, the loop, checkpoints."""

from lqrlab.learning import closed_loop_cost, losses, models
from lqrlab.learning.checkpoints import load
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
from lqrlab.learning.network_policy import NetworkPolicy, policy
from lqrlab.learning.seed_grid import Curves, grid
from lqrlab.learning.training_step import TrainBatch, TrainState, objective, optimizer, schedule, train_step

__all__ = [
    "Curves",
    "Fit",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "TrainBatch",
    "TrainConfig",
    "TrainState",
    "closed_loop_cost",
    "fit",
    "grid",
    "load",
    "losses",
    "models",
    "objective",
    "optimizer",
    "policy",
    "schedule",
    "stop",
    "train_step",
]
