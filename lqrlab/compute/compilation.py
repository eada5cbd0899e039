"""``jax.jit`` that counts its programs, says why there is one more, and runs eagerly what cannot be traced."""

import copy
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import textwrap
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.backend import Backend

# Python needed a value where a trace has none; without a trace it is there. (A leaked tracer, by contrast, is
# an error of the program, and so are wrong shapes and missing keys.)
SURVIVABLE = (
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
        hits: calls that found their program compiled.
        changes: for each program after the first the arguments that differ from those of the one before (~float64 is
            the type of a Python number).
        eager: for each way of calling that runs without compilation the reason and the line.
    """

    name: str
    calls: int = 0
    programs: int = 0
    hits: int = 0
    changes: tuple[str, ...] = ()
    eager: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """The numbers alone."""
        return {name: getattr(self, name) for name in ("calls", "programs", "hits")} | {"eager": len(self.eager)}

    def __str__(self) -> str:
        lines = [f"{self.name}: calls {self.calls}, programs {self.programs}, hits {self.hits}"]
        lines += [f"  program {i}: {change}" for i, change in enumerate(self.changes, 2)]
        return "\n".join(lines + [f"  eager: {reason}" for reason in self.eager])


def compile(
    fn: Callable[..., PyTree] | None = None,
    backend: Backend | None = None,
    *,
    shapes: str | Sequence[str] | None = None,
    static: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
    strict: bool = False,
) -> Any:
    """``jax.jit`` with a report: use it as ``compile(fn, ...)`` or as a decorator, ``@compile(...)``.

    If tracing fails because Python needs a value (an ``if`` on an array, ``float()``, a boolean mask), the function
    runs eagerly for these static arguments from then on, and an :class:`EagerFallbackWarning` says once where and
    why. What was done before that line, printing for example, is then done twice. Any other error is raised as it is.

    Args:
        fn: a function of arrays and of pytrees of arrays; with ``shapes`` a network, a policy or a function of
            ``(params, *inputs)``.
        backend: where, and in which types, a model with ``shapes`` computes; JAX's default if left out.
        shapes: of a model's inputs, such as ``("batch 4", "batch 2")``; sizes with a name are free, but equal.
        static, donate: as ``static_argnames`` and ``donate_argnames`` of ``jax.jit``.
        strict: never run eagerly: raise what tracing raised.

    Returns:
        A :class:`Compiled`, called like ``fn``; with ``shapes`` a :class:`Program`.

    >>> double = compute.compile(lambda x: 2 * x)
    >>> double(jnp.ones(3)).tolist(), double.report().programs
    ([2.0, 2.0, 2.0], 1)
    >>> scale = compute.compile(lambda k, x: k * x, shapes=("batch 2",))
    >>> scale.evaluate(3.0, [jnp.ones((1, 2))]).tolist()
    [[3.0, 3.0]]
    """
    if fn is None:
        return functools.partial(compile, static=static, donate=donate, strict=strict)
    if shapes is None and backend is None:
        return Compiled(fn, static, donate, strict)
    if shapes is None or static or donate or strict:
        raise ValueError("shapes: expected a model, a backend and shapes together, without static, donate, strict")
    return Program(fn, backend, (shapes,) if isinstance(shapes, str) else shapes)


class Compiled:
    """A function under :func:`compile`."""

    def __init__(
        self,
        fn: Callable[..., PyTree],
        static: str | Sequence[str] = (),
        donate: str | Sequence[str] = (),
        strict: bool = False,
    ):
        functools.update_wrapper(self, checks.function("fn", fn))
        self._fn, self._strict, self._signature = fn, checks.flag("strict", strict), inspect.signature(fn)
        self._static = {static} if isinstance(static, str) else set(static)
        self._traces = [0]  # one count for this and what fresh() makes of it

        @functools.wraps(fn)
        def counted(*args: PyTree, **kwargs: PyTree) -> PyTree:
            self._traces[0] += 1
            return fn(*args, **kwargs)

        self._program = jax.jit(counted, static_argnames=tuple(self._static), donate_argnames=donate)
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._begin()

    def _begin(self) -> None:
        self._calls = self._hits = 0
        self._programs: list[dict[str, str]] = []
        self._eager: dict[object, str] = {}

    def fresh(self) -> "Compiled":
        """The same function and its programs, with counts that begin at zero."""
        other = copy.copy(self)
        other._begin()
        return other

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function, compiled if it can be."""
        given, traces = self._signature.bind(*args, **kwargs).arguments, self._traces[0]
        choice: object = tuple((type(given[name]), given[name]) for name in self._static if name in given)
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            self._eager[choice := None] = "compilation is switched off"
        if choice not in self._eager:
            try:
                out = self._program(*args, **kwargs)
            except SURVIVABLE as error:
                if self._strict:
                    raise
                self._eager[choice] = where_it_failed(error)
                says = f"{self._name} cannot be compiled and runs eagerly, which is slow"
                warnings.warn(f"{says}: {self._eager[choice]}", EagerFallbackWarning, stacklevel=2)
        if choice in self._eager:
            out = self._fn(*args, **kwargs)
        if not checks.traced(out):  # as it is within somebody else's program
            self._calls += 1
            if choice not in self._eager and self._traces[0] > traces:
                self._programs.append(self._described(given))
            elif choice not in self._eager:
                self._hits += 1
        return out

    def _described(self, given: dict[str, PyTree]) -> dict[str, str]:
        """Arguments in words, as far as programs are told apart by them: static values, shapes and types."""
        words = {name: repr(given.pop(name)) for name in self._static & set(given)}
        for path, leaf in jax.tree_util.tree_flatten_with_path(given)[0]:
            words[jax.tree_util.keystr(path, simple=True, separator=".")] = str(jax.typeof(leaf))
        return words

    def report(self) -> CompileReport:
        """Counts of the calls so far."""
        changes = tuple(itertools.starmap(_differences, itertools.pairwise(self._programs)))
        eager = tuple(dict.fromkeys(self._eager.values()))
        return CompileReport(self._name, self._calls, len(self._programs), self._hits, changes, eager)


def _differences(old: dict[str, str], new: dict[str, str]) -> str:
    """``x: float64[3] → float64[4]`` and so on."""
    short = functools.partial(textwrap.shorten, width=60, placeholder=" …")
    pairs = {name: (old.get(name, "not given"), new.get(name, "not given")) for name in old | new}
    changed = [f"{name}: {short(a)} → {short(b)}" for name, (a, b) in pairs.items() if a != b]
    return "; ".join(changed) or "arguments of another structure, or another setting of JAX"


class Program:
    """A network, a policy or a function that is evaluated and differentiated: :func:`compile` with ``shapes``.

    The types of the backend are taken on inside the program, so a call costs what ``jax.jit`` costs.

    Attributes:
        params: the model's parameters: a network's state, a policy itself, None of a function.
        shapes: of the inputs, as it was given them.
    """

    def __init__(self, model: Any, backend: Backend | None, shapes: Sequence[str]):
        fn, self.params = _separated(model)
        texts = isinstance(shapes, list | tuple) and all(isinstance(shape, str) for shape in shapes)
        if not texts or not all(size.isdecimal() or size.isidentifier() for size in " ".join(shapes).split()):
            words = (
                "a text for each input, in order, of whole numbers and names of sizes, such as ('batch 4', 'batch 2')"
            )
            raise ValueError(f"shapes: expected {words}, but found {shapes!r}")
        self.shapes = tuple(shapes)
        self._backend = backend and checks.instance("backend", backend, Backend, "a compute.Backend")

        def evaluate(params: PyTree, inputs: list[Array]) -> PyTree:
            if backend is None:
                return fn(params, *inputs)
            with backend.active():
                params, inputs = backend.cast((params, inputs))
                return backend.cast(fn(params, *inputs), backend.dtype)

        def gradients(params: PyTree, inputs: list[Array], loss: Callable[[PyTree], Array]) -> PyTree:
            slope = jax.grad(lambda params: loss(evaluate(params, inputs)))(params)
            return slope if backend is None else backend.cast(slope, backend.dtype)

        self._evaluate, self._gradients = Compiled(evaluate), Compiled(gradients, static="loss")

    def evaluate(self, params: PyTree, inputs: Sequence[Array]) -> PyTree:
        """The model's outputs with these parameters; a policy's inputs from an empty memory.

        Raises:
            ValueError: inputs of other shapes than ``shapes``, or that are no numbers.
        """
        return self._called(self._evaluate, params, inputs)

    def gradients(self, params: PyTree, inputs: Sequence[Array], loss: Callable[[PyTree], Array]) -> PyTree:
        """Gradient with respect to the parameters of ``loss(outputs)``, a scalar."""
        return self._called(self._gradients, params, inputs, checks.function("loss", loss))

    def report(self) -> str:
        """The counts of both kinds of calls, and what ran eagerly."""
        return f"{self._evaluate.report()}\n{self._gradients.report()}"

    def _called(self, compiled: Compiled, params: PyTree, inputs: Sequence[Array], *static: Callable) -> PyTree:
        """The result for checked inputs, where the backend computes."""
        if not isinstance(inputs, list | tuple) or len(inputs) != len(self.shapes):
            raise ValueError(f"inputs: expected a list of arrays of shapes {self.shapes}, but found {inputs!r}")
        arrays = [checks.real(f"inputs[{i}]", a) for i, a in enumerate(inputs)]
        sizes: dict[str, int] = {}
        for i, (shape, a) in enumerate(zip(self.shapes, arrays)):
            names = shape.split()
            wanted = [int(name) if name.isdecimal() else sizes.get(name, k) for name, k in zip(names, a.shape)]
            if len(names) != a.ndim or wanted != list(a.shape):
                known = "".join(f" with {name} = {sizes[name]}" for name in names if name in sizes)
                raise ValueError(f"inputs[{i}]: expected shape [{', '.join(names)}]{known}, but found {a.shape}")
            sizes |= {name: k for name, k in zip(names, a.shape) if not name.isdecimal()}
        backend = self._backend
        if backend is None or backend == dataclasses.replace(backend, device="auto", mesh="", jit=True, debug="off"):
            return compiled(params, arrays, *static)  # what is left of a backend the program holds
        with backend.active():
            return compiled(backend.put(params), backend.share(arrays), *static)


def _separated(model: Any) -> tuple[Callable[..., PyTree], PyTree]:
    """A model as a function of (params, *inputs), and its parameters."""
    from flax import nnx  # here, because it takes long to import

    if isinstance(model, nnx.Module):
        graph, state = nnx.split(model)
        return lambda params, *inputs: nnx.merge(graph, params)(*inputs), state
    if callable(model) and hasattr(model, "init"):
        return lambda params, x: params(params.init(x.shape[:-1]), x)[1], model
    return checks.function("model", model, "a network, a policy or a function of (params, *inputs)"), None


_SPECS = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax", "numpy")]
_LIBRARIES = (__file__, "<", *(str(Path(spec.origin).parent) for spec in _SPECS if spec and spec.origin))


def where_it_failed(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    every = traceback.extract_tb(error.__traceback__)
    steps = [step for step in every if not step.filename.startswith(_LIBRARIES)]
    where = f' at {steps[-1].filename}, line {steps[-1].lineno}: "{steps[-1].line}"' if steps else ""
    return f"{type(error).__name__}{where} ({str(error).splitlines()[0].rstrip('.')})"
