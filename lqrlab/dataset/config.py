"""What a data set is made from: one frozen value of plain numbers and strings."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from lqrlab import systems
from lqrlab.compute.config import Config, Count, NonNegative, OneOf, Positive, Seed, Share

FAMILIES = (
    *("mass_spring_damper", "pendulum", "cart_pole", "furuta_pendulum", "acrobot", "ball_and_beam"),
    *("magnetic_levitation", "dc_motor", "two_link_arm", "vehicle_lateral", "fixed_wing", "quadrotor"),
)
"""Families of the default data set."""

HELD_OUT = ("furuta_pendulum", "dc_motor")
"""Families that are held out where the data set has them all and nothing is said."""

_SEGMENT = 64
_FORMER = {"thinning": "keep_every", "stretch": "segment_length"}  # what version 0.2 called two settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """Everything that a data set follows from; two equal configs give the same bytes.

    Attributes:
        families: names of plant families, held-out ones included.
        held_out: families that no policy is trained on; they are in the data set with split ``"held_out"``. By
            default those of ``HELD_OUT`` if all of them are in ``families``, else none.
        variants: plants drawn per family.
        spread: half-width of the parameters around their defaults, relative.
        validation: share of the variants of each trained family that is kept apart.
        trajectories: closed loops per variant, each from an initial state of its own.
        num_steps: sample times per trajectory.
        keep_every: of every ``keep_every`` segments of a trajectory the first is kept; 1 keeps the whole trajectory.
            All steps are simulated, whatever is kept.
        segment_length: steps in a segment. Each segment that is kept is a row with its own initial state and cost;
            one that the trajectory ends in is left out. With keep_every=1 nothing is cut.
        excitation: standard deviation of what is added to the optimal input, in units of the input's
            scale, so that a policy sees states that the optimum would never visit.
        noise: standard deviation of the disturbance of the state at each step, in units of the state's scale.
        sensor_noise: the same for what the controller sees.
        gain_error: relative standard deviation of what each entry of a variant's gain is off in its own loops:
            they are run by a perturbed regulator, while the targets stay optimal.
        controller: who runs the loops: ``"lqr"``, or a name for the policy that is given to ``generate``, so
            that the data set says whose loops it holds.
        linear: simulate the linearised plants exactly; else the nonlinear ones by Runge-Kutta 4.
        saturation: limit of the inputs around the equilibrium, in units of the input's scale; None for none.
        seed: every random number follows from it.
        variants_per_shard: variants in one file.
        compression: of trajectories on disk: None, or "blosc", which takes the package hdf5plugin to write and to
            read. Excited trajectories are mostly noise and hardly shrink; those of a bare regulator do.
    """

    families: tuple[str, ...] = FAMILIES
    held_out: tuple[str, ...] | None = None
    variants: Count = 100
    spread: Share = 0.2
    validation: Share = 0.2
    trajectories: Count = 20
    num_steps: Count = 150
    keep_every: Count = 1
    segment_length: Count = _SEGMENT
    excitation: NonNegative = 0.3
    noise: NonNegative = 0.0
    sensor_noise: NonNegative = 0.0
    gain_error: NonNegative = 0.0
    controller: str = "lqr"
    linear: bool = True
    saturation: Positive | None = None
    seed: Seed = 0
    variants_per_shard: Count = 50
    compression: Annotated[str | None, OneOf(None, "blosc")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        usual = HELD_OUT if set(HELD_OUT) <= set(self.families) else ()
        object.__setattr__(self, "held_out", usual if self.held_out is None else self.held_out)
        if self.keep_every == 1:  # equal configs for what are the same bytes
            object.__setattr__(self, "segment_length", _SEGMENT)
        self._check_families()
        self.require(
            "segment_length",
            self.keep_every == 1 or self.segment_length <= self.num_steps,
            f"at most num_steps = {self.num_steps} (nothing of a trajectory would be kept; take shorter segments or "
            "longer trajectories, or keep_every=1)",
        )
        self.require("controller", 0 < len(self.controller) <= 200, "'lqr' or a policy's name")
        if self.controller != "lqr" and self.gain_error:
            raise ValueError("gain_error: is that of the regulator's gain; a policy of another kind has none")
        trained = len(self.families) > len(self.held_out or ())
        self.require(
            "variants",
            not (trained and self.validation and self.variants < 2),
            f"at least 2 to keep a share of {self.validation:g} for validation (a variant is either trained on or not)",
        )

    def _check_families(self) -> None:
        for setting, names in (("families", self.families), ("held_out", (self.held_out or ()))):
            for name in names:
                if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
                    raise ValueError(
                        f"{setting}: expected names of plant families such as 'cart_pole', but found {name!r}"
                    )
            self.require(setting, len(set(names)) == len(names), "each family once")
        self.require("families", bool(self.families), "at least one family of plants")
        if foreign := [f for f in (self.held_out or ()) if f not in self.families]:
            raise ValueError(
                f"held_out: expected some of families, but found {', '.join(foreign)}; a held-out family "
                "is in the data set too, kept apart from training"
            )

    @property
    def num_validation(self) -> int:
        """Variants of each trained family that are kept apart: at least one if a share is asked for."""
        if not self.validation:
            return 0
        return min(max(round(self.validation * self.variants), 1), self.variants - 1)

    @property
    def row_steps(self) -> int:
        """Steps of a row in the file: a segment_length, or without keep_every a trajectory."""
        return self.num_steps if self.keep_every == 1 else self.segment_length

    @property
    def starts(self) -> tuple[int, ...]:
        """The steps of a trajectory at which its rows begin."""
        return tuple(range(0, self.num_steps - self.row_steps + 1, self.keep_every * self.row_steps))

    @property
    def kept_steps(self) -> int:
        """Steps of a trajectory in all its rows: as many windows are cut from them."""
        return len(self.starts) * self.row_steps

    def check_registered(self) -> None:
        """Refuse a family that the catalogue does not know, listing the near names.

        Apart from building a config, because a data set of somebody's own plants can be opened and trained
        on where those plants were never registered.
        """
        for name in self.families:
            systems.family(name)

    def is_written(self, text: Any) -> bool:
        """Whether a text is this config's JSON, by this version or an earlier one."""
        try:
            return isinstance(text, str) and type(self).from_json(text) == self
        except ValueError:
            return False

    def to_json(self) -> str:
        """As a JSON object; :meth:`from_json` reads it back.

        Where whole trajectories are kept it does not speak of segments, so that older data sets keep their bytes.
        """
        silent = ("keep_every", "segment_length") if self.keep_every == 1 else ()
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in silent}
        return json.dumps(values, indent=2)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """The config of a JSON object, also of one that version 0.2 wrote."""
        if isinstance(values, Mapping):
            values = {_FORMER.get(key, key): value for key, value in values.items()}
        return super().from_dict(values)
