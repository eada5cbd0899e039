"""Weights from specifications and the price of weights, checked on the loops themselves and by brute force."""

import dataclasses

import control as python_control
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from refusals import refused
from scipy_oracle import gain, van_loan

from lqrlab import control, tuning
from lqrlab.extensions.tuning import tuner
from lqrlab.extensions.tuning.step import StepExperiment

A = np.array([[0.0, 1.0], [0.0, 0.0]])
B = np.array([[0.0], [1.0]])
C = np.array([[1.0, 0.0]])
DT = 0.05


def double_integrator(**specs):
    return tuning.tune(A, B, C, np.eye(2), np.eye(1), DT, tuning.StepSpecs(**specs))


@pytest.mark.slow
def test_specifications_are_met_on_the_loop_or_missed_in_words():
    result = double_integrator(settling=2.0, overshoot=0.02, effort=5.0, margin=1.0)
    assert all(result.met.values())
    again = control.lqrd(A, B, result.Q, result.R, DT)
    a, b = (np.asarray(x) for x in control.c2d(A, B, DT))
    K = np.asarray(again.K)
    loop = python_control.ss(a - b @ K, b * K[0, 0], C, 0, DT)  # python-control's step, not ours
    info = python_control.step_info(loop, T=np.arange(300) * DT)
    assert np.isclose(info["SettlingTime"], result.reached["settling"])
    assert info["SettlingTime"] <= 2.0
    assert info["Overshoot"] <= 2.0
    assert np.isclose(K[0, 0] / 5.0, result.reached["effort"])  # the largest input is the first
    w = np.linspace(1e-2, np.pi / DT, 20001)
    L = python_control.frequency_response(python_control.ss(a, b, K, 0, DT), w).complex
    assert np.isclose((2 * np.abs(1 + L) / np.abs(1 - L)).min(), result.reached["margin"], rtol=1e-3)

    # from rest, |u| ≤ 1 takes 1.4 s for 0.98 without ever braking
    missed = double_integrator(settling=1.3, overshoot=0.02, effort=1.0, margin=1.0)
    assert not missed.met["effort"] or not missed.met["settling"]
    assert missed.met["margin"]
    text = str(missed)
    assert "Without the specification of the largest input all others are met" in text
    assert "Without the specification of the disk margin" not in text
    needed = float(text.split("needs ")[1].split(" times")[0])
    assert 2 * 0.98 / 1.3**2 < needed < 4 / 1.3**2  # between a throw, 2 d/t², and a stop, 4 d/t²


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({}, "at least one"),
        ({"settling": -1.0}, "settling: expected a number above 0"),
        ({"overshoot": -0.1}, "≥ 0"),
        ({"effort": (1.0, -1.0)}, "effort: expected a number above 0"),
    ],
)
def test_specifications_that_mean_nothing_are_refused(specs, message):
    refused(message, tuning.StepSpecs, **specs)


def test_outputs_that_cannot_stand_still_are_refused():
    given = A, B, [[0.0, 1.0]], np.eye(2), np.eye(1), DT, tuning.StepSpecs(settling=1.0)
    refused("C: no constant input holds", tuning.tune, *given, r=[1.0])


def test_the_front_is_measured_and_sorted_out_rightly():
    rng, num = np.random.default_rng(0), 27
    Q, R = np.diag([1.0, 0.2]), np.array([[0.5]])
    d, e = np.exp(rng.normal(0, 3, (num, 2))), np.exp(rng.normal(0, 1, num))
    d[-3:], e[-3:] = 1.0, (0.1, 1.0, 10.0)  # the last three change the price of the input only
    X0 = np.array([[1.0, 0.3], [0.3, 0.5]])
    result = tuning.pareto(A, B, Q, R, DT, Q * np.sqrt(d[:, :, None] * d[:, None]), R * e[:, None, None], X0=X0)
    x, y = np.asarray(result.state_cost), np.asarray(result.effort)
    better = (x[None] <= x[:, None]) & (y[None] <= y[:, None]) & ((x[None] < x[:, None]) | (y[None] < y[:, None]))
    assert np.array_equal(result.dominated, better.any(1))
    assert result.dominated.any()
    assert not result.dominated[-3:].any()
    optimum = float(jnp.trace(control.lqrd(A, B, Q, R, DT).P @ X0))
    assert np.isclose(x[-2] + y[-2], optimum, rtol=1e-9)
    assert np.all(x + y >= optimum * (1 - 1e-9))
    given = A, B, Q, R, DT, Q, R * e[:, None, None]
    refused(r"X0: expected a covariance of shape \(2, 2\)", tuning.pareto, *given, X0=np.ones(2))
    # effort by itself: the input is held, so the sum over steps is exact
    K, closed = np.asarray(result.K[0]), np.linalg.matrix_power
    a, b = (np.asarray(v) for v in control.c2d(A, B, DT))
    starts = np.linalg.cholesky(X0)
    us = np.stack([K @ closed(a - b @ K, t) @ starts for t in range(3000)])
    assert np.isclose(y[0], DT * R[0, 0] * np.sum(us**2), rtol=1e-9)
    turned = np.stack([np.cos(phi := np.linspace(0, 2 * np.pi, 2001)), np.sin(phi)])
    assert np.isclose(result.peak[0, 0], np.abs(us[:, 0] @ turned).max(), rtol=1e-5)


TWO = (np.array([[0.0, 1.0, 0.0], [-1.0, -0.4, 0.5], [0.3, 0.0, 0.2]]), np.array([[0.0, 0], [1, 0], [0, 1]]))


def experiment(plant, C, dt, r=1.0, **specs):
    """One that tunes from weights of one."""
    A, B = plant
    specs = tuning.StepSpecs(**specs)
    return StepExperiment.of(A, B, C, np.eye(len(A)), np.eye(B.shape[1]), dt, specs, r), specs


def test_how_far_specifications_are_missed_is_read_off_a_loop_by_numpy():
    C, r, limits = np.eye(3)[[0, 2]], np.array([2.0, 0.0]), (3.0, 0.5)
    step, specs = experiment(TWO, C, 0.1, r, settling=1.0, overshoot=0.05, effort=limits, margin=0.9)
    log, T = np.array([1.0, -2.0, 0.5, -1.0, 0.7]), 40
    d, e = np.exp(log[:3]), np.exp(log[3:])
    A, B, *weights = van_loan(*TWO, np.diag(d), np.diag(e), 0.1)
    K, _ = gain(A, B, *weights)
    held = np.linalg.solve(np.block([[A - np.eye(3), B], [C, np.zeros((2, 2))]]), np.r_[0, 0, 0, r])
    x, y, u = np.zeros(3), [], []
    for _ in range(T + 1):
        y.append(C @ x)
        u.append(held[3:] - K @ (x - held[:3]))
        x = A @ x + B @ u[-1]
    done = np.array(y)[:, 0] / 2.0  # the other output is to stay where it is
    frequencies = np.pi / 0.1 * np.logspace(-4, 0, 160)
    S = [np.linalg.inv(np.eye(2) + K @ np.linalg.inv(np.exp(0.1j * w) * np.eye(3) - A) @ B) for w in frequencies]
    expected = [
        np.log(np.abs(done - 1)[10:].max() / 0.02),
        (done.max() - 1.05) / 0.05,
        np.log(np.abs(np.array(u)[:-1] / limits).max()),
        np.log(0.9 * max(np.abs(np.diag(s) - 0.5).max() for s in S)),
    ]
    assert expected[1] > -1  # it overshoots, or nothing would be compared
    np.testing.assert_allclose(tuner._excess(step, specs, np.stack([0 * log, log]))[1], expected, rtol=1e-7)
    names = ("settling", "overshoot", "effort", "margin")
    for name, value in zip(names, expected):  # each by itself
        few = dataclasses.replace(specs, **{other: None for other in names if other != name})
        np.testing.assert_allclose(tuner._excess(step, few, log), [value])


def test_a_search_says_where_it_is_and_can_be_ended():
    """The given weights come first and, where they meet all, stay as they are; what the report raises ends it."""
    seen, specs = [], tuning.StepSpecs(overshoot=0.5)
    found = tuning.tune(A, B, C, np.eye(2), np.eye(1), DT, specs, report=lambda *at: seen.append(at))
    np.testing.assert_array_equal(found.Q, np.eye(2))
    assert set(seen) == {(0, 6)}
    with pytest.raises(ZeroDivisionError):
        tuning.tune(A, B, C, np.eye(2), np.eye(1), DT, specs, report=lambda *_: 1 / 0)
    for value in (np.inf, np.nan, 1e30):
        said = tuning.StepSpecs(settling=1.0).sentence("settling", value, 4.0)
        assert "does not settle within the 4 s that are simulated. Raise the weight of this output" in said


@pytest.mark.parametrize("overshoot", [None, 0.0, 0.5])
def test_the_least_effort_is_that_of_a_linear_program_in_states_and_inputs(overshoot):
    """An integrator takes u t = 0.98; two inputs share theirs as another form of the program says."""
    lone, specs = experiment((np.zeros((1, 1)), np.ones((1, 1))), np.ones((1, 1)), 0.1, settling=1.0, effort=0.5)
    assert tuner._least_effort(lone, specs) == pytest.approx(0.98 / 0.5)

    C, r, limits, T, late = np.eye(3)[[0, 2]], np.array([1.0, -0.5]), np.array([4.0, 0.7]), 18, 12
    step, specs = experiment(TWO, C, 0.1, r, settling=1.2, effort=tuple(limits), overshoot=overshoot)
    A, B, *_ = van_loan(*TWO, np.eye(3), np.eye(2), 0.1)
    size = 5 * T + 1  # x[1], …, x[T], then u[0], …, u[T − 1], then s
    moves, outputs, most, inputs = [], [], [], []
    for t in range(T):
        row = np.zeros((3, size))
        row[:, 3 * t : 3 * t + 3] = np.eye(3)
        if t:
            row[:, 3 * t - 3 : 3 * t] = -A
        row[:, 3 * T + 2 * t : 3 * T + 2 * t + 2] = -B
        moves.append(row)
        for i in range(2):
            y, u = np.zeros(size), np.zeros(size)
            y[3 * t : 3 * t + 3] = C[i] / r[i]
            u[3 * T + 2 * t + i], u[-1] = 1, -limits[i]
            inputs += [u, np.r_[-u[:-1], u[-1]]]
            over = min(0.02 if t + 1 >= late else np.inf, np.inf if overshoot is None else overshoot)
            if np.isfinite(over):
                outputs.append(y)
                most.append(1 + over)
            if t + 1 >= late:
                outputs.append(-y)
                most.append(-0.98)
    below = np.array(outputs + inputs), np.r_[most, np.zeros(len(inputs))]
    least = scipy.optimize.linprog(
        np.eye(size)[-1], *below, np.concatenate(moves), np.zeros(3 * T), bounds=(None, None)
    )
    assert tuner._least_effort(step, specs) == pytest.approx(least.fun, rel=1e-6)


def test_limits_of_a_plant_are_told_with_their_numbers():
    spring = (np.array([[0.0, 1.0], [-4.0, -1.0]]), B)
    (said,) = tuner._impossible(*experiment(spring, C, 0.1, 0.5, settling=1.0, effort=1.5))
    assert "takes 2 of input 0 permanently, above its limit of 1.5" in said
    (said,) = tuner._impossible(*experiment((A, B), C, 0.1, settling=1.0, effort=1.5))
    step, specs = experiment((A, B), C, 0.1, settling=1.0, effort=1.5)
    assert "settles in 1 s within the input's limit: even the best sequence of inputs needs " in said
    assert f"needs {tuner._least_effort(step, specs):.3g} times as much" in said
    assert tuner._impossible(*experiment((A, B), C, 0.1, settling=1.0, effort=15.0)) == []
    # a third of (s + 1)³ with zeros at 2 and 5, at −2 and −5, and at 1 ± j
    chain = (np.array([[0.0, 1, 0], [0, 0, 1], [-1, -3, -3]]), np.eye(3)[:, 2:])
    (said,) = tuner._impossible(*experiment(chain, [[10.0, -7.0, 1.0]], 0.1, settling=1.0, within=0.05))
    share = 100 * 0.95 / (np.exp(2.0) - 1)
    assert f"a zero at +2 rad/s: a response that settles in 1 s first goes at least {share:.3g} % of the step" in said
    for numerator in ([10.0, 7.0, 1.0], [2.0, -2.0, 1.0]):
        assert tuner._impossible(*experiment(chain, [numerator], 0.1, settling=1.0)) == []


def test_a_step_is_simulated_four_times_as_long_as_it_may_take_or_until_the_given_weights_settle():
    spring = (np.array([[0.0, 1.0], [-4.0, -1.0]]), B)
    for settling, num_steps in ((0.9, 50), (2.0, 100), (12.0, 800)):
        assert experiment(spring, C, 0.1, settling=settling)[0].num_steps == num_steps
    a, b, *weights = van_loan(*spring, np.eye(2), np.eye(1), 0.03)
    slowest = np.abs(np.linalg.eigvals(a - b @ gain(a, b, *weights)[0])).max()
    needed = np.log(1e-3) / np.log(slowest)
    assert 200 < needed < 400  # or the sizes would not tell
    assert experiment(spring, C, 0.03, overshoot=0.1)[0].num_steps == 400
