"""Configurations of models and training runs: plain numbers and strings, checked, JSON both ways."""

import dataclasses
from typing import Annotated, ClassVar

from lqrlab.compute.configuration import Config, Count, Natural, NonNegative, Positive, Range, Seed, Share

_Size = Annotated[int, Range(1, 10**9)]


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """A network's shape, by default notebook 03's. A kind has some of these settings: ``models.build`` refuses others
    that are no defaults.

    Attributes:
        kind: a registered model.
        window: time steps of history that it sees, the present one included.
        width: channels of a token.
        depth: transformer blocks.
        heads: attention heads; they share ``width``.
        description: whether it is told the plant (of kind matrix also its weights); else it has the history only.
        hidden: width of the description's encoder.
        seed: of the initial parameters.

    >>> learning.ModelConfig(width=16, heads=2).to_json() == learning.ModelConfig(heads=2, width=16).to_json()
    True
    """

    gone: ClassVar = {"stochastic": False, "remat": False, "block": "attention", "activation": "gelu"}
    kind: str = "matrix"
    window: _Size = 1
    width: _Size = 16
    depth: _Size = 8
    heads: _Size = 4
    description: bool = True
    hidden: _Size = 256
    seed: Seed = 0


@dataclasses.dataclass(frozen=True)
class TrainConfig(Config):
    """Settings of a training.

    Attributes:
        num_steps: optimizer steps in all; the schedule is computed from it.
        batch_size: windows a step.
        learning_rate: peak of the schedule: linear warm-up, then cosine to a hundredth.
        warmup: share of the steps that warm up.
        weight_decay: AdamW's.
        clip: largest global norm of a gradient.
        loss: a registered loss over windows, to the expert's inputs.
        imitation: its weight.
        closed_loop: weight of the cost above the optimum in the policy's own closed loop, by its logarithm from 3 % on.
        plants: windows of a step whose plants' closed loops are costed.
        horizon: steps of such a loop; a policy that is a linear gain is costed over an infinite one.
        loop_noise: standard deviation of the disturbance of the scaled state at each step of such a loop.
        random_systems: random linear plants to train on, in addition to the data set's.
        random_share: their share of each batch.
        steps_per_dispatch: steps compiled into one program; fewer where a report or checkpoint comes first.
        report_every: steps between progress lines and validations.
        checkpoint_every: steps between checkpoints.
        seed: of all that a training draws; the order of the windows is that of the source's seed.
    """

    gone: ClassVar = dict(accumulate=1, ema=0.0, patience=0, dagger_rounds=0, on_policy_share=0.5, on_policy_steps=32)
    num_steps: Count = 2000
    batch_size: Count = 512
    learning_rate: Positive = 2e-3
    warmup: Share = 0.05
    weight_decay: NonNegative = 1e-4
    clip: Positive = 1.0
    loss: str = "masked_mse"
    imitation: NonNegative = 1.0
    closed_loop: NonNegative = 1.0
    plants: Count = 64
    horizon: Count = 16
    loop_noise: NonNegative = 0.0
    random_systems: Natural = 0
    random_share: Share = 0.25
    steps_per_dispatch: Count = 25
    report_every: Count = 100
    checkpoint_every: Count = 500
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        weight = self.imitation + self.closed_loop
        self.require("closed_loop", weight > 0, "a weight above 0 with imitation = 0")
        self.require("plants", self.plants <= self.batch_size, f"at most batch_size = {self.batch_size}")
