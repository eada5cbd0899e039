"""The same environments with the interfaces of gymnax and brax."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.extensions.environments.core import Environment
from lqrlab.extensions.environments.spaces import Box, Discrete
from lqrlab.extensions.environments.state import State


def brax_agent(inference: Callable, env: Environment) -> Callable[[Array], Array]:
    """The agent of what brax's ``make_inference_fn(params, deterministic=True)`` returns.

    Args:
        inference: ``(observation, key) -> (action within ±1, extras)``.
        env: whose limits the actions are scaled to, as :func:`brax` does.
    """
    high = brax(env).env.action_high
    return lambda obs: (inference(obs, jax.random.key(0))[0] * high).astype(env.dtype)


def _gymnax_space(space: Box | Discrete) -> Any:
    """The same space in gymnax's words."""
    from gymnax.environments import spaces

    if isinstance(space, Discrete):
        return spaces.Discrete(space.n)
    low, high = (jnp.asarray(a, space.dtype) for a in (space.low, space.high))
    return spaces.Box(low, high, space.shape, jnp.dtype(space.dtype))


@functools.lru_cache(64)
def gymnax(env: Environment, *, returns: int = 6) -> Any:
    """An environment with gymnax's interface (``step(key, state, action, params)``, ``default_params``, spaces).

    Args:
        env: as :func:`make` makes.
        returns: 6 values of a step, as gymnax 1.0 has them; or 5 (``obs, state, reward, done, info``), as what was
            written for gymnax before 1.0 expects, rejax 0.1.3 for one.
    """
    from gymnax.environments import environment

    checks.instance("env", env, Environment, "an environment, as environments.make makes")
    checks.choice("returns", returns, (5, 6))

    @struct.dataclass
    class Params(environment.EnvParams):
        max_steps_in_episode: int = env.settings.horizon

    class PlantEnvironment(environment.Environment):
        _supports_transition_gradients = _transition_gradients_enabled = True

        @property
        def default_params(self) -> Params:
            return Params()

        @property
        def name(self) -> str:
            return env.name

        @property
        def num_actions(self) -> int:
            return env.action_space.n if isinstance(env.action_space, Discrete) else env.m

        def reset_env(self, key: PRNGKeyArray, params: Any) -> tuple[Array, State]:
            return env.reset(key)

        def step_env(self, key: PRNGKeyArray, state: State, action: Any, params: Any) -> tuple:
            if returns == 5 and not hasattr(action, "to_input"):  # rejax squeezes the only input of one
                action = jnp.reshape(action, env.action_space.shape)
            obs, state, reward, terminated, _, info = env.step_env(key, state, action)
            return obs, state, reward, terminated, info

        def step(self, key: PRNGKeyArray, state: State, action: Any, params: Any = None) -> tuple:
            out = super().step(key, state, action, params)
            if returns == 6:
                return out
            obs, state, reward, terminated, truncated, info = out
            return obs, state, reward, terminated | truncated, info

        def observation_space(self, params: Any) -> Any:
            return _gymnax_space(env.observation_space)

        def action_space(self, params: Any = None) -> Any:
            return _gymnax_space(env.action_space)

    return PlantEnvironment()


@struct.dataclass
class BraxState:
    """The fields of brax's own state, which its wrappers and its training read."""

    pipeline_state: Any
    obs: Array
    reward: Array
    done: Array
    metrics: dict[str, Array]
    info: dict[str, Any]


class BraxEnv:
    """An environment with brax's interface; its actions, within ±1, reach the actuators' limits."""

    backend = "lqrlab"

    def __init__(self, env: Environment):
        self.env = env

    @property
    def observation_size(self) -> int:
        """Length of an observation."""
        return self.env.observation_space.shape[0]

    @property
    def action_size(self) -> int:
        """Number of inputs."""
        return self.env.m

    @property
    def dt(self) -> float:
        """Sample time [s]."""
        return float(self.env.pool.dt[0])

    @property
    def unwrapped(self) -> "BraxEnv":
        """Itself."""
        return self

    def reset(self, rng: PRNGKeyArray) -> BraxState:
        """The first state of an episode."""
        start, rng = jax.random.split(rng)
        obs, state = self.env.reset(start)
        zero = jnp.zeros((), self.env.dtype)
        metrics = {"reward": zero, "ratio": jnp.ones((), self.env.dtype)}
        return BraxState(state, obs, zero, zero, metrics, {"rng": rng, "truncation": zero})

    def step(self, state: BraxState, action: Array) -> BraxState:
        """One sample time; brax's wrappers reset."""
        rng, key = jax.random.split(state.info["rng"])
        out = self.env.step_env(key, state.pipeline_state, action * self.env.action_high)
        obs, inner, reward, terminated, truncated, info = out
        done, cut = ((a).astype(self.env.dtype) for a in (terminated | truncated, truncated))
        metrics = state.metrics | {"reward": reward, "ratio": info["ratio"]}
        noted = state.info | {"rng": rng, "truncation": cut}
        return state.replace(  # type: ignore[attr-defined]
            pipeline_state=inner, obs=obs, reward=reward, done=done, metrics=metrics, info=noted
        )


def brax(env: Environment) -> BraxEnv:
    """An environment with brax's interface, for ``brax.training`` and its wrappers."""
    checks.instance("env", env, Environment, "an environment, as environments.make makes")
    if env.settings.levels or np.any(np.isinf(env.action_high) | (env.action_high != -env.action_low)):
        raise ValueError(
            "env: brax acts within ±1 of limits that are finite and symmetric; leave limits='plant', action='full'"
        )
    return BraxEnv(env)
