"""The classical Runge-Kutta method: the only place where a differential equation is stepped."""

from collections.abc import Callable
from typing import TypeVar

import jax

Y = TypeVar("Y")


def rk4_step(rates: Callable[[Y], Y], y: Y, h: Y) -> Y:
    """One step of ẏ = f(y) by the classical fourth-order Runge-Kutta method.

    Args:
        rates: f, from a pytree of arrays to one of the same structure.
        y: the state.
        h: the step [s], a pytree like y whose leaves broadcast against y's.

    Returns:
        The state h later; the local error is O(h⁵).

    Source: E. Hairer, S. P. Nørsett, G. Wanner, Solving Ordinary Differential Equations I (1993), table II.1.2.
    """

    def ahead(share: float, k: Y) -> Y:
        return jax.tree.map(lambda a, h, k: a + share * h * k, y, h, k)

    k1 = rates(y)
    k2 = rates(ahead(0.5, k1))
    k3 = rates(ahead(0.5, k2))
    k4 = rates(ahead(1.0, k3))
    return jax.tree.map(lambda a, h, k1, k2, k3, k4: a + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y, h, k1, k2, k3, k4)


def rk4(rates: Callable[[Y], Y], y: Y, h: Y, substeps: int) -> Y:
    """``substeps`` steps of :func:`rk4_step`, of length h each."""
    return jax.lax.scan(lambda y, _: (rk4_step(rates, y, h), None), y, length=substeps)[0]
