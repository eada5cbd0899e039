"""Model predictive control of nonlinear plants: a quadratic program about the last plan, solved at each sample."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import expand_batch, matvec
from lqrlab.control import matrix_checks
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive.finite_horizon import Horizon, solved_from
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet, none_active
from lqrlab.simulation import Limits, Problem


class NonlinearPlan(NamedTuple):
    """States and inputs of a plan, deviations from the equilibrium, and its active limits."""

    xs: Float[Array, "*loops T+1 n"]
    us: Float[Array, "*loops T m"]
    active: ActiveSet


@pytree
@dataclasses.dataclass(frozen=True)
class NonlinearMPC:
    """The first input of a plan with the plant's nonlinear equations, warm-started from the plan before.

    An iteration linearises the sampled plant along the plan, expands the cost about it and solves the quadratic program
    of all that: sequential quadratic programming, whole steps, in multiple shooting. Where it has converged, the plan
    is a local optimum of the horizon within the limits. On a linear problem one iteration is exact.

    Attributes:
        problem: the plants, with their optimum and limits.
        Qf: terminal weight.
        soft: cost of an excess over limits of states, or None.
        horizon: samples that are planned.
        iterations: programs that are solved at each sample.

    Source: M. Diehl, H. G. Bock and J. P. Schlöder, A real-time iteration scheme for nonlinear optimization in optimal
    feedback control, SIAM J. Control Optim. 43 (2005).
    """

    problem: Problem
    Qf: Float[Array, "*batch n n"]
    soft: tuple[Array, Array] | None
    horizon: int = dataclasses.field(metadata={"static": True})
    iterations: int = dataclasses.field(metadata={"static": True})

    L: ClassVar[Array | None] = None  # the state is seen
    sensor: ClassVar[Array | None] = None
    disturbance: ClassVar[str] = "none"

    def begin(self, batch: tuple[int, ...]) -> NonlinearPlan:
        """A plan that stays at the equilibrium, no limit active: about it the first program is the linear MPC's."""
        T, n, m, dtype = self.horizon, self.problem.n, self.problem.m, self.Qf.dtype
        xs, us = (jnp.zeros((*batch, *shape), dtype) for shape in ((T + 1, n), (T, m)))
        return NonlinearPlan(xs, us, none_active(self.problem.limits or Limits(), batch, T, n, m))

    def planned(
        self, plan: NonlinearPlan, x: Array, u_last: Array, d: Array, step: Array
    ) -> tuple[NonlinearPlan, Array, Array]:
        """The plan from x on, with its inputs and states."""
        plan = self.improved(plan, x, u_last)
        return plan, plan.us, plan.xs

    @one_program
    def improved(
        self, plan: NonlinearPlan, x: Float[Array, "*loops n"], u_last: Float[Array, "*loops m"]
    ) -> NonlinearPlan:
        """The plan from x on after as many iterations as there are in a sample, its inputs within their limits."""
        problem, ndim = self.problem, x.ndim + 1
        Q, R, N = (expand_batch(a[..., None, :, :], ndim + 1, 3) for a in (problem.Q, problem.R, problem.N))
        Qf = expand_batch(self.Qf, ndim, 2)
        limits: Limits = jax.tree.map(lambda a: expand_batch(a, ndim, 2), problem.limits or Limits())
        C, D = (None if a is None else a[..., None, :, :] for a in (limits.C, limits.D))
        limits = dataclasses.replace(limits, C=None, D=None)
        last = None if limits.du is None else u_last

        def improve(_: Array, plan: NonlinearPlan) -> NonlinearPlan:
            xs, us = plan.xs[..., :-1, :].at[..., 0, :].set(x), plan.us
            A, B, after = problem.linearised(xs, us)
            c = after - matvec(A, xs[..., None, :])[..., 0, :] - matvec(B, us[..., None, :])[..., 0, :]
            # the Hessian is the linearised plant's: only the gradient decides where it converges to
            along_x, along_u = cost_gradient(problem, xs, us)
            q = along_x / 2 - matvec(problem.Q, xs) - matvec(problem.N, us)
            r = along_u / 2 - matvec(problem.R, us) - matvec(problem.N.mT, xs)
            horizon = Horizon(A, B, Q, R, N, x, Qf, c, q, r, C=C, D=D, last=last, soft=self.soft)
            found, active = solved_from(plan.active, horizon, limits, self.horizon)
            return _if_finite(NonlinearPlan(found.xs, found.us, active))

        return jax.lax.fori_loop(0, self.iterations, improve, plan)


def cost_gradient(
    problem: Problem, x: Float[Array, "*loops n"], u: Float[Array, "*loops m"]
) -> tuple[Float[Array, "*loops n"], Float[Array, "*loops m"]]:
    """The derivatives of one step's cost in x and in u, exactly; u is not saturated."""
    free = dataclasses.replace(problem, limits=None)
    return jax.grad(lambda x, u: jnp.sum(free.step(x, u)[1]), argnums=(0, 1))(x, u)


def _if_finite(plan: NonlinearPlan) -> NonlinearPlan:
    """The plan, or where its cost is no number one that stays at the equilibrium, from which the next begins anew."""
    good: Bool[Array, "*loops"] = jnp.all(jnp.isfinite(plan.xs**2), (-2, -1)) & jnp.all(jnp.isfinite(plan.us), (-2, -1))
    xs, us = (jnp.where(good[..., None, None], a, 0) for a in (plan.xs, plan.us))
    return plan._replace(xs=xs, us=us)


def nonlinear_mpc(
    problem: Problem,
    horizon: int = 20,
    *,
    iterations: int = 1,
    soft: tuple[ArrayLike, ArrayLike] | None = None,
    Qf: ArrayLike | None = None,
) -> NonlinearMPC:
    """A nonlinear model predictive controller: plans with the plants' own equations, within the problem's limits.

    Where nothing is feasible, inputs stay within their limits and states violate theirs least, of the linearised plant.

    Args:
        problem, horizon, soft, Qf: as of :func:`lqrlab.predictive.mpc`.
        iterations: programs at each sample. One is the real-time iteration, whose plans converge while the loop moves:
            far from the equilibrium its first inputs are not the best, limits of states may be exceeded, and between
            two ways that cost nearly the same rounding decides (a cart-pole that swings up from −2.0 rad within ±1.5 m
            stays inside, or goes 0.1 to 0.3 m beyond). Two keep those limits; many find the optimum at each sample.

    >>> problem = simulation.Problem.of(systems.make("pendulum"), limits=(-6.0, 6.0))
    >>> run = simulation.rollout(problem, predictive.nonlinear_mpc(problem, 20), jnp.array([0.6, 0.0]), 100)
    >>> bool(jnp.abs(run.us).max() <= 6), bool(jnp.abs(run.xs[-1]).max() < 1e-2)
    (True, True)
    """
    checks.instance("problem", problem, Problem, "a problem, as simulation.Problem.of makes")
    T = checks.whole("horizon", horizon, high=constrained.MOST_STEPS)
    checks.whole("iterations", iterations)
    problem = problem if problem.P is not None or Qf is not None else problem.solved()
    dtype = problem.A.dtype
    if problem.limits is not None:
        problem.limits.checked(problem.n, problem.m, dtype, T)  # as many rows as steps
    weight = matrix_checks.terminal_weight(Qf, problem.Q, problem.Q if problem.P is None else problem.P)
    return NonlinearMPC(problem, weight, None if soft is None else constrained.prices(soft, dtype), T, iterations)
