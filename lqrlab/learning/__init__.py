"""One network for all plants: models, losses, closed-loop cost, the train step, fit, checkpoints."""

from lqrlab.learning import batches, closed_loop_cost, losses, metrics, models
from lqrlab.learning.batches import Plants, TrainBatch
from lqrlab.learning.checkpoints import load
from lqrlab.learning.config import ModelConfig, TrainConfig
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
from lqrlab.learning.network_policy import NetworkPolicy, policy
from lqrlab.learning.recovery import Recovery, RecoveryConfig, train_recovery
from lqrlab.learning.recovery_policy import RecoveryPolicy
from lqrlab.learning.seed_grid import Curves, grid
from lqrlab.learning.training_step import TrainState, learning_rate, objective, optimizer, train_step

__all__ = [
    "Curves",
    "Fit",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "Plants",
    "Recovery",
    "RecoveryConfig",
    "RecoveryPolicy",
    "TrainBatch",
    "TrainConfig",
    "TrainState",
    "batches",
    "closed_loop_cost",
    "fit",
    "grid",
    "learning_rate",
    "load",
    "losses",
    "metrics",
    "models",
    "objective",
    "optimizer",
    "policy",
    "stop",
    "train_recovery",
    "train_step",
]
