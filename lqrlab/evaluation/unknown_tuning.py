"""The grid from which the baselines for unknown plants got their settings, and how each setting did."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import PRNGKeyArray

from lqrlab.dataset import Description
from lqrlab.evaluation.unknown import MOST, Regret, Unknown, unknown
from lqrlab.evaluation.unknown_baselines import baseline

_RIDGE = {
    "size": (0.03, 0.1, 0.3),
    "input_size": (0.3, 1.0),
    "probe": (0.05, 0.15),
    "doublings": (0, 1, 2, 5),
}
GRID: Mapping[str, Mapping[str, Sequence[float]]] = {
    "ridge": _RIDGE,
    "cautious ridge": {**_RIDGE, "caution": (0.1, 1.0)},
    "training plants of this size": {"inflate": (1.0, 2.0, 4.0), "rank": (8, 24)},
    "likeliest family": {"inflate": (1.0, 4.0, 16.0)},
    "bank of 500": {"misfit": (0.01, 0.03, 0.1, 0.3)},
    "family known": {"inflate": (1.0, 4.0, 16.0)},
}
"""Values tried of each setting, all combinations."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """One setting of one baseline and how it did on the plants that it was tuned on.

    Attributes:
        controller: which baseline.
        settings: name → value.
        mean_ratio: geometric mean of the cost over the optimum, with ten for a loop that diverged.
        summary: see :meth:`Regret.summary`.
    """

    controller: str
    settings: dict[str, float]
    mean_ratio: float
    summary: dict[str, float]


def tune_baselines(
    training: Sequence[Description], plants: Unknown, *, key: PRNGKeyArray, num_initial: int = 2
) -> Iterator[Tuned]:
    """Try every setting of :data:`GRID`; a baseline's best has the least ``mean_ratio``.

    Args:
        training: plants of each family that may be known beforehand.
        plants: other plants of these families, in their order; no test plants.
        key: of initial states and noise.
        num_initial: loops a plant.
    """
    for name, grid in GRID.items():
        for values in itertools.product(*grid.values()):
            settings = dict(zip(grid, values))
            controller = baseline(name, training, plants, **settings)
            regret = unknown(controller, plants, key=key, num_initial=num_initial)
            yield Tuned(name, settings, mean_ratio(regret), regret.summary())


def mean_ratio(regret: Regret) -> float:
    """Geometric mean of the cost over the optimum, with :data:`MOST` for a loop that diverged."""
    return float(np.exp(np.mean(np.log(np.minimum(np.asarray(regret.ratio), MOST)))))
