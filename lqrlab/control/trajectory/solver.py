"""Iterative LQR: trajectories of nonlinear plants whose inputs have limits, and the gains that follow them."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from lqrlab.compute import broadcast, jit_by_function, linalg, pytree
from lqrlab.compute.checks import traced, whole
from lqrlab.control import checks
from lqrlab.control.trajectory.box_qp import box_qp, solve_free
from lqrlab.control.trajectory.problem import TrajectoryProblem
from lqrlab.control.trajectory.sensitivity import free_inputs, moved

_ALPHAS = 1.1 ** -(np.arange(11.0) ** 2)  # step lengths tried at once, from 1 down to 7e-5
_DAMPING = 1e-6, 1e10  # least and most; below the least there is none


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
        converged: whether the decrease of the cost expected of a full step is within the tolerance, relative.
        iterations: steps that were tried.
    """

    ts: Float[Array, "*batch points"]
    xs: Float[Array, "*batch points n"]
    us: Float[Array, "*batch T m"]
    K: Float[Array, "*batch T m n"]
    P: Float[Array, "*batch points n n"]
    cost: Float[Array, "*batch"]
    converged: Bool[Array, "*batch"]
    iterations: Int[Array, "*batch"]


def ilqr(
    f: Callable[[Array, Array], Array], x0: ArrayLike, Q: ArrayLike, R: ArrayLike, num_steps: int,
    Qf: ArrayLike | None = None, *,
    dt: ArrayLike,
    goal: tuple[ArrayLike, ArrayLike] | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    us: ArrayLike | None = None,
    substeps: int = 2,
    tolerance: float | None = None,
    max_iterations: int = 500,
) -> ILQR:  # fmt: skip
    """Minimise ∫ eᵀQe + vᵀRv dt + e(T)ᵀQf e(T) for ẋ = f(x, u), u held for dt at a time, within limits.

    e = x − x_goal and v = u − u_goal. The plant is integrated by Runge-Kutta 4 and the cost by the same rule, so
    ``cost`` is that of :func:`lqrlab.simulation.rollout` for the same inputs. The optimum is a local one: which
    depends on the first guess ``us``; several may be tried along a leading axis.

    Forward and reverse derivatives are those of the optimum, by the implicit function theorem, in x0, the weights, dt,
    goal, limits and the parameters of the plant; they are as good as the optimum is: take a small ``tolerance``.

    Args:
        f: ẋ [n] of x [n] and u [m], written with ``jax.numpy``. A method of a pytree, such as
            ``plant.dynamics``, is compiled once for all parameters; so is a function defined once.
        x0: initial state ``[..., n]``, absolute.
        Q, R: weights ``[..., n, n]`` ≥ 0 and ``[..., m, m]`` > 0.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; zero if left out. A regulator's P there stands for the cost
            after the horizon.
        dt: sample time [s], scalar or with the leading axes.
        goal: ``(x [..., n], u [..., m])``; the origin if left out.
        limits: ``(low, high)`` of the inputs, each a scalar or ``[..., m]``; none if left out.
        us: first guess of the inputs ``[..., T, m]``; the goal's input if left out.
        substeps: Runge-Kutta steps in a sample time.
        tolerance: relative decrease of the cost below which the search has converged; 1e-8 in float64, 1e-6 in
            float32. A loose one takes a plateau on the way for the end.
        max_iterations: after so many it stops, not converged.

    Returns:
        :class:`ILQR`; leading axes broadcast. Look at ``converged``.

    Raises:
        ValueError: bad arguments, or (a single problem, outside a trace) a first guess along which the plant
            diverges. In a batch or a trace such members carry numbers that are not finite and
            ``converged=False``.

    Source: Y. Tassa, N. Mansard and E. Todorov, Control-limited differential dynamic programming, ICRA 2014, with
    Gauss-Newton Hessians (iLQR); damping as in Y. Tassa, T. Erez and E. Todorov, Synthesis and stabilization of
    complex behaviors through online trajectory optimization, IROS 2012, but of the inputs, in units of R.
    """
    whole("num_steps", num_steps)
    whole("substeps", substeps)
    args = _arguments(x0, Q, R, num_steps, Qf, dt, goal, limits, us)
    dtype = args[0].dtype
    small = tolerance if tolerance is not None else 1e-8 if dtype == jnp.float64 else 1e-6
    dynamics = _as_pytree(f, args[2].shape[-1], args[3].shape[-1], dtype)
    plan = _solve(dynamics, args, jnp.asarray(small, dtype), jnp.asarray(max_iterations), substeps)
    if not traced(plan.cost) and plan.cost.ndim == 0 and not bool(jnp.isfinite(plan.cost)):
        raise ValueError(
            f"us: along the first guess of the inputs the plant diverges within {num_steps} steps; start from "
            "inputs that keep it bounded, or with a shorter horizon"
        )
    return plan


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


def _arguments(
    x0: ArrayLike, Q: ArrayLike, R: ArrayLike, num_steps: int, Qf: ArrayLike | None, dt: ArrayLike,
    goal: tuple[ArrayLike, ArrayLike] | None, limits: tuple[ArrayLike, ArrayLike] | None, us: ArrayLike | None,
) -> tuple[Array, ...]:  # fmt: skip
    """x0, first guess, Q, R, Qf, goal, limits and dt as arrays of one type; or a refusal."""
    given = [jnp.asarray(checks.real(*pair)) for pair in (("x0", x0), ("Q", Q), ("R", R))]
    dtype = checks.floating(*given)
    x0, Q, R = (a.astype(dtype) for a in given)
    checks.shapes({"Q": Q, "R": R}, {"Q": "nn", "R": "mm"})
    n, m = Q.shape[-1], R.shape[-1]
    _, _, Q, R, _ = checks.arguments(jnp.zeros((n, n), dtype), jnp.zeros((n, m), dtype), Q, R, None)
    step = checks.sample_time(dt, dtype)
    Qf = jnp.zeros_like(Q) if Qf is None else jnp.asarray(checks.real("Qf", Qf), dtype)
    x_goal, u_goal = (
        jnp.asarray(checks.real("goal", a), dtype) for a in goal or (jnp.zeros(n), jnp.zeros(m))
    )
    low, high = (jnp.asarray(checks.real("limits", a), dtype) for a in limits or (-jnp.inf, jnp.inf))
    low, high = (jnp.broadcast_to(a, jnp.broadcast_shapes(a.shape, (m,))) for a in (low, high))
    if us is None:
        us = jnp.broadcast_to(u_goal[..., None, :], (*u_goal.shape[:-1], num_steps, m))
    us = jnp.asarray(checks.real("us", us), dtype)
    shapes = {
        "x0": (x0, (n,)), "Qf": (Qf, (n, n)), "us": (us, (num_steps, m)), "goal": (x_goal, (n,)),
        "goal's input": (u_goal, (m,)),
    }  # fmt: skip
    for name, (a, shape) in shapes.items():
        if a.shape[max(a.ndim - len(shape), 0) :] != shape:
            raise ValueError(f"{name}: expected shape {('…', *shape)}, but found {a.shape}")
    checks.weight("Qf", Qf)
    if not traced(low, high) and not bool(jnp.all(low <= high)):
        raise ValueError(f"limits: expected low ≤ high, but found {limits}")
    return x0, us, Q, R, Qf, x_goal, u_goal, low, high, step


@partial(jit_by_function, static_argnames=("substeps",))
def _solve(
    f: Partial, args: tuple[Array, ...], tolerance: Array, max_iterations: Array, substeps: int
) -> ILQR:
    def one(x0: Array, us: Array, *problem: Array) -> ILQR:
        return _optimum(substeps, f, problem, x0, us, tolerance, max_iterations)

    return broadcast(one, *zip(args, (1, 2, 2, 2, 2, 1, 1, 1, 1, 0)))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _optimum(
    substeps: int, f: Partial, problem: tuple[Array, ...], x0: Array, us: Array, tolerance: Array, most: Array
) -> ILQR:
    """The search; its derivative is the optimum's, not that of the steps towards it."""
    return _minimised(TrajectoryProblem(f, substeps, *problem), x0, us, tolerance, most)


@_optimum.defjvp
def _of_optimum(substeps: int, primals: tuple, tangents: tuple) -> tuple[ILQR, ILQR]:
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
    return plan, ILQR(ts, *step, K, P, cost, none, none)  # type: ignore[arg-type]


def _gains(problem: TrajectoryProblem, xs: Array, us: Array, free: Array) -> tuple[Array, Array]:
    """K and V of :func:`_backward` at an optimum, with the inputs that are free there known."""
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


class _Iterate(NamedTuple):
    """The best trajectory so far; the step from it (K, k), the cost to go ½ xᵀVx and the expected gain in cost."""

    xs: Array
    us: Array
    cost: Array
    K: Array
    k: Array
    V: Array
    gain: Array
    damping: Array
    factor: Array
    done: Array
    steps: Array


def _minimised(
    problem: TrajectoryProblem, x0: Array, us: Array, tolerance: Array, max_iterations: Array
) -> ILQR:
    """Steps of a line search along (K, k), followed by a backward pass, until the expected gain is small."""
    n, (T, m), dtype = x0.size, us.shape, x0.dtype

    def improve(s: _Iterate) -> _Iterate:
        xs, us, cost, better = _line_search(problem, s)
        damping, factor = _next_damping(s, better | ((s.gain <= tolerance * s.cost) & (s.damping > 0)))
        failed = (damping > _DAMPING[1]) | ~jnp.isfinite(cost)
        last = failed | (s.steps + 1 >= max_iterations)
        damping = jnp.where(last, 0.0, damping)
        K, k, V, gain = _backward(problem, xs, us, damping)
        done = last | ((gain <= tolerance * cost) & (damping == 0))
        return _Iterate(xs, us, cost, K, k, V, gain, damping, factor, done, s.steps + 1)

    zero = jnp.zeros((), dtype)
    # along the first guess there is nothing to follow yet: its cost is better than the infinite one here
    start = _Iterate(
        jnp.broadcast_to(x0, (T + 1, n)), us, zero + jnp.inf,
        jnp.zeros((T, m, n), dtype), jnp.zeros((T, m), dtype), jnp.zeros((T + 1, n, n), dtype), zero + jnp.inf,
        zero, zero + 1, jnp.asarray(False), jnp.asarray(-1),
    )  # fmt: skip
    s = jax.lax.while_loop(lambda s: ~s.done, improve, start)
    converged = jnp.isfinite(s.cost) & (s.gain / jnp.where(s.cost > 0, s.cost, 1.0) <= tolerance)
    ts = problem.dt * jnp.arange(T + 1, dtype=dtype)
    return ILQR(ts, s.xs, s.us, s.K, s.V / 2, s.cost, converged, s.steps)


def _line_search(problem: TrajectoryProblem, s: _Iterate) -> tuple[Array, Array, Array, Array]:
    """States, inputs and cost of the best step length, and whether it lowers the cost: the old ones if not."""
    xs, us, costs = jax.vmap(lambda a: _forward(problem, s, a))(jnp.asarray(_ALPHAS, s.xs.dtype))
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
    best = jnp.argmin(costs)
    better = costs[best] < s.cost
    xs, us, cost = (jnp.where(better, new[best], old) for new, old in zip((xs, us, costs), s))
    return xs, us, cost, better


def _next_damping(s: _Iterate, easier: Array) -> tuple[Array, Array]:
    """Damping and its factor: they change the faster the longer they go one way; Tassa et al. (2012), section II-F."""
    least = _DAMPING[0]
    factor = jnp.where(easier, jnp.minimum(0.5, s.factor / 2), jnp.maximum(2.0, s.factor * 2))
    damping = s.damping * factor
    lower = jnp.where(damping < least, 0.0, damping)
    return jnp.where(easier, lower, jnp.maximum(damping, least)), factor


def _forward(problem: TrajectoryProblem, s: _Iterate, alpha: Array) -> tuple[Array, Array, Array]:
    """States, inputs and cost of u = us + α k − K (x − xs), clipped to the limits."""

    def step(state: tuple[Array, Array], now: tuple) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        x, cost = state
        x_ref, u_ref, K, k = now
        u = jnp.clip(u_ref + alpha * k - K @ (x - x_ref), problem.low, problem.high)
        after, paid = problem.step(x, u)
        return (after, cost + paid), (after, u)

    start = (s.xs[0], jnp.zeros((), s.xs.dtype))
    (last, cost), (after, us) = jax.lax.scan(step, start, (s.xs[:-1], s.us, s.K, s.k))
    return jnp.concatenate([s.xs[:1], after]), us, cost + problem.final(last)


def _backward(
    problem: TrajectoryProblem, xs: Array, us: Array, damping: Array
) -> tuple[Array, Array, Array, Array]:
    """K, k, the Hessians V of the cost to go, and by how much a full step should lower the cost.

    With the gradient q and the Hessian H of stage cost plus cost to go in (x, u), k minimises ½ kᵀHuu k + quᵀk
    within the limits, and K = Huu⁻¹ Hux among the inputs that are free there. ``damping`` adds to Huu, in units of
    the weight R, so that inputs move less.
    """
    n = xs.shape[-1]
    A, B, gradient, hessian = jax.vmap(problem.expand)(xs[:-1], us)

    def back(after: tuple, now: tuple) -> tuple[tuple, tuple]:
        v, V, gain = after
        A, B, l, L, u = now
        AB = jnp.concatenate([A, B], axis=1)
        q, H = l + AB.T @ v, linalg.symmetric(L + AB.T @ V @ AB)
        qu, Hux, Huu = q[n:], H[n:, :n], H[n:, n:]
        damped = Huu + damping * 2 * problem.dt * problem.R
        k, free = box_qp(damped, qu, problem.low - u, problem.high - u)
        K = solve_free(damped, Hux, free)
        before = q[:n] - K.T @ (Huu @ k + qu) + Hux.T @ k
        V = linalg.symmetric(H[:n, :n] + K.T @ Huu @ K - K.T @ Hux - Hux.T @ K)
        return (before, V, gain - qu @ k - k @ Huu @ k / 2), (K, k, V)

    end = 2 * problem.Qf @ (xs[-1] - problem.x_goal), 2 * problem.Qf, jnp.zeros((), xs.dtype)
    (_, _, gain), (K, k, V) = jax.lax.scan(back, end, (A, B, gradient, hessian, us), reverse=True)
    return K, k, jnp.concatenate([V, 2 * problem.Qf[None]]), gain
