"""The sampled-data problem of a continuous plant and cost: exact zero-order hold, exact cost.

Source: C. F. Van Loan, Computing integrals involving the matrix exponential, IEEE Trans. Autom. Control 23(3) (1978),
theorem 1 and section III (the integrals). The step is doubled: his block exponential overflows for fast stable modes.
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
from lqrlab.compute.linalg.batch_last import Arrays, mul, symmetric, t
from lqrlab.control import matrix_checks

_SQUARINGS = {4: 120, 8: 1000}  # by bytes of a number: reach from a step of norm 1/4 to any dt that it holds
_ROLLED = 32  # of them where reverse differentiation follows: NaN for a dt beyond
_TERMS = 13  # of the Taylor series over a step of norm 1/4: the remainder is below 1e-19


class Sampled(NamedTuple):
    """A sampled problem: x[t+1] = A x[t] + B u[t] and the exact cost Σ xᵀQx + uᵀRu + 2xᵀNu of the held input."""

    A: Float[Arrays, "*batch n n"]
    B: Float[Arrays, "*batch n m"]
    Q: Float[Arrays, "*batch n n"]
    R: Float[Arrays, "*batch m m"]
    N: Float[Arrays, "*batch n m"]


def _squarings_of(M: Arrays, dt: Arrays, most: int) -> tuple[Arrays, Arrays]:
    """Number of doublings of a short step that reach dt ``[batch]``, and that step: its norm is at most 1/4."""
    library = batch_last.library(M)
    size = abs(M).sum(axis=1).max(axis=0) * dt
    if library is jnp:
        size = jax.lax.stop_gradient(size)
    tiny = float(jnp.finfo(M.dtype).tiny)
    squarings = library.ceil(library.log2(library.maximum(4 * size, tiny)))
    reached = squarings <= most  # not of a member that is not finite, for whose sake the others must be doubled too
    squarings = library.maximum(library.where(reached, squarings, 0.0), 0.0)
    return squarings, library.where(reached, dt / 2.0**squarings, np.nan)[None, None]


def _flow(A: Arrays, B: Arrays, dt: Arrays, W: Arrays, rolled: bool) -> tuple[Arrays, Arrays]:
    """E = [Φ Γ] of the input held for dt ``[n, n + m, batch]``, and ∫ [E; 0 I]ᵀ W [E; 0 I] dt.

    A Taylor series over a short step h, which is then doubled: for D = [Φ−I Γ], D(2h) = 2D + (Φ−I)D, in which slow
    modes keep their digits beside fast ones, and the integral gains itself moved on by one step. ``rolled`` doubles a
    fixed number of times, masked, which reverse differentiation can follow.
    """
    (n, m), library = B.shape[:2], batch_last.library(A)
    M = library.concatenate([A, B], axis=1)
    of_u = np.arange(n + m)[:, None] >= n  # columns, and as [:, None] rows, that belong to the input
    squarings, h = _squarings_of(M, dt, _ROLLED if rolled else _SQUARINGS[M.dtype.itemsize])

    def series(k: Arrays, state: tuple) -> tuple:
        flow, term, total, lie = state
        flow, term = flow + term, mul(A, term) * (h / (k + 1))
        half = mul(lie[:, :n], M) * (h / (k + 1))
        lie = half + t(half)  # (MᵀX + XM) h/(k + 1), M padded to a square
        return flow, term, total + lie, lie

    def double(k: Arrays, state: tuple) -> tuple:
        flow, total = state
        short = k < squarings
        full = still + flow
        later = mul(total[:, :n], full) + library.where(of_u, total, 0.0)
        later = mul(t(full), later[:n]) + library.where(of_u[:, None], later, 0.0)
        doubled = 2 * flow + mul(flow[:, :n], flow)
        return library.where(short, doubled, flow), library.where(short, total + later, total)

    start = W * h
    still = np.eye(n, n + m, dtype=A.dtype)[:, :, None]
    flow, _, total, _ = batch_last.repeat(1, _TERMS + 1, series, (library.zeros_like(M), M * h, start, start))
    last = _ROLLED if rolled else squarings.max(initial=0).astype(int)
    flow, total = batch_last.repeat(0, last, double, (flow, total))
    return still + flow, total


def sampled(A: Arrays, B: Arrays, Q: Arrays, R: Arrays, N: Arrays, dt: Arrays, rolled: bool = False) -> Sampled:
    """The sampled-data problem with the batch on the last axis; dt ``[batch]``."""
    n, join = len(A), batch_last.library(A).concatenate
    W = join([join([Q, N], axis=1), join([t(N), R], axis=1)])
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
        return Sampled(*(as_jax(a.astype(args[0].dtype)) for a in sampled_on_host(*args)))
    return _compiled(*args)


def _on_host(args: tuple[Any, ...]) -> bool:
    lead = np.broadcast_shapes(args[-1].shape, *(a.shape[:-2] for a in args[:-1]))
    return not traced(*args) and matrix_checks.few(lead)


def sampled_on_host(*args: Array | np.ndarray) -> Sampled:
    """As :func:`compiled`, by NumPy in double precision."""
    return batch_last.on_host(sampled, _CORES, args)


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
