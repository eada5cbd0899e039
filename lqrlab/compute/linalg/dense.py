"""Small dense linear algebra as plain arithmetic.

jaxlib's batched LAPACK calls can hang on machines with two cores, and ``eig`` and ``schur`` do not run on a
GPU. The matrices here are at most some 20 x 20, so elimination unrolled into array arithmetic runs on any
device, under any ``vmap``, and differentiates.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def _eliminate(a: Array, b: Array) -> Array:
    """a⁻¹ b for one a [n, n], b [n, k] by Gauss-Jordan elimination with partial pivoting."""
    n = a.shape[0]
    rows = jnp.arange(n)[:, None]
    ab = jnp.concatenate([a, b], axis=1)
    for i in range(n):
        pivot = i + jnp.argmax(jnp.abs(ab[i:, i]))
        # masks, not indices: a gather per member of a batch costs more than the arithmetic
        top = jnp.sum(jnp.where(rows == pivot, ab, 0.0), axis=0, keepdims=True)
        ab = jnp.where(rows == pivot, ab[i : i + 1], ab)
        top = top / top[:, i : i + 1]
        ab = jnp.where(rows == i, top, ab - ab[:, i : i + 1] * top)
    return ab[:, n:]


def solve(a: Array, b: Array) -> Array:
    """Solve a x = b for small matrices, differentiably and without LAPACK.

    Args:
        a: ``[n, n]``, or with leading axes under ``vmap``.
        b: ``[n, k]`` or ``[n]``.

    Returns:
        x, shaped as b. A singular a gives inf or NaN, never an error.
    """
    x = jax.lax.custom_linear_solve(
        lambda x: a @ x,
        b[:, None] if b.ndim == 1 else b,
        solve=lambda _, b: _eliminate(a, b),
        transpose_solve=lambda _, b: _eliminate(a.T, b),
    )
    return x[:, 0] if b.ndim == 1 else x


def symmetric(a: Array) -> Array:
    """(a + aᵀ) / 2 over the last two axes."""
    return (a + jnp.swapaxes(a, -1, -2)) / 2


def solve_many(a: Array, b: Array) -> Array:
    """:func:`solve` over leading axes that are alike: a ``[..., n, n]``, b ``[..., n, k]``."""
    many = solve
    for _ in a.shape[:-2]:
        many = jax.vmap(many)
    return many(a, b)


def stored(a: Array) -> Array:
    """a itself, as an array that XLA's CPU compiler writes down once.

    It merges elementwise steps into one loop and computes a product anew for every use of an element; an
    optimization barrier is gone by then. What a reduction returns it does store.
    """
    return jnp.sum(jnp.stack([a, jnp.zeros_like(a)]), axis=0)


def expand_batch(a: Any, ndim: int, core: int = 1) -> Any:
    """View a ``[*batch, *core]`` with ``ndim`` axes, ones between the batch and the core: ``[*batch, 1, …, *core]``.

    So it broadcasts against arrays whose leading axes are the batch's, whatever further ones they have.
    """
    lead = a.ndim - core
    return a.reshape(*a.shape[:lead], *(1,) * (ndim - a.ndim), *a.shape[lead:])


def matvec(M: Array, x: Array) -> Array:
    """M x for M ``[*batch, a, b]`` and x ``[*batch, *extra, b]``: the matrix's batch axes lead."""
    batch = M.shape[:-2]
    flat = x.reshape(*batch, -1, x.shape[-1])
    return (flat @ jnp.swapaxes(M, -1, -2)).reshape(*x.shape[:-1], M.shape[-2])


def quadratic(M: Array, x: Array) -> Array:
    """xᵀM x for M ``[*batch, n, n]`` and x ``[*batch, *extra, n]``: ``[*batch, *extra]``."""
    return jnp.sum(x * matvec(M, x), axis=-1)
