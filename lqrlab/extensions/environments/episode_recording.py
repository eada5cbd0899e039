"""Records of episodes while they run: everything, every k-th step, the last W steps, or a summary."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import checks, jit_by_function, pytree
from lqrlab.extensions.environments.actions import input_of
from lqrlab.extensions.environments.agents import FunctionAgent, PolicyAgent, acts_on_observations, compiled
from lqrlab.extensions.environments.core import Environment, State, check_environment
from lqrlab.extensions.environments.vectorised import batch_reset, chosen
from lqrlab.simulation import bind

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
        if not re.fullmatch("full|summary|(every|ring):0*[1-9][0-9]*", checks.text("keep", self.keep)):
            raise ValueError(f"keep: expected 'full', 'every:10', 'ring:64' or 'summary', but found {self.keep!r}")

    @property
    def _word(self) -> tuple[str, int]:
        word, _, number = self.keep.partition(":")
        return word, int(number or 1)

    def init(self, state: State) -> Log:
        """The empty log of an episode."""
        steps, (word, number) = self.env.settings.horizon, self._word
        x, u, cost = jnp.zeros_like(state.x), jnp.zeros(self.env.m, self.env.dtype), jnp.zeros_like(state.paid)
        if word == "summary":
            return {"sum": x, "peak": x, "cost": cost}
        rows = {"full": steps, "every": math.ceil(steps / number), "ring": number}[word]
        return {name: jnp.zeros((rows, *a.shape), a.dtype) for name, a in {"x": x, "u": u, "cost": cost}.items()}

    def add(self, log: Log, state: State, action: Any, cost: Array) -> Log:
        """The log after a step from ``state``."""
        t, (word, number) = state.time, self._word
        if word == "summary":
            peak = jnp.maximum(log["peak"], jnp.abs(state.x))
            return {"sum": log["sum"] + state.x, "peak": peak, "cost": log["cost"] + cost}
        # what is not kept goes to a row beyond the last, where it is dropped
        row = t % number if word == "ring" else jnp.where(t % number == 0, t // number, self.env.settings.horizon)
        new = {"x": state.x, "u": input_of(action, self.env, state.held), "cost": cost}
        return {name: log[name].at[row].set(a, mode="drop") for name, a in new.items()}


@pytree
@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes from reset to their end, ``[num, …]``.

    Attributes:
        ratio: cost over the optimum, inf where the plant left the model; NaN of a swing-up, whose optimum is not known.
        terminated: whether it did.
        optimum: x0ᵀP x0.
        total: the sum of the rewards.
        log: what the recorder kept.
        steps: how many the episode had.
    """

    ratio: Array
    terminated: Array
    optimum: Array
    total: Array
    log: Log
    steps: Array


def play(env: Environment, controller: Any, *, key: PRNGKeyArray, num: int = 1, keep: str = "summary") -> Played:
    """One episode in each of ``num`` environments at once.

    Args:
        env: as :func:`make` makes.
        controller: an agent: a pure function of one observation that returns an action (a pytree that can be called,
            with a network's parameters as arrays, is not compiled again for new numbers), or a model with ``predict``;
            or whatever :func:`lqrlab.simulation.bind` takes: a policy, also one that remembers, a gain, a design, a
            network, a function of a problem. It sees the state as it is observed, and is bound to each episode's plant.
        key: random key.
        num: episodes.
        keep: see :class:`Recorder`.
    """
    check_environment(env)
    checks.random_key(key)
    keys = jax.vmap(jax.random.split)(jax.random.split(key, checks.whole("num", num)))
    obs, state = batch_reset(env, keys[:, 0])
    problem = jax.tree.map(lambda a: jnp.asarray(a[np.asarray(state.variant)]), env.pool)
    agent: PolicyAgent | FunctionAgent
    if acts_on_observations(env, controller, problem):
        agent = FunctionAgent(compiled(controller, env))
    else:
        agent = PolicyAgent.of(env, bind(controller, problem))
    return _play(env, agent, obs, state, keys[:, 1], Recorder(env, keep))


def _episodes(
    env: Environment, agent: PolicyAgent | FunctionAgent, obs: Array, state: State, keys: Array, recorder: Recorder
) -> Played:
    num, zero = len(keys), jnp.zeros(len(keys), env.dtype)

    def step(carry: tuple, t: Array) -> tuple[tuple, None]:
        obs, state, memory, log, total, _, over, steps = carry
        memory, action = agent(memory, obs)
        at = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        seen, after, reward, terminated, _, info = jax.vmap(env.step_env)(at, state, action)
        noted = jax.vmap(recorder.add)(log, state, action, info["cost"])
        new = (seen, after, memory, noted, total + reward, info["ratio"], terminated, steps + 1)
        return chosen(~over, new, carry), None

    start = agent.init(num), jax.vmap(recorder.init)(state), zero, zero, zero.astype(bool), zero.astype(jnp.int32)
    (_, state, _, log, total, ratio, over, steps), _ = jax.lax.scan(
        step, (obs, state, *start), jnp.arange(env.settings.horizon)
    )
    return Played(ratio, over, state.optimum, total, log, steps)


_play = jit_by_function(_episodes, static_argnums=(0, 5))
