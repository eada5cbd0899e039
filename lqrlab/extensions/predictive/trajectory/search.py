"""The search of iterative LQR: backward passes, line searches, damping, and rounds of them with limits on states."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lqrlab.compute import linalg
from lqrlab.extensions.predictive.trajectory.state_limits import StateLimits
from lqrlab.extensions.predictive.trajectory.trajectory_problem import TrajectoryProblem

_ALPHAS = 1.1 ** -(np.arange(11.0) ** 2)  # step lengths tried at once, from 1 down to 7e-5
_DAMPING = 1e-6, 1e10  # least and most; below the least there is none
_ROUNDS = 15  # searches with limits on the states, at most


class Iterate(NamedTuple):
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


def started(x0: Float[Array, " n"], us: Float[Array, "T m"]) -> Iterate:
    """The first guess: nothing to follow yet, and any cost is better than the infinite one here."""
    n, (T, m), dtype = x0.size, us.shape, x0.dtype
    zero = jnp.zeros((), dtype)
    return Iterate(
        xs=jnp.broadcast_to(x0, (T + 1, n)),
        us=us,
        cost=zero + jnp.inf,
        K=jnp.zeros((T, m, n), dtype),
        k=jnp.zeros((T, m), dtype),
        V=jnp.zeros((T + 1, n, n), dtype),
        gain=zero + jnp.inf,
        damping=zero,
        factor=zero + 1,
        done=jnp.asarray(False),
        steps=jnp.asarray(-1),
    )


def search_within(
    problem: TrajectoryProblem, limits: StateLimits, start: Iterate, tolerance: Array, most: Array
) -> tuple[Iterate, Array, Array]:
    """Searches with ever better multipliers: the first without any, which shows the sizes; the second from the first
    guess again, for a bang-bang optimum outside the limits holds on to itself; each other from the one before it.

    Returns:
        The last iterate, with all steps and the cost of the trajectory alone; whether it keeps the limits; by how
        much it does not.
    """
    within = 1e-6 if start.xs.dtype == jnp.float64 else 1e-3

    def again(state: tuple) -> tuple:
        s, limits, before, rounds, steps, _ = state
        # the gains follow the last trajectory, whose cost has changed with the multipliers
        last = start._replace(xs=s.xs, us=s.us, K=s.K, V=s.V)
        begin = jax.tree.map(partial(jnp.where, rounds < 2), start, last)
        s = searched(problem, limits, begin, tolerance, most)
        gap = limits.gap(s.xs)
        held = limits.held(gap, within)
        done = held | ~jnp.isfinite(s.cost) | (rounds + 1 >= _ROUNDS)
        return s, limits.tightened(s.xs, s.cost, before), gap, rounds + 1, steps + s.steps, (done, held)

    no, none = jnp.asarray(False), jnp.asarray(0)
    first = start, limits, jnp.full_like(limits.low, jnp.inf), none, none, (no, no)
    s, _, _, _, steps, (_, held) = jax.lax.while_loop(lambda state: ~state[-1][0], again, first)
    cost = jnp.sum(jax.vmap(problem.step)(s.xs[:-1], s.us)[1]) + problem.final(s.xs[-1])
    violation = jnp.maximum(jnp.max(limits.excess(s.xs), axis=(0, 1)), 0.0)
    return s._replace(cost=cost, steps=steps), held, violation


def searched(
    problem: TrajectoryProblem, limits: StateLimits | None, start: Iterate, tolerance: Array, most: Array
) -> Iterate:
    """Steps of a line search along (K, k), followed by a backward pass, until the expected gain is small."""

    def improve(s: Iterate) -> Iterate:
        xs, us, cost, better = _line_search(problem, limits, s)
        damping, factor = _next_damping(s, better | ((s.gain <= tolerance * s.cost) & (s.damping > 0)))
        failed = (damping > _DAMPING[1]) | ~jnp.isfinite(cost)
        last = failed | (s.steps + 1 >= most)
        damping = jnp.where(last, 0.0, damping)
        K, k, V, gain = backward(problem, limits, xs, us, damping)
        done = last | ((gain <= tolerance * cost) & (damping == 0))
        return Iterate(xs, us, cost, K, k, V, gain, damping, factor, done, s.steps + 1)

    return jax.lax.while_loop(lambda s: ~s.done, improve, start)


def _line_search(
    problem: TrajectoryProblem, limits: StateLimits | None, s: Iterate
) -> tuple[Array, Array, Array, Array]:
    """States, inputs and cost of the best step length, and whether it lowers the cost: the old ones if not."""
    xs, us, costs = jax.vmap(lambda a: _forward(problem, s, a))(jnp.asarray(_ALPHAS, s.xs.dtype))
    costs = costs if limits is None else costs + jax.vmap(limits.cost)(xs)
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
    best = jnp.argmin(costs)
    better = costs[best] < s.cost
    xs, us, cost = (jnp.where(better, new[best], old) for new, old in zip((xs, us, costs), s))
    return xs, us, cost, better


def _next_damping(s: Iterate, easier: Array) -> tuple[Array, Array]:
    """Damping and its factor: they change the faster the longer they go one way; Tassa et al. (2012), section II-F."""
    least = _DAMPING[0]
    factor = jnp.where(easier, jnp.minimum(0.5, s.factor / 2), jnp.maximum(2.0, s.factor * 2))
    damping = s.damping * factor
    lower = jnp.where(damping < least, 0.0, damping)
    return jnp.where(easier, lower, jnp.maximum(damping, least)), factor


def _forward(problem: TrajectoryProblem, s: Iterate, alpha: Array) -> tuple[Array, Array, Array]:
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


def backward(
    problem: TrajectoryProblem, limits: StateLimits | None, xs: Array, us: Array, damping: Array
) -> tuple[Array, Array, Array, Array]:
    """K, k, the Hessians V of the cost to go, and by how much a full step should lower the cost.

    With the gradient q and the Hessian H of stage cost plus cost to go in (x, u), k minimises ½ kᵀHuu k + quᵀk
    within the limits, and K = Huu⁻¹ Hux among the inputs that are free there. ``damping`` adds to Huu, in units of
    the weight R, so that inputs move less.
    """
    n = xs.shape[-1]
    A, B, gradient, hessian = jax.vmap(problem.expand)(xs[:-1], us)
    last = 2 * problem.Qf @ (xs[-1] - problem.x_goal), 2 * problem.Qf
    if limits is not None:
        slope, curvature = limits.expand(xs)
        gradient = gradient.at[:, :n].add(slope[:-1])
        hessian = hessian.at[:, :n, :n].add(curvature[:-1])
        last = last[0] + slope[-1], last[1] + curvature[-1]

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

    end = *last, jnp.zeros((), xs.dtype)
    (_, _, gain), (K, k, V) = jax.lax.scan(back, end, (A, B, gradient, hessian, us), reverse=True)
    return K, k, jnp.concatenate([V, last[1][None]]), gain


def box_qp(
    H: Float[Array, "m m"], g: Float[Array, " m"], low: Float[Array, " m"], high: Float[Array, " m"]
) -> tuple[Float[Array, " m"], Bool[Array, " m"]]:
    """Minimise ½ uᵀHu + gᵀu over low ≤ u ≤ high, for H > 0, by projected Newton steps.

    Returns:
        u, and which inputs are free (not held at a limit).

    Source: Y. Tassa, N. Mansard and E. Todorov, Control-limited differential dynamic programming, ICRA 2014,
    section IV-A.
    """

    def slope_and_free(u: Array) -> tuple[Array, Array]:
        slope = g + H @ u
        return slope, ~(((u <= low) & (slope > 0)) | ((u >= high) & (slope < 0)))

    def value(u: Array) -> Array:
        return u @ (H @ u) / 2 + g @ u

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, _, count = state
        slope, free = slope_and_free(u)
        newton = -solve_free(H, jnp.where(free, slope, 0.0), free)
        lengths = jnp.asarray(0.5 ** np.arange(8), u.dtype)
        tried = jax.vmap(lambda a: jnp.clip(u + a * newton, low, high))(lengths)
        values = jax.vmap(value)(tried)
        best = jnp.argmin(values)
        better = values[best] < value(u)
        return jnp.where(better, tried[best], u), better, count + 1

    start = jnp.clip(-solve_free(H, g, jnp.ones(g.shape, bool)), low, high)
    u, *_ = jax.lax.while_loop(lambda s: s[1] & (s[2] < 10 * g.size), step, (start, jnp.asarray(True), jnp.asarray(0)))
    return u, slope_and_free(u)[1]


def solve_free(H: Float[Array, "m m"], b: Float[Array, "m ..."], free: Bool[Array, " m"]) -> Float[Array, "m ..."]:
    """H⁻¹ b among the free inputs, zero elsewhere."""
    both = free[:, None] & free[None]
    keep = free.reshape(-1, *(1,) * (b.ndim - 1))
    return linalg.solve(jnp.where(both, H, jnp.eye(len(H), dtype=H.dtype)), jnp.where(keep, b, 0.0))
