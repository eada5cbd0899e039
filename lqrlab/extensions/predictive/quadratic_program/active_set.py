"""The optimum for a guess of which limits hold, and the search for the right guess."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from lqrlab.extensions.predictive.quadratic_program import horizon_qp
from lqrlab.extensions.predictive.quadratic_program.horizon_qp import (
    HorizonQP,
    PrimalDual,
    limited,
    net,
    residual,
    residuals,
    signed,
)
from lqrlab.simulation.limits import Limits

STIFF = 1e5  # penalty beside the curvature of the cost; larger ones converge faster to fewer digits
_ROUNDS, _MOST = 7, 60  # of the method of multipliers, where states or outputs are limited; more where it is slow
_PATIENCE = 3  # steps that may change all limits although their number does not fall
NOTHING = 1e-12  # beside the size of the values or multipliers: rounding


class ActiveSet(NamedTuple):
    """Limits that are just met, and soft ones that are exceeded: which of ``[2, T, rows, W]``."""

    at: Bool[Array, "2 T rows W"]
    out: Bool[Array, "2 T rows W"]


class Answer(NamedTuple):
    """The search's result: the last point, its residual, and the guess and the caution to go on with."""

    point: PrimalDual
    active: ActiveSet
    caution: Int[Array, "2 W"]
    residual: Float[Array, " W"]


def none_active(limits: Limits, batch: tuple[int, ...], T: int, n: int, m: int) -> ActiveSet:
    """The guess that no limit is active, of problems with n states and m inputs."""
    changes = 0 if limits.du is None else m
    states, outputs = 0 if limits.x is None else n + changes, 0 if limits.y is None else limits.y[0].shape[-1]
    nothing = jnp.zeros((*batch, 2, T, m + states + outputs + changes), bool)
    return ActiveSet(nothing, nothing)


def equal(qp: HorizonQP) -> Bool[Array, "2 T rows W"]:
    """Hard limits that leave one value: of both sides, the upper one, whose multiplier may have any sign."""
    upper, lower = qp.limits
    return jnp.stack([(upper == -lower) & ~jnp.isfinite(qp.linear), jnp.zeros(upper.shape, bool)])


def curvature(qp: HorizonQP, factors: horizon_qp.Factors) -> Float[Array, "T rows W"]:
    """The second derivative of the cost along each limited value; its scale, not more, and > 0.

    A value that inputs reach at once is moved by them; a state otherwise costs what it costs to go on from it.
    """
    n, p, m = qp.A.shape[1], qp.C.shape[1], qp.B.shape[2]

    def or_one(a: Array) -> Array:
        return jnp.where((a > 0) & (a < jnp.inf), a, 1.0)

    def by_inputs(a: Array) -> Array:
        return 1 / jnp.sum(a**2 / factors.diagonal[:, None], 2)

    P = jnp.stack([factors.P[:, i, i] for i in range(n)], axis=1)
    reached = by_inputs(qp.B)
    of_x = or_one(jnp.maximum(P, jnp.where(reached < jnp.inf, reached, 0)))
    parts = [factors.diagonal]
    if qp.limits.shape[2] > m + p:
        parts.append(of_x)
    if p:
        of_y = by_inputs(qp.D)
        parts.append(or_one(jnp.where(of_y < jnp.inf, of_y, 1 / jnp.sum(qp.C**2 / of_x[:, None], 2))))
    return jnp.concatenate(parts, axis=1)


def unlimited(qp: HorizonQP) -> tuple[PrimalDual, Float[Array, "T rows W"]]:
    """The optimum without limits, but for inputs that have one value, and :func:`curvature` there."""
    m = qp.B.shape[2]
    same = equal(qp)[0, :, :m]
    nothing = jnp.zeros(qp.limits.shape[1:], qp.x0.dtype)
    factors = horizon_qp.factor(qp, nothing, ~same)
    us = jnp.where(same, qp.limits[0, :, :m], 0)
    xs = jnp.zeros((len(us) + 1, *qp.x0.shape), us.dtype).at[0].set(qp.x0)
    start = PrimalDual(xs, us, jnp.zeros_like(xs[1:]), jnp.zeros(qp.limits.shape, us.dtype))
    step = horizon_qp.solve(qp, factors, ~same, *residuals(qp, start, nothing), jnp.zeros_like(qp.x0))
    xs, us, costates = (a + d for a, d in zip(start, step))
    return PrimalDual(xs, us, costates, start.multipliers), curvature(qp, factors)


def on_active_set(
    qp: HorizonQP, active: ActiveSet, stiff: Float[Array, "T rows W"], rounds: int | None = None
) -> PrimalDual:
    """The optimum with the limits of the set as equations: those of inputs exactly, others by multipliers.

    The method of multipliers (Bertsekas 1982, section 2.2) turns limits on states and outputs into a penalty, so that
    the recursion never meets more equations than it has unknowns; its rounds refine the answer as well.
    """
    at, out = active
    m = qp.B.shape[2]
    h = jnp.where(jnp.isfinite(qp.limits), qp.limits, 0)
    held = at[:, :, :m]
    free = ~(held[0] | held[1])
    us = jnp.where(held[0], h[0, :, :m], jnp.where(held[1], -h[1, :, :m], 0))
    others = (jnp.arange(at.shape[2]) >= m)[None, None, :, None]
    at = at & others
    weight = jnp.where(at, stiff, 0) + jnp.where(out, qp.quadratic, 0)
    factors = horizon_qp.factor(qp, jnp.sum(weight, 0), free)
    xs = jnp.zeros((len(us) + 1, *qp.x0.shape), us.dtype).at[0].set(qp.x0)
    slope = jnp.where(jnp.isfinite(qp.linear), qp.linear, 0)
    point = PrimalDual(xs, us, jnp.zeros_like(xs[1:]), jnp.where(out, slope, 0))

    least, most = (rounds, rounds) if rounds else (_ROUNDS, _MOST) if at.shape[2] > m else (1, 1)

    def go_on(state: tuple[Array, Array, PrimalDual]) -> Array:
        return (state[0] < least) | ((state[0] < most) & jnp.any(state[1]))

    def refined(state: tuple[Array, Array, PrimalDual]) -> tuple[Array, Array, PrimalDual]:
        rounds, _, point = state
        xs, us, costates, multipliers = point
        away = signed(limited(qp, xs, us)) - h
        step = jnp.where(at, stiff * away, jnp.where(out, slope + qp.quadratic * away - multipliers, 0))
        gradients = residuals(qp, point, net(multipliers + step))
        dx, du, dp = horizon_qp.solve(qp, factors, free, *gradients, jnp.zeros_like(qp.x0))
        step = step + weight * signed(limited(qp, dx, du))
        moving = jnp.any(jnp.abs(step) > NOTHING * jnp.max(jnp.abs(multipliers), (0, 1, 2)), (0, 1, 2))
        return rounds + 1, moving, PrimalDual(xs + dx, us + du, costates + dp, multipliers + step)

    state = (jnp.zeros((), int), jnp.ones(qp.x0.shape[-1], bool), point)
    return closed(qp, jax.lax.while_loop(go_on, refined, state)[2], held)


def closed(qp: HorizonQP, point: PrimalDual, held: Bool[Array, "2 T m W"]) -> PrimalDual:
    """The point with the multipliers of held inputs, which are what their gradients are short of."""
    m = held.shape[2]
    multipliers = point.multipliers.at[:, :, :m].set(jnp.where(held, 0, point.multipliers[:, :, :m]))
    along_u = residuals(qp, point, net(multipliers))[1]
    return point._replace(multipliers=multipliers.at[:, :, :m].add(jnp.where(held, -signed(along_u), 0)))


def next_set(qp: HorizonQP, point: PrimalDual, active: ActiveSet) -> ActiveSet:
    """The guess after a step: limits that are exceeded are held, those that hold back the wrong way let go."""
    at, out = active
    v, multipliers = limited(qp, point.xs, point.us), point.multipliers
    over = signed(v) - qp.limits
    size = jnp.max(jnp.abs(v), (0, 1)) * NOTHING
    force = jnp.max(jnp.abs(multipliers), (0, 1, 2)) * NOTHING
    beyond = multipliers > qp.linear + force  # dearer than to exceed it
    at, out = (
        jnp.where(out, over <= size, jnp.where(at, (multipliers > -force) & ~beyond, over > size)),
        jnp.where(out, over > size, at & beyond),
    )
    smooth = qp.linear == 0  # the price has no kink at the limit: nothing is held there
    both = smooth & (qp.limits == -qp.limits[::-1])  # an equation with a price: one side is always exceeded
    above = jnp.stack([over[1] <= size, over[1] > size])
    at, out = at & ~smooth, jnp.where(both, above, jnp.where(smooth, over > size, out))
    same = equal(qp)
    return ActiveSet((at & ~jnp.any(same, 0)) | same, out)


def careful(
    old: Bool[Array, "sets 2 T rows W"], new: Bool[Array, "sets 2 T rows W"], caution: Int[Array, "2 W"]
) -> tuple[Bool[Array, "sets 2 T rows W"], Int[Array, "2 W"]]:
    """The next guess: the new one, or, when the limits that change do not become fewer, only its first in time.

    Caution: the fewest limits that have changed in a step, and how many more steps may change all.

    Source: J. J. Júdice and F. M. Pires, Comput. Oper. Res. 21 (1994): block principal pivoting, which ends.
    """
    changed = new != old
    count = jnp.sum(changed, (0, 1, 2, 3))
    fewest, left = caution
    nearer = count < fewest
    left = jnp.where(nearer, jnp.maximum(left, _PATIENCE), left - 1)
    first = jnp.argmax(jnp.any(changed, (0, 1, 3)), 0) == jnp.arange(old.shape[2])[:, None]
    return jnp.where(first[:, None] | (left >= 0), new, old), jnp.stack([jnp.minimum(count, fewest), left])


def caution(width: int, patience: int = 0) -> Int[Array, "2 W"]:
    """That to begin with: at least ``patience`` steps may change all."""
    return jnp.stack([jnp.full(width, jnp.iinfo(int).max), jnp.full(width, patience)])


def search(
    qp: HorizonQP, active: ActiveSet, caution: Int[Array, "2 W"], stiff: Float[Array, "T rows W"], steps: int
) -> Answer:
    """Primal–dual active-set steps until every problem's guess stays, but ``steps`` at most.

    Source: M. Hintermüller, K. Ito and K. Kunisch, SIAM J. Optim. 13 (2002): the semismooth Newton method of a limited
    problem. It ends in a few steps or goes in circles: then :func:`careful` ones are taken.
    """

    def go_on(state: tuple) -> Array:
        step, _, _, _, done = state
        return (step < steps) & ~jnp.all(done)

    def improve(state: tuple) -> tuple:
        step, active, caution, _, _ = state
        point = on_active_set(qp, active, stiff)
        old, new = jnp.stack(active), jnp.stack(next_set(qp, point, active))
        done = jnp.all(old == new, (0, 1, 2, 3))
        new, caution = careful(old, new, caution)
        return step + 1, ActiveSet(new[0], new[1]), caution, point, done

    nothing = jnp.zeros_like(qp.x0)
    T, m = len(qp.limits[0]), qp.B.shape[2]
    width = qp.x0.shape[-1]
    empty = PrimalDual(
        jnp.broadcast_to(nothing, (T + 1, *nothing.shape)),
        jnp.zeros((T, m, width), nothing.dtype),
        jnp.broadcast_to(nothing, (T, *nothing.shape)),
        jnp.zeros(qp.limits.shape, nothing.dtype),
    )
    state = (jnp.zeros((), int), active, caution, empty, jnp.zeros(width, bool))
    _, active, caution, point, _ = jax.lax.while_loop(go_on, improve, state)
    return Answer(point, active, caution, residual(qp, point))
