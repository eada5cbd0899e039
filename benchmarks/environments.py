"""Environment steps, next to gymnax and Gymnasium in one process."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks.measurement import Call, Parts, Row, main, measure, row
from lqrlab.compute import seconds
from lqrlab.extensions import environments

UNIT = "million steps/s"
_EVALUATIONS = 8  # of the equations of motion in a step: two Runge-Kutta steps; gymnax's Euler step takes one


def bench_env(num_envs: int = 4096, steps: int = 100, repeats: int = 5) -> Iterator[Row]:
    """Environment steps a second under random actions, with reward, observation and automatic reset."""
    import gymnasium
    import gymnax

    calls: dict[str, Call] = {}
    for name, linear in (("linear cart-pole", True), ("cart-pole", False)):
        env = environments.make("cart_pole", linear=linear, limits=(-10.0, 10.0), on_error="nan")
        calls[name] = _ours(env, num_envs, steps)
    for name in ("CartPole-v1", "Pendulum-v1"):
        with jax.numpy_dtype_promotion("standard"):
            theirs, params = gymnax.make(name)
            calls[f"gymnax {name}"] = _theirs(theirs, params, num_envs, steps)
    few = 64
    sync = gymnasium.make_vec("CartPole-v1", num_envs=few, vectorization_mode="sync")
    calls["gymnasium"] = _on_host(sync, 10)
    count = {"gymnasium": few * 10, "make_vec": num_envs * (steps // 5)}
    # gymnax mixes precisions where there are two, and integers with reals
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        first = seconds(lambda: _vector(num_envs))
        calls["make_vec"] = _on_host(_vector(num_envs), steps // 5)
        times = measure(calls, repeats)
    rate = {name: count.get(name, num_envs * steps) / time / 1e6 for name, time in times.items()}
    at_once = f"{num_envs} at once"
    yield row(f"linear cart-pole, {at_once}", rate["linear cart-pole"], UNIT, 10)
    yield row(f"cart-pole, Runge-Kutta, {at_once}", rate["cart-pole"], UNIT)
    for name in ("CartPole-v1", "Pendulum-v1"):
        yield row(f"gymnax {name}, {at_once}", rate[f"gymnax {name}"], UNIT)
    yield row(f"Gymnasium CartPole-v1, SyncVectorEnv of {few}", rate["gymnasium"], UNIT)
    yield row(f"make_vec, NumPy arrays, {at_once}", rate["make_vec"], UNIT, 2)
    yield row("make_vec: until the first step is done", first, "s", 3, least=False)
    equal = rate["cart-pole"] * _EVALUATIONS / rate["gymnax CartPole-v1"]
    yield row("cart-pole over gymnax CartPole, per evaluation of the equations", equal, "×", 1.5)
    yield row("linear cart-pole over gymnax Pendulum", rate["linear cart-pole"] / rate["gymnax Pendulum-v1"], "×", 3)
    yield row("cart-pole over Gymnasium's CartPole", rate["cart-pole"] / rate["gymnasium"], "×", 50)


def _scanned(num: int, steps: int, reset: Callable, step: Callable, draw: Callable) -> Call:
    """One compiled program: as many environments, as many steps, an action drawn for each."""

    @jax.jit
    def run(key: Array) -> Array:
        obs, state = reset(jax.random.split(key, num))

        def one(carry: Any, key: Array) -> tuple[Any, Array]:
            act, go = jax.random.split(key)
            obs, state, reward, *_ = step(jax.random.split(go, num), carry[1], draw(act))
            return (obs, state), jnp.sum(reward)

        (obs, _), rewards = jax.lax.scan(one, (obs, state), jax.random.split(key, steps))
        return jnp.sum(rewards) + jnp.sum(obs)

    return lambda: run(jax.random.key(0))


def _ours(env: environments.Environment, num: int, steps: int) -> Call:
    space = env.action_space
    low, high = (np.asarray(a, np.float32) for a in (space.low, space.high))  # type: ignore[union-attr]
    return _scanned(
        num,
        steps,
        functools.partial(environments.batch_reset, env),
        functools.partial(environments.batch_step, env),
        lambda key: jax.random.uniform(key, (num, env.m), jnp.float32, low, high),
    )


def _theirs(env: Any, params: Any, num: int, steps: int) -> Call:
    space = env.action_space(params)
    return _scanned(
        num,
        steps,
        jax.vmap(lambda key: env.reset(key, params)),
        jax.vmap(lambda key, state, action: env.step(key, state, action, params)),
        lambda key: jax.vmap(space.sample)(jax.random.split(key, num)),
    )


def _vector(num: int) -> Any:
    """A vector environment that has made its first step."""
    import gymnasium

    env = gymnasium.make_vec("lqrlab/CartPole-v0", num_envs=num)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    return env


def _on_host(env: Any, steps: int) -> Call:
    env.reset(seed=0)
    actions = env.action_space.sample()

    def run() -> None:
        for _ in range(steps):
            env.step(actions)

    return run


PARTS: Parts = {"speed": (bench_env, {"num_envs": 8, "steps": 5, "repeats": 1})}

if __name__ == "__main__":
    main(PARTS)
