"""What is said of policies on given plants, and gains that are repaired."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from unrecognised import Unrecognised

from lqrlab import control, evaluation, learning, simulation, systems

KEY = jax.random.key(4)


def optimum(plant):
    return control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)


@pytest.fixture(scope="module")
def plants():
    return systems.sample("cart_pole", key=KEY, num=3)


def test_a_certificate_of_gains_is_exact(plants):
    K = optimum(plants).K * jnp.array([1.1, 0.8, 0.1])[:, None, None]
    found = evaluation.certify(simulation.LinearPolicy(K), plants)
    assert found.stable.tolist() == [True, True, False]
    assert found.distance[2] == 0
    assert np.isinf(found.excess[2])
    T = np.diag(np.asarray(plants.scales[0]))
    problem = control.discretize(*plants.matrices(), *plants.weights(), plants.dt)
    A, B, Q, R, N = (np.asarray(a) for a in problem)
    for i in range(2):
        k = np.asarray(K[i])
        F = np.linalg.inv(T) @ (A[i] - B[i] @ k) @ T  # in units of the scales
        assert found.radius[i] == pytest.approx(np.abs(np.linalg.eigvals(F)).max(), rel=1e-9)
        z = np.exp(1j * np.linspace(0, 0.4, 20001))[:, None, None]
        distance = np.linalg.svd(z * np.eye(4) - F, compute_uv=False)[:, -1].min()
        assert found.distance[i] == pytest.approx(distance, rel=1e-4)
        stage = Q[i] + k.T @ R[i] @ k - N[i] @ k - k.T @ N[i].T
        cost = T @ scipy.linalg.solve_discrete_lyapunov((A[i] - B[i] @ k).T, stage) @ T
        least = T @ np.asarray(optimum(plants).P[i]) @ T
        assert found.excess[i] == pytest.approx(np.trace(cost) / np.trace(least) - 1, rel=1e-5)
    words = found.words()
    assert words.startswith("Stable on 2 of 3 plants: the largest spectral radius of A - BK is 1.")
    assert "Exact for the linearised, sampled plants." in words
    assert evaluation.certify(simulation.LinearPolicy(K[0]), plants[0]).words().startswith("Stable: the spectral")


def test_a_policy_that_is_no_gain_is_not_certified(plants):
    refused("controller: expected a constant gain", evaluation.certify, Unrecognised(optimum(plants).K), plants)


def test_a_gain_that_is_no_number_is_certified_as_unstable(plants):
    found = evaluation.certify(simulation.LinearPolicy(jnp.full((3, 1, 4), jnp.nan)), plants)
    assert not found.stable.any()
    assert np.isinf(found.radius).all()
    assert not found.distance.any()


def test_gains_are_repaired_in_their_own_units_and_inside_a_trace(plants):
    K = jnp.zeros((3, 1, 4))
    wanted = optimum(plants).K
    np.testing.assert_allclose(learning.repair(K, plants, steps=8), wanted, rtol=1e-6)
    inside = jax.jit(lambda K, plants: learning.repair(K, plants, steps=8))(K, plants)
    np.testing.assert_allclose(inside, wanted, rtol=1e-6)
    refused(r"K: expected gains \(3, 1, 4\), inputs by states", learning.repair, jnp.zeros((3, 2, 4)), plants)


@pytest.mark.parametrize("steps", [0, 1, 8])
def test_no_repaired_gain_leaves_its_loop_unstable(plants, steps):
    problem = simulation.Problem.of(plants, linear=True)
    K = np.random.default_rng(0).normal(size=(3, 1, 4)) * np.array([1.0, 1e2, 1e4])[:, None, None]
    A, B = np.asarray(problem.A), np.asarray(problem.B)
    assert (np.abs(np.linalg.eigvals(A - B @ K)).max(-1) > 1).all()
    for found in (learning.repair(K, plants, steps), jax.jit(learning.repair, static_argnums=2)(K, problem, steps)):
        assert (np.abs(np.linalg.eigvals(A - B @ np.asarray(found))).max(-1) < 1).all()


@pytest.mark.matrix
def test_a_gain_that_cannot_be_repaired_is_nan_and_said_in_words():
    lost = systems.from_matrices(np.diag([1.0, -1.0]), [[0.0], [1.0]], dt=0.1, Q=np.eye(2), R=[[1.0]])
    refused("no input moves", learning.repair, np.zeros((1, 2)), lost, steps=0)
    fine = systems.from_matrices(np.diag([1.0, -1.0]), [[1.0], [1.0]], dt=0.1, Q=np.eye(2), R=[[1.0]])
    refused("K: expected finite numbers", learning.repair, np.full((1, 2), np.nan), fine)
    best = control.dlqr(*simulation.Problem.of(fine, linear=True).sampled).K
    np.testing.assert_allclose(learning.repair(np.full((1, 2), 1e200), fine), best, rtol=1e-6)  # from the optimum
    problem = simulation.Problem.of([lost, fine], optimum=False)
    for steps in (0, 2):
        with pytest.warns(UserWarning, match="plants: no stabilizing gain was found for 1 of 2"):
            found = learning.repair(np.zeros((2, 6, 12)), problem, steps)
        inside = jax.jit(learning.repair, static_argnums=2)(np.zeros((2, 6, 12)), problem, steps)
        assert np.isfinite(found).all((-1, -2)).tolist() == [False, True]
        assert np.isfinite(inside).all((-1, -2)).tolist() == [False, True]


def test_a_network_is_repaired_where_it_answers_with_a_gain(plants):
    model = learning.models.build(learning.ModelConfig(kind="gain", window=1, hidden=8))
    after = evaluation.certify(learning.policy(model, plants, repair=8), plants)
    assert after.excess.max() < 1e-6
    gain = learning.policy(model, plants, repair=8).as_gain().K
    np.testing.assert_allclose(gain, learning.repair(gain, plants, steps=0), rtol=1e-12)
    history = learning.models.build(learning.ModelConfig(kind="transformer", window=2, width=8, depth=1, heads=2))
    refused("repair: expected a network that answers with a gain", learning.policy, history, plants, repair=1)
