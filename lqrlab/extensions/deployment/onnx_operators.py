"""The operators of ONNX that do what JAX's primitives do."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lqrlab.compute import extras
from lqrlab.extensions.deployment.onnx_graph import BATCHES, Graph, Multiple, TracedEquation, Value, stack

OPSET = 18
"""Version of ONNX's operators."""

# The table ----------------------------------------------------------------------------------------------------

_ELEMENTWISE = {
    **{"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "neg": "Neg"},
    **{"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "pow": "Pow", "abs": "Abs", "sign": "Sign", "erf": "Erf"},
    **{"floor": "Floor", "ceil": "Ceil", "tanh": "Tanh", "logistic": "Sigmoid", "atan": "Atan"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "sinh": "Sinh", "cosh": "Cosh"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "reduce_precision"), "Identity"),
}  # primitives whose operator takes the same arguments


def _moved(graph: Graph, step: TracedEquation) -> str:
    return graph.reshaped(step.values[0], step.out[0])


def _broadcast(graph: Graph, step: TracedEquation) -> str:
    axes, out = step.params["broadcast_dimensions"], step.out[0]
    sizes = [1] * len(out)
    for axis, size in zip(axes, step.shapes[0]):
        sizes[axis] = size
    a = step.values[0] if tuple(sizes) == step.shapes[0] else graph.reshaped(step.values[0], tuple(sizes))
    return graph.add("Expand", a, graph.sizes(out))


def _power(graph: Graph, step: TracedEquation) -> str:
    a, y = step.values[0], step.params.get("y", 2)
    product = a
    for _ in range(abs(y) - 1):
        product = graph.add("Mul", product, a)
    return product if y > 0 else graph.add("Reciprocal", product)


def _asinh(graph: Graph, step: TracedEquation) -> str:
    """In double precision, for which runtimes have no operator, sign(a) log(|a| + √(a² + 1))."""
    a = step.values[0]
    if step.dtypes[0] != np.float64:
        return graph.add("Asinh", a)
    size = graph.add("Abs", a)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", a, a), np.float64(1)))
    return graph.add("Mul", graph.add("Sign", a), graph.add("Log", graph.add("Add", size, root)))


def _divided(graph: Graph, step: TracedEquation) -> str:
    if not np.issubdtype(step.dtypes[0], np.floating):
        raise ValueError("network: whole numbers are divided in it, which ONNX rounds in another way")
    return graph.add("Div", *step.values)


def _cast(graph: Graph, a: Value, dtype: Any) -> str:
    onnx = extras.load("onnx", "deployment", "to_onnx")
    return graph.add("Cast", a, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _logical(operator: str) -> Callable[[Graph, TracedEquation], str]:
    def made(graph: Graph, step: TracedEquation) -> str:
        if step.dtypes[0].kind != "b":
            raise ValueError(f"network: bits of whole numbers are combined in it ({operator}), which is not translated")
        return graph.add(operator, *step.values)

    return made


def _selected(graph: Graph, step: TracedEquation) -> str:
    which, *cases = step.values
    if step.given[0].kind != "b":
        raise ValueError("network: expected a choice between two, by a truth value, but found one among several")
    return graph.add("Where", which, cases[1], cases[0])


def _product(graph: Graph, step: TracedEquation) -> str:
    """Batched matrix product, after the axes are brought into its order."""
    (left, right), (lead, leads) = step.params["dimension_numbers"]
    sides = []
    for a, shape, inner, outer, first in zip(step.values, step.shapes, (left, right), (lead, leads), (False, True)):
        free = [i for i in range(len(shape)) if i not in (*inner, *outer)]
        order = [*outer, *(inner if first else free), *(free if first else inner)]
        if order != sorted(order):
            a = graph.add("Transpose", a, perm=order)
        rows, columns = (_total([shape[i] for i in axes]) for axes in ((inner, free) if first else (free, inner)))
        sizes = (*(shape[i] for i in outer), rows, columns)
        sides.append(a if sizes == tuple(shape[i] for i in order) else graph.reshaped(a, sizes))
    product = graph.add("MatMul", *sides)
    straight = len(step.out[0]) == len(lead) + 2
    return product if straight else graph.reshaped(product, step.out[0])


def _total(sizes: Sequence[int]) -> int:
    product = math.prod(int(s) for s in sizes)
    return Multiple(product) if any(isinstance(s, Multiple) for s in sizes) else product


def _reduced(operator: str) -> Callable[[Graph, TracedEquation], str]:
    def made(graph: Graph, step: TracedEquation) -> str:
        a, truth = step.values[0], step.dtypes[0].kind == "b"
        a = _cast(graph, a, np.int32) if truth else a
        found = graph.add(operator, a, graph.whole(*step.params["axes"]), keepdims=0)
        return _cast(graph, found, bool) if truth else found

    return made


def _running(operator: str) -> Callable[[Graph, TracedEquation], str]:
    """Of what came before, along one axis."""

    def made(graph: Graph, step: TracedEquation) -> str:
        axis, length = step.params["axis"], step.shapes[0][step.params["axis"]]
        rows = [graph.cut(step.values[0], axis, t, t + 1) for t in range(length)]
        rows = rows[::-1] if step.params["reverse"] else rows
        found = [rows[0]]
        for row in rows[1:]:
            found.append(graph.add(operator, found[-1], row))
        return graph.add("Concat", *(found[::-1] if step.params["reverse"] else found), axis=axis)

    return made


def _sliced(graph: Graph, step: TracedEquation) -> str:
    p, a = step.params, step.values[0]
    strides = p["strides"] or (1,) * len(p["start_indices"])
    for axis, (start, stop, stride) in enumerate(zip(p["start_indices"], p["limit_indices"], strides)):
        size = step.shapes[0][axis]
        if isinstance(size, Multiple):
            if (start, stop, stride) != (0, int(size) * BATCHES[0], 1):
                raise ValueError("network: it takes part of the batch, so that its rows are no loops of their own")
        elif (start, stop, stride) != (0, size, 1):
            a = graph.add("Slice", a, *(graph.whole(v) for v in (start, stop, axis, stride)))
    return a if isinstance(a, str) else graph.add("Identity", a)


def _taken(graph: Graph, step: TracedEquation) -> str:
    """``dynamic_slice``: the start is known, or is clamped while the graph runs."""
    a, starts = step.values[0], step.values[1:]
    for axis, (start, size, cut) in enumerate(zip(starts, step.shapes[0], step.out[0])):
        if size == cut and isinstance(size, Multiple) == isinstance(cut, Multiple):
            continue
        at = _cast(graph, start, np.int64) if isinstance(start, str) else int(start)
        if isinstance(at, int):
            at = min(max(at, 0), size - cut)
            a = graph.cut(a, axis, at, at + cut)
            continue
        at = graph.add("Max", graph.add("Min", graph.reshaped(at, (1,)), graph.whole(size - cut)), graph.whole(0))
        a = graph.add("Slice", a, at, graph.add("Add", at, graph.whole(cut)), graph.whole(axis))
    return a if isinstance(a, str) else graph.add("Identity", a)


def _updated(graph: Graph, step: TracedEquation) -> str:
    """``dynamic_update_slice`` at a known place, along one axis."""
    a, part, *starts = step.values
    cut = [i for i, (s, c) in enumerate(zip(*step.shapes[:2])) if s != c]
    if len(cut) != 1 or isinstance(starts[cut[0]], str):
        raise ValueError("network: it writes into an array at a place that is only known while it runs")
    axis, size, new = cut[0], step.shapes[0][cut[0]], step.shapes[1][cut[0]]
    at = min(max(int(starts[axis]), 0), size - new)
    before, after = ([graph.cut(a, axis, *ends)] if ends[0] < ends[1] else [] for ends in ((0, at), (at + new, size)))
    return graph.add("Concat", *before, part, *after, axis=axis)


def _padded(graph: Graph, step: TracedEquation) -> str:
    config = [tuple(map(int, widths)) for widths in step.params["padding_config"]]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise ValueError("network: it pads with negative widths, or between elements, which is not translated")
    widths = graph.whole(*(low for low, _, _ in config), *(high for _, high, _ in config))
    return graph.add("Pad", step.values[0], widths, step.values[1])


def _largest(graph: Graph, step: TracedEquation) -> str:
    (axis,) = step.params["axes"]
    return _cast(graph, graph.add("ArgMax", step.values[0], axis=axis, keepdims=0), step.dtypes[0])


def _split(graph: Graph, step: TracedEquation) -> list[str]:
    sizes, axis = step.params["sizes"], step.params["axis"]
    ends = np.cumsum(sizes)
    return [graph.cut(step.values[0], axis, int(end - size), int(end)) for end, size in zip(ends, sizes)]


def _finite(graph: Graph, step: TracedEquation) -> str:
    a = step.values[0]
    return graph.add("Not", graph.add("Or", graph.add("IsNaN", a), graph.add("IsInf", a)))


def _rounded(graph: Graph, step: TracedEquation) -> str:
    if step.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise ValueError("network: it rounds halves away from zero, which is not translated; round with jnp.round")
    return graph.add("Round", step.values[0])


def _reversed(graph: Graph, step: TracedEquation) -> str:
    a = step.values[0]
    for axis in step.params["dimensions"]:
        a = graph.add("Slice", a, *(graph.whole(v) for v in (-1, -(2**62), axis, -1)))
    return a


def _same(operator: str) -> Callable[[Graph, TracedEquation], str]:
    return lambda graph, step: graph.add(operator, *step.values)


OPERATORS: Mapping[str, Callable[[Graph, TracedEquation], Any]] = {
    **{name: _same(operator) for name, operator in _ELEMENTWISE.items()},
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _moved),
    "broadcast_in_dim": _broadcast,
    "transpose": lambda g, s: g.add("Transpose", s.values[0], perm=s.params["permutation"]),
    "concatenate": lambda g, s: g.add("Concat", *s.values, axis=s.params["dimension"]),
    "stack": lambda g, s: stack(g, s.values, s.params["axis"]),
    "asinh": _asinh,
    "div": _divided,
    **dict.fromkeys(("integer_pow", "square"), _power),
    "rsqrt": lambda g, s: g.add("Reciprocal", g.add("Sqrt", s.values[0])),
    "ne": lambda g, s: g.add("Not", g.add("Equal", *s.values)),
    "and": _logical("And"),
    "or": _logical("Or"),
    "xor": _logical("Xor"),
    "not": _logical("Not"),
    "select_n": _selected,
    "clamp": lambda g, s: g.add("Min", g.add("Max", s.values[1], s.values[0]), s.values[2]),
    "convert_element_type": lambda g, s: _cast(g, s.values[0], s.dtypes[0]),
    "dot_general": _product,
    "reduce_sum": _reduced("ReduceSum"),
    **dict.fromkeys(("reduce_max", "reduce_or"), _reduced("ReduceMax")),
    **dict.fromkeys(("reduce_min", "reduce_and"), _reduced("ReduceMin")),
    "reduce_prod": _reduced("ReduceProd"),
    "argmax": _largest,
    "cummax": _running("Max"),
    "cummin": _running("Min"),
    "cumsum": _running("Add"),
    "cumprod": _running("Mul"),
    "slice": _sliced,
    "dynamic_slice": _taken,
    "dynamic_update_slice": _updated,
    "pad": _padded,
    "split": _split,
    "is_finite": _finite,
    "round": _rounded,
    "rev": _reversed,
    "optimization_barrier": lambda g, s: [g.add("Identity", a) for a in s.values],
}
"""Primitives, and what makes the nodes that do the same."""
