"""Iterative LQR: trajectories of nonlinear plants whose inputs have limits, and the gains that follow them."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import broadcast, jit_by_function, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.control import matrix_checks
from lqrlab.extensions.predictive.trajectory_search import (
    StateLimits,
    TrajectoryProblem,
    search_within,
    searched,
    started,
)
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
        substeps: Runge-Kutta steps in a sample time; ``Problem.of(plant).substeps`` is enough.
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

    e = x − x_goal and v = u − u_goal; Runge-Kutta 4, as by :func:`lqrlab.simulation.rollout`. The optimum is a local
    one, which depends on the first guess; it has no derivatives.

    Args:
        f: ẋ [n] of x [n] and u [m] in ``jax.numpy``; a method of a pytree is compiled once for all parameters.
        x0: initial state ``[..., n]``, absolute.
        Q, R: weights ``[..., n, n]`` ≥ 0 and ``[..., m, m]`` > 0.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; zero if left out. A regulator's P is the cost after the horizon.
        dt: sample time [s], scalar or with the leading axes.
        goal: ``(x [..., n], u [..., m])``; the origin if left out.
        limits: of inputs and states, absolute; a pair is of the inputs. Those of states are kept to a millionth (in
            float32 a thousandth) of how far each state moves without them.
        search: :class:`Search`: first guess, tolerance, most iterations, Runge-Kutta steps.

    Leading axes broadcast. Look at ``converged``, and with limits of states at ``violation``. A single first guess
    along which the plant diverges is refused; in a batch or a trace such members are not finite.

    Source: Y. Tassa, N. Mansard and E. Todorov, ICRA 2014; Y. Tassa, T. Erez and E. Todorov, IROS 2012 (damping, here
    of the inputs); T. A. Howell, B. E. Jackson and Z. Manchester, ALTRO, IROS 2019 (limits on states).
    """
    us, tolerance, max_iterations, substeps = search or Search()
    whole("num_steps", num_steps)
    whole("substeps", substeps)
    within = limits if isinstance(limits, Limits) else Limits(u=limits)
    args, inside = _as_arrays(x0, Q, R, num_steps, Qf, dt, goal, within, us)
    dtype = args[0].dtype
    small = tolerance if tolerance is not None else 1e-8 if dtype == jnp.float64 else 1e-6
    dynamics = _as_pytree(f, args[2].shape[-1], args[3].shape[-1], dtype)
    plan = _solve(dynamics, args, inside, jnp.asarray(small, dtype), jnp.asarray(max_iterations), substeps)
    if not traced(plan.cost) and plan.cost.ndim == 0 and not bool(jnp.isfinite(plan.cost)):
        raise ValueError(
            f"us: along the first guess of the inputs the plant diverges within {num_steps} steps; start from "
            "inputs that keep it bounded, or with a shorter horizon"
        )
    if not traced(plan.K) and plan.cost.ndim == 0 and not np.isfinite(plan.K).all():
        raise ValueError(
            "f: its derivative along the first guess of the inputs is not a finite number, as that of norm(v) or "
            "sqrt(v) where v is zero; write jnp.abs(v) of a number, jnp.sqrt(v @ v + 1e-12) of a vector"
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
    """The best trajectory; with limits on the states, that of the last of many searches."""
    given, start = TrajectoryProblem._make((f, substeps, *problem, None)), started(x0, us)
    given = given._replace(held=given.sampled())
    if x_limits is None:
        s, held = searched(given, None, start, tolerance, most), jnp.asarray(True)
        violation = jnp.zeros_like(x0)
    else:
        none, one = jnp.zeros_like(x0), jnp.ones_like(x0)
        limits = StateLimits(*x_limits, jnp.zeros((2, len(us) + 1, x0.size), x0.dtype), none, one)
        s, held, violation = search_within(given, limits, start, tolerance, most)
    converged = held & jnp.isfinite(s.cost) & (s.gain / jnp.where(s.cost > 0, s.cost, 1.0) <= tolerance)
    ts = given.dt * jnp.arange(len(s.xs), dtype=s.xs.dtype)
    return ILQR(ts, s.xs, s.us, s.K, s.V / 2, s.cost, converged, s.steps, violation)


@_optimum.defjvp
def _no_derivative(substeps: int, primals: tuple, tangents: tuple) -> tuple[ILQR, ILQR]:
    raise ValueError(
        "ilqr: expected no derivative, for those of the steps of its search are not the optimum's; take finite "
        "differences, or with a linear plant predictive.constrained_lqr, which is differentiable"
    )


# Arguments -----------------------------------------------------------------------------------------------------------


def _as_pytree(f: Callable[[Array, Array], Array], n: int, m: int, dtype: np.dtype) -> Partial:
    """f as data of a compiled function, so that the fields of a method's instance are not constants of the program."""
    if not callable(f):
        raise TypeError(f"f: expected a function of x and u, but found {f!r}")
    if inspect.ismethod(f) and not jax.tree_util.all_leaves([f.__self__]):
        f = Partial(f.__func__, f.__self__)
    try:
        out = jax.eval_shape(f, *(jax.ShapeDtypeStruct((size,), dtype) for size in (n, m)))
    except Exception as error:
        why = f"fails on a state [{n}] and an input [{m}] with {type(error).__name__}: {error}"
        raise ValueError(f"f: {why}; write it with jax.numpy instead of numpy or math") from error
    if getattr(out, "shape", None) != (n,):
        raise ValueError(f"f: expected ẋ of shape ({n},), but found {out}")
    return f if isinstance(f, Partial) else Partial(f)


def _as_arrays(
    x0: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None,
    dt: ArrayLike,
    goal: Pair | None,
    limits: Limits,
    us: ArrayLike | None,
) -> tuple[tuple[Array, ...], tuple[Array, Array] | None]:
    """x0, first guess, Q, R, Qf, goal, limits, dt, and limits of the states as arrays of one type; or a refusal."""
    given = [jnp.asarray(matrix_checks.real(*pair)) for pair in (("x0", x0), ("Q", Q), ("R", R))]
    dtype = matrix_checks.floating(*given)
    x0, Q, R = (a.astype(dtype) for a in given)
    matrix_checks.shapes({"Q": Q, "R": R}, {"Q": "nn", "R": "mm"})
    n, m = Q.shape[-1], R.shape[-1]
    _, _, Q, R, _ = matrix_checks.arguments(jnp.zeros((n, n), dtype), jnp.zeros((n, m), dtype), Q, R, None)
    step = matrix_checks.sample_time(dt, dtype)
    Qf = matrix_checks.terminal_weight(Qf, Q, jnp.zeros_like(Q))
    x_goal, u_goal = goal or (jnp.zeros(n), jnp.zeros(m))
    x0 = matrix_checks.trailing("x0", x0, (n,), dtype)
    x_goal = matrix_checks.trailing("goal", x_goal, (n,), dtype)
    u_goal = matrix_checks.trailing("goal's input", u_goal, (m,), dtype)
    if us is None:
        us = jnp.broadcast_to(u_goal[..., None, :], (*u_goal.shape[:-1], num_steps, m))
    us = matrix_checks.trailing("us", us, (num_steps, m), dtype)
    if others := set(limits.signals()) - {"u", "x"}:
        raise ValueError(f"limits: expected those of inputs and states, but found {', '.join(sorted(others))} too")
    ends = {name: tuple(a[..., 0, :] for a in pair) for name, pair in limits.checked(n, m, dtype, 1).signals().items()}
    low, high = ends.get("u", (jnp.full(m, -jnp.inf, dtype), jnp.full(m, jnp.inf, dtype)))
    inside: tuple[Array, Array] | None = ends.get("x")
    if inside is not None and not traced(x0, *inside):
        start, *edges = np.broadcast_arrays(x0, *inside)
        out = np.argwhere((start < edges[0]) | (start > edges[1]))
        if len(out):
            i = tuple(out[0])
            raise ValueError(
                f"x0: state {i[-1]} starts at {start[i]:g}, outside its limits from {edges[0][i]:g} to "
                f"{edges[1][i]:g}, and no input can change where it starts; move x0 or widen limits.x"
            )
    return (x0, us, Q, R, Qf, x_goal, u_goal, low, high, step), inside
