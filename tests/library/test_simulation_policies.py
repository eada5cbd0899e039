"""Policies of designs with a memory, sensors and estimators: against plain NumPy loops and the designs' own figures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from scipy_oracle import held

from lqrlab import control, evaluation, predictive, simulation, systems
from lqrlab.compute import pytree


@pytest.fixture(scope="module")
def cart():
    """A cart-pole of which the positions are measured, sampled, with covariances."""
    plant = systems.make("cart_pole")
    A, B, Q, R, N = (np.asarray(a) for a in control.discretize(*plant.matrices(), *plant.weights(), plant.dt))
    return plant, A, B, np.eye(4)[:2], Q, R, N, 1e-4 * np.diag([1.0, 2.0, 3.0, 4.0]), 1e-4 * np.eye(2)


def lqg(cart, form="predictor"):
    _, A, B, C, Q, R, N, W, V = cart
    return control.lqg(A, B, C, Q, R, W, V, N, discrete=True, form=form)


@pytest.mark.parametrize("form", ["predictor", "filter"])
def test_output_feedback_is_a_plain_kalman_filter_that_knows_what_was_cut_off(cart, form):
    plant, A, B, C = cart[:4]
    design = lqg(cart, form)
    K, L, M = (np.asarray(a) for a in (design.regulator.K, design.estimator.L, design.estimator.M))
    limit, x, guess = 3.0, np.array([0.1, 0.1, 0.0, 0.0]), np.zeros(4)
    policy = simulation.estimated(simulation.Problem.of(plant, limits=(-limit, limit)), design)
    kept = {"keep": ("xs", "us", "memory"), "limits": (-limit, limit)}
    run = simulation.rollout(plant, policy, np.stack([x, 2 * x]), 80, linear=True, **kept)
    run = jax.tree.map(lambda a: a[0], dataclasses.replace(run, ts=run.ts[None]))
    for t in range(80):
        np.testing.assert_allclose(run.memory[t], guess, rtol=1e-7, atol=1e-10)
        surprise = C @ (x - guess)
        u = np.clip(-K @ (guess + (M @ surprise if form == "filter" else 0)), -limit, limit)
        np.testing.assert_allclose(run.us[t], u, rtol=1e-7, atol=1e-10)
        x, guess = A @ x + B @ u, A @ guess + B @ u + L @ surprise
        np.testing.assert_allclose(run.xs[t + 1], x, rtol=1e-7, atol=1e-10)
    assert np.abs(run.us).max() == limit


GAPS = np.ones((500, 2), bool)  # which outputs come: all are missing for a while, then one of them
GAPS[5:11], GAPS[14:18, 0] = False, False


def asked(policy):
    """A policy's inputs for one measurement after another."""
    step, carry = jax.jit(lambda carry, y: policy(carry, y)), policy.init(())

    def ask(y):
        nonlocal carry
        carry, u = step(carry, jnp.asarray(y))
        assert all(np.isfinite(a).all() for a in jax.tree.leaves(carry))
        return np.asarray(u)

    return ask


@pytest.mark.parametrize("form", ["predictor", "filter"])
def test_output_feedback_predicts_where_measurements_are_missing(cart, form):
    plant, A, B, C = cart[:4]
    design = lqg(cart, form)
    K, L, M = (np.asarray(a) for a in (design.regulator.K, design.estimator.L, design.estimator.M))
    ask, x, guess = (asked(simulation.estimated(plant, design).policy), np.array([0.1, 0.1, 0.0, 0.0]), np.zeros(4))
    for there in GAPS:
        surprise = np.where(there, C @ (x - guess), 0.0)
        u = -K @ (guess + (M @ surprise if form == "filter" else 0))
        np.testing.assert_allclose(ask(np.where(there, C @ x, [np.nan, np.inf])), u, rtol=1e-6, atol=1e-9)
        x, guess = A @ x + B @ u, A @ guess + B @ u + L @ surprise
    assert np.abs(x).max() < 1e-2


def test_integral_action_goes_on_with_the_state_that_its_model_expects(cart):
    plant, A, B, _, Q, R, N = cart[:7]
    design = control.lqi(A, B, np.eye(4)[:1], Q, R, Q[:1, :1], N, discrete=True)
    policy = simulation.integrating(simulation.Problem.of(plant, limits=(-1.5, 1.5)), design, [0.2])
    K, Ki = np.asarray(design.K), np.asarray(design.Ki)
    ask, x, total, expected, cut = asked(policy), np.array([0.1, 0.05, 0.0, 0.0]), np.zeros(1), np.zeros(4), 0
    for t in range(900):
        seen = np.where((t in (3, 4, 5)) | ((t == 8) & (np.arange(4) == 1)), expected, x)
        u = -K @ seen - Ki @ total
        v, cut = np.clip(u, -1.5, 1.5), cut + (np.abs(u) > 1.5)
        np.testing.assert_allclose(ask(np.where(seen == x, x, np.nan)), v, rtol=1e-6, atol=1e-9)
        total = total + seen[:1] - 0.2 - (v - u) / Ki[0]
        x, expected = A @ x + B @ v, A @ seen + B @ v
        x = x + np.array([0.0, 0.0, 1e-4, 0.0])  # what the model does not know
    assert cut > 0
    assert abs(x[0] - 0.2) < 0.02


def later(policy, steps):
    return simulation.DelayedPolicy(policy, 1, steps, jnp.array([jnp.inf]), memory=steps)


def slower(policy, every):
    return simulation.DelayedPolicy(policy, every, 0, jnp.array([jnp.inf]), memory=0)


def test_policies_without_a_model_send_their_last_input_again():
    plant = systems.make("pendulum")
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
    late = control.lqrd_delayed(*plant.matrices(), *plant.weights(), plant.dt, delay=1.0)
    gain, states = simulation.LinearPolicy(jnp.asarray(K)), np.random.default_rng(0).normal(size=(9, 2))
    seen = np.where(np.isin(np.arange(9), (3, 4))[:, None], np.nan, states)
    ask = asked(simulation.delayed(plant, late, 1.0))
    sent = [np.zeros(1)]
    for t, x in enumerate(seen):
        answer = -np.asarray(late.K) @ np.concatenate([states[t], sent[-1]])
        np.testing.assert_allclose(ask(x), sent[-1], rtol=1e-9)  # a sample late
        sent.append(answer if np.isfinite(x).all() else sent[-1])
    answers = [-K @ states[t if t not in (3, 4) else 2] for t in range(9)]
    ask = asked(later(gain, 2))
    np.testing.assert_allclose([ask(x) for x in seen], [*np.zeros((2, 1)), *answers[:7]], rtol=1e-9)
    ask = asked(slower(gain, 2))
    np.testing.assert_allclose([ask(x) for x in seen], [answers[2 * (t // 2)] for t in range(9)], rtol=1e-9)


def test_states_of_whole_numbers_are_real_ones_and_complex_ones_are_refused():
    K, rate, plan = np.array([[0.6, 1.7]]), np.array([[0.3]]), (np.full((3, 2), 0.4), np.full((2, 1), 0.7))
    F, G, problem = np.array([[1.0, 0.1], [0.2, 0.9]]), np.array([[0.3], [1.1]]), simulation.Problem.of(Swing())
    lag = simulation.LinearController.of(control.StateSpace(rate, rate, rate, [[0.6]], 1.0), wide := matrices(F, G))
    gain = simulation.LinearPolicy(jnp.asarray(K))
    track = simulation.TrackingPolicy(*map(jnp.asarray, (*plan, np.stack([K, K]))))
    told = {
        "gain": (lambda x: gain(None, x)[1], -K @ [1, 2]),
        "plan": (lambda x: track(jnp.zeros((), int), x)[1], 0.7 - K @ [0.6, 1.6]),
        "held": (lambda x: (slow := slower(gain, 2))(slow.init(()), x)[1], -K @ [1, 2]),
        "memory": (lambda x: lag(jnp.array([0.5]), x[1:])[1], [0.15 + 2 * 0.6]),
        "step": (lambda x: wide.step(x, x[1:])[0], F @ [1, 2] + G @ [1.5]),
        "cut": (lambda x: wide.saturate(x[1:]), [1.5]),
        "cost": (wide.optimal_cost, scipy.linalg.solve_discrete_are(F, G, np.eye(2), np.eye(1)) @ [1, 2] @ [1, 2]),
        "outputs": (simulation.outputs(problem.plant), shown(np.array([1.6, 2]), 0.7) - shown(np.array([0.6, 0]), 0.7)),
    }
    for name, (ask, expected) in told.items():
        for x in (np.array([1, 2]), jnp.array([1, 2], jnp.int32), jnp.array([1, 2], jnp.float32), [1, 2]):
            with jax.numpy_dtype_promotion("standard"):  # as everywhere but in tests
                np.testing.assert_allclose(ask(x), expected, rtol=1e-6, err_msg=name)
        refused("^[xu]: expected real numbers, but found complex", ask, np.array([1, 2 + 1j]))
    for policy in (simulation.LinearPolicy(1j * K), dataclasses.replace(track, us=track.us.astype(complex))):
        refused("^self.(K|us): expected real numbers", policy, jnp.zeros((), int), jnp.ones(2))


def test_other_bytes_of_the_same_numbers_are_the_same_after_a_call_and_what_a_mask_hides_is_refused():
    plant, K = Swing(), np.array([[0.6, 1.7]])
    problem, x = simulation.Problem.of(plant), np.array([0.3, -0.2])
    for ask, a in (
        (lambda x: plant.dynamics(x, np.ones(1)), x), (lambda u: plant.dynamics(x, u), np.array([0.4])),
        (plant.output, x), (lambda x: problem.step(x, np.ones(1)), x), (lambda u: problem.step(x, u), np.array([0.4])),
        (problem.closed_loop, K), (lambda x: simulation.LinearPolicy(jnp.asarray(K))(None, x), x),
    ):  # fmt: skip
        expected = jax.tree.leaves(ask(a))
        for other in (a.astype(">f8"), a.astype(np.longdouble), np.ma.array(a)):
            for found, wanted in zip(jax.tree.leaves(ask(other)), expected):
                np.testing.assert_array_equal(found, wanted)
        refused("expected numbers, but found 1 masked", ask, np.ma.masked_equal(a, a.flat[0]))


def matrices(F, G):
    return simulation.Problem.from_matrices(F, G, np.eye(2), np.eye(1), limits=(-1.5, 1.5))


@pytest.mark.parametrize("late", [lambda gain: later(gain, 2), lambda gain: slower(gain, 3)])
def test_a_late_policy_asked_sample_by_sample_compiles_nothing_after_the_second(late, caplog):
    policy, x = late(simulation.LinearPolicy(jnp.array([[1.0, 2.0]]))), jnp.array([0.3, -0.1])
    carry, _ = policy(policy.init(()), x)
    carry, _ = policy(carry, x)
    with jax.log_compiles(True):
        for _ in range(7):
            carry, _ = policy(carry, x)
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]


@pytest.mark.matrix
def test_output_feedback_is_scored_mapped_and_written_down_like_any_policy(cart, tmp_path):
    plant, A, B, C, Q, R, N, *_ = cart
    design = lqg(cart)
    policy = simulation.estimated(plant, design)
    starts = 0.05 * np.random.default_rng(0).normal(size=(5, 4))
    scores = [evaluation.evaluate(policy, plant, key=jax.random.key(0), x0=starts, linear=k) for k in (True, False)]
    # what a loop of state and estimate costs, by SciPy
    F, G, H = (np.asarray(a) for a in (design.A, design.B, design.C))
    loop = np.block([[A, B @ H], [G @ C, F]])
    weight = np.block([[Q, N @ H], [(N @ H).T, H.T @ R @ H]])
    paid = scipy.linalg.solve_discrete_lyapunov(loop.T, weight)[:4, :4]
    least = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
    ratio = np.einsum("si,ij,sj->s", starts, paid, starts) / np.einsum("si,ij,sj->s", starts, least, starts)
    assert ratio.min() > 1.1
    np.testing.assert_allclose(scores[0].ratio, ratio, rtol=1e-4)
    np.testing.assert_allclose(scores[1].ratio, ratio, rtol=0.1)  # near the equilibrium
    assert all(bool(score.converged.all()) for score in scores)
    region = evaluation.attraction(plant, policy, starts, limits=(-20.0, 20.0))
    assert bool(region.converged.all())


def test_a_slow_controller_holds_its_input_and_its_memory(cart):
    plant, design = cart[0], lqg(cart)
    policy, x0 = simulation.estimated(plant, design), np.array([0.1, 0.05, 0.0, 0.0])
    slow = simulation.rollout(plant, policy, x0, 20, linear=True)
    fast = simulation.rollout(plant, slower(policy, 4), x0, 80, dt=float(plant.dt) / 4, linear=True)
    np.testing.assert_allclose(fast.xs[::4], slow.xs, rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(fast.us[0::4], fast.us[3::4])


def test_a_step_is_linearised_exactly_anywhere(cart):
    problem = simulation.Problem.of(cart[0], optimum=False)
    x, u = jnp.array([[0.1, 1.2, 0.3, -0.5], [0.0, 3.0, 0.0, 1.0]]), jnp.array([[3.0], [-2.0]])
    h = 1e-6
    A, B, after = problem.linearised(x, u)
    np.testing.assert_allclose(after, problem.step(x, u)[0], rtol=1e-12)
    for j, e in enumerate(np.eye(4)):
        slope = (problem.step(x + h * e[None], u)[0] - problem.step(x - h * e[None], u)[0]) / (2 * h)
        np.testing.assert_allclose(A[..., j], slope, atol=1e-7)
    np.testing.assert_allclose(B[..., 0], (problem.step(x, u + h)[0] - problem.step(x, u - h)[0]) / (2 * h), atol=1e-7)


class Swing(systems.Plant):
    """A pendulum held up at a slant, seen by its height, and by its rate as a generator shows it."""

    length: jax.Array = systems.param(0.7, "m", "length", 0.1, 10.0)
    states, inputs = systems.signals("angle = 0.6 ± 0.3 rad", "rate ± 1 rad/s"), systems.signals("torque ± 2 1/s²")
    outputs = systems.signals("height ± 0.1 m", "voltage ± 1 V")
    dt, source, solve_for = 0.1, "a test", ("torque",)

    def dynamics(self, x, u):
        return swing(x, u, self.length, jnp)

    def output(self, x):
        return shown(x, self.length, jnp)


def swing(x, u, length, math=np):
    return math.stack([x[1], 9.81 / length * math.sin(x[0]) - 0.1 * x[1] ** 3 + u[0]])


def shown(x, length, math=np):
    return math.stack([length * math.cos(x[0]), x[1] * math.cos(x[0]) + 0.1 * x[1] ** 2])


def slope(f, x):
    """By a complex step: to rounding. W. Squire and G. Trapp, SIAM Review 40 (1998)."""
    return np.stack([f(x + 1e-30j * e).imag / 1e-30 for e in np.eye(len(x))], axis=1)


def runge_kutta(f, x, h, steps):
    for _ in range(steps):
        k1 = f(x)
        k2 = f(x + h / 2 * k1)
        k3 = f(x + h / 2 * k2)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + h * k3))
    return x


def kalman(kind, x, P, y, move, see, W, V, control):
    """Estimate after y, input, prediction. D. Simon, Optimal State Estimation (2006), (13.47)-(13.52), section 14.3."""

    def spread(x, P, f):  # weights 1/(n + 1) and 1/(2n + 2), √(n + 1) standard deviations away
        L, n = np.linalg.cholesky(P), len(x)
        points = np.array([x, *(x + np.sqrt(n + 1) * L.T), *(x - np.sqrt(n + 1) * L.T)])
        weights, images = np.array([1.0, *[0.5] * 2 * n]) / (n + 1), np.array([f(p) for p in points])
        mean = weights @ images
        return (
            mean,
            (points - x).T @ (weights[:, None] * (images - mean)),
            (images - mean).T * weights @ (images - mean),
        )

    if kind == "extended":
        H = slope(see, x)
        expected, cross, Y = see(x), P @ H.T, H @ P @ H.T + V
    else:
        expected, cross, Y = spread(x, P, see)
        Y = Y + V
    gain = cross @ np.linalg.inv(Y)
    x, P = x + gain @ (y - expected), P - gain @ Y @ gain.T
    u = control(x)
    if kind == "extended":
        F = slope(lambda x: move(x, u), x)
        return x, u, move(x, u), F @ P @ F.T + W
    after, _, spreads = spread(x, P, lambda x: move(x, u))
    return x, u, after, spreads + W


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("kind", ["extended", "unscented"])
def test_nonlinear_filters_are_an_independent_filter_to_rounding(kind, linear):
    """Measurements at random, some missing, so that estimates go far; full covariances; inputs at their limits."""
    plant, K, rng = Swing(length=jnp.array(0.7)), np.array([[30.0, 7.0]]), np.random.default_rng(2)
    W, V, P = (
        a @ a.T for a in (0.05 * rng.normal(size=(2, 2)), 0.1 * rng.normal(size=(2, 2)), rng.normal(size=(2, 2)))
    )
    problem = simulation.Problem.of(plant, limits=(-12.0, 8.0), optimum=False, linear=linear)
    x_eq, u_eq = np.array([0.6, 0.0]), np.array([-9.81 / 0.7 * np.sin(0.6)])
    A, B = slope(lambda x: swing(x, u_eq, 0.7), x_eq), np.array([[0.0], [1.0]])
    Phi = scipy.linalg.expm(0.1 * np.block([[A, B], [np.zeros((1, 3))]]))
    C = slope(lambda x: shown(x, 0.7), x_eq)
    sensor = C if linear else simulation.outputs(plant)
    make = simulation.extended_kalman if kind == "extended" else simulation.unscented_kalman
    policy = make(simulation.LinearPolicy(jnp.asarray(K)), problem, sensor, W, V, P).policy

    def move(x, u):
        u = np.clip(u, -12.0 - u_eq, 8.0 - u_eq)
        if linear:
            return Phi[:2] @ np.concatenate([x, u])
        return runge_kutta(lambda x: swing(x, u + u_eq, 0.7), x + x_eq, 0.1 / problem.substeps, problem.substeps) - x_eq

    def see(x):
        return C @ x if linear else shown(x + x_eq, 0.7) - shown(x_eq, 0.7)

    ask, carry, x, cut = jax.jit(policy.__call__), policy.init((2,)), np.zeros(2), 0
    for y, there in zip(rng.normal(size=(40, 2)) * [0.05, 0.3], GAPS):
        carry, u = ask(carry, jnp.stack([np.where(there, y, np.nan), y]))
        seen = y[there], move, lambda x, there=there: see(x)[there], W, V[np.ix_(there, there)]
        _, expected, x, P = kalman(kind, x, P, *seen, lambda x: -K @ x)
        cut += np.clip(expected, -12.0 - u_eq, 8.0 - u_eq) != expected
        for ours, theirs in ((u, expected), (carry[1], x), (carry[2], P)):
            np.testing.assert_allclose(ours[0], theirs, rtol=1e-9, atol=1e-10)
    assert 2 < cut < 38


def integrator(discrete):
    one = np.eye(1)
    return control.lqi(one, one, one, one, one, one, discrete=discrete)


def plan(n, *lead):
    """Of five samples for a plant of n states and one input, ``lead`` of them."""
    xs, us, K, P = (jnp.zeros((*lead, *size)) for size in ((6, n), (5, 1), (5, 1, n), (6, n, n)))
    return control.LQTracking(xs, us, K, P)


def two_carts():
    return systems.sample("cart_pole", key=jax.random.key(0), num=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, d: simulation.estimated(systems.make("pendulum"), d), "design: expected 2 states"),
        (lambda p, d: simulation.estimated(p, dataclasses.replace(d, discrete=False)), "design: expected one for the"),
        (lambda p, d: simulation.delayed(p, d.regulator, 1.5), "ticks: expected so many"),
        (lambda p, d: simulation.delayed(p, d.regulator, 1.0), "design: expected 4 states .* found 3 and 1"),
        (lambda p, d: simulation.Measured(d, np.full((1, 4), np.nan)), "sensor: expected finite numbers"),
        (lambda p, d: simulation.Problem.of(p, limits=simulation.Limits(y=(-1, 1), C=np.nan * np.eye(4))), "C: exp"),
        (lambda p, d: simulation.delayed(p, d.regulator, 0.0, limit=np.nan), "limit: expected numbers ≥ 0"),
        (lambda p, d: simulation.delayed(p, d.regulator, 0.0, limit=-1.0), "limit: expected numbers ≥ 0"),
        (lambda p, d: simulation.delayed(p, d.regulator, 0.0, limit=np.ones(3)), "limit: expected one number or 1"),
        (lambda p, d: simulation.integrating(p, integrator(discrete=True)), "design: expected 4 states"),
        (lambda p, d: simulation.integrating(p, integrator(discrete=False)), "design: expected one for the"),
        (lambda p, d: simulation.extended_kalman(simulation.no_control(p), simulation.Problem.of(p), np.eye(4),
                                                 np.eye(4), np.eye(3), np.eye(4)), "V: expected a covariance"),
        (lambda p, d: simulation.tracking(p, plan(2)), "plan: expected 4 states and 1 inputs, .* found \\(6, 2\\)"),
        (lambda p, d: simulation.tracking(two_carts(), plan(4, 3)), "plan: expected a plan for each of the plants"),
    ],
)  # fmt: skip
def test_a_design_of_another_plant_is_refused(cart, call, message):
    refused(message, call, cart[0], lqg(cart))


def test_a_time_varying_regulator_follows_a_trajectory_far_from_any_equilibrium():
    plant = systems.make("pendulum")
    problem, T = simulation.Problem.of(plant, optimum=False), 120
    us = 2.0 * jnp.sin(0.3 * jnp.arange(T, dtype=float))[:, None]
    start = jnp.array([np.pi, 0.0])
    ahead = jax.lax.scan(lambda x, u: (problem.step(x, u)[0],) * 2, start, us)[1]
    xs = jnp.concatenate([start[None], ahead])
    A, B, after = problem.linearised(xs[:-1], us)
    np.testing.assert_allclose(after, xs[1:], rtol=1e-12)
    affine = after - (A @ xs[:-1, :, None] + B @ us[..., None])[..., 0]
    plan = control.lq_tracking(A, B, *plant.weights(), xs, us, c=affine)
    np.testing.assert_allclose(plan.us, us, atol=1e-9)  # a motion of the plant needs no correction
    off = xs[0] + jnp.array([0.3, 0.0])
    run = simulation.rollout(plant, simulation.tracking(plant, plan), off, T)
    assert float(jnp.abs(run.xs[-1] - xs[-1]).max()) < 0.01
    horizon = control.finite_horizon(A[0], B[0], *plant.weights(), T)
    gain = simulation.tracking(plant, horizon)
    first = simulation.rollout(plant, gain, jnp.array([0.1, 0.0]), 5)
    np.testing.assert_allclose(first.us[0], -horizon.K[0] @ first.xs[0], rtol=1e-12)


@pytest.mark.parametrize(("delay", "ticks"), [(1.5, 2), (0.75, 4), (2.0, 1)])
def test_late_inputs_are_a_plain_loop_that_remembers_what_it_sent(delay, ticks):
    plant, limit = systems.make("pendulum"), 0.8
    A, B = (np.asarray(a) for a in plant.matrices())
    design = control.lqrd_delayed(A, B, *plant.weights(), plant.dt, delay=delay)
    policy = simulation.delayed(plant, design, delay, ticks=ticks, limit=limit)
    x, dt, K = np.array([0.1, 0.1]), float(plant.dt) / ticks, np.asarray(design.K)
    run = simulation.rollout(plant, policy, x, 60 * ticks, dt=dt, linear=True)
    a, b = held(A, B, dt)
    sent = []
    for k in range(60 * ticks):
        if k % ticks == 0:
            past = [*reversed(sent), *[np.zeros(1)] * K.shape[1]][: K.shape[1] - 2]
            sent.append(np.clip(-K @ np.concatenate([x, *past]), -limit, limit))
        late = k - round(delay * ticks)
        u = sent[late // ticks] if late >= 0 else np.zeros(1)
        np.testing.assert_allclose(run.us[k] - plant.equilibrium()[1], u, rtol=1e-8, atol=1e-11)
        x = a @ x + b @ u
        np.testing.assert_allclose(run.xs[k + 1] - plant.equilibrium()[0], x, rtol=1e-8, atol=1e-11)
    assert max(np.abs(u).max() for u in sent) == limit


def test_a_plan_in_absolute_states_needs_a_problem_that_knows_its_equilibrium():
    A, B, one = np.array([[1.0, 0.1], [0.0, 1.0]]), np.array([[0.0], [0.1]]), np.eye(1)
    plan = predictive.ilqr(lambda x, u: jnp.stack([x[1], u[0]]), np.ones(2), np.eye(2), one, 5, dt=0.1)
    problem = simulation.Problem.from_matrices(A, B, np.eye(2), one)
    with pytest.raises(ValueError, match=r"plant: expected one with an equilibrium.* give simulation\.TrackingPolicy"):
        simulation.rollout(problem, plan, np.ones(2), 5)


def test_a_delayed_controller_refuses_another_step_than_its_own():
    plant = systems.make("pendulum")
    late = control.lqrd_delayed(*plant.matrices(), *plant.weights(), plant.dt, delay=1.5)
    policy, x0 = simulation.delayed(plant, late, 1.5, ticks=2), jnp.array([0.05, 0.0])
    words = r"dt: expected the step of the delayed controller, 0.01 s, .* but found 0.02 s; pass dt=plant.dt / ticks"
    refused(words, simulation.rollout, plant, policy, x0, 40, linear=True)
    refused("dt: expected the step of the delayed controller", simulation.bind, policy, plant)
    run = simulation.rollout(plant, policy, x0, 40, dt=plant.dt / 2, linear=True)
    assert np.isfinite(run.cost)


def test_an_estimator_of_another_sample_time_is_refused_wherever_it_stands():
    plant = systems.make("pendulum")
    x0, args = jnp.array([0.05, 0.0]), (jnp.array([[1.0, 0.0]]), 1e-4 * np.eye(2), [[1e-4]], 1e-2 * np.eye(2))
    for make in (simulation.extended_kalman, simulation.unscented_kalman):
        slow = simulation.Problem.of(plant, dt=2 * plant.dt)
        policy = make(simulation.LinearPolicy(slow.K), slow, *args)
        for wrong in (policy, later(policy, 1), slower(policy, 4)):
            with pytest.raises(ValueError, match=r"dt: expected the sample time of the policy's problem, 0.04 s"):
                simulation.rollout(plant, wrong, x0, 5)
        for right, dt in ((policy, 2 * plant.dt), (slower(policy, 2), plant.dt)):
            assert np.isfinite(simulation.rollout(plant, right, x0, 5, dt=dt).cost)
    late = control.lqrd_delayed(*plant.matrices(), *plant.weights(), plant.dt, delay=1.5)
    with pytest.raises(ValueError, match="dt: expected the step of the delayed controller"):
        simulation.rollout(plant, slower(simulation.delayed(plant, late, 1.5, ticks=2), 2), x0, 5)


def test_a_policy_with_too_many_inputs_is_refused():
    @pytree
    @dataclasses.dataclass(frozen=True)
    class Two:
        def init(self, batch_shape):
            return ()

        def __call__(self, carry, x):
            return carry, jnp.zeros((*x.shape[:-1], 2))

    with pytest.raises(ValueError, match=r"policy: expected inputs of shape \(1,\), but found \(2,\)"):
        simulation.check_policy(Two(), jnp.zeros(2), 1)


def test_anti_windup_keeps_the_integral_of_a_limited_loop_small():
    plant = systems.from_matrices([[0.0]], [[1.0]], Q=[[1.0]], R=[[1.0]], dt=0.1)
    A, B, Q, R, N = control.discretize(*plant.matrices(), *plant.weights(), 0.1)
    design = control.lqi(A, B, [[1.0]], Q, R, 0.1 * Q, N, discrete=True)
    problem = simulation.Problem.of(plant, limits=(-0.2, 0.2), linear=True)
    run = simulation.rollout(problem, simulation.integrating(problem, design, [2.0]), np.zeros(1), 600)
    overshoot = {}
    for share in (0.0, 1.0):
        z, xs = 0.0, np.zeros(601)
        back = -share / float(design.Ki[0, 0])
        for t, x in enumerate(xs[:-1]):
            u = float(-design.K[0, 0] * x - design.Ki[0, 0] * z)
            v = np.clip(u, -0.2, 0.2)
            xs[t + 1], z = float(A[0, 0] * x + B[0, 0] * v), z + x - 2.0 + back * (v - u)
        overshoot[share] = xs.max() / 2 - 1
    np.testing.assert_allclose(run.xs[:, 0], xs, rtol=1e-7, atol=1e-9)
    assert overshoot[0.0] > 0.2
    assert overshoot[1.0] < 0.05
