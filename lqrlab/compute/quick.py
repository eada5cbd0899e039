"""Programs that are compiled in a hurry, because they run a few times only."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from lqrlab.compute import checks

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def _quick_options() -> dict[str, object]:
    """Compiler options that trade the speed of a program for that of its compilation, as this jaxlib knows them."""

    def known(option: str, value: object) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options={option: value})()
        except Exception:  # whatever it calls an unknown option
            return False
        return True

    wanted = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
    return {k: v for k, v in wanted.items() if jax.default_backend() == "cpu" and known(k, v)}


def quick_jit(fn: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``jax.jit(fn, **options)`` for what runs a few times: compiled four times as fast, some times slower to run.

    On devices other than the CPU, with a jaxlib that does not know the compiler's options, and as part of another
    program, which cannot have options of its own, it is a plain ``jax.jit``.
    """
    plain = jax.jit(fn, **options)
    quick = functools.cache(lambda: jax.jit(fn, compiler_options=_quick_options(), **options))

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        inside = checks.traced(args, kwargs, jnp.zeros(()))
        return (plain if inside else quick())(*args, **kwargs)

    return call
