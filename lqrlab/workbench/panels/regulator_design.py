"""A sampled regulator as the designer's sliders describe it: its gain, its loop as built, code that makes the same."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float

from lqrlab import control, simulation, systems
from lqrlab.simulation import Trajectory
from lqrlab.systems import Plant
from lqrlab.workbench.figures import demonstration
from lqrlab.workbench.panels import controls

TICKS = 4  # that the plant's sample time is divided into: the grid of sample times and delays
LATE = 2  # sample times of delay at most


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of the sliders.

    Attributes:
        plant, nominal: with the parameters chosen, and as declared.
        states, inputs: factors of the weights of each state ``[n]`` and input ``[m]``.
        ticks: that the curves take.
        tick: one [s].
        substeps: Runge-Kutta steps in a tick.
        sample: sample time in ticks, quarters of the plant's.
        delay: of the input, in ticks.
        known: whether the gain is made for the delay.
        limit: of the inputs, in units of a large one.
        size: of the initial state.
    """

    plant: Plant
    nominal: Plant
    states: Float[np.ndarray, " n"]
    inputs: Float[np.ndarray, " m"]
    ticks: int
    tick: float
    substeps: int
    sample: int = TICKS
    delay: int = 0
    known: bool = True
    limit: float = controls.FREE
    size: float = 1.0

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "Setting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = controls.one_plant(plant)
        tick = float(plant.dt) / TICKS
        steps = demonstration.horizon(plant, num_steps)
        fastest = float(np.abs(np.linalg.eigvals(np.asarray(plant.matrices()[0]))).max())
        return cls(
            plant=plant,
            nominal=plant,
            states=np.ones(plant.n),
            inputs=np.ones(plant.m),
            ticks=TICKS * (min(steps, 400) if num_steps is None else steps),
            tick=tick,
            substeps=max(1, math.ceil(fastest * tick / 0.25)),
        )

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Array, Array]:
        """Q and R as the sliders make them."""
        return tuple(  # type: ignore[return-value]
            W * np.sqrt(np.outer(f, f)) for W, f in zip(self.plant.weights(), (self.states, self.inputs))
        )

    @property
    def limits(self) -> Float[Array, " m"]:
        """Largest deviations of the inputs; inf for none."""
        return controls.largest_inputs(self.plant, self.limit)

    @property
    def x0(self) -> Float[np.ndarray, " n"]:
        """Initial deviation."""
        return self.size * demonstration.start(self.plant)

    @property
    def code(self) -> str:
        """What makes the same gain, to be copied into a cell."""
        weights = []
        for name, factors in (("Q", self.states), ("R", self.inputs)):
            if (factors != 1).any():
                numbers = ", ".join(f"{f:.6g}" for f in factors)
                weights += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
        late = f", {self.delay / self.sample:g}" if self.delay and self.known else ""
        lines = ["import jax.numpy as jnp", ""] if weights else []
        lines += ["from lqrlab import compute, control, simulation, systems", "", "compute.setup()"]
        lines += [
            f"plant = {self._plant_code}",
            "(A, B), (Q, R) = plant.matrices(), plant.weights()",
            *weights,
        ]
        lines.append(f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {self.dt:g}{late}).K")
        if late:
            lines.append("# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way")
        elif not self.delay:
            lines += self._run_code
            if weights:
                lines.append(
                    "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
                )
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
class Design:
    """What follows from a setting.

    Attributes:
        optimum: the sampled-data LQR of the linear plant, without delay and limits; its x0ᵀPx0 is the optimum.
        K: gain on the state and the d inputs on their way.
        A, B: sampled plant that K is a gain of.
        poles: of the loop as built.
        best, built: what the two loops do on the grid of ticks, the costs in the weights chosen.
        cost: x0ᵀPx0.
    """

    optimum: control.LQR
    K: Float[np.ndarray, "m wide"]
    A: Float[np.ndarray, "wide wide"]
    B: Float[np.ndarray, "wide m"]
    poles: Complex[np.ndarray, " wide"] | Float[np.ndarray, " wide"]
    best: Trajectory
    built: Trajectory
    cost: float


def design(setting: Setting) -> Design:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as it is built.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s = setting
    (A, B), (Q, R), late = s.plant.matrices(), s.weights, s.delay / s.sample
    optimum = control.lqrd(A, B, Q, R, s.dt)
    a, b = (
        np.asarray(M)
        for M in (control.delayed(A, B, Q, R, s.dt, late)[:2] if late else control.c2d(A, B, s.dt))
    )
    known = late and s.known
    K = np.asarray(control.lqrd_delayed(A, B, Q, R, s.dt, late).K if known else optimum.K)
    K = np.pad(K, [(0, 0), (0, len(a) - K.shape[-1])])

    def run(K: Float[np.ndarray, "m _"], delay: int, limit: Float[Array, " m"], linear: bool) -> Trajectory:
        K = np.pad(K, [(0, 0), (0, s.plant.n + LATE * s.plant.m - K.shape[-1])])
        policy = simulation.DelayedPolicy(*map(jnp.asarray, (K, s.sample, delay, limit)), memory=LATE)
        sizes = {"ticks": s.ticks, "substeps": s.substeps, "linear": linear}
        return jax.tree.map(np.asarray, _rollout(s.plant, Q, R, policy, s.x0, s.tick, **sizes))

    best = run(np.asarray(optimum.K), 0, jnp.full(s.plant.m, jnp.inf), True)
    built = run(K, s.delay, s.limits, False)
    cost = float(s.x0 @ np.asarray(optimum.P) @ s.x0)
    return Design(optimum, K, a, b, np.linalg.eigvals(a - b @ K), best, built, cost)


@partial(jax.jit, static_argnames=("ticks", "substeps", "linear"))
def _rollout(
    plant: Plant, Q: Array, R: Array, policy: simulation.Policy, x0: Array, tick: Array,
    *, ticks: int, substeps: int, linear: bool,
) -> Trajectory:  # fmt: skip
    """The loop tick by tick, charged by Q and R instead of the plant's weights; one program from plant to costs."""
    world = simulation.env(plant, dt=tick, linear=linear, substeps=substeps)
    sampled = control.discretize(*plant.matrices(), Q, R, tick)
    # zero as a number and not as a traced one: no noise, so no random key
    world = dataclasses.replace(world, Q=Q, R=R, sampled=sampled, noise=np.zeros(plant.n))
    return simulation.rollout(world, policy, x0, ticks)
