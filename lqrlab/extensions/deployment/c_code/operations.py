"""Operations on numbers that a C program has: how they are written, and what they are of constants."""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Operation(NamedTuple):
    """One operation.

    Attributes:
        form: in C, with ``{0}``, ``{1}``, … for the operands.
        value: the same of Python's numbers.
        kind: of the result; that of the last operand if None.
        integer: its form for whole numbers, if another one.
        cost: whether it counts as an operation.
    """

    form: str
    value: Callable[..., Any]
    kind: str | None = None
    integer: str | None = None
    cost: bool = True

    def text(self, kind: str) -> str:
        """The form for a result of the kind."""
        return self.integer if self.integer and kind == "int" else self.form


def _divided(a: Any, b: Any) -> Any:
    """a / b as C has it: whole numbers are cut towards zero."""
    return np.float64(a) / np.float64(b) if isinstance(a, float) else math.trunc(a / b) if b else 0


def _math(name: str, value: Callable[..., Any] | None = None, operands: int = 1) -> Operation:
    """A function of math.h, of the size of ``real_t``."""
    given = ", ".join(f"{{{k}}}" for k in range(operands))
    return Operation(f"M({name})({given})", value or getattr(np, name), "real")


def _helper(name: str, value: Callable[..., Any], operands: int = 1, kind: str | None = None) -> Operation:
    """A function at the head of controller.c."""
    given = ", ".join(f"{{{k}}}" for k in range(operands))
    return Operation(f"real_{name}({given})", value, kind, f"int_{name}({given})")


_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_LIBRARY = (
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "floor", "ceil",
    "cbrt", "rint",
)  # fmt: skip
_INVERSE = ["asin", "acos", "atan", "asinh", "acosh", "atanh"]

OPERATIONS: dict[str, Operation] = {
    "add": Operation("({0} + {1})", operator.add),
    "sub": Operation("({0} - {1})", operator.sub),
    "mul": Operation("({0} * {1})", operator.mul),
    "div": Operation("({0} / {1})", _divided),
    "neg": Operation("(-{0})", operator.neg),
    "rem": Operation("M(fmod)({0}, {1})", lambda a, b: math.fmod(a, b), None, "({0} % {1})"),
    "abs": Operation("M(fabs)({0})", abs, None, "({0} < 0 ? -{0} : {0})"),
    "max": _helper("max", np.maximum, 2),
    "min": _helper("min", np.minimum, 2),
    "sign": _helper("sign", np.sign),
    "is_finite": Operation("is_finite({0})", np.isfinite, "bool"),
    "select": Operation("({0} ? {2} : {1})", lambda which, no, yes: yes if which else no),
    "and": Operation("({0} && {1})", lambda a, b: a and b, "bool"),
    "or": Operation("({0} || {1})", lambda a, b: a or b, "bool"),
    "not": Operation("(!{0})", operator.not_, "bool"),
    "xor": Operation("({0} != {1})", operator.ne, "bool"),
    **{name: Operation(f"({{0}} {sign} {{1}})", getattr(operator, name), "bool") for name, sign in _COMPARED.items()},
    "to_real": Operation("(real_t){0}", float, "real", cost=False),
    "to_int": Operation("(int64_t){0}", int, "int", cost=False),
    "to_bool": Operation("({0} != 0)", bool, "bool"),
    **{name: _math(name) for name in _LIBRARY},
    **{name: _math(name, getattr(np, f"arc{name[1:]}")) for name in _INVERSE},
    "erf": _math("erf", math.erf),
    "erfc": _math("erfc", math.erfc),
    "atan2": _math("atan2", np.arctan2, 2),
    "pow": _math("pow", np.power, 2),
    "round": _math("round", lambda a: np.trunc(a + np.copysign(0.5, a))),
    "logistic": Operation("(R(1.0) / (R(1.0) + M(exp)(-{0})))", lambda a: 1 / (1 + np.exp(-a)), "real"),
}
"""Name → operation; most are named as JAX names its primitives."""

HELPERS = {
    "real_max": "static real_t real_max(real_t a, real_t b) {\n    return a > b || a != a ? a : b;\n}",
    "real_min": "static real_t real_min(real_t a, real_t b) {\n    return a < b || a != a ? a : b;\n}",
    "int_max": "static int64_t int_max(int64_t a, int64_t b) {\n    return a > b ? a : b;\n}",
    "int_min": "static int64_t int_min(int64_t a, int64_t b) {\n    return a < b ? a : b;\n}",
    "real_sign": "static real_t real_sign(real_t a) {\n    return a > 0 ? R(1.0) : a < 0 ? R(-1.0) : a;\n}",
    "int_sign": "static int64_t int_sign(int64_t a) {\n    return (a > 0) - (a < 0);\n}",
    "is_finite": "static bool is_finite(real_t a) {\n    return !(a - a != 0);\n}",
}
"""Functions that controller.c defines where it needs them; NaN goes through maxima and minima as in JAX."""
