"""What a network answers in any units, at any size and at several sample times, against SciPy's optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused

from lqrlab import control, dataset, learning
from lqrlab.evaluation.scenarios import published
from lqrlab.learning.models import matrix
from lqrlab.simulation import Problem

KEY = jax.random.key(4)
GAIN = learning.models.build(learning.ModelConfig(kind="gain", window=1, hidden=8))


def test_a_held_input_costs_what_its_two_samples_cost():
    once = dataset.random_systems(KEY, 5, full_weights=True).sampled
    x, u = (jax.random.normal(KEY, (5, size, 1), float) for size in (12, 6))

    def sample(problem, x):
        A, B, Q, R, N = problem
        return A @ x + B @ u, x.mT @ Q @ x + u.mT @ R @ u + 2 * x.mT @ N @ u

    (first, paid), (end, cost) = sample(once, x), sample(matrix.held(once), x)
    last, more = sample(once, first)
    np.testing.assert_allclose(cost, paid + more, rtol=1e-9)
    np.testing.assert_allclose(end, last, rtol=1e-9, atol=1e-9)


def test_the_horizon_of_the_normal_form_costs_what_riccatis_recursion_makes_of_its_end():
    (A, B, Q, *_), _ = drawn(6, 1, 24)
    P = control.finite_horizon(A, B, Q, np.eye(1), 64, Qf=np.eye(6)).P[:, 0]
    np.testing.assert_allclose(matrix._horizon(*map(jnp.asarray, (A, B, Q))), P, rtol=1e-6)


def drawn(n, m, num, seed=0):
    """Dense systems, some unstable, with random weights, as sampled matrices; and more random numbers."""
    rng = np.random.default_rng(seed)
    A = rng.uniform(0.3, 1.1, (num, 1, 1)) * rng.normal(size=(num, n, n)) / n**0.5
    B, C = rng.normal(size=(num, n, m)), rng.normal(size=(num, max(n // 2, 1), n))
    Q = C.swapaxes(-1, -2) @ C
    return (A, B, Q, np.eye(m) + 0.01 * B.swapaxes(-1, -2) @ Q @ B, 0.1 * Q @ B), rng


def wasted(A, B, Q, R, N, K):
    """Cost above the optimum by SciPy, over all directions in units of the least costs."""
    P, F = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N), A - B @ K
    X = scipy.linalg.solve_discrete_lyapunov(F.T, Q + K.T @ R @ K - N @ K - (N @ K).T)
    return np.trace(np.linalg.solve(P, X)) / len(A) - 1 if np.abs(np.linalg.eigvals(F)).max() < 1 else np.inf


@pytest.mark.matrix
def test_the_pretrained_network_is_near_the_optimum_of_every_published_design():
    model = learning.pretrained("regulator")
    for name, design in published().items():
        K = learning.policy(model, design, verify=False).as_gain().K
        assert wasted(*(np.asarray(a)[0] for a in (*Problem.of(design, linear=True).sampled, K))) < 0.01, name


def alone(*matrices):
    problem = Problem.from_matrices(*matrices, optimum=False)
    return np.asarray(learning.policy(learning.pretrained("regulator"), problem, verify=False).as_gain().K)


def test_neither_units_nor_coordinates_nor_the_size_of_the_cost_change_what_an_answer_costs():
    (A, B, Q, R, N), rng = drawn(5, 2, 24)
    x, u = 10.0 ** rng.uniform(-4, 4, (24, 5, 1)), 10.0 ** rng.uniform(-4, 4, (24, 1, 2))
    T = np.linalg.qr(rng.normal(size=(24, 5, 5)))[0]
    into, back = x * T, T.swapaxes(-1, -2) / x.swapaxes(-1, -2)
    weights = (back.swapaxes(-1, -2) @ Q @ back, R * u * u.swapaxes(-1, -2), back.swapaxes(-1, -2) @ N * u)
    there = alone(into @ A @ back, into @ B * u, *(1e-5 * weight for weight in weights))
    gains = alone(A, B, Q, R, N), u.swapaxes(-1, -2) * there @ into
    costs = np.array([[1 + wasted(*(a[k] for a in (A, B, Q, R, N, K))) for k in range(24)] for K in gains])
    assert np.isfinite(costs).all()
    np.testing.assert_allclose(*costs, rtol=1e-3)


def test_a_network_takes_plants_of_any_size_and_says_which_gains_are_not_its_own():
    (A, B, Q, R, N), _ = drawn(20, 7, 6, seed=1)
    matrices = A, B, Q + np.eye(20), R, N
    problem = Problem.from_matrices(*matrices, optimum=False)
    found = learning.policy(learning.pretrained("regulator"), problem)
    K = np.asarray(found.as_gain().K)
    assert np.median([wasted(*(a[k] for a in (*matrices, K))) for k in range(6)]) < 0.05
    np.testing.assert_array_equal(found.repaired, (alone(*matrices) != K).any((-1, -2)))
    tail = drawn(12, 1, 40, seed=3)[0]  # half of their modes grow, behind one input
    assert max(wasted(*one) for one in zip(*tail, alone(*tail))) < 0.1
    refused("plant with 20 states and 7 inputs does not fit into 12 and 6", learning.policy, GAIN, problem)


def test_a_gain_that_does_not_stabilise_is_replaced_and_a_plant_that_has_none_is_named():
    (A, B, *weights), _ = drawn(3, 1, 40, seed=2)
    A[7], B[7], some = 2 * np.eye(3), 0.0, np.arange(40) != 7
    problem = Problem.from_matrices(A, B, *weights, optimum=False)
    with pytest.warns(UserWarning, match="no stabilizing gain was found for 1 of 40"):
        eager = learning.policy(GAIN, problem)
    own = learning.policy(GAIN, problem, verify=False).as_gain().K
    lost = np.abs(np.linalg.eigvals(A - B @ np.asarray(own))).max(-1) > 1
    assert 5 < lost.sum() < 35
    for found in (eager, jax.jit(lambda problem: learning.policy(GAIN, problem))(problem)):
        np.testing.assert_array_equal(found.verified, some)
        np.testing.assert_array_equal(found.repaired, lost & some)
        closed = A - B @ np.asarray(found.as_gain().K)
        assert (np.abs(np.linalg.eigvals(closed[some])).max(-1) < 1).all()
    refused("no input moves", learning.policy, GAIN, problem[7])


def test_no_answer_costs_more_than_that_at_the_own_sample_time():
    problem = dataset.random_systems(jax.random.fold_in(KEY, 1), 40)
    model = learning.models.build(learning.ModelConfig(width=4, depth=1))
    told = problem.told()
    absent = np.eye(12) * (1 - np.asarray(told.state_mask))[:, None]  # log det P: a mean that no units change
    gains = (jnp.reshape(a.gain, (-1, 6, 12)) for a in (model.encode(told), learning.models.answer(model, told)))
    costs = (jnp.linalg.slogdet(control.cost_to_go(problem.sampled, K) + absent)[1] for K in gains)
    own, best = (np.nan_to_num(cost, nan=np.inf) for cost in costs)
    assert (best[own < np.inf] <= own[own < np.inf] + 1e-4).all()  # two programs round a network's float32
    assert (best < own - 0.01).sum() > 5
