"""A notebook as a file: its parameters with their types, the values that it runs with, the hash of its inputs.

Everything here reads files and runs nothing. Papermill's inspection takes 1.7 s to import, at each Tab key too.
"""

import ast
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import re
import sys
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import lqrlab
from lqrlab.compute import checks
from lqrlab.compute.configuration import OneOf, Range, Seed, checked
from lqrlab.compute.files import distinct, plant_files, read_object
from lqrlab.installation import program
from lqrlab.systems import catalogue
from lqrlab.workbench.runs import plant_copies, session

Cell = Mapping[str, Any]
Values = dict[str, object]
"""Parameters by name."""
Config = typing.TypeVar("Config")
PLANTS = "lqrlab.plants"  # entry points of packages that bring plants
MAIN_JOB, NUMBERED = "0[0-9]_*.ipynb", "[0-9][0-9]_*.ipynb"
_BOUNDS = {"≥": "low", ">": "above", "≤": "high", "<": "below"}
BY_OPTION = {"run": "the run's folder (--folder)", "plants_file": "--plants FILE"}
"""Parameters that a person sets in a notebook, and the command line by an option."""
FAMILIES = ("family", "families", "held_out", "others", "pages", "films", "large", "trial_family")
"""Parameters that name families of plants: those that do not exist are refused."""
_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str, list, dict)}
_TYPES |= {str(kind): kind for kind in (list[int], list[float], list[str], dict[str, float])}
_TYPES |= {f"{name} | None": kind | None for name, kind in _TYPES.items()}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One line ``name: type = default  # about`` of the cell tagged ``parameters``."""

    name: str
    type: Any
    default: object
    about: str = ""

    @property
    def limited(self) -> Any:
        """Its type, or that of its entries, with the limits of its comment: ``≥ 0 and < 1``, or ``one of a, b;``."""
        if self.name == "seed":
            return Seed
        if choices := re.search(r"\bone of ([^;]+)", self.about):
            return Annotated[self.type, OneOf(*(word.strip() for word in choices[1].split(",")))]
        found = re.findall(r"([≥>≤<]) (-?\d[\d.e+-]*)", self.about)
        ends: dict[str, Any] = {_BOUNDS[sign]: float(end.rstrip(".")) for sign, end in found}
        *names, inner = typing.get_args(self.type) or (self.type,)
        if found and (outer := typing.get_origin(self.type)) in (list, dict):
            return outer[(*names, Annotated[inner, Range(**ends)])]
        return Annotated[self.type, Range(**ends)] if found else self.type


@dataclasses.dataclass(frozen=True)
class Notebook:
    """A notebook file without its outputs; the source of each cell is one text."""

    path: Path
    cells: tuple[Cell, ...]
    metadata: Mapping[str, list[str]]  # those of lqrlab: ``needs`` lists the notebooks whose files it reads
    parameters: dict[str, Parameter]

    @property
    def name(self) -> str:
        """The file's name without its ending; parameters and results are filed under it."""
        return self.path.stem

    @property
    def title(self) -> str:
        """Its first heading."""
        return next((text for cell in self.cells for _, text in headings(cell)), self.name)

    @property
    def question(self) -> str:
        """Its question: the first bold sentence that ends in a question mark."""
        prose = "\n".join(cell["source"] for cell in self.cells if cell["cell_type"] == "markdown")
        found = re.search(r"\*\*([^*]+\?)\*\*", prose)
        return " ".join(found[1].split()) if found else ""


class Step(NamedTuple):
    """A notebook of a run, its parameters, and the fingerprint of its result."""

    nb: Notebook
    values: Values
    fingerprint: str


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    return cell.get("metadata", {}).get("tags", [])


def headings(cell: Cell) -> Iterator[tuple[int, str]]:
    """Level and plain text of each heading in a Markdown cell."""
    if cell["cell_type"] == "markdown":
        prose = re.sub(r"^(```|~~~).*?^\1", "", cell["source"], flags=re.M | re.S)
        for hashes, text in re.findall(r"^(#{1,6})\s+(.+?)\s*#*$", prose, flags=re.M):
            yield len(hashes), re.sub(r"[*`]|\b_|_\b", "", text)


def read(path: Path) -> Notebook:
    """Read a notebook; a ``ValueError`` names a file that is not one, or a parameter not declared well."""
    try:
        content = read_object(path)
        cells = tuple(cell | {"source": "".join(cell["source"])} for cell in content["cells"])  # lines, or one text
        declared = [cell["source"] for cell in cells if "parameters" in tags(cell)]
        metadata = content.get("metadata", {}).get("lqrlab", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a notebook that can be read ({error})") from None
    if len(declared) > 1:
        raise ValueError(f"{path}: one cell may be tagged 'parameters', but found {len(declared)}")
    return Notebook(path, cells, metadata, _parameters(path, "".join(declared)))


def find(folder: Path) -> list[Notebook]:
    """The notebooks that make up the main job: those numbered 01 to 09 in ``folder``, in order."""
    if paths := sorted(folder.glob(MAIN_JOB)):
        return [read(path) for path in paths]
    raise ValueError(f"notebooks: found none named 01_….ipynb in {folder}")


def named(folder: Path, names: Sequence[str]) -> list[Notebook]:
    """Notebooks of ``folder`` by name, its beginning or path, of the main job or not; an unknown one is refused."""
    paths = {path.stem: path for path in sorted(folder.glob(NUMBERED))}
    wanted = []
    for name in names:
        if "=" in name:
            raise ValueError(f"notebooks: {name!r} is none; set values with -p, as in -p {name}")
        wanted.append(the_one("notebooks: there is no", Path(name).name.removesuffix(".ipynb"), paths))
    return [read(paths[name]) for name in dict.fromkeys(wanted)]


def the_one(refusal: str, name: str, names: Iterable[str]) -> str:
    """The one of ``names`` that is ``name``, or alone begins with it; a ``ValueError`` gives the near ones."""
    names = list(names)
    found = [name] if name in names else [other for other in names if name and other.startswith(name)]
    if len(found) == 1:
        return found[0]
    raise ValueError(f"{refusal} {name!r}" + (f"; {' and '.join(found)} begin so" if found else near(name, names)))


def near(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the near ones, else all."""
    there = [n for n in names if n not in BY_OPTION]
    return checks.did_you_mean(name, there) or (f"; there are {', '.join(there)}" if there else "")


def _parameters(path: Path, text: str) -> dict[str, Parameter]:
    """Parameters that the cell declares; it is parsed and never evaluated."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{path}: the cell tagged 'parameters' is not Python ({error})") from None
    lines, parameters = text.encode().split(b"\n"), {}
    for node in statements:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        try:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value):
                raise ValueError
            # looked up by its form: evaluating it could run anything
            name, kind = node.target.id, _TYPES[ast.unparse(node.annotation)]
            default = checked(name, ast.literal_eval(node.value), kind)
            behind = lines[(node.value.end_lineno or 0) - 1][node.value.end_col_offset :]
        except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
            raise ValueError(
                f"{path}, parameters: expected 'name: type = value', a plain value and a type of "
                f"{', '.join(_TYPES)}, but found {ast.get_source_segment(text, node)!r}"
            ) from None
        parameters[name] = Parameter(name, kind, default, behind.decode().partition("#")[2].strip())
    return parameters


def read_profile(source: Path, name: str) -> Mapping[str, Values]:
    """The parameters that a profile, ``profiles/<name>.json`` in the notebooks' folder, sets."""
    path = source / "profiles" / f"{name}.json"
    if not path.exists():
        there = sorted(p.stem for p in path.parent.glob("*.json"))
        raise ValueError(f"profile: there is no {name!r} in {path.parent}{near(name, there)}")
    try:
        content = read_object(path)
        if not all(isinstance(v, dict) for v in content.values()):
            raise ValueError("found something else")
    except ValueError as error:
        raise ValueError(f"{path}: expected {{notebook: {{parameter: value}}}}; {error}") from None
    return content


def effective(
    chain: Sequence[Notebook], profile: Mapping[str, Values], given: Mapping[str, object]
) -> dict[str, Values]:
    """The parameters that each notebook will run with: its defaults, then the profile, then what was given.

    ``given`` maps ``"notebook.parameter"``, or ``"parameter"`` for all notebooks that declare it, to values as typed.
    """
    for nb in chain:
        if "run" not in nb.parameters:
            raise ValueError(f"{nb.path}: declares no parameter 'run: str', its folder")
    by_name = {nb.name: nb for nb in chain}
    values: dict[str, Values] = {nb.name: {p.name: p.default for p in nb.parameters.values()} for nb in chain}
    for name, settings in profile.items():
        if name in by_name:
            declared = by_name[name].parameters
            values[name] |= {key: check_value(name, declared, key, value) for key, value in settings.items()}
        elif name not in {path.stem for path in chain[0].path.parent.glob(NUMBERED)}:
            raise ValueError(f"profile: there is no notebook {name!r}{near(name, by_name)}")
    for key, value in given.items():
        name, dot, short = key.rpartition(".")
        meant = [nb for nb in chain if short in nb.parameters]
        if dot:
            meant = [by_name[the_one(f"{key}: there is no notebook", name, by_name)]]
        if not meant:
            there = sorted({p for nb in chain for p in nb.parameters})
            raise ValueError(f"{key}: no notebook has a parameter of this name{near(short, there)}")
        for nb in meant:
            values[nb.name][short] = check_value(nb.name, nb.parameters, short, value, typed=True)
    return values


def check_value(
    owner: str, known: Mapping[str, Parameter], key: str, value: object, *, typed: bool = False, what: str = "notebook"
) -> object:
    """The value of a parameter of a notebook or plant, as typed on a command line or not; refused unless it fits."""
    if key in BY_OPTION and typed:
        raise ValueError(f"{owner}.{key}: is set by {BY_OPTION[key]}, not as a parameter")
    if key not in known:
        raise ValueError(f"{owner}.{key}: the {what} has no such parameter{near(key, known)}")
    parameter = known[key]
    about = f" ({parameter.about})" if parameter.about else ""
    value = from_text(value, parameter.type) if typed and isinstance(value, str) else value
    fits = checked(f"{owner}.{key}{about}", value, parameter.limited)
    if fits in ([], {}, "") and parameter.default and "empty" not in parameter.about:
        raise ValueError(f"{owner}.{key}{about}: expected at least one, but found {fits!r}")
    if key in FAMILIES and not ("all" in fits and '"all"' in parameter.about):
        require_family(f"{owner}.{key}", *([fits] if isinstance(fits, str) else fits))
    return fits


def require_family(label: str, *names: str) -> None:
    """Refuse names of no plant; without JAX, unless plants of a file or of another package may be meant."""
    known: Collection[str] = () if "lqrlab.systems.families" in sys.modules else catalogue.places()
    if not {*names} <= {*known} and (not known or plant_files() or importlib.metadata.entry_points(group=PLANTS)):
        from lqrlab import compute, systems

        compute.setup()
        known = systems.names()
    for name in names:
        if name not in known:
            hint = checks.did_you_mean(name, known) or f"; {program()} systems lists them, --plants FILE adds yours"
            raise ValueError(f"{label}: no plant is called {name!r}{hint}")


def check_executed(name: str, namespace: Mapping[str, Any]) -> None:
    """Check the parameters of a notebook that is being executed, as those of ``lqrlab run``, by the cells so far.

    ``namespace`` is the kernel's: its ``In`` has the sources of the cell that declares ``run``, and of the one that
    papermill puts behind it, plain assignments below a comment.
    """
    known, given = dict[str, Parameter](), Values()
    for text in namespace.get("In", ()):
        if re.search(r"^run: str = ", text, re.MULTILINE):
            known = _parameters(Path(name), text)
            given = {key: parameter.default for key, parameter in known.items()}
        elif known and text.startswith("# Parameters\n"):
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    key = node.targets[0].id
                    given[key] = namespace.get(key)  # a later cell may have given it another value
                    with contextlib.suppress(ValueError):  # float('nan') is no literal
                        given[key] = ast.literal_eval(node.value)
    for key, value in given.items():
        check_value(name, known, key, value)


def from_text(text: str, kind: Any) -> object:
    """A value as typed on a command line: JSON, ``true``, ``none``, or for a list also ``a,b,c``; unchecked."""
    text = text.strip()
    if type(None) in typing.get_args(kind):
        if text.lower() in ("none", "null"):
            return None
        kind = typing.get_args(kind)[0]
    listed: Any = typing.get_origin(kind) or kind
    if listed in (list, tuple) and not text.startswith("["):
        item = (*typing.get_args(kind), object)[0]
        return [from_text(part, item) for part in text.split(",") if part.strip()]
    if kind is str:
        return text
    try:
        return json.loads(text.lower() if kind is bool else text, object_pairs_hook=distinct)
    except ValueError:
        return text


def config(kind: type[Config], values: Mapping[str, Any], options: str = "") -> Config:
    """A config with those of a notebook's parameters that are its fields, and what the parameter ``options`` holds."""
    names = {f.name for f in dataclasses.fields(kind)} & values.keys()  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names} | values.get(options, {}))


def package_hash(root: Path = Path(lqrlab.__file__).parent) -> str:
    """Hash of lqrlab's version, its sources without the workbench, which changes no result, and the user's plants."""
    digest = hashlib.sha256(lqrlab.__version__.encode())
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".toml")):
        name = path.relative_to(root).as_posix()
        if not name.startswith("workbench/"):
            digest.update(name.encode() + b"\0" + path.read_bytes())
    for file in plant_files():
        digest.update(plant_copies.checksum(Path(file)).encode())
    return digest.hexdigest()[:16]


def fingerprints(chain: Sequence[Notebook], values: Mapping[str, Values]) -> dict[str, str]:
    """Fingerprints of a chain of notebooks; each reads from those before it that its metadata name, else from all."""
    package, prints = package_hash(), dict[str, str]()
    for nb in chain:
        needs = nb.metadata.get("needs", prints)
        if unknown := set(needs) - set(prints):
            raise ValueError(f"{nb.path}: its metadata need {min(unknown)!r}, which does not come before it")
        prints[nb.name] = fingerprint(nb, values[nb.name], [prints[name] for name in needs], package)
    return prints


def fingerprint(nb: Notebook, values: Values, inputs: Sequence[str | None], package: str) -> str:
    """Hash of what a result depends on: source and parameters of the notebook, fingerprints of its inputs, package."""
    cells = [(cell["cell_type"], tags(cell), cell["source"]) for cell in nb.cells]
    content = json.dumps([cells, package, without_run(values), list(inputs)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def without_run(values: Values) -> Values:
    """The parameters without the folder, which may be moved."""
    return {k: v for k, v in values.items() if k not in BY_OPTION}


def find_source(source: str | Path | None = None, *, needed: bool = True) -> Path:
    """The folder of the notebooks: the one given, else ``notebooks`` in the project's folder or in the checkout."""
    if source is not None:
        return Path(source).resolve()
    places = [session.project() / "notebooks", Path(lqrlab.__file__).parents[1] / "notebooks"]
    for place in places:
        if any(place.glob(MAIN_JOB)):
            return place.resolve()
    if not needed:
        return places[0]
    raise ValueError(
        f"notebooks: none found in {places[0]}; start in a project's folder, or make one: {program()} init my_study"
    )
