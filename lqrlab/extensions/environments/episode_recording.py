"""Records of episodes while they run: everything, every k-th step, the last, a summary; their states on disk."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from lqrlab.compute import checks
from lqrlab.extensions.environments.actions import input_of
from lqrlab.extensions.environments.core import Environment, State, check_environment
from lqrlab.extensions.environments.settings import number_in
from lqrlab.learning.weight_files import load_arrays, save_arrays
from lqrlab.simulation import Problem
from lqrlab.systems import Plant

Log = dict[str, Array]
_FIELDS = tuple(f.name for f in dataclasses.fields(State) if f.name not in ("problem", "owner"))


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A format of recording, static under ``jit``; the log of an episode is a pytree in the carry of a scan.

    Attributes:
        env: whose episodes are recorded.
        keep: ``"full"``, ``"every:10"`` (each tenth), ``"ring:64"`` (the last 64), or ``"summary"`` (sum, peak, cost).
    """

    env: Environment
    keep: str = "full"

    def __post_init__(self) -> None:
        check_environment(self.env)
        if not (checks.text("keep", self.keep) == "summary" or self._every or self._ring):
            raise ValueError(f"keep: expected 'full', 'every:10', 'ring:64' or 'summary', but found {self.keep!r}")

    @property
    def _every(self) -> int:
        return 1 if self.keep == "full" else number_in(self.keep, "every")

    @property
    def _ring(self) -> int:
        return number_in(self.keep, "ring")

    def init(self, state: State) -> Log:
        """The empty log of an episode."""
        x, cost = jnp.zeros_like(state.x), jnp.zeros_like(state.paid)
        if self.keep == "summary":
            return {"sum": x, "peak": x, "cost": cost}
        rows = self._ring or -(-self.env.settings.horizon // self._every)
        kept = {"x": x, "u": jnp.zeros(self.env.m, self.env.dtype), "cost": cost}
        return {name: jnp.zeros((rows, *a.shape), a.dtype) for name, a in kept.items()}

    def add(self, log: Log, state: State, action: Any, cost: Array) -> Log:
        """The log after a step from ``state``."""
        if self.keep == "summary":
            peak = jnp.maximum(log["peak"], jnp.abs(state.x))
            return {"sum": log["sum"] + state.x, "peak": peak, "cost": log["cost"] + cost}
        row = state.time % self._ring if self._ring else state.time // self._every
        kept = self._ring or state.time % self._every == 0
        row = jnp.where(kept, row, len(log["x"]))  # beyond the last, where it is dropped
        new = {"x": state.x, "u": input_of(action, self.env), "cost": cost}
        return {name: log[name].at[row].set(a, mode="drop") for name, a in new.items()}


def save(state: State, path: str | Path, *, key: Any = None) -> Path:
    """Write the state of one environment or many, from ``reset`` or ``step``, and optionally the next random key.

    Raises:
        ValueError: a state that is not finite: no episode goes on from there.
    """
    checks.instance("state", state, State, "a state, as env.reset makes")
    checks.on_host("save", state)
    arrays = {name: np.asarray(getattr(state, name)) for name in _FIELDS}
    if not all(np.isfinite(arrays[name]).all() for name in ("x", "queue", "history", "paid")):
        raise ValueError("state: expected finite numbers, but found inf or NaN; reset these environments before")
    if state.problem is not None:
        arrays |= {f"plant{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(state.problem.plant))}
    if key is not None:
        if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            raise ValueError(f"key: expected a random key or keys, such as jax.random.key(0), but found {key!r}")
        arrays["key"] = np.asarray(jax.random.key_data(key))
    file = checks.path("path", path)
    save_arrays(file, arrays, {"owner": state.owner})
    return file


def load(path: str | Path, env: Environment) -> tuple[State, Any]:
    """The state in a file of :func:`save`, and its key or None; the episode continues bit for bit.

    Raises:
        ValueError: the file is torn, of another kind, or of another ``env``: plants, task, sample time, horizon.
    """
    check_environment(env)
    file = checks.path("path", path)
    try:
        arrays, card = load_arrays(file)
        owner, fields = card["owner"], {name: jnp.asarray(arrays[name]) for name in _FIELDS}
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{file}: expected a state that environments.save wrote, but it is torn or of another kind ({error})"
        ) from error
    if owner != env.digest:
        raise ValueError(
            f"{file}: the state is of another environment than {env}: of other plants, or with another sample time, "
            "horizon or task; make env with the plant and the settings that it was saved with"
        )
    problem = None
    if "plant0" in arrays:
        leaves, tree = jax.tree.flatten(env.pool.plant)
        plant = jax.tree.unflatten(tree, [jnp.asarray(arrays[f"plant{i}"]) for i in range(len(leaves))])
        problem = _problems(env, fields["time"].ndim, plant)
    key = jax.random.wrap_key_data(jnp.asarray(arrays["key"])) if "key" in arrays else None
    return State(**fields, problem=problem, owner=env.digest), key


@functools.partial(jax.jit, static_argnums=(0, 1))
def _problems(env: Environment, axes: int, plants: Plant) -> Problem:
    """Those of plants with so many leading axes, as resetting environments make them."""
    build = env.problem
    for _ in range(axes):
        build = jax.vmap(build)
    return build(plants)
