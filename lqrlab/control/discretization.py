"""From a continuous plant and cost to what a sampled controller sees: exact zero-order hold, exact cost.

Source: C. F. Van Loan, Computing integrals involving the matrix exponential, IEEE Trans. Autom. Control 23(3)
(1978), theorem 1 and section III (the integrals); the doubling of the step replaces his block exponential,
which overflows for fast stable modes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.control import checks

_SQUARINGS = 24
_TERMS = 13  # of the Taylor series over a step of norm 1/4: what is left out is below 1e-19


class Sampled(NamedTuple):
    """A sampled problem: x[t+1] = A x[t] + B u[t] and the exact cost Σ xᵀQx + uᵀRu + 2xᵀNu of the held input.

    ``A [..., n, n]``, ``B [..., n, m]``, ``Q [..., n, n]``, ``R [..., m, m]``, ``N [..., n, m]``.
    """

    A: Array
    B: Array
    Q: Array
    R: Array
    N: Array


def _flow(A: Array, B: Array, dt: Array, W: Array | None, rolled: bool) -> tuple[Array, Array | None]:
    """On lanes E = [Φ Γ] of the input held for dt ``[n, n + m]``, and ∫ [E; 0 I]ᵀ W [E; 0 I] dt.

    A Taylor series over a short step, which is then doubled: until the last member has its dt or, ``rolled``,
    a fixed number of masked times, which reverse differentiation can follow.
    """
    n, m = B.shape[:2]
    M = jnp.concatenate([A, B], axis=1)
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(M), axis=1), axis=0) * dt)
    tiny = float(jnp.finfo(A.dtype).tiny)
    squarings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(4 * size, tiny))), 0, _SQUARINGS)
    h = (dt / 2.0**squarings)[None, None]
    still = jnp.concatenate([eye(n, A), jnp.zeros((n, m, 1), A.dtype)], axis=1)

    def series(k: Array, state: tuple) -> tuple:
        flow, term, total, lie = state
        flow, term = flow + term, mul(A, term) * (h / (k + 1))
        if lie is not None:
            half = mul(lie[:, :n], M) * (h / (k + 1))
            lie = half + t(half)  # (MᵀX + XM) h/(k + 1), M padded to a square
            total = total + lie
        return flow, term, total, lie

    def double(k: Array, state: tuple) -> tuple:
        flow, total = state
        live = k < squarings
        twice = mul(flow[:, :n], flow).at[:, n:].add(flow[:, n:])
        if total is not None:
            later = mul(total[:, :n], flow).at[:, n:].add(total[:, n:])
            later = mul(t(flow), later[:n]).at[n:].add(later[n:])
            total = jnp.where(live, total + later, total)
        return jnp.where(live, twice, flow), total

    start = None if W is None else W * h
    flow = jnp.broadcast_to(still, M.shape)
    flow, _, total, _ = jax.lax.fori_loop(1, _TERMS + 1, series, (flow, M * h, start, start))
    last = _SQUARINGS if rolled else jnp.max(squarings).astype(int)
    return jax.lax.fori_loop(0, last, double, (flow, total))


def sampled(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rolled: bool = False) -> Sampled:
    """The sampled-data problem on lanes; dt ``[lanes]``."""
    n = len(A)
    W = jnp.concatenate([jnp.concatenate([Q, N], axis=1), jnp.concatenate([t(N), R], axis=1)])
    flow, cost = _flow(A, B, dt, W, rolled)
    assert cost is not None
    cost = symmetric(cost)
    return Sampled(flow[:, :n], flow[:, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:])


def _held(A: Array, B: Array, dt: Array, rolled: bool = False) -> tuple[Array, Array]:
    flow, _ = _flow(A, B, dt, None, rolled)
    return flow[:, : len(A)], flow[:, len(A) :]


def _differentiable(cores: tuple[int, ...], solve: Callable) -> Callable:
    """``solve`` on lanes as a function of arrays with broadcasting leading axes, differentiable to any order."""
    fast = batch_last.over_lanes(*cores)(solve)

    @jax.custom_jvp
    def call(*args: Array) -> Any:
        return fast(*args)

    @call.defjvp
    def rule(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        def slow(*args: Array) -> Any:
            lead = args[-1].shape
            out = solve(
                *(jnp.moveaxis(a.reshape(-1, *a.shape[len(lead) :]), 0, -1) for a in args), rolled=True
            )
            return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0).reshape(*lead, *a.shape[:-1]), out)

        return jax.jvp(slow, primals, tangents)

    return lambda *args: call(*batch_last.together(cores, *args))


sample_many = _differentiable((2, 2, 2, 2, 2, 0), sampled)
compiled = jax.jit(sample_many)
_c2d = jax.jit(_differentiable((2, 2, 0), _held))


def discretize(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, N: ArrayLike | None = None
) -> Sampled:
    """The sampled-data problem of ẋ = Ax + Bu with cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt and u held for dt.

    Args:
        A, B, Q, R, N: as in :func:`lqrlab.control.lqr`.
        dt: sample time [s], scalar or with the leading axes.
    """
    args = checks.arguments(A, B, Q, R, N)
    return compiled(*args, checks.sample_time(dt, args[0].dtype))


def c2d(A: ArrayLike, B: ArrayLike, dt: ArrayLike) -> tuple[Array, Array]:
    """Exact zero-order hold of ẋ = Ax + Bu.

    Args:
        A: ``[..., n, n]`` [1/s].
        B: ``[..., n, m]``.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        ``(Ad, Bd)`` with x[t+1] = Ad x[t] + Bd u[t].

    Raises:
        ValueError: shapes that do not go together; outside a trace also dt ≤ 0.
    """
    A, B = checks.matrices(A=(A, "nn"), B=(B, "nm"))
    return _c2d(A, B, checks.sample_time(dt, A.dtype))
