"""Noise, norms, sampling and bridges against python-control and long simulations."""

import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import control

A = np.array([[0.0, 1.0], [-2.0, -0.6]])
B = np.array([[0.0], [1.0]])
C = np.array([[1.0, 0.0]])


def test_norms_equal_python_controls():
    system = control.to_statespace(A, B, C)
    assert np.isclose(control.h2_norm(A, B, C), python_control.norm(system, 2), rtol=1e-8)
    gain, frequency = control.hinf_norm(A, B, C)
    w = np.linspace(0.01, 10, 200001)
    response = np.abs(1 / (2 - w**2 + 0.6j * w))  # by hand
    assert np.isclose(gain, response.max(), rtol=1e-6)
    assert np.isclose(frequency, w[response.argmax()], rtol=1e-2)
    with pytest.raises(ValueError, match="not stable"):
        control.hinf_norm(-A, B, C)


def test_noise_keeps_up_the_cost_that_the_riccati_solution_says():
    Q, R, W = np.diag([1.0, 0.1]), np.eye(1), np.diag([0.01, 0.04])
    design = control.lqrd(A, B, Q, R, 0.1)
    sampled = control.discretize(A, B, Q, R, 0.1)
    X = control.dlyap(design.closed_loop, W)
    K = design.K
    stage = sampled.Q + K.T @ sampled.R @ K - sampled.N @ K - (sampled.N @ K).T
    assert np.isclose(jnp.trace(stage @ X), jnp.trace(design.P @ W), rtol=1e-10)
    rng = np.random.default_rng(0)
    x, seen = np.zeros((2, 4000)), np.zeros((2, 2))
    for t in range(400):
        x = np.asarray(design.closed_loop) @ x + np.sqrt(np.diag(W))[:, None] * rng.normal(size=x.shape)
        if t >= 200:
            seen += x @ x.T / x.shape[1] / 200
    assert np.allclose(seen, X, rtol=0.02, atol=0.02 * np.abs(X).max())


def test_the_h2_norm_has_a_gradient():
    def norm(damping):
        return control.h2_norm(
            jnp.array([[0.0, 1.0], [-2.0, -1.0]]) * jnp.array([[1, 1], [1, damping]]), B, C
        )

    slope = jax.grad(norm)(0.6)
    assert np.isclose(slope, (norm(0.6 + 1e-5) - norm(0.6 - 1e-5)) / 2e-5, rtol=1e-6)
