"""The catalogue: names to plant classes, and the factories that check what they are given."""

import dataclasses
import difflib
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems.plant import Plant, parameter_fields

_FAMILIES: dict[str, type[Plant]] = {}


def register(cls: type[Plant]) -> type[Plant]:
    """Enter a plant class into the catalogue (a decorator); what it lacks is said at once.

    Raises:
        ValueError: naming the part of the declaration at fault.
    """

    if not cls.__module__.startswith("lqrlab."):  # ours are checked by the tests: importing stays quick
        check(cls)
    _FAMILIES[cls.name] = cls
    return cls


def check(cls: type[Plant]) -> None:
    """Refuse a declaration that is incomplete or does not hold together, saying which part of it."""

    def refuse(why: str) -> None:
        raise ValueError(f"{cls.__name__}: {why}")

    if not cls.states or not cls.inputs:
        refuse("declares no states or no inputs; list them as tuples of Signal(name, unit, scale)")
    if not cls.dt > 0:
        refuse(f"dt: expected a sample time above 0 s, but found {cls.dt!r}")
    if not cls.source:
        refuse("source: say where the model comes from (book or paper, equation or page)")
    signals = {s.name: s for s in (*cls.states, *cls.inputs)}
    for s in signals.values():
        if not s.unit:
            refuse(f"signal {s.name!r} has no unit (use '1' for a pure number)")
        if not s.scale > 0:
            refuse(f"signal {s.name!r}: scale must be above 0, but found {s.scale!r}")
    for name in cls.solve_for:
        if name not in signals:
            refuse(f"solve_for names {name!r}, which is neither a state nor an input")
    fields = parameter_fields(cls)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name not in fields:
            refuse(f"field {f.name!r}: declare it with param(default, unit, about, low, high)")
        if hasattr(Plant, f.name):
            refuse(f"parameter {f.name!r} hides Plant.{f.name}; choose another name")
        meta = f.metadata
        if not meta["unit"]:
            refuse(f"parameter {f.name!r} has no unit (use '1' for a pure number)")
        if not meta["low"] <= f.default <= meta["high"]:
            refuse(f"parameter {f.name!r}: default {f.default:g} is outside {_range(f)}")
    plant = make_default(cls)
    try:
        x, u = plant.operating_point()
        dx = jax.eval_shape(plant.dynamics, x, u)
    except Exception as error:
        raise ValueError(
            f"{cls.__name__}: dynamics(x, u) fails with {type(error).__name__}: {error}"
        ) from error
    if dx.shape != (plant.n,):
        refuse(f"dynamics(x, u): expected ẋ of shape ({plant.n},), but found {dx.shape}")
    x, u = plant.equilibrium()
    residual = float(jnp.max(jnp.abs(plant.dynamics(x, u))))
    if not residual < 1e-6:
        refuse(
            f"no equilibrium: |f(x, u)| = {residual:.2g} at the operating point; give the signals' "
            "values there (at=...) or name in solve_for the states and inputs to solve for"
        )


def make_default(cls: type[Plant]) -> Plant:
    """The nominal plant of a class."""
    return cls(**{name: jnp.asarray(f.default, float) for name, f in parameter_fields(cls).items()})


def names() -> list[str]:
    """The names of all families in the catalogue, in the order in which they were registered."""
    return list(_FAMILIES)


def family(name: str) -> type[Plant]:
    """The class of a family; an unknown name raises a ``ValueError`` that lists the near ones."""
    if name not in _FAMILIES:
        near = difflib.get_close_matches(str(name), _FAMILIES, n=4, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_FAMILIES)}."
        raise ValueError(f"name: no plant is called {name!r}; {hint}")
    return _FAMILIES[name]


def make(name: str, **parameters: Any) -> Plant:
    """Build a plant from the catalogue.

    Args:
        name: a family; see :func:`names`.
        parameters: physical parameters that differ from their defaults, in SI units; arrays of a common
            shape give a batch of plants.

    Raises:
        ValueError: unknown family or parameter (near names are listed), a value that is not finite or is
            outside the range in which the model holds.
    """
    cls = family(name)
    fields = parameter_fields(cls)
    values = {}
    for key, value in parameters.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=3, cutoff=0.4) or list(fields)
            raise ValueError(f"{key}: {name} has no such parameter; did you mean {' or '.join(near)}?")
        values[key] = _checked(name, key, value, fields[key])
    full = [values.get(key, f.default) for key, f in fields.items()]
    return cls(**dict(zip(fields, jnp.broadcast_arrays(*(jnp.asarray(v, float) for v in full)))))


def _range(f: Any) -> str:
    meta = f.metadata
    return f"[{meta['low']:g}, {meta['high']:g}] {meta['unit']}"


def _checked(plant: str, key: str, value: Any, f: Any) -> Array:
    if isinstance(value, jax.core.Tracer):  # inside a trace there is nothing to look at
        return value
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"{key}: expected a number in {f.metadata['unit']}, but found {value!r}") from None
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{key}: expected a finite number, but found {value!r}")
    if np.any(array < f.metadata["low"]) or np.any(array > f.metadata["high"]):
        worst = array.ravel()[np.argmax(np.maximum(f.metadata["low"] - array, array - f.metadata["high"]))]
        raise ValueError(
            f"{key}: expected {plant}'s {f.metadata['about']} within {_range(f)}, but found {worst:g}; "
            "outside, the model does not describe the plant"
        )
    return jnp.asarray(array)


_BLOCK = 16  # parameters drawn by one compiled program, which all families share


@functools.partial(jax.jit, static_argnames="num")
def _draw(
    key: Array, first: Array, default: Array, low: Array, high: Array, spread: Array, num: int
) -> list[Array]:
    """``num`` values of each of a block of parameters, the first of which is number ``first``."""

    def one(i: Array, default: Array, low: Array, high: Array, spread: Array) -> Array:
        # each parameter has a key of its own: adding one at the end changes no other
        factor = 1 + spread * jax.random.uniform(jax.random.fold_in(key, i), (num,), minval=-1.0, maxval=1.0)
        return jnp.clip(default * factor, low, high)

    return list(jax.vmap(one)(first + jnp.arange(_BLOCK), default, low, high, spread))


def sample(name: str, *, key: Array, num: int, spread: float = 0.2) -> Plant:
    """Draw ``num`` variants of a family as one batch of plants.

    Every parameter that varies is uniform within ±``spread`` of its default, clipped to its range.

    Args:
        name: a family.
        key: JAX random key.
        num: how many variants.
        spread: half-width relative to the default, 0 ≤ spread < 1.
    """
    if not 0 <= spread < 1:
        raise ValueError(f"spread: expected a relative half-width in [0, 1), but found {spread!r}")
    if num < 1:
        raise ValueError(f"num: expected at least one variant, but found {num!r}")
    cls = family(name)
    fields = parameter_fields(cls)
    rows = [
        (f.default, f.metadata["low"], f.metadata["high"], spread * f.metadata["vary"])
        for f in fields.values()
    ]
    rows += [(0.0, 0.0, 0.0, 0.0)] * (-len(rows) % _BLOCK)
    drawn: list[Array] = []
    for first in range(0, len(rows), _BLOCK):
        columns = (jnp.asarray(c, float) for c in np.array(rows[first : first + _BLOCK]).T)
        drawn += _draw(key, jnp.asarray(first), *columns, num=num)
    return cls(**dict(zip(fields, drawn)))
