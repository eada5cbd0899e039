"""Loops and branches of a program, in C: all loops have a bound that is known when the program is written."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jax.extend.core import ClosedJaxpr

from lqrlab.extensions.deployment.c_code.arrays import Array, ArrayProgram, Constant, Index, StoredArray
from lqrlab.extensions.deployment.c_code.expressions import Break, CodeBlock, For, If, Node, kind_of
from lqrlab.extensions.deployment.c_code.flattening import Equation, Known, Value, Variable, flatten, inner
from lqrlab.extensions.deployment.c_code.translation import Translator, UnsupportedStepError, rule, values_of


def _in_body(memories: Sequence[StoredArray], body: CodeBlock) -> list[StoredArray]:
    """Memories as they are in a loop that writes them at its end."""
    return [dataclasses.replace(m, home=body, version=m.version + 1) for m in memories]


@rule("scan")
def _scan(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    p, q, program = t.program, step.params, inner(step.params["jaxpr"])
    first, length = q["num_consts"], q["length"]
    consts, start, xs = a[:first], a[first : first + q["num_carry"]], a[first + q["num_carry"] :]
    counts = _counting(program, consts, start, xs)
    outer, body = p.block, CodeBlock(p.block)
    counter = p.counter(body)
    memories = [None if k in counts else t.copied(s) for k, s in enumerate(start)]
    stacked = [p.new(v.shape, kind_of(v.dtype)) for v in step.outputs[len(start) :]]
    p.block = body
    at: Node = p.op("sub", p.lit(length - 1, "int"), counter) if q["reverse"] else counter

    def of(x: Array) -> Array:
        shape = x.shape[1:]
        return t.settled(
            t.lazy(lambda i: x.at((at, *i)), Variable(shape, None), [x], x.kind, moves=True), Variable(shape, None)
        )

    inside: list[Array] = []
    for k, memory in enumerate(memories):
        if memory is None:
            inside.append(t.lazy(_counted(p, start[k], counter), Variable((), np.int64), [], "int", moves=True))
        else:
            inside += _in_body([memory], body)
    outs = t.run(program, [*consts, *inside, *(of(x) for x in xs)])
    for memory, y in zip(stacked, outs[len(start) :]):
        t.copy(memory, y, lambda i: (at, *i))
    t.overwrite([(m, o) for m, o in zip(inside, outs[: len(start)]) if isinstance(m, StoredArray)])
    p.block = outer
    outer.items.append(For(counter, length, body))
    after = [m if m is not None else Constant(p, start[k].value + length) for k, m in enumerate(memories)]  # type: ignore[attr-defined]
    return [*after, *stacked]


def _counted(p: ArrayProgram, start: Array, counter: Node) -> Callable[[Index], Node]:
    """A number that counts the rounds of a loop from its start."""
    assert isinstance(start, Constant)
    first = p.lit(start.value, "int")
    return lambda i: p.op("add", first, counter)


def _counting(program: ClosedJaxpr, consts: list[Array], start: list[Array], xs: list[Array]) -> set[int]:
    """Those of the carried numbers that only count the rounds."""
    candidates = [k for k, s in enumerate(start) if isinstance(s, Constant) and s.kind == "int" and s.shape == ()]
    if not candidates:
        return set()
    given: list[Value] = [
        *values_of(consts),
        *(Variable(s.shape, None) for s in start),
        *(Variable(x.shape[1:], None) for x in xs),
    ]
    steps, outputs = flatten(program, given)
    made = {id(v): s for s in steps for v in s.outputs}
    return {k for k in candidates if _one_more(made.get(id(outputs[k])), given[len(consts) + k])}


def _one_more(step: Equation | None, before: Value) -> bool:
    """True if a step is ``before + 1``."""
    if step is None or step.name != "add" or before not in step.inputs:
        return False
    other = step.inputs[1 - step.inputs.index(before)]
    return isinstance(other, Known) and other.value.size == 1 and int(other.value) == 1


@rule("while")
def _while(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    p, q = t.program, step.params
    tests, bodies = q["cond_nconsts"], q["body_nconsts"]
    of_test, of_body, start = a[:tests], a[tests : tests + bodies], a[tests + bodies :]
    test, program = inner(q["cond_jaxpr"]), inner(q["body_jaxpr"])
    times = _bound(test, program, of_test, of_body, start)
    outer, body = p.block, CodeBlock(p.block)
    counter = p.counter(body)
    memories = [t.copied(s) for s in start]
    p.block = body
    inside = _in_body(memories, body)
    going = t.run(test, [*of_test, *inside])[0].at(())
    p.demand(going)
    body.items.append(Break(going))
    t.overwrite(list(zip(inside, t.run(program, [*of_body, *inside]))))
    p.block = outer
    outer.items.append(For(counter, times, body))
    return list(memories)


def _bound(
    test: ClosedJaxpr, program: ClosedJaxpr, of_test: list[Array], of_body: list[Array], start: list[Array]
) -> int:
    """The most rounds of a loop: a carried number that counts them is compared with one that is at most something."""
    carried: list[Value] = [Variable(s.shape, None) for s in start]
    consts = values_of(of_test)
    steps, outputs = flatten(test, [*consts, *carried])
    made = {id(v): s for s in steps for v in s.outputs}
    grown_steps, after = flatten(program, [*values_of(of_body), *carried])
    grown = {id(v): s for s in grown_steps for v in s.outputs}
    fixed = {id(v): a for v, a in zip(consts, of_test)}
    fixed |= {id(v): a for v, a, new in zip(carried, start, after) if new is v}

    def rounds(v: Value) -> float:
        """The rounds after which a condition is false for sure."""
        s = made.get(id(v))
        if s is not None and s.name in ("and", "or"):
            return (min if s.name == "and" else max)(map(rounds, s.inputs))
        if s is not None and s.name == "convert_element_type":
            return rounds(s.inputs[0])
        if s is not None and s.name in ("lt", "gt"):
            least, limit = s.inputs if s.name == "lt" else s.inputs[::-1]
            if (cast := made.get(id(limit))) is not None and cast.name == "convert_element_type":
                limit = cast.inputs[0]
            most = int(limit.value) if isinstance(limit, Known) else _most(fixed.get(id(limit)))
            for k, first in enumerate(start):
                counts = carried[k] is least and _one_more(grown.get(id(after[k])), carried[k])
                if counts and most is not None and isinstance(first, Constant):
                    return max(most - int(first.value), 0)
        return math.inf

    found = rounds(outputs[0])
    if found == math.inf:
        raise UnsupportedStepError("while")
    return int(found)


def _most(a: Array | None) -> int | None:
    """The largest value of a whole number, if that can be seen: one of several known ones."""
    waiting, found = [a.at(())] if a is not None and not a.shape else [], []
    while waiting:
        node = waiting.pop()
        if node.op == "select":
            waiting += node.args[1:]
        elif node.op == "lit":
            found.append(int(node.args[0]))
        else:
            return None
    return max(found, default=None)


@rule("cond")
def _cond(t: Translator, step: Equation, a: list[Array]) -> list[Array]:
    p, (which, *given) = t.program, a
    branches, outer = step.params["branches"], p.block
    index = which.at(())
    index = p.op("to_int", index) if index.kind == "bool" else index
    tests = [p.op("le", index, p.lit(k, "int")) for k in range(len(branches) - 1)]
    p.demand(*tests)
    memories = [p.new(v.shape, kind_of(v.dtype)) for v in step.outputs]
    blocks = []
    for branch in branches:
        p.block = CodeBlock(outer, conditional=True)
        for memory, out in zip(memories, t.run(inner(branch), given)):
            t.copy(memory, out)
        blocks.append(p.block)
        p.block = outer
    outer.items.append(If(tests, blocks))
    return list(memories)
