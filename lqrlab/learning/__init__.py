"""One network for all plants: models, losses, closed-loop cost, the train step, fit, checkpoints."""

from typing import Any

from lqrlab.learning import batches, closed_loop_cost, gain_repair, losses, metrics, models
from lqrlab.learning.adaptive import (
    AdaptiveOutputPolicy,
    AdaptivePolicy,
    Families,
    LookAheadPolicy,
    Prior,
    adaptive,
    adaptive_outputs,
    families,
    look_ahead,
    ridge,
    wide,
)
from lqrlab.learning.batches import TrainBatch, expert_std
from lqrlab.learning.checkpoints import load, settings
from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
from lqrlab.learning.gain_repair import repair
from lqrlab.learning.imitation import Imitation, ImitationConfig, imitate
from lqrlab.learning.network_policy import NetworkPolicy, policy
from lqrlab.learning.recovery import Recovery, RecoveryConfig, train_recovery
from lqrlab.learning.recovery_policy import RecoveryPolicy
from lqrlab.learning.train_config import ModelConfig, TrainConfig
from lqrlab.learning.training_step import TrainState, learning_rate, objective, optimizer, train_step
from lqrlab.learning.weight_files import card, pretrained

__all__ = [
    "AdaptiveOutputPolicy",
    "AdaptivePolicy",
    "Families",
    "Fit",
    "Imitation",
    "ImitationConfig",
    "LookAheadPolicy",
    "ModelConfig",
    "NetworkPolicy",
    "NonFiniteLossError",
    "Prior",
    "Recovery",
    "RecoveryConfig",
    "RecoveryPolicy",
    "TrainBatch",
    "TrainConfig",
    "TrainState",
    "adaptive",
    "adaptive_outputs",
    "batches",
    "card",
    "closed_loop_cost",
    "expert_std",
    "families",
    "fit",
    "gain_repair",
    "imitate",
    "learning_rate",
    "load",
    "look_ahead",
    "losses",
    "metrics",
    "models",
    "objective",
    "optimizer",
    "policy",
    "pretrained",
    "repair",
    "ridge",
    "settings",
    "stop",
    "train_recovery",
    "train_step",
    "wide",
]

_MOVED = {name: f"evaluation.{name}" for name in ("Certificate", "certificate", "certify")}


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        raise AttributeError(f"learning.{name} is now {_MOVED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
