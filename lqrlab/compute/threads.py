"""Compiled programs on all cores: XLA runs one of many small steps on one core, a few Python threads use the others."""

import contextlib
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

T = TypeVar("T")
S = TypeVar("S")

_NAMES = 4096  # programs that are remembered as compiled
_PIECE = 2500  # problems that one thread takes at a time
_compiled: set[int] = set()  # hashes: a program's name may hold functions that nobody else holds any more


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="lqrlab")


def on_threads(fn: Callable[[T], S], items: Sequence[T], program: Hashable) -> list[S]:
    """``[fn(item) for item in items]`` on as many threads as there are cores.

    Args:
        fn: runs one compiled program; XLA lets other threads run meanwhile.
        items: what it is called with.
        program: names the program: its first call is made alone, for two threads would compile it twice.
    """
    name = hash(program)
    if name in _compiled:
        return list(_pool().map(fn, items))
    done = [fn(items[0]), *_pool().map(fn, items[1:])]
    if len(_compiled) >= _NAMES:
        _compiled.clear()
    _compiled.add(name)
    return done


def on_all_cores(fn: Callable[..., PyTree[Array]], *args: tuple[Array, int]) -> PyTree[Array]:
    """Call a compiled ``fn``, which broadcasts over leading axes, on equal pieces of the batch, several at once.

    Only on a CPU and only where there is enough to do: the call is ``fn(*arrays)`` otherwise. ``fn`` must not call
    LAPACK. The pieces depend on the size of the batch alone, so the same numbers come out on any number of cores.

    Args:
        fn: a jitted function whose results all carry the broadcast leading axes.
        args: pairs ``(array, core dimensions)``, all concrete.
    """
    arrays = [a for a, _ in args]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in args))
    count = math.prod(lead)
    pieces = -(-count // _PIECE) if count >= _PIECE else 1 + (count >= _PIECE // 2)
    if pieces < 2 or any(d.platform != "cpu" for a in arrays for d in a.devices()):
        return fn(*arrays)
    flat = [_flat(a, core, lead) for a, core in args]
    size = -(-count // pieces)
    # the last piece may overlap the one before: one shape, one program
    starts = [min(i * size, count - size) for i in range(pieces)]
    wide = any(a.dtype == jnp.float64 for a in arrays)

    def piece(start: int) -> PyTree[Array]:
        # a caller's ``with jax.enable_x64(True)`` holds for its own thread only
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return jax.block_until_ready(_cut(fn)(size, np.int32(start), *flat))

    done = on_threads(piece, starts, (fn, size, tuple((a.shape, a.dtype) for a in flat)))
    return _joined(tuple(min(size, count - i * size) for i in range(pieces)), lead, done)


def _flat(a: Array, core: int, lead: tuple[int, ...]) -> Array:
    """One leading axis instead of ``lead``, of length 1 where all problems share the argument."""
    outer, inner = a.shape[: a.ndim - core], a.shape[a.ndim - core :]
    if math.prod(outer) == 1:
        return a.reshape(1, *inner)
    return jnp.broadcast_to(a, lead + inner).reshape(-1, *inner)


@functools.cache
def _cut(fn: Callable[..., PyTree[Array]]) -> Callable[..., PyTree[Array]]:
    """``fn`` on ``size`` problems from ``start``; cut inside the program, where it costs nothing."""

    @functools.partial(jax.jit, static_argnums=0)
    def piece(size: int, start: Array, *flat: Array) -> PyTree[Array]:
        return fn(*(a if len(a) == 1 else jax.lax.dynamic_slice_in_dim(a, start, size) for a in flat))

    return piece


@functools.partial(jax.jit, static_argnums=(0, 1))
def _joined(fresh: tuple[int, ...], lead: tuple[int, ...], pieces: list[PyTree[Array]]) -> PyTree[Array]:
    def join(*leaves: Array) -> Array:
        whole = jnp.concatenate([leaf[len(leaf) - new :] for leaf, new in zip(leaves, fresh)])
        return whole.reshape(*lead, *whole.shape[1:])

    return jax.tree.map(join, *pieces)
