"""Lyapunov equations by doubling, and whether a matrix is stable: matrix products only, so any device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, t
from lqrlab.control import checks

_DOUBLINGS = 48  # 2^48 steps: a closed loop slower than that is not stable in floating point


def summed(a: Array, q: Array, tolerance: float, limit: int = _DOUBLINGS) -> tuple[Array, Array]:
    """Σ aᵏ q (aᵀ)ᵏ on lanes by squaring until what is left is below ``tolerance``; and whether a decays.

    Source: R. A. Smith, Matrix equation XA + BX = C, SIAM J. Appl. Math. 16 (1968).
    """

    def more(state: tuple) -> Array:
        a, _, k = state
        # the norm of the power bounds the relative size of the next term by its square
        change = batch_last.row_sum(a)
        # a lane that has overflowed has an answer too: none
        return jnp.any((change > tolerance) & (change < 1e12)) & (k < limit)

    def double(state: tuple) -> tuple:
        a, x, k = state
        x = x + mul(mul(a, x), t(a))
        a = mul(a, a)
        return a, x, k + 1

    a, x, _ = jax.lax.while_loop(more, double, (a, q, 0))
    return x, batch_last.row_sum(a) < 0.5


def cayley(a: Array, shift: Array) -> tuple[Array, Array]:
    """(shift − a)⁻¹ and (shift + a)(shift − a)⁻¹ on lanes: the second is inside the unit circle iff a decays."""
    n = a.shape[0]
    inverse = batch_last.inverse(shift[None, None] * eye(n, a) - a)
    return inverse, 2 * shift[None, None] * inverse - eye(n, a)


def shift_of(a: Array) -> Array:
    """A shift of the size of a's modes ``[lanes]``."""
    size = batch_last.norm(a) / a.shape[0] ** 0.5
    return jnp.where(size > 0, size, 1.0)


def _tolerance(a: Array) -> float:
    return float(jnp.finfo(a.dtype).eps) ** 0.5 / 4


@batch_last.over_lanes(2, 2)
def _smith(a: Array, q: Array) -> Array:
    x, decays = summed(a, q, _tolerance(a))
    return jnp.where(decays[None, None], x, jnp.nan)


def _cayley_pivoted(a: Array) -> tuple[Array, Array, Array]:
    shift = shift_of(a)
    n = a.shape[0]
    wide = jnp.broadcast_to(eye(n, a), a.shape)
    inverse = batch_last.pivoted(shift[None, None] * wide - a, wide)
    return shift, inverse, 2 * shift[None, None] * inverse - wide


@batch_last.over_lanes(2, 2)
def _smith_continuous(a: Array, q: Array) -> Array:
    shift, inverse, moved = _cayley_pivoted(a)
    x, decays = summed(moved, 2 * shift[None, None] * mul(mul(inverse, q), t(inverse)), _tolerance(a))
    return jnp.where(decays[None, None], x, jnp.nan)


def _transposed(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)


def solve_discrete(a: Array, q: Array) -> Array:
    """X = a X aᵀ + q, leading axes alike; differentiable to any order (the equation is linear)."""
    return jax.lax.custom_linear_solve(
        lambda x: x - a @ x @ _transposed(a),
        q,
        solve=lambda _, q: _smith(a, q),
        transpose_solve=lambda _, q: _smith(_transposed(a), q),
    )


def solve_continuous(a: Array, q: Array) -> Array:
    """a X + X aᵀ + q = 0, leading axes alike; differentiable to any order."""
    return jax.lax.custom_linear_solve(
        lambda x: -(a @ x + x @ _transposed(a)),
        q,
        solve=lambda _, q: _smith_continuous(a, q),
        transpose_solve=lambda _, q: _smith_continuous(_transposed(a), q),
    )


@batch_last.over_lanes(2)
def _stable(a: Array) -> Array:
    return summed(a, jnp.zeros_like(a), 0.4)[1]


@batch_last.over_lanes(2)
def _stable_continuous(a: Array) -> Array:
    return summed(_cayley_pivoted(a)[2], jnp.zeros_like(a), 0.4)[1]


def _both(A: ArrayLike, Q: ArrayLike) -> tuple[Array, ...]:
    A, Q = checks.matrices(A=(A, "nn"), Q=(Q, "nn"))
    lead = jnp.broadcast_shapes(A.shape[:-2], Q.shape[:-2])
    return tuple(jnp.broadcast_to(a, (*lead, *a.shape[-2:])) for a in (A, Q))


@jax.jit
def dlyap(A: ArrayLike, Q: ArrayLike) -> Array:
    """Solve A X Aᵀ − X + Q = 0.

    Args:
        A: ``[..., n, n]``, spectral radius below 1.
        Q: ``[..., n, n]``, symmetric or not.

    Returns:
        X ``[..., n, n]``; NaN where A is unstable and the sum that X is does not exist.
    """
    return solve_discrete(*_both(A, Q))


@jax.jit
def lyap(A: ArrayLike, Q: ArrayLike) -> Array:
    """Solve A X + X Aᵀ + Q = 0.

    Args:
        A: ``[..., n, n]``, eigenvalues with negative real part.
        Q: ``[..., n, n]``.

    Returns:
        X ``[..., n, n]``; NaN where A is unstable.
    """
    return solve_continuous(*_both(A, Q))


@partial(jax.jit, static_argnames="continuous")
def is_stable(A: ArrayLike, *, continuous: bool = False) -> Array:
    """Whether all modes of A decay.

    Args:
        A: ``[..., n, n]``: of x[t+1] = A x[t], or of ẋ = A x if ``continuous``.

    Returns:
        Booleans ``[...]``.
    """
    (A,) = checks.matrices(A=(A, "nn"))
    A = jax.lax.stop_gradient(A)
    # real parts below zero ⇔ the Cayley transform lies inside the unit circle; the shift is no eigenvalue of
    # a stable A, and of an unstable one the transform only grows
    return (_stable_continuous if continuous else _stable)(A)
