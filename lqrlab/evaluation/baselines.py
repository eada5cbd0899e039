"""The controllers that make a score mean something."""

import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab import control, systems
from lqrlab.simulation import LinearPolicy, SampledProblem, env, no_control
from lqrlab.systems import Plant


def gain(plant: Plant) -> Array:
    """The optimal sampled-data gain ``[*batch, m, n]``."""
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    return control.lqrd(A, B, Q, R, plant.dt).K


def baselines(plants: Mapping[str, Plant]) -> dict[str, LinearPolicy]:
    """Reference policies for ``systems.stack(plants.values())``.

    Args:
        plants: family name → a batch of its variants with one leading axis.

    Returns:
        ``optimal``: each variant's own LQR, 1 by definition. ``nominal gain``: the LQR of the family's default
        parameters, for all its variants: what a network must beat to have learned more than a table.
        ``no control``: inputs held at the equilibrium.
    """
    if not isinstance(plants, Mapping) or not plants:
        raise ValueError(f"plants: expected a table of families and their plants, but found {plants!r}")
    for name, batch in plants.items():
        family = systems.family(name)
        systems.check_plant(batch)
        if (batch.n, batch.m) != (len(family.states), len(family.inputs)) or len(batch.batch_shape) > 1:
            raise ValueError(
                f"plants: expected variants of {name} with one leading axis, but found {type(batch).__name__} of batch "
                f"shape {batch.batch_shape}"
            )
    stacked = systems.stack(list(plants.values()))
    nominal = gain(systems.stack([systems.make(name) for name in plants]))
    counts = np.array([math.prod(batch.batch_shape) for batch in plants.values()])
    # as `evaluate` finds what it compares with: by the same compiled program
    optimum, _ = SampledProblem.of(env(stacked, linear=True).sampled)
    return {
        "optimal": LinearPolicy(optimum.K),
        "nominal gain": LinearPolicy(jnp.repeat(nominal, counts, axis=0)),
        "no control": no_control(stacked),
    }
