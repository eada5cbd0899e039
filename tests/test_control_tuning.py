"""Weights from specifications and the price of weights, checked on the loops themselves and by brute force."""

import control as python_control
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import control

A = np.array([[0.0, 1.0], [0.0, 0.0]])
B = np.array([[0.0], [1.0]])
C = np.array([[1.0, 0.0]])
DT = 0.05


def double_integrator(**specs):
    return control.tune(A, B, C, np.eye(2), np.eye(1), DT, control.StepSpecs(**specs))


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
    L = python_control.frequency_response(control.to_statespace(a, b, K, dt=DT), w).complex
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
    with pytest.raises(ValueError, match=message):
        control.StepSpecs(**specs)


def test_outputs_that_cannot_stand_still_are_refused():
    with pytest.raises(ValueError, match="C: no constant input holds"):
        control.tune(A, B, [[0.0, 1.0]], np.eye(2), np.eye(1), DT, control.StepSpecs(settling=1.0), r=[1.0])


def test_the_front_is_measured_and_sorted_out_rightly():
    rng, num = np.random.default_rng(0), 27
    Q, R = np.diag([1.0, 0.2]), np.array([[0.5]])
    d, e = np.exp(rng.normal(0, 3, (num, 2))), np.exp(rng.normal(0, 1, num))
    d[-3:], e[-3:] = 1.0, (0.1, 1.0, 10.0)  # the last three change the price of the input only
    X0 = np.array([[1.0, 0.3], [0.3, 0.5]])
    result = control.pareto(
        A, B, Q, R, DT, Q * np.sqrt(d[:, :, None] * d[:, None]), R * e[:, None, None], X0=X0
    )
    x, y = np.asarray(result.state_cost), np.asarray(result.effort)
    better = (
        (x[None] <= x[:, None]) & (y[None] <= y[:, None]) & ((x[None] < x[:, None]) | (y[None] < y[:, None]))
    )
    assert np.array_equal(result.dominated, better.any(1))
    assert result.dominated.any()
    assert not result.dominated[-3:].any()
    optimum = float(jnp.trace(control.lqrd(A, B, Q, R, DT).P @ X0))
    assert np.isclose(x[-2] + y[-2], optimum, rtol=1e-9)
    assert np.all(x + y >= optimum * (1 - 1e-9))
    with pytest.raises(ValueError, match=r"X0: expected a covariance of shape \(2, 2\)"):
        control.pareto(A, B, Q, R, DT, Q, R * e[:, None, None], X0=np.ones(2))
    # effort by itself: the input is held, so the sum over steps is exact
    K, closed = np.asarray(result.K[0]), np.linalg.matrix_power
    a, b = (np.asarray(v) for v in control.c2d(A, B, DT))
    starts = np.linalg.cholesky(X0)
    us = np.stack([K @ closed(a - b @ K, t) @ starts for t in range(3000)])
    assert np.isclose(y[0], DT * R[0, 0] * np.sum(us**2), rtol=1e-9)
    turned = np.stack([np.cos(phi := np.linspace(0, 2 * np.pi, 2001)), np.sin(phi)])
    assert np.isclose(result.peak[0, 0], np.abs(us[:, 0] @ turned).max(), rtol=1e-5)
