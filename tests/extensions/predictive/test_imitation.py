"""Networks taught by a predictive controller: what an input costs more, against plans with it; what they learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy_oracle import gain, van_loan

from lqrlab import control, predictive, simulation, systems
from lqrlab.extensions.predictive import imitation

KEY = jax.random.key(4)
BRIEF = predictive.ImitationConfig(rounds=2, loops=32, samples=40, labels=256, num_steps=300, width=16)
PLANT = systems.make("double_integrator")
PROBLEM = simulation.Problem.of(PLANT, limits=(-0.5, 0.5), linear=True)
DESIGN = predictive.mpc(PROBLEM, 40)


@pytest.fixture(scope="module")
def lessons():
    x = 0.35 * jax.random.normal(jax.random.key(0), (40, 2), float)
    assert DESIGN.exact(DESIGN.plan(x)[0]).all()  # a longer horizon costs the same
    return imitation._asked(DESIGN, x)


def with_first_input(x, u):
    """The least cost with the first input given, from a plan whose first limits leave nothing else."""
    low, high = np.full((len(x), 41, 1), -0.5), np.full((len(x), 41, 1), 0.5)
    low[:, 0] = high[:, 0] = u
    A, B, Q, R, N = PROBLEM.sampled
    found = predictive.constrained_lqr(A, B, Q, R, x, 41, N=N, limits=simulation.Limits(u=(low, high)))
    assert found.solved.all()
    return found.cost


def test_the_excess_of_an_input_is_what_a_plan_that_begins_with_it_costs_more(lessons):
    change = jnp.where(lessons.u > 0, -1e-3, 1e-3)  # stays within the limits
    exact = with_first_input(lessons.x, lessons.u + change) - with_first_input(lessons.x, lessons.u)
    told = imitation.excess_by_plan(DESIGN, lessons, lessons.u + change)
    held = np.abs(lessons.price[:, 0]) > 0
    assert 5 < held.sum() < 35
    np.testing.assert_allclose(told[held], exact[held], rtol=0.05)
    rest = ~held & (np.asarray(exact) > 1e-9)
    # a limit that comes later costs less or the same
    np.testing.assert_array_less(exact[rest], 1.001 * told[rest] + 1e-12)


def test_a_network_learns_what_the_limits_change():
    fast = np.array([np.inf, 0.3])  # a limit of the velocity, which the LQR does not know
    limits = simulation.Limits(u=(-0.5, 0.5), x=(-fast, fast))
    design = predictive.mpc(PROBLEM.limited(limits), 10, soft=(0.0, 100.0))
    rows = []
    found = predictive.imitate(design, PROBLEM, BRIEF, progress=rows.append)
    assert rows == found.metrics
    assert rows[0]["unsolved"] == 0
    x = 0.7 * jax.random.normal(jax.random.key(7), (300, 2), float)
    plan, _ = design.plan(x)
    u = plan.us[:, 0]
    lqr = jnp.clip(-x @ PROBLEM.K.T, -0.5, 0.5)
    error, before = (float(jnp.sqrt(jnp.mean((a - u) ** 2))) for a in (found.policy(None, x)[1], lqr))
    assert before > 0.05
    assert error < before / 2, (error, before)


def test_teachers_that_remember_or_know_another_plant_are_refused():
    noisy = PROBLEM.disturbed(noise=0.1, sensor_noise=0.1)
    for problem, more in (
        (PROBLEM.limited(simulation.Limits(du=(-0.1, 0.1))), {}),
        (PROBLEM, {"C": [[1.0, 0.0]], "reference": [1.0]}),
        (noisy, {"disturbance": "input", "Wd": np.eye(1)}),
    ):
        refused("state alone", predictive.imitate, predictive.mpc(problem, 5, **more), PROBLEM, BRIEF)
    other = simulation.Problem.of(systems.make("cart_pole"), limits=(-5.0, 5.0), linear=True)
    refused("expected one of B", predictive.imitate, DESIGN, other, BRIEF)


def test_plants_and_limits_that_a_network_has_nothing_to_add_to_are_refused():
    pendulum, two = systems.make("pendulum"), systems.sample("pendulum", key=KEY, num=2)
    for words, plants, limits in (
        ("finite", pendulum, (-np.inf, np.inf)),
        ("could not even hold the operating point", pendulum, (1.0, 2.0)),
        ("expected one plant", two, (-3.0, 3.0)),
    ):
        refused(words, lambda p=plants, u=limits: imitation.Regulator.of(simulation.Problem.of(p, limits=u)))


def limits_of(plant, strength=1.0):
    u_eq, scale = plant.equilibrium()[1], plant.scales[1]
    return u_eq - strength * scale, u_eq + strength * scale


def disturbed(policy, size, key=KEY):
    """The policy with random numbers in all layers."""
    leaves, tree = jax.tree.flatten(policy.layers)
    keys = jax.random.split(key, len(leaves))
    moved = [a + size * jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves)]
    return dataclasses.replace(policy, layers=jax.tree.unflatten(tree, moved))


@pytest.mark.parametrize("family", ["cart_pole", "quadrotor"])
def test_it_starts_as_the_lqr_exactly(family):
    plant = systems.make(family)
    limits = limits_of(plant)
    gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    problem, x0 = simulation.Problem.of(plant, limits=limits), plant.initial_state(key=KEY, num=20)
    policy = predictive.RecoveryPolicy.start(imitation.Regulator.of(problem, "float64"), 8, key=KEY)
    u, expected = policy(None, x0)[1], problem.saturate(simulation.LinearPolicy(gain)(None, x0)[1])
    np.testing.assert_allclose(u, expected, rtol=1e-12)


def test_a_policy_is_its_formula_by_numpy():
    plant = systems.make("cart_pole", pole_length=0.4)
    low, high = -8.0, 12.0
    sx, su = (np.asarray(a) for a in plant.scales)
    K, P = gain(*van_loan(*(np.asarray(a) for a in (*plant.matrices(), *plant.weights())), float(plant.dt)))
    K, P = K * sx / su[:, None], P * np.outer(sx, sx)
    level = 64.0 / su[0] ** 2 / (K @ np.linalg.solve(P, K.T))[0, 0]
    start = predictive.RecoveryPolicy.start(
        imitation.Regulator.of(simulation.Problem.of(plant, limits=(low, high)), "float64"), 8, key=KEY
    )
    policy = disturbed(start, 0.3)
    (W1, b1), (W2, b2), (W3, b3) = (map(np.asarray, layer) for layer in policy.layers)
    angles = [i for i, state in enumerate(plant.states) if state.name == "pole_angle" or state.unit == "rad"]
    assert angles == [1]
    size, V = np.linalg.eigh(P)
    seen = []
    for x in 2 * np.asarray(plant.initial_state(key=KEY, num=10)):
        z = x / sx
        cost = np.arcsinh(np.sqrt(size) * (V.T @ z))
        lqr = np.clip(-K @ z, low / su, high / su)
        signs = np.asarray(policy.regulator.root) @ z
        np.testing.assert_allclose(np.abs(np.arcsinh(signs)), np.abs(cost), rtol=1e-7)
        features = [np.arcsinh(z), np.arcsinh(signs), np.sin(x[angles]), np.cos(x[angles]) - 1, lqr]
        v = np.tanh(np.tanh(np.concatenate(features) @ W1 + b1) @ W2 + b2) @ W3 + b3
        beyond = z @ P @ z / (z @ P @ z + level)
        u = su * np.clip(lqr + (high - low) / su * beyond * v, low / su, high / su)
        np.testing.assert_allclose(policy(None, jnp.asarray(x))[1], u, rtol=1e-7)
        seen.append(u[0])
    assert np.ptp(seen) > 1
    # a network starts with activations of one size, whatever its width, and answers zero
    layers = imitation.perceptron(start.regulator, 200, 3, key=KEY)
    assert [w.shape for w, _ in layers] == [(2 * 4 + 2 + 1, 200), (200, 200), (200, 3)]
    for (w, b), inputs in zip(layers, (11, 200, None)):
        assert not np.any(b)
        assert float(jnp.std(w)) == pytest.approx(inputs**-0.5 if inputs else 0, rel=0.05)


def test_near_the_equilibrium_it_is_the_lqr_whatever_it_has_learned():
    plant = systems.make("cart_pole")
    regulator = imitation.Regulator.of(simulation.Problem.of(plant, limits=limits_of(plant)), "float64")
    policy = disturbed(predictive.RecoveryPolicy.start(regulator, 8, key=KEY), 0.5)
    gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    slope = jax.jacfwd(lambda x: policy(None, x)[1])(jnp.zeros(plant.n))
    np.testing.assert_allclose(slope, -gain, rtol=1e-9)


def test_no_input_exceeds_its_limits():
    plant = systems.make("quadrotor")
    limits = limits_of(plant, jnp.array([0.2, 0.4, 0.6, 0.8]))
    policy = disturbed(
        predictive.RecoveryPolicy.start(
            imitation.Regulator.of(simulation.Problem.of(plant, limits=limits)), 8, key=KEY
        ),
        3.0,
    )
    u = policy(None, 8 * plant.initial_state(key=KEY, num=500).astype(jnp.float32))[1]
    u_eq = plant.equilibrium()[1]
    low, high = (np.asarray(a - u_eq, np.float32)[None] for a in limits)
    u = np.asarray(u)
    assert (u >= low - 1e-6).all()
    assert (u <= high + 1e-6).all()
    assert ((u < low + 1e-6) | (u > high - 1e-6)).mean() > 0.5  # else nothing has been tried
