"""Iterative LQR: trajectories of nonlinear plants whose inputs have limits, and the gains that follow them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import broadcast, jit_by_function, linalg, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.extensions.predictive.trajectory.arguments import as_arrays, as_pytree
from lqrlab.extensions.predictive.trajectory.search import Iterate, search_within, searched, solve_free, started
from lqrlab.extensions.predictive.trajectory.sensitivity import free_inputs, moved
from lqrlab.extensions.predictive.trajectory.state_limits import StateLimits
from lqrlab.extensions.predictive.trajectory.trajectory_problem import TrajectoryProblem
from lqrlab.simulation import Limits, Policy, Problem, bind, tracking
from lqrlab.simulation.limits import Pair


@pytree
@dataclasses.dataclass(frozen=True)
class ILQR:
    """A locally optimal trajectory; u = us[t] − K[t] (x − xs[t]) follows it.

    Attributes:
        ts: the T+1 times [s].
        xs: states at these times, absolute.
        us: inputs of the T steps, absolute, within the limits.
        K: gains; an input at its limit has a row of zeros.
        P: the cost to go near the trajectory is quadratic with these matrices.
        cost: ∫ xᵀQx + uᵀRu dt + the terminal cost, of deviations from the goal.
        converged: whether the decrease of the cost expected of a full step is within the tolerance, relative, and
            limits of the states, if there are some, are kept.
        iterations: steps that were tried.
        violation: by how much each state leaves its limits at most, in its unit; 0 within them.
    """

    ts: Float[Array, "*batch points"]
    xs: Float[Array, "*batch points n"]
    us: Float[Array, "*batch T m"]
    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch points n n"]
    cost: Float[Array, "*batch"]
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]
    violation: Float[Array, "*batch n"]
    absolute: ClassVar[bool] = True


@bind.register
def _policy(plan: ILQR, problem: Problem) -> Policy:
    return tracking(problem, plan)


class Search(NamedTuple):
    """Settings of the search of :func:`ilqr`.

    Attributes:
        us: first guess of the inputs ``[..., T, m]``; the goal's input if left out.
        tolerance: relative decrease of the cost below which the search has converged; 1e-8 in float64, 1e-6 in
            float32. A loose one takes a plateau on the way for the end.
        max_iterations: after so many it stops, not converged; with limits of states each of at most 15 searches does.
        substeps: Runge-Kutta steps in a sample time.
    """

    us: ArrayLike | None = None
    tolerance: float | None = None
    max_iterations: int = 500
    substeps: int = 2


def ilqr(
    f: Callable[[Array, Array], Array],
    x0: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None = None,
    *,
    dt: ArrayLike,
    goal: Pair | None = None,
    limits: Limits | Pair | None = None,
    search: Search | None = None,
) -> ILQR:
    """Minimise ∫ eᵀQe + vᵀRv dt + e(T)ᵀQf e(T) for ẋ = f(x, u), u held for dt at a time, within limits.

    e = x − x_goal and v = u − u_goal; plant and cost are integrated by Runge-Kutta 4, as by
    :func:`lqrlab.simulation.rollout`. The optimum is a local one, which depends on the first guess. Forward and reverse
    derivatives (not with limits of states) are those of the optimum, by the implicit function theorem, in all arrays
    and the plant's parameters; as good as the optimum is: take a small ``tolerance``.

    Args:
        f: ẋ [n] of x [n] and u [m], written with ``jax.numpy``. A method of a pytree, such as
            ``plant.dynamics``, is compiled once for all parameters; so is a function defined once.
        x0: initial state ``[..., n]``, absolute.
        Q, R: weights ``[..., n, n]`` ≥ 0 and ``[..., m, m]`` > 0.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; zero if left out. A regulator's P is the cost after the horizon.
        dt: sample time [s], scalar or with the leading axes.
        goal: ``(x [..., n], u [..., m])``; the origin if left out.
        limits: of inputs and states, absolute; a pair is of the inputs. Those of states are kept to a millionth (in
            float32 a thousandth) of how far each state moves without them.
        search: :class:`Search`: first guess, tolerance, most iterations, Runge-Kutta steps.

    Returns:
        :class:`ILQR`; leading axes broadcast. Look at ``converged``, and with limits of states at ``violation``.

    Raises:
        ValueError: bad arguments, or (a single problem, outside a trace) a first guess along which the plant
            diverges. In a batch or a trace such members are not finite and have ``converged=False``.

    Source: Y. Tassa, N. Mansard and E. Todorov, Control-limited differential dynamic programming, ICRA 2014, with
    Gauss-Newton Hessians (iLQR); damping as in Y. Tassa, T. Erez and E. Todorov, Synthesis and stabilization of
    complex behaviors through online trajectory optimization, IROS 2012, but of the inputs, in units of R. Limits on
    states are kept by an augmented Lagrangian, as in T. A. Howell, B. E. Jackson and Z. Manchester, ALTRO, IROS 2019.
    """
    us, tolerance, max_iterations, substeps = search or Search()
    whole("num_steps", num_steps)
    whole("substeps", substeps)
    within = limits if isinstance(limits, Limits) else Limits(u=limits)
    args, inside = as_arrays(x0, Q, R, num_steps, Qf, dt, goal, within, us)
    dtype = args[0].dtype
    small = tolerance if tolerance is not None else 1e-8 if dtype == jnp.float64 else 1e-6
    dynamics = as_pytree(f, args[2].shape[-1], args[3].shape[-1], dtype)
    plan = _solve(dynamics, args, inside, jnp.asarray(small, dtype), jnp.asarray(max_iterations), substeps)
    if not traced(plan.cost) and plan.cost.ndim == 0 and not bool(jnp.isfinite(plan.cost)):
        raise ValueError(
            f"us: along the first guess of the inputs the plant diverges within {num_steps} steps; start from "
            "inputs that keep it bounded, or with a shorter horizon"
        )
    return plan


@partial(jit_by_function, static_argnames=("substeps",))
def _solve(
    f: Partial,
    args: tuple[Array, ...],
    inside: tuple[Array, Array] | None,
    tolerance: Array,
    max_iterations: Array,
    substeps: int,
) -> ILQR:
    def one(x0: Array, us: Array, *rest: Array | None) -> ILQR:
        problem, x_limits = rest[:-2], None if inside is None else rest[-2:]
        return _optimum(substeps, f, problem, x0, us, tolerance, max_iterations, x_limits)

    return broadcast(one, *zip((*args, *(inside or (None, None))), (1, 2, 2, 2, 2, 1, 1, 1, 1, 0, 1, 1)))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _optimum(
    substeps: int,
    f: Partial,
    problem: tuple[Array, ...],
    x0: Array,
    us: Array,
    tolerance: Array,
    most: Array,
    x_limits: tuple[Array, Array] | None,
) -> ILQR:
    """The search; its derivative is the optimum's, not that of the steps towards it."""
    limits = None
    if x_limits is not None:
        none, one = jnp.zeros_like(x0), jnp.ones_like(x0)
        limits = StateLimits(*x_limits, jnp.zeros((2, len(us) + 1, x0.size), x0.dtype), none, one)
    return _minimised(TrajectoryProblem(f, substeps, *problem), limits, started(x0, us), tolerance, most)


def _minimised(
    problem: TrajectoryProblem, limits: StateLimits | None, start: Iterate, tolerance: Array, most: Array
) -> ILQR:
    """The best trajectory; with limits on the states, that of the last of many searches."""
    if limits is None:
        s, held = searched(problem, None, start, tolerance, most), jnp.asarray(True)
        violation = jnp.zeros_like(start.xs[0])
    else:
        s, held, violation = search_within(problem, limits, start, tolerance, most)
    converged = held & jnp.isfinite(s.cost) & (s.gain / jnp.where(s.cost > 0, s.cost, 1.0) <= tolerance)
    ts = problem.dt * jnp.arange(len(s.xs), dtype=s.xs.dtype)
    return ILQR(ts, s.xs, s.us, s.K, s.V / 2, s.cost, converged, s.steps, violation)


@_optimum.defjvp
def _of_optimum(substeps: int, primals: tuple, tangents: tuple) -> tuple[ILQR, ILQR]:
    if primals[-1] is not None:
        raise ValueError(
            "limits.x: derivatives of a trajectory whose states are limited are not available; leave them out "
            "and weigh those states by Q, or take finite differences"
        )
    plan = _optimum(substeps, *primals)
    (f, arrays, x0, *_), (df, changes, dx0, *_) = primals, tangents
    problem, change = (TrajectoryProblem(g, substeps, *a) for g, a in ((f, arrays), (df, changes)))
    step = moved(problem, x0, (change, dx0), plan.xs, plan.us)
    free = free_inputs(problem, plan.us)

    def follows(f: Partial, arrays: tuple[Array, ...], xs: Array, us: Array) -> tuple[Array, ...]:
        """Times, gains, costs to go and cost of a trajectory."""
        problem = TrajectoryProblem(f, substeps, *arrays)
        K, V = _gains(problem, xs, us, free)
        cost = jnp.sum(jax.vmap(problem.step)(xs[:-1], us)[1]) + problem.final(xs[-1])
        return problem.dt * jnp.arange(len(xs), dtype=xs.dtype), K, V / 2, cost

    at = f, arrays, plan.xs, plan.us
    ts, K, P, cost = jax.jvp(follows, at, (df, changes, *step))[1]
    none = np.zeros((), jax.dtypes.float0)
    return plan, ILQR(ts, *step, K, P, cost, none, none, jnp.zeros_like(x0))  # type: ignore[arg-type]


def _gains(problem: TrajectoryProblem, xs: Array, us: Array, free: Array) -> tuple[Array, Array]:
    """K and V of :func:`~lqrlab.predictive.trajectory.search.backward` at an optimum, its free inputs known."""
    n = xs.shape[-1]
    A, B, _, hessian = jax.vmap(problem.expand)(xs[:-1], us)

    def back(V: Array, now: tuple) -> tuple[Array, tuple[Array, Array]]:
        A, B, L, free = now
        AB = jnp.concatenate([A, B], axis=1)
        H = linalg.symmetric(L + AB.T @ V @ AB)
        K = solve_free(H[n:, n:], H[n:, :n], free)
        before = linalg.symmetric(H[:n, :n] - H[:n, n:] @ K)
        return before, (K, before)

    end = 2 * problem.Qf
    _, (K, V) = jax.lax.scan(back, end, (A, B, hessian, free), reverse=True)
    return K, jnp.concatenate([V, end[None]])
