"""Gains, controllers, plants and logs in files of other tools: MATLAB, python-control, Julia, anything that reads JSON.

A file holds named arrays and says in ``kind`` what they are. Names of signals stand there with their units.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import control
from lqrlab.compute import checks
from lqrlab.compute.array_files import write_arrays
from lqrlab.compute.files import write_json
from lqrlab.extensions.deployment.realtime import TimedRun
from lqrlab.simulation import LinearController, LinearPolicy, Problem
from lqrlab.systems import Plant, Signal, families, plant_files

_NO_LIMIT = 1e300  # what stands for infinity in a file: JSON has none
_PAUSE = 10  # sample times between two records: whoever reads the file sees that they are two
_RESERVED = ("kind", "t", "inputs", "outputs")
Fields = dict[str, Any]
"""Arrays, numbers, texts, and lists of texts by name."""


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
    described = _family(thing) if file.suffix == ".json" else None
    fields = described or _fields(thing)
    for name, value in fields.items() if fields.get("kind") != "log" else ():  # what was not measured is NaN there
        if isinstance(value, np.ndarray):
            checks.real(f"thing.{name}", value, finite=True)
    return _WRITERS[file.suffix](file, fields)


def load(path: str | Path) -> Any:
    """Read a file of :func:`save`, or one of another tool that has the same names.

    Returns:
        By the file's ``kind``: a ``"gain"`` K ``[m, n]``; a ``"plant"``; a ``"controller"`` z' = Az + By, u = Cz + Dy,
        as a policy of outputs (:class:`lqrlab.simulation.LinearController`); a ``"system"`` as a
        ``control.StateSpace``; a ``"log"`` as columns by headings with units, which
        ``identification.read(load(path), inputs, outputs)`` takes. A file without ``kind`` is a gain if it holds K, a
        system if it holds D, else a plant.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    file = _checked(path)
    fields = plant_files.contents(file, keys=None)
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


# From things to fields ----------------------------------------------------------------------------------------


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
    if isinstance(thing, control.LQG | control.StateSpace | LinearController) or hasattr(thing, "nstates"):
        return _of_system(thing)
    if isinstance(thing, control.LQR | LinearPolicy) or not callable(thing):
        K = np.asarray(checks.real("thing", getattr(thing, "K", thing)), float)
        if K.ndim != 2 or not K.size:
            raise ValueError(f"thing: expected one gain K [m, n], but found shape {K.shape}; take one of the batch")
        return {"kind": "gain", "K": K}
    raise ValueError(
        f"thing: expected a gain, a plant, a linear controller or a log, but found {type(thing).__name__}; any "
        "controller is written as C code by deployment.to_c"
    )


def _of_plant(plant: Plant) -> Fields:
    if plant.batch_shape:
        raise ValueError(f"thing: expected one plant, but found a batch {plant.batch_shape}; take one of it")
    matrices = dict(zip("ABQR", (*plant.matrices(), *plant.weights())))
    C = jax.jacfwd(plant.output)(plant.equilibrium()[0])
    arrays = {k: np.asarray(a, float) for k, a in (matrices | {"C": C}).items()}
    names = {k: [_heading(s) for s in getattr(plant, k)] for k in ("states", "inputs")}
    return {"kind": "plant", **arrays, "dt": float(plant.dt), **names}


def _of_system(thing: Any) -> Fields:
    system = thing.system if isinstance(thing, LinearController) else thing
    arrays = {k: np.asarray(getattr(system, k), float) for k in "ABCD"}
    if arrays["A"].ndim != 2:
        raise ValueError(f"thing: expected one controller, but found a batch {arrays['A'].shape[:-2]}; take one of it")
    if isinstance(thing, control.StateSpace) or hasattr(thing, "nstates"):  # of python-control
        return {"kind": "system", **arrays, "dt": float(thing.dt or 0)}
    if isinstance(thing, LinearController):
        arrays |= {} if system.dt is None else {"dt": np.asarray(system.dt, float)}
        more = {k: getattr(thing, k) for k in ("E", "b", "low", "high", "H")}
        given = {k: np.asarray(a, float) for k, a in more.items() if a is not None}
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
        fields[kind] = [_heading(s) for s in getattr(log, kind)]
        for signal, a in zip(getattr(log, kind), values.T):
            name = _variable(signal.name)
            if name in fields or name in _RESERVED:
                raise ValueError(
                    f"thing: {signal.name!r} cannot be the name of one signal in a file; log.renamed helps"
                )
            fields[name] = np.asarray(a, float)
    return fields


def _heading(signal: Signal) -> str:
    return f"{signal.name} [{signal.unit}]" if signal.unit else signal.name


def _variable(name: str) -> str:
    """A signal's name as MATLAB and Julia call variables."""
    return re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)


# From fields to things ----------------------------------------------------------------------------------------


def _guessed(fields: Fields) -> str:
    return "gain" if "K" in fields and "A" not in fields else "system" if "D" in fields else "plant"


def _texts(value: Any) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v).strip() for v in np.ravel(np.asarray(value))]


def _matrix(fields: Fields, name: str) -> np.ndarray:
    return np.atleast_2d(np.asarray(checks.real(name, fields[name]), float))


def _to_controller(fields: Fields, _: Path) -> LinearController:
    A, B, C, D = (_matrix(fields, k) for k in "ABCD")
    k, m = len(A), len(C)
    found = tuple(a.shape for a in (A, B, C, D))
    if found != ((k, k), (k, p := B.shape[1]), (m, k), (m, p)):
        raise ValueError(f"A, B, C, D: expected matrices of z' = Az + By, u = Cz + Dy, but found shapes {found}")
    shapes = {"E": (k, m), "b": (k,), "low": (m,), "high": (m,), "H": (B.shape[1], k)}
    given = {name: jnp.asarray(_matrix(fields, name).reshape(shapes[name])) for name in shapes if name in fields}
    for name in ("low", "high"):
        if name in given:
            given[name] = jnp.where(jnp.abs(given[name]) < _NO_LIMIT, given[name], jnp.sign(given[name]) * jnp.inf)
    usual = {"E": jnp.zeros((k, m)), "b": jnp.zeros(k), "low": jnp.full(m, -jnp.inf), "high": jnp.full(m, jnp.inf)}
    dt = jnp.asarray(float(np.ravel(fields["dt"])[0])) if "dt" in fields else None
    system = control.StateSpace(jnp.asarray(A), jnp.asarray(B), jnp.asarray(C), jnp.asarray(D), dt)
    return LinearController(system, **usual | given)


def _to_system(fields: Fields, _: Path) -> control.StateSpace:
    dt = float(np.ravel(fields.get("dt", 0))[0]) or None
    A, B, C, D = (_matrix(fields, k) for k in "ABCD")
    return control.StateSpace(A, B, C, D, dt)


def _to_log(fields: Fields, _: Path) -> dict[str, np.ndarray]:
    headings = [h for kind in ("inputs", "outputs") for h in _texts(fields[kind])]
    named = {h: fields[_variable(h.partition(" [")[0])] for h in headings}
    return {k: np.ravel(np.asarray(checks.real(k, a), float)) for k, a in ({"t": fields["t"]} | named).items()}


_KINDS: dict[str, Callable[[Fields, Path], Any]] = {
    "gain": lambda fields, _: _matrix(fields, "K"),
    "plant": lambda _, file: plant_files.load(file),
    "controller": _to_controller,
    "system": _to_system,
    "log": _to_log,
}


# Kinds of files -----------------------------------------------------------------------------------------------


def _json(file: Path, fields: Fields) -> Path:
    return write_json(file, {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()})


_WRITERS: dict[str, Callable[[Path, Fields], Path]] = {".mat": write_arrays, ".json": _json, ".npz": write_arrays}
