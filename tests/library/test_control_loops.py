"""Zeros, frequency responses, margins, steps and delays, against python-control and dense simulation."""

import dataclasses
import inspect
import warnings
from functools import partial

import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy_oracle import van_loan

from lqrlab import control, simulation, systems, tuning

A = np.array([[0.0, 1.0], [2.0, -0.3]])
B = np.array([[0.0], [1.0]])
Q, R = np.diag([1.0, 0.1]), np.array([[0.2]])
GAIN = np.array([[1.0, 1.0]])


@pytest.mark.parametrize("dt", [None, 0.1])
def test_frequency_responses_equal_python_controls(dt):
    rng = np.random.default_rng(1)
    a, b, c = 0.2 * rng.normal(size=(3, 4, 4)), rng.normal(size=(4, 2)), rng.normal(size=(3, 4))
    d, w = rng.normal(size=(3, 2)), np.array([0.3, 2.0, 20.0])
    result = control.frequency_response(a, b, c, w, d, dt)
    for i in range(3):
        system = python_control.ss(a[i], b, c, d, dt or 0)
        theirs = np.moveaxis(python_control.frequency_response(system, w).complex, -1, 0)
        assert np.allclose(result[i], theirs, rtol=1e-9)
    K = rng.normal(size=(2, 4))
    opened = python_control.ss(a[0], b, K, np.zeros((2, 2)), dt or 0)
    loop = np.moveaxis(python_control.frequency_response(opened, w).complex, -1, 0)
    assert np.allclose(control.sensitivity(a[0], b, K, w, dt), np.linalg.inv(np.eye(2) + loop), rtol=1e-9)


def test_whole_numbers_are_numbers():
    a, b, c = [[0, 1], [-4, -1]], [[0], [1]], [[1, 0]]
    result = control.frequency_response(a, b, c, [2.5])
    assert np.isclose(result[0, 0, 0], 1 / (4 - 2.5**2 + 2.5j), rtol=1e-12)
    ys, _ = tuning.step_response([[0]], [[1]], [[1]], [[0]], [0.5], 3)
    assert np.allclose(ys[:, 0], [0, 0.5, 0.5, 0.5], atol=1e-12)
    assert np.isclose(tuning.step_info([[0], [0], [1], [1]], 0.05, [1]).settling[0], 0.1)
    design = control.lqr([[0, 1], [0, 0]], b, [[1, 0], [0, 3]], 1)
    assert design.K.dtype == jnp.float64
    assert np.allclose(design.K, [[1, np.sqrt(5)]], rtol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: control.c2d(A, np.ones((3, 1)), 0.1), r"B: expected shape \(2, 1\)"),
        (lambda: control.c2d(A, B, -0.1), "dt: expected a sample time above 0 s"),
        (lambda: control.ctrb(A, np.ones((3, 1))), r"B: expected shape \(2, 1\)"),
        (lambda: control.lqi(A, B, [1.0, 0.0], Q, R, R), r"C: expected a matrix \[p, n\]"),
        (lambda: control.lqi(A, B, np.eye(2), Q, R, np.eye(2)), "^C: 1 inputs cannot hold 2 outputs .* at most 1"),
        (lambda: control.lqi(A, B, [[0.0, 0.0]], Q, R, [[1.0]]), "^C: output 0 cannot be held"),
        (lambda: control.lqi(np.eye(2), np.eye(2), [[1, 2], [2, 4]], Q, Q, Q, discrete=True), "^C: output 0, 1 cannot"),
        (lambda: control.margins(A * np.nan, B, [[8.0, 4.0]]), "A: expected finite numbers"),
        (lambda: control.lqr(A, np.zeros((2, 0)), Q, np.zeros((0, 0))), "at least one state and one input"),
        (lambda: tuning.step_info(np.ones(5), 0.1, 1.0), "ys: expected outputs"),
        (lambda: tuning.step_response(A, B, [[1.0, 0.0]], [[8.0, 4.0]], [1.0, 2.0], 5), "r: expected a set"),
        (lambda: tuning.step_response(A, B, [[1.0, 0.0]], [[8.0, 4.0]], [1.0], 0), "num_steps: expected a whole"),
        (lambda: control.finite_horizon(A, B, Q, R, 0), "num_steps: expected a whole number ≥ 1"),
        (lambda: control.finite_horizon(A, B, Q, R, 4, np.eye(3)), r"Qf: expected shape \(2, 2\)"),
        (lambda: control.finite_horizon(A, B, Q, R, 4, np.triu(np.ones((2, 2)))), "Qf: expected a symmetric matrix"),
        (lambda: control.finite_horizon(A, B, Q, R, 4, -np.eye(2)), "Qf: expected positive semidefinite"),
        (lambda: control.lqe(np.diag([1.0, -1.0]), [[0.0, 1.0]], Q, R), "no measurement shows the mode"),
        (
            lambda: control.delayed(A, B, Q, R, 0.1, [1.0, 2.0]),
            "delay: expected .* one for each of 1 inputs, not traced, but found 2",
        ),
        (lambda: control.lqrd_delayed(A, np.eye(2), Q, Q, 0.1, [0.5, -1.0]), "delay: expected .*, but found -1.0"),
        *(
            (partial(call, dt), "dt: expected a sample time above 0 s")
            for call in (lambda dt: control.modes(A / 10, dt=dt), lambda dt: control.hinf_norm(A / 10, B, GAIN, dt=dt))
            for dt in (np.nan, np.inf, 0.0, -1.0)
        ),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    refused(message, call)


def oscillator(damping):
    return jnp.array([[0.0, 1.0], [-2.0, -1.0]]) * jnp.array([[1, 1], [1, damping]])


def cost_of_a_cart_pole(length):
    plant = systems.make("cart_pole", pole_length=length)
    return jnp.trace(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).P)


@pytest.mark.parametrize(
    "function",
    [
        lambda damping: jnp.abs(control.frequency_response(oscillator(damping), B, [[1.0, 0.0]], [1.4])).sum(),
        lambda damping: control.h2_norm(oscillator(damping), B, np.array([[1.0, 0.0]])),
        lambda noise: jnp.trace(control.lqe(A, np.ones((1, 2)), noise * jnp.eye(2), jnp.eye(1)).P),
        cost_of_a_cart_pole,
    ],
)
def test_derivatives_reach_a_parameter(function):
    slope = (function(0.6 + 1e-5) - function(0.6 - 1e-5)) / 2e-5
    assert np.isclose(jax.grad(function)(0.6), slope, rtol=1e-6)


def test_step_info_equals_python_controls():
    a, b = (np.asarray(x) for x in control.c2d(A, B, 0.05))
    c, T = np.array([[1.0, 0.0]]), 200
    K = np.stack([control.lqrd(A, B, Q, r * R, 0.05).K for r in (0.01, 1.0)])
    ys, us = tuning.step_response(a, b, c, K, np.array([-2.0]), T)
    result = tuning.step_info(ys, 0.05, np.array([-2.0]))
    for i in range(2):
        # the same loop, built by python-control from its own steady state
        system = python_control.ss(a - b @ K[i], b, c, 0, 0.05)
        gain = -2.0 / system.dcgain()
        _, y = python_control.step_response(system * gain, np.arange(T + 1) * 0.05)
        assert np.allclose(ys[i, :, 0], y, atol=1e-9)
        info = python_control.step_info(system * gain, T=np.arange(T + 1) * 0.05)
        assert np.isclose(result.rise[i, 0], info["RiseTime"])
        assert np.isclose(result.settling[i, 0], info["SettlingTime"])
        assert np.isclose(100 * result.overshoot[i, 0], info["Overshoot"], atol=1e-6)
        assert np.isclose(result.peak[i, 0], info["Peak"])
    # a zero in the right half plane: at first the wrong way
    system = python_control.sample_system(python_control.tf([-1.0, 1.0], [1.0, 1.2, 1.0]), 0.05)
    t, y = python_control.step_response(system, np.arange(T + 1) * 0.05)
    info = python_control.step_info(y, T=t, final_output=1.0)
    assert info["Undershoot"] > 10
    wrong_way = tuning.step_info(-2.0 * y[:, None], 0.05, np.array([-2.0]))
    assert np.isclose(100 * wrong_way.undershoot[0], info["Undershoot"])
    assert np.isclose(100 * wrong_way.overshoot[0], info["Overshoot"])
    assert us.shape == (2, T, 1)
    assert np.isposinf(tuning.step_info(ys[:, :10], 0.05, np.array([-2.0])).settling).all()
    assert np.isnan(tuning.step_info(ys, 0.05, np.array([0.0])).settling).all()
    at_once = tuning.step_info(np.full((6, 1), -2.0), 0.05, np.array([-2.0]))
    assert (at_once.settling.item(), at_once.overshoot.item(), at_once.undershoot.item()) == (0.0, 0.0, 0.0)


# Delay -----------------------------------------------------------------------------------------------------


def simulated(delay, K, dt, parts=4, steps=300):
    """Cost of u[t] = −K (x[t], u[t−1], …), a delayed zero-order hold on a grid ``parts`` times finer."""
    a, b, q, r, n = van_loan(A, B, Q, R, dt / parts)
    x, us, total = np.eye(2), [], 0.0  # both unit vectors at once
    late = round(delay * parts)
    for k in range(steps * parts):
        if k % parts == 0:
            past = [us[-1 - i] if len(us) > i else np.zeros((1, 2)) for i in range(K.shape[1] - 2)]
            us.append(-np.asarray(K) @ np.concatenate([x, *past]))
        u = us[(k - late) // parts] if k >= late else np.zeros((1, 2))
        total += np.sum(x * (q @ x) + 2 * x * (n @ u)) + np.sum(u * (r @ u))
        x = a @ x + b @ u
    return total


def by_dynamic_programming(problem):
    """The cost to go of a long horizon."""
    a, b, q, r, n = (np.asarray(x) for x in problem)
    P = q
    for _ in range(600):
        S, G = r + b.T @ P @ b, b.T @ P @ a + n.T
        P = q + a.T @ P @ a - G.T @ np.linalg.pinv(S, rcond=1e-12) @ G
        P = (P + P.T) / 2
    return P


@pytest.mark.parametrize("delay", [0.25, 2.25])
def test_the_cost_of_delay_is_what_a_dense_simulation_pays(delay):
    dt = 0.1
    prompt = control.lqrd(A, B, Q, R, dt)
    aware = control.lqrd_delayed(A, B, Q, R, dt, delay)
    base = float(jnp.trace(prompt.P))
    late, best = (control.delay_cost(A, B, Q, R, dt, delay, aware=flag) for flag in (False, True))
    assert np.isclose(late, simulated(delay, prompt.K, dt) / base - 1, rtol=1e-8)
    assert np.isclose(best, simulated(delay, aware.K, dt) / base - 1, rtol=1e-8)
    assert 0 < best < late
    K = 0.8 * prompt.K
    other = control.delay_cost(A, B, Q, R, dt, delay, K=K)
    assert np.isclose(other, simulated(delay, K, dt) / base - 1, rtol=1e-8)

    # the optimum: dynamic programming over the widened plant, long enough
    P = by_dynamic_programming(control.delayed(A, B, Q, R, dt, delay))
    assert np.allclose(aware.P, P, rtol=1e-9, atol=1e-9 * np.abs(P).max())


@pytest.mark.parametrize("delays", [(0.25, 1.5), (2.5, 0.0), (1.0, 3.0), (1.25, 1.75)])
def test_inputs_that_are_late_by_different_times(delays):
    """The cost by small steps of SciPy's exponential with a queue an input; the optimum by dynamic programming."""
    dt, ticks, m = 0.1, 4, 2
    a, b = np.array([[0.3, 1.0, 0.0], [-0.4, 0.1, 0.5], [0.0, 0.2, -0.6]]), np.array([[0.0, 1.0], [1.0, 0.2], [0.5, 0]])
    q, r = np.diag([1.0, 0.0, 0.5]), np.array([[0.5, 0.1], [0.1, 0.3]])
    n = np.array([[0.1, 0.0], [0.0, 0.0], [0.0, 0.1]])
    design = control.lqrd_delayed(a, b, q, r, dt, delays, n)
    P = by_dynamic_programming(control.delayed(a, b, q, r, dt, delays, n))
    np.testing.assert_allclose(design.P, P, rtol=1e-8, atol=1e-9 * np.abs(P).max())
    assert design.stabilizing
    *moved, q, r, n = van_loan(a, b, q, r, dt / ticks, n)
    moved, weight = np.hstack(moved), np.block([[q, n], [n.T, r]])
    K, x0 = np.asarray(design.K), np.array([1.0, -0.5, 0.3])
    x, sent, total = x0, [], 0.0
    for k in range(400 * ticks):
        if k % ticks == 0:
            past = [*reversed(sent), *[np.zeros(m)] * K.shape[1]][: (K.shape[1] - 3) // m]
            sent.append(-K @ np.concatenate([x, *past]))
        late = [k - round(d * ticks) for d in delays]
        u = np.array([sent[j // ticks][i] if j >= 0 else 0.0 for i, j in enumerate(late)])
        z = np.concatenate([x, u])
        total, x = total + z @ weight @ z, moved @ z
    assert total == pytest.approx(x0 @ P[:3, :3] @ x0, rel=1e-8)
    plant = systems.from_matrices(a, b, Q=q, R=r, dt=dt)
    without = control.lqrd_delayed(a, b, q, r, dt, delays)
    run = simulation.rollout(
        plant, simulation.delayed(plant, without, delays, ticks=ticks), x0, 400 * ticks, dt=dt / ticks
    )
    assert float(run.cost) == pytest.approx(float(x0 @ without.P[:3, :3] @ x0), rel=1e-8)


def test_late_inputs_of_a_batch_are_those_of_each_member_in_its_own_type():
    a, b = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[0.0, 0.3], [1.0, 0.1]])
    times, q, r = np.array([0.05, 0.1, 0.2]), np.eye(2), np.eye(2)
    for delays in ([0.5, 2.0], [1.25, 1.5]):
        many = control.lqrd_delayed(a, b, q, r, times, delays)
        for i, dt in enumerate(times):
            one = control.lqrd_delayed(a, b, q, r, dt, delays)
            np.testing.assert_allclose(many.K[i], one.K, atol=1e-8)
            np.testing.assert_allclose(many.P[i], one.P, atol=1e-8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that float64 is better
            single = control.lqrd_delayed(*(np.float32(x) for x in (a, b, q, r)), np.float32(0.1), delays)
        assert single.K.dtype == np.float32
        np.testing.assert_allclose(single.K, many.K[1], atol=1e-3)


def test_margins_with_a_dead_time_at_each_input_are_those_of_dead_times_by_pade():
    A = np.array([[0.2, 1.0, 0.0], [-1.0, -0.5, 0.3], [0.1, 0.0, -1.0]])
    B = np.array([[0.0, 0.4], [1.0, 0.0], [0.3, 1.0]])
    K = np.asarray(control.lqr(A, B, np.diag([3.0, 1.0, 2.0]), np.eye(2)).K)
    delays = [0.12, 0.3]
    found = control.margins(A, B, K, delay=delays)

    def grows(delays, gains=(1.0, 1.0)):
        """Largest real part of the poles of the loop, each dead time by its tenth-order approximation."""
        late = [python_control.ss(python_control.tf(*python_control.pade(d, 10))) for d in delays]
        plant = python_control.ss(A, B, np.eye(3), 0) * python_control.append(*late)
        return plant.feedback(python_control.ss([], [], [], np.diag(gains) @ K)).poles().real.max()

    assert grows(delays) < 0
    for i, margin in enumerate(found):
        other = np.eye(2)[i]
        for factor, sign in ((0.999, -1), (1.001, 1)):
            assert np.sign(grows(delays + factor * margin.delay_margin * other)) == sign
            assert np.sign(grows(delays, 1 + (factor * margin.gain_up - 1) * other)) == sign
    w = np.geomspace(1e-3, 1e3, 40000)
    T = K @ np.linalg.solve(1j * w[:, None, None] * np.eye(3) - A, B + 0j) * np.exp(-1j * w[:, None, None] * delays)
    sensitivity = np.abs(np.diagonal(np.linalg.inv(np.eye(2) + T), axis1=1, axis2=2)).max(0)
    assert [m.modulus_margin for m in found] == pytest.approx(1 / sensitivity, rel=1e-5)
    ours, theirs = (
        jax.tree.leaves(dataclasses.asdict(control.margins(A, B[:, :1], K[:1], delay=d)[0])) for d in ([0.12], 0.12)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    with pytest.raises(ValueError, match="dead times at which the loop is stable"):
        control.margins(A, B, K, delay=[0.12, 0.31 + found[1].delay_margin])
    refused("one for each of 2 inputs, but found 3", control.margins, A, B, K, delay=[0.1] * 3)
    with pytest.raises(ValueError, match=r"control\.delayed"):
        control.margins(*(np.asarray(M) for M in control.c2d(A, B, 0.1)), 0.1 * K, 0.1, delay=delays)


def test_loops_of_very_different_speed_and_narrow_resonances_are_not_missed():
    """Against loops without coupling, one by one: 1/s by hand, a resonance by the exact search of one delay."""
    slow, fast = control.margins(np.zeros((2, 2)), np.eye(2), np.diag([0.05, 200.0]), delay=[10.0, 0.0])
    assert slow.delay_margin == pytest.approx(np.pi / 2 / 0.05 - 10, rel=1e-6)
    assert (fast.phase, fast.delay_margin) == pytest.approx((np.pi / 2, np.pi / 2 / 200), rel=1e-6)
    A = np.array([[0.0, 1.0, 0.0], [-100.0, -2e-4, 0.0], [0.0, 0.0, -1.0]])
    B, K = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 0.01, 0.0], [0.0, 0.0, 1.0]])
    late = control.margins(A, B, K)[0].delay_margin
    refused("dead times at which the loop is stable", control.margins, A, B, K, delay=[1.02 * late, 0.1])
    left = control.margins(A, B, K, delay=[0.5 * late, 0.1])[0].delay_margin
    assert left == pytest.approx(0.5 * late, rel=1e-3)


def test_delay_costs_are_batched_and_say_where_the_loop_is_lost():
    costs = control.delay_cost(A, B, Q, R, np.array([0.01, 0.1, 0.3]), 2.5)
    assert 0 < costs[0] < costs[1]
    assert costs[2] == np.inf
    assert np.isclose(control.delay_cost(A, B, Q, R, 0.1, 0.0), 0, atol=1e-12)
    for bad in (-1.0, np.nan):
        refused("delay: expected a number of sample times in", control.delay_cost, A, B, Q, R, 0.1, bad)
    refused("has another gain", control.delay_cost, A, B, Q, R, 0.1, 1.0, K=np.ones((1, 2)), aware=True)


ONE, TWO = np.eye(1), np.eye(2)
TAKES_NUMBERS = {
    "lqr": (control.lqr, {"A": A, "B": B, "Q": TWO, "R": ONE, "N": B}),
    "lqrd": (control.lqrd, {"A": A, "B": B, "Q": TWO, "R": ONE, "dt": 0.1}),
    "care": (control.care, {"A": A, "B": B, "Q": TWO, "R": ONE}),
    "c2d": (control.c2d, {"A": A, "B": B, "dt": 0.1}),
    "lyap": (control.lyap, {"A": A, "Q": TWO}),
    "dlyap": (control.dlyap, {"A": A, "Q": TWO}),
    "ctrb": (control.ctrb, {"A": A, "B": B}),
    "obsv": (control.obsv, {"A": A, "C": GAIN}),
    "gram": (control.gram, {"A": A, "B": B}),
    "h2_norm": (control.h2_norm, {"A": A, "B": B, "C": GAIN}),
    "hinf_norm": (control.hinf_norm, {"A": -TWO, "B": B, "C": GAIN, "D": ONE}),
    "zeros": (control.zeros, {"A": A, "B": B, "C": GAIN, "D": ONE}),
    "modes": (control.modes, {"A": A}),
    "margins": (control.margins, {"A": A, "B": B, "K": GAIN}),
    "frequency_response": (control.frequency_response, {"A": A, "B": B, "C": GAIN, "frequencies": np.ones(1)}),
    "sensitivity": (control.sensitivity, {"A": A, "B": B, "K": GAIN, "frequencies": np.ones(1), "dt": 0.1}),
    "step_response": (
        partial(tuning.step_response, num_steps=3),
        {"A": A, "B": B, "C": GAIN, "K": GAIN, "r": np.ones(1)},
    ),
    "step_info": (tuning.step_info, {"ys": np.ones((3, 1)), "dt": 0.1, "r": np.ones(1)}),
    "finite_horizon": (partial(control.finite_horizon, num_steps=3), {"A": A, "B": B, "Q": TWO, "R": ONE, "Qf": TWO}),
    "lqe": (control.lqe, {"A": A, "C": GAIN, "W": TWO, "V": ONE}),
    "lqg": (control.lqg, {"A": A, "B": B, "C": GAIN, "Q": TWO, "R": ONE, "W": TWO, "V": ONE}),
    "lqi": (control.lqi, {"A": A, "B": B, "C": GAIN, "Q": TWO, "Qi": ONE, "R": ONE}),
    "feedforward": (control.feedforward, {"A": A, "B": B, "C": GAIN}),
    "place": (control.place, {"A": A, "B": B}),
    "inverse_lqr": (tuning.inverse_lqr, {"A": A, "B": B, "K": GAIN, "dt": 0.1}),
    "unsaturated_level": (control.unsaturated_level, {"K": GAIN, "P": TWO, "limit": np.ones(1)}),
    "from_matrices": (systems.from_matrices, {"A": A, "B": B, "C": GAIN, "Q": TWO, "R": ONE, "dt": 0.1}),
    "make": (partial(systems.make, "pendulum"), {"length": np.ones(1), "mass": np.ones(1)}),
}


@pytest.mark.parametrize("name", TAKES_NUMBERS)
def test_what_is_no_number_is_refused_and_other_bytes_of_the_same_numbers_are_the_same(name):
    function, good = TAKES_NUMBERS[name]
    more = {"poles": [-1.0, -2.0]} if name == "place" else {}
    unstable = name in ("gram", "h2_norm", "margins", "inverse_lqr")
    answer = [] if unstable else jax.tree.leaves(function(**good | more))
    for argument, value in good.items():
        a = np.asarray(value)
        first = np.ones(a.shape, bool)
        first.flat[1:] = False
        bad = [a + 10j, a.astype(bool), np.ma.array(a, mask=first), a.astype([("a", float)])]
        for other in (*bad, *(a.astype(kind) for kind in ("U", "S", object, "m8[s]", "M8[s]"))):
            refused(f"(^|: ){argument}: expected (real )?numbers, but", function, **good | more | {argument: other})
        if not a.ndim:
            continue
        for other in (a.astype(">f8"), a.astype(np.longdouble), np.ma.array(a)) if answer else ():
            for found, expected in zip(jax.tree.leaves(function(**good | more | {argument: other})), answer):
                np.testing.assert_array_equal(found, expected)


def test_poles_are_numbers():
    for bad in (["-1", "-2"], [None, -1.0]):
        refused("poles: expected numbers, but found", control.place, A, B, np.asarray(bad))
        refused("poles: expected numbers, but found", control.settling_time, np.asarray(bad))
    hidden = np.ma.array([0.9, 0.5], mask=[True, False])
    refused("poles: expected numbers, but found 1 masked", control.settling_steps, hidden)
    refused("poles: expected finite numbers, but found nan", control.settling_steps, [0.9, np.nan])
    refused("xs: expected finite", control.lq_tracking, A, B, TWO, ONE, np.full((3, 2), np.nan))
    refused("c: expected finite", control.lq_tracking, A, B, TWO, ONE, np.ones((3, 2)), c=np.full((2, 2), np.inf))
    refused("B: expected finite", control.StateSpace, A, np.full((2, 1), np.inf), GAIN, ONE)


def test_functions_on_the_host_say_so_inside_a_trace():
    for name, function in (
        ("margins", lambda a: control.margins(a, B, GAIN)),
        ("hinf_norm", lambda a: control.hinf_norm(a, B, GAIN)),
        ("hinf_norm", lambda a: control.hinf_norm(A, B, GAIN * a[0, 0])),
        ("zeros", lambda a: control.zeros(a, B, GAIN)),
        ("modes", control.modes),
        ("place", lambda a: control.place(a, B, [-1.0, -2.0])),
    ):
        refused(f"{name}: runs on the host, so not inside jit", jax.jit(function), A)


def test_a_switch_is_true_or_false_and_a_pair_is_a_pair():
    # without the types that tests check, as users call them
    one, C = np.eye(1), np.array([[1.0, 0.0]])
    for name, call in (
        ("discrete", lambda v: inspect.unwrap(control.gram)(A, B, discrete=v)),
        ("discrete", lambda v: inspect.unwrap(control.lqi)(A, B, C, np.eye(2), one, one, discrete=v)),
        ("aware", lambda v: inspect.unwrap(control.delay_cost)(A, B, np.eye(2), one, 0.1, 1, aware=v)),
        ("diagonal", lambda v: inspect.unwrap(tuning.inverse_lqr)(A, B, GAIN, diagonal=v)),
    ):
        for wrong in (0.1, "no", [], None):  # a sample time is none
            refused(f"{name}: expected True or False, but found", call, wrong)
    with pytest.raises(ValueError, match="problem: expected A, B, Q, R, N, as from discretize, but found float"):
        inspect.unwrap(control.cost_to_go)(0.1, GAIN)
    with pytest.raises(ValueError, match=r"points: expected a pair \(x, u\), but found 0.1"):
        inspect.unwrap(tuning.gain_schedule)(np.array([0.0, 1.0]), A, B, np.eye(2), one, points=0.1)


def test_zeros_by_hand():
    # y = (s − 1) / s² starts the wrong way
    chain = np.array([[0.0, 1.0], [0.0, 0.0]])
    assert np.allclose(control.zeros(chain, B, [[-1.0, 1.0]]), [1.0])
    assert control.zeros(chain, B, [[1.0, 0.0]]).shape == (0,)
