"""Policies of predictive control: the first input of each plan, the least safe change of an input, a catch."""

import dataclasses
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from lqrlab.compute import checks, jit_by_function, one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec, quadratic
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.design import MPC
from lqrlab.extensions.predictive.finite_horizon import Horizon, solved_from
from lqrlab.extensions.predictive.nonlinear_mpc import NonlinearMPC
from lqrlab.simulation import Limits, Measured, Policy, Problem, bind, measured_or
from lqrlab.simulation.memory_policies import check_sizes, limits_of

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
    """The first input of the plan from the current state; if infeasible, of the plan with the least violation.

    Attributes:
        design: of :func:`lqrlab.predictive.mpc` or :func:`lqrlab.predictive.nonlinear_mpc`, with limits of inputs.
    """

    design: MPC | NonlinearMPC

    def init(self, batch_shape: tuple[int, ...]) -> PlanMemory:
        """At the equilibrium, without a disturbance, no limit active."""
        design, problem = self.design, self.design.problem
        k = 0 if design.L is None else design.L.shape[-2] - problem.n
        x, d, u = (jnp.zeros((*batch_shape, size), problem.A.dtype) for size in (problem.n, k, problem.m))
        return PlanMemory(jnp.zeros((), int), x, d, u, design.begin(batch_shape))

    @one_program
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
        u, limits = us[..., 0, :], design.problem.limits
        if limits is not None and limits.du is not None:  # where nothing is feasible, a plan may give them up
            low, high = (expand_batch(end, x.ndim + 1, 2)[..., 0, :] for end in limits.du)
            u = jnp.clip(u, last + low, last + high)
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


_SLIGHT = 1e-8  # weight of what comes after the first input beside its change


@pytree
@dataclasses.dataclass(frozen=True)
class FilteredPolicy:
    """A policy with the least change of its inputs that keeps the limits over the next steps.

    What can be followed up passes, to a millionth of what the input can do. Where nothing keeps the limits, its input
    is that of the plan which violates those of the states least. A state that is not measured is the one that it has
    predicted; where the policy then has no input, the wish is the one before.

    Attributes:
        policy: what is filtered; it sees what it would see alone.
        problem: the sampled plant, with the limits.
        horizon: steps that are looked ahead.
    """

    policy: Policy
    problem: Problem
    horizon: int = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The memory of the policy, the state that is expected, and the last input."""
        x, u = (jnp.zeros((*batch_shape, size), self.problem.A.dtype) for size in (self.problem.n, self.problem.m))
        return self.policy.init(batch_shape), x, u

    @one_program
    def __call__(self, carry: PyTree, x: Float[Array, "*loops n"]) -> tuple[PyTree, Float[Array, "*loops m"]]:
        """The input nearest to the policy's, relative to what the inputs can do, that can be followed up."""
        memory, expected, last = carry
        memory, u = self.policy(memory, x)
        wish = measured_or(last, u.astype(last.dtype))
        state = measured_or(expected, x.astype(expected.dtype))
        u, after = nearest_safe(self.problem, self.horizon, state, wish)
        return (memory, after, u), u.astype(x.dtype)


@partial(jit_by_function, static_argnames="horizon")
def nearest_safe(
    problem: Problem, horizon: int, x: Float[Array, "*loops n"], u: Float[Array, "*loops m"]
) -> tuple[Float[Array, "*loops m"], Float[Array, "*loops n"]]:
    """The input nearest to u that plants at x can follow up within the problem's limits, and where it leads."""
    dtype, m = problem.A.dtype, problem.m

    def widened(a: Array) -> Array:
        return expand_batch(a, x.ndim + 1, 2)

    A, B, Q, _, N = map(widened, problem.sampled)
    given = problem.limits or Limits()
    limits: Limits = jax.tree.map(
        widened, dataclasses.replace(given, u=tuple(a[..., None, :] for a in limits_of(problem)))
    )
    assert limits.u is not None
    low, high = limits.u
    span = jnp.where(jnp.isfinite(high - low), high - low, 1.0)[..., 0, :]
    wanted = jnp.clip(u.astype(dtype), low[..., 0, :], high[..., 0, :])
    first = (jnp.arange(horizon) == 0).astype(dtype).reshape(*(1,) * (span.ndim - 1), horizon, 1)
    weight = jnp.where(first > 0, 1.0, _SLIGHT) / span[..., None, :] ** 2  # of the first input's change
    Q, N = (0 * a[..., None, :, :] for a in (Q, N))
    R = jnp.where(jnp.eye(m, dtype=bool), weight[..., None], 0)
    C, D = (None if a is None else a[..., None, :, :] for a in (limits.C, limits.D))
    r = -first * weight * wanted[..., None, :]
    program = Horizon(A[..., None, :, :], B[..., None, :, :], Q, R, N, x, Q[..., 0, :, :], r=r, C=C, D=D)
    plan, _ = solved_from(None, program, dataclasses.replace(limits, C=None, D=None), horizon)
    return plan.us[..., 0, :], plan.xs[..., 1, :]


def filtered(controller: object, problem: Problem, *, horizon: int = 10) -> FilteredPolicy:
    """A safety filter: any controller, with the least change of its inputs that keeps the problem's limits.

    Args:
        controller: of any kind that :func:`bind` takes.
        problem: the plants, with limits of inputs and states; its linear, sampled model looks ahead.
        horizon: steps that are looked ahead; more of them see a limit earlier, and brake more gently.

    Source: K. P. Wabersich and M. N. Zeilinger, Automatica 129 (2021), for the idea: a plan that proves each input.

    >>> limits = simulation.Limits(u=(-9.0, 9.0), x=([-0.1, -9.0], [0.1, 9.0]))
    >>> problem = simulation.Problem.of(systems.make("pendulum"), limits=limits, linear=True)
    >>> safe = predictive.filtered([[-40.0, 0.0]], problem)  # it pushes out
    >>> run = simulation.rollout(problem, safe, jnp.array([0.05, 0.0]), 100)
    >>> bool(jnp.abs(run.xs[:, 0]).max() < 0.1 + 1e-6)
    True
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    T = checks.whole("horizon", horizon, high=constrained.MOST_STEPS)
    if problem.limits is not None and problem.limits.du is not None:
        raise ValueError("limits.du: a safety filter does not know the input before; leave limits of changes out")
    if problem.limits is not None:
        problem.limits.checked(problem.n, problem.m, problem.A.dtype, T)  # as many rows as steps
    return FilteredPolicy(bind(controller, problem), problem, T)


@pytree
@dataclasses.dataclass(frozen=True)
class SwitchingPolicy:
    """One policy until xᵀPx ≤ level, then another: a swing-up and its regulator.

    Attributes:
        first, then: the two policies; both see every state, so either may remember.
        level: :func:`lqrlab.control.unsaturated_level` is one choice.
    """

    first: Policy
    then: Policy
    P: Float[Array, "*batch n n"]
    level: Float[Array, "*batch"]

    def inside(self, x: Array) -> Array:
        """True where the second policy takes over at x ``[*batch, *extra, n]``: ``[*batch, *extra]``."""
        level = expand_batch(jnp.asarray(self.level, x.dtype), x.ndim - 1, 0)
        return level >= quadratic(self.P.astype(x.dtype), x)

    def init(self, batch_shape: tuple[int, ...]) -> tuple[PyTree, PyTree, Array]:
        """Initial memory of both policies; not yet switched."""
        return self.first.init(batch_shape), self.then.init(batch_shape), jnp.zeros(batch_shape, bool)

    @one_program
    def __call__(self, carry: tuple[PyTree, PyTree, Array], x: Array) -> tuple[tuple[PyTree, PyTree, Array], Array]:
        """The input of whichever is in charge; once handed over it stays so."""
        before, after, caught = carry
        caught = caught | self.inside(x)
        before, swing = self.first(before, x)
        after, catch = self.then(after, x)
        return (before, after, caught), jnp.where(caught[..., None], catch, swing)
