"""The quadratic program of a horizon, its optimality conditions and its Newton step by a Riccati recursion: batch last.

Minimise Σ ½(xᵀQx + uᵀRu) + xᵀNu + qᵀx + rᵀu + ½x[T]ᵀQf x[T] + qfᵀx[T] for x[t+1] = Ax + Bu + c, where the limited
values of each step, v = (u[t], x[t+1], y[t] = Cx[t] + Du[t]), lie between limits. Each limit is v ≤ h or −v ≤ h: side
0 and 1 of an array ``[2, T, rows, W]``; where there is none, h = ∞.
"""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import matvec, mul, t

_FAR, _ROUNDING = 1e9, 1e-9
_SHARE = 1e-3
"""Of the largest gradient that one state's or input's part of the cost could have: what less is compared with."""


class HorizonQP(NamedTuple):
    """A program over T steps for W problems. Matrices have S = T steps, or S = 1 if all are alike.

    Attributes:
        A, B, c: ``[S, n, n, W]``, ``[S, n, m, W]``, ``[S, n, W]``.
        Q, R, N, q, r: weights of a step.
        Qf, qf: of the last state ``[n, n, W]``, ``[n, W]``.
        C, D: outputs that are limited ``[S, p, n, W]``, ``[S, p, m, W]``; p may be 0.
        limits: h of the rows u, x (or no such rows) and y ``[2, T, rows, W]``.
        linear, quadratic: an excess e ≥ 0 over a limit costs linear·e + ½ quadratic·e² ``[rows, W]``; ∞ if hard.
        x0: ``[n, W]``.
    """

    A: Array
    B: Array
    c: Array
    Q: Array
    R: Array
    N: Array
    q: Array
    r: Array
    Qf: Array
    qf: Array
    C: Array
    D: Array
    limits: Array
    linear: Array
    quadratic: Array
    x0: Array


class PrimalDual(NamedTuple):
    """States, inputs, multipliers of the dynamics (the costates of x[1] … x[T]) and of the limits."""

    xs: Float[Array, "T1 n W"]
    us: Float[Array, "T m W"]
    costates: Float[Array, "T n W"]
    multipliers: Float[Array, "2 T rows W"]


def times(a: Float[Array, "#T r k #W"], x: Float[Array, "T k W"]) -> Float[Array, "T r W"]:
    """a x, step by step."""
    if batch_last.narrow(x):
        return jnp.sum(a * x[:, None], 2)
    return functools.reduce(operator.add, (a[:, :, j] * x[:, None, j] for j in range(a.shape[2])))


def transposed(a: Float[Array, "#T k r #W"], x: Float[Array, "T k W"]) -> Float[Array, "T r W"]:
    """aᵀ x, step by step."""
    if batch_last.narrow(x):
        return jnp.sum(a * x[:, :, None], 1)
    return functools.reduce(operator.add, (a[:, j] * x[:, None, j] for j in range(a.shape[1])))


def has_states(qp: HorizonQP) -> bool:
    """True if states are among the limited values."""
    return qp.limits.shape[2] > qp.B.shape[2] + qp.C.shape[1]


def signed(v: Float[Array, "*values W"]) -> Float[Array, "2 *values W"]:
    """v on the side of the upper limits, −v on that of the lower ones."""
    return jnp.stack([v, -v])


def net(s: Float[Array, "2 *values W"]) -> Float[Array, "*values W"]:
    """The transpose of :func:`signed`."""
    return s[0] - s[1]


def limited(qp: HorizonQP, xs: Float[Array, "T1 n W"], us: Float[Array, "T m W"]) -> Float[Array, "T rows W"]:
    """The limited values v of a trajectory."""
    parts = [us, xs[1:]] if has_states(qp) else [us]
    if qp.C.shape[1]:
        parts.append(times(qp.C, xs[:-1]) + times(qp.D, us))
    return jnp.concatenate(parts, axis=1)


def pulled(qp: HorizonQP, force: Float[Array, "T rows W"]) -> tuple[Float[Array, "T1 n W"], Float[Array, "T m W"]]:
    """The transpose of :func:`limited`: what forces on the limited values add to the gradient in x and u."""
    n, m, p = qp.A.shape[1], qp.B.shape[2], qp.C.shape[1]
    on_u = force[:, :m]
    on_x = jnp.zeros((force.shape[0] + 1, n, force.shape[-1]), force.dtype)
    if has_states(qp):
        on_x = on_x.at[1:].add(force[:, m : m + n])
    if p:
        on_x = on_x.at[:-1].add(transposed(qp.C, force[:, -p:]))
        on_u = on_u + transposed(qp.D, force[:, -p:])
    return on_x, on_u


def residuals(
    qp: HorizonQP, point: PrimalDual, force: Float[Array, "T rows W"]
) -> tuple[Float[Array, "T1 n W"], Float[Array, "T m W"], Float[Array, "T n W"]]:
    """Gradients of the Lagrangian in x and u, with ``force`` for the multipliers' pull, and Ax + Bu + c − x[t+1].

    That in x[0], which is given, is the first one; all others vanish at the optimum.
    """
    xs, us, costates, _ = point
    x = xs[:-1]
    on_x, on_u = pulled(qp, force)
    stage = times(qp.Q, x) + times(qp.N, us) + qp.q + transposed(qp.A, costates)
    last = times(qp.Qf[None], xs[-1:]) + qp.qf
    along_x = jnp.concatenate([stage, last]) + on_x
    along_u = times(qp.R, us) + transposed(qp.N, x) + qp.r + transposed(qp.B, costates) + on_u
    return along_x.at[1:].add(-costates), along_u, times(qp.A, x) + times(qp.B, us) + qp.c - xs[1:]


def objective(qp: HorizonQP, xs: Float[Array, "T1 n W"], us: Float[Array, "T m W"]) -> Float[Array, " W"]:
    """The cost without that of an excess over soft limits."""
    x, last = xs[:-1], xs[-1:]
    along_x = times(qp.Q, x) / 2 + times(qp.N, us) + qp.q
    along_u = times(qp.R, us) / 2 + qp.r
    end = last * (times(qp.Qf[None], last) / 2 + qp.qf)
    return jnp.sum(x * along_x, (0, 1)) + jnp.sum(us * along_u, (0, 1)) + jnp.sum(end, (0, 1))


def excess(qp: HorizonQP, v: Float[Array, "T rows W"]) -> Float[Array, "2 T rows W"]:
    """By how much each limit is exceeded, ≥ 0."""
    return jnp.maximum(signed(v) - qp.limits, 0)  # v − ∞ = −∞


def residual(qp: HorizonQP, point: PrimalDual) -> Float[Array, " W"]:
    """The largest violation of the optimality conditions: each relative to the size of what it is a difference of.

    The conditions: dynamics and limits hold; the gradients vanish; multipliers have the right sign (those of soft
    limits are the slope of the excess' cost); and multiplier times slack is zero, summed, beside the cost (the gap).
    A gradient is compared with at least :data:`_SHARE` of what its state or input, alone, could have of the cost: the
    rounding of the large states is no violation in one that is nearly zero.
    """
    xs, us, costates, multipliers = point
    v = limited(qp, xs, us)
    finite, soft = jnp.isfinite(qp.limits), jnp.isfinite(qp.linear)
    h = jnp.where(finite, qp.limits, 0)
    over = excess(qp, v)
    slack = jnp.where(finite, h - signed(v), 0)
    equal = finite[0] & finite[1] & (h[0] == -h[1]) & ~soft  # its multiplier may have either sign
    most = jnp.where(soft, jnp.where(soft, qp.linear, 0) + qp.quadratic * over, jnp.inf)  # of a multiplier
    along_x, along_u, moved = residuals(qp, point, net(multipliers))
    pull_x, pull_u = pulled(qp, jnp.sum(jnp.abs(multipliers), 0))

    size = jnp.maximum(jnp.max(jnp.abs(v), 0), jnp.max(jnp.abs(h), (0, 1)))
    force = jnp.max(jnp.abs(multipliers), (0, 1))
    wrong = jnp.maximum(jnp.where(equal, 0, -multipliers), multipliers - most)
    paid = jnp.where(soft & (over > 0), (most - multipliers) * over, multipliers * slack)
    cost = jnp.abs(objective(qp, xs, us)) + jnp.sum(jnp.abs(multipliers * h), (0, 1, 2))
    pressed = _largest(times(qp.R, us), transposed(qp.B, costates), jnp.broadcast_to(qp.r, us.shape), pull_u)
    held = _largest(costates, pull_x, jnp.broadcast_to(qp.q[:1], costates.shape))
    of_x = jnp.sqrt(jnp.maximum(jnp.max(_diagonal(qp.Q), 0), _diagonal(qp.Qf[None])[0]))
    of_u = jnp.sqrt(jnp.max(_diagonal(qp.R), 0))
    energy = jnp.maximum(jnp.max(of_x * _largest(xs), 0), jnp.max(of_u * _largest(us), 0))
    pressed, held = (jnp.maximum(a, _SHARE * b * energy) for a, b in ((pressed, of_u), (held, of_x)))
    held = jnp.maximum(held, _SHARE * _reached(qp.B, pressed))
    violations = (
        jnp.max(jnp.where(soft, 0, over), 0) / _or_one(size),
        jnp.abs(moved) / _or_one(_largest(xs)),
        jnp.abs(along_x[1:]) / _or_one(held),
        jnp.abs(along_u) / _or_one(pressed),
        jnp.max(jnp.maximum(wrong, 0), 0) / _or_one(force),
    )
    gap = jnp.sum(jnp.abs(paid), (0, 1, 2)) / _or_one(cost)
    worst = functools.reduce(jnp.maximum, (jnp.max(a, (0, 1)) for a in violations), gap)
    return jnp.where(jnp.isnan(worst), jnp.inf, worst)


def infeasible(qp: HorizonQP, point: PrimalDual, force: Float[Array, "2 T rows W"]) -> Bool[Array, " W"]:
    """True if forces ≥ 0 on hard limits of states and outputs prove that no inputs within their limits keep those.

    By Farkas' lemma: Σ force (v − h) is linear in the inputs, so its least value over all of them is known. If that is
    more than rounding may have added, no trajectory has v ≤ h. Free inputs: up to :data:`_FAR` times the point's.
    """
    m = qp.B.shape[2]
    if qp.limits.shape[2] == m:
        return jnp.zeros(qp.x0.shape[-1], bool)
    finite = jnp.isfinite(qp.limits)
    hard = ((jnp.arange(qp.limits.shape[2]) >= m)[:, None] & ~jnp.isfinite(qp.linear))[None, None] & finite
    v, h = signed(limited(qp, point.xs, point.us)), jnp.where(finite, qp.limits, 0)
    force = jnp.where(hard, force, 0)
    on_x, on_u = pulled(qp, net(force))

    def back(after: Array, given: tuple[Array, Array]) -> tuple[Array, Array]:
        step, along = given
        return along + matvec(t(_at(qp.A, step)), after), after

    _, after = jax.lax.scan(back, on_x[-1], (jnp.arange(len(point.us)), on_x[:-1]), reverse=True)
    along = on_u + transposed(qp.B, after)
    far = _FAR * jnp.maximum(jnp.max(jnp.abs(point.us), (0, 1)), 1e-30)
    high = jnp.minimum(qp.limits[0, :, :m] - point.us, far)
    low = jnp.minimum(qp.limits[1, :, :m] + point.us, far)
    least = jnp.sum(force * (v - h), (0, 1, 2)) - jnp.sum(jnp.where(along > 0, along * low, -along * high), (0, 1))
    size = jnp.max(force * (jnp.abs(v) + jnp.abs(h)), (0, 1, 2))
    return least > _ROUNDING * _or_one(size)


def _reached(B: Float[Array, "S n m #W"], pressed: Float[Array, "m W"]) -> Float[Array, "n W"]:
    """The gradient in each state that inputs would feel as much as what they press with; 0 where none reaches it."""
    gain = jnp.max(jnp.abs(B), 0)
    felt = jnp.min(jnp.where(gain > 0, pressed[None] / _or_one(gain), jnp.inf), 1)
    return jnp.where(felt < jnp.inf, felt, 0)


def _diagonal(M: Float[Array, "S k k W"]) -> Float[Array, "S k W"]:
    """The entries of a weight that cannot be negative, of a convex problem."""
    return jnp.maximum(jnp.stack([M[:, i, i] for i in range(M.shape[1])], 1), 0)


def _largest(*terms: Array) -> Float[Array, "k W"]:
    """The largest of each component over the steps."""
    return functools.reduce(jnp.maximum, (jnp.max(jnp.abs(a), 0) for a in terms))


def _or_one(size: Array) -> Array:
    """A scale to divide by, 1 for nothing."""
    return jnp.where(size > 0, size, 1.0)


class Factors(NamedTuple):
    """Of each step: u = −K x − …, the inverse of the inputs' curvature, its diagonal, the cost to go P after it."""

    K: Float[Array, "T m n W"]
    inverse: Float[Array, "T m m W"]
    diagonal: Float[Array, "T m W"]
    P: Float[Array, "T n n W"]


def _at(a: Array, step: Array) -> Array:
    """The matrix of a step, of T or of one for all."""
    return a[0] if a.shape[0] == 1 else a[step]


def factor(qp: HorizonQP, weights: Float[Array, "T rows W"], free: Bool[Array, "T m W"]) -> Factors:
    """The recursion with ½ weight·v² added to the cost for each limited value, and inputs that are not free held.

    The cost to go is updated as a sum of squares (Joseph's form), so that it stays positive where weights are huge.
    """
    n, m, p = qp.A.shape[1], qp.B.shape[2], qp.C.shape[1]
    eye_n, eye_m = batch_last.eye(n, qp.A), batch_last.eye(m, qp.A)

    def back(P: Array, given: tuple[Array, Array, Array]) -> tuple[Array, Factors]:
        step, weight, free = given
        A, B, Q, R, N = (_at(a, step) for a in (qp.A, qp.B, qp.Q, qp.R, qp.N))
        R = R + eye_m * weight[None, :m]
        if has_states(qp):
            P = P + eye_n * weight[None, m : m + n]
        if p:
            C, D = _at(qp.C, step), _at(qp.D, step)
            WC, WD = weight[-p:, None] * C, weight[-p:, None] * D
            Q, R, N = Q + mul(t(C), WC), R + mul(t(D), WD), N + mul(t(C), WD)
        mask = jnp.where(free, 1.0, 0.0)
        B, N, R = B * mask[None], N * mask[None], R * (mask[:, None] * mask[None])
        curved = batch_last.symmetric(R + mul(t(B), mul(P, B))) + eye_m * (1 - mask)[None]
        inverse = batch_last.inverse(curved)
        K = mul(inverse, mul(t(B), mul(P, A)) + t(N))
        closed, NK = A - mul(B, K), mul(N, K)
        before = mul(t(closed), mul(P, closed)) + Q - NK - t(NK) + mul(t(K), mul(R, K))
        return batch_last.symmetric(before), Factors(K, inverse, jnp.stack([curved[i, i] for i in range(m)]), P)

    steps = jnp.arange(weights.shape[0])
    last = jnp.broadcast_to(qp.Qf, (n, n, qp.x0.shape[-1]))
    return jax.lax.scan(back, last, (steps, weights, free), reverse=True)[1]


def solve(
    qp: HorizonQP,
    factors: Factors,
    free: Bool[Array, "T m #W"],
    along_x: Float[Array, "T1 n W"],
    along_u: Float[Array, "T m W"],
    moved: Float[Array, "T n W"],
    start: Float[Array, "n W"],
) -> tuple[Float[Array, "T1 n W"], Float[Array, "T m W"], Float[Array, "T n W"]]:
    """The step of states, inputs and costates for gradients, an error ``moved`` of the dynamics, and a step of x0."""

    def back(after: Array, given: tuple[Any, ...]) -> tuple[Array, tuple[Array, Array]]:
        step, factors, free, gx, gu, moved = given
        A, B = _at(qp.A, step), _at(qp.B, step)
        pulled = after + matvec(factors.P, moved)
        along = jnp.where(free, gu + matvec(t(B), pulled), 0)
        before = gx + matvec(t(A), pulled) - matvec(t(factors.K), along)
        return before, (matvec(factors.inverse, along), after)

    def forth(x: Array, given: tuple[Any, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        step, factors, k, after, moved = given
        u = -matvec(factors.K, x) - k
        x = matvec(_at(qp.A, step), x) + matvec(_at(qp.B, step), u) + moved
        return x, (x, u, matvec(factors.P, x) + after)

    steps = jnp.arange(along_u.shape[0])
    last = jnp.broadcast_to(along_x[-1], start.shape)
    _, (k, after) = jax.lax.scan(back, last, (steps, factors, free, along_x[:-1], along_u, moved), reverse=True)
    _, (xs, us, costates) = jax.lax.scan(forth, start, (steps, factors, k, after, moved))
    return jnp.concatenate([start[None], xs]), us, costates
