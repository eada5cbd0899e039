"""A plant described in words, tables and equations: the terminal prints it, the catalogue page sets it.

Equations of motion are LaTeX, read from the code itself: a plant is traced once with symbols for its numbers. What is
printed cannot drift from what is computed; SymPy does the algebra, multiplies nothing out, and prints.
"""

import dataclasses
import fractions
import html
import math
import operator
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import ArrayLike

from lqrlab import control, systems
from lqrlab.compute import jaxprs
from lqrlab.installation import of_extra
from lqrlab.systems import Plant, check_plant
from lqrlab.systems.mechanics import Mechanical
from lqrlab.workbench.figures import charts, digits

if TYPE_CHECKING:
    from sympy import Expr, Symbol

Table = tuple[tuple[str, ...], list[tuple]]
PARAMETERS = ("name", "value", "unit", "range", "what it is")
"""Head of a table of parameters."""


@dataclasses.dataclass(frozen=True)
class Card:
    """A plant in words and tables."""

    name: str
    title: str
    size: str
    facts: dict[str, str]  # label → words: size, sample time, source, limits of the model
    modes: list[str]  # of the open loop, in words, the least stable first
    equations: list[str]  # of motion, as LaTeX; none for a plant without a family
    tables: dict[str, Table]  # caption → head and rows: parameters, states and inputs


def card(plant: Plant, *, equations: bool = True, A: ArrayLike | None = None) -> Card:
    """Gather what there is to say of a plant; ``equations=False`` saves the tenth of a second that they take.

    ``A`` is that of the plant if it has been linearised already.
    """
    counts = ((plant.n, "state"), (plant.m, "input"))
    size = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts)
    about = f"{size}, sampled every {charts.duration(float(plant.dt))}"
    facts = {"size": about, "source": plant.source, "limits": plant.limits}
    signals = [
        (s.name, s.unit, digits(s.scale, 4), digits(value if abs(value) > 1e-12 * s.scale else 0.0, 5), kind)
        for kind, of, at in zip(("state", "input"), (plant.states, plant.inputs), plant.equilibrium())
        for s, value in zip(of, np.asarray(at, float))
    ]
    parameters = [(name, digits(value, 6), *rest) for name, value, *rest in parameter_rows(plant)]
    tables: dict[str, Table] = {
        "Parameters": (PARAMETERS, parameters),
        "States and inputs": (("name", "unit", "scale", "equilibrium", "kind"), signals),
    }
    try:
        lines = equations_of(plant) if equations else []
    except ValueError:  # matrices or a function of one's own: there is no text to read
        lines = []
    facts = {label: words for label, words in facts.items() if words}
    tables = {caption: table for caption, table in tables.items() if table[1]}
    modes = [words for _, words in control.modes_in_words(plant, A)]
    return Card(plant.name, plant.title, size, facts, modes, lines, tables)


def parameter_rows(plant: Plant) -> list[tuple[str, float, str, str, str]]:
    """Name, value, unit, range and meaning of each parameter; the first of a batch."""
    rows = []
    for name, field in systems.parameter_fields(type(plant)).items():
        meta = field.metadata
        span = f"{digits(meta['low'], 6)} … {digits(meta['high'], 6)}" + ("" if meta["vary"] else ", not varied")
        value = float(np.asarray(getattr(plant, name)).ravel()[0])
        rows.append((name, value, meta["unit"], span, meta["about"]))
    return rows


def phrase(title: str) -> str:
    """The first phrase of a title, which is enough to tell the plants of the catalogue apart."""
    return re.split("[;:]", title)[0]


def html_table(caption: str, table: Table) -> str:
    """A table as HTML; all that stands in it is text."""

    def row(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    head, rows = table
    body = "".join(row(cells, "td") for cells in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead>{row(head, 'th')}</thead><tbody>{body}</tbody></table>"
    )


# Equations of motion ---------------------------------------------------------------------------------------

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
    named = [(name, f.metadata["unit"]) for name, f in systems.parameter_fields(type(plant)).items()]
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
    parameters_, x_, u_ = np.split(np.array(list(printed), object), [len(parameters), len(parameters) + plant.n])

    def computed(method: str, *vectors: np.ndarray) -> "list[Expr]":
        return _traced(plant, method, parameters_, vectors)

    if not mechanical:
        return {rf"\dot{{{s}}}": e for s, e in zip(x, computed("dynamics", x_, u_))}, printed
    q, v = x_[:half], x_[half:]
    energies = {"T": computed("kinetic", q, v)[0], "V": computed("potential", q)[0]}
    return energies | {rf"F_{{{s}}}": e for s, e in zip(x, computed("forces", q, v, u_))}, printed


def _traced(plant: Plant, method: str, parameters: np.ndarray, vectors: Sequence[np.ndarray]) -> "list[Expr]":
    """A method, as it was written for one plant, evaluated on symbols for parameters and vectors."""
    function, fields = getattr(type(plant), method), tuple(systems.parameter_fields(type(plant)))
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


def equations_of(plant: Plant) -> list[str]:
    """The equations of motion as lines of LaTeX; a ``ValueError`` for a plant or an operation that has none.

    A mechanism's are its energies and generalised forces under Lagrange's equation, any other plant's its ẋ = f(x, u).
    Where one is long, letters z stand for the sums that are repeated; their definitions come last.
    """
    check_plant(plant)
    if not systems.parameter_fields(type(plant)):
        raise ValueError(f"{plant.name}: equations are read from a family's code; this plant has none")
    # only here, because SymPy takes half a second to import
    sympy = of_extra("sympy", "[workbench]", "equations")
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
