"""What the tests of the catalogue share."""

import functools

import jax
import numpy as np

from lqrlab import systems
from lqrlab.compute import quick_jit
from lqrlab.systems import Mechanical

BUILT_IN = tuple(systems.names())
MECHANICAL = tuple(name for name in BUILT_IN if issubclass(systems.family(name), Mechanical))
DAMPING = ("friction", "damping", "damper", "drag")


@functools.cache
def evaluate(name, method, *axes):
    """``plant.method(*vectors)`` over leading axes, compiled quickly; None in ``axes`` keeps one plant for
    all."""
    fn = getattr(systems.family(name), method).__wrapped__ if method != "mass_matrix" else None
    if fn is None:
        fn = systems.family(name).mass_matrix
    return quick_jit(jax.vmap(fn, in_axes=axes))


@functools.cache
def variants(name, spread, num=1000):
    return systems.sample(name, key=jax.random.key(7), num=num, spread=spread)


def undamped(plant):
    """The plant without friction or damping of any kind."""
    changed = {
        key: np.zeros_like(value)
        for key, value in plant.parameters.items()
        if any(word in key for word in DAMPING)
    }
    fields = {**plant.parameters, **changed}
    return type(plant)(**fields)


def around(plant, rng, num, size=1.0):
    """``num`` random states and inputs about the equilibrium, ``size`` scales away."""
    (x, u), (sx, su) = plant.equilibrium(), plant.scales
    xs = np.asarray(x) + size * rng.normal(size=(num, plant.n)) * np.asarray(sx)
    return xs, np.asarray(u) + size * rng.normal(size=(num, plant.m)) * np.asarray(su)
