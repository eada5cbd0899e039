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

from lqrlab.compute.batching import on_threads
from lqrlab.compute.components import componentwise
from lqrlab.compute.linalg import stored
from lqrlab.control import lanes
from lqrlab.systems import Plant

_CACHE = 80_000  # bytes of matrices in a block; measured on a CPU with 1 MiB of second-level cache a core
_PIECE = 4_000_000  # bytes that a block's trajectories may take before it is made narrower


class Linear(NamedTuple):
    """Sampled linear plants: dynamics and weights of a step, each ``[p or 1, rows, columns]``."""

    A: Array
    B: Array
    Q: Array
    R: Array
    N: Array


class Nonlinear(NamedTuple):
    """Plants in continuous time: leaves and weights ``[p or 1, …]``, h the length of a Runge-Kutta step."""

    plant: Plant
    x_eq: Array
    u_eq: Array
    Q: Array
    R: Array
    h: Array


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


class _Shape(NamedTuple):
    """What the compiled program depends on beside the arrays."""

    steps: int
    substeps: int
    lanes: int
    blocks: int  # a piece
    plants: int
    each: int  # loops a plant
    finish: Callable


Finish = Callable[[Array, Array, Array, Any], Mapping[str, Array]]
"""States ``[T+1, n, loop]``, inputs ``[T, m, loop]``, costs ``[T, loop]`` and extra to what is kept, ``[…, loop]``."""


def simulate(
    loops: Loops,
    x0: Array,
    steps: int,
    finish: Finish,
    *,
    key: Array | None = None,
    noise: Noise = Noise(),  # noqa: B008
    substeps: int = 1,
) -> Mapping[str, np.ndarray | Array]:
    """Run all loops.

    Args:
        loops: p plants.
        x0: initial states ``[p·s, n]``, the s of one plant one after another; or any number with p = 1.
        steps: T.
        finish: what is to be kept of a block, a function known by name: a new one is compiled anew.
        key: each loop's noise follows from this and its own place in x0.
        noise: what is drawn.
        substeps: Runge-Kutta steps in a sample time.

    Returns:
        What ``finish`` returns, the loops in front: ``[p·s, …]``. On a CPU NumPy arrays that a device takes
        without a copy.
    """
    count, n = x0.shape
    m = loops.K.shape[-2]
    cpu = jax.default_backend() == "cpu"
    row = x0.dtype.itemsize * (steps + 1) * (n + m)
    block = min(800, max(_CACHE // (n * n * x0.dtype.itemsize), 72), max(_PIECE // row, 72), count)
    blocks = max(1, min(_PIECE // (4 * row * block), count // block // 4))
    if not cpu:
        block, blocks = count, 1
    plants = max(len(a) for a in jax.tree.leaves((loops.model, loops.K, loops.low)))
    size, each = block * blocks, max(count // plants, 1)
    shape = _Shape(steps, substeps, block, blocks, plants, each, finish)
    whole = jax.eval_shape(functools.partial(_piece, shape), jnp.int32(0), loops, x0, key, noise)
    if not cpu:
        out = _piece(shape, jnp.int32(0), loops, x0, key, noise)
        return {name: jnp.moveaxis(a[0], -1, 0) for name, a in out.items()}
    # the last piece overlaps the one before: one shape, one program
    starts = [min(start, count - size) for start in range(0, count, size)]
    result = {name: aligned((count, *a.shape[1:-1]), a.dtype) for name, a in whole.items()}
    wide = (
        jax.dtypes.canonicalize_dtype(float) == jnp.float64
    )  # holds for its own thread only, where a caller has switched it on

    def piece(start: int) -> None:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            out = _piece(shape, np.int32(start), loops, x0, key, noise)
            for name, a in out.items():
                for i, lane_last in enumerate(np.asarray(a)):
                    rows = slice(start + i * block, start + (i + 1) * block)
                    np.copyto(result[name][rows], np.moveaxis(lane_last, -1, 0))

    shapes = tuple((a.shape, a.dtype) for a in jax.tree.leaves((loops, x0, key, noise)))
    on_threads(piece, starts, (shape, shapes, jax.tree.structure((loops, noise))))
    return result


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An empty array that a CPU device takes as it is, without a copy: it begins at a multiple of 64 bytes."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


@functools.partial(jax.jit, static_argnums=0)
def _piece(
    shape: _Shape, start: Array, loops: Loops, x0: Array, key: Array | None, noise: Noise
) -> dict[str, Array]:
    """Some blocks of loops from ``start``: what is kept of each ``[blocks, …, loop]``."""
    size = shape.blocks * shape.lanes
    places = (start + jnp.arange(size, dtype=jnp.int32)).reshape(shape.blocks, shape.lanes)

    def on_lanes(a: Array) -> Array:
        return jnp.moveaxis(a.reshape(shape.blocks, shape.lanes, *a.shape[1:]), 1, -1)

    def own(a: Array) -> Array:
        if shape.each == 1:
            return on_lanes(jax.lax.dynamic_slice_in_dim(a, start, size))
        return on_lanes(a[places.reshape(-1) // shape.each])

    flat, tree = jax.tree.flatten(loops)
    shared = [len(a) == 1 for a in flat]  # stays outside of the blocks
    todo = (
        [own(a) for a, is_shared in zip(flat, shared) if not is_shared],
        on_lanes(jax.lax.dynamic_slice_in_dim(x0, start, size)),
        places,
    )

    def block(one: tuple[list[Array], Array, Array]) -> dict[str, Array]:
        mine, x0, places = one
        rest = iter(mine)
        every = [a[0][..., None] if is_shared else next(rest) for a, is_shared in zip(flat, shared)]
        return _block(shape, jax.tree.unflatten(tree, every), x0, _draw(key, places, noise, shape, x0.dtype))

    if shape.blocks == 1:
        return jax.tree.map(lambda a: a[None], block(jax.tree.map(lambda a: a[0], todo)))
    return jax.lax.map(block, todo)


def _draw(key: Array | None, places: Array, noise: Noise, shape: _Shape, dtype: Any) -> Noise:
    """The noise of each loop and step ``[T+1, component, loop]``."""

    def one(which: int, spread: Array | None) -> Array | None:
        if spread is None or key is None:
            return None
        keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, which), i))(places)
        size = (shape.steps + 1, *spread.shape)
        normal = jax.vmap(lambda k: jax.random.normal(k, size, dtype), out_axes=-1)(keys)
        return normal * spread.astype(dtype)[None, :, None]

    return Noise(*(one(i, spread) for i, spread in enumerate(noise)))


def _block(shape: _Shape, loops: Loops, x0: Array, draws: Noise) -> dict[str, Array]:
    """One block on lanes; the last step is taken only for the state before it to be written."""
    K = loops.K.astype(x0.dtype)

    def control(x: Array, drawn: Noise) -> Array:
        u = -times(K, x if drawn.sensor is None else x + drawn.sensor)
        u = u if drawn.input is None else u + drawn.input
        if loops.low is not None and loops.high is not None:
            u = jnp.clip(u, loops.low.astype(u.dtype), loops.high.astype(u.dtype))
        return stored(u) if x.shape[0] > 6 else u

    # without limits and with exact sensors the input of a linear plant need not be known to take the step
    direct = isinstance(loops.model, Linear) and loops.low is None and draws.sensor is None
    if isinstance(loops.model, Linear):
        advance, price = _exact(loops.model, loops.K, x0.dtype, direct)
    else:
        advance, price = _runge_kutta(loops.model, x0.dtype, shape.substeps), None

    def step(x: Array, drawn: Noise) -> tuple[Array, tuple]:
        u = drawn.input if direct else control(x, drawn)
        after, cost = advance(x, u)
        after = after if drawn.state is None else after + drawn.state
        return after, (x, None if direct else u, cost)

    _, (xs, us, costs) = jax.lax.scan(step, x0, draws, length=shape.steps + 1)
    if direct:
        us = -jnp.stack([_row(K[i], xs) for i in range(K.shape[0])], axis=1)
        us = us if draws.input is None else us + draws.input
    costs = costs if price is None else price(xs, us)
    return dict(shape.finish(xs, us[:-1], costs[:-1], loops.extra))


def _exact(model: Linear, K: Array, dtype: Any, direct: bool) -> tuple[Callable, Callable]:
    """A step and its cost under exact zero-order hold; x and −Kx are one matrix where they can be."""
    closed = (model.A - _product(model.B, K.astype(model.A.dtype))).astype(dtype)
    A, B, Q, R, N = (a.astype(dtype) for a in model)

    def advance(x: Array, u: Array | None) -> tuple[Array, None]:
        after = times(closed if direct else A, x)
        return (after if u is None else after + times(B, u)), None

    def price(xs: Array, us: Array) -> Array:
        rows = jnp.concatenate([jnp.concatenate([Q, N], 1), jnp.concatenate([lanes.t(N), R], 1)])
        z = [xs[:, i] for i in range(xs.shape[1])] + [us[:, i] for i in range(us.shape[1])]
        total = jnp.zeros_like(z[0])
        for i, zi in enumerate(z):  # one sum for the whole of zᵀWz: XLA writes no intermediate down
            row = rows[i, i][None] * zi
            for j in range(i + 1, len(z)):
                row = row + 2 * rows[i, j][None] * z[j]
            total = total + row * zi
        return total

    return advance, price


def _runge_kutta(model: Nonlinear, dtype: Any, substeps: int) -> Callable:
    """A step of the plant's own equations, its cost integrated along."""
    x_eq, u_eq, Q, R, h = (a.astype(dtype) for a in model[1:])

    def one(plant: Plant, x: Array, u: Array) -> Array:
        return plant.dynamics(x, u).astype(dtype)

    example = (model.plant, x_eq, u_eq)
    single = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[:-1], a.dtype), example)
    dynamics = componentwise(one, *single)

    def advance(x: Array, u: Array) -> tuple[Array, Array]:
        forced = u + u_eq
        effort = _dot(u, times(R, u))

        def rates(x: Array) -> tuple[Array, Array]:
            return stored(dynamics(model.plant, x + x_eq, forced)), _dot(x, times(Q, x)) + effort

        def substep(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            x, cost = state
            k1, c1 = rates(x)
            k2, c2 = rates(x + h[None] / 2 * k1)
            k3, c3 = rates(x + h[None] / 2 * k2)
            k4, c4 = rates(x + h[None] * k3)
            x = x + h[None] / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return (x, cost + h / 6 * (c1 + 2 * c2 + 2 * c3 + c4)), None

        return jax.lax.scan(substep, (x, jnp.zeros_like(x[0])), length=substeps)[0]

    return advance


def times(M: Array, x: Array) -> Array:
    """M x on lanes: M ``[r, k, loop]``, x ``[k, loop]``."""
    total = M[:, 0] * x[None, 0]
    for j in range(1, x.shape[0]):
        total = total + M[:, j] * x[None, j]
    return total


def _product(a: Array, b: Array) -> Array:
    total = a[:, 0, None] * b[None, 0]
    for j in range(1, len(b)):
        total = total + a[:, j, None] * b[None, j]
    return total


def _row(row: Array, xs: Array) -> Array:
    """A row ``[k, loop]`` times states ``[T, k, loop]``."""
    total = row[None, 0] * xs[:, 0]
    for j in range(1, xs.shape[1]):
        total = total + row[None, j] * xs[:, j]
    return total


def _dot(a: Array, b: Array) -> Array:
    total = a[0] * b[0]
    for i in range(1, len(a)):
        total = total + a[i] * b[i]
    return total
