"""Answers that JAX does not give in a line when a computation goes wrong, and how long it takes.

In a line: ``jax.disable_jit()``, ``jax.debug_nans(True)``, ``jax.debug_key_reuse(True)``, ``jax.make_jaxpr(fn)(x)``,
``jax.jit(fn).lower(x).compile().as_text()``, ``jax.profiler.trace(folder, create_perfetto_trace=True)``,
``jax.profiler.save_device_memory_profile(file)``.
"""

import contextlib
import dataclasses
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import checkify

from lqrlab.compute import checks

T = TypeVar("T")


@contextlib.contextmanager
def compiles() -> Iterator[None]:
    """Log (as warnings of the logger ``jax``) each compilation, and why a function was traced again."""
    with jax.log_compiles(True), jax.explain_cache_misses(True):
        yield


def checked(fn: Callable[..., T], *, on_error: Literal["raise", "nan"] = "raise") -> Callable[..., T]:
    """``fn`` with checks for NaN, division by zero, indices out of bounds, and the user's ``checkify.check``.

    For debugging: a checked train step takes many times as long.

    Args:
        fn: a function of arrays, compiled or not.
        on_error: ``"raise"``: a ``ValueError`` that names the operation; only outside of traces. ``"nan"``: all
            results are NaN (integers stay) and computation goes on, under ``jit`` and, element by element, under
            ``vmap`` too; outside of them a warning says what happened.
    """
    checks.choice("on_error", on_error, ("raise", "nan"))
    errors = checkify.float_checks | checkify.index_checks | checkify.user_checks
    instrumented = jax.jit(checkify.checkify(fn, errors=errors))

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> T:
        error, out = instrumented(*args, **kwargs)
        # there is no public way to ask within a trace; these are flags, one for each kind of error
        failed = jnp.any(jnp.stack(list(error._pred.values()))) if error._pred else jnp.array(False)
        inside = checks.traced(failed)
        if on_error == "raise" and inside:
            raise ValueError(
                "checked: on_error='raise' cannot raise within jit, vmap or grad: put checked around them, as in "
                "checked(jax.vmap(fn)), or use on_error='nan'"
            )
        if on_error == "raise":
            error.throw()
            return out
        if not inside and failed:
            warnings.warn(f"checked: {error.get()}", stacklevel=2)

        def marked(a: Array) -> Array:
            return jnp.where(failed, jnp.nan, a) if jnp.issubdtype(jnp.result_type(a), jnp.inexact) else a

        return jax.tree.map(marked, out)

    return call


def peek(label: str, tree: T) -> T:
    """Print shape, dtype, range and number of NaN of each array, from inside of a compiled function; returns ``tree``.

    Wrap a value where it is used: ``x = peek("x", x)``. Under ``vmap`` there is one line for each element.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        jax.debug.callback(functools.partial(_print_summary, label + jax.tree_util.keystr(path)), leaf)
    return tree


def _print_summary(label: str, value: Array) -> None:
    a = np.asarray(value)
    numbers = a.astype(np.float64) if a.dtype != np.complex128 else np.abs(a)
    bad = int(np.isnan(numbers).sum())
    line = f"{label}: {a.dtype}{list(a.shape)}" + ("" if a.size else ", empty")
    line += f" from {np.nanmin(numbers):.4g} to {np.nanmax(numbers):.4g}" if bad < a.size else ""
    print(line + (f", {bad} of {a.size} NaN" if bad else ""))


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
