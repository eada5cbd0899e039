"""The recipe of the adaptive regulator's prior (``benchmarks.training_episodes``): its slope, and what it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from benchmarks import training_episodes
from lqrlab import systems, unknown

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def loops():
    """Loops to learn from, without and with noise: both families, each also taken out, and random systems."""
    batches = [systems.sample(name, key=jax.random.key(2), num=3) for name in ("pendulum", "cart_pole")]
    return training_episodes.episodes(batches, jax.random.key(5), randoms=2, noises=(0.0, 0.01))


def test_the_slope_of_a_loops_cost_is_that_of_finite_differences(loops):
    episodes, _ = loops
    # of one hypothesis: where the likeliest of several changes, the cost jumps
    prior, key = unknown.wide(), jax.random.key(8)
    prior = dataclasses.replace(prior, dense=prior.dense[:0], kinematic=prior.kinematic[1:2])
    values = training_episodes.numbers(prior)
    direction = jax.tree.map(lambda a: jnp.linspace(0.5, 1.0, a.size).reshape(a.shape), values)

    @jax.jit
    def cost(size):
        moved = jax.tree.map(lambda a, d: a + size * d, values, direction)
        # a cart-pole, with noise
        return training_episodes.excess(training_episodes.with_numbers(prior, moved), episodes[23], key, 10, 2)

    slope = float(jax.jit(jax.grad(cost))(0.0))
    assert slope == pytest.approx(float(cost(1e-5) - cost(-1e-5)) / 2e-5, rel=1e-4)
    assert abs(slope) > 1e-3


def test_learning_a_prior_lowers_the_cost_of_its_loops(loops):
    episodes, weight = loops
    prior, seen = unknown.wide(), []
    prior = dataclasses.replace(prior, probe=prior.probe.at[0].set(2.0))  # far too curious
    better = training_episodes.learn(
        prior, episodes, weight, key=KEY, num_updates=6, batch=8, num_steps=20, learning_rate=0.3,
        report=seen.append,
    )  # fmt: skip
    assert better.probe[0] < 0.7 * prior.probe[0]
    assert seen[-1]["loss"] < seen[0]["loss"]
    assert [row["step"] for row in seen] == [1, 2, 3, 4, 5, 6]
