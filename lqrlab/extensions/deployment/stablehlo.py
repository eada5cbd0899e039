"""Policies as StableHLO: JAX runs them in a process without lqrlab, other compilers of StableHLO without JAX."""

import dataclasses
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Float

from lqrlab.compute import checks, pytree
from lqrlab.compute.files import read_bytes, write_atomic
from lqrlab.simulation import Problem, bind
from lqrlab.systems import Plant

_MOST_BYTES = 1 << 28
_PARTS = ("init", "step")


@pytree
@dataclasses.dataclass(frozen=True)
class StoredPolicy:
    """A policy from a file of :func:`to_stablehlo`.

    Attributes:
        start: what one loop remembers at first.
        step: what one loop remembers and its state → what it remembers then, and its input.
    """

    start: tuple[Array, ...]
    step: Callable[..., Any] = dataclasses.field(metadata={"static": True})

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, ...]:
        """The same for each loop."""
        return tuple(jnp.broadcast_to(a, (*batch_shape, *a.shape)) for a in self.start)

    def __call__(self, carry: tuple[Array, ...], x: Float[Array, "*loops n"]) -> tuple[tuple[Array, ...], Array]:
        """One step of all loops, one after another."""
        lead = x.shape[:-1]
        if not lead:
            return self.step(carry, x)
        flat = jax.tree.map(lambda a: a.reshape(math.prod(lead), *a.shape[len(lead) :]), (carry, x))
        after = jax.lax.map(lambda given: self.step(*given), flat)
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), after)


def to_stablehlo(controller: object, problem: Problem | Plant, path: str | Path) -> Path:
    """A controller's policy on a problem, compiled as far as StableHLO, for one loop.

    The file is a ZIP archive of two programs that ``jax.export.deserialize`` reads, in a process without lqrlab::

        with zipfile.ZipFile(path) as archive:
            init, step = (jax.export.deserialize(archive.read(name)).call for name in ("init", "step"))
        memory = init()
        memory, u = step(memory, x)  # x [n] and u [m] are deviations from the equilibrium

    Its numbers are those of the process that writes it: float64 where ``jax_enable_x64`` is on, which has to be so
    where it is read too.

    Args:
        controller: whatever :func:`lqrlab.simulation.bind` takes.
        problem: what it controls.
        path: of the file, ending in ``.stablehlo``.

    Raises:
        ValueError: a controller that calls back into Python, such as one in C.
    """
    policy, file = bind(controller, problem), _checked(path)
    start, tree = jax.tree.flatten(policy.init(()))

    def one(memory: tuple[Array, ...], x: Array) -> tuple[tuple[Array, ...], Array]:
        carry, u = policy(jax.tree.unflatten(tree, memory), x)
        return tuple(jax.tree.leaves(carry)), u

    shapes = tuple(jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)) for a in start)
    x = jax.ShapeDtypeStruct((problem.n,), jnp.result_type(float))
    try:
        step = export.export(jax.jit(one))(shapes, x)
        init = export.export(jax.jit(lambda: tuple(jnp.asarray(a) for a in start)))()
        programs = {"init": init.serialize(), "step": step.serialize()}
    except (ValueError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"controller: a {type(policy).__name__} cannot be written as StableHLO: {why}") from error
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _PARTS:
            archive.writestr(name, programs[name])
    return write_atomic(file, packed.getvalue())


def load_stablehlo(path: str | Path) -> StoredPolicy:
    """The policy in a file of :func:`to_stablehlo`; what its programs compute is executed, so trust where it is from.

    Raises:
        ValueError: no such file, or another kind of one.
    """
    file = _checked(path)
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(file, _MOST_BYTES))) as archive:
            if sum(item.file_size for item in archive.infolist()) > _MOST_BYTES:
                raise ValueError(f"it unpacks to more than {_MOST_BYTES >> 20} MiB")
            init, step = (export.deserialize(bytearray(archive.read(name))).call for name in _PARTS)
        return StoredPolicy(tuple(init()), step)
    except Exception as error:
        raise ValueError(f"{file}: cannot be read as a policy ({type(error).__name__}: {error})") from error


def _checked(path: str | Path) -> Path:
    file = checks.path("path", path)
    if file.suffix != ".stablehlo":
        raise ValueError(f"path: expected a file ending in .stablehlo, but found {file.name!r}")
    return file
