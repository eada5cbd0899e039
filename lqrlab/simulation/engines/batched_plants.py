"""The plants of many loops in batch-last layout ``[component, loop]``, blocks that fit a core's cache, one step."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from lqrlab.compute.calculus import rk4
from lqrlab.compute.jaxprs import componentwise
from lqrlab.compute.linalg import stored
from lqrlab.compute.linalg.batch_last import dot, matvec, mul, product, t
from lqrlab.control import Sampled
from lqrlab.simulation.noise import Correlated, Noise
from lqrlab.simulation.problem import Problem
from lqrlab.simulation.recording import Keep
from lqrlab.systems import Plant

# measured on a CPU with 1 MiB of second-level cache a core
CACHE = 80_000
"""Bytes of plants' matrices in a block."""
CALL = 4_000_000
"""Bytes of trajectories that one call of the program makes, and a fourth of what makes a block narrower."""
WIDEST = 800, 200
"""Loops in a block, of linear plants and of others, which have more intermediate results."""
CHUNK = 16
"""Samples whose states are in the cache together until what is kept of them has its loops in front."""
SHARED = 64
"""Loops of one plant that fill a block: its matrices are then numbers that all of them share."""


class NonlinearModel(NamedTuple):
    """Plants in continuous time: leaves and weights ``[p or 1, …]``, h the length of a Runge-Kutta step."""

    plant: Plant
    x_eq: Array
    u_eq: Array
    Q: Array
    R: Array
    h: Array


class Loops(NamedTuple):
    """Closed loops under constant gains, each array with a leading axis p, or 1 for what all have in common.

    Attributes:
        model: the plants.
        K: gains ``[·, m, n]``.
        low, high: limits of the inputs ``[·, m]``; None for none.
        noise: standard deviations ``[·, components]``.
        extra: further arrays, handed on to what records.
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
        raise ValueError(
            "noise: expected standard deviations, but found a covariance; rollout takes it, record does not"
        )
    rest = jax.tree.map(of_batch, (problem.low, problem.high, problem.noise, extra))
    return Loops(model, flat(K, 2), *rest)


class Layout(NamedTuple):
    """The sizes and functions that the compiled program depends on, all but the arrays.

    Attributes:
        num_steps: T.
        substeps: Runge-Kutta steps in a sample time.
        width: loops in a block.
        blocks: worked through in one call.
        per_plant: loops of each plant.
        shared: whether a block's loops are all of one plant.
        chunk: samples that are kept together.
        keep: what is kept.
    """

    num_steps: int
    substeps: int
    width: int
    blocks: int
    per_plant: int
    shared: bool
    chunk: int
    keep: Keep

    @property
    def num_chunks(self) -> int:
        """Chunks of the samples 0 … T."""
        return -(-(self.num_steps + 1) // self.chunk)


def cut(
    loops: Loops, x0: Float[Array, "loops n"], num_steps: int, substeps: int, keep: Keep, noisy: bool
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
    """A step under exact zero-order hold, and its cost.

    Args:
        model: of one block, ``[rows, columns, width or 1]``.
        K: gains ``[m, n, width or 1]``.
        dtype: to step in.
        direct: step by A − BK and what is added to the input −Kx.

    Returns:
        ``(x, u, added or None) → (next x, cost)``.
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
