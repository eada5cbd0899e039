"""Plants of many families as one batch: linearised, padded to one size, stacked."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute.checks import traced
from lqrlab.systems.coordinates import M_MAX, N_MAX, pad
from lqrlab.systems.custom import Linear
from lqrlab.systems.declaration_checks import check_plant
from lqrlab.systems.plant import Plant


def linearise(plant: Plant) -> Linear:
    """The linear plant that describes deviations from ``plant``'s equilibrium; batch axes stay.

    A linear plant of NumPy arrays stays one: nothing is compiled for its size.
    """
    check_plant(plant)
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    lead, dt = plant.batch_shape, plant.dt
    library = np if all(isinstance(a, np.ndarray) for a in (A, B, Q, R, dt)) else jnp
    A, B, Q, R = (library.broadcast_to(a, lead + a.shape[-2:]) for a in (A, B, Q, R))
    return Linear(A=A, B=B, Q=Q, R=R, dt=library.broadcast_to(library.asarray(dt, A.dtype), lead))


def stack(plants: Sequence[Plant], n: int = N_MAX, m: int = M_MAX) -> Linear:
    """Plants of any families as one batch: linearised, padded to (n, m), joined along the first axis.

    Args:
        plants: each one plant or a batch with one leading axis.
        n, m: dimensions to pad to.

    >>> both = systems.stack([systems.make("pendulum"), systems.make("cart_pole")])
    >>> both.batch_shape, both.n, both.m
    ((2,), 12, 6)
    """
    if not isinstance(plants, Iterable) or not (plants := list(plants)):
        raise ValueError(f"plants: expected a list of at least one plant, but found {plants!r}")
    linear = [linearise(p) for p in plants]
    concrete = not traced(linear)
    if concrete:  # on the host, where nothing is compiled for each size
        linear = [jax.tree.map(np.asarray, p) for p in linear]
    wide = [pad(p, n, m) for p in linear]
    flat = [jax.tree.map(lambda a, p=p: a.reshape(-1, *a.shape[len(p.batch_shape) :]), p) for p in wide]
    joined = jax.tree.map(lambda *leaves: (np if concrete else jnp).concatenate(leaves), *flat)
    return jax.tree.map(jnp.asarray, joined)
