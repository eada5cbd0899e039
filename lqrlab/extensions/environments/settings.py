"""Settings of a task, checked when they are made, frozen and hashable; spaces of its observations and actions."""

import dataclasses
import os
from collections.abc import Sequence
from numbers import Real
from typing import Annotated, Any

import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.compute.configuration import Config, Count, Natural, NonNegative, OneOf, Positive, Share
from lqrlab.simulation import verdict

REWARDS = ("cost", "excess", "relative", "normalised")
LEARNING = {"units": "limits", "reward": "normalised", "terminate": "cost"}  # defaults of Gymnasium's ids and gymnax
MOST_COST = 10.0  # cost to go that ends an episode, over the starts' mean; "normalised" rewards are counted in it
_MOST_REMEMBERED = 10_000
_WIDE = 1.0  # half the width that an unbounded component is drawn from
Limits = tuple[float | Sequence[float], float | Sequence[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """The settings of an environment: the options of :func:`make`.

    Attributes:
        task: ``"regulate"``; ``"swing_up"`` (pendulum, cart_pole, acrobot) from hanging.
        linear: the linearised plant, sampled exactly: then ``info["ratio"]`` is never below 1, and is 1 of the LQR.
        horizon: steps until an episode is truncated.
        spread: half-width of the parameters' variation; each reset draws one of ``variants`` plants, drawn by ``seed``.
        limits: of the actuators: ``"plant"`` (the optimum keeps them from nearly all starts), ``(low, high)``, or None.
        observe: ``"state"``, ``"outputs"``, or ``"history:8"`` (the last eight states and the inputs before them).
        units: ``"physical"``; ``"scaled"``: states and inputs in their scales; ``"limits"``: states in their scales,
            inputs in their limits, so that actions are within ±1.
        reward: ``"cost"`` (minus the cost of the step), ``"excess"`` (minus what the action cost above the optimum's),
            ``"relative"`` (minus the cost over the whole optimum), ``"normalised"`` (minus the cost over ten times the
            mean optimum, which returns −0.1 then), or a function ``(x, u, x_next, cost)``.
        dt: sample time [s]; the plant's if left out.
        variants, seed: see ``spread``.
        start: size of the starts, in scales of the states.
        noise, sensor_noise: standard deviations, of all states or one each, of noise on state and observation.
        delay: samples until an input acts.
        action: ``"full"``, or ``"levels:3"`` (a grid of three values an input, chosen by one whole number).
        terminate: ``"diverged"`` (1000 scales and times the start), ``"never"``, a number of scales, or ``"cost"``:
            xᵀPx ten times that of the start, or the mean start's, which the linear optimum never reaches. The last
            reward is paid for each step that is left.
        x_limits: of the states, ``(low, high)`` as deviations, numbers or one each: ``info["violation"]`` is by how
            much the step's state exceeds them, in scales.
        violation_weight: the reward's cost of each unit of that.
        filter_horizon: steps that a safety filter between the agent and the plant looks ahead
            (:func:`lqrlab.predictive.filtered`): each input is changed as little as keeps all limits; 0 for none.
        on_error: what an invalid action does: ``"raise"``, ``"nan"``, ``"clip"``; if left out, what the environment
            variable ``LQRLAB_ON_ERROR`` says, else ``"raise"``.
        dtype: ``"float32"`` or ``"float64"``; the optimum is always computed in float64.
    """

    task: Annotated[str, OneOf("regulate", "swing_up")] = "regulate"
    linear: bool = False
    horizon: Count = 200
    spread: Share = 0.0
    limits: Any = "plant"
    observe: str = "state"
    units: Annotated[str, OneOf("physical", "scaled", "limits")] = "physical"
    reward: Any = "cost"
    dt: Positive | None = None
    variants: Count = 256
    seed: Natural = 0
    start: NonNegative = 1.0
    noise: Any = 0.0
    sensor_noise: Any = 0.0
    delay: Natural = 0
    action: str = "full"
    terminate: Any = "diverged"
    x_limits: Any = None
    violation_weight: NonNegative = 0.0
    filter_horizon: Natural = 0
    on_error: Annotated[str, OneOf("raise", "nan", "clip")] | None = None
    dtype: Annotated[str, OneOf("float32", "float64")] = "float32"

    def __post_init__(self) -> None:
        if self.on_error is None:
            object.__setattr__(self, "on_error", os.environ.get("LQRLAB_ON_ERROR", "raise"))
        super().__post_init__()
        if self.terminate not in ("diverged", "never", "cost"):
            checks.number("terminate", self.terminate, "'diverged', 'never', 'cost' or a number of scales > 0", above=0)
        if not callable(self.reward):
            checks.choice("reward", self.reward, REWARDS, "a function, or one of")
        for name in ("noise", "sensor_noise"):
            self.require(name, np.ndim(getattr(self, name)) < 2, "standard deviations, one for all states or one each")
            object.__setattr__(self, name, _plain(name, getattr(self, name)))  # as what has a hash
        for name, others in (("limits", ("plant",)), ("x_limits", ())):
            given = getattr(self, name)
            if pair := isinstance(given, tuple | list) and len(given) == 2:
                object.__setattr__(self, name, tuple(_plain(name, a) for a in given))
            known = pair or given is None or (isinstance(given, str) and given in others)
            self.require(name, known, "a pair (low, high), None" + "".join(f" or {text!r}" for text in others))
        self.require("sensor_noise", all(0 <= a < np.inf for a in self.sensor_noise), "standard deviations ≥ 0")
        if self.observe not in ("state", "outputs") and not 0 < self.memory <= _MOST_REMEMBERED:
            self.require("observe", False, f"'state', 'outputs' or 'history:8' (at most {_MOST_REMEMBERED})")
        self.require("action", self.action == "full" or self.levels > 0, "'full' or 'levels:3'")
        swings = self.task == "swing_up"
        if swings and self.linear:
            raise ValueError("task: 'swing_up' needs the nonlinear plant; leave linear=False")
        if self.filter_horizon and (self.delay or swings):
            raise ValueError(
                "filter_horizon: a safety filter needs delay=0 and task='regulate', which it looks ahead in"
            )

    def words(self, *without: str) -> str:
        """The settings as a text that is the same in each process, but for some of them."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in without}
        return repr(values | {name: float(a) for name, a in values.items() if isinstance(a, Real)})  # 1 is 1.0

    @property
    def memory(self) -> int:
        """Number of states seen at once, 0 if only the present one."""
        return number_in(self.observe, "history")

    @property
    def levels(self) -> int:
        """Values an input of a grid of actions, 0 without a grid."""
        return number_in(self.action, "levels")

    @property
    def far(self) -> float:
        """Size of a state at which an episode ends."""
        return {"diverged": verdict.FAR, "never": np.inf, "cost": MOST_COST}.get(self.terminate, self.terminate)


def for_learning(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the defaults of other libraries; ``units="physical"`` is the task as :func:`make` has it."""
    return settings if settings.get("units") == "physical" else LEARNING | settings


def number_in(text: str, word: str) -> int:
    """The number in ``"word:number"``; 0 of anything else."""
    head, _, number = text.partition(":")
    return int(number) if head == word and number.isdecimal() else 0


def _plain(name: str, value: Any) -> tuple[float, ...]:
    return tuple(np.asarray(checks.real(name, value), float).ravel().tolist())


@dataclasses.dataclass(frozen=True)
class BoxSpace:
    """Vectors between ``low`` and ``high``, a bound for each component; they may be infinite."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        """One axis, as long as the bounds."""
        return (len(self.low),)

    def sample(self, key: PRNGKeyArray) -> Array:
        """Uniform between the bounds; a missing one is ∓1, or 2 from the other where that is beyond ∓1."""
        low, high = (np.asarray(a, self.dtype) for a in (self.low, self.high))
        low = np.where(np.isfinite(low), low, np.minimum(-_WIDE, high - 2 * _WIDE))
        high = np.where(np.isfinite(high), high, np.maximum(_WIDE, low + 2 * _WIDE))
        return low + jax.random.uniform(key, self.shape, self.dtype) * (high - low)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The whole numbers 0 … n − 1."""

    n: int
    dtype: str = "int32"
    shape: tuple[int, ...] = ()

    def sample(self, key: PRNGKeyArray) -> Array:
        """Uniform."""
        return jax.random.randint(key, (), 0, self.n, self.dtype)


def as_of(spaces: Any, space: BoxSpace | Discrete) -> Any:
    """The same space in the words of ``gymnasium.spaces``, or of gymnax's."""
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    kind = np.dtype(space.dtype).type
    return spaces.Box(np.array(space.low, kind), np.array(space.high, kind), space.shape, kind)
