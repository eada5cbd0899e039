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

_FORMAT = 2
_MOST_BYTES = 1 << 30
_FIELDS = tuple(f.name for f in dataclasses.fields(State) if f.name not in ("problem", "owner"))
_KEY = jax.ShapeDtypeStruct((2,), np.dtype(np.uint32))


def save(state: State, path: str | Path, *, key: Any = None) -> Path:
    """Write the state of one environment or many; those of a pool name their plant, others give its parameters.

    Args:
        state: of :meth:`Environment.reset` or ``step``, or of their batches.
        path: of the file.
        key: random key or keys to go on with.

    Raises:
        ValueError: a state that is not finite: no episode goes on from there.
    """
    checks.instance("state", state, State, "a state, as env.reset makes")
    checks.on_host("save", state)
    arrays = {name: np.asarray(getattr(state, name)) for name in _FIELDS}
    if wrong := _wrong(arrays):
        raise ValueError(f"state: {wrong}; reset these environments before they are saved")
    arrays["owner"] = np.frombuffer(bytes.fromhex(state.owner), np.uint8)
    if state.problem is not None:
        leaves = jax.tree.leaves(state.problem.plant)
        arrays |= {f"plant{i}": np.asarray(a) for i, a in enumerate(leaves)}
        arrays["model"] = np.frombuffer(_digest(state.problem), np.uint8)
    if key is not None:
        if not isinstance(key, jax.Array) or not (
            jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or (key.dtype == jnp.uint32 and key.shape[-1:] == (2,))
        ):
            raise ValueError(f"key: expected a random key or keys, such as jax.random.key(0), but found {key!r}")
        typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        arrays["key_typed" if typed else "key"] = np.asarray(jax.random.key_data(key) if typed else key)
    arrays["format"] = np.array(_FORMAT, np.int32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return write_atomic(checks.path("path", path), buffer.getvalue())


def load(path: str | Path, env: Environment) -> tuple[State, Any]:
    """The state in a file that :func:`save` wrote, and its key or None; it goes on bit for bit.

    Raises:
        ValueError: the file is torn, of another kind, or of other environments than ``env``: other plants, another
            task, sample time or horizon.
    """
    checks.instance("env", env, Environment, "an environment, as environments.make makes")
    file = checks.path("path", path)
    try:
        arrays = _read(read_bytes(file, _MOST_BYTES))
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote, but it is torn or of another kind ({error})"
        ) from error
    _check_kind(file, arrays)
    _check_owner(file, arrays, env)
    lead = arrays["time"].shape
    _, one = jax.eval_shape(env._reset, jax.random.key(0), None)
    for name in _FIELDS:
        _check_array(file, arrays, name, getattr(one, name), lead)
    known = env.settings.task != "swing_up" and env.starts is None
    wrong = _wrong(arrays, len(env.pool), horizon=env.settings.horizon, optimum_known=known)
    if wrong:
        raise ValueError(f"{file}: {wrong}: the state was changed after it was written")
    problem = _rebuilt(file, arrays, env, lead) if "model" in arrays else None
    fields = {name: jnp.asarray(arrays[name]) for name in _FIELDS}
    return State(**fields, problem=problem, owner=env.digest), _key(file, arrays)


def _read(data: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError("it unpacks to more than a GiB")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)


def _check_kind(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse what is no state, or one of another version's."""
    found = arrays.get("format", np.array(0))
    if set(_FIELDS) - set(arrays) or found.shape or found.dtype.kind not in "iu":
        raise ValueError(f"{file}: expected a state that environments.save wrote, but found other arrays in it")
    if int(found) != _FORMAT:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote in format {_FORMAT}, but found format "
            f"{int(found)}, which does not say of which environment it is; begin a new episode with env.reset"
        )


def _check_owner(file: Path, arrays: dict[str, np.ndarray], env: Environment) -> None:
    found = arrays.get("owner")
    if found is None or found.dtype != np.uint8 or found.tobytes().hex() != env.digest:
        raise ValueError(
            f"{file}: the state is of another environment than {env}: of other plants, or with another sample time, "
            "horizon or task; make env with the plant and the settings that it was saved with"
        )


def _check_array(file: Path, arrays: dict[str, np.ndarray], name: str, wanted: Any, lead: tuple[int, ...]) -> None:
    found, shape = arrays.get(name), (*lead, *wanted.shape)
    if found is None or found.shape != shape or found.dtype != wanted.dtype:
        what = "nothing" if found is None else f"{found.shape} and {found.dtype}"
        raise ValueError(
            f"{file}: expected {name} of shape {shape} and type {wanted.dtype}, as env has, but found {what}: the "
            "state is of another environment"
        )


def _wrong(
    arrays: dict[str, np.ndarray], variants: int | None = None, *, horizon: float = np.inf, optimum_known: bool = False
) -> str | None:
    """The value that no state of an episode has, in words; None if there is none."""
    moving = ("x", "held", "queue", "history", "paid")
    found = {f"a finite {name}": np.isfinite(arrays[name]) for name in moving}
    found["time ≥ 0"] = arrays["time"] >= 0
    found[f"time ≤ {horizon:g}, the horizon"] = arrays["time"] <= horizon
    found["bound > 0"] = arrays["bound"] > 0
    found["an optimum ≥ 0"] = (arrays["optimum"] >= 0) & (arrays["optimum"] < np.inf)
    if not optimum_known:
        found["an optimum ≥ 0"] |= np.isnan(arrays["optimum"])
    which = arrays["variant"]
    found["a variant that env has"] = (which >= 0) & (which < (np.inf if variants is None else variants))
    bad = [name for name, good in found.items() if not np.all(good)]
    return f"expected {bad[0]}, but found another" if bad else None


def _key(file: Path, arrays: dict[str, np.ndarray]) -> Any:
    """The random key or keys of the file, of the kind that was saved; None if there are none."""
    name = next((name for name in ("key_typed", "key") if name in arrays), None)
    if name is None:
        return None
    _check_array(file, arrays, name, _KEY, arrays[name].shape[:-1])
    data = jnp.asarray(arrays[name])
    return jax.random.wrap_key_data(data) if name == "key_typed" else data


def _rebuilt(file: Path, arrays: dict[str, np.ndarray], env: Environment, lead: tuple[int, ...]) -> Problem:
    """The problems of the plants whose parameters are in the file."""
    leaves, tree = jax.tree.flatten(env.pool.plant)
    names = [f"plant{i}" for i in range(len(leaves))]
    for name, leaf in zip(names, leaves):
        _check_array(file, arrays, name, jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), lead)
        if not np.all(np.isfinite(arrays[name])):
            raise ValueError(f"{file}: expected finite parameters of the plants, but found inf or NaN")
    plant = jax.tree.unflatten(tree, [jnp.asarray(arrays[name]) for name in names])
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
