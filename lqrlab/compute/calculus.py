"""Exact derivatives; steps of Runge-Kutta, nowhere else is a differential equation stepped, and of an optimiser."""

import contextvars
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

Y = TypeVar("Y")
Params = TypeVar("Params")
ROLLED = contextvars.ContextVar("rolled", default=False)
"""True where the stages of Runge-Kutta are traced as rounds of a loop: a quarter of the program, slower."""


def rk4_step(rates: Callable[[Y], Y], y: Y, h: Y) -> Y:
    """The state h [s] later, of ẏ = f(y), by one step of the classical Runge-Kutta method: its local error is O(h⁵).

    y, ``rates`` of y and h are pytrees alike, whose leaves broadcast.

    Source: E. Hairer, S. P. Nørsett, G. Wanner, Solving Ordinary Differential Equations I (1993), table II.1.2.
    """

    def ahead(share: float | Array, k: Y) -> Y:
        return jax.tree.map(lambda a, h, k: a + share * h * k, y, h, k)

    if ROLLED.get():
        return _in_a_loop(rates, ahead, y, h)
    k1 = rates(y)
    k2 = rates(ahead(0.5, k1))
    k3 = rates(ahead(0.5, k2))
    k4 = rates(ahead(1.0, k3))
    return jax.tree.map(lambda a, h, k1, k2, k3, k4: a + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y, h, k1, k2, k3, k4)


def _in_a_loop(rates: Callable[[Y], Y], ahead: Callable[[Array, Y], Y], y: Y, h: Y) -> Y:
    """The four stages of :func:`rk4_step` as rounds of a loop, to the same numbers."""

    def stage(state: tuple[Y, Y], coefficients: tuple[Array, Array]) -> tuple[tuple[Y, Y], None]:
        (k, total), (share, weight) = state, coefficients
        k = rates(ahead(share, k))
        return (k, jax.tree.map(lambda t, k: t + weight * k, total, k)), None

    nothing = jax.tree.map(jnp.zeros_like, y)
    stages = jnp.array([0.0, 0.5, 0.5, 1.0]), jnp.array([1.0, 2.0, 2.0, 1.0])
    (_, total), _ = jax.lax.scan(stage, (nothing, nothing), stages)
    return jax.tree.map(lambda a, h, t: a + h / 6 * t, y, h, total)


def rk4(rates: Callable[[Y], Y], y: Y, h: Y, substeps: int) -> Y:
    """``substeps`` steps of :func:`rk4_step`, of length h each."""
    return jax.lax.scan(lambda y, _: (rk4_step(rates, y, h), None), y, length=substeps)[0]


def derivative(f: Callable[[Array], Array], x: Float[Array, "*loops k"]) -> Float[Array, "*loops p k"]:
    """∂f/∂x of a function that takes each loop's vector to another one, whatever the leading axes."""

    def along(direction: Array) -> Array:
        return jax.jvp(f, (x,), (jnp.broadcast_to(direction, x.shape),))[1]

    return jax.vmap(along, out_axes=-1)(jnp.eye(x.shape[-1], dtype=x.dtype))


def updates(
    optimizer: optax.GradientTransformation, slope: Params, state: optax.OptState, params: Params | None = None
) -> tuple[Params, optax.OptState]:
    """Changes of the parameters along their gradient, and the new state of the optimiser.

    Adam takes powers of its decay by a count of steps: two types, not promoted elsewhere. Decay reads ``params``.
    """
    with jax.numpy_dtype_promotion("standard"):
        return optimizer.update(slope, state, params)
