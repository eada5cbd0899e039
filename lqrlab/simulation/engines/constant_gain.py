"""Closed loops under constant gains by the million, in batch-last layout.

The same numbers as the reference scan, in another order: arrays ``[time, component, loop]`` in blocks that fit a
core's cache, so that every operation is elementwise over contiguous memory, one call a thread at a time. A plant's
matrices are read from the cache in all steps of its block.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from lqrlab.compute import jit_by_function, quick_jit
from lqrlab.compute.linalg import stored
from lqrlab.compute.linalg.batch_last import matvec
from lqrlab.compute.memory import aligned
from lqrlab.compute.threads import on_threads
from lqrlab.control import Sampled
from lqrlab.simulation.engines.batched_plants import Layout, Loops, cut, runge_kutta, zero_order_hold
from lqrlab.simulation.noise import Drawn, drawing
from lqrlab.simulation.recording import Arrays, Keep, evaluate, segmented, shapes


class Kept(NamedTuple):
    """Results of one call, block after block.

    Attributes:
        points, intervals: ``[blocks, width, samples, …]``.
        totals: sums, peaks and last states ``[blocks, width, …]``.
    """

    points: Arrays
    intervals: Arrays
    totals: Arrays


def simulate(
    loops: Loops,
    x0: Float[Array, "loops n"],
    num_steps: int,
    keep: Keep,
    *,
    key: PRNGKeyArray | None = None,
    substeps: int = 1,
    quick: bool = False,
) -> Mapping[str, np.ndarray | Array]:
    """Run all loops.

    Args:
        loops: p plants with their gains.
        x0: initial states ``[p·s, n]``, the s of one plant one after another; or any number with p = 1.
        num_steps, keep: T, and what is kept.
        key: each loop's noise follows from this and its position in x0.
        substeps: Runge-Kutta steps in a sample time.
        quick: compile quickly a program that then runs some times slower.

    Returns:
        As of :func:`lqrlab.simulation.record`; on a CPU NumPy arrays that a device takes over without a copy.
    """
    # a default device that a caller has set holds in the caller's thread only
    device = next(iter(jnp.zeros(()).devices()))
    loops, x0, key = jax.device_put((loops, x0, key), device)
    layout, calls = cut(loops, x0, num_steps, substeps, keep, key is not None)
    program = _program(quick)
    if jax.default_backend() == "cpu":
        return _on_threads(program, layout, calls, loops, x0, key)
    kept = program(layout, calls[0], loops, x0, key)
    points, intervals, totals = jax.tree.map(lambda a: a[0], kept)
    return segmented(keep, points, num_steps, True) | segmented(keep, intervals, num_steps, False) | totals


def _on_threads(
    program: Callable[..., Kept],
    layout: Layout,
    calls: Int[np.ndarray, "calls blocks"],
    loops: Loops,
    x0: Array,
    key: PRNGKeyArray | None,
) -> dict[str, np.ndarray]:
    """A call a thread; what it returns is copied to its place while it is in the cache."""
    starts, length = layout.keep.rows(layout.num_steps)
    kept = jax.eval_shape(functools.partial(program, layout), calls[0], loops, x0, key)
    samples = dict.fromkeys(kept.points, length + 1) | dict.fromkeys(kept.intervals, length)
    result = {
        name: aligned((len(x0), len(starts), samples[name], *a.shape[3:]), a.dtype)
        for name, a in (kept.points | kept.intervals).items()
    }
    result |= {name: aligned((len(x0), *a.shape[2:]), a.dtype) for name, a in kept.totals.items()}

    def call(firsts: Int[np.ndarray, " blocks"]) -> None:
        kept = program(layout, firsts, loops, x0, key)
        for name, blocks in (kept.points | kept.intervals | kept.totals).items():
            for at, block in zip(firsts, np.asarray(blocks)):
                place = result[name][at : at + layout.width]
                if name not in samples:
                    place[...] = block
                    continue
                for row, first in enumerate(starts):
                    place[:, row] = block[:, first : first + samples[name]]

    signature = tuple((a.shape, a.dtype) for a in jax.tree.leaves((loops, x0, key)))
    on_threads(call, list(calls), (program, layout, signature, jax.tree.structure(loops)))
    return {name: a[:, 0] if name in samples and not layout.keep.starts else a for name, a in result.items()}


@functools.cache
def _program(quick: bool) -> Callable[..., Kept]:
    return jit_by_function(_call, quick_jit if quick else jax.jit, static_argnums=0)


def _call(layout: Layout, firsts: Array, loops: Loops, x0: Array, key: PRNGKeyArray | None) -> Kept:
    """Run the blocks that begin with these loops."""

    def block(first: Array) -> Kept:
        numbers = first + jnp.arange(layout.width, dtype=jnp.int32)

        def of_block(a: Array) -> Array:
            """Arrays of the block's loops, with the loops on the last axis ``[…, width or 1]``."""
            if len(a) == 1:
                return a[0][..., None]
            if layout.shared:
                return jax.lax.dynamic_index_in_dim(a, first // layout.per_plant, keepdims=False)[..., None]
            if layout.per_plant == 1:
                return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(a, first, layout.width), 0, -1)
            return jnp.moveaxis(a[numbers // layout.per_plant], 0, -1)

        x = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(x0, first, layout.width), 0, -1)
        these = jax.tree.map(of_block, loops)
        return _block(layout, these, x, drawing(key, numbers, these.noise, x0.dtype))

    if layout.blocks == 1:
        return jax.tree.map(lambda a: a[None], block(firsts[0]))
    return jax.lax.map(block, firsts)


def _block(layout: Layout, loops: Loops, x0: Array, draw: Callable[[int, Array], Drawn]) -> Kept:
    """One block, chunk after chunk: its states stay in the cache until what is kept of them is written."""
    T, length, keep = layout.num_steps, layout.chunk, layout.keep
    (m, n), width = loops.K.shape[:2], x0.shape[-1]
    step = _sample(layout, loops, x0.dtype, draw(1, jnp.int32(0)))

    def chunk(which: Array, state: tuple[Array, Arrays, Arrays]) -> tuple[Array, Arrays, Arrays]:
        x, totals, rows = state
        first = which * length
        draws, t = draw(length, first), first + jnp.arange(length, dtype=jnp.int32)
        x, (xs, us, costs) = jax.lax.scan(step, x, draws, length=length)
        costs = jnp.where(t[:, None] < T, costs, 0)
        points, intervals, added, highest = (evaluate(f, xs, us, costs, t, loops.extra) for f in keep[:4])
        highest = {name: jnp.where((t <= T)[:, None], a, -jnp.inf) for name, a in highest.items()}
        at_end = jnp.clip(T - first, 0, length - 1)  # once the last chunk is through, sample T
        totals = {
            **{name: totals[name] + jnp.sum(a, axis=0) for name, a in added.items()},
            **{name: jnp.maximum(totals[name], jnp.max(a, axis=0)) for name, a in highest.items()},
            "end": jax.lax.dynamic_index_in_dim(xs, at_end, 0, keepdims=False),
        }
        rows = {
            name: jax.lax.dynamic_update_slice_in_dim(rows[name], _rows(a), which * _size(a), 1)
            for name, a in (points | intervals).items()
        }
        return x, totals, rows

    kinds = [shapes(f, length, n, m, width, x0.dtype, loops.extra) for f in keep[:4]]
    totals = {
        name: jnp.full(a.shape[1:], value, a.dtype)
        for kind, value in ((kinds[2], 0.0), (kinds[3], -jnp.inf))
        for name, a in kind.items()
    }
    rows = {
        name: jnp.zeros((width, layout.num_chunks * _size(a)), a.dtype) for name, a in (kinds[0] | kinds[1]).items()
    }
    start = (x0, {**totals, "end": x0}, rows)
    _, totals, rows = jax.lax.fori_loop(0, layout.num_chunks, chunk, start)
    points, intervals = (
        {name: rows[name].reshape(width, -1, *a.shape[1:-1]) for name, a in kind.items()} for kind in kinds[:2]
    )
    return Kept(points, intervals, {name: jnp.moveaxis(a, -1, 0) for name, a in totals.items()})


def _size(a: Array | jax.ShapeDtypeStruct) -> int:
    """Numbers of each loop in what was kept of a chunk ``[t, …, loop]``."""
    return math.prod(a.shape[:-1])


def _rows(a: Array) -> Array:
    """Each loop's numbers one after another: a chunk is transposed while it is in the cache."""
    return a.reshape(-1, a.shape[-1]).T


def _sample(layout: Layout, loops: Loops, dtype: np.dtype, drawn: Drawn) -> Callable:
    """One sample of a block: ``(x, drawn) → (next x, (x, u, cost))``."""
    K = loops.K.astype(dtype)
    if isinstance(loops.model, Sampled):
        direct = loops.low is None and drawn.sensor is None
        advance = zero_order_hold(loops.model, loops.K, dtype, direct)
    else:
        advance = runge_kutta(loops.model, dtype, layout.substeps)

    def control(x: Array, drawn: Drawn) -> Array:
        u = -matvec(K, x if drawn.sensor is None else x + drawn.sensor)
        u = u if drawn.input is None else u + drawn.input
        if loops.low is not None and loops.high is not None:
            u = jnp.clip(u, loops.low.astype(u.dtype), loops.high.astype(u.dtype))
        return stored(u) if x.shape[0] > 6 else u

    def step(x: Array, drawn: Drawn) -> tuple[Array, tuple[Array, Array, Array]]:
        u = control(x, drawn)
        after, cost = advance(x, u, drawn.input)
        return after if drawn.state is None else after + drawn.state, (x, u, cost)

    return step
