"""The policy of predictive controllers: estimate, plan, send the first input, remember the plan."""

import dataclasses
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lqrlab.compute import pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.extensions.predictive.design import MPC
from lqrlab.extensions.predictive.nonlinear_mpc import NonlinearMPC
from lqrlab.simulation import Measured, Policy, Problem, bind, measured_or
from lqrlab.simulation.memory_policies import check_sizes

Rows = TypeVar("Rows")


class PlanMemory(NamedTuple):
    """The samples so far, the predicted x, the disturbance d, the last input, and what the next plan starts from."""

    step: Int[Array, ""]
    x: Float[Array, "*loops n"]
    d: Float[Array, "*loops k"]
    u: Float[Array, "*loops m"]
    plan: PyTree


@pytree
@dataclasses.dataclass(frozen=True)
class PredictivePolicy:
    """The first input of the plan from where the plant is; where nothing is feasible, of the plan that violates least.

    Attributes:
        design: of :func:`lqrlab.predictive.mpc` or :func:`lqrlab.predictive.nonlinear_mpc`, with the limits of inputs
            that hold.
    """

    design: MPC | NonlinearMPC

    def init(self, batch_shape: tuple[int, ...]) -> PlanMemory:
        """At the equilibrium, without a disturbance, no limit active."""
        design, problem = self.design, self.design.problem
        k = 0 if design.L is None else design.L.shape[-2] - problem.n
        x, d, u = (jnp.zeros((*batch_shape, size), problem.A.dtype) for size in (problem.n, k, problem.m))
        return PlanMemory(jnp.zeros((), int), x, d, u, design.begin(batch_shape))

    def __call__(self, carry: PlanMemory, x: Float[Array, "*loops p"]) -> tuple[PlanMemory, Float[Array, "*loops m"]]:
        """The input for what is measured: the state, or what the design's sensor shows of it."""
        (step, predicted, d, last, plan), design = carry, self.design
        y = x.astype(predicted.dtype)
        state = measured_or(predicted, y) if design.L is None else predicted
        plan, us, xs = design.planned(_later(plan), state, last, d, step)
        after = xs[..., 1, :]
        if design.L is not None and design.sensor is not None:
            sensor, L = (expand_batch(a, x.ndim + 1, 2) for a in (design.sensor, design.L))
            expected = matvec(sensor, predicted) + (d if design.disturbance == "output" else 0)
            push = matvec(L, measured_or(expected, y) - expected)
            n = predicted.shape[-1]
            after, d = after + push[..., :n], d + push[..., n:]
        u = us[..., 0, :]
        return PlanMemory(step + 1, after, d, u, plan), u.astype(x.dtype)

    def check_step(self, dt: Array) -> None:
        """Raise ValueError for another sample time than that of a nonlinear plant's plan."""
        if isinstance(self.design, NonlinearMPC):
            self.design.problem.check_step(dt)


@bind.register(MPC)
@bind.register(NonlinearMPC)
def _policy(design: MPC | NonlinearMPC, problem: Problem) -> Policy:
    """The policy on a problem, whose limits of inputs a linear design takes unless it has its own."""
    check_sizes(problem, design.problem.n, design.problem.m)
    if isinstance(design, MPC) and design.limits.u is None and problem.low is not None:
        dtype = design.problem.A.dtype
        u = tuple(end.astype(dtype) for end in problem.limits.u)  # type: ignore[union-attr]
        limits = dataclasses.replace(design.limits, u=u)
        design = dataclasses.replace(design, problem=dataclasses.replace(design.problem, limits=limits))
    policy = PredictivePolicy(design)
    policy.check_step(problem.dt)
    return policy if design.sensor is None else Measured(policy, design.sensor)


def _later(plan: Rows) -> Rows:
    """Arrays ``[..., T, rows]`` a step on: what was planned for the second step is the first's; the end is repeated."""
    return jax.tree.map(lambda a: jnp.concatenate([a[..., 1:, :], a[..., -1:, :]], axis=-2), plan)
