"""``jax.jit`` that counts its programs and runs eagerly what cannot be traced; a model as a program of shapes."""

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
from jax import Array
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.backend import Backend

# Python needed a value where a trace has none; without a trace it is there. (A leaked tracer, by contrast, is
# an error of the program, and so are wrong shapes and missing keys.)
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
    fn: Callable[..., PyTree] | None = None,
    backend: Backend | None = None,
    shapes: str | Sequence[str] | None = None,
    *,
    static: str | Sequence[str] = (),
    donate: str | Sequence[str] = (),
    strict: bool = False,
) -> Any:
    """``jax.jit`` with a report: use it as ``compile(fn, ...)`` or as a decorator, ``@compile(...)``.

    If tracing fails because Python needs a value (an ``if`` on an array, ``float()``, a boolean mask), the function
    runs eagerly for these static arguments from then on, and an :class:`EagerFallbackWarning` says once where and
    why. What was done before that line, printing for example, is then done twice. Any other error is raised as it is.
    Why there is one program more ``debugging.compiles()`` tells.

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
        self, fn: Callable[..., PyTree], static: str | Sequence[str], donate: str | Sequence[str], strict: bool
    ):
        functools.update_wrapper(self, checks.function("fn", fn))
        self._fn, self._strict, self._signature = fn, checks.flag("strict", strict), inspect.signature(fn)
        self._static = (static,) if isinstance(static, str) else tuple(static)
        self._traces = self._calls = self._programs = 0
        self._eager: dict[object, str] = {}

        @functools.wraps(fn)
        def counted(*args: PyTree, **kwargs: PyTree) -> PyTree:
            self._traces += 1
            return fn(*args, **kwargs)

        self._program = jax.jit(counted, static_argnames=self._static, donate_argnames=donate)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Call the function, compiled if it can be."""
        given, traces = self._signature.bind(*args, **kwargs).arguments, self._traces
        choice = tuple((type(given[name]), given[name]) for name in self._static if name in given)
        program: Callable[..., PyTree] = self._program
        if jax.config.jax_disable_jit or choice in self._eager:  # type: ignore[attr-defined]
            program = self._fn
        try:
            out = program(*args, **kwargs)
        except _SURVIVABLE as error:
            if self._strict or program is self._fn:
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


class Program:
    """A network, a policy or a function that is evaluated and differentiated: :func:`compile` with ``shapes``.

    The types of the backend are taken on inside the program, so a call costs what ``jax.jit`` costs.

    Attributes:
        params: the model's parameters: a network's state, a policy itself, None of a function.
    """

    def __init__(self, model: Any, backend: Backend | None, shapes: Sequence[str]):
        fn, self.params = _separated(model)
        texts = isinstance(shapes, list | tuple) and all(isinstance(shape, str) for shape in shapes)
        if not texts or not all(size.isdecimal() or size.isidentifier() for size in " ".join(shapes).split()):
            example = "of whole numbers and names of sizes, such as ('batch 4', 'batch 2')"
            raise ValueError(f"shapes: expected a text for each input, in order, {example}, but found {shapes!r}")
        self._backend = backend and checks.instance("backend", backend, Backend, "a compute.Backend")
        self._shapes = [shape.split() for shape in shapes]

        def evaluate(params: PyTree, inputs: list[Array]) -> PyTree:
            if backend is None:
                return fn(params, *inputs)
            with backend.active():
                return backend.cast(fn(*backend.cast((params, *inputs))), backend.dtype)

        def gradients(params: PyTree, inputs: list[Array], loss: Callable[[PyTree], Array]) -> PyTree:
            slope = jax.grad(lambda params: loss(evaluate(params, inputs)))(params)
            return slope if backend is None else backend.cast(slope, backend.dtype)

        self._evaluate, self._gradients = jax.jit(evaluate), jax.jit(gradients, static_argnames="loss")

    def evaluate(self, params: PyTree, inputs: Sequence[Array]) -> PyTree:
        """The model's outputs with these parameters; a policy's inputs from an empty memory.

        Raises:
            ValueError: inputs of other shapes than ``shapes``, or that are no numbers.
        """
        return self._called(self._evaluate, params, inputs)

    def gradients(self, params: PyTree, inputs: Sequence[Array], loss: Callable[[PyTree], Array]) -> PyTree:
        """Gradient with respect to the parameters of ``loss(outputs)``, a scalar."""
        return self._called(self._gradients, params, inputs, checks.function("loss", loss))

    def _called(
        self, program: Callable[..., PyTree], params: PyTree, inputs: Sequence[Array], *loss: Callable
    ) -> PyTree:
        """The result for checked inputs, where the backend computes."""
        if not isinstance(inputs, list | tuple) or len(inputs) != len(self._shapes):
            raise ValueError(f"inputs: expected a list of arrays of sizes {self._shapes}, but found {inputs!r}")
        arrays = [checks.real(f"inputs[{i}]", a) for i, a in enumerate(inputs)]
        sizes: dict[str, int] = {}
        for i, (names, a) in enumerate(zip(self._shapes, arrays)):
            known = "".join(f" with {name} = {sizes[name]}" for name in names if name in sizes)
            wanted = [int(s) if s.isdecimal() else sizes.setdefault(s, k) for s, k in zip(names, a.shape)]
            if len(names) != a.ndim or wanted != list(a.shape):
                raise ValueError(f"inputs[{i}]: expected shape [{', '.join(names)}]{known}, but found {a.shape}")
        backend = self._backend
        if backend is None or backend == dataclasses.replace(backend, device="auto", mesh="", jit=True, debug="off"):
            return program(params, arrays, *loss)  # what is left of a backend the program holds
        with backend.active():
            return program(backend.put(params), backend.share(arrays), *loss)


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


def _where_it_failed(error: Exception) -> str:
    """The kind of a tracing error, the user's line that it came from, and what JAX says first."""
    every = traceback.extract_tb(error.__traceback__)
    steps = [step for step in every if not step.filename.startswith(_LIBRARIES)]
    where = f' at {steps[-1].filename}, line {steps[-1].lineno}: "{steps[-1].line}"' if steps else ""
    return f"{type(error).__name__}{where} ({str(error).splitlines()[0].rstrip('.')})"
