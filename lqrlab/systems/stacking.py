"""Plants of many families as one batch: linearised, padded to one size, stacked."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems.custom import Linear
from lqrlab.systems.plant import Plant

N_MAX, M_MAX = 12, 6
"""States and inputs that plants of different families are padded to."""


def linearise(plant: Plant) -> Linear:
    """The linear plant that describes deviations from ``plant``'s equilibrium; batch axes stay."""
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    lead = plant.batch_shape
    A, B, Q, R = (jnp.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(A=A, B=B, Q=Q, R=R, dt=jnp.broadcast_to(jnp.asarray(plant.dt, A.dtype), lead))


def pad(plant: Linear, n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Widen a linear plant to n states and m inputs without changing what it does or costs.

    Added states decay on their own (A = −I), cost nothing and feel no input; added inputs do nothing and
    cost one. The gain is the old one with zeros around it.

    Raises:
        ValueError: the plant is larger than that.
    """
    _must_fit(plant, n, m)

    def widen(a: Array, rows: int, cols: int, diagonal: float) -> Array:
        old_rows, old_cols = a.shape[-2:]
        wide = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(0, rows - old_rows), (0, cols - old_cols)])
        fill = jnp.zeros(rows).at[old_rows:].set(diagonal)
        return wide + jnp.broadcast_to(
            jnp.diag(fill) if rows == cols else jnp.zeros((rows, cols)), wide.shape
        )

    return Linear(
        A=widen(plant.A, n, n, -1.0),
        B=widen(plant.B, n, m, 0.0),
        Q=widen(plant.Q, n, n, 0.0),
        R=widen(plant.R, m, m, 1.0),
        dt=plant.dt,
    )


def stack(plants: Sequence[Plant], n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Plants of any families as one batch: linearised, padded to (n, m), joined along the first axis.

    Args:
        plants: each one plant or a batch with one leading axis.
        n, m: dimensions to pad to.
    """
    linear = [linearise(p) for p in plants]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(linear)):
        wide = [pad(p, n, m) for p in linear]
        flat = [jax.tree.map(lambda a, p=p: a.reshape(-1, *a.shape[len(p.batch_shape) :]), p) for p in wide]
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *flat)
    for p in linear:
        _must_fit(p, n, m)
    counts = [int(np.prod(p.batch_shape)) for p in linear]
    ends = np.cumsum(counts)

    def place(name: str, rows: int, cols: int, diagonal: float) -> Array:
        # on the host, in place: sixty thousand padded plants are 200 MB
        whole = np.zeros((ends[-1], rows, cols), np.result_type(*(getattr(p, name).dtype for p in linear)))
        for p, end, count in zip(linear, ends, counts):
            part = np.asarray(getattr(p, name))
            k, l = part.shape[-2:]
            whole[end - count : end, :k, :l] = part.reshape(-1, k, l)
            rest = np.arange(max(k, l), min(rows, cols))
            whole[end - count : end, rest, rest] = diagonal
        return jnp.asarray(whole)

    return Linear(
        A=place("A", n, n, -1.0),
        B=place("B", n, m, 0.0),
        Q=place("Q", n, n, 0.0),
        R=place("R", m, m, 1.0),
        dt=jnp.asarray(np.concatenate([np.ravel(p.dt) for p in linear])),
    )


def _must_fit(plant: Plant, n: int, m: int) -> None:
    if plant.n > n or plant.m > m:
        raise ValueError(
            f"pad: a plant with {plant.n} states and {plant.m} inputs does not fit into {n} and {m}"
        )
