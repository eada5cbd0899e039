"""Programs of functions that come and go: a notebook's cell that is run again makes new ones."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.tree_util import PyTreeDef

R = TypeVar("R")

KEPT = 16
"""Functions, or choices of static arguments, whose programs are kept, for each compiled function."""


def jit_by_function(fn: Callable[..., R], jit: Callable = jax.jit, **options: Any) -> Callable[..., R]:
    """``jit(fn, **options)`` that forgets: of functions among its static arguments, those of the last few calls stay.

    A program is specialised to a function that is static: the dynamics of a plant, what reads the parameters of a
    schedule. JAX keeps thousands of programs, each of some MiB, and with them functions that nobody else holds any
    more. Here each such function (or combination of functions) has a compiled ``fn`` of its own, of which
    :data:`KEPT` are kept; what has no such function among its arguments is compiled once and stays.

    Args:
        fn: to be compiled.
        jit: what compiles it.
        options: for ``jit``.
    """

    def compiled() -> Callable[..., R]:
        return jit(functools.wraps(fn)(lambda *args, **kwargs: fn(*args, **kwargs)), **options)

    always = compiled()
    of_functions = functools.lru_cache(KEPT)(lambda found: compiled())

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> R:
        leaves, structure = jax.tree.flatten((args, kwargs))
        found = (*filter(_is_function, leaves), *_static_functions(structure))
        return (of_functions(found) if found else always)(*args, **kwargs)

    call.kept = of_functions.cache_info  # type: ignore[attr-defined]
    return call


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _static_functions(structure: PyTreeDef) -> Iterator[Callable]:
    """The functions in the static data of a pytree."""
    data = structure.node_data()
    if data is None:
        return
    static = data[1] if isinstance(data[1], tuple) else (data[1],)
    yield from filter(_is_function, static)
    for child in structure.children():
        yield from _static_functions(child)
