"""One network asked at several sample times, against two samples written out, and SciPy's optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from lqrlab import dataset, learning
from lqrlab.evaluation.scenarios import published
from lqrlab.learning.models import matrix
from lqrlab.simulation import Problem, Verdict

KEY = jax.random.key(4)


def test_a_held_input_costs_what_its_two_samples_cost():
    told = dataset.random_systems(KEY, 5, full_weights=True).told()
    longer = matrix.held(told)
    rng = np.random.default_rng(0)
    for k in range(5):
        A, B, Q, R, N = (np.asarray(getattr(told, name))[k] for name in "ABQRN")
        x, u = rng.normal(size=12), rng.normal(size=6)
        paid, now = 0.0, x
        for _ in range(2):
            paid += now @ Q @ now + u @ R @ u + 2 * now @ N @ u
            now = A @ now + B @ u
        Q, R, N = (np.asarray(getattr(longer, name))[k] for name in "QRN")
        assert x @ Q @ x + u @ R @ u + 2 * x @ N @ u == pytest.approx(paid, rel=1e-9)
        np.testing.assert_allclose(np.asarray(longer.A)[k] @ x + np.asarray(longer.B)[k] @ u, now, rtol=1e-9, atol=1e-9)


def excess(design, K):
    """Of a gain in a published design's units by SciPy, over all directions in units of the states' weights."""
    A, B, Q, R, _ = (np.asarray(a)[0] for a in Problem.of(design, linear=True).sampled)
    P = scipy.linalg.solve_discrete_are(A, B, Q, R)
    F = A - B @ K
    assert np.abs(np.linalg.eigvals(F)).max() < 1
    X = scipy.linalg.solve_discrete_lyapunov(F.T, Q + K.T @ R @ K)
    least = np.sqrt(np.diag(P))
    return np.trace(X / least / least[:, None]) / np.trace(P / least / least[:, None]) - 1


@pytest.mark.matrix
def test_the_pretrained_network_is_near_the_optimum_of_every_published_design():
    """The slowest settle in thousands of samples; asked at its own sample time alone it wastes 1,000 % there."""
    model = learning.pretrained("regulator")
    for name, design in published().items():
        K = np.asarray(learning.policy(model, design).as_gain().K)[0]
        assert excess(design, K) < 0.05, name


def test_no_answer_costs_more_than_that_at_the_own_sample_time():
    problem = dataset.random_systems(jax.random.fold_in(KEY, 1), 40)
    model = learning.models.build(learning.ModelConfig(width=4, depth=1))
    told = problem.told()
    own = model.encode(told.astype(np.dtype(np.float32))).gain
    best = learning.models.answer(model, told).gain
    costs = []
    for K in (own, best):
        excess, verdict = learning.losses.gain_excess(jnp.reshape(K, (-1, 6, 12)), problem)
        costs.append(np.where(np.asarray(verdict) == Verdict.CONVERGED, excess, np.inf))
    finite = np.isfinite(costs[0])
    assert (costs[1][finite] <= costs[0][finite] * 1.001 + 1e-5).all()
    assert (costs[1] < costs[0] - 0.01).sum() > 5
