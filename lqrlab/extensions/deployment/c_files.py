"""The files of an exported controller: code, header, test vectors, README."""

import dataclasses
import datetime
import inspect
import os
import re
import textwrap
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab import __version__
from lqrlab.compute import checks
from lqrlab.compute.files import write_atomic
from lqrlab.control import LQR
from lqrlab.extensions.deployment.c_code import MARK, check_folder, check_name
from lqrlab.extensions.deployment.c_code.expressions import TYPES, kind_of, literal
from lqrlab.extensions.deployment.c_code.operations import HELPERS
from lqrlab.extensions.deployment.exported_step import ExportedStep, TranslatedStep
from lqrlab.simulation import (
    LinearController,
    LinearPolicy,
    Measured,
    Outputs,
    Problem,
    Verdict,
    is_policy,
    rollout,
    verdict,
)
from lqrlab.simulation.memory_policies import measure
from lqrlab.systems import Plant, Signal, parameter_fields

_STEPS, _MOST = 200, 200  # test vectors; numbers of the memory in each
_FEW, _SHOWN = 24, 3  # numbers of a matrix, and test vectors, that the README shows


def to_c(
    controller: object, problem: Problem | Plant, folder: str | Path, *, name: str = "controller", source: str = ""
) -> Path:
    """Write a controller as C99: one step of it from absolute measurements to absolute inputs, in SI units.

    The code has no heap, no recursion and no library but ``math.h``; with ``CONTROLLER_FLOAT`` defined it computes in
    float, else in double. The folder gets a program with test vectors that repeats them on the target too.

    Args:
        controller: of any kind that :func:`lqrlab.simulation.bind` takes.
        problem: one plant, or the problem of it, whose limits of inputs the code keeps.
        folder: a new or empty one, or one that this function wrote; it is returned.
        name: start of all symbols and of the code's files; controllers of different names link into one program.
        source: run, file or command that the controller came from, for the README.

    Raises:
        ValueError: a batch of plants; NaN; a part or a name that C does not allow; a folder that holds other files.

    >>> import tempfile
    >>> plant = systems.make("pendulum")
    >>> optimum = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(sorted(path.name for path in deployment.to_c(optimum, plant, folder).iterdir())[:3])
    ['CMakeLists.txt', 'README.md', 'controller.c']
    """
    folder = checks.path("folder", folder)
    check_name(name)
    check_folder(folder, name)
    with jax.enable_x64(True):
        step = ExportedStep.of(controller, problem)
        translated = step.translated()
        ys, stable = _measurements(step)
        memories, us = step.run(ys)
        tolerances = _tolerances(step, ys, [*memories.values(), us])
    if not stable:
        warnings.warn(f"controller: the loop with {step.problem.name} diverges; exported all the same", stacklevel=2)
    folder.mkdir(parents=True, exist_ok=True)
    about = facts(step, controller, source) | {"date": datetime.date.today().isoformat()}
    more = {"DOUBLE": f"{tolerances[0]:.1e}", "FLOAT": f"{tolerances[1]:.1e}"}
    compared = {"MEMORY": renamed(_compared(step), name), "FIELDS": ", ".join(map(str, _fields(step)))} | more
    more |= {
        "ABOUT": "\n".join(f"| {key} | {comment(value)} |" for key, value in about.items()),
        "SHOWN": f"{_SHOWN}",
        "Y": ", ".join(map(inline, ys[:_SHOWN])),
        "U": "; ".join(", ".join(f"{v:.9g}" for v in u) for u in us[:_SHOWN]),
    }
    contents = {
        f"{name}.h": header(step, translated, about, name),
        f"{name}.c": code(step, translated, name),
        "test_vectors.csv": _vectors(ys, memories, us),
        "main_test.c": filled("main_test.c", name, **compared),
        "CMakeLists.txt": filled("CMakeLists.txt", name),
        "README.md": _readme(step, translated, name, **more),
    }
    for file, text in contents.items():
        write_atomic(folder / file, text)
    return folder


def renamed(text: str, name: str) -> str:
    """C code of ``controller`` as that of another name."""
    if name == "controller":
        return text
    for word, new in ((r"controller(?=_|\.[ch]\b)", name), ("CONTROLLER(?=_)", name.upper())):
        text = re.sub(rf"\b{word}", new, text)
    return re.sub(r"\breal_t\b", f"{name}_real_t", text)


def filled(template: str, name: str = "controller", **values: object) -> str:
    """A template for a controller of this name, with its places ``@NAME@`` filled in; those without a value stay."""
    text = resources.files(__package__).joinpath("templates", f"{template}.txt").read_text()
    known = {"MARK": MARK, "CONTROLLER": name} | values
    return re.sub("@([A-Z_]+)@", lambda place: str(known.get(place[1], place[0])), renamed(text, name))


def _measurements(step: ExportedStep) -> tuple[np.ndarray, bool]:
    """Measurements of a disturbed loop, with sensors that fail and outliers; and whether the loop stays bounded."""
    problem, key = step.problem, jax.random.key(0)
    scale = np.asarray(problem.scale_x)
    x0 = 0.1 * scale * np.asarray(jax.random.normal(key, (problem.n,)))
    run = rollout(problem, step.design, x0, _STEPS, key=key, noise=0.01 * scale, keep=("xs", "us"))
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
    """Any text as a comment in C."""
    return " ".join(str(text).replace("\\", "/").replace("*/", "* /").replace("/*", "/ *").split())


def _numbers(a: np.ndarray) -> str:
    kind = kind_of(a.dtype)
    flat = a.ravel().tolist() or [0]
    return textwrap.fill(
        ", ".join(literal(v, kind) for v in flat), 118, initial_indent="    ", subsequent_indent="    "
    )


def header(step: ExportedStep, translated: TranslatedStep, about: dict[str, str], name: str = "controller") -> str:
    """The text of ``controller.h``."""
    sensor, given = step.sensor, zip("yu", signals(step))
    kind = 0 if sensor is None else 2 if isinstance(sensor, Outputs) else 1
    matrix = f"#define CONTROLLER_SENSOR_MATRIX {inline(np.asarray(sensor))}\n" if kind == 1 else ""
    fields = [f"    {TYPES[kind_of(a.dtype)]} {part}[{max(a.size, 1)}];" for part, a in step.start.items()]
    words = [f"{key}: {comment(value)}" for key, value in about.items()]
    words += [f"{letter}[{k}]: {comment(s.label)}" for letter, many in given for k, s in enumerate(many)]
    return filled(
        "controller.h",
        name,
        ABOUT="\n".join(textwrap.fill(line, 118, initial_indent="   ", subsequent_indent="     ") for line in words),
        DT=repr(float(step.problem.dt)),
        MEASURED=len(step.y_eq),
        INPUTS=len(step.u_eq),
        OPERATIONS=translated.operations,
        SENSOR=kind,
        Y_EQUILIBRIUM=inline(step.y_eq),
        U_EQUILIBRIUM=inline(step.u_eq),
        MATRIX=renamed(matrix, name),
        FIELDS=renamed("\n".join(fields), name) or "    char nothing;",
    )


def inline(a: np.ndarray) -> str:
    """Numbers as the start of an array in C."""
    return "{" + ", ".join(repr(float(v)) for v in np.asarray(a).ravel()) + "}"


def code(step: ExportedStep, translated: TranslatedStep, name: str = "controller") -> str:
    """The text of ``controller.c``."""
    body = "\n".join(translated.lines)
    tables = [
        f"static const {TYPES[kind_of(a.dtype)]} {table}[{max(a.size, 1)}] = {{\n{_numbers(a)}\n}};"
        for table, a in translated.tables.items()
    ]
    helpers = [text for function, text in HELPERS.items() if f"{function}(" in body]
    unused = [f"    (void){given};" for given, mark in (("c", "c->"), ("y", "y[")) if mark not in body]
    start = [line for memory, a in step.start.items() for line in _initial(memory, a)]
    parts = {
        "TABLES": "".join(f"{part}\n\n" for part in (*tables, *helpers)),
        "START": "\n".join(start or ["    c->nothing = 0;"]),
        "STEP": "\n".join([*unused, body]),
    }
    return filled("controller.c", name, **{place: renamed(text, name) for place, text in parts.items()})


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


def facts(step: ExportedStep, controller: object, source: str = "") -> dict[str, str]:
    """Facts of an export: controller, where it came from, plant, sample time, weights, limits, version."""
    problem, policy = step.problem, step.policy
    source = str(controller) if isinstance(controller, str | Path) and not source else source
    about = _first_line(controller) if inspect.isfunction(controller) else ""
    words = [about, _words(step.design) or _words(policy)]
    if isinstance(policy, LinearPolicy):
        words = [about, f"{'LQR: ' * isinstance(step.design, LQR)}constant gain, u = -K x, K = {_matrix(policy.K)}"]
    elif isinstance(policy, LinearController):
        words += [f"linear, of order {policy.system.order}: u = C z + D y, then z becomes A z + B y"]
    fields = {} if problem.plant is None else parameter_fields(type(problem.plant))
    shown = [(key, np.asarray(getattr(problem.plant, key)), field.metadata["unit"]) for key, field in fields.items()]
    values = ", ".join(f"{key} = {a:.6g} {unit}".strip() for key, a, unit in shown if not a.ndim)
    weights, bounded = problem.continuous or problem, {} if problem.limits is None else problem.limits.signals()
    ends = zip(signals(step)[1], *_limits(step))
    limits = [f"{s.name} {a:.6g} … {b:.6g} {s.unit}".strip() for s, a, b in ends if "u" in bounded]
    limits += [f"of {name}" for name in bounded if name != "u"]
    return {
        "controller": "; ".join(filter(None, words)),
        "from": os.path.relpath(source) if os.path.isabs(source) else source or "Python",
        "plant": f"{problem.name}{': ' * bool(values)}{values}",
        "sample time": f"{float(problem.dt):g} s",
        "weights": f"Q = {_matrix(weights.Q)}, R = {_matrix(weights.R)}",
        "limits": ", ".join(limits) or "none",
        "written by": f"lqrlab {__version__}",
    }


def _first_line(a: object) -> str:
    return re.sub(":\\w+:|`", "", (a.__doc__ or "").strip().partition("\n")[0].rstrip("."))


def _words(design: object) -> str:
    """A design or policy and its numbers, ``PID: u = …; kp = 2, filter_time = 0.1 s``; none for matrices."""
    kind, shown = type(design), []
    known = kind.__module__.startswith("lqrlab.") or is_policy(design)
    if not known or isinstance(design, Measured | LinearController):
        return ""
    for key, a in vars(design).items() if dataclasses.is_dataclass(design) else ():
        a = np.asarray(a) if key == "inputs" else a
        most = -1 if key in ("m", "discrete") else 2 if key in ("K", "Ki", "L") else 1
        if isinstance(a, int | float | str | np.ndarray | jax.Array) and np.ndim(a) <= most:
            number, unit = a if isinstance(a, str) else _matrix(a), " s" * (key == "dt" or key.endswith("_time"))
            shown.append(f"{key} = {number}{unit}")
    return "; ".join(filter(None, [f"{kind.__name__}: {_first_line(design) or 'a policy'}", ", ".join(shown)]))


def _limits(step: ExportedStep) -> list[np.ndarray]:
    """Absolute low and high limits of the inputs; infinite for none."""
    ends = zip((-np.inf, np.inf), (step.problem.low, step.problem.high))
    return [step.u_eq + (np.full(len(step.u_eq), none) if a is None else np.asarray(a)) for none, a in ends]


def _matrix(a: object) -> str:
    """``diag[1, 2]``, or all rows; of a large one the corners."""
    M, form = np.asarray(a), {"separator": ", ", "formatter": {"float": "{:.6g}".format}, "threshold": _FEW}
    diagonal = M.ndim == 2 and M.shape == M.T.shape and not np.any(M - np.diag(np.diag(M)))
    return "diag" * diagonal + np.array2string(np.diag(M) if diagonal else M, 1000, **form)  # type: ignore[arg-type]


def _readme(step: ExportedStep, translated: TranslatedStep, name: str, **more: object) -> str:
    measured, inputs = signals(step)
    problem = step.problem
    rows = [f"| `y[{k}]` | {comment(s.label)} | {v:.6g} | |" for k, (s, v) in enumerate(zip(measured, step.y_eq))]
    rows += [
        f"| `u[{k}]` | {comment(s.label)} | {v:.6g} | {a:.6g} … {b:.6g} |"
        for k, (s, v, a, b) in enumerate(zip(inputs, step.u_eq, *_limits(step)))
    ]
    memory = [f"- `{part}`: {a.size} × {TYPES[kind_of(a.dtype)]}" for part, a in step.start.items()]
    return filled(
        "README.md",
        name,
        PLANT=comment(problem.name),
        DT=f"{float(problem.dt):g}",
        MEASURED="the state" if step.sensor is None else f"what the sensors show, not the {problem.n} states",
        ROWS="\n".join(rows),
        MEMORY=renamed("\n".join(memory), name) or "Nothing.",
        OPERATIONS=translated.operations,
        CONSTANTS=sum(a.size for a in translated.tables.values()),
        **more,
    )
