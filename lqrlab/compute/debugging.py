"""Debugging and timing tools: recompilations, NaN, values inside compiled functions.

In a line: ``jax.disable_jit()``, ``jax.debug_nans(True)``, ``jax.debug_key_reuse(True)``, ``jax.make_jaxpr(fn)(x)``,
``jax.jit(fn).lower(x).compile().as_text()``, ``jax.profiler.trace(folder, create_perfetto_trace=True)``,
``jax.profiler.save_device_memory_profile(file)``.
"""

import contextlib
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from lqrlab.compute import checks

T = TypeVar("T")


@contextlib.contextmanager
def compiles() -> Iterator[None]:
    """Log (as warnings of the logger ``jax``) each compilation, and why a function was traced again."""
    with jax.log_compiles(True), jax.explain_cache_misses(True):
        yield


def checked(fn: Callable[..., T]) -> Callable[..., T]:
    """``fn`` with checks for NaN, division by zero, indices out of bounds, and the user's ``checkify.check``.

    For debugging: a checked train step takes many times as long. It stands around ``jit``, ``vmap`` and ``grad``.

    Raises:
        ValueError: where the function is called; names the operation.
    """
    errors = checkify.float_checks | checkify.index_checks | checkify.user_checks
    instrumented = jax.jit(checkify.checkify(fn, errors=errors))

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> T:
        error, out = instrumented(*args, **kwargs)
        error.throw()
        return out

    return call


def peek(label: str, tree: T) -> T:
    """Print shape, dtype, range and number of NaN of each array, from inside of a compiled function; returns ``tree``.

    Wrap a value where it is used: ``x = peek("x", x)``. Under ``vmap`` there is one line for each element.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        a = jnp.asarray(leaf)
        name = f"{label}{jax.tree_util.keystr(path)}: {a.dtype}{list(a.shape)}"
        size = jnp.abs(a) if jnp.iscomplexobj(a) else a
        ends = (jnp.nanmin(size), jnp.nanmax(size)) if a.size else (jnp.nan, jnp.nan)
        jax.debug.print("{} from {:.4g} to {:.4g}, {} of {} NaN", name, *ends, jnp.isnan(a).sum(), a.size)
    return tree


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds that a call took: ``first`` (tracing and compilation included), then ``median`` and ``best``.

    >>> timing = compute.timeit(jnp.sum, jnp.ones(10), repeats=3)
    >>> timing.best <= timing.median
    True
    """

    first: float
    median: float
    best: float


def seconds(fn: Callable[..., object], *args: object, **kwargs: object) -> float:
    """Time [s] of ``fn(*args, **kwargs)``, its result waited for."""
    start = time.perf_counter()
    jax.block_until_ready(fn(*args, **kwargs))
    return time.perf_counter() - start


def timeit(fn: Callable[..., object], *args: object, repeats: int = 10, **kwargs: object) -> Timing:
    """Time ``fn(*args, **kwargs)`` once, then ``repeats`` times."""
    checks.whole("repeats", repeats)
    first, *times = (seconds(fn, *args, **kwargs) for _ in range(1 + repeats))
    return Timing(first, statistics.median(times), min(times))
