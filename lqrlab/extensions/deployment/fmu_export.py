"""Functional mock-up units: controllers and plants for other simulators, from the same C, without Python."""

import dataclasses
import hashlib
import io
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from lqrlab import __version__
from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.files import write_atomic
from lqrlab.extensions.deployment import c_files
from lqrlab.extensions.deployment.c_loading import compiled, compiler
from lqrlab.extensions.deployment.exported_step import ExportedStep
from lqrlab.simulation import Problem
from lqrlab.systems import Plant, Signal

_TOOL = "lqrlab"
_SOURCES = ("controller.c", "model.c")
_PLACES = {"linux": ("linux64", "so"), "darwin": ("darwin64", "dylib"), "win32": ("win64", "dll")}
"""By operating system the folder of a unit's program, and the ending of its name."""


@pytree
@dataclasses.dataclass(frozen=True)
class PlantPolicy:
    """A plant seen as a policy: it is given inputs and answers with its next state, which it remembers."""

    problem: Problem

    def init(self, batch_shape: tuple[int, ...]) -> dict[str, Array]:
        """At the equilibrium."""
        return {"x": jnp.zeros((*batch_shape, self.problem.n))}

    @one_program
    def __call__(self, carry: dict[str, Array], x: Float[Array, "*loops m"]) -> tuple[dict[str, Array], Array]:
        """The input x, held for a sample time; all are deviations from the equilibrium."""
        after, _ = self.problem.step(carry["x"], x)
        return {"x": after}, after


class UnitSignal(NamedTuple):
    """A signal of a unit: its name, unit, value before the first step, words."""

    name: str
    unit: str
    start: float
    about: str


class ExportedUnit(NamedTuple):
    """A model as its unit describes it."""

    name: str
    step: ExportedStep
    given: list[UnitSignal]
    results: list[UnitSignal]
    holds_state: bool


def to_fmu(controller_or_plant: object, path: str | Path, problem: Problem | Plant | None = None) -> Path:
    """Write a controller, or a plant, as a unit for co-simulation, FMI 2.0: C source, and a program for this machine.

    Signals are absolute and in SI units. A unit takes steps of whole sample times, between which its inputs are held:
    plant and controller in turns are :func:`lqrlab.simulation.rollout`. The state of a plant can be set before.

    Args:
        controller_or_plant: what :func:`to_c` takes, with ``problem``; or a plant, or the problem of one, alone:
            its nonlinear equations, or, of a problem with ``linear=True``, exactly sampled, within its limits.
        path: of the file, ``.fmu``. Without a C compiler the unit has source alone, and a warning says so.
        problem: what a controller is for.

    Raises:
        ValueError: as of ``to_c``; a path with another file.

    Source: Functional Mock-up Interface, Modelica Association, version 2.0.4.
    """
    path = checks.path("path", path)
    _check_path(path)
    with jax.enable_x64(True):
        unit = _described(controller_or_plant, problem, re.sub(r"\W", "_", path.stem))
        sources = _sources(unit)
    token = "{" + hashlib.sha256("".join(sources.values()).encode()).hexdigest()[:32] + "}"
    sources = {name: text.replace("@TOKEN@", token) for name, text in sources.items()}
    files = {"modelDescription.xml": _description(unit, token)}
    files |= {f"sources/{name}": text.encode() for name, text in sources.items()} | _binary(unit, sources)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as into:
        for name, data in files.items():
            into.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomic(path, archive.getvalue())


def _check_path(path: Path) -> None:
    """Raise ValueError unless the path ends in .fmu and is free, or :func:`to_fmu` wrote it."""
    if path.suffix != ".fmu" or not path.stem:
        raise ValueError(f"path: expected the name of a file that ends in .fmu, but found {path}")
    if not path.exists():
        return
    try:
        with zipfile.ZipFile(path) as archive:
            ours = f'generationTool="{_TOOL} ' in archive.read("modelDescription.xml").decode(errors="replace")
    except (OSError, KeyError, zipfile.BadZipFile):
        ours = False
    if not ours:
        raise ValueError(
            f"path: expected a new file, or one that to_fmu wrote, but {path} is another, which would be overwritten; "
            "give another name"
        )


def _described(model: object, problem: Problem | Plant | None, name: str) -> ExportedUnit:
    """The step and the signals of a controller of a problem, or of a plant."""
    name = name if not name[0].isdigit() else f"model_{name}"
    if problem is not None:
        step = ExportedStep.of(model, problem)
        measured, inputs = c_files.signals(step)
        given = _variables_of(measured, step.y_eq, "measured")
        return ExportedUnit(
            name, step, *_distinct(given, _variables_of(inputs, step.u_eq, "input of the plant")), False
        )
    wanted = "the plant that the controller is for, to_fmu(controller, path, problem=plant), or a plant for model"
    checks.instance("problem", model, Plant | Problem, wanted)  # type: ignore[arg-type]
    problem = model if isinstance(model, Problem) else Problem.of(model, optimum=False)  # type: ignore[arg-type]
    problem = ExportedStep.of(np.zeros((problem.m, problem.n)), problem).problem  # refuses batches and scaled ones
    x_eq, u_eq = (
        np.zeros(size) if a is None else np.asarray(a)
        for a, size in ((problem.x_eq, problem.n), (problem.u_eq, problem.m))
    )
    step = ExportedStep(PlantPolicy(problem), problem.limited(None), None, u_eq, x_eq, {"x": np.zeros(problem.n)})
    states, inputs = c_files.signals(dataclasses.replace(step, y_eq=x_eq, u_eq=u_eq))
    given = _variables_of(inputs, u_eq, "input, held for a sample time")
    return ExportedUnit(name, step, *_distinct(given, _variables_of(states, x_eq, "state")), True)


def _variables_of(signals: Sequence[Signal], start: np.ndarray, about: str) -> list[UnitSignal]:
    names = [re.sub(r"\W+", "_", s.name).strip("_") or "signal" for s in signals]
    return [UnitSignal(name, s.unit, float(v), about) for name, s, v in zip(names, signals, start)]


def _distinct(given: list[UnitSignal], results: list[UnitSignal]) -> tuple[list[UnitSignal], list[UnitSignal]]:
    """The signals with names that are all different."""
    seen = {"time"}
    renamed: list[UnitSignal] = []
    for one in [*given, *results]:
        name = one.name
        while name in seen:
            name += "_"
        seen.add(name)
        renamed.append(one._replace(name=name))
    return renamed[: len(given)], renamed[len(given) :]


def _description(unit: ExportedUnit, token: str) -> bytes:
    """``modelDescription.xml``."""
    about = {
        "fmiVersion": "2.0",
        "modelName": unit.name,
        "guid": token,
        "description": f"{'Plant' if unit.holds_state else 'Controller'} {c_files.comment(unit.step.problem.name)}",
        "generationTool": f"{_TOOL} {__version__}",
        "variableNamingConvention": "flat",
    }
    root = Element("fmiModelDescription", about)
    can = {"modelIdentifier": unit.name, "canHandleVariableCommunicationStepSize": "false"}
    can |= {"canGetAndSetFMUstate": "true", "canSerializeFMUstate": "true"}
    sources = SubElement(SubElement(root, "CoSimulation", can), "SourceFiles")
    for name in _SOURCES:
        SubElement(sources, "File", {"name": name})
    if units := dict.fromkeys(v.unit for v in [*unit.given, *unit.results] if v.unit):
        defined = SubElement(root, "UnitDefinitions")
        for name in units:
            SubElement(defined, "Unit", {"name": name})
    SubElement(root, "DefaultExperiment", {"startTime": "0", "stepSize": repr(float(unit.step.problem.dt))})
    variables, structure = (SubElement(root, tag) for tag in ("ModelVariables", "ModelStructure"))
    for number, one in enumerate([*unit.given, *unit.results], 1):
        given = number <= len(unit.given)
        entry = {"name": one.name, "valueReference": str(number), "description": one.about, "variability": "discrete"}
        entry |= {"causality": "input"} if given else {"causality": "output"}
        entry |= {} if given else {"initial": "exact" if unit.holds_state else "calculated"}
        real = {"start": repr(one.start)} if given or unit.holds_state else {}
        SubElement(
            SubElement(variables, "ScalarVariable", entry), "Real", real | ({"unit": one.unit} if one.unit else {})
        )
    for kind in ["Outputs"] + ["InitialUnknowns"] * (not unit.holds_state):
        listed = SubElement(structure, kind)
        for k in range(len(unit.results)):
            depends = {} if kind == "Outputs" else {"dependencies": ""}
            SubElement(listed, "Unknown", {"index": str(len(unit.given) + k + 1), **depends})
    indent(root)
    return tostring(root, "UTF-8", xml_declaration=True) + b"\n"


def _sources(unit: ExportedUnit) -> dict[str, str]:
    """Names and texts of the source files."""
    translated = unit.step.translated()
    places: dict[str, Any] = {
        "MARK": f"written by {_TOOL}.deployment.to_fmu",
        "START_GIVEN": c_files.inline(np.array([v.start for v in unit.given])),
        "START_RESULTS": c_files.inline(np.array([v.start for v in unit.results])),
        "SETTABLE": int(unit.holds_state),
    }
    return {
        "controller.h": c_files.header(unit.step, translated, c_files.facts(unit.step, None)),
        "controller.c": c_files.code(unit.step, translated),
        "model.c": "".join(c_files.filled(name, **places) for name in ("fmi_model.c", "fmi2.c")),
    }


def _binary(unit: ExportedUnit, sources: dict[str, str]) -> dict[str, bytes]:
    """The program for this machine by its place in the unit; empty, with a warning, without a compiler."""
    try:
        cc = compiler()
    except RuntimeError as error:
        warnings.warn(f"to_fmu: the unit has source alone, to be compiled where it is used: {error}", stacklevel=3)
        return {}
    folder, suffix = _PLACES[sys.platform]
    with tempfile.TemporaryDirectory() as build:
        for name, text in sources.items():
            Path(build, name).write_text(text)
        target = Path(build, f"{unit.name}.{suffix}")
        compiled(cc, ["-fvisibility=hidden", "-s", *(Path(build, name) for name in _SOURCES)], target, "to_fmu")
        return {f"binaries/{folder}/{target.name}": target.read_bytes()}
