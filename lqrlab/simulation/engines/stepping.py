"""One step of a plant on lanes: arrays ``[component, loop]``, every operation elementwise over the loops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from lqrlab.compute.jaxprs import componentwise
from lqrlab.compute.linalg import batch_last, stored
from lqrlab.systems import Plant


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


def exact(model: Linear, K: Array, dtype: Any, direct: bool) -> tuple[Callable, Callable]:
    """A step and its cost under exact zero-order hold; x and −Kx are one matrix where they can be."""
    closed = (model.A - _product(model.B, K.astype(model.A.dtype))).astype(dtype)
    A, B, Q, R, N = (a.astype(dtype) for a in model)

    def advance(x: Array, u: Array | None) -> tuple[Array, None]:
        after = times(closed if direct else A, x)
        return (after if u is None else after + times(B, u)), None

    def price(xs: Array, us: Array) -> Array:
        rows = jnp.concatenate([jnp.concatenate([Q, N], 1), jnp.concatenate([batch_last.t(N), R], 1)])
        z = [xs[:, i] for i in range(xs.shape[1])] + [us[:, i] for i in range(us.shape[1])]
        total = jnp.zeros_like(z[0])
        for i, zi in enumerate(z):  # one sum for the whole of zᵀWz: XLA writes no intermediate down
            row = rows[i, i][None] * zi
            for j in range(i + 1, len(z)):
                row = row + 2 * rows[i, j][None] * z[j]
            total = total + row * zi
        return total

    return advance, price


def runge_kutta(model: Nonlinear, dtype: Any, substeps: int) -> Callable:
    """A step of the plant's own equations, its cost integrated along."""
    model = jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, model)
    _, x_eq, u_eq, Q, R, h = model

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


def row_times(row: Array, xs: Array) -> Array:
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
