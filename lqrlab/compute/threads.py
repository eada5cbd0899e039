"""One rule of broadcasting for functions that are written for a single problem."""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def broadcast(fn: Callable, *args: tuple[Array | None, int]) -> Any:
    """Call ``fn`` over all leading axes of its array arguments, which broadcast against each other.

    Args:
        fn: function of ``len(args)`` arrays, written for one problem.
        args: pairs ``(array or None, core dimensions)``: a matrix has 2, a vector 1, a scalar 0. None is
            handed on as it is.

    Returns:
        What ``fn`` returns, each leaf with the broadcast leading axes in front.
    """
    arrays = [(jnp.asarray(a), core) for a, core in args if a is not None]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in arrays))
    axes: list[list[int | None]] = []
    flat = []
    for a, core in arrays:
        own = (1,) * (len(lead) - (a.ndim - core)) + a.shape[: a.ndim - core]
        # an axis of length one is not mapped over, so a shared argument is not copied
        axes.append([0 if size != 1 or full == 1 else None for size, full in zip(own, lead)])
        keep = tuple(s for s, full in zip(own, lead) if s != 1 or full == 1)
        flat.append(a.reshape(keep + a.shape[a.ndim - core :]))
    present = [a is not None for a, _ in args]

    def call(*values: Array) -> Any:
        it = iter(values)
        return fn(*(next(it) if there else None for there in present))

    for level in reversed(range(len(lead))):
        in_axes = tuple(ax[level] for ax in axes)
        if all(ax is None for ax in in_axes):  # cannot happen: some argument carries each axis
            raise AssertionError("an axis belongs to no argument")
        call = jax.vmap(call, in_axes=in_axes, out_axes=0)
    return call(*flat)


T = TypeVar("T")
S = TypeVar("S")

_PIECE = 2500  # problems that one thread takes at a time
_compiled: set[Any] = set()


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
    if program in _compiled:
        return list(_pool().map(fn, items))
    done = [fn(items[0]), *_pool().map(fn, items[1:])]
    _compiled.add(program)
    return done


@functools.cache
def _piecewise(fn: Callable) -> Callable:
    """``fn`` on ``size`` problems from ``start``; cut inside the program, where it costs nothing."""

    @functools.partial(jax.jit, static_argnums=(0,))
    def piece(size: int, start: Array, *flat: Array) -> Any:
        cut = (a if len(a) == 1 else jax.lax.dynamic_slice_in_dim(a, start, size) for a in flat)
        return fn(*cut)

    return piece


@functools.partial(jax.jit, static_argnums=(0, 1))
def _joined(fresh: tuple[int, ...], lead: tuple[int, ...], pieces: list) -> Any:
    def join(*leaves: Array) -> Array:
        whole = jnp.concatenate([leaf[len(leaf) - new :] for leaf, new in zip(leaves, fresh)])
        return whole.reshape(*lead, *whole.shape[1:])

    return jax.tree.map(join, *pieces)


def on_all_cores(fn: Callable, *args: tuple[Array, int]) -> Any:
    """Call a compiled ``fn``, which broadcasts over leading axes, on equal pieces of the batch, several at once.

    XLA runs a program of many small steps on one core; a few Python threads use the others. Only on a CPU and
    only where there is enough to do: the call is ``fn(*arrays)`` otherwise. ``fn`` must not call LAPACK. The
    pieces depend on the size of the batch alone, so the same numbers come out on any number of cores.

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
    flat = []
    for a, core in args:
        inner = a.shape[a.ndim - core :]
        shared = all(axis == 1 for axis in a.shape[: a.ndim - core])
        flat.append(
            a.reshape(1, *inner) if shared else jnp.broadcast_to(a, lead + inner).reshape(count, *inner)
        )
    size = -(-count // pieces)
    starts = [
        min(i * size, count - size) for i in range(pieces)
    ]  # the last may overlap: one shape, one program

    wide = any(a.dtype == jnp.float64 for a in arrays)
    run = _piecewise(fn)

    def piece(start: int) -> Any:
        # a caller's ``with jax.enable_x64(True)`` holds for its own thread only
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            return jax.block_until_ready(run(size, np.int32(start), *flat))

    program = (fn, size, tuple((a.shape, a.dtype) for a in flat))
    done = on_threads(piece, starts, program)
    return _joined(tuple(min(size, count - i * size) for i in range(pieces)), lead, done)
