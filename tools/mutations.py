"""Single faults that programmers make: each a piece of a source file, and what stands there instead."""

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple


class Mutation(NamedTuple):
    """The text between two offsets of a file exchanged; ``lines`` are those of the statement around it.

    ``same``: nothing that is computed changes, see :func:`_without_effect`.
    """

    path: str
    start: int
    end: int
    text: str
    lines: tuple[int, int]
    same: bool = False

    def applied(self, source: bytes) -> bytes:
        """The file with the fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]


SWAPPED: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
COMPARED: dict[type, tuple[type, ...]] = {
    **{ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt)},
    **{ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt)},
    **{ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,)},
    **{ast.In: (ast.NotIn,), ast.NotIn: (ast.In,)},
}
LEFT_OUT = (ast.arg, ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)
"""What holds annotations, sentences and names: a fault in it is found by no test of what is computed."""


def mutations(path: str, source: bytes) -> Iterator[Mutation]:
    """Every single fault of a file: operators, comparisons, numbers, truths, conditions, arguments, statements."""
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    tree = ast.parse(source)
    same = {id(node) for node in _without_effect(tree)}
    for statement, node in _nodes(tree, None):
        for old, new in _faults(node):
            start = begins[old.lineno - 1] + old.col_offset
            end = begins[old.end_lineno - 1] + old.end_col_offset
            text = new if isinstance(new, str) else f"({ast.unparse(new)})"
            yield Mutation(path, start, end, text, (statement.lineno, _last_line(statement)), id(old) in same)


def _without_effect(tree: ast.AST) -> Iterator[ast.AST]:
    """What no test can find another result of, by construction."""
    for node in ast.walk(tree):
        match node:
            # which of two engines of one result runs: a machine that tests has one kind of device
            case ast.Compare(left=ast.Call(func=ast.Attribute(attr="default_backend"))):
                yield node
            # (M @ v[..., None])[..., 0]: JAX takes an index beyond an axis of length one for its last
            case ast.Subscript(
                value=ast.BinOp(
                    op=ast.MatMult(), right=ast.Subscript(slice=ast.Tuple(elts=[*_, ast.Constant(value=None)]))
                ),
                slice=ast.Tuple(elts=[*_, ast.Constant(value=0) as last]),
            ):
                yield last
            # reshape(-1, ...): NumPy takes any negative number for what is left, and JAX -1 alone
            case ast.Call(func=ast.Attribute(attr="reshape")):
                for size in node.args:
                    if isinstance(size, ast.UnaryOp) and isinstance(size.op, ast.USub):
                        yield size.operand


def _nodes(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Nodes of code that is run, each with the statement that it belongs to."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, LEFT_OUT):
                continue
            around = child if isinstance(child, ast.stmt) else statement
            if around is not None:
                yield around, child
            yield from _nodes(child, around)


def _last_line(statement: ast.stmt) -> int:
    """Of a compound statement only its head counts."""
    body = getattr(statement, "body", None)
    return body[0].lineno - 1 if body and body[0].lineno > statement.lineno else statement.end_lineno


def _faults(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | str]]:
    match node:
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            yield node, _with(node, op=SWAPPED[type(op)]())
        case ast.BinOp(op=ast.MatMult()):
            yield node, _with(node, left=node.right, right=node.left)
        case ast.BoolOp(op=op):
            yield node, _with(node, op=SWAPPED[type(op)]())
        case ast.Compare(ops=[op]):
            for other in COMPARED[type(op)]:
                yield node, _with(node, ops=[other()])
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield node, node.operand
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Constant(value=float() as value):
            yield node, repr(2 * value if value else 1.0)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "True"
            yield test, "False"
        case ast.Call(keywords=[_, *_]):
            for keyword in node.keywords:
                yield node, _with(node, keywords=[k for k in node.keywords if k is not keyword])
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
