"""Compiled programs on all cores: XLA runs one of many small steps on one core, a few Python threads use the others.

And the memory of a host that they write to: JAX takes it over as it is.
"""

import functools
import math
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PyTree
from numpy.typing import DTypeLike

T = TypeVar("T")
S = TypeVar("S")

_BOUNDARY = 64  # bytes; JAX copies an array that begins elsewhere
_PIECE = 2500  # problems that one thread takes at a time
_compiled: set[int] = set()  # hashes: a program's name may hold functions that nobody else holds any more


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lqrlab")


def on_threads(fn: Callable[[T], S], items: Sequence[T], program: Hashable) -> list[S]:
    """``[fn(item) for item in items]`` on as many threads as there are cores, in the caller's precision.

    XLA lets other threads run while ``fn`` runs one compiled ``program``, whose first call is made alone: two threads
    would compile it twice.
    """
    name = hash(program)
    first = [] if name in _compiled else [fn(items[0])]
    _compiled.add(name)
    # a caller's ``with jax.enable_x64(True)`` holds in its own thread only
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64

    def call(item: T) -> S:
        with jax.enable_x64(wide):
            return fn(item)

    return [*first, *_pool().map(call, items[len(first) :])]


def on_all_cores(fn: Callable[..., PyTree[Array]], *args: tuple[Array, int]) -> PyTree[Array]:
    """Call a compiled ``fn``, which broadcasts over leading axes, on equal pieces of the batch, several at once.

    Only on a CPU and only where there is enough to do: the call is ``fn(*arrays)`` otherwise. ``fn`` must not call
    LAPACK. The pieces depend on the size of the batch alone, so the same numbers come out on any number of cores.
    ``args`` are pairs (array, core dimensions), all concrete.
    """
    arrays = [a for a, _ in args]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in args))
    count = math.prod(lead)
    pieces = -(-count // _PIECE) if count >= _PIECE else 1 + (count >= _PIECE // 2)
    if pieces < 2 or any(d.platform != "cpu" for a in arrays for d in a.devices()):
        return fn(*arrays)
    flat = [_flat(np.asarray(a), core, lead) for a, core in args]
    size = -(-count // pieces)
    # the last piece may overlap the one before: one shape, one program
    starts = [min(i * size, count - size) for i in range(pieces)]

    def piece(start: int) -> PyTree[np.ndarray]:
        done = fn(*(a if len(a) == 1 else a[start : start + size] for a in flat))
        return jax.tree.map(np.asarray, done)

    def joined(*parts: np.ndarray) -> Array:
        fresh = [part[i * size - start :] for i, (part, start) in enumerate(zip(parts, starts))]
        return jnp.asarray(np.concatenate(fresh).reshape(*lead, *parts[0].shape[1:]))

    kinds = tuple((a.shape, a.dtype) for a in flat)
    return jax.tree.map(joined, *on_threads(piece, starts, (fn, size, kinds)))


def _flat(a: np.ndarray, core: int, lead: tuple[int, ...]) -> np.ndarray:
    """One leading axis instead of ``lead``, of length 1 where all problems share the argument."""
    outer, inner = a.shape[: a.ndim - core], a.shape[a.ndim - core :]
    if math.prod(outer) == 1:
        return a.reshape(1, *inner)
    return np.broadcast_to(a, lead + inner).reshape(-1, *inner)


def aligned(
    shape: tuple[int, ...], dtype: DTypeLike = np.float32, make: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """An array on a boundary of 64 bytes, uninitialised or as ``make`` (``np.zeros``) fills bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffer = make(size + _BOUNDARY, np.uint8)
    start = -buffer.ctypes.data % _BOUNDARY
    return buffer[start : start + size].view(dtype).reshape(shape)
