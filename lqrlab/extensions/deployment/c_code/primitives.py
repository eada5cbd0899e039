"""The table of JAX's primitives that move, reduce and multiply arrays, as expressions or loops in C."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lqrlab.extensions.deployment.c_code.arrays import Array, Constant, Index, Scalars, flat, indices
from lqrlab.extensions.deployment.c_code.expressions import Node, kind_of
from lqrlab.extensions.deployment.c_code.flattening import Equation, Variable
from lqrlab.extensions.deployment.c_code.translation import Translator, UnsupportedStepError, entry_of, rule

_CHAIN = 24  # operations of a sum or product that is written out
_SHORT = 4  # terms of one inside a loop


def _elementwise(name: str, form: Callable[..., Node]) -> None:
    """Enter an elementwise primitive made of operations: program, parameters, operands → expression."""

    @rule(name)
    def translate(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
        def entry(i: Index) -> Node:
            return form(t.program, step.params, *(entry_of(v, i) for v in a))

        return [t.lazy(entry, step.outputs[0], a)]


def _power(p: Any, base: Node, exponent: int) -> Node:
    """A whole power by squaring."""
    if exponent < 0:
        return p.op("div", p.lit(1, "real"), _power(p, base, -exponent))
    result: Node | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else p.op("mul", result, base)
        base, exponent = p.op("mul", base, base) if exponent > 1 else base, exponent >> 1
    return p.lit(1, base.kind) if result is None else result


def _selected(p: Any, params: dict, which: Node, *cases: Node) -> Node:
    if which.kind == "bool":
        return p.op("select", which, *cases)
    chosen = cases[-1]
    for k, case in reversed(list(enumerate(cases[:-1]))):
        chosen = p.op("select", p.op("le", which, p.lit(k, "int")), chosen, case)
    return chosen


def _ordered(name: str, p: Any, a: Node, b: Node) -> Node:
    """A comparison in which NaN is the largest number, as sorting has it."""
    if a.kind != "real":
        return p.op(name, a, b)
    last = p.op("ne", b, b)
    return p.op("or", p.op(name, a, b), p.op("and", last, p.op("eq", a, a)) if name == "lt" else last)


_elementwise("lt_to", lambda p, _, a, b: _ordered("lt", p, a, b))
_elementwise("le_to", lambda p, _, a, b: _ordered("le", p, a, b))
_elementwise("add_any", lambda p, _, a, b: p.op("add", a, b))
_elementwise("square", lambda p, _, a: p.op("mul", a, a))
_elementwise("rsqrt", lambda p, _, a: p.op("div", p.lit(1, "real"), p.op("sqrt", a)))
_elementwise("integer_pow", lambda p, params, a: _power(p, a, params["y"]))
_elementwise("clamp", lambda p, _, low, a, high: p.op("min", p.op("max", a, low), high))
_elementwise("convert_element_type", lambda p, params, a: p.op(f"to_{kind_of(params['new_dtype'])}", a))
_elementwise("reduce_precision", lambda p, _, a: a)
_elementwise("round", lambda p, params, a: p.op("rint" if int(params["rounding_method"]) else "round", a))
_elementwise("select_n", _selected)


def _moves(name: str, index: Callable[[dict, tuple[int, ...], Index], Index]) -> None:
    """Enter a primitive whose entries are the operand's at other indices: parameters, operand's shape, index."""

    @rule(name)
    def translate(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
        (one,), (out,) = a[:1], step.outputs
        return [t.lazy(lambda i: one.at(index(step.params, one.shape, i)), out, a, one.kind, moves=True)]


def _broadcast(params: dict, shape: tuple[int, ...], i: Index) -> Index:
    return tuple(0 if size == 1 else i[k] for size, k in zip(shape, params["broadcast_dimensions"]))


def _squeezed(params: dict, shape: tuple[int, ...], i: Index) -> Index:
    rest, gone = iter(i), {k % len(shape) for k in params["dimensions"]}
    return tuple(0 if k in gone else next(rest) for k in range(len(shape)))


_moves("broadcast_in_dim", _broadcast)
_moves("transpose", lambda params, _, i: tuple(i[k] for k in np.argsort(params["permutation"])))
_moves("squeeze", _squeezed)


def _shifted(p: Any, i: Node | int, start: Node | int, stride: int = 1) -> Node | int:
    """start + stride·i."""
    if not isinstance(i, Node) and not isinstance(start, Node):
        return int(start + stride * i)
    i, start = (v if isinstance(v, Node) else p.lit(v, "int") for v in (i, start))
    found = p.op("add", p.op("mul", i, p.lit(stride, "int")), start)
    return found.args[0] if found.op == "lit" else found


@rule("slice", "rev", "split", "unstack")
def _sliced(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one,), p, shape = a, step.params, a[0].shape
    stride, starts = [1] * len(shape), [[0] * len(shape) for _ in step.outputs]
    axis = p.get("axis", 0) % max(len(shape), 1)
    if step.name == "slice":
        starts, stride = [list(p["start_indices"])], list(p["strides"] or stride)
    elif step.name == "rev":
        for k in p["dimensions"]:
            starts[0][k], stride[k] = shape[k] - 1, -1
    else:
        sizes = p.get("sizes", (1,) * len(step.outputs))
        for start, first in zip(starts, np.cumsum([0, *sizes])):
            start[axis] = int(first)

    def part(out: Variable, start: list[int]) -> Array:
        def entry(i: Index) -> Node:
            full = (*i[:axis], 0, *i[axis:]) if step.name == "unstack" else i
            return one.at(tuple(_shifted(t.program, k, int(s), int(by)) for k, s, by in zip(full, start, stride)))

        return t.lazy(entry, out, a, one.kind, moves=True)

    return [part(out, start) for out, start in zip(step.outputs, starts)]


@rule("reshape")
def _reshaped(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one,), (out,) = a[:1], step.outputs
    long = [size for size in one.shape if size != 1]
    if long == [size for size in out.shape if size != 1]:  # only axes of length one come or go

        def entry(i: Index) -> Node:
            moving = iter(k for k, size in zip(i, out.shape) if size != 1)
            return one.at(tuple(0 if size == 1 else next(moving) for size in one.shape))

        return [t.lazy(entry, out, a, one.kind, moves=True)]
    if isinstance(one, Constant):
        return [Constant(t.program, one.value.reshape(out.shape), one.data)]
    if isinstance(one, Scalars):
        return [Scalars(t.program, one.nodes.reshape(out.shape), one.kind, one.block)]
    return [t.memory(one).as_shape(out.shape)]


@rule("iota")
def _counted(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (out,), p = step.outputs, t.program

    def entry(i: Index) -> Node:
        k = i[step.params["dimension"]]
        node = p.lit(k, "int") if isinstance(k, int) else k
        return p.op("to_real", node) if np.dtype(out.dtype).kind == "f" else node

    return [t.lazy(entry, out, [], moves=True)]


@rule("concatenate", "stack")
def _joined(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    """Parts one after another: expressions where they are few, else each copied to its place."""
    (out,) = step.outputs
    axis = step.params.get("dimension", step.params.get("axis", 0)) % len(out.shape)
    if step.name == "stack":
        shapes = [(*v.shape[:axis], 1, *v.shape[axis:]) for v in a]
        at = [functools.partial(lambda v, i: v.at((*i[:axis], *i[axis + 1 :])), v) for v in a]
        a = [t.program.lazy(one, shape, v.kind, [v], True) for one, shape, v in zip(at, shapes, a)]
    starts = np.cumsum([0, *(v.shape[axis] for v in a)])

    def entry(i: Index) -> Node:
        at = int(i[axis])
        part = int(np.searchsorted(starts, at, "right")) - 1
        return a[part].at((*i[:axis], at - int(starts[part]), *i[axis + 1 :]))

    if (few := t.few(entry, out, a, moves=True)) is not None:
        return [few]
    memory = t.program.new(out.shape, a[0].kind)
    for part, start in zip(a, starts):
        t.copy(memory, part, functools.partial(_moved_by, t.program, axis, int(start)))
    return [memory]


def _moved_by(p: Any, axis: int, start: int, i: Index) -> Index:
    return (*i[:axis], _shifted(p, i[axis], start), *i[axis + 1 :])


@rule("pad")
def _padded(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (out,), (one, filling) = step.outputs, a
    widths = [tuple(map(int, width)) for width in step.params["padding_config"]]

    def source(i: Index) -> Index | None:
        found = []
        for k, (low, _, between), size in zip(i, widths, one.shape):
            assert not isinstance(k, Node)
            place, rest = divmod(k - low, between + 1)
            if rest or not 0 <= place < size:
                return None
            found.append(place)
        return tuple(found)

    def entry(i: Index) -> Node:
        at = source(i)
        return filling.at(()) if at is None else one.at(at)

    if (few := t.few(entry, out, a, moves=True)) is not None:
        return [few]
    if any(low < 0 or high < 0 for low, high, _ in widths):
        raise UnsupportedStepError("pad that cuts")
    memory = t.program.new(out.shape, one.kind)
    t.program.fill(memory, t.program.lazy(lambda i: filling.at(()), out.shape, one.kind, [], True))
    t.copy(memory, one, lambda i: tuple(_shifted(t.program, k, low, by + 1) for k, (low, _, by) in zip(i, widths)))
    return [memory]


_REDUCED = {
    "reduce_sum": ("add", 0.0),
    "reduce_prod": ("mul", 1.0),
    "reduce_max": ("max", -math.inf),
    "reduce_min": ("min", math.inf),
    "reduce_and": ("and", True),
    "reduce_or": ("or", False),
}


def _start(kind: str, value: float) -> float:
    """The start of a reduction, of whole numbers too."""
    return int(np.clip(value, -(2.0**62), 2.0**62)) if kind == "int" else value


@rule(*_REDUCED)
def _reduced(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one,), (out,), axes = a, step.outputs, sorted(step.params["axes"])
    op, first = _REDUCED[step.name]
    across = tuple(one.shape[k] for k in axes)

    def full(i: Index, j: Index) -> Index:
        inside, outside = iter(j), iter(i)
        return tuple(next(inside) if k in axes else next(outside) for k in range(len(one.shape)))

    return [_accumulated(t, out, a, one.kind, across, op, first, lambda i, j: one.at(full(i, j)), full, one.shape)]


def _accumulated(
    t: Translator,
    out: Variable,
    a: Sequence[Array],
    kind: str,
    across: tuple[int, ...],
    op: str,
    first: float,
    term: Callable[[Index, Index], Node],
    full: Callable[[Index, Index], Index] | None = None,
    shape: tuple[int, ...] = (),
) -> Array:
    """Terms combined: written out where they are few, else in a loop."""
    p = t.program

    def entry(i: Index) -> Node:
        terms = [term(i, j) for j in indices(across)]
        return functools.reduce(lambda x, y: p.op(op, x, y), terms) if terms else p.lit(_start(kind, first), kind)

    if (few := t.few(entry, out, a, most=_CHAIN)) is not None:
        return few
    if math.prod(across) <= _SHORT and all(v.memory is not None or isinstance(v, Constant) for v in a):
        return t.lazy(entry, out, a, kind)
    memory, block = p.new(out.shape, kind), p.block
    with p.loops(out.shape) as i:
        p.store(memory, flat(p, i, out.shape), p.lit(_start(kind, first), kind))
        with p.loops(across) as j:
            if full is None:
                value = term(i, j)
            else:
                with p.nested(block, full(i, j), shape):
                    value = term(i, j)
            p.store(memory, flat(p, i, out.shape), p.op(op, t.now(memory).at(i), value))
    return memory


@rule("dot_general")
def _product(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (x, y), (out,) = a, step.outputs
    (left, right), (batch_x, batch_y) = step.params["dimension_numbers"]
    across = tuple(x.shape[k] for k in left)
    free_x = [k for k in range(len(x.shape)) if k not in (*left, *batch_x)]
    free_y = [k for k in range(len(y.shape)) if k not in (*right, *batch_y)]

    def index(i: Index, j: Index, inner: Sequence[int], batch: Sequence[int], free: Sequence[int], at: int) -> Index:
        where = dict(zip(inner, j)) | dict(zip(batch, i)) | dict(zip(free, i[at:]))
        return tuple(where[k] for k in sorted(where))

    def term(i: Index, j: Index) -> Node:
        of_x = x.at(index(i, j, left, batch_x, free_x, len(batch_x)))
        return t.program.op("mul", of_x, y.at(index(i, j, right, batch_y, free_y, len(batch_x) + len(free_x))))

    return [_accumulated(t, out, a, x.kind, across, "add", 0.0, term)]


@rule("argmax", "argmin")
def _extreme(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    """The first of the largest entries, or of those that are not numbers."""
    (one,), (out,), (axis,) = a, step.outputs, step.params["axes"]
    p, better = t.program, "gt" if step.name == "argmax" else "lt"

    def beats(value: Node, best: Node) -> Node:
        larger = p.op(better, value, best)
        if one.kind != "real":
            return larger
        return p.op("or", larger, p.op("and", p.op("ne", value, value), p.op("eq", best, best)))

    def along(i: Index, k: Node | int) -> Node:
        return one.at((*i[:axis], k, *i[axis:]))

    def entry(i: Index) -> Node:
        best, place = along(i, 0), p.lit(0, "int")
        for k in range(1, one.shape[axis]):
            value = along(i, k)
            wins = beats(value, best)
            best, place = p.op("select", wins, best, value), p.op("select", wins, place, p.lit(k, "int"))
        return place

    if (few := t.few(entry, out, a, most=_CHAIN)) is not None:
        return [few]
    best, place = p.new(out.shape, one.kind), p.new(out.shape, "int")
    with p.loops(out.shape) as i:
        p.store(best, flat(p, i, out.shape), along(i, 0))
        p.store(place, flat(p, i, out.shape), p.lit(0, "int"))
        with p.loops((one.shape[axis],)) as (k,):
            value, old = along(i, k), [t.now(m).at(i) for m in (best, place)]
            wins = beats(value, old[0])
            k = p.lit(k, "int") if isinstance(k, int) else k
            now = [p.op("select", wins, old[0], value), p.op("select", wins, old[1], k)]
            p.pin(now)
            p.store(best, flat(p, i, out.shape), now[0])
            p.store(place, flat(p, i, out.shape), now[1])
    return [place]


_RUNNING = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


@rule(*_RUNNING)
def _running(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one,), (out,), axis, p = a, step.outputs, step.params["axis"], t.program
    memory = t.copied(one)
    backwards, length = step.params["reverse"], out.shape[axis]
    with p.loops((max(length - 1, 0),)) as (k,):
        at = _shifted(p, k, length - 2, -1) if backwards else _shifted(p, k, 1)
        last = _shifted(p, at, 1 if backwards else -1)
        with p.loops((*out.shape[:axis], *out.shape[axis + 1 :])) as i:
            here, before = ((*i[:axis], q, *i[axis:]) for q in (at, last))
            old = t.now(memory)
            p.store(memory, flat(p, here, out.shape), p.op(_RUNNING[step.name], old.at(before), old.at(here)))
    return [memory]
