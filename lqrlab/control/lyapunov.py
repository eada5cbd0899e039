"""Lyapunov equations by doubling, and whether a matrix is stable: matrix products only, so any device."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from lqrlab.compute.linalg import batch_last
from lqrlab.compute.linalg.batch_last import eye, mul, t
from lqrlab.control import checks

_DOUBLINGS = 48  # 2^48 steps: a closed loop slower than that is not stable in floating point


# With the batch on the last axis -----------------------------------------------------------------------------


def smith(
    a: Float[Array, "n n batch"], q: Float[Array, "n n #batch"], tolerance: float, limit: int = _DOUBLINGS
) -> tuple[Float[Array, "n n batch"], Bool[Array, " batch"]]:
    """X = Σ aᵏ q (aᵀ)ᵏ, the solution of X = a X aᵀ + q, by squaring a; and whether a is stable.

    Each squaring doubles the number of terms: X ← X + aXaᵀ, a ← a². It ends when the next terms are below the
    square of ``tolerance``, relative, or after ``limit`` squarings.

    Source: R. A. Smith, Matrix equation XA + BX = C, SIAM J. Appl. Math. 16 (1968).
    """

    def more(state: tuple) -> Array:
        a, _, k = state
        # the norm of the power bounds the relative size of the next term by its square
        change = batch_last.row_sum(a)
        # a problem that has overflowed has its answer too: none
        return jnp.any((change > tolerance) & (change < 1e12)) & (k < limit)

    def double(state: tuple) -> tuple:
        a, x, k = state
        x = x + mul(mul(a, x), t(a))
        a = mul(a, a)
        return a, x, k + 1

    a, x, _ = jax.lax.while_loop(more, double, (a, q, 0))
    return x, batch_last.row_sum(a) < 0.5


def cayley(a: Float[Array, "n n batch"], *, pivoted: bool = False) -> tuple[Array, Array, Array]:
    """A shift s of the size of a's modes, (s − a)⁻¹ and the Cayley transform (s + a)(s − a)⁻¹.

    The transform lies inside the unit circle exactly if a is stable in continuous time.
    """
    one = eye(a.shape[0], a)
    size = batch_last.norm(a) / a.shape[0] ** 0.5
    shift = jnp.where(size > 0, size, 1.0)[None, None]
    inverse = (
        batch_last.pivoted(shift * one - a, jnp.broadcast_to(one, a.shape))
        if pivoted
        else batch_last.inverse(shift * one - a)
    )
    return shift, inverse, 2 * shift * inverse - one


def smith_continuous(
    a: Float[Array, "n n batch"], q: Float[Array, "n n batch"], tolerance: float, *, pivoted: bool = False
) -> tuple[Float[Array, "n n batch"], Bool[Array, " batch"]]:
    """The solution of a X + X aᵀ + q = 0, and whether a is stable: :func:`smith` on the Cayley transform."""
    shift, inverse, moved = cayley(a, pivoted=pivoted)
    return smith(moved, 2 * shift * mul(mul(inverse, q), t(inverse)), tolerance)


def _tolerance(a: Array) -> float:
    return float(jnp.finfo(a.dtype).eps) ** 0.5 / 4


@batch_last.solver(2, 2)
def _discrete(a: Array, q: Array) -> Array:
    x, stable = smith(a, q, _tolerance(a))
    return jnp.where(stable[None, None], x, jnp.nan)


@batch_last.solver(2, 2)
def _continuous(a: Array, q: Array) -> Array:
    x, stable = smith_continuous(a, q, _tolerance(a), pivoted=True)
    return jnp.where(stable[None, None], x, jnp.nan)


@batch_last.solver(2)
def _stable(a: Array) -> Array:
    return smith(a, jnp.zeros_like(a), 0.4)[1]


@batch_last.solver(2)
def _stable_continuous(a: Array) -> Array:
    # the shift is no eigenvalue of a stable a, and the transform of an unstable one only grows
    return smith(cayley(a, pivoted=True)[2], jnp.zeros_like(a), 0.4)[1]


# With the batch in front -------------------------------------------------------------------------------------


def solve_discrete(
    a: Float[Array, "*batch n n"], q: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    """X = a X aᵀ + q, leading axes alike; differentiable to any order (the equation is linear)."""
    return jax.lax.custom_linear_solve(
        lambda x: x - a @ x @ a.mT,
        q,
        solve=lambda _, q: _discrete(a, q),
        transpose_solve=lambda _, q: _discrete(a.mT, q),
    )


def solve_continuous(
    a: Float[Array, "*batch n n"], q: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    """a X + X aᵀ + q = 0, leading axes alike; differentiable to any order."""
    return jax.lax.custom_linear_solve(
        lambda x: -(a @ x + x @ a.mT),
        q,
        solve=lambda _, q: _continuous(a, q),
        transpose_solve=lambda _, q: _continuous(a.mT, q),
    )


@jax.jit
def dlyap(A: ArrayLike, Q: ArrayLike) -> Float[Array, "*batch n n"]:
    """Solve A X Aᵀ − X + Q = 0.

    Args:
        A: ``[..., n, n]``, spectral radius below 1.
        Q: ``[..., n, n]``, symmetric or not.

    Returns:
        X ``[..., n, n]``; NaN where A is unstable and the sum that X is does not exist.
    """
    return solve_discrete(*checks.matrices(A=(A, "nn"), Q=(Q, "nn")))


@jax.jit
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
    return solve_continuous(*checks.matrices(A=(A, "nn"), Q=(Q, "nn")))


@partial(jax.jit, static_argnames="continuous")
def is_stable(A: ArrayLike, *, continuous: bool = False) -> Bool[Array, "*batch"]:
    """Whether all modes of A decay.

    Args:
        A: ``[..., n, n]``: of x[t+1] = A x[t], or of ẋ = A x if ``continuous``.

    Returns:
        Booleans ``[...]``.
    """
    (A,) = checks.matrices(A=(A, "nn"))
    return (_stable_continuous if continuous else _stable)(jax.lax.stop_gradient(A))
