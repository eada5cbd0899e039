"""Networks taught by a predictive controller: what an input costs more, against plans with it; what they learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from benchmarks import imitation
from lqrlab import predictive, simulation, systems

KEY = jax.random.key(4)
BRIEF = imitation.ImitationConfig(rounds=2, loops=32, samples=40, labels=256, num_steps=300, width=16)
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
    found = imitation.imitate(design, PROBLEM, BRIEF, progress=rows.append)
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
        refused("state alone", imitation.imitate, predictive.mpc(problem, 5, **more), PROBLEM, BRIEF)
    other = simulation.Problem.of(systems.make("cart_pole"), limits=(-5.0, 5.0), linear=True)
    refused("expected one of B", imitation.imitate, DESIGN, other, BRIEF)
