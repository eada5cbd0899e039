"""Programs that are compiled in a hurry, because they run a few times only."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from lqrlab.compute import checks

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


@functools.cache
def _quick_options() -> dict[str, object]:
    """Options that make compilation fast and programs slow, if this backend and jaxlib know them."""
    try:
        jax.jit(lambda: 0, compiler_options=_OPTIONS)()
    except Exception:  # an unknown option has no error class of its own
        return {}
    return dict(_OPTIONS) if jax.default_backend() == "cpu" else {}


def quick_jit(fn: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``jax.jit(fn, **options)`` for what runs a few times: compiled four times as fast, some times slower to run.

    On other devices, with a jaxlib that does not know the compiler's options, and as part of another program, which
    cannot have options of its own, it is a plain ``jax.jit``.
    """
    plain = jax.jit(fn, **options)
    quick = functools.cache(lambda: jax.jit(fn, compiler_options=_quick_options(), **options))

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        inside = checks.traced(args, kwargs, jnp.zeros(()))
        return (plain if inside else quick())(*args, **kwargs)

    return call
