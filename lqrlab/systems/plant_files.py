"""Families of the user's in the catalogue: from files that they name, and from packages that they installed."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from lqrlab.compute import checks
from lqrlab.compute.files import PLANT_FILES, plant_files, read_bytes
from lqrlab.systems import families
from lqrlab.systems.custom import from_matrices
from lqrlab.systems.matrix_files import load, suffixes
from lqrlab.systems.plant import Plant

GROUP = "lqrlab.plants"
"""Entry points of installed packages: each names a module that registers plants, a plant class, or a plant."""
_MOST_BYTES = 1 << 20  # of TOML: some plants' matrices are a thousandth of it
_KEYS = ("file", "A", "B", "C", "Q", "R", "dt", "states", "inputs", "actuated", "fixed")
_entered = {"files": "", "packages": ""}


def register_file(path: str | Path) -> list[str]:
    """Enter the families of a file into the catalogue, here and in all processes that are started from here.

    Args:
        path: a Python file, which is executed and registers plants itself; or a ``.toml`` file with a table for each
            plant: ``[my_plant]``, then ``A``, ``B`` (and ``C``, ``Q``, ``R``, ``dt``, ``states``, ``inputs``), or a
            ``file`` that :func:`lqrlab.systems.load` reads; or such a file itself (a robot's, or as ``lqrlab
            identify`` writes it): the plant is called as the file is, its parameters have the file's values for
            defaults.

    Returns:
        The names of its families.

    Raises:
        ValueError: naming the file, and the line or table at fault.
    """
    enter_named()
    file = checks.path("path", path).expanduser().resolve()
    readers = {".py": _execute, ".toml": _read, **dict.fromkeys(suffixes(), _enter_one)}
    if file.suffix not in readers:
        raise ValueError(f"{file}: expected a file ending in {', '.join(readers)}, but found {file.suffix!r}")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if os.pathsep in str(file):
        raise ValueError(f"{file}: expected a path without {os.pathsep!r}; rename the file")
    before = dict(families.FAMILIES)
    readers[file.suffix](file)
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
                checks.choice("key", key, _KEYS)
            given: dict[str, Any] = {"A": [], "B": []} | table
            if (source := given.pop("file", None)) is not None:
                checks.instance("file", source, str, "a file's name")
                plant = load(file.parent / source, **{key: v for key, v in given.items() if key not in "AB"})
            else:
                plant = from_matrices(**given)
            families.register(plant, name=name)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} [{name}]: {error}") from None


def _enter_one(file: Path) -> None:
    """Register the plant of a file by the file's name: a robot, a family with other defaults, or around matrices."""
    name = file.stem
    if not name.isidentifier():
        raise ValueError(f"{file}: expected a file called as the plant, as my_plant.json; rename it")
    families.register(load(file, name=name), name=name)


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
            with _warned(point.value):
                loaded = point.load()
                if not isinstance(loaded, ModuleType):
                    name = point.name if isinstance(loaded, Plant) else ""
                    families.register(loaded, name=name)


@contextlib.contextmanager
def _warned(name: str) -> Iterator[None]:
    """One package that is broken does not end what uses others."""
    try:
        yield
    except Exception as error:
        warnings.warn(f"the plants of {name} are left out: {type(error).__name__}: {error}", stacklevel=6)
