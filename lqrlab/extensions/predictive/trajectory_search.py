"""The search of iterative LQR: backward passes, line searches, damping, and rounds of them with limits on states."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from lqrlab.compute import linalg
from lqrlab.compute.calculus import rk4
from lqrlab.compute.jaxprs import degrees
from lqrlab.control.discretization import Sampled, sample_many

_ALPHAS = 1.1 ** -(np.arange(11.0) ** 2)  # step lengths tried at once, from 1 down to 7e-5
_DAMPING = 1e-6, 1e10  # least and most; below the least there is none
_ROUNDS = 15  # searches with limits on the states, at most
_GROWTH = 10.0  # of the stiffness of limits on states that are not approached fast enough


class TrajectoryProblem(NamedTuple):
    """Minimise ∫ eᵀQe + vᵀRv dt + e(T)ᵀQf e(T) for ẋ = f(x, u), u held for dt at a time, low ≤ u ≤ high.

    e = x − x_goal and v = u − u_goal. Runge-Kutta 4 integrates state and cost; of an affine f they are exact.
    """

    f: Callable[[Array, Array], Array]
    substeps: int
    Q: Float[Array, "n n"]
    R: Float[Array, "m m"]
    Qf: Float[Array, "n n"]
    x_goal: Float[Array, " n"]
    u_goal: Float[Array, " m"]
    low: Float[Array, " m"]
    high: Float[Array, " m"]
    dt: Float[Array, ""]
    held: Sampled | None = None

    def sampled(self) -> Sampled | None:
        """The sampled problem of (e, 1) and v if f is affine, for ``held``."""
        f, n, m = self.f, self.x_goal.size, self.u_goal.size
        if max(degrees(jax.make_jaxpr(f)(self.x_goal, self.u_goal), (1, 1))) > 1:
            return None
        A, B = jax.jacfwd(f, (0, 1))(self.x_goal, self.u_goal)
        A = jnp.concatenate([A, f(self.x_goal, self.u_goal)[:, None]], axis=1)
        zero = jnp.zeros((n, m), self.Q.dtype)
        A, B, Q, N = (jnp.pad(a, ((0, 1), (0, k))) for a, k in ((A, 0), (B, 0), (self.Q, 1), (zero, 0)))
        return sample_many(A, B, Q, self.R, N, self.dt)

    def step(self, x: Float[Array, " n"], u: Float[Array, " m"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The next state, and the cost of the step."""
        if (exact := self.held) is not None:
            z, v = jnp.append(x - self.x_goal, 1.0), u - self.u_goal
            cost = z @ (exact.Q @ z) + v @ (exact.R @ v) + 2 * z @ (exact.N @ v)
            return self.x_goal + (exact.A @ z + exact.B @ v)[:-1], cost

        def rates(y: tuple[Array, Array]) -> tuple[Array, Array]:
            e = y[0] - self.x_goal
            return self.f(y[0], u).astype(x.dtype), e @ self.Q @ e

        h, v = self.dt / self.substeps, u - self.u_goal
        after, cost = rk4(rates, (x, jnp.zeros((), x.dtype)), (h, h), self.substeps)
        return after, cost + self.dt * (v @ self.R @ v)

    def final(self, x: Float[Array, " n"]) -> Float[Array, ""]:
        """Terminal cost."""
        e = x - self.x_goal
        return e @ self.Qf @ e

    def expand(
        self, x: Float[Array, " n"], u: Float[Array, " m"]
    ) -> tuple[Float[Array, "n n"], Float[Array, "n m"], Float[Array, " n+m"], Float[Array, "n+m n+m"]]:
        """A, B of a step, gradient and Gauss-Newton Hessian of its cost in z = (x, u).

        The sensitivity S = ∂x/∂z of the state within the step obeys Ṡ = (∂f/∂x) S + (∂f/∂u) [0 I], and gradient
        and Hessian are the integrals of 2 SᵀQe and 2 SᵀQS. Runge-Kutta 4 on all of them together gives the exact
        derivatives of :meth:`step`, because its stages commute with differentiation.
        """
        n, m = x.size, u.size
        if (exact := self.held) is not None:
            weight = 2 * jnp.block([[exact.Q, exact.N], [exact.N.T, exact.R]])
            there = [*range(n), *range(n + 1, n + 1 + m)]
            z = jnp.concatenate([x - self.x_goal, jnp.ones(1, x.dtype), u - self.u_goal])
            hessian = weight[np.ix_(there, there)]
            return exact.A[:-1, :-1], exact.B[:-1], (weight @ z)[np.array(there)], hessian
        z = jnp.eye(n + m, dtype=x.dtype)
        du = z[n:]

        def rates(y: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            x, S, _, _ = y
            slope, push = jax.linearize(lambda x, u: self.f(x, u).astype(x.dtype), x, u)
            weighted = 2 * S.T @ self.Q
            return slope, jax.vmap(push, 1, 1)(S, du), weighted @ (x - self.x_goal), weighted @ S

        h = self.dt / self.substeps
        start = x, z[:n], jnp.zeros(n + m, x.dtype), jnp.zeros_like(z)
        _, S, gradient, hessian = rk4(rates, start, (h, h, h, h), self.substeps)
        gradient = gradient.at[n:].add(2 * self.dt * (self.R @ (u - self.u_goal)))
        hessian = hessian.at[n:, n:].add(2 * self.dt * self.R)
        return S[:, :n], S[:, n:], gradient, hessian


class StateLimits(NamedTuple):
    """Augmented Lagrangian of low ≤ x ≤ high: Σ max(0, λ + μc)² / 2μ, with c = low − x and x − high.

    Without multipliers and stiffness, as at first, nothing is added.

    Attributes:
        low, high: infinite where there is none.
        multipliers: λ ≥ 0, of the lower and of the upper limits.
        stiffness: μ.
        unit: by how much each state moved in the trajectory that was best without limits: tolerances are relative.

    Source: T. A. Howell, B. E. Jackson and Z. Manchester, ALTRO: a fast solver for constrained trajectory
    optimization, IROS 2019, equations 6 to 9; when μ grows and what has converged, as in E. G. Birgin and
    J. M. Martínez, Practical Augmented Lagrangian Methods for Constrained Optimization (2014), algorithm 4.1.
    """

    low: Float[Array, " n"]
    high: Float[Array, " n"]
    multipliers: Float[Array, "2 points n"]
    stiffness: Float[Array, " n"]
    unit: Float[Array, " n"]

    def excess(self, xs: Float[Array, "points n"]) -> Float[Array, "2 points n"]:
        """c, above 0 where a limit is violated; −1 where there is none."""
        c = jnp.stack([self.low[None] - xs, xs - self.high[None]])
        return jnp.where(jnp.isfinite(c) | jnp.isnan(c), c, -1.0)

    def _force(self, xs: Array) -> Array:
        return jnp.maximum(self.multipliers + self.stiffness[None, None] * self.excess(xs), 0.0)

    def _divisor(self) -> Array:
        return jnp.where(self.stiffness > 0, self.stiffness, 1.0)[None, None]

    def cost(self, xs: Float[Array, "points n"]) -> Float[Array, ""]:
        """The term added to the cost of a trajectory."""
        return jnp.sum(self._force(xs) ** 2 / (2 * self._divisor()))

    def expand(self, xs: Float[Array, "points n"]) -> tuple[Float[Array, "points n"], Float[Array, "points n n"]]:
        """Gradient and Gauss-Newton Hessian of that in the states."""
        force = self._force(xs)
        curvature = jnp.sum(jnp.where(force > 0, self.stiffness[None, None], 0.0), axis=0)
        return force[1] - force[0], curvature[:, :, None] * jnp.eye(len(self.low), dtype=xs.dtype)[None]

    def gap(self, xs: Float[Array, "points n"]) -> Float[Array, " n"]:
        """By how much each state violates its limits, or a multiplier pushes where there is room."""
        return jnp.max(jnp.abs(jnp.maximum(self.excess(xs), -self.multipliers / self._divisor())), axis=(0, 1))

    def held(self, gap: Float[Array, " n"], tolerance: float) -> Bool[Array, ""]:
        """True if gaps are within the tolerance, relative to the states' motion; zero without stiffness."""
        return jnp.all(gap <= jnp.where(self.stiffness > 0, tolerance * self.unit, 0.0))

    def tightened(self, xs: Float[Array, "points n"], cost: Float[Array, ""], before: Float[Array, " n"]) -> Self:
        """With the multipliers that the best trajectory for the present ones tells of.

        The stiffness grows where :meth:`gap` has not fallen to a quarter of what it was ``before``. It begins so that
        leaving a limit by a tenth of how far the state moves costs as much as ten average steps.
        """
        moved = jnp.ptp(xs, axis=0)
        unit = jnp.where(self.stiffness > 0, self.unit, jnp.where(moved > 0, moved, 1.0))
        stiffer = jnp.where(self.gap(xs) > before / 4, _GROWTH * self.stiffness, self.stiffness)
        begun = 2000 * cost / ((len(xs) - 1) * unit**2)
        return self._replace(
            multipliers=self._force(xs), stiffness=jnp.where(self.stiffness > 0, stiffer, begun), unit=unit
        )


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

    Returns the last iterate, with all steps and the cost of the trajectory alone, and its excess over the limits.
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
    within the limits, and K = Huu⁻¹ Hux among the inputs that are free there. ``damping`` adds to Huu, in units of R.
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

    Returns u, and which inputs are free. Source: Y. Tassa, N. Mansard and E. Todorov, ICRA 2014, section IV-A.
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
