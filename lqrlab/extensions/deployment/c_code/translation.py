"""A controller's step as a program in C: each primitive of JAX becomes expressions or loops."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from jax.extend.core import ClosedJaxpr

from lqrlab.extensions.deployment.c_code.arrays import (
    Array,
    ArrayProgram,
    Constant,
    Index,
    Lazy,
    Scalars,
    StoredArray,
    flat,
    indices,
)
from lqrlab.extensions.deployment.c_code.expressions import Node, kind_of
from lqrlab.extensions.deployment.c_code.flattening import Equation, Known, Value, Variable, flatten
from lqrlab.extensions.deployment.c_code.operations import OPERATIONS

_FEW = 6  # operations that are written one by one rather than as a loop
_SMALL = 64  # entries of an array that may be held as expressions

Rule = Callable[["Translator", Equation, list[Array]], list[Array]]
RULES: dict[str, Rule] = {}
"""Primitive → its translation, of those that are no plain elementwise operations."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a translation into the table."""

    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


class Translator:
    """Writes the steps of a program into a function in C."""

    def __init__(self) -> None:
        self.program = ArrayProgram()

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a program as arrays, its steps written."""
        given = values_of(inputs)
        steps, outputs = flatten(closed, given)
        uses = Counter(id(v) for s in steps for v in s.inputs) + Counter(id(v) for v in outputs)
        arrays: dict[int, Array] = {id(v): a for v, a in zip(given, inputs)}

        def read(v: Value) -> Array:
            return Constant(self.program, v.value, v.data) if isinstance(v, Known) else arrays[id(v)]

        for step in steps:
            found = self.step(step, [read(v) for v in step.inputs])
            for v, a in zip(step.outputs, found):
                a.uses = uses[id(v)] if isinstance(a, Lazy) else a.uses
                arrays[id(v)] = self.settled(a, v)
        return [read(v) for v in outputs]

    def step(self, step: Equation, a: list[Array]) -> list[Array]:
        """The outputs of one step."""
        if step.name in RULES:
            return RULES[step.name](self, step, a)
        if step.name in OPERATIONS:
            return [self.each(step.name, a, step.outputs[0])]
        raise UnsupportedStepError(step.name)

    def each(self, name: str, a: list[Array], out: Variable) -> Array:
        """An operation on each entry; operands of no axes go with all."""
        kind = kind_of(out.dtype)
        if name in ("and", "or", "not", "xor") and kind != "bool":
            raise UnsupportedStepError(f"{name} of whole numbers")
        return self.lazy(lambda i: self.program.op(name, *(entry_of(v, i) for v in a)), out, a)

    def lazy(
        self, entry: Callable[[Index], Node], out: Variable, of: Sequence[Array], kind: str = "", moves: bool = False
    ) -> Lazy:
        """An array of expressions."""
        return self.program.lazy(entry, out.shape, kind or kind_of(out.dtype), of, moves)

    def few(
        self,
        entry: Callable[[Index], Node],
        out: Variable,
        of: Sequence[Array],
        *,
        moves: bool = False,
        most: int = _FEW,
    ) -> Scalars | None:
        """An array as separate expressions if it is small and they are few operations more, else None."""
        size = math.prod(out.shape)
        if size > _SMALL or any(a.size > _SMALL and a.memory is None for a in of):
            return None
        if size > 1 and any(isinstance(a, Lazy) and a.memory is None and not a.cheap for a in of):
            return None
        before, nodes = self.program.made, np.empty(out.shape, object)
        for index in indices(out.shape):
            nodes[index] = entry(index)
            if self.program.made - before > most and size > 1 - (most > _FEW):
                return None
        kind = nodes.flat[0].kind if size else kind_of(out.dtype)
        return Scalars(self.program, nodes, kind, self.program.block)

    def settled(self, a: Array, out: Variable) -> Array:
        """A lazy array as separate expressions, if they are few."""
        if not isinstance(a, Lazy) or a.memory is not None:
            return a
        few = self.few(a.entry, out, a.of)
        return a if few is None else few

    def memory(self, a: Array) -> StoredArray:
        """The array in memory."""
        return self.program.stored(a)

    def now(self, memory: StoredArray) -> StoredArray:
        """Memory as it is at this place of a loop that writes it."""
        return dataclasses.replace(memory, home=self.program.block, version=memory.version + 1)

    def copied(self, a: Array) -> StoredArray:
        """The array in new memory of this block."""
        memory = self.program.new(a.shape, a.kind)
        self.copy(memory, a)
        return memory

    def copy(self, memory: StoredArray, a: Array, place: Callable[[Index], Index] | None = None) -> None:
        """Write an array into memory, or to places in it."""
        if isinstance(a, Scalars) and place is None and a.size == memory.size:
            self.program.store_all(memory, list(a.nodes.flat))
        elif isinstance(a, Scalars):
            for index, node in np.ndenumerate(a.nodes):
                self.program.store(memory, flat(self.program, place(index) if place else index, memory.shape), node)
        else:
            self.program.fill(memory, a, place)

    def overwrite(self, pairs: Sequence[tuple[StoredArray, Array]]) -> None:
        """Write arrays into memories that they may be made of."""
        stores: list[tuple[StoredArray, Array | list[Node]]] = []
        for memory, a in pairs:
            if isinstance(a, StoredArray) and a.name == memory.name:
                continue
            if isinstance(a, Constant):
                stores.append((memory, a))
            elif isinstance(a, Scalars) or a.size <= _FEW:
                stores.append((memory, [a.at(i) for i in indices(a.shape)]))
            else:
                old = isinstance(a, StoredArray) and a.home is not None and any(a.name == m.name for m, _ in pairs)
                stores.append((memory, self.copied(a) if old else self.memory(a)))
        for memory, nodes in stores:
            if isinstance(nodes, list):
                same = [memory.at(i) for i in indices(memory.shape)]
                self.program.pin([n for n, old in zip(nodes, same) if n is not old])
        for memory, nodes in stores:
            if isinstance(nodes, list):
                for i, node in zip(indices(memory.shape), nodes):
                    if node is not memory.at(i):
                        self.program.store(memory, flat(self.program, i, memory.shape), node)
            else:
                self.program.fill(memory, nodes)


def values_of(arrays: Sequence[Array]) -> list[Value]:
    """Arrays as a program is given them: known ones with their numbers."""
    return [Known(a.value, a.data) if isinstance(a, Constant) else Variable(a.shape, None) for a in arrays]


def entry_of(a: Array, i: Index) -> Node:
    """The entry of an operand that goes with the index i of a result: axes of length one go with all."""
    return a.at(tuple(0 if size == 1 else k for size, k in zip(a.shape, i)))


class UnsupportedStepError(Exception):
    """A primitive that has no translation; the message is its name."""
