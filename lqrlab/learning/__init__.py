"""One network for all plants: models, losses, the train step, the loop, checkpoints."""

from lqrlab.learning import losses, models
from lqrlab.learning.checkpoints import load
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit
from lqrlab.learning.policies import NetworkPolicy, policy
from lqrlab.learning.training import TrainState, optimizer, schedule, train_step

__all__ = [
    "Fit",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "TrainConfig",
    "TrainState",
    "fit",
    "load",
    "losses",
    "models",
    "optimizer",
    "policy",
    "schedule",
    "train_step",
]
