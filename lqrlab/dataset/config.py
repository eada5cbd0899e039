"""What a data set is made from: one frozen value of plain numbers and strings."""

import dataclasses
import json
import math
import re
from typing import Any

from lqrlab import systems

FAMILIES = (
    *("mass_spring_damper", "pendulum", "cart_pole", "furuta_pendulum", "acrobot", "ball_and_beam"),
    *("magnetic_levitation", "dc_motor", "two_link_arm", "vehicle_lateral", "fixed_wing", "quadrotor"),
)
"""Families of the default data set."""

HELD_OUT = ("furuta_pendulum", "dc_motor")
"""Families that are held out where the data set has them all and nothing is said."""

_SEGMENT = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
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
    held_out: tuple[str, ...] = None  # type: ignore[assignment]  # a tuple as soon as the config is there
    variants: int = 100
    spread: float = 0.2
    validation: float = 0.2
    trajectories: int = 20
    num_steps: int = 150
    keep_every: int = 1
    segment_length: int = _SEGMENT
    excitation: float = 0.3
    noise: float = 0.0
    sensor_noise: float = 0.0
    gain_error: float = 0.0
    controller: str = "lqr"
    linear: bool = True
    saturation: float | None = None
    seed: int = 0
    variants_per_shard: int = 50
    compression: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "families", _names("families", self.families))
        usual = HELD_OUT if set(HELD_OUT) <= set(self.families) else ()
        held_out = usual if self.held_out is None else _names("held_out", self.held_out)
        object.__setattr__(self, "held_out", held_out)
        if not self.families:
            raise ValueError("families: expected at least one family of plants, but found none")
        foreign = [f for f in self.held_out if f not in self.families]
        if foreign:
            raise ValueError(
                f"held_out: expected some of families, but found {', '.join(foreign)}; a held-out family "
                "is in the data set too, kept apart from training"
            )
        for name in (
            "variants",
            "trajectories",
            "num_steps",
            "keep_every",
            "segment_length",
            "variants_per_shard",
        ):
            _whole(name, getattr(self, name), 1, 2**31 - 1)
        if self.keep_every == 1:  # equal configs for what are the same bytes
            object.__setattr__(self, "segment_length", _SEGMENT)
        elif self.segment_length > self.num_steps:
            raise ValueError(
                f"segment_length: expected at most num_steps = {self.num_steps}, but found {self.segment_length}: "
                "nothing of a trajectory would be kept; take shorter segments or longer trajectories, or keep_every=1"
            )
        _whole("seed", self.seed, 0, 2**32 - 1)
        for name in ("spread", "validation"):
            _number(self, name, "a share in [0, 1)", lambda v: 0 <= v < 1)
        for name in ("excitation", "noise", "sensor_noise"):
            _number(self, name, "a standard deviation ≥ 0 in units of the signal's scale", lambda v: v >= 0)
        _number(self, "gain_error", "a relative standard deviation ≥ 0", lambda v: v >= 0)
        if not isinstance(self.controller, str) or not 0 < len(self.controller) <= 200:
            raise ValueError(f"controller: expected 'lqr' or a policy's name, but found {self.controller!r}")
        if self.controller != "lqr" and self.gain_error:
            raise ValueError("gain_error: is that of the regulator's gain; a policy of another kind has none")
        if self.saturation is not None:
            _number(self, "saturation", "None or a limit > 0 in units of the input's scale", lambda v: v > 0)
        if self.compression not in (None, "blosc"):
            raise ValueError(f"compression: expected None or 'blosc', but found {self.compression!r}")
        if not isinstance(self.linear, bool):
            raise ValueError(f"linear: expected True or False, but found {self.linear!r}")
        trained = len(self.families) > len(self.held_out)
        if trained and self.validation and self.variants < 2:
            raise ValueError(
                f"variants: expected at least 2 to keep a share of {self.validation:g} for validation, but "
                f"found {self.variants}: a variant is either trained on or not"
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

    def differences(self, other: "DataConfig") -> list[str]:
        """The fields in which another config differs, each with both values."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))
        return [f"{name} ({mine!r} against {theirs!r})" for name, mine, theirs in pairs if mine != theirs]

    def to_json(self) -> str:
        """As a JSON object; :meth:`from_json` reads it back.

        Without keep_every it does not speak of it, so that data sets from before there was any keep their bytes.
        """
        silent = ("keep_every", "segment_length") if self.keep_every == 1 else ()
        values = {name: value for name, value in dataclasses.asdict(self).items() if name not in silent}
        return json.dumps(values, indent=2)

    @classmethod
    def from_json(cls, text: str) -> "DataConfig":
        """Read what :meth:`to_json` wrote; keys that are left out take their defaults.

        Raises:
            ValueError: no JSON object, an unknown key, a value that does not fit.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"text: expected the JSON of a DataConfig, but found {error}") from None
        if not isinstance(values, dict):
            raise ValueError(f"text: expected a JSON object, but found {type(values).__name__}")
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise ValueError(f"{key}: unknown key of a DataConfig; there are {', '.join(known)}")
        return cls(**values)


def _names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, tuple | list):
        raise ValueError(f"{name}: expected a tuple of names of plant families, but found {value!r}")
    for item in value:
        if not isinstance(item, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", item):
            raise ValueError(
                f"{name}: expected names of plant families such as 'cart_pole', but found {item!r}"
            )
    if len(set(value)) < len(value):
        raise ValueError(f"{name}: expected each family once, but found {', '.join(value)}")
    return tuple(value)


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name}: expected a whole number in [{low}, {high}], but found {value!r}")


def _number(config: DataConfig, name: str, expected: str, fits: Any) -> None:
    value = getattr(config, name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not fits(value)
    ):
        raise ValueError(f"{name}: expected {expected}, but found {value!r}")
    object.__setattr__(config, name, float(value))
