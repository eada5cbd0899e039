"""What a model and a training run are made from: plain numbers and strings, checked, JSON both ways."""

import dataclasses
import difflib
import json
import math
from typing import Self


@dataclasses.dataclass(frozen=True)
class Config:
    """A frozen, hashable set of plain values; subclasses list the fields and check them when built."""

    def to_json(self) -> str:
        """The fields as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config that ``to_json`` wrote; an unknown key is refused with the near names."""
        values = json.loads(text)
        fields = {f.name for f in dataclasses.fields(cls)}
        for key in values:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=3) or sorted(fields)
                raise ValueError(
                    f"{key}: {cls.__name__} has no such setting; did you mean {' or '.join(near)}?"
                )
        return cls(**values)

    def _check_types(self) -> None:
        """Each value is of its default's type; whole numbers do for real ones."""
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is float and type(value) is int:
                object.__setattr__(self, field.name, float(value))
            elif type(value) is not kind:
                raise ValueError(f"{field.name}: expected {kind.__name__}, but found {value!r}")

    def _require(self, name: str, good: bool, expected: str) -> None:
        value = getattr(self, name)
        finite = not isinstance(value, float) or math.isfinite(value)
        if not (finite and good):
            raise ValueError(f"{name}: expected {expected}, but found {value!r}")


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """A network's shape.

    Attributes:
        kind: a registered model.
        window: time steps of history that it sees, the present one included.
        width: channels of a token.
        depth: transformer blocks.
        heads: attention heads; they share ``width``.
        description: whether it is told the plant's A and B (weights absorbed); else it has the history only.
        hidden: width of the description's encoder.
        block: a registered block of the transformer.
        activation: a registered activation.
        stochastic: whether it also says how sure it is: a Gaussian policy, for losses between distributions.
        remat: compute blocks again in the backward pass rather than keep what they computed: less memory.
        seed: of the initial parameters.
    """

    kind: str = "transformer"
    window: int = 8
    width: int = 32
    depth: int = 2
    heads: int = 4
    description: bool = True
    hidden: int = 256
    block: str = "attention"
    activation: str = "gelu"
    stochastic: bool = False
    remat: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("window", "width", "depth", "heads", "hidden"):
            self._require(name, getattr(self, name) >= 1, "an integer ≥ 1")
        self._require("width", self.width % self.heads == 0, f"a multiple of heads = {self.heads}")


@dataclasses.dataclass(frozen=True)
class TrainConfig(Config):
    """How a model is trained.

    Attributes:
        num_steps: optimizer steps in all; the schedule is computed from it.
        batch_size: windows a step.
        learning_rate: peak of the schedule: linear warm-up, then cosine to a hundredth.
        warmup: share of the steps that warm up.
        weight_decay: AdamW's.
        clip: largest global norm of a gradient.
        loss: a registered loss over windows, to the expert's inputs.
        imitation: its weight.
        closed_loop: weight of the logarithm of cost over optimal cost in the policy's own closed loop.
        plants: windows of a step whose plants' closed loops are costed.
        horizon: steps of such a loop; a policy that is a linear gain is costed over an infinite one.
        random_systems: random linear plants to train on beside the data set's.
        random_share: their share of each batch.
        dagger_rounds: times that the policy is run, what it met is labelled with the optimum, and that is trained on.
        on_policy_share: share of each batch that comes from the policy's own loops, once there are any.
        on_policy_steps: length of those loops.
        accumulate: parts that a batch is gone through in; the gradient is the parts' mean.
        ema: decay of a running mean of the parameters, which then is what is validated and kept; 0 for none.
        patience: stop after so many reports without a better validation score; 0 for never.
        steps_per_dispatch: steps compiled into one program; fewer where a report or checkpoint comes first.
        report_every: steps between progress lines and validations.
        checkpoint_every: steps between checkpoints.
        seed: of the order of the batches, and of everything else that is drawn.
    """

    num_steps: int = 2000
    batch_size: int = 512
    learning_rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 1e-4
    clip: float = 1.0
    loss: str = "masked_mse"
    imitation: float = 1.0
    closed_loop: float = 1.0
    plants: int = 64
    horizon: int = 16
    random_systems: int = 0
    random_share: float = 0.25
    dagger_rounds: int = 0
    on_policy_share: float = 0.5
    on_policy_steps: int = 32
    accumulate: int = 1
    ema: float = 0.0
    patience: int = 0
    steps_per_dispatch: int = 25
    report_every: int = 100
    checkpoint_every: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        for name in (
            *("num_steps", "batch_size", "plants", "horizon", "on_policy_steps", "accumulate"),
            *("steps_per_dispatch", "report_every", "checkpoint_every"),
        ):
            self._require(name, getattr(self, name) >= 1, "an integer ≥ 1")
        for name in ("random_systems", "dagger_rounds", "patience"):
            self._require(name, getattr(self, name) >= 0, "an integer ≥ 0")
        for name in ("imitation", "closed_loop"):
            self._require(name, getattr(self, name) >= 0, "a weight ≥ 0")
        for name in ("random_share", "on_policy_share", "ema"):
            self._require(name, 0 <= getattr(self, name) < 1, "a share in [0, 1)")
        self._require(
            "closed_loop", self.imitation + self.closed_loop > 0, "a weight above 0 with imitation = 0"
        )
        self._require(
            "accumulate",
            self.batch_size % self.accumulate == 0,
            f"a divisor of batch_size = {self.batch_size}",
        )
        self._require(
            "plants", self.plants % self.accumulate == 0, f"a multiple of accumulate = {self.accumulate}"
        )
        self._require("plants", self.plants <= self.batch_size, f"at most batch_size = {self.batch_size}")
        self._require(
            "dagger_rounds", self.dagger_rounds < self.num_steps, f"fewer than num_steps = {self.num_steps}"
        )
        shared = (self.random_share if self.random_systems else 0.0) + (
            self.on_policy_share if self.dagger_rounds else 0.0
        )
        self._require("on_policy_share", shared < 1, "what leaves a part of each batch to the data set")
        self._require("learning_rate", self.learning_rate > 0, "a number above 0")
        self._require("clip", self.clip > 0, "a number above 0")
        self._require("weight_decay", self.weight_decay >= 0, "a number ≥ 0")
        self._require("warmup", 0 <= self.warmup < 1, "a share in [0, 1)")

    @property
    def dagger_starts(self) -> tuple[int, ...]:
        """The steps at which the policy is run: the steps in equal parts, the first without."""
        return tuple(
            round(self.num_steps * k / (self.dagger_rounds + 1)) for k in range(1, self.dagger_rounds + 1)
        )
