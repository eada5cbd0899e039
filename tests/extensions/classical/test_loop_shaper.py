"""The loop shaper: its numbers against python-control and simulation, its clicks, code, requirements and words."""

import dataclasses
import math

import control as python_control
import numpy as np
import pytest
import scipy
from refusals import refused

from lqrlab import classical, control, deployment, simulation, systems
from lqrlab.extensions.classical import loop_pictures
from lqrlab.extensions.classical import panel as loop_shaper
from lqrlab.extensions.classical.shaped_loop import LoopRequirements, ShapedLoop


@pytest.fixture(scope="module")
def plant():
    return systems.make("pendulum")


@pytest.fixture
def panel(request):
    """The panel of a plant; what it shows after a wait is no error."""
    panel = loop_shaper.LoopShaper(getattr(request, "param", "pendulum"))
    panel.set({"integral": panel.integral.base**panel.integral.min})
    waited(panel)
    yield panel
    panel.close()


def waited(panel):
    panel.live.wait()
    assert panel.live.error is None


def lead(plant, gain=80.0, **more):
    return ShapedLoop(plant, classical.Compensator(plant.output_matrix()[:1], gain, [-3.0], [-25.0], **more))


def test_margins_peaks_and_responses_are_python_controls(plant):
    loop, dt = lead(plant), float(plant.dt)
    A, B = (np.asarray(a) for a in plant.matrices())
    G = python_control.sample_system(python_control.ss(A, B, np.asarray(plant.output_matrix())[:1], 0), dt)
    K = python_control.sample_system(python_control.zpk([-3.0], [-25.0], 80.0), dt, method="bilinear")
    L = G * python_control.ss(K)
    response = L(np.exp(1j * loop.frequencies * dt))
    np.testing.assert_allclose(loop.gain, response, rtol=1e-7)
    assert math.degrees(loop.margins.phase) == pytest.approx(abs(python_control.stability_margins(L)[1]), rel=1e-5)
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


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.035])  # none, whole and broken sample times
def test_a_dead_time_is_exact_in_time_and_in_cost(plant, delay):
    loop, ticks = dataclasses.replace(lead(plant), delay=delay), 4
    dt, scales = float(plant.dt), np.asarray(plant.scales[0])
    A, B, Q, R, N = (np.asarray(a) for a in control.discretize(*plant.matrices(), *plant.weights(), dt / ticks))
    a, b, c, d = loop.compensator.sampled(dt)[0].matrices
    late, late_steps, cost = round(delay / dt * ticks), 4000 * ticks, np.zeros(2)
    for i in range(2):  # by small steps, with the inputs in a queue
        x, z, u, queue = np.eye(2)[i] * scales, np.zeros(len(a)), np.zeros(1), [np.zeros(1)] * late
        for t in range(late_steps):
            if t % ticks == 0:
                y = np.asarray(loop.compensator.C) @ x
                u, z = c @ z + d @ y, a @ z + b @ y
            queue.append(u)
            v = queue.pop(0)
            cost[i] += x @ Q @ x + v @ R @ v + 2 * x @ N @ v
            x = A @ x + B @ v
    best = control.lqrd_delayed(*plant.matrices(), *plant.weights(), dt, delay / dt).P
    assert loop.cost == pytest.approx(cost.sum() / float(np.diagonal(best)[:2] @ scales**2), rel=1e-6)
    # less of the delay margin is left, but for what the hold between the samples does
    assert loop.margins.delay_margin == pytest.approx(lead(plant).margins.delay_margin - delay, rel=0.02)


def test_the_margins_that_are_drawn_are_python_controls_and_stand_at_its_frequencies(plant):
    loop = lead(plant)
    L = python_control.ss(*loop.joint, 0, float(plant.dt))
    gains, phases, _, turned, ones, _ = python_control.stability_margins(L, returnall=True)
    theirs = [(w, f"GM {g:.3g}") for w, g in zip(turned, gains)] + [(w, f"PM {p:.3g}°") for w, p in zip(ones, phases)]
    ours, drawn = loop_pictures._margins(loop), loop_pictures.bode({"": loop}, LoopRequirements())
    assert [said[:2] for *_, said in ours] == ["GM", "PM"]
    for w, _, _, said in ours:
        assert said in [words for at, words in theirs if abs(w - at) < 0.01 * w]
        assert f">{said}<" in drawn
    assert drawn.count(">−180<") == 1


@pytest.mark.parametrize("family", ["pendulum", "double_integrator"])
def test_it_begins_with_a_loop_that_keeps_its_requirements_and_follows_its_reference(family):
    panel = loop_shaper.LoopShaper(family)
    loop, steps = panel._loop(), panel._loop().step()[1]
    assert loop.broken(LoopRequirements()) == []
    assert steps[len(steps) // 2 - 1] == pytest.approx(1.0, abs=0.1)
    panel.close()


def test_an_unstable_loop_is_said_and_costs_without_end(plant):
    loop = lead(plant, 1.0)
    assert not loop.stable
    assert loop.cost == math.inf
    assert "not stable" in loop_pictures.words(loop, LoopRequirements())
    assert np.isfinite(loop.step()[0]).all()


def test_what_is_broken_is_said(plant):
    loop = lead(plant)
    ms, phase = 1 / loop.margins.modulus_margin, math.degrees(loop.margins.phase)
    crossed = loop.frequencies[np.flatnonzero(np.abs(loop.gain) < 1)[0]]
    kept = LoopRequirements(ms * 1.01, phase * 0.99, crossed * 0.95)
    assert loop.broken(kept) == []
    assert "All requirements are kept" in loop_pictures.words(loop, kept)
    broken = loop.broken(LoopRequirements(ms * 0.99, phase * 1.01, crossed * 1.01))
    for said, begin in zip(broken, (f"Ms is {ms:.3g}, ", "The phase margin ", "The loop gain "), strict=True):
        assert said.startswith(begin)


def test_a_dip_of_the_loop_gain_beside_a_mode_that_hardly_decays_is_seen():
    """5 (s² + 4) / (s (s² + 4.0004)), both damped a little: a few hundred-thousandths of the frequency wide."""
    A, b, c, _ = scipy.signal.tf2ss([5.0, 1e-4, 20.0], [1.0, 2e-5, 4.0004, 0.0])
    loop = ShapedLoop(systems.from_matrices(A, b, dt=0.02), classical.Compensator(c))
    w = np.linspace(1.9999, 2.0001, 20_001)
    L = python_control.sample_system(python_control.ss(A, b, c, 0), 0.02)(np.exp(0.02j * w))
    first = w[np.argmax(np.abs(L) < 1)]
    (said,) = loop.broken(LoopRequirements(1e9, 0.0, 2.1))
    assert said.startswith(f"The loop gain is below one from {first:.3g} rad/s on")
    assert loop.broken(LoopRequirements(1e9, 0.0, first * 0.9999)) == []


def test_a_click_draws_the_loop_gain_there_and_code_makes_the_same(panel):
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
    panel.pin.click()
    panel.gain.value -= 6
    panel.live.wait()
    assert "design 1" in panel.picture.value
    for _ in range(3):
        panel.pin.click()
    assert "at most 3 designs" in panel.live.status.value
    panel.unpin.click()
    panel.live.wait()
    assert "design 1" not in panel.picture.value
    again = loop_shaper.LoopShaper("pendulum").at(panel.values)
    assert "Ms" in again.words


def _shares(axes, at):
    return [(v - low) / (high - low) for v, (low, high) in ((at.real, axes.x), (at.imag, axes.y))]


def _drag(panel, share, level, start=None):
    """Press at ``start``, if not yet, and move to a share of the width and a log10 of the loop gain."""
    if start:
        panel.plane.start = [*_shares(panel._axes(), complex(math.log10(start[0]), start[1])), 1.0]
    panel.plane.point = _shares(panel._axes(), complex(math.log10(share), level))
    waited(panel)


def test_zeros_poles_and_notch_are_dragged_and_leave_the_others(panel):
    level = lambda w: math.log10(abs(panel._loop().gain_at(w)))  # noqa: E731
    (zero,), (pole,) = panel._compensator().zeros.real, panel._compensator().poles.real
    values, low, step, start = panel.values, panel.at_lead.min, panel.at_lead.step, (-pole, level(-pole))
    with panel.quietly():
        for factor in np.geomspace(1, 2, 20):  # a browser rounds both sliders after each move, which must not add up
            start = _drag(panel, -factor * pole, 0.0, start)
            panel.lead.value = round(panel.lead.value / panel.lead.step) * panel.lead.step
            panel.at_lead.value = 10 ** (low + round((math.log10(panel.at_lead.value) - low) / step) * step)
    np.testing.assert_allclose(panel._compensator().zeros, [zero], rtol=0.03)
    panel.set(values)
    _drag(panel, -2 * zero, level(-zero), (-zero, level(-zero)))
    np.testing.assert_allclose(panel._compensator().zeros, [2 * zero], rtol=1e-6)
    np.testing.assert_allclose(panel._compensator().poles, [pole], rtol=1e-6)
    _drag(panel, -1.5 * pole, level(-pole), (-pole, level(-pole)))
    np.testing.assert_allclose(panel._compensator().zeros, [2 * zero], rtol=1e-6)
    np.testing.assert_allclose(panel._compensator().poles, [1.5 * pole], rtol=1e-6)
    # integral action waits at the left end, the notch where it has no depth
    low = panel._corners()["integral"][0]
    assert len(panel._compensator().poles) == 1
    _drag(panel, 10 * low, 0.0, (low, min(level(low), panel._axes().y[1])))
    np.testing.assert_allclose(panel._compensator().zeros[1], -10 * low)
    panel.at_notch.value = at = 3 * -pole
    _drag(panel, at, level(at) - 1.0, (at, level(at)))
    assert panel.notch.value == pytest.approx(20.0, abs=0.5)
    gain = panel.gain.value
    between = math.sqrt(2 * zero * 1.5 * pole)  # away from all corners
    _drag(panel, between, level(between) + 0.5, (between, level(between)))
    assert panel.gain.value - gain == pytest.approx(10.0, abs=0.5)


def _drag_root(panel, start, to):
    """Press at s in the root locus and move to another s."""
    axes = loop_pictures.locus_plane(panel._far)
    panel.roots.start, panel.roots.point = [*_shares(axes, start), 1.0], _shares(axes, to)
    waited(panel)


def test_roots_and_the_loops_poles_are_dragged_in_the_root_locus(panel):
    (zero,), (pole,) = panel._compensator().zeros.real, panel._compensator().poles.real
    _drag_root(panel, complex(zero), complex(1.6 * zero))
    np.testing.assert_allclose(panel._compensator().zeros, [1.6 * zero], rtol=1e-6)
    np.testing.assert_allclose(panel._compensator().poles, [pole], rtol=1e-6)
    # straight up it stays where it is; past the pole it stops before it, and the pole does not move
    _drag_root(panel, complex(1.6 * zero), complex(1.6 * zero, 4.0))
    np.testing.assert_allclose(panel._compensator().zeros, [1.6 * zero], rtol=1e-3)
    _drag_root(panel, complex(1.6 * zero), complex(1.5 * pole))
    np.testing.assert_allclose(panel._compensator().poles, [pole], rtol=1e-6)
    assert pole < panel._compensator().zeros[0].real < 0.9 * pole
    (now,) = panel._compensator().zeros
    _drag_root(panel, complex(now), complex(1.6 * zero))
    # the notch's zeros, by frequency and damping
    panel.at_notch.value, panel.notch.value = 12.0, 6.0
    panel.live.wait()
    at, damping = 15.0, 0.1
    now, _ = panel._roots(panel._corners())["at_notch"]
    _drag_root(panel, now.conjugate(), at * complex(-damping, -math.sqrt(1 - damping**2)))
    notch = next(z for z in panel._compensator().zeros if z.imag > 0)
    assert abs(notch) == pytest.approx(at, rel=1e-6)
    assert -notch.real / abs(notch) == pytest.approx(damping, rel=0.02)  # a step of the slider
    panel.notch.value = 0.0
    # away from all roots: a pole of the loop goes there along its branch, by the gain alone
    panel.live.wait()
    compensator, factor = panel._compensator(), 2.0
    branch = panel._loop().locus(np.array([factor]))[0]
    moving = max(branch, key=lambda s: s.imag)
    assert moving.imag > 1
    gain = panel.gain.value
    _drag_root(panel, moving, moving)
    assert panel.gain.value - gain == pytest.approx(20 * math.log10(factor), abs=panel.gain.step / 2)
    np.testing.assert_array_equal(panel._compensator().zeros, compensator.zeros)
    assert np.abs(panel._loop().locus(np.ones(1))[0] - moving).min() < 0.05 * abs(moving)
    far = panel._far
    panel.gain.value += 1.0
    panel.live.wait()
    assert panel._far == far  # a small change leaves the scale, or what is dragged would run away


def test_the_locus_is_python_controls_and_ends_in_the_zeros(plant):
    loop, dt = lead(plant), float(plant.dt)
    A, b, K = loop.joint
    L = python_control.ss(A, b, K, 0, dt)
    factors = np.array([0.1, 1.0, 7.0])
    theirs = python_control.root_locus_map(L, gains=factors).loci
    for ours, z in zip(loop.locus(factors), theirs):
        both = np.exp(ours * dt), z
        # a section of first order has a state that stays zero
        moving = [np.sort_complex(a[np.abs(a) > 1e-6]) for a in both]
        np.testing.assert_allclose(*moving, atol=1e-8)
    theirs = python_control.zeros(L)
    theirs = np.sort_complex(theirs[np.abs(theirs) > 1e-6])
    np.testing.assert_allclose(np.sort_complex(np.exp(loop.zeros * dt)), theirs, atol=1e-7)


@pytest.mark.parametrize("panel", ["cruise_control"], indirect=True)
def test_a_pid_of_a_rule_stands_beside_it(panel):
    panel.rule.value = "SIMC"
    waited(panel)
    assert "PID, SIMC: Ms" in panel.words.value
    (loop,) = panel._rules.values()
    plant, design = loop.plant, loop.compensator
    w = loop.frequencies
    G = control.frequency_response(
        *control.discretize(*plant.matrices(), *plant.weights(), plant.dt)[:2], design.C, w, dt=plant.dt
    )
    np.testing.assert_allclose(loop.gain, np.asarray(design.response(w, float(plant.dt)) * G[:, 0, 0]), rtol=1e-6)
    panel.dead_time.value = 2 * float(plant.dt)
    panel.live.wait()
    assert {loop.delay for loop in panel._rules.values()} == {0.0, panel.dead_time.value}
    panel.rule.value = "Ziegler–Nichols"
    waited(panel)


@pytest.mark.parametrize("panel", ["double_integrator"], indirect=True)
def test_a_lead_turns_the_phase_as_it_says_and_leaves_the_gain(panel):
    w = panel.at_lead.value
    panel.lead.value = 0.0
    flat = panel._loop().gain_at(w)
    panel.lead.value = 40.0
    turned = panel._loop().gain_at(w)
    assert abs(turned) == pytest.approx(abs(flat), rel=1e-3)  # sampled
    assert math.degrees(np.angle(turned / flat)) == pytest.approx(40.0, abs=0.5)


def test_the_compensator_that_is_exported_is_the_one_that_is_shown(panel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel.integral.value, panel.notch.value = 0.1, 12.0
    panel.export["write C code"].click()
    assert "README.md" in panel.exported.value
    controller, problem = panel._exported(panel._question())
    written = deployment.load_c("firmware")
    ours, theirs = (simulation.rollout(problem, one, np.array([0.1, 0.0]), 60) for one in (controller, written))
    np.testing.assert_allclose(theirs.us, ours.us, atol=1e-9)


def test_what_cannot_be_shaped_is_refused_in_words():
    refused("plant: expected one input, but ball_and_plate has 2", loop_shaper.loop_shaper, "ball_and_plate")
    refused("output: expected a number from 0 to 1, but found 2", loop_shaper.loop_shaper, "cart_pole", output=2)
