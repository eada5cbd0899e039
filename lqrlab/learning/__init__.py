"""One network for all plants: models, losses, closed-loop cost, the train step, fit, checkpoints."""

from lqrlab.learning import batches, certificate, closed_loop_cost, gain_repair, losses, metrics, models
from lqrlab.learning.batches import TrainBatch, expert_std
from lqrlab.learning.certificate import Certificate, certify
from lqrlab.learning.checkpoints import load, settings
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
from lqrlab.learning.gain_repair import repair
from lqrlab.learning.network_policy import NetworkPolicy, policy
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import TrainState, learning_rate, objective, optimizer, train_step
from lqrlab.learning.weight_files import card, pretrained

__all__ = [
    "Certificate",
    "Fit",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "TrainBatch",
    "TrainConfig",
    "TrainState",
    "batches",
    "card",
    "certificate",
    "certify",
    "closed_loop_cost",
    "expert_std",
    "fit",
    "gain_repair",
    "learning_rate",
    "load",
    "losses",
    "metrics",
    "models",
    "objective",
    "optimizer",
    "policy",
    "pretrained",
    "repair",
    "settings",
    "stop",
    "train_step",
]
