"""Records of episodes while they run: everything, every k-th step, the last W steps, or a summary."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from lqrlab.compute import checks
from lqrlab.extensions.environments.actions import input_of
from lqrlab.extensions.environments.core import Environment, State, check_environment
from lqrlab.extensions.environments.settings import number_in

Log = dict[str, Array]


@dataclasses.dataclass(frozen=True)
class Recorder:
    """A format of recording, static under ``jit``; the log of an episode is a pytree in the carry of a scan.

    Attributes:
        env: whose episodes are recorded.
        keep: ``"full"``, ``"every:10"`` (each tenth step), ``"ring:64"`` (the last 64), or ``"summary"`` (sum and
            peak of the states, and the cost).
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
