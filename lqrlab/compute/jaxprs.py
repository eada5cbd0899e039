"""A traced function evaluated number by number, in an algebra of choice: arrays of many problems, or formulas.

``vmap`` over a function of small vectors and matrices makes arrays ``[problem, 2, 2]``, whose arithmetic a CPU
does piecemeal. :func:`componentwise` traces the function once for one problem and runs its program on components:
a vector of four becomes four arrays ``[problem]``, all arithmetic is elementwise over contiguous memory, and
what is multiplied by a known zero or one is not computed at all. With symbols for numbers the same interpreter
writes equations of motion as formulas (:mod:`lqrlab.workbench.figures.plant_card`).
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike
from jaxtyping import Float64, PyTree

from lqrlab.compute.linalg import stored

Number = Any  # what stands for a number: an array of many problems' numbers, a formula


@dataclasses.dataclass(frozen=True)
class Algebra:
    """An algebra: objects that stand for numbers, and the primitives of a program on them.

    Attributes:
        constant: a NumPy number of the program as a number of the algebra.
        functions: primitive → function of numbers. That of ``integer_pow`` takes the exponent too, that of
            ``convert_element_type`` the dtype. ``add`` and ``mul`` are what sums and matrix products consist of.
    """

    constant: Callable[[Number], Number]
    functions: Mapping[str, Callable[..., Number]]


# the parameter of a primitive that its function takes as a last argument
_PARAMETERS = {"integer_pow": "y", "convert_element_type": "new_dtype"}


def _padded(p: Mapping[str, Any], a: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The array with a value in front of, behind and between its entries, or cut."""
    sizes = [low + high + k + max(k - 1, 0) * inside for (low, high, inside), k in zip(p["padding_config"], a.shape)]
    places = [low + np.arange(k) * (inside + 1) for (low, _, inside), k in zip(p["padding_config"], a.shape)]
    there = [np.flatnonzero((at >= 0) & (at < size)) for at, size in zip(places, sizes)]
    out = np.broadcast_to(value, sizes).copy()
    out[np.ix_(*(at[kept] for at, kept in zip(places, there)))] = a[np.ix_(*there)]
    return out


# those that only move numbers about; never by a scalar index, which would unpack the array that it finds
_MOVES: dict[str, Callable[..., Any]] = {
    "reshape": lambda p, a: np.reshape(a, p["new_sizes"]),
    "squeeze": lambda p, a: np.squeeze(a, p["dimensions"]),
    "transpose": lambda p, a: np.transpose(a, p["permutation"]),
    "rev": lambda p, a: np.flip(a, p["dimensions"]),
    "slice": lambda p, a: a[tuple(map(slice, p["start_indices"], p["limit_indices"], p["strides"] or [1] * a.ndim))],
    "split": lambda p, a: np.split(a, np.cumsum(p["sizes"])[:-1], p["axis"]),
    "stack": lambda p, *a: np.stack(a, p["axis"]),
    "unstack": lambda p, a: [np.squeeze(b, p["axis"]) for b in np.split(a, a.shape[p["axis"]], p["axis"])],
    "pad": _padded,
    "tile": lambda p, a: np.tile(a, p["reps"]),
    "concatenate": lambda p, *a: np.concatenate(a, p["dimension"]),
    "broadcast_in_dim": lambda p, a: np.broadcast_to(
        np.expand_dims(a, tuple(i for i in range(len(p["shape"])) if i not in p["broadcast_dimensions"])), p["shape"]
    ),
}
_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call"),
}
_SUMS = ("reduce_sum", "dot_general")


class UnsupportedError(Exception):
    """A program has a step that an algebra has no form for; the message is the primitive's name."""


def _unlike_numbers(e: JaxprEqn) -> bool:
    """True if a step means something else than among real numbers, or is empty."""
    name, first = e.primitive.name, e.invars[0].aval if e.invars else None
    shape, dtype = getattr(first, "shape", ()), getattr(first, "dtype", np.float64)
    return (
        (name == "div" and not jnp.issubdtype(dtype, jnp.inexact))  # it truncates
        or (name == "round" and e.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN)
        or (name == "select_n" and len(e.invars) != 3)
        or (name in _SUMS and 0 in shape)
    )


def called(e: JaxprEqn) -> ClosedJaxpr | None:
    """The program that a step does nothing else than to call; None of other steps."""
    if e.primitive.name not in _CALLS:
        return None
    inner = next(e.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call") if key in e.params)
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def _inner(e: JaxprEqn) -> ClosedJaxpr | None:
    return e.params["jaxprs"].solve if e.primitive.name == "custom_linear_solve" else called(e)


# the operands in which a step is linear if the others are constants
_LINEAR_IN = {
    **dict.fromkeys((*_MOVES, "add", "add_any", "sub", "neg", "copy", "copy_p", "reduce_sum", "cumsum"), slice(None)),
    **dict.fromkeys(("div", "gather", "dynamic_slice", "reduce_precision"), slice(1)),
    **{"select_n": slice(1, None), "dynamic_update_slice": slice(2)},
    **dict.fromkeys(("scatter", "scatter-add"), slice(0, None, 2)),
}


def degrees(closed: ClosedJaxpr, given: Sequence[float]) -> list[float]:
    """Of each output of a program: 0 if it is a constant, 1 if it is affine in the inputs that vary, else more.

    It is read off the steps, not tried out: 1 is certain, and so is its derivative; more may be a form unknown here.
    Of each input is ``given`` 1 if it varies, 0 if it is a constant.
    """
    values = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*[0.0] * len(closed.consts), *given)))

    def read(v: Var | Literal) -> float:
        return 0.0 if isinstance(v, Literal) else values[v]

    for e in closed.jaxpr.eqns:
        values.update(zip(e.outvars, _degrees(e, [read(v) for v in e.invars])))
    return [read(v) for v in closed.jaxpr.outvars]


def _degrees(e: JaxprEqn, a: list[float]) -> list[float]:
    name = e.primitive.name
    linear = _LINEAR_IN.get(name, slice(0))
    if name == "custom_linear_solve":
        linear = slice(sum(e.params["const_lengths"]), None)
    elif any(a) and not name.startswith("custom") and (inner := called(e)):  # a custom derivative may be another
        return degrees(inner, a)
    elif name == "convert_element_type" and jnp.issubdtype(e.params["new_dtype"], jnp.floating):
        linear = slice(None)
    alone = sum(a[linear]) == sum(a)
    found = sum(a) if name in ("mul", "dot_general") or not any(a) else max(a[linear]) if alone else math.inf
    return [found] * len(e.outvars)


def evaluate(closed: ClosedJaxpr, arguments: Sequence[np.ndarray], algebra: Algebra) -> list[np.ndarray]:
    """The outputs of a program, as arrays of numbers of the algebra, from arguments that are such arrays.

    Raises:
        UnsupportedError: an operation that the algebra has not.
    """
    constants = [_constants(c, algebra) for c in closed.consts]
    values = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*constants, *arguments)))

    def read(v: Var | Literal) -> np.ndarray:
        return _constants(v.val, algebra) if isinstance(v, Literal) else values[v]

    for e in closed.jaxpr.eqns:
        values.update(zip(e.outvars, _apply(e, [read(v) for v in e.invars], algebra)))
    return [read(v) for v in closed.jaxpr.outvars]


def _apply(e: JaxprEqn, a: list[np.ndarray], algebra: Algebra) -> list[np.ndarray]:
    name, p, functions = e.primitive.name, e.params, algebra.functions
    if inner := _inner(e):
        if name == "custom_linear_solve":
            lengths = p["const_lengths"]
            first = lengths.matvec + lengths.vecmat
            a = [*a[first : first + lengths.solve], *a[sum(lengths) :]]
        return evaluate(inner, a, algebra)
    if _unlike_numbers(e) or not any(name in known for known in (functions, _MOVES, _SUMS, ("iota",))):
        raise UnsupportedError(name)
    if name == "iota":
        return [_constants(np.indices(p["shape"], p["dtype"])[p["dimension"]], algebra)]
    if name == "reduce_sum":
        return [_total(functions["add"], a[0], p["axes"])]
    if name == "dot_general":
        return [_product(functions, a[0], a[1], p["dimension_numbers"])]
    if name in _PARAMETERS:
        return [_each(lambda v: functions[name](v, p[_PARAMETERS[name]]), a[0])]
    if name in functions:
        return [_each(functions[name], *a)]
    moved = _MOVES[name](p, *a)
    return moved if isinstance(moved, list) else [moved]


def _objects(shape: tuple[int, ...], element: Callable[[tuple[int, ...]], Number]) -> np.ndarray:
    out = np.empty(shape, object)
    for index in np.ndindex(*shape):
        out[index] = element(index)
    return out


def _constants(value: ArrayLike, algebra: Algebra) -> np.ndarray:
    a = np.asarray(value)
    return _objects(a.shape, lambda index: algebra.constant(a[index]))


def _each(f: Callable[..., Number], *arrays: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
    np.frompyfunc(f, len(arrays), 1)(*arrays, out=out)
    return out


def _total(add: Callable[[Number, Number], Number], a: np.ndarray, axes: Iterable[SupportsIndex]) -> np.ndarray:
    for axis in sorted(map(int, axes), reverse=True):
        a = np.frompyfunc(add, 2, 1).reduce(a, axis, keepdims=True).reshape(np.delete(a.shape, axis))
    return a


def _product(
    functions: Mapping[str, Callable], a: np.ndarray, b: np.ndarray, dimensions: Sequence[Sequence[Sequence[int]]]
) -> np.ndarray:
    (left, right), (lead, leads) = dimensions
    depth, inner = len(lead), math.prod(a.shape[axis] for axis in left)
    a = np.moveaxis(a, (*lead, *left), (*range(depth), *range(-len(left), 0)))
    b = np.moveaxis(b, (*leads, *right), range(depth + len(right)))
    batch, rows, columns = a.shape[:depth], a.shape[depth : a.ndim - len(left)], b.shape[depth + len(right) :]
    a, b = a.reshape(math.prod(batch), -1, inner), b.reshape(math.prod(batch), inner, -1)
    products = _each(functions["mul"], a[..., None], b[:, None])
    return _total(functions["add"], products, (2,)).reshape((*batch, *rows, *columns))


def _is(v: Number, value: float) -> bool:
    return isinstance(v, np.generic | float | int) and bool(v == value)


def _add(a: Number, b: Number) -> Number:
    return b if _is(a, 0) else a if _is(b, 0) else a + b


def _multiply(a: Number, b: Number) -> Number:
    if _is(a, 0) or _is(b, 0):
        return np.float64(0.0)
    return b if _is(a, 1) else a if _is(b, 1) else a * b


def _divide(a: Number, b: Number) -> Number:
    return np.float64(0.0) if _is(a, 0) else a if _is(b, 1) else a / b


def _circular(name: str, v: Number) -> Number:
    """sin, cos or tan; JAX's where they are quick: in float32, and off the CPU."""
    if getattr(v, "dtype", None) != jnp.float64 or jax.default_backend() != "cpu" or not hasattr(v, "aval"):
        return getattr(jnp, name)(v)
    s, c = stored(jnp.stack(sincos(v)))
    return {"sin": s, "cos": c, "tan": s / c}[name]


def _same(a: Number) -> Number:
    return a


_ARRAYS = Algebra(
    _same,
    {
        **{"add": _add, "add_any": _add, "sub": jnp.subtract, "mul": _multiply, "div": _divide},
        **{"neg": jnp.negative, "pow": jnp.power, "integer_pow": operator.pow, "square": jnp.square},
        **{name: functools.partial(_circular, name) for name in ("sin", "cos", "tan")},
        **{"asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan, "atan2": jnp.arctan2},
        **{"sinh": jnp.sinh, "cosh": jnp.cosh, "tanh": jnp.tanh, "logistic": jax.nn.sigmoid},
        **{"exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p},
        **{"sqrt": jnp.sqrt, "rsqrt": lambda a: 1 / jnp.sqrt(a), "abs": jnp.abs, "sign": jnp.sign},
        **{"floor": jnp.floor, "round": jnp.round, "max": jnp.maximum, "min": jnp.minimum},
        **{"lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal},
        **{"eq": jnp.equal, "ne": jnp.not_equal},
        **{"and": jnp.bitwise_and, "or": jnp.bitwise_or, "not": jnp.bitwise_not},
        "select_n": lambda which, no, yes: jnp.where(which, yes, no),
        "clamp": lambda low, a, high: jnp.clip(a, low, high),
        "convert_element_type": lambda a, dtype: a.astype(dtype) if hasattr(a, "astype") else a,
        **{"stop_gradient": _same, "copy": _same, "copy_p": _same},
    },
)


def componentwise(fn: Callable[..., Array], *examples: PyTree) -> Callable[..., Array]:
    """``fn`` for many problems at once, the problems on the last axis.

    Args:
        fn: from pytrees of arrays to one array, for one problem.
        examples: arguments of one problem, or their shapes (``jax.ShapeDtypeStruct``).

    Returns:
        The function of the same arguments with one more axis at the end of each array, on which those of
        length 1 are broadcast. Where ``fn`` loops, branches or does what has no elementwise form, its ``vmap``.

    A constant 0 times anything, or over anything, is 0, also where IEEE has NaN: 0·inf, 0·NaN, 0/0. So what
    overflows or is undefined is heard of by its own components and not by those that multiply it by a constant
    0. No divergence of a simulation hides behind that: a state that is inf or NaN stays so, because the step
    x + h k and the cost xᵀQx are ordinary arithmetic; only the states that have nothing to do with it stay finite.
    A term that is switched off, ``0.0 * jnp.exp(400 * x)``, is off here even where it would have overflowed.
    """
    closed = jax.make_jaxpr(fn)(*examples)

    def many(*args: PyTree[Array]) -> Array:
        leaves = jax.tree.leaves(args)
        width = max(a.shape[-1] for a in leaves)
        try:
            (out,) = evaluate(closed, [_objects(a.shape[:-1], a.__getitem__) for a in leaves], _ARRAYS)
        except UnsupportedError:
            args = jax.tree.map(lambda a: jnp.broadcast_to(a, (*a.shape[:-1], width)), args)
            return jax.vmap(fn, in_axes=-1, out_axes=-1)(*args)
        dtype = closed.out_avals[0].dtype
        flat = [jnp.broadcast_to(jnp.asarray(v, dtype), (width,)) for v in out.ravel()]
        return jnp.stack(flat).reshape(*out.shape, width)

    return many


# π/2 in parts of 33 bits, whose products with integers below 2²⁰ are exact
_PARTS = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21)
# minimax polynomials on [−π/4, π/4]
_SIN = (
    *(1.58962301576546568060e-10, -2.50507477628578072866e-8, 2.75573136213857245213e-6),
    *(-1.98412698295895385996e-4, 8.33333333332211858878e-3, -1.66666666666666307295e-1),
)
_COS = (
    *(-1.13585365213876817300e-11, 2.08757008419747316778e-9, -2.75573141792967388112e-7),
    *(2.48015872888517045348e-5, -1.38888888888730564116e-3, 4.16666666666665929218e-2),
)


def sincos(x: Float64[Array, " *shape"]) -> tuple[Float64[Array, " *shape"], Float64[Array, " *shape"]]:
    """sin x and cos x of float64 by a polynomial that XLA vectorises; jnp's own are thirty times slower on a CPU.

    Right to 3e-16 for |x| ≤ 10⁶; from 10⁹ on, where no digit would be right, NaN: a loop that diverged shows it.
    Sources: W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), chapter 8, for the
    method; the parts of π/2 as in Sun's fdlibm, e_rem_pio2.c, the coefficients as in S. L. Moshier's Cephes, sin.c.
    """
    turns = jnp.round(x * (2 / jnp.pi))
    r = ((x - turns * _PARTS[0]) - turns * _PARTS[1]) - turns * _PARTS[2]
    square = r * r
    s = r + r * square * jnp.polyval(jnp.asarray(_SIN), square, unroll=6)
    c = 1 - square / 2 + square * square * jnp.polyval(jnp.asarray(_COS), square, unroll=6)
    quarter = turns - 4 * jnp.floor(turns / 4)
    odd = (quarter == 1) | (quarter == 3)
    sine, cosine = jnp.where(odd, c, s), jnp.where(odd, s, c)
    sine, cosine = (jnp.where(jnp.abs(x) < 1e9, a, jnp.nan) for a in (sine, cosine))
    return jnp.where(quarter >= 2, -sine, sine), jnp.where((quarter == 1) | (quarter == 2), -cosine, cosine)
