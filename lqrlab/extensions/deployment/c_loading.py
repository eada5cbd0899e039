"""Exported controllers, compiled and in a loop again."""

import ctypes
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from lqrlab.compute import checks, one_program, pytree
from lqrlab.compute.linalg import expand_batch
from lqrlab.extensions.deployment import c_files
from lqrlab.extensions.deployment.c_code import exported_headers
from lqrlab.simulation import Measured, Outputs, Policy, Problem, bind, outputs

_COMPILERS = ("cc", "gcc", "clang")


@dataclasses.dataclass(frozen=True, eq=False)
class ExportedController:
    """A controller in C, compiled: one more kind of controller for :func:`lqrlab.simulation.bind`.

    Attributes:
        folder, dt: that it is from, and its sample time [s].
        num_measured, num_inputs, memory_bytes: how many numbers it is given and gives, and size of its memory.
        y_eq, u_eq: equilibrium that it was designed about.
        sensor: matrix that turns the state into what it measures; None for the state or the plant's own outputs.
        measures_outputs: whether it measures the plant's own outputs.
        dtype: that it computes in.
    """

    folder: Path
    dt: float
    num_measured: int
    num_inputs: int
    memory_bytes: int
    y_eq: np.ndarray
    u_eq: np.ndarray
    sensor: np.ndarray | None
    measures_outputs: bool
    dtype: np.dtype
    library: ctypes.CDLL = dataclasses.field(repr=False)

    def start(self) -> np.ndarray:
        """Its memory before the first step, byte by byte."""
        memory = np.zeros(self.memory_bytes, np.uint8)
        self.library.lqrlab_load_c_init(memory.ctypes.data_as(ctypes.c_void_p))
        return memory

    def step(self, memory: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of many loops: memories ``[*loops, bytes]`` and absolute measurements ``[*loops, p]``."""
        lead = y.shape[:-1]
        y, memory = np.ascontiguousarray(checks.real("y", y), self.dtype), np.array(memory, np.uint8, order="C")
        u = np.zeros((*lead, self.num_inputs), self.dtype)
        self._call(self.library.lqrlab_load_c_step, int(np.prod(lead)), memory, y, u)
        return memory, u

    def run(self, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Memories after each step, and inputs, of absolute measurements ``[T, p]`` of one loop from its start on."""
        ys = np.ascontiguousarray(checks.real("ys", ys), self.dtype)
        us = np.zeros((len(ys), self.num_inputs), self.dtype)
        memories = np.zeros((len(ys), self.memory_bytes), np.uint8)
        self._call(self.library.lqrlab_load_c_run, len(ys), memories, ys, us)
        return memories, us

    def _call(self, function: Any, count: int, *arrays: np.ndarray) -> None:
        function(ctypes.c_long(count), *(ctypes.c_void_p(a.ctypes.data) for a in arrays))


@pytree
@dataclasses.dataclass(frozen=True)
class ExportedPolicy:
    """The policy of an :class:`ExportedController`, called from JAX; its memory is that of the C code, byte by byte."""

    y_eq: Float[Array, "*batch p"]
    u_eq: Float[Array, "*batch m"]
    controller: Any = dataclasses.field(metadata={"static": True})  # with dt, num_inputs, start and step

    def check_step(self, dt: Array) -> None:
        """Refuse another sample time than the code's, outside a trace."""
        if not checks.traced(dt) and not np.allclose(np.asarray(dt), self.controller.dt, rtol=1e-6, atol=0):
            raise ValueError(
                f"dt: expected the sample time of the exported controller, {self.controller.dt:g} s, but found "
                f"{float(np.min(np.asarray(dt))):g} s"
            )

    def init(self, batch_shape: tuple[int, ...]) -> UInt8[Array, "*loops bytes"]:
        """As ``controller_init`` leaves it."""
        memory = self.controller.start()
        return jnp.broadcast_to(jnp.asarray(memory), (*batch_shape, len(memory)))

    @one_program
    def __call__(self, carry: Array, x: Float[Array, "*loops p"]) -> tuple[Array, Float[Array, "*loops m"]]:
        """One call of ``controller_step`` for each loop."""
        shapes = (
            jax.ShapeDtypeStruct(carry.shape, carry.dtype),
            jax.ShapeDtypeStruct((*x.shape[:-1], self.controller.num_inputs), x.dtype),
        )
        y_eq, u_eq = (expand_batch(a.astype(x.dtype), x.ndim) for a in (self.y_eq, self.u_eq))
        carry, u = jax.pure_callback(self._called, shapes, carry, x + y_eq, vmap_method="broadcast_all")
        return carry, u - u_eq

    def _called(self, memory: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
        given = np.asarray(y)
        after, u = self.controller.step(np.asarray(memory), given)
        return after, u.astype(given.dtype)


def load_c(folder: str | Path, *, single: bool = False) -> ExportedController:
    """Compile the C code in a folder that :func:`to_c` wrote; the result is a controller like any other.

    This runs the folder's code: load what you would run.

    Args:
        folder: with ``controller.h`` and ``controller.c``, or those of another name.
        single: compile it for float instead of double.

    Raises:
        ValueError: no such files, or code that does not compile, with the compiler's first words.
        RuntimeError: no C compiler; ``CC`` may name one.

    >>> import tempfile
    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = deployment.load_c(deployment.to_c(optimum, plant, folder))
    >>> run = simulation.rollout(plant, exported, jnp.array([0.2, 0.0]), 500)
    >>> bool(jnp.abs(run.xs[-1]).max() < 1e-3)
    True
    """
    folder = checks.path("folder", folder)
    name = next((file.stem for file in exported_headers(folder)), "controller")
    missing = [file for file in (f"{name}.h", f"{name}.c") if not (folder / file).is_file()]
    if missing:
        raise ValueError(f"folder: expected one that deployment.to_c wrote, but {folder} has no {missing[0]}")
    with tempfile.TemporaryDirectory() as build:
        wrapper, target = Path(build, "wrapper.c"), Path(build, "controller.so")
        wrapper.write_text(c_files.filled("wrapper.c", name))
        options = [f"-I{folder.resolve()}", *[f"-D{name.upper()}_FLOAT"] * checks.flag("single", single)]
        compiled(compiler(), [*options, wrapper, folder.resolve() / f"{name}.c"], target, f"folder: {folder}")
        try:
            library = ctypes.CDLL(str(target))
        except OSError as error:
            raise ValueError(f"folder: {folder}: its C code cannot be called: {error}") from None
    sizes = (ctypes.c_long * 5)()
    library.lqrlab_load_c_sizes(sizes)
    size, p, m, sensor, real = sizes
    if min(size, p, m) < 1:
        raise ValueError(f"folder: {folder}: expected measurements and inputs in {name}.h, but found {p} and {m}")
    numbers = (ctypes.c_double * (1 + p + m))()
    library.lqrlab_load_c_numbers(numbers)
    dt = checks.number(f"folder: {folder}: {name.upper()}_DT", numbers[0], "a sample time above 0 s", above=0)
    both = np.asarray(checks.real(f"folder: {folder}: its equilibrium", [*numbers[1:]], finite=True))
    y_eq, u_eq = both[:p], both[p:]
    matrix = None
    if sensor == 1:
        entries = (ctypes.c_double * library.lqrlab_load_c_sensor(None))()
        library.lqrlab_load_c_sensor(entries)
        matrix = np.array(entries).reshape(p, -1)
    dtype = np.dtype(np.float32 if real == 4 else np.float64)
    return ExportedController(folder, dt, p, m, size, y_eq, u_eq, matrix, sensor == 2, dtype, library)


def compiled(cc: str, given: Sequence[str | Path], target: Path, whose: str) -> None:
    """Compile sources, with options, into a library; refuse with the compiler's first words."""
    command = [cc, "-std=c99", "-O2", "-ffp-contract=off", "-fPIC", "-shared", *given, "-lm", "-o", target]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        words = next(iter(done.stderr.strip().splitlines()), "no reason given")
        raise ValueError(f"{whose}: its C code does not compile: {words}")


def compiler() -> str:
    """The C compiler: the environment's ``CC``, or the system's."""
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, [named] if named else _COMPILERS)), None)
    if found is None:
        wanted = f"CC names {named}, which is not there" if named else f"none of {', '.join(_COMPILERS)} is there"
        raise RuntimeError(
            f"load_c: needs a C compiler, but {wanted}; install one (on Debian: apt install gcc), or name it in CC"
        )
    return found


@bind.register
def _bound(controller: ExportedController, problem: Problem) -> Policy:
    sensor: np.ndarray | Outputs | None = controller.sensor
    if sensor is None and controller.measures_outputs:
        if problem.plant is None:
            raise ValueError("problem: expected a plant whose outputs the exported controller measures")
        sensor = outputs(problem.plant)
    shown = controller.num_measured if sensor is None else sensor.shape[-1]
    if (shown, controller.num_inputs) != (problem.n, problem.m):
        raise ValueError(
            f"controller: the C code of {controller.folder} is for {shown} states and {controller.num_inputs} inputs, "
            f"but {problem.name} has {problem.n} and {problem.m}"
        )
    policy = ExportedPolicy(jnp.asarray(controller.y_eq), jnp.asarray(controller.u_eq), controller)
    policy.check_step(problem.dt)
    if sensor is None:
        return policy
    return Measured(policy, jnp.asarray(sensor) if isinstance(sensor, np.ndarray) else sensor)
