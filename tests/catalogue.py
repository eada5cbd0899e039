"""What the tests of the catalogue share."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import systems
from lqrlab.compute import quick_jit
from lqrlab.systems import Mechanical

BUILT_IN = tuple(systems.names())
MECHANICAL = tuple(name for name in BUILT_IN if issubclass(systems.family(name), Mechanical))
ONE_A_FIELD = (
    *("mass_train", "furuta_pendulum", "two_link_arm", "scara", "segway"),
    *("quadrotor", "satellite_attitude", "induction_motor", "two_area_power", "stirred_tank_reactor"),
)
"""A family of each field of the catalogue, for what takes long: ``make check`` does it with all."""
DAMPING = ("friction", "damping", "damper", "drag")


def compiled_for(names):
    """Families for a test that compiles a program for each: one a field, and the others in ``make check``."""
    return [name if name in ONE_A_FIELD else pytest.param(name, marks=pytest.mark.matrix) for name in names]


@functools.cache
def evaluate(name, method, *axes):
    """``plant.method(*vectors)`` over leading axes, compiled quickly; None in ``axes`` keeps one plant for
    all."""
    return quick_jit(jax.vmap(getattr(systems.family(name), method).__wrapped__, in_axes=axes))


@functools.cache
def variants(name, spread, num=1000):
    return systems.sample(name, key=jax.random.key(7), num=num, spread=spread)


def undamped(plant):
    """The plant without friction or damping of any kind."""
    damping = [key for key in plant.parameters if any(word in key for word in DAMPING)]
    return with_values(plant, **dict.fromkeys(damping, 0.0))


def with_values(plant, **values):
    """The plant with other parameters, which may be out of the range that ``systems.make`` allows."""
    return dataclasses.replace(plant, **{key: jnp.asarray(value) for key, value in values.items()})


def around(plant, rng, num, size=1.0):
    """``num`` random states and inputs about the equilibrium, ``size`` scales away."""
    (x, u), (sx, su) = plant.equilibrium(), plant.scales
    xs = np.asarray(x) + size * rng.normal(size=(num, plant.n)) * np.asarray(sx)
    return xs, np.asarray(u) + size * rng.normal(size=(num, plant.m)) * np.asarray(su)
