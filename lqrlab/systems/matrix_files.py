"""Plants from files with matrices."""

import functools
import importlib.metadata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.array_files import read_arrays
from lqrlab.compute.files import read_object
from lqrlab.systems.custom import from_matrices
from lqrlab.systems.families import family, make
from lqrlab.systems.plant import Plant, parameter_fields

Contents = dict[str, Any]
READERS = "lqrlab.plant_files"
"""Entry points that read plants from further kinds of files: a suffix, and a function ``(file, **options) → Plant``."""
_LIMIT = 64 * 2**20
_JSON_LIMIT = 4 * 2**20  # an empty list takes two bytes of it, and thirty times as many in memory
_KEYS = ("A", "B", "C", "Q", "R", "dt", "states", "inputs")


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
        path: ``.npz`` (NumPy), ``.mat`` (MATLAB up to version 7) or ``.json`` (lists of rows, or
            ``{"family": …, "parameters": {…}}`` as ``lqrlab identify`` writes it); or what an extension reads, as
            ``lqrlab.robots`` a robot's file. Nothing in it is executed: pickled objects are refused.
        dt: sample time [s]; the file's, or 0.01 s, if left out.
        name: what the plant is called.
        states, inputs: names with units, as ``"angle [rad]"``; the file's if left out.
        options: of an extension's reader, such as ``actuated`` and ``fixed`` of :func:`lqrlab.robots.from_mujoco`.

    Raises:
        ValueError: naming the file and what is wrong with it: missing, truncated, foreign, without A or B,
            or with matrices that do not fit.
    """
    file = checks.path("path", path)
    if (reader := _extensions().get(file.suffix.lower())) is not None:
        labels = {key: given for key, given in (("states", states), ("inputs", inputs)) if len(given)}
        return reader.load()(file, dt=dt, name=name, **labels, **options)
    for key in options:
        raise ValueError(f"{file}: {key} is an option of a robot's file; a plant of matrices has no joints")
    content = contents(file)
    if "family" in content and file.suffix.lower() == ".json":
        return _of_family(file, content)
    for matrix in "AB":
        if matrix not in content:
            held = ", ".join(sorted(content)) or "nothing"
            raise ValueError(f"{file}: expected the matrices A and B, but {matrix} is missing; it holds {held}")
    step = content.get("dt", 0.01) if dt is None else dt
    names: Contents = {
        key: given if len(given) else [str(s).strip() for s in np.ravel(content.get(key, []))]
        for key, given in (("states", states), ("inputs", inputs))
    }
    try:
        if file.suffix.lower() == ".json":
            _check_fields(content, _KEYS)
        matrices: Contents = {
            key: checks.real(key, content[key]) for key in ("A", "B", "C", "Q", "R") if key in content
        }
        return from_matrices(**matrices, **names, dt=_scalar(step), name=name)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def contents(file: Path, keys: Collection[str] | None = _KEYS) -> Contents:
    """Contents of a file with matrices, or with a family's parameters.

    Args:
        file: ``.npz``, ``.mat`` or ``.json``.
        keys: names of what is read of a MATLAB file; all full arrays, if None.
    """
    reader = _MATRICES.get(file.suffix.lower())
    if reader is None:
        known = ", ".join(suffixes())
        raise ValueError(f"{file}: expected a file ending in {known}, but found {file.suffix!r}")
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    if file.stat().st_size > _LIMIT:
        raise ValueError(f"{file}: expected some matrices, but found {file.stat().st_size / 2**20:.0f} MiB")
    try:
        return reader(file, keys)
    except MemoryError:
        raise
    except Exception as error:
        why = f"({type(error).__name__}: {error}); it is truncated, damaged or of another kind"
        raise ValueError(f"{file}: cannot be read as {file.suffix} {why}") from error


def _of_family(file: Path, content: Contents) -> Plant:
    parameters = content.get("parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError(f"{file}: expected parameters by name, but found {parameters!r}")
    try:
        cls = family(checks.text("family", content["family"]))
        _check_fields(content, ("family", "parameters"), parameter_fields(cls))
        for key in parameters:  # one called "name" is no argument of make
            checks.choice("parameters", key, parameter_fields(cls))
        return make(cls.name, **{key: checks.real(key, value) for key, value in parameters.items()})
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


def _scalar(step: object) -> float:
    """A sample time, of which MATLAB makes a matrix."""
    array = checks.real("dt", step)
    if array.size != 1:
        raise ValueError(f"dt: expected one sample time, but found shape {array.shape}")
    return float(array.item())


def _arrays(file: Path, keys: Collection[str] | None) -> Contents:
    return read_arrays(file, _LIMIT, keys)


def _json(file: Path, _: object) -> Contents:
    return read_object(file, _JSON_LIMIT)


Reader = Callable[[Path, Collection[str] | None], Contents]
_MATRICES: dict[str, Reader] = {".npz": _arrays, ".mat": _arrays, ".json": _json}


@functools.cache
def _extensions() -> dict[str, Any]:
    """Suffix → what reads such files, of the extensions that are installed."""
    return {f".{point.name}": point for point in importlib.metadata.entry_points(group=READERS)}


def suffixes() -> tuple[str, ...]:
    """File name endings of plants."""
    return (*_MATRICES, *_extensions())
