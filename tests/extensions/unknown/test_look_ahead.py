"""Looking ahead: its costs against SciPy's, its draws against their moments, what it tries and what it leaves alone."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy_oracle import gain

from lqrlab import learning, simulation, systems, unknown
from lqrlab.extensions.unknown import belief as beliefs
from lqrlab.extensions.unknown import look_ahead_policy as ahead_of
from lqrlab.systems import N_MAX

KEY = jax.random.key(3)
A = np.array([[1.1, 0.2, 0.0], [0.0, 0.9, 0.3], [0.1, 0.0, 1.05]])
B = np.array([[0.0, 0.2], [0.4, 0.0], [0.1, 0.5]])


def optimum():
    return gain(A, B, np.eye(3), np.eye(2))[::-1]


def known(x, spread=0.0, limit=100.0):
    """A belief that is the plant itself, its optimal cost to go with it."""
    rows = jnp.array([[0.0] * 3, [1.0] * 3])
    theta, P = jnp.asarray(np.concatenate([A.T, B.T])), jnp.asarray(optimum()[0])
    spread = spread * jnp.stack([jnp.eye(5)] * 2)
    each = jnp.array(1e-8), jnp.array(0.12), jnp.array(limit), jnp.ones(2)
    return ahead_of._Start(theta, spread, P, jnp.asarray(x), rows, *each)


def test_a_candidate_on_a_known_plant_costs_what_scipy_says():
    P, K = optimum()
    x, noise = np.array([1.0, -0.5, 0.3]), jnp.zeros((20, 3))
    S = np.eye(2) + B.T @ P @ B
    for error in ([0.0, 0.0], [0.3, -0.2]):
        start = known(x)
        u = jnp.asarray(-K @ x + error)
        cost = ahead_of._followed(start, 2, u, start.theta, start.P, noise)
        assert float(cost) == pytest.approx(x @ P @ x + error @ S @ np.array(error), rel=1e-6)


def test_what_follows_a_candidate_is_the_regulator_that_learns():
    """The same steps in NumPy: Kalman's gain, policy iteration of four steps, the price of doubt."""
    rng = np.random.default_rng(0)
    start = known(np.array([1.0, -0.5, 0.3]), spread=0.04, limit=2.0)
    plant = np.asarray(start.theta) + 0.2 * rng.normal(size=(5, 3))
    noise, u = 0.01 * rng.normal(size=(6, 3)), np.array([0.5, 0.1])
    theta, S, P, x = (np.array(a) for a in (start.theta, start.spread[1], start.P, start.x))
    paid = 0.0
    for w in noise:
        z = np.concatenate([x, u])
        paid += z @ z
        x = plant.T @ z + w
        gain = S @ z / (1e-8 + z @ S @ z)
        theta, S = theta + np.outer(gain, x - theta.T @ z), S - np.outer(gain, z @ S)
        price = np.eye(5) + 0.12 * np.trace(P) * S
        H = theta @ P @ theta.T + price
        K = np.linalg.solve(H[3:, 3:], H[3:, :3])
        F, act = theta[:3].T - theta[3:].T @ K, np.vstack([np.eye(3), -K])
        P = sum(
            np.linalg.matrix_power(F, i).T @ act.T @ price @ act @ np.linalg.matrix_power(F, i) for i in range(4)
        ) + np.linalg.matrix_power(F, 4).T @ P @ np.linalg.matrix_power(F, 4)
        H = theta @ P @ theta.T + price
        u = np.clip(-np.linalg.solve(H[3:, 3:], H[3:, :3]) @ x, -2.0, 2.0)
    final = optimum()[0]
    found = ahead_of._followed(start, 2, jnp.array([0.5, 0.1]), *map(jnp.asarray, (plant, final, noise)))
    assert float(found) == pytest.approx(paid + x @ final @ x, rel=1e-6)


def test_draws_have_the_moments_of_the_belief_and_scipys_optima():
    rng = np.random.default_rng(1)
    roots = 0.1 * rng.normal(size=(2, 5, 5))
    spread = roots @ roots.transpose(0, 2, 1)
    theta, rows = np.concatenate([A.T, B.T]), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    found = np.asarray(beliefs.drawn(*(jnp.asarray(a) for a in (theta, spread, rows)), KEY, 20_000))
    np.testing.assert_allclose(found.mean(-1), theta, atol=0.01)
    for row, kind in ((0, 0), (1, 1), (2, 1)):
        np.testing.assert_allclose(np.cov(found[:, row]), spread[kind], atol=0.003)
    P, K, sound = beliefs.optimum(jnp.asarray(found[..., :50]))
    assert sound.all()
    for i in range(50):
        exact = gain(found[:3, :, i].T, found[3:, :, i].T, np.eye(3), np.eye(2))
        np.testing.assert_allclose(P[..., i], exact[1], rtol=1e-4)
        np.testing.assert_allclose(K[..., i], exact[0], rtol=1e-3, atol=1e-4)


def scalar(b, limit=20.0):
    """x⁺ = 1.2 x + b u, of which the sign of b is not known, and a regulator that expects none and does not probe."""
    a, dt = np.log(1.2) / 0.1, 0.1
    plants = [systems.from_matrices(np.array([[a]]), np.array([[one * a / 0.2]]), dt=dt) for one in b]
    problem = unknown.problem_of(plants, limit=limit)
    prior = dataclasses.replace(unknown.ridge(size=0.3, caution=0.0), probe=jnp.array([0.0, 0.0, 1.0]))
    return problem, unknown.adaptive(problem, prior)


def test_looking_ahead_probes_where_certainty_equivalence_waits():
    problem, alone = scalar([0.4, -0.4])
    np.testing.assert_allclose(problem.B[:, 0, 0], [0.4, -0.4], rtol=1e-6)
    x = jnp.zeros((2, N_MAX)).at[:, 0].set(1.0)
    _, u = alone(alone.init((2,)), x)
    np.testing.assert_array_equal(u, 0.0)
    ahead = unknown.look_ahead(alone, num=64, steps=10)
    memory, u = ahead(ahead.init((2,)), x)
    assert (np.abs(u[:, 0]) >= 0.05).all()
    np.testing.assert_array_equal(u[:, 1:], 0.0)
    np.testing.assert_array_equal(memory.z[:, N_MAX], u[:, 0])


def test_dense_systems_cost_less():
    rng = np.random.default_rng(0)
    dense = [
        systems.from_matrices(rng.normal(size=(3, 3)) / 3**0.5, rng.normal(size=(3, 1)), dt=0.1) for _ in range(24)
    ]
    problem = unknown.problem_of(dense, noise=0.01)
    cost = {}
    for name in ("alone", "ahead"):
        made = unknown.adaptive(problem, unknown.ridge(size=0.1, caution=0.12, probe=0.05))
        policy = made if name == "alone" else unknown.look_ahead(made)
        found = unknown.score(lambda _, policy=policy: policy, problem, key=KEY, num_initial=1, num_steps=60)
        cost[name] = np.mean(np.log(np.minimum(np.asarray(found.ratio), 100.0)))
    assert cost["ahead"] < cost["alone"] - 0.15


def test_it_acts_alone_after_its_steps_and_where_a_family_is_known():
    plant = systems.make("pendulum")
    x0 = jnp.array([0.2, 0.0])
    alone = unknown.adaptive(plant, unknown.ridge())
    ahead = unknown.look_ahead(alone, num=4, steps=3, until=2)
    memory, u = ahead(ahead.init(()), x0)
    for _ in range(3):
        before = memory
        memory, u = ahead(before, x0)
    np.testing.assert_array_equal(u, alone(before, x0)[1])
    sure = unknown.adaptive(plant, learning.pretrained("adaptive"))
    runs = [simulation.rollout(plant, policy, x0, 60) for policy in (sure, unknown.look_ahead(sure, num=4, steps=3))]
    np.testing.assert_array_equal(runs[1].us, runs[0].us)


def test_a_batch_is_its_members_and_a_missing_measurement_is_no_end():
    plants = systems.sample("cart_pole", key=KEY, num=2)
    ahead = [unknown.look_ahead(unknown.adaptive(one, unknown.ridge()), num=4, steps=3) for one in (plants, plants[1])]
    x = 0.1 * jax.random.normal(KEY, (2, 3, 4))
    memory, u = ahead[0](ahead[0].init((2, 3)), x)
    assert u.shape == (2, 3, 1)
    np.testing.assert_allclose(u[1, 2], ahead[1](ahead[1].init(()), x[1, 2])[1], rtol=1e-9)
    memory, u = ahead[0](memory, x.at[0, 0].set(jnp.nan))
    assert jnp.isfinite(u).all()
    assert all(jnp.isfinite(a).all() for a in (memory.z, memory.expected))
    assert ahead[0](ahead[0].init((2, 0)), x[:, :0])[1].shape == (2, 0, 1)


def test_a_far_start_is_no_lost_loop():
    problem, _ = scalar([0.4], limit=1e6)
    ahead = unknown.look_ahead(unknown.adaptive(problem, unknown.ridge()), num=16, steps=8)
    run = simulation.rollout(problem, ahead, jnp.zeros((1, 1, N_MAX)).at[..., 0].set(2000.0), 60)
    assert np.abs(run.xs[0, 0, -1]).max() < 1.0


def test_it_is_made_inside_jit_too():
    plant = systems.make("pendulum")

    @jax.jit
    def first(x):
        policy = unknown.look_ahead(unknown.adaptive(plant, unknown.ridge()), num=4, steps=3)
        return policy(policy.init(()), x)[1]

    assert jnp.isfinite(first(jnp.array([0.2, 0.0]))).all()
