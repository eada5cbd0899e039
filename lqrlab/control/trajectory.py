"""Optimal trajectories of nonlinear plants whose inputs have limits, and the gains that hold on to them."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg, pytree
from lqrlab.control import checks

_ALPHAS = 1.1 ** -(np.arange(11.0) ** 2)  # step lengths tried at once, from 1 down to 7e-5
_AHEAD, _SHARE = np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 2.0, 2.0, 1.0]) / 6  # Runge and Kutta's
_DAMPING = 1e-6, 1e10  # least and most; below the least there is none


@pytree
@dataclasses.dataclass(frozen=True)
class ILQR:
    """A locally optimal trajectory; u = us[t] − K[t] (x − xs[t]) holds on to it.

    Attributes:
        ts: times [s] ``[..., T+1]``.
        xs: states ``[..., T+1, n]``, absolute.
        us: inputs ``[..., T, m]``, absolute, within the limits.
        K: gains ``[..., T, m, n]``; an input at its limit has a row of zeros.
        k: how far the next step would still move the inputs, ``[..., T, m]``.
        P: the cost to go near the trajectory is quadratic with these matrices, ``[..., T+1, n, n]``.
        cost: ∫ xᵀQx + uᵀRu dt + the terminal cost, of deviations from the goal ``[...]``.
        decrease: what a full step without damping is expected to take off the cost, relative to it ``[...]``.
        converged: whether ``decrease`` is within the tolerance ``[...]``.
        iterations: steps that were tried ``[...]``.
    """

    ts: Array
    xs: Array
    us: Array
    K: Array
    k: Array
    P: Array
    cost: Array
    decrease: Array
    converged: Array
    iterations: Array


def box_qp(H: Array, g: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Minimise ½ uᵀHu + gᵀu over low ≤ u ≤ high, for H > 0 [m, m], by projected Newton steps.

    Returns:
        u [m], and which inputs are free (not held at a limit) [m].

    Source: Tassa, Mansard and Todorov (2014), section IV-A.
    """

    def held(u: Array) -> tuple[Array, Array]:
        slope = g + H @ u
        return slope, ~(((u <= low) & (slope > 0)) | ((u >= high) & (slope < 0)))

    def value(u: Array) -> Array:
        return u @ (H @ u) / 2 + g @ u

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        u, _, count = state
        slope, free = held(u)
        newton = -_solve_free(H, jnp.where(free, slope, 0.0), free)
        tried = jax.vmap(lambda a: jnp.clip(u + a * newton, low, high))(
            jnp.asarray(0.5 ** np.arange(8), u.dtype)
        )
        values = jax.vmap(value)(tried)
        best = jnp.argmin(values)
        better = values[best] < value(u)
        return jnp.where(better, tried[best], u), better, count + 1

    start = jnp.clip(-_solve_free(H, g, jnp.ones(g.shape, bool)), low, high)
    u, *_ = jax.lax.while_loop(
        lambda s: s[1] & (s[2] < 10 * g.size), step, (start, jnp.asarray(True), jnp.asarray(0))
    )
    return u, held(u)[1]


def _solve_free(H: Array, b: Array, free: Array) -> Array:
    """H⁻¹ b among the free inputs, zero elsewhere; b [m] or [m, k]."""
    both = free[:, None] & free[None]
    keep = free.reshape(-1, *(1,) * (b.ndim - 1))
    return linalg.solve(jnp.where(both, H, jnp.eye(len(H), dtype=H.dtype)), jnp.where(keep, b, 0.0))


class _Problem(NamedTuple):
    """One problem: the plant, the weights (terminal last), the goal, the limits, the sample time."""

    f: Callable
    Q: Array
    R: Array
    Qf: Array
    goal: tuple[Array, Array]
    limits: tuple[Array, Array]
    dt: Array
    substeps: int

    def step(self, x: Array, u: Array) -> tuple[Array, Array]:
        """The next state, and the points [4·substeps, n] at which Runge-Kutta 4 looks on its way there."""
        h = self.dt / self.substeps

        def look(state: tuple[Array, Array, Array], now: tuple) -> tuple[tuple, Array]:
            x, slope, mean = state  # at the start of the substep, at the last look, averaged so far
            ahead, share, end = now
            point = x + ahead * h * slope
            slope = self.f(point, u).astype(x.dtype)
            mean = mean + share * slope
            x = x + jnp.where(end, h, 0.0) * mean
            return (x, slope, jnp.where(end, 0.0, mean)), point

        table = (_AHEAD, _SHARE, _AHEAD == 1.0)
        tables = jax.tree.map(lambda a: jnp.tile(jnp.asarray(a), self.substeps).astype(x.dtype), table)
        (after, *_), points = jax.lax.scan(look, (x, x * 0, x * 0), tables)
        return after, points

    @property
    def shares(self) -> Array:
        """What each of the points counts in the integral of a step [s]."""
        return jnp.tile(jnp.asarray(_SHARE, self.dt.dtype), self.substeps) * (self.dt / self.substeps)

    def stage(self, points: Array, u: Array) -> Array:
        """∫ xᵀQx + uᵀRu dt of a step, by the rule that integrates the state."""
        e, v = points - self.goal[0][None], u - self.goal[1]
        return jnp.sum(self.shares * jnp.sum(e @ self.Q * e, axis=1)) + self.dt * (v @ self.R @ v)

    def final(self, x: Array) -> Array:
        """Terminal cost."""
        e = x - self.goal[0]
        return e @ self.Qf @ e

    def expand(self, x: Array, u: Array) -> tuple[Array, Array, Array, Array]:
        """A, B of a step, gradient and Gauss-Newton Hessian of its cost in (x, u)."""
        n = x.size
        z = jnp.concatenate([x, u])
        (_, points), push = jax.linearize(lambda z: self.step(z[:n], z[n:]), z)
        J, along = jax.vmap(push, out_axes=-1)(jnp.eye(z.size, dtype=z.dtype))
        weighted = 2 * jnp.einsum("p,ij,pjz->piz", self.shares, self.Q, along)
        gradient = jnp.einsum("piz,pi->z", weighted, points - self.goal[0][None])
        hessian = jnp.einsum("piz,piy->zy", weighted, along)
        gradient = gradient.at[n:].add(2 * self.dt * (self.R @ (u - self.goal[1])))
        hessian = hessian.at[n:, n:].add(2 * self.dt * self.R)
        return J[:, :n], J[:, n:], gradient, hessian


def _forward(problem: _Problem, xs: Array, us: Array, K: Array, k: Array, alpha: Array) -> tuple:
    """States, inputs and cost of us + α k − K (x − xs), clipped."""

    def step(state: tuple[Array, Array], now: tuple) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        x, cost = state
        x_ref, u_ref, K, k = now
        u = jnp.clip(u_ref + alpha * k - K @ (x - x_ref), *problem.limits)
        after, points = problem.step(x, u)
        return (after, cost + problem.stage(points, u)), (after, u)

    start = (xs[0], jnp.zeros((), xs.dtype))
    (last, cost), (after, inputs) = jax.lax.scan(step, start, (xs[:-1], us, K, k))
    return jnp.concatenate([xs[:1], after]), inputs, cost + problem.final(last)


def _backward(problem: _Problem, xs: Array, us: Array, damping: Array) -> tuple[Array, Array, Array, Array]:
    """K, k, the Hessian of the cost to go, and by how much a full step should lower the cost.

    ``damping`` makes each move of an input dearer, in units of its weight.
    """
    n = xs.shape[-1]
    A, B, gradient, hessian = jax.vmap(problem.expand)(xs[:-1], us)
    low, high = problem.limits

    def back(after: tuple, now: tuple) -> tuple[tuple, tuple]:
        v, V, gain = after
        A, B, l, L, u = now
        AB = jnp.concatenate([A, B], axis=1)
        q, H = l + AB.T @ v, linalg.symmetric(L + AB.T @ V @ AB)
        qu, Hux, Huu = q[n:], H[n:, :n], H[n:, n:]
        damped = Huu + damping * 2 * problem.dt * problem.R
        k, free = box_qp(damped, qu, low - u, high - u)
        K = _solve_free(damped, Hux, free)
        before = q[:n] - K.T @ (Huu @ k + qu) + Hux.T @ k
        V = linalg.symmetric(H[:n, :n] + K.T @ Huu @ K - K.T @ Hux - Hux.T @ K)
        return (before, V, gain - qu @ k - k @ Huu @ k / 2), (K, k, V)

    end = 2 * problem.Qf @ (xs[-1] - problem.goal[0]), 2 * problem.Qf, jnp.zeros((), xs.dtype)
    (_, _, gain), (K, k, V) = jax.lax.scan(back, end, (A, B, gradient, hessian, us), reverse=True)
    return K, k, jnp.concatenate([V, 2 * problem.Qf[None]]), gain


class _State(NamedTuple):
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
    iterations: Array


def _one(
    problem: _Problem, x0: Array, us: Array, tolerance: Array, max_iterations: Array
) -> tuple[Array, ...]:
    n, (T, m), dtype = x0.size, us.shape, x0.dtype
    least, most = _DAMPING
    alphas = jnp.asarray(_ALPHAS, dtype)

    def improve(s: _State) -> _State:
        xs, us, costs = jax.vmap(lambda a: _forward(problem, s.xs, s.us, s.K, s.k, a))(alphas)
        costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
        best = jnp.argmin(costs)
        better = costs[best] < s.cost
        xs, us, cost = (jnp.where(better, a[best], b) for a, b in zip((xs, us, costs), s))
        # Tassa et al. (2012), section II-F: the damping changes the faster the longer it has to
        easier = better | ((s.gain <= tolerance * s.cost) & (s.damping > 0))
        factor = jnp.where(easier, jnp.minimum(0.5, s.factor / 2), jnp.maximum(2.0, s.factor * 2))
        damping = s.damping * factor
        damping = jnp.where(easier, jnp.where(damping < least, 0.0, damping), jnp.maximum(damping, least))
        lost = (damping > most) | ~jnp.isfinite(cost)
        last = lost | (s.iterations + 1 >= max_iterations)
        damping = jnp.where(last, 0.0, damping)
        K, k, V, gain = _backward(problem, xs, us, damping)
        done = last | ((gain <= tolerance * cost) & (damping == 0))
        return _State(xs, us, cost, K, k, V, gain, damping, factor, done, s.iterations + 1)

    zero = jnp.zeros((), dtype)
    # along the first guess there is nothing to follow yet: its cost is better than the infinite one here
    start = _State(
        jnp.broadcast_to(x0, (T + 1, n)), us, zero + jnp.inf,
        jnp.zeros((T, m, n), dtype), jnp.zeros((T, m), dtype), jnp.zeros((T + 1, n, n), dtype), zero + jnp.inf,
        zero, zero + 1, jnp.asarray(False), jnp.asarray(-1),
    )  # fmt: skip
    s = jax.lax.while_loop(lambda s: ~s.done, improve, start)
    decrease = s.gain / jnp.where(s.cost > 0, s.cost, 1.0)
    sound = jnp.isfinite(s.cost) & (decrease <= tolerance)
    ts = problem.dt * jnp.arange(T + 1, dtype=dtype)
    return ts, s.xs, s.us, s.K, s.k, s.V / 2, s.cost, decrease, sound, s.iterations


@partial(jax.jit, static_argnames=("substeps",))
def _solve(
    f: Callable, args: tuple[Array, ...], tolerance: Array, max_iterations: Array, substeps: int
) -> ILQR:
    def one(
        x0: Array,
        us: Array,
        Q: Array,
        R: Array,
        Qf: Array,
        xg: Array,
        ug: Array,
        low: Array,
        high: Array,
        dt: Array,
    ) -> tuple[Array, ...]:
        problem = _Problem(f, Q, R, Qf, (xg, ug), (low, high), dt, substeps)
        return _one(problem, x0, us, tolerance, max_iterations)

    return ILQR(*broadcast(one, *zip(args, (1, 2, 2, 2, 2, 1, 1, 1, 1, 0))))


def ilqr(
    f: Callable[[Array, Array], Array],
    x0: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    num_steps: int,
    Qf: ArrayLike | None = None,
    *,
    dt: ArrayLike,
    goal: tuple[ArrayLike, ArrayLike] | None = None,
    limits: tuple[ArrayLike, ArrayLike] | None = None,
    us: ArrayLike | None = None,
    substeps: int = 2,
    tolerance: float | None = None,
    max_iterations: int = 500,
) -> ILQR:
    """Minimise ∫ eᵀQe + vᵀRv dt + e(T)ᵀQf e(T) for ẋ = f(x, u), u held for dt at a time, within limits.

    e = x − x_goal and v = u − u_goal. The plant is integrated by Runge-Kutta 4 and the cost by the same rule, so
    ``cost`` is what :func:`lqrlab.simulation.rollout` charges for the same inputs. Found is a local optimum: which
    one depends on the first guess ``us``; several may be tried along a leading axis.

    Args:
        f: ẋ [n] of x [n] and u [m], written with ``jax.numpy``. A method of a pytree, such as
            ``plant.dynamics``, is compiled once for all parameters; so is a function defined once.
        x0: initial state ``[..., n]``, absolute.
        Q, R: weights ``[..., n, n]`` ≥ 0 and ``[..., m, m]`` > 0.
        num_steps: the horizon T.
        Qf: terminal weight ``[..., n, n]``; zero if left out. A regulator's P there stands for the cost of
            what comes after the horizon.
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
            runs away to infinity. In a batch or a trace such members carry what is not finite and
            ``converged=False``.

    Source: Y. Tassa, N. Mansard and E. Todorov, Control-limited differential dynamic programming, ICRA 2014, with
    Gauss-Newton Hessians (iLQR); damping as in Y. Tassa, T. Erez and E. Todorov, Synthesis and stabilization of
    complex behaviors through online trajectory optimization, IROS 2012, but of the inputs, in units of R.
    """
    given = [jnp.asarray(a) for a in (x0, Q, R)]
    dtype = checks.floating(*given)
    x0, Q, R = (a.astype(dtype) for a in given)
    n, m = Q.shape[-1], R.shape[-1]
    if not isinstance(num_steps, int | np.integer) or num_steps < 1:
        raise ValueError(f"num_steps: expected a horizon of at least one step, but found {num_steps!r}")
    if substeps < 1:
        raise ValueError(f"substeps: expected at least one Runge-Kutta step, but found {substeps}")
    _, _, Q, R, _ = checks.arguments(jnp.zeros((n, n), dtype), jnp.zeros((n, m), dtype), Q, R, None)
    step = checks.sample_time(dt, dtype)
    Qf = jnp.zeros_like(Q) if Qf is None else jnp.asarray(Qf, dtype)
    x_goal, u_goal = (jnp.asarray(a, dtype) for a in ((jnp.zeros(n), jnp.zeros(m)) if goal is None else goal))
    low, high = (jnp.asarray(a, dtype) for a in ((-jnp.inf, jnp.inf) if limits is None else limits))
    low, high = (jnp.broadcast_to(a, jnp.broadcast_shapes(a.shape, (m,))) for a in (low, high))
    guess = u_goal[..., None, :] if us is None else jnp.asarray(us, dtype)
    if us is None:
        guess = jnp.broadcast_to(guess, (*guess.shape[:-2], num_steps, m))
    shapes = {
        "x0": (x0, (n,)), "Qf": (Qf, (n, n)), "us": (guess, (num_steps, m)), "goal": (x_goal, (n,)),
        "goal's input": (u_goal, (m,)),
    }  # fmt: skip
    for name, (a, shape) in shapes.items():
        if a.shape[max(a.ndim - len(shape), 0) :] != shape:
            raise ValueError(f"{name}: expected shape {('…', *shape)}, but found {a.shape}")
    checks.weight("Qf", Qf)
    if not checks.traced(low, high) and not bool(jnp.all(low <= high)):
        raise ValueError(f"limits: expected low ≤ high, but found {limits}")
    f = _as_pytree(f)
    out = jax.eval_shape(f, *(jax.ShapeDtypeStruct(s, dtype) for s in ((n,), (m,))))
    if getattr(out, "shape", None) != (n,):
        raise ValueError(f"f: expected ẋ of shape ({n},), but found {out}")
    small = tolerance if tolerance is not None else 1e-8 if dtype == jnp.float64 else 1e-6
    args = (x0, guess, Q, R, Qf, x_goal, u_goal, low, high, step)
    found = _solve(f, args, jnp.asarray(small, dtype), jnp.asarray(max_iterations), substeps)
    if not checks.traced(found.cost) and found.cost.ndim == 0 and not bool(jnp.isfinite(found.cost)):
        raise ValueError(
            f"us: along the first guess of the inputs the plant runs away to infinity within {num_steps} steps; "
            "start from inputs that keep it in reach, or with a shorter horizon"
        )
    return found


def unsaturated_level(K: ArrayLike, P: ArrayLike, limit: ArrayLike) -> Array:
    """The largest c such that u = −Kx stays within ±limit wherever xᵀPx ≤ c.

    With P of an LQR design the linear loop never leaves that ellipsoid, so it never meets its limits: a place to
    hand over to it. Of a nonlinear plant nothing is proved.

    Args:
        K: ``[..., m, n]``.
        P: ``[..., n, n]``, > 0.
        limit: of the inputs' deviation from the equilibrium, a scalar or ``[..., m]``.

    Returns:
        c ``[...]`` = min over inputs of limit² / (K P⁻¹ Kᵀ).
    """
    K, P = checks.matrices(K=(K, "mn"), P=(P, "nn"))
    limit = jnp.asarray(limit, K.dtype)

    def one(K: Array, P: Array, limit: Array) -> Array:
        return jnp.min(limit**2 / jnp.sum(K * linalg.solve(P, K.T).T, axis=1))

    limit = jnp.broadcast_to(limit, jnp.broadcast_shapes(limit.shape, K.shape[-2:-1]))
    return broadcast(one, (K, 2), (P, 2), (limit, 1))


def _as_pytree(f: Any) -> Callable:
    """f as data for a compiled function: what a method's own pytree holds does not become part of the program."""
    if inspect.ismethod(f) and not jax.tree_util.all_leaves([f.__self__]):
        return Partial(f.__func__, f.__self__)
    return f if isinstance(f, Partial) else Partial(f)
