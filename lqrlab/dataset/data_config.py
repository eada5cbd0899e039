"""Configuration of a data set: one frozen value of plain numbers and strings."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Annotated, ClassVar

from lqrlab import systems
from lqrlab.compute.configuration import Config, Count, Range, Seed, Share

FAMILIES = (
    *("mass_spring_damper", "pendulum", "cart_pole", "furuta_pendulum", "acrobot", "ball_and_beam"),
    *("magnetic_levitation", "dc_motor", "two_link_arm", "vehicle_lateral", "fixed_wing", "quadrotor"),
)
"""Families of the default data set."""

HELD_OUT = ("furuta_pendulum", "dc_motor")  # families that are held out by default, where the data set has them all


def fold(families: Sequence[str], which: str) -> tuple[str, ...]:
    """The held-out families of a fold: 2/4 is every fourth one, from the second on.

    Over all folds each family is held out once. Neighbours in the catalogue, which are alike, are in different folds.

    >>> dataset.fold(("pendulum", "cart_pole", "acrobot", "dc_motor", "segway"), "1/4")
    ('pendulum', 'segway')
    """
    number = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", which)
    k, n = (int(part) for part in number.groups()) if number else (0, 0)
    if not 1 <= k <= n or not 2 <= n <= len(families):
        raise ValueError(
            f"fold: expected k/n with 1 ≤ k ≤ n and 2 ≤ n ≤ {len(families)}, the number of families, such as 1/4, but "
            f"found {which!r}"
        )
    return tuple(families[k - 1 :: n])


_SEGMENT = 64
_MOST_FILES = 20_000
MOST_BYTES = 1 << 17  # of a config as JSON: a longer text is not one, and reading it would take its time

_Counted = Annotated[int, Range(1, 10**7)]  # so that what is counted in a foreign manifest fits into memory
_Deviation = Annotated[float, Range(0, words="a standard deviation ≥ 0 in units of the signal's scale")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """All settings of a data set; equal configs give the same bytes.

    Attributes:
        families: names of plant families, held-out ones included.
        held_out: families that no policy is trained on, split ``"held_out"``; by default those of ``HELD_OUT`` where
            ``families`` has them all, else none.
        variants: plants drawn per family.
        spread: half-width of the parameters around their defaults, relative.
        validation: share of the variants of each trained family that is kept for validation.
        trajectories: closed loops per variant, each from another initial state.
        num_steps: sample times per trajectory.
        keep_every: keep one segment in every so many of a trajectory, the first; 1 keeps whole trajectories.
        segment_length: steps in a segment, a row with its own initial state and cost; ignored with keep_every=1.
        excitation: standard deviation of the noise added to the input, in units of its scale.
        noise: standard deviation of the disturbance of the state at each step, in units of its scale.
        sensor_noise: standard deviation of the noise on the state that the controller sees, in units of its scale.
        linear: simulate the linearised plants exactly; else the nonlinear ones by Runge-Kutta 4.
        seed: of all random numbers.
        variants_per_shard: variants in one file; there are at most 20,000 files.

    >>> config = dataset.DataConfig(families=("pendulum",), variants=10)
    >>> config.num_validation, dataset.DataConfig.from_json(config.to_json()) == config
    (2, True)
    """

    gone: ClassVar = {"gain_error": 0.0, "controller": "lqr", "saturation": None, "compression": None}
    families: tuple[str, ...] = FAMILIES
    held_out: tuple[str, ...] | None = None
    variants: _Counted = 100
    spread: Share = 0.2
    validation: Share = 0.2
    trajectories: _Counted = 20
    num_steps: Annotated[int, Range(1, 10**6)] = 150
    keep_every: Count = 1
    segment_length: Count = _SEGMENT
    excitation: _Deviation = 0.3
    noise: _Deviation = 0.0
    sensor_noise: _Deviation = 0.0
    linear: bool = True
    seed: Seed = 0
    variants_per_shard: Count = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = HELD_OUT if set(HELD_OUT) <= set(self.families) else ()
        object.__setattr__(self, "held_out", usual if self.held_out is None else self.held_out)
        if self.keep_every == 1:  # equal configs for equal bytes
            object.__setattr__(self, "segment_length", _SEGMENT)
        for setting, names in (("families", self.families), ("held_out", self.held_out or ())):
            named = all(re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) for name in names)
            self.require(setting, named, "names of plant families such as 'cart_pole'")
            self.require(setting, len(set(names)) == len(names), "each family once")
        self.require("families", bool(self.families), "at least one family of plants")
        self.require("held_out", set(self.held_out or ()) <= set(self.families), "some of families")
        self.require(
            "variants_per_shard",
            len(self.families) * -(-self.variants // self.variants_per_shard) <= _MOST_FILES,
            f"so many that there are at most {_MOST_FILES} files",
        )
        self.require(
            "segment_length",
            self.keep_every == 1 or self.segment_length <= self.num_steps,
            f"at most num_steps = {self.num_steps} (else no segment fits into a trajectory)",
        )
        split = len(self.families) > len(self.held_out or ()) and self.validation > 0
        self.require(
            "variants",
            self.variants > 1 or not split,
            f"at least 2, to train on some and keep a share of {self.validation:g} for validation",
        )

    @property
    def num_validation(self) -> int:
        """Variants of each trained family that are kept for validation: at least one if a share is asked for."""
        if not self.validation:
            return 0
        return min(max(round(self.validation * self.variants), 1), self.variants - 1)

    @property
    def segmented(self) -> bool:
        """True if rows on disk are segments of trajectories rather than whole ones."""
        return self.keep_every > 1

    @property
    def row_steps(self) -> int:
        """Steps of a row on disk: of a segment, or of a whole trajectory."""
        return self.segment_length if self.segmented else self.num_steps

    @property
    def starts(self) -> tuple[int, ...]:
        """The steps of a trajectory at which its rows begin."""
        return tuple(range(0, self.num_steps - self.row_steps + 1, self.keep_every * self.row_steps))

    @property
    def kept_steps(self) -> int:
        """Steps of a trajectory in all its rows, which is also the number of windows that end in them."""
        return len(self.starts) * self.row_steps

    def check_registered(self) -> None:
        """Refuse a family that the catalogue does not know, listing the near names.

        Not done when a config is built: a data set of a user's plants can be opened and trained on where those
        plants were never registered.
        """
        for name in self.families:
            systems.family(name)
