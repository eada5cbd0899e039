"""Environments' states on disk: only what cannot be rebuilt, in NumPy's format, without pickle."""

import dataclasses
import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.files import read_bytes, write_atomic
from lqrlab.extensions.environments.core import Environment
from lqrlab.extensions.environments.state import State
from lqrlab.simulation import Problem

_FORMAT = 1
_MOST_BYTES = 1 << 30
_FIELDS = tuple(f.name for f in dataclasses.fields(State) if f.name != "problem")


def save(state: State, path: str | Path, *, key: Any = None) -> Path:
    """Write the state of one environment or many; those of a pool name their plant, others give its parameters.

    Args:
        state: of :meth:`Environment.reset` or ``step``, or of their batches.
        path: of the file.
        key: random key or keys to go on with.
    """
    checks.instance("state", state, State, "a state, as env.reset makes")
    checks.on_host("save", state)
    arrays = {name: np.asarray(getattr(state, name)) for name in _FIELDS}
    if state.problem is not None:
        leaves = jax.tree.leaves(state.problem.plant)
        arrays |= {f"plant{i}": np.asarray(a) for i, a in enumerate(leaves)}
        arrays["model"] = np.frombuffer(_digest(state.problem), np.uint8)
    if key is not None:
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        arrays["key_typed" if typed else "key"] = np.asarray(jax.random.key_data(key) if typed else key)
    arrays["format"] = np.array(_FORMAT, np.int32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return write_atomic(checks.path("path", path), buffer.getvalue())


def load(path: str | Path, env: Environment) -> tuple[State, Any]:
    """The state in a file that :func:`save` wrote, and its key or None; it goes on bit for bit.

    Raises:
        ValueError: the file is torn, of another kind, or of other environments than ``env``.
    """
    checks.instance("env", env, Environment, "an environment, as environments.make makes")
    file = checks.path("path", path)
    try:
        arrays = _read(read_bytes(file, _MOST_BYTES))
    except (
        OSError,
        ValueError,
        zipfile.BadZipFile,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote, but it is torn or of another kind ({error})"
        ) from error
    if set(_FIELDS) - set(arrays) or int(arrays.get("format", 0)) != _FORMAT:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote, but found other arrays in it"
        )
    lead = arrays["time"].shape
    _, one = jax.eval_shape(env._reset, jax.random.key(0), None)
    for name in _FIELDS:
        wanted = getattr(one, name)
        if arrays[name].shape != lead + wanted.shape or arrays[name].dtype != wanted.dtype:
            raise ValueError(
                f"{file}: expected {name} of shape {lead + wanted.shape} and type {wanted.dtype}, as env has, but "
                f"found {arrays[name].shape} and {arrays[name].dtype}: the state is of another environment"
            )
    if np.any((arrays["variant"] < 0) | (arrays["variant"] >= len(env.pool))):
        raise ValueError(
            f"{file}: the state is of a variant that env has not; make env with the same settings"
        )
    problem = _rebuilt(file, arrays, env, lead) if "model" in arrays else None
    state = State(**{name: jnp.asarray(arrays[name]) for name in _FIELDS}, problem=problem)
    key = arrays.get("key")
    if "key_typed" in arrays:
        key = jax.random.wrap_key_data(jnp.asarray(arrays["key_typed"]))
    return state, key if key is None else jnp.asarray(key)


def _read(data: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError("it unpacks to more than a GiB")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _rebuilt(file: Path, arrays: dict[str, np.ndarray], env: Environment, lead: tuple[int, ...]) -> Problem:
    """The problems of the plants whose parameters are in the file."""
    leaves, tree = jax.tree.flatten(env.pool.plant)
    found = [arrays.get(f"plant{i}") for i in range(len(leaves))]
    if any(a is None or a.shape != lead + b.shape[1:] for a, b in zip(found, leaves)):
        raise ValueError(f"{file}: the parameters in it are not those of env's plant")
    plant = jax.tree.unflatten(tree, [jnp.asarray(a) for a in found])
    problem = problems(env, plant, len(lead))
    if _digest(problem) != arrays["model"].tobytes():
        warnings.warn(f"{file}: the plants were rebuilt to rounding, not bit for bit", stacklevel=3)
    return problem


def problems(env: Environment, plant: Any, axes: int) -> Problem:
    """The problems of plants with so many leading axes, as resetting environments make them."""
    build = env.problem
    for _ in range(axes):
        build = jax.vmap(build)
    return jax.jit(build)(plant)


def _digest(problem: Problem) -> bytes:
    whole = hashlib.blake2b(digest_size=16)
    for a in jax.tree.leaves(problem):
        whole.update(np.ascontiguousarray(a).tobytes())
    return whole.digest()
