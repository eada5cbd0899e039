"""The catalogue: names to plant classes, and the factories that check what they are given."""

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import drawing
from lqrlab.systems.drawing import Drawing
from lqrlab.systems.plant import Plant, Signal, param, parameter_fields

_FAMILIES: dict[str, type[Plant]] = {}


def register(cls: Any = None, *, name: str = "") -> Any:
    """Enter a plant class into the catalogue (a decorator); what it lacks is said at once.

    Args:
        cls: a subclass of :class:`Plant`; or one plant, as ``from_dynamics``, ``from_matrices`` or ``load``
            make, whose variants then differ in how fast they run and how strong their inputs are.
        name: what it is called; a class's own name, in snake case, if left out.

    Returns:
        The class.

    Raises:
        ValueError: naming the line of the declaration at fault.
    """
    if cls is None:
        return functools.partial(register, name=name)
    if isinstance(cls, Plant):
        cls = _family_of(cls, name)
    if not (isinstance(cls, type) and issubclass(cls, Plant)):
        raise ValueError(f"cls: expected a subclass of Plant or a plant, but found {cls!r}")
    if name:
        cls.name = name
    if not cls.__module__.startswith("lqrlab.systems.catalogue"):  # ours are checked by the tests
        check(cls)
        if cls.name in _FAMILIES and _FAMILIES[cls.name].__module__ != cls.__module__:
            raise ValueError(f"{cls.__name__}: {cls.name!r} is in the catalogue already; choose another name")
    _FAMILIES[cls.name] = cls
    return cls


def _family_of(plant: Plant, name: str) -> type[Plant]:
    """A family around one plant that somebody has made."""
    if not name.isidentifier():
        raise ValueError(f"name: expected what the plant is to be called, as 'my_plant', but found {name!r}")
    if plant.batch_shape:
        raise ValueError(f"{name}: expected one plant, but found a batch of shape {plant.batch_shape}")
    x_eq, u_eq = plant.equilibrium()
    q, r = plant.weights()

    class Given(Plant):
        tempo: Array = param(1.0, "1", "how fast it runs against the plant given", 0.1, 10.0)
        authority: Array = param(1.0, "1", "how strong its inputs are against the plant given", 0.1, 10.0)

        states, inputs, dt, source = plant.states, plant.inputs, float(plant.dt), plant.source
        outputs = plant.outputs
        scales = plant.scales

        def operating_point(self) -> tuple[Array, Array]:
            return x_eq, u_eq

        def dynamics(self, x: Array, u: Array) -> Array:
            return self.tempo * plant.dynamics(x, u_eq + self.authority * (u - u_eq))

        def output(self, x: Array) -> Array:
            return plant.output(x)

        def weights(self) -> tuple[Array, Array]:
            return q, r

        def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
            return plant.draw(x, u)

    Given.__module__, Given.title = __name__, name.replace("_", " ")
    return Given


def check(cls: type[Plant]) -> None:
    """Refuse a declaration that is incomplete or does not hold together, saying which line is at fault."""

    def refuse(why: str, where: str = "") -> None:
        raise ValueError(f"{cls.__name__}: {why}{_line(cls, where)}")

    for kind in ("states", "inputs"):
        listed = getattr(cls, kind)
        if not isinstance(listed, tuple) or not all(isinstance(s, Signal) for s in listed):
            refuse(f"{kind}: expected a tuple of Signal(name, unit, scale), but found {listed!r}", kind)
        if not listed:
            refuse(f"declares no {kind}; list them as a tuple of Signal(name, unit, scale)", kind)
    if not isinstance(cls.dt, (int, float)) or not cls.dt > 0:
        refuse(f"dt: expected a sample time above 0 s, but found {cls.dt!r}", "dt")
    if not cls.source:
        refuse("source: say where the model comes from (book or paper, equation or page)", "source")
    signals: dict[str, Signal] = {}
    for s in (*cls.states, *cls.inputs):
        if s.name in signals:
            refuse(f"two signals are called {s.name!r}", f'"{s.name}"')
        signals[s.name] = s
    for s in (*signals.values(), *cls.outputs):
        if not isinstance(s, Signal):
            refuse(
                f"outputs names {s!r}, which is no state; a Signal says what output(x) computes", "outputs"
            )
        if not s.unit:
            refuse(f"signal {s.name!r} has no unit (use '1' for a pure number)", f'"{s.name}"')
        if not s.scale > 0:
            refuse(f"signal {s.name!r}: expected a scale above 0, but found {s.scale!r}", f'"{s.name}"')
    for name in cls.solve_for:
        if name not in signals:
            refuse(f"solve_for names {name!r}, which is neither a state nor an input", "solve_for")
    _check_parameters(cls, refuse)
    _check_equations(cls, refuse)


def _line(cls: type, where: str) -> str:
    """Where in the source a part of the declaration stands, if that can be told."""
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return ""
    number = next(
        (i for i, line in enumerate(lines) if where and re.search(rf"(?<!\w){re.escape(where)}", line)), 0
    )
    return f" (line {first + number}: {lines[number].strip()})"


def _check_parameters(cls: type[Plant], refuse: Callable[[str, str], None]) -> None:
    fields = parameter_fields(cls)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name not in fields:
            refuse(f"field {f.name!r}: declare it with param(default, unit, about, low, high)", f.name)
        if hasattr(Plant, f.name):
            refuse(f"parameter {f.name!r} hides Plant.{f.name}; choose another name", f.name)
        meta = f.metadata
        for what in ("unit", "about"):
            if not meta[what]:
                hint = "use '1' for a pure number" if what == "unit" else "say in a few words what it is"
                refuse(f"parameter {f.name!r} has no {what} ({hint})", f.name)
        if meta["low"] is None or meta["high"] is None or not meta["low"] < meta["high"]:
            refuse(f"parameter {f.name!r} has no range (low, high) in which the model means anything", f.name)
        if not meta["low"] <= f.default <= meta["high"]:
            refuse(f"parameter {f.name!r}: default {f.default:g} is outside {_range(f)}", f.name)
    if not fields:
        refuse("declares no parameters; declare them with param(default, unit, about, low, high)", "class")


def _check_equations(cls: type[Plant], refuse: Callable[[str, str], None]) -> None:
    plant = make_default(cls)

    def attempt(what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise ValueError(
                f"{cls.__name__}: {what} fails with {reason}{_line(cls, f'def {what}')}"
            ) from error

    point = attempt("operating_point", lambda: jax.eval_shape(plant.operating_point))
    shapes = tuple(a.shape for a in point)
    if shapes != ((plant.n,), (plant.m,)):
        expected = f"({plant.n},) and ({plant.m},)"
        refuse(
            f"operating_point: expected x and u of shapes {expected}, but found {shapes}",
            "def operating_point",
        )
    for what in ("kinetic", "potential", "forces") if hasattr(cls, "kinetic") else ():
        x, u = (jnp.zeros(a.shape) for a in point)
        q, v = jnp.split(x, 2)
        args = {"kinetic": (q, v), "potential": (q,), "forces": (q, v, u)}[what]
        shape = attempt(what, functools.partial(jax.eval_shape, getattr(plant, what), *args)).shape
        wanted = (plant.n // 2,) if what == "forces" else ()
        if shape != wanted:
            refuse(f"{what}: expected shape {wanted}, but found {shape}", f"def {what}")
    for what, wish, size, arguments in (
        ("dynamics", "dynamics(x, u): expected ẋ of shape", plant.n, point),
        ("output", "output(x): expected shape", len(cls.outputs), point[:1]),
    ):
        found = attempt(what, functools.partial(jax.eval_shape, getattr(plant, what), *arguments))
        shape = getattr(found, "shape", None)  # a list, or nothing at all, has none
        if shape != (size,):
            given = f"a {type(found).__name__}: make one array, by jnp.stack" if shape is None else shape
            refuse(f"{wish} ({size},), but found {given}", f"def {what}")
    x, u = attempt("equilibrium", plant.equilibrium)
    dx = np.asarray(plant.dynamics(x, u))
    # relative to how fast states would run if pushed by a scale of input or of state
    pace = max(1.0, *(float(np.abs(np.asarray(a)).max()) for a in attempt("matrices", plant.matrices)))
    if not np.isfinite(np.concatenate([dx, x, u])).all():
        free = ", ".join(cls.solve_for) or "nothing"
        where = "solve_for" if cls.solve_for else "def operating_point"
        refuse(f"no equilibrium: solving for {free} from the operating point finds none", where)
    if not np.max(np.abs(dx)) < 1e-6 * pace:
        worst = cls.states[int(np.argmax(np.abs(dx)))].name
        refuse(
            f"no equilibrium: at the operating point {worst!r} changes by {np.abs(dx).max():.2g} a second; "
            "give the signals' values there (at=...), write operating_point, or name in solve_for what moves",
            "solve_for" if cls.solve_for else "operating_point",
        )
    for what, weight, size in zip("QR", attempt("weights", plant.weights), (plant.n, plant.m)):
        w = np.asarray(weight)
        if w.shape != (size, size) or not np.isfinite(w).all() or not np.allclose(w, w.T):
            refuse(f"weights: expected a symmetric {what} of shape {(size, size)}", "def weights")
        low, least = np.linalg.eigvalsh(w)[0], 1e-9 * np.abs(w).max()
        if low < -least or (what == "R" and low <= 0):
            refuse(
                f"weights: expected {what} {'≥' if what == 'Q' else '>'} 0, but found the eigenvalue {low:.3g}",
                "def weights",
            )
    attempt("draw", lambda: drawing.bounds(plant.drawing(x, u)))


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
