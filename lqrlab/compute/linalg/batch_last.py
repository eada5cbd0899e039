"""Many small matrices at once, one problem a lane: arrays ``[rows, columns, lanes]``.

With the problems on the last axis every operation is elementwise over contiguous memory, whatever the size of
the matrices, and no LAPACK is called: jaxlib's batched calls can hang on two cores. Blocks of lanes small
enough for the cache are worked through one after another, so a block waits for its own slowest member only.
Solvers written on lanes are called with any leading axes, under any ``vmap``, through :func:`over_lanes`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike

from lqrlab.compute.linalg import stored

# measured on a CPU with 1 MiB of second-level cache a core; powers of two would collide in it
_LANES = {1: 520, 2: 264, 3: 136, 4: 72, 5: 56, 6: 40, 7: 40, 8: 40}
_MANY = 72
_FEW = 32  # below, a quick compilation and pivoting are worth more than speed
_ACCELERATOR = 1 << 15


def mul(a: Array, b: Array) -> Array:
    """a b for a ``[r, k, lanes]``, b ``[k, c, lanes]``."""
    if few(a) or jax.default_backend() != "cpu":
        return jnp.einsum("rkl,kcl->rcl", a, b)
    size = max(a.shape[0], *b.shape[:2])
    if size > 7:
        return _product_apart(a, b)
    return _unrolled(a, b) if size < 3 else stored(_unrolled(a, b))


def few(a: Array) -> bool:
    """Whether there are so few lanes that the general, rolled forms are used."""
    return a.shape[2] < _FEW


def _unrolled(a: Array, b: Array) -> Array:
    total = a[:, 0, None] * b[None, 0]
    for j in range(1, a.shape[1]):
        total = total + a[:, j, None] * b[None, j]
    return total


def _product_apart(a: Array, b: Array) -> Array:
    """:func:`_unrolled` compiled on its own, for results too large for :func:`stored`: a branch always taken."""
    shape = (a.shape[0], *b.shape[1:])

    def never(a: Array, b: Array) -> Array:
        return next((x for x in (a, b) if x.shape == shape), jnp.zeros(shape, a.dtype))

    first = a[0, 0, 0]
    return jax.lax.cond((first <= jnp.inf) | jnp.isnan(first), _unrolled, never, a, b)


def t(a: Array) -> Array:
    """aᵀ."""
    return jnp.swapaxes(a, 0, 1)


def symmetric(a: Array) -> Array:
    """(a + aᵀ) / 2."""
    return (a + t(a)) / 2


def eye(n: int, like: Array) -> Array:
    """The identity ``[n, n, 1]``."""
    return jnp.eye(n, dtype=like.dtype)[:, :, None]


def largest(a: Array) -> Array:
    """max |a| ``[lanes]``, slice by slice: XLA does not vectorise a reduction over leading axes."""
    return _over(jnp.maximum, _over(jnp.maximum, jnp.abs(a)))


def row_sum(a: Array) -> Array:
    """The largest sum of |a| over a row ``[lanes]``: the norm that bounds a's spectral radius."""
    return _over(jnp.maximum, _over(jnp.add, jnp.abs(t(a))))


def _over(operation: Callable, a: Array) -> Array:
    return functools.reduce(operation, list(a))


def norm(a: Array) -> Array:
    """Frobenius norm ``[lanes]``; scaled so that no square under- or overflows."""
    size = jnp.max(jnp.abs(a), axis=(0, 1))
    safe = jnp.where(size > 0, size, 1.0)
    return safe * jnp.sqrt(jnp.sum((a / safe[None, None]) ** 2, axis=(0, 1)))


def inverse(a: Array) -> Array:
    """a⁻¹ without pivoting: fast, and good where the leading blocks are. On few lanes pivoted."""
    n = a.shape[0]
    if few(a) and n > 2:
        return pivoted(a, jnp.broadcast_to(eye(n, a), a.shape))
    if n > 4:
        return _swept(a)
    if n == 1:
        return 1 / a
    if n == 2:
        d = 1 / (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0])
        return jnp.stack([jnp.stack([a[1, 1], -a[0, 1]]), jnp.stack([-a[1, 0], a[0, 0]])]) * d[None, None]
    h = n // 2  # by blocks
    left = inverse(a[:h, :h])
    below = mul(a[h:, :h], left)
    right = inverse(a[h:, h:] - mul(below, a[:h, h:]))  # of the Schur complement
    across, down = mul(left, a[:h, h:]), mul(right, below)
    return jnp.concatenate(
        [
            jnp.concatenate([left + mul(across, down), -mul(across, right)], axis=1),
            jnp.concatenate([-down, right], axis=1),
        ]
    )


def _swept(a: Array) -> Array:
    """a⁻¹ by Gauss-Jordan elimination in place, without pivoting, rolled into one loop."""
    n = a.shape[0]
    one = jnp.arange(n)

    def pivot(a: Array, k: ArrayLike) -> tuple[Array, Array]:
        row, column = (jax.lax.dynamic_index_in_dim(a, k, axis, keepdims=True) for axis in (0, 1))
        inverted = 1 / jax.lax.dynamic_index_in_dim(row, k, 1, keepdims=True)
        here = (one == k)[:, None, None]
        return jnp.where(here, -1.0, column), jnp.where(here[:, 0][None], inverted, row * inverted)

    def sweep(k: Array, state: tuple) -> tuple:
        a, column, row = state
        keep = jnp.where((one == k)[:, None] | (one == k)[None], 0.0, 1.0)[:, :, None]
        a = a * keep - column * row
        # carried to the next step: a division within its fused loop would be done for every element
        return a, *pivot(a, jnp.minimum(k + 1, n - 1))

    return jax.lax.fori_loop(0, n, sweep, (a, *pivot(a, 0)))[0]


def pivoted(a: Array, b: Array) -> Array:
    """a⁻¹ b by Gauss-Jordan elimination with partial pivoting, rolled into one loop: slow, quick to compile."""
    n = a.shape[0]
    rows = jnp.arange(n)[:, None]

    def eliminate(i: Array, ab: Array) -> Array:
        column = jax.lax.dynamic_index_in_dim(ab, i, axis=1, keepdims=False)
        pivot = jnp.argmax(jnp.where(rows >= i, jnp.abs(column), -1.0), axis=0)
        chosen = (rows == pivot[None])[:, None]
        # masks, not indices: a gather per lane costs more than the arithmetic
        top = jnp.sum(jnp.where(chosen, ab, 0.0), axis=0)
        here = jax.lax.dynamic_index_in_dim(ab, i, axis=0, keepdims=True)
        ab = jnp.where(chosen, here, ab)
        top = top / jax.lax.dynamic_index_in_dim(top, i, axis=0, keepdims=True)
        factor = jax.lax.dynamic_index_in_dim(ab, i, axis=1, keepdims=True)
        return jnp.where((rows == i)[:, None], top[None], ab - factor * top[None])

    return jax.lax.fori_loop(0, n, eliminate, jnp.concatenate([a, b], axis=1))[:, n:]


def positive(a: Array) -> Array:
    """Whether symmetric a is positive definite ``[lanes]``: all pivots of its elimination are above zero."""
    good = jnp.ones(a.shape[2:], bool)
    for _ in range(a.shape[0]):
        good = good & (a[0, 0] > 0)
        a = a[1:, 1:] - a[1:, :1] * a[:1, 1:] / a[:1, :1]
    return good


def enough(dtype: Any) -> float:
    """The relative error above which an answer is sought by another method."""
    return 1e-11 if jnp.finfo(dtype).eps < 1e-10 else 3e-5


def size(n: int) -> int:
    """Lanes of a block for n states."""
    return _LANES.get(n, _MANY) if jax.default_backend() == "cpu" else _ACCELERATOR


def blocked(solve: Callable, args: tuple[Array, ...], lanes: int) -> Any:
    """``solve`` (on lanes, last axis) over the one leading axis of ``args``, a block at a time."""
    count = args[0].shape[0]

    def block(args: tuple[Array, ...]) -> Any:
        args = jax.lax.optimization_barrier(tuple(jnp.moveaxis(a, 0, -1) for a in args))
        return jax.tree.map(lambda a: jnp.moveaxis(a, -1, 0), solve(*args))

    if count <= lanes:
        return block(args)
    blocks = -(-count // lanes)
    lanes = -(-count // blocks)  # even blocks, so that little is solved for nothing
    fill = blocks * lanes - count
    if fill:  # solve the last problem again
        args = tuple(jnp.concatenate([a, jnp.broadcast_to(a[-1:], (fill, *a.shape[1:]))]) for a in args)
    out = jax.lax.map(block, tuple(a.reshape(blocks, lanes, *a.shape[1:]) for a in args))
    return jax.tree.map(lambda a: a.reshape(blocks * lanes, *a.shape[2:])[:count], out)


def together(cores: Sequence[int], *arrays: Array) -> tuple[Array, ...]:
    """Arrays of so many core dimensions each, with their leading axes broadcast against each other."""
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in zip(arrays, cores)))
    return tuple(jnp.broadcast_to(a, lead + a.shape[a.ndim - core :]) for a, core in zip(arrays, cores))


def over_lanes(*cores: int, rescue: Callable | None = None) -> Callable:
    """Decorate a solver on lanes: call it with any leading axes, the same for all arguments, and any ``vmap``.

    Args:
        cores: core dimensions of each argument (2 for a matrix, 0 for a scalar).
        rescue: another solver, same arguments and results. The last result of both is the error of each
            member; those above :func:`enough`, and only those, are gathered into blocks and solved again, and
            the better answer stays.
    """

    def decorate(solve: Callable) -> Callable:
        def flat(*args: Array) -> Any:
            lanes = size(args[0].shape[-1])
            out = blocked(solve, args, lanes)
            return out if rescue is None else _rescued(rescue, args, out, lanes)

        @custom_vmap
        def native(*args: Array) -> Any:
            lead = args[0].shape[: args[0].ndim - cores[0]]
            out = flat(*(a.reshape(-1, *a.shape[a.ndim - core :]) for a, core in zip(args, cores)))
            return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), out)

        @native.def_vmap
        def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[Any, Any]:
            full = [a if b else jnp.broadcast_to(a, (axis_size, *a.shape)) for a, b in zip(args, in_batched)]
            out = native(*full)
            return out, jax.tree.map(lambda _: True, out)

        return functools.wraps(solve)(native)

    return decorate


def _rescued(rescue: Callable, args: tuple[Array, ...], out: Any, lanes: int) -> Any:
    count = args[0].shape[0]
    lanes = min(count, lanes, _FEW - 8)

    def again(state: tuple[Array, Any]) -> tuple[Array, Any]:
        todo, out = state
        chosen = jnp.nonzero(todo, size=lanes, fill_value=count)[0]
        there = jnp.minimum(chosen, count - 1)
        better = blocked(rescue, tuple(a[there] for a in args), lanes)
        keep = jnp.where(better[-1] < out[-1][there], chosen, count)
        out = jax.tree.map(lambda old, new: old.at[keep].set(new, mode="drop"), out, better)
        return todo.at[chosen].set(False, mode="drop"), out

    return jax.lax.while_loop(
        lambda state: jnp.any(state[0]), again, (~(out[-1] <= enough(args[0].dtype)), out)
    )[1]
