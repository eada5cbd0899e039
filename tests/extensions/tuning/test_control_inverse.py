"""Weights from gains: round trips through SciPy's gains, Kalman's inequality, gains that nothing explains."""

import jax
import numpy as np
import pytest
import scipy_oracle
from refusals import refused

from lqrlab import control, tuning

A = np.array([[0.0, 1.0], [0.0, 0.0]])
B = np.array([[0.0], [1.0]])


@pytest.mark.parametrize(("n", "m", "kind"), [(1, 1, ""), (6, 1, ""), (5, 3, "dt")])
def test_the_weights_of_random_gains_reproduce_them(n, m, kind):
    rng, num = np.random.default_rng(n), 40
    A, B = rng.normal(size=(num, n, n)), rng.normal(size=(num, n, m))
    factor = rng.normal(size=(num, n, max(1, n - 1)))  # singular Q: on the rim of what is allowed
    Q, R = factor @ np.swapaxes(factor, -1, -2), np.eye(m) + 0.3
    kept, K = [], []

    def optimal(*problem):
        if not kind:
            return scipy_oracle.gain(*problem, discrete=False)[0]
        return scipy_oracle.gain(*(np.asarray(x) for x in control.discretize(*problem, 0.1)))[0]

    for i in range(num):
        try:
            gain = optimal(A[i], B[i], Q[i], R)
        except np.linalg.LinAlgError:
            continue
        if np.linalg.norm(gain) < 300:  # beyond, SciPy itself knows the gain to less than 1e-8
            kept.append(i)
            K.append(gain)
    assert len(kept) > 30
    result = tuning.inverse_lqr(A[kept], B[kept], np.stack(K), 0.1 if kind == "dt" else None)
    assert np.all(result.optimal)
    assert np.all(result.return_difference > 1 - 1e-5)
    for i, gain, q, r in zip(kept, K, result.Q, result.R):
        assert np.linalg.eigvalsh(q)[0] > 0
        assert np.isclose(np.linalg.det(r), 1)
        assert np.linalg.norm(optimal(A[i], B[i], np.asarray(q), np.asarray(r)) - gain) < 1e-8 * np.linalg.norm(gain)


def test_weights_on_the_rim_and_diagonal_weights_are_found():
    # no weight on the speed: nothing else explains it
    K, _ = scipy_oracle.gain(A, B, np.diag([4.0, 0.0]), np.array([[2.0]]), discrete=False)
    result = tuning.inverse_lqr(A, B, K, diagonal=True)
    assert result.optimal
    assert np.allclose(result.Q, np.diag([2.0, 0.0]), atol=1e-9)
    Q, R = np.diag([1.0, 2.0, 0.5]), np.diag([1.0, 4.0])
    a, b = np.diag([0.5, 0.3], 1) + np.diag([0.2, -0.4, 0.1]), np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0]])
    result = tuning.inverse_lqr(a, b, scipy_oracle.gain(a, b, Q, R, discrete=False)[0], diagonal=True)
    assert result.optimal
    assert np.allclose(result.Q, Q / 2, rtol=1e-8, atol=1e-8)  # unique but for the unit, det R = 1


def test_a_gain_that_breaks_kalmans_inequality_is_said_to():
    # L = (s + 1)/s²: |1 + L|² = 1 + (1 − 2)/ω² + 1/ω⁴, least at ω² = 2
    result = tuning.inverse_lqr(A, B, np.array([[1.0, 1.0]]))
    assert not result.optimal
    assert np.isclose(result.return_difference, np.sqrt(0.75), rtol=1e-3)
    # an optimal gain has k₂² ≥ 2 k₁; the nearest by a search over that curve
    k = np.linspace(0.1, 1.5, 20001)
    nearest = np.hypot(k - 1, np.sqrt(2 * k) - 1).min() / np.sqrt(2)
    assert nearest <= result.error < 1.1 * nearest
    assert "Kalman" in str(result)


def test_bad_gains_are_marked_or_refused():
    K = np.array([[[1.0, 2.0]], [[-1.0, 2.0]], [[1.0, np.nan]]])
    result = tuning.inverse_lqr(A, B, K)
    assert np.array_equal(result.optimal, [True, False, False])
    assert np.array_equal(np.isnan(result.error), [False, True, True])
    refused("K: the loop A − BK is not stable", tuning.inverse_lqr, A, B, K[1])
    refused("K: expected shape", tuning.inverse_lqr, A, B, np.ones((2, 2)))
    refused("runs on the host", jax.jit(lambda K: tuning.inverse_lqr(A, B, K).Q), K[0])


def test_the_return_difference_is_searched_down_to_the_slowest_mode_and_beside_a_resonance():
    # 1 + L = (s + 0.001) / (s + 1): least at rest, far below the plant's own mode
    result = tuning.inverse_lqr([[-1.0]], [[1.0]], [[-0.999]])
    assert np.isclose(result.return_difference, 1e-3, rtol=1e-2)
    A = np.array([[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -28.09, -1.06e-4]])
    B, K = np.array([[1.0], [0.0], [1.0]]), np.array([[0.1, 0.0, -5e-5]])
    L = np.array([(K @ np.linalg.solve(1j * w * np.eye(3) - A, B)).item() for w in 5.3 + 1e-6 * np.arange(-300, 300)])
    assert np.isclose(tuning.inverse_lqr(A, B, K).return_difference, np.abs(1 + L).min(), rtol=1e-4)  # 0.532
