"""Plants drawn from a belief, and their optimal gains."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from lqrlab.compute.linalg import batch_last
from lqrlab.control.riccati.doubling import doubled
from lqrlab.extensions.unknown.belief import Belief
from lqrlab.systems import N_MAX


def likeliest_at_large(belief: Belief, exists: Array, m: int) -> tuple[Array, Array, Array]:
    """θ, covariances of its rows, and which rows are positions and which not, of the likeliest plants at large."""
    size, n = jnp.argmax(belief.odds[: len(belief.theta)]), len(exists)
    kept = jnp.asarray([*range(n), *range(N_MAX, N_MAX + m)])
    theta, spread = belief.theta[size][kept][:, :n], belief.spread[size][:, kept][:, :, kept]
    return theta, spread, jnp.stack([belief.position[:n], exists - belief.position[:n]])


def drawn(
    theta: Float[Array, "z n"], spread: Float[Array, "2 z z"], rows: Float[Array, "2 n"], key: PRNGKeyArray, num: int
) -> Float[Array, "z n num"]:
    """Plants drawn from what is believed of one."""
    white = jax.random.normal(key, (*theta.shape, num), float)
    moved = jnp.einsum("gzy,ynd,gn->znd", jax.vmap(_root)(spread), white, rows)
    return (theta[..., None] + moved) * jnp.sum(rows, 0)[None, :, None]


def optimum(theta: Float[Array, "z n num"]) -> tuple[Array, Array, Array]:
    """P ``[n, n, num]``, K ``[m, n, num]`` for Q = R = I, and whether each was found ``[num]``."""
    n = theta.shape[1]
    A, B = batch_last.t(theta[:n]), batch_last.t(theta[n:])
    P = doubled(A, batch_last.mul(B, batch_last.t(B)), jnp.broadcast_to(batch_last.eye(n, A), A.shape))
    PB = batch_last.mul(P, B)
    S = batch_last.eye(B.shape[1], A) + batch_last.mul(batch_last.t(B), PB)
    K = batch_last.mul(batch_last.inverse(S), batch_last.mul(batch_last.t(PB), A))
    cost = jnp.trace(P)
    return P, K, jnp.isfinite(cost) & (cost > 0) & jnp.all(jnp.isfinite(K), axis=(0, 1))


def _root(S: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """L with L Lᵀ = S ≥ 0, column by column: LAPACK's, called for many at once, can stop for ever on two cores."""
    least = 1e-13 * jnp.max(jnp.diagonal(S))  # what is left below it is rounding

    def column(S: Array, i: Array) -> tuple[Array, Array]:
        v = jnp.where(S[i, i] > least, S[:, i] / jnp.sqrt(jnp.maximum(S[i, i], least)), 0.0)
        return S - v[:, None] * v[None], v

    return jax.lax.scan(column, S, jnp.arange(len(S)))[1].T
