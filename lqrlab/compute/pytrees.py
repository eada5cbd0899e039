"""Frozen dataclasses as pytrees whose structure says which class they are."""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import jax

T = TypeVar("T", bound=type)


def register(cls: type, static: Iterable[str] = ()) -> None:
    """Make a dataclass a pytree; the fields named in ``static`` are part of its structure.

    ``jax.tree_util.register_dataclass`` does nearly that, but to jaxlib 0.10.2 any two dataclasses with as many leaves
    have equal structures, so a compiled function of one may now and then be taken for that of another. JAX also puts
    placeholders into the fields, so a value is put together again without ``__init__``, which may check them.
    """
    static = tuple(static)
    moving = tuple(f.name for f in dataclasses.fields(cls) if f.name not in static)
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in moving)

    def flatten(value: object) -> tuple[tuple[object, ...], tuple[object, ...]]:
        kept = (cls, *(getattr(value, name) for name in static))
        return tuple(getattr(value, name) for name in moving), kept

    def flatten_with_keys(value: object) -> tuple[tuple[tuple[object, object], ...], tuple[object, ...]]:
        leaves, kept = flatten(value)
        return tuple(zip(keys, leaves)), kept

    def unflatten(kept: tuple[object, ...], leaves: Iterable[object]) -> object:
        value: object = object.__new__(cls)
        for name, field in zip((*moving, *static), (*leaves, *kept[1:])):
            object.__setattr__(value, name, field)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


def pytree(cls: T) -> T:
    """Decorator over ``@dataclasses.dataclass``: fields with ``metadata={"static": True}`` are structure."""
    register(cls, (f.name for f in dataclasses.fields(cls) if f.metadata.get("static")))
    return cls
