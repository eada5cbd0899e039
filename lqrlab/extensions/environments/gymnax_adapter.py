"""The same environments with gymnax's interface."""

import functools
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PRNGKeyArray

from lqrlab.compute import checks
from lqrlab.extensions.environments.core import Environment, State
from lqrlab.extensions.environments.factory import make
from lqrlab.extensions.environments.settings import Discrete, as_of, for_learning
from lqrlab.installation import of_extra


@functools.lru_cache(64)
def gymnax(env: Any, *, returns: int = 6, **settings: Any) -> Any:
    """An environment with gymnax's interface (``step(key, state, action, params)``, ``default_params``, spaces).

    Args:
        env: as :func:`make` makes; or a plant, with ``settings`` and defaults as of Gymnasium's ids.
        returns: 6 values of a step, as gymnax 1.0 has them; or 5 (``obs, state, reward, done, info``), as what was
            written for gymnax before 1.0 expects, rejax 0.1.3 for one.
    """
    of_extra("gymnax", "[environments]", "gymnax")
    from gymnax.environments import environment, spaces

    env = make(env, **for_learning(settings)) if settings or not isinstance(env, Environment) else env
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
            return as_of(spaces, env.observation_space)

        def action_space(self, params: Any = None) -> Any:
            return as_of(spaces, env.action_space)

    return PlantEnvironment()
