"""Checks of a plant's declaration: whatever is incomplete or inconsistent is refused with the line at fault."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import quick_jit
from lqrlab.systems import drawing
from lqrlab.systems.declaration import Signal, check_slopes
from lqrlab.systems.plant import Plant, parameter_fields

T = TypeVar("T")


def check(cls: type[Plant]) -> None:
    """Raise an error that names the line of an incomplete or inconsistent declaration."""
    fields = parameter_fields(cls)
    declaration = _Declaration(cls)
    declaration.check_signals()
    declaration.check_parameters()
    plant = cls(**{name: jnp.asarray(f.default, float) for name, f in fields.items()})
    declaration.check_shapes(plant)
    for method in ("equilibrium", "matrices", "weights"):  # each traced alone, to name the one that fails
        declaration.trace(plant, method)
    (x, u, rate), matrices, (C,), weights = jax.tree.map(np.asarray, _numbers(plant))
    declaration.check_equilibrium(x, u, rate, max(1.0, *(float(np.nan_to_num(abs(a)).max()) for a in matrices)))
    check_slopes(f"{cls.__name__}: dynamics", np.hstack(matrices), plant.states)
    check_slopes(f"{cls.__name__}: output", C, plant.outputs)
    declaration.check_weights(weights)
    declaration.attempt("draw", lambda: drawing.bounds(plant.drawing(x, u)))


def _as_parameter(name: str, default: object) -> str:
    """The declaration to write for a parameter whose value is ``default``."""
    value = float(default) if isinstance(default, int | float) and default else 1.0
    ends = ", ".join(f"{end:g}" for end in sorted((value / 10, value * 10)))
    return (
        f"write {name}: Array = systems.param({value:g}, 'unit', 'what it is', {ends}), the last two being the range "
        "in which the model holds"
    )


def range_and_unit(field: dataclasses.Field) -> str:
    """``"[0.1, 10] kg"`` of a declared parameter."""
    return f"[{field.metadata['low']:g}, {field.metadata['high']:g}] {field.metadata['unit']}"


@dataclasses.dataclass(frozen=True)
class _Declaration:
    cls: type[Plant]

    def require(self, good: object, why: str, where: str) -> None:
        """Unless ``good``, refuse the class and quote its first line in which ``where`` occurs."""
        if not good:
            raise ValueError(f"{self.cls.__name__}: {why}{_line(self.cls, where)}")

    def attempt(self, what: str, call: Callable[[], T]) -> T:
        """``call()``, whose exception is reported as a failure of the method ``what``."""
        try:
            return call()
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            why = f"{what} fails with {type(error).__name__}: {text}{_line(self.cls, f'def {what}')}"
            raise ValueError(f"{self.cls.__name__}: {why}") from error

    def trace(self, plant: Plant, method: str, *vectors: jax.Array) -> object:
        """Shapes of what a method returns."""
        return self.attempt(method, lambda: jax.eval_shape(getattr(plant, method), *vectors))

    def check_signals(self) -> None:
        cls = self.cls
        for kind in ("states", "inputs"):
            listed, expected = getattr(cls, kind), "a tuple of Signal(name, unit, scale)"
            right = isinstance(listed, tuple) and all(isinstance(s, Signal) for s in listed)
            self.require(right, f"{kind}: expected {expected}, but found {listed!r}", kind)
            self.require(listed, f"declares no {kind}; list them as {expected}", kind)
        step = isinstance(cls.dt, (int, float)) and 0 < cls.dt < np.inf
        self.require(step, f"dt: expected a sample time above 0 s, but found {cls.dt!r}", "dt")
        source = "source: expected the model's source (book or paper, equation or page), but found none"
        self.require(cls.source, source, "source")
        names = [s.name for s in (*cls.states, *cls.inputs)]
        for s in (*cls.states, *cls.inputs, *cls.outputs):
            no_state = f"outputs names {s!r}, which is not a state; a Signal describes a result of output(x)"
            self.require(isinstance(s, Signal), no_state, "outputs")
            self.require(names.count(s.name) < 2, f"two signals are called {s.name!r}", s.name)
            self.require(s.unit, f"signal {s.name!r} has no unit (use '1' for a pure number)", s.name)
            scale = f"signal {s.name!r}: expected a scale above 0, but found {s.scale!r}"
            number = isinstance(s.scale, int | float | np.integer | np.floating)
            self.require(number and 0 < s.scale < np.inf, scale, s.name)
        for name in cls.solve_for:
            unknown = f"solve_for names {name!r}, which is neither a state nor an input"
            self.require(name in names, unknown, "solve_for")

    def check_parameters(self) -> None:
        fields = parameter_fields(self.cls)
        for f in dataclasses.fields(self.cls):  # type: ignore[arg-type]
            self.require(f.name in fields, f"field {f.name!r}: {_as_parameter(f.name, f.default)}", f.name)
            hides = f"parameter {f.name!r} hides Plant.{f.name}; choose another name"
            self.require(not hasattr(Plant, f.name), hides, f.name)
            for what, hint in (("unit", "use '1' for a pure number"), ("about", "describe it in a few words")):
                given = isinstance(f.metadata[what], str) and f.metadata[what]
                self.require(given, f"parameter {f.name!r} has no {what} ({hint})", f.name)
            low, high = f.metadata["low"], f.metadata["high"]
            no_range = f"parameter {f.name!r} has no range (low, high) in which the model means anything"
            numbers = all(isinstance(end, int | float) for end in (low, high))
            self.require(numbers and low < high, no_range, f.name)
            outside = f"parameter {f.name!r}: default {f.default:g} is outside {range_and_unit(f)}"
            self.require(low <= f.default <= high, outside, f.name)
        public = {k: v for k, v in vars(self.cls).items() if not k.startswith("_")}  # no __firstlineno__ of Python 3.13
        plain = [(k, v) for k, v in public.items() if isinstance(v, int | float) and k != "dt"]
        told = [f"instead of {k} = {v:g}, {_as_parameter(k, v)}" for k, v in plain]
        self.require(fields, f"declares no parameters; {(told or [_as_parameter('length', 1.0)])[0]}", "class")

    def check_shapes(self, plant: Plant) -> None:
        """Trace the equations of motion and refuse a result of the wrong shape."""
        n, m = plant.n, plant.m
        point = self.trace(plant, "operating_point")
        shapes = tuple(a.shape for a in point)  # type: ignore[attr-defined]
        expected = f"expected x and u of shapes ({n},) and ({m},), but found {shapes}"
        self.require(shapes == ((n,), (m,)), f"operating_point: {expected}", "def operating_point")
        x, u = jnp.zeros(n), jnp.zeros(m)
        q, v = jnp.array_split(x, 2)
        energies = [
            ("kinetic", "kinetic: expected shape", (), (q, v)),
            ("potential", "potential: expected shape", (), (q,)),
            ("forces", "forces: expected shape", (n // 2,), (q, v, u)),
        ]
        for method, expects, shape, vectors in [
            *(energies if hasattr(self.cls, "kinetic") else ()),
            ("dynamics", "dynamics(x, u): expected ẋ of shape", (n,), (x, u)),
            ("output", "output(x): expected shape", (len(self.cls.outputs),), (x,)),
        ]:
            result = self.trace(plant, method, *vectors)
            found = getattr(result, "shape", f"a {type(result).__name__}: make one array, by jnp.stack")
            self.require(found == shape, f"{expects} {shape}, but found {found}", f"def {method}")

    def check_equilibrium(self, x: np.ndarray, u: np.ndarray, rate: np.ndarray, pace: float) -> None:
        """Refuse a point at which the states move, ``pace`` [1/s] being how fast a scale's push would move them."""
        where = "solve_for" if self.cls.solve_for else "operating_point"
        free = ", ".join(self.cls.solve_for) or "nothing"
        none = f"no equilibrium: solving for {free} from the operating point finds none"
        self.require(np.isfinite(np.concatenate([rate, x, u])).all(), none, where)
        worst = self.cls.states[int(np.argmax(np.abs(rate)))].name
        moves = (
            f"no equilibrium: at the operating point {worst!r} changes by {np.abs(rate).max():.2g} a second; "
            "give the signals' values there (at=...), write operating_point, or name in solve_for what moves"
        )
        self.require(np.max(np.abs(rate)) < 1e-6 * pace, moves, where)

    def check_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Refuse weights that are not symmetric, Q ≥ 0 and R > 0."""
        for name, w, signals in zip("QR", weights, (self.cls.states, self.cls.inputs)):
            shape = (len(signals),) * 2
            right = w.shape == shape and np.isfinite(w).all() and np.allclose(w, w.T)
            self.require(right, f"weights: expected a symmetric {name} of shape {shape}", "def weights")
            lowest = np.linalg.eigvalsh(w)[0]
            good = lowest > 0 if name == "R" else lowest >= -1e-9 * np.abs(w).max()
            expected = f"expected {name} {'≥' if name == 'Q' else '>'} 0"
            self.require(good, f"weights: {expected}, but found the eigenvalue {lowest:.3g}", "def weights")


@quick_jit
def _numbers(plant: Plant) -> list[tuple[jax.Array, ...]]:
    """Equilibrium, rate of the states there, A and B, C, Q and R: one program, so that a check takes little time."""
    x, u = plant.equilibrium()
    return [(x, u, plant.dynamics(x, u)), plant.matrices(), (plant.output_matrix(),), plant.weights()]


def _line(cls: type, where: str) -> str:
    """Number and text of the first line of a class that holds ``where``, if its source is known."""
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return ""
    number = next((i for i, line in enumerate(lines) if re.search(rf"\b{re.escape(where)}\b", line)), 0)
    return f" (line {first + number}: {lines[number].strip()})"
