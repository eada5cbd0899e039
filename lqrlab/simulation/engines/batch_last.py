"""Closed loops under constant gains by the million: one loop a lane.

The same numbers as a step-by-step simulation of the whole batch, in another order: arrays ``[time, component,
loop]`` in blocks that fit a core's cache, so that every operation is elementwise over contiguous memory, and
one block a thread at a time. A plant's matrices are read from the cache in all steps of its block.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute.compiling import quickly
from lqrlab.compute.linalg import stored
from lqrlab.compute.memory import aligned
from lqrlab.compute.random import normals
from lqrlab.compute.threads import on_threads
from lqrlab.simulation.engines.stepping import Linear, Nonlinear, exact, row_times, runge_kutta, times

_CACHE = 80_000  # bytes of matrices in a block; measured on a CPU with 1 MiB of second-level cache a core
_PIECE = 4_000_000  # bytes of a block's trajectories, a fourth of what makes it narrower
_WIDEST = 800, 200  # loops in a block, of linear plants and of others, which have more in between
_CHUNK = 48  # samples
_ALONE = 64  # loops of one plant that fill a block
_MUCH = 1_000_000  # steps of loops


class Loops(NamedTuple):
    """What is simulated, each array with a leading axis p, or 1 for what all have in common.

    Attributes:
        model: the plants.
        K: gains ``[·, m, n]``.
        low, high: limits of the inputs ``[·, m]``; None for none.
        extra: further arrays, handed on to ``finish``.
    """

    model: Linear | Nonlinear
    K: Array
    low: Array | None
    high: Array | None
    extra: Any = None


class Noise(NamedTuple):
    """Standard deviations ``[n]``, ``[n]``, ``[m]``; None for what is not there."""

    state: Array | None = None
    sensor: Array | None = None
    input: Array | None = None


class Keep(NamedTuple):
    """What is kept of a block, computed a chunk of time at a time while it is in the cache.

    Each is a function, known by name (another one is compiled anew), or None: of states ``[t, n, loop]``, inputs
    ``[t, m, loop]``, costs ``[t, loop]``, the samples' numbers ``[t]`` and ``Loops.extra``, to a dict of arrays
    ``[t, …, loop]``. Inputs and costs of number T and later have not happened.

    Attributes:
        points: kept as they are at samples 0 … T.
        intervals: kept as they are from sample 0 to T − 1.
        sums: added up over all samples, which ``costs`` after the last are not part of.
        peaks: the largest over all samples.
        starts, length: points and intervals are kept of the steps from each of these samples on, so many and each
            in a row of its own ``[row, t, …]``; of all of them if there are none.
    """

    points: Callable | None = None
    intervals: Callable | None = None
    sums: Callable | None = None
    peaks: Callable | None = None
    starts: tuple[int, ...] = ()
    length: int = 0


class _Shape(NamedTuple):
    """What the compiled program depends on beside the arrays."""

    steps: int
    substeps: int
    lanes: int
    blocks: int  # a piece
    each: int  # loops a plant
    alone: bool  # whether a block's loops are all of one plant
    chunk: int  # samples
    keep: Keep

    @property
    def num_chunks(self) -> int:
        return -(-(self.steps + 1) // self.chunk)


def simulate(
    loops: Loops,
    x0: Array,
    steps: int,
    keep: Keep,
    *,
    key: Array | None = None,
    noise: Noise = Noise(),  # noqa: B008
    substeps: int = 1,
    total: int = 0,
) -> Mapping[str, np.ndarray | Array]:
    """Run all loops.

    Args:
        loops: p plants.
        x0: initial states ``[p·s, n]``, the s of one plant one after another; or any number with p = 1.
        steps: T.
        keep: what is wanted.
        key: each loop's noise follows from this and its own place in x0.
        noise: what is drawn.
        substeps: Runge-Kutta steps in a sample time.
        total: loops of this and later calls alike, where that is known; many are worth a good compilation.

    Returns:
        What was to be kept, the loops in front: ``[p·s, T + 1 or T, …]``, ``[p·s]``, or ``[p·s, row, length + 1 or
        length, …]`` where there are starts; and ``end``, the last state ``[p·s, n]``. On a CPU NumPy arrays that a
        device takes without a copy.
    """
    # where a caller has set a default device, it is for the caller's thread only
    loops, x0, key, noise = jax.device_put((loops, x0, key, noise), next(iter(jnp.zeros(()).devices())))
    count = len(x0)
    shape, starts = _cut(loops, x0, steps, substeps, keep, key is not None)
    arguments = (loops, x0, key, noise)
    run = _compiled(max(count, total) * steps * substeps > _MUCH)
    room = _room.eval_shape(shape, loops, x0)
    totals = run.eval_shape(shape, room, starts[0], *arguments)[1]  # traced once, like the call
    points, intervals = room
    firsts, length = keep.starts or (0,), keep.length or steps
    samples = {**dict.fromkeys(points, length + 1), **dict.fromkeys(intervals, length)}
    if jax.default_backend() != "cpu":
        (points, intervals), totals = run(shape, _room(shape, loops, x0), starts[0], *arguments)
        out = {name: jnp.moveaxis(a, -1, 0) for name, a in (points | intervals).items()}
        out = {
            name: jnp.stack([a[:, first : first + samples[name]] for first in firsts], axis=1)
            for name, a in out.items()
        }
        out = out if keep.starts else {name: a[:, 0] for name, a in out.items()}
        return out | {name: jnp.moveaxis(a[0], -1, 0) for name, a in totals.items()}
    result = {
        **{
            name: aligned((count, len(firsts), samples[name], *a.shape[1:-1]), a.dtype)
            for name, a in (points | intervals).items()
        },
        **{name: aligned((count, *a.shape[1:-1]), a.dtype) for name, a in totals.items()},
    }
    # where a caller has switched it on, it holds for the caller's thread only
    wide = jax.dtypes.canonicalize_dtype(float) == jnp.float64
    spare: list[Room] = []  # what pieces were written to is room for the next ones

    def piece(starts: np.ndarray) -> None:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            room = spare.pop() if spare else _room(shape, loops, x0)
            room, totals = run(shape, room, starts, *arguments)
        points, intervals = room
        for name, a in (points | intervals | totals).items():
            # seen through dlpack: JAX remembers an array made by NumPy, and would not write over the memory again
            seen = np.from_dlpack(a)
            seen = seen.reshape(shape.blocks, -1, *a.shape[1:]) if name in samples else seen
            for start, lane_last in zip(starts, seen):
                here, lane_first = result[name][start : start + shape.lanes], np.moveaxis(lane_last, -1, 0)
                if name not in samples:
                    np.copyto(here, lane_first)
                    continue
                for row, first in enumerate(firsts):
                    np.copyto(here[:, row], lane_first[:, first : first + samples[name]])
            del seen, lane_last, lane_first
        spare.append(room)

    shapes = tuple((a.shape, a.dtype) for a in jax.tree.leaves(arguments))
    on_threads(piece, list(starts), (run, shape, shapes, jax.tree.structure((loops, noise))))
    return {name: a[:, 0] if name in samples and not keep.starts else a for name, a in result.items()}


def _cut(
    loops: Loops, x0: Array, steps: int, substeps: int, keep: Keep, drawn: bool
) -> tuple[_Shape, np.ndarray]:
    """Blocks that fit a core's cache, and the first loop of each block of each piece ``[pieces, blocks]``."""
    count, n = x0.shape
    plants = max(len(a) for a in jax.tree.leaves((loops.model, loops.K, loops.low)))
    each = max(count // plants, 1)
    num_chunks = 1 if drawn or any((keep.intervals, keep.sums, keep.peaks)) else steps + 1
    num_chunks = max(num_chunks, -(-(steps + 1) // _CHUNK))
    chunk = -(-(steps + 1) // num_chunks)
    if jax.default_backend() != "cpu":
        return _Shape(steps, substeps, count, 1, each, False, chunk, keep), np.zeros((1, 1), np.int32)
    row = x0.dtype.itemsize * (steps + 1) * (n + loops.K.shape[-2])
    widest = min(_WIDEST[isinstance(loops.model, Nonlinear)], max(4 * _PIECE // row, 72))
    alone = each >= _ALONE
    if alone:  # its matrices are numbers that all lanes share
        group, groups = each, plants
    else:
        widest = min(widest, max(_CACHE // (n * n * x0.dtype.itemsize), 72))
        group, groups = count, 1
    lanes = -(-group // -(-group // widest))
    # the last block of a group overlaps the one before: one shape, one program
    firsts = np.minimum(np.arange(0, group, lanes), group - lanes)
    every = (np.arange(groups)[:, None] * group + firsts).ravel()
    blocks = max(1, min(_PIECE // (4 * row * lanes), len(every) // 4))
    starts = np.append(every, np.repeat(every[-1:], -len(every) % blocks)).reshape(-1, blocks)
    return _Shape(steps, substeps, lanes, blocks, each, alone, chunk, keep), starts.astype(np.int32)


Room = tuple[dict[str, Array], dict[str, Array]]
"""Points and intervals of a piece, block after block ``[blocks · samples, …, loop]``."""


def _like(
    f: Callable | None, samples: int, n: int, m: int, lanes: int, dtype: Any, extra: Any
) -> dict[str, Any]:
    """What ``f`` returns for so many samples, without the numbers."""
    arrays = (jax.ShapeDtypeStruct((samples, *size, lanes), dtype) for size in ((n,), (m,), ()))
    return jax.eval_shape(f, *arrays, jax.ShapeDtypeStruct((samples,), jnp.int32), extra) if f else {}


@functools.partial(jax.jit, static_argnums=0)
def _room(shape: _Shape, loops: Loops, x0: Array) -> Room:
    """Room for a piece."""
    extra = jax.tree.map(lambda a: jax.ShapeDtypeStruct((*a.shape[1:], shape.lanes), a.dtype), loops.extra)
    samples = shape.blocks * shape.num_chunks * shape.chunk
    m, n = loops.K.shape[-2:]
    wanted = (shape.keep.points, shape.keep.intervals)
    points, intervals = (_like(f, samples, n, m, shape.lanes, x0.dtype, extra) for f in wanted)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), (points, intervals))


def _piece(
    shape: _Shape, room: Room, starts: Array, loops: Loops, x0: Array, key: Array | None, noise: Noise
) -> tuple[Room, dict[str, Array]]:
    """Some blocks of loops: what is kept of them in ``room``, and their totals ``[blocks, …, loop]``."""

    def block(room: Room, at: tuple[Array, Array]) -> tuple[Room, dict[str, Array]]:
        number, start = at
        places = start + jnp.arange(shape.lanes, dtype=jnp.int32)

        def own(a: Array) -> Array:
            if len(a) == 1:
                return a[0][..., None]
            if shape.alone:
                return jax.lax.dynamic_index_in_dim(a, start // shape.each, keepdims=False)[..., None]
            if shape.each == 1:
                return jnp.moveaxis(jax.lax.dynamic_slice_in_dim(a, start, shape.lanes), 0, -1)
            return jnp.moveaxis(a[places // shape.each], 0, -1)

        x = jnp.moveaxis(jax.lax.dynamic_slice_in_dim(x0, start, shape.lanes), 0, -1)
        draw = _drawing(key, places, noise, x0.dtype)
        return _block(shape, room, number, jax.tree.map(own, loops), x, draw)

    return jax.lax.scan(block, room, (jnp.arange(shape.blocks, dtype=jnp.int32), starts))


@functools.cache
def _compiled(much: bool) -> Any:
    """Little work is not worth the time of a good compilation."""
    compiled = jax.jit if much else quickly
    return compiled(_piece, static_argnums=0, donate_argnums=1)


def _drawing(key: Array | None, places: Array, noise: Noise, dtype: Any) -> Callable[[int, Array], Noise]:
    """The noise of each loop ``[steps, component, loop]`` in so many steps from one on, by its place and the time."""

    def one(steps: int, start: Array, which: int, spread: Array | None) -> Array | None:
        if spread is None or key is None:
            return None
        words = jax.random.bits(jax.random.fold_in(key, which), (2,), jnp.uint32)
        of_loop, of_row = places.astype(jnp.uint32)[None], jnp.arange(len(spread), dtype=jnp.uint32)[:, None]

        def row(t: Array) -> Array:
            # single precision is enough for noise, and several times as fast to draw
            normal = normals(words, of_loop, t.astype(jnp.uint32) * len(spread) + of_row)
            return normal.astype(dtype) * spread.astype(dtype)[:, None]

        # a loop of its own writes it down, where XLA's CPU compiler would draw it anew for each use
        return jax.lax.map(row, start + jnp.arange(steps, dtype=jnp.int32))

    return lambda steps, start: Noise(*(one(steps, start, i, spread) for i, spread in enumerate(noise)))


def _block(
    shape: _Shape, room: Room, number: Array, loops: Loops, x0: Array, draw: Callable[[int, Array], Noise]
) -> tuple[Room, dict[str, Array]]:
    """One block on lanes, in num_chunks of time that stay in the cache until what is kept of them is written."""
    K, T, length, keep = loops.K.astype(x0.dtype), shape.steps, shape.chunk, shape.keep
    (m, n), lanes = K.shape[:2], x0.shape[-1]
    drawn = draw(1, jnp.int32(0))  # only to see what is drawn
    # without limits and with exact sensors the input of a linear plant need not be known to take the step
    direct = isinstance(loops.model, Linear) and loops.low is None and drawn.sensor is None
    if isinstance(loops.model, Linear):
        advance, price = exact(loops.model, loops.K, x0.dtype, direct)
    else:
        advance, price = runge_kutta(loops.model, x0.dtype, shape.substeps), None

    def control(x: Array, drawn: Noise) -> Array:
        u = -times(K, x if drawn.sensor is None else x + drawn.sensor)
        u = u if drawn.input is None else u + drawn.input
        if loops.low is not None and loops.high is not None:
            u = jnp.clip(u, loops.low.astype(u.dtype), loops.high.astype(u.dtype))
        return stored(u) if x.shape[0] > 6 else u

    def step(x: Array, drawn: Noise) -> tuple[Array, tuple]:
        u = drawn.input if direct else control(x, drawn)
        after, cost = advance(x, u)
        after = after if drawn.state is None else after + drawn.state
        return after, (x, None if direct else u, cost)

    def chunk(state: tuple, which: Array) -> tuple[tuple, None]:
        x, _, sums, peaks, room = state
        draws = draw(length, which * length)
        x, (xs, us, costs) = jax.lax.scan(step, x, draws, length=length)
        if direct:
            us = -jnp.stack([row_times(K[i], xs) for i in range(K.shape[0])], axis=1)
            us = us if draws.input is None else us + draws.input
        t = which * length + jnp.arange(length)
        costs = jnp.where(t[:, None] < T, costs if price is None else price(xs, us), 0)
        points, intervals, added, highest = (
            dict(f(xs, us, costs, t, loops.extra)) if f else {}
            for f in (keep.points, keep.intervals, keep.sums, keep.peaks)
        )
        inside = (t <= T)[:, None]
        sums = {name: sums[name] + jnp.sum(a, axis=0) for name, a in added.items()}
        peaks = {
            name: jnp.maximum(peaks[name], jnp.max(jnp.where(inside, a, -jnp.inf), axis=0))
            for name, a in highest.items()
        }
        last = jax.lax.dynamic_index_in_dim(
            xs, jnp.clip(T - which * length, 0, length - 1), 0, keepdims=False
        )
        row = (number * shape.num_chunks + which) * length
        room = jax.tree.map(
            lambda all, a: jax.lax.dynamic_update_slice_in_dim(all, a, row, 0), room, (points, intervals)
        )
        return (x, last, sums, peaks, room), None

    def begun(f: Callable | None, value: float) -> dict[str, Array]:
        each = _like(f, 1, n, m, lanes, x0.dtype, loops.extra)
        return {name: jnp.full(a.shape[1:], value, a.dtype) for name, a in each.items()}

    start = (x0, x0, begun(keep.sums, 0.0), begun(keep.peaks, -jnp.inf), room)
    every = jnp.arange(shape.num_chunks, dtype=jnp.int32)
    (_, end, sums, peaks, room), _ = jax.lax.scan(chunk, start, every)
    return room, {**sums, **peaks, "end": end}
