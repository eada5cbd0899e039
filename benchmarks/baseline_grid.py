"""The settings of the baselines of ``unknown``, found again: every setting of a grid on plants of training families."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import PRNGKeyArray

from benchmarks.drawn_baselines import baseline
from lqrlab import unknown
from lqrlab.extensions.unknown.regret import MOST
from lqrlab.simulation import Problem, Told

_RIDGE = {"size": (0.03, 0.1, 0.3), "input_size": (0.3, 1.0), "probe": (0.05, 0.15), "doublings": (0, 1, 2, 5)}
_SAMPLED = {"size": (0.03, 0.1), "input_size": (0.3, 1.0), "hold": (1, 3)}
GRID: Mapping[str, Mapping[str, Sequence[float]]] = {
    "ridge": _RIDGE,
    "cautious ridge": {**_RIDGE, "caution": (0.1, 1.0)},
    "likeliest family": {"inflate": (1.0, 4.0, 16.0)},
    "Thompson sampling": _SAMPLED,
    "optimism": _SAMPLED,
    "explore, then commit": {"explore": (10, 20, 40), "amplitude": (0.1, 0.3, 1.0)},
}
"""Values tried of each setting, all combinations."""


@dataclasses.dataclass(frozen=True)
class BaselineTrial:
    """One setting of one baseline: ``mean_ratio`` is the geometric mean of the cost over the optimum, with ten for a
    loop that failed; ``summary`` that of :class:`lqrlab.unknown.Regret`."""

    controller: str
    settings: dict[str, float]
    mean_ratio: float
    summary: dict[str, float]


def tune_baselines(
    training: Sequence[Told], plants: Problem, *, key: PRNGKeyArray, num_initial: int = 2
) -> Iterator[BaselineTrial]:
    """Try every setting of :data:`GRID`; a baseline's best has the least ``mean_ratio``.

    Args:
        training: plants of each family that may be known beforehand.
        plants: other plants of these families; no test plants.
        key: of initial states and noise.
        num_initial: loops a plant.
    """
    for name, grid in GRID.items():
        for values in itertools.product(*grid.values()):
            settings = dict(zip(grid, values))
            controller = baseline(name, training, **settings)
            regret = unknown.score(controller, plants, key=key, num_initial=num_initial)
            mean_ratio = np.exp(np.mean(np.log(np.minimum(np.asarray(regret.ratio), MOST))))
            yield BaselineTrial(name, settings, float(mean_ratio), regret.summary())
