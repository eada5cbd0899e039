"""Equations of motion as LaTeX, read from the program itself: the code is traced once with names for numbers.

So what is printed cannot drift from what is computed. A small algebra keeps sums and products flat and
fractions whole; it does not expand or search for a shorter form.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Plant, parameter_fields

LONGEST = 900
"""Characters beyond which an equation is not printed but said to be long."""


@dataclasses.dataclass(frozen=True)
class Sum:
    """Σ coefficient · product, each product a tuple of (factor, power)."""

    terms: tuple[tuple[float, "Product"], ...]


@dataclasses.dataclass(frozen=True)
class Atom:
    """A symbol, or a function's command applied to an argument."""

    text: str
    argument: Sum | None = None


Factor = Atom | Sum
Product = tuple[tuple[Factor, float], ...]


def number(value: float) -> Sum:
    """A constant."""
    return Sum(((float(value), ()),) if value else ())


def symbol(text: str) -> Sum:
    """A name."""
    return Sum(((1.0, ((Atom(text), 1.0),)),))


def _constant(a: Sum) -> float | None:
    if not a.terms:
        return 0.0
    return a.terms[0][0] if len(a.terms) == 1 and not a.terms[0][1] else None


def add(a: Sum, b: Sum) -> Sum:
    """a + b with equal products collected."""
    terms: dict[Product, float] = {}
    for coefficient, product in (*a.terms, *b.terms):
        terms[product] = terms.get(product, 0.0) + coefficient
    return Sum(tuple((c, p) for p, c in terms.items() if c))


def multiply(a: Sum, b: Sum) -> Sum:
    """a · b; sums stay factors."""
    if not a.terms or not b.terms:
        return number(0.0)
    powers: dict[Factor, float] = {}
    coefficient = 1.0
    for part in (a, b):
        c, factors = part.terms[0] if len(part.terms) == 1 else (1.0, ((part, 1.0),))
        coefficient *= c
        for factor, power in factors:
            powers[factor] = powers.get(factor, 0.0) + power
    return Sum(((coefficient, tuple((f, p) for f, p in powers.items() if p)),))


def power(a: Sum, exponent: float) -> Sum:
    """a to a constant power."""
    if not exponent:
        return number(1.0)
    value = _constant(a)
    if value is not None:
        return number(value**exponent)
    if len(a.terms) > 1:
        return Sum(((1.0, ((a, float(exponent)),)),))
    c, factors = a.terms[0]
    if c < 0 and exponent != int(exponent):
        return Sum(((1.0, ((a, float(exponent)),)),))
    return Sum(((c**exponent, tuple((f, p * exponent) for f, p in factors)),))


def _function(command: str, exact: Callable[[float], float]) -> Callable[[Sum], Sum]:
    def apply(a: Sum) -> Sum:
        value = _constant(a)
        return number(exact(value)) if value is not None else Sum(((1.0, ((Atom(command, a), 1.0),)),))

    return apply


_FUNCTIONS = {
    "sin": _function(r"\sin", np.sin),
    "cos": _function(r"\cos", np.cos),
    "tan": _function(r"\tan", np.tan),
    "atan": _function(r"\arctan", np.arctan),
    "exp": _function(r"\exp", np.exp),
    "log": _function(r"\ln", np.log),
    "abs": _function(r"\operatorname{abs}", abs),
    "sqrt": lambda a: power(a, 0.5),
    "square": lambda a: power(a, 2),
    "rsqrt": lambda a: power(a, -0.5),
    "neg": lambda a: multiply(number(-1.0), a),
}
_PAIRS = {
    "add": add,
    "add_any": add,
    "sub": lambda a, b: add(a, multiply(number(-1.0), b)),
    "mul": multiply,
    "div": lambda a, b: multiply(a, power(b, -1)),
}
_INSIDE = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def _each(f: Callable, *arrays: Any) -> np.ndarray:
    full = np.broadcast_arrays(*(np.asarray(a, object) for a in arrays))
    out = np.empty(full[0].shape, object)
    for index in np.ndindex(*out.shape):
        out[index] = f(*(a[index] for a in full))
    return out


def _lift(a: Any) -> np.ndarray:
    return _each(lambda v: v if isinstance(v, Sum) else number(v), np.asarray(a))


def _total(a: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    for axis in sorted(axes, reverse=True):
        rows = [np.take(a, i, axis) for i in range(a.shape[axis])]
        a = np.asarray(rows[0], object) if rows else _lift(np.zeros(np.delete(a.shape, axis)))
        for row in rows[1:]:
            a = _each(add, a, row)
    return a


def _evaluate(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The jaxpr's outputs with names for numbers."""
    known = {**dict(zip(jaxpr.constvars, map(_lift, constants))), **dict(zip(jaxpr.invars, arguments))}

    def read(v: Any) -> np.ndarray:
        return _lift(v.val) if hasattr(v, "val") else known[v]

    for e in jaxpr.eqns:
        known.update(zip(e.outvars, _apply(e, [read(v) for v in e.invars])))
    return [read(v) for v in jaxpr.outvars]


def _apply(e: Any, a: list[np.ndarray]) -> list[np.ndarray]:
    name, p = e.primitive.name, e.params
    if name in _INSIDE:
        inner = p.get("jaxpr", p.get("call_jaxpr"))
        return _evaluate(inner.jaxpr, inner.consts, a)
    if name in _FUNCTIONS:
        return [_each(_FUNCTIONS[name], a[0])]
    if name in _PAIRS:
        return [_each(_PAIRS[name], *a)]
    if name == "integer_pow":
        return [_each(lambda v: power(v, p["y"]), a[0])]
    if name == "reduce_sum":
        return [_total(a[0], p["axes"])]
    if name == "dot_general":
        return [_product(a[0], a[1], p["dimension_numbers"])]
    # what only moves numbers about is done to their places, and the names follow
    sizes = [v.size for v in a]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    places = [(s + np.arange(n)).reshape(v.shape) for s, n, v in zip(starts, sizes, a)]
    flat = np.concatenate([np.ravel(v) for v in a])
    if name == "convert_element_type":
        return [a[0]]
    moved = e.primitive.bind(*(jnp.asarray(q) for q in places), **p)
    outs = moved if e.primitive.multiple_results else [moved]
    return [np.asarray(flat[np.asarray(out)], object) for out in outs]


def _product(a: np.ndarray, b: np.ndarray, dimensions: Any) -> np.ndarray:
    (left, right), (batch, _) = dimensions
    if batch:
        raise NotImplementedError("a batched product")
    a = np.moveaxis(a, left, range(-len(left), 0))
    b = np.moveaxis(b, right, range(len(right)))
    rows, inner, cols = a.shape[: a.ndim - len(left)], b.shape[: len(right)], b.shape[len(right) :]
    a, b = a.reshape(-1, int(np.prod(inner))), b.reshape(int(np.prod(inner)), -1)
    out = _total(_each(multiply, a[:, :, None], b[None]), (1,))
    return np.asarray(out, object).reshape((*rows, *cols))


# Printing --------------------------------------------------------------------------------------------------


def _digits(value: float) -> str:
    for below in (1, 2, 3, 4, 5, 6, 7, 8, 12):
        above = value * below
        if abs(above - round(above)) < 1e-12 and abs(above) < 1e4:
            return f"{round(above)}" if below == 1 else rf"\tfrac{{{round(above)}}}{{{below}}}"
    text = f"{value:.4g}"
    mantissa, _, exponent = text.partition("e")
    return text if not exponent else rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def _raised(factor: Factor, exponent: float) -> str:
    if isinstance(factor, Sum):
        base = rf"\left({latex(factor)}\right)"
    elif factor.argument is None:
        base = factor.text
    else:
        argument = latex(factor.argument)
        plain = re.fullmatch(r"\\?[a-zA-Z]+(_\{[^{}]*(\{[^{}]*\})?[^{}]*\}|_.)?", argument)
        argument = argument if plain else rf"\left({argument}\right)"
        return factor.text + (f"^{{{exponent:g}}} " if exponent != 1 else " ") + argument
    if exponent == 0.5:
        return rf"\sqrt{{{latex(factor) if isinstance(factor, Sum) else base}}}"
    return base if exponent == 1 else rf"{base}^{{{exponent:g}}}"


def _term(coefficient: float, product: Product) -> str:
    above = [_raised(f, p) for f, p in product if p > 0]
    below = [_raised(f, -p) for f, p in product if p < 0]
    if below and len(above) == 1:  # a fraction's bar brackets what is alone above it
        ((sole, exponent),) = (pair for pair in product if pair[1] > 0)
        above = [latex(sole)] if isinstance(sole, Sum) and exponent == 1 else above
    if below:
        top = r" \, ".join(above) or "1"
        fraction = rf"\frac{{{top}}}{{{chr(32).join(below)}}}"
        return fraction if coefficient == 1 else rf"{_digits(coefficient)} \, {fraction}"
    if not above:
        return _digits(coefficient)
    return (r" \, ").join(above if coefficient == 1 else [_digits(coefficient), *above])


def latex(a: Sum) -> str:
    """A sum as LaTeX."""
    if not a.terms:
        return "0"
    text = ""
    for c, product in a.terms:
        text += (" - " if c < 0 else " + " if text else "") + _term(abs(c), product)
    return text.strip()


_NAMES = {"angle_of_attack": r"\alpha", "air_density": r"\rho", "climb_angle": r"\gamma"}
_LETTERS = {
    **{"elevator": r"\delta_e", "rudder": r"\delta_r", "aileron": r"\delta_a", "steering": r"\delta"},
    **{"density": r"\rho", "airspeed": "V", "chord": r"\bar c", "winding": "R", "coil": "L"},
    **{
        "angle": r"\theta",
        "pitch": r"\theta",
        "roll": r"\phi",
        "yaw": r"\psi",
        "heading": r"\psi",
        "tilt": r"\alpha",
    },
    **{"position": "x", "velocity": "v", "speed": "v", "current": "i", "voltage": "v", "torque": r"\tau"},
    **{
        "force": "f",
        "thrust": "f",
        "mass": "m",
        "length": r"\ell",
        "inertia": "J",
        "gravity": "g",
        "stiffness": "k",
    },
    **{"spring": "k", "damping": "d", "damper": "d", "friction": "b", "resistance": "R", "inductance": "L"},
    **{
        "capacitance": "C",
        "radius": "r",
        "centre": "c",
        "level": "h",
        "area": "A",
        "temperature": "T",
        "duty": "d",
    },
    **{"flux": r"\psi", "concentration": "c", "height": "h", "rate": r"\omega", "mode": r"\eta", "arm": "a"},
}


def _symbol(name: str, unit: str) -> str:
    """A letter for the last telling word of a name, the rest as a subscript."""
    if name in _NAMES:
        return _NAMES[name]
    words = [w for w in re.split(r"_|(?<=[a-z])(?=\d)", name) if w]
    digits = [w for w in words if w.isdigit()]
    words = [w for w in words if not w.isdigit()]
    if len(words) > 1 and len(words[-1]) == 1:  # an axis
        digits.insert(0, words.pop())
    letter = _LETTERS.get(words[-1])
    if unit == "rad/s" and words[-1] in ("speed", "velocity", "rate"):
        letter = r"\omega"
    rest = words[:-1] if letter else words[1:]
    if letter is None:
        letter = words[0] if len(words[0]) == 1 else rf"\mathrm{{{words[0]}}}"
    subscript = [rf"\mathrm{{{' '.join(rest)}}}".replace(" ", r"\,")] if rest else []
    return letter + (rf"_{{{','.join(subscript + digits)}}}" if subscript or digits else "")


def _symbols(plant: Plant) -> tuple[list[str], list[str], list[str]]:
    """Symbols of a plant's parameters, states and inputs, all different."""
    named = [(name, f.metadata["unit"]) for name, f in parameter_fields(type(plant)).items()]
    named += [(s.name, s.unit) for s in (*plant.states, *plant.inputs)]
    texts = [_symbol(*pair) for pair in named]
    for i, (name, _) in enumerate(named):
        if texts.count(texts[i]) > 1:  # two names with one symbol: this one is spelled out
            texts[i] = rf"\mathrm{{{name}}}".replace("_", r"\,")
    first = len(named) - plant.n - plant.m
    return texts[:first], texts[first : first + plant.n], texts[first + plant.n :]


def _read(f: Callable, *shapes: tuple[int, ...]) -> Any:
    return jax.make_jaxpr(f)(*(jnp.zeros(s) for s in shapes))


def _named(plant: Plant, function: Callable, *vectors: list[str]) -> np.ndarray:
    """``function(plant, *vectors)`` with names for all numbers."""
    fields, symbols = tuple(parameter_fields(type(plant))), _symbols(plant)[0]
    count = len(fields)

    def call(*values: Any) -> Any:
        return function(type(plant)(**dict(zip(fields, values[:count]))), *values[count:])

    closed = _read(call, *([()] * count), *((len(v),) for v in vectors))
    arguments = [np.asarray(symbol(s), object) for s in symbols]
    arguments += [np.array([symbol(s) for s in v], object) for v in vectors]
    return _evaluate(closed.jaxpr, closed.consts, arguments)[0]


def _plainly(plant: Plant, method: str) -> Callable:
    """A method as it was written, for one plant."""
    f = getattr(type(plant), method)
    while hasattr(f, "__wrapped__"):
        f = f.__wrapped__
    return f


def _line(left: str, right: Sum) -> str:
    text = latex(right)
    return (
        rf"{left} = {text}"
        if len(text) <= LONGEST
        else rf"{left} = \ldots \quad \text{{(long: see the code)}}"
    )


def equations(plant: Plant) -> list[str]:
    """The equations of motion as lines of LaTeX (mathematics, without dollar signs).

    A mechanism's are its energies and generalised forces under Lagrange's equation, any other plant's its ẋ = f(x, u).

    Raises:
        ValueError: a plant without a family (from matrices or a function), or one that uses an operation that has no
            symbol.
    """
    if not parameter_fields(type(plant)):
        raise ValueError(f"{plant.name}: equations are read from a family's code; this plant has none")
    try:
        if isinstance(plant, Mechanical):
            return _mechanical(plant)
        _, x, u = _symbols(plant)
        rates = _named(plant, _plainly(plant, "dynamics"), x, u)
        return [_line(rf"\dot{{{s}}}", r) for s, r in zip(x, rates)]
    except (NotImplementedError, TypeError) as error:
        raise ValueError(f"{plant.name}: cannot be put into symbols: {error}") from error


def _mechanical(plant: Mechanical) -> list[str]:
    _, x, u = _symbols(plant)
    q = x[: plant.n // 2]
    v = [rf"\dot{{{s}}}" for s in q]
    (kinetic,) = np.ravel(_named(plant, _plainly(plant, "kinetic"), q, v))
    (potential,) = np.ravel(_named(plant, _plainly(plant, "potential"), q))
    forces = _named(plant, _plainly(plant, "forces"), q, v, u)
    law = (
        r"\frac{d}{dt} \frac{\partial T}{\partial \dot{q}} - \frac{\partial T}{\partial q} + "
        r"\frac{\partial V}{\partial q} = F"
    )
    return [
        _line("T", kinetic),
        _line("V", potential),
        *(_line(rf"F_{{{s}}}", f) for s, f in zip(q, forces)),
        law,
    ]
