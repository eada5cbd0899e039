"""Design specifications of a step response: settling time, overshoot, effort and disk margin."""

import dataclasses

import numpy as np

from lqrlab.compute.checks import number

_WORDS = {
    "settling": ("settling time", " s"),
    "overshoot": ("overshoot", ""),
    "effort": ("largest input", " times its limit"),
    "margin": ("disk margin", ""),
}


@dataclasses.dataclass(frozen=True)
class StepSpecs:
    """Specifications of a loop whose set-point steps; None: not specified.

    Attributes:
        settling: time after which each output that steps stays within the band [s].
        overshoot: at most so much beyond the set-point, relative to it.
        effort: at most so much of each input, absolute: one number or ``[m]``.
        margin: at least so large a symmetric disk margin α at each input (see :class:`Disk`).
        within: half-width of the band, relative to the set-point.
    """

    settling: float | None = None
    overshoot: float | None = None
    effort: float | tuple[float, ...] | None = None
    margin: float | None = None
    within: float = 0.02

    def __post_init__(self) -> None:
        for name in ("settling", "effort", "margin", "within"):
            value = getattr(self, name)
            for one in () if value is None else np.ravel(value).tolist():
                number(name, one, "a number above 0", above=0)
        if self.overshoot is not None:
            number("overshoot", self.overshoot, "a share of the set-point, ≥ 0", low=0)
        if not self.names:
            raise ValueError("specs: expected at least one of settling, overshoot, effort, margin")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the given specifications."""
        return tuple(name for name in _WORDS if getattr(self, name) is not None)

    def limits(self, m: int) -> np.ndarray:
        """Limits of the inputs ``[m]``; infinite where none are specified."""
        return np.broadcast_to(np.asarray(np.inf if self.effort is None else self.effort, float), (m,))

    def first_settled(self, dt: float) -> int:
        """The first sample at which the output has to be in the band."""
        return 0 if self.settling is None else int(np.floor(self.settling / dt + 1e-9))

    def bound(self, name: str) -> float:
        """The number specified; efforts are relative to their limits."""
        return 1.0 if name == "effort" else float(getattr(self, name))

    def met(self, name: str, value: float) -> bool:
        """Whether a loop that reaches ``value`` meets a specification, up to rounding."""
        bound = self.bound(name)
        return value >= bound * (1 - 1e-9) if name == "margin" else value <= bound * (1 + 1e-9)

    def sentence(self, name: str, value: float) -> str:
        """The value that a loop reaches, and whether it meets the specification, in words."""
        words, unit = _WORDS[name]
        bound = self.bound(name)
        text = f"{words[0].upper()}{words[1:]}: {value:.3g}{unit}"
        if name != "effort":
            text += f", specified {'at least' if name == 'margin' else 'at most'} {bound:.3g}{unit}"
        if self.met(name, value):
            return f"{text}: met."
        if not np.isfinite(value):
            return f"{text}: missed, the output has not settled at the end of the simulation."
        return (
            f"{text}: missed." if name == "effort" else f"{text}: missed by {abs(value - bound):.2g}{unit}."
        )

    def sentence_without(self, name: str, value: float, simulated: float) -> str:
        """The value that the loop reaches which meets all others; ``simulated`` [s] is how long its response is."""
        words, unit = _WORDS[name]
        then = f"it is then {value:.3g}{unit}"
        if not np.isfinite(value):
            then = f"it then does not settle in the {simulated:.3g} s that are simulated"
        return f"Without the specification of the {words} all others are met; {then}."
