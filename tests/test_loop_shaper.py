"""The loop shaper: its numbers against python-control and simulation, its clicks, code, requirements and words."""

import math

import control as python_control
import numpy as np
import pytest

from lqrlab import control, deployment, simulation, systems
from lqrlab.workbench.figures import shaped_loop
from lqrlab.workbench.figures.shaped_loop import LoopRequirements, ShapedLoop
from lqrlab.workbench.panels import loop_shaper


@pytest.fixture(scope="module")
def plant():
    return systems.make("pendulum")


def lead(plant, gain=80.0, **more):
    return ShapedLoop(plant, control.Compensator(plant.output_matrix()[:1], gain, [-3.0], [-25.0], **more))


def test_margins_peaks_and_responses_are_python_controls(plant):
    loop, dt = lead(plant), float(plant.dt)
    A, B = (np.asarray(a) for a in plant.matrices())
    G = python_control.sample_system(python_control.ss(A, B, np.asarray(plant.output_matrix())[:1], 0), dt)
    K = python_control.sample_system(python_control.zpk([-3.0], [-25.0], 80.0), dt, method="bilinear")
    L = G * python_control.ss(K)
    response = L(np.exp(1j * loop.frequencies * dt))
    np.testing.assert_allclose(loop.gain, response, rtol=1e-7)
    phase = python_control.stability_margins(L)[1]
    assert math.degrees(loop.margins.phase) == pytest.approx(abs(phase), rel=1e-5)
    grid = 1 / (1 + L(np.exp(1j * np.linspace(1e-3, np.pi, 20000))))
    assert 1 / loop.margins.modulus_margin == pytest.approx(np.abs(grid).max(), rel=1e-4)
    times, ys = loop.step()
    T = python_control.feedback(L, 1)
    half = len(times) // 2
    expected = python_control.step_response(T, times[:half]).outputs
    np.testing.assert_allclose(ys[:half], np.squeeze(expected), atol=1e-8)
    x, u = (np.asarray(scale) for scale in plant.scales)
    load = python_control.step_response(python_control.feedback(G, python_control.ss(K)), times[:half]).outputs
    whole = python_control.step_response(T, times).outputs
    added = ys[half : 2 * half] - np.squeeze(whole)[half : 2 * half]
    np.testing.assert_allclose(added, np.squeeze(load) * u[0] / x[0], atol=1e-8)


def test_the_cost_is_that_of_simulated_loops(plant):
    loop = lead(plant)
    scales = np.asarray(plant.scales[0])
    run = simulation.rollout(plant, loop.compensator, np.diag(scales), 3000, linear=True)
    least = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).P
    # the rollout's costs are those between the samples, of both directions
    assert loop.cost == pytest.approx(float(run.costs.sum()) / float(np.diagonal(least) @ scales**2), rel=1e-6)


def test_an_unstable_loop_is_said_and_costs_without_end(plant):
    loop = lead(plant, 1.0)
    assert not loop.stable
    assert loop.cost == math.inf
    assert "not stable" in shaped_loop.words(loop, LoopRequirements())
    assert np.isfinite(loop.step()[0]).all()


def test_what_is_broken_is_said(plant):
    loop = lead(plant)
    ms, phase = 1 / loop.margins.modulus_margin, math.degrees(loop.margins.phase)
    crossed = loop.frequencies[np.flatnonzero(np.abs(loop.gain) < 1)[0]]
    kept = LoopRequirements(ms * 1.01, phase * 0.99, crossed * 0.99)
    assert loop.broken(kept) == []
    assert "All requirements are kept" in shaped_loop.words(loop, kept)
    broken = loop.broken(LoopRequirements(ms * 0.99, phase * 1.01, crossed * 1.01))
    assert [said.split()[0:3] for said in broken] == [
        ["Ms", "is", f"{ms:.3g},"],
        ["The", "phase", "margin"],
        ["The", "loop", "gain"],
    ]


def test_a_click_draws_the_loop_gain_there_and_code_makes_the_same(plant):
    panel = loop_shaper.LoopShaper("pendulum")
    panel.live.wait()
    assert panel.live.error is None
    assert panel._loop().stable
    panel.integral.value, panel.roll_off.value, panel.notch.value = 0.1, 60.0, 12.0
    panel.plane.point = [0.6, 0.5]
    panel.live.wait()
    axes = panel._axes()
    w, level = (10 ** (low + share * (high - low)) for (low, high), share in ((axes.x, 0.6), (axes.y, 0.5)))
    assert abs(panel._loop().gain_at(w)) == pytest.approx(level, rel=0.1)  # a step of the slider
    made = {}
    exec(panel._codes(panel._question())[0], made)
    ours = panel._loop().compensator
    assert made["compensator"].gain == ours.gain
    for name in ("zeros", "poles", "C"):
        np.testing.assert_array_equal(getattr(made["compensator"], name), getattr(ours, name))
    assert len(ours.poles) == 5
    panel.keep.click()
    panel.gain.value -= 6
    panel.live.wait()
    assert "design 1" in panel.picture.value
    for _ in range(3):
        panel.keep.click()
    assert "at most 4 designs" in panel.live.status.value
    panel.drop.click()
    panel.live.wait()
    assert "design 1" not in panel.picture.value
    again = loop_shaper.LoopShaper("pendulum").at(panel.values)
    assert "Ms" in again.words
    panel.close()


def test_a_lead_turns_the_phase_as_it_says_and_leaves_the_gain():
    panel = loop_shaper.LoopShaper("double_integrator")
    w = panel.at_lead.value
    panel.lead.value = 0.0
    flat = panel._loop().gain_at(w)
    panel.lead.value = 40.0
    turned = panel._loop().gain_at(w)
    assert abs(turned) == pytest.approx(abs(flat), rel=1e-3)  # sampled
    assert math.degrees(np.angle(turned / flat)) == pytest.approx(40.0, abs=0.5)
    panel.close()


@pytest.mark.matrix
def test_the_compensator_that_is_exported_is_the_one_that_is_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = loop_shaper.LoopShaper("pendulum")
    panel.integral.value, panel.notch.value = 0.1, 12.0
    panel.export.click()
    assert "README.md" in panel.exported.value
    controller, problem = panel._exported(panel._question())
    written = deployment.load_c("firmware")
    ours, theirs = (simulation.rollout(problem, one, np.array([0.1, 0.0]), 60) for one in (controller, written))
    np.testing.assert_allclose(theirs.us, ours.us, atol=1e-9)
    panel.close()


def test_what_cannot_be_shaped_is_refused_in_words():
    with pytest.raises(ValueError, match="plant: expected one input, but ball_and_plate has 2"):
        loop_shaper.loop_shaper("ball_and_plate")
    with pytest.raises(ValueError, match="output: expected a number from 0 to 1, but found 2"):
        loop_shaper.loop_shaper("cart_pole", output=2)
