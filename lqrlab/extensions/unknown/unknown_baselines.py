"""Baselines for a controller of unknown plants: the textbook's answers, tuned on training families only."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp

from lqrlab.extensions.unknown.adaptive_policy import adaptive
from lqrlab.extensions.unknown.prior import Prior, families, ridge, wide
from lqrlab.extensions.unknown.regret import ConstantGain
from lqrlab.simulation import Policy, Problem, Told
from lqrlab.systems import M_MAX, N_MAX

Controller = Callable[[Problem], Policy]
"""From the problem of plants that are not described to a policy for them."""

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "ridge": {"size": 0.1, "input_size": 0.3, "probe": 0.15, "doublings": 1},
    "cautious ridge": {"size": 0.1, "input_size": 0.3, "probe": 0.15, "doublings": 1, "caution": 1.0},
    "likeliest family": {"inflate": 4.0},
}
"""The best of a grid each, on plants of the training families (``benchmarks/baseline_grid.py``)."""


def baselines(training: Sequence[Told]) -> dict[str, Controller]:
    """Controllers to compare with, tuned on the training families by ``python -m benchmarks.unknown_plants tune``.

    Args:
        training: at least 50 plants of each family that may be known beforehand.
    """
    nothing = {"no control": lambda problem: ConstantGain(jnp.zeros((*problem.batch_shape, M_MAX, N_MAX)))}
    return nothing | {name: baseline(name, training) for name in SETTINGS}


def baseline(name: str, training: Sequence[Told], **settings: float) -> Controller:
    """One of the baselines by name, with its settings of :data:`SETTINGS` where none are given."""
    given = dict(SETTINGS[name]) | settings
    doublings = int(given.pop("doublings", 5))
    if name == "likeliest family":
        prior = likeliest(training, given["inflate"])
    else:
        prior = ridge(**given)
    return lambda problem: adaptive(problem, prior, doublings=doublings)


def likeliest(training: Sequence[Told], inflate: float) -> Prior:
    """The likeliest of the training families, and certainty equivalence from its prior; no control of other sizes."""
    base = wide(families(training))
    return dataclasses.replace(
        base, dense=base.dense[:0], kinematic=base.kinematic[:0], caution=jnp.array(0.0), inflate=jnp.array(inflate)
    )
