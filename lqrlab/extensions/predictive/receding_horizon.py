"""The policy of a model predictive controller: estimate, plan, send the first input, remember the active limits."""

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from lqrlab.compute import checks, pytree
from lqrlab.compute.linalg import matvec
from lqrlab.extensions.predictive.design import MPC
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet
from lqrlab.simulation import Measured, Policy, Problem, bind, measured_or
from lqrlab.simulation.memory_policies import check_sizes, limits_of

Rows = TypeVar("Rows")


class PlanMemory(NamedTuple):
    """The samples so far, the predicted x, the disturbance d, the last input, and the last plan's active limits."""

    step: Int[Array, ""]
    x: Float[Array, "*loops n"]
    d: Float[Array, "*loops k"]
    u: Float[Array, "*loops m"]
    at: Array
    out: Array


@pytree
@dataclasses.dataclass(frozen=True)
class PredictivePolicy:
    """The first input of the plan from where the plant is; where nothing is feasible, of the plan that violates least.

    Attributes:
        design: of :func:`lqrlab.predictive.mpc`, with the limits of inputs that hold.
    """

    design: MPC

    def init(self, batch_shape: tuple[int, ...]) -> PlanMemory:
        """At the equilibrium, without a disturbance, no limit active."""
        design, dtype = self.design, self.design.A.dtype
        n, m = design.B.shape[-2:]
        k = 0 if design.L is None else design.L.shape[-2] - n
        x, d, u = (jnp.zeros((*batch_shape, size), dtype) for size in (n, k, m))
        return PlanMemory(jnp.zeros((), int), x, d, u, *design.none_active(batch_shape))

    def __call__(self, carry: PlanMemory, x: Float[Array, "*loops p"]) -> tuple[PlanMemory, Float[Array, "*loops m"]]:
        """The input for what is measured: the state, or what the design's sensor shows of it."""
        step, predicted, d, last, at, out = carry
        design = _for_loops(self.design, x.ndim)
        y = x.astype(predicted.dtype)
        if design.L is None:
            state = measured_or(predicted, y)
        else:
            state = predicted
        guess = later(ActiveSet(at, out))
        plan, active = design.plan(state, u_last=last, d=d if d.shape[-1] else None, step=step, guess=guess)
        u = plan.us[..., 0, :]
        if "u_limits" in design.box:  # a plan that was not solved may ask for more
            u = jnp.clip(u, *(jnp.broadcast_to(end[..., 0, :], u.shape) for end in design.box["u_limits"]))
        after = plan.xs[..., 1, :]
        if design.L is not None and design.sensor is not None:
            expected = matvec(design.sensor, predicted) + (d if design.disturbance == "output" else 0)
            push = matvec(design.L, measured_or(expected, y) - expected)
            n = predicted.shape[-1]
            after, d = after + push[..., :n], d + push[..., n:]
        return PlanMemory(step + 1, after, d, u, active.at, active.out), u.astype(x.dtype)


def receding_horizon(problem: Problem, design: MPC) -> PredictivePolicy | Measured:
    """The policy of a predictive controller on a problem, whose limits of inputs it takes unless it has its own.

    >>> plant = systems.make("pendulum")
    >>> design = predictive.mpc(*plant.matrices(), *plant.weights()[:2], 20, dt=plant.dt, u_limits=(-2, 2))
    >>> run = simulation.rollout(plant, design, jnp.array([0.2, 0.0]), 100)
    >>> bool(jnp.abs(run.us).max() <= 2), bool(jnp.abs(run.xs[-1]).max() < 1e-2)
    (True, True)
    """
    checks.instance("design", design, MPC, "a predictive controller, as predictive.mpc makes")
    check_sizes(problem, *design.B.shape[-2:])
    if "u_limits" not in design.box and problem.low is not None:
        low, high = (a[..., None, :].astype(design.A.dtype) for a in limits_of(problem))
        design = dataclasses.replace(design, box={"u_limits": (low, high), **design.box})
    policy = PredictivePolicy(design)
    return policy if design.sensor is None else Measured(policy, design.sensor)


@bind.register
def _policy(design: MPC, problem: Problem) -> Policy:
    return receding_horizon(problem, design)


def _for_loops(design: MPC, ndim: int) -> MPC:
    """The design with axes of size one after its batch, for states of ``ndim`` axes: plants first, loops after."""
    batch = design.A.ndim - 2
    more = ndim - 1 - batch
    if not batch or not more:
        return design

    def widen(a: Array) -> Array:
        # limits and gains that are the same for all plants have no batch to widen
        return (
            a.reshape(*a.shape[:batch], *(1,) * more, *a.shape[batch:]) if a.shape[:batch] == design.A.shape[:-2] else a
        )

    return jax.tree.map(widen, design)


def later(plan: Rows) -> Rows:
    """Arrays ``[..., T, rows]`` a step on: what was planned for the second step is the first's; the end is repeated."""
    return jax.tree.map(lambda a: jnp.concatenate([a[..., 1:, :], a[..., -1:, :]], axis=-2), plan)
