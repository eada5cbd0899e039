"""Scalar expressions of a C program, each written once, and the blocks of statements that they stand in."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from lqrlab.extensions.deployment.c_code.operations import OPERATIONS

TYPES = {"real": "real_t", "int": "int64_t", "bool": "bool"}
"""Kinds of numbers and their types in C; floating numbers of any size are ``real_t``."""

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_LONGEST = 80  # expression that is written out where it is used


def kind_of(dtype: Any) -> str:
    """The kind of a NumPy type."""
    kind = {"f": "real", "i": "int", "u": "int", "b": "bool"}.get(np.dtype(dtype).kind)
    if kind is None:
        raise ValueError(f"controller: expected real and whole numbers and truth values, but found {dtype}")
    return kind


@dataclasses.dataclass(eq=False)
class Node:
    """A number of the program: a constant, a loop's counter, an entry of an array, or an operation on numbers.

    Attributes:
        op: ``lit``, ``counter``, ``load``, or a name of :data:`OPERATIONS`.
        args: its operands: nodes; the value of a constant, the array and the index of an entry.
        kind: ``real``, ``int`` or ``bool``.
        home: the innermost block that it depends on.
        inline: whether it is written out where it is used.
        order: how many nodes there were before it.
    """

    op: str
    args: tuple
    kind: str
    home: "CodeBlock"
    inline: bool
    order: int = 0


@dataclasses.dataclass(eq=False)
class CodeBlock:
    """Statements between braces.

    Attributes:
        parent: the block around it; None for the function's own.
        conditional: it is not always executed, so nothing leaves it.
    """

    parent: "CodeBlock | None" = None
    conditional: bool = False
    items: list = dataclasses.field(default_factory=list)
    defined: set[Node] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1

    def outward(self) -> "Iterator[CodeBlock]":
        """This block and those around it."""
        block: CodeBlock | None = self
        while block is not None:
            yield block
            block = block.parent


@dataclasses.dataclass(eq=False)
class Define:
    """``const type name = node``; a pinned one is not written out where it is used."""

    node: Node
    pinned: bool = False


@dataclasses.dataclass(eq=False)
class Store:
    """``array[index] = node``."""

    array: Any
    index: Node
    node: Node


@dataclasses.dataclass(eq=False)
class Declare:
    """``type array[size]``; as long as the array if no size is given."""

    array: Any
    size: int = 0


@dataclasses.dataclass(eq=False)
class For:
    """A loop over a counter."""

    counter: Node
    times: int
    body: CodeBlock


@dataclasses.dataclass(eq=False)
class Break:
    """The end of a loop where the condition is false."""

    condition: Node


@dataclasses.dataclass(eq=False)
class If:
    """Branches: the first whose condition holds, else the last."""

    conditions: list[Node]
    branches: list[CodeBlock]


class Statements:
    """A function's statements while they are written.

    Equal numbers are one node, so common subexpressions are computed once; what is known is computed here.
    """

    def __init__(self) -> None:
        self.root = self.block = CodeBlock()
        self._nodes: dict[tuple, Node] = {}
        self._names = self.made = 0

    def fresh(self, prefix: str) -> str:
        """A name that nothing has yet."""
        self._names += 1
        return f"{prefix}{self._names}"

    def lit(self, value: Any, kind: str, data: bool = False) -> Node:
        """A constant; one that is a datum of the controller, not of its program, is never left out of a product."""
        value = {"real": float, "int": int, "bool": bool}[kind](value)
        return self._one("lit", (value, data), kind, self.root, True, (repr(value), data))

    def counter(self, block: CodeBlock) -> Node:
        """The counter of a loop whose body is the block."""
        return Node("counter", (self.fresh("i"),), "int", block, True)

    def load(self, array: Any, index: Node | int) -> Node:
        """An entry of an array."""
        index = self.lit(index, "int") if isinstance(index, int) else index
        home = max(array.home, index.home, key=lambda b: b.depth)
        return self._one(
            "load", (array, index), array.kind, home, index.inline, (array.name, array.version, home, index)
        )

    def op(self, name: str, *args: Node, kind: str | None = None) -> Node:
        """An operation; simplified where operands are constants."""
        operation = OPERATIONS[name]
        if all(a.op == "lit" for a in args):
            with np.errstate(all="ignore"):
                value = operation.value(*(a.args[0] for a in args))
            return self.lit(value, kind or operation.kind or args[-1].kind, any(a.args[1] for a in args))
        if (simple := self._simplified(name, args)) is not None:
            return simple
        kind = kind or operation.kind or args[-1].kind
        home = max((a.home for a in args), key=lambda b: b.depth)
        of_counters = kind == "int" and name in ("add", "mul", "sub", "div", "rem") and all(a.inline for a in args)
        counted = of_counters and all(a.op != "load" for a in args)
        if name in ("add", "mul"):  # in one order, so that equal ones meet
            args = tuple(sorted(args, key=lambda a: (a.op == "lit", a.order)))
        return self._one(name, args, kind, home, counted, (*map(id, args), kind))

    def _one(self, op: str, args: tuple, kind: str, home: CodeBlock, inline: bool, key: tuple) -> Node:
        key = (op, kind, *key)
        if key not in self._nodes:
            self._nodes[key] = Node(op, args, kind, home, inline, len(self._nodes))
            self.made += op in OPERATIONS and not inline
        return self._nodes[key]

    def _simplified(self, name: str, args: tuple[Node, ...]) -> Node | None:
        """The number that an operation with a constant operand comes to, if it needs none."""

        def is_(a: Node, value: float) -> bool:
            return a.op == "lit" and not a.args[1] and a.args[0] == value

        a, b = (*args, args[0])[:2]
        if name == "select":
            which, no, yes = args
            return no if no is yes else (yes if which.args[0] else no) if which.op == "lit" else None
        if name in ("add", "or", "sub") and is_(b, 0):
            return a
        if name in ("add", "or") and is_(a, 0):
            return b
        if name == "sub" and is_(a, 0):
            return self.op("neg", b)
        if (name in ("mul", "and") and (is_(a, 0) or is_(b, 0))) or (name == "div" and is_(a, 0)):
            return self.lit(0, a.kind)
        if name in ("mul", "and") and is_(a, 1):
            return b
        if name in ("mul", "div", "and") and is_(b, 1):
            return a
        if name == "mul" and (is_(a, -1) or is_(b, -1)):
            return self.op("neg", b if is_(a, -1) else a)
        if name == "neg" and a.op == "neg":
            return a.args[0]
        if len(args) == 2 and a is b and a.kind == "int" and name in _COMPARISONS:  # of reals it asks for NaN
            return self.lit(name in ("eq", "le", "ge"), "bool")
        if name == "rem" and is_(b, 1) and a.kind == "int":
            return self.lit(0, "int")
        if name in ("to_real", "to_int", "to_bool") and a.kind == name[3:]:
            return a
        return None

    def demand(self, *nodes: Node) -> None:
        """Write the statements that nodes need, each in the outermost block that it may stand in."""
        stack = [(node, False) for node in reversed(nodes)]
        while stack:
            node, ready = stack.pop()
            if node.op in ("lit", "counter"):
                continue
            block = self.block
            while block is not node.home and not block.conditional and block.parent is not None:
                block = block.parent
            if any(node in b.defined for b in self.block.outward()):
                continue
            if ready:
                block.items.append(Define(node))
                block.defined.add(node)
                continue
            if not node.inline:
                stack.append((node, True))
            stack += [(a, False) for a in reversed(node.args) if isinstance(a, Node)]

    def store(self, array: Any, index: Node | int, node: Node) -> None:
        """Write an entry of an array, here."""
        index = self.lit(index, "int") if isinstance(index, int) else index
        self.demand(index, node)
        self.block.items.append(Store(array, index, node))

    def pin(self, nodes: list[Node]) -> None:
        """Compute numbers here: what they are made of may be overwritten afterwards."""
        self.demand(*nodes)
        for node in dict.fromkeys(nodes):
            if node.op == "load" and not any(node in b.defined for b in self.block.outward()):
                self.block.items.append(Define(node, pinned=True))
                self.block.defined.add(node)
        for item in (i for b in self.block.outward() for i in b.items if isinstance(i, Define)):
            item.pinned = item.pinned or item.node in nodes


def uses(item: Any) -> list[Node]:
    """Nodes that a statement names itself."""
    if isinstance(item, Define):
        return [a for a in item.node.args if isinstance(a, Node)]
    if isinstance(item, Store):
        return [item.index, item.node]
    if isinstance(item, If):
        return item.conditions
    return [item.condition] if isinstance(item, Break) else []


def inside(item: Any) -> list[CodeBlock]:
    """Blocks of a statement."""
    return item.branches if isinstance(item, If) else [item.body] if isinstance(item, For) else []


def used_once(root: CodeBlock) -> set[Node]:
    """Numbers that one statement of their own block uses, and nothing else does."""
    total: Counter[Node] = Counter()
    at_home: set[Node] = set()

    def visit(block: CodeBlock) -> None:
        for item in block.items:
            waiting = list(uses(item))
            while waiting:
                node = waiting.pop()
                if node.inline and node not in block.defined:
                    waiting += [a for a in node.args if isinstance(a, Node)]
                    continue
                total[node] += 1
                if node in block.defined:
                    at_home.add(node)
            if isinstance(item, Define) and item.pinned:
                total[item.node] += 2
            for inner in inside(item):
                visit(inner)

    visit(root)
    return {node for node in at_home if total[node] == 1}


class Writer:
    """The text of a program's statements, and how many operations they are.

    ``written_out`` are numbers without a name, ``shared`` names the memory of the arrays that have that of another one.
    """

    def __init__(self, written_out: set[Node], shared: dict[str, str]) -> None:
        self.names: dict[Node, str] = {}
        self.written_out, self.shared = written_out, shared
        self.count = self._number = 0

    def text(self, block: CodeBlock, indent: str = "    ") -> list[str]:
        """The lines of a block."""
        lines, before = [], set(self.names)
        for item in block.items:
            lines += [indent + line for line in self._item(item)]
        for node in set(self.names) - before:
            del self.names[node]
        return lines

    def _item(self, item: Any) -> list[str]:
        if isinstance(item, Declare):
            return [f"{TYPES[item.array.kind]} {item.array.name}[{max(item.size, item.array.size, 1)}];"]
        if isinstance(item, Break):
            return [f"if (!{self.expression(item.condition)}) {{", "    break;", "}"]
        if isinstance(item, Store):
            return [f"{self._array(item.array)}[{self._index(item.index)}] = {_bare(self.expression(item.node))};"]
        if isinstance(item, Define):
            text = self._operation(item.node)
            if item.node in self.written_out and len(text) < _LONGEST:
                self.names[item.node] = text
                return []
            self._number += 1
            self.names[item.node] = name = f"t{self._number}"
            return [f"const {TYPES[item.node.kind]} {name} = {_bare(text)};"]
        return self._loop(item) if isinstance(item, For) else self._branches(item)

    def _loop(self, item: For) -> list[str]:
        name, before = item.counter.args[0], self.count
        lines = [f"for (int {name} = 0; {name} < {item.times}; ++{name}) {{"]
        lines += [*self.text(item.body), "}"]
        self.count = before + item.times * (self.count - before)
        return lines

    def _branches(self, item: If) -> list[str]:
        lines, before, most = [], self.count, self.count
        for k, block in enumerate(item.branches):
            test = f"if ({_bare(self.expression(item.conditions[k]))}) {{" if k < len(item.conditions) else "{"
            lines += [f"}} else {test}" if k else test]
            self.count = before
            lines += self.text(block)
            most = max(most, self.count)
        self.count = most
        return [*lines, "}"]

    def expression(self, node: Node) -> str:
        """The node's name, or what it is where it has none."""
        return self.names[node] if node in self.names else self._operation(node)

    def _operation(self, node: Node) -> str:
        if node.op == "lit":
            return literal(node.args[0], node.kind)
        if node.op == "counter":
            return node.args[0]
        if node.op == "load":
            array, index = node.args
            return f"{self._array(array)}[{self._index(index)}]"
        operation = OPERATIONS[node.op]
        self.count += operation.cost and not node.inline
        return operation.text(node.kind).format(*map(self.expression, node.args))

    def _index(self, node: Node) -> str:
        return _bare(self.expression(node))

    def _array(self, array: Any) -> str:
        return self.shared.get(array.name, array.name)


def _bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if k == len(text) - 1 else text
    return text


def literal(value: Any, kind: str) -> str:
    """A constant in C."""
    if kind != "real":
        return (
            str(int(value))
            if kind == "int" and abs(value) < 2**31
            else f"INT64_C({value})"
            if kind == "int"
            else ("true" if value else "false")
        )
    if np.isfinite(value):
        return f"R({float(value)!r})"
    return "(real_t)NAN" if np.isnan(value) else "(real_t)INFINITY" if value > 0 else "(real_t)-INFINITY"
