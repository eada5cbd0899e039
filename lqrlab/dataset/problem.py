"""The regulator problem behind a description: what a closed loop costs, and the least that it can cost."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from lqrlab import control
from lqrlab.compute import pytree
from lqrlab.dataset.description import Description, describe_scaled
from lqrlab.dataset.store import Dataset, in_scales
from lqrlab.systems import N_MAX, Linear


@pytree
@dataclasses.dataclass(frozen=True)
class Problem:
    """Sampled plants in scaled coordinates with their optimum, padded to (12, 6); rows as in a table.

    What any input costs more than the optimal one is a square, and exactly so: along any trajectory
    J − x0ᵀP x0 = Σ (u + Kx)ᵀ S (u + Kx). So A, B, K, S and P are all that a score needs.

    Attributes:
        A, B: as in :class:`Description` ``[..., 12, 12|6]``.
        K: optimal gain ``[..., 6, 12]``.
        S: R + BᵀPB, what an error of the input costs ``[..., 6, 6]``.
        P: optimal cost to go ``[..., 12, 12]``; zero in padding.

    Source: M. Fazel, R. Ge, S. Kakade, M. Mesbahi, Global convergence of policy gradient methods for the
    linear quadratic regulator, ICML 2018 (the cost-difference lemma).
    """

    A: Array
    B: Array
    K: Array
    S: Array
    P: Array

    def __getitem__(self, rows: Any) -> "Problem":
        """The problems of some rows."""
        return jax.tree.map(lambda a: a[rows], self)


def make_problem(plant: Linear, d: Description, K: ArrayLike, P: ArrayLike) -> Problem:
    """The problem of plants that ``in_units`` has scaled and padded, with their known optimum.

    Args:
        plant: ``[V, …]``.
        d: their descriptions.
        K, P: optimal gain and cost to go in scaled coordinates, ``[V, 6, 12]``, ``[V, 12, 12]``.
    """
    K, P = jnp.asarray(K), jnp.asarray(P)
    sampled = control.discretize(plant.A, plant.B, plant.Q, plant.R, plant.dt)
    state_mask, input_mask = d.state_mask.astype(K.dtype), d.input_mask.astype(K.dtype)
    A = sampled.A * state_mask[..., :, None] * state_mask[..., None, :]
    B = sampled.B * state_mask[..., :, None] * input_mask[..., None, :]
    P = P * state_mask[..., :, None] * state_mask[..., None, :]
    return Problem(A, B, K, sampled.R + jnp.swapaxes(B, -1, -2) @ P @ B, P)


def problems(dataset: Dataset) -> Problem:
    """The problem of every variant of a data set, in the order of its table; float64 where that is allowed."""

    def one(t: dict[str, np.ndarray]) -> tuple[Linear, Description, np.ndarray, np.ndarray]:
        scaled, sx, su, K = in_scales(t)
        P = t["P"] * sx[:, None, :] * sx[:, :, None]
        wide = [(0, 0), (0, N_MAX - P.shape[1]), (0, N_MAX - P.shape[1])]
        return scaled, describe_scaled(scaled, sx, su), K, np.pad(P, wide)

    parts = [one(t) for t in dataset.tables if len(t["dt"])]
    return make_problem(*jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))
