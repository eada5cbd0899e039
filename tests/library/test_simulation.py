"""Closed loops: against solve_ivp, closed forms and a plain NumPy loop, none of which shares code with ours."""

import dataclasses
import inspect

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from unrecognised import Unrecognised

from lqrlab import control, environments, simulation, systems
from lqrlab.simulation.constant_gain import loops_of

KEY = jax.random.key(3)


def regulator(plant):
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    return control.lqrd(A, B, Q, R, plant.dt)


def test_plants_of_several_families_and_sample_times_in_one_call():
    batches = [systems.sample(n, key=KEY, num=2) for n in ("pendulum", "quadrotor")]
    stacked = simulation.Problem.of(batches)
    run = simulation.rollout(stacked, simulation.LinearPolicy(stacked.K), stacked.initial_state(key=KEY), 15)
    small = systems.linearise(batches[0])
    own = simulation.rollout(small, simulation.LinearPolicy(regulator(small).K), run.xs[:2, 0, :2], 15, linear=True)
    np.testing.assert_allclose(run.xs[:2, :, :2], own.xs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(run.ts[:, -1], 15 * np.asarray(stacked.dt))


def test_noise_has_the_spread_that_was_asked_for():
    A, B = -jnp.eye(2), jnp.zeros((2, 1))
    plant = systems.from_matrices(A, B, dt=0.1)
    many = simulation.rollout(
        plant, simulation.no_control(plant), jnp.zeros((4000, 2)), 40, linear=True, key=KEY, noise=[0.1, 0.3]
    )
    # stationary variance of x+ = a x + w: σ²/(1 − a²)
    expected = np.array([0.1, 0.3]) / np.sqrt(1 - np.exp(-0.2))
    np.testing.assert_allclose(np.asarray(many.xs)[:, -1].std(0), expected, rtol=0.05)


def test_disturbances_have_the_covariance_of_van_loan_that_the_filter_takes():
    A, still = np.array([[-1.0, 2.0], [0.0, -3.0]]), np.zeros((2, 1))
    plant = systems.from_matrices(A, still, dt=0.2)
    W = control.sampled_noise(A, np.diag([0.0, 1.0]), 0.2)
    given = {"linear": True, "key": KEY, "keep": ("xs",)}
    many = simulation.rollout(plant, simulation.no_control(plant), jnp.zeros((25_000, 2)), 40, noise=W, **given)
    flow = scipy.linalg.expm(A * 0.2)
    # white noise that enters at the second state: what the continuous plant does at rest, whatever the sampling
    at_rest = scipy.linalg.solve_continuous_lyapunov(A, -np.diag([0.0, 1.0]))
    np.testing.assert_allclose(scipy.linalg.solve_discrete_lyapunov(flow, W), at_rest, rtol=1e-9)
    np.testing.assert_allclose(np.cov(many.xs[:, -1].T), at_rest, rtol=0.04)
    # one direction only, for plants in a batch
    pair = jax.tree.map(lambda a: jnp.stack([a, a]), plant)
    line = np.outer([1.0, -2.0], [1.0, -2.0])
    start = jnp.zeros((2, 50, 2))
    both = simulation.rollout(pair, simulation.no_control(pair), start, 1, noise=line[None], **given)
    moved = np.asarray(both.xs[:, :, 1])
    np.testing.assert_allclose(moved[..., 1], -2 * moved[..., 0], atol=1e-12)
    assert np.std(moved[0, :, 0]) == pytest.approx(1.0, rel=0.3)
    each = simulation.rollout(
        pair, simulation.no_control(pair), start, 1, noise=line * np.array([1.0, 4.0])[:, None, None], **given
    )
    np.testing.assert_allclose(each.xs[1], 2 * both.xs[1], atol=1e-12)
    problem = simulation.Problem.of(plant, linear=True, noise=W, optimum=False)
    refused("noise: expected standard deviations, but found a covariance", loops_of, problem, jnp.zeros((1, 2)))


def test_a_new_gain_compiles_nothing():
    plant = systems.make("pendulum")
    x0 = plant.scales[0]

    def run(k):
        return simulation.rollout(plant, simulation.LinearPolicy(jnp.array([[k, 1.0]])), x0, 7, linear=True)

    run(20.0)
    programs = jax.extend.backend.get_backend().live_executables
    before = len(programs())
    run(30.0)
    assert len(programs()) == before


@pytest.mark.parametrize("settings", [{"linear": False}, {"dt": 0.1}, {"limits": (-1, 1)}, {"substeps": 3}])
def test_a_problem_is_run_as_it_is_or_not_at_all(settings):
    plant = systems.make("pendulum")
    policy, x0 = simulation.no_control(plant), np.array([0.1, 0.0])
    problem = simulation.Problem.of(plant, linear=True, optimum=False)
    with pytest.raises(ValueError, match=f"{next(iter(settings))}: the Problem has its own"):
        simulation.rollout(problem, policy, x0, 3, **settings)
    same = simulation.rollout(problem, policy, x0, 3, linear=True)
    np.testing.assert_allclose(same.xs, simulation.rollout(plant, policy, x0, 3, linear=True).xs, rtol=1e-12)


def test_noises_that_are_given_take_the_place_of_a_problems_own():
    plant = systems.make("pendulum")
    policy, x0 = simulation.no_control(plant), np.array([0.1, 0.0])
    given = {"noise": [0.0, 0.1], "sensor_noise": 0.2, "excitation": 0.3}
    problem = simulation.Problem.of(plant, **given, optimum=False)
    both = (
        simulation.rollout(problem, policy, x0, 3, key=KEY),
        simulation.rollout(plant, policy, x0, 3, key=KEY, **given),
    )
    np.testing.assert_array_equal(both[0].xs, both[1].xs)
    other = simulation.rollout(problem, policy, x0, 3, key=KEY, excitation=0.6)
    np.testing.assert_allclose(other.us, 2 * both[0].us, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x0": np.zeros(3)}, r"x0: expected shape \[…, 2\] for pendulum, but found \(3,\)"),
        ({"num_steps": 0}, "num_steps: expected a whole number ≥ 1"),
        ({"noise": 0.1}, "key: noise"),
        ({"noise": -0.1, "key": KEY}, "noise: expected finite numbers ≥ 0"),
        ({"dt": -1.0}, "dt: expected a sample time above 0 s"),
        ({"x0": np.array([0.0, np.nan])}, "x0: expected finite numbers"),
        ({"substeps": 0}, r"substeps: expected a whole number in \[1, 10000\]"),
        ({"controller": np.ones((2, 1))}, r"controller: expected a gain K of shape \[..., 1, 2\]"),
        (
            {"controller": simulation.LinearPolicy(jnp.ones((3, 2)))},
            r"controller: expected a gain K of shape \[..., 1, 2\]",
        ),
        ({"x0": np.array([1j, 0.0])}, "x0: expected real numbers, but found complex128"),
        ({"x0": ["a", "b"]}, "x0: expected real numbers"),
        ({"limits": ("a", "b")}, "limits.u: expected real numbers"),
        ({"limits": (-np.ones(3), np.ones(3))}, "limits.u: expected a number or 1 for low"),
        ({"noise": 1j, "key": KEY}, "noise: expected real numbers"),
        ({"noise": np.ones(3), "key": KEY}, "noise: expected a number, or one for each of 2 signals"),
        ({"noise": np.eye(3), "key": KEY}, r"noise: expected a covariance of shape \(2, 2\), or standard"),
        ({"noise": np.diag([1.0, -1.0]), "key": KEY}, "noise: expected .*positive semidefinite"),
        ({"sensor_noise": np.array([[1.0, 0.5], [0.0, 1.0]]), "key": KEY}, "sensor_noise: expected .*symmetric"),
        (
            {"controller": simulation.LinearPolicy(jnp.full((1, 2), 1j))},
            "controller: expected real numbers, but found complex",
        ),
        ({"controller": simulation.LinearPolicy([["1", "2"]])}, "controller: expected real numbers"),
        ({"controller": simulation.LinearPolicy(jnp.ones(2))}, r"inputs by states of pendulum, but found \(2,\)"),
    ],
)
def test_bad_arguments_are_named(change, message):
    plant = systems.make("pendulum")
    arguments = {"controller": simulation.no_control(plant), "x0": np.zeros(2), "num_steps": 3} | change
    refused(message, simulation.rollout, plant, **arguments)


def test_sample_times_are_one_for_each_of_the_first_axes_of_the_starts():
    plant, dt = systems.make("cart_pole"), [0.01, 0.03]
    policy = simulation.LinearPolicy(regulator(plant).K)
    x0 = 0.1 * np.random.default_rng(0).normal(size=(2, 40, 4))
    for linear in (True, False):
        both = simulation.rollout(plant, policy, x0, 5, dt=dt, linear=linear, substeps=2)
        for i in range(2):
            one = simulation.rollout(plant, policy, x0[i], 5, dt=dt[i], linear=linear, substeps=2)
            np.testing.assert_allclose(both.xs[i], one.xs, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(both.cost[i], one.cost, rtol=1e-12)
            np.testing.assert_allclose(both.ts[i], one.ts, rtol=1e-12)
    with pytest.raises(ValueError, match=r"^dt: expected one sample time, or as many as the first axes of x0"):
        simulation.rollout(plant, policy, x0[0], 5, dt=dt)
    with pytest.raises(ValueError, match=r"^cost: the costs were not kept"):
        simulation.rollout(plant, policy, x0[0], 5, keep=("xs",)).cost  # noqa: B018


def test_two_policies_with_as_many_leaves_are_not_taken_for_each_other():
    K = jnp.array([[1.0, 2.0]])
    ours = simulation.LinearPolicy(K)
    assert jax.tree.structure(ours) != jax.tree.structure(Unrecognised(-K))
    plant = systems.make("pendulum")
    one, other = (simulation.rollout(plant, p, jnp.ones(2), 1, linear=True).us for p in (ours, Unrecognised(-K)))
    np.testing.assert_allclose(one, -other)


@pytest.mark.parametrize("name", ["magnetic_levitation", "vehicle_lateral"])
def test_default_substeps_are_enough_for_the_plants_own_speed(name):
    plant = systems.make(name)
    policy = simulation.LinearPolicy(regulator(plant).K)
    x0 = 0.2 * plant.scales[0]
    ours, fine = (simulation.rollout(plant, policy, x0, 40, substeps=n) for n in (None, 200))
    np.testing.assert_allclose(ours.xs, fine.xs, atol=1e-4 * float(jnp.abs(x0).max()), rtol=1e-4)


def test_noises_are_independent_of_each_other():
    plant = systems.from_matrices([[0.0]], [[1.0]], dt=1.0)
    policy = simulation.LinearPolicy(jnp.array([[1.0]]))
    run = simulation.rollout(plant, policy, jnp.zeros((4000, 1)), 1, linear=True, key=KEY, noise=0.1, sensor_noise=0.1)
    seen = -np.asarray(run.us)[:, 0, 0]
    pushed = np.asarray(run.xs)[:, 1, 0] + seen
    assert abs(np.corrcoef(seen, pushed)[0, 1]) < 0.06  # what a sensor adds reaches the policy, not the state
    assert (seen.std(), pushed.std()) == pytest.approx((0.1, 0.1), rel=0.05)


def test_a_fast_plant_takes_the_same_substeps_inside_a_trace_as_outside():
    plant = systems.from_dynamics(
        lambda x, u: jnp.array([2000 * (u[0] - x[0]) - x[1], x[0] - jnp.sin(x[1])]),
        x_eq=[0.0, 0.0],
        u_eq=[0.0],
        dt=0.02,
    )
    policy, x0 = simulation.LinearPolicy(jnp.array([[0.1, 0.1]])), jnp.ones((2, 2))

    def cost(x0, dt=None):
        return simulation.rollout(plant, policy, x0, 5, dt=dt).cost

    assert simulation.Problem.of(plant, optimum=False).substeps == 160  # of a quarter radian each
    outside = cost(x0)
    assert np.isfinite(outside).all()
    for inside in (jax.jit(cost), jax.vmap(cost), jax.jit(lambda x0: jax.value_and_grad(cost)(x0[0])[0])):
        np.testing.assert_allclose(inside(x0), outside, rtol=1e-12)
    refused(r"^substeps: inside jit or vmap over the plant's parameters or dt", jax.jit(cost), x0, 0.02)


def test_a_slope_in_a_physical_parameter_knows_its_substeps_only_outside_of_jit():
    policy = simulation.LinearPolicy(jnp.array([[40.0, 8.0]]))

    def cost(length):
        plant = systems.make("pendulum", length=length)
        return simulation.rollout(plant, policy, jnp.array([0.1, 0.0]), 50).cost

    value, slope = jax.value_and_grad(cost)(0.5)
    assert float(value) == pytest.approx(float(cost(0.5)), rel=1e-12)
    numeric = (float(cost(0.5 + 1e-5)) - float(cost(0.5 - 1e-5))) / 2e-5
    assert float(slope) == pytest.approx(numeric, rel=1e-6)
    refused("pass substeps=", jax.vmap(cost), jnp.array([0.5, 0.6]))


def test_a_sample_time_that_would_take_for_ever_is_refused():
    plant = systems.make("pendulum")
    refused(r"^dt: the fastest mode .* more than 10000 steps", simulation.Problem.of, plant, dt=1e6, optimum=False)
    with pytest.raises(ValueError, match=r"^substeps: expected a whole number in \[1, 10000\]"):
        simulation.Problem.of(plant, substeps=10**9, optimum=False)
    assert simulation.Problem.of(plant, dt=1e6, linear=True, optimum=False).substeps == 1


def test_inside_a_trace_a_known_plant_whose_linearisation_is_not_finite_is_refused():
    plant = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), systems.make("pendulum"))
    with pytest.raises(ValueError, match="plant: expected a finite linearisation, but found A = "):
        jax.jit(lambda x0: simulation.rollout(plant, simulation.no_control(plant), x0, 2).xs)(jnp.zeros(2))


def test_the_name_of_a_plant_is_no_plant():
    with pytest.raises(ValueError, match=r"plants: expected a plant, or a list of at least one, but found 'cart_"):
        inspect.unwrap(simulation.Problem.of.__func__)(simulation.Problem, "cart_pole")


def linear_plants():
    """Stiff, undamped, hardly damped, unstable, chains of integrators: A, B, Q, R of 1 to 12 states."""
    rng = np.random.default_rng(51)
    for n in range(1, 13):
        m = int(rng.integers(1, n // 3 + 2))
        A, B = rng.normal(size=(n, n)) / np.sqrt(n), rng.normal(size=(n, m))
        springs = np.diag(np.ones(n - 1), 1)
        for i in range(1, n, 2):
            w = 10 ** rng.uniform(-1, 3)
            springs[i, i - 1 : i + 1] = -w * w, -2e-6 * w
        kinds = (np.triu(A, 1) - np.diag(10 ** rng.uniform(-3, 6, n)), A - A.T, springs, A + np.eye(n))
        yield kinds[n % 4], B, np.diag(10 ** rng.uniform(-2, 2, n)), np.diag(10 ** rng.uniform(-2, 2, m))


def test_no_loop_of_a_linear_plant_costs_less_than_its_optimum_and_its_own_gain_just_that():
    rng = np.random.default_rng(0)
    for k, (A, B, Q, R) in enumerate(linear_plants()):
        fastest = np.abs(np.linalg.eigvals(A)).max()
        for dt in (1e-6, 10 ** rng.uniform(-5, 2), min(1e2, 30 / max(fastest, 1))):
            if k % 4 == 2 and fastest * dt > 9:
                continue  # an unstable plant grows by more than 1e4 in a sample time
            plant = systems.from_matrices(A, B, Q=Q, R=R, dt=dt)
            problem, x0 = simulation.Problem.of(plant), jnp.asarray(rng.normal(size=(2, len(A))))
            worse = 1.0 + 0.3 * rng.normal(size=problem.K.shape)
            for own, gain in ((True, problem.K), (False, 0 * problem.K), (False, worse * problem.K)):
                run = simulation.rollout(plant, gain, x0, 7)
                ratio = (run.cost + problem.optimal_cost(run.xs[:, -1])) / problem.optimal_cost(x0)
                assert float(ratio.min()) > 1 - 1e-9, (k, dt)
                assert not own or float(ratio.max()) < 1 + 1e-9, (k, dt)


def test_the_optimum_of_what_grows_fast_or_is_hardly_held_is_what_its_loop_costs():
    """P is wrong by less than its residual's worth: of a state that grows by 6e5 in a sample time by 3 % otherwise."""
    A, B = np.array([[0.09, -1.1, 0.44], [-0.1, 0.58, -0.33], [0.55, -0.49, 1.61]]), np.eye(3) + 0.3 * np.eye(3, k=1)
    R = np.array([[4.1, -2.4, 0.6], [-2.4, 5.0, -2.3], [0.6, -2.3, 4.6]])
    rng = np.random.default_rng(3)
    hardly = rng.normal(size=(12, 12)) / np.sqrt(12) + 0.8 * np.eye(12), rng.normal(size=(12, 2))
    with pytest.warns(UserWarning, match="dt: the plant grows so much .* right to about .e-0[78]; take a shorter dt"):
        fast = simulation.Problem.of(systems.from_matrices(A, B, Q=np.diag([0.017, 0.27, 0.05]), R=R, dt=6.8))
    for problem, off in ((fast, 1e-6), (simulation.Problem.of(systems.from_matrices(*hardly, dt=0.02)), 1e-9)):
        x0 = jnp.asarray(rng.normal(size=(4, problem.n)))
        run = simulation.rollout(problem, problem.K, x0, 7)
        paid = run.cost + problem.optimal_cost(run.xs[:, -1])
        np.testing.assert_allclose(paid, problem.optimal_cost(x0), rtol=off)
    many = control.dlqr(*(np.stack([a] * 80) for a in (fast.A, fast.B, fast.Q, fast.R, fast.N)))
    np.testing.assert_allclose(many.P[0], fast.P, rtol=1e-9)


SPRING = np.array([[0.0, 1.0], [-1e6, 0.0]])  # without damping, 1000 rad/s


def rates(A, sine=lambda q: q):
    return lambda x, u: jnp.array([x[1], A[1, 0] * sine(x[0] - 2.0) + A[1, 1] * x[1] + u[0]])


@pytest.mark.parametrize(
    "plant",
    [
        systems.from_matrices(SPRING, [[0.0], [1.0]], dt=1e-3),
        systems.from_dynamics(rates(SPRING), x_eq=[2.0, 0.0], u_eq=[0.0], dt=1e-3),
        dataclasses.replace(systems.make("mass_spring_damper", mass=1.0, damping=0.0), stiffness=jnp.array(1e6)),
    ],
)
@pytest.mark.parametrize("linear", [None, False, True])
def test_a_plant_whose_equations_are_linear_is_held_exactly_whatever_is_asked(plant, linear):
    dt, x0 = float(plant.dt), np.array([1.0, 0.0])
    problem = simulation.Problem.of(plant, linear=bool(linear))
    assert problem.linear
    for given in (plant, problem):
        run = simulation.rollout(given, simulation.no_control(plant), x0, 20_000, linear=linear)
        turned = 1e3 * dt * np.arange(20_001)
        np.testing.assert_allclose(run.xs, np.stack([np.cos(turned), -1e3 * np.sin(turned)], -1), atol=1e-5)
    assert environments.make(plant, linear=bool(linear)).linear


def test_runge_kutta_follows_a_mode_without_damping_for_as_long_as_a_run_may_take():
    """Turned through so small an angle that its closed form is known."""
    plant = systems.from_dynamics(rates(SPRING, jnp.sin), x_eq=[2.0, 0.0], u_eq=[0.0], dt=1e-3)
    policy, x0 = simulation.no_control(plant), np.array([1e-4, 0.0])
    run = simulation.rollout(plant, policy, x0, 30_000)
    np.testing.assert_allclose(run.xs[:, 0], 1e-4 * np.cos(np.arange(30_001)), atol=1e-4 * 0.01 * 0.03)
    damped = systems.from_dynamics(rates(SPRING - np.diag([0, 100.0]), jnp.sin), x_eq=[2.0, 0.0], u_eq=[0.0], dt=1e-3)
    assert simulation.Problem.of(damped).substeps < simulation.Problem.of(plant).substeps
