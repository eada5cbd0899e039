"""One network for all plants: models, losses, the train step, the loop, checkpoints."""

from lqrlab.learning import loops, losses, models
from lqrlab.learning.checkpoints import load
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
from lqrlab.learning.policies import NetworkPolicy, policy
from lqrlab.learning.sweeps import Curves, grid
from lqrlab.learning.training import Material, TrainState, objective, optimizer, schedule, train_step

__all__ = [
    "Curves",
    "Fit",
    "Material",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "TrainConfig",
    "TrainState",
    "fit",
    "grid",
    "load",
    "loops",
    "losses",
    "models",
    "objective",
    "optimizer",
    "policy",
    "schedule",
    "stop",
    "train_step",
]
