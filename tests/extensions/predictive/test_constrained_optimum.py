"""The constrained optimum as a frame: scores, environments and panels measured by the least within limits."""

import dataclasses
import re

import dense_qp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy_oracle
from calls import solved
from refusals import refused

from lqrlab import environments, evaluation, predictive, simulation, systems
from lqrlab.extensions.predictive import least_cost

KEY = jax.random.key(0)
ONE = np.eye(1)


def limited(name, share, num=6, **extra):
    """A family's linear problem whose inputs reach a share of what its regulator asks for, and starts."""
    problem = simulation.Problem.of(systems.make(name), linear=True)
    x0 = problem.initial_state(key=KEY, num=num)
    most = share * jnp.max(jnp.abs(x0 @ problem.K.T), 0)
    return problem.limited((problem.u_eq - most, problem.u_eq + most)), x0


def test_the_part_of_a_start_that_is_held_is_that_of_a_scalar_plants_closed_form():
    """x+ = a x + u, |u| ≤ 1 is held where (a − 1) |x| < 1: up to 5 and up to 2."""
    for a in (1.2, 1.5):
        with pytest.raises(ValueError, match="no input within the limits recovers this state") as error:
            predictive.optimum(simulation.Problem.from_matrices([[a]], ONE, ONE, ONE, limits=(-1, 1)), [6.0])
        part = re.search(r"at most ([\d.]+) times", str(error.value))
        assert float(part[1]) == pytest.approx(1 / (a - 1) / 6, rel=2e-4)


def test_a_start_just_outside_of_where_the_regulator_keeps_its_limit_pays_for_it():
    """x+ = x + u, cost x² + u²: the gain is 0.618, so from 2.5 the input stays at −1 once, and no longer."""
    golden = (1 + 5**0.5) / 2
    problem = simulation.Problem.from_matrices(ONE, ONE, ONE, ONE, limits=(-1, 1))
    refused("x0: expected finite numbers", predictive.optimum, problem, [[1.6], [np.nan]])
    best = predictive.optimum(problem, [[1.6], [1.7], [2.5]])
    paid = [x**2 + 1 + golden * (x - 1) ** 2 for x in (1.7, 2.5)]
    np.testing.assert_allclose(best.cost, [golden * 1.6**2, *paid], rtol=1e-8)
    np.testing.assert_allclose(best.u[:, 0], [-1.6 / golden, -1, -1], rtol=1e-8)


def test_a_start_outside_the_limits_of_states_is_told_with_the_part_of_it_that_is_inside():
    limits = simulation.Limits(u=(-1, 1), x=(-4.7, 4.7))
    problem = simulation.Problem.from_matrices([[1.2]], ONE, ONE, ONE, limits=limits)
    refused(r"keeps the other limits; at most 0\.9\d* times", predictive.optimum, problem, [5.0])


def test_a_score_beside_the_constrained_optimum_is_that_of_a_long_dense_program():
    problem, x0 = limited("cart_pole", 0.5)
    reference = predictive.reference(problem)
    score = evaluation.evaluate(problem.K, problem, key=KEY, x0=x0, reference=reference, num_steps=600)
    free = evaluation.evaluate(problem.K, problem, key=KEY, x0=x0, num_steps=600)
    A, B, Q, R, N = (np.asarray(a) for a in problem.sampled)
    _K, P = scipy_oracle.gain(A, B, Q, R, N)
    for x, ratio, beside in zip(np.asarray(x0), score.ratio, free.ratio):
        given = {"N": N, "Qf": P, "u_limits": (np.asarray(problem.low), np.asarray(problem.high))}
        found, qp = solved(A, B, Q, R, x, 60, **given), dense_qp.build(A, B, Q, R, x, 60, **given)
        assert dense_qp.kkt_residual(qp, found) < 1e-9
        least = qp.cost(found.us)
        np.testing.assert_allclose(beside / ratio, least / float(x @ P @ x), rtol=1e-6)
    assert float(free.ratio.max()) > 1.01


def test_the_first_change_of_an_input_is_limited_too():
    """The optimum changes from zero on: DAQP's of a horizon at whose end nothing is left."""
    A, B, Q = np.array([[1.0, 0.2], [0.0, 1.0]]), np.array([[0.0], [0.2]]), np.diag([1.0, 0.1])
    K, P = scipy_oracle.gain(A, B, Q, ONE, np.zeros((2, 1)))
    problem = simulation.Problem.from_matrices(A, B, Q, ONE, limits=simulation.Limits(du=(-0.1, 0.15)))
    x0 = np.array([[0.2, 0.1], [-0.5, 0.0], [0.02, 0.02], [1.5, 1.0]])
    best = predictive.optimum(problem, x0)
    for x, cost, u in zip(x0, best.cost, best.u):
        us, least = dense_qp.by_daqp(dense_qp.build(A, B, Q, ONE, x, 80, Qf=P, u_last=[0.0], du_limits=(-0.1, 0.15)))
        assert float(cost) == pytest.approx(least, rel=1e-9)
        np.testing.assert_allclose(u, us[0], atol=1e-8)
    assert np.abs(x0 @ K.T).min() < 0.1 < np.abs(x0 @ K.T).max()


def test_limits_of_each_step_have_no_optimum_over_all_time():
    for name in ("x", "du"):
        limits = simulation.Limits(**{name: (-np.ones((16, 1)), 1.0)})
        problem = simulation.Problem.from_matrices(ONE, ONE, ONE, ONE, limits=limits)
        refused(f"limits.{name}: expected the same at each step.* 16 rows", predictive.optimum, problem, [[0.2]])
    problem = problem.limited(simulation.Limits(x=(-np.ones((16, 1)), 1.0)))
    refused("limits.x: expected one row or 8", predictive.filtered, [[0.1]], problem, horizon=8)


@pytest.mark.parametrize("name", ["cart_pole", "coupled_tanks", "pendulum"])
def test_nobody_beats_the_constrained_optimum(name):
    """Not even MPC whose horizon sees it all, and that comes to it."""
    problem, x0 = limited(name, 0.4, num=16)
    runs = {"clipped": problem.K, "keen": 1.5 * problem.K}
    runs |= {T: predictive.mpc(problem, T) for T in (3, 60)}
    scores = {
        k: evaluation.evaluate(one, problem, key=KEY, x0=x0, reference=predictive.reference(problem), num_steps=400)
        for k, one in runs.items()
    }
    for score in scores.values():  # evaluate itself refuses what is below 1
        assert float(np.nanmin(score.ratio)) >= 1.0
    assert float(np.nanmedian(scores[60].ratio)) == pytest.approx(1, abs=1e-6)
    assert float(np.nanmax(scores["keen"].ratio)) > 1 + 1e-3


def test_starts_from_which_the_regulator_keeps_the_limits_need_no_plan(monkeypatch):
    problem, x0 = limited("quadrotor", 0.6, num=3)
    monkeypatch.setattr(least_cost, "_planned", None)
    near = 10.0 ** jnp.array([-3.0, -30.0, -140.0])[:, None] * x0
    best = predictive.optimum(problem, near)
    assert np.all(best.found)
    np.testing.assert_allclose(best.cost, np.einsum("ki,ij,kj->k", near, problem.P, near), rtol=1e-12)
    np.testing.assert_allclose(best.u, -near @ problem.K.T, rtol=1e-12)
    with pytest.raises(TypeError):  # limits bind: it plans
        predictive.optimum(problem, 10 * x0)


def test_starts_without_an_optimum_are_counted():
    problem = simulation.Problem.from_matrices([[1.2]], ONE, ONE, ONE, limits=(-1.0, 1.0))
    x0 = jnp.array([[1.0], [4.0], [6.0], [-7.0]])
    reference = predictive.reference(problem)
    score = evaluation.evaluate(problem.K, problem, key=KEY, x0=x0, reference=reference, num_steps=200)
    np.testing.assert_array_equal(np.isnan(score.ratio), [False, False, True, True])
    assert score.summary()["no optimum"] == 50.0
    assert score.summary()["worst"] < np.inf
    assert score.diverged.tolist() == [False, False, True, True]


def test_a_nonlinear_plant_has_no_constrained_optimum_to_compare_with():
    problem = simulation.Problem.of(systems.make("pendulum"), limits=(-1.0, 1.0))
    given = {"key": KEY, "reference": predictive.reference(problem)}
    refused("the constrained optimum is known of a linear plant", evaluation.evaluate, problem.K, problem, **given)


def test_the_optimum_of_several_plants_is_that_of_each():
    plants = systems.sample("pendulum", key=KEY, num=2)
    problem = simulation.Problem.of(plants, limits=(-1.0, 1.0), linear=True)
    x0 = problem.initial_state(key=KEY, num=3)
    together = predictive.optimum(problem, x0)
    for i in range(2):
        np.testing.assert_allclose(predictive.optimum(problem[i], x0[i]).cost, together.cost[i], rtol=1e-9)


# Environments --------------------------------------------------------------------------------------------------------


def test_a_violation_is_counted_in_scales_and_paid_for():
    limits = ([-0.05, -9.0], [0.05, 9.0])
    plain, dear = (
        environments.make("pendulum", linear=True, x_limits=limits, violation_weight=w, dtype="float64") for w in (0, 7)
    )
    _, state = plain.reset(KEY)
    step = jax.jit(plain.step_env)
    _, after, reward, *_, info = step(KEY, state, jnp.zeros(1))
    x, scale = np.asarray(after.x), np.asarray(systems.make("pendulum").scales[0])
    expected = max(0.0, *((np.abs(x) - limits[1]) / scale))
    assert expected > 0
    assert float(info["violation"]) == pytest.approx(expected, rel=1e-12)
    other = dear.step_env(KEY, dear.reset(KEY)[1], jnp.zeros(1))
    assert float(reward - other[2]) == pytest.approx(7 * expected, rel=1e-9)
    rested = dataclasses.replace(state, x=jnp.zeros(2))
    assert float(step(KEY, rested, jnp.zeros(1))[5]["violation"]) == 0.0


def test_a_filter_between_agent_and_plant_keeps_the_limits():
    """An agent that pushes outwards, and one that is safe."""
    limits = ([-0.3, -9.0], [0.3, 9.0])
    usual = {"linear": True, "start": 0.1, "x_limits": limits, "limits": (-9.0, 9.0), "horizon": 60}
    bare, safe = (environments.make("pendulum", **usual, filter_horizon=T) for T in (0, 10))

    def worst(env, agent):
        def step(carry, _):
            obs, state = carry
            obs, state, *_, info = env.step_env(KEY, state, agent(obs))
            return (obs, state), (info["violation"], state.x)

        keys = jax.random.split(KEY, 4)
        run = jax.jit(jax.vmap(lambda key: jax.lax.scan(step, env.reset(key), length=60)[1]))
        violation, xs = run(keys)
        return float(violation.max()), xs

    outwards = lambda obs: 40 * obs[:1]  # noqa: E731
    assert worst(bare, outwards)[0] > 0.1
    violation, xs = worst(safe, outwards)
    assert violation < 1e-5
    assert float(jnp.abs(xs[..., 0]).max()) > 0.25  # it is not stopped before it must
    calm = environments.optimal(bare)
    np.testing.assert_allclose(worst(bare, calm)[1], worst(safe, calm)[1], atol=1e-5)


def test_environments_refuse_what_they_cannot_be():
    for settings, message in (
        ({"filter_horizon": 5, "delay": 1}, "filter_horizon: a safety filter needs delay=0"),
        ({"x_limits": (0.1, 1.0)}, "limits.x: expected limits around zero"),
    ):
        refused(message, environments.make, "pendulum", **settings)
