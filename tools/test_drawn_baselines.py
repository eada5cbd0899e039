"""Baselines that draw from what they believe: draws made again by hand, gains by SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy_oracle import gain

from benchmarks.drawn_baselines import SETTINGS, SampledPolicy, baseline, baselines
from lqrlab import systems, unknown
from lqrlab.simulation import Problem


@pytest.fixture(scope="module")
def plants():
    each = [systems.sample(name, key=jax.random.key(0), num=2) for name in ("pendulum", "cart_pole")]
    return unknown.problem_of(each, noise=0.02)


def test_they_stand_beside_those_of_regression():
    training = [
        Problem.of(systems.sample("pendulum", key=jax.random.key(1), num=12), linear=True, optimum=False).told()
    ]
    assert baselines(training).keys() == unknown.baselines(training).keys() | SETTINGS.keys()


def scipys_gain(theta, n, m=1):
    A, B = theta[:n, :n].T, theta[12 : 12 + m, :n].T
    K, P = gain(A, B, np.eye(n), np.eye(m))
    return K, np.trace(P)


def test_optimism_takes_the_cheapest_of_its_draws_and_one_draw_is_thompsons(plants):
    """Before anything is seen the rows of θ are independent, so that the draws can be made again by hand."""
    told, x = plants.told("units"), jnp.ones((len(plants), 12)) * plants.coordinates.state_mask
    for num in (1, 16):
        policy = SampledPolicy(unknown.ridge(size=0.1, input_size=0.5, probe=0.0), told, num)
        (_, K), _ = policy(policy.init((len(plants),)), x)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), len(plants))
        white = [jax.random.normal(key, (18, 12, num)) for key in keys]
        for i in range(len(plants)):
            deviations = np.concatenate([np.full(12, 0.1), np.full(6, 0.5)])[:, None]
            still = np.concatenate([np.eye(12), np.zeros((6, 12))])
            n = int(plants.coordinates.state_mask[i].sum())
            found = [scipys_gain(still + deviations * np.asarray(white[i][..., k]), n) for k in range(num)]
            best = min(found, key=lambda pair: pair[1])[0]
            np.testing.assert_allclose(K[i, :1, :n], best, rtol=1e-6)
            assert not K[i, 1:].any()


def test_explore_then_commit_designs_once_for_the_mean(plants):
    plants = plants.disturbed(noise=0.0)
    policy = baseline("explore, then commit", [], explore=25)(plants.hidden())
    memory, x = policy.init((len(plants),)), jnp.ones((len(plants), 12)) * plants.coordinates.state_mask
    for t in range(40):
        memory, u = policy(memory, x)
        K = np.asarray(memory[1])
        assert (K == 0).all() == (t < 25)
        if t == 25:
            kept = K
        if t >= 25:
            np.testing.assert_array_equal(K, kept)
            np.testing.assert_allclose(K, plants.K, atol=1e-3)
        x, _ = plants.step(x, u)
