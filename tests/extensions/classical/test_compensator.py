"""Compensators shaped by hand: their sampled form, and the loop that simulation closes with them."""

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from lqrlab import classical, control, simulation, systems


def drawn(rng, num):
    """Roots [rad/s], conjugates together."""
    pairs = [r for a, b in 10 ** rng.uniform(-1, 2, (num // 3, 2)) for r in (-a + 1j * b, -a - 1j * b)]
    return [*pairs, *rng.choice([-1.0, 0.0, 1.0], num - len(pairs)) * 10 ** rng.uniform(-1, 2, num - len(pairs))]


def test_a_compensator_is_sampled_by_tustins_rule_also_with_zeros_that_go_to_infinity():
    rng = np.random.default_rng(0)
    for num in (*range(1, 7), 1, 2, 5, 4):
        dt, poles = 10 ** rng.uniform(-3, -1), drawn(rng, num)
        rate = 2 / dt
        zeros = [rate, *drawn(rng, num - 1)][: rng.integers(1, num + 1)]
        zeros = zeros if np.isreal(np.poly(zeros)).all() else zeros[:1]
        A, B, C, D = classical.Compensator([[1.0]], 3.0, zeros, poles).sampled(dt)[0].matrices
        assert len(A) == num
        for angle in (0.3, 1.0, 3.0):
            z = np.exp(1j * angle)
            s = rate * (z - 1) / (z + 1)
            expected = 3 * np.prod(s - np.array(zeros)) / np.prod(s - np.array(poles))
            found = -(C @ np.linalg.solve(z * np.eye(num) - A, B) + D).item()
            np.testing.assert_allclose(found, expected, rtol=1e-9)
    # k (s − 20)/(s + 1) is −40 k / ((2 + dt) z − 2 + dt)/dt at dt = 0.1: strictly proper, not nothing
    (A, B, C, D), E = (lambda K, E: (K.matrices, E))(*classical.Compensator([[1]], 1, [20], [-1]).sampled(0.1))
    np.testing.assert_allclose([A.item(), -(C @ B).item(), D.item(), E.item()], [19 / 21, -40 / 21, 0, 0], atol=1e-14)


@pytest.mark.parametrize(("poles", "dt"), [([20.0], 0.1), ([1.0, 2 / 0.3], 0.3)])
def test_a_pole_that_goes_to_infinity_is_refused(poles, dt):
    refused("poles: expected none at", classical.Compensator([[1.0]], poles=poles).sampled, dt)


@pytest.mark.parametrize("zeros", [[5.0], [0.0], [], [3 + 2j, 3 - 2j], [20.0]])
def test_a_compensator_whose_zeros_do_not_decay_forgets_its_past_by_its_poles_alone(zeros):
    """With its input at a limit the memory would follow the zeros: away for ever, or nowhere."""
    K, E = classical.Compensator([[1.0]], 10.0, zeros, [-1.0, -3.0]).sampled(0.1)
    assert not E.any()
    v, z = np.ones(1), np.zeros(2)
    for _ in range(3000):
        z = K.A @ z + K.B @ np.ones(1) + E @ (v - K.C @ z - K.D @ np.ones(1))
    np.testing.assert_allclose(z, np.linalg.solve(np.eye(2) - K.A, K.B @ np.ones(1)), atol=1e-12)
    E = classical.Compensator([[1.0]], 10.0, [-5.0], [-1.0]).sampled(0.1)[1]
    assert abs(E).min() > 0


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
        ({"input": 0.5}, "input: expected a whole number"),
        ({"C": [[np.nan]]}, "C: expected finite numbers"),
        ({"poles": ["-1"]}, "poles: expected numbers"),
        ({"poles": np.ma.array([-1.0], mask=True)}, "poles: expected numbers, but found 1 masked"),
        ({"poles": np.array([1], "m8[s]")}, "poles: expected numbers"),
        ({"gain": np.timedelta64(1, "s")}, "gain: expected a finite number"),
    ],
)
def test_bad_roots_are_refused_in_words(change, words):
    refused(words, classical.Compensator, **({"C": [[1.0, 0.0]], "zeros": [], "poles": [-1.0]} | change))


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
