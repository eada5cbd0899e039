"""Plants of no family: random ones of every size, so that a network does not only learn its families by heart."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control
from lqrlab.dataset.description import Description, describe_scaled
from lqrlab.dataset.problem import Problem, make_problem
from lqrlab.systems import M_MAX, N_MAX, Linear

_AT_ONCE = 500
_LARGEST_GAIN, _LARGEST_COST = 25.0, 2000.0


def random_systems(key: Array, num: int) -> tuple[Description, Problem]:
    """Random linear plants with their optimum, stable and unstable, of 1 to 12 states and 1 to 6 inputs.

    They are drawn in coordinates in which Q and R are the identity and one sample takes one unit of time, so
    that their entries are of the size that the catalogue's plants have there. Half are first-order systems
    coupled at random, half are mechanical: positions, their rates, forces that act on the rates.

    Returns:
        Descriptions and problems ``[num, …]``; plants with gains above 25 or without an optimum are left out.
    """
    with jax.enable_x64(True):
        kept: list[tuple] = []
        while sum(len(part[-1]) for part in kept) < num:  # the same numbers drawn, however many are asked for
            kept.append(_designed(jax.random.fold_in(key, len(kept))))
        plants, state_mask, input_mask, K, P = jax.tree.map(lambda *a: np.concatenate(a)[:num], *kept)
        # their units are one; what is not live is padding, as in a plant that was padded
        d = describe_scaled(plants, np.ones((num, N_MAX)), np.ones((num, M_MAX)))
        d = Description(
            **{**vars(d), "state_mask": jnp.asarray(state_mask), "input_mask": jnp.asarray(input_mask)}
        )
        lx, lu = d.state_mask, d.input_mask
        d = Description(
            A=d.A * lx[:, :, None] * lx[:, None, :], B=d.B * lx[:, :, None] * lu[:, None, :],
            Q=d.Q * lx[:, :, None], R=d.R * lu[:, :, None],
            scale_x=d.scale_x, scale_u=d.scale_u, state_mask=lx, input_mask=lu,
        )  # fmt: skip
        return d, make_problem(plants, d, K, P)


def _designed(key: Array) -> tuple:
    """Those of some plants that have an optimum which an actuator would bear, on the host."""
    plants, state_mask, input_mask = _drawn(key, _AT_ONCE)
    design = control.lqrd(plants.A, plants.B, plants.Q, plants.R, plants.dt)
    size, cost = jnp.sqrt(jnp.sum(design.K**2, axis=(-1, -2))), jnp.trace(design.P, axis1=-2, axis2=-1)
    good = np.asarray(design.stabilizing & (size > 0.05) & (size < _LARGEST_GAIN) & (cost < _LARGEST_COST))
    return jax.tree.map(lambda a: np.asarray(a)[good], (plants, state_mask, input_mask, design.K, design.P))


@partial(jax.jit, static_argnums=1)
def _drawn(key: Array, num: int) -> tuple[Linear, Array, Array]:
    """Padded plants, and which of their states and inputs there are."""
    keys = iter(jax.random.split(key, 24))

    def uniform(low: float, high: float, *shape: int) -> Array:
        return jax.random.uniform(next(keys), (num, *shape), float, low, high)

    def spread(low: float, high: float, *shape: int) -> Array:
        return jnp.exp(uniform(float(np.log(low)), float(np.log(high)), *shape))

    def normal(*shape: int) -> Array:
        return jax.random.normal(next(keys), (num, *shape), float)

    n = jax.random.randint(next(keys), (num, 1), 1, N_MAX + 1)
    most = jnp.minimum(n, M_MAX)
    m = jnp.where(uniform(0, 1, 1) < 0.5, 1, 1 + jnp.floor(uniform(0, 1, 1) * most).astype(int))
    i, j = jnp.arange(N_MAX)[None, :, None], jnp.arange(N_MAX)[None, None, :]
    state_mask, input_mask = (jnp.arange(size)[None] < count for size, count in ((N_MAX, n), (M_MAX, m)))
    n, half = n[..., None], n[..., None] // 2
    diagonal = i == j

    couple = (
        normal(N_MAX, N_MAX)
        * spread(0.01, 0.3, N_MAX, 1)
        * (uniform(0, 1, N_MAX, N_MAX) < uniform(0, 1, 1, 1))
    )
    alone = jnp.where(uniform(0, 1, N_MAX, 1) < 0.8, -spread(1e-3, 0.5, N_MAX, 1), uniform(0, 0.1, N_MAX, 1))
    general = jnp.where(diagonal, alone, couple)

    position, rate = i < half, (i >= half) & (i < 2 * half)
    moves = jnp.where(position & (j == i + half), spread(0.03, 0.3, N_MAX, 1), 0.0)
    springs = (
        normal(N_MAX, N_MAX)
        * spread(0.005, 0.25, 1, 1)
        * (uniform(0, 1, N_MAX, N_MAX) < uniform(0.2, 1, 1, 1))
    )
    damped = jnp.where(uniform(0, 1, 1, 1) < 0.7, -spread(1e-3, 0.1, N_MAX, 1), 0.0)
    lag = jnp.where(i >= 2 * half, -spread(0.01, 0.5, N_MAX, 1), 0.0)  # of an actuator, where n is odd
    pushed = rate & ((j < half) | (j >= 2 * half))
    mechanical = moves + jnp.where(pushed, springs, 0.0) + jnp.where(diagonal & rate, damped, 0.0)
    mechanical = mechanical + jnp.where(diagonal, lag, 0.0)

    force = normal(N_MAX, M_MAX) * spread(0.04, 2.5, 1, M_MAX)
    is_mechanical = (uniform(0, 1, 1, 1) < 0.5) & (n > 1)
    A = jnp.where(is_mechanical, mechanical, general)
    B = jnp.where(is_mechanical & position[..., :1], 0.0, force)
    lx, lu = state_mask.astype(float), input_mask.astype(float)
    eye = jnp.eye(N_MAX)[None]
    padding = eye * (1 - lx)[:, None, :]
    A = A * lx[:, :, None] * lx[:, None, :] - padding
    B = B * lx[:, :, None] * lu[:, None, :]
    Q = eye * lx[:, None, :]
    R = jnp.broadcast_to(jnp.eye(M_MAX)[None], (num, M_MAX, M_MAX))
    return Linear(A=A, B=B, Q=Q, R=R, dt=jnp.ones(num)), lx, lu
