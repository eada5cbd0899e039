"""A plant as a network sees it: padded, masked, in coordinates in which every signal is of order one."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, systems
from lqrlab.compute import pytree
from lqrlab.systems import M_MAX, N_MAX, Linear, Plant


@pytree
@dataclasses.dataclass(frozen=True)
class Description:
    """The sampled problem of a plant in coordinates x̃ = x / scale_x, ũ = u / scale_u, padded to (12, 6).

    With Bryson's weights Q and R are the identity here: the weights are absorbed into the coordinates.

    Attributes:
        A, B: exact zero-order hold of the scaled plant ``[*batch, 12, 12|6]``; zero in padding.
        Q, R: continuous weights of the scaled plant; zero in padding.
        scale_x, scale_u: what one unit is, in SI units ``[*batch, 12]``, ``[*batch, 6]``; one in padding.
        state_mask, input_mask: 1 where a state or input exists, 0 in padding.
    """

    A: Array
    B: Array
    Q: Array
    R: Array
    scale_x: Array
    scale_u: Array
    state_mask: Array
    input_mask: Array


def describe(plant: Plant) -> Description:
    """Describe a plant or a batch, seen or unseen: what is needed follows from the plant alone."""
    linear = systems.linearise(plant)
    sx, su = (jnp.broadcast_to(s, (*linear.batch_shape, s.shape[-1])) for s in plant.scales)
    return describe_scaled(in_units(linear, sx, su), sx, su)


def in_units(plant: Linear, scale_x: Any, scale_u: Any) -> Linear:
    """A linear plant in coordinates x / scale_x, u / scale_u, padded to (12, 6): same costs, same time.

    What is padded decays on its own, costs nothing and feels no input; see :func:`lqrlab.systems.pad`.

    Args:
        plant: linear, not padded, ``[*batch, …]``; if its arrays are NumPy's it stays on the host, where
            nothing need be compiled for its shape.
        scale_x, scale_u: what one unit is, ``[*batch, n]``, ``[*batch, m]``.
    """
    xp = _home(plant.A)

    def wide(a: Any, rows: int, columns: int, diagonal: float) -> Any:
        own = a.shape[-2:]
        a = xp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, rows - own[0]), (0, columns - own[1])])
        added = np.diag(diagonal * (np.arange(rows) >= own[0])) if diagonal else np.zeros((rows, columns))
        return a + added.reshape((1,) * (a.ndim - 2) + added.shape).astype(a.dtype)

    return Linear(
        A=wide(plant.A * scale_x[..., None, :] / scale_x[..., :, None], N_MAX, N_MAX, -1.0),
        B=wide(plant.B * scale_u[..., None, :] / scale_x[..., :, None], N_MAX, M_MAX, 0.0),
        Q=wide(plant.Q * scale_x[..., None, :] * scale_x[..., :, None], N_MAX, N_MAX, 0.0),
        R=wide(plant.R * scale_u[..., None, :] * scale_u[..., :, None], M_MAX, M_MAX, 1.0),
        dt=plant.dt,
    )


def _home(a: Any) -> Any:
    """The library that an array belongs to."""
    return np if isinstance(a, np.ndarray) else jnp


def describe_scaled(plant: Linear, scale_x: Any, scale_u: Any) -> Description:
    """The description of what :func:`in_units` returned.

    Args:
        plant: scaled and padded; plants of all families share one compiled program.
        scale_x, scale_u: as they were given, ``[*batch, n]``, ``[*batch, m]``: in the plant's own dimension.
    """
    xp = _home(scale_x)

    def wide(a: Any, size: int, fill: float) -> Any:
        return xp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, size - a.shape[-1])], constant_values=fill)

    state_mask, input_mask = wide(xp.ones_like(scale_x), N_MAX, 0.0), wide(xp.ones_like(scale_u), M_MAX, 0.0)
    return _describe(plant, wide(scale_x, N_MAX, 1.0), wide(scale_u, M_MAX, 1.0), state_mask, input_mask)


@jax.jit
def _describe(
    plant: Linear, scale_x: Array, scale_u: Array, state_mask: Array, input_mask: Array
) -> Description:
    A, B = control.c2d(plant.A, plant.B, plant.dt)
    return Description(
        A=A * state_mask[..., :, None] * state_mask[..., None, :],
        B=B * state_mask[..., :, None] * input_mask[..., None, :],
        Q=plant.Q * state_mask[..., :, None] * state_mask[..., None, :],
        R=plant.R * input_mask[..., :, None] * input_mask[..., None, :],
        scale_x=scale_x,
        scale_u=scale_u,
        state_mask=state_mask,
        input_mask=input_mask,
    )


def scaled_gain(K: Array, plant: Plant) -> Array:
    """K ``[*batch, m, n]`` in scaled coordinates, padded to ``[*batch, 6, 12]``: ũ = −K̃ x̃."""
    sx, su = plant.scales
    lead = K.shape[:-2]
    sx = jnp.broadcast_to(sx, (*lead, plant.n))
    su = jnp.broadcast_to(su, (*lead, plant.m))
    K = K * sx[..., None, :] / su[..., :, None]
    return jnp.pad(K, [(0, 0)] * len(lead) + [(0, M_MAX - plant.m), (0, N_MAX - plant.n)])
