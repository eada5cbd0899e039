"""Arrays of a C program: in memory, constant, number by number, or computed entry by entry where they are needed."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lqrlab.extensions.deployment.c_code.expressions import CodeBlock, Declare, For, Node, Statements, kind_of

Index = tuple[Node | int, ...]
_RUN = 4  # entries that are written by a loop


class Array:
    """An array of numbers of one kind, whose entries can be asked for.

    Attributes:
        block: where it was made.
        uses: how often the program uses it.
        memory: where it was stored, once it was.
    """

    shape: tuple[int, ...]
    kind: str
    block: CodeBlock
    uses: int = 1
    memory: "StoredArray | None" = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def at(self, index: Index) -> Node:
        """An entry, whose index may consist of loops' counters."""
        raise NotImplementedError


@dataclasses.dataclass(eq=False)
class StoredArray(Array):
    """An array of the C program, row after row as NumPy has it; ``version`` tells its contents from those before."""

    program: Statements
    name: str
    shape: tuple[int, ...]
    kind: str
    home: CodeBlock
    version: int = 0

    def __post_init__(self) -> None:
        self.block, self.memory = self.home, self

    def at(self, index: Index) -> Node:
        """Its entry."""
        return self.program.load(self, flat(self.program, index, self.shape))

    def as_shape(self, shape: tuple[int, ...]) -> "StoredArray":
        """The same numbers, as an array of another shape."""
        return dataclasses.replace(self, shape=shape)


@dataclasses.dataclass(eq=False)
class Constant(Array):
    """Known numbers; ``data`` if they are the controller's and not the program's. Views into ``table`` are lazy."""

    program: "ArrayProgram"
    value: np.ndarray
    data: bool = False

    def __post_init__(self) -> None:
        self.shape, self.kind, self.block = self.value.shape, kind_of(self.value.dtype), self.program.root
        flat = self.value.ravel()
        self.uniform = flat.size > 0 and bool(np.all(flat == flat[0]) or np.all(flat != flat))

    def at(self, index: Index) -> Node:
        """The number, or a place in a table of them."""
        if self.uniform or not any(isinstance(i, Node) for i in index):
            value = self.value.flat[0] if self.uniform else self.value[_known(index)]
            return self.program.lit(value, self.kind, self.data)
        return self.program.stored(self).at(index)


@dataclasses.dataclass(eq=False)
class Scalars(Array):
    """An array of few numbers, each an expression of its own."""

    program: "ArrayProgram"
    nodes: np.ndarray
    kind: str
    block: CodeBlock

    def __post_init__(self) -> None:
        self.shape = self.nodes.shape

    def at(self, index: Index) -> Node:
        """The expression; of memory where the index is not known."""
        if not any(isinstance(i, Node) for i in index):
            node: Node = self.nodes[_known(index)]
            return node
        if all(n is self.nodes.flat[0] for n in self.nodes.flat):
            return self.nodes.flat[0]
        return self.program.stored(self).at(index)


@dataclasses.dataclass(eq=False)
class Lazy(Array):
    """An array whose entries are computed where they are needed.

    Attributes:
        entry: index → expression.
        moves: whether it only moves numbers about, so that nothing is computed twice where it is used twice.
        of: the arrays that it is made of.
    """

    program: "ArrayProgram"
    entry: Callable[[Index], Node]
    shape: tuple[int, ...]
    kind: str
    block: CodeBlock
    moves: bool = False
    of: Sequence[Array] = ()

    @property
    def cheap(self) -> bool:
        """True if nothing has to be computed for an entry: moved numbers that are in memory, or expressions already."""
        return self.moves and all(not isinstance(a, Lazy) or a.memory is not None or a.cheap for a in self.of)

    def at(self, index: Index) -> Node:
        """The expression; it is stored first where loops would compute it again and again."""
        if self.memory is None and not self.moves:
            nest = self.program.nest
            if nest is not None and nest.block is self.block and nest.alike(index, self.shape):
                nest.seen[self] = nest.seen.get(self, 0) + 1
            else:
                self.program.stored(self)
        return self.entry(index) if self.memory is None else self.memory.at(index)


@dataclasses.dataclass
class Nest:
    """Loops over the entries of an array: where they stand, their counters, and what is computed in them."""

    block: CodeBlock
    index: Index
    shape: tuple[int, ...]
    seen: dict[Lazy, int] = dataclasses.field(default_factory=dict)

    def alike(self, index: Index, shape: tuple[int, ...]) -> bool:
        """True if an array of the shape is asked for the entry of this index, axes of length one aside."""
        return [(i, k) for i, k in zip(index, shape) if k != 1] == [
            (i, k) for i, k in zip(self.index, self.shape) if k != 1
        ]


class ArrayProgram(Statements):
    """A program of arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.nest: Nest | None = None
        self.tables: dict[tuple, StoredArray] = {}
        self.contents: dict[str, np.ndarray] = {}
        self.labels: dict[tuple, str] = {}

    def new(self, shape: tuple[int, ...], kind: str, block: CodeBlock | None = None) -> StoredArray:
        """Memory that belongs to a block."""
        block = block or self.block
        memory = StoredArray(self, self.fresh("a"), shape, kind, block)
        block.items.append(Declare(memory))
        return memory

    def stored(self, array: Array) -> StoredArray:
        """The array in memory, from the block on where it was made."""
        if array.memory is None:
            array.memory = self._table(array) if isinstance(array, Constant) else self._written(array)
        return array.memory

    def key(self, array: Constant) -> tuple:
        """The contents of a table."""
        return array.kind, array.value.astype({"real": float, "int": np.int64, "bool": bool}[array.kind]).tobytes()

    def _table(self, array: Constant) -> StoredArray:
        key = self.key(array)
        if key not in self.tables:
            name = self.labels.get(key, self.fresh("table"))
            self.tables[key] = StoredArray(self, name, array.shape, array.kind, self.root)
            self.contents[name] = array.value
        table = self.tables[key]
        return table if table.shape == array.shape else table.as_shape(array.shape)

    def _written(self, array: Array) -> StoredArray:
        here, nest = self.block, self.nest
        self.block, self.nest = array.block, None
        memory = self.new(array.shape, array.kind)
        if isinstance(array, Scalars):
            self.store_all(memory, list(array.nodes.flat))
        else:
            array.memory = None
            self.fill(memory, array)
        self.block, self.nest = here, nest
        return memory

    def store_all(self, memory: StoredArray, nodes: Sequence[Node]) -> None:
        """Write all entries of an array, in loops where they are one constant, or one after another in memory."""
        k = 0
        while k < len(nodes):
            node, run = nodes[k], 1
            while k + run < len(nodes) and _follows(nodes[k + run], node, run):
                run += 1
            if run < _RUN:
                self.store(memory, k, node)
                k += 1
                continue
            with self.loops((run,)) as index:
                i = flat(self, index, (run,))
                if node.op == "load":
                    source, start = node.args
                    node = self.load(source, self.op("add", i, start))
                self.store(memory, self.op("add", i, self.lit(k, "int")), node)
            k += run

    def fill(self, memory: StoredArray, array: Array, place: Callable[[Index], Index] | None = None) -> None:
        """Loops that write an array into memory."""
        block = self.block
        with self.loops(array.shape) as index:
            with self.nested(block, index, array.shape):
                node = array.at(index)
            self.store(memory, flat(self, place(index) if place else index, memory.shape), node)

    @contextlib.contextmanager
    def nested(self, block: CodeBlock, index: Index, shape: tuple[int, ...]) -> Iterator[None]:
        """Loops in which lazy arrays are computed along; what is needed again afterwards is kept."""
        before, self.nest = self.nest, Nest(block, index, shape)
        yield
        nest, self.nest = self.nest, None
        for other, count in nest.seen.items():
            if count < other.uses and other.memory is None:
                place = _of_shape(index, shape, other.shape)
                node = other.entry(place)
                other.memory = self.new(other.shape, other.kind, block)
                self.store(other.memory, flat(self, place, other.shape), node)
        self.nest = before

    def loops(self, shape: Sequence[int]) -> "LoopNest":
        """Loops over all indices of a shape, as a context."""
        return LoopNest(self, tuple(shape))

    def lazy(
        self, entry: Callable[[Index], Node], shape: Sequence[int], kind: str, of: Sequence[Array], moves: bool = False
    ) -> Lazy:
        """An array of expressions, which are made once for each index."""
        known: dict[Index, Node] = {}

        def once(index: Index) -> Node:
            if index not in known:
                known[index] = entry(index)
            return known[index]

        return Lazy(self, once, tuple(shape), kind, self.block, moves, of)


def _of_shape(index: Index, shape: tuple[int, ...], other: tuple[int, ...]) -> Index:
    """An index of an array for one that differs in axes of length one."""
    moving = iter(i for i, size in zip(index, shape) if size != 1)
    return tuple(0 if size == 1 else next(moving) for size in other)


class LoopNest:
    """A nest of loops: entered it is the program's block, and gives the index; left it is a statement."""

    def __init__(self, program: Statements, shape: tuple[int, ...]) -> None:
        self.program, self.shape = program, shape

    def __enter__(self) -> Index:
        self.outer = self.program.block
        self.made: list[tuple[Node, int, CodeBlock]] = []
        index: list[Node | int] = []
        for size in self.shape:
            if size == 1:
                index.append(0)
                continue
            body = CodeBlock(self.program.block)
            counter = self.program.counter(body)
            self.made.append((counter, size, body))
            self.program.block = body
            index.append(counter)
        return tuple(index)

    def __exit__(self, *error: Any) -> None:
        for counter, size, body in reversed(self.made):
            assert body.parent is not None
            body.parent.items.append(For(counter, size, body))
        self.program.block = self.outer


def _known(index: Index) -> tuple[int, ...]:
    """An index of numbers."""
    return tuple(i for i in index if not isinstance(i, Node))


def _follows(node: Node, first: Node, steps: int) -> bool:
    """True if a number is so many places behind another one in memory, or the same constant."""
    if first.op == "lit":
        return node is first
    if first.op != "load" or node.op != "load" or node.kind != first.kind:
        return False
    (a, i), (b, k) = first.args, node.args
    alike = (a.name, a.version, a.home) == (b.name, b.version, b.home)
    return alike and i.op == k.op == "lit" and k.args[0] == i.args[0] + steps


def flat(program: Statements, index: Index, shape: tuple[int, ...]) -> Node:
    """The place of an entry, row after row."""
    total = program.lit(0, "int")
    for i, size in zip(index, shape):
        node = i if isinstance(i, Node) else program.lit(i, "int")
        total = program.op("add", program.op("mul", total, program.lit(size, "int")), node)
    return total


def indices(shape: tuple[int, ...]) -> "itertools.product[tuple[int, ...]]":
    """All indices of a shape."""
    return itertools.product(*map(range, shape))
