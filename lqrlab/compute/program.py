"""A network, a policy or a function as one object: evaluated, differentiated, and compiled as far as it pays."""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import PyTree

from lqrlab.compute import checks
from lqrlab.compute.backend import Backend, cache_folder
from lqrlab.compute.by_function import KEPT
from lqrlab.compute.compiling import SURVIVABLE, where_it_failed
from lqrlab.compute.files import read_object, write_json
from lqrlab.compute.quick import quick_jit
from lqrlab.compute.threads import on_all_cores
from lqrlab.compute.timing import seconds, timeit

BULK = 2500
"""From more loops of a policy on threads are tried, each of which takes a part of them."""
WAYS: dict[str, Callable[[Callable], Callable]] = {
    "eager": lambda fn: fn,
    "quick": quick_jit,
    "full": jax.jit,
}
"""How a function may be computed."""
CALLS = 100
"""Calls that a program is compiled for at first; it is thought over again each time that their number has doubled."""


@dataclasses.dataclass(frozen=True)
class Speed:
    """What computing takes on a machine [s]: to start an operation, to compile one, and for each of its flops."""

    eager: float
    eager_flop: float
    quick_compile: float
    full_compile: float
    quick_flop: float
    full_flop: float

    def costs(self, operations: int, flops: float, calls: int) -> dict[str, float]:
        """Seconds that ``calls`` calls take, compilation included, for each way of computing."""
        return {
            "eager": calls * (operations * self.eager + flops * self.eager_flop),
            "quick": operations * self.quick_compile + calls * flops * self.quick_flop,
            "full": operations * self.full_compile + calls * flops * self.full_flop,
        }


@functools.cache
def speed() -> Speed:
    """Of this machine: measured once, which takes a few seconds, and kept in the user's cache."""
    device, path = jax.devices()[0], cache_folder() / "speed.json"
    machine = f"{device.platform} {device.device_kind}, {os.cpu_count()} cores, jax {jax.__version__}"
    kept: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        kept = read_object(path)
        return Speed(**kept[machine]) if machine in kept else _measured(path, machine, kept)
    return _measured(path, machine, {})


def _measured(path: Any, machine: str, kept: Mapping[str, Any]) -> Speed:
    salt = time.time_ns() % 10**6 * 1e-12  # a program that no cache of programs holds

    def chain(x: Array, W: Array) -> Array:
        for _ in range(20):
            x = jnp.tanh(x @ W) / (1 + x * x) + jnp.sum(x, axis=-1, keepdims=True) * salt
        return x

    small = jnp.ones((4, 8), jnp.float32), jnp.ones((8, 8), jnp.float32)
    large = jnp.ones((512, 256), jnp.float32), jnp.ones((256, 256), jnp.float32)
    operations, _ = _size(jax.jit(chain).lower(*small))
    _, flops = _size(jax.jit(chain).lower(*large))
    quick_jit(jnp.negative)(small[0])  # which asks for the compiler's options at its first call
    ways = [[timeit(way(chain), *given, repeats=3) for given in (small, large)] for way in WAYS.values()]
    (eager, _), *compiled = ways
    compiling = [max(first.first - first.median, 1e-6) / operations for first, _ in compiled]
    eager_flop, *flop = (second.best / flops for _, second in ways)
    found = Speed(eager.best / operations, eager_flop, *compiling, *flop)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {**kept, machine: dataclasses.asdict(found)})
    return found


def _size(lowered: jax.stages.Lowered) -> tuple[int, float]:
    """Operations of a program and its flops."""
    analysis = lowered.cost_analysis() or {}
    return lowered.as_text().count(" = "), float(analysis.get("flops", 0.0))


class Program:
    """A model that is evaluated and differentiated, as :func:`lqrlab.compute.compile` makes with ``shapes``.

    Attributes:
        params: the model's parameters: a network's state, a policy itself, None of a function.
        shapes: of the inputs, as it was given them.
    """

    def __init__(self, model: Any, backend: Backend | None, shapes: Sequence[str]):
        self._policy = hasattr(model, "init") and callable(model) and not isinstance(model, nnx.Module)
        self._fn, self.params = _separated(model, policy=self._policy)
        self.shapes, self._backend = tuple(shapes), backend
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._slope = functools.lru_cache(KEPT)(self._slope_of)

    def evaluate(self, params: PyTree, inputs: Sequence[Array]) -> PyTree:
        """The model's outputs with these parameters; a policy's inputs from an empty memory.

        Raises:
            ValueError: inputs of other shapes than ``shapes``, or that the model cannot take.
        """
        return self._run("evaluate", self._fn, params, inputs, rows=self._policy)

    def gradients(self, params: PyTree, inputs: Sequence[Array], loss: Callable[[PyTree], Array]) -> PyTree:
        """Gradient with respect to the parameters of ``loss(outputs)``, a scalar."""
        checks.function("loss", loss)
        return self._run("gradients", self._slope(loss), params, inputs)

    def outputs(self, params: PyTree | None = None, **sizes: int) -> PyTree:
        """Shapes and types of the outputs; nothing is computed. ``outputs(batch=3)`` for the shape ``"batch 4"``."""
        params = self.params if params is None else params
        kinds = [
            a.dtype for a in map(jax.typeof, jax.tree.leaves(params)) if jnp.issubdtype(a.dtype, jnp.floating)
        ]
        dtype = kinds[0] if kinds else jnp.zeros(()).dtype
        names = [name for shape in self.shapes for name in shape.split() if not name.isdigit()]
        for name in sorted(set(names) - set(sizes)):
            raise ValueError(f"{name}: expected its size, as in outputs({name}=3)")
        given = [
            jax.ShapeDtypeStruct([int(n) if n.isdigit() else sizes[n] for n in shape.split()], dtype)
            for shape in self.shapes
        ]
        return self._inferred(self._fn, params, given)

    def report(self) -> str:
        """How each kind of call is computed, and why."""
        return (
            "\n".join(f"{name}: {plan.choice}" for (name, *_), plan in self._plans.items())
            or "not called yet"
        )

    def _slope_of(self, loss: Callable[[PyTree], Array]) -> Callable[..., PyTree]:
        return jax.grad(lambda params, *inputs: loss(self._fn(params, *inputs)))

    def _run(
        self,
        name: str,
        fn: Callable[..., PyTree],
        params: PyTree,
        inputs: Sequence[Array],
        *,
        rows: bool = False,
    ) -> PyTree:
        given = [jnp.asarray(a) for a in inputs]
        self._check(given)
        if self._backend is None:
            return self._plan(name, fn, params, given, rows).call(params, *given)
        with self._backend.active():
            params, given = self._backend.put(params), self._backend.share(given)
            return self._plan(name, fn, params, given, rows).call(params, *given)

    def _check(self, inputs: Sequence[Array]) -> None:
        if len(inputs) != len(self.shapes):
            raise ValueError(f"inputs: expected {len(self.shapes)}, {self.shapes}, but found {len(inputs)}")
        sizes: dict[str, int] = {}
        for i, (shape, a) in enumerate(zip(self.shapes, inputs)):
            names = shape.split()
            wanted = [int(n) if n.isdigit() else sizes.get(n) for n in names]
            if len(names) != a.ndim or any(w not in (None, k) for w, k in zip(wanted, a.shape)):
                known = "".join(f" with {n} = {sizes[n]}" for n in names if n in sizes)
                raise ValueError(
                    f"inputs[{i}]: expected shape [{', '.join(names)}]{known}, but found {a.shape}"
                )
            sizes |= {n: k for n, k in zip(names, a.shape) if not n.isdigit()}

    def _inferred(self, fn: Callable[..., PyTree], params: PyTree, inputs: Sequence[Any]) -> PyTree:
        try:
            return jax.eval_shape(fn, params, *inputs)
        except SURVIVABLE:
            raise
        except (TypeError, ValueError) as error:
            shapes = ", ".join(str(tuple(a.shape)) for a in inputs)
            raise ValueError(
                f"inputs: the model cannot take {shapes} with these parameters: {str(error).splitlines()[0]}"
            ) from error

    def _plan(
        self, name: str, fn: Callable[..., PyTree], params: PyTree, inputs: list[Array], rows: bool
    ) -> "_Plan":
        kind = tuple(map(jax.typeof, jax.tree.leaves((params, inputs))))
        key = (f"{name} {', '.join(str(a.shape) for a in inputs)}", fn, kind)
        plan = self._plans.get(key)
        if plan is None:
            try:
                self._inferred(fn, params, inputs)
                plan = _Plan(fn, _size(jax.jit(fn).lower(params, *inputs)))
            except SURVIVABLE as error:
                plan = _Plan(fn, None, where_it_failed(error))
            if len(self._plans) >= KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        plan.think(params, inputs, rows=rows)
        return plan


class _Plan:
    """How one kind of call is computed."""

    def __init__(self, fn: Callable[..., PyTree], size: tuple[int, float] | None, why: str = ""):
        self.fn, self.size, self.calls, self.way = fn, size, 0, "eager"
        self.call, self.choice = fn, f"eager, for it cannot be traced: {why}"

    def think(self, params: PyTree, inputs: list[Array], *, rows: bool) -> None:
        """Choose anew if this call is the first, or the first of twice as many as were thought of."""
        self.calls += 1
        if self.size is None or self.calls & (self.calls - 1) or (self.calls > 1 and 2 * self.calls <= CALLS):
            return
        expected = max(CALLS, 2 * self.calls)
        costs = speed().costs(*self.size, expected)
        way = min(costs, key=costs.__getitem__)
        told = ", ".join(f"{name} {cost:.2g}" for name, cost in costs.items())
        self.choice = (
            f"{way} ({self.size[0]} operations, {self.size[1]:.2g} flops; {expected} calls in s: {told})"
        )
        if way != self.way:
            self.way, self.call = way, WAYS[way](self.fn)
        if rows and way != "eager":
            self._try_bulk(params, inputs)

    def _try_bulk(self, params: PyTree, inputs: list[Array]) -> None:
        """Loops are apart, so threads may share them out; they do if that is faster."""
        (x,) = inputs
        if x.ndim != 2 or len(x) <= BULK or len(x.devices()) > 1 or jax.default_backend() != "cpu":
            return
        # pieces come with an axis of length one in front of what they share
        tree = jax.tree.structure(params)
        piece = jax.jit(lambda x, *held: self.fn(jax.tree.unflatten(tree, [a[0] for a in held]), x))

        def bulk(params: PyTree, x: Array) -> PyTree:
            return on_all_cores(piece, (x, 1), *((a, a.ndim) for a in jax.tree.leaves(params)))

        whole = self.call
        times = [min(seconds(call, params, x) for _ in range(3)) for call in (whole, bulk)]
        self.call = bulk if times[1] < times[0] else whole
        self.choice += f"; on threads {times[1]:.2g} s a call, {times[0]:.2g} s whole"


def _separated(model: Any, *, policy: bool) -> tuple[Callable[..., PyTree], PyTree]:
    """A model as a function of (params, *inputs), and its parameters."""
    if isinstance(model, nnx.Module):
        graph, state = nnx.split(model)
        return lambda params, *inputs: nnx.merge(graph, params)(*inputs), state
    if policy:
        return lambda params, x: params(params.init(x.shape[:-1]), x)[1], model
    return checks.function("model", model, "a network, a policy or a function of (params, *inputs)"), None
