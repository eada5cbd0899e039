"""One network for all plants: models, losses, closed-loop cost, the train step, fit, checkpoints."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.learning import batches, losses, models
    from lqrlab.learning.batches import TrainBatch
    from lqrlab.learning.checkpoints import load, settings
    from lqrlab.learning.fitting import Fit, NonFiniteLossError, fit, stop
    from lqrlab.learning.network_policy import NetworkPolicy, policy, repair
    from lqrlab.learning.train_config import ModelConfig, TrainConfig
    from lqrlab.learning.training_step import TrainState, learning_rate, objective, optimizer, train_step
    from lqrlab.learning.weight_files import card, pretrained

__getattr__, __dir__, __all__ = lazily(__name__)

from lqrlab.learning import network_policy  # noqa: E402 (simulation.bind then knows networks)
