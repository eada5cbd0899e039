"""Compilation that says what it does: programs, why each was made, how fast they are, and what ran without."""

import copy
import dataclasses
import difflib
import functools
import importlib.util
import inspect
import linecache
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from lqrlab.compute.static import Static, described, differences

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


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What became of the calls of a compiled function; times are waited for, in seconds, None if there is none.

    Attributes:
        name: of the function.
        calls: outside of traces.
        programs: compilations, those read from the persistent cache included.
        from_disk: programs that were read from there.
        hits: calls that found their program ready.
        first, second: time of those calls.
        sustained: median of later calls that compiled nothing.
        changes: for each program after the first, what was new: argument, before, after.
        eager: for each way of calling that runs without compilation, the reason and the line.
    """

    name: str
    calls: int
    programs: int
    from_disk: int
    hits: int
    first: float | None
    second: float | None
    sustained: float | None
    changes: tuple[str, ...]
    eager: tuple[str, ...]

    def timings(self) -> dict[str, float | int | None]:
        """The numbers alone, as JSON has them."""
        names = ("calls", "programs", "from_disk", "hits", "first", "second", "sustained")
        return {name: getattr(self, name) for name in names} | {"eager": len(self.eager)}

    def __str__(self) -> str:
        times = ", ".join(
            f"{name} {1e3 * t:.3g} ms"
            for name, t in (("first", self.first), ("second", self.second), ("sustained", self.sustained))
            if t is not None
        )
        lines = [
            f"{self.name}: calls {self.calls}, programs {self.programs} (from disk {self.from_disk}), "
            f"hits {self.hits}; {times or 'not timed'}"
        ]
        lines += [f"  program {i}: {change}" for i, change in enumerate(self.changes, 2)]
        return "\n".join(lines + [f"  eager: {reason}" for reason in self.eager])


def compile(
    fn: Callable | None = None,
    *,
    static: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
    strict: bool = False,
) -> Any:
    """``jax.jit`` that keeps count: use it as ``compile(fn, ...)`` or as a decorator, ``@compile(...)``.

    If tracing fails because Python needs a value (an ``if`` on an array, ``float()``, a boolean mask), the function
    runs eagerly for these static arguments from then on, and an :class:`EagerFallbackWarning` says once where and
    why. What was done before that line, printing for example, is then done twice. Any other error is the caller's
    own and is raised as it is. The first ten calls and one in ten after those are waited for, to time them; the
    others return at once.

    Args:
        fn: a function of arrays and of pytrees of arrays.
        static: names of arguments to specialise programs to: any hashable value, and lists, sets, dicts and
            NumPy arrays, which ``fn`` gets as they were.
        donate: names of arguments whose memory the results may take; they are gone after the call.
        strict: never run eagerly: raise what tracing raised.

    Returns:
        A :class:`Compiled`, called like ``fn``; its ``report()`` says what happened.

    Raises:
        ValueError: a name that ``fn`` has no argument for.
    """
    if fn is None:
        return functools.partial(compile, static=static, donate=donate, strict=strict)
    return Compiled(fn, static, donate, strict)


class Compiled:
    """A function under :func:`compile`."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def __init__(self, fn: Callable, static: str | Sequence[str], donate: str | Sequence[str], strict: bool):
        functools.update_wrapper(self, fn)
        self._fn, self._strict = fn, strict
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._parameters = inspect.signature(fn).parameters
        self._static = self._names("static", static)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._places = [
            i
            for i, p in enumerate(self._parameters.values())
            if p.kind in positional and p.name in self._static
        ]

        @functools.wraps(fn)
        def thawed(*args: Any, **kwargs: Any) -> Any:
            return fn(*map(_thaw, args), **{name: _thaw(v) for name, v in kwargs.items()})

        self._jitted = jax.jit(
            thawed,
            static_argnames=self._static or None,
            donate_argnames=self._names("donate", donate) or None,
        )
        self._restart()

    def fresh(self) -> "Compiled":
        """The same function and its programs, with counts that begin at zero."""
        other = copy.copy(self)
        other._restart()
        return other

    def _restart(self) -> None:
        self._calls = self._programs = self._from_disk = self._hits = 0
        self._first: float | None = None
        self._second: float | None = None
        self._times: list[float] = []
        self._seen: list[dict[tuple[str, str], Any]] = []
        self._changes: list[str] = []
        self._eager: dict[Any, str] = {}

    def _names(self, option: str, names: str | Sequence[str]) -> tuple[str, ...]:
        names = (names,) if isinstance(names, str) else tuple(names)
        kinds = {name: p.kind for name, p in self._parameters.items()}
        takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
        single = [n for n, k in kinds.items() if k.name not in ("VAR_POSITIONAL", "VAR_KEYWORD")]
        for name in names:
            if name not in single and not (takes_any and name not in kinds):
                near = difflib.get_close_matches(name, single, n=2) or single
                raise ValueError(
                    f"{option}: {self._name} has no single argument {name!r}; it has {', '.join(near) or 'none'}"
                )
        return names

    def _freeze(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with those that are static made hashable."""
        if not self._static:
            return tuple(args), kwargs
        frozen, by_name = list(args), dict(kwargs)
        where: Any
        for values, where in ((frozen, self._places), (by_name, self._static)):
            for i in where:
                if i in by_name if values is by_name else i < len(args):
                    try:
                        values[i] = Static(values[i])
                    except TypeError as error:
                        name = i if isinstance(i, str) else list(self._parameters)[i]
                        raise TypeError(f"{self._name}: static argument {name}: {error}") from None
        return tuple(frozen), by_name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, compiled if it can be."""
        frozen, named = self._freeze(args, kwargs)
        count = self._calls + 1
        waited = count <= _WAITED or count % _WAITED == 0
        if waited:
            jax.block_until_ready((args, kwargs))
        start = time.perf_counter()
        out, made = self._run(args, kwargs, frozen, named)
        if _traced(out):  # part of somebody else's program
            return out
        self._calls = count
        if waited:
            jax.block_until_ready(out)
            self._time(time.perf_counter() - start, made)
        return out

    def _time(self, seconds: float, made: bool) -> None:
        if self._calls == 1:
            self._first = seconds
        elif self._calls == 2:
            self._second = seconds
        elif not made:
            self._times = [*self._times[1 - _KEPT :], seconds]

    def _run(self, args: Any, kwargs: Any, frozen: Any, named: Any) -> tuple[Any, bool]:
        """What the call returns, and whether it made a program."""
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            self._eager["off"] = "compilation is switched off"
            return self._fn(*args, **kwargs), False
        which = tuple((i, v) for i, v in (*enumerate(frozen), *named.items()) if isinstance(v, Static))
        if which in self._eager:
            return self._fn(*args, **kwargs), False
        _listen()
        programs, from_disk = _now.programs, _now.from_disk
        try:
            out = self._jitted(*frozen, **named)
        except SURVIVABLE as error:
            if self._strict:
                error.add_note(f"compile(strict=True): {self._name} is not run without compilation.")
                raise
            self._eager[which] = reason = _reason(error)
        else:
            made = _now.programs > programs
            if made:
                self._from_disk += _now.from_disk > from_disk
                self._note(frozen, named)
            elif not _traced(out):
                self._hits += 1
            return out, made
        warnings.warn(
            f"{self._name} cannot be compiled and runs eagerly, which is slow: {reason}",
            EagerFallbackWarning,
            stacklevel=3,
        )
        return self._fn(*args, **kwargs), False

    def _note(self, frozen: Any, named: Any) -> None:
        """Keep what a new program was made for, and say how it differs from the nearest one before."""
        self._programs += 1
        new = described(self._parameters, frozen, named)
        if self._seen:
            nearest = min((differences(old, new) for old in reversed(self._seen)), key=len)
            self._changes.append("; ".join(nearest) or "same arguments: JAX had dropped the program")
        self._seen.append(new)

    def report(self) -> CompileReport:
        """What became of the calls so far."""
        return CompileReport(
            self._name, self._calls, self._programs, self._from_disk, self._hits, self._first, self._second,
            statistics.median(self._times) if self._times else None,
            tuple(self._changes), tuple(dict.fromkeys(self._eager.values())),
        )  # fmt: skip

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of a function under ``jax.jit``: ``.jaxpr``, ``.lower()``."""
        frozen, named = self._freeze(args, kwargs)
        return self._jitted.trace(*frozen, **named)


def _thaw(value: Any) -> Any:
    return value.value() if isinstance(value, Static) else value


def _traced(tree: Any) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


class _Events(threading.local):
    """What JAX does during a call of this thread."""

    def __init__(self) -> None:
        self.programs = self.from_disk = 0


_now = _Events()


@functools.cache
def _listen() -> None:
    """Ask JAX to tell of compilations; once, and not before somebody compiles."""

    def compiled(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            _now.programs += 1

    def read(event: str, **_: Any) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _now.from_disk += 1

    jax.monitoring.register_event_duration_secs_listener(compiled)
    jax.monitoring.register_event_listener(read)


_SPECS = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax", "numpy")]
_LIBRARIES = (__file__, *(str(Path(spec.origin).parent) for spec in _SPECS if spec and spec.origin))


def _reason(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    line, walk = "", error.__traceback__
    while walk is not None:
        frame: TracebackType = walk
        file, number = frame.tb_frame.f_code.co_filename, frame.tb_lineno
        if not file.startswith(_LIBRARIES) and not file.startswith("<"):
            text = linecache.getline(file, number).strip()
            line = f' at {file}, line {number}: "{text}"'
        walk = frame.tb_next
    says = str(error).split("\n")[0].rstrip(".")
    return f"{type(error).__name__}{line} ({says})"


def quickly(fn: Callable, **options: Any) -> Callable:
    """``jax.jit(fn, **options)``, compiled in a fraction of the time to run at half the speed or less.

    For what is called a few times only, on a CPU. On other devices and with a jaxlib that does not know the
    settings it is a plain ``jax.jit``.
    """
    settings = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
    try:
        jax.jit(lambda: 0, compiler_options=settings)()
    except Exception:  # whatever it says then
        return jax.jit(fn, **options)
    return jax.jit(fn, compiler_options=settings, **options)
