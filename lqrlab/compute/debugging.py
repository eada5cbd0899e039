"""One switch for each question that comes up when a computation goes wrong; JAX's own tools behind all of them.

To stop inside a program and look around, there is ``jax.debug.breakpoint()``, which needs a terminal.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run every function line by line, without compilation: ``print``, ``pdb`` and ``if`` see numbers."""
    with jax.disable_jit():
        yield


@contextlib.contextmanager
def nans() -> Iterator[None]:
    """Stop with a ``FloatingPointError`` at the first operation that makes a NaN. Every result is looked at: slow."""
    with jax.debug_nans(True):
        yield


@contextlib.contextmanager
def compiles() -> Iterator[None]:
    """Log (as warnings of the logger ``jax``) each compilation, and why a function was traced again."""
    with jax.log_compiles(True), jax.explain_cache_misses(True):
        yield


@contextlib.contextmanager
def keys() -> Iterator[None]:
    """Stop with a ``jax.errors.KeyReuseError`` where a random key (``jax.random.key``) is used twice."""
    with jax.debug_key_reuse(True):
        yield


def checked(fn: Callable, *, on_error: Literal["raise", "nan"] = "raise") -> Callable:
    """``fn`` with checks for NaN, division by zero, indices out of bounds, and ``checkify.check`` of the user's own.

    For debugging: a checked train step takes many times as long.

    Args:
        fn: a function of arrays, compiled or not.
        on_error: ``"raise"``: a ``ValueError`` with the operation; only outside of traces, where there is somebody to
            raise it to. ``"nan"``: all that is returned is NaN (integers stay) and computation goes on, under ``jit``
            and, element by element, under ``vmap`` too; outside of them a warning says what happened.
    """
    if on_error not in ("raise", "nan"):
        raise ValueError(f"on_error: expected 'raise' or 'nan', but found {on_error!r}")
    errors = checkify.float_checks | checkify.index_checks | checkify.user_checks
    instrumented = jax.jit(checkify.checkify(fn, errors=errors))

    def bad(error: Any) -> jax.Array:
        # there is no public way to ask within a trace; these are flags, one for each kind of error
        return jnp.any(jnp.stack(list(error._pred.values()))) if error._pred else jnp.array(False)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        error, out = instrumented(*args, **kwargs)
        failed = bad(error)
        if on_error == "raise":
            if isinstance(failed, jax.core.Tracer):
                raise ValueError(
                    "checked: on_error='raise' cannot raise within jit, vmap or grad: put checked around them, as in "
                    "checked(jax.vmap(fn)), or use on_error='nan'"
                )
            error.throw()
            return out
        if not isinstance(failed, jax.core.Tracer) and failed:
            warnings.warn(f"checked: {error.get()}", stacklevel=2)
        return jax.tree.map(
            lambda a: jnp.where(failed, jnp.nan, a) if jnp.issubdtype(jnp.result_type(a), jnp.inexact) else a,
            out,
        )

    return call


def peek(label: str, tree: Any) -> Any:
    """Print shape, dtype, range and number of NaN of each array, from inside of a compiled function; returns ``tree``.

    Wrap a value where it is used: ``x = peek("x", x)``. Under ``vmap`` there is one line for each element.
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    for path, leaf in paths:
        jax.debug.callback(functools.partial(_print_summary, label + jax.tree_util.keystr(path)), leaf)
    return tree


def _print_summary(label: str, value: Any) -> None:
    a = np.asarray(value)
    line = f"{label}: {a.dtype}{list(a.shape)}"
    if not a.size:
        print(f"{line}, empty")
        return
    numbers = a.astype(np.float64) if a.dtype != np.complex128 else np.abs(a)
    bad = int(np.isnan(numbers).sum())
    line += f" from {np.nanmin(numbers):.4g} to {np.nanmax(numbers):.4g}" if bad < a.size else ""
    print(line + (f", {bad} of {a.size} NaN" if bad else ""))


def _staged(fn: Callable, args: Any, kwargs: Any) -> Any:
    return fn.trace(*args, **kwargs) if hasattr(fn, "trace") else jax.jit(fn).trace(*args, **kwargs)


def jaxpr(fn: Callable, *args: Any, **kwargs: Any) -> str:
    """The operations that JAX sees when it traces ``fn`` (compiled or not) with these arguments."""
    return _staged(fn, args, kwargs).jaxpr.pretty_print(use_color=False)


def hlo(fn: Callable, *args: Any, optimized: bool = True, **kwargs: Any) -> str:
    """The program that XLA is given for ``fn`` with these arguments or, optimised, what it makes of it."""
    lowered = _staged(fn, args, kwargs).lower()
    return lowered.compile().as_text() if optimized else lowered.as_text()


def memory_profile(path: str | Path) -> Path:
    """Write what the device's memory is taken by now, and which lines allocated it: gzipped, for ``pprof``."""
    jax.profiler.save_device_memory_profile(str(path))
    return Path(path)


@contextlib.contextmanager
def trace(folder: str | Path) -> Iterator[Path]:
    """Record what runs when, as ``perfetto_trace.json.gz`` in ``folder``; drop it onto https://ui.perfetto.dev.

    What is to be seen in full has to be waited for within the block (``jax.block_until_ready``). Also written is what
    TensorBoard and XProf read.

    Yields:
        The path of the trace, which is there when the block has ended.
    """
    path = Path(folder) / "perfetto_trace.json.gz"
    with jax.profiler.trace(str(folder), create_perfetto_trace=True):
        yield path
    newest = max(
        Path(folder).glob("plugins/profile/*/perfetto_trace.json.gz"), key=lambda p: p.stat().st_mtime
    )
    newest.replace(path)
