"""Programs of JAX as ONNX graphs: one table of primitives and the operators that do the same."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lqrlab.compute import extras

BATCHES = (29, 31)
"""Two sizes of a batch for which a program is traced: sizes that differ are the batch's, or multiples of it.

Both are prime, and so small that no program works them off in blocks.
"""
_UNROLLED = 5000  # steps of loops, in all
OPSET = 18
_INNER = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
_INNER |= {"custom_vjp_call": "call_jaxpr", "custom_vmap_call": "call", "remat2": "jaxpr", "checkpoint": "jaxpr"}


class Multiple(int):
    """A size that is so many times that of the batch."""


Sizes = tuple[int, ...]
Value = Any
"""A NumPy array that is known, or the name of a tensor."""


class Graph:
    """The nodes of a graph while it is made; what nobody reads is left out at the end."""

    def __init__(self, batch: str) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.held: dict[Any, str] = {}
        self.batch = batch  # an input whose first axis is the batch
        self.steps = 0

    def name(self, value: Value) -> str:
        """The tensor of a value; a known one becomes a constant."""
        if isinstance(value, str):
            return value
        return self._constant(np.asarray(value))

    def whole(self, *numbers: int) -> str:
        """The tensor of whole numbers, such as axes."""
        return self._constant(np.array(numbers, np.int64))

    def _constant(self, a: np.ndarray) -> str:
        key = (a.dtype.str, a.shape, a.tobytes())  # axes and bounds come again and again
        name = self.held.setdefault(key, f"c{len(self.held)}")
        self.constants[name] = a
        return name

    def add(self, operator: str, *inputs: Value, outputs: int = 0, **attributes: Any) -> Any:
        """A node; its output, or so many of them."""
        onnx = extras.load("onnx", "deployment", "to_onnx")
        names = [f"t{len(self.nodes)}_{i}" for i in range(max(outputs, 1))]
        self.nodes.append(onnx.helper.make_node(operator, [self.name(a) for a in inputs], names, **attributes))
        return names if outputs else names[0]

    def sizes(self, sizes: Sizes) -> str:
        """The tensor of sizes that only the batch at hand knows."""
        if not any(isinstance(s, Multiple) for s in sizes):
            return self.whole(*sizes)
        batch = self.add("Slice", self.add("Shape", self.batch), self.whole(0), self.whole(1))
        parts = [
            self.add("Mul", batch, self.whole(int(s))) if isinstance(s, Multiple) else self.whole(s) for s in sizes
        ]
        return self.add("Concat", *parts, axis=0)

    def reshaped(self, a: Value, sizes: Sizes) -> str:
        """``a`` in another shape."""
        if sum(isinstance(s, Multiple) for s in sizes) == 1 and 0 not in sizes:
            return self.add("Reshape", a, self.whole(*(-1 if isinstance(s, Multiple) else s for s in sizes)))
        return self.add("Reshape", a, self.sizes(sizes))

    def cut(self, a: Value, axis: int, start: int, stop: int) -> str:
        """``a[start:stop]`` along an axis."""
        return self.add("Slice", a, self.whole(start), self.whole(stop), self.whole(axis))

    def needed(self, outputs: Sequence[str]) -> tuple[list[Any], dict[str, np.ndarray], set[str]]:
        """Nodes, constants, and names that lead to the outputs."""
        read, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if read & set(node.output):
                nodes.append(node)
                read |= set(node.input)
        return nodes[::-1], {k: a for k, a in self.constants.items() if k in read}, read


def sizes_of(one: Any, other: Any) -> Sizes:
    """The shape of a value in two traces, with :class:`Multiple` where it follows the batch."""
    return tuple(_size(a, b) for a, b in zip(np.shape(one), np.shape(other), strict=True))


def _size(a: int, b: int) -> int:
    if a == b:
        return a
    if a * BATCHES[1] != b * BATCHES[0] or a % BATCHES[0]:
        raise ValueError(f"network: a size depends on the batch in another way than as a multiple: {a} and {b}")
    return Multiple(a // BATCHES[0])


class Step:
    """One equation of a program in two traces, with the values of its arguments."""

    def __init__(self, graph: Graph, one: JaxprEqn, other: JaxprEqn, values: Sequence[Value]) -> None:
        self.graph, self.params, self.values, self.primitive = graph, one.params, list(values), one.primitive
        self.avals = [v.aval for v in one.invars]
        self.shapes = [sizes_of(a.aval, b.aval) for a, b in zip(one.invars, other.invars)]
        self.out = [sizes_of(a.aval, b.aval) for a, b in zip(one.outvars, other.outvars)]
        self.dtypes = [v.aval.dtype for v in one.outvars]  # type: ignore[attr-defined]

    def translated(self) -> list[Value]:
        """The values of its outputs."""
        known = not any(isinstance(v, str) for v in self.values)
        if known and not any(isinstance(s, Multiple) for shape in (*self.shapes, *self.out) for s in shape):
            with jax.ensure_compile_time_eval():
                found = self.primitive.bind(*self.values, **self.params)
            return [np.asarray(a) for a in (found if self.primitive.multiple_results else [found])]
        name = self.primitive.name
        if name in ELEMENTWISE:
            return [self.graph.add(ELEMENTWISE[name], *self.values)]
        if name not in OPERATORS:
            raise ValueError(
                f"network: ONNX has no operator for JAX's {name}, which its program contains; export it with "
                "deployment.to_stablehlo, which takes all of JAX, or write the network without it"
            )
        made = OPERATORS[name](self.graph, self)
        return made if isinstance(made, list) else [made]


def translate(graph: Graph, one: ClosedJaxpr, other: ClosedJaxpr, arguments: Sequence[Value]) -> list[Value]:
    """The outputs of a program that was traced for both of :data:`BATCHES`."""
    for a, b in zip(one.consts, other.consts, strict=True):
        if np.shape(a) != np.shape(b):
            raise ValueError("network: it makes an array of the batch's size outside of JAX; make it with jax.numpy")
    return _run(graph, one.jaxpr, other.jaxpr, [np.asarray(c) for c in one.consts], arguments)


def _run(graph: Graph, one: Jaxpr, other: Jaxpr, constants: Sequence[Value], arguments: Sequence[Value]) -> list[Value]:
    values: dict[Any, Value] = dict(zip((*one.constvars, *one.invars), (*constants, *arguments), strict=True))

    def read(v: Any) -> Value:
        return np.asarray(v.val, v.aval.dtype) if isinstance(v, Literal) else values[v]

    same = [e.primitive for e in one.eqns] == [e.primitive for e in other.eqns]
    if not same:
        raise ValueError("network: expected one program for all sizes of a batch, but found several")
    for e, f in zip(one.eqns, other.eqns):
        given, name = [read(v) for v in e.invars], e.primitive.name
        if name in _INNER:
            inner = [g.params[_INNER[name]] for g in (e, f)]
            outs = _nested(graph, inner[0], inner[1], given)
        elif name == "scan":
            outs = _unrolled(graph, e, f, given)
        elif name == "cond":
            outs = _chosen(graph, e, f, given)
        else:
            outs = Step(graph, e, f, given).translated()
        values.update(zip(e.outvars, outs, strict=True))
    return [read(v) for v in one.outvars]


def _nested(graph: Graph, one: Any, other: Any, given: Sequence[Value]) -> list[Value]:
    if isinstance(one, ClosedJaxpr):
        return translate(graph, one, other, given)
    return _run(graph, one, other, [], given)


def _unrolled(graph: Graph, e: JaxprEqn, f: JaxprEqn, given: Sequence[Value]) -> list[Value]:
    """A loop of known length, step by step: what its counter decides is known then."""
    length, fixed, carried = (e.params[k] for k in ("length", "num_consts", "num_carry"))
    graph.steps += length
    if graph.steps > _UNROLLED:
        raise ValueError(f"network: expected loops of at most {_UNROLLED} steps in all; shorten its horizon or window")
    constants, carry, rows = given[:fixed], list(given[fixed : fixed + carried]), given[fixed + carried :]
    shapes = [sizes_of(v.aval, w.aval)[1:] for v, w in zip(e.invars[fixed + carried :], f.invars[fixed + carried :])]
    made: list[list[Value]] = []
    for t in range(length)[:: -1 if e.params["reverse"] else 1]:
        now = [
            graph.reshaped(graph.cut(a, 0, t, t + 1), shape) if isinstance(a, str) else a[t]
            for a, shape in zip(rows, shapes)
        ]
        outs = translate(graph, e.params["jaxpr"], f.params["jaxpr"], [*constants, *carry, *now])
        carry = outs[:carried]
        made.append(outs[carried:])
    stacked = []
    for outs in zip(*(made[::-1] if e.params["reverse"] else made)):
        known = not any(isinstance(a, str) for a in outs)
        stacked.append(np.stack(outs) if known else _stack(graph, outs, 0))
    return [*carry, *stacked]


def _chosen(graph: Graph, e: JaxprEqn, f: JaxprEqn, given: Sequence[Value]) -> list[Value]:
    """A branch that is known; else all are computed, and one is chosen."""
    which, rest = given[0], given[1:]
    branches = list(zip(e.params["branches"], f.params["branches"]))
    if not isinstance(which, str):
        return translate(graph, *branches[int(np.clip(which, 0, len(branches) - 1))], rest)
    outs, *others = (translate(graph, *branch, rest) for branch in branches)
    for i, more in enumerate(others, 1):
        here = graph.add("GreaterOrEqual", which, np.asarray(i, e.invars[0].aval.dtype))  # type: ignore[attr-defined]
        outs = [a if a is b else graph.add("Where", here, b, a) for a, b in zip(outs, more)]
    return outs


def _stack(graph: Graph, values: Sequence[Value], axis: int) -> str:
    return graph.add("Concat", *(graph.add("Unsqueeze", a, graph.whole(axis)) for a in values), axis=axis)


# The table ----------------------------------------------------------------------------------------------------

ELEMENTWISE = {
    **{"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "max": "Max", "min": "Min", "neg": "Neg"},
    **{"exp": "Exp", "log": "Log", "sqrt": "Sqrt", "pow": "Pow", "abs": "Abs", "sign": "Sign", "erf": "Erf"},
    **{"floor": "Floor", "ceil": "Ceil", "tanh": "Tanh", "logistic": "Sigmoid", "atan": "Atan"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "sinh": "Sinh", "cosh": "Cosh"},
    **{"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "reduce_precision"), "Identity"),
}
"""Primitives whose operator takes the same arguments."""


def _moved(graph: Graph, step: Step) -> str:
    return graph.reshaped(step.values[0], step.out[0])


def _broadcast(graph: Graph, step: Step) -> str:
    axes, out = step.params["broadcast_dimensions"], step.out[0]
    sizes = [1] * len(out)
    for axis, size in zip(axes, step.shapes[0]):
        sizes[axis] = size
    a = step.values[0] if tuple(sizes) == step.shapes[0] else graph.reshaped(step.values[0], tuple(sizes))
    return graph.add("Expand", a, graph.sizes(out))


def _power(graph: Graph, step: Step) -> str:
    a, y = step.values[0], step.params.get("y", 2)
    product = a
    for _ in range(abs(y) - 1):
        product = graph.add("Mul", product, a)
    return product if y > 0 else graph.add("Reciprocal", product)


def _asinh(graph: Graph, step: Step) -> str:
    """In double precision, for which runtimes have no operator, sign(a) log(|a| + √(a² + 1))."""
    a = step.values[0]
    if step.dtypes[0] != np.float64:
        return graph.add("Asinh", a)
    size = graph.add("Abs", a)
    root = graph.add("Sqrt", graph.add("Add", graph.add("Mul", a, a), np.float64(1)))
    return graph.add("Mul", graph.add("Sign", a), graph.add("Log", graph.add("Add", size, root)))


def _divided(graph: Graph, step: Step) -> str:
    if not np.issubdtype(step.dtypes[0], np.floating):
        raise ValueError("network: whole numbers are divided in it, which ONNX rounds in another way")
    return graph.add("Div", *step.values)


def _cast(graph: Graph, a: Value, dtype: Any) -> str:
    onnx = extras.load("onnx", "deployment", "to_onnx")
    return graph.add("Cast", a, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _logical(operator: str) -> Callable[[Graph, Step], str]:
    def made(graph: Graph, step: Step) -> str:
        if step.dtypes[0].kind != "b":
            raise ValueError(f"network: bits of whole numbers are combined in it ({operator}), which is not translated")
        return graph.add(operator, *step.values)

    return made


def _selected(graph: Graph, step: Step) -> str:
    which, *cases = step.values
    if step.avals[0].dtype.kind != "b":
        raise ValueError("network: expected a choice between two, by a truth value, but found one among several")
    return graph.add("Where", which, cases[1], cases[0])


def _product(graph: Graph, step: Step) -> str:
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


def _reduced(operator: str) -> Callable[[Graph, Step], str]:
    def made(graph: Graph, step: Step) -> str:
        a, truth = step.values[0], step.dtypes[0].kind == "b"
        a = _cast(graph, a, np.int32) if truth else a
        found = graph.add(operator, a, graph.whole(*step.params["axes"]), keepdims=0)
        return _cast(graph, found, bool) if truth else found

    return made


def _running(operator: str) -> Callable[[Graph, Step], str]:
    """Of what came before, along one axis."""

    def made(graph: Graph, step: Step) -> str:
        axis, length = step.params["axis"], step.shapes[0][step.params["axis"]]
        rows = [graph.cut(step.values[0], axis, t, t + 1) for t in range(length)]
        rows = rows[::-1] if step.params["reverse"] else rows
        found = [rows[0]]
        for row in rows[1:]:
            found.append(graph.add(operator, found[-1], row))
        return graph.add("Concat", *(found[::-1] if step.params["reverse"] else found), axis=axis)

    return made


def _sliced(graph: Graph, step: Step) -> str:
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


def _taken(graph: Graph, step: Step) -> str:
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


def _updated(graph: Graph, step: Step) -> str:
    """``dynamic_update_slice`` at a known place, along one axis."""
    a, part, *starts = step.values
    cut = [i for i, (s, c) in enumerate(zip(*step.shapes[:2])) if s != c]
    if len(cut) != 1 or isinstance(starts[cut[0]], str):
        raise ValueError("network: it writes into an array at a place that is only known while it runs")
    axis, size, new = cut[0], step.shapes[0][cut[0]], step.shapes[1][cut[0]]
    at = min(max(int(starts[axis]), 0), size - new)
    before, after = ([graph.cut(a, axis, *ends)] if ends[0] < ends[1] else [] for ends in ((0, at), (at + new, size)))
    return graph.add("Concat", *before, part, *after, axis=axis)


def _padded(graph: Graph, step: Step) -> str:
    config = [tuple(map(int, widths)) for widths in step.params["padding_config"]]
    if any(low < 0 or high < 0 or inner for low, high, inner in config):
        raise ValueError("network: it pads with negative widths, or between elements, which is not translated")
    widths = graph.whole(*(low for low, _, _ in config), *(high for _, high, _ in config))
    return graph.add("Pad", step.values[0], widths, step.values[1])


def _largest(graph: Graph, step: Step) -> str:
    (axis,) = step.params["axes"]
    return _cast(graph, graph.add("ArgMax", step.values[0], axis=axis, keepdims=0), step.dtypes[0])


def _split(graph: Graph, step: Step) -> list[str]:
    sizes, axis = step.params["sizes"], step.params["axis"]
    ends = np.cumsum(sizes)
    return [graph.cut(step.values[0], axis, int(end - size), int(end)) for end, size in zip(ends, sizes)]


def _finite(graph: Graph, step: Step) -> str:
    a = step.values[0]
    return graph.add("Not", graph.add("Or", graph.add("IsNaN", a), graph.add("IsInf", a)))


def _rounded(graph: Graph, step: Step) -> str:
    if step.params["rounding_method"] != jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        raise ValueError("network: it rounds halves away from zero, which is not translated; round with jnp.round")
    return graph.add("Round", step.values[0])


def _reversed(graph: Graph, step: Step) -> str:
    a = step.values[0]
    for axis in step.params["dimensions"]:
        a = graph.add("Slice", a, *(graph.whole(v) for v in (-1, -(2**62), axis, -1)))
    return a


OPERATORS: Mapping[str, Callable[[Graph, Step], Any]] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _moved),
    "broadcast_in_dim": _broadcast,
    "transpose": lambda g, s: g.add("Transpose", s.values[0], perm=s.params["permutation"]),
    "concatenate": lambda g, s: g.add("Concat", *s.values, axis=s.params["dimension"]),
    "stack": lambda g, s: _stack(g, s.values, s.params["axis"]),
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
    "copy_to_host_async": lambda g, s: list(s.values),
}
"""Primitives whose arguments or parameters have to be put in another way."""
