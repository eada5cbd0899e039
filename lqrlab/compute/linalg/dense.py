"""Small dense linear algebra of one problem, as plain arithmetic.

jaxlib's batched LAPACK calls can hang on machines with two cores, and ``eig`` and ``schur`` do not run on a
GPU. Elimination of some 20 x 20, unrolled into array arithmetic, runs on any device, and differentiates.
"""

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact

A = TypeVar("A", Array, np.ndarray)


def eliminate(
    a: Inexact[Array, "n n *batch"], b: Inexact[Array, "n k *batch"], *, rolled: bool = False
) -> Inexact[Array, "n k *batch"]:
    """a⁻¹ b by Gauss-Jordan elimination with partial pivoting, for one problem or a batch on the last axes.

    ``rolled`` is one loop in the program, which compiles quickly, instead of n steps, which run quickly.
    """
    n = a.shape[0]
    rows = jnp.arange(n).reshape(n, *(1,) * (a.ndim - 1))
    take = jax.lax.dynamic_index_in_dim

    def step(i: Array | int, ab: Array) -> Array:
        size = jnp.abs(take(ab, i, axis=1))
        if rolled:
            pivot = jnp.argmax(jnp.where(rows >= i, size, -1.0), axis=0, keepdims=True)
        else:
            pivot = i + jnp.argmax(size[i:], axis=0, keepdims=True)
        # masks, not indices: a gather per member of a batch costs more than the arithmetic
        top = jnp.sum(jnp.where(rows == pivot, ab, 0.0), axis=0, keepdims=True)
        ab = jnp.where(rows == pivot, take(ab, i), ab)
        top = top / take(top, i, axis=1)
        return jnp.where(rows == i, top, ab - take(ab, i, axis=1) * top)

    ab = jnp.concatenate([a, b], axis=1)
    if rolled:
        return jax.lax.fori_loop(0, n, step, ab)[:, n:]
    for i in range(n):
        ab = step(i, ab)
    return ab[:, n:]


def _eliminate_definite(a: Array, b: Array) -> Array:
    """:func:`eliminate` of one positive definite matrix, which needs no pivoting: no comparisons, quick to trace."""
    n = a.shape[0]
    ab = jnp.concatenate([a, b], axis=1)
    unit = np.eye(n, dtype=ab.dtype)[:, :, None]  # in double it would make all of float32 double
    for i in range(n):
        top = ab[i : i + 1] / ab[i, i]
        ab = (1 - unit[i]) * (ab - ab[:, i : i + 1] * top) + unit[i] * top
    return ab[:, n:]


def solve(a: Inexact[Array, "n n"], b: Array, *, definite: bool = False) -> Array:
    """Solve a x = b for small matrices, differentiably and without LAPACK.

    Args:
        a: ``[n, n]``, or with leading axes under ``vmap``.
        b: ``[n, k]`` or ``[n]``.
        definite: a is symmetric and positive definite, and need not be pivoted.

    Returns:
        x, shaped as b. A singular a gives inf or NaN, never an error.

    >>> compute.linalg.solve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([[1.0], [1.0]])).tolist()
    [[0.5], [0.25]]
    """
    method = _eliminate_definite if definite else eliminate
    x = jax.lax.custom_linear_solve(
        lambda x: a @ x,
        b[:, None] if b.ndim == 1 else b,
        solve=lambda _, b: method(a, b),
        transpose_solve=lambda _, b: method(a if definite else a.T, b),
    )
    return x[:, 0] if b.ndim == 1 else x


def solve_many(a: Inexact[Array, "*batch n n"], b: Inexact[Array, "*batch n k"]) -> Inexact[Array, "*batch n k"]:
    """:func:`solve` over equal leading axes."""
    many = solve
    for _ in a.shape[:-2]:
        many = jax.vmap(many)
    return many(a, b)


def symmetric(a: Inexact[Array, "*batch n n"]) -> Inexact[Array, "*batch n n"]:
    """(a + aᵀ) / 2."""
    return (a + jnp.swapaxes(a, -1, -2)) / 2


def stored(a: Inexact[Array, " *shape"]) -> Inexact[Array, " *shape"]:
    """a itself, as an array that XLA's CPU compiler writes down once.

    It merges elementwise steps into one loop and computes a product anew for every use of an element; an
    optimization barrier is gone by then. What a reduction returns it does store.
    """
    return jnp.sum(jnp.stack([a, jnp.zeros_like(a)]), axis=0)


def expand_batch(a: A, ndim: int, core: int = 1) -> A:
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
