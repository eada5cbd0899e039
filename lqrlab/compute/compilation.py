"""``jax.jit`` that counts its programs and runs eagerly what cannot be traced."""

import dataclasses
import functools
import importlib.util
import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.jit import KEPT

# Python needed a value where a trace has none; a leaked tracer, by contrast, is an error of the program
_SURVIVABLE = (
    jax.errors.ConcretizationTypeError,  # TracerBoolConversionError is one of them
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


class EagerFallbackWarning(UserWarning):
    """A function could not be traced and runs without compilation, which is slow."""


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """Counts of a compiled function's calls.

    Attributes:
        name: of the function.
        calls: outside of traces.
        programs: calls that were traced and compiled, or read from the persistent cache.
        eager: for each choice of static arguments that runs without compilation the reason and the line.
    """

    name: str
    calls: int
    programs: int
    eager: tuple[str, ...]

    def __str__(self) -> str:
        counts = f"{self.name}: calls {self.calls}, programs {self.programs}"
        return "\n".join([counts, *(f"  eager: {reason}" for reason in self.eager)])


def compile(
    fn: Callable[..., PyTree] | None = None, *, static: str | Sequence[str] = (), donate: str | Sequence[str] = ()
) -> Any:
    """``jax.jit`` with a report: use it as ``compile(fn, ...)`` or as a decorator, ``@compile(...)``.

    If tracing fails because Python needs a value (an ``if`` on an array, ``float()``, a boolean mask), the function
    runs eagerly for these static arguments from then on, and an :class:`EagerFallbackWarning` says once where and
    why. What was done before that line, printing for example, is then done twice. Any other error is raised as it is.
    Why there is one program more ``debugging.compiles()`` tells.

    Args:
        fn: a function of arrays and of pytrees of arrays.
        static, donate: as ``static_argnames`` and ``donate_argnames`` of ``jax.jit``.

    Returns:
        A :class:`Compiled`, called like ``fn``.

    >>> double = compute.compile(lambda x: 2 * x)
    >>> double(jnp.ones(3)).tolist(), double.report().programs
    ([2.0, 2.0, 2.0], 1)
    """
    if fn is None:
        return functools.partial(compile, static=static, donate=donate)
    return Compiled(fn, static, donate)


class Compiled:
    """A function under :func:`compile`."""

    def __init__(self, fn: Callable[..., PyTree], static: str | Sequence[str], donate: str | Sequence[str]):
        functools.update_wrapper(self, checks.function("fn", fn))
        for option, names in (("static", static), ("donate", donate)):
            if not isinstance(names, str | list | tuple) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{option}: expected names of the function's arguments, but found {names!r}")
        self._fn, self._signature = fn, inspect.signature(fn)
        self._static = (static,) if isinstance(static, str) else tuple(static)
        self._traces = self._calls = self._programs = 0
        self._eager: dict[object, str] = {}

        def program(choice: object) -> Callable[..., PyTree]:
            @functools.wraps(fn)
            def counted(*args: PyTree, **kwargs: PyTree) -> PyTree:
                self._traces += 1
                return fn(*args, **kwargs)

            return jax.jit(counted, static_argnames=self._static, donate_argnames=donate)

        program(None)  # refuses names that are none
        self._program = functools.lru_cache(KEPT)(program)  # JAX would keep the program of each training

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function, compiled if it can be."""
        given, traces = self._signature.bind(*args, **kwargs).arguments, self._traces
        choice = tuple((type(given[name]), given[name]) for name in self._static if name in given)
        try:
            hash(choice)
        except TypeError:
            expected = f"of the static arguments {list(self._static)} what can be hashed, a tuple in place of a list"
            found = [value for _, value in choice]
            raise ValueError(f"{self.report().name}: expected {expected}, but found {found!r}") from None
        program: Callable[..., PyTree] = self._program(choice)
        if jax.config.jax_disable_jit or choice in self._eager:  # type: ignore[attr-defined]
            program = self._fn
        try:
            out = program(*args, **kwargs)
        except _SURVIVABLE as error:
            if program is self._fn:
                raise
            traces = self._traces
            self._eager[choice] = _where_it_failed(error)
            says = f"{self.report().name} cannot be compiled and runs eagerly, which is slow"
            warnings.warn(f"{says}: {self._eager[choice]}", EagerFallbackWarning, stacklevel=2)
            out = self._fn(*args, **kwargs)
        if not checks.traced(out):  # as it is within somebody else's program
            self._calls += 1
            self._programs += self._traces > traces
        return out

    def report(self) -> CompileReport:
        """Counts of the calls so far."""
        name = getattr(self._fn, "__name__", type(self._fn).__name__)
        return CompileReport(name, self._calls, self._programs, tuple(self._eager.values()))


_SPECS = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax", "numpy")]
_LIBRARIES = (__file__, "<", *(str(Path(spec.origin).parent) for spec in _SPECS if spec and spec.origin))


def _where_it_failed(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    every = traceback.extract_tb(error.__traceback__)
    steps = [step for step in every if not step.filename.startswith(_LIBRARIES)]
    where = f' at {steps[-1].filename}, line {steps[-1].lineno}: "{steps[-1].line}"' if steps else ""
    return f"{type(error).__name__}{where} ({str(error).splitlines()[0].rstrip('.')})"
