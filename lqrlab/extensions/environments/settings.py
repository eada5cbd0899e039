"""Settings of a task: checked when they are made, frozen and hashable."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.simulation import verdict

CHOICES = {
    "task": ("regulate", "swing_up", "track"),
    "unaddressed": ("zero", "hold"),
    "units": ("physical", "scaled"),
    "dtype": ("float32", "float64"),
    "optimum": ("unconstrained", "constrained"),
    "on_error": ("raise", "nan", "clip", "breakpoint"),
}
REWARDS = ("cost", "excess", "relative")
_MOST_REMEMBERED = 10_000
Limits = tuple[float | Sequence[float], float | Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of :func:`make`, but for the plant.

    Attributes:
        task: ``"regulate"``; ``"swing_up"`` (pendulum, cart_pole, acrobot) from hanging; ``"track"`` a reference
            (with ``linear=True``): observations are the error, the reference, and the input that follows it.
        linear: the linearised plant, sampled exactly: then ``info["ratio"]`` is never below 1, and is 1 of the LQR.
        horizon: steps until an episode is truncated.
        dt: sample time [s]; the plant's if left out.
        spread: half-width of the parameters' variation; each reset draws one of ``variants`` plants, drawn by ``seed``.
        variants, seed: see ``spread``.
        start: size of the starts, in scales of the states.
        noise, sensor_noise: standard deviations, one for all states or one each, of what is added at each step to the
            state, and to what is seen of it.
        delay: samples until an input acts.
        limits: of the actuators: ``"plant"`` (wide enough for the optimum from practically all starts), absolute
            ``(low, high)``, or None.
        observe: ``"state"``, ``"outputs"``, or ``"history:8"`` (the last eight states and the inputs before them).
        action: ``"full"``, or ``"levels:3"`` (a grid of three values an input, chosen by one whole number).
        unaddressed: whether inputs that a structured action leaves out are ``"zero"`` or ``"hold"``.
        units: ``"physical"``, or ``"scaled"``: states and inputs in their scales.
        reward: ``"cost"`` (minus the cost of the step), ``"excess"`` (minus what the action cost above the optimum's),
            ``"relative"`` (minus the cost over the whole optimum), or a function ``(x, u, x_next, cost)``.
        terminate: ``"diverged"`` (1000 scales: the verdict's rule), ``"never"``, or a number of scales. The last reward
            is paid for each step that is left.
        reference: set points of the ``"track"`` task, added to the inputs of a regulated plant ``[horizon, m]``; a sine
            of the inputs' scales if left out.
        optimum: what ``info["ratio"]`` is relative to: ``"unconstrained"``, x0ᵀP x0; or, on the linear plant,
            ``"constrained"``, the least that keeps the limits: episodes then begin at one of ``starts`` states, drawn
            by ``seed``, whose optimum is computed once, here. Of a start that no input holds the ratio is NaN.
        starts: see ``optimum``; so many a plant.
        x_limits: of the states, ``(low, high)`` as deviations, numbers or one each: ``info["violation"]`` is by how
            much the step's state exceeds them, in scales.
        violation_weight: the reward's cost of each unit of that.
        filter_horizon: steps that a safety filter between the agent and the plant looks ahead
            (:func:`lqrlab.predictive.filtered`): each input is changed as little as keeps all limits; 0 for none.
        on_error: what an invalid action does: ``"raise"``, ``"nan"``, ``"clip"``, ``"breakpoint"``; if left out, what
            the environment variable ``LQRLAB_ON_ERROR`` says, else ``"raise"``.
        dtype: ``"float32"`` or ``"float64"``; the optimum is always computed in float64.
    """

    task: str
    linear: bool
    horizon: int
    dt: float | None
    spread: float
    variants: int
    seed: int
    start: float
    noise: Any
    sensor_noise: Any
    delay: int
    limits: Any
    observe: str
    action: str
    unaddressed: str
    units: str
    reward: str | Callable
    terminate: str | float
    reference: Any
    optimum: str
    starts: int
    x_limits: Any
    violation_weight: float
    filter_horizon: int
    on_error: str | None
    dtype: str

    def __post_init__(self) -> None:
        if self.on_error is None:
            object.__setattr__(self, "on_error", os.environ.get("LQRLAB_ON_ERROR", "raise"))
        for name, allowed in CHOICES.items():
            checks.choice(name, getattr(self, name), allowed)
        checks.flag("linear", self.linear)
        for name, low in (
            ("horizon", 1),
            ("variants", 1),
            ("delay", 0),
            ("seed", 0),
            ("starts", 1),
            ("filter_horizon", 0),
        ):
            checks.whole(name, getattr(self, name), low)
        if self.dt is not None:
            checks.number("dt", self.dt, "a sample time above 0 s", above=0)
        checks.number("spread", self.spread, "a relative half-width in [0, 1)", low=0, below=1)
        checks.number("start", self.start, "a number ≥ 0", low=0)
        checks.number("violation_weight", self.violation_weight, "a number ≥ 0", low=0)
        if self.terminate not in ("diverged", "never"):
            expected = "'diverged', 'never', or a number of scales > 0"
            checks.number("terminate", self.terminate, expected, above=0)
        if not callable(self.reward):
            checks.choice("reward", self.reward, REWARDS, "a function, or one of")
        self._check_texts()
        for name in ("noise", "sensor_noise"):
            if np.ndim(getattr(self, name)) > 1:
                raise ValueError(f"{name}: expected standard deviations, one for all states or one each")
        for name in ("noise", "sensor_noise", "reference"):  # as what has a hash
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _plain(name, getattr(self, name)))
        if self.sensor_noise is None or not all(0 <= a < np.inf for a in self.sensor_noise):
            raise ValueError(f"sensor_noise: expected standard deviations ≥ 0, but found {self.sensor_noise!r}")
        if self.x_limits is not None:
            if not isinstance(self.x_limits, tuple | list) or len(self.x_limits) != 2:
                raise ValueError(f"x_limits: expected a pair (low, high) or None, but found {self.x_limits!r}")
            object.__setattr__(self, "x_limits", tuple(_plain("x_limits", a) for a in self.x_limits))
        if not isinstance(self.limits, str | None):
            object.__setattr__(self, "limits", tuple(_plain("limits", a) for a in self.limits))

    def _check_texts(self) -> None:
        """Refuse texts that are no choice, and settings that do not go together."""
        if self.observe not in ("state", "outputs") and not 0 < self.memory <= _MOST_REMEMBERED:
            most = f"'history:8' (at most {_MOST_REMEMBERED})"
            raise ValueError(f"observe: expected 'state', 'outputs' or {most}, but found {self.observe!r}")
        if self.action != "full" and not self.levels:
            raise ValueError(f"action: expected 'full' or 'levels:3', but found {self.action!r}")
        pair = isinstance(self.limits, tuple | list) and len(self.limits) == 2
        if self.limits not in ("plant", None) and not pair:
            raise ValueError(f"limits: expected 'plant', a pair (low, high) or None, but found {self.limits!r}")
        if self.task == "track" and (not self.linear or self.observe != "state" or self.delay):
            raise ValueError("task: 'track' needs linear=True, observe='state' and delay=0, where its optimum is known")
        if self.task == "swing_up" and self.linear:
            raise ValueError("task: 'swing_up' needs the nonlinear plant; leave linear=False")
        if self.optimum == "constrained" and (not self.linear or self.task != "regulate"):
            raise ValueError("optimum: 'constrained' is known of the linear plant; give linear=True, task='regulate'")
        if self.filter_horizon and (self.delay or self.task != "regulate"):
            raise ValueError(
                "filter_horizon: a safety filter needs delay=0 and task='regulate', which it looks ahead in"
            )

    def words(self, *without: str) -> str:
        """The settings as a text that is the same in each process, but for some of them."""

        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in without}
        numbers = {name: float(a) for name, a in values.items() if isinstance(a, Real)}  # 1 is 1.0
        return repr(values | numbers)

    @property
    def memory(self) -> int:
        """Number of states seen at once, 0 if only the present one."""
        return _count("observe", self.observe, "history")

    @property
    def levels(self) -> int:
        """Values an input of a grid of actions, 0 without a grid."""
        return _count("action", self.action, "levels")

    @property
    def far(self) -> float:
        """Scales at which an episode ends."""
        return {"diverged": verdict.FAR, "never": np.inf}.get(self.terminate, self.terminate)  # type: ignore[arg-type]


def _count(name: str, text: object, word: str) -> int:
    """The number in ``"word:number"``; 0 of anything else."""
    head, colon, number = checks.text(name, text).partition(":")
    return int(number) if head == word and colon and number.isdigit() else 0


def _plain(name: str, value: Any) -> tuple[float, ...]:
    return tuple(np.asarray(checks.real(name, value), float).ravel().tolist())
