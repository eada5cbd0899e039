"""Compensators shaped by hand: their sampled form, and the loop that simulation closes with them."""

import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import classical, control, simulation, systems

LEAD = {"gain": 30.0, "zeros": [-2.0, -1 + 3j, -1 - 3j], "poles": [0.0, -20.0, -30 + 5j, -30 - 5j]}


def test_sampled_response_is_the_continuous_one_at_the_prewarped_frequency():
    w, dt = 7.0, 0.05
    K = classical.Compensator([[1.0, 0.0]], **LEAD, prewarp=w)
    A, B, C, D = K.sampled(dt)[0].matrices
    found = -(C @ np.linalg.solve(np.exp(1j * w * dt) * np.eye(len(A)) - A, B) + D).item()
    s = 1j * w
    expected = 30 * np.prod(s - np.array(LEAD["zeros"])) / np.prod(s - np.array(LEAD["poles"]))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_bound_loop_is_the_one_of_its_matrices():
    plant = systems.make("pendulum")
    K = classical.Compensator([[1.0, 0.0]], gain=400.0, zeros=[-4.0], poles=[-40.0])
    F, G = (np.asarray(a) for a in control.discretize(*plant.matrices(), *plant.weights(), plant.dt)[:2])
    A, B, C, D = K.sampled(plant.dt)[0].matrices
    whole = np.block([[F + G @ D @ K.C, G @ C], [B @ K.C, A]])
    assert np.abs(np.linalg.eigvals(whole)).max() < 1
    x0 = np.array([0.01, 0.0])
    run = simulation.rollout(plant, K, jnp.asarray(x0), 50, linear=True)
    expected = np.linalg.matrix_power(whole, 50) @ np.concatenate([x0, np.zeros(len(A))])
    np.testing.assert_allclose(run.xs[-1], expected[:2], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gain": np.nan}, "gain: expected"),
        ({"poles": [1j, -1]}, "conjugates"),
        ({"zeros": [-1, -2]}, "fast pole"),
        ({"input": 1}, "from 0 to 0"),
    ],
)
def test_bad_roots_are_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        classical.Compensator([[1.0, 0.0]], **({"zeros": [], "poles": [-1.0]} | change))


def test_limited_integrator_does_not_wind_up():
    """After y = 1 for long, with an input cut to 1, a hundredth of it the other way soon turns the input round."""
    plant = systems.make("dc_motor")
    K = classical.Compensator(np.eye(1, plant.n), gain=-200.0, zeros=[-100.0], poles=[0.0])
    u_eq = plant.equilibrium()[1]
    problem = simulation.Problem.of(plant, limits=(u_eq - 1.0, u_eq + 1.0), optimum=False)
    policy = simulation.bind(K, problem)
    z, x = policy.init(()), jnp.eye(1, plant.n)[0]
    for _ in range(100):
        z, v = policy(z, x)
    np.testing.assert_allclose(v, [1.0], rtol=1e-6)
    for _ in range(60):
        z, v = policy(z, -0.01 * x)
    assert float(v[0]) < 0


def test_gain_alone_is_bound_without_states():
    plant = systems.make("pendulum")
    policy = simulation.bind(classical.Compensator([[1.0, 0.0]], gain=3.0), plant)
    _, v = policy(policy.init(()), jnp.array([0.1, 5.0]))
    np.testing.assert_allclose(v, [-0.3], rtol=1e-6)
