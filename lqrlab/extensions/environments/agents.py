"""Agents, which see an environment's observations, and policies, which see deviations of the state; their episodes."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from lqrlab.compute import checks, jit_by_function, one_program, pytree
from lqrlab.compute.linalg import matvec
from lqrlab.extensions.environments.actions import Action, input_of
from lqrlab.extensions.environments.core import Environment, State, check_environment
from lqrlab.extensions.environments.episode_recording import Log, Recorder
from lqrlab.extensions.environments.vectorised import batch_reset, chosen
from lqrlab.simulation import Policy, Problem, bind, is_policy, measured_or
from lqrlab.simulation.binding import recognised


@pytree
@dataclasses.dataclass(frozen=True)
class OptimalAgent:
    """u = −Kx, in an environment's units: what no agent beats on its linear plant."""

    K: Float[Array, "m n"]

    def __call__(self, obs: Array) -> Array:
        """The action on an observation ``[..., size]``, whose first entries are the state."""
        return -matvec(self.K, obs[..., : self.K.shape[-1]])


def optimal(env: Environment) -> OptimalAgent:
    """The LQR as an agent; of an environment with many plants, that of the first."""
    check_environment(env)
    _require_state(env)
    K = np.asarray(env.pool.K[0]) * env.unit_x / env.unit_u[:, None]
    return OptimalAgent(jnp.asarray(K.astype(env.dtype)))


def _require_state(env: Environment) -> None:
    """Raise ValueError where a policy would not see the state, or not choose any input."""
    if env.settings.observe == "outputs" or env.settings.levels:
        raise ValueError("env: a policy sees the state and chooses any input; leave observe='state', action='full'")


@pytree
@dataclasses.dataclass(frozen=True)
class AgentPolicy:
    """An agent as a :class:`lqrlab.simulation.Policy`, for ``evaluation.evaluate``, rollouts and panels.

    Attributes:
        agent: a pure function of one observation, or a pytree that can be called.
        env: what it was trained in: says what it sees, and what its actions mean.
    """

    agent: Any
    env: Environment = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, env: Environment, agent: Any) -> "AgentPolicy":
        """The policy of an agent: a function of one observation, or a model of Stable-Baselines3 or SBX."""
        check_environment(env)
        agent = _compiled(agent, env)
        if env.settings.observe == "outputs":
            raise ValueError("env: a policy observes the state, and so must its agent: leave observe='state'")
        return cls(agent, env)

    def init(self, batch_shape: tuple[int, ...]) -> tuple[Array, Array]:
        """Nothing seen, nothing sent."""
        sizes = ((self.env.settings.memory, self.env.n + self.env.m), (self.env.m,))
        return tuple(jnp.zeros((*batch_shape, *size), self.env.dtype) for size in sizes)  # type: ignore[return-value]

    @one_program
    def __call__(self, carry: tuple[Array, Array], x: ArrayLike) -> tuple[tuple[Array, Array], Array]:
        """The input at deviations x ``[..., n]``."""
        env, x = self.env, jnp.asarray(x)
        unit_x, unit_u = (jnp.asarray(a, env.dtype) for a in (env.unit_x, env.unit_u))
        problem = jax.tree.map(lambda a: jnp.asarray(a[0]), env.pool)

        def one(carry: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
            history, sent = carry
            last = history[0, : env.n] if env.settings.memory else jnp.zeros(env.n, env.dtype)
            obs = measured_or(last, x.astype(env.dtype) / unit_x)
            if env.settings.memory:
                history = jnp.concatenate([jnp.concatenate([obs, sent])[None], history[:-1]])
                obs = history.reshape(-1)
            asked = input_of(self.agent(obs), env)
            sent = jnp.where(jnp.all(jnp.isfinite(x)), asked, sent)
            u = problem.saturate(sent * unit_u)
            return (history, u / unit_u), u.astype(x.dtype)

        call = one
        for _ in x.shape[:-1]:
            call = jax.vmap(call)
        return call(carry, x)


def _compiled(agent: Any, env: Environment) -> Any:
    """An agent as a pytree that can be called: a function of one observation, or a model with ``predict``."""
    if callable(getattr(agent, "predict", None)):
        _normalisers(agent)  # refuses what else changes observations
        agent = HostAgent(agent, env)
    checks.function("agent", agent, "a function from an observation to an action, or a model with predict")
    return jax.tree_util.Partial(agent) if jax.tree_util.all_leaves([agent]) else agent


def _acts_on_observations(env: Environment, controller: Any, problem: Problem) -> bool:
    """True of an agent of an environment, which is not a controller to be bound to the problem."""
    if callable(getattr(controller, "predict", None)):
        return True
    if is_policy(controller) or recognised(controller) or not callable(controller):
        return False
    space = env.observation_space
    try:
        made = jax.eval_shape(controller, jax.ShapeDtypeStruct(space.shape, space.dtype))
    except Exception as failure:  # what it asks for, perhaps a problem has
        try:
            bind(controller, problem)
        except Exception:
            raise failure from None
        return False
    if getattr(made, "shape", None) == (env.m, env.n):  # one gain, whatever the problem is
        return False
    if isinstance(made, Action | jax.ShapeDtypeStruct):
        return True
    return not (is_policy(made) or recognised(made))


@dataclasses.dataclass(frozen=True)
class HostAgent:
    """The agent of a library that runs on the host, such as a model of Stable-Baselines3; equal ones share programs."""

    model: Any
    env: Environment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostAgent) and self.model is other.model and self.env == other.env

    def __hash__(self) -> int:
        return hash((id(self.model), self.env))

    def __call__(self, obs: Array) -> Array:
        """The action on an observation."""
        space = self.env.action_space
        result = jax.ShapeDtypeStruct(space.shape, np.dtype(space.dtype))
        return jax.pure_callback(self._predicted, result, obs, vmap_method="expand_dims")

    def _predicted(self, obs: Any) -> np.ndarray:
        space, seen = self.env.action_space, np.asarray(obs).reshape(-1, np.shape(obs)[-1])
        for normalise in _normalisers(self.model):
            seen = normalise(seen)
        with jax.enable_x64(False):  # as where it was trained: SBX computes in single precision alone
            action, memory = self.model.predict(seen, deterministic=True)  # a batch has one axis
        if memory is not None:
            raise ValueError(
                "predict: expected an agent without memory, but found a recurrent one; train one with "
                "observe='history:8' instead"
            )
        return np.asarray(action, np.dtype(space.dtype)).reshape(np.shape(obs)[:-1] + space.shape)


_SAME_OBSERVATIONS = ("VecMonitor", "VecVideoRecorder", "VecCheckNan")
"""Wrappers of Stable-Baselines3 that leave observations as they are."""


def _normalisers(model: Any) -> list[Callable[[np.ndarray], np.ndarray]]:
    """The changes that wrappers of a model's environment make to its observations, the innermost first."""
    found: list[Callable] = []
    vector: Any = model.get_env() if callable(getattr(model, "get_env", None)) else None
    while hasattr(vector, "venv"):
        if hasattr(type(vector), "normalize_obs"):  # VecNormalize
            found += [vector.normalize_obs] if vector.norm_obs else []
        elif type(vector).__name__ not in _SAME_OBSERVATIONS:
            raise ValueError(_wrapped(vector))
        vector = vector.venv
    for env in getattr(vector, "envs", None) or []:
        while hasattr(env, "env"):
            if hasattr(type(env), "observation") or hasattr(type(env), "action"):
                raise ValueError(_wrapped(env))
            env = env.env
    return found[::-1]


def _wrapped(wrapper: Any) -> str:
    return (
        f"controller: expected an agent that was trained on the environment's own observations and actions, but found "
        f"one behind {type(wrapper).__name__}; environments.AgentPolicy.of(env, function) takes a function of an "
        "observation that does what the wrapper does"
    )


def _environment_of(model: Any) -> Environment | None:
    """The environment that a model of Stable-Baselines3 or SBX was trained in, if it still has it."""
    vector: Any = model.get_env() if callable(getattr(model, "get_env", None)) else None
    while hasattr(vector, "venv"):
        vector = vector.venv
    for env in getattr(vector, "envs", None) or [vector]:
        core = getattr(getattr(env, "unwrapped", env), "core", None)
        if isinstance(core, Environment):
            return core
    return None


class Predicts(Protocol):
    """A trained model of Stable-Baselines3 or SBX, or another that predicts actions as theirs do."""

    def predict(self, observation: Any, *args: Any, **options: Any) -> Any:
        """Actions of observations."""


@bind.register(runtime_checkable(Predicts))
def _bound(model: Predicts, problem: Problem) -> Policy:
    env = _environment_of(model)
    if env is None:
        raise ValueError(
            f"controller: {type(model).__name__} does not define its observations; "
            "use environments.AgentPolicy.of(env, model) with the environment of its training"
        )
    if (env.n, env.m) != (problem.n, problem.m):
        raise ValueError(
            f"controller: expected an agent for {problem.n} states and {problem.m} inputs, as {problem.name} has, but "
            f"found one for {env.n} and {env.m}"
        )
    return AgentPolicy.of(env, model)


# Episodes ----------------------------------------------------------------------------------------------------


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
    if _acts_on_observations(env, controller, problem):
        agent = _compiled(controller, env)
    else:
        _require_state(env)
        agent = bind(controller, problem)
    return _play(env, agent, obs, state, keys[:, 1], Recorder(env, keep))


def _episodes(env: Environment, agent: Any, obs: Array, state: State, keys: Array, recorder: Recorder) -> Played:
    num, zero = len(keys), jnp.zeros(len(keys), env.dtype)
    unit_x, unit_u = (jnp.asarray(a, env.dtype)[None] for a in (env.unit_x, env.unit_u))

    def act(memory: Any, obs: Array) -> tuple[Any, Any]:
        if not is_policy(agent):  # one that remembers nothing
            return memory, jax.vmap(agent)(obs)
        memory, u = agent(memory, obs[:, : env.n] * unit_x)
        return memory, u.astype(env.dtype) / unit_u

    def step(carry: tuple, t: Array) -> tuple[tuple, None]:
        obs, state, memory, log, total, _, over, steps = carry
        memory, action = act(memory, obs)
        at = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
        seen, after, reward, terminated, _, info = jax.vmap(env.step_env)(at, state, action)
        noted = jax.vmap(recorder.add)(log, state, action, info["cost"])
        new = (seen, after, memory, noted, total + reward, info["ratio"], terminated, steps + 1)
        return chosen(~over, new, carry), None

    memory, empty = agent.init((num,)) if is_policy(agent) else None, jax.vmap(recorder.init)(state)
    start = obs, state, memory, empty, zero, zero, zero.astype(bool), zero.astype(jnp.int32)
    (_, state, _, log, total, ratio, over, steps), _ = jax.lax.scan(step, start, jnp.arange(env.settings.horizon))
    return Played(ratio, over, state.optimum, total, log, steps)


_play = jit_by_function(_episodes, static_argnums=(0, 5))
