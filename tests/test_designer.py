"""The designer's kinds of controllers, against loops written out here with SciPy; its specifications; its code."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
from bs4 import BeautifulSoup

from lqrlab import control, systems
from lqrlab.workbench.figures import loop_controllers, loop_design, loop_picture, step_picture
from lqrlab.workbench.panels import lqr_designer

A, B = np.array([[0.0, 1.0], [2.0, -0.1]]), np.array([[0.0], [1.0]])
Q, R, DT = np.diag([3.0, 1.0]), np.eye(1), 0.04


def plant():
    return systems.from_matrices(A, B, Q=Q, R=R, dt=DT)


CHOICES = {field.name for field in dataclasses.fields(loop_controllers.ControllerChoice)}


def setting(kind, **more):
    choice = {name: more.pop(name) for name in list(more) if name in CHOICES}
    made = loop_design.LoopSetting.of(plant(), 60)
    return dataclasses.replace(made, controller=loop_controllers.ControllerChoice(kind, **choice), **more)


def zero_order_hold(step):
    wide = scipy.linalg.expm(step * np.block([[A, B], [np.zeros((1, 3))]]))
    return wide[:2, :2], wide[:2, 2:]


def sampled():
    """A, B, Q, R, N of a sample, by one matrix exponential (Van Loan)."""
    joint = np.block([[A, B], [np.zeros((1, 3))]])
    weight = scipy.linalg.block_diag(Q, R)
    wide = scipy.linalg.expm(DT * np.block([[-joint.T, weight], [np.zeros((3, 3)), joint]]))
    step = wide[3:, 3:]
    paid = step.T @ wide[:3, 3:]
    return step[:2, :2], step[:2, 2:], paid[:2, :2], paid[2:, 2:], paid[:2, 2:]


def regulator(a, b, q, r, n):
    P = scipy.linalg.solve_discrete_are(a, b, q, r, s=n)
    return np.linalg.solve(r + b.T @ P @ b, b.T @ P @ a + n.T)


def test_placed_poles_are_those_of_the_optimum_faster_and_damped():
    a, b, q, r, n = sampled()
    optimal = np.linalg.eigvals(a - b @ regulator(a, b, q, r, n))
    found = loop_design.design(setting("pole placement", faster=1.7))
    np.testing.assert_allclose(np.sort_complex(found.poles), np.sort_complex(optimal.astype(complex) ** 1.7), atol=1e-8)
    damped = loop_design.design(setting("pole placement", damping=0.95, states=np.array([300.0, 0.01])))
    s = np.log(damped.poles.astype(complex)) / DT
    assert np.abs(s.imag).max() > 0.1
    np.testing.assert_allclose(-s.real / np.abs(s), 0.95, atol=1e-6)


def test_integral_action_is_the_optimum_with_the_sum_among_the_states_and_leaves_no_error():
    a, b, q, r, n = sampled()
    loaded, plain = (setting(kind, load=0.25, ticks=4 * 400) for kind in ("integral action", "LQR"))
    found, unheld = map(loop_design.design, (loaded, plain))
    optimum = control.lqrd(A, B, Q, R, DT)
    weight = loop_controllers.integral_weight(loaded.controller, loaded.plant, optimum, DT)
    K = regulator(
        np.block([[a, np.zeros((2, 1))], [np.eye(1, 2), np.eye(1)]]),
        np.vstack([b, [[0.0]]]),
        scipy.linalg.block_diag(q, weight),
        r,
        np.vstack([n, [[0.0]]]),
    )
    np.testing.assert_allclose(found.loop.K, K, rtol=1e-6)
    load = 0.25 * float(loaded.plant.scales[1][0])
    tick, (x, total) = zero_order_hold(DT / 4), (loaded.x0, 0.0)
    for t in range(240):
        if t % 4 == 0:
            u = -K @ np.append(x, total)
            total += x[0]
        x = tick[0] @ x + tick[1] @ (u + load)
        np.testing.assert_allclose(found.built.xs[t + 1], x, atol=1e-7)
    assert abs(found.built.xs[-1, 0]) < 1e-6 * abs(unheld.built.xs[-1, 0])
    offset = np.linalg.solve(np.eye(2) - a + b @ unheld.loop.K, b[:, 0] * load)
    np.testing.assert_allclose(unheld.built.xs[-1], offset, rtol=1e-6, atol=1e-9)
    assert "outputs end at x1 0" in loop_picture.words(loaded, found, [])


def test_output_feedback_is_the_estimator_and_regulator_of_its_noise():
    a, b, q, r, n = sampled()
    s = setting("LQG", measured=(0,), disturbance=0.3, sensor=0.02)
    found, (states, _), c = loop_design.design(s), s.plant.scales, np.eye(1, 2)
    W, V = np.diag((0.3 * np.asarray(states)) ** 2 * DT), np.array([[(0.02 * s.plant.outputs[0].scale) ** 2]])
    K, M = regulator(a, b, q, r, n), scipy.linalg.solve_discrete_are(a.T, c.T, W, V)
    L = a @ M @ c.T / (c @ M @ c.T + V)
    np.testing.assert_allclose(found.loop.design.estimator.L, L, rtol=1e-6)
    tick, (x, estimate) = zero_order_hold(DT / 4), (s.x0, np.zeros(2))
    for t in range(200):
        if t % 4 == 0:
            u = -K @ estimate
            estimate = a @ estimate + b @ u + L @ (c @ x - c @ estimate)
        x = tick[0] @ x + tick[1] @ u
        np.testing.assert_allclose(found.built.xs[t + 1], x, atol=1e-6)
    rng, joint = np.random.default_rng(0), found.loop.closed
    z, us = np.zeros((4, 4000)), []
    for _ in range(400):
        us.append((found.loop.K @ z)[0])
        w, v = rng.multivariate_normal(np.zeros(2), W, 4000).T, rng.normal(0, V[0, 0] ** 0.5, 4000)
        z = joint @ z + np.vstack([w, L * v])
    assert np.std(us[200:]) == pytest.approx(float(found.loop.spread[0]), rel=0.02)


@pytest.mark.parametrize("kind", loop_controllers.KINDS)
def test_every_kind_knows_its_delay(kind):
    """The run, tick by tick with a queue of inputs, is the motion of the loop's matrix, which the delay shifts."""
    for known in (True, False):
        found = loop_design.design(setting(kind, delay=6, known=known, measured=(0, 1)))
        state = np.pad(found.built.xs[0], (0, len(found.loop.A) - 2))
        for x in found.built.xs[::4]:
            np.testing.assert_allclose(x, state[:2], atol=1e-6)
            state = found.loop.closed @ state
        assert np.abs(found.poles).max() < 0.99 or not known


def test_the_step_is_that_of_the_loop_with_its_feedforward():
    s, (a, b, *_) = setting("LQR"), sampled()
    found = loop_design.design(s)
    step, scale = loop_picture.stepped(s, found), s.plant.outputs[0].scale
    hold = np.linalg.solve(np.block([[a - np.eye(2), b], [np.eye(1, 2), np.zeros((1, 1))]]), [0.0, 0.0, scale])
    forward = hold[2] + found.loop.K[0] @ hold[:2]
    closed = a - b @ found.loop.K
    _, ys, _ = scipy.signal.dlsim((closed, b, np.eye(1, 2), np.zeros((1, 1)), DT), np.full((len(step.ts), 1), forward))
    np.testing.assert_allclose(step.y, ys[:, 0] / scale, atol=1e-9)
    for kind in ("integral action", "LQG"):
        other = setting(kind, measured=(0, 1), ticks=4 * 400)
        y = loop_picture.stepped(other, loop_design.design(other)).y
        assert y[0] == pytest.approx(0, abs=1e-9)
        assert y[-1] == pytest.approx(1, abs=1e-4)


@pytest.fixture(scope="module")
def panel():
    made = lqr_designer.Designer("pendulum", num_steps=60)
    made.live.wait(60)
    return made


def shown(panel):
    panel.live.wait(60)
    assert panel.live.status.value == ""
    return panel.words.value


def test_a_kind_shows_its_own_settings_alone(panel):
    panel.kind.value = "LQG"
    assert "Estimator" in shown(panel)
    assert panel.sensor.layout.display is None
    assert panel.faster.layout.display == panel.integral.layout.display == "none"
    for box in panel.measured.values():
        box.value = False
    panel.live.wait(60)
    assert "one measured output at least" in panel.live.status.value
    panel.reset.click()
    shown(panel)


def test_a_region_is_dragged_and_weights_are_found_that_stay_out_of_it(panel):
    panel.view.value, panel.effort.value = loop_design.STEP, 4.0
    assert "missed" in shown(panel)
    assert panel.picture.value == ""
    before = panel.settling.value
    x, y = step_picture.handles(panel._question().specifications, panel._planes)["settling"]
    width, height = step_picture.WIDTH, step_picture.HEIGHT
    panel.plane.start = [x / width, 1 - y / height, 0.0]
    panel.plane.point = [(x + 110) / width, 1 - y / height]
    shown(panel)
    assert panel.settling.value > before + 0.02
    panel.find.click()
    words = shown(panel)
    assert panel.states["angle"].value != 1.0
    assert "missed" not in words
    assert words.count("met.") == 3
    panel.plane.start = [0.99, 0.5, 0.0]  # nothing is near
    panel.plane.point = [0.5, 0.5]
    assert shown(panel) == words
    panel.reset.click()
    shown(panel)


@pytest.mark.parametrize("kind", loop_controllers.KINDS[1:])
def test_the_code_of_a_kind_makes_the_same_loop(panel, kind):
    panel.kind.value, panel.faster.value, panel.states["angle"].value = kind, 1.5, 2.0
    shown(panel)
    made = {}
    exec(BeautifulSoup(panel.code.value, "html.parser").find("pre").text, made)
    found = loop_design.design(panel._question())
    at = np.arange(0, len(found.built.xs), loop_design.TICKS)[:40]
    np.testing.assert_allclose(made["run"].xs[: len(at)], found.built.xs[at], atol=1e-4)
    panel.reset.click()
    shown(panel)
