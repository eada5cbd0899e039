"""What a notebook declares: its parameters with their types, its title, and what its result depends on.

Everything here reads the file and runs nothing, so a wrong parameter is refused before anything starts.
"""

import ast
import dataclasses
import difflib
import hashlib
import io
import json
import math
import re
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lqrlab

_TYPES = {t.__name__: t for t in (int, float, bool, str, list, dict)} | {"None": None, "Any": Any}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One line ``name: type = default  # about`` of the cell tagged ``parameters``."""

    name: str
    type: Any
    default: Any
    about: str = ""

    @property
    def type_name(self) -> str:
        """The type as a person writes it."""
        return _named(self.type)


@dataclasses.dataclass(frozen=True)
class Notebook:
    """A notebook file without its outputs.

    Attributes:
        path: where it is.
        cells: its cells, as plain dictionaries.
        metadata: of the whole notebook; ``{"lqrlab": {"needs": [...]}}`` names the notebooks whose files it
            reads, where these are not simply all before it.
        parameters: by name, in the order of the cell.
        kind: what it is to a person: a plant can be swept over, too.
    """

    path: Path
    cells: tuple[dict[str, Any], ...]
    metadata: dict[str, Any]
    parameters: dict[str, Parameter]
    kind: str = "notebook"

    @property
    def name(self) -> str:
        """The file's name without its ending, as parameters and results are filed under."""
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


def source(cell: Mapping[str, Any]) -> str:
    """The text of a cell, which the format stores as one string or as lines."""
    text = cell["source"]
    return text if isinstance(text, str) else "".join(text)


def tags(cell: Mapping[str, Any]) -> list[str]:
    """The tags of a cell."""
    return cell.get("metadata", {}).get("tags", [])


def headings(cell: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Level and plain text of each heading in a Markdown cell."""
    if cell["cell_type"] == "markdown":
        prose = re.sub(r"^(```|~~~).*?^\1", "", source(cell), flags=re.M | re.S)
        for hashes, text in re.findall(r"^(#{1,6})\s+(.+?)\s*#*$", prose, flags=re.M):
            yield len(hashes), re.sub(r"[*`]|\b_|_\b", "", text)


def read(path: Path) -> Notebook:
    """Read a notebook; a ``ValueError`` names a file that is not one, or a parameter not declared well."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(content["cells"])
        declared = [cell for cell in cells if "parameters" in tags(cell)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a notebook that can be read ({error})") from None
    if len(declared) > 1:
        raise ValueError(f"{path}: one cell may be tagged 'parameters', but found {len(declared)}")
    parameters = _declared(path, source(declared[0])) if declared else {}
    return Notebook(path, cells, content.get("metadata", {}), parameters)


def find(folder: Path) -> list[Notebook]:
    """The notebooks that make up the main job: those numbered 01 to 09 in ``folder``, in order."""
    paths = sorted(folder.glob("0[0-9]_*.ipynb"))
    if not paths:
        raise ValueError(f"notebooks: found none named 01_….ipynb in {folder}")
    return [read(path) for path in paths]


def named(folder: Path, names: Sequence[str]) -> list[Notebook]:
    """Notebooks of ``folder`` by name or path, of the main job or not; one that is not there is refused."""
    there = {path.stem: path for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    wanted = [Path(name).name.removesuffix(".ipynb") for name in names]
    for name in wanted:
        if name not in there:
            raise ValueError(f"notebooks: there is no {name!r} in {folder}{near(name, there)}")
    return [read(there[name]) for name in dict.fromkeys(wanted)]


def _declared(path: Path, text: str) -> dict[str, Parameter]:
    try:
        statements = ast.parse(text).body
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.COMMENT
        }
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"{path}: the cell tagged 'parameters' is not Python ({error})") from None
    parameters = {}
    for node in statements:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value, annotation = node.target.id, node.value, ast.unparse(node.annotation)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value, annotation = node.targets[0].id, node.value, ""
        else:
            continue
        try:
            default = ast.literal_eval(value)
            kind = eval(annotation, {"__builtins__": {}}, _TYPES) if annotation else type(default)
            default = convert(default, kind)
        except (ValueError, NameError, TypeError):
            raise ValueError(
                f"{path}, parameter {name}: expected 'name: type = value', a plain value and a type out of "
                f"{', '.join(_TYPES)}, but found {ast.unparse(node)!r}"
            ) from None
        parameters[name] = Parameter(name, kind, default, comments.get(node.end_lineno or 0, ""))
    return parameters


# Values -------------------------------------------------------------------------------------------------


def convert(value: Any, kind: Any, *, text: bool = False) -> Any:
    """Return ``value`` as one of type ``kind``; raise ``TypeError`` where it is not.

    Args:
        value: what came; with ``text`` it is a string as typed on a command line.
        kind: ``int``, ``float``, ``bool``, ``str``, ``list[…]``, ``dict[…]`` or a union of these.
        text: read ``value`` first: ``true``/``false``, JSON, or for a list also ``a,b,c``.
    """
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return convert(value, option, text=text)
            except TypeError:
                continue
        raise TypeError
    if kind in (None, type(None)):
        if value is None or (text and str(value).lower() in ("none", "null")):
            return None
        raise TypeError
    if text and kind is not str:
        value = _read(value, listed=origin is list)
    if kind is Any:
        return value
    if origin is list and isinstance(value, list | tuple):
        return [convert(v, args[0] if args else Any) for v in value]
    if origin is dict and isinstance(value, dict):
        k, v = args or (Any, Any)
        return {convert(a, k): convert(b, v) for a, b in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise TypeError
    return value


def _named(kind: Any) -> str:
    return kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")


def _read(text: str, *, listed: bool) -> Any:
    """A value as typed: JSON where it is JSON, words otherwise, a list at its commas."""
    text = text.strip()
    if listed and not text.startswith("["):
        return [_read(part, listed=False) for part in text.split(",") if part.strip()]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return json.loads(text)
    except ValueError:
        return text


def retyped(config: type, given: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a kind of config as typed on a command line; the config itself checks their values."""
    kinds = typing.get_type_hints(config)
    values = {}
    for name, text in given.items():
        if name not in kinds:
            raise ValueError(f"{name}: {config.__name__} has no such field{near(name, kinds)}")
        kind = kinds[name]
        if typing.get_origin(kind) is tuple:
            kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
        try:
            values[name] = convert(text, kind, text=True)
        except TypeError:
            raise ValueError(f"{name}: expected {_named(kind)}, but found {text!r}") from None
    return values


def effective(
    chain: Sequence[Notebook], profile: Mapping[str, Mapping[str, Any]], overrides: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The parameters that each notebook will run with: its defaults, then the profile, then the overrides.

    Args:
        chain: the notebooks.
        profile: notebook → parameter → value.
        overrides: ``"notebook.parameter"``, or ``"parameter"`` for every notebook that declares it → value;
            strings are read as typed on a command line.

    Raises:
        ValueError: naming the notebook, the parameter, the type expected and what came.
    """
    for nb in chain:
        if "run" not in nb.parameters:
            raise ValueError(
                f"{nb.path}: declares no parameter 'run: str', the folder that it reads and writes"
            )
    by_name = {nb.name: nb for nb in chain}
    values = {nb.name: {p.name: p.default for p in nb.parameters.values()} for nb in chain}
    for name, given in profile.items():
        if name not in by_name:
            raise ValueError(f"profile: there is no notebook {name!r}{near(name, by_name)}")
        for key, value in given.items():
            values[name][key] = _checked(by_name[name], key, value, text=False)
    for key, value in overrides.items():
        name, dot, short = key.rpartition(".")
        if dot and name not in by_name:
            raise ValueError(f"{key}: there is no notebook {name!r}{near(name, by_name)}")
        meant = [by_name[name]] if dot else [nb for nb in chain if short in nb.parameters]
        if not meant:
            every = sorted({p for nb in chain for p in nb.parameters} - {"run"})
            raise ValueError(f"{key}: no notebook has a parameter of this name{near(short, every)}")
        for nb in meant:
            values[nb.name][short] = _checked(nb, short, value, text=isinstance(value, str))
    return values


def _checked(nb: Notebook, key: str, value: Any, *, text: bool) -> Any:
    if key == "run":
        raise ValueError(f"{nb.name}.run: is set by the run's folder (--folder), not as a parameter")
    if key not in nb.parameters:
        raise ValueError(f"{nb.name}.{key}: the {nb.kind} has no such parameter{near(key, nb.parameters)}")
    parameter = nb.parameters[key]
    try:
        return convert(value, parameter.type, text=text)
    except TypeError:
        about = f" ({parameter.about})" if parameter.about else ""
        finite = "a finite float" if parameter.type is float else parameter.type_name
        raise ValueError(f"{nb.name}.{key}{about}: expected {finite}, but found {value!r}") from None


def near(name: str, there: Mapping[str, Any] | Sequence[str]) -> str:
    """The end of a message about a name that is not there: the near ones, else all."""
    names = [n for n in there if n != "run"]
    close = difflib.get_close_matches(name, names, n=4, cutoff=0.5)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; there are {', '.join(names)}" if names else ""


# What a result depends on -------------------------------------------------------------------------------


# Changing how things are started or shown makes no result stale.
def package_hash(root: Path = Path(lqrlab.__file__).parent) -> str:
    """Hash of the source files of lqrlab that can change a result: all but the workbench, which starts and shows."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("workbench/"):
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def fingerprints(chain: Sequence[Notebook], values: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each notebook, a hash of all that its result follows from.

    That is: its cells without outputs, its parameters (apart from ``run``, so that a folder may be moved),
    the package, and the code and parameters of the notebooks before it (or of those that its metadata name).
    Rewording a notebook reruns that notebook alone.
    """
    package = package_hash()
    whole: dict[str, str] = {}
    handed_on: dict[str, str] = {}
    for nb in chain:
        needs = nb.metadata.get("lqrlab", {}).get("needs", list(handed_on))
        unknown = [name for name in needs if name not in handed_on]
        if unknown:
            raise ValueError(
                f"{nb.path}: its metadata say that it needs {unknown[0]!r}, which does not come before it"
            )
        code = [source(c) for c in nb.cells if c["cell_type"] == "code" and "parameters" not in tags(c)]
        basis = [package, _given(values[nb.name]), [handed_on[name] for name in needs]]
        whole[nb.name] = _hash([_cells(nb), *basis])
        handed_on[nb.name] = _hash([code, *basis])
    return whole


def fingerprint(
    nb: Notebook, values: Mapping[str, Any], inputs: Sequence[Any] = (), package: str | None = None
) -> str:
    """A hash of all that the result of one notebook follows from, where its inputs are there already.

    Args:
        nb, values: the notebook and its parameters.
        inputs: what tells the files that it reads from others.
        package: of the package as it is, where that has been computed.
    """
    return _hash([_cells(nb), package or package_hash(), _given(values), list(inputs)])


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if k != "run"}


def _cells(nb: Notebook) -> list[Any]:
    return [(c["cell_type"], tags(c), source(c)) for c in nb.cells]


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
