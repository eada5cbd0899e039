"""The recipe of the adaptive regulator's prior that comes with the package."""

import jax

from benchmarks import training_episodes
from lqrlab import systems
from lqrlab.dataset.data_config import FAMILIES, HELD_OUT
from lqrlab.extensions.unknown import Prior, families, wide
from lqrlab.simulation import Problem, Told

TRAINED = tuple(name for name in FAMILIES if name not in HELD_OUT)
"""Families that a prior knows."""
_KNOWN, _EPISODES = 11, 21  # seeds of plants, never the same, and never those of a table


def variants(name: str, seed: int, num: int) -> systems.Plant:
    """``num`` plants of a family within ±20 %, others for each seed."""
    key = jax.random.fold_in(jax.random.key(seed), systems.names().index(name))
    return systems.sample(name, key=key, num=num, spread=0.2)


def told(plants: systems.Plant) -> Told:
    """Everything about some plants, in scaled coordinates."""
    return Problem.of(plants, linear=True, optimum=False).told()


def adaptive_prior(
    *,
    seed: int = 0,
    num_updates: int = 100,
    batch: int = 96,
    num_steps: int = 100,
    report: training_episodes.Report | None = None,
) -> Prior:
    """A prior that knows the families of the default data set, learned on them, on each of them taken out, and on
    random systems; some ten minutes on two cores.

    Args:
        seed: of the draws.
        num_updates, batch, num_steps: see :func:`benchmarks.training_episodes.learn`.
        report: called after each update with step, mean loss and the share of loops that failed.
    """
    known = families([told(variants(name, _KNOWN, 100)) for name in TRAINED])
    loops, weight = training_episodes.episodes(
        [variants(name, _EPISODES, 24) for name in TRAINED], jax.random.key(1000 + seed)
    )
    return training_episodes.learn(
        wide(known),
        loops,
        weight,
        key=jax.random.key(seed),
        num_updates=num_updates,
        batch=batch,
        num_steps=num_steps,
        report=report,
    )
