"""Predictive controllers: their loops beside the regulator's, the dense referee's and the optimum over all time."""

import dense_qp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy_oracle
from refusals import refused

from lqrlab import predictive, simulation, systems

A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])  # a mass that a force pushes, every 0.1 s
Q, R, ONE = np.diag([1.0, 0.1]), np.array([[0.1]]), np.eye(1)
LIMITS = (-1.0, 1.0)
NOISE = {"noise": 1e-2, "sensor_noise": 1e-2}


SPRING = np.array([[1.0, 0.1], [-0.1, 0.9]])  # the mass on a damped spring


def problem_of(A=A, limits=None, noise=0.0, sensor_noise=0.0, **bounds):
    """The mass, or another plant of the same input, with limits."""
    if limits is not None or bounds:
        limits = simulation.Limits(u=limits, **bounds)
    problem = simulation.Problem.from_matrices(A, B, Q, R, dt=0.1, limits=limits)
    return problem.disturbed(noise=noise, sensor_noise=sensor_noise)


def loop(design, x0, steps, A=A, push=0.0, seen=lambda x: x, drop=()):
    """States and inputs of the closed loop on the linear plant, simulated here; ``push`` is added to the inputs."""
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=Q, R=R, dt=0.1)
    policy = simulation.bind(design, simulation.Problem.of(plant))
    return driven(getattr(policy, "policy", policy), x0, steps, A, push, seen, drop)  # what is measured is said here


def driven(policy, x0, steps, A=A, push=0.0, seen=lambda x: x, drop=()):
    """The same of a policy."""
    step = jax.jit(lambda memory, y: policy(memory, y))
    x, memory, xs, us = np.asarray(x0, float), policy.init(()), [], []
    for t in range(steps):
        y = jnp.full_like(jnp.asarray(seen(x)), jnp.nan) if t in drop else jnp.asarray(seen(x))
        memory, u = step(memory, y)
        xs, us = [*xs, x], [*us, np.asarray(u)]
        x = A @ x + B @ (us[-1] + push)
    return np.array([*xs, x]), np.array(us)


def test_without_limits_the_plan_is_the_regulators():
    design = predictive.mpc(problem_of(), 6)
    K, _P = scipy_oracle.gain(A, B, Q, R, np.zeros((2, 1)))
    plan, _ = design.plan([0.3, -0.2])
    x = np.array([0.3, -0.2])
    for u in np.asarray(plan.us):
        np.testing.assert_allclose(u, -K @ x, atol=1e-12)
        x = A @ x + B @ u
    assert np.isinf(design.level)
    assert bool(design.exact(plan))


def test_the_loop_of_a_long_horizon_costs_the_constrained_optimum():
    """Summed along the loop; the optimum beside the referee's for a horizon after which no limit holds."""
    design, x0 = predictive.mpc(problem_of(limits=LIMITS), 64), np.array([2.0, 0.5])
    xs, us = loop(design, x0, 250)
    assert np.abs(us).max() <= 1 + 1e-12
    assert (np.abs(us) > 1 - 1e-9).sum() > 5
    paid = np.einsum("ti,ij,tj->", xs[:-1], Q, xs[:-1]) + np.einsum("ti,ij,tj->", us, R, us)
    best = predictive.optimum(problem_of(limits=LIMITS), x0)
    assert bool(best.found)
    assert paid == pytest.approx(float(best.cost), rel=1e-9)
    _K, P = scipy_oracle.gain(A, B, Q, R, np.zeros((2, 1)))
    _us, cost = dense_qp.by_daqp(dense_qp.build(A, B, Q, R, x0, 100, Qf=P, u_limits=LIMITS))
    assert float(best.cost) == pytest.approx(cost, rel=1e-9)
    assert not bool(design.exact(predictive.mpc(problem_of(limits=(-0.2, 0.2)), 64).plan(x0)[0]))


def test_the_optimum_tells_what_no_input_holds():
    limits = simulation.Limits(u=LIMITS, x=(-6, 6))
    problem = simulation.Problem.from_matrices([[1.2]], ONE, ONE, ONE, limits=limits)
    best = predictive.optimum(problem, [[0.5], [5.1]], longest=16)
    assert best.infeasible.tolist() == [False, True]  # beyond 5 it grows by more than the input can take away
    assert best.cost[1] == np.inf
    assert best.found.tolist() == [True, False]


def test_the_terminal_level_keeps_limits_and_is_the_largest():
    design = predictive.mpc(problem_of(limits=(-0.7, 1.0), x=(-3, [2.0, 4.0])), 6)
    K, P, level = np.asarray(design.problem.K), np.asarray(design.problem.P), float(design.level)
    angles = np.linspace(0, 2 * np.pi, 4000)
    rim = np.linalg.solve(np.linalg.cholesky(P).T, [np.cos(angles), np.sin(angles)]) * np.sqrt(level)
    use = max((-K @ rim).max(), (K @ rim).max() / 0.7, rim[0].max() / 2, -rim.min() / 3, rim[1].max() / 4)
    assert use == pytest.approx(1.0, rel=1e-4)


def test_an_estimated_force_leaves_no_offset():
    problem = problem_of(limits=(-2, 2), **NOISE)
    design = predictive.mpc(problem, 10, C=[[1.0, 0.0]], reference=[0.5], disturbance="input", Wd=[[1e-2]])
    xs, us = loop(design, np.zeros(2), 150, push=0.4)
    assert xs[-1, 0] == pytest.approx(0.5, abs=1e-4)
    assert us[-1, 0] == pytest.approx(-0.4, abs=1e-4)


def test_an_estimated_bias_of_a_sensor_leaves_what_it_shows_at_the_reference():
    given = {"C": [[1.0, 0.0]], "reference": [0.5], "disturbance": "output", "Wd": [[1e-2]]}
    design = predictive.mpc(problem_of(SPRING, (-2, 2), **NOISE), 10, **given)
    xs, _us = loop(design, np.zeros(2), 200, A=SPRING, seen=lambda x: x[:1] + 0.3)
    assert xs[-1, 0] + 0.3 == pytest.approx(0.5, abs=1e-4)
    blind = problem_of(A, (-2, 2), **NOISE)
    words = "disturbance: undetectable from the measurements; the output's is indistinguishable"
    refused(words, predictive.mpc, blind, 10, **given)


def test_a_reference_is_seen_in_advance():
    step = np.r_[np.zeros(15), np.ones(5)][:, None]
    design = predictive.mpc(problem_of(limits=(-2, 2)), 10, C=[[1.0, 0.0]], reference=step)
    xs, us = loop(design, np.zeros(2), 80)
    np.testing.assert_allclose(us[:5], 0, atol=1e-9)  # nothing to do yet
    assert us[10, 0] > 0.05  # on its way before the step
    assert xs[-1, 0] == pytest.approx(1.0, abs=1e-3)


def test_changes_are_limited_from_sample_to_sample():
    design = predictive.mpc(problem_of(limits=LIMITS, du=(-0.1, 0.1)), 10)
    _xs, us = loop(design, [1.0, 0.0], 30)
    changes = np.diff(np.r_[0.0, us[:, 0]])
    assert np.abs(changes).max() == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("unseen", [np.diag([0.0, 1.0]), np.diag([1.0, 0.0])])
def test_a_state_that_the_weight_does_not_see_needs_no_regulator_beside_a_terminal_weight(unseen):
    """A position that costs nothing until the end, and a mode on the circle that no input moves."""
    plant = A if unseen[1, 1] else np.diag([0.5, 1.0])
    given = {"A": plant, "B": B * [[1], [unseen[1, 1]]], "Q": unseen, "R": R, "limits": (-1, 1), "dt": 0.1}
    refused("takes a problem of optimum=False", simulation.Problem.from_matrices, **given)
    problem = simulation.Problem.from_matrices(**given, optimum=False)
    x0, Qf = np.array([1.0, 0.4]), 5 * np.eye(2)
    us, cost = dense_qp.by_daqp(dense_qp.build(*problem.sampled[:4], x0, 8, Qf=Qf, u_limits=LIMITS))
    plan, _ = predictive.mpc(problem, 8, Qf=Qf).plan(x0)
    assert not bool(predictive.mpc(problem, 8, Qf=Qf).exact(plan))
    assert float(plan.cost) == pytest.approx(cost, rel=1e-9)
    for design in (predictive.mpc, predictive.nonlinear_mpc):
        run = simulation.rollout(problem, design(problem, 8, Qf=Qf), x0, 3)
        np.testing.assert_allclose(run.us[0], us[0], atol=1e-7)
        refused("not detectable|not stabilizable", design, problem, 8)
    safe = simulation.rollout(problem, predictive.filtered([[0.3, 0.2]], problem), x0, 3)
    np.testing.assert_allclose(safe.us, -np.asarray(safe.xs)[:-1] @ [[0.3], [0.2]], atol=1e-5)


def test_a_missing_measurement_is_predicted():
    design = predictive.mpc(problem_of(limits=LIMITS), 10)
    xs, us = loop(design, [1.0, 0.0], 60)
    gaps, inputs = loop(design, [1.0, 0.0], 60, drop=(3, 4, 17))
    np.testing.assert_allclose(gaps, xs, atol=1e-9)  # nothing but the plant moves it
    np.testing.assert_allclose(inputs, us, atol=1e-9)


def test_a_problem_of_many_plants_is_controlled_as_each_of_them_and_lends_its_limits():
    plants = systems.sample("pendulum", key=jax.random.key(0), num=3)
    problem = simulation.Problem.of(plants, limits=(-1.5, 1.5), linear=True)
    together = predictive.mpc(problem.limited(None), 10)
    x0 = 0.3 * np.random.default_rng(0).normal(size=(3, 2, 2))
    run = simulation.rollout(problem, together, x0, 25)
    deviations = run.us - np.asarray(problem.u_eq)[:, None, None]
    assert float(jnp.abs(deviations).max()) <= 1.5 + 1e-9
    for i in range(3):
        one = problem[i]
        alone = predictive.mpc(one, 10)
        np.testing.assert_allclose(simulation.rollout(one, alone, x0[i], 25).us, run.us[i], atol=1e-8)


@pytest.mark.parametrize(
    "settings",
    [{"C": [[1.0, 0.0]], "reference": [[0.3], [-0.2]]}, {"Qf": [[5.0, 1.0], [1.0, 2.0]]}, {"C": np.eye(2)[:1]}],
)
def test_as_many_rows_as_there_are_plants_are_no_axis_of_the_plants(settings):
    A, B, Q, R = np.array([[1.0, 0.1], [0.0, 0.9]]), [[0.1], [0.2]], np.diag([1.0, 3.0]), np.eye(1)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 2)))

    def inputs(A, x):
        problem = simulation.Problem.from_matrices(A, B, Q, R, dt=0.1, limits=(-1, 1))  # what is left out, all share
        policy = simulation.bind(predictive.mpc(problem, 5, **settings), problem)
        return policy(policy.init(x.shape[:-1]), x)[1]

    together = inputs(np.array([A, 0.8 * A]), x)
    for i, size in enumerate((1.0, 0.8)):
        np.testing.assert_allclose(together[i], inputs(size * A, x[i]), atol=1e-9)


@pytest.mark.parametrize(
    ("design", "change", "message"),
    [
        (predictive.mpc, {"horizon": 0}, "horizon: expected"),
        (predictive.mpc, {"reference": [1.0]}, "C: expected the outputs"),
        (predictive.mpc, {"reference": [1.0, 2.0], "C": np.eye(2)}, "C: 1 inputs cannot hold 2 outputs"),
        (predictive.mpc, {"reference": [1.0], "C": [[0.0, 1.0]]}, "C: no constant input holds y = Cx"),  # a speed
        (predictive.mpc, {"disturbance": "wind"}, "disturbance: expected"),
        (predictive.mpc, {"disturbance": "input"}, "Wd: expected the covariance"),
        (predictive.mpc, {"Wd": np.eye(1)}, "Wd: expected the covariance"),
        (predictive.mpc, {"sensor": [[1.0, 0.0]]}, "problem: expected noise and sensor_noise"),
        (predictive.nonlinear_mpc, {"horizon": 0}, "horizon: expected"),
        (predictive.nonlinear_mpc, {"iterations": 0}, "iterations: expected"),
        (predictive.nonlinear_mpc, {"soft": (0.0, 0.0)}, "soft: expected"),
    ],
)
def test_bad_designs_are_refused_in_words(design, change, message):
    refused(message, design, **{"problem": problem_of(), "horizon": 5} | change)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"u": (0.5, 1.0)}, "limits.u: expected limits around zero, .* could not even hold the operating point"),
        ({"u": (-np.ones((16, 1)), 1.0)}, r"limits.u: expected those of actuators, \(1,\) or less.* shape \(16, 1\)"),
        ({"x": (1.0, -1.0)}, "limits.x: the limits of signal 0 contradict each other"),
        ({"x": (0.1, 1.0)}, "limits.x: expected limits around zero"),
        ({"du": (np.nan, 1.0)}, "limits.du: found NaN"),
        ({"y": (-1.0, 1.0)}, "limits.C: expected the outputs"),
    ],
)
def test_limits_that_a_problem_cannot_have_are_refused_in_words(limits, message):
    refused(message, simulation.Problem.of, systems.make("pendulum"), limits=simulation.Limits(**limits))


def test_limits_of_a_problem_are_deviations_and_go_with_its_units_and_members():
    plant = systems.sample("coupled_tanks", key=jax.random.key(0), num=3)
    (x_eq, u_eq), C = plant.equilibrium(), np.eye(2)[:1]
    limits = simulation.Limits(u=(0.0, 2 * u_eq), x=(0.0, 3 * x_eq[:, None]), y=(0.0, 9.0), du=(-1e-6, 1e-6), C=C)
    problem = simulation.Problem.of(plant, limits=limits, linear=True)
    np.testing.assert_allclose(problem.high, u_eq)
    np.testing.assert_allclose(problem.limits.x[1][:, 0], 2 * x_eq)
    np.testing.assert_allclose(problem.limits.y[0][:, 0], -x_eq[:, :1])
    np.testing.assert_allclose(problem[1].limits.x[0][0], -x_eq[1])
    x0 = -0.9 * x_eq
    scaled = problem.scaled()
    padded = jnp.pad(x0 / problem.scale_x, [(0, 0), (0, 10)])
    plan, same = (predictive.mpc(p, 8).plan(x)[0] for p, x in ((problem, x0), (scaled, padded)))
    assert bool(plan.solved.all())
    np.testing.assert_allclose(same.us[..., :1] * problem.scale_u[:, None], plan.us[..., :1], rtol=1e-6, atol=1e-12)


# Safety filter -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1e-4, 1.0, 1e4])
def test_a_filter_changes_an_input_no_more_than_it_must_whatever_its_plans_cost(weight):
    """What can be followed up lies between two linear programs' optima."""
    limits = simulation.Limits(u=LIMITS, x=([-0.5, -1.0], [0.5, 1.0]))
    problem = simulation.Problem.from_matrices(A, B, weight * Q, R, dt=0.1, limits=limits)
    policy = predictive.filtered([[-3.0, -1.0]], problem, horizon=8)
    powers, high, found = [np.linalg.matrix_power(A, k) for k in range(9)], np.tile([0.5, 1.0], 8), 0
    moved = np.block([[powers[i - j] @ B if i >= j else 0 * B for j in range(8)] for i in range(8)])
    for x in np.random.default_rng(0).uniform(-1, 1, (20, 2)) * high[:2]:
        free = np.concatenate([power @ x for power in powers[1:]])
        rows = np.vstack([moved, -moved]), np.concatenate([high - free, high + free])
        ends = [scipy.optimize.linprog(sign * np.eye(8)[0], *rows, bounds=LIMITS) for sign in (1, -1)]
        if ends[0].success:
            found, nearest = found + 1, np.clip(3 * x[0] + x[1], ends[0].x[0], ends[1].x[0])
            np.testing.assert_allclose(policy(policy.init(()), x)[1], [nearest], atol=2e-6)
    assert found > 9


def test_a_filter_keeps_limits_that_a_controller_would_not():
    """A gain that pushes outwards: with the filter it stays, and brakes no earlier than it must."""
    policy = predictive.filtered([[-1.0, 0.0]], problem_of(limits=LIMITS, x=([-0.5, -10.0], [0.5, 10.0])), horizon=20)
    xs, us = driven(policy, [0.2, 0.0], 120)
    assert 0.49 < xs[:, 0].max() <= 0.5 + 1e-6  # at the very edge, rounding decides what is feasible
    np.testing.assert_allclose(us[:5], np.clip(xs[:5, :1], -1, 1), atol=1e-6)  # far from the limit nothing changes
    assert np.abs(us).max() <= 1 + 1e-9
    free = np.array([0.2, 0.0])
    for _ in range(120):
        free = A @ free + B @ np.clip([free[0]], -1, 1)
    assert free[0] > 5


def test_a_filter_looks_ahead_from_the_state_that_it_expects_where_none_is_measured():
    """Of a controller that pushes outwards, whatever it sees; and of one that has no input then."""
    problem = problem_of(limits=LIMITS, x=([-0.5, -10.0], [0.5, 10.0]))
    push = simulation.TrackingPolicy(jnp.zeros((2, 2)), jnp.full((1, 1), 0.8), jnp.zeros((1, 1, 2)))

    def run(controller, gaps):
        xs, us = driven(predictive.filtered(controller, problem, horizon=20), [0.2, 0.0], 40, drop=gaps)
        assert np.abs(xs[:, 0]).max() <= 0.5 + 1e-6
        return us[:, 0]

    gaps = (3, 4, 5, 6, 7, 8, 9, 10, 17)
    np.testing.assert_allclose(run(push, gaps), run(push, ()), atol=1e-4)
    assert min(run(push, gaps)) < 0  # it braked
    gain = run(np.array([[-1.0, 0.0]]), gaps)
    np.testing.assert_allclose(gain[3:6], gain[2], atol=1e-4)  # the wish before, for as long as that is safe


def test_a_continuous_plant_is_sampled_with_its_cost():
    continuous = np.array([[0.0, 1.0], [-1.0, 0.2]]), np.array([[0.0], [1.0]])
    plant = systems.from_matrices(*continuous, Q=Q, R=R, dt=0.3)
    problem = predictive.mpc(simulation.Problem.of(plant, limits=LIMITS), 6).problem
    sampled = scipy_oracle.van_loan(*continuous, Q, R, 0.3)
    for found, expected in zip(problem.sampled, sampled):
        np.testing.assert_allclose(found, expected, atol=1e-12)
