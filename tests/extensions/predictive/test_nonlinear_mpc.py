"""Nonlinear predictive controllers: their plans beside iterative LQR's, SciPy's and the linear MPC's; their loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

from lqrlab import predictive, simulation, systems
from lqrlab.extensions.predictive.nonlinear_mpc import cost_gradient


def problem_of(family, limit, x=None, du=None, **settings):
    plant = systems.make(family)
    u_eq = plant.equilibrium()[1]
    limits = simulation.Limits(u=(u_eq - limit, u_eq + limit), x=x, du=du)
    return simulation.Problem.of(plant, limits=limits, **settings)


def planned(design, x0):
    """The first plan from x0 on."""
    policy = simulation.bind(design, design.problem)
    return jax.jit(lambda policy, x: policy(policy.init(x.shape[:-1]), x)[0].plan)(policy, jnp.asarray(x0))


def cost_of(problem, x0, us):
    """The horizon's cost of inputs, by the plant's own steps."""
    us = jnp.asarray(us)
    follow = simulation.TrackingPolicy(jnp.zeros((len(us) + 1, problem.n)), us, jnp.zeros((*us.shape, problem.n)))
    run = simulation.rollout(problem, follow, jnp.asarray(x0), len(us))
    return float(run.cost + problem.optimal_cost(run.xs[-1])), run.xs


def by_ilqr(problem, x0, T, us=None):
    plant, (x_eq, u_eq) = problem.plant, (problem.x_eq, problem.u_eq)
    Q, R = plant.weights()
    return predictive.ilqr(
        plant.dynamics, x_eq + jnp.asarray(x0), Q, R, T, problem.P, dt=problem.dt, goal=(x_eq, u_eq),
        limits=(u_eq + problem.low, u_eq + problem.high),
        search=predictive.Search(None if us is None else us + u_eq[None], 1e-12, substeps=problem.substeps),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "limit", "x0", "guessed"),
    [("pendulum", 8.0, [3.0, 0.0], False), ("cart_pole", 20.0, [0.0, 3.1, 0.0, 0.0], True)],
)
def test_a_converged_plan_is_iterative_lqrs_optimum(family, limit, x0, guessed):
    """From hanging, input limits active: the pendulum's search starts from nothing, the cart's from the plan."""
    problem, T = problem_of(family, limit), 60
    plan = planned(predictive.nonlinear_mpc(problem, T, iterations=40), x0)
    cost, xs = cost_of(problem, x0, plan.us)
    best = by_ilqr(problem, x0, T, plan.us if guessed else None)
    assert bool(best.converged)
    assert int((jnp.abs(plan.us) > limit - 1e-9).sum()) > 5
    assert float(jnp.abs(plan.us).max()) <= limit
    assert cost == pytest.approx(float(best.cost), rel=1e-8)
    np.testing.assert_allclose(plan.xs, xs, atol=1e-6)  # what the program expects is what the plant does
    if guessed:  # the search had nothing to improve
        np.testing.assert_allclose(best.us - problem.u_eq[None], plan.us, atol=1e-3)


def test_a_converged_plan_is_scipys_optimum():
    """Six inputs of a pendulum with a limited rate, minimised by SLSQP on the plant as SciPy integrates it."""
    rate = ([-9.0, -1.2], [9.0, 1.2])
    problem, T, x0 = problem_of("pendulum", 8.0, rate, dt=0.1, substeps=8), 6, np.array([0.9, 0.0])
    plan = planned(predictive.nonlinear_mpc(problem, T, iterations=25), x0)
    plant, u_eq = systems.make("pendulum"), np.asarray(problem.u_eq)
    rates = jax.jit(plant.dynamics)
    (Q, R), P = (np.asarray(a) for a in plant.weights()), np.asarray(problem.P)

    def followed(us):
        x, total, xs = x0, 0.0, []
        for u in us:
            moved = lambda _, z, u=u: np.append(rates(z[:2], u_eq + u), z[:2] @ Q @ z[:2] + u * R[0, 0] * u)  # noqa: E731
            *x, more = scipy.integrate.solve_ivp(moved, (0, 0.1), [*x, 0.0], rtol=1e-9, atol=1e-9).y[:, -1]
            x, total = np.array(x), total + more
            xs.append(x)
        return total + x @ P @ x, np.array(xs)

    room = {
        "type": "ineq",
        "fun": lambda us: np.concatenate([1.2 - followed(us)[1][:, 1], 1.2 + followed(us)[1][:, 1]]),
    }
    found = scipy.optimize.minimize(
        lambda us: followed(us)[0], np.zeros(T), bounds=[(-8, 8)] * T, constraints=room, method="SLSQP",
        options={"ftol": 1e-10, "maxiter": 200},
    )  # fmt: skip
    assert found.success
    cost, _ = cost_of(problem, x0, plan.us)
    assert float(jnp.abs(plan.xs[1:, 1]).max()) == pytest.approx(1.2, abs=1e-9)
    assert cost == pytest.approx(found.fun, rel=1e-6)


@pytest.mark.parametrize(("limits", "soft"), [({}, {}), ({"x": (-0.6, 0.6), "du": (-2.0, 2.0)}, {"soft": (10, 10)})])
def test_on_a_linear_problem_it_is_the_linear_controller(limits, soft):
    problem = problem_of("cart_pole", 4.0, **limits, linear=True)
    x0 = 0.3 * np.random.default_rng(0).normal(size=(3, 4))
    designs = predictive.mpc(problem, 5, **soft), predictive.nonlinear_mpc(problem, 5, **soft)
    linear, nonlinear = (simulation.rollout(problem, one, x0, 4) for one in designs)
    np.testing.assert_allclose(linear.us, nonlinear.us, atol=1e-7)


def test_gradients_of_a_steps_cost_are_those_of_differences():
    problem = problem_of("cart_pole", 4.0)
    x, u, h = np.array([0.2, 0.9, -0.4, 1.0]), np.array([3.0]), 1e-6
    along_x, along_u = cost_gradient(problem, jnp.asarray(x), jnp.asarray(u))
    cost = lambda x, u: float(problem.step(jnp.asarray(x), jnp.asarray(u))[1])  # noqa: E731
    by_x = [(cost(x + h * e, u) - cost(x - h * e, u)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(along_x, by_x, atol=1e-8)
    np.testing.assert_allclose(along_u, [(cost(x, u + h) - cost(x, u - h)) / (2 * h)], atol=1e-8)


def test_one_program_a_sample_swings_a_cart_pole_up():
    """From all angles the linear controller loses; states are limited as well."""
    problem = problem_of("cart_pole", 20.0, ([-1.5, *[-np.inf] * 3], [1.5, *[np.inf] * 3]))
    x0 = np.zeros((3, 4))
    x0[:, 1] = [3.1, -1.9, 0.5]  # from -2.0 two ways up cost the same, and rounding decides
    policy = predictive.nonlinear_mpc(problem, 40)
    run = simulation.rollout(problem, policy, x0, 250)
    assert float(jnp.abs(run.us).max()) <= 20
    assert float(jnp.abs(run.xs[:, -1]).max()) < 0.05
    assert float(jnp.abs(run.xs[:, :, 0]).max()) < 1.6
    linear = predictive.mpc(problem_of("cart_pole", 20.0), 10)
    lost = simulation.rollout(problem, linear, x0[:2], 60)
    assert np.all(np.abs(lost.xs[:, -1]).max(-1) > 3)


def test_plants_and_loops_of_a_batch_are_controlled_as_each_of_them():
    plants = systems.sample("pendulum", key=jax.random.key(0), num=2)
    problem = simulation.Problem.of(plants, limits=simulation.Limits(u=(-6.0, 6.0), x=(-4.0, 4.0)))
    x0 = np.random.default_rng(0).normal(size=(2, 3, 2))
    run = simulation.rollout(problem, lambda problem: predictive.nonlinear_mpc(problem, 8), x0, 6)
    for i in range(2):
        policy = simulation.bind(predictive.nonlinear_mpc(problem[i], 8), problem[i])
        alone = simulation.rollout(problem[i], policy, x0[i], 6)
        np.testing.assert_allclose(alone.us, run.us[i], atol=1e-9)
        first = jax.vmap(lambda x, policy=policy: policy(policy.init(()), x)[1])(jnp.asarray(x0[i]))
        np.testing.assert_allclose(first, run.us[i][:, 0], atol=1e-9)


def test_inputs_stay_within_limits_where_nothing_is_feasible_and_measurements_may_be_missing():
    problem = problem_of("pendulum", 2.0, (-0.5, 0.5))
    policy = simulation.bind(predictive.nonlinear_mpc(problem, 8), problem)
    step = jax.jit(lambda memory, x: policy(memory, x))
    memory = policy.init(())
    for x in ([1.0, 3.0], [0.0, 1e300], [0.3, -0.2], [0.3, -0.2], [np.nan, np.nan], [0.2, -0.2]):
        expected = memory.plan.xs[1]
        memory, u = step(memory, jnp.asarray(x))
        assert abs(float(u[0])) <= 2
        if np.isnan(x[0]):
            np.testing.assert_allclose(memory.plan.xs[0], expected, atol=1e-12)
    np.testing.assert_allclose(memory.plan.xs[0], x, atol=1e-12)
    assert float(jnp.abs(memory.plan.xs[1:]).max()) < 0.5 + 1e-9


def test_a_loop_of_another_sample_time_is_refused():
    problem = problem_of("pendulum", 4.0, dt=0.04)
    for policy in (predictive.nonlinear_mpc(problem, 5), predictive.filtered([[1.0, 1.0]], problem)):
        with pytest.raises(ValueError, match=r"dt: expected the sample time of the policy's problem, 0.04 s"):
            simulation.rollout(systems.make("pendulum"), policy, jnp.zeros(2), 5)


# Outputs alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "nonlinear"])
def test_a_cart_pole_of_which_position_and_angle_are_seen_is_regulated_within_limits(kind):
    problem = problem_of("cart_pole", 15.0, noise=1e-4, sensor_noise=1e-3)
    if kind == "linear":
        start, controller = [0.1, 0.32, 0.0, 0.0], predictive.mpc(problem, 20)
    else:
        start, controller = [0.1, 0.8, 0.0, 0.0], predictive.nonlinear_mpc(problem, 20)
    seen, noise = np.eye(4)[:2], (1e-8 * np.eye(4), 1e-6 * np.eye(2), 0.1 * np.eye(4))
    policy = simulation.extended_kalman(controller, problem, seen, *noise)
    run = simulation.rollout(problem, policy, jnp.asarray(start), 200, key=jax.random.key(0))
    assert float(jnp.abs(run.us).max()) <= 15
    assert float(jnp.abs(run.us).max()) > 14.9
    assert float(jnp.abs(run.xs[-40:]).max()) < 0.1
