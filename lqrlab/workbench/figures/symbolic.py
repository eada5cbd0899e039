"""Equations of motion as LaTeX, read from the code itself: a plant is traced once with symbols for its numbers.

So what is printed cannot drift from what is computed.
"""

import re
from typing import TYPE_CHECKING

import jax
import numpy as np

from lqrlab.compute import extras, jaxprs
from lqrlab.systems.mechanics import Mechanical
from lqrlab.systems.plant import Plant, check_plant, parameter_fields

if TYPE_CHECKING:
    from sympy import Expr

    from lqrlab.workbench.figures.notation import Notation

LONGEST = 740
"""Characters of LaTeX beyond which letters stand for the sums that an equation repeats."""

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


def formulas(plant: Plant, notation: "Notation") -> "dict[str, Expr]":
    """Left-hand side → formula: energies and forces of a mechanism, ẋ = f(x, u) of any other plant."""
    parameters, x, u = _symbols(plant)

    def computed(method: str, *vectors: list[str]) -> "list[Expr]":
        return _traced(plant, method, notation, parameters, *vectors)

    if not isinstance(plant, Mechanical):
        return {rf"\dot{{{s}}}": e for s, e in zip(x, computed("dynamics", x, u))}
    q = x[: plant.n // 2]
    v = [rf"\dot{{{s}}}" for s in q]
    energies = {"T": computed("kinetic", q, v)[0], "V": computed("potential", q)[0]}
    return energies | {rf"F_{{{s}}}": e for s, e in zip(q, computed("forces", q, v, u))}


def _traced(plant: Plant, method: str, notation: "Notation", *names: list[str]) -> "list[Expr]":
    """A method, as it was written for one plant, evaluated on symbols for parameters and vectors."""
    function, fields = getattr(type(plant), method), tuple(parameter_fields(type(plant)))
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__

    def call(parameters: list[jax.Array], *vectors: jax.Array) -> jax.Array:
        return function(type(plant)(**dict(zip(fields, parameters))), *vectors)

    closed = jax.make_jaxpr(call)([np.zeros(())] * len(fields), *(np.zeros(len(v)) for v in names[1:]))
    symbols = [notation.symbols(texts) for texts in names]
    arguments = [*(a.reshape(()) for a in np.split(symbols[0], len(fields))), *symbols[1:]]
    try:
        return list(jaxprs.evaluate(closed, arguments, notation.algebra())[0].ravel())
    except jaxprs.UnsupportedError as error:
        says = f"cannot be put into symbols: {method} uses the operation {error}"
        raise ValueError(f"{plant.name}: {says}") from None


def equations(plant: Plant) -> list[str]:
    """The equations of motion as lines of LaTeX (mathematics, without dollar signs).

    A mechanism's are its energies and generalised forces under Lagrange's equation, any other plant's its
    ẋ = f(x, u). Where one is long, letters z stand for the sums that it repeats; their definitions come last.

    Raises:
        ValueError: a plant without a family (from matrices or a function), or one that uses an operation that has
            no symbol.
    """
    check_plant(plant)
    if not parameter_fields(type(plant)):
        raise ValueError(f"{plant.name}: equations are read from a family's code; this plant has none")
    # only here, because SymPy takes half a second to import
    notation: Notation = extras.load("lqrlab.workbench.figures.notation", "workbench", "equations").Notation()
    found = formulas(plant, notation)
    definitions = notation.abbreviate([e for e in found.values() if len(notation.doprint(e)) > LONGEST])
    lines = [f"{left} = {notation.doprint(e)}" for left, e in found.items()]
    if isinstance(plant, Mechanical):
        lines.append(
            r"\frac{d}{dt} \frac{\partial T}{\partial \dot{q}} - \frac{\partial T}{\partial q} + "
            r"\frac{\partial V}{\partial q} = F"
        )
    return lines + definitions
