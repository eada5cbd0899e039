"""A notebook as a file: its parameters with their types, its headings, the notebooks whose files it reads.

Everything here reads the file and runs nothing, so a wrong parameter is refused before anything starts.
"""

import ast
import dataclasses
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Any

from lqrlab.compute import checks
from lqrlab.compute.config import checked

Cell = Mapping[str, Any]
Kind = type | GenericAlias | UnionType | None
"""The type that a parameter is declared with."""
Values = dict[str, object]
"""Parameters by name."""
_TYPES: dict[str, type] = {kind.__name__: kind for kind in (int, float, bool, str, list, dict)}
MAIN_JOB = "0[0-9]_*.ipynb"
NUMBERED = "[0-9][0-9]_*.ipynb"


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One line ``name: type = default  # about`` of the cell tagged ``parameters``."""

    name: str
    type: Kind
    default: object
    about: str = ""


@dataclasses.dataclass(frozen=True)
class Notebook:
    """A notebook file without its outputs.

    Attributes:
        path: where it is.
        cells: its cells, as plain dictionaries.
        metadata: what the notebook's metadata say under ``lqrlab``: ``needs`` lists the notebooks whose files it
            reads, ``vmap`` the parameters that may differ between trainings in one program.
        parameters: by name, in the order of the cell.
        kind: what it is to a person: a plant can be swept over, too.
    """

    path: Path
    cells: tuple[Cell, ...]
    metadata: Mapping[str, list[str]]
    parameters: dict[str, Parameter]
    kind: str = "notebook"

    @property
    def name(self) -> str:
        """The file's name without its ending; parameters and results are filed under it."""
        return self.path.stem

    @property
    def title(self) -> str:
        """Its first heading."""
        return next((text for cell in self.cells for _, text in headings(cell)), self.name)

    @property
    def steps(self) -> list[str]:
        """For each code cell that runs, the heading that it stands under.

        The cell of the parameters counts twice: papermill adds one with the values that were given.
        """
        steps, heading = [], self.name
        for cell in self.cells:
            heading = [heading, *(text for _, text in headings(cell))][-1]
            if cell["cell_type"] == "code" and source(cell).strip():
                steps += [heading] * (2 if "parameters" in tags(cell) else 1)
        return steps


def source(cell: Cell) -> str:
    """The text of a cell, which the format stores as one string or as lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    return cell.get("metadata", {}).get("tags", [])


def headings(cell: Cell) -> Iterator[tuple[int, str]]:
    """Level and plain text of each heading in a Markdown cell."""
    if cell["cell_type"] == "markdown":
        prose = re.sub(r"^(```|~~~).*?^\1", "", source(cell), flags=re.M | re.S)
        for hashes, text in re.findall(r"^(#{1,6})\s+(.+?)\s*#*$", prose, flags=re.M):
            yield len(hashes), re.sub(r"[*`]|\b_|_\b", "", text)


def read(path: Path) -> Notebook:
    """Read a notebook.

    Raises:
        ValueError: the file is not a notebook, or a parameter is not declared well.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(content["cells"])
        declared = [source(cell) for cell in cells if "parameters" in tags(cell)]
        metadata = content.get("metadata", {}).get("lqrlab", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a notebook that can be read ({error})") from None
    if len(declared) > 1:
        raise ValueError(f"{path}: one cell may be tagged 'parameters', but found {len(declared)}")
    return Notebook(path, cells, metadata, _parameters(path, declared[0]) if declared else {})


def find(folder: Path) -> list[Notebook]:
    """The notebooks that make up the main job: those numbered 01 to 09 in ``folder``, in order."""
    paths = sorted(folder.glob(MAIN_JOB))
    if not paths:
        raise ValueError(f"notebooks: found none named 01_….ipynb in {folder}")
    return [read(path) for path in paths]


def named(folder: Path, names: Sequence[str]) -> list[Notebook]:
    """Notebooks of ``folder`` by name or path, of the main job or not; an unknown one is refused."""
    paths = {path.stem: path for path in sorted(folder.glob(NUMBERED))}
    wanted = [Path(name).name.removesuffix(".ipynb") for name in names]
    for name in wanted:
        if name not in paths:
            raise ValueError(f"notebooks: there is no {name!r} in {folder}{near(name, paths)}")
    return [read(paths[name]) for name in dict.fromkeys(wanted)]


def near(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the near ones, else all."""
    names = [n for n in known if n != "run"]
    return checks.did_you_mean(name, names) or (f"; there are {', '.join(names)}" if names else "")


def _parameters(path: Path, text: str) -> dict[str, Parameter]:
    """What the cell tagged ``parameters`` declares; it is parsed and never evaluated."""
    try:
        statements = ast.parse(text).body
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}: the cell tagged 'parameters' is not Python ({error})") from None
    parameters = {}
    for node in statements:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value, annotation = node.target.id, node.value, node.annotation
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value, annotation = node.targets[0].id, node.value, None
        else:
            continue
        try:
            default = ast.literal_eval(value)
            kind = _kind(annotation) if annotation else type(default)
            default = checked(name, default, kind)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise ValueError(
                f"{path}, parameter {name}: expected 'name: type = value', a plain value and a type made of "
                f"{', '.join(_TYPES)} and None, but found {ast.get_source_segment(text, node)!r}"
            ) from None
        parameters[name] = Parameter(name, kind, default, comments.get(node.end_lineno or 0, ""))
    return parameters


def _kind(node: ast.expr) -> Kind:
    """The type that an annotation stands for, found by its form: evaluating it could run anything."""
    match node:
        case ast.Name(id=name) if name in _TYPES:
            return _TYPES[name]
        case ast.Constant(value=None):
            return None
        case ast.Subscript(value=ast.Name(id="list"), slice=item):
            return GenericAlias(list, (_kind(item),))
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, item])):
            return GenericAlias(dict, (_kind(key), _kind(item)))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _kind(left) | _kind(right)  # type: ignore[operator]
    raise ValueError("not a plain type")
