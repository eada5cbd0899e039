"""Plants linearised, about their equilibrium or anywhere."""

from typing import NamedTuple, overload

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab.compute.checks import real
from lqrlab.compute.differentiation import derivative
from lqrlab.systems.custom import Linear
from lqrlab.systems.declaration_checks import check_plant
from lqrlab.systems.plant import Numbers, Plant


class Linearisation(NamedTuple):
    """ẋ ≈ c + A (x − x̄) + B (u − ū) about a point (x̄, ū) that need not be an equilibrium.

    Attributes:
        A, B: Jacobians.
        c: f(x̄, ū), the affine term.
    """

    A: Float[Array, "*points n n"]
    B: Float[Array, "*points n m"]
    c: Float[Array, "*points n"]


@overload
def linearise(plant: Plant) -> Linear: ...
@overload
def linearise(plant: Plant, x: Numbers, u: Numbers) -> Linearisation: ...
def linearise(plant: Plant, x: Numbers | None = None, u: Numbers | None = None) -> Linear | Linearisation:
    """The linear plant that describes deviations from ``plant``'s equilibrium; or A, B and the rate at any point.

    A linear plant of NumPy arrays stays one: nothing is compiled for its size.

    Args:
        plant: one plant or a batch; batch axes stay.
        x, u: absolute states ``[*batch, *extra, n]`` and inputs ``[*batch, *extra, m]``, such as those of a trajectory;
            the equilibrium if left out.

    Returns:
        :class:`Linear` of the equilibrium, :class:`Linearisation` of given points, by exact differentiation.
        :func:`lqrlab.control.c2d` samples all of it: of the inputs' columns ``[B, c]`` the last is the affine term.

    >>> upright = systems.linearise(systems.make("pendulum"), [0.0, 0.0], [0.0])
    >>> bool((upright.A == systems.linearise(systems.make("pendulum")).A).all()), upright.c.tolist()
    (True, [0.0, 0.0])
    """
    check_plant(plant)
    if x is not None or u is not None:
        if x is None or u is None:
            raise ValueError("x, u: expected both a state and an input, or neither for the equilibrium")
        return _anywhere(plant, *(jnp.asarray(real(name, a), float) for name, a in (("x", x), ("u", u))))
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    lead, dt = plant.batch_shape, plant.dt
    library = np if all(isinstance(a, np.ndarray) for a in (A, B, Q, R, dt)) else jnp
    A, B, Q, R = (library.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(A=A, B=B, Q=Q, R=R, dt=library.broadcast_to(library.asarray(dt, A.dtype), lead))


def _anywhere(plant: Plant, x: Array, u: Array) -> Linearisation:
    if (x.shape[-1:], u.shape[-1:]) != ((plant.n,), (plant.m,)) or x.shape[:-1] != u.shape[:-1]:
        raise ValueError(
            f"x, u: expected states [..., {plant.n}] and as many inputs [..., {plant.m}], but found shapes {x.shape} "
            f"and {u.shape}"
        )

    A, B = derivative(lambda x: plant.dynamics(x, u), x), derivative(lambda u: plant.dynamics(x, u), u)
    return Linearisation(A, B, plant.dynamics(x, u))
