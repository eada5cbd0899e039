"""Dead-code elimination and buffer sharing."""

from collections.abc import Iterator
from typing import Any

from lqrlab.extensions.deployment.c_code.expressions import CodeBlock, Declare, Define, Node, Store, inside, uses


def _statements(block: CodeBlock) -> Iterator[Any]:
    for item in block.items:
        yield item
        for inner in inside(item):
            yield from _statements(inner)


def prune(root: CodeBlock) -> None:
    """Leave out numbers and arrays that nothing is made of; what has no declaration is what the program is for."""
    before = -1
    while before != (before := sum(1 for _ in _statements(root))):  # a loop that is left out needed something too
        _prune(root)


def _prune(root: CodeBlock) -> None:
    declared = {item.array.name for item in _statements(root) if isinstance(item, Declare)}
    stores: dict[str, list[Store]] = {}
    for item in _statements(root):
        if isinstance(item, Store):
            stores.setdefault(item.array.name, []).append(item)
    read: set[str] = set()
    needed: set[Node] = set()
    waiting = [n for item in _statements(root) if not isinstance(item, Define | Store) for n in uses(item)]
    waiting += [n for name, all_ in stores.items() if name not in declared for s in all_ for n in uses(s)]
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        waiting += [a for a in node.args if isinstance(a, Node)]
        if node.op == "load" and (name := node.args[0].name) not in read:
            read.add(name)
            waiting += [n for s in stores.get(name, ()) if name in declared for n in uses(s)]

    def clean(block: CodeBlock) -> set[Node]:
        """Leave out of a block what nothing after it uses; numbers from outside that it uses."""
        kept, used = [], set[Node]()
        for item in reversed(block.items):
            if isinstance(item, Define) and item.node not in used:
                continue
            if isinstance(item, Store | Declare) and item.array.name in declared - read:
                continue
            within = [clean(inner) for inner in inside(item)]
            if within and not any(inner.items for inner in inside(item)):
                continue
            kept.append(item)
            used.update(*within, _spelt_out(uses(item)))
        block.items = kept[::-1]
        return used - {item.node for item in kept if isinstance(item, Define)}

    clean(root)


def _spelt_out(nodes: list[Node]) -> set[Node]:
    """Nodes with those that inline ones consist of."""
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        found.add(node)
        if node.inline:
            waiting += [a for a in node.args if isinstance(a, Node)]
    return found


def _touched(item: Any, written_out: set[Node]) -> set[str]:
    """Names of the arrays that a statement and those in it write or read, and the numbers written out there."""
    names, waiting = set(), list(uses(item))
    if isinstance(item, Store):
        names.add(item.array.name)
    while waiting:
        node = waiting.pop()
        if node.op == "load":
            names.add(node.args[0].name)
        if node.inline or node in written_out:
            waiting += [a for a in node.args if isinstance(a, Node)]
    for block in inside(item):
        names |= set().union(*(_touched(inner, written_out) for inner in block.items))
    return names


def share(block: CodeBlock, written_out: set[Node]) -> dict[str, str]:
    """Buffer sharing: for each array the array of the same block whose memory it takes over.

    Declarations move to the head of the block, each as long as the longest of its arrays; ``written_out`` are numbers
    without a name, which are computed where they are used.
    """
    names: dict[str, str] = {}
    arrays = {item.array.name: item.array for item in block.items if isinstance(item, Declare)}
    first, last = dict[str, int](), dict[str, int]()
    for place, item in enumerate(block.items):
        for name in _touched(item, written_out) & set(arrays):
            first.setdefault(name, place)
            last[name] = place
    free: list[tuple[int, Declare]] = []
    slots: list[Declare] = []
    for name in sorted(first, key=lambda name: (first[name], name)):  # the same in each process
        array = arrays[name]
        fitting = [k for k, (end, slot) in enumerate(free) if end < first[name] and slot.array.kind == array.kind]
        if fitting:
            best = min(fitting, key=lambda k: abs(free[k][1].size - array.size))
            slot = free.pop(best)[1]
            slot.size = max(slot.size, array.size)
        else:
            slots.append(slot := Declare(array, array.size))
        names[name] = slot.array.name
        free.append((last[name], slot))
    block.items = [*slots, *(item for item in block.items if not isinstance(item, Declare))]
    for item in block.items:
        for inner in inside(item):
            names |= share(inner, written_out)
    return names
