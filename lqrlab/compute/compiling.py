"""``jax.jit`` with a report: how many programs were compiled and why, how fast they are, what ran eagerly."""

import collections
import copy
import dataclasses
import functools
import importlib.util
import inspect
import statistics
import threading
import time
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.backend import Backend
from lqrlab.compute.by_function import KEPT
from lqrlab.compute.static import Description, Static, described, differences

# Python needed a value where a trace has none; without a trace it is there. (A leaked tracer, by contrast, is
# an error of the program, and so are wrong shapes and missing keys.)
SURVIVABLE = (
    jax.errors.ConcretizationTypeError,  # TracerBoolConversionError is one of them
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
_WAITED = 10  # first calls that are all waited for; later, one in so many
_KEPT = 101  # times that a sustained one is the median of


class EagerFallbackWarning(UserWarning):
    """A function could not be traced and runs without compilation, which is slow."""


@dataclasses.dataclass
class CompileReport:
    """Statistics of a compiled function; times [s] include waiting for the result, None before there is one.

    Attributes:
        name: of the function.
        calls: outside of traces.
        programs: compilations, those read from the persistent cache included.
        from_disk: programs that were read from the persistent cache.
        hits: calls that found their program compiled.
        first, second: time of those calls.
        sustained: median time of later calls that compiled nothing.
        changes: for each program after the first the argument that was new, before and after.
        eager: for each way of calling that runs without compilation the reason and the line.
    """

    name: str
    calls: int = 0
    programs: int = 0
    from_disk: int = 0
    hits: int = 0
    first: float | None = None
    second: float | None = None
    sustained: float | None = None
    changes: tuple[str, ...] = ()
    eager: tuple[str, ...] = ()

    def timings(self) -> dict[str, float | int | None]:
        """The numbers alone, as JSON has them."""
        names = ("calls", "programs", "from_disk", "hits", "first", "second", "sustained")
        return {name: getattr(self, name) for name in names} | {"eager": len(self.eager)}

    def __str__(self) -> str:
        given = {"first": self.first, "second": self.second, "sustained": self.sustained}
        times = ", ".join(f"{name} {1e3 * t:.3g} ms" for name, t in given.items() if t is not None)
        lines = [
            f"{self.name}: calls {self.calls}, programs {self.programs} (from disk {self.from_disk}), "
            f"hits {self.hits}; {times or 'not timed'}"
        ]
        lines += [f"  program {i}: {change}" for i, change in enumerate(self.changes, 2)]
        return "\n".join(lines + [f"  eager: {reason}" for reason in self.eager])


def compile(
    fn: Callable[..., PyTree] | None = None,
    backend: Backend | None = None,
    *,
    shapes: Sequence[str] | None = None,
    static: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
    strict: bool = False,
) -> Any:
    """``jax.jit`` with a report: use it as ``compile(fn, ...)`` or as a decorator, ``@compile(...)``.

    With ``shapes`` a network, a policy or a function of ``(params, *inputs)`` becomes one object with
    ``evaluate(params, inputs)`` and ``gradients(params, inputs, loss)``, that is compiled as far as its amount of work
    is worth it on this machine: :class:`lqrlab.compute.program.Program`.

    If tracing fails because Python needs a value (an ``if`` on an array, ``float()``, a boolean mask), the function
    runs eagerly for these static arguments from then on, and an :class:`EagerFallbackWarning` says once where and
    why. What was done before that line, printing for example, is then done twice. Any other error is raised as it is.
    The first ten calls and one in ten after those are waited for, to time them; the others return at once.

    Args:
        fn: a function of arrays and of pytrees of arrays.
        backend: where a model with ``shapes`` computes; JAX's default if left out.
        shapes: of a model's inputs, such as ``("batch 4", "batch 2")``; sizes with a name are free, but equal.
        static: names of arguments to specialise programs to: any hashable value, and lists, sets, dicts and
            NumPy arrays, which ``fn`` gets as they were. The programs of the last 16 choices are kept.
        donate: names of arguments whose memory the results may take; they are gone after the call.
        strict: never run eagerly: raise what tracing raised.

    Returns:
        A :class:`Compiled`, called like ``fn``; its ``report()`` says what happened.

    Raises:
        ValueError: a name that ``fn`` has no argument for.

    >>> scale = compute.compile(lambda k, x: k * x, shapes=("batch 4",))
    >>> scale.outputs(jnp.ones(()), batch=3).shape
    (3, 4)
    >>> double = compute.compile(lambda x: 2 * x)
    >>> double(jnp.ones(3)).tolist(), double.report().programs
    ([2.0, 2.0, 2.0], 1)
    """
    if shapes is not None or backend is not None:
        from lqrlab.compute.program import Program  # which needs Flax, and that takes long to import

        if fn is None or shapes is None or static or donate or strict:
            raise ValueError(
                "shapes: expected a model, a backend and shapes together, without static, donate, strict"
            )
        return Program(fn, backend, (shapes,) if isinstance(shapes, str) else shapes)
    if fn is None:
        return functools.partial(compile, static=static, donate=donate, strict=strict)
    return Compiled(fn, static, donate, strict)


class Compiled:
    """A function under :func:`compile`."""

    def __init__(
        self,
        fn: Callable[..., PyTree],
        static: str | Sequence[str],
        donate: str | Sequence[str],
        strict: bool,
    ):
        functools.update_wrapper(self, fn)
        self._fn, self._strict, self._static = fn, strict, (static,) if isinstance(static, str) else static
        self._signature = inspect.signature(fn)
        jax.jit(
            fn, static_argnames=static or None, donate_argnames=donate or None
        )  # refuses names of no argument

        def jitted(choice: "_Choice") -> Any:
            """The program of one choice, which JAX does not see: it would keep 4096 of them."""

            def chosen(**given: PyTree) -> PyTree:
                every = OrderedDict(given | {name: value.value() for name, value in choice})
                bound = inspect.BoundArguments(self._signature, every)
                return fn(*bound.args, **bound.kwargs)

            chosen.__name__ = getattr(fn, "__name__", type(fn).__name__)
            return jax.jit(chosen, donate_argnames=donate or None)

        self._jitted = functools.lru_cache(KEPT)(jitted)
        self._restart()

    def fresh(self) -> "Compiled":
        """The same function and its programs, with counts that begin at zero."""
        other = copy.copy(self)
        other._restart()
        return other

    def _restart(self) -> None:
        self._report = CompileReport(getattr(self._fn, "__name__", type(self._fn).__name__))
        self._times: collections.deque[float] = collections.deque(maxlen=_KEPT)
        self._seen: list[Description] = []
        self._eager: set[object] = set()

    def _bind(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> inspect.BoundArguments:
        """The arguments by name, those that are static made hashable."""
        given = self._signature.bind(*args, **kwargs)
        for name in given.arguments.keys() & self._static:
            try:
                given.arguments[name] = Static(given.arguments[name])
            except TypeError as error:
                raise TypeError(f"{self._report.name}: static argument {name}: {error}") from None
        return given

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function, compiled if it can be."""
        given, report = self._bind(args, kwargs), self._report
        count, programs = report.calls + 1, report.programs
        waited = count <= _WAITED or count % _WAITED == 0
        if waited:
            jax.block_until_ready((args, kwargs))
        start = time.perf_counter()
        out = self._run(given, args, kwargs)
        if checks.traced(out):  # part of somebody else's program
            return out
        report.calls = count
        if waited:
            jax.block_until_ready(out)
            seconds = time.perf_counter() - start
            if count <= 2:
                setattr(report, ("first", "second")[count - 1], seconds)
            elif report.programs == programs:
                self._times.append(seconds)
        return out

    def _run(
        self, given: inspect.BoundArguments, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        choice = _choice(given)
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            self._note_eager("compilation is switched off")
        elif choice not in self._eager:
            events = _events()
            before = len(events)
            try:
                out = self._jitted(choice)(**_free(given))
            except SURVIVABLE as error:
                if self._strict:
                    error.add_note(
                        f"compile(strict=True): {self._report.name} is not run without compilation."
                    )
                    raise
                self._eager.add(choice)
                self._note_eager(reason := where_it_failed(error))
                says = f"{self._report.name} cannot be compiled and runs eagerly, which is slow: {reason}"
                warnings.warn(says, EagerFallbackWarning, stacklevel=3)
            else:
                if _COMPILED in events[before:]:
                    self._report.from_disk += _FROM_DISK in events[before:]
                    self._note_program(described(given.arguments))
                elif not checks.traced(out):
                    self._report.hits += 1
                return out
        return self._fn(*args, **kwargs)

    def _note_eager(self, reason: str) -> None:
        self._report.eager = tuple(dict.fromkeys((*self._report.eager, reason)))

    def _note_program(self, new: Description) -> None:
        """Keep what a new program was made for, and say how it differs from the nearest one before."""
        self._report.programs += 1
        if self._seen:
            nearest = min((differences(old, new) for old in reversed(self._seen)), key=len)
            self._report.changes += ("; ".join(nearest) or "same arguments: JAX had dropped the program",)
        self._seen.append(new)

    def report(self) -> CompileReport:
        """What became of the calls so far."""
        sustained = statistics.median(self._times) if self._times else None
        return dataclasses.replace(self._report, sustained=sustained)

    def trace(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Traced:
        """As of a function under ``jax.jit``: ``.jaxpr``, ``.lower()``."""
        given = self._bind(args, kwargs)
        return self._jitted(_choice(given)).trace(**_free(given))


_Choice = tuple[tuple[str, Static], ...]


def _choice(given: inspect.BoundArguments) -> _Choice:
    """The static arguments of a call."""
    return tuple((name, v) for name, v in given.arguments.items() if isinstance(v, Static))


def _free(given: inspect.BoundArguments) -> dict[str, PyTree]:
    """The other arguments of a call."""
    return {name: v for name, v in given.arguments.items() if not isinstance(v, Static)}


_COMPILED, _FROM_DISK = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"
_thread = threading.local()


def _events() -> list[str]:
    """The programs that this thread has made so far, and those that it has read from disk."""
    _listen()
    return vars(_thread).setdefault("events", [])


@functools.cache
def _listen() -> None:
    """Ask JAX to tell of compilations; once, and not before somebody compiles."""

    def hear(event: str, *_: object, **__: object) -> None:
        if event in (_COMPILED, _FROM_DISK):
            vars(_thread).setdefault("events", []).append(event)

    jax.monitoring.register_event_duration_secs_listener(hear)
    jax.monitoring.register_event_listener(hear)


_SPECS = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax", "numpy")]
_LIBRARIES = (__file__, "<", *(str(Path(spec.origin).parent) for spec in _SPECS if spec and spec.origin))


def where_it_failed(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    steps = [
        step for step in traceback.extract_tb(error.__traceback__) if not step.filename.startswith(_LIBRARIES)
    ]
    where = f' at {steps[-1].filename}, line {steps[-1].lineno}: "{steps[-1].line}"' if steps else ""
    return f"{type(error).__name__}{where} ({str(error).splitlines()[0].rstrip('.')})"
