"""Environments' states on disk: only what cannot be rebuilt, in NumPy's format, without pickle."""

import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import checks
from lqrlab.compute.array_files import read_arrays, write_arrays
from lqrlab.compute.files import read_bytes
from lqrlab.extensions.environments.core import Environment, State, check_environment

_MOST_BYTES = 1 << 30
_FIELDS = tuple(f.name for f in dataclasses.fields(State) if f.name not in ("problem", "owner"))


def save(state: State, path: str | Path, *, key: Any = None) -> Path:
    """Write the state of one environment or many, as ``reset`` or ``step`` gives it, and a random key to go on with.

    Raises:
        ValueError: a state that is not finite: no episode goes on from there.
    """
    checks.instance("state", state, State, "a state, as env.reset makes")
    checks.on_host("save", state)
    arrays = {name: np.asarray(getattr(state, name)) for name in _FIELDS}
    if not all(np.isfinite(arrays[name]).all() for name in ("x", "held", "queue", "history", "paid")):
        raise ValueError("state: expected finite numbers, but found inf or NaN; reset these environments before")
    if state.problem is not None:
        arrays |= {f"plant{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(state.problem.plant))}
    if key is not None:
        typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if not typed and not (isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.shape[-1:] == (2,)):
            raise ValueError(f"key: expected a random key or keys, such as jax.random.key(0), but found {key!r}")
        arrays["key_typed" if typed else "key"] = np.asarray(jax.random.key_data(key) if typed else key)
    owned = arrays | {"owner": np.array(state.owner)}
    return write_arrays(checks.path("path", path), owned | {"digest": np.array(_digest(owned))})


def load(path: str | Path, env: Environment) -> tuple[State, Any]:
    """The state in a file that :func:`save` wrote, and its key or None; it goes on bit for bit.

    Raises:
        ValueError: the file is torn, of another kind, or of other environments than ``env``: other plants, another
            task, sample time or horizon.
    """
    check_environment(env)
    file = checks.path("path", path)
    try:
        read_bytes(file, _MOST_BYTES)
        arrays = read_arrays(file, _MOST_BYTES)
        if str(arrays.pop("digest", "")) != _digest(arrays):
            raise ValueError("its digest is another")
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote, but it is torn or of another kind ({error})"
        ) from error
    if str(arrays.get("owner")) != env.digest:
        raise ValueError(
            f"{file}: the state is of another environment than {env}: of other plants, or with another sample time, "
            "horizon or task; make env with the plant and the settings that it was saved with"
        )
    given = {name: jnp.asarray(a) for name, a in arrays.items() if name != "owner"}
    key = jax.random.wrap_key_data(given["key_typed"]) if "key_typed" in given else given.get("key")
    problem = None
    if "plant0" in given:
        leaves, tree = jax.tree.flatten(env.pool.plant)
        plant = jax.tree.unflatten(tree, [given[f"plant{i}"] for i in range(len(leaves))])
        build = env.problem  # as resetting environments make them
        for _ in range(given["time"].ndim):
            build = jax.vmap(build)
        problem = jax.jit(build)(plant)
    return State(**{name: given[name] for name in _FIELDS}, problem=problem, owner=env.digest), key


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        whole.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return whole.hexdigest()
