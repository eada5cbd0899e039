"""A plant's regulator at settings, worked out once for a picture: problem, optimum, poles, loops and their cost.

Time is divided into ticks, of which sample times and delays are whole numbers: loops are run tick by tick, by the
same programs for all settings.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import compute, control, simulation, systems
from lqrlab.compute import checks, jit_by_function, pytree
from lqrlab.compute.jit import quick_jit
from lqrlab.simulation import Problem, Trajectory, verdict
from lqrlab.systems import Plant
from lqrlab.systems.plant import is_linear
from lqrlab.workbench.figures.charts import Poles
from lqrlab.workbench.figures.loop_controllers import ControllerChoice, SampledLoop, sampled_loop

FREE = 100.0  # scales of the inputs from which on limits count as none
TICKS = 4  # in the plant's own sample time
LATE = 2  # sample times of delay, at most
OVERVIEW, STEP, MOVES = VIEWS = ("overview", "step and specifications", "the plant moves")
"""Pictures: a bit of all; a step of the set-point, with the regions that its specifications forbid; the plant drawn."""


# A plant's loop as it is shown -----------------------------------------------------------------------------


def one_plant(plant: object) -> Plant:
    """A family at its defaults, or one plant of your own, in float64; a ``ValueError`` for others, or for a batch."""
    compute.setup()  # panels and pictures are designs: in a notebook of one's own nobody has called it
    if isinstance(plant, str):
        return systems.make(plant)
    if not isinstance(plant, Plant):
        raise ValueError(
            "plant: expected the name of a family, as 'cart_pole', or one plant, as of systems.make or "
            f"systems.from_matrices, but found {type(plant).__name__}"
        )
    systems.check_plant(plant, one=True)
    return jax.tree.map(lambda a: jnp.asarray(a, float) if jnp.result_type(a) == jnp.float32 else a, plant)


def start(plant: Plant) -> Float[np.ndarray, " n"]:
    """An initial deviation that sets everything in motion: the first half of the states, to alternating sides."""
    half = np.arange(plant.n) < (plant.n + 1) // 2
    return np.where(half, 0.8 * np.resize([1.0, -0.7, 0.9], plant.n), 0.0) * np.asarray(plant.scales[0])


def reach(plant: Plant, name: str) -> tuple[float, float]:
    """The range a parameter is moved in: from a third to three times its value within its own, or all of that."""
    field = systems.parameter_fields(type(plant))[name].metadata
    value, low, high = float(getattr(plant, name)), field["low"], field["high"]
    near = sorted((value / 3, 3 * value))
    return (max(low, near[0]), min(high, near[1])) if value else (low, high)


def settling_steps(poles: Poles) -> int:
    """Samples after which 0.4 % of the motion of a loop with these discrete poles is left, 60 … 4000."""
    return control.settling_steps(poles, times=1.0, within=4e-3, shortest=60, longest=4000, multiple=1)


def horizon(plant: Plant, num_steps: int | None, most: int = 4000) -> int:
    """The number of samples that was asked for, or until the plant's optimal loop has settled."""
    if num_steps is not None:
        return checks.whole("num_steps", num_steps)
    return min(settling_steps(poles_of(Problem.of(plant, linear=True))), most)


def poles_of(problem: Problem) -> Poles:
    """Poles of the sampled optimal loop; on the host."""
    return np.linalg.eigvals(np.asarray(problem.closed_loop()))


def outcome(plant: Plant, run: Trajectory) -> verdict.Verdict:
    """Verdict on a run of one loop, by the rule of :mod:`lqrlab.simulation.verdict`."""
    sizes = verdict.size(np.asarray(run.xs, float), np.asarray(plant.scales[0]))
    return verdict.Verdict(int(verdict.of_sizes(sizes, linear=is_linear(plant))))


# The designer's loop ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class LoopSetting:
    """One setting of the designer's sliders."""

    plant: Plant  # with the parameters chosen
    states: Float[np.ndarray, " n"]  # factors of the states' weights
    inputs: Float[np.ndarray, " m"]  # and of the inputs'
    ticks: int  # that the curves take
    tick: float  # [s]
    substeps: int  # Runge-Kutta steps in a tick
    sample: int = TICKS  # sample time in ticks
    delay: int = 0  # of the input, in ticks
    known: bool = True  # whether the gain is made for the delay
    limit: float = FREE  # of the inputs, in their scales
    size: float = 1.0  # of the initial state
    load: float = 0.0  # a constant addition to the inputs, in their scales
    controller: ControllerChoice = dataclasses.field(default_factory=ControllerChoice)
    view: str = OVERVIEW  # which picture of the loop
    specifications: Any = None  # of a step of the set-point: tuning.StepSpecs
    far: float = 0.0  # half of the height of the plane in which poles are placed [rad/s]; 0 for as much as they need

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "LoopSetting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = one_plant(plant)
        ticks, tick = TICKS * horizon(plant, num_steps, most=400), float(plant.dt) / TICKS
        substeps = Problem.of(plant, dt=tick, optimum=False).substeps
        return cls(plant, np.ones(plant.n), np.ones(plant.m), ticks, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "m m"]]:
        """Q and R as the sliders make them."""
        Q, R = (np.asarray(W) for W in self.plant.weights())
        return Q * np.sqrt(np.outer(self.states, self.states)), R * np.sqrt(np.outer(self.inputs, self.inputs))

    @property
    def limits(self) -> Float[np.ndarray, " m"]:
        """Largest deviations of the inputs; inf for none."""
        return largest_inputs(self.plant, self.limit)

    @property
    def x0(self) -> Float[np.ndarray, " n"]:
        """Initial deviation."""
        return self.size * start(self.plant)


def largest_inputs(plant: Plant, limit: float) -> Float[np.ndarray, " m"]:
    """Limits of the inputs as deviations, inf for none; ``limit`` is in their scales."""
    return np.asarray(plant.scales[1]) * (limit if limit < FREE else np.inf)


def input_unit(plant: Plant | None) -> tuple[str, float]:
    """The unit and the scale of all inputs, where they are alike; else each one's scale is its unit."""
    alike = {(signal.unit, signal.scale) for signal in plant.inputs} if plant else set()
    return alike.pop() if len(alike) == 1 else ("× scale", 1.0)


def limit_words(limit: float, plant: Plant | None = None) -> str:
    """A limit, in scales of the inputs, in a sentence."""
    unit, scale = input_unit(plant)
    return "no limits" if limit >= FREE else f"inputs limited to {limit * scale:.3g} {unit}"


@dataclasses.dataclass(frozen=True, eq=False)
class LoopDesign:
    """The optimum of the linear plant at a setting, and the loop as implemented."""

    sampled: control.Sampled  # the plant and its weights without delay
    undelayed: SampledLoop  # the loop that the setting has without delay
    loop: SampledLoop  # the plant, with the inputs on their way, and its controller at samples
    poles: Poles  # of the loop as implemented
    optimal_poles: Poles  # of the optimum, without delay
    best: Trajectory  # of the optimum on the linear plant, at ticks, charged by the weights chosen
    built: Trajectory  # of the loop as implemented on the nonlinear plant, likewise
    cost: float  # the optimum's x0ᵀPx0
    in_plant_weights: float  # excess cost in the plant's own weights, without delay and limits, from x0, relative


def design(setting: LoopSetting) -> LoopDesign:
    """Design for a setting and run both loops, the linear optimum and the one implemented, or say why there is none."""
    s, x0 = setting, setting.x0
    problem = Problem.of(s.plant, dt=s.tick, weights=s.weights, substeps=s.substeps, optimum=False)
    continuous = problem.continuous
    assert continuous is not None
    # with the weights chosen, and with the plant's own
    Q, R = (np.stack([a, np.asarray(b)]) for a, b in zip(s.weights, s.plant.weights()))
    both = control.discretize(*continuous[:2], Q, R, s.dt)
    optima = control.dlqr(*both)
    if not np.asarray(optima.stabilizing)[0]:
        control.lqrd(*continuous[:2], *s.weights, s.dt)  # says which mode is at fault
    optimum, own_P = (jax.tree.map(lambda a: np.asarray(a)[0], optima), np.asarray(optima.P)[1])
    sampled, own = (control.Sampled(*(np.asarray(a)[i] for a in both)) for i in (0, 1))

    def loop(choice: ControllerChoice, delay: float) -> SampledLoop:
        known = s.known and delay > 0
        return sampled_loop(choice, s.plant, continuous[:4], sampled, s.dt, optimum, delay, known=known)

    implemented = loop(s.controller, s.delay / s.sample)
    free = loop(s.controller, 0.0) if s.delay else implemented
    best = _run(dataclasses.replace(problem, linear=True), loop(ControllerChoice(), 0.0), s, alone=True)
    built = _run(problem, implemented, s)
    price = free.price(own)
    paid = float(x0 @ price @ x0) if np.isfinite(price).all() else math.inf
    return LoopDesign(
        sampled,
        free,
        implemented,
        np.linalg.eigvals(implemented.closed),
        np.asarray(optimum.poles),
        best,
        built,
        float(x0 @ np.asarray(optimum.P) @ x0),
        paid / float(x0 @ own_P @ x0) - 1,
    )


@pytree
@dataclasses.dataclass(frozen=True)
class Pushed:
    """A policy with a force ``size [m]`` added to its inputs, from the ``first`` sample to the ``last``."""

    policy: simulation.Policy
    first: int | Array
    last: int | Array
    size: Float[Array | np.ndarray, " m"]

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, Any]:
        """No sample taken."""
        return jnp.zeros((), int), self.policy.init(batch_shape)

    def __call__(self, carry: tuple[Array, Any], x: Array) -> tuple[tuple[Array, Any], Array]:
        """The answer of the policy, and the push."""
        step, memory = carry
        memory, u = self.policy(memory, x)
        acts = (step >= self.first) & (step <= self.last)
        return (step + 1, memory), u + jnp.where(acts, self.size, 0.0).astype(u.dtype)


def _run(problem: Problem, loop: SampledLoop, s: LoopSetting, *, alone: bool = False) -> Trajectory:
    """A loop from the setting's start, tick by tick; ``alone`` without its delay, limits and load."""
    limits, delay, load = (np.inf * s.limits, 0, 0.0) if alone else (s.limits, s.delay, s.load)
    added = load * np.asarray(s.plant.scales[1])
    controller = loop.policy(s.plant.n + LATE * s.plant.m, limits)
    late = simulation.DelayedPolicy(controller, s.sample, delay, jnp.inf * jnp.ones(s.plant.m), LATE, aware=True)
    run = jax.tree.map(np.asarray, _rollout(problem, Pushed(late, 0, s.ticks, added), s.x0, ticks=s.ticks))
    return dataclasses.replace(run, us=run.us - added)


@partial(jit_by_function, jit=quick_jit, static_argnames="ticks")
def _rollout(problem: Problem, policy: simulation.Policy, x0: Array, *, ticks: int) -> Trajectory:
    """The loop tick by tick."""
    return simulation.rollout(problem, policy, x0, ticks)
