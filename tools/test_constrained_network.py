"""A network within limits for all families: its teacher and its layers against plans of another solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import constrained_network
from benchmarks.constrained_network import Demands, LayeredPolicy, Teacher, Weights
from lqrlab import predictive, simulation, systems

PLANTS = systems.sample("two_link_arm", key=jax.random.key(0), num=2, spread=0.2)
U_EQ = np.asarray(PLANTS.equilibrium()[1])
PROBLEM = simulation.Problem.of(PLANTS, limits=(U_EQ - 3.0, U_EQ + 3.0), linear=True)
X = 0.6 * PROBLEM.initial_state(key=jax.random.key(1), num=12)


@pytest.fixture(scope="module")
def planned():
    design = predictive.mpc(PROBLEM, 20).for_loops(3)
    plan, _ = design.plan(X)
    assert plan.solved.all()
    at_limit = (jnp.abs(plan.us[..., 0, :]) > 2.999).any(-1)
    assert 3 < at_limit.sum() < 24
    return plan


def test_the_teacher_plans_as_predictive_mpc_does(planned):
    for plant in range(2):
        teacher = Teacher(PROBLEM, plant, 20)
        for k, x in enumerate(np.asarray(X[plant])):
            us, price, cost, _ = teacher(x)
            np.testing.assert_allclose(us, planned.us[plant, k], atol=1e-6)
            np.testing.assert_allclose(price, planned.multipliers.u[plant, k, 0], atol=1e-5 * cost)
            assert cost == pytest.approx(float(planned.cost[plant, k]), rel=1e-9)


def test_many_layers_with_a_node_a_sample_are_that_plan_and_one_is_not(planned, monkeypatch):
    monkeypatch.setattr(constrained_network, "NODES", tuple(range(21)))
    error = {}
    for layers in (1, 300):
        steps, relaxation = Weights.start(layers)
        varied = Weights(steps + jnp.broadcast_to(jnp.linspace(-1, 1, 20, dtype=steps.dtype), steps.shape), relaxation)
        policy = LayeredPolicy.of(Demands.of(PROBLEM), varied, PROBLEM.m)
        error[layers] = float(jnp.max(jnp.abs(policy(None, X)[1] - planned.us[..., 0, :])))
    assert error[300] < 1e-2 < error[1]


def test_where_no_demand_meets_a_limit_it_is_the_lqr():
    policy = LayeredPolicy.of(Demands.of(PROBLEM), Weights.start(3), PROBLEM.m)
    x = 0.02 * X
    expected = -jnp.einsum("pmn,psn->psm", PROBLEM.K, x)
    np.testing.assert_allclose(policy(None, x)[1], expected, rtol=1e-4, atol=1e-5)
