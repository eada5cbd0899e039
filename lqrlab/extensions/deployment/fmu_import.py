"""Functional mock-up units as plants and as devices: their binaries are executed, so they must be declared trusted."""

import contextlib
import ctypes
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from lqrlab.compute import checks
from lqrlab.installation import of_extra
from lqrlab.systems import custom, from_dynamics

_MOST_BYTES, _MOST_FILES, _SHRINKS = 1 << 28, 10_000, 200
_LOADING = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"  # in another process: a damaged binary ends it
_STEP = float(np.finfo(float).eps) ** (1 / 3)  # of central differences, relative


class FMUPlant(custom.Function, static=("f", "labels", "name")):
    """A plant whose rates come from a functional mock-up unit, in its own binary: exact derivatives there are none.

    A, B and all gradients are central differences of its rates, good to about ten digits. Events are left out: what
    the unit does at an impact or a switch is not simulated.
    """

    source = "functional mock-up unit, executed in its own binary; derivatives are central differences"


def from_fmu(
    path: str | Path,
    *,
    trusted: bool = False,
    at: tuple[ArrayLike, ArrayLike] | None = None,
    Q: ArrayLike | None = None,
    R: ArrayLike | None = None,
    dt: float | None = None,
    name: str = "",
    states: tuple[str, ...] = (),
    inputs: tuple[str, ...] = (),
) -> FMUPlant:
    """A plant from a functional mock-up unit for model exchange, FMI 2.0; ``systems.load("x.fmu")`` calls it.

    Its rates ẋ = f(x, u) are its binary's at time zero and its parameters' start values. It measures all states.

    Args:
        path: of the file.
        trusted: whether the unit's binary may be executed here: it can do whatever you can; its faults end Python.
        at: where to control around, ``(x, u)``; the start values if left out. It has to be an equilibrium.
        Q, R: weights; identity if left out.
        dt: sample time [s]; 0.01 if left out.
        name: what the plant is called; as the unit's model if left out.
        states, inputs: names with units; those of the unit if left out.

    Raises:
        ValueError: a hostile archive, before anything is unpacked; a unit for co-simulation alone, without states or
            inputs, or without a binary for this computer; no equilibrium.
        ImportError: without the package ``fmpy``, which the extra ``deployment`` installs.
    """
    file = checks.path("path", path)
    try:
        unit = LoadedUnit(file, trusted)
        x_eq, u_eq = unit.start if at is None else at
        labels = {"states": states or unit.labels[0], "inputs": inputs or unit.labels[1]}
        known = {"Q": Q, "R": R, "dt": 0.01 if dt is None else dt, "name": name or unit.name, **labels}
        made = from_dynamics(_differenced(unit), x_eq=x_eq, u_eq=u_eq, **known)  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return FMUPlant(**{k: getattr(made, k) for k in ("f", "x_eq", "u_eq", "Q", "R", "dt", "labels", "name")})


def check_archive(file: Path) -> None:
    """Refuse an archive that would write outside of its folder, or fill the disk, from its table of contents alone."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        raise ValueError(f"is no functional mock-up unit: {error}") from None
    if len(members) > _MOST_FILES:
        raise ValueError(f"expected at most {_MOST_FILES} files in it, but found {len(members)}")
    for member in members:
        parts = PurePosixPath(member.filename).parts
        outside = member.filename.startswith("/") or ".." in parts or "\\" in member.filename or ":" in member.filename
        if outside or stat.S_ISLNK(member.external_attr >> 16):
            raise ValueError(
                f"has a path or a link that leads out of it, {member.filename!r}: it is hostile or damaged"
            )
        if member.file_size > _SHRINKS * max(member.compress_size, 1 << 12):
            raise ValueError(f"{member.filename} unpacks to {member.file_size} bytes, an implausible ratio")
    if len({member.filename for member in members}) < len(members):
        raise ValueError("has two files of one name: it is hostile or damaged")
    if (size := sum(member.file_size for member in members)) > _MOST_BYTES:
        raise ValueError(f"unpacks to {size >> 20} MiB, more than the limit of {_MOST_BYTES >> 20} MiB")


def described(file: Path, trusted: bool) -> Any:
    """FMPy's description of a unit whose binary may be executed; nothing is unpacked.

    Raises:
        ValueError: no such file, a hostile archive, not an FMU, or not declared trusted.
    """
    fmpy = of_extra("fmpy", "[deployment]", "a functional mock-up unit")
    if not file.is_file():
        raise ValueError("there is no such file")
    check_archive(file)
    if not checks.flag("trusted", trusted):
        raise ValueError(
            "its binary would be executed on this computer, with all your rights; pass trusted=True if you trust its "
            "source"
        )
    try:
        about = fmpy.read_model_description(str(file))
    except Exception as error:
        raise ValueError(f"is no functional mock-up unit: {type(error).__name__}: {error!s:.500}") from error
    if not about.fmiVersion.startswith("2"):
        raise ValueError(f"expected a unit of FMI 2.0, but found {about.fmiVersion}; export it for FMI 2.0")
    return about


def instantiated(owner: object, file: Path, about: Any, kind: str) -> Any:
    """A unit of a ``kind``, unpacked into a folder that goes when its owner goes."""
    fmpy = of_extra("fmpy", "[deployment]", "a functional mock-up unit")
    simulation = of_extra("fmpy.simulation", "[deployment]", "a functional mock-up unit")
    folder = tempfile.mkdtemp(prefix="lqrlab-fmu-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    named = about.coSimulation if kind == "CoSimulation" else about.modelExchange
    if not re.fullmatch(r"[A-Za-z_]\w*", named.modelIdentifier, re.ASCII):
        raise ValueError(f"modelIdentifier: expected a name as C has them, but found {named.modelIdentifier!r:.100}")
    try:
        fmpy.extract(str(file), folder)
        binary = Path(folder, "binaries", fmpy.platform, named.modelIdentifier + fmpy.sharedLibraryExtension)
        ended = subprocess.run([sys.executable, "-c", _LOADING, binary], capture_output=True, check=False).returncode
        if ended not in (0, 1):
            raise ValueError(f"{binary.name} ends a process that loads it ({ended}): cut off or damaged; get it again")
        with contextlib.chdir(Path.cwd()):  # FMPy goes to the binary, and comes back from one that it can load
            return simulation.instantiate_fmu(folder, about, kind)
    except Exception as error:
        raise ValueError(f"cannot be started on this computer: {type(error).__name__}: {error}") from error


class LoadedUnit:
    """A unit for model exchange, loaded and initialised.

    Attributes:
        start: states and inputs at the start.
        labels: names of states and of inputs, with units.
    """

    def __init__(self, file: Path, trusted: bool) -> None:
        about = described(file, trusted)
        self.name = _plain(about.modelName)
        states = [d.variable.derivative for d in about.derivatives]
        inputs = [v for v in about.modelVariables if v.causality == "input" and v.type == "Real"]
        if about.modelExchange is None:
            raise ValueError(
                "expected a unit for model exchange: of one for co-simulation the states are not "
                "known; export it for model exchange, or run it with deployment.CoSimulation"
            )
        if not states or not inputs:
            raise ValueError(f"expected states and inputs, but found {len(states)} and {len(inputs)}")
        if None in states or len({s.name for s in states}) < len(states):
            raise ValueError(
                "ModelStructure: expected one derivative of each state, but found another variable, or twins"
            )
        self.fmu = instantiated(self, file, about, "ModelExchange")
        self.given = [v.valueReference for v in inputs]
        self.n, self.lock = len(states), threading.Lock()
        given = [[(_plain(v.name), v.unit) for v in each] for each in (states, inputs)]
        self.labels = tuple(tuple(f"{name} [{unit}]" if unit else name for name, unit in each) for each in given)
        try:
            self.start = self._initialised(), np.array([float(v.start or 0) for v in inputs])
            self.rates(*self.start)
        except Exception as error:
            raise ValueError(f"refuses its start: {type(error).__name__}: {error}") from error

    def _initialised(self) -> np.ndarray:
        fmu = self.fmu
        fmu.setupExperiment(startTime=0.0)
        fmu.enterInitializationMode()
        fmu.exitInitializationMode()
        for _ in range(100):
            more, stop, *_ = fmu.newDiscreteStates()
            if not more or stop:
                break
        fmu.enterContinuousTimeMode()
        x = (ctypes.c_double * self.n)()
        fmu.getContinuousStates(x, self.n)
        return np.array(x)

    def rates(self, x: Float[np.ndarray, " n"], u: Float[np.ndarray, " m"]) -> Float[np.ndarray, " n"]:
        """ẋ."""
        dx = (ctypes.c_double * self.n)()
        with self.lock:
            self.fmu.setTime(0.0)
            self.fmu.setContinuousStates((ctypes.c_double * self.n)(*x), self.n)
            self.fmu.setReal(self.given, list(u))
            self.fmu.getDerivatives(dx, self.n)
        return np.array(dx)

    def jacobian(self, x: Float[np.ndarray, " n"], u: Float[np.ndarray, " m"]) -> Float[np.ndarray, "n columns"]:
        """Derivatives of the rates in x and u, by central differences."""
        z, n = np.concatenate([x, u]), self.n
        columns = []
        for i in range(len(z)):
            h = _STEP * max(abs(z[i]), 1.0)
            ahead, behind = z.copy(), z.copy()
            ahead[i], behind[i] = z[i] + h, z[i] - h
            columns.append(
                (self.rates(ahead[:n], ahead[n:]) - self.rates(behind[:n], behind[n:])) / (ahead[i] - behind[i])
            )
        return np.stack(columns, 1)


def _plain(name: str) -> str:
    """A name in letters, digits and _."""
    letters = re.sub(r"\W", "_", name, flags=re.ASCII)
    return letters if letters.isidentifier() else f"fmu_{letters}"


def _differenced(unit: LoadedUnit) -> Any:
    """The rates for JAX, in any batch; their derivative is linear in the tangents, by central differences."""

    def rows(function: Any, *width: int) -> Any:
        def many(x: Any, u: Any) -> np.ndarray:
            x, u = np.asarray(x, float), np.asarray(u, float)
            found = [function(a, b) for a, b in zip(x.reshape(-1, x.shape[-1]), u.reshape(-1, u.shape[-1]))]
            return np.reshape(found, (*x.shape[:-1], unit.n, *width)).astype(jnp.result_type(float))

        def asked(x: Array, u: Array) -> Array:
            shape = jax.ShapeDtypeStruct((unit.n, *width), jnp.result_type(float))
            return jax.pure_callback(many, shape, x, u, vmap_method="broadcast_all").astype(x.dtype)

        return asked

    rates, jacobian = rows(unit.rates), rows(unit.jacobian, len(unit.start[0]) + len(unit.start[1]))

    @jax.custom_jvp
    def one(x: Array, u: Array) -> Array:
        return rates(x, u)

    @one.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        return one(*primals), jacobian(*primals) @ jnp.concatenate(tangents)

    return jnp.vectorize(one, signature="(n),(m)->(n)")


class CoSimulation:
    """A unit for co-simulation, FMI 2.0, called once a sample: the plant of :func:`realtime`, in its own code.

    It takes the input that has acted since the sample before (None at first: nothing moves) and gives its outputs, in
    the order of its description. With :func:`to_fmu` any plant of the catalogue is one, in C.

    Args:
        path: of the file.
        dt: sample time [s].
        trusted: whether the unit's binary may be executed here: it can do whatever you can; its faults end Python.
        start: values of variables before the first step, by name.

    Raises:
        ValueError: hostile archives, before anything is unpacked; a unit without inputs, outputs or co-simulation.
        ImportError: without the package ``fmpy``, which the extra ``deployment`` installs.

    Source: Functional Mock-up Interface, Modelica Association, version 2.0.4.
    """

    def __init__(
        self, path: str | Path, dt: float, *, trusted: bool = False, start: Mapping[str, float] | None = None
    ) -> None:
        self.file, self.dt, self.time = checks.path("path", path), checks.number("dt", dt, "a time", above=0), 0.0
        try:
            self._start(described(self.file, trusted), dict(start or {}))
        except ValueError as error:
            raise ValueError(f"{self.file}: {error}") from error

    def _start(self, about: Any, start: dict[str, float]) -> None:
        found = {v.name: v for v in about.modelVariables if v.type == "Real"}
        self.inputs, self.outputs = (
            tuple(name for name, v in found.items() if v.causality == kind) for kind in ("input", "output")
        )
        if about.coSimulation is None or not self.inputs or not self.outputs:
            raise ValueError("expected a unit for co-simulation with inputs and outputs")
        if unknown := sorted(set(start) - set(found)):
            raise ValueError(f"start: {unknown[0]} is no variable of {about.modelName}, which has {', '.join(found)}")
        self._numbers = {name: v.valueReference for name, v in found.items()}
        self._unit = instantiated(self, self.file, about, "CoSimulation")
        self._set, self._get = self._unit.setReal, self._unit.getReal
        try:
            self._unit.setupExperiment(startTime=0.0)
            self._unit.enterInitializationMode()
            values = np.asarray(checks.real("start", [*start.values()], finite=True), float)
            self._set([self._numbers[name] for name in start], values.tolist())
            self._unit.exitInitializationMode()
        except Exception as error:
            raise ValueError(f"refuses its start: {type(error).__name__}: {error}") from error

    def __call__(self, u: ArrayLike | None = None) -> Float[np.ndarray, " p"]:
        """Move by a sample time under the input ``u`` [m], then measure; only measure if it is None."""
        if u is not None:
            given = np.asarray(checks.real("u", u), float)
            if given.shape != (len(self.inputs),):
                raise ValueError(f"u: expected {len(self.inputs)} numbers, {self.inputs}, but found {given.shape}")
            try:
                self._set([self._numbers[name] for name in self.inputs], given.tolist())
                self._unit.doStep(currentCommunicationPoint=self.time, communicationStepSize=self.dt)
            except Exception as error:
                raise ValueError(f"{self.file}: refused a step at {self.time:g} s: {error}") from error
            self.time += self.dt
        return np.array(self._get([self._numbers[name] for name in self.outputs]))
