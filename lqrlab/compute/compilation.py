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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.backend import Backend
from lqrlab.compute.jit import KEPT

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
        static: names of arguments to specialise programs to, hashable values; the programs of the last 16 choices
            are kept.
        donate: names of arguments whose memory the results may take; they are gone after the call.
        strict: never run eagerly: raise what tracing raised.

    Returns:
        A :class:`Compiled`, called like ``fn``; with ``shapes`` a :class:`Program`.

    Raises:
        ValueError: a name that ``fn`` has no argument for.

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
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._static = self._named("static", static)
        donate = tuple(self._named("donate", donate))
        self._traces = [0]  # one count for this and what fresh() makes of it

        def program(choice: _Choice) -> Any:
            """The program of some static arguments, which JAX does not see: it would keep thousands of them."""

            def chosen(**free: PyTree) -> PyTree:
                self._traces[0] += 1
                given = free | {name: value for name, _, value in choice}
                bound = inspect.BoundArguments(self._signature, given)
                return fn(*bound.args, **bound.kwargs)

            chosen.__name__ = self._name
            return jax.jit(chosen, donate_argnames=donate)

        self._program = functools.lru_cache(KEPT)(program)
        self._calls = self._hits = 0
        self._programs: list[dict[str, str]] = []
        self._eager: dict[_Choice, str] = {}

    def _named(self, argument: str, names: str | Sequence[str]) -> set[str]:
        """The names that ``static`` or ``donate`` lists, if all are the function's."""
        listed = [names] if isinstance(names, str) else names
        known = list(self._signature.parameters)
        if not isinstance(listed, list | tuple | set):
            raise ValueError(f"{argument}: expected names of arguments of {self._name}, but found {names!r}")
        for name in listed:
            checks.choice(argument, name, known, f"names of arguments of {self._name}:")
        return set(listed)

    def fresh(self) -> "Compiled":
        """The same function and its programs, with counts that begin at zero."""
        other = copy.copy(self)
        other._calls, other._hits, other._programs, other._eager = 0, 0, [], {}
        return other

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function, compiled if it can be."""
        (choice, free), traces = self._split(args, kwargs), self._traces[0]
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            self._eager[choice := _SWITCHED_OFF] = "compilation is switched off"
        if choice not in self._eager:
            try:
                out = self._program(choice)(**free)
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
            if self._traces[0] > traces and choice not in self._eager:
                self._programs.append(_described(choice, free))
            elif choice not in self._eager:
                self._hits += 1
        return out

    def _split(self, args: tuple, kwargs: dict[str, PyTree]) -> "tuple[_Choice, dict[str, PyTree]]":
        """The static arguments of a call, and the others by their names."""
        free = self._signature.bind(*args, **kwargs).arguments
        static = {name: free.pop(name) for name in list(free) if name in self._static}
        try:
            hash(tuple(static.values()))
        except TypeError as error:
            wanted = "hashable values, such as numbers, texts, tuples and frozen dataclasses of these"
            raise TypeError(
                f"{self._name}: static {', '.join(static)}: expected {wanted}, but found an {error}"
            ) from None
        return tuple((name, type(value), value) for name, value in static.items()), free

    def report(self) -> CompileReport:
        """Counts of the calls so far."""
        changes = tuple(itertools.starmap(_differences, itertools.pairwise(self._programs)))
        eager = tuple(dict.fromkeys(self._eager.values()))
        return CompileReport(self._name, self._calls, len(self._programs), self._hits, changes, eager)

    def trace(self, *args: PyTree, **kwargs: PyTree) -> jax.stages.Traced:
        """As of a function under ``jax.jit``: ``.jaxpr``, ``.lower()``."""
        choice, free = self._split(args, kwargs)
        return self._program(choice).trace(**free)


_Choice = tuple[tuple[str, type, Any], ...]
"""Names, types and values of static arguments: 2, 2.0 and True are equal, but make different programs."""
_SWITCHED_OFF: _Choice = (("compilation", bool, False),)


def _described(choice: _Choice, free: Mapping[str, PyTree]) -> dict[str, str]:
    """Arguments in words, as far as programs are told apart by them: static values, shapes and types."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(free)
    path = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    return {name: repr(value) for name, _, value in choice} | {path(p): str(jax.typeof(a)) for p, a in leaves}


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
        words = "a text for each input, in order, of whole numbers and names of sizes, such as ('batch 4', 'batch 2')"
        texts = isinstance(shapes, list | tuple) and all(isinstance(shape, str) for shape in shapes)
        names = " ".join(shapes).split() if texts else ()
        if not texts or not all(name.isdecimal() or name.isidentifier() for name in names):
            raise ValueError(f"shapes: expected {words}, but found {shapes!r}")
        self.shapes = tuple(shapes)
        self._backend = backend and checks.instance("backend", backend, Backend, "a compute.Backend")

        def evaluate(params: PyTree, inputs: list[Array]) -> PyTree:
            if backend is None:
                return fn(params, *inputs)
            with backend.active():
                params, inputs = _cast(_cast((params, inputs), backend.dtype), backend.compute_dtype)
                return _cast(fn(params, *inputs), backend.dtype)

        def gradients(params: PyTree, inputs: list[Array], loss: Callable[[PyTree], Array]) -> PyTree:
            return _cast(jax.grad(lambda params: loss(evaluate(params, inputs)))(params), backend and backend.dtype)

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


def _is_real(a: ArrayLike) -> bool:
    return jnp.issubdtype(jax.typeof(a).dtype, jnp.floating)


def _cast(tree: PyTree, dtype: str | None) -> PyTree:
    """The real numbers of a pytree in another type, if one is named."""
    if dtype is None:
        return tree
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if _is_real(a) else a, tree)


_SPECS = [importlib.util.find_spec(name) for name in ("jax", "jaxlib", "flax", "numpy")]
_LIBRARIES = (__file__, "<", *(str(Path(spec.origin).parent) for spec in _SPECS if spec and spec.origin))


def where_it_failed(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    every = traceback.extract_tb(error.__traceback__)
    steps = [step for step in every if not step.filename.startswith(_LIBRARIES)]
    where = f' at {steps[-1].filename}, line {steps[-1].lineno}: "{steps[-1].line}"' if steps else ""
    return f"{type(error).__name__}{where} ({str(error).splitlines()[0].rstrip('.')})"
