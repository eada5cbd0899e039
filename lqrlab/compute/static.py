"""Arguments of compiled functions: static ones made hashable, and what distinguishes two programs, in words."""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_device", "jax_debug_nans"),
    *("jax_numpy_dtype_promotion", "jax_default_prng_impl"),
)
_CONTAINERS = (list, tuple, set, dict, np.ndarray)


class Static:
    """A value that a compiled function is specialised to; equal ones share a program.

    Lists, sets, dicts and NumPy arrays may stand anywhere inside. Stricter than Python's ``==``: 2, 2.0 and
    True differ, so do 0.0 and -0.0, and dicts in another order, because the program may depend on it.

    Raises:
        TypeError: the value holds something that has no hash, or an array of JAX.
    """

    def __init__(self, value: object):
        self._value = value
        self._key = _key(value)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __repr__(self) -> str:
        text = repr(self._value)
        return text if len(text) <= 60 else text[:57] + "..."

    def value(self) -> object:
        """The value, in new containers: what a function does to them stays with it."""
        return copy.deepcopy(self._value) if isinstance(self._value, _CONTAINERS) else self._value


def _key(value: Any) -> tuple:
    kind = type(value)
    if kind is list or isinstance(value, tuple):
        return kind, tuple(map(_key, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(_key, value))
    if kind in (dict, OrderedDict):
        return kind, tuple((_key(k), _key(v)) for k, v in value.items())
    if kind is float:
        return kind, value.hex()  # NaN is itself, 0.0 is not -0.0
    if isinstance(value, np.generic) and kind is not np.void:
        return kind, value.tobytes()
    if kind is np.ndarray and not value.dtype.hasobject:
        return kind, value.dtype.str, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and kind.__hash__ is not None:
        return kind, tuple(_key(getattr(value, f.name)) for f in dataclasses.fields(value) if f.compare)
    if isinstance(value, jax.Array):
        raise TypeError(
            f"an array of JAX ({jax.typeof(value)}) cannot be static: the program would be specialised to its values. "
            "Leave the argument dynamic, or hand in a NumPy array or Python numbers"
        )
    try:
        hash(value)
    except TypeError:
        raise TypeError(
            f"a {kind.__name__} has no hash, so programs cannot be told apart by it; lists, tuples, sets, dicts, NumPy "
            "arrays and hashable objects (a frozen dataclass, say) can be static"
        ) from None
    return kind, value


Description = dict[str, object]
"""A property of an argument, as ``"x (shape)"`` → a value that can be compared and shown."""


def described(arguments: Mapping[str, object]) -> Description:
    """All properties of named arguments that programs are told apart by."""
    found: Description = {f"{name} (setting of JAX)": getattr(jax.config, name, None) for name in _SETTINGS}
    for name, value in arguments.items():
        if isinstance(value, Static):
            found[f"{name} (static)"] = value
            continue
        leaves, structure = jax.tree_util.tree_flatten_with_path(value)
        if [path for path, _ in leaves] != [()]:
            found[f"{name} (structure)"] = structure
        for path, leaf in leaves:
            kind, at = jax.typeof(leaf), name + jax.tree_util.keystr(path)
            found[f"{at} (shape)"] = list(kind.shape)
            found[f"{at} (dtype)"] = kind.dtype.name + " of a Python number" * kind.weak_type
            found[f"{at} (placement)"] = _placement(leaf)
    return found


def _placement(leaf: Any) -> str:
    if not getattr(leaf, "committed", False):
        return "free"
    devices = sorted(leaf.sharding.device_set, key=lambda d: d.id)
    return f"{devices[0].platform}:{devices[0].id}" if len(devices) == 1 else str(leaf.sharding)


def differences(old: Description, new: Description) -> list[str]:
    """``x (shape): [3] → [4]`` and so on."""
    values = {name: (old.get(name, "not given"), new.get(name, "not given")) for name in {**old, **new}}
    return [f"{name}: {before} → {after}" for name, (before, after) in values.items() if before != after]
