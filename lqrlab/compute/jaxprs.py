"""A function of small arrays, evaluated number by number, each number being an array of many problems.

``vmap`` over a function of small vectors and matrices makes arrays ``[problem, 2, 2]``, whose arithmetic a CPU
does piecemeal. Here the function is traced once for one problem and its program is run on components: a
vector of four becomes four arrays ``[problem]``, all arithmetic is elementwise over contiguous memory, and
what is multiplied by a known zero or one is not computed at all.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute.linalg import stored
from lqrlab.compute.trigonometry import sincos

# each works on numbers and on arrays alike
_ELEMENTWISE: dict[str, Callable] = {
    **{"sub": jnp.subtract, "div": jnp.divide, "neg": jnp.negative, "max": jnp.maximum, "min": jnp.minimum},
    **{"exp": jnp.exp, "log": jnp.log, "sqrt": jnp.sqrt, "abs": jnp.abs, "sign": jnp.sign, "tanh": jnp.tanh},
    **{"atan": jnp.arctan, "atan2": jnp.arctan2, "asin": jnp.arcsin, "acos": jnp.arccos, "pow": jnp.power},
    **{
        "sinh": jnp.sinh,
        "cosh": jnp.cosh,
        "logistic": jax.nn.sigmoid,
        "log1p": jnp.log1p,
        "expm1": jnp.expm1,
    },
    **{"lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal, "eq": jnp.equal},
    **{"ne": jnp.not_equal, "and": jnp.bitwise_and, "or": jnp.bitwise_or, "not": jnp.bitwise_not},
    **{"square": jnp.square, "rsqrt": lambda a: 1 / jnp.sqrt(a), "floor": jnp.floor, "round": jnp.round},
    "select_n": lambda which, no, yes: jnp.where(which, yes, no),
    "clamp": lambda low, a, high: jnp.clip(a, low, high),
    **{name: lambda a: a for name in ("stop_gradient", "copy", "copy_p")},
}
_MOVES = {
    *("reshape", "squeeze", "broadcast_in_dim", "slice", "concatenate", "transpose", "rev", "split"),
    *("expand_dims", "stack", "unstack", "pad", "tile"),
}
_INSIDE = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call")


def componentwise(fn: Callable, *examples: Any) -> Callable:
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
    if not _can(closed.jaxpr):
        return _mapped(fn)

    def many(*args: Any) -> Array:
        leaves = jax.tree.leaves(args)
        lanes = max(a.shape[-1] for a in leaves)
        (out,) = _evaluate(closed.jaxpr, closed.consts, [_apart(a, lanes) for a in leaves])
        dtype = closed.out_avals[0].dtype
        flat = [jnp.broadcast_to(jnp.asarray(v, dtype), (lanes,)) for v in out.ravel()]
        return jnp.stack(flat).reshape(*out.shape, lanes)

    many.__name__ = "componentwise"
    return many


def _mapped(fn: Callable) -> Callable:
    def many(*args: Any) -> Array:
        lanes = max(a.shape[-1] for a in jax.tree.leaves(args))
        args = jax.tree.map(lambda a: jnp.broadcast_to(a, (*a.shape[:-1], lanes)), args)
        return jax.vmap(fn, in_axes=-1, out_axes=-1)(*args)

    return many


def _can(jaxpr: Any) -> bool:
    """Whether every step has an elementwise form."""
    known = {
        *_ELEMENTWISE,
        *_MOVES,
        "add",
        "add_any",
        "mul",
        "sin",
        "cos",
        "tan",
        "integer_pow",
        "reduce_sum",
    }
    known |= {"dot_general", "convert_element_type", "iota", *_INSIDE, "custom_linear_solve"}
    for e in jaxpr.eqns:
        if e.primitive.name not in known:
            return False
        if _odd(e):
            return False
        if any(not _can(inner.jaxpr) for inner in _inner(e)):
            return False
    return True


def _odd(e: Any) -> bool:
    """Whether a step means something else here than among numbers that are not whole, not batched, not empty."""
    name, shape = e.primitive.name, getattr(e.invars[0].aval, "shape", ()) if e.invars else ()
    return (
        (name == "div" and not jnp.issubdtype(e.outvars[0].aval.dtype, jnp.inexact))  # it truncates
        or (name == "round" and e.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN)
        or (name == "select_n" and len(e.invars) != 3)
        or (name in ("reduce_sum", "dot_general") and 0 in shape)
        or (name == "dot_general" and bool(e.params["dimension_numbers"][1][0]))
    )


def _inner(e: Any) -> list[Any]:
    if e.primitive.name == "custom_linear_solve":
        return [e.params["jaxprs"].solve]
    return [e.params.get("jaxpr", e.params.get("call_jaxpr"))] if e.primitive.name in _INSIDE else []


def _apart(a: Array, lanes: int) -> np.ndarray:
    """``[…, lanes]`` as an array of arrays ``[lanes or 1]``."""
    out = np.empty(a.shape[:-1], object)
    for index in np.ndindex(*out.shape):
        out[index] = a[index]
    return out


def _constant(a: Any) -> np.ndarray:
    a = np.asarray(a)
    out = np.empty(a.shape, object)
    for index in np.ndindex(*a.shape):
        out[index] = a[index]
    return out


def _evaluate(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    constants = [c if isinstance(c, np.ndarray) and c.dtype == object else _constant(c) for c in constants]
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments)))

    def read(v: Any) -> np.ndarray:
        return _constant(v.val) if hasattr(v, "val") else known[v]

    for e in jaxpr.eqns:
        known.update(zip(e.outvars, _apply(e, [read(v) for v in e.invars])))
    return [read(v) for v in jaxpr.outvars]


def _apply(e: Any, a: list[np.ndarray]) -> list[np.ndarray]:
    name, p = e.primitive.name, e.params
    if name in _INSIDE:
        (inner,) = _inner(e)
        return _evaluate(inner.jaxpr, inner.consts, a)
    if name == "custom_linear_solve":
        lengths, (inner,) = p["const_lengths"], _inner(e)
        first = lengths.matvec + lengths.vecmat
        return _evaluate(inner.jaxpr, inner.consts, [*a[first : first + lengths.solve], *a[sum(lengths) :]])
    if name in ("add", "add_any"):
        return [_each(_add, *a)]
    if name == "mul":
        return [_each(_multiply, *a)]
    if name in ("sin", "cos", "tan"):
        return [_each(functools.partial(_circular, name), a[0])]
    if name == "div":
        return [_each(_divide, *a)]
    if name == "integer_pow":
        return [_each(lambda v: v ** p["y"], a[0])]
    if name == "reduce_sum":
        return [_total(a[0], p["axes"])]
    if name == "dot_general":
        return [_product(a[0], a[1], p["dimension_numbers"][0])]
    if name == "convert_element_type":
        return [_each(lambda v: v.astype(p["new_dtype"]) if hasattr(v, "astype") else v, a[0])]
    if name in _ELEMENTWISE:
        return [_each(_ELEMENTWISE[name], *a)]
    return _moved(e, a)


def _moved(e: Any, a: list[np.ndarray]) -> list[np.ndarray]:
    """What only moves numbers about is done to their places, and the numbers follow."""
    starts = np.concatenate([[0], np.cumsum([v.size for v in a])]).astype(int)
    places = [(s + np.arange(v.size)).reshape(v.shape) for s, v in zip(starts, a)]
    flat = np.concatenate([np.empty(0, object), *(v.ravel() for v in a)])
    with jax.ensure_compile_time_eval():
        out = e.primitive.bind(*(jnp.asarray(q) for q in places), **e.params)
        outs = [np.asarray(v) for v in (out if e.primitive.multiple_results else [out])]
    return [_constant(v) for v in outs] if not a else [_picked(flat, v) for v in outs]


def _picked(flat: np.ndarray, places: np.ndarray) -> np.ndarray:
    return flat[places.ravel()].reshape(places.shape)  # never by a scalar: NumPy would unpack what it finds


def _each(f: Callable, *arrays: np.ndarray) -> np.ndarray:
    out = np.empty(np.broadcast_shapes(*(a.shape for a in arrays)), object)
    full = [np.broadcast_to(a, out.shape) for a in arrays]
    for index in np.ndindex(*out.shape):
        out[index] = f(*(a[index] for a in full))
    return out


def _is(v: Any, value: float) -> bool:
    return isinstance(v, np.generic | float | int) and v == value


def _add(a: Any, b: Any) -> Any:
    return b if _is(a, 0) else a if _is(b, 0) else a + b


def _multiply(a: Any, b: Any) -> Any:
    if _is(a, 0) or _is(b, 0):
        return np.float64(0.0)
    return b if _is(a, 1) else a if _is(b, 1) else a * b


def _divide(a: Any, b: Any) -> Any:
    return np.float64(0.0) if _is(a, 0) else a if _is(b, 1) else a / b


def _circular(name: str, v: Any) -> Any:
    """jnp's own where they are quick: in float32, and off the CPU."""
    if getattr(v, "dtype", None) != jnp.float64 or jax.default_backend() != "cpu" or not hasattr(v, "aval"):
        return {"sin": jnp.sin, "cos": jnp.cos, "tan": jnp.tan}[name](v)
    s, c = stored(jnp.stack(sincos(v)))
    return {"sin": s, "cos": c, "tan": s / c}[name]


def _total(a: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    for axis in sorted(axes, reverse=True):
        a = np.moveaxis(a, axis, 0)
        rows = [a[i : i + 1] for i in range(len(a))]
        a = functools.reduce(lambda x, y: _each(_add, x, y), rows).reshape(a.shape[1:])
    return a


def _product(a: np.ndarray, b: np.ndarray, contracted: Any) -> np.ndarray:
    left, right = contracted
    a, b = np.moveaxis(a, left, range(-len(left), 0)), np.moveaxis(b, right, range(len(right)))
    rows, inner, columns = a.shape[: a.ndim - len(left)], b.shape[: len(right)], b.shape[len(right) :]
    depth = int(np.prod(inner))
    a, b = a.reshape(-1, depth), b.reshape(depth, -1)
    return _total(_each(_multiply, a[:, :, None], b[None]), (1,)).reshape((*rows, *columns))
