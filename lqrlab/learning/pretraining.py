"""The recipe of the adaptive regulator's prior that comes with the package."""

import jax

from lqrlab import systems
from lqrlab.dataset import describe
from lqrlab.dataset.config import FAMILIES, HELD_OUT
from lqrlab.learning.adaptive import Prior, families, lessons, wide

TRAINED = tuple(name for name in FAMILIES if name not in HELD_OUT)
"""Families that a prior knows."""
_KNOWN, _LESSONS = 11, 21  # seeds of plants, never the same, and never those of a table


def variants(name: str, seed: int, num: int) -> systems.Plant:
    """``num`` plants of a family within ±20 %, others for each seed."""
    key = jax.random.fold_in(jax.random.key(seed), systems.names().index(name))
    return systems.sample(name, key=key, num=num, spread=0.2)


def adaptive_prior(
    *,
    seed: int = 0,
    num_updates: int = 100,
    batch: int = 96,
    num_steps: int = 100,
    report: lessons.Report | None = None,
) -> Prior:
    """A prior that knows the families of the default data set, learned on them, on each of them taken out, and on
    random systems; some ten minutes on two cores.

    Args:
        seed: of the draws.
        num_updates, batch, num_steps: see :func:`.adaptive.lessons.learn`.
        report: called after each update with step, mean loss and the share of loops that diverged.
    """
    known = families([describe(variants(name, _KNOWN, 100)) for name in TRAINED])
    loops, weight = lessons.lessons(
        [variants(name, _LESSONS, 24) for name in TRAINED], jax.random.key(1000 + seed)
    )
    return lessons.learn(
        wide(known),
        loops,
        weight,
        key=jax.random.key(seed),
        num_updates=num_updates,
        batch=batch,
        num_steps=num_steps,
        report=report,
    )
