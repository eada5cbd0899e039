"""``jax.jit`` compiled quickly, or forgetting the functions that it compiled for; ``vmap`` over leading axes."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import PyTreeDef
from jax.typing import ArrayLike

from lqrlab.compute import checks

P = ParamSpec("P")
R = TypeVar("R")

KEPT = 16  # functions, or choices of static arguments, whose programs are kept, for each compiled function
_READ = "?bhilqBHILQefdFDO"  # kinds of NumPy's numbers that JAX takes for what they are, and objects
_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


def jit_by_function(fn: Callable[..., R], jit: Callable = jax.jit, **options: Any) -> Callable[..., R]:
    """``jit(fn, **options)`` that keeps the programs of the last 16 functions among its static arguments.

    A program is specialised to a function that is static: the dynamics of a plant, the parameters' schedule. A
    notebook's cell that is run again makes a new one. JAX would keep thousands of such programs and their functions
    (8 MiB for each plant that is made of a function, designed for and simulated).
    """

    def program(functions: tuple[Callable, ...]) -> Callable[..., R]:
        return jit(functools.wraps(fn)(lambda *args, **kwargs: fn(*args, **kwargs)), **options)

    always, last = program(()), functools.lru_cache(KEPT)(program)

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> R:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if any(map(_is_foreign, leaves)):
            leaves = [checks.real(f"{fn.__qualname__}: argument", a) if _is_foreign(a) else a for a in leaves]
            args, kwargs = jax.tree.unflatten(structure, leaves)
        functions = (*filter(_is_function, leaves), *_static_functions(structure))
        return (last(functions) if functions else always)(*args, **kwargs)

    call.kept = last.cache_info  # type: ignore[attr-defined]
    return call


def one_program(fn: Callable[P, R]) -> Callable[P, R]:
    """A function of pytrees, or a method of one, that is one program outside of traces too.

    A closure given to ``lax`` is another function at each call, which JAX compiles anew, tenths of a second and
    hundreds of memory maps each time. Here it is made once, while the program is traced; the fields of an instance are
    data of the program. What cannot be traced, such as a policy of somebody's in NumPy, runs as it is.

    States ``x`` and inputs ``u`` of whole numbers are real ones: in their type gains and answers would be cut. Complex
    numbers, truth values and text are refused, here and in the fields of an instance, while the program is made.
    """
    program = jit_by_function(real := _of_real_numbers(fn))

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if checks.traced(args, kwargs) and checks.traced(jnp.zeros(())):  # part of another program; not so under vmap
            return real(*args, **kwargs)
        try:
            return program(*args, **kwargs)
        except (TypeError, IndexError):  # as JAX's errors of tracing are, and those of leaves that are no arrays
            return real(*args, **kwargs)

    call.kept = program.kept  # type: ignore[attr-defined]
    return call


def _is_foreign(value: object) -> bool:
    """True of NumPy's arrays that JAX misreads: after one call it takes the bytes of another order as they are."""
    plain = type(value) is np.ndarray and value.dtype.isnative and value.dtype.char in _READ
    return isinstance(value, np.ndarray) and not plain


def _of_real_numbers(fn: Callable[P, R]) -> Callable[P, R]:
    """``fn`` on real states and inputs alone, of an instance and other arguments without complex numbers."""
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        for name in {"x", "u"} & given.arguments.keys():
            given.arguments[name] = checks.floating(name, given.arguments[name])
        for path, leaf in jax.tree.leaves_with_path(given.arguments):
            if jnp.iscomplexobj(leaf):
                checks.real(jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        return fn(*given.args, **given.kwargs)

    return call


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _static_functions(structure: PyTreeDef) -> Iterator[Any]:
    """The functions in the static data of a pytree, and classes that JAX would take for one another: see ``pytree``."""
    if data := structure.node_data():
        kind, static = data[0], data[1] if isinstance(data[1], tuple) else (data[1],)
        if dataclasses.is_dataclass(kind) and kind not in static[:1]:
            yield kind
        yield from filter(_is_function, static)
        for child in structure.children():
            yield from _static_functions(child)


def quick_jit(fn: Callable[P, R], **options: Any) -> Callable[P, R]:
    """``jax.jit(fn, **options)`` for few calls: compiles three times as fast, runs slower.

    On other devices, with a jaxlib that does not know the compiler's options, and as part of another program, which
    cannot have options of its own, it is a plain ``jax.jit``.
    """
    plain = jax.jit(fn, **options)
    quick = functools.cache(lambda: jax.jit(fn, compiler_options=_quick_options(), **options))

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        inside = checks.traced(args, kwargs, jnp.zeros(()))
        return (plain if inside else quick())(*args, **kwargs)

    return call


def as_jax(a: ArrayLike) -> jax.Array:
    """A copy of NumPy's array as JAX's, without a program: ``jnp.asarray`` without a dtype compiles one for each shape.

    With a dtype it may share the memory, and the answer would change with what the caller writes there later.
    """
    if isinstance(a, jax.Array):
        return a
    copy = np.array(a)
    return jnp.asarray(copy, jax.dtypes.canonicalize_dtype(copy.dtype))


@functools.cache
def _quick_options() -> dict[str, object]:
    try:
        jax.jit(lambda: 0, compiler_options=_QUICK)()
    except Exception:  # an unknown option has no error class of its own
        return {}
    return dict(_QUICK) if jax.default_backend() == "cpu" else {}


def broadcast(fn: Callable[..., R], *args: tuple[ArrayLike | None, int]) -> R:
    """Call ``fn`` over all leading axes of its array arguments, which broadcast against each other.

    Args:
        fn: function of ``len(args)`` arrays, written for one problem.
        args: pairs ``(array or None, core dimensions)``: a matrix has 2, a vector 1, a scalar 0. None stays None.

    Returns:
        What ``fn`` returns, each leaf with the broadcast leading axes in front.

    >>> compute.broadcast(lambda A, x: A @ x, (np.ones((5, 2, 3)), 2), (np.ones(3), 1)).shape
    (5, 2)
    """
    given = [(jnp.asarray(a), core) for a, core in args if a is not None]
    lead = jnp.broadcast_shapes(*(a.shape[: a.ndim - core] for a, core in given))
    arrays, axes = [], []
    for a, core in given:
        split = a.ndim - core
        sizes = (1,) * (len(lead) - split) + a.shape[:split]
        # an axis of length one is not mapped over, so a shared argument is not copied
        mapped = [size != 1 or full == 1 for size, full in zip(sizes, lead)]
        arrays.append(a.reshape(*(size for size, over in zip(sizes, mapped) if over), *a.shape[split:]))
        axes.append([0 if over else None for over in mapped])

    def call(*values: Array) -> R:
        remaining = iter(values)
        return fn(*(None if a is None else next(remaining) for a, _ in args))

    for in_axes in reversed(list(zip(*axes))):
        call = jax.vmap(call, in_axes=in_axes)
    return call(*arrays)
