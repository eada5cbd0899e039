"""The catalogue's register: names to plant classes, and the factories that check what they are given."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from lqrlab.compute.checks import did_you_mean, number, random_key, real, text, traced, whole
from lqrlab.systems import catalogue
from lqrlab.systems.declaration import param
from lqrlab.systems.declaration_checks import check, range_and_unit
from lqrlab.systems.drawing import Drawing
from lqrlab.systems.plant import Input, Numbers, Output, Plant, State, parameter_fields

FAMILIES: dict[str, type[Plant] | str] = dict(catalogue.places())
"""The catalogue, without what is entered only when somebody looks into it; a class that nobody asked for is a place."""


def register(cls: object = None, *, name: str = "") -> Any:
    """Enter a plant class into the catalogue (a decorator); an incomplete declaration is refused at once.

    Args:
        cls: a subclass of :class:`Plant`; or one plant, whose variants then differ in its parameters; in time scale
            and input gain if it has none, as of ``from_dynamics`` and ``from_matrices``.
        name: its name in the catalogue; the plant's, or the class's in snake case, if left out.

    Returns:
        The class.

    Raises:
        ValueError: naming the line of the declaration at fault.
    """
    text("name", name)
    if cls is None:
        return functools.partial(register, name=name)
    if isinstance(cls, Plant):
        cls = with_defaults(cls) if parameter_fields(type(cls)) else _family_of(cls, name)
    if not (isinstance(cls, type) and issubclass(cls, Plant)):
        raise ValueError(f"cls: expected a subclass of Plant or a plant, but found {cls!r}")
    if name:
        cls.name = name
    check(cls)
    if cls.name in FAMILIES and _class(cls.name).__module__ != cls.__module__:
        raise ValueError(f"{cls.__name__}: {cls.name!r} is in the catalogue already; choose another name")
    FAMILIES[cls.name] = cls
    return cls


def is_entered(cls: type[Plant]) -> bool:
    """True if a class is the one that the catalogue has by its name."""
    return cls.name in FAMILIES and _class(cls.name) is cls


def _class(name: str) -> type[Plant]:
    """The class of a name in the catalogue; a built-in one is loaded when it is first asked for."""
    found = FAMILIES[name]
    if isinstance(found, str):
        module, _, cls = found.partition(":")
        found = FAMILIES[name] = getattr(importlib.import_module(module), cls)
    return found


def with_defaults(plant: Plant) -> type[Plant]:
    """The plant's class with the plant's parameters for defaults; the class itself if it has them already."""
    cls, fields = type(plant), parameter_fields(type(plant))
    values = {key: float(value) for key, value in plant.parameters.items()}
    if not is_entered(cls) and all(fields[key].default == value for key, value in values.items()):
        return cls
    members: dict[str, Any] = {key: param(value) for key, value in values.items()}
    about = {"__annotations__": dict.fromkeys(members, Array), "__module__": __name__}
    given: Any = type(cls.__name__, (cls,), members | about | {"__doc__": cls.__doc__})
    given.name = cls.name
    return given


def _family_of(plant: Plant, name: str) -> type[Plant]:
    """A family around one plant of the user's."""
    name = name or (plant.name if plant.name != type(plant).name else "")
    if not name.isidentifier():
        raise ValueError(f"name: expected what the plant is to be called, as 'my_plant', but found {name!r}")
    if plant.batch_shape:
        raise ValueError(f"{name}: expected one plant, but found a batch of shape {plant.batch_shape}")
    x_eq, u_eq = plant.equilibrium()
    q, r = plant.weights()

    class Given(Plant):
        time_scale: Array = param(1.0, "1", "speed relative to the plant given", 0.1, 10.0)
        input_gain: Array = param(1.0, "1", "strength of the inputs relative to the plant given", 0.1, 10.0)

        states, inputs, outputs, scales = plant.states, plant.inputs, plant.outputs, plant.scales
        dt, source = float(plant.dt), plant.source

        def operating_point(self) -> tuple[State, Input]:
            return x_eq, u_eq

        def dynamics(self, x: State, u: Input) -> State:
            return self.time_scale * plant.dynamics(x, u_eq + self.input_gain * (u - u_eq))

        def output(self, x: State) -> Output:
            return plant.output(x)

        def weights(self) -> tuple[Array, Array]:
            return q, r

        def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
            return plant.draw(x, u)

    Given.__module__, Given.name, Given.title = __name__, name, name.replace("_", " ")
    return Given


def _catalogue() -> dict[str, type[Plant] | str]:
    """The families, with those of files and packages: a plant is checked when JAX has been set up, not on import."""
    from lqrlab.systems import plant_files  # here, because it enters what it reads by this module

    plant_files.enter_named()
    return FAMILIES


def names() -> list[str]:
    """The names of all families in the catalogue, in the order in which they were registered.

    >>> "cart_pole" in systems.names()
    True
    """
    return list(_catalogue())


def family(name: str) -> type[Plant]:
    """The class of a family; an unknown name is refused with the near ones."""
    if not isinstance(name, str) or name not in _catalogue():
        hint = did_you_mean(name, FAMILIES) or f"; known are {', '.join(FAMILIES)}."
        raise ValueError(
            f"name: no plant is called {name!r}{hint} One of a file of yours needs --plants FILE, in a notebook "
            "plants_file, in Python systems.register_file(FILE)"
        )
    return _class(name)


def make(name: str, **parameters: Numbers) -> Plant:
    """Build a plant from the catalogue.

    Args:
        name: a family; see :func:`names`.
        parameters: physical parameters that differ from their defaults, in SI units; arrays of a common
            shape give a batch of plants.

    Raises:
        ValueError: unknown family or parameter (near names are listed), a value outside the model's range.

    >>> plant = systems.make("pendulum", length=0.8)
    >>> plant.n, plant.m, plant.dt
    (2, 1, 0.02)
    """
    cls = family(name)
    fields = parameter_fields(cls)
    values = {key: check_parameter(cls, key, value) for key, value in parameters.items()}
    full = [values.get(key, f.default) for key, f in fields.items()]
    library = jnp if traced(full) else np  # of numbers no program is compiled
    whole = library.broadcast_arrays(*(library.asarray(a, float) for a in full))
    return cls(**dict(zip(fields, map(jnp.asarray, whole))))


def check_parameter(cls: type[Plant], key: str, value: Numbers) -> Array:
    """Values of the parameter ``key`` of a plant class as an array; raises ValueError if invalid.

    Raises:
        ValueError: an unknown parameter, no numbers, one that is not finite or is outside the parameter's range.
            Inside a trace, where values are unknown, nothing is refused.
    """
    fields = parameter_fields(cls)
    if text("key", key) not in fields:
        hint = did_you_mean(key, fields) or f"; it has {', '.join(fields)}"
        raise ValueError(f"{key or 'key'}: {cls.name} has no such parameter{hint}")
    f = fields[key]
    value = real(key, value, finite=True)
    if traced(value):
        return jnp.asarray(value)
    array = np.asarray(value, dtype=float)
    outside = np.maximum(f.metadata["low"] - array, array - f.metadata["high"])
    if np.any(outside > 0):
        expected = f"{key}: expected {cls.name}'s {f.metadata['about']} within {range_and_unit(f)}"
        found = f"but found {array.ravel()[np.argmax(outside)]:g}"
        raise ValueError(f"{expected}, {found}; outside, the model does not describe the plant")
    return jnp.asarray(array)


_SIXTEEN = 16  # parameters, or a multiple, are drawn by one compiled program, which most families share


@functools.partial(jax.jit, static_argnames="num")
def _draw(key: Array, default: Array, low: Array, high: Array, spread: Array, num: int) -> list[Array]:
    """``num`` values of each parameter."""

    def one(i: Array, default: Array, low: Array, high: Array, spread: Array) -> Array:
        # each parameter has its key: adding one at the end changes no other
        factor = 1 + spread * jax.random.uniform(jax.random.fold_in(key, i), (num,), minval=-1.0, maxval=1.0)
        return jnp.clip(default * factor, low, high)

    return list(jax.vmap(one)(jnp.arange(len(default)), default, low, high, spread))


def sample(name: str, *, key: PRNGKeyArray, num: int, spread: float = 0.2) -> Plant:
    """Draw ``num`` variants of a family as one batch of plants.

    Each parameter that varies is uniform within ±``spread`` of its default, clipped to its range.

    Args:
        name: a family.
        key: JAX random key.
        num: how many variants.
        spread: half-width relative to the default, 0 ≤ spread < 1.

    >>> plants = systems.sample("pendulum", key=jax.random.key(0), num=5)
    >>> plants.batch_shape, plants[:2].batch_shape
    ((5,), (2,))
    """
    number("spread", spread, "a relative half-width in [0, 1)", low=0, below=1)
    whole("num", num)
    random_key(key)
    cls = family(name)
    fields = parameter_fields(cls)
    rows = [(f.default, f.metadata["low"], f.metadata["high"], spread * f.metadata["vary"]) for f in fields.values()]
    rows += [(0.0, 0.0, 0.0, 0.0)] * (-len(rows) % _SIXTEEN)
    drawn = _draw(key, *(jnp.asarray(column, float) for column in np.array(rows).T), num=num)
    return cls(**dict(zip(fields, drawn)))
