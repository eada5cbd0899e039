"""Formulas that stay as the code writes them: SymPy's algebra, which multiplies nothing out, printed in that order."""

import collections
import fractions
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import sympy
from sympy import Add, Expr, Mul
from sympy.logic.boolalg import Boolean
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE

from lqrlab.compute import jaxprs


def _number(value: np.generic) -> Expr:
    """A constant of the code: a fraction with a small denominator, or that times or over π, where it is one."""
    if value.dtype == bool:
        return sympy.sympify(bool(value))
    for size, unit in ((1.0, sympy.S.One), (math.pi, sympy.pi), (1 / math.pi, 1 / sympy.pi)):
        ratio = float(value) / size
        near = fractions.Fraction(ratio).limit_denominator(12) if abs(ratio) < 1e4 else 0
        if abs(near - ratio) < 1e-12:
            return sympy.Rational(near) * unit
    return sympy.Float(float(value))


def _function(function: Callable[..., Expr], *arguments: Expr) -> Expr:
    """A function as it is written, where SymPy would turn sin(ψ + π) into −sin ψ; of numbers its value."""
    if all(a.is_number for a in arguments):
        return _number(np.float64(function(*arguments)))
    return function(*arguments, evaluate=False)


def _converted(a: sympy.Basic, dtype: np.dtype) -> sympy.Basic:
    return sympy.Piecewise((1, a), (0, True)) if isinstance(a, Boolean) and dtype.kind != "b" else a


def _base(kind: type[Expr], part: Expr) -> Expr:
    """A term without its coefficient, or a factor without its exponent."""
    return part.as_coeff_Mul()[1] if kind is Add else part.as_base_exp()[0]


class Notation(LatexPrinter):
    """Builds and prints formulas, and remembers in which order their terms and factors were written."""

    def __init__(self) -> None:
        super().__init__({"inv_trig_style": "full", "ln_notation": True, "fold_func_brackets": True})
        self.written: dict[Expr, list[Expr]] = {}
        self.letters: dict[Expr, str] = {}

    def algebra(self) -> jaxprs.Algebra:
        """Operations of a program, applied to formulas."""
        circular = sympy.sin, sympy.cos, sympy.tan, sympy.asin, sympy.acos, sympy.atan, sympy.atan2
        others = sympy.sinh, sympy.cosh, sympy.tanh, sympy.exp, sympy.log
        functions = {
            **{"add": self.add, "add_any": self.add, "sub": lambda a, b: self.add(a, self.multiply(b, -1))},
            **{"mul": self.multiply, "div": lambda a, b: self.multiply(a, self.power(b, -1))},
            **{"neg": lambda a: self.multiply(a, -1), "square": lambda a: self.power(a, 2)},
            **{"pow": self.power, "integer_pow": self.power},
            **{"sqrt": sympy.sqrt, "rsqrt": lambda a: 1 / sympy.sqrt(a)},
            **{f.__name__: functools.partial(_function, f) for f in (*circular, *others)},
            **{"abs": sympy.Abs, "sign": sympy.sign, "max": sympy.Max, "min": sympy.Min},
            **{"lt": sympy.Lt, "le": sympy.Le, "gt": sympy.Gt, "ge": sympy.Ge},
            "select_n": lambda which, no, yes: sympy.Piecewise((yes, which), (no, True)),
            "clamp": lambda low, a, high: sympy.Max(low, sympy.Min(a, high)),
            "convert_element_type": _converted,
            **dict.fromkeys(("copy", "copy_p", "stop_gradient"), lambda a: a),
        }
        return jaxprs.Algebra(_number, functions)

    def symbols(self, names: Sequence[str]) -> np.ndarray:
        """Real symbols that are printed as their names."""
        return np.array([sympy.Symbol(name, real=True) for name in names], object)

    def parts(self, kind: type[Expr], e: Expr) -> list[Expr]:
        """The terms of a sum, or the factors of a product, in the order in which they were written."""
        e = e.as_coeff_Mul()[1] if kind is Mul else e
        rank = {base: i for i, base in enumerate(self.written.get(e, ()))}
        return sorted(kind.make_args(e), key=lambda part: rank.get(_base(kind, part), len(rank)))

    def _remember(self, kind: type[Expr], result: Expr, *operands: Expr) -> Expr:
        if isinstance(result, kind):
            parts = (part for operand in operands for part in self.parts(kind, operand))
            self.written.setdefault(result, list(dict.fromkeys(_base(kind, part) for part in parts)))
        return result

    def add(self, a: Expr, b: Expr) -> Expr:
        """a + b."""
        return self._remember(Add, a + b, a, b)

    def multiply(self, a: Expr, b: Expr | int) -> Expr:
        """a b; a sum stays whole, but for its sign."""
        (c, left), (d, right) = self._split(a), self._split(sympy.sympify(b))
        product = self._remember(Mul, left * right, left, right)
        if product.is_Add and abs(c * d) != 1:  # SymPy would multiply it out
            return Mul(c * d, product, evaluate=False)
        return self._remember(Add, c * d * product, product)

    def _split(self, e: Expr) -> tuple[Expr, Expr]:
        """Coefficient and rest; the sign of a sum whose terms are all negative belongs to the coefficient."""
        coefficient, rest = e.as_coeff_Mul()
        if rest.is_Add and all(term.as_coeff_Mul()[0] < 0 for term in rest.args):
            return -coefficient, self._remember(Add, -rest, rest)
        return coefficient, rest

    def power(self, a: Expr, exponent: Expr | int) -> Expr:
        """a to a power; of the square of a sum the signs are left out that cancel."""
        if exponent == 2 and a.is_Add:
            _, a = self._split(a)
        return self._remember(Mul, a**exponent, a)

    def abbreviate(self, formulas: Sequence[Expr]) -> list[str]:
        """Let letters stand for the sums, and functions of sums, that occur more than once; their definitions."""
        places: collections.Counter[Expr] = collections.Counter()

        def visit(e: Expr) -> Iterator[Expr]:
            for part in e.args:
                part = part.base if part.is_Pow else part
                places[part] += 1
                if places[part] == 1:
                    yield from visit(part)
                    yield part

        definitions: list[str] = []
        for e in [part for formula in formulas for part in visit(formula)]:  # inner ones first
            if places[e] > 1 and (e.is_Add or (e.is_Function and e.args[0].is_Add)):
                letter = f"z_{{{len(definitions) + 1}}}"
                definitions.append(f"{letter} = {self.doprint(e)}")
                self.letters[e] = letter
        return definitions

    # What SymPy's printer calls ------------------------------------------------------------------------------

    def _print(self, e: Expr, exp: str = "", **options: object) -> str:
        if e in self.letters:
            return self.letters[e] + (f"^{{{exp}}}" if exp else "")
        return super()._print(e, **options, **({"exp": exp} if exp else {}))

    def parenthesize(self, e: Expr, *options: object, **more: object) -> str:
        """Brackets round a factor that needs them."""
        return self.letters[e] if e in self.letters else super().parenthesize(e, *options, **more)

    def _needs_function_brackets(self, e: Expr) -> bool:
        return not (e in self.letters or (e.is_Symbol and not e.name.startswith(r"\mathrm")))

    def _print_ExpBase(self, e: Expr, exp: str = "") -> str:
        return rf"\exp{f'^{{{exp}}}' if exp else ''}\left({self._print(e.args[0])}\right)"

    def _print_Float(self, e: Expr) -> str:
        mantissa, _, exponent = f"{float(e):.4g}".partition("e")
        return mantissa if not exponent else rf"{mantissa} \cdot 10^{{{int(exponent)}}}"

    def _print_Integer(self, e: Expr) -> str:
        return str(e)

    def _print_Rational(self, e: Expr) -> str:
        return ("- " if e.p < 0 else "") + rf"\tfrac{{{abs(e.p)}}}{{{e.q}}}"

    def _print_Add(self, e: Expr, order: None = None) -> str:
        terms = self.parts(Add, e)
        signs = [" - " if term.as_coeff_Mul()[0] < 0 else " + " for term in terms]
        first = signs.index(" + ") if " + " in signs else 0  # a sum begins without a sign where it can
        text = signs[first].replace("+", "").lstrip() + self._unsigned(terms[first])
        rest = (sign + self._unsigned(term) for i, (sign, term) in enumerate(zip(signs, terms)) if i != first)
        return text + "".join(rest)

    def _print_Mul(self, e: Expr) -> str:
        return ("- " if e.as_coeff_Mul()[0] < 0 else "") + self._unsigned(e)

    def _unsigned(self, e: Expr) -> str:
        """A term without its sign: a number, then factors or a fraction."""
        number, rest = e.as_coeff_Mul()
        number = abs(number)
        if rest == 1:
            return self._print(number)
        factors = self.parts(Mul, rest)
        below = [1 / f for f in factors if f.as_base_exp()[1].is_negative]
        above = [f for f in factors if not f.as_base_exp()[1].is_negative]
        if below and number.is_Integer and number != 1:
            above, number = [number, *above], sympy.S.One
        text = rf"\frac{{{self._bare(above)}}}{{{self._bare(below)}}}" if below else self._product(above)
        return text if number == 1 else rf"{self._print(number)} \, {text}"

    def _bare(self, factors: list[Expr]) -> str:
        """A product over or under the bar of a fraction, where a sum on its own needs no brackets."""
        return self._print(factors[0]) if len(factors) == 1 else self._product(factors) or "1"

    def _product(self, factors: list[Expr]) -> str:
        return r" \, ".join(self.parenthesize(f, PRECEDENCE["Mul"]) for f in factors)
