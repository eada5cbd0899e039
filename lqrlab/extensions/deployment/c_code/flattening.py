"""A traced function as a list of steps: calls inlined, constants folded, dead code left out."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from lqrlab.compute import jaxprs

_FEW = 64  # entries that may be more than those that they are made of


@dataclasses.dataclass(eq=False)
class Known:
    """Numbers that are known when the program is written; ``data`` if they are the controller's."""

    value: np.ndarray
    data: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return self.value.shape


@dataclasses.dataclass(eq=False)
class Variable:
    """An array that the program computes, or is given."""

    shape: tuple[int, ...]
    dtype: Any


Value = Known | Variable


@dataclasses.dataclass(eq=False)
class Equation:
    """An operation on arrays: a primitive of JAX."""

    name: str
    params: dict[str, Any]
    inputs: list[Value]
    outputs: list[Variable]


def inner(value: Any) -> ClosedJaxpr:
    """The program of a parameter, with its constants."""
    return value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ())


def flatten(closed: ClosedJaxpr, inputs: Sequence[Value]) -> tuple[list[Equation], list[Value]]:
    """The steps of a program, and its outputs."""
    steps: list[Equation] = []
    outputs = _Flat(steps).run(closed.jaxpr, [Known(np.asarray(c), True) for c in closed.consts], list(inputs))
    needed = {id(v) for v in outputs}
    kept = []
    for step in reversed(steps):
        if any(id(v) in needed for v in step.outputs):
            kept.append(step)
            needed |= {id(v) for v in step.inputs}
    return kept[::-1], outputs


class _Flat:
    """The steps so far, and which of them are the same."""

    def __init__(self, steps: list[Equation]) -> None:
        self.steps, self.same = steps, dict[tuple, list[Value]]()

    def run(self, jaxpr: Jaxpr, consts: list[Value], inputs: list[Value]) -> list[Value]:
        known: dict[Any, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs)))

        def read(v: Any) -> Value:
            return Known(np.asarray(v.val)) if isinstance(v, Literal) else known[v]

        for e in jaxpr.eqns:
            known.update(zip(e.outvars, self.step(e, [read(v) for v in e.invars])))
        return [read(v) for v in jaxpr.outvars]

    def step(self, e: JaxprEqn, inputs: list[Value]) -> list[Value]:
        name, params = e.primitive.name, dict(e.params)
        if name == "custom_linear_solve":
            lengths = params["const_lengths"]
            first = lengths.matvec + lengths.vecmat
            inputs = [*inputs[first : first + lengths.solve], *inputs[sum(lengths) :]]
            return self.called(params["jaxprs"].solve, inputs)
        if (inner := jaxprs.called(e)) is not None:
            return self.called(inner, inputs)
        if name == "cond" and isinstance(inputs[0], Known):
            return self.called(
                params["branches"][int(np.clip(inputs[0].value, 0, len(params["branches"]) - 1))], inputs[1:]
            )
        if name in ("stop_gradient", "copy", "copy_p", "optimization_barrier"):
            return inputs
        if all(isinstance(v, Known) for v in inputs) and (found := self.computed(e, inputs)):
            return found
        key = (
            name,
            str(params),
            *((v.value.tobytes(), v.shape, v.value.dtype.str) if isinstance(v, Known) else id(v) for v in inputs),
        )
        if key not in self.same:
            outputs = [Variable(v.aval.shape, v.aval.dtype) for v in e.outvars]  # type: ignore[attr-defined]
            self.steps.append(Equation(name, params, inputs, outputs))
            self.same[key] = list(outputs)
        return self.same[key]

    def called(self, program: Any, inputs: list[Value]) -> list[Value]:
        closed = inner(program)
        return self.run(closed.jaxpr, [Known(np.asarray(c), True) for c in closed.consts], inputs)

    def computed(self, e: JaxprEqn, inputs: list[Value]) -> list[Value] | None:
        """The result of an operation on known numbers, unless it needs much more room than they do."""
        values = [v.value for v in inputs if isinstance(v, Known)]
        with jax.ensure_compile_time_eval():
            found = e.primitive.bind(*values, **e.primitive.get_bind_params(e.params))
        outs = [np.asarray(a) for a in (found if e.primitive.multiple_results else [found])]
        room = max(sum(v.size for v in values), _FEW)
        if any(a.size > room and not np.all(a == a.flat[0]) for a in outs):
            return None
        data = any(v.data for v in inputs if isinstance(v, Known))
        return [Known(a, data) for a in outs]
