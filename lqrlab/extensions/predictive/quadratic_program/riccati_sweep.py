"""The Newton step of a horizon's program by a Riccati recursion: matrices and vectors backwards, then forwards."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import matvec, mul, t
from lqrlab.extensions.predictive.quadratic_program.horizon_qp import HorizonQP, has_states


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
