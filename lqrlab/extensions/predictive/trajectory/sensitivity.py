"""Sensitivity of a locally optimal trajectory to its problem: the implicit function theorem, in one Riccati pass."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool

from lqrlab.compute import linalg
from lqrlab.extensions.predictive.trajectory.trajectory_problem import TrajectoryProblem

Point = tuple[Array, Array, Array]
"""States ``[T+1, n]``, inputs ``[T, m]`` and multipliers of the dynamics ``[T+1, n]``."""


def _lagrangian(problem: TrajectoryProblem, x0: Array, point: Point) -> Array:
    """The cost, and the multipliers times what the states are not: stationary at the optimum."""
    xs, us, ps = point
    after, costs = jax.vmap(problem.step)(xs[:-1], us)
    return jnp.sum(costs) + problem.final(xs[-1]) + jnp.sum(ps * (jnp.concatenate([x0[None], after]) - xs))


def free_inputs(problem: TrajectoryProblem, us: Array) -> Bool[Array, "T m"]:
    """True for inputs that are not held at a limit."""
    return (us > problem.low[None]) & (us < problem.high[None])


def moved(
    problem: TrajectoryProblem, x0: Array, changes: tuple[TrajectoryProblem, Array], xs: Array, us: Array
) -> tuple[Array, Array]:
    """By how much states and inputs of the optimum move with its problem and initial state, to first order.

    Inputs at a limit move with it; the others keep the gradient of the Lagrangian zero. Its Hessian is exact, that of
    the dynamics included, so the result is the derivative of the optimum and not of an approximation to it.
    """
    free = free_inputs(problem, us)
    point = xs, us, _multipliers(problem, xs, us)

    def slope(f: object, arrays: tuple[Array, ...], x0: Array, point: Point) -> Point:
        return jax.grad(_lagrangian, argnums=2)(TrajectoryProblem(f, problem.substeps, *arrays), x0, point)  # type: ignore[arg-type]

    given = problem.f, tuple(problem[2:]), x0
    change = jax.jvp(
        lambda f, arrays, x0: slope(f, arrays, x0, point), given, (changes[0].f, tuple(changes[0][2:]), changes[1])
    )[1]

    def hessian(step: Point) -> Point:
        return jax.jvp(lambda point: slope(given[0], given[1], x0, point), (point,), (step,))[1]

    # infinite limits have no sensitivity
    low, high = (jnp.broadcast_to(a, us.shape) for a in (changes[0].low, changes[0].high))
    held = jnp.where(free, 0.0, jnp.where(us >= problem.high[None], high, low))
    known = hessian((jnp.zeros_like(xs), held, jnp.zeros_like(xs)))
    x, u, p = (-a - b for a, b in zip(change, known))

    def conditions(step: Point) -> Point:
        x, u, p = hessian((step[0], jnp.where(free, step[1], 0.0), step[2]))
        return x, jnp.where(free, u, step[1]), p

    # as one vector: JAX transposes a solve only if all parts of its right-hand side depend on what is differentiated
    right, parts = ravel_pytree((x, jnp.where(free, u, 0.0), p))

    def along(function: Callable[[Point], Point]) -> Callable[[Array], Array]:
        return lambda step: ravel_pytree(function(parts(step)))[0]

    solve = along(lambda right: _newton_step(problem, point, free, right))
    step = jax.lax.custom_linear_solve(along(conditions), right, lambda _, right: solve(right), symmetric=True)
    dx, du, _ = parts(step)
    return dx, du + held


def _multipliers(problem: TrajectoryProblem, xs: Array, us: Array) -> Array:
    """The slope of the cost to go along the trajectory ``[T+1, n]``."""

    def back(after: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        slope = jax.grad(lambda x: problem.step(x, now[1])[1] + after @ problem.step(x, now[1])[0])(now[0])
        return slope, slope

    end = jax.grad(problem.final)(xs[-1])
    return jnp.concatenate([jax.lax.scan(back, end, (xs[:-1], us), reverse=True)[1], end[None]])


def _newton_step(problem: TrajectoryProblem, point: Point, free: Bool[Array, "T m"], right: Point) -> Point:
    """The step of states, inputs and multipliers that changes the Lagrangian's gradient by ``right``."""
    xs, us, ps = point
    n = xs.shape[-1]

    def stage(x: Array, u: Array, p: Array) -> tuple[Array, Array]:
        """The step's Jacobian in (x, u), and the Hessian of its cost and of p times its end."""

        def ahead(z: Array) -> tuple[Array, Array]:
            after, cost = problem.step(z[:n], z[n:])
            return after, cost + p @ after

        z = jnp.concatenate([x, u])
        return jax.jacfwd(lambda z: ahead(z)[0])(z), jax.jacfwd(jax.grad(lambda z: ahead(z)[1]))(z)

    AB, H = jax.vmap(stage)(xs[:-1], us, ps[1:])
    rx, ru, rp = right

    def back(after: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple, tuple]:
        (V, v), (AB, H, free, rx, ru, rp) = after, now
        W, w = H + AB.T @ V @ AB, AB.T @ (v - V @ rp)
        S = jnp.where(free[:, None] & free[None], W[n:, n:], jnp.eye(len(free), dtype=W.dtype))
        both = linalg.solve(
            S, jnp.where(free[:, None], jnp.concatenate([W[n:, :n], (ru - w[n:])[:, None]], axis=1), 0.0)
        )
        K, k = both[:, :-1], jnp.where(free, both[:, -1], ru)
        before = linalg.symmetric(W[:n, :n] - W[:n, n:] @ K), w[:n] - rx + W[:n, n:] @ jnp.where(free, k, 0.0)
        return before, (K, k, *before)

    end = 2 * problem.Qf, -rx[-1]
    _, (K, k, V, v) = jax.lax.scan(back, end, (AB, H, free, rx[:-1], ru, rp[1:]), reverse=True)

    def ahead(x: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        AB, K, k, free, rp = now
        u = k - K @ x
        return AB @ jnp.concatenate([x, jnp.where(free, u, 0.0)]) - rp, (x, u)

    last, (dx, du) = jax.lax.scan(ahead, -rp[0], (AB, K, k, free, rp[1:]))
    dx = jnp.concatenate([dx, last[None]])
    V, v = jnp.concatenate([V, end[0][None]]), jnp.concatenate([v, end[1][None]])
    return dx, du, jnp.einsum("tij,tj->ti", V, dx) + v
