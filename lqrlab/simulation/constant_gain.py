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
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from lqrlab.compute import jit_by_function, quick_jit
from lqrlab.compute.calculus import rk4
from lqrlab.compute.jaxprs import componentwise
from lqrlab.compute.linalg import stored
from lqrlab.compute.linalg.batch_last import dot, matvec, mul, product, t
from lqrlab.compute.threads import aligned, on_threads
from lqrlab.control import Sampled
from lqrlab.simulation.noise import Correlated, Drawn, Noise, drawing
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.recording import Arrays, Keep, evaluate, segmented, shapes
from lqrlab.systems import Plant

# measured on a CPU with 1 MiB of second-level cache a core
CACHE = 80_000  # bytes of plants' matrices in a block
CALL = 4_000_000
"""Bytes of trajectories that one call of the program makes, and a fourth of what makes a block narrower."""
WIDEST = 800, 200  # loops in a block, of linear plants and of others, which have more intermediate results
CHUNK = 16  # samples whose states are in the cache together until what is kept of them has its loops in front
SHARED = 64  # loops of one plant that fill a block: its matrices are then numbers that all of them share


class NonlinearModel(NamedTuple):
    """Plants in continuous time: leaves and weights ``[p or 1, …]``, h the length of a Runge-Kutta step."""

    plant: Plant
    x_eq: Array
    u_eq: Array
    Q: Array
    R: Array
    h: Array


class Loops(NamedTuple):
    """Closed loops of plants (model) under constant gains ``[·, m, n]``, with limits of the inputs ``[·, m]``.

    Each array has a leading axis p, or 1 for what all have in common; ``extra`` is handed on to what records.
    """

    model: Sampled | NonlinearModel
    K: Array
    low: Array | None = None
    high: Array | None = None
    noise: Noise = Noise()
    extra: PyTree = None

    @property
    def plants(self) -> int:
        """Number of different loops."""
        return max(len(a) for a in jax.tree.leaves((self.model, self.K, self.low, self.noise)))


def loops_of(problem: Problem, K: Array, extra: PyTree = None) -> Loops:
    """The plants of a problem under gains K ``[*batch, m, n]``, flattened; ``extra`` has the batch axes in front."""
    batch = problem.batch_shape
    depth = max(len(batch), K.ndim - 2)
    fill = ((*front, *(1,) * (depth - len(front))) for front in (batch, K.shape[:-2]))
    lead = jnp.broadcast_shapes(*fill)  # the plants' axes lead, whatever else the gains have

    def flat(a: Array, core: int) -> Array:
        a = jnp.asarray(a)
        front, inner = a.shape[: a.ndim - core], a.shape[a.ndim - core :]
        if all(size == 1 for size in front):
            return a.reshape(1, *inner)
        a = a.reshape(*front, *(1,) * (depth - len(front)), *inner)
        return jnp.broadcast_to(a, (*lead, *inner)).reshape(-1, *inner)

    def of_batch(a: Array) -> Array:
        return flat(a, jnp.ndim(a) - len(batch))

    model: Sampled | NonlinearModel
    if problem.linear:
        model = Sampled(*map(of_batch, problem.sampled))
    else:
        assert problem.plant is not None
        assert problem.continuous is not None
        plant = problem.plant.broadcast_to(batch)
        of_plant = (problem.x_eq, problem.u_eq, problem.continuous.Q, problem.continuous.R)
        model = jax.tree.map(of_batch, NonlinearModel(plant, *of_plant, problem.dt / problem.substeps))
    if any(isinstance(a, Correlated) for a in problem.noise):
        raise ValueError("noise: expected standard deviations, but found a covariance; rollout takes it, not record")
    rest = jax.tree.map(of_batch, (problem.low, problem.high, problem.noise, extra))
    return Loops(model, flat(K, 2), *rest)


class Layout(NamedTuple):
    """All that the compiled program depends on but the arrays.

    It runs ``blocks`` of ``width`` loops in a call and keeps ``chunk`` samples together; ``per_plant`` loops in a row
    are of one plant, with ``shared`` all of a block.
    """

    num_steps: int
    substeps: int
    width: int
    blocks: int
    per_plant: int
    shared: bool
    chunk: int
    keep: Keep


def cut(
    loops: Loops, x0: Float[Array, "loops n"], num_steps: int, substeps: int, keep: Keep
) -> tuple[Layout, Int[np.ndarray, "calls blocks"]]:
    """The layout, and the first loop of each block of each call."""
    count, n = x0.shape
    per_plant = max(count // loops.plants, 1)
    samples = num_steps + 1
    chunk = -(-samples // -(-samples // CHUNK))
    if jax.default_backend() != "cpu":
        layout = Layout(num_steps, substeps, count, 1, per_plant, False, chunk, keep)
        return layout, np.zeros((1, 1), np.int32)
    row = x0.dtype.itemsize * samples * (n + loops.K.shape[-2])
    widest = min(WIDEST[isinstance(loops.model, NonlinearModel)], max(4 * CALL // row, 72))
    shared = per_plant >= SHARED
    if shared:
        group, groups = per_plant, loops.plants
    else:
        widest = min(widest, max(CACHE // (n * n * x0.dtype.itemsize), 72))
        group, groups = count, 1
    width = -(-group // -(-group // widest))
    # the last block of a group overlaps the one before: one shape, one program
    firsts = np.minimum(np.arange(0, group, width), group - width)
    starts = (np.arange(groups)[:, None] * group + firsts).ravel()
    blocks = max(1, min(CALL // (4 * row * width), len(starts) // 4))
    filled = np.append(starts, np.repeat(starts[-1:], -len(starts) % blocks)).astype(np.int32)
    layout = Layout(num_steps, substeps, width, blocks, per_plant, shared, chunk, keep)
    return layout, filled.reshape(-1, blocks)


def zero_order_hold(model: Sampled, K: Array, dtype: np.dtype, direct: bool) -> Callable:
    """A step of a block under exact zero-order hold: ``(x, u, added or None) → (next x, cost)``.

    Matrices and gains K are ``[rows, columns, width or 1]``; ``direct`` steps by A − BK and what is added to −Kx.
    """
    A, B, Q, R, N = model
    K = K.astype(A.dtype)
    closed = (A - product(B, K)).astype(dtype)
    stage = (Q - mul(N, K) + mul(t(K), mul(R, K) - t(N))).astype(dtype)
    rows = ([Q, N], [t(N), R])
    weight = jnp.concatenate([jnp.concatenate(row, 1) for row in rows]).astype(dtype)
    A, B = A.astype(dtype), B.astype(dtype)

    def advance(x: Array, u: Array, added: Array | None) -> tuple[Array, Array]:
        if not direct:
            return matvec(A, x) + matvec(B, u), _square(weight, [*x, *u])
        after = matvec(closed, x)
        if added is None:
            return after, _square(stage, [*x])
        return after + matvec(B, added), _square(weight, [*x, *u])

    return advance


def _square(weight: Array, z: list[Array]) -> Array:
    """zᵀ weight z of a symmetric weight, as one sum: XLA writes no intermediate down."""
    twice, total = 2 * weight, jnp.zeros_like(z[0])
    for i, zi in enumerate(z):
        row = weight[i, i] * zi
        for j in range(i + 1, len(z)):
            row = row + twice[i, j] * z[j]
        total = total + row * zi
    return total


def runge_kutta(model: NonlinearModel, dtype: np.dtype, substeps: int) -> Callable:
    """A step of the plant's equations, its cost integrated along: ``(x, u, _) → (next x, cost)``."""
    model = jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, model)
    _, x_eq, u_eq, Q, R, h = model

    def one(plant: Plant, x: Array, u: Array) -> Array:
        return plant.dynamics(x, u).astype(dtype)

    example = (model.plant, x_eq, u_eq)
    single = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[:-1], a.dtype), example)
    dynamics = componentwise(one, *single)

    def advance(x: Array, u: Array, _: Array | None) -> tuple[Array, Array]:
        forced = u + u_eq
        effort = dot(u, matvec(R, u))

        def rates(state: tuple[Array, Array]) -> tuple[Array, Array]:
            x, _ = state
            return stored(dynamics(model.plant, x + x_eq, forced)), dot(x, matvec(Q, x)) + effort

        return rk4(rates, (x, jnp.zeros_like(x[0])), (h[None], h), substeps)

    return advance


Kept = tuple[Arrays, Arrays, Arrays]
"""Points and intervals ``[blocks, width, samples, …]``; sums, peaks and last states ``[blocks, width, …]``."""


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
    """Run all loops: what :func:`lqrlab.simulation.record` returns, on a CPU as NumPy arrays that a device takes over.

    Of p plants x0 has s states each, one plant after another ``[p·s, n]``, or any number with p = 1. Each loop's noise
    follows from ``key`` and its position in x0. A ``quick`` program is compiled quickly and runs some times slower.
    """
    # a default device that a caller has set holds in the caller's thread only
    device = next(iter(jnp.zeros(()).devices()))
    loops, x0, key = jax.device_put((loops, x0, key), device)
    layout, calls = cut(loops, x0, num_steps, substeps, keep)
    program = _PROGRAMS[quick]
    if jax.default_backend() == "cpu":
        return _on_threads(program, layout, calls, loops, x0, key)
    points, intervals, totals = jax.tree.map(lambda a: a[0], program(layout, calls[0], loops, x0, key))
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
    points, intervals, totals = jax.eval_shape(functools.partial(program, layout), calls[0], loops, x0, key)
    samples = dict.fromkeys(points, length + 1) | dict.fromkeys(intervals, length)
    result = {
        name: aligned((len(x0), len(starts), samples[name], *a.shape[3:]), a.dtype)
        for name, a in (points | intervals).items()
    }
    result |= {name: aligned((len(x0), *a.shape[2:]), a.dtype) for name, a in totals.items()}

    def call(firsts: Int[np.ndarray, " blocks"]) -> None:
        points, intervals, totals = program(layout, firsts, loops, x0, key)
        for name, blocks in (points | intervals | totals).items():
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


_PROGRAMS = {q: jit_by_function(_call, quick_jit if q else jax.jit, static_argnums=0) for q in (True, False)}


def _block(layout: Layout, loops: Loops, x0: Array, draw: Callable[[int, Array], Drawn]) -> Kept:
    """One block, chunk after chunk: its states stay in the cache until what is kept of them is written."""
    T, length, keep = layout.num_steps, layout.chunk, layout.keep
    chunks = -(-(T + 1) // length)
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
        for name, a in (points | intervals).items():  # a chunk is transposed while it is in the cache
            flat = a.reshape(-1, a.shape[-1]).T
            rows[name] = jax.lax.dynamic_update_slice_in_dim(rows[name], flat, which * _size(a), 1)
        return x, totals, rows

    kinds = [shapes(f, length, n, m, width, x0.dtype, loops.extra) for f in keep[:4]]
    totals = {
        name: jnp.full(a.shape[1:], value, a.dtype)
        for kind, value in ((kinds[2], 0.0), (kinds[3], -jnp.inf))
        for name, a in kind.items()
    }
    rows = {name: jnp.zeros((width, chunks * _size(a)), a.dtype) for name, a in (kinds[0] | kinds[1]).items()}
    start = (x0, {**totals, "end": x0}, rows)
    _, totals, rows = jax.lax.fori_loop(0, chunks, chunk, start)
    points, intervals = (
        {name: rows[name].reshape(width, -1, *a.shape[1:-1]) for name, a in kind.items()} for kind in kinds[:2]
    )
    return points, intervals, {name: jnp.moveaxis(a, -1, 0) for name, a in totals.items()}


def _size(a: Array | jax.ShapeDtypeStruct) -> int:
    """Numbers of each loop in what was kept of a chunk ``[t, …, loop]``."""
    return math.prod(a.shape[:-1])


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
