"""Lyapunov equations by doubling, matrix products only, so on any device; and what a loop costs, which solves one."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter, matmul
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import Arrays, eye, mul, t
from lqrlab.control import matrix_checks
from lqrlab.control.discretization import Sampled

M = TypeVar("M", Array, np.ndarray)
_BALANCING = 24
_UNCERTAIN = 4  # bits: a loop is stable if its powers halve before rounding has changed them by some 2⁻⁴
_UNEVEN = 1e3  # a ratio of sums of a row and a column that costs digits
_MOVED = 4  # times n units of rounding: so far a matrix's entries may be from those that were meant, relative


def even_units(a: Float[Array, "n n batch"], uneven: float) -> Float[Array, "n batch"]:
    """d that evens out the rows and columns of a in x = D x̃, D = diag(d), where their sums differ by ``uneven``.

    Source: D. Ruiz, A scaling algorithm to equilibrate both rows and columns norms in matrices (2001).
    """
    size = jnp.abs(a) * (1 - eye(len(a), a))  # no scaling changes the diagonal

    def more(state: tuple) -> Array:
        _, change, k = state
        return jnp.any((change > uneven) | (change < 1 / uneven)) & (k < _BALANCING)

    def once(state: tuple) -> tuple:
        d, _, k = state
        now = size * d[None] / d[:, None]
        ratio = jnp.sum(now, axis=1) / jnp.sum(now, axis=0)
        ratio = jnp.where((ratio > 0) & (ratio < jnp.inf), ratio, 1.0)
        return d * ratio**0.25, ratio, k + 1

    start = jnp.ones_like(a[0])
    return jax.lax.while_loop(more, once, once((start, start, 0)))[0]


def smith(
    a: Float[Arrays, "n n batch"], q: Float[Arrays, "n n #batch"], tolerance: float
) -> tuple[Float[Arrays, "n n batch"], Float[Arrays, " batch"]]:
    """X = Σ aᵏ q (aᵀ)ᵏ, the solution of X = a X aᵀ + q, by squaring a; and some Σ ‖aᵏ‖, infinite if unstable.

    Each squaring doubles the number of terms: X ← X + aXaᵀ, a ← a². It ends when the next terms are below the
    square of ``tolerance``, relative, or after so many squarings that rounding decides about a slower loop's modes.

    Source: R. A. Smith, Matrix equation XA + BX = C, SIAM J. Appl. Math. 16 (1968).
    """
    beyond = float(jnp.finfo(a.dtype).max) ** (1 / 3)  # the sum of such terms overflows
    most = jnp.finfo(a.dtype).nmant - _UNCERTAIN

    def more(state: tuple) -> Arrays:
        _, _, change, _, _, k = state
        # the norm of the power bounds the relative size of the next term by its square;
        # a problem that has overflowed has its answer too: none
        return ((change > tolerance) & (change < beyond)).any() & (k < most)

    def double(state: tuple) -> tuple:
        a, x, change, reach, samples, k = state
        x = x + mul(mul(a, x), t(a))
        a = mul(a, a)
        return a, x, batch_last.row_sum(a), reach + samples * change, 2 * samples, k + 1

    change = batch_last.row_sum(a)
    one = 0 * change + 1
    _, x, change, reach, *_ = batch_last.repeat_while(more, double, (a, q, change, one, one, 0))
    return x, batch_last.library(x).where(change < 0.5, reach, jnp.inf)


def cayley(
    a: Float[Arrays, "n n batch"], q: Float[Arrays, "n n batch"], *, pivoted: bool = False
) -> tuple[Float[Arrays, "n n batch"], Float[Arrays, "n n batch"]]:
    """a, q of :func:`smith` with the solution of a X + X aᵀ + q = 0.

    The transform (s + a)(s − a)⁻¹, its shift s of the size of a's modes, is as stable as a in continuous time.
    """
    one = eye(a.shape[0], a)
    size = batch_last.norm(a) / a.shape[0] ** 0.5
    shift = batch_last.library(a).where(size > 0, size, 1.0)[None, None]
    apart = shift * one - a
    inverse = batch_last.pivoted(apart, jnp.broadcast_to(one, a.shape)) if pivoted else batch_last.inverse(apart)
    return 2 * shift * inverse - one, 2 * shift * mul(mul(inverse, q), t(inverse))


def _bounded(a: Array, q: Array, *, continuous: bool) -> Array:
    """The solution, NaN where a is not stable but for rounding; the units of the states do not matter."""
    tolerance, eps = float(jnp.finfo(a.dtype).eps) ** 0.5 / 4, float(np.finfo(float).eps)
    own = eps * jnp.max(jnp.abs(jnp.diagonal(a)), axis=1)  # what couples one way alone is uneven, too
    d = 2.0 ** jnp.round(jnp.log2(even_units(jnp.where(a == 0, own, a), _UNEVEN)))  # powers of two: exact
    both = d[:, None] * d[None]
    a, q = a * d[None] / d[:, None], q / both
    a, q = cayley(a, q, pivoted=True) if continuous else (a, q)
    x, reach = smith(a, q, tolerance)
    sure = _MOVED * len(a) * eps * batch_last.norm(a) * reach < 1  # smaller changes leave it stable
    return jnp.where(sure[None, None], x * both, jnp.nan)


_SOLVERS = {c: batch_last.solver(2, 2)(partial(_bounded, continuous=c)) for c in (True, False)}


@partial(jax.jit, static_argnames="continuous")
def solve_lyapunov(
    a: Float[Array, "*batch n n"], q: Float[Array, "*batch n n"], *, continuous: bool
) -> Float[Array, "*batch n n"]:
    """X of a X + X aᵀ + q = 0 or of X = a X aᵀ + q, equal leading axes; differentiable to any order, being linear."""
    solve = _SOLVERS[continuous]
    return jax.lax.custom_linear_solve(
        lambda x: -(a @ x + x @ a.mT) if continuous else x - a @ x @ a.mT,
        q,
        solve=lambda _, q: solve(a, q),
        transpose_solve=lambda _, q: solve(a.mT, q),
    )


def dlyap(A: ArrayLike, Q: ArrayLike) -> Float[Array, "*batch n n"]:
    """Solve A X Aᵀ − X + Q = 0.

    Args:
        A: ``[..., n, n]``, spectral radius below 1.
        Q: ``[..., n, n]``, symmetric or not.

    Returns:
        X ``[..., n, n]``; NaN where A is unstable and the sum that X is does not exist.

    >>> control.dlyap([[0.5]], [[3.0]])
    Array([[4.]], dtype=float64)
    """
    return solve_lyapunov(*matrix_checks.matrices(A=(A, "nn"), Q=(Q, "nn")), continuous=False)


def lyap(A: ArrayLike, Q: ArrayLike) -> Float[Array, "*batch n n"]:
    """Solve A X + X Aᵀ + Q = 0.

    Args:
        A: ``[..., n, n]``, eigenvalues with negative real part.
        Q: ``[..., n, n]``.

    Returns:
        X ``[..., n, n]``; NaN where A is unstable.

    >>> control.lyap([[-0.5]], [[3.0]])
    Array([[3.]], dtype=float64)
    """
    return solve_lyapunov(*matrix_checks.matrices(A=(A, "nn"), Q=(Q, "nn")), continuous=True)


def stage_weight(
    Q: M, R: M, N: M, K: M, *, mul: Callable[[M, M], M] = matmul, t: Callable[[M], M] = attrgetter("mT")
) -> M:
    """The weight on x of xᵀQx + uᵀRu + 2xᵀNu with u = −Kx: Q + KᵀRK − NK − KᵀNᵀ.

    Args:
        Q, R, N: weights ``[*batch, n, n]``, ``[*batch, m, m]``, ``[*batch, n, m]``, NumPy's or JAX's.
        K: gain ``[*batch, m, n]``.
        mul, t: product and transpose, for matrices whose batch is not in front.

    Returns:
        ``[*batch, n, n]``.
    """
    if mul is matmul:
        given = {name: matrix_checks.real(name, a) for name, a in zip("QRNK", (Q, R, N, K))}
        matrix_checks.shapes(given, {"Q": "nn", "R": "mm", "N": "nm", "K": "mn"})
        Q, R, N, K = given.values()  # type: ignore[assignment]
    NK = mul(N, K)
    return Q + mul(t(K), mul(R, K)) - NK - t(NK)


def cost_to_go(problem: Sampled, K: ArrayLike) -> Float[Array, "*batch n n"]:
    """Cost matrix P of the loop u[t] = −K x[t]: cost x0ᵀP x0 from x0, for any K; batched, differentiable.

    Args:
        problem: the sampled plant and its weights, as from :func:`discretize`.
        K: gain ``[..., m, n]``.

    Returns:
        The solution of P = FᵀPF + Q + KᵀRK − NK − KᵀNᵀ with F = A − BK; NaN where the loop is unstable.
    """
    if not (isinstance(problem, tuple | list) and len(problem) == 5):
        raise ValueError(f"problem: expected A, B, Q, R, N, as from discretize, but found {type(problem).__name__}")
    given = zip("ABQRNK", (*problem, K), ("nn", "nm", "nn", "mm", "nm", "mn"))
    A, B, Q, R, N, K = matrix_checks.matrices(**{name: (a, letters) for name, a, letters in given})
    return _cost_to_go(A, B, Q, R, N, K)


@jax.jit
def _cost_to_go(A: Array, B: Array, Q: Array, R: Array, N: Array, K: Array) -> Array:
    return dlyap((A - B @ K).mT, stage_weight(Q, R, N, K))
