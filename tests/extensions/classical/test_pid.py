"""PID controllers against python-control, closed forms, published examples, SciPy and brute force."""

import dataclasses
import shutil
from functools import partial

import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from refusals import refused

from lqrlab import classical, control, deployment, simulation, systems
from lqrlab.extensions.classical import optimal_pid, pid_tuning
from lqrlab.extensions.classical.channels import Channel
from lqrlab.extensions.classical.process_models import half_rule, of_step
from lqrlab.extensions.classical.tuning_rules import max_ki

MOTOR = systems.make("dc_motor")
SAMPLED = control.discretize(*MOTOR.matrices(), *MOTOR.weights(), MOTOR.dt)


def lags(*times, lead=(), gain=1.0):
    """(A, B, C) of gain Π (lead s + 1) / Π (time s + 1), by SciPy."""
    zeros, poles = [-1 / t for t in lead], [-1 / t for t in times]
    k = gain * np.prod(lead) / np.prod(times)
    A, B, C, D = scipy.signal.zpk2ss(zeros, poles, k)
    assert not D.any()
    return A, B, C


CUBE = lags(1, 1, 1)


def channel(*given, delay=0.0, dt=None):
    return Channel(*map(np.asarray, given), delay, dt)


def gains(design):
    return np.array([float(design.kp), float(design.ki), float(design.kd)])


# Tuning rules -------------------------------------------------------------------------------------------------


def test_the_ultimate_gain_of_three_lags_is_eight():
    ku, tu = channel(*CUBE).ultimate()
    assert np.isclose(ku, 8.0, rtol=1e-10)
    assert np.isclose(tu, 2 * np.pi / 3**0.5, rtol=1e-10)
    design = classical.pid(CUBE, "ziegler_nichols")
    Ti, Td = np.pi / 3**0.5, np.pi / 3**0.5 / 4
    np.testing.assert_allclose(gains(design), [4.8, 4.8 / Ti, 4.8 * Td], rtol=1e-10)
    np.testing.assert_allclose(gains(classical.pid(CUBE, "ziegler_nichols", kind="pi")), [3.6, 3.6 * 1.2 / tu, 0])
    assert gains(classical.pid(CUBE, "ziegler_nichols", kind="p")).tolist() == pytest.approx([4, 0, 0])


def test_a_sampled_lag_has_its_ultimate_gain_at_nyquists_frequency():
    """z − a + (1 − a) k = 0 at z = −1: the phase comes to −180° only there, whatever the sign of the gain."""
    for gain, dt in ((1.0, 0.5), (-4.0, 0.02)):
        a = np.exp(-dt / 2.0)
        found, period = channel(*lags(2.0, gain=gain), dt=dt).ultimate()
        assert found == pytest.approx((1 + a) / (1 - a) / gain, rel=1e-9)
        assert period == pytest.approx(2 * dt, rel=1e-12)


def test_half_rule_of_skogestads_example():
    """Example E2 of S. Skogestad, J. Process Control 13 (2003): 2.5 and 1.47; 2, 1.2 and 0.77."""
    plant = channel(*lags(2, 1, 0.4, 0.2, 0.05, 0.05, 0.05, lead=(-0.3, 0.08), gain=3.0))
    first, second = half_rule(plant, 1), half_rule(plant, 2)
    found = [first.gain, first.time_constant, first.delay]
    np.testing.assert_allclose(found, [3, 2.5, 1.47], rtol=1e-4)
    np.testing.assert_allclose([second.time_constant, second.second, second.delay], [2, 1.2, 0.77], rtol=1e-4)


def test_simc_is_its_table():
    """Table 1 of the same paper; its series form is multiplied out."""
    model = classical.ProcessModel(2.0, 10.0, delay=1.0)
    np.testing.assert_allclose(gains(classical.pid(model, kind="pi")), [2.5, 2.5 / 8, 0])
    np.testing.assert_allclose(gains(classical.pid(model, kind="pi", tau_c=4)), [1.0, 0.1, 0])
    model = classical.ProcessModel(-2.0, 10.0, delay=1.0, second=3.0)
    series = python_control.tf([8, 1], [8, 0]) * python_control.tf([3, 1], [1]) * -2.5  # K (1 + 1/8s)(1 + 3s)
    kd, kp, ki = (series.num[0][0] / series.den[0][0][0])[:3]
    np.testing.assert_allclose(gains(classical.pid(model)), [kp, ki, kd])
    slope = classical.ProcessModel(0.5, np.inf, delay=2.0)
    np.testing.assert_allclose(gains(classical.pid(slope, kind="pi")), [0.5, 0.5 / 16, 0])
    twice = classical.ProcessModel(0.5, np.inf, delay=2.0, second=np.inf)
    np.testing.assert_allclose(gains(classical.pid(twice)), [2 / 64 * 2, 2 / 64 / 16, 2 / 64 * 16])


def test_amigo_of_the_published_examples():
    """K. J. Åström and T. Hägglund, J. Process Control 14 (2004), section 6."""
    for T, L, kp, Ti, Td in ((2.90, 1.42, 1.12, 2.40, 0.619), (1.04, 0.075, 6.44, 0.361, 0.0367)):
        design = classical.pid(classical.ProcessModel(1.0, T, delay=L), "amigo")
        found = gains(design)
        np.testing.assert_allclose([found[0], found[0] / found[1], found[2] / found[0]], [kp, Ti, Td], rtol=5e-3)
        assert design.b == 0
    late = classical.pid(classical.ProcessModel(1.0, 0.05, delay=1.0), "amigo")
    assert late.b == 1


def test_rules_of_an_integrator_are_the_limit_of_a_slow_lag():
    for kind, rtol in (("pid", 1e-6), ("pi", 5e-3)):  # the book rounds 13.35 to 13.4
        slow = classical.pid(classical.ProcessModel(2e9, 1e9, delay=1.5), "amigo", kind=kind)
        none = classical.pid(classical.ProcessModel(2.0, np.inf, delay=1.5), "amigo", kind=kind)
        np.testing.assert_allclose(gains(slow), gains(none), rtol=rtol)


def test_ziegler_nichols_and_cohen_coon_of_a_model_are_their_tables():
    model = classical.ProcessModel(2.0, 6.0, delay=1.5)  # slope 1/3, q = 1/4
    zn = {"p": (2, np.inf, 0), "pi": (1.8, 4.5, 0), "pid": (2.4, 3, 0.75)}
    for kind, (kp, Ti, Td) in zn.items():
        found = gains(classical.pid(model, "ziegler_nichols", kind=kind, experiment="step"))
        np.testing.assert_allclose(found, [kp, kp / Ti, kp * Td], rtol=1e-3)
    assert not np.isclose(classical.pid(model, "ziegler_nichols", kind="pi").kp, 1.8)  # by the ultimate gain
    cc = {
        "p": (2 * (1 + 1 / 12), np.inf, 0),
        "pi": (2 * (0.9 + 1 / 48), 1.5 * 30.75 / 14, 0),
        "pid": (2 * (4 / 3 + 1 / 16), 1.5 * 33.5 / 15, 6 / 11.5),
    }
    for kind, (kp, Ti, Td) in cc.items():
        np.testing.assert_allclose(gains(classical.pid(model, "cohen_coon", kind=kind)), [kp, kp / Ti, kp * Td])


def test_a_step_gives_the_model_of_the_book():
    """Åström and Hägglund's four equal lags, L = 1.42 and T = 2.90; and a single lag with dead time gives itself."""
    found = of_step(channel(*lags(1, 1, 1, 1)))
    np.testing.assert_allclose([found.gain, found.time_constant, found.delay], [1, 2.90, 1.42], rtol=1e-2)
    late = 3 - scipy.special.gammainc(4, 3) / (27 * np.exp(-3) / 6)  # steepest at 3
    reached = scipy.special.gammaincinv(4, 1 - np.exp(-1))
    np.testing.assert_allclose([found.time_constant, found.delay], [reached - late, late], rtol=1e-5)
    found = of_step(channel(*lags(3.0, gain=-2.0), delay=0.7))
    np.testing.assert_allclose([found.gain, found.time_constant, found.delay], [-2, 3, 0.7], rtol=1e-6)
    found = of_step(channel([[0.0, 1.0], [0.0, -2.0]], [[0.0], [2.0]], [[3.0, 0.0]], delay=0.2))  # 3 / s (s/2 + 1)
    assert found.time_constant == np.inf
    np.testing.assert_allclose([found.gain, found.delay], [3, 0.7], rtol=1e-6)


def test_a_record_gives_back_the_process():
    model = classical.ProcessModel(2.0, 3.0, delay=0.77)
    random, dt = np.random.default_rng(0), 0.1
    u = np.repeat(random.choice([-1.0, 1.0], 30), 20)
    ts = dt * np.arange(len(u) + 1)
    # python-control's step responses, one for each change of the input
    changes = np.diff(u, prepend=0.0)
    y = np.zeros(len(ts))
    for i in np.flatnonzero(changes):
        late = ts - i * dt - model.delay
        y += changes[i] * 2.0 * np.where(late > 0, 1 - np.exp(-np.maximum(late, 0) / 3.0), 0.0)
    for unit in (1.0, 1e-6, 1e6):  # of the output
        found = classical.ProcessModel.of_record(u, unit * (y + 5.0), dt)
        np.testing.assert_allclose([found.gain / unit, found.time_constant, found.delay], [2, 3, 0.77], rtol=1e-5)
    noisy = classical.ProcessModel.of_record(u, y + random.normal(0, 0.05, len(y)), dt)
    np.testing.assert_allclose([noisy.gain, noisy.time_constant, noisy.delay], [2, 3, 0.77], rtol=0.02)


# The largest integral gain ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("T", "L", "sigma"), [(18.75, 0.0, 0.02), (18.75, 0.0, 0.0), (6.0, 0.05, 0.0), (30, 0, 0.1)])
def test_a_dead_time_that_a_record_does_not_tell_is_none_and_no_rule_divides_by_it(T, L, sigma):
    t = np.arange(61.0)
    y = 3 - 3 * np.exp(-np.maximum(t - L, 0) / T) + sigma * np.random.default_rng(3).normal(size=61)
    model = classical.ProcessModel.of_record(np.ones(61), y, 1.0)
    assert model.delay == 0
    assert model.time_constant == pytest.approx(T, rel=0.02 + 3 * sigma)
    loop = [[-1.0, 1.0], [0.0, -2.0]], [[0.0], [1.0]], [[1.0, 0.0]]
    tiny = [dataclasses.replace(model, delay=d, time_constant=lag) for d in (3.5e-15, 1e-10) for lag in (T, np.inf)]
    for rule in ("simc", "amigo", "ziegler_nichols", "max_ki", "cohen_coon"):
        for process in (model, *tiny[: len(tiny) if rule != "cohen_coon" else 1]):
            refused("no dead time|has none|no ultimate gain|none is the", classical.pid, process, rule, kind="pi")
    refused("no ultimate gain", classical.pid, loop, "ziegler_nichols", delay=1e-12)
    sampled = classical.pid(model, "simc", kind="pi", dt=1.0)  # by the formula, half a sample late
    assert sampled.kp == pytest.approx(model.time_constant / (model.gain * 2 * 0.5))


def test_a_record_of_an_integrator_gives_its_slope():
    u = (np.arange(100) >= 10) * 1.5
    y = np.concatenate([np.zeros(4), 0.2 * np.cumsum(u)[:-4]]) + 0.01 * np.random.default_rng(0).normal(size=100)
    model = classical.ProcessModel.of_record(u, y, 2.0)
    assert model.time_constant == np.inf
    assert (model.gain, model.delay) == (pytest.approx(0.1, rel=1e-3), pytest.approx(6.0, abs=0.2))


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_max_ki_of_a_pi_controller_is_that_of_brute_force(delay):
    design = classical.pid(CUBE, "max_ki", kind="pi", ms=1.6, delay=delay)
    kp, ki, _ = gains(design)
    s = 1j * np.geomspace(1e-3, 1e3, 20_001)
    G = np.exp(-s * delay) / (s + 1) ** 3
    assert np.abs(1 + (kp + ki / s) * G).min() >= 1 / (1.6 * (1 + 1e-5))
    s, G = s[4300:14300:20], G[4300:14300:20]
    p, i = np.linspace(0.2 * kp, 3 * kp, 141)[:, None, None], np.linspace(0.8 * ki, 1.2 * ki, 161)[None, :, None]
    grid = np.abs(1 + (p + i / s) * G).min(-1) >= 1 / 1.6
    best = i[0, np.flatnonzero(grid.any(0)).max(), 0]
    assert abs(best / ki - 1) < 0.01  # the grid's steps are 0.25 % and 2 %


def test_max_ki_of_a_pid_controller_is_not_improved_on_by_scipy():
    design = classical.pid(CUBE, "max_ki", ms=1.5)
    kp, ki, kd = gains(design)
    Tf = float(design.filter_time)
    w = np.geomspace(0.02, 100, 1500)
    s = 1j * w
    G = 1 / (s + 1) ** 3

    def slack(x):
        return np.abs(1 + (x[0] + x[1] / s + x[2] * s / (1 + Tf * s)) * G) - 1 / 1.5

    assert slack([kp, ki, kd]).min() > -1e-5
    better = scipy.optimize.minimize(
        lambda x: -x[1], [kp, ki, kd], method="SLSQP",
        constraints={"type": "ineq", "fun": slack}, options={"maxiter": 60},
    )  # fmt: skip
    assert slack(better.x).min() < -1e-6 or better.x[1] <= ki * (1 + 1e-3)


# A mode that hardly decays, between the points of any grid ----------------------------------------------------


def light(damping, at=3.0, peak=-8.0):
    """(A, B, C) of 1 / (s + 1) and of a resonance: its gain there is ``peak``."""
    A = scipy.linalg.block_diag([[-1.0]], [[0.0, 1.0], [-(at**2), -2 * damping * at]])
    return A, np.array([[1.0], [0.0], [1.0]]), np.array([[1.0, 0.0, peak * 2 * damping * at]])


@pytest.mark.parametrize("damping", [1e-3, 1e-5])
@pytest.mark.parametrize(("delay", "dt"), [(0.3, None), (0.25, 0.1), (0.0, 0.4)])
def test_the_ultimate_gain_and_the_largest_integral_gain_are_those_that_a_resonance_leaves(damping, delay, dt):
    one = channel(*light(damping), delay=delay, dt=dt)
    (found, _), ((kp, ki, *_), _) = one.ultimate(), max_ki(one, "pi", 0.0, 1.6)
    late = python_control.tf2ss(*python_control.pade(delay, 8))
    G = python_control.ss(*one.matrices, 0, dt) if dt else python_control.ss(*light(damping), 0) * late
    K = python_control.tf2ss([kp, ki * dt - kp], [1, -1], dt) if dt else python_control.tf2ss([kp, ki], [1, 0])

    def stable(loop):
        return (np.abs(loop.poles()) < 1).all() if dt else (loop.poles().real < 0).all()

    assert all(stable(python_control.feedback(G, k * found)) for k in np.linspace(0.01, 0.9999, 99))
    assert not stable(python_control.feedback(G, 1.0001 * found))
    sensitivity = python_control.feedback(1, G * K)
    assert stable(sensitivity)
    assert python_control.linfnorm(sensitivity)[0] == pytest.approx(1.6, rel=1e-3)


@pytest.mark.parametrize("loops", [1, 2])  # of two that are alike every mode is there twice
def test_a_continuous_loop_is_stable_where_its_poles_decay_with_a_dead_time_as_its_pade_approximation(loops):
    rng, said = np.random.default_rng(5), set()
    for i in range(60):
        A, b, c = light(10 ** rng.uniform(-6, -3), 10 ** rng.uniform(-0.3, 1), rng.choice([-9.0, 9.0]))
        kp, ki, delay = 10 ** rng.uniform(-2.0, 0.3), 10 ** rng.uniform(-3.0, 0.0), (0.0, 0.05)[i % 2]
        loop = python_control.ss(A, b, c, 0) * python_control.tf2ss([kp, ki], [1, 0])
        loop = python_control.feedback(loop * python_control.tf2ss(*python_control.pade(delay, 8)))
        several = [np.kron(np.eye(loops), a) for a in (A, b, c)]
        plant = pid_tuning._PairedPlant(*several, tuple(range(loops)), delay, None, (A, A, None), A)
        ours = [jnp.full((loops,) if loops > 1 else (), a) for a in (kp, ki, 0.0, 0.1, 1.0, 0.0, 1.0)]
        design = classical.PID(*ours, None, None, plant.inputs, loops)
        said.add((bool(loop.poles().real.max() < 0), pid_tuning._decays(plant, design)))
    assert said == {(True, True), (False, False)}


# The sampled controller ---------------------------------------------------------------------------------------


def made(**values):
    """A controller of one loop with these numbers."""
    given = {"kp": 2.0, "ki": 3.0, "kd": 0.5, "filter_time": 0.08, "b": 1.0, "c": 0.0, "tracking_time": 0.3} | values
    numbers = {name: jnp.asarray(float(a)) for name, a in given.items()}
    return classical.PID(**numbers, C=jnp.asarray([[1.0, 0.0, 0.0]]), dt=jnp.asarray(0.05))


def run_controller(policy, ys):
    """Inputs of a policy of outputs for measurements ``[T, p]``."""
    return np.asarray(jax.lax.scan(lambda carry, y: policy(carry, y), policy.init(()), jnp.asarray(ys))[1])


def test_the_parts_are_sampled_exactly_as_scipy_samples_them():
    A, B, C, D = map(np.asarray, made().sampled()[0].matrices)
    w = np.array([0.3, 2.0, 30.0])
    ours = np.asarray(control.frequency_response(A, B, C, w, D, dt=0.05))[:, 0, 0]
    integral = scipy.signal.cont2discrete(([3.0], [1, 0]), 0.05, "zoh")
    derivative = scipy.signal.cont2discrete(([0.5, 0], [0.08, 1]), 0.05, "foh")
    z = np.exp(1j * w * 0.05)
    expected = 2 + sum(np.polyval(np.squeeze(num), z) / np.polyval(den, z) for num, den, _ in (integral, derivative))
    np.testing.assert_allclose(ours, -expected, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(made().response(w, 0.05)), expected, rtol=1e-10)
    np.testing.assert_allclose(np.asarray(made().response(w)), 2 + 3 / (1j * w) + 0.5j * w / (1 + 0.08j * w))
    backward = made(filter_time=0, ki=0, kp=0)
    policy = classical.pid_loops(MOTOR, backward).policy
    np.testing.assert_allclose(run_controller(policy, [[0.0], [1.0], [1.0]])[:, 0], [0, -0.5 / 0.05, 0])


def by_hand(design, ys, r, low, high, velocity=False):
    """The textbook's recursion (Åström and Hägglund 2006, section 13.4), in position or in velocity form."""
    kp, ki, kd, Tf, b, c, Tt = (float(getattr(design, n)) for n in
                                ("kp", "ki", "kd", "filter_time", "b", "c", "tracking_time"))  # fmt: skip
    dt, a = 0.05, np.exp(-0.05 / Tf)
    integral, derivative, before, last, us = 0.0, 0.0, 0.0, None, []
    for y in ys:
        v = c * r - y
        derivative = a * derivative + kd * (1 - a) / dt * (v - before)
        before = v
        p = kp * (b * r - y)
        if velocity and last is not None:
            u = us[-1] + (p - last[0]) + ki * dt * last[2] + derivative - last[1]
        else:
            u = p + integral + derivative
        us.append(np.clip(u, low, high))
        last = (p, derivative, r - y)
        integral += ki * dt * (r - y) + (1 - np.exp(-dt / Tt)) * (us[-1] - u) if not velocity else 0.0
    return np.array(us)


@pytest.mark.parametrize(("b", "c", "velocity"), [(1.0, 0.0, False), (0.3, 1.0, False), (1.0, 0.0, True)])
def test_inputs_are_those_of_the_textbooks_recursion_within_limits(b, c, velocity):
    """The velocity form is tracking at once."""
    ys, tracking = np.random.default_rng(0).normal(0, 1, 80), {"tracking_time": 0.0} if velocity else {}
    design = made(b=b, c=c, **tracking)
    policy = classical.pid_loops(simulation.Problem.of(MOTOR, limits=(-3.0, 2.0)), design, r=0.7).policy
    expected = by_hand(made(b=b, c=c), ys, 0.7, -3.0, 2.0, velocity)
    assert (expected == 2.0).any()
    assert (expected == -3.0).any()
    np.testing.assert_allclose(run_controller(policy, ys[:, None])[:, 0], expected, atol=1e-12)


def test_bumpless_transfer_and_a_missing_measurement():
    assert classical.pid(CUBE, tracking_time=0.0, tau_c=1.0).tracking_time == 0
    policy = classical.pid_loops(MOTOR, made(), r=0.7, u0=1.3, y0=0.4).policy
    assert np.isclose(run_controller(policy, [[0.4]])[0, 0], 1.3)
    us = run_controller(policy, [[0.4], [np.nan], [0.4]])
    assert np.isfinite(us).all()
    np.testing.assert_allclose(us, run_controller(policy, [[0.4], [0.4], [0.4]]))


# The least cost -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def best():
    return classical.pid(MOTOR, "optimal", kind="pd", num_starts=64)


def cost(design, plant):
    problem, n = control.discretize(*plant.matrices(), *plant.weights(), plant.dt), plant.n
    P = np.asarray(control.cost_to_go(*design.loop(problem)))[:n, :n]
    return np.trace(P @ np.diag(np.asarray(plant.scales[0]) ** 2))


def test_the_predicted_cost_is_that_of_the_simulated_loop(best):
    x0 = np.array([0.3, 0.1, -0.2])
    integrating = classical.pid(MOTOR, "optimal", num_starts=64)
    for design in (best, integrating):
        P = np.asarray(control.cost_to_go(*design.loop(SAMPLED)))[:3, :3]
        run = simulation.rollout(MOTOR, design, x0, 3000, linear=True)
        assert np.isclose(run.cost, x0 @ P @ x0, rtol=1e-8)
    assert cost(best, MOTOR) < cost(integrating, MOTOR) < 1.1 * cost(best, MOTOR)
    loop, K = integrating.loop(SAMPLED)
    slow = np.abs(np.linalg.eigvals(loop.A - loop.B @ K)).max()
    assert np.log(slow) < 0.2 * np.log(np.abs(control.dlqr(*SAMPLED).poles).max())


def test_no_pid_of_scipys_search_is_better_and_none_beats_the_regulator(best):
    start = np.diag(np.asarray(MOTOR.scales[0]) ** 2)
    least = np.trace(np.asarray(control.dlqr(*SAMPLED).P) @ start)
    ours = cost(best, MOTOR)
    assert least < ours < 1.25 * least
    assert peak_and_margins(best)[0] <= 2.0

    def brute(x):
        """The cost by SciPy's Lyapunov equation."""
        design = dataclasses.replace(best, kp=jnp.asarray(x[0]), ki=jnp.zeros(()), kd=jnp.asarray(x[1]))
        joint, K = (jax.tree.map(np.asarray, a) for a in design.loop(SAMPLED))
        F = joint.A - joint.B @ K
        if np.abs(np.linalg.eigvals(F)).max() >= 1:
            return 1e9
        stage = joint.Q + K.T @ joint.R @ K - joint.N @ K - (joint.N @ K).T
        P = scipy.linalg.solve_discrete_lyapunov(F.T, stage)[:3, :3]
        return np.trace(P @ start)

    found = scipy.optimize.minimize(brute, [float(best.kp) * 0.8, float(best.kd) * 1.2], method="Nelder-Mead",
                                    options={"maxfev": 120})  # fmt: skip
    assert ours <= found.fun * (1 + 1e-6)


def peak_and_margins(design):
    joint, K = design.loop(SAMPLED)
    (margin,) = control.margins(joint.A, joint.B, K, float(MOTOR.dt))
    return 1 / margin.modulus_margin, margin


def test_limits_of_robustness_are_kept_and_cost_something(best):
    free, _ = peak_and_margins(best)
    limits = {"ms": 0.3 + 0.7 * free}, {"phase_margin": 1.5}, {"gain_margin": 30.0}
    for limit in limits:
        design = classical.pid(MOTOR, "optimal", kind="pd", num_starts=64, **limit)
        ms, margin = peak_and_margins(design)
        (name,) = limit
        found = {"ms": ms, "phase_margin": margin.phase, "gain_margin": margin.gain_up}[name]
        least, most = (0.97, 1 + 1e-6) if name == "ms" else (1 - 1e-6, 1.3)
        assert least <= found / limit[name] <= most, name  # it is the limit that stops it
        assert cost(design, MOTOR) > cost(best, MOTOR) * (1 + 1e-4)


def test_two_loops_on_one_input_stabilise_a_cart_pole():
    plant = systems.make("cart_pole")
    C = np.asarray(plant.output_matrix())
    pairs = [(int(np.argmax(C[:, 0])), 0), (int(np.argmax(C[:, 1])), 0)]
    design = classical.pid(plant, "optimal", kind="pd", pairs=pairs, num_starts=64, ms=4.0)
    assert design.kp.shape == (2,)
    run = simulation.rollout(plant, design, jnp.array([0.1, 0.05, 0.0, 0.0]), 1500)
    assert simulation.verdict.of_sizes(simulation.verdict.size(run.xs, plant.scales[0])) == 0
    one = {"kind": "pd", "pairs": pairs[:1], "num_starts": 16}
    refused("none of 16 starts led to a PID controller that stabilises", classical.pid, plant, "optimal", **one)


# Plants, policies, errors -------------------------------------------------------------------------------------


def test_a_member_without_answer_is_marked():
    plants = systems.make("mass_spring_damper", damping=np.array([0.01, 20.0]))
    design = classical.pid(plants, "simc", tau_c=0.3)  # the first one oscillates
    assert np.isnan(design.kp[0])
    assert np.isnan(design.ki[0])
    assert np.isclose(design.kp[1], classical.pid(plants[1], "simc", tau_c=0.3).kp)
    refused("expected real poles", classical.pid, plants[:1], "simc", tau_c=0.3)


def test_a_problem_has_its_sample_time_and_its_weights():
    A, B = MOTOR.matrices()
    C = MOTOR.output_matrix()
    plant = systems.from_matrices(A, B, C, Q=np.eye(3), R=np.array([[0.2]]), dt=0.01)
    problem = simulation.Problem.of(plant, dt=0.03, weights=(C.T @ C, np.eye(1)), optimum=False)
    for rule, settings in {"max_ki": {"kind": "pi"}, "optimal": {"kind": "pd", "num_starts": 16}}.items():
        expected = classical.pid((A, B, C), rule, dt=0.03, **settings)
        np.testing.assert_allclose(gains(classical.pid(problem, rule, **settings)), gains(expected), rtol=1e-6)


def test_a_batch_is_its_members():
    plants = systems.sample("dc_motor", key=jax.random.key(0), num=3)
    many, *ones = (classical.pid(p, "max_ki", kind="pi", ms=1.7) for p in (plants, *(plants[i] for i in range(3))))
    for name in ("kp", "ki"):
        np.testing.assert_allclose(getattr(many, name), [getattr(one, name) for one in ones], rtol=1e-12)
    run = simulation.rollout(plants, many, jnp.full((3, 3), 0.1), 50)
    alone = simulation.rollout(plants[1], ones[1], jnp.full(3, 0.1), 50)
    np.testing.assert_allclose(run.us[1], alone.us, rtol=1e-9)
    problem = control.discretize(*plants.matrices(), *plants.weights(), plants.dt)
    alone = ones[2].loop(control.discretize(*plants[2].matrices(), *plants[2].weights(), plants.dt))
    np.testing.assert_allclose(control.cost_to_go(*many.loop(problem))[2], control.cost_to_go(*alone), rtol=1e-9)


def test_a_matrix_of_loops_is_that_of_single_ones_where_plants_do_not_touch():
    A, B, C = CUBE
    both = scipy.linalg.block_diag(A, 2 * A), scipy.linalg.block_diag(B, B), scipy.linalg.block_diag(C, 8 * C)
    design, first, second = (
        classical.pid(plant, "simc", tau_c=1.0, dt=0.05, delay=0.1) for plant in (both, CUBE, (2 * A, B, 8 * C))
    )
    np.testing.assert_allclose(design.kp, [first.kp, second.kp], rtol=1e-4)  # of a threefold pole
    crossed = classical.pid((both[0], both[1][:, ::-1], both[2]), tau_c=1.0, dt=0.05, delay=0.1, pairs=[(0, 1), (1, 0)])
    np.testing.assert_allclose(crossed.kd, design.kd, rtol=1e-4)
    assert crossed.inputs == (1, 0)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_exported_c_gives_the_same_inputs(tmp_path):
    problem = simulation.Problem.of(MOTOR, limits=(-1.0, 1.0))
    policy = classical.pid_loops(problem, classical.pid(MOTOR, tau_c=0.3), r=0.4, u0=0.1, y0=0.02)
    for i, controller in enumerate((policy, classical.pid(MOTOR, tau_c=0.3))):
        library = deployment.load_c(deployment.to_c(controller, problem, tmp_path / str(i)))
        ys = np.random.default_rng(0).normal(0, 0.2, (300, 1))
        bound = simulation.bind(controller, problem).policy
        expected = run_controller(bound, ys)
        assert (np.abs(expected) == 1.0).any()
        _, us = library.run(ys)
        np.testing.assert_allclose(us, expected, rtol=0, atol=1e-12)


def test_a_continuous_loop_with_dead_time_is_judged_by_its_frequency_response():
    model = classical.ProcessModel(1.0, 2.0, delay=1.0)
    classical.pid(model, "simc", kind="pi")
    refused(r"not stable .its frequency response encircles", classical.pid, model, "simc", kind="pi", tau_c=-0.6)
    refused(r"not stable .a mode of size", classical.pid, model, "simc", kind="pi", tau_c=-0.6, dt=0.05)
    plant = light(1e-5, peak=-30.0)
    refused(r"not stable .its frequency response", classical.pid, plant, "amigo", experiment="step", delay=0.2)


PENDULUM, PROBLEM = systems.make("pendulum"), simulation.Problem.of(MOTOR, optimum=False)


def holding(**given):
    return classical.pid_loops(MOTOR, classical.pid(MOTOR, tau_c=0.3), **given)


BAD = [
    (lambda: classical.pid(CUBE, "zn"), "rule: expected one of simc, amigo"),
    (lambda: classical.pid(CUBE, kind="pdi"), "kind: expected one of pid, pi, pd, p"),
    (lambda: classical.pid(3.0), "process: expected a problem, a plant of systems.make"),
    (lambda: classical.pid((*CUBE[:2], np.zeros((0, 3)))), "at least one state, input and measured output"),
    (lambda: classical.pid(CUBE, pairs=[(1, 0)]), r"pairs: expected a whole number in \[0, 0\]"),
    (lambda: classical.pid(CUBE, pairs=[]), "pairs: expected a list of .output, input."),
    (lambda: classical.pid(CUBE, pairs=[(0, 0), (0, 0)]), "each pair of output and input once"),
    (lambda: classical.pid(systems.make("parallel_rlc"), "optimal"), 'kind: expected "pd" or "p", but found "pid"'),
    (lambda: classical.pid(systems.make("cart_pole"), "optimal", pairs=[(0, 0), (1, 0)]), "more outputs than inputs"),
    (lambda: classical.pid((*CUBE, [[1.0]])), "D: expected zero, but found inputs that act"),
    (lambda: classical.pid(CUBE, "amigo", tau_c=1.0), 'settings: expected for rule="amigo" one of experiment'),
    (lambda: classical.pid(PROBLEM, dt=0.1), "dt: the problem already has a sample time"),
    (lambda: classical.pid(PROBLEM.scaled()), "process: expected the problem of one plant"),
    (lambda: classical.pid(CUBE, delay=-1.0), "delay: expected a dead time ≥ 0 s, but found -1.0"),
    (lambda: classical.pid((np.full((3, 3), np.nan), *CUBE[1:])), "A: expected finite numbers"),
    *(
        (partial(holding, **{"u0": 0.0} | {name: bad}), f"{name}: expected finite numbers")
        for name in ("r", "u0", "y0")
        for bad in (np.nan, [np.inf])
    ),
    (lambda: holding(r=np.ma.array([1.0], mask=True)), "r: expected numbers, but found 1 masked"),
    (lambda: classical.pid(MOTOR, tau_c=0.3).sampled(-0.1), "dt: expected a sample time above 0 s"),
    (lambda: classical.ProcessModel.of_record([1.0] * 9, [0.0] * 8 + [np.nan], 0.1), "y: expected finite numbers"),
    (lambda: classical.pid(CUBE, tau_c=np.nan), "tau_c: expected a finite number, but found nan"),
    (lambda: classical.pid((*CUBE[:2], np.zeros((1, 3))), "max_ki"), "the output does not react to the input"),
    (lambda: classical.pid(PENDULUM, "amigo"), "expected a stable one for a step experiment"),
    (lambda: classical.pid(PENDULUM), "expected no pole in the right half-plane"),
    (lambda: classical.pid(([[0.0, 1.0], [-1.0, -0.1]], [[0.0], [1.0]], [[1.0, 0.0]])), "expected real poles"),
    (lambda: classical.pid(lags(1.0), "amigo"), "is for processes with dead time"),
    (lambda: classical.pid(lags(1.0)), "tau_c: expected the time constant of the closed loop"),
    (lambda: classical.pid(lags(1.0, 1.0), "ziegler_nichols"), "so it has no ultimate gain"),
    (lambda: classical.pid(lags(1.0), "max_ki", kind="pi"), "at any gain, so none is the largest"),
    (lambda: classical.pid(CUBE, "max_ki", ms=1.0), "ms: expected above 1"),
    (lambda: classical.pid(CUBE, "optimal"), "dt: expected a sample time"),
    (lambda: classical.pid(CUBE, kind="p", tracking_time=0.0), "tracking_time: expected integral action"),
    (lambda: classical.pid(MOTOR, "optimal", ms=1.0001, gain_margin=1e6, num_starts=64), "no PID controller was found"),
    (lambda: classical.ProcessModel(0.0, 1.0), "gain: expected a number other than zero"),
    (lambda: classical.ProcessModel(1.0, 1.0, second=2.0), "second: expected a time from 0 s to time_constant"),
    (lambda: classical.ProcessModel.of_record([1.0] * 9, [0.0] * 9, 0.1), "an output that move"),
    (lambda: classical.ProcessModel.of_record([1.0] * 9, [0.0] * 5, 0.1), "two columns of at least 8"),
    (lambda: simulation.bind(made(), systems.make("pendulum")), "design: expected 2 states"),
    (
        lambda: simulation.bind(made(), simulation.Problem.of(MOTOR, dt=0.01)),
        "dt: expected the sample time of the policy's problem",
    ),
    (
        lambda: simulation.bind(classical.pid(classical.ProcessModel(1.0, 1.0, delay=0.1)), MOTOR),
        "design: expected one with measured outputs",
    ),
    (lambda: jax.jit(lambda A: classical.pid((A, *CUBE[1:]), tau_c=1.0).kp)(jnp.asarray(CUBE[0])), "runs on the host"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_arguments_are_refused_in_words(call, words):
    refused(words, call)


def test_the_gradient_of_the_loss_is_that_of_finite_differences(monkeypatch):
    kept = {}
    monkeypatch.setattr(optimal_pid, "descend", lambda starts, setting, few: kept.update(setting=setting) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        classical.pid(MOTOR, "optimal", num_starts=4, ms=1.05)
    at = jnp.array([[1.0, 0.5, 1.5, 0.3], [3.0, 0.2, 2.0, 0.1]])
    loss = jax.jit(lambda a: jnp.sum(optimal_pid._losses(a, kept["setting"])))
    assert loss(at) < 1e5
    slope, h = jax.grad(loss)(at), 1e-5
    for i in np.ndindex(at.shape):
        step = jnp.zeros_like(at).at[i].set(h)
        assert np.isclose((loss(at + step) - loss(at - step)) / (2 * h), slope[i], rtol=2e-4, atol=1e-5)
