"""``jax.jit`` in two variants: compiled quickly, and forgetting the functions that a program was compiled for."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike

from lqrlab.compute import checks

P = ParamSpec("P")
R = TypeVar("R")

KEPT = 16
"""Functions, or choices of static arguments, whose programs are kept, for each compiled function."""
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


def jit_by_function(fn: Callable[..., R], jit: Callable = jax.jit, **options: Any) -> Callable[..., R]:
    """``jit(fn, **options)`` that keeps the programs of the last 16 functions among its static arguments.

    A program is specialised to a function that is static: the dynamics of a plant, the parameters' schedule. A
    notebook's cell that is run again makes a new one. JAX would keep thousands of such programs and their functions
    (8 MiB for each plant that is made of a function, designed for and simulated).

    Args:
        fn: to be compiled.
        jit: what compiles it.
        options: for ``jit``.
    """

    def program(functions: tuple[Callable, ...]) -> Callable[..., R]:
        return jit(functools.wraps(fn)(lambda *args, **kwargs: fn(*args, **kwargs)), **options)

    always, last = program(()), functools.lru_cache(KEPT)(program)

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> R:
        leaves, structure = jax.tree.flatten((args, kwargs))
        functions = (*filter(_is_function, leaves), *_static_functions(structure))
        return (last(functions) if functions else always)(*args, **kwargs)

    call.kept = last.cache_info  # type: ignore[attr-defined]
    return call


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _static_functions(structure: PyTreeDef) -> Iterator[Callable]:
    """The functions in the static data of a pytree."""
    if data := structure.node_data():
        yield from filter(_is_function, data[1] if isinstance(data[1], tuple) else (data[1],))
        for child in structure.children():
            yield from _static_functions(child)


def quick_jit(fn: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``jax.jit(fn, **options)`` for what runs a few times: compiled three times as fast, some times slower to run.

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


def as_jax(a: ArrayLike) -> jax.Array:
    """A copy of NumPy's array as JAX's, without a program: ``jnp.asarray`` without a dtype compiles one for each shape.

    With a dtype it may share the memory, and the answer would change with what the caller writes there later.
    """
    if isinstance(a, jax.Array):
        return a
    copy = np.array(a)
    return jnp.asarray(copy, jax.dtypes.canonicalize_dtype(copy.dtype))


@functools.cache
def _quick_options() -> dict[str, object]:
    try:
        jax.jit(lambda: 0, compiler_options=_QUICK)()
    except Exception:  # an unknown option has no error class of its own
        return {}
    return dict(_QUICK) if jax.default_backend() == "cpu" else {}
