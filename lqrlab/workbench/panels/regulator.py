"""A regulator's design: what the designer's sliders say, the gain that follows and what its loop does."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, simulation, systems
from lqrlab.systems import Plant
from lqrlab.workbench.figures import catalogue_page
from lqrlab.workbench.panels import live_panel

TICKS = 4  # that the plant's own sample time is divided into: the grid of sample times and delays
LATE = 2  # sample times of delay at most
FREE = 100.0  # limits from here on, in units of a large input, count as none


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """One setting of the sliders.

    Attributes:
        plant, nominal: with the parameters chosen, and as declared.
        states, inputs: factors of the weights of each state ``[n]`` and input ``[m]``.
        sample: sample time in ticks, quarters of the plant's own.
        delay: of the input, in ticks.
        known: whether the gain is made for the delay.
        limit: of the inputs, in units of a large one.
        size: of the initial state.
        ticks: that the curves take.
        tick: one [s].
        substeps: Runge-Kutta steps in a tick.
    """

    plant: Plant
    nominal: Plant
    states: np.ndarray
    inputs: np.ndarray
    ticks: int
    tick: float
    substeps: int
    sample: int = TICKS
    delay: int = 0
    known: bool = True
    limit: float = FREE
    size: float = 1.0

    @classmethod
    def of(cls, plant: str | Plant, num_steps: int | None = None) -> "Setting":
        """The defaults of a plant: its own weights and sample time, no delay, no limits."""
        plant = live_panel.one_plant(plant)
        (A, B), (Q, R), tick = plant.matrices(), plant.weights(), float(plant.dt) / TICKS
        if num_steps is None:
            num_steps = min(
                catalogue_page.settling(np.asarray(control.lqrd(A, B, Q, R, plant.dt).poles)), 400
            )
        num_steps = live_panel.whole("num_steps", num_steps)
        fastest = float(np.abs(np.linalg.eigvals(np.asarray(A))).max())
        substeps = max(1, math.ceil(fastest * tick / 0.25))
        ones = np.ones(plant.n), np.ones(plant.m)
        return cls(plant, plant, *ones, num_steps * TICKS, tick, substeps)

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return self.sample * self.tick

    @property
    def weights(self) -> tuple[Array, Array]:
        """Q and R as the sliders make them."""
        Q, R = self.plant.weights()
        return Q * np.sqrt(np.outer(self.states, self.states)), R * np.sqrt(
            np.outer(self.inputs, self.inputs)
        )

    @property
    def limits(self) -> Array:
        """Largest deviations of the inputs ``[m]``; inf for none."""
        return jnp.asarray(self.plant.scales[1]) * (self.limit if self.limit < FREE else jnp.inf)

    @property
    def x0(self) -> np.ndarray:
        """Initial deviation ``[n]``."""
        return self.size * catalogue_page.start(self.plant)

    @property
    def code(self) -> str:
        """What makes the same gain, to be copied into a cell."""
        changed = {
            name: float(value)
            for name, value in self.plant.parameters.items()
            if float(value) != float(getattr(self.nominal, name))
        }
        given = "".join(f", {name}={value:.6g}" for name, value in changed.items())
        own = (
            type(self.plant) is systems.family(self.plant.name)
            if self.plant.name in systems.names()
            else False
        )
        lines = [
            "from lqrlab import compute, control, simulation, systems",
            "",
            "compute.setup()",
            f'plant = systems.make("{self.plant.name}"{given})' if own else "plant = ...  # your own plant",
            "(A, B), (Q, R) = plant.matrices(), plant.weights()",
        ]
        for name, factors in (("Q", self.states), ("R", self.inputs)):
            if (factors != 1).any():
                numbers = ", ".join(f"{f:.6g}" for f in factors)
                lines += [f"w = jnp.array([{numbers}])", f"{name} = {name} * jnp.sqrt(jnp.outer(w, w))"]
        if any("jnp." in line for line in lines):
            lines.insert(0, "import jax.numpy as jnp\n")
        late = f", {self.delay / self.sample:g}" if self.delay and self.known else ""
        lines.append(f"K = control.lqrd{'_delayed' if late else ''}(A, B, Q, R, {self.dt:g}{late}).K")
        if late:
            lines.append("# u[t] = -K @ concatenate([x[t], u[t-1], …]): the inputs that are on their way")
        elif not self.delay:
            start = ", ".join(f"{x:g}" for x in self.x0)
            more = f", dt={self.dt:g}"
            if self.limit < FREE:
                lines += ["u_eq = plant.equilibrium()[1]", f"limit = {self.limit:g} * plant.scales[1]"]
                more += ", limits=(u_eq - limit, u_eq + limit)"
            steps = self.ticks // self.sample
            lines += [
                f"x0 = [{start}]",
                f"run = simulation.rollout(plant, simulation.LinearPolicy(K), x0, {steps}{more})",
            ]
            if any(line.startswith("w = ") for line in lines):
                lines.append(
                    "# run.cost charges the plant's own weights; Q and R above are those K is optimal for"
                )
        return "\n".join(lines)


# What becomes of it ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """What follows from a setting.

    Attributes:
        optimum: the sampled-data LQR of the linear plant, without delay and limits; its x0ᵀPx0 is the optimum.
        K: gain on the state and the inputs on their way ``[m, n + m d]``.
        A, B: sampled plant that K is a gain of.
        poles: of the loop as built.
        best, built: what the two loops do, :class:`lqrlab.simulation.Trajectory` on the grid of ticks, the costs in
            the weights chosen.
        cost: x0ᵀPx0.
    """

    optimum: control.LQR
    K: np.ndarray
    A: np.ndarray
    B: np.ndarray
    poles: np.ndarray
    best: simulation.Trajectory
    built: simulation.Trajectory
    cost: float


def design(setting: Setting) -> Design:
    """Design for a setting and run both loops: the optimum of the linear plant, and the loop as it is built.

    Raises:
        ValueError: there is no optimum, in control terms.
    """
    s = setting
    (A, B), (Q, R) = s.plant.matrices(), s.weights
    optimum = control.lqrd(A, B, Q, R, s.dt)
    late = s.delay / s.sample
    if late:
        wide = control.delayed(A, B, Q, R, s.dt, late)
        a, b = np.asarray(wide.A), np.asarray(wide.B)
        K = np.asarray(control.lqrd_delayed(A, B, Q, R, s.dt, late).K if s.known else optimum.K)
    else:
        a, b = (np.asarray(M) for M in control.c2d(A, B, s.dt))
        K = np.asarray(optimum.K)
    K = np.pad(K, [(0, 0), (0, len(a) - K.shape[-1])])
    full = s.plant.n + LATE * s.plant.m
    x0 = jnp.asarray(s.x0)

    def run(K: Any, delay: int, limit: Array, linear: bool) -> simulation.Trajectory:
        K = np.pad(np.asarray(K), [(0, 0), (0, full - K.shape[-1])])
        sizes = {"ticks": s.ticks, "substeps": s.substeps, "linear": linear}
        out = _loop(s.plant, Q, R, K, x0, s.tick, s.sample, delay, limit, **sizes)
        return simulation.Trajectory(s.tick * np.arange(s.ticks + 1), *out)  # type: ignore[arg-type]

    free = jnp.full(s.plant.m, jnp.inf)
    best, built = run(optimum.K, 0, free, True), run(K, s.delay, s.limits, False)
    best, built = jax.tree.map(np.asarray, (best, built))
    poles = np.linalg.eigvals(a - b @ K)
    return Design(optimum, K, a, b, poles, best, built, float(s.x0 @ np.asarray(optimum.P) @ s.x0))


@partial(jax.jit, static_argnames=("ticks", "substeps", "linear"))
def _loop(
    plant: Plant, Q: Array, R: Array, K: Array, x0: Array, tick: Array, sample: Array, delay: Array, limit: Array,
    *, ticks: int, substeps: int, linear: bool,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """States, acting inputs and costs, tick by tick; an input is computed each ``sample`` and acts ``delay`` later."""
    world = simulation.env(plant, dt=tick, linear=linear, substeps=substeps)
    sampled = control.discretize(*plant.matrices(), Q, R, tick) if linear else world.sampled
    world = dataclasses.replace(world, Q=Q, R=R, sampled=sampled, low=-limit, high=limit)

    def step(state: tuple[Array, Array], t: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        x, sent = state  # the inputs sent, the newest first
        z = jnp.concatenate([x, sent[:LATE].ravel()])
        newer = jnp.concatenate([world.saturate(-K @ z)[None], sent[:-1]])
        sent = jnp.where(t % sample == 0, newer, sent)
        u = sent[t // sample - (t - delay) // sample]
        after, cost = world.step(x, u)
        return (after, sent), (after, u, cost)

    sent = jnp.zeros((LATE + 1, plant.m), x0.dtype)
    _, (xs, us, costs) = jax.lax.scan(step, (x0, sent), jnp.arange(ticks))
    return jnp.concatenate([x0[None], xs]), us, costs
