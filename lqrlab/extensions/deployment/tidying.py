"""A program without what nobody reads, its arrays in as little memory as they need at once."""

from collections.abc import Iterator
from typing import Any

from lqrlab.extensions.deployment.expressions import Block, Declare, Define, For, If, Node, Store, used_once, uses


def blocks_in(item: Any) -> list[Block]:
    """Blocks inside a statement."""
    return item.branches if isinstance(item, If) else [item.body] if isinstance(item, For) else []


def _statements(block: Block) -> Iterator[Any]:
    for item in block.items:
        yield item
        for inner in blocks_in(item):
            yield from _statements(inner)


def prune(root: Block) -> None:
    """Leave out numbers and arrays that nothing is made of; what has no declaration is what the program is for."""
    before = -1
    while before != (before := sum(1 for _ in _statements(root))):  # a loop that is left out needed something too
        _prune(root)


def _prune(root: Block) -> None:
    inside = {item.array.name for item in _statements(root) if isinstance(item, Declare)}
    stores: dict[str, list[Store]] = {}
    for item in _statements(root):
        if isinstance(item, Store):
            stores.setdefault(item.array.name, []).append(item)
    read: set[str] = set()
    needed: set[Node] = set()
    waiting = [n for item in _statements(root) if not isinstance(item, Define | Store) for n in uses(item)]
    waiting += [n for name, all_ in stores.items() if name not in inside for s in all_ for n in uses(s)]
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        waiting += [a for a in node.args if isinstance(a, Node)]
        if node.op == "load" and (name := node.args[0].name) not in read:
            read.add(name)
            waiting += [n for s in stores.get(name, ()) if name in inside for n in uses(s)]

    def live(item: Any) -> bool:
        if isinstance(item, Define):
            return item.node in needed
        if isinstance(item, Store | Declare):
            return item.array.name in read or item.array.name not in inside
        for block in blocks_in(item):
            clean(block)
        return not isinstance(item, If | For) or any(block.items for block in blocks_in(item))

    def clean(block: Block) -> None:
        block.items = [item for item in block.items if live(item)]

    clean(root)


def _touched(item: Any, written_out: set[Node]) -> set[str]:
    """Names of the arrays that a statement and those in it write or read, the numbers that are written out there too."""
    names, waiting = set(), list(uses(item))
    if isinstance(item, Store):
        names.add(item.array.name)
    while waiting:
        node = waiting.pop()
        if node.op == "load":
            names.add(node.args[0].name)
        if node.inline or node in written_out:
            waiting += [a for a in node.args if isinstance(a, Node)]
    for block in blocks_in(item):
        names |= set().union(*(_touched(inner, used_once(block)) for inner in block.items))
    return names


def share(block: Block) -> dict[str, str]:
    """Names of the arrays whose memory an array of the same block can have, because nobody reads them any more.

    Declarations move to the head of the block, each as long as the longest of its arrays.
    """
    names: dict[str, str] = {}
    arrays = {item.array.name: item.array for item in block.items if isinstance(item, Declare)}
    written_out = used_once(block)
    first, last = dict[str, int](), dict[str, int]()
    for place, item in enumerate(block.items):
        for name in _touched(item, written_out) & set(arrays):
            first.setdefault(name, place)
            last[name] = place
    free: list[tuple[int, Declare]] = []
    slots: list[Declare] = []
    for name in sorted(first, key=lambda name: first[name]):
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
        for inner in blocks_in(item):
            names |= share(inner)
    return names
