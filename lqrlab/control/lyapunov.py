"""Lyapunov equations by doubling, and whether a matrix is stable: matrix products only, so any device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from lqrlab.compute import broadcast, linalg

_DOUBLINGS = 48  # 2^48 steps: a closed loop slower than that is not stable in floating point


def smith(a: Array, q: Array) -> Array:
    """Σ aᵏ q (aᵀ)ᵏ for one stable a by squaring; NaN or inf if a is unstable.

    Source: R. A. Smith, Matrix equation XA + BX = C, SIAM J. Appl. Math. 16 (1968).
    """

    def more(state: tuple[Array, Array, Array, Array]) -> Array:
        _, _, change, k = state
        # not "change is small or NaN": a NaN must end the loop
        return (change > jnp.finfo(q.dtype).eps / 4) & (change < jnp.inf) & (k < _DOUBLINGS)

    def double(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        a, x, _, k = state
        step = a @ x @ a.T
        size = jnp.max(jnp.abs(x))
        return a @ a, x + step, jnp.max(jnp.abs(step)) / jnp.where(size > 0, size, 1), k + 1

    start = (a, q, jnp.ones((), q.dtype), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(more, double, start)[1]


def solve_discrete(a: Array, q: Array) -> Array:
    """X = a X aᵀ + q for one a; differentiable to any order in both directions (the equation is linear)."""
    return jax.lax.custom_linear_solve(
        lambda x: x - a @ x @ a.T,
        q,
        solve=lambda _, q: smith(a, q),
        transpose_solve=lambda _, q: smith(a.T, q),
    )


def solve_continuous(a: Array, q: Array) -> Array:
    """a X + X aᵀ + q = 0 for one stable a, through the Cayley transform to a discrete equation."""
    n = a.shape[0]
    shift = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(a**2) / n))
    shift = jnp.where(shift > 0, shift, 1.0)
    eye = jnp.eye(n, dtype=a.dtype)
    inverse = linalg.solve(shift * eye - a, eye)
    return solve_discrete((shift * eye + a) @ inverse, 2 * shift * inverse @ q @ inverse.T)


def stable(a: Array) -> Array:
    """Whether one a has spectral radius below 1, by squaring: no eigenvalues, so any device."""

    def more(state: tuple[Array, Array, Array]) -> Array:
        _, size, k = state
        return (size >= 0.5) & (size < 1e12) & (k < _DOUBLINGS)

    def square(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, _, k = state
        a = a @ a
        return a, jnp.max(jnp.sum(jnp.abs(a), axis=1)), k + 1

    a = jax.lax.stop_gradient(a)
    start = (a, jnp.max(jnp.sum(jnp.abs(a), axis=1)), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(more, square, start)[1] < 0.5


@jax.jit
def dlyap(A: ArrayLike, Q: ArrayLike) -> Array:
    """Solve A X Aᵀ − X + Q = 0.

    Args:
        A: ``[..., n, n]``, spectral radius below 1.
        Q: ``[..., n, n]``, symmetric or not.

    Returns:
        X ``[..., n, n]``; inf or NaN where A is unstable and the sum that X is does not exist.
    """
    return broadcast(solve_discrete, (jnp.asarray(A), 2), (jnp.asarray(Q), 2))


@jax.jit
def lyap(A: ArrayLike, Q: ArrayLike) -> Array:
    """Solve A X + X Aᵀ + Q = 0.

    Args:
        A: ``[..., n, n]``, eigenvalues with negative real part.
        Q: ``[..., n, n]``.

    Returns:
        X ``[..., n, n]``; inf or NaN where A is unstable.
    """
    return broadcast(solve_continuous, (jnp.asarray(A), 2), (jnp.asarray(Q), 2))


@partial(jax.jit, static_argnames="continuous")
def is_stable(A: ArrayLike, *, continuous: bool = False) -> Array:
    """Whether all modes of A decay.

    Args:
        A: ``[..., n, n]``: of x[t+1] = A x[t], or of ẋ = A x if ``continuous``.

    Returns:
        Booleans ``[...]``.
    """

    def one(a: Array) -> Array:
        if not continuous:
            return stable(a)
        eye = jnp.eye(a.shape[0], dtype=a.dtype)
        shift = jnp.maximum(jnp.sqrt(jnp.sum(a**2)), 1e-30)
        # real parts below zero ⇔ the Cayley transform lies inside the unit circle; the shift is no eigenvalue
        # of a stable a, and of an unstable one the transform only grows
        return stable(linalg.solve(shift * eye - a, shift * eye + a))

    return broadcast(one, (jnp.asarray(A), 2))
