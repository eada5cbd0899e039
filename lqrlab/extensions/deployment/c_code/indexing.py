"""Primitives that read and write arrays at indices that the program computes."""

import math
from typing import Any

from jax.lax import GatherScatterMode

from lqrlab.extensions.deployment.c_code.arrays import Array, Constant, Index, flat
from lqrlab.extensions.deployment.c_code.expressions import CodeBlock, If, Node
from lqrlab.extensions.deployment.c_code.flattening import Equation
from lqrlab.extensions.deployment.c_code.primitives import _shifted as shifted
from lqrlab.extensions.deployment.c_code.translation import Translator, rule


def _within(p: Any, i: Node, most: int) -> Node | int:
    """An index cut to 0 … most."""
    found = p.op("min", p.op("max", i, p.lit(0, "int")), p.lit(most, "int")) if most else p.lit(0, "int")
    return found.args[0] if found.op == "lit" else found


@rule("dynamic_slice")
def _read(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one, *starts), (out,), p = a, step.outputs, t.program
    first = [_within(p, s.at(()), size - k) for s, size, k in zip(starts, one.shape, out.shape)]
    if any(isinstance(s, Node) for s in first) and not isinstance(one, Constant):
        one = t.memory(one)
    return [t.lazy(lambda i: one.at(tuple(shifted(p, k, s) for k, s in zip(i, first))), out, [one], one.kind, True)]


@rule("dynamic_update_slice")
def _written(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one, new, *starts), p = a, t.program
    first = [_within(p, s.at(()), size - k) for s, size, k in zip(starts, one.shape, new.shape)]
    memory = t.copied(one)
    t.copy(memory, new, lambda i: tuple(shifted(p, k, s) for k, s in zip(i, first)))
    return [memory]


def _starts(
    t: Translator, places: Array, batch: Index, axes: tuple[int, ...], sizes: list[int], cut: bool
) -> tuple[dict[int, Node | int], list[Node]]:
    """Of each indexed axis the first index, within the array if ``cut`` or wanted; and whether it lay inside."""
    p, found, inside = t.program, {}, []
    for k, axis in enumerate(axes):
        i = places.at((*batch, k))
        inside += [p.op("ge", i, p.lit(0, "int")), p.op("le", i, p.lit(sizes[axis], "int"))]
        found[axis] = _within(p, i, sizes[axis]) if cut else i
    return found, [n for n in inside if n.op != "lit" or not n.args[0]]


@rule("gather")
def _gathered(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one, places), (out,), p = a, step.outputs, t.program
    d, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    room = [size - k for size, k in zip(one.shape, sizes)]
    filled = step.params["mode"] == GatherScatterMode.FILL_OR_DROP
    kept = [k for k in range(len(one.shape)) if k not in (*d.collapsed_slice_dims, *d.operand_batching_dims)]
    value = step.params["fill_value"]
    value = (math.nan if one.kind == "real" else 0) if value is None else value
    if not isinstance(places, Constant):
        one = t.memory(one) if not isinstance(one, Constant) else one

    def entry(i: Index) -> Node:
        batch = tuple(k for axis, k in enumerate(i) if axis not in d.offset_dims)
        first, inside = _starts(t, places, batch, tuple(map(int, d.start_index_map)), room, True)
        first |= {axis: batch[k] for axis, k in zip(d.operand_batching_dims, d.start_indices_batching_dims)}
        offset = dict(zip(kept, (i[axis] for axis in d.offset_dims)))
        node = one.at(tuple(shifted(p, offset.get(k, 0), first.get(k, 0)) for k in range(len(one.shape))))
        if filled:
            for test in inside:
                node = p.op("select", test, p.lit(value, one.kind), node)
        return node

    return [t.lazy(entry, out, [one, places], one.kind, moves=True)]


@rule("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max")
def _scattered(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    (one, places, new), p, d = a, t.program, step.params["dimension_numbers"]
    kept = [k for k in range(len(one.shape)) if k not in (*d.inserted_window_dims, *d.operand_batching_dims)]
    window = {k: new.shape[axis] for k, axis in zip(kept, d.update_window_dims)}
    room = [size - window.get(k, 1) for k, size in enumerate(one.shape)]
    cut = step.params["mode"] == GatherScatterMode.CLIP
    memory = t.copied(one)
    places = places if isinstance(places, Constant) else t.memory(places)
    new = new if isinstance(new, Constant) else t.memory(new)
    op = step.name.replace("_", "-").partition("-")[2]
    with p.loops(new.shape) as i:
        batch = tuple(k for axis, k in enumerate(i) if axis not in d.update_window_dims)
        first, inside = _starts(t, places, batch, tuple(map(int, d.scatter_dims_to_operand_dims)), room, cut)
        first |= {axis: batch[k] for axis, k in zip(d.operand_batching_dims, d.scatter_indices_batching_dims)}
        offset = dict(zip(kept, (i[axis] for axis in d.update_window_dims)))
        outer, tests = p.block, [] if cut or step.params["mode"] == GatherScatterMode.PROMISE_IN_BOUNDS else inside
        if tests:
            p.demand(*tests)
            p.block = CodeBlock(outer, conditional=True)
        at = tuple(shifted(p, offset.get(k, 0), first.get(k, 0)) for k in range(len(one.shape)))
        node = new.at(i)
        p.store(memory, flat(p, at, one.shape), p.op(op, t.now(memory).at(at), node) if op else node)
        if tests:
            branch, p.block = p.block, outer
            whole = tests[0]
            for test in tests[1:]:
                whole = p.op("and", whole, test)
            p.demand(whole)
            outer.items.append(If([whole], [branch]))
    return [memory]
