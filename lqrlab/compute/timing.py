"""Wall times of calls whose results are waited for."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import jax

from lqrlab.compute import checks


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that a call took: ``first`` (tracing and compilation included), then ``median`` and ``best``.

    >>> timing = compute.timeit(jnp.sum, jnp.ones(10), repeats=3)
    >>> timing.best <= timing.median, timing.repeats
    (True, 3)
    """

    first: float
    median: float
    best: float
    repeats: int


def seconds(fn: Callable[..., object], *args: object, **kwargs: object) -> float:
    """Time [s] of ``fn(*args, **kwargs)``, its result waited for."""
    start = time.perf_counter()
    jax.block_until_ready(fn(*args, **kwargs))
    return time.perf_counter() - start


def timeit(fn: Callable[..., object], *args: object, repeats: int = 10, **kwargs: object) -> Timing:
    """Time ``fn(*args, **kwargs)`` once, then ``repeats`` times."""
    checks.whole("repeats", repeats)
    first, *times = (seconds(fn, *args, **kwargs) for _ in range(1 + repeats))
    return Timing(first, statistics.median(times), min(times), repeats)
