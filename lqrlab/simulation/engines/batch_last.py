"""Closed loops under constant gains by the million, in batch-last layout.

The same numbers as the reference scan, in another order: arrays ``[time, component, loop]`` in blocks that fit a
core's cache, so that every operation is elementwise over contiguous memory, one block a thread at a time. A plant's
matrices are read from the cache in all steps of its block.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import quick_jit
from lqrlab.compute.linalg import stored
from lqrlab.compute.linalg.batch_last import matvec
from lqrlab.compute.memory import aligned
from lqrlab.compute.threads import on_threads
from lqrlab.simulation.engines.blocks import Layout, cut
from lqrlab.simulation.engines.models import (
    LinearModel,
    Loops,
    runge_kutta,
    zero_order_hold,
)
from lqrlab.simulation.noise import Noise, drawing
from lqrlab.simulation.recording import Arrays, Keep, evaluate, segmented, shapes

_MUCH = 1_000_000  # steps of all loops that are worth a good compilation

Buffers = tuple[Arrays, Arrays]
"""Points and intervals of one call, block after block ``[blocks · samples, …, width]``."""


def simulate(
    loops: Loops,
    x0: Array,
    num_steps: int,
    keep: Keep,
    *,
    key: Array | None = None,
    substeps: int = 1,
    total: int = 0,
) -> Mapping[str, np.ndarray | Array]:
    """Run all loops.

    Args:
        loops: p plants with their gains.
        x0: initial states ``[p·s, n]``, the s of one plant one after another; or any number with p = 1.
        num_steps: T.
        keep: what is kept.
        key: each loop's noise follows from this and its position in x0.
        substeps: Runge-Kutta steps in a sample time.
        total: loops of this and later calls alike, if known; many are worth a good compilation.

    Returns:
        What was to be kept, the loops in front: ``[p·s, T + 1 or T, …]``, ``[p·s]``, or ``[p·s, row, length + 1 or
        length, …]`` where there are segments; and ``end``, the last state ``[p·s, n]``. On a CPU NumPy arrays that a
        device takes over without a copy.
    """
    # a default device that a caller has set holds in the caller's thread only
    device = next(iter(jnp.zeros(()).devices()))
    loops, x0, key = jax.device_put((loops, x0, key), device)
    layout, firsts = cut(loops, x0, num_steps, substeps, keep, key is not None)
    program = _program(max(len(x0), total) * num_steps * substeps > _MUCH)
    run = _on_cpu if jax.default_backend() == "cpu" else _on_accelerator
    return run(program, layout, firsts, loops, x0, key)


def _on_accelerator(
    program: Any, layout: Layout, firsts: np.ndarray, loops: Loops, x0: Array, key: Array | None
) -> dict[str, Array]:
    """All loops in one block."""
    (points, intervals), totals = program(layout, _buffers(layout, loops, x0), firsts[0], loops, x0, key)
    T, keep = layout.num_steps, layout.keep
    points, intervals = (
        {name: jnp.moveaxis(a, -1, 0)[:, : T + more] for name, a in kept.items()}
        for kept, more in ((points, 1), (intervals, 0))
    )
    kept = segmented(keep, points, T, True) | segmented(keep, intervals, T, False)
    return kept | {name: jnp.moveaxis(a[0], -1, 0) for name, a in totals.items()}


def _on_cpu(
    program: Any, layout: Layout, firsts: np.ndarray, loops: Loops, x0: Array, key: Array | None
) -> dict[str, np.ndarray]:
    """Some blocks a call, a call a thread; what a call returns is copied to its place while it is in the cache."""
    buffers = _buffers.eval_shape(layout, loops, x0)
    totals = jax.eval_shape(functools.partial(program, layout), buffers, firsts[0], loops, x0, key)[1]
    starts, length = layout.keep.rows(layout.num_steps)
    samples = {**dict.fromkeys(buffers[0], length + 1), **dict.fromkeys(buffers[1], length)}
    shaped = {
        name: (len(starts), samples[name], *a.shape[1:-1]) for name, a in (buffers[0] | buffers[1]).items()
    }
    shaped |= {name: a.shape[1:-1] for name, a in totals.items()}
    dtypes = {name: a.dtype for name, a in (*buffers[0].items(), *buffers[1].items(), *totals.items())}
    result = {name: aligned((len(x0), *shape), dtypes[name]) for name, shape in shaped.items()}
    spare: list[Buffers] = []  # memory that one call has written to is used again by the next
    # float64 that a caller has switched on holds in the caller's thread only
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64

    def call(first: np.ndarray) -> None:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            buffers = spare.pop() if spare else _buffers(layout, loops, x0)
            buffers, totals = program(layout, buffers, first, loops, x0, key)
        for name, a in (buffers[0] | buffers[1] | totals).items():
            # seen through dlpack: JAX remembers an array made by NumPy, and would not write over the memory again
            seen = np.from_dlpack(a)
            blocks = seen.reshape(layout.blocks, -1, *a.shape[1:]) if name in samples else seen
            for at, block in zip(first, blocks):
                _copy(
                    result[name][at : at + layout.width], np.moveaxis(block, -1, 0), starts, samples.get(name)
                )
            del seen, blocks, block
        spare.append(buffers)

    arguments = (loops, x0, key)
    signature = tuple((a.shape, a.dtype) for a in jax.tree.leaves(arguments))
    on_threads(call, list(firsts), (program, layout, signature, jax.tree.structure(loops)))
    return {name: a[:, 0] if name in samples and not layout.keep.starts else a for name, a in result.items()}


def _copy(to: np.ndarray, block: np.ndarray, starts: tuple[int, ...], samples: int | None) -> None:
    """A block ``[loop, …]`` to its place: totals as they are, points and intervals segment by segment."""
    if samples is None:
        np.copyto(to, block)
        return
    for row, first in enumerate(starts):
        np.copyto(to[:, row], block[:, first : first + samples])


@functools.partial(jax.jit, static_argnums=0)
def _buffers(layout: Layout, loops: Loops, x0: Array) -> Buffers:
    """Memory for what one call keeps."""
    extra = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[1:], layout.width), a.dtype), loops.extra)
    samples = layout.blocks * layout.num_chunks * layout.chunk
    m, n = loops.K.shape[-2:]
    wanted = (layout.keep.points, layout.keep.intervals)
    points, intervals = (shapes(f, samples, n, m, layout.width, x0.dtype, extra) for f in wanted)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), (points, intervals))


@functools.cache
def _program(much: bool) -> Any:
    """Little work is not worth the time of a good compilation."""
    compiled = jax.jit if much else quick_jit
    return compiled(_call, static_argnums=0, donate_argnums=1)


def _call(
    layout: Layout, buffers: Buffers, firsts: Array, loops: Loops, x0: Array, key: Array | None
) -> tuple[Buffers, Arrays]:
    """Some blocks of loops: what is kept of them in ``buffers``, and their totals ``[blocks, …, width]``."""

    def block(buffers: Buffers, at: tuple[Array, Array]) -> tuple[Buffers, Arrays]:
        number, first = at
        numbers = first + jnp.arange(layout.width, dtype=jnp.int32)

        def of_block(a: Array) -> Array:
            """What belongs to the block's loops, with them on the last axis ``[…, width or 1]``."""
            if len(a) == 1:
                return a[0][..., None]
            if layout.shared:
                return jax.lax.dynamic_index_in_dim(a, first // layout.per_plant, keepdims=False)[..., None]
            if layout.per_plant == 1:
                return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(a, first, layout.width), 0, -1)
            return jnp.moveaxis(a[numbers // layout.per_plant], 0, -1)

        x = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(x0, first, layout.width), 0, -1)
        these = jax.tree.map(of_block, loops)
        draw = drawing(key, numbers, these.noise, x0.dtype)
        return _block(layout, buffers, number, these, x, draw)

    return jax.lax.scan(block, buffers, (jnp.arange(layout.blocks, dtype=jnp.int32), firsts))


class _Kept(NamedTuple):
    """What is kept of a block so far; ``last`` is the state at sample T once the last chunk is through."""

    last: Array
    sums: Arrays
    peaks: Arrays
    buffers: Buffers


def _block(
    layout: Layout,
    buffers: Buffers,
    number: Array,
    loops: Loops,
    x0: Array,
    draw: Callable[[int, Array], Noise],
) -> tuple[Buffers, Arrays]:
    """One block, chunk after chunk: its states stay in the cache until what is kept of them is written."""
    length, keep = layout.chunk, layout.keep
    (m, n), width = loops.K.shape[:2], x0.shape[-1]
    step, complete = _sample(layout, loops, x0.dtype, draw(1, jnp.int32(0)))

    def chunk(state: tuple[Array, _Kept], which: Array) -> tuple[tuple[Array, _Kept], None]:
        x, kept = state
        first = which * length
        draws = draw(length, first)
        x, (xs, us, costs) = jax.lax.scan(step, x, draws, length=length)
        us, costs = complete(xs, us, costs, draws)
        t = first + jnp.arange(length)
        costs = jnp.where(t[:, None] < layout.num_steps, costs, 0)
        row = (number * layout.num_chunks + which) * length
        return (x, _record(layout, kept, row, xs, us, costs, t, loops.extra)), None

    def begun(f: Any, value: float) -> Arrays:
        each = shapes(f, 1, n, m, width, x0.dtype, loops.extra)
        return {name: jnp.full(a.shape[1:], value, a.dtype) for name, a in each.items()}

    start = _Kept(x0, begun(keep.sums, 0.0), begun(keep.peaks, -jnp.inf), buffers)
    chunks = jnp.arange(layout.num_chunks, dtype=jnp.int32)
    (_, kept), _ = jax.lax.scan(chunk, (x0, start), chunks)
    return kept.buffers, {**kept.sums, **kept.peaks, "end": kept.last}


def _sample(layout: Layout, loops: Loops, dtype: np.dtype, drawn: Noise) -> tuple[Callable, Callable]:
    """One sample of a block, and what of a whole chunk follows from its states at once.

    Returns:
        ``(x, drawn) → (next x, (x, u, cost))`` and ``(xs, us, costs, drawn) → (us, costs)``; u is None where the
        linear plant's step does not need it (no limits, exact sensors), cost where it follows from x and u.
    """
    K = loops.K.astype(dtype)
    linear = isinstance(loops.model, LinearModel)
    direct = linear and loops.low is None and drawn.sensor is None
    price = None
    if isinstance(loops.model, LinearModel):
        advance, price = zero_order_hold(loops.model, loops.K, dtype, direct)
    else:
        advance = runge_kutta(loops.model, dtype, layout.substeps)

    def control(x: Array, drawn: Noise) -> Array:
        u = -matvec(K, x if drawn.sensor is None else x + drawn.sensor)
        u = u if drawn.input is None else u + drawn.input
        if loops.low is not None and loops.high is not None:
            u = jnp.clip(u, loops.low.astype(u.dtype), loops.high.astype(u.dtype))
        return stored(u) if x.shape[0] > 6 else u

    def step(x: Array, drawn: Noise) -> tuple[Array, tuple]:
        u = drawn.input if direct else control(x, drawn)
        after, cost = advance(x, u)
        after = after if drawn.state is None else after + drawn.state
        return after, (x, None if direct else u, cost)

    def complete(xs: Array, us: Array | None, costs: Array | None, drawn: Noise) -> tuple[Array, Array]:
        if us is None:
            us = -jnp.stack([matvec(xs, K[i]) for i in range(len(K))], axis=1)
            us = us if drawn.input is None else us + drawn.input
        if price is not None:
            costs = price(xs, us)
        assert costs is not None
        return us, costs

    return step, complete


def _record(
    layout: Layout, kept: _Kept, row: Array, xs: Array, us: Array, costs: Array, t: Array, extra: Any
) -> _Kept:
    """Add a chunk to what is kept; ``row`` is its first row in the buffers."""
    T = layout.num_steps
    points, intervals, added, highest = (evaluate(f, xs, us, costs, t, extra) for f in layout.keep[:4])
    inside = (t <= T)[:, None]
    sums = {name: kept.sums[name] + jnp.sum(a, axis=0) for name, a in added.items()}
    peaks = {
        name: jnp.maximum(kept.peaks[name], jnp.max(jnp.where(inside, a, -jnp.inf), axis=0))
        for name, a in highest.items()
    }
    last = jax.lax.dynamic_index_in_dim(xs, jnp.clip(T - t[0], 0, len(xs) - 1), 0, keepdims=False)
    buffers = jax.tree.map(
        lambda whole, a: jax.lax.dynamic_update_slice_in_dim(whole, a, row, 0),
        kept.buffers,
        (points, intervals),
    )
    return _Kept(last, sums, peaks, buffers)
