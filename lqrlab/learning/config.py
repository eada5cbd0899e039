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
        seed: of the initial parameters.
    """

    kind: str = "transformer"
    window: int = 8
    width: int = 32
    depth: int = 2
    heads: int = 4
    description: bool = True
    hidden: int = 256
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
        steps_per_dispatch: steps compiled into one program; fewer where a report or checkpoint comes first.
        report_every: steps between progress lines and validation losses.
        checkpoint_every: steps between checkpoints.
        seed: of the order of the batches.
    """

    num_steps: int = 2000
    batch_size: int = 512
    learning_rate: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 1e-4
    clip: float = 1.0
    steps_per_dispatch: int = 25
    report_every: int = 100
    checkpoint_every: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("num_steps", "batch_size", "steps_per_dispatch", "report_every", "checkpoint_every"):
            self._require(name, getattr(self, name) >= 1, "an integer ≥ 1")
        self._require("learning_rate", self.learning_rate > 0, "a number above 0")
        self._require("clip", self.clip > 0, "a number above 0")
        self._require("weight_decay", self.weight_decay >= 0, "a number ≥ 0")
        self._require("warmup", 0 <= self.warmup < 1, "a share in [0, 1)")
