"""Honest timing: compilation apart, results waited for, the median told."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import jax


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that a call took: ``first`` (tracing and compilation included), then ``median`` and ``best``."""

    first: float
    median: float
    best: float
    repeats: int


def timeit(fn: Callable[..., object], *args: object, repeats: int = 10, **kwargs: object) -> Timing:
    """Time ``fn(*args, **kwargs)``; every call is waited for with ``block_until_ready``.

    Args:
        fn: any function of arrays; what it returns is waited for.
        args, kwargs: passed on.
        repeats: calls counted after the first.
    """

    def once() -> float:
        start = time.perf_counter()
        jax.block_until_ready(fn(*args, **kwargs))
        return time.perf_counter() - start

    first = once()
    times = [once() for _ in range(repeats)]
    return Timing(first, statistics.median(times), min(times), repeats)
