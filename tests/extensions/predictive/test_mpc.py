"""Predictive controllers: their loops beside the regulator's, the dense referee's and the optimum over all time."""

import dense_qp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy_oracle

from lqrlab import predictive, simulation, systems

A, B = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.005], [0.1]])  # a mass that a force pushes, every 0.1 s
Q, R, ONE = np.diag([1.0, 0.1]), np.array([[0.1]]), np.eye(1)
LIMITS = (-1.0, 1.0)
NOISE = {"W": 1e-4 * np.eye(2), "V": 1e-4 * np.eye(2)}


SPRING = np.array([[1.0, 0.1], [-0.1, 0.9]])  # the mass on a damped spring


def loop(design, x0, steps, *, A=A, push=0.0, seen=lambda x: x, drop=()):
    """States and inputs of the closed loop on the linear plant, simulated here; ``push`` is added to the inputs."""
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=Q, R=R, dt=0.1)
    policy = simulation.bind(design, simulation.Problem.of(plant))
    policy = getattr(policy, "policy", policy)  # what is measured is said here
    step = jax.jit(lambda memory, y: policy(memory, y))
    x, memory, xs, us = np.asarray(x0, float), policy.init(()), [], []
    for t in range(steps):
        y = jnp.full_like(jnp.asarray(seen(x)), jnp.nan) if t in drop else jnp.asarray(seen(x))
        memory, u = step(memory, y)
        xs, us = [*xs, x], [*us, np.asarray(u)]
        x = A @ x + B @ (us[-1] + push)
    return np.array([*xs, x]), np.array(us)


def test_without_limits_the_plan_is_the_regulators():
    design = predictive.mpc(A, B, Q, R, 6)
    K, _P = scipy_oracle.gain(A, B, Q, R, np.zeros((2, 1)))
    plan, _ = design.plan([0.3, -0.2])
    x = np.array([0.3, -0.2])
    for u in np.asarray(plan.us):
        np.testing.assert_allclose(u, -K @ x, atol=1e-12)
        x = A @ x + B @ u
    assert np.isinf(design.level)
    assert bool(design.exact(plan))


def test_a_continuous_plant_is_sampled_with_its_cost():
    continuous = np.array([[0.0, 1.0], [-1.0, 0.2]]), np.array([[0.0], [1.0]])
    design = predictive.mpc(*continuous, Q, R, 6, dt=0.3, u_limits=LIMITS)
    sampled = scipy_oracle.van_loan(*continuous, Q, R, 0.3)
    for found, expected in zip((design.A, design.B, design.Q, design.R, design.N), sampled):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.matrix
def test_the_loop_of_a_long_horizon_costs_the_constrained_optimum():
    """Summed along the loop; the optimum beside the referee's for a horizon after which no limit holds."""
    design, x0 = predictive.mpc(A, B, Q, R, 64, u_limits=LIMITS), np.array([2.0, 0.5])
    xs, us = loop(design, x0, 250)
    assert np.abs(us).max() <= 1 + 1e-12
    assert (np.abs(us) > 1 - 1e-9).sum() > 5
    paid = np.einsum("ti,ij,tj->", xs[:-1], Q, xs[:-1]) + np.einsum("ti,ij,tj->", us, R, us)
    best = predictive.constrained_optimum(A, B, Q, R, x0, u_limits=LIMITS)
    assert bool(best.found)
    assert paid == pytest.approx(float(best.cost), rel=1e-9)
    _K, P = scipy_oracle.gain(A, B, Q, R, np.zeros((2, 1)))
    referee = dense_qp.solve(dense_qp.build(A, B, Q, R, x0, 100, Qf=P, u_limits=LIMITS))
    assert float(best.cost) == pytest.approx(referee.cost, rel=1e-9)
    assert not bool(design.exact(predictive.mpc(A, B, Q, R, 64, u_limits=(-0.2, 0.2)).plan(x0)[0]))


def test_the_optimum_tells_what_no_input_holds():
    best = predictive.constrained_optimum(
        [[1.2]], ONE, ONE, ONE, [[0.5], [5.1]], u_limits=LIMITS, x_limits=(-6, 6), longest=16
    )
    assert best.infeasible.tolist() == [False, True]  # beyond 5 it grows by more than the input can take away
    assert best.cost[1] == np.inf
    assert best.found.tolist() == [True, False]


def test_the_terminal_level_keeps_limits_and_is_the_largest():
    design = predictive.mpc(A, B, Q, R, 6, u_limits=(-0.7, 1.0), x_limits=(-3, [2.0, 4.0]))
    K, P, level = np.asarray(design.K), np.asarray(design.P), float(design.level)
    angles = np.linspace(0, 2 * np.pi, 4000)
    rim = np.linalg.solve(np.linalg.cholesky(P).T, [np.cos(angles), np.sin(angles)]) * np.sqrt(level)
    use = max((-K @ rim).max(), (K @ rim).max() / 0.7, rim[0].max() / 2, -rim.min() / 3, rim[1].max() / 4)
    assert use == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("blocks", [None, pytest.param((1, 2, 3), marks=pytest.mark.matrix)])
def test_an_estimated_force_leaves_no_offset(blocks):
    given = {"C": [[1.0, 0.0]], "reference": [0.5], "u_limits": (-2, 2), "move_blocks": blocks}
    design = predictive.mpc(A, B, Q, R, 10, **given, **NOISE, disturbance="input", Wd=[[1e-2]])
    xs, us = loop(design, np.zeros(2), 150, push=0.4)
    assert xs[-1, 0] == pytest.approx(0.5, abs=1e-4)
    assert us[-1, 0] == pytest.approx(-0.4, abs=1e-4)


def test_an_estimated_bias_of_a_sensor_leaves_what_it_shows_at_the_reference():
    given = {"C": [[1.0, 0.0]], "reference": [0.5], "u_limits": (-2, 2), "W": NOISE["W"], "V": [[1e-4]], "Wd": [[1e-2]]}
    design = predictive.mpc(SPRING, B, Q, R, 10, **given, disturbance="output")
    xs, _us = loop(design, np.zeros(2), 200, A=SPRING, seen=lambda x: x[:1] + 0.3)
    assert xs[-1, 0] + 0.3 == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(ValueError, match="disturbance: what is measured does not show it; an output's is not told"):
        predictive.mpc(A, B, Q, R, 10, **given, disturbance="output")


def test_a_reference_is_seen_in_advance():
    step = np.r_[np.zeros(15), np.ones(5)][:, None]
    design = predictive.mpc(A, B, Q, R, 10, C=[[1.0, 0.0]], reference=step, u_limits=(-2, 2))
    xs, us = loop(design, np.zeros(2), 80)
    np.testing.assert_allclose(us[:5], 0, atol=1e-9)  # nothing to do yet
    assert us[10, 0] > 0.05  # on its way before the step
    assert xs[-1, 0] == pytest.approx(1.0, abs=1e-3)


def test_changes_are_limited_from_sample_to_sample():
    design = predictive.mpc(A, B, Q, R, 10, u_limits=LIMITS, du_limits=(-0.1, 0.1))
    _xs, us = loop(design, [1.0, 0.0], 30)
    changes = np.diff(np.r_[0.0, us[:, 0]])
    assert np.abs(changes).max() == pytest.approx(0.1, abs=1e-9)


def test_a_missing_measurement_is_predicted():
    design = predictive.mpc(A, B, Q, R, 10, u_limits=LIMITS)
    xs, us = loop(design, [1.0, 0.0], 60)
    gaps, inputs = loop(design, [1.0, 0.0], 60, drop=(3, 4, 17))
    np.testing.assert_allclose(gaps, xs, atol=1e-9)  # nothing but the plant moves it
    np.testing.assert_allclose(inputs, us, atol=1e-9)


@pytest.mark.matrix
def test_a_problem_of_many_plants_is_controlled_as_each_of_them_and_lends_its_limits():
    plants = systems.sample("pendulum", key=jax.random.key(0), num=3)
    problem = simulation.Problem.of(plants, limits=(-1.5, 1.5), linear=True)
    together = predictive.mpc(problem.A, problem.B, problem.Q, problem.R, 10, N=problem.N)
    x0 = 0.3 * np.random.default_rng(0).normal(size=(3, 2, 2))
    run = simulation.rollout(problem, together, x0, 25)
    deviations = run.us - np.asarray(problem.u_eq)[:, None, None]
    assert float(jnp.abs(deviations).max()) <= 1.5 + 1e-9
    for i in range(3):
        one = problem[i]
        alone = predictive.mpc(one.A, one.B, one.Q, one.R, 10, N=one.N)
        np.testing.assert_allclose(simulation.rollout(one, alone, x0[i], 25).us, run.us[i], atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 0}, "horizon: expected"),
        ({"u_limits": (0.5, 1.0)}, "u_limits: expected limits around zero, the equilibrium"),
        ({"u_limits": (1.0, -1.0)}, "u_limits: the limits of signal 0 contradict each other"),
        ({"Qf": "lqg"}, "Qf: expected"),
        ({"reference": [1.0]}, "C: expected the outputs"),
        ({"reference": [1.0, 2.0], "C": np.eye(2)}, "C: 1 inputs cannot hold 2 outputs"),
        ({"reference": [1.0], "C": [[0.0, 1.0]]}, "C: no constant input holds y = Cx"),  # a speed: it moves away
        ({"disturbance": "wind"}, "disturbance: expected"),
        ({"disturbance": "input"}, "W, V: an estimated disturbance needs the covariances"),
        ({"W": np.eye(2)}, "W, V, Wd: expected W and V together"),
        ({"sensor": [[1.0, 0.0]]}, "W, V: a sensor of the state needs"),
    ],
)
def test_bad_designs_are_refused_in_words(change, message):
    given = {"A": A, "B": B, "Q": Q, "R": R, "horizon": 5} | change
    with pytest.raises(ValueError, match=message):
        predictive.mpc(**given)


# Safety filter -------------------------------------------------------------------------------------------------------


def filtered_loop(gain, x0, steps, **limits):
    """States, inputs and what the gain alone would have sent, of the filtered loop on a mass."""
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=Q, R=R, dt=0.1)
    policy = predictive.filtered(gain, simulation.Problem.of(plant, limits=(-1.0, 1.0), linear=True), **limits)
    step = jax.jit(lambda memory, x: policy(memory, x))
    x, memory, xs, us = np.asarray(x0, float), policy.init(()), [np.asarray(x0, float)], []
    for _ in range(steps):
        memory, u = step(memory, jnp.asarray(x))
        us.append(np.asarray(u))
        x = A @ x + B @ us[-1]
        xs.append(x)
    xs = np.array(xs)
    return xs, np.array(us), -xs[:-1] @ np.asarray(gain).T


@pytest.mark.matrix
def test_a_filter_leaves_a_safe_controller_alone():
    _xs, us, wanted = filtered_loop([[0.2, 0.6]], [0.5, 0.0], 60, x_limits=(-1.0, 1.0))
    np.testing.assert_allclose(us, wanted, atol=1e-6)


@pytest.mark.matrix
def test_a_filter_keeps_limits_that_a_controller_would_not():
    """A gain that pushes outwards: with the filter it stays, and brakes no earlier than it must."""
    xs, us, wanted = filtered_loop([[-1.0, 0.0]], [0.2, 0.0], 120, x_limits=([-0.5, -10.0], [0.5, 10.0]), horizon=20)
    assert xs[:, 0].max() <= 0.5 + 1e-6  # at the very edge, rounding decides what is feasible
    assert xs[:, 0].max() > 0.49
    np.testing.assert_allclose(us[:5], np.clip(wanted[:5], -1, 1), atol=1e-6)  # far from the limit nothing changes
    assert np.abs(us).max() <= 1 + 1e-9
    free = np.array([0.2, 0.0])
    for _ in range(120):
        free = A @ free + B @ np.clip([free[0]], -1, 1)
    assert free[0] > 5


def test_a_filter_refuses_limits_without_the_equilibrium():
    problem = simulation.Problem.of(systems.make("pendulum"))
    with pytest.raises(ValueError, match="x_limits: expected limits around zero"):
        predictive.filtered([[1.0, 1.0]], problem, x_limits=(0.1, 1.0))
