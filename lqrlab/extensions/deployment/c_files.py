"""The files of an exported controller: code, header, vectors that test it, and what they say of themselves."""

import textwrap
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.files import write_atomic
from lqrlab.extensions.deployment.c_code.expressions import TYPES, kind_of, literal
from lqrlab.extensions.deployment.c_code.operations import HELPERS
from lqrlab.extensions.deployment.exported_step import ExportedStep, TranslatedStep
from lqrlab.simulation import Outputs, Problem, Verdict, bind, rollout, verdict
from lqrlab.simulation.memory_policies import measure
from lqrlab.systems import Plant, Signal

_MARK = "written by lqrlab.deployment.to_c"
_STEPS, _MOST = 200, 200  # test vectors; numbers of the memory in each


def to_c(controller: object, problem: Problem | Plant, folder: str | Path) -> Path:
    """Write a controller as C99: one step of it from absolute measurements to absolute inputs, in SI units.

    The code has no heap, no recursion and no library but ``math.h``; with ``CONTROLLER_FLOAT`` defined it computes in
    float, else in double. The folder gets a program with test vectors that repeats them on the target too.

    Args:
        controller: of any kind that :func:`lqrlab.simulation.bind` takes.
        problem: one plant, or the problem of it, whose limits of inputs the code keeps.
        folder: a new or empty one, or one that this function wrote; it is returned.

    Raises:
        ValueError: a batch of plants; NaN; a part that cannot be written in C; a folder that holds other files.

    >>> import tempfile
    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(sorted(path.name for path in deployment.to_c(optimum, plant, folder).iterdir())[:3])
    ['CMakeLists.txt', 'README.md', 'controller.c']
    """
    folder = checks.path("folder", folder)
    _check_folder(folder)
    with jax.enable_x64(True):
        step = ExportedStep.of(controller, problem)
        translated = step.translated()
        ys, stable = _measurements(step, bind(controller, problem))
        memories, us = step.run(ys)
        tolerances = _tolerances(step, ys, [*memories.values(), us])
    if not stable:
        warnings.warn(f"controller: the loop with {step.problem.name} diverges; exported all the same", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    compared = {
        "MEMORY": _compared(step),
        "FIELDS": ", ".join(map(str, _fields(step))),
        "DOUBLE": f"{tolerances[0]:.1e}",
        "FLOAT": f"{tolerances[1]:.1e}",
    }
    contents = {
        "controller.h": header(step, translated),
        "controller.c": code(step, translated),
        "test_vectors.csv": _vectors(ys, memories, us),
        "main_test.c": filled("main_test.c", **compared),
        "CMakeLists.txt": filled("CMakeLists.txt"),
        "README.md": _readme(step, translated, tolerances),
    }
    for name, text in contents.items():
        write_atomic(folder / name, text)
    return folder


def _check_folder(folder: Path) -> None:
    """Refuse a folder with anything in it but what :func:`to_c` wrote, and what was built of that beside it."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder: expected a folder, but found the file {folder}")
    found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    header = folder / "controller.h"
    if found and not (header.is_file() and _MARK in header.read_text(errors="replace")[:400]):
        raise ValueError(
            f"folder: expected an empty folder, or one that to_c wrote, but {folder} holds {found[0]}"
            f"{' and others' if len(found) > 1 else ''}; name another folder"
        )


def filled(name: str, **values: object) -> str:
    """A template with its places ``@NAME@`` filled in."""
    text = resources.files(__package__).joinpath("templates", f"{name}.txt").read_text()
    for place, value in ({"MARK": _MARK} | values).items():
        text = text.replace(f"@{place}@", str(value))
    return text


def _measurements(step: ExportedStep, policy: object) -> tuple[np.ndarray, bool]:
    """Measurements of a disturbed loop, with sensors that fail and outliers; and whether the loop stays bounded."""
    problem, key = step.problem, jax.random.key(0)
    scale = np.asarray(problem.scale_x)
    x0 = 0.1 * scale * np.asarray(jax.random.normal(key, (problem.n,)))
    run = rollout(problem, bind(policy, problem), x0, _STEPS, key=key, noise=0.01 * scale, keep=("xs", "us"))
    judged = verdict.of_sizes(verdict.size(run.xs, problem.scale_x), disturbed=True, linear=problem.linear)
    stable = int(judged) != Verdict.DIVERGED
    xs = np.asarray(run.xs[:-1]) if stable else 0.1 * scale * np.random.default_rng(0).normal(size=(_STEPS, problem.n))
    seen = xs if step.sensor is None else np.asarray(measure(step.sensor, jnp.asarray(xs)))
    seen = np.array(seen)
    seen[_STEPS // 4 : _STEPS // 4 + 2] *= 10  # outliers, and actuators in saturation
    seen[_STEPS // 2, 0] = seen[_STEPS // 2 + 1] = np.nan  # a sensor that is silent; all of them
    return seen + step.y_eq, stable


def _tolerances(step: ExportedStep, ys: np.ndarray, exact: list[np.ndarray]) -> tuple[float, float]:
    """Tolerances of double and float against the vectors, beside the largest value of each.

    1e-12 and 1e-5, but where rounding grows in the controller itself, as it does in a regression or an estimator that
    starts far off: there JAX in float32, and the last digit of the measurements, say by how much.
    """

    def apart(others: list[np.ndarray]) -> float:
        with np.errstate(all="ignore"):
            sizes = [np.max(np.abs(a), initial=0, where=np.isfinite(a)) for a in map(np.asarray, exact)]
            off = [
                np.nanmax(np.abs(a.astype(float) - b) / (s or 1), initial=0) for a, b, s in zip(others, exact, sizes)
            ]
        return float(min(max(off, default=0), 1e3))

    signs = np.random.default_rng(0).choice([-1.0, 1.0], ys.shape)
    memories, us = step.run(ys * (1 + np.finfo(float).eps * signs))
    last_digit = apart([*memories.values(), us])
    memories, us = step.run(ys, single=True)
    single = apart([*memories.values(), us])
    ratio = np.finfo(np.float64).eps / np.finfo(np.float32).eps
    return max(1e-12, 20 * last_digit, 10 * ratio * single), max(1e-5, 10 * single)


def _vectors(ys: np.ndarray, memories: dict[str, np.ndarray], us: np.ndarray) -> str:
    """Measurements, inputs and what is remembered after them, line by line; first the largest of each column."""
    columns = {f"y{k}": ys[:, k] for k in range(ys.shape[1])} | {f"u{k}": us[:, k] for k in range(us.shape[1])}
    if sum(a[0].size for a in memories.values()) <= _MOST:
        for name, a in memories.items():
            flat = a.reshape(len(a), -1).astype(float)
            columns |= {f"{name}[{k}]": flat[:, k] for k in range(flat.shape[1])}
    table = np.stack(list(columns.values()), axis=1)
    lines = [",".join(columns)]
    return "\n".join([*lines, *(",".join(repr(float(v)) for v in row) for row in table)]) + "\n"


def _fields(step: ExportedStep) -> list[int]:
    """Columns of the vectors that are of one size: each signal, each array of the memory."""
    sizes = [a.size for a in step.start.values() if a.size]
    return [*[1] * (len(step.y_eq) + len(step.u_eq)), *(sizes if sum(sizes) <= _MOST else [])]


def _compared(step: ExportedStep) -> str:
    """The statements that give main_test.c what is remembered."""
    if not 0 < sum(a.size for a in step.start.values()) <= _MOST:
        return "    (void)c;\n    (void)out;\n"
    return "".join(
        f"    for (int i = 0; i < {a.size}; ++i) {{\n        out[count++] = (double)c->{name}[i];\n    }}\n"
        for name, a in step.start.items()
        if a.size
    )


def comment(text: str) -> str:
    """Text that anybody wrote, fit for a comment in C."""
    return " ".join(str(text).replace("\\", "/").replace("*/", "* /").replace("/*", "/ *").split())


def _numbers(a: np.ndarray) -> str:
    kind = kind_of(a.dtype)
    flat = a.ravel().tolist() or [0]
    return textwrap.fill(
        ", ".join(literal(v, kind) for v in flat), 118, initial_indent="    ", subsequent_indent="    "
    )


def header(step: ExportedStep, translated: TranslatedStep) -> str:
    """The text of ``controller.h``."""
    problem, sensor = step.problem, step.sensor
    kind = 0 if sensor is None else 2 if isinstance(sensor, Outputs) else 1
    fields = [f"    {TYPES[kind_of(a.dtype)]} {name}[{max(a.size, 1)}];" for name, a in step.start.items()]
    return filled(
        "controller.h",
        DT=repr(float(problem.dt)),
        MEASURED=len(step.y_eq),
        INPUTS=len(step.u_eq),
        OPERATIONS=translated.operations,
        SENSOR=kind,
        Y_EQUILIBRIUM=inline(step.y_eq),
        U_EQUILIBRIUM=inline(step.u_eq),
        MATRIX="" if kind != 1 else f"#define CONTROLLER_SENSOR_MATRIX {inline(np.asarray(sensor))}\n",
        FIELDS="\n".join(fields) or "    char nothing;",
        NAME=comment(problem.name),
    )


def inline(a: np.ndarray) -> str:
    """Numbers as the start of an array in C."""
    return "{" + ", ".join(repr(float(v)) for v in np.asarray(a).ravel()) + "}"


def code(step: ExportedStep, translated: TranslatedStep) -> str:
    """The text of ``controller.c``."""
    body = "\n".join(translated.lines)
    tables = [
        f"static const {TYPES[kind_of(a.dtype)]} {name}[{max(a.size, 1)}] = {{\n{_numbers(a)}\n}};"
        for name, a in translated.tables.items()
    ]
    helpers = [text for name, text in HELPERS.items() if f"{name}(" in body]
    unused = [f"    (void){name};" for name, mark in (("c", "c->"), ("y", "y[")) if mark not in body]
    start = [line for name, a in step.start.items() for line in _initial(name, a)]
    return filled(
        "controller.c",
        TABLES="".join(f"{part}\n\n" for part in (*tables, *helpers)),
        START="\n".join(start or ["    c->nothing = 0;"]),
        STEP="\n".join([*unused, body]),
    )


def _initial(name: str, a: np.ndarray) -> list[str]:
    """The statements that set a memory."""
    kind, size = kind_of(a.dtype), max(a.size, 1)
    flat = a.ravel() if a.size else np.zeros(1)
    if np.all(flat == flat[0]):
        value = literal(flat[0].item(), kind)
        if size == 1:
            return [f"    c->{name}[0] = {value};"]
        return [f"    for (int i = 0; i < {size}; ++i) {{", f"        c->{name}[i] = {value};", "    }"]
    return [
        "    {",
        f"        static const {TYPES[kind]} start[{size}] = {{",
        textwrap.indent(_numbers(a), "        "),
        "        };",
        f"        for (int i = 0; i < {size}; ++i) {{",
        f"            c->{name}[i] = start[i];",
        "        }",
        "    }",
    ]


def signals(step: ExportedStep) -> tuple[Sequence[Signal], Sequence[Signal]]:
    """Measurements and inputs; of a matrix that measures sums, these in words."""
    plant, sensor = step.problem.plant, step.sensor
    if plant is None:
        sizes = {"x": step.problem.n, "u": len(step.u_eq), "y": len(step.y_eq)}
        states, inputs, outputs = ([Signal(f"{c}{k}") for k in range(n)] for c, n in sizes.items())
    else:
        states, inputs, outputs = (list(given) for given in (plant.states, plant.inputs, plant.outputs))
    if sensor is None or isinstance(sensor, Outputs):
        return states if sensor is None else outputs, inputs
    measured = []
    for row in np.asarray(sensor):
        terms = [(v, s) for v, s in zip(row, states) if v]
        words = " + ".join(f"{v:g} × {s.label}" if v != 1 else s.label for v, s in terms)
        measured.append(terms[0][1] if [v for v, _ in terms] == [1] else Signal(words or "0"))
    return measured, inputs


def _readme(step: ExportedStep, translated: TranslatedStep, tolerances: tuple[float, float]) -> str:
    measured, inputs = signals(step)
    problem = step.problem
    low, high = [
        np.full(len(inputs), s * np.inf) if a is None else np.asarray(a) + step.u_eq
        for s, a in ((-1, problem.low), (1, problem.high))
    ]
    y_rows = [f"| `y[{k}]` | {comment(s.label)} | {v:.6g} | |" for k, (s, v) in enumerate(zip(measured, step.y_eq))]
    u_rows = [
        f"| `u[{k}]` | {comment(s.label)} | {v:.6g} | {a:.6g} … {b:.6g} |"
        for k, (s, v, a, b) in enumerate(zip(inputs, step.u_eq, low, high))
    ]
    memory = [f"- `{name}`: {a.size} × {TYPES[kind_of(a.dtype)]}" for name, a in step.start.items()]
    constants = sum(a.size for a in translated.tables.values())
    return filled("README.md").format(
        name=comment(problem.name),
        policy=type(step.policy).__name__,
        dt=float(problem.dt),
        rows="\n".join([*y_rows, *u_rows]),
        memory="\n".join(memory) or "Nothing.",
        operations=translated.operations,
        constants=constants,
        double=tolerances[0],
        single=tolerances[1],
    )
