"""Trajectories within limits, and schedules, against SciPy's optimisers, integrators and Riccati solver."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.interpolate
import scipy.linalg
import scipy.optimize
from refusals import refused
from scipy.integrate import solve_ivp
from scipy_oracle import gain, van_loan

from lqrlab import control, predictive, simulation, systems, tuning
from lqrlab.extensions.predictive import trajectory_search
from lqrlab.extensions.predictive.trajectory_search import TrajectoryProblem

Q, R, QF = np.diag([1.0, 0.1]), np.diag([0.4, 1.0]), 20 * np.eye(2)
LIMITS, DT, STEPS = np.array([3.0, 1.5]), 0.1, 12


def two_torques(x, u):
    """A pendulum with a crank of varying leverage: two inputs of different worth."""
    return jnp.stack([x[1], jnp.sin(x[0]) - 0.1 * x[1] + u[0] + jnp.cos(x[0]) * u[1]])


def cost_of(us, x0):
    """The same cost, by a Runge-Kutta 4 of our own in NumPy, for many ``us [k, T, 2]`` at once."""
    z = np.tile(np.append(x0, 0.0), (len(us), 1))

    def rates(z, u):
        x = z[:, :2]
        pull = np.sin(x[:, 0]) - 0.1 * x[:, 1] + u[:, 0] + np.cos(x[:, 0]) * u[:, 1]
        bill = np.einsum("ki,ij,kj->k", x, Q, x) + np.einsum("ki,ij,kj->k", u, R, u)
        return np.stack([x[:, 1], pull, bill], axis=1)

    h = DT / 2
    for t in range(STEPS):
        for _ in range(2):
            k1 = rates(z, us[:, t])
            k2 = rates(z + h / 2 * k1, us[:, t])
            k3 = rates(z + h / 2 * k2, us[:, t])
            k4 = rates(z + h * k3, us[:, t])
            z = z + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return z[:, 2] + np.einsum("ki,ij,kj->k", z[:, :2], QF, z[:, :2])


def test_a_step_towards_a_goal_costs_what_solve_ivp_says_and_has_the_slopes_of_finite_differences():
    x_goal, u_goal, x, u = (np.array(a) for a in ([0.5, -0.2], [0.3, 0.1], [0.9, 0.4], [-0.5, 0.8]))
    goal = map(jnp.asarray, (Q, R, QF, x_goal, u_goal, -LIMITS, LIMITS, 0.2))
    problem = TrajectoryProblem(two_torques, 20, *goal)

    def rates(_, z):
        x1, x2, _ = z
        e = z[:2] - x_goal
        return [x2, np.sin(x1) - 0.1 * x2 + u[0] + np.cos(x1) * u[1], e @ Q @ e]

    end = solve_ivp(rates, (0, 0.2), [*x, 0], rtol=1e-11, atol=1e-12).y[:, -1]
    step = jax.jit(problem.step)
    after, cost = step(jnp.asarray(x), jnp.asarray(u))
    np.testing.assert_allclose(after, end[:2], rtol=1e-8)
    np.testing.assert_allclose(cost, end[2] + 0.2 * (u - u_goal) @ R @ (u - u_goal), rtol=1e-8)
    e = x - x_goal
    np.testing.assert_allclose(problem.final(jnp.asarray(x)), e @ QF @ e)

    def moved(i, h):
        z = np.concatenate([x, u]) + h * np.eye(4)[i]
        return [np.asarray(a) for a in step(jnp.asarray(z[:2]), jnp.asarray(z[2:]))]

    A, B, gradient, hessian = problem.expand(jnp.asarray(x), jnp.asarray(u))
    slopes = [[(a - b) / 2e-5 for a, b in zip(moved(i, 1e-5), moved(i, -1e-5))] for i in range(4)]
    np.testing.assert_allclose(np.hstack([A, B]), np.stack([s[0] for s in slopes], axis=1), atol=1e-8)
    np.testing.assert_allclose(gradient, [s[1] for s in slopes], atol=1e-8)
    # Gauss-Newton: 2 ∫ SᵀQS with the slopes S of the state over the step
    expected = 0.0
    for t, w in zip(*np.polynomial.legendre.leggauss(5)):
        S = np.hstack(problem._replace(dt=jnp.asarray(0.1 * (t + 1))).expand(jnp.asarray(x), jnp.asarray(u))[:2])
        expected += 2 * 0.1 * w * S.T @ Q @ S
    expected[2:, 2:] += 2 * 0.2 * R
    np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-9)


def test_a_linear_problem_takes_one_step_and_is_the_finite_horizon():
    rng = np.random.default_rng(0)
    A, B = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=(3, 2)))
    Q, R, Qf, x0, T = (np.diag([1.0, 2.0, 0.5]), np.diag([1.0, 0.3]), 3 * np.eye(3), np.array([1.0, -2.0, 0.5]), 15)
    plan = predictive.ilqr(lambda x, u: A @ x + B @ u, x0, Q, R, T, Qf, dt=0.1)
    A, B, Q, R, N = control.discretize(A, B, Q, R, 0.1)
    exact = control.finite_horizon(A, B, Q, R, T, Qf, N)
    assert int(plan.iterations) == 1
    assert bool(plan.converged)
    np.testing.assert_allclose(plan.K, exact.K, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(plan.P, exact.P, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(plan.cost, x0 @ exact.P[0] @ x0, rtol=1e-12)
    np.testing.assert_allclose(plan.us, -np.einsum("tij,tj->ti", exact.K, plan.xs[:-1]), atol=1e-11)


def test_a_step_is_expected_to_lower_a_quadratic_cost_by_what_it_does_lower_it():
    a, b, q, r, qf, dt = -0.5, 2.0, 3.0, 0.7, 4.0, 0.1
    given = (jnp.array([[w]]) for w in (q, r, qf))
    zero, far = jnp.zeros(1), jnp.full(1, 1e6)
    problem = TrajectoryProblem(lambda x, u: a * x + b * u, 20, *given, zero, zero, -far, far, dt)
    one = np.ones((1, 1))
    A, B, Qd, Rd, Nd = (np.asarray(w).item() for w in control.discretize(a * one, b * one, q * one, r * one, dt))
    xs, us = A ** np.arange(6) * 2.0, np.zeros(5)
    way = (jnp.asarray(a[:, None]) for a in (xs, us))
    *_, gain = trajectory_search.backward(problem, None, *way, jnp.zeros(()))
    P = qf
    for _ in range(5):
        P = Qd + A * A * P - (A * B * P + Nd) ** 2 / (Rd + B * B * P)
    now = Qd * np.sum(xs[:-1] ** 2) + qf * xs[-1] ** 2
    assert float(gain) == pytest.approx(now - P * xs[0] ** 2, rel=1e-6)


def test_inputs_within_limits_are_those_of_scipys_optimiser():
    x0 = np.array([[1.5, 0.0], [-1.8, 0.3]])
    search = predictive.Search(tolerance=1e-12)
    plan = predictive.ilqr(two_torques, x0, Q, R, STEPS, QF, dt=DT, limits=(-LIMITS, [3.0, 0.5]), search=search)
    assert bool(plan.converged.all())
    bounds = np.tile(np.stack([-LIMITS, [3.0, 0.5]], axis=1), (STEPS, 1))
    for i in range(2):
        ours = np.asarray(plan.us[i]).ravel()

        def slope(u, x0=x0[i]):
            both = u + 1e-5 * np.concatenate([np.eye(u.size), -np.eye(u.size)])
            up, down = np.split(cost_of(both.reshape(-1, STEPS, 2), x0), 2)
            return (up - down) / 2e-5

        def cost(u, x0=x0[i]):
            return cost_of(u.reshape(1, STEPS, 2), x0)[0]

        best = scipy.optimize.minimize(
            cost, np.zeros(ours.size), jac=slope, bounds=bounds, method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-8, "maxiter": 2000},
        )  # fmt: skip
        np.testing.assert_allclose(plan.cost[i], cost(ours), rtol=1e-12)
        np.testing.assert_allclose(plan.cost[i], best.fun, rtol=1e-9)
        np.testing.assert_allclose(ours, best.x, atol=1e-4)
        # the slope of the cost, by finite differences: none where an input is free, outwards at a limit
        low, high = ours <= bounds[:, 0], ours >= bounds[:, 1]
        at, free = slope(ours), ~(low | high)
        assert free.sum() >= 5
        assert (low | high).sum() >= 3
        assert np.abs(at[free]).max() < 1e-5 * np.abs(at).max()
        assert (at[low] > 0).all()
        assert (at[high] < 0).all()
        held = np.asarray(plan.K[i]).reshape(-1, 2)[low | high]
        assert not held.any(), "an input at its limit has no gain"


def test_plans_in_a_batch_are_followed_each_by_its_own_gains():
    x0 = np.array([[0.4, 0.0], [-0.3, 0.3]])
    plan = predictive.ilqr(two_torques, x0, Q, R, STEPS, QF, dt=DT)
    plant = systems.from_dynamics(two_torques, x_eq=[0.0, 0.0], u_eq=[0.0, 0.0], Q=Q, R=R, dt=DT)
    starts = x0[:, None] + np.array([[0.0, 0.0], [0.05, 0.0], [0.0, -0.1]])
    run = simulation.rollout(plant, simulation.tracking(plant, plan), starts, STEPS + 2, substeps=2)
    np.testing.assert_allclose(run.xs[:, 0, : STEPS + 1], plan.xs, rtol=1e-9, atol=1e-12)
    last = np.minimum(np.arange(STEPS + 2), STEPS - 1)  # afterwards the last point is held
    xs, us, K = (np.asarray(a) for a in (plan.xs[:, last], plan.us[:, last], plan.K[:, last]))
    away = np.asarray(run.xs[:, :, :-1]) - xs[:, None]
    np.testing.assert_allclose(run.us, us[:, None] - np.einsum("ptij,pstj->psti", K, away), atol=1e-12)


def test_a_plant_in_single_precision_stays_there():
    plant = jax.tree.map(lambda a: a.astype(jnp.float32), systems.make("pendulum"))
    assert plant.dynamics(jnp.ones(2, jnp.float32), jnp.ones(1, jnp.float32)).dtype == jnp.float32


def test_quadratic_programs_in_a_box_equal_lsq_linear():
    rng = np.random.default_rng(1)
    L, b = rng.normal(size=(200, 5, 4)), 2 * rng.normal(size=(200, 5))
    low, high = -rng.uniform(0, 1, (200, 4)), rng.uniform(0, 1, (200, 4))
    H, g = np.einsum("kij,kil->kjl", L, L), -np.einsum("kij,ki->kj", L, b)
    u, free = jax.jit(jax.vmap(trajectory_search.box_qp))(H, g, low, high)
    for i in range(200):
        exact = scipy.optimize.lsq_linear(L[i], b[i], (low[i], high[i]), method="bvls", tol=1e-14)
        np.testing.assert_allclose(u[i], exact.x, atol=1e-9)
        np.testing.assert_array_equal(free[i], exact.active_mask == 0)


def moving_mass(x, u):
    return jnp.stack([x[1], u[0]])


def test_a_mass_with_a_speed_limit_moves_as_scipys_quadratic_program():
    T, dt, rest, fastest = 20, 0.1, np.array([1.0, 0.0]), 0.7

    def states(us):  # exact: the force is held
        v = np.concatenate([[0.0], np.cumsum(us) * dt])
        return np.concatenate([[0.0], np.cumsum(v[:-1] * dt + us * dt**2 / 2)]), v

    def cost(us):
        x, v = states(us)
        t = dt * (np.polynomial.legendre.leggauss(3)[0] + 1) / 2  # exact for these parabolas
        between = x[:-1, None] + v[:-1, None] * t + us[:, None] * t**2 / 2 - 1.0
        paid = np.sum(between**2 @ np.polynomial.legendre.leggauss(3)[1]) * dt / 2
        return paid + 0.1 * dt * us @ us + 10 * ((x[-1] - 1) ** 2 + v[-1] ** 2)

    speeds = dt * np.tril(np.ones((T, T)))
    held = {"type": "ineq", "fun": lambda us: fastest - speeds @ us, "jac": lambda us: -speeds}
    best = scipy.optimize.minimize(
        cost, np.zeros(T), bounds=[(-2, 2)] * T, constraints=held, method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    given = {"dt": dt, "goal": (rest, [0.0])}
    within = lambda *x: simulation.Limits(u=(-2.0, 2.0), x=x or None)  # noqa: E731
    problem = moving_mass, np.zeros(2), np.diag([1.0, 0.0]), [[0.1]], T, 10 * np.eye(2)
    ends = np.array([[-0.2, -np.inf], [np.inf, fastest]])
    plan = predictive.ilqr(*problem, **given, limits=within(ends[0], ends[1]))
    free = predictive.ilqr(*problem, **given, limits=within())
    assert bool(plan.converged)
    assert float(np.max(plan.P)) < 1e3, "multipliers spare the stiffness"
    np.testing.assert_allclose(plan.us[:, 0], best.x, atol=2e-4)
    np.testing.assert_allclose(plan.cost, cost(best.x), rtol=1e-6)
    assert np.max(free.xs[:, 1]) > 1.1 * fastest, "the limit binds"
    np.testing.assert_allclose(plan.violation, np.maximum(np.max(plan.xs, axis=0) - ends[1], 0), atol=1e-15)
    assert np.all(plan.violation < 1e-6)
    # limits that do not bind change nothing, those that cannot be kept are told of
    loose, tight = (predictive.ilqr(*problem, **given, limits=within(-np.inf, [top, 9.0])) for top in (1.5, 0.0))
    np.testing.assert_allclose(loose.us, free.us, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(free.violation, 0.0)
    assert bool(loose.converged)
    hopeless = predictive.ilqr(moving_mass, [0.0, 5.0], *problem[2:], **given, limits=within(-np.inf, [0.1, np.inf]))
    assert not bool(hopeless.converged)
    assert float(hopeless.violation[0]) == pytest.approx(5.9)  # braking with all its force, all the way
    assert bool(tight.converged)
    np.testing.assert_allclose(tight.xs[:, 0], 0.0, atol=1e-6)


def test_a_cart_that_backs_off_before_it_moves_does_so_within_its_rail():
    plant = systems.make("cart_pole")
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    P, x0 = control.lqrd(A, B, Q, R, plant.dt).P, np.array([-0.28, 0.0, 0.0, 0.0])

    def planned(Q, end):
        low = jnp.array([end, *[-np.inf] * 3])
        return predictive.ilqr(plant.dynamics, x0, Q, R, 60, P, dt=plant.dt, limits=simulation.Limits(x=(low, np.inf)))

    free, plan = planned(Q, -np.inf), planned(Q, -0.285)
    assert bool(plan.converged)
    assert float(free.xs[:, 0].min()) < -0.29
    assert float(plan.xs[:, 0].min()) == pytest.approx(-0.285, abs=1e-6)
    assert float(plan.cost) > 1.01 * float(free.cost)
    problem = simulation.Problem.of(plant, substeps=2, optimum=False)
    run = simulation.rollout(problem, simulation.tracking(plant, plan), x0, 60)
    np.testing.assert_allclose(run.xs, plan.xs, atol=1e-9)
    left = run.xs[-1] @ P @ run.xs[-1]
    np.testing.assert_allclose(run.cost + left, plan.cost, rtol=1e-9)


def test_a_trajectory_has_no_derivative():
    for derivative in (jax.grad, jax.jacfwd):
        slope = derivative(lambda w: predictive.ilqr(two_torques, np.ones(2), w * Q, R, STEPS, dt=DT).cost)
        refused("ilqr: expected no derivative", slope, 1.0)


def test_a_member_that_diverges_is_marked_and_the_rest_solved():
    def f(x, u):
        return x**3 + u

    def plan(x0, **options):
        return predictive.ilqr(f, x0, [[1.0]], [[1.0]], 12, dt=0.1, search=predictive.Search(**options))

    both = plan([[0.3], [4.0]])
    np.testing.assert_allclose(both.cost[0], plan([0.3]).cost, rtol=1e-12)
    assert both.converged.tolist() == [True, False]
    assert not np.isfinite(both.cost[1])
    refused(r"us: along the first guess .* diverges", plan, [4.0])
    assert int(plan([0.3], max_iterations=1).iterations) == 1
    assert not bool(plan([0.6], max_iterations=1).converged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": 0}, "num_steps: expected a whole number ≥ 1"),
        ({"x0": np.zeros(3)}, r"x0: expected shape \(…, 2\), but found \(3,\)"),
        ({"search": predictive.Search(np.zeros((4, 2)))}, r"us: expected shape \(…, 12, 2\)"),
        ({"Qf": np.eye(3)}, "Qf: expected shape"),
        ({"limits": (1.0, -1.0)}, "limits.u: the limits of signal 0 contradict each other"),
        ({"limits": (np.zeros(3), 1.0)}, "limits.u: expected a number or 2 for low"),
        ({"limits": simulation.Limits(du=(-1.0, 1.0))}, "limits: expected those of inputs and states, but found du"),
        (
            {"x0": np.array([0.0, 3.0]), "limits": simulation.Limits(x=(-1.0, [1.0, 2.0]))},
            "x0: state 1 starts at 3, outside its limits from -1 to 2, and no input",
        ),
        ({"dt": 0.0}, "dt: expected a sample time above 0 s"),
        ({"R": -R}, "R: expected positive definite"),
        ({"f": lambda x, u: x[0]}, r"f: expected ẋ of shape \(2,\)"),
    ],
)
def test_a_bad_problem_is_refused(change, message):
    given = {"f": two_torques, "x0": np.zeros(2), "Q": Q, "R": R, "num_steps": STEPS, "dt": DT} | change
    refused(message, predictive.ilqr, **given)


def closed_loop(plant, policy, x, num_steps, limit):
    """The nonlinear plant under a sampled policy, integrated by SciPy; states and inputs."""
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    dynamics, act = jax.jit(plant.dynamics), jax.jit(lambda carry, x: policy(carry, x))
    carry, xs, us = policy.init(()), [x], []
    for _ in range(num_steps):
        carry, u = act(carry, jnp.asarray(xs[-1] - x_eq))
        u = np.asarray(u) + u_eq
        assert np.abs(u - u_eq).max() <= limit.max() * (1 + 1e-12)
        run = solve_ivp(lambda _, x, u=u: dynamics(x, u), (0, plant.dt), xs[-1], "DOP853", rtol=1e-8, atol=1e-9)
        xs.append(run.y[:, -1])
        us.append(u)
    return np.stack(xs), np.stack(us)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hanging", "num_steps"),
    [("pendulum", [np.pi, 0], 120), ("cart_pole", [0, np.pi, 0, 0], 160), ("acrobot", [np.pi, 0, 0, 0], 200)],
)
def test_swing_ups_end_in_the_regulators_hands(name, hanging, num_steps):
    plant = systems.make(name)
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    (x_eq, u_eq), limit = (np.asarray(a) for a in plant.equilibrium()), np.asarray(plant.scales[1])
    design = control.lqrd(A, B, Q, R, plant.dt)
    plan = predictive.ilqr(
        plant.dynamics, hanging, Q, R, num_steps, design.P,
        dt=plant.dt, goal=(x_eq, u_eq), limits=(u_eq - limit, u_eq + limit), search=predictive.Search(tolerance=1e-6),
    )  # fmt: skip
    assert bool(plan.converged)
    level = control.unsaturated_level(design.K, design.P, limit)
    swing = simulation.tracking(plant, plan)
    policy = predictive.SwitchingPolicy(swing, simulation.LinearPolicy(design.K), design.P, level)
    xs, us = closed_loop(plant, policy, np.array(hanging, float), num_steps + 150, limit)
    inside = np.asarray(policy.inside(jnp.asarray(xs - x_eq)))
    at = np.argmax(inside)
    assert 0 < at <= num_steps + 1, "never handed over"
    np.testing.assert_allclose(us[at:] - u_eq, -(xs[at:-1] - x_eq) @ np.asarray(design.K).T, atol=1e-9)
    assert (np.abs(xs[-1] - x_eq) < 3e-3 * np.asarray(plant.scales[0])).all()
    # the regulator alone, from the same start, does not get there: its input runs into the limits
    assert np.abs(np.asarray(design.K) @ (hanging - x_eq)).max() > limit.max()
    run = simulation.rollout(plant, swing, hanging - x_eq, num_steps, substeps=2)
    left = run.xs[-1] @ design.P @ run.xs[-1]
    np.testing.assert_allclose(run.cost + left, plan.cost, rtol=1e-9)
    assert us.min() < -0.99 * limit.max()


def test_a_schedule_is_the_pointwise_design_on_its_grid_and_linear_between():
    masses, pulls = np.array([0.5, 1.0, 2.0, 4.0]), np.array([0.0, 3.0, 9.0])
    m, k = np.meshgrid(masses, pulls, indexing="ij")
    zero, one = np.zeros_like(m), np.ones_like(m)
    A = np.stack([np.stack([zero, one], -1), np.stack([k / m, zero], -1)], -2)
    B = np.stack([zero, 1 / m], -1)[..., None]
    points = (np.stack([m, k], -1), k[..., None])
    made = tuning.gain_schedule((masses, pulls), A, B, np.eye(2), np.eye(1), points=points)
    for i in np.ndindex(4, 3):
        K, _ = gain(A[i], B[i], np.eye(2), np.eye(1), discrete=False)
        np.testing.assert_allclose(made.design.K[i], K, rtol=1e-9)
    sampled = tuning.gain_schedule((masses, pulls), A, B, np.eye(2), np.eye(1), 0.3 * np.ones((2, 1)), dt=0.1)
    for i in np.ndindex(4, 3):
        K, _ = gain(*van_loan(A[i], B[i], np.eye(2), np.eye(1), 0.1, np.full((2, 1), 0.3)))
        np.testing.assert_allclose(sampled.design.K[i], K, rtol=1e-8)
    asked = np.array([[0.5, 0.0], [4.0, 9.0], [1.7, 4.0], [3.9, 0.1], [9.0, -5.0]])
    between = scipy.interpolate.RegularGridInterpolator((masses, pulls), np.asarray(made.design.K))
    K, x_op, u_op = made(asked)
    inside = np.clip(asked, [0.5, 0.0], [4.0, 9.0])
    np.testing.assert_allclose(K, between(inside), rtol=1e-9)
    np.testing.assert_allclose(x_op, inside, rtol=1e-12)
    np.testing.assert_allclose(u_op[:, 0], inside[:, 1], rtol=1e-12, atol=1e-12)
    # as a policy: here the state is the parameter, seen and answered as deviations from x_eq, u_eq
    x_eq, u_eq = jnp.array([0.2, -0.1]), jnp.array([3.0])
    policy = tuning.ScheduledPolicy(made, x_eq, u_eq, lambda x: x)
    away = np.einsum("kij,kj->ki", between(inside), asked - inside)
    found = policy(None, jnp.asarray(asked - np.asarray(x_eq)))[1]
    np.testing.assert_allclose(found, inside[:, 1:] - away - 3.0, rtol=1e-9)


def test_a_schedule_does_not_pass_through_a_point_without_a_design():
    pull = np.array([-1.0, 0.0, 1.0])
    A, B = np.diag([1.0, -1.0]), np.stack([pull, np.ones(3)], -1)[..., None]
    for grid, words in (
        (pull, r"1 of 3 points .* at 0: mode at \+1 rad/s is not stabilizable"),
        (pull[::-1], "grid: expected rising values"),
        (pull[:2], r"B: expected shape \(2, 2, 1\) over the grid"),
    ):
        refused(words, tuning.gain_schedule, grid, A, B, np.eye(2), np.eye(1))


def test_a_schedule_follows_a_plant_whose_parameter_moves():
    last, dt, T = 30.0, 0.02, 200

    def f(x, u):  # what pulls the mass away from the origin grows thirtyfold
        return jnp.stack([x[1], x[2] * x[0] + u[0], 0.8 * (last - x[2])])

    plant = systems.from_dynamics(f, x_eq=[0.0, 0.0, last], u_eq=[0.0], Q=np.diag([1.0, 1.0, 0.0]), R=np.eye(1), dt=dt)
    grid = np.linspace(1.0, last, 13)
    A = np.zeros((13, 2, 2))
    A[:, 0, 1], A[:, 1, 0] = 1.0, grid
    made = tuning.gain_schedule(grid, A, np.array([[0.0], [1.0]]), np.eye(2), np.eye(1), dt=dt)
    policy = tuning.scheduled(plant, made, lambda x: x[..., 2:])
    x0 = np.array([0.5, 0.0, 1.0])
    run = simulation.rollout(plant, policy, x0 - plant.x_eq, T)

    def pointwise(x):  # a design at every instant
        return gain(*van_loan(np.array([[0, 1], [x[2], 0]]), np.eye(2)[:, 1:], np.eye(2), np.eye(1), dt))[0] @ x[:2]

    x, xs = x0, [x0]
    for _ in range(T):
        u = -pointwise(x)

        def rates(_, x, u=u):
            return [x[1], x[2] * x[0] + u[0], 0.8 * (last - x[2])]

        x = solve_ivp(rates, (0, dt), x, rtol=1e-8, atol=1e-10).y[:, -1]
        xs.append(x)
    np.testing.assert_allclose(np.asarray(run.xs) + np.asarray(plant.x_eq), xs, atol=3e-3)
    assert np.abs(run.xs[-1, :2]).max() < 1e-3
    fixed = simulation.LinearPolicy(jnp.pad(made.design.K[0], ((0, 0), (0, 1))))
    assert np.abs(simulation.rollout(plant, fixed, x0 - plant.x_eq, T).xs[-1, :2]).max() > 10
