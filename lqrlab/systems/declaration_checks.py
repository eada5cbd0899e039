"""Checks of a plant's declaration: whatever is incomplete or inconsistent is refused with the line at fault."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.systems import drawing
from lqrlab.systems.declaration import Signal
from lqrlab.systems.plant import Plant, parameter_fields, quick_jit

T = TypeVar("T")


def check(cls: type[Plant]) -> None:
    """Refuse a declaration that is incomplete or inconsistent, naming the line at fault.

    Raises:
        ValueError: a signal without unit or scale, a parameter without unit, meaning or range, a missing source
            or sample time, an array of the wrong shape, no equilibrium, an indefinite weight, …
    """
    declaration = _Declaration(cls)
    declaration.check_signals()
    declaration.check_parameters()
    plant = cls(**{name: jnp.asarray(f.default, float) for name, f in parameter_fields(cls).items()})
    declaration.check_shapes(plant)
    for method in (
        "equilibrium",
        "matrices",
        "weights",
    ):  # traced alone first, which tells the one that fails
        declaration.attempt(method, functools.partial(jax.eval_shape, getattr(plant, method)))
    (x, u, rate), matrices, weights = jax.tree.map(np.asarray, _numbers(plant))
    declaration.check_equilibrium(x, u, rate, pace=max(1.0, *(float(np.abs(a).max()) for a in matrices)))
    declaration.check_weights(weights)
    declaration.attempt("draw", lambda: drawing.bounds(plant.drawing(x, u)))


def range_and_unit(field: dataclasses.Field) -> str:
    """``"[0.1, 10] kg"`` of a declared parameter."""
    return f"[{field.metadata['low']:g}, {field.metadata['high']:g}] {field.metadata['unit']}"


@dataclasses.dataclass(frozen=True)
class _Declaration:
    cls: type[Plant]

    def refuse(self, why: str, where: str = "") -> NoReturn:
        """Raise a ``ValueError`` that quotes the first line of the class in which ``where`` occurs."""
        raise ValueError(f"{self.cls.__name__}: {why}{_line(self.cls, where)}")

    def attempt(self, what: str, call: Callable[[], T]) -> T:
        """``call()``, whose exception is reported as a failure of the method ``what``."""
        try:
            return call()
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            why = f"{what} fails with {type(error).__name__}: {text}{_line(self.cls, f'def {what}')}"
            raise ValueError(f"{self.cls.__name__}: {why}") from error

    def check_signals(self) -> None:
        cls = self.cls
        for kind in ("states", "inputs"):
            listed = getattr(cls, kind)
            if not isinstance(listed, tuple) or not all(isinstance(s, Signal) for s in listed):
                self.refuse(
                    f"{kind}: expected a tuple of Signal(name, unit, scale), but found {listed!r}", kind
                )
            if not listed:
                self.refuse(f"declares no {kind}; list them as a tuple of Signal(name, unit, scale)", kind)
        if not isinstance(cls.dt, (int, float)) or not cls.dt > 0:
            self.refuse(f"dt: expected a sample time above 0 s, but found {cls.dt!r}", "dt")
        if not cls.source:
            self.refuse("source: say where the model comes from (book or paper, equation or page)", "source")
        names = [s.name for s in (*cls.states, *cls.inputs)]
        for s in (*cls.states, *cls.inputs, *cls.outputs):
            if not isinstance(s, Signal):
                self.refuse(
                    f"outputs names {s!r}, which is no state; a Signal says what output(x) computes",
                    "outputs",
                )
            if names.count(s.name) > 1:
                self.refuse(f"two signals are called {s.name!r}", f'"{s.name}"')
            if not s.unit:
                self.refuse(f"signal {s.name!r} has no unit (use '1' for a pure number)", f'"{s.name}"')
            if not s.scale > 0:
                self.refuse(
                    f"signal {s.name!r}: expected a scale above 0, but found {s.scale!r}", f'"{s.name}"'
                )
        for name in cls.solve_for:
            if name not in names:
                self.refuse(f"solve_for names {name!r}, which is neither a state nor an input", "solve_for")

    def check_parameters(self) -> None:
        fields = parameter_fields(self.cls)
        hints = {"unit": "use '1' for a pure number", "about": "say in a few words what it is"}
        for f in dataclasses.fields(self.cls):  # type: ignore[arg-type]
            if f.name not in fields:
                self.refuse(
                    f"field {f.name!r}: declare it with param(default, unit, about, low, high)", f.name
                )
            if hasattr(Plant, f.name):
                self.refuse(f"parameter {f.name!r} hides Plant.{f.name}; choose another name", f.name)
            for what, hint in hints.items():
                if not f.metadata[what]:
                    self.refuse(f"parameter {f.name!r} has no {what} ({hint})", f.name)
            low, high = f.metadata["low"], f.metadata["high"]
            if low is None or high is None or not low < high:
                self.refuse(
                    f"parameter {f.name!r} has no range (low, high) in which the model means anything", f.name
                )
            if not low <= f.default <= high:
                self.refuse(
                    f"parameter {f.name!r}: default {f.default:g} is outside {range_and_unit(f)}", f.name
                )
        if not fields:
            self.refuse(
                "declares no parameters; declare them with param(default, unit, about, low, high)", "class"
            )

    def check_shapes(self, plant: Plant) -> None:
        """Trace the equations of motion and refuse a result of the wrong shape."""
        n, m = plant.n, plant.m
        point = self.attempt("operating_point", lambda: jax.eval_shape(plant.operating_point))
        shapes = tuple(a.shape for a in point)
        if shapes != ((n,), (m,)):
            expected = f"expected x and u of shapes ({n},) and ({m},), but found {shapes}"
            self.refuse(f"operating_point: {expected}", "def operating_point")
        x, u = (jnp.zeros(a.shape) for a in point)
        q, v = jnp.array_split(x, 2)
        energies = [
            ("kinetic", "kinetic: expected shape", (), (q, v)),
            ("potential", "potential: expected shape", (), (q,)),
            ("forces", "forces: expected shape", (n // 2,), (q, v, u)),
        ]
        for method, expects, shape, arguments in [
            *(energies if hasattr(self.cls, "kinetic") else ()),
            ("dynamics", "dynamics(x, u): expected ẋ of shape", (n,), (x, u)),
            ("output", "output(x): expected shape", (len(self.cls.outputs),), (x,)),
        ]:
            result = self.attempt(
                method, functools.partial(jax.eval_shape, getattr(plant, method), *arguments)
            )
            if getattr(result, "shape", None) != shape:
                other = f"a {type(result).__name__}: make one array, by jnp.stack"
                self.refuse(
                    f"{expects} {shape}, but found {getattr(result, 'shape', other)}", f"def {method}"
                )

    def check_equilibrium(self, x: np.ndarray, u: np.ndarray, rate: np.ndarray, pace: float) -> None:
        """Refuse a point at which the states move, ``pace`` [1/s] being how fast a scale's push would move them."""
        where = "solve_for" if self.cls.solve_for else "operating_point"
        if not np.isfinite(np.concatenate([rate, x, u])).all():
            free = ", ".join(self.cls.solve_for) or "nothing"
            self.refuse(f"no equilibrium: solving for {free} from the operating point finds none", where)
        if not np.max(np.abs(rate)) < 1e-6 * pace:
            worst = self.cls.states[int(np.argmax(np.abs(rate)))].name
            self.refuse(
                f"no equilibrium: at the operating point {worst!r} changes by {np.abs(rate).max():.2g} a second; "
                "give the signals' values there (at=...), write operating_point, or name in solve_for what moves",
                where,
            )

    def check_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Refuse weights that are not symmetric, Q ≥ 0 and R > 0."""
        for name, w, signals in zip("QR", weights, (self.cls.states, self.cls.inputs)):
            if w.shape != (len(signals),) * 2 or not np.isfinite(w).all() or not np.allclose(w, w.T):
                self.refuse(
                    f"weights: expected a symmetric {name} of shape {(len(signals),) * 2}", "def weights"
                )
            lowest = np.linalg.eigvalsh(w)[0]
            if lowest < -1e-9 * np.abs(w).max() or (name == "R" and lowest <= 0):
                expected = f"expected {name} {'≥' if name == 'Q' else '>'} 0"
                self.refuse(f"weights: {expected}, but found the eigenvalue {lowest:.3g}", "def weights")


@quick_jit
def _numbers(plant: Plant) -> list[tuple[jax.Array, ...]]:
    """Equilibrium, rate of the states there, A and B, Q and R: one program, so that a check takes little time."""
    x, u = plant.equilibrium()
    return [(x, u, plant.dynamics(x, u)), plant.matrices(), plant.weights()]


def _line(cls: type, where: str) -> str:
    """Number and text of the first line of a class that holds ``where``, if its source is known."""
    try:
        lines, first = inspect.getsourcelines(cls)
    except (OSError, TypeError):
        return ""
    pattern = rf"(?<!\w){re.escape(where)}"
    number = next((i for i, line in enumerate(lines) if where and re.search(pattern, line)), 0)
    return f" (line {first + number}: {lines[number].strip()})"
