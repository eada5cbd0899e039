"""The controllers that make a score mean something."""

import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from lqrlab import systems
from lqrlab.compute import as_jax
from lqrlab.simulation import LinearPolicy, Problem
from lqrlab.systems import Plant


def baselines(plants: Mapping[str, Plant]) -> dict[str, LinearPolicy]:
    """Reference policies for ``Problem.of(list(plants.values()))``.

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
    problem = Problem.of(list(plants.values()))
    nominal = Problem.of([systems.make(name) for name in plants])
    counts = np.array([math.prod(batch.batch_shape) for batch in plants.values()])
    return {
        "optimal": LinearPolicy(problem.K),
        "nominal gain": LinearPolicy(as_jax(np.repeat(np.asarray(nominal.K), counts, axis=0))),
        "no control": LinearPolicy(jnp.zeros_like(problem.K)),
    }
