"""The designer's kinds of controllers, against loops written out here with SciPy; its specifications; its code."""

import dataclasses
from pathlib import Path

import control as python_control
import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.signal
from bs4 import BeautifulSoup
from refusals import refused
from scipy_oracle import gain, held, van_loan

from lqrlab import control, systems, tuning
from lqrlab.workbench.figures import loop_controllers, loop_design, loop_picture
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


PLACED = (-3 + 2j, -3 - 2j)


def test_poles_are_where_they_were_typed_and_at_first_faster_than_the_optimum():
    s = setting("pole placement", poles=tuning.figures.read_poles("−3 ± 2j", plant(), DT))
    poles = np.linalg.eigvals(loop_design.design(s).loop.closed)
    np.testing.assert_allclose(np.sort_complex(np.log(poles) / DT), np.sort_complex(PLACED), rtol=1e-6)
    assert "Placed at −3±2j rad/s, the LQR's at " in loop_picture.words(s, loop_design.design(s))
    a, b, q, r, n = van_loan(A, B, Q, R, DT)
    optimal = np.log(np.linalg.eigvals(a - b @ gain(a, b, q, r, n)[0]).astype(complex)) / DT
    first = tuning.figures.read_poles(tuning.figures.faster_poles(plant()), plant(), DT)
    np.testing.assert_allclose(np.sort_complex(first), np.sort_complex(1.5 * optimal), rtol=1e-3)


def test_poles_are_read_as_people_write_them_and_refused_where_no_gain_places_them():
    many = {"-2,-3": (-2, -3), "−1e1±.5j": (-10 + 0.5j, -10 - 0.5j), "-1+1i; -1 - 1i": (-1 + 1j, -1 - 1j)}
    for words, poles in (many | {"-1+-j": (-1 + 1j, -1 - 1j)}).items():
        assert tuning.figures.read_poles(words, plant(), DT) == poles
        again = tuning.figures.read_poles(tuning.figures.written_poles(poles), plant(), DT)
        np.testing.assert_array_equal(np.sort_complex(again), np.sort_complex(poles))
    wrong = {"-1+2j, -3": r"−1\+2j has no conjugate: .* write −1±2j", "": "but found 0", "-1, two": "but found 'two'"}
    wrong |= {"-1, -2, -3": "expected 2, one for each state of .*, but found 3", "±2j": r"0\+2j rad/s is not stable"}
    wrong |= {"-1, 0.5": "0.5 rad/s is not stable; its real part", "-2, -2": "−2 appears 2 times; only 1 can be equal"}
    for words, refusal in (wrong | {"-1±80j": "faster than samples show, at most 78.5 rad/s"}).items():
        refused(f"poles: .*{refusal}", tuning.figures.read_poles, words, plant(), DT)


def test_integral_action_is_the_optimum_with_the_sum_among_the_states_and_leaves_no_error():
    a, b, q, r, n = van_loan(A, B, Q, R, DT)
    loaded, plain = (setting(kind, load=0.25, ticks=4 * 400) for kind in ("integral action", "LQR"))
    found, unheld = map(loop_design.design, (loaded, plain))
    optimum = control.lqrd(A, B, Q, R, DT)
    weight = loop_controllers.integral_weight(loaded.controller, loaded.plant, optimum, DT)
    K, _ = gain(
        np.block([[a, np.zeros((2, 1))], [np.eye(1, 2), np.eye(1)]]),
        np.vstack([b, [[0.0]]]),
        scipy.linalg.block_diag(q, weight),
        r,
        np.vstack([n, [[0.0]]]),
    )
    np.testing.assert_allclose(found.loop.K, K, rtol=1e-6)
    load = 0.25 * float(loaded.plant.scales[1][0])
    tick, (x, total) = held(A, B, DT / 4), (loaded.x0, 0.0)
    for t in range(240):
        if t % 4 == 0:
            u = -K @ np.append(x, total)
            total += x[0]
        x = tick[0] @ x + tick[1] @ (u + load)
        np.testing.assert_allclose(found.built.xs[t + 1], x, atol=1e-7)
    assert abs(found.built.xs[-1, 0]) < 1e-6 * abs(unheld.built.xs[-1, 0])
    offset = np.linalg.solve(np.eye(2) - a + b @ unheld.loop.K, b[:, 0] * load)
    np.testing.assert_allclose(unheld.built.xs[-1], offset, rtol=1e-6, atol=1e-9)
    assert "outputs end at x1 0" in loop_picture.words(loaded, found)


def test_output_feedback_is_the_estimator_and_regulator_of_its_noise():
    a, b, q, r, n = van_loan(A, B, Q, R, DT)
    s = setting("LQG", measured=(0,), disturbance=0.3, sensor=0.02)
    found, (states, _), c = loop_design.design(s), s.plant.scales, np.eye(1, 2)
    W, V = np.diag((0.3 * np.asarray(states)) ** 2 * DT), np.array([[(0.02 * s.plant.outputs[0].scale) ** 2]])
    K, L = gain(a, b, q, r, n)[0], gain(a.T, c.T, W, V)[0].T
    np.testing.assert_allclose(found.loop.design.estimator.L, L, rtol=1e-6)
    tick, (x, estimate) = held(A, B, DT / 4), (s.x0, np.zeros(2))
    for t in range(200):
        if t % 4 == 0:
            u = -K @ estimate
            estimate = a @ estimate + b @ u + L @ (c @ x - c @ estimate)
        x = tick[0] @ x + tick[1] @ u
        np.testing.assert_allclose(found.built.xs[t + 1], x, atol=1e-6)


@pytest.mark.parametrize("kind", loop_controllers.KINDS)
def test_every_kind_knows_its_delay(kind):
    """The run, tick by tick with a queue of inputs, is the motion of the loop's matrix, which the delay shifts."""
    for known in (True, False):
        poles = PLACED if kind == "pole placement" else ()
        found = loop_design.design(setting(kind, delay=6, known=known, measured=(0, 1), poles=poles))
        state = np.pad(found.built.xs[0], (0, len(found.loop.closed) - 2))
        for x in found.built.xs[::4]:
            np.testing.assert_allclose(x, state[:2], atol=1e-6)
            state = found.loop.closed @ state
        assert np.abs(found.poles).max() < 0.99 or not known


def test_the_step_is_that_of_the_loop_with_its_feedforward():
    s, (a, b, *_) = setting("LQR"), van_loan(A, B, Q, R, DT)
    found = loop_design.design(s)
    step, scale = tuning.figures.response(s, found), s.plant.outputs[0].scale
    hold = np.linalg.solve(np.block([[a - np.eye(2), b], [np.eye(1, 2), np.zeros((1, 1))]]), [0.0, 0.0, scale])
    forward = hold[2] + found.loop.K[0] @ hold[:2]
    closed = a - b @ found.loop.K
    _, ys, _ = scipy.signal.dlsim((closed, b, np.eye(1, 2), np.zeros((1, 1)), DT), np.full((len(step.ts), 1), forward))
    np.testing.assert_allclose(step.y, ys[:, 0] / scale, atol=1e-9)
    assert step.us[0, 0] == pytest.approx(forward / float(s.plant.scales[1][0]))
    output = loop_design.design(setting("LQG", measured=(0, 1)))
    reached, (L, K) = (tuning.figures.response(s, output).y, (np.asarray(output.loop.design.estimator.L), found.loop.K))
    x, estimate = np.zeros(2), np.zeros(2)
    for y in reached:
        assert y == pytest.approx(x[0] / scale, abs=1e-9)
        u = hold[2:] - K @ (estimate - hold[:2])
        x, estimate = a @ x + b @ u, a @ estimate + b @ u + L @ (x - estimate)


def test_integral_action_learns_the_set_point_alone():
    s, (a, b, *_) = setting("integral action"), van_loan(A, B, Q, R, DT)
    found = loop_design.design(s)
    x, total, scale = np.zeros(2), 0.0, s.plant.outputs[0].scale
    for y in tuning.figures.response(s, found).y:
        assert y == pytest.approx(x[0] / scale, abs=1e-8)
        u = -found.loop.K @ np.append(x, total)
        x, total = a @ x + b @ u, total + x[0] - scale


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
    assert panel.poles.layout.display == panel.integral.layout.display == "none"
    for box in panel.measured.values():
        box.value = False
    panel.live.wait(60)
    assert "one measured output at least" in panel.live.status.value
    panel.reset.click()
    shown(panel)


def test_weights_are_found_that_stay_out_of_the_forbidden_regions(panel):
    panel.view.value, panel.effort.value = loop_design.STEP, 4.0
    assert "missed" in shown(panel)
    assert panel.picture.value.count("lq-forbidden") == 1 + 2 + 2 + 1  # overshoot, settling, effort, and the style
    panel.settling.value *= 1.6
    panel.find.click()
    panel.search.wait(60)
    words = shown(panel)
    assert panel.found.value.count("met.") == 3
    assert panel.states["angle"].value != 1.0
    assert "missed" not in words
    assert words.count("met.") == 3
    panel.reset.click()
    shown(panel)


@pytest.mark.parametrize("kind", loop_controllers.KINDS)
def test_the_code_of_a_kind_makes_the_same_loop(panel, kind):
    panel.kind.value, panel.states["angle"].value, panel.parameters["length"].value = kind, 2.0, 0.7
    panel.limit.value *= 0.01
    shown(panel)
    made = {}
    exec(BeautifulSoup(panel.code.value, "html.parser").find("pre").text, made)
    found = loop_design.design(panel._question())
    at = np.arange(0, len(found.built.xs), loop_design.TICKS)[:40]
    np.testing.assert_allclose(made["run"].xs[: len(at)], found.built.xs[at], atol=1e-4)
    panel.reset.click()
    shown(panel)


def on_the_sheet(name):
    """Rows of the sheet's tables, by caption."""
    tables = BeautifulSoup(Path(f"{name}.html").read_text(), "html.parser").find_all("table")
    return {t.caption.text: [[c.text for c in row.find_all("td")] for row in t.tbody.find_all("tr")] for t in tables}


@pytest.mark.parametrize("kind", loop_controllers.KINDS)
def test_a_design_is_taken_along(panel, kind, monkeypatch, tmp_path):
    """As a page, and as matrices from which python-control makes the loop that the panel shows."""
    monkeypatch.chdir(tmp_path)
    panel.kind.value, panel.states["angle"].value = kind, 2.0
    shown(panel)
    panel.folder.value = "mine/first"
    for label in ("design sheet", "for MATLAB"):
        panel.export[label].click()
        assert "Written to" in panel.exported.value
    found = loop_design.design(panel._question())
    rows = on_the_sheet("mine/first")
    assert rows["Weights"][0] == ["angle", "11.11", "× 2", "22.22"]
    assert float(rows["Poles of the loop"][0][1]) == pytest.approx(np.abs(found.poles).max(), abs=1e-4)
    kept = scipy.io.loadmat("mine/first.mat")
    np.testing.assert_allclose(kept["Ad"], scipy.linalg.expm(kept["A"] * kept["dt"]), atol=1e-9)
    (n, m), dt = kept["Bd"].shape, float(kept["dt"].item())
    sampled = python_control.ss(kept["Ad"], kept["Bd"], np.eye(n), np.zeros((n, m)), dt)
    written = (kept[name] for name in ("Ak", "Bk", "Ck", "Dk"))
    loop = python_control.feedback(sampled, python_control.ss(*written, dt), sign=1)
    poles = np.sort_complex(np.linalg.eigvals(found.loop.closed).astype(complex))
    np.testing.assert_allclose(np.sort_complex(loop.poles()), poles, atol=1e-7)
    Path("mine/theirs.mat").write_text("1")
    panel.folder.value = "mine/theirs"
    panel.export["for MATLAB"].click()
    assert "choose another name" in panel.exported.value
    assert Path("mine/theirs.mat").read_text() == "1"
    panel.reset.click()
    shown(panel)


def test_a_pole_is_dragged_and_its_conjugate_with_it_and_the_map_stays_as_it_is(panel):
    """Press on one, move it; a real one stays real, what is nobody's stays, and a drag cannot make a loop unstable."""
    panel.set({"kind": "pole placement", "poles": "−4±3j"})
    shown(panel)
    axes = panel._drawn.plane

    def share(s):
        return [(v - low) / (high - low) for v, (low, high) in ((s.real, axes.x), (s.imag, axes.y))]

    far = axes.x[0] + 1j * axes.y[1]
    for start, end, poles in ((-4 - 3j, -2 + 1j, "−2±1j"), (-2 + 1j, 0.3 + 1j, "−0.0"), (far, -1 + 1j, "−0.0")):
        panel.picture.start, panel.picture.point = [*share(start), 1.0], share(end)
        assert "Placed at " + panel.poles.value in shown(panel)
        assert panel.poles.value.startswith(poles)
        assert panel._drawn.plane == axes
    panel.poles.value = "−20, −4"
    shown(panel)
    axes = panel._drawn.plane
    panel.picture.start, panel.picture.point = [*share(-4 + 0j), 1.0], share(-6 + 2j)
    shown(panel)
    assert panel.poles.value == "−20, −6"
    panel.poles.value = "−20"
    panel.live.wait(60)
    assert "expected 2, one for each state" in panel.live.status.value
    panel.reset.click()
    shown(panel)


def test_weights_limits_and_loads_are_in_units(panel):
    """Of the pendulum; of two unlike inputs, in their scales."""
    torque = panel._default.plant.inputs[0]
    assert [s.description for s in (panel.states["angle"], panel.inputs["torque"])] == ["Q: angle ×", "R: torque ×"]
    assert panel.limit.description == f"input limit [{torque.unit}]"
    panel.limit.value, panel.load.value = 0.5 * torque.scale, -0.1 * torque.scale
    panel.states["angle"].value = 2.0
    words = shown(panel)
    assert panel._question().limits[0] == pytest.approx(0.5 * torque.scale)
    assert f"Under a load of −{0.1 * torque.scale:.3g} {torque.unit} at the inputs" in words
    assert panel.entries.value == "Q: angle 22.2 /rad², angular velocity 0.444 /(rad/s)²; R: torque 0.111 /(N·m)²"
    assert loop_design.input_unit(systems.make("fixed_wing")) == ("× scale", 1.0)
    panel.reset.click()
    shown(panel)


def test_of_several_inputs_those_outputs_step_together_that_can_stand_still():
    """A quadrotor that is to move along x: its height and heading stay, no constant input holds a pitch."""
    s = dataclasses.replace(loop_design.LoopSetting.of("quadrotor", 60), ticks=4 * 400)
    found = loop_design.design(s)
    rows = tuning.figures.stepping_outputs(s.plant, found.sampled, 0)
    assert {s.plant.outputs[i].name for i in rows} == {"x", "y", "z", "yaw"}
    assert tuning.figures.response(s, found).y[-1] == pytest.approx(1, abs=1e-3)
    with pytest.raises(ValueError, match="no constant input holds pitch"):
        tuning.figures.stepping_outputs(s.plant, found.sampled, 4)
