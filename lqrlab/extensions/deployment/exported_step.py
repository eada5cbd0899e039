"""The step of a controller as one traced function, and the program in C that it becomes."""

import dataclasses
import inspect
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.compute import calculus
from lqrlab.extensions.deployment.c_code import KEYWORDS, control_flow, indexing, primitives  # noqa: F401  (their rules are the table)
from lqrlab.extensions.deployment.c_code.arrays import Constant, StoredArray
from lqrlab.extensions.deployment.c_code.expressions import Writer, kind_of, used_once
from lqrlab.extensions.deployment.c_code.tidying import prune, share
from lqrlab.extensions.deployment.c_code.translation import Translator, UnsupportedStepError
from lqrlab.simulation import Measured, Outputs, Problem, bind, binding
from lqrlab.systems import Plant, check_plant


@dataclasses.dataclass(frozen=True)
class ExportedStep:
    """A controller of one plant: from absolute measurements to absolute inputs, in double precision.

    Attributes:
        policy: of deviations of what is measured.
        problem: the plant, its sample time and the limits of its inputs.
        sensor: what is measured of the state, a matrix or the plant's own outputs; None for the state itself.
        y_eq, u_eq: equilibrium, ``[p]``, ``[m]``.
        start: what is remembered before the first step: a name of the memory in C → its array.
        design: the controller; what a function made of the problem.
    """

    policy: Any
    problem: Problem
    sensor: Array | Outputs | None
    y_eq: np.ndarray
    u_eq: np.ndarray
    start: dict[str, np.ndarray]
    design: object = None

    @classmethod
    def of(cls, controller: object, problem: Problem | Plant) -> "ExportedStep":
        """The step of a controller on a problem; refused in words where there is no single one."""
        if not isinstance(problem, Problem):
            check_plant(problem)
            problem = Problem.of(problem, optimum=False)
        if problem.batch_shape:
            raise ValueError(
                f"problem: expected one plant, because a program controls one, but found a batch of shape "
                f"{problem.batch_shape}; export the controllers one by one, of problem[0], problem[1], …"
            )
        if problem.in_scales:
            raise ValueError(
                "problem: expected signals in SI units, as sensors have them, but found a scaled problem; "
                "export the controller for the problem that it was scaled from"
            )
        design = binding.made(controller, problem) if inspect.isfunction(controller) else controller
        policy: Any = _in_double(bind(design, problem))
        problem = problem.astype(float)
        policy, sensor, y_eq, u_eq = interface(policy, problem)
        if y_eq.ndim != 1:
            raise ValueError(f"controller: expected one of a single plant, but found sensors of shape {sensor.shape}")  # type: ignore[union-attr]
        start = policy.init(())
        _check_memory(policy, start)
        names = _names(start, "memory")
        values = [np.asarray(a) for a in jax.tree.leaves(start)]
        return cls(policy, problem, sensor, y_eq, u_eq, dict(zip(names, values)), design)

    def __call__(self, policy: Any, carry: Any, y: Array) -> tuple[Any, Array]:
        """The next memory, and the input within the actuators' limits."""
        carry, u = policy(carry, y - self.y_eq)
        return carry, self.problem.saturate(u) + self.u_eq

    def run(self, ys: np.ndarray, *, single: bool = False) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Memories after each step, and inputs, of measurements ``[T, p]`` one after another: by JAX, in double."""
        promoted = jax.numpy_dtype_promotion("standard")  # constants of the controller's own stay double
        with jax.enable_x64(not single), promoted, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what asks for double does not get it
            (policy, problem), given = jax.tree.map(
                lambda a: jnp.asarray(np.asarray(a)), ((self.policy, self.problem), ys)
            )

            def one(carry: Any, y: Array) -> tuple[Any, tuple[Any, Array]]:
                after, u = dataclasses.replace(self, problem=problem)(policy, carry, y)
                after = jax.tree.map(lambda a, b: a.astype(b.dtype), after, carry)
                return after, (after, u)

            memories, us = jax.jit(lambda ys: jax.lax.scan(one, policy.init(()), ys)[1])(given)
            return dict(zip(self.start, map(np.asarray, jax.tree.leaves(memories)))), np.asarray(us)

    def translated(self) -> "TranslatedStep":
        """The same in C."""
        leaves, structure = jax.tree.flatten(self.policy)
        carry = self.policy.init(())

        def step(leaves: list[Array], carry: Any, y: Array) -> tuple[Any, Array]:
            return self(jax.tree.unflatten(structure, leaves), carry, y)

        token = calculus.ROLLED.set(True)
        try:
            closed = jax.make_jaxpr(step)(leaves, carry, jnp.zeros(len(self.y_eq)))
        finally:
            calculus.ROLLED.reset(token)
        translator = Translator()
        program = translator.program
        memories = [
            StoredArray(program, f"c->{name}", a.shape, kind_of(a.dtype), program.root)
            for name, a in self.start.items()
        ]
        y = StoredArray(program, "y", self.y_eq.shape, "real", program.root)
        u = StoredArray(program, "u", self.u_eq.shape, "real", program.root)
        constants = [Constant(program, np.asarray(a), True) for a in leaves]
        for name, a in zip(_names(self.policy, "constant"), constants):
            program.labels.setdefault(program.key(a), f"k_{name}")  # else u would hide the inputs
        try:
            *after, out = translator.run(closed, [*constants, *memories, y])
        except UnsupportedStepError as error:
            raise ValueError(
                f"controller: the C code of {type(self.policy).__name__} would need JAX's primitive {error}, which "
                "deployment.to_c cannot write; compute that part when the controller is designed, or write it with "
                "arithmetic, jnp.where, products of matrices and lax.fori_loop of a known length"
            ) from error
        _check_carry(self.policy, [m.shape for m in memories], [a.shape for a in after], out.shape, u.shape)
        translator.overwrite([*zip(memories, after), (u, out)])
        prune(program.root)
        written_out = used_once(program.root)
        writer = Writer(written_out, share(program.root, written_out))
        lines = writer.text(program.root)
        text = "\n".join(lines)
        tables = {name: a for name, a in program.contents.items() if f"{name}[" in text}
        return TranslatedStep(lines, writer.count, tables)


@dataclasses.dataclass(frozen=True)
class TranslatedStep:
    """The statements of a step, the operations that they are, and the tables that they read."""

    lines: list[str]
    operations: int
    tables: dict[str, np.ndarray]


def interface(policy: Any, problem: Problem) -> tuple[Any, Array | Outputs | None, np.ndarray, np.ndarray]:
    """A policy without its sensor, which is outside of the program; the sensor; measurements and inputs at rest."""
    x_eq, u_eq = (
        np.zeros(size) if a is None else np.asarray(a, float)
        for a, size in ((problem.x_eq, problem.n), (problem.u_eq, problem.m))
    )
    if not isinstance(policy, Measured):
        return policy, None, x_eq, u_eq
    sensor = policy.sensor
    y_eq = np.asarray(sensor.y_eq, float) if isinstance(sensor, Outputs) else np.asarray(sensor, float) @ x_eq
    return policy.policy, sensor, y_eq, u_eq


def _in_double(policy: Any) -> Any:
    """The policy with all its numbers in double precision."""
    bad = [
        jax.tree_util.keystr(path)
        for path, a in jax.tree_util.tree_leaves_with_path(policy)
        if jnp.issubdtype(jnp.result_type(a), jnp.floating) and np.isnan(np.asarray(a)).any()
    ]
    if bad:
        raise ValueError(
            f"controller: expected numbers, but found NaN in {type(policy).__name__}{bad[0]}: the design has no "
            "stabilizing solution; control.lqrd on the plant gives the reason"
        )

    def double(a: Any) -> Any:
        a = jnp.asarray(a)
        return a.astype(float) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(double, policy)


def _names(tree: Any, alone: str) -> list[str]:
    """A name in C for each array of a tree, from where it stands in it."""
    names: list[str] = []
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        name = re.sub(r"\W+", "_", jax.tree_util.keystr(path)).strip("_") or alone
        name = f"{alone}_{name}" if not name[0].isalpha() else name
        while name in names or name in KEYWORDS:
            name += "_"
        names.append(name)
    return names


def _check_memory(policy: Any, start: Any) -> None:
    """Raise ValueError unless C has these numbers; whole ones of few bits wrap around where C's do not."""
    for a in map(jnp.asarray, jax.tree.leaves(start)):
        whole = jnp.issubdtype(a.dtype, jnp.signedinteger) and a.dtype.itemsize >= 4
        if not (whole or jnp.issubdtype(a.dtype, jnp.floating) or a.dtype == bool):
            raise ValueError(
                f"controller: expected {type(policy).__name__} to remember real numbers, truth values and "
                f"whole numbers of 32 or 64 bits, but found {a.dtype}"
            )


def _check_carry(policy: Any, before: list, after: list, u: tuple, wanted: tuple) -> None:
    if before != after:
        raise ValueError(
            f"controller: expected {type(policy).__name__} to remember arrays of the same shapes each step, but "
            f"found {before} before a step and {after} after it"
        )
    if u != wanted:
        raise ValueError(f"controller: expected inputs of shape {wanted}, but {type(policy).__name__} gives {u}")
