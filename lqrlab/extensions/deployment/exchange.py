"""Gains, controllers, plants and logs in files of other tools: MATLAB, python-control, Julia, anything that reads JSON.

A file holds named arrays and says in ``kind`` what they are. Names of signals stand there with their units.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.compute.array_files import write_arrays
from lqrlab.compute.files import write_json
from lqrlab.extensions.deployment.timed_run import TimedRun, heading
from lqrlab.simulation import LinearController, LinearPolicy, Problem
from lqrlab.systems import Plant, families, plant_files

_NO_LIMIT = 1e300  # what stands for infinity in a file: JSON has none
_PAUSE = 10  # sample times between two records: whoever reads the file sees that they are two
_RESERVED = ("kind", "t", "inputs", "outputs")
_BESIDE = ("E", "b", "low", "high", "H", "start")  # a controller's arrays beside its system
Fields = dict[str, Any]  # arrays, numbers, texts, and lists of texts by name


def save(thing: object, path: str | Path) -> Path:
    """Write a gain, a controller, a plant or a log into a file that other tools read; :func:`load` reads it back.

    Args:
        thing: a gain K or an LQR design; a plant (its family and parameters in JSON, else its linearisation); an LQG
            design or another linear controller; a :class:`lqrlab.control.StateSpace` or python-control's; a log of
            :mod:`lqrlab.identification`, or a run of :func:`realtime`.
        path: of the file, ending in ``.mat`` (MATLAB, Julia), ``.json`` (anything) or ``.npz`` (NumPy).

    Raises:
        ValueError: what is none of these, or is a batch; another ending.
    """
    file = _checked(path)
    fields = (_family(thing) if file.suffix == ".json" else None) or _fields(thing)
    for name, value in fields.items():
        if fields.get("kind") != "log" and isinstance(value, np.ndarray) and not np.isfinite(value).all():
            raise ValueError(f"thing: expected finite numbers, but {name} holds NaN or infinity; no plant takes that")
    return _WRITERS[file.suffix](file, fields)


def load(path: str | Path) -> Any:
    """Read a file of :func:`save`, or of another tool with the same names.

    Returns:
        By the file's ``kind``: a ``"gain"`` K ``[m, n]``; a ``"plant"``; a ``"controller"`` z' = Az + By, u = Cz + Dy,
        as a policy of outputs (:class:`lqrlab.simulation.LinearController`); a ``"system"`` as a
        ``control.StateSpace``; a ``"log"`` as columns by headings with units, which ``identification.read(load(path),
        inputs, outputs)`` takes. A file without ``kind`` is a gain if it holds K, a system if it holds D, else a plant.

    Raises:
        ValueError: naming the file and what is wrong with it: a field that is missing, of another shape or misspelt,
            numbers that are not finite, limits of which the lower one is above.
    """
    file = _checked(path)
    fields = plant_files.contents(file)
    kind = next(iter(_texts(fields["kind"])), "") if "kind" in fields else _guessed(fields)
    try:
        return _KINDS[checks.choice("kind", kind, _KINDS)](fields, file)
    except KeyError as error:
        raise ValueError(f"{file}: a {kind} needs {error.args[0]!r}, which is missing") from None
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(str(file)) else f"{file}: {error}") from None


def _checked(path: str | Path) -> Path:
    file = checks.path("path", path)
    if file.suffix not in _WRITERS:
        raise ValueError(f"path: expected a file ending in {', '.join(_WRITERS)}, but found {file.name!r}")
    return file


def _family(thing: object) -> Fields | None:
    """A plant of the catalogue by its name and parameters, as :func:`lqrlab.systems.load` reads it."""
    if not isinstance(thing, Plant) or thing.batch_shape or not families.is_entered(type(thing)):
        return None
    return {"family": thing.name, "parameters": {k: float(v) for k, v in thing.parameters.items()}}


def _fields(thing: Any) -> Fields:
    plant = thing.plant if isinstance(thing, Problem) else thing
    if isinstance(plant, Plant):
        return _of_plant(plant)
    if isinstance(thing, TimedRun) or all(hasattr(thing, k) for k in ("us", "ys", "dt", "inputs", "outputs")):
        return _of_log(thing)
    if isinstance(thing, LinearController) or all(hasattr(thing, k) for k in "ABCD"):
        return _of_system(thing)
    if isinstance(thing, control.LQR | LinearPolicy) or not (callable(thing) or dataclasses.is_dataclass(thing)):
        K = np.asarray(checks.real("thing", getattr(thing, "K", thing)), float)
        if K.ndim != 2 or not K.size:
            raise ValueError(f"thing: expected one gain K [m, n], but found shape {K.shape}; take one of the batch")
        return {"kind": "gain", "K": K}
    raise ValueError(
        f"thing: expected a gain, a plant, a linear controller or a log, but found {type(thing).__name__}; "
        "simulation.bind makes linear controllers of designs, and deployment.to_c writes any controller as C code"
    )


def _of_plant(plant: Plant) -> Fields:
    if plant.batch_shape:
        raise ValueError(f"thing: expected one plant, but found a batch {plant.batch_shape}; take one of it")
    matrices = dict(zip("ABQR", (*plant.matrices(), *plant.weights())))
    C = jax.jacfwd(plant.output)(plant.equilibrium()[0])
    arrays = {k: np.asarray(a, float) for k, a in (matrices | {"C": C}).items()}
    names = {k: [heading(s) for s in getattr(plant, k)] for k in ("states", "inputs")}
    return {"kind": "plant", **arrays, "dt": float(plant.dt), **names}


def _of_system(thing: Any) -> Fields:
    system = thing.system if isinstance(thing, LinearController) else thing
    arrays = {k: np.asarray(getattr(system, k), float) for k in "ABCD"}
    if arrays["A"].ndim != 2:
        raise ValueError(f"thing: expected one controller, but found a batch {arrays['A'].shape[:-2]}; take one of it")
    if not isinstance(thing, LinearController | control.LQG):  # or python-control's, whose dt may be True
        dt = 0.0 if thing.dt is None else checks.number("thing: its dt", np.asarray(thing.dt).item(), "seconds", low=0)
        return {"kind": "system", **arrays, "dt": dt}
    if isinstance(thing, LinearController):
        arrays |= {} if system.dt is None else {"dt": np.asarray(system.dt, float)}
        given = {k: np.asarray(a, float) for k in _BESIDE if (a := getattr(thing, k)) is not None}
        arrays |= {k: np.clip(a, -_NO_LIMIT, _NO_LIMIT) for k, a in given.items() if not np.isinf(a).all()}
    elif not thing.discrete:
        raise ValueError("thing: expected a sampled LQG design, but found a continuous one; design with discrete=True")
    return {"kind": "controller", **arrays}


def _of_log(log: Any) -> Fields:
    """Times with a pause where a record begins, and each signal."""
    rows, step = np.arange(len(log.us)), float(log.dt)
    ticks = log.ticks if isinstance(log, TimedRun) else rows + _PAUSE * (np.searchsorted(log.first, rows, "right") - 1)
    fields: Fields = {"kind": "log", "t": ticks * step}
    for kind, values in (("inputs", log.us), ("outputs", log.ys)):
        fields[kind] = [heading(s) for s in getattr(log, kind)]
        for signal, a in zip(getattr(log, kind), values.T):
            name = _variable(signal.name)
            if name in fields or name in _RESERVED:
                raise ValueError(
                    f"thing: {signal.name!r} cannot be the name of one signal in a file; log.renamed helps"
                )
            fields[name] = np.asarray(a, float)
    return fields


def _variable(name: str) -> str:
    """A signal's name as MATLAB and Julia call variables: they begin with a letter."""
    return re.sub(r"^(?![a-zA-Z])", "x", re.sub(r"\W", "_", name, flags=re.ASCII))


def _guessed(fields: Fields) -> str:
    return "gain" if "K" in fields and "A" not in fields else "system" if "D" in fields else "plant"


def _texts(value: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v).strip() for v in np.ravel(np.asarray(value))]


def _matrix(fields: Fields, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Finite numbers of a shape: a matrix is not turned; a vector may lie or stand, or be a list of numbers."""
    a = np.asarray(checks.real(name, fields[name]), float)
    a = np.where(np.abs(a) < _NO_LIMIT, a, np.sign(a) * np.inf) if name in ("low", "high") else a
    if np.isnan(a).any() or (np.isinf(a).any() and name not in ("low", "high")):
        raise ValueError(f"{name}: expected finite numbers, but found NaN or infinity")
    if shape is None and not a.size:
        raise ValueError(f"{name}: expected a matrix, but found shape {a.shape}")
    shape = np.atleast_2d(a).shape[-2:] if shape is None else shape
    vector = (a.ndim < 2 and min(shape) < 2) or (len(shape) == 1 and max(a.shape, default=1) == a.size)
    if not (a.shape == shape or (vector and a.size == math.prod(shape))):
        raise ValueError(f"{name}: expected shape {shape}, but found {a.shape}")
    return a.reshape(shape)


def _arrays(fields: Fields, more: Collection[str] = ()) -> Fields:
    """A, B, C, D of z' = Az + By, u = Cz + Dy, and what else is there of ``more``; D and A say the sizes."""
    known = ("A", "B", "C", "D", "dt", "Ts", *more)
    for field in fields.keys() - set(known):
        for name in set(known) - fields.keys():
            if field.lower() == name.lower():
                raise ValueError(f"{field!r} is no field of it; did you mean {name}?")
    sizes = {name: np.size(checks.real(name, fields[name])) for name in "ABCD"}
    (m, p), k = _matrix(fields, "D").shape, math.isqrt(sizes["A"])
    shapes: dict[str, tuple[int, ...]] = {"A": (k, k), "B": (k, p), "C": (m, k), "D": (m, p)}
    shapes |= {"E": (k, m), "b": (k,), "low": (m,), "high": (m,), "H": (p, k), "start": (k,)}
    return {name: _matrix(fields, name, shapes[name]) for name in (*"ABCD", *more) if name in fields or name in "ABCD"}


def _to_controller(fields: Fields, _: Path) -> LinearController:
    given = {name: jnp.asarray(a) for name, a in _arrays(fields, _BESIDE).items()}
    A, B, C, D = (given.pop(name) for name in "ABCD")
    (m, k), free = C.shape, jnp.full(len(D), jnp.inf)
    given = {"E": jnp.zeros((k, m)), "b": jnp.zeros(k), "low": -free, "high": free} | given
    if not jnp.all((given["low"] <= given["high"]) & (given["low"] < jnp.inf) & (given["high"] > -jnp.inf)):
        raise ValueError(f"low, high: expected low ≤ high, but found {given['low']} and {given['high']}")
    dt = jnp.asarray(plant_files.scalar(fields.get("dt", fields.get("Ts")))) if {"dt", "Ts"} & fields.keys() else None
    return LinearController(control.StateSpace(A, B, C, D, dt), **given)


def _to_system(fields: Fields, _: Path) -> control.StateSpace:
    plant_files.check_plain(fields)
    return control.StateSpace(**_arrays(fields), dt=plant_files.scalar(fields.get("dt", fields.get("Ts", 0))) or None)


def _to_log(fields: Fields, _: Path) -> dict[str, np.ndarray]:
    headings = [h for kind in ("inputs", "outputs") for h in _texts(fields[kind])]
    variables = ["t", *(_variable(heading.partition(" [")[0]) for heading in headings)]
    if len({*variables}) < len(variables):
        raise ValueError(f"inputs, outputs: expected signals of different names, but found {', '.join(headings)}")
    named = {heading: fields[variable] for heading, variable in zip(("t", *headings), variables)}
    given = {k: [np.nan if v is None else v for v in np.ravel(a).tolist()] for k, a in named.items()}
    columns = {k: np.asarray(checks.real(k, a), float) for k, a in given.items()}
    for name, column in columns.items():
        if len(column) != len(columns["t"]):
            raise ValueError(f"{name}: expected {len(columns['t'])} samples, one a time, but found {len(column)}")
    return columns


_KINDS: dict[str, Callable[[Fields, Path], Any]] = {
    "gain": lambda fields, _: _matrix(fields, "K"),
    "plant": lambda _, file: plant_files.load(file),
    "controller": _to_controller,
    "system": _to_system,
    "log": _to_log,
}


def _json(file: Path, fields: Fields) -> Path:
    """In JSON there is no NaN: a sample that is missing is null."""
    arrays = {k: v for k, v in fields.items() if isinstance(v, np.ndarray)}
    lists = {k: np.where(np.isfinite(v), v, np.array(None)).tolist() for k, v in arrays.items()}
    return write_json(file, fields | lists)


_WRITERS: dict[str, Callable[[Path, Fields], Path]] = {".mat": write_arrays, ".json": _json, ".npz": write_arrays}
