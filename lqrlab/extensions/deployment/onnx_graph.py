"""Programs of JAX as ONNX graphs: calls written out, loops unrolled, what is known computed, the batch left open."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lqrlab.compute import extras, jaxprs

BATCHES = (29, 31)
"""Two sizes of a batch for which a program is traced: sizes that differ are the batch's, or multiples of it.

Both are prime, and so small that no program works them off in blocks.
"""
_UNROLLED = 5000  # steps of loops, in all


class Multiple(int):
    """A size that is so many times that of the batch."""


Sizes = tuple[int, ...]
Value = Any
"""A NumPy array that is known, or the name of a tensor."""


class Graph:
    """The nodes of a graph while it is made; what nobody reads is left out at the end."""

    def __init__(self, batch: str, table: Mapping[str, Callable[["Graph", "TracedEquation"], Any]]) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.held: dict[Any, str] = {}
        self.table = table
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


class TracedEquation:
    """One equation of a program in two traces, with the values of its arguments."""

    def __init__(self, graph: Graph, one: JaxprEqn, other: JaxprEqn, values: Sequence[Value]) -> None:
        self.graph, self.params, self.values, self.primitive = graph, one.params, list(values), one.primitive
        avals: list[Any] = [v.aval for v in (*one.invars, *one.outvars)]
        self.given, self.dtypes = [a.dtype for a in avals[: len(values)]], [a.dtype for a in avals[len(values) :]]
        self.shapes = [sizes_of(a.aval, b.aval) for a, b in zip(one.invars, other.invars)]
        self.out = [sizes_of(a.aval, b.aval) for a, b in zip(one.outvars, other.outvars)]

    def translated(self) -> list[Value]:
        """The values of its outputs."""
        known = not any(isinstance(v, str) for v in self.values)
        if known and not any(isinstance(s, Multiple) for shape in (*self.shapes, *self.out) for s in shape):
            with jax.ensure_compile_time_eval():
                found = self.primitive.bind(*self.values, **self.params)
            return [np.asarray(a) for a in (found if self.primitive.multiple_results else [found])]
        name = self.primitive.name
        if name not in self.graph.table:
            raise ValueError(
                f"network: ONNX has no operator for JAX's {name}, which its program contains; export it with "
                "deployment.to_stablehlo, which takes all of JAX, or write the network without it"
            )
        made = self.graph.table[name](self.graph, self)
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
        aval: Any = v.aval
        return np.asarray(v.val, aval.dtype) if isinstance(v, Literal) else values[v]

    same = [e.primitive for e in one.eqns] == [e.primitive for e in other.eqns]
    if not same:
        raise ValueError("network: expected one program for all sizes of a batch, but found several")
    for e, f in zip(one.eqns, other.eqns):
        given, name = [read(v) for v in e.invars], e.primitive.name
        if jaxprs.called(e) is not None:
            outs = _nested(graph, jaxprs.called(e), jaxprs.called(f), given)
        elif name == "scan":
            outs = _unrolled(graph, e, f, given)
        elif name == "cond":
            outs = _chosen(graph, e, f, given)
        else:
            outs = TracedEquation(graph, e, f, given).translated()
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
    stacked: list[Value] = []
    for column in zip(*(made[::-1] if e.params["reverse"] else made)):
        known = not any(isinstance(a, str) for a in column)
        stacked.append(np.stack(column) if known else stack(graph, column, 0))
    return [*carry, *stacked]


def _chosen(graph: Graph, e: JaxprEqn, f: JaxprEqn, given: Sequence[Value]) -> list[Value]:
    """A branch that is known; else all are computed, and one is chosen."""
    which, rest = given[0], given[1:]
    branches = list(zip(e.params["branches"], f.params["branches"]))
    if not isinstance(which, str):
        return translate(graph, *branches[int(np.clip(which, 0, len(branches) - 1))], rest)
    outs, *others = (translate(graph, *branch, rest) for branch in branches)
    for i, more in enumerate(others, 1):
        here = graph.add("GreaterOrEqual", which, np.asarray(i, np.int32))
        outs = [a if a is b else graph.add("Where", here, b, a) for a, b in zip(outs, more)]
    return outs


def stack(graph: Graph, values: Sequence[Value], axis: int) -> str:
    """Values along a new axis."""
    return graph.add("Concat", *(graph.add("Unsqueeze", a, graph.whole(axis)) for a in values), axis=axis)
