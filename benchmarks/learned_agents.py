"""Cost of learned policies above the optimum: imitation, gradient through the simulator, a library's PPO and SAC."""

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import Partial
from jaxtyping import Array, PRNGKeyArray

from benchmarks.measurement import Parts, main
from lqrlab.compute import checks
from lqrlab.extensions import environments
from lqrlab.extensions.environments import Environment

Loss = Callable[[Any, PRNGKeyArray], Array]
PLANTS = (
    "pendulum",
    "cart_pole",
    "dc_motor",
    "mass_spring_damper",
    "magnetic_levitation",
    "quarter_car",
    "coupled_tanks",
    "segway",
)
_EXPERT = 64  # episodes of the LQR that are imitated


@dataclasses.dataclass(frozen=True)
class Training:
    """Effort of each way to a policy.

    Attributes:
        width: of the network's two layers.
        updates: of imitation and of the gradient through the simulator.
        batch: episodes an update.
        window: steps of each that the gradient goes through.
        ppo_steps, sac_steps: environment steps of PPO and of SAC, 0 leaves it out; both need rejax.
    """

    width: int = 32
    updates: int = 400
    batch: int = 64
    window: int = 40
    ppo_steps: int = 200_000
    sac_steps: int = 20_000


@dataclasses.dataclass(frozen=True)
class AgentRow:
    """Cost above the optimum of the episodes of a policy's seeds.

    Attributes:
        plant, policy: which.
        median, p95, worst: excess cost in percent, inf where the plant left the model.
        diverged: percent of the episodes.
        steps: that a seed took in the environment.
        seconds: of training all seeds, compilation included.
    """

    plant: str
    policy: str
    median: float
    p95: float
    worst: float
    diverged: float
    steps: int
    seconds: float


def bench_rl(
    plants: Sequence[str] = PLANTS, *, seeds: int = 5, size: Training | None = None, episodes: int = 200
) -> Iterator[AgentRow]:
    """Cost above the optimum of policies that were learned, plant by plant, next to the LQR."""
    for row, _ in agents_table(plants, seeds=seeds, size=size, episodes=episodes):
        yield row


def agents_table(
    plants: Sequence[str] = PLANTS, *, seeds: int = 5, size: Training | None = None, episodes: int = 200, seed: int = 0
) -> Iterator[tuple[AgentRow, list[Callable]]]:
    """The rows of the table, each with its agents, one a seed.

    Args:
        plants: names of families.
        seeds: networks of each kind, trained at once.
        size: how much each may take.
        episodes: that each policy is judged by, the same for all.
        seed: of everything that is drawn.
    """
    keys = jax.random.split(jax.random.key(seed), checks.whole("seeds", seeds))
    size = size or Training()
    tasks = {name: task(name) for name in plants}  # a wrong name is refused before anything is trained
    for name, env in tasks.items():
        for policy, (steps, learn) in ways(env, size).items():
            began = time.perf_counter()
            agents = jax.block_until_ready(learn(keys))
            seconds = time.perf_counter() - began
            excess = excess_percent(env, agents, jax.random.key(seed + 1), episodes)
            median, p95, worst = np.quantile(excess, (0.5, 0.95, 1.0), method="higher").tolist()
            diverged = 100 * float(np.mean(np.isinf(excess)))
            yield AgentRow(name, policy, median, p95, worst, diverged, steps, seconds), agents


def task(plant: str, **settings: Any) -> Environment:
    """A plant about its equilibrium, linear, in its scales; the reward is minus the cost above the optimum's."""
    usual: dict[str, Any] = {"reward": "excess", "linear": True, "units": "scaled", "on_error": "nan"}
    return environments.make(plant, **usual | settings)


def excess_percent(env: Environment, agents: Sequence[Callable], key: PRNGKeyArray, episodes: int) -> np.ndarray:
    """Cost above the optimum in percent of all agents' episodes."""
    played = [environments.play(env, agent, key=key, num=episodes).ratio for agent in agents]
    return 100 * (np.concatenate(played) - 1)


def ways(env: Environment, size: Training) -> dict[str, tuple[int, Callable]]:
    """Name → environment steps of a seed, and what makes agents of keys."""
    expert, simulated = _EXPERT * env.settings.horizon, size.updates * size.batch * size.window
    found: dict[str, tuple[int, Callable]] = {
        "LQR": (0, lambda keys: [environments.optimal(env)]),
        "imitation": (expert, lambda keys: trained(env, imitation(env, size), size, keys)),
        "gradient": (simulated, lambda keys: trained(env, through_simulator(env, size), size, keys)),
    }
    for name, steps, learn in (("PPO", size.ppo_steps, ppo), ("SAC", size.sac_steps, sac)):
        if steps and has_rejax():
            found[name] = (steps, partial(learn, env, size))
    return found


def has_rejax() -> bool:
    """True if the library is installed whose PPO and SAC are run."""
    return importlib.util.find_spec("rejax") is not None


def network(params: Any, obs: Array) -> Array:
    """Two hidden layers, one action."""
    for W, b in params[:-1]:
        obs = jnp.tanh(obs @ W + b)
    W, b = params[-1]
    return obs @ W + b


def _first(env: Environment, width: int, key: PRNGKeyArray) -> list[tuple[Array, Array]]:
    """Parameters to begin with: the last layer small, so that the first policy does next to nothing."""
    sizes = (env.observation_space.shape[0], width, width, env.m)
    layers = zip(jax.random.split(key, 3), sizes[:-1], sizes[1:], (1.0, 1.0, 0.01))
    return [
        (gain * jax.random.normal(k, (a, b), jnp.float32) / np.float32(np.sqrt(a)), jnp.zeros(b, jnp.float32))
        for k, a, b, gain in layers
    ]


def trained(env: Environment, loss: Loss, size: Training, keys: Array) -> list[Callable]:
    """Agents whose networks Adam found on a loss, one a key; all are trained at once."""
    steps = optax.cosine_decay_schedule(3e-3, size.updates)
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(steps))

    def update(carry: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
        params, memory = carry
        change, memory = optimiser.update(jax.grad(loss)(params, key), memory)
        return (optax.apply_updates(params, change), memory), None

    def train(key: PRNGKeyArray) -> Any:
        params = _first(env, size.width, key)
        carry = params, optimiser.init(params)
        return jax.lax.scan(update, carry, jax.random.split(key, size.updates))[0][0]

    with jax.numpy_dtype_promotion("standard"):  # as optax wants it
        return _apart(network, jax.jit(jax.vmap(train))(keys))


def _apart(act: Callable, params: Any) -> list[Callable]:
    """An agent for each entry of the parameters' first axis."""
    num = len(jax.tree.leaves(params)[0])
    return [Partial(act, jax.tree.map(lambda a, i=i: a[i], params)) for i in range(num)]


def through_simulator(env: Environment, size: Training) -> Loss:
    """Minus the reward of a window, as a loss: its gradient goes through the steps of the environment."""

    def episode(params: Any, key: PRNGKeyArray) -> Array:
        def step(carry: tuple, _: None) -> tuple[tuple, Array]:
            obs, state, reward, *_more = env.step_env(key, carry[1], network(params, carry[0]))
            return (obs, state), reward

        return -jnp.sum(jax.lax.scan(step, env.reset(key), length=size.window)[1])

    def loss(params: Any, key: PRNGKeyArray) -> Array:
        costs = jax.vmap(episode, (None, 0))(params, jax.random.split(key, size.batch))
        return jnp.log1p(jnp.mean(costs))

    return loss


def imitation(env: Environment, size: Training) -> Loss:
    """The squared distance from the LQR's action where the LQR has been."""
    optimum = environments.optimal(env)
    visited = environments.play(env, optimum, key=jax.random.key(0), num=_EXPERT, keep="full").log["x"]
    seen = jnp.asarray((np.asarray(visited) / env.unit_x).reshape(-1, env.n), env.dtype)

    def loss(params: Any, key: PRNGKeyArray) -> Array:
        obs = seen[jax.random.randint(key, (4 * size.batch,), 0, len(seen))]
        return jnp.mean((jax.vmap(network, (None, 0))(params, obs) - optimum(obs)) ** 2)

    return loss


def ppo(env: Environment, size: Training, keys: Array) -> list[Callable]:
    """Agents that act as the mean of what rejax's PPO learned, one a key.

    Its episodes end three scales away from the equilibrium: with all the costs between there and the thousand scales of
    the verdict, 57 % of the pendulum's episodes diverge after 200,000 steps, instead of 2 %.
    """
    import rejax

    settings = {"num_envs": 64, "num_steps": 64, "num_minibatches": 8, "learning_rate": 1e-3}
    actor, params = _learned(rejax.PPO, task(env.name, terminate=3.0), size.ppo_steps, keys, settings)

    def act(params: Any, obs: Array) -> Array:
        return jnp.clip(_mean(actor, params, obs), env.action_low, env.action_high)

    return _apart(act, params)


def sac(env: Environment, size: Training, keys: Array) -> list[Callable]:
    """Agents that act as the mean of what rejax's SAC learned, one a key.

    Its episodes end like PPO's but last 25 steps, and its reward is the root of PPO's. On two seeds of the pendulum,
    where these settings were chosen among twelve, the median cost above the optimum was 31 %, and 123 % without the
    root. Four updates follow eight steps. The replay buffer is small: rejax draws from it without replacement, in time
    that grows with its size.
    """
    import rejax

    settings = {
        "num_envs": 8,
        "num_epochs": 4,
        "batch_size": 64,
        "buffer_size": 16_384,
        "normalize_rewards": True,
        "fill_buffer": min(1024, size.sac_steps // 2),
        "gamma": 0.95,
        "learning_rate": optax.linear_schedule(1e-3, 0.0, max(size.sac_steps // 2, 1)),
    }
    rooted = task(env.name, terminate=3.0, horizon=25, reward=root_of_excess(env))
    actor, params = _learned(rejax.SAC, rooted, size.sac_steps, keys, settings)

    def act(params: Any, obs: Array) -> Array:
        middle, half = (env.action_high + env.action_low) / 2, (env.action_high - env.action_low) / 2
        return middle + half * jnp.tanh(_mean(actor, params, obs))

    return _apart(act, params)


def root_of_excess(env: Environment) -> Callable[[Array, Array, Array, Array], Array]:
    """The reward −√excess: zero for the LQR alone, like ``excess``, but large errors weigh less."""
    pool = jax.tree.map(jnp.asarray, env.pool)
    K, S = (np.asarray(a)[0].astype(env.dtype) for a in (pool.K, pool.S))

    def reward(x: Array, u: Array, after: Array, cost: Array) -> Array:
        error = u + K @ x
        return -jnp.sqrt(error @ S @ error)

    return reward


def _learned(kind: Any, env: Environment, steps: int, keys: Array, settings: dict[str, Any]) -> tuple[Any, Any]:
    """rejax's actor and its parameters ``[keys, …]``; the training with all keys is one program."""
    wrapped = environments.gymnax(env, returns=5)
    algorithm = kind.create(
        env=wrapped,
        env_params=wrapped.default_params,
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
        **settings,
    ).replace(eval_callback=lambda *_: ())  # agents are judged afterwards, by lqrlab
    types, ranks = (jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"))  # rejax mixes both
    with jax.enable_x64(False), types, ranks:
        states, _ = jax.block_until_ready(jax.jit(jax.vmap(algorithm.train))(keys))
    return algorithm.actor, states.actor_ts.params


def _mean(actor: Any, params: Any, obs: Array) -> Array:
    """The mean of a Gaussian policy's actions on one observation ``[m]``."""
    return actor.apply(params, obs[None], method="_action_dist").mean()[0]


PARTS: Parts = {
    "table": (bench_rl, {"plants": PLANTS[:1], "seeds": 1, "size": Training(8, 5, 8, 5, 0, 0), "episodes": 4})
}

if __name__ == "__main__":
    main(PARTS)
