"""Plants from files (matrices, a family's parameters, robots, Python) and from packages that the user installed."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tomllib
import traceback
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.array_files import read_arrays
from lqrlab.compute.files import PLANT_FILES, not_now, plant_files, read_bytes, read_object, require_readable
from lqrlab.systems import families
from lqrlab.systems.custom import from_matrices
from lqrlab.systems.plant import Plant, parameter_fields

Contents = dict[str, Any]
READERS = "lqrlab.plant_files"
"""Entry points that read plants from further kinds of files: a suffix, and a function ``(file, **options) → Plant``."""
_MATRICES = (".npz", ".mat", ".json")
_LIMIT = 64 * 2**20
_JSON_LIMIT = 4 * 2**20  # an empty list takes two bytes of it, and thirty times as many in memory
_KEYS = ("A", "B", "C", "Q", "R", "dt", "states", "inputs")
_CASES = {key.lower(): key for key in (*_KEYS, "D", "K", "Ts")}
GROUP = "lqrlab.plants"
"""Entry points of installed packages: each names a module that registers plants, a plant class, or a plant."""
_MOST_BYTES = 1 << 20  # of TOML: some plants' matrices are a thousandth of it
_entered = {"files": "", "packages": ""}


def load(
    path: str | Path,
    *,
    dt: float | None = None,
    name: str = "",
    states: Sequence[str] = (),
    inputs: Sequence[str] = (),
    **options: Any,
) -> Plant:
    """A plant from a file: A and B, and perhaps C, Q, R, dt, states, inputs; a family and its parameters; or a robot.

    Args:
        path: ``.npz`` (NumPy), ``.mat`` (MATLAB; also a structure in it, ``sys.A`` or ``sys.a``) or ``.json`` (lists of
            rows, or ``{"family": …, "parameters": {…}}`` as ``lqrlab identify`` writes it); or what an extension reads,
            as ``lqrlab.robots`` a robot's file. Nothing in it is executed: pickled objects are refused.
        dt: sample time [s]; the file's, or 0.01 s, if left out.
        name: what the plant is called.
        states, inputs: names with units, as ``"angle [rad]"``; the file's if left out.
        options: of an extension's reader, such as ``actuated`` and ``fixed`` of :func:`lqrlab.robots.from_mujoco`.

    Raises:
        ValueError: naming the file: missing, truncated, foreign, without A or B, or with matrices that do not fit.
    """
    file = checks.path("path", path)
    if (reader := _extensions().get(file.suffix.lower())) is not None:
        labels = {key: given for key, given in (("states", states), ("inputs", inputs)) if len(given)}
        return reader.load()(file, dt=dt, name=name, **labels, **options)
    for key in options:
        raise ValueError(f"{file}: {key} is not its option: matrices are in the file, joints are options of robots")
    content = contents(file)
    if "family" in content and file.suffix.lower() == ".json":
        if dt is not None or name or len(states) or len(inputs):
            raise ValueError(
                f"{file}: dt, name and signals are those of its family; set them on the plant that is made"
            )
        return _of_family(file, content)
    for matrix in "AB":
        if matrix not in content:
            held = ", ".join(sorted(content)) or "nothing"
            raise ValueError(f"{file}: expected the matrices A and B, but {matrix} is missing; it holds {held}")
    if np.any(content.get("Ts")):
        ts = np.ravel(content["Ts"])[0]
        raise ValueError(f"{file}: expected ẋ = Ax + Bu, but Ts = {ts} means a sampled model; save the continuous one")
    step = content.get("dt", 0.01) if dt is None else dt
    names: Contents = {
        key: given if len(given) else [str(s).strip() for s in np.ravel(content.get(key, []))]
        for key, given in (("states", states), ("inputs", inputs))
    }
    try:
        check_plain(content)
        if file.suffix.lower() == ".json":
            _check_fields(content, _KEYS)
        matrices: Contents = {key: checks.real(key, content[key]) for key in "ABCQR" if key in content}
        return from_matrices(**matrices, **names, dt=scalar(step), name=name)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def check_plain(content: Contents) -> None:
    """Raise ValueError where a model's file says more than its matrices do: E ẋ = Ax + Bu, or dead times."""
    for name, value in content.items():
        if name.lower() == "e" and np.size(value) and not np.array_equal(value, np.eye(len(np.atleast_2d(value)))):
            raise ValueError(
                f"{name}: expected ẋ = Ax + Bu, but found a matrix before ẋ; multiply A and B by its inverse"
            )
        if name.lower().endswith("delay") and np.any(value):
            raise ValueError(
                f"{name}: expected a model without dead time, but found {np.ravel(value)[0]}; leave it out"
            )


def contents(file: Path) -> Contents:
    """Contents of a ``.npz``, ``.mat`` or ``.json`` file with matrices, or with a family's parameters."""
    require_readable(file, suffixes(), _LIMIT)
    json = file.suffix.lower() == ".json"
    try:
        return read_object(file, _JSON_LIMIT) if json else _outermost(read_arrays(file, _LIMIT))
    except MemoryError:
        raise
    except Exception as error:
        why = f"({type(error).__name__}: {error}); it is truncated, damaged or of another kind"
        raise ValueError(f"{file}: {not_now(error) or f'cannot be read as {file.suffix} {why}'}") from error


def _outermost(arrays: Contents) -> Contents:
    """The arrays of a file without A or K: those of the one structure in it that has them, perhaps in lower case."""
    if arrays.keys() & {"A", "K", "kind"}:
        return arrays
    inside: dict[str, Contents] = {}
    for name, array in arrays.items():
        where, _, field = name.rpartition(".")
        inside.setdefault(where, {})[_CASES.get(field.lower(), field)] = array
    found = [fields for fields in inside.values() if fields.keys() >= {"A", "B"} or "K" in fields]
    return found[0] if len(found) == 1 else arrays


def _of_family(file: Path, content: Contents) -> Plant:
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError(f"{file}: expected parameters by name, but found {parameters!r}")
    try:
        cls = families.family(checks.text("family", content["family"]))
        _check_fields(content, ("family", "parameters"), parameter_fields(cls))
        for key in parameters:  # one called "name" is no argument of make
            checks.choice("parameters", key, parameter_fields(cls))
        return families.make(cls.name, **{key: checks.real(key, value) for key, value in parameters.items()})
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _check_fields(content: Contents, known: Sequence[str], parameters: Collection[str] = ()) -> None:
    """Refuse fields that would be overlooked: nearly what is read, or a parameter outside of ``parameters``.

    Others may stand in the file: ``lqrlab identify`` adds what it found out.
    """
    for field in content.keys() - set(known):
        if field in parameters:
            raise ValueError(f"{field} is a parameter: put it into 'parameters', else it would be overlooked")
        near = next((key for key in known if key.lower() == field.lower()), "")
        hint = f"; did you mean {near}?" if near else checks.did_you_mean(field, known)
        if hint:
            raise ValueError(f"{field!r} is no field of a plant{hint}")


def scalar(step: object) -> float:
    """A sample time, of which MATLAB makes a matrix."""
    array = checks.real("dt", step)
    if array.size != 1:
        raise ValueError(f"dt: expected one sample time, but found shape {array.shape}")
    return float(array.item())


@functools.cache
def _extensions() -> dict[str, Any]:
    """Suffix → what reads such files, of the extensions that are installed."""
    return {f".{point.name}": point for point in importlib.metadata.entry_points(group=READERS)}


def suffixes() -> tuple[str, ...]:
    """File name endings of plants."""
    return (*_MATRICES, *_extensions())


def register_file(path: str | Path) -> list[str]:
    """Enter the families of a file into the catalogue, here and in all processes that are started from here.

    Args:
        path: a Python file, which is executed and registers plants itself; or a ``.toml`` file with a table for each
            plant: ``[my_plant]``, then ``A``, ``B`` (and ``C``, ``Q``, ``R``, ``dt``, ``states``, ``inputs``), or a
            ``file`` that :func:`lqrlab.systems.load` reads; or such a file itself (a robot's, or as ``lqrlab identify``
            writes it): the plant is called as the file is, its parameters have the file's values for defaults.

    Returns:
        The names of its families.

    Raises:
        ValueError: naming the file, and the line or table at fault.
    """
    enter_named()
    file = checks.path("path", path).expanduser().resolve()
    readers = {".py": _execute, ".toml": _read, **dict.fromkeys(suffixes(), _enter_one)}
    require_readable(file, readers)
    if os.pathsep in str(file):
        raise ValueError(f"{file}: expected a path without {os.pathsep!r}; rename the file")
    before = dict(families.FAMILIES)
    readers[file.suffix.lower()](file)
    found = [
        name
        for name, cls in families.FAMILIES.items()
        if before.get(name) is not cls and not isinstance(before.get(name), str)
    ]
    if not found:
        raise ValueError(
            f"{file}: registers no plant; put @systems.register above the class, or write "
            "systems.register(plant, name='my_plant')"
        )
    os.environ[PLANT_FILES] = os.pathsep.join(dict.fromkeys([*plant_files(), str(file)]))
    _entered["files"] = os.environ[PLANT_FILES]
    return found


def _execute(file: Path) -> None:
    """Import a Python file under a name of its own, anew each time."""
    name = f"plants_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"{file}{f', line {line}' if line else ''}: {kind}{error}") from error


def _read(file: Path) -> None:
    """Register the plants of a TOML file; nothing in it is executed."""
    try:
        text = read_bytes(file, _MOST_BYTES).decode()
        if re.search(r"(?:[\w\"'-]+[ \t]*\.[ \t]*){64}", text):  # tomllib's memory grows with the square of a path
            raise RecursionError
        tables = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"{file}: is no TOML of plants: its tables or lists are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{file}: is no TOML: {error}") from None
    for name, table in tables.items():
        try:
            checks.instance(name, table, dict, f"a table [{name}] with A and B, or file")
            for key in table:
                checks.choice("key", key, ("file", *_KEYS, *(("actuated", "fixed") if "file" in table else ())))
            if "file" not in table and not {"A", "B"} <= {*table}:
                raise ValueError(f"expected the matrices A and B, or file, but found {', '.join(table) or 'nothing'}")
            given: dict[str, Any] = dict(table)
            if (source := given.pop("file", None)) is not None:
                plant = load(file.parent / checks.text("file", source, "a file's name"), **given)
            else:
                plant = from_matrices(**given | {"dt": scalar(given.get("dt", 0.01))})
            families.register(plant, name=name)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} [{name}]: {error}") from None


def _enter_one(file: Path) -> None:
    """Register the plant of a file by the file's name: a robot, a family with other defaults, or around matrices."""
    name = file.stem
    if not name.isidentifier():
        raise ValueError(f"{file}: expected a file called as the plant, as my_plant.json; rename it")
    of_family = file.suffix == ".json" and "family" in contents(file)  # which has a name
    families.register(load(file) if of_family else load(file, name=name), name=name)


def enter_named() -> None:
    """Enter the plants of the files that a parent process was given, and of installed packages."""
    value = os.environ.get(PLANT_FILES, "")
    if value != _entered["files"]:
        _entered["files"] = value
        for path in plant_files():
            register_file(path)
    if not _entered["packages"]:
        _entered["packages"] = GROUP
        for point in importlib.metadata.entry_points(group=GROUP):
            try:
                loaded = point.load()
                if not isinstance(loaded, ModuleType):
                    families.register(loaded, name=point.name if isinstance(loaded, Plant) else "")
            except Exception as error:  # one package that is broken does not end what uses others
                left = f"the plants of {point.value} are left out: {type(error).__name__}: {error}"
                warnings.warn(left, stacklevel=4)
