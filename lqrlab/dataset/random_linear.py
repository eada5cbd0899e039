"""Random linear systems of all sizes, so that a network does not only learn its families by heart."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.dataset.table import sampled_problem
from lqrlab.simulation import SampledProblem
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Linear

_AT_ONCE = 500
_SMALLEST_GAIN, _LARGEST_GAIN, _LARGEST_COST = 0.05, 25.0, 2000.0


def random_systems(key: PRNGKeyArray, num: int) -> tuple[SampledProblem, Coordinates]:
    """Random linear plants with their optimum, stable and unstable, of 1 to 12 states and 1 to 6 inputs.

    They are drawn in coordinates in which Q and R are the identity and one sample takes one unit of time, so
    that their entries are of the size that the catalogue's plants have there. Half are first-order systems
    coupled at random, half are mechanical: positions, their rates, forces that act on the rates.

    Returns:
        Problems and coordinates ``[num, …]``; plants with gains above 25 or without an optimum are left out.
    """
    checks.random_key(key)
    checks.whole("num", num)
    with jax.enable_x64(True):
        kept: list[tuple] = []
        while sum(len(part[-1]) for part in kept) < num:  # the same numbers are drawn, whatever num is
            kept.append(_designed(jax.random.fold_in(key, len(kept))))
        plants, coordinates, K, P = jax.tree.map(lambda *a: jnp.asarray(np.concatenate(a)[:num]), *kept)
        return sampled_problem(plants, coordinates, K, P), coordinates


def _designed(key: PRNGKeyArray) -> tuple[Linear, Coordinates, np.ndarray, np.ndarray]:
    """Those of some plants that have an optimum with a moderate gain, on the host."""
    plants, coordinates = _drawn(key, _AT_ONCE)
    design = control.lqrd(plants.A, plants.B, plants.Q, plants.R, plants.dt)
    size, cost = jnp.sqrt(jnp.sum(design.K**2, axis=(-1, -2))), jnp.trace(design.P, axis1=-2, axis2=-1)
    moderate = (size > _SMALLEST_GAIN) & (size < _LARGEST_GAIN) & (cost < _LARGEST_COST)
    good = np.asarray(design.stabilizing & moderate)
    return jax.tree.map(lambda a: np.asarray(a)[good], (plants, coordinates, design.K, design.P))


class _Draw:
    """Independent random numbers for ``num`` systems, a new key each time."""

    def __init__(self, key: PRNGKeyArray, num: int):
        self.keys, self.num = iter(jax.random.split(key, 24)), num

    def uniform(self, low: float, high: float, *shape: int) -> Array:
        return jax.random.uniform(next(self.keys), (self.num, *shape), float, low, high)

    def log_uniform(self, low: float, high: float, *shape: int) -> Array:
        return jnp.exp(self.uniform(math.log(low), math.log(high), *shape))

    def normal(self, *shape: int) -> Array:
        return jax.random.normal(next(self.keys), (self.num, *shape), float)

    def integer(self, low: int, high: int, *shape: int) -> Array:
        return jax.random.randint(next(self.keys), (self.num, *shape), low, high)


def _sizes(draw: _Draw) -> tuple[Array, Array]:
    """Numbers of states and inputs ``[num, 1]``."""
    n = draw.integer(1, N_MAX + 1, 1)
    most = jnp.minimum(n, M_MAX)
    single = draw.uniform(0, 1, 1) < 0.5
    return n, jnp.where(single, 1, 1 + jnp.floor(draw.uniform(0, 1, 1) * most.astype(float)).astype(int))


def _first_order(draw: _Draw, diagonal: Array) -> Array:
    """A of states that decay (or grow slowly) and are coupled at random."""
    couple = (
        draw.normal(N_MAX, N_MAX)
        * draw.log_uniform(0.01, 0.3, N_MAX, 1)
        * (draw.uniform(0, 1, N_MAX, N_MAX) < draw.uniform(0, 1, 1, 1)).astype(float)
    )
    decays = draw.uniform(0, 1, N_MAX, 1) < 0.8
    rate = jnp.where(decays, -draw.log_uniform(1e-3, 0.5, N_MAX, 1), draw.uniform(0, 0.1, N_MAX, 1))
    return jnp.where(diagonal, rate, couple)


def _mechanical(draw: _Draw, diagonal: Array, half: Array, i: Array, j: Array) -> Array:
    """A of positions, their rates with springs and dampers between them, and an actuator's lag if n is odd."""
    position, rate = i < half, (i >= half) & (i < 2 * half)
    moves = jnp.where(position & (j == i + half), draw.log_uniform(0.03, 0.3, N_MAX, 1), 0.0)
    springs = (
        draw.normal(N_MAX, N_MAX)
        * draw.log_uniform(0.005, 0.25, 1, 1)
        * (draw.uniform(0, 1, N_MAX, N_MAX) < draw.uniform(0.2, 1, 1, 1)).astype(float)
    )
    damped = jnp.where(draw.uniform(0, 1, 1, 1) < 0.7, -draw.log_uniform(1e-3, 0.1, N_MAX, 1), 0.0)
    lag = jnp.where(i >= 2 * half, -draw.log_uniform(0.01, 0.5, N_MAX, 1), 0.0)
    pushed = rate & ((j < half) | (j >= 2 * half))
    A = moves + jnp.where(pushed, springs, 0.0) + jnp.where(diagonal & rate, damped, 0.0)
    return A + jnp.where(diagonal, lag, 0.0)


@partial(jax.jit, static_argnums=1)
def _drawn(key: PRNGKeyArray, num: int) -> tuple[Linear, Coordinates]:
    """Padded plants, whose scales are 1, and the masks of their states and inputs."""
    draw = _Draw(key, num)
    n, m = _sizes(draw)
    i, j = jnp.arange(N_MAX)[None, :, None], jnp.arange(N_MAX)[None, None, :]
    masks = ((jnp.arange(size)[None] < count).astype(float) for size, count in ((N_MAX, n), (M_MAX, m)))
    coordinates = Coordinates(jnp.ones((num, N_MAX)), jnp.ones((num, M_MAX)), *masks)
    half, diagonal = n[..., None] // 2, i == j
    first_order = _first_order(draw, diagonal)
    mechanical = _mechanical(draw, diagonal, half, i, j)
    force = draw.normal(N_MAX, M_MAX) * draw.log_uniform(0.04, 2.5, 1, M_MAX)
    is_mechanical = (draw.uniform(0, 1, 1, 1) < 0.5) & (n[..., None] > 1)
    A = jnp.where(is_mechanical, mechanical, first_order)
    B = jnp.where(is_mechanical & (i < half)[..., :1], 0.0, force)
    eye, exists = jnp.eye(N_MAX)[None], coordinates.state_mask[:, None, :]
    plants = Linear(
        # padded states decay, so that the Riccati equation has a solution
        A=coordinates.zero_padding(A, "x", "x") - eye * (1 - exists),
        B=coordinates.zero_padding(B, "x", "u"),
        Q=eye * exists,
        R=jnp.broadcast_to(jnp.eye(M_MAX)[None], (num, M_MAX, M_MAX)),
        dt=jnp.ones(num),
    )
    return plants, coordinates
