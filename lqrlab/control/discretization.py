"""The sampled-data problem of a continuous plant and cost: exact zero-order hold, exact cost.

Source: C. F. Van Loan, Computing integrals involving the matrix exponential, IEEE Trans. Autom. Control 23(3)
(1978), theorem 1 and section III (the integrals); the doubling of the step replaces his block exponential,
which overflows for fast stable modes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import as_jax
from lqrlab.compute.checks import traced
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, symmetric, t
from lqrlab.control import matrix_checks

_SQUARINGS = {4: 120, 8: 1000}  # by bytes of a number: reach from a step of norm 1/4 to any dt that it holds
_ROLLED = 32  # of them where reverse differentiation follows: NaN for a dt beyond
_TERMS = 13  # of the Taylor series over a step of norm 1/4: the remainder is below 1e-19


class Sampled(NamedTuple):
    """A sampled problem: x[t+1] = A x[t] + B u[t] and the exact cost Σ xᵀQx + uᵀRu + 2xᵀNu of the held input."""

    A: Float[Array, "*batch n n"]
    B: Float[Array, "*batch n m"]
    Q: Float[Array, "*batch n n"]
    R: Float[Array, "*batch m m"]
    N: Float[Array, "*batch n m"]


def _squarings_of(M: Array, dt: Array, most: int) -> tuple[Array, Array]:
    """Number of doublings of a short step that reach dt ``[batch]``, and that step: its norm is at most 1/4."""
    size = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(M), axis=1), axis=0) * dt)
    tiny = float(jnp.finfo(M.dtype).tiny)
    squarings = jnp.ceil(jnp.log2(jnp.maximum(4 * size, tiny)))
    reached = squarings <= most  # not of a member that is not finite, for whose sake the others must be doubled too
    squarings = jnp.clip(jnp.where(reached, squarings, 0.0), 0.0)
    return squarings, jnp.where(reached, dt / 2.0**squarings, jnp.nan)[None, None]


def _flow(A: Array, B: Array, dt: Array, W: Array, rolled: bool) -> tuple[Array, Array]:
    """E = [Φ Γ] of the input held for dt ``[n, n + m, batch]``, and ∫ [E; 0 I]ᵀ W [E; 0 I] dt.

    A Taylor series over a short step h, which is then doubled: for D = [Φ−I Γ], D(2h) = 2D + (Φ−I)D, in which slow
    modes keep their digits beside fast ones, and the integral gains itself moved on by one step. The doubling ends
    when the last problem has its dt or, ``rolled``, after a fixed number of masked times, which reverse
    differentiation can follow.
    """
    n, m = B.shape[:2]
    M = jnp.concatenate([A, B], axis=1)
    squarings, h = _squarings_of(M, dt, _ROLLED if rolled else _SQUARINGS[M.dtype.itemsize])

    def series(k: Array, state: tuple) -> tuple:
        flow, term, total, lie = state
        flow, term = flow + term, mul(A, term) * (h / (k + 1))
        half = mul(lie[:, :n], M) * (h / (k + 1))
        lie = half + t(half)  # (MᵀX + XM) h/(k + 1), M padded to a square
        return flow, term, total + lie, lie

    def double(k: Array, state: tuple) -> tuple:
        flow, total = state
        short = k < squarings
        full = still + flow
        later = mul(total[:, :n], full).at[:, n:].add(total[:, n:])
        later = mul(t(full), later[:n]).at[n:].add(later[n:])
        doubled = 2 * flow + mul(flow[:, :n], flow)
        return jnp.where(short, doubled, flow), jnp.where(short, total + later, total)

    start = W * h
    still = jnp.concatenate([eye(n, A), jnp.zeros((n, m, 1), A.dtype)], axis=1)
    flow, _, total, _ = jax.lax.fori_loop(1, _TERMS + 1, series, (jnp.zeros_like(M), M * h, start, start))
    last = _ROLLED if rolled else jnp.max(squarings, initial=0).astype(int)
    flow, total = jax.lax.fori_loop(0, last, double, (flow, total))
    return still + flow, total


def sampled(A: Array, B: Array, Q: Array, R: Array, N: Array, dt: Array, rolled: bool = False) -> Sampled:
    """The sampled-data problem with the batch on the last axis; dt ``[batch]``."""
    n = len(A)
    W = jnp.concatenate([jnp.concatenate([Q, N], axis=1), jnp.concatenate([t(N), R], axis=1)])
    flow, cost = _flow(A, B, dt, W, rolled)
    cost = symmetric(cost)
    return Sampled(flow[:, :n], flow[:, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:])


_CORES = (2, 2, 2, 2, 2, 0)  # core dimensions of A, B, Q, R, N, dt
_solve = batch_last.solver(*_CORES)(sampled)
_sampled_problems = jax.custom_jvp(lambda *args: _solve(*args))


@_sampled_problems.defjvp
def _tangent(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Sampled, Sampled]:
    solve: Callable[..., Sampled] = partial(sampled, rolled=True)

    def slow(*args: Array) -> Sampled:
        lead = args[-1].shape
        out = solve(*(jnp.moveaxis(a.reshape(-1, *a.shape[len(lead) :]), 0, -1) for a in args))
        return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0).reshape(*lead, *a.shape[:-1]), out)

    return jax.jvp(slow, primals, tangents)


def sample_many(*args: Any) -> Sampled:
    """The sampled problems of A, B, Q, R, N and dt whose leading axes broadcast, differentiable to any order."""
    return _sampled_problems(*batch_last.together(_CORES, *args))


_compiled = jax.jit(sample_many)
_flows = jax.jit(lambda *args: sample_many(*args)[:2])  # of whose costs the compiler makes nothing


def compiled(*args: Any) -> Sampled:
    """The sampled problems of A, B, Q, R, N and dt whose leading axes broadcast; on the host where they are few."""
    if _on_host(args):
        return Sampled(*(as_jax(a.astype(args[0].dtype)) for a in sampled_on_host(*map(np.asarray, args))))
    return _compiled(*args)


def _on_host(args: tuple[Any, ...]) -> bool:
    lead = np.broadcast_shapes(args[-1].shape, *(a.shape[:-2] for a in args[:-1]))
    return not traced(*args) and matrix_checks.few(lead)


def sampled_on_host(
    A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, dt: np.ndarray
) -> Sampled:
    """As :func:`compiled`, by NumPy in double precision."""
    n = A.shape[-1]
    lead = np.broadcast_shapes(dt.shape, *(a.shape[:-2] for a in (A, B, Q, R, N)))
    A, B, Q, R, N = (np.broadcast_to(np.asarray(a, float), (*lead, *a.shape[-2:])) for a in (A, B, Q, R, N))
    W = np.concatenate([np.concatenate([Q, N], -1), np.concatenate([N.mT, R], -1)], -2)
    flow, cost = _flow_on_host(A, B, np.broadcast_to(np.asarray(dt, float), lead), W)
    cost = (cost + cost.mT) / 2
    parts = cost[..., :n, :n], cost[..., n:, n:], cost[..., :n, n:]
    return Sampled(flow[..., :n], flow[..., n:], *parts)  # type: ignore[arg-type]


def _flow_on_host(A: np.ndarray, B: np.ndarray, dt: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_flow` with the batch in front."""
    n, M = A.shape[-1], np.concatenate([A, B], axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite say so in the result
        size = np.abs(M).sum(-1).max(-1) * dt
        squarings = np.ceil(np.log2(np.maximum(4 * size, np.finfo(float).tiny)))
        squarings = np.clip(np.nan_to_num(squarings), 0, _SQUARINGS[8])[..., None, None]
        h = dt[..., None, None] / 2.0**squarings
        still, flow, term = np.eye(n, M.shape[-1]), np.zeros_like(M), M * h
        total = lie = W * h
        for k in range(1, _TERMS + 1):
            flow, term = flow + term, A @ term * (h / (k + 1))
            half = lie[..., :n] @ M * (h / (k + 1))
            lie = half + half.mT
            total = total + lie
        for k in range(int(squarings.max(initial=0))):
            full = still + flow
            moved = total[..., :n] @ full
            moved[..., n:] += total[..., n:]
            later = full.mT @ moved[..., :n, :]
            later[..., n:, :] += moved[..., n:, :]
            short = k < squarings
            flow = np.where(short, 2 * flow + flow[..., :n] @ flow, flow)
            total = np.where(short, total + later, total)
        return still + flow, total


def discretize(
    A: ArrayLike, B: ArrayLike, Q: ArrayLike, R: ArrayLike, dt: ArrayLike, N: ArrayLike | None = None
) -> Sampled:
    """The sampled-data problem of ẋ = Ax + Bu with cost ∫ xᵀQx + uᵀRu + 2xᵀNu dt and u held for dt.

    Args:
        A, B, Q, R, N: as in :func:`lqrlab.control.lqr`.
        dt: sample time [s], scalar or with the leading axes.

    >>> float(control.discretize([[0.0]], [[1.0]], [[3.0]], [[1.0]], 1.0).R[0, 0].round(6))  # ∫ 1 + 3 t² dt
    2.0
    """
    args = matrix_checks.arguments(A, B, Q, R, N)
    return compiled(*args, matrix_checks.sample_time(dt, args[0].dtype, *args))


def c2d(A: ArrayLike, B: ArrayLike, dt: ArrayLike) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch n m"]]:
    """Exact zero-order hold of ẋ = Ax + Bu.

    Args:
        A: ``[..., n, n]`` [1/s].
        B: ``[..., n, m]``.
        dt: sample time [s], scalar or with the leading axes.

    Returns:
        ``(Ad, Bd)`` with x[t+1] = Ad x[t] + Bd u[t].

    Raises:
        ValueError: shapes that do not go together; outside a trace also dt ≤ 0.

    >>> A, B = control.c2d([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], 0.1)
    >>> np.asarray(A).round(6).tolist(), np.asarray(B).round(6).tolist()
    ([[1.0, 0.1], [0.0, 1.0]], [[0.005], [0.1]])
    """
    A, B = matrix_checks.matrices(A=(A, "nn"), B=(B, "nm"))
    step = matrix_checks.sample_time(dt, A.dtype, A, B)
    n, m = B.shape[-2:]
    none = (np.zeros(shape, A.dtype) for shape in ((n, n), (m, m), (n, m)))
    args: tuple[Any, ...] = (A, B, *none, step)
    return compiled(*args)[:2] if _on_host(args) else _flows(*args)
