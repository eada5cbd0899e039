"""Many small matrices at once, the batch on the last axis: arrays ``[rows, columns, width]``.

In this structure-of-arrays layout every operation is elementwise over contiguous memory, whatever the size of the
matrices, and no LAPACK is called: jaxlib's batched calls can hang on two cores. Blocks of problems small enough
for the cache are worked through one after another, so a block waits for its own slowest member only. Solvers
written for this layout are called with any leading axes, under any ``vmap``, through :func:`solver`.
What is written with these functions and with :func:`library` does for NumPy's arrays as well, without a program.
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, PyTree

from lqrlab.compute.linalg.dense import eliminate, stored

Solve = Callable[..., PyTree[Array]]  # a solver: arrays with the batch on the last axis in and out
Arrays = Any  # JAX's arrays, or NumPy's
Rescue = Callable[[tuple[Array, ...], PyTree[Array]], PyTree[Array]]
"""Another one, for what a solver could not do: of its arguments and its answer."""

# problems in a block by their states, measured with 1 MiB of second-level cache a core; powers of two collide in it
_WIDTHS = {1: 520, 2: 264, 3: 136, 4: 72, 5: 56, 6: 40, 7: 40, 8: 40}
_WIDTH = 72
_NARROW = 32  # below, a quick compilation and pivoting are worth more than speed
_ACCELERATOR = 1 << 15
_CORE: Any = [(0, 1)] * 3  # axes of matrices, for NumPy
_HOST = np.ndarray, np.generic, int, float
S = TypeVar("S")


def library(*arrays: object) -> Any:
    """JAX's functions if one of the arrays is JAX's, else NumPy's."""
    for a in arrays:
        if not isinstance(a, _HOST):  # isinstance(a, jax.Array) takes ten times as long
            return jnp
    return np


def repeat_while(more: Callable[[S], Any], step: Callable[[S], S], state: S) -> S:
    """``jax.lax.while_loop``; of NumPy's arrays a loop of Python's."""
    if library(*jax.tree.leaves(state)) is jnp:
        return jax.lax.while_loop(more, step, state)
    while more(state):
        state = step(state)
    return state


def repeat(low: int, high: Any, body: Callable[[Any, S], S], state: S) -> S:
    """``jax.lax.fori_loop``; of NumPy's arrays a loop of Python's."""
    if library(*jax.tree.leaves(state)) is jnp:
        return jax.lax.fori_loop(low, high, body, state)
    for k in range(low, high):
        state = body(k, state)
    return state


def mul(a: Float[Arrays, "r k #width"], b: Float[Arrays, "k c #width"]) -> Float[Arrays, "r c width"]:
    """a b."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.matmul(a, b, axes=_CORE)
    if narrow(a) or jax.default_backend() != "cpu":
        return jnp.einsum("rkl,kcl->rcl", a, b)
    size = max(a.shape[0], *b.shape[:2])
    if size > 7:
        return _product_apart(a, b)
    return product(a, b) if size < 3 else stored(product(a, b))


def narrow(a: Arrays) -> bool:
    """True if there are so few problems that the general, rolled forms are used."""
    return a.shape[-1] < _NARROW


def product(a: Float[Arrays, "r k #width"], b: Float[Arrays, "k c #width"]) -> Float[Arrays, "r c width"]:
    """a b as a sum of products that XLA merges into what is done with it; :func:`mul` stores it."""
    return functools.reduce(operator.add, (a[:, j, None] * b[None, j] for j in range(len(b))))


def matvec(a: Float[Array, "r k #width"], x: Float[Array, " k #width"]) -> Float[Array, "r width"]:
    """a x."""
    if narrow(x):  # one operation instead of k: half the time to compile
        return jnp.sum(a * x[None], 1)
    return functools.reduce(operator.add, (a[:, j] * x[None, j] for j in range(len(x))))


def dot(a: Float[Array, " k *shape"], b: Float[Array, " k *shape"]) -> Float[Array, " *shape"]:
    """Σ aᵢ bᵢ over the first axis."""
    return functools.reduce(operator.add, (a[i] * b[i] for i in range(len(a))))


def _product_apart(a: Array, b: Array) -> Array:
    """:func:`product` compiled on its own, for results too large for :func:`stored`: a branch always taken."""
    shape = (a.shape[0], *b.shape[1:])

    def never(a: Array, b: Array) -> Array:
        return next((x for x in (a, b) if x.shape == shape), jnp.zeros(shape, a.dtype))

    first = a[0, 0, 0]
    return jax.lax.cond((first <= jnp.inf) | jnp.isnan(first), product, never, a, b)


def t(a: Float[Arrays, "r c width"]) -> Float[Arrays, "c r width"]:
    """aᵀ."""
    return a.swapaxes(0, 1)


def symmetric(a: Float[Arrays, "n n width"]) -> Float[Arrays, "n n width"]:
    """(a + aᵀ) / 2."""
    return (a + t(a)) / 2


def eye(n: int, like: Arrays) -> Float[Arrays, "n n 1"]:
    """The identity, in the type of ``like``."""
    return library(like).eye(n, dtype=like.dtype)[:, :, None]


def largest(a: Float[Arrays, "r c width"]) -> Float[Arrays, " width"]:
    """max |a|, slice by slice: XLA does not vectorise a reduction over leading axes."""
    if library(a) is np:
        return np.abs(a).max((0, 1))
    return _over(jnp.maximum, _over(jnp.maximum, jnp.abs(a)))


def row_sum(a: Float[Arrays, "r c width"]) -> Float[Arrays, " width"]:
    """The largest sum of |a| over a row: the norm that bounds a's spectral radius."""
    if library(a) is np:
        return np.abs(a).sum(1).max(0)
    return _over(jnp.maximum, _over(jnp.add, jnp.abs(t(a))))


def _over(operation: Callable[[Arrays, Arrays], Arrays], a: Arrays) -> Arrays:
    return functools.reduce(operation, list(a))


def norm(a: Float[Arrays, "r c width"]) -> Float[Arrays, " width"]:
    """Frobenius norm; scaled so that no square under- or overflows."""
    size = abs(a).max(axis=(0, 1))
    safe = library(a).where(size > 0, size, 1.0)
    return safe * ((a / safe[None, None]) ** 2).sum(axis=(0, 1)) ** 0.5


def pivoted(a: Float[Array, "n n width"], b: Float[Array, "n k width"]) -> Float[Array, "n k width"]:
    """a⁻¹ b by elimination with partial pivoting: slow, quick to compile."""
    return eliminate(a, b, rolled=True)


def inverse(a: Float[Arrays, "n n width"]) -> Float[Arrays, "n n width"]:
    """a⁻¹: the adjugate up to n = 2, then Gauss-Jordan elimination; of few matrices with pivoting.

    Without pivoting it is done in place, rolled into one loop: fast, and good where the leading blocks are.
    """
    n = a.shape[0]
    if library(a) is np:
        return quotient(a, np.broadcast_to(eye(n, a), a.shape))
    if n == 1:
        return 1 / a
    if n == 2:
        d = 1 / (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0])
        return jnp.stack([jnp.stack([a[1, 1], -a[0, 1]]), jnp.stack([-a[1, 0], a[0, 0]])]) * d[None, None]
    if narrow(a):
        return pivoted(a, jnp.broadcast_to(eye(n, a), a.shape))
    one = jnp.arange(n)

    def pivot(a: Arrays, k: ArrayLike) -> tuple[Arrays, Arrays]:
        row, column = (jax.lax.dynamic_index_in_dim(a, k, axis, keepdims=True) for axis in (0, 1))
        inverted = 1 / jax.lax.dynamic_index_in_dim(row, k, 1, keepdims=True)
        here = (one == k)[:, None, None]
        return jnp.where(here, -1.0, column), jnp.where(here[:, 0][None], inverted, row * inverted)

    def sweep(k: Arrays, state: tuple) -> tuple:
        a, column, row = state
        keep = jnp.where((one == k)[:, None] | (one == k)[None], 0.0, 1.0)[:, :, None]
        a = a * keep - column * row
        # carried to the next step: a division within its fused loop would be done for every element
        return a, *pivot(a, jnp.minimum(k + 1, n - 1))

    return jax.lax.fori_loop(0, n, sweep, (a, *pivot(a, 0)))[0]


def quotient(a: Float[Arrays, "n n width"], b: Float[Arrays, "n k width"]) -> Float[Arrays, "n k width"]:
    """a⁻¹ b; of NumPy's arrays with pivoting, which loses fewer digits than the inverse."""
    if library(a, b) is jnp:
        return mul(inverse(a), b)
    return _solved(a.transpose(2, 0, 1), b.transpose(2, 0, 1)).transpose(1, 2, 0)  # moveaxis takes ten times as long


def _solved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a⁻¹ b with the batch in front; NaN of a singular member."""
    try:
        return np.linalg.solve(a, b)
    except np.linalg.LinAlgError:
        if len(a) == 1:
            return np.full_like(b, np.nan)
        return np.concatenate([_solved(*one) for one in zip(a[:, None], b[:, None])])


def positive(a: Float[Arrays, "n n width"]) -> Bool[Arrays, " width"]:
    """True where symmetric a is positive definite: all pivots of its elimination are above zero."""
    if library(a) is np:
        finite = np.isfinite(a).all((0, 1))
        return finite & (np.linalg.eigvalsh(np.where(finite, a, 0.0).transpose(2, 0, 1))[:, 0] > 0)

    def eliminated(k: Arrays, state: tuple[Arrays, Arrays]) -> tuple[Arrays, Arrays]:
        a, good = state
        row, column = (jax.lax.dynamic_index_in_dim(a, k, axis, keepdims=True) for axis in (0, 1))
        pivot = jax.lax.dynamic_index_in_dim(row, k, 1, keepdims=True)
        return a - column * (row / pivot), good & (pivot[0, 0] > 0)

    return jax.lax.fori_loop(0, len(a), eliminated, (a, jnp.ones(a.shape[2:], bool)))[1]


def cholesky(a: Float[Array, "n n width"], least: ArrayLike | None = None) -> Float[Array, "n n width"]:
    """The lower triangular L with LLᵀ = a, of positive definite a, whose eigenvalues are at least ``least [width]``.

    A pivot that rounding has made less counts as it. Without it a pivot that is not positive leaves a column of zeros.
    """
    n = a.shape[0]
    rows = jnp.arange(n)[:, None]
    if least is not None:
        least = jnp.maximum(least, float(jnp.finfo(a.dtype).tiny))

    def column(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, L = state
        c = jnp.where(rows >= k, jax.lax.dynamic_index_in_dim(a, k, 1, keepdims=False), 0.0)
        pivot = jax.lax.dynamic_index_in_dim(c, k, 0, keepdims=True)
        if least is None:
            c = jnp.where(pivot > 0, c * jax.lax.rsqrt(jnp.where(pivot > 0, pivot, 1.0)), 0.0)
        else:
            pivot = jnp.maximum(pivot, least)
            c = jnp.where(rows == k, pivot, c) * jax.lax.rsqrt(pivot)
        return a - c[:, None] * c[None], jax.lax.dynamic_update_index_in_dim(L, c, k, 1)

    return jax.lax.fori_loop(0, n, column, (a, jnp.zeros_like(a)))[1]


def enough(dtype: np.dtype) -> float:
    """The relative error above which an answer is sought by another method."""
    return 1e-11 if jnp.finfo(dtype).eps < 1e-10 else 3e-5


def in_blocks(solve: Solve, args: tuple[Array, ...], size: int) -> PyTree[Array]:
    """``solve`` (batch last) over the one leading axis of ``args``, a block at a time."""
    count = args[0].shape[0]

    def block(args: tuple[Array, ...]) -> PyTree[Array]:
        args = jax.lax.optimization_barrier(tuple(jnp.moveaxis(a, 0, -1) for a in args))
        return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), solve(*args))

    if count <= size:
        return block(args)
    blocks = -(-count // size)
    size = -(-count // blocks)  # even blocks, so that little is solved for nothing
    fill = blocks * size - count
    if fill:  # solve the last problem again
        args = tuple(jnp.concatenate([a, jnp.broadcast_to(a[-1:], (fill, *a.shape[1:]))]) for a in args)
    out = jax.lax.map(block, tuple(a.reshape(blocks, size, *a.shape[1:]) for a in args))
    return jax.tree.map(lambda a: a.reshape(blocks * size, *a.shape[2:])[:count], out)


def together(cores: Sequence[int], *arrays: Arrays) -> tuple[Arrays, ...]:
    """Arrays of so many core dimensions each, with their leading axes broadcast against each other."""
    lead = np.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in zip(arrays, cores)))
    broadcast = library(*arrays).broadcast_to
    return tuple(broadcast(a, lead + a.shape[a.ndim - core :]) for a, core in zip(arrays, cores))


def on_host(solve: Solve, cores: Sequence[int], args: Sequence[Arrays]) -> PyTree[np.ndarray]:
    """``solve`` by NumPy in double precision: no program is compiled; leading axes broadcast."""
    arrays = together(cores, *(np.asarray(a, float) for a in args))
    lead = arrays[0].shape[: arrays[0].ndim - cores[0]]
    count = math.prod(lead)
    flat = (a.reshape(count, *a.shape[len(lead) :]) for a in arrays)
    with np.errstate(all="ignore"):
        out = solve(*(a.transpose(*range(1, a.ndim), 0) for a in flat))
    return jax.tree.map(lambda a: a.transpose(a.ndim - 1, *range(a.ndim - 1)).reshape(*lead, *a.shape[:-1]), out)


def solver(*cores: int, rescue: Rescue | None = None) -> Callable[[Solve], Solve]:
    """Decorate a solver that has the batch last: call it with any equal leading axes, and any ``vmap``.

    Args:
        cores: core dimensions of each argument (2 for a matrix, 0 for a scalar).
        rescue: another solver, of the arguments and the answer so far. The last result of both is the error of each
            member; those above :func:`enough`, and only those, are solved again in blocks; the better answer stays.
    """

    def decorate(solve: Solve) -> Solve:
        def flat(*args: Array) -> PyTree[Array]:
            size = _ACCELERATOR if jax.default_backend() != "cpu" else _WIDTHS.get(args[0].shape[-1], _WIDTH)
            out = in_blocks(solve, args, size)
            return out if rescue is None else rescued(rescue, args, out, min(size, _NARROW - 8))

        return functools.wraps(solve)(flattened(*cores)(flat))

    return decorate


def flattened(*cores: int) -> Callable[[Solve], Solve]:
    """Decorate a function of arrays with one leading axis: call it with any equal leading axes, and any ``vmap``."""

    def decorate(flat: Solve) -> Solve:
        @custom_vmap
        def native(*args: Array) -> PyTree[Array]:
            lead = args[0].shape[: args[0].ndim - cores[0]]
            count = math.prod(lead)  # -1 does not tell the batch of arrays without elements
            out = flat(*(a.reshape(-1 if a.size else count, *a.shape[a.ndim - core :]) for a, core in zip(args, cores)))
            return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), out)

        @native.def_vmap
        def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[PyTree[Array], PyTree[bool]]:
            full = [a if b else jnp.broadcast_to(a, (axis_size, *a.shape)) for a, b in zip(args, in_batched)]
            out = native(*full)
            return out, jax.tree.map(lambda _: True, out)

        return functools.wraps(flat)(native)

    return decorate


def rescued(
    rescue: Rescue, args: tuple[Array, ...], out: PyTree[Array], size: int, *, always: bool = False
) -> PyTree[Array]:
    """``out`` with the members whose error, its last array, is above :func:`enough` solved again, ``size`` at a time.

    Keeps the better answer; with ``always`` the newer one, for a method that goes on from where it was.
    """
    count = args[0].shape[0]
    size = min(count, size)

    def solve(*given: Array) -> PyTree[Array]:
        known = jax.tree.unflatten(jax.tree.structure(out), given[len(args) :])
        return rescue(given[: len(args)], known)

    def again(state: tuple[Array, Array, PyTree[Array]]) -> tuple[Array, Array, PyTree[Array]]:
        rounds, todo, out = state
        chosen = jnp.nonzero(todo, size=size, fill_value=count)[0]
        members = jnp.minimum(chosen, count - 1)
        better = in_blocks(solve, tuple(a[members] for a in (*args, *jax.tree.leaves(out))), size)
        keep = jnp.where((better[-1] < out[-1][members]) | always, chosen, count)
        out = jax.tree.map(lambda old, new: old.at[keep].set(new, mode="drop"), out, better)
        return rounds + 1, todo.at[chosen].set(False, mode="drop"), out

    bad = ~(out[-1] <= enough(args[0].dtype))
    most = -(-count // size) if size else 0  # said, so that a program in C has a bound
    start = (jnp.zeros((), int), bad, out)
    return jax.lax.while_loop(lambda state: (state[0] < most) & jnp.any(state[1]), again, start)[2]
