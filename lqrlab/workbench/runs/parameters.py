"""The parameters that notebooks run with: defaults, then a profile, then what was typed; names and types checked."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

from lqrlab.compute.config import checked
from lqrlab.workbench.runs.notebooks import Kind, Notebook, Values, near

Profile = Mapping[str, Mapping[str, object]]
"""Notebook → parameter → value."""
Config = typing.TypeVar("Config")


def read_profile(source: Path, name: str) -> Profile:
    """The parameters that a profile, ``profiles/<name>.json`` in the notebooks' folder, sets."""
    path = source / "profiles" / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.json"))) or "none"
        raise ValueError(f"profile: there is no {name!r} in {path.parent}; there are {known}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise ValueError(f"{path}: expected {{notebook: {{parameter: value}}}}")
    return content


def effective(
    chain: Sequence[Notebook], profile: Profile, overrides: Mapping[str, object]
) -> dict[str, Values]:
    """The parameters that each notebook will run with: its defaults, then the profile, then the overrides.

    Args:
        chain: the notebooks.
        profile: see :data:`Profile`.
        overrides: ``"notebook.parameter"``, or ``"parameter"`` for all notebooks that declare it → value;
            text is read as typed on a command line.

    Raises:
        ValueError: naming the notebook, the parameter, what was expected and what came.
    """
    for nb in chain:
        if "run" not in nb.parameters:
            raise ValueError(
                f"{nb.path}: declares no parameter 'run: str', the folder that it reads and writes"
            )
    by_name = {nb.name: nb for nb in chain}
    values: dict[str, Values] = {nb.name: {p.name: p.default for p in nb.parameters.values()} for nb in chain}
    for name, given in profile.items():
        if name not in by_name:
            raise ValueError(f"profile: there is no notebook {name!r}{near(name, by_name)}")
        values[name] |= {key: _value(by_name[name], key, value) for key, value in given.items()}
    for key, value in overrides.items():
        name, dot, short = key.rpartition(".")
        if dot and name not in by_name:
            raise ValueError(f"{key}: there is no notebook {name!r}{near(name, by_name)}")
        meant = [by_name[name]] if dot else [nb for nb in chain if short in nb.parameters]
        if not meant:
            known = sorted({p for nb in chain for p in nb.parameters})
            raise ValueError(f"{key}: no notebook has a parameter of this name{near(short, known)}")
        for nb in meant:
            values[nb.name][short] = _value(nb, short, value, typed=isinstance(value, str))
    return values


def _value(nb: Notebook, key: str, value: object, *, typed: bool = False) -> object:
    if key == "run":
        raise ValueError(f"{nb.name}.run: is set by the run's folder (--folder), not as a parameter")
    if key not in nb.parameters:
        raise ValueError(f"{nb.name}.{key}: the {nb.kind} has no such parameter{near(key, nb.parameters)}")
    parameter = nb.parameters[key]
    about = f" ({parameter.about})" if parameter.about else ""
    value = from_text(str(value), parameter.type) if typed else value
    return checked(f"{nb.name}.{key}{about}", value, parameter.type)


def from_text(text: str, kind: Kind) -> object:
    """A value as typed on a command line: JSON, ``true``, ``none``, or for a list also ``a,b,c``; unchecked."""
    text = text.strip()
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = typing.get_args(kind)
        if type(None) in options and text.lower() in ("none", "null"):
            return None
        kind = next(option for option in options if option is not type(None))
    if (typing.get_origin(kind) or kind) in (list, tuple) and not text.startswith("["):
        item = (*typing.get_args(kind), object)[0]
        return [from_text(part, item) for part in text.split(",") if part.strip()]
    if kind is str:
        return text
    try:
        return json.loads(text.lower() if kind is bool else text)
    except ValueError:
        return text


def config(kind: type[Config], values: Mapping[str, object]) -> Config:
    """A config with those of a notebook's parameters that are its fields."""
    names = {f.name for f in dataclasses.fields(kind)} & values.keys()  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names})
