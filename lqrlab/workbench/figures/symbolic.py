"""Equations of motion as LaTeX, read from the code itself: a plant is traced once with symbols for its numbers.

So what is printed cannot drift from what is computed. SymPy does the algebra, multiplies nothing out, and prints.
"""

import fractions
import math
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from lqrlab.compute import extras, jaxprs
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Plant, check_plant, parameter_fields

if TYPE_CHECKING:
    from sympy import Expr, Symbol

LONGEST = 740
"""Characters of LaTeX in an equation beyond which letters stand for the sums that are repeated."""

_NAMES = {"angle_of_attack": r"\alpha", "air_density": r"\rho", "climb_angle": r"\gamma"}
_LETTERS = dict(
    re.findall(
        r"(\w+)=(\S+)",
        r"""
        angle=\theta pitch=\theta roll=\phi yaw=\psi heading=\psi tilt=\alpha rate=\omega position=x velocity=v speed=v
        airspeed=V height=h level=h force=f thrust=f torque=\tau mass=m inertia=J gravity=g density=\rho length=\ell
        radius=r arm=a centre=c chord=\bar{c} area=A stiffness=k spring=k damping=d damper=d friction=b mode=\eta
        elevator=\delta_e rudder=\delta_r aileron=\delta_a steering=\delta current=i voltage=v resistance=R winding=R
        inductance=L coil=L capacitance=C flux=\psi duty=d temperature=T concentration=c""",
    )
)


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


def _number(value: np.generic) -> "Expr":
    """A constant of the code: a fraction with a small denominator, or that times or over π, where it is one."""
    import sympy

    if value.dtype == bool:
        return sympy.sympify(bool(value))
    for size, unit in ((1.0, sympy.S.One), (math.pi, sympy.pi), (1 / math.pi, 1 / sympy.pi)):
        ratio = float(value) / size
        near = fractions.Fraction(ratio).limit_denominator(12) if abs(ratio) < 1e4 else 0
        if abs(near - ratio) < 1e-12:
            return sympy.Rational(near) * unit
    return sympy.Float(float(value))


def algebra() -> jaxprs.Algebra:
    """Operations of a program, applied to formulas."""
    import sympy

    def converted(a: sympy.Basic, dtype: np.dtype) -> sympy.Basic:
        logical = isinstance(a, sympy.logic.boolalg.Boolean) and dtype.kind != "b"
        return sympy.Piecewise((1, a), (0, True)) if logical else a

    circular = sympy.sin, sympy.cos, sympy.tan, sympy.asin, sympy.acos, sympy.atan, sympy.atan2
    others = sympy.sinh, sympy.cosh, sympy.tanh, sympy.exp, sympy.log, sympy.sign
    functions = {
        **{"add": operator.add, "add_any": operator.add, "sub": operator.sub, "neg": operator.neg},
        **{"mul": operator.mul, "div": operator.truediv, "pow": operator.pow, "integer_pow": operator.pow},
        **{"square": lambda a: a**2, "sqrt": sympy.sqrt, "rsqrt": lambda a: 1 / sympy.sqrt(a)},
        **{f.__name__: f for f in (*circular, *others)},
        **{"abs": sympy.Abs, "max": sympy.Max, "min": sympy.Min},
        **{"lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge},
        "select_n": lambda which, no, yes: sympy.Piecewise((yes, which), (no, True)),
        "clamp": lambda low, a, high: sympy.Max(low, sympy.Min(a, high)),
        "convert_element_type": converted,
        **dict.fromkeys(("copy", "copy_p", "stop_gradient"), lambda a: a),
    }
    return jaxprs.Algebra(_number, functions)


def formulas(plant: Plant) -> "tuple[dict[str, Expr], dict[Symbol, str]]":
    """Left-hand side → formula, and symbol → its LaTeX, parameters first, then states and inputs.

    They are energies and forces of a mechanism, ẋ = f(x, u) of any other plant.
    """
    import sympy

    parameters, x, u = _symbols(plant)
    mechanical, half = isinstance(plant, Mechanical), plant.n // 2
    if mechanical:
        x = [*x[:half], *(rf"\dot{{{s}}}" for s in x[:half])]
    # SymPy sorts factors by name: numbered, they stand as they are declared
    printed = {sympy.Symbol(f"s{i:03d}", real=True): text for i, text in enumerate([*parameters, *x, *u])}
    symbols = list(printed)
    parameters_, x_, u_ = np.split(np.array(symbols, object), [len(parameters), len(parameters) + plant.n])

    def computed(method: str, *vectors: np.ndarray) -> "list[Expr]":
        return _traced(plant, method, parameters_, vectors)

    if not mechanical:
        return {rf"\dot{{{s}}}": e for s, e in zip(x, computed("dynamics", x_, u_))}, printed
    q, v = x_[:half], x_[half:]
    energies = {"T": computed("kinetic", q, v)[0], "V": computed("potential", q)[0]}
    return energies | {rf"F_{{{s}}}": e for s, e in zip(x, computed("forces", q, v, u_))}, printed


def _traced(plant: Plant, method: str, parameters: np.ndarray, vectors: Sequence[np.ndarray]) -> "list[Expr]":
    """A method, as it was written for one plant, evaluated on symbols for parameters and vectors."""
    function, fields = getattr(type(plant), method), tuple(parameter_fields(type(plant)))
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__

    def call(numbers: list[jax.Array], *vectors: jax.Array) -> jax.Array:
        return function(type(plant)(**dict(zip(fields, numbers))), *vectors)

    closed = jax.make_jaxpr(call)([np.zeros(())] * len(fields), *(np.zeros(len(v)) for v in vectors))
    arguments = [*(a.reshape(()) for a in np.split(parameters, len(fields))), *vectors]
    try:
        return list(jaxprs.evaluate(closed, arguments, algebra())[0].ravel())
    except jaxprs.UnsupportedError as error:
        says = f"cannot be put into symbols: {method} uses the operation {error}"
        raise ValueError(f"{plant.name}: {says}") from None


def _abbreviated(found: "dict[str, Expr]") -> "dict[str, Expr]":
    """The formulas with letters z for the sums that they repeat, whose definitions come last."""
    import sympy

    repeated, shorter = sympy.cse(list(found.values()))
    replaced: dict[Expr, Expr] = {}
    definitions: dict[str, Expr] = {}
    for letter, e in repeated:
        e = e.xreplace(replaced)
        if e.is_Add:  # anything else is written out again
            name = f"z_{{{len(definitions) + 1}}}"
            definitions[name], e = e, sympy.Symbol(name, real=True)
        replaced[letter] = e
    return dict(zip(found, (e.xreplace(replaced) for e in shorter))) | definitions


def equations(plant: Plant) -> list[str]:
    """The equations of motion as lines of LaTeX (mathematics, without dollar signs).

    A mechanism's are its energies and generalised forces under Lagrange's equation, any other plant's its
    ẋ = f(x, u). Where one is long, letters z stand for the sums that are repeated; their definitions come last.

    Raises:
        ValueError: a plant without a family (from matrices or a function), or one that uses an operation that has
            no symbol.
    """
    check_plant(plant)
    if not parameter_fields(type(plant)):
        raise ValueError(f"{plant.name}: equations are read from a family's code; this plant has none")
    # only here, because SymPy takes half a second to import
    sympy = extras.load("sympy", "workbench", "equations")
    found, printed = formulas(plant)

    def latex(e: "Expr") -> str:
        e = e.xreplace({number: sympy.Float(f"{float(number):.4g}") for number in e.atoms(sympy.Float)})
        brackets = {"fold_func_brackets": True, "inv_trig_style": "full"}
        return sympy.latex(e, symbol_names=printed, ln_notation=True, mul_symbol=r"\,", **brackets)

    if max(len(latex(e)) for e in found.values()) > LONGEST:
        found = _abbreviated(found)
    lines = [f"{left} = {latex(e)}" for left, e in found.items()]
    if isinstance(plant, Mechanical):
        lines.append(
            r"\frac{d}{dt} \frac{\partial T}{\partial \dot{q}} - \frac{\partial T}{\partial q} + "
            r"\frac{\partial V}{\partial q} = F"
        )
    return lines
