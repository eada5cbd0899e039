"""A sampled regulator as the designer's sliders describe it: its optimum, and the loop as it is built."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import control, simulation, systems
from lqrlab.compute import jit_by_function
from lqrlab.simulation import Problem, Trajectory
from lqrlab.systems import Plant
from lqrlab.workbench.figures import example_loop
from lqrlab.workbench.figures.example_loop import Poles
from lqrlab.workbench.panels import controls

OVERVIEW = "overview"
"""The picture that shows a bit of all."""
TICKS = 4  # that the plant's sample time is divided into: the grid of sample times and delays
LATE = 2  # sample times of delay at most


@dataclasses.dataclass(frozen=True, eq=False)
class LoopSetting:
    """One setting of the sliders."""

    plant: Plant  # with the parameters chosen
    nominal: Plant  # as declared
    states: Float[np.ndarray, " n"]  # factors of the states' weights
    inputs: Float[np.ndarray, " m"]  # and of the inputs'
    ticks: int  # that the curves take
    tick: float  # [s]
    substeps: int  # Runge-Kutta steps in a tick
    sample: int = TICKS  # sample time in ticks
    delay: int = 0  # of the input, in ticks
    known: bool = True  # whether the gain is made for the delay
    limit: float = controls.FREE  # of the inputs, in units of a large one
    size: float = 1.0  # of the initial state
    view: str = OVERVIEW  # which picture of the loop

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "LoopSetting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = controls.one_plant(plant)
        ticks, tick = TICKS * example_loop.horizon(plant, num_steps, most=400), float(plant.dt) / TICKS
        fastest = float(np.abs(np.linalg.eigvals(np.asarray(plant.matrices()[0]))).max())
        substeps = max(1, math.ceil(fastest * tick / 0.25))
        return cls(plant, plant, np.ones(plant.n), np.ones(plant.m), ticks, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Array, Array]:
        """Q and R as the sliders make them."""
        Q, R = self.plant.weights()
        roots = [np.sqrt(factors) for factors in (self.states, self.inputs)]
        return tuple(W * np.outer(r, r) for W, r in zip((Q, R), roots))  # type: ignore[return-value]

    @property
    def limits(self) -> Float[Array, " m"]:
        """Largest deviations of the inputs; inf for none."""
        return controls.largest_inputs(self.plant, self.limit)

    @property
    def x0(self) -> Float[np.ndarray, " n"]:
        """Initial deviation."""
        return self.size * example_loop.start(self.plant)

    @property
    def code(self) -> str:
        """What makes the same gain, to be copied into a cell."""
        weights = []
        for name, factors in (("Q", self.states), ("R", self.inputs)):
            if (factors != 1).any():
                numbers = ", ".join(f"{f:.6g}" for f in factors)
                weights += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
        late = f", {self.delay / self.sample:g}" if self.delay and self.known else ""
        note = "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
        if late:
            run = ["# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way"]
        else:
            run = [] if self.delay else [*self._run_code, *([note] if weights else [])]
        lines = [
            *(["import jax.numpy as jnp", ""] if weights else []),
            "from lqrlab import compute, control, simulation, systems",
            "",
            "compute.setup()",
            f"plant = {self._plant_code}",
            "(A, B), (Q, R) = plant.matrices(), plant.weights()",
            *weights,
            f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {self.dt:g}{late}).K",
            *run,
        ]
        return "\n".join(lines)

    @property
    def _plant_code(self) -> str:
        name, values = self.plant.name, self.plant.parameters
        if name not in systems.names() or type(self.plant) is not systems.family(name):
            return "...  # your own plant"
        changed = (k for k, v in values.items() if float(v) != float(getattr(self.nominal, k)))
        return f'systems.make("{name}"{"".join(f", {k}={float(values[k]):.6g}" for k in changed)})'

    @property
    def _run_code(self) -> list[str]:
        lines, more = [f"x0 = [{', '.join(f'{x:g}' for x in self.x0)}]"], f", dt={self.dt:g}"
        if self.limit < controls.FREE:
            lines = ["u_eq = plant.equilibrium()[1]", f"limit = {self.limit:g} * plant.scales[1]", *lines]
            more += ", limits=(u_eq - limit, u_eq + limit)"
        call = f"simulation.rollout(plant, simulation.LinearPolicy(K), x0, {self.ticks // self.sample}{more})"
        return [*lines, f"run = {call}"]


@dataclasses.dataclass(frozen=True, eq=False)
class LoopDesign:
    """What follows from a setting: the optimum of the linear plant, and the loop as it is built."""

    problem: Problem  # of the plant at the controller's sample time, with the weights chosen, and its optimum
    K: Float[np.ndarray, "m wide"]  # gain on the state and the inputs on their way
    A: Float[np.ndarray, "wide wide"]  # sampled plant that K is a gain of
    B: Float[np.ndarray, "wide m"]
    poles: Poles  # of the loop as built
    best: Trajectory  # of the optimum, on the grid of ticks, charged by the weights chosen
    built: Trajectory
    cost: float  # the optimum's x0ᵀPx0


def design(setting: LoopSetting) -> LoopDesign:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as it is built.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s, late = setting, setting.delay / setting.sample
    problem = Problem.of(s.plant, dt=s.dt, weights=s.weights, linear=True)
    a, b, K = (np.asarray(M) for M in (problem.A, problem.B, problem.K))
    if late:
        matrices = *s.plant.matrices(), *s.weights, s.dt, late
        a, b = (np.asarray(M) for M in control.delayed(*matrices)[:2])
        K = np.asarray(control.lqrd_delayed(*matrices).K) if s.known else K
    K = np.pad(K, [(0, 0), (0, len(a) - K.shape[-1])])

    def run(K: Float[np.ndarray, "m _"], delay: int, limit: Float[Array, " m"], linear: bool) -> Trajectory:
        K = np.pad(K, [(0, 0), (0, s.plant.n + LATE * s.plant.m - K.shape[-1])])
        times = jnp.asarray(s.sample), jnp.asarray(delay)
        policy = simulation.DelayedPolicy(jnp.asarray(K), *times, limit, LATE)
        sizes = {"ticks": s.ticks, "substeps": s.substeps, "linear": linear}
        return jax.tree.map(np.asarray, _rollout(s.plant, s.weights, policy, s.x0, s.tick, **sizes))

    best = run(np.asarray(problem.K), 0, jnp.full(s.plant.m, jnp.inf), True)
    built = run(K, s.delay, s.limits, False)
    cost = float(problem.optimal_cost(jnp.asarray(s.x0)))
    return LoopDesign(problem, K, a, b, np.linalg.eigvals(a - b @ K), best, built, cost)


@partial(jit_by_function, static_argnames=("ticks", "substeps", "linear"))
def _rollout(
    plant: Plant,
    weights: tuple[Array, Array],
    policy: simulation.Policy,
    x0: Array,
    tick: Array,
    *,
    ticks: int,
    substeps: int,
    linear: bool,
) -> Trajectory:
    """The loop tick by tick, charged by the weights chosen; one program from plant to costs."""
    problem = Problem.of(plant, dt=tick, weights=weights, linear=linear, substeps=substeps, optimum=False)
    return simulation.rollout(problem, policy, x0, ticks)
