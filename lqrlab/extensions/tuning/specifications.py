"""Design specifications of a step response, and the experiment that shows whether a loop meets them."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from lqrlab.compute.checks import number
from lqrlab.control import matrix_checks
from lqrlab.control.analysis.eigenmodes import settling_time
from lqrlab.control.analysis.stability_margins import margins
from lqrlab.control.discretization import c2d
from lqrlab.control.regulator import LQR, lqrd
from lqrlab.control.servo import feedforward
from lqrlab.extensions.tuning.step import step_info, step_response

_SIZES = (50, 100, 200, 400, 800)  # steps that are simulated: each is a program of its own
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
        """True if a loop that reaches ``value`` meets a specification, up to rounding."""
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
        return f"{text}: missed." if name == "effort" else f"{text}: missed by {abs(value - bound):.2g}{unit}."

    def sentence_without(self, name: str, value: float, simulated: float) -> str:
        """The value that the loop reaches which meets all others; ``simulated`` [s] is how long its response is."""
        words, unit = _WORDS[name]
        then = f"it is then {value:.3g}{unit}"
        if not np.isfinite(value):
            then = f"it then does not settle in the {simulated:.3g} s that are simulated"
        return f"Without the specification of the {words} all others are met; {then}."


class StepExperiment(NamedTuple):
    """One continuous plant, sampled, whose outputs step to r.

    ``A, B, C, Q, R`` as in :func:`lqrd`, ``plant`` sampled, ``dt`` [s], set-point ``r [m]``, the input that holds
    it ``[m]``, and how many steps are simulated.
    """

    A: Array
    B: Array
    C: Array
    Q: Array
    R: Array
    dt: float
    plant: tuple[Array, Array]
    r: np.ndarray
    holding_input: np.ndarray
    num_steps: int

    @classmethod
    def of(
        cls,
        A: ArrayLike,
        B: ArrayLike,
        C: ArrayLike,
        Q: ArrayLike,
        R: ArrayLike,
        dt: float,
        specs: StepSpecs,
        r: ArrayLike,
    ) -> "StepExperiment":
        """The experiment of checked arguments.

        Raises:
            ValueError: bad arguments, no output that steps, or outputs that no constant input holds.
        """
        a, b, q, weight, _ = matrix_checks.one_problem("tune", A, B, Q, R)
        c = jnp.asarray(C, a.dtype)
        target = np.asarray(matrix_checks.real("r", r), float)
        if target.shape not in ((), (1,), (b.shape[1],)):
            raise ValueError(f"r: expected a number, or one for each of {b.shape[1]} outputs, but found {target.shape}")
        target = np.broadcast_to(target, (b.shape[1],))
        if not target.any() or not np.isfinite(target).all():
            raise ValueError(f"r: expected at least one output to step, but found the set-point {target.tolist()}")
        plant = c2d(a, b, dt)
        Nx, Nu = (np.asarray(x) for x in feedforward(*plant, c, discrete=True))
        if not np.isfinite(Nu).all() or np.abs(Nx).max() > 1e12 * max(np.abs(np.asarray(c)).max(), 1.0):
            raise ValueError(
                "C: no constant input holds these outputs (a transmission zero at the origin); choose outputs that "
                "can stand still"
            )
        poles = lqrd(a, b, q, weight, dt).poles
        last = float(settling_time(poles, dt)) if specs.settling is None else 4 * specs.settling
        num_steps = next((size for size in _SIZES if size >= last / dt), _SIZES[-1])
        return cls(a, b, c, q, weight, dt, plant, target, Nu @ target, num_steps)

    def reached(self, design: LQR, specs: StepSpecs) -> dict[str, float]:
        """The specifications of a loop by the public analysis functions; the effort relative to its limit."""
        ys, us = step_response(*self.plant, self.C, design.K, jnp.asarray(self.r), self.num_steps)
        info = step_info(ys, self.dt, self.r, within=specs.within)
        reached = {
            "settling": float(np.nanmax(info.settling)),
            "overshoot": float(np.nanmax(info.overshoot)),
            "effort": float(np.max(np.abs(us) / specs.limits(len(self.r)))),
        }
        if specs.margin is not None:
            at_inputs = margins(*self.plant, design.K, float(self.dt))
            reached["margin"] = min(m.disk.alpha for m in at_inputs)
        return reached
