"""From a continuous plant and cost to what a sampled controller sees: exact zero-order hold, exact cost.

Source: C. F. Van Loan, Computing integrals involving the matrix exponential, IEEE Trans. Autom. Control 23(3)
(1978), theorem 1 and section III (the integrals); the doubling of the step replaces his block exponential,
which overflows for fast stable modes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg
from lqrlab.control import checks

_SQUARINGS = 24
_TERMS = 18


class Sampled(NamedTuple):
    """A sampled problem: x[t+1] = A x[t] + B u[t] and the exact cost Σ xᵀQx + uᵀRu + 2xᵀNu of the held input.

    ``A [..., n, n]``, ``B [..., n, m]``, ``Q [..., n, n]``, ``R [..., m, m]``, ``N [..., n, m]``.
    """

    A: Array
    B: Array
    Q: Array
    R: Array
    N: Array


def _flow(M: Array, W: Array, dt: Array) -> tuple[Array, Array]:
    """exp(M dt) and ∫₀^dt exp(M t)ᵀ W exp(M t) dt: Taylor series over a short step, which is then doubled."""
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(M), axis=1)) * dt)
    squarings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(2 * size, 1e-300))), 0, _SQUARINGS)
    h = dt / 2.0**squarings
    eye = jnp.eye(M.shape[0], dtype=M.dtype)
    flow, term = eye, eye
    lie, total = W * h, W * h
    for k in range(1, _TERMS + 1):
        term = term @ M * (h / k)
        flow = flow + term
        half = lie @ M * (h / (k + 1))
        lie = half + half.T  # (MᵀX + XM) h/(k+1)
        total = total + lie

    def double(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        flow, total = state
        live = k < squarings
        return jnp.where(live, flow @ flow, flow), jnp.where(live, total + flow.T @ total @ flow, total)

    return jax.lax.fori_loop(0, _SQUARINGS, double, (flow, total))


def sample_one(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array) -> Sampled:
    """One problem; see :func:`sample`."""
    n, m = B.shape
    M = jnp.zeros((n + m, n + m), A.dtype).at[:n, :n].set(A).at[:n, n:].set(B)
    flow, cost = _flow(M, jnp.block([[Q, N], [N.T, R]]), dt)
    cost = linalg.symmetric(cost)
    return Sampled(flow[:n, :n], flow[:n, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:])


@jax.jit
def _sample(*args: Array) -> Sampled:
    return broadcast(sample_one, *((a, 2) for a in args[:-1]), (args[-1], 0))


def sample(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, N: ArrayLike | None = None
) -> Sampled:
    """The sampled-data problem of ẋ = Ax + Bu with cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt and u held for dt.

    Args:
        A, B, Q, R, N: as in :func:`lqrlab.control.lqr`.
        dt: sample time [s], scalar or with the leading axes.
    """
    args = checks.arguments(A, B, Q, R, N)
    return _sample(*args, checks.sample_time(dt, args[0].dtype))


@jax.jit
def c2d(A: ArrayLike, B: ArrayLike, dt: ArrayLike) -> tuple[Array, Array]:
    """Exact zero-order hold of ẋ = Ax + Bu.

    Args:
        A: ``[..., n, n]`` [1/s].
        B: ``[..., n, m]``.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        ``(Ad, Bd)`` with x[t+1] = Ad x[t] + Bd u[t].
    """
    A, B = jnp.asarray(A), jnp.asarray(B)

    def one(A: Array, B: Array, dt: Array) -> tuple[Array, Array]:
        n, m = B.shape
        zero = jnp.zeros
        sampled = sample_one(A, B, zero((n, n), A.dtype), zero((m, m), A.dtype), zero((n, m), A.dtype), dt)
        return sampled.A, sampled.B

    return broadcast(one, (A, 2), (B, 2), (jnp.asarray(dt, A.dtype), 0))
