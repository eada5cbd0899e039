"""Panels by their traits: what they show is what an independent computation says."""

import dataclasses
import gc
import json
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import hostile_html
import ipywidgets
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.linalg
from bs4 import BeautifulSoup
from refusals import refused
from scipy_oracle import gain, held

from lqrlab import control, dataset, deployment, evaluation, learning, predictive, simulation, systems
from lqrlab.extensions.predictive import panel as mpc_designer
from lqrlab.workbench import widgets
from lqrlab.workbench.figures import digits, loop_design, loop_picture, plots, safe_html, svg
from lqrlab.workbench.panels import (
    attraction_map,
    controls,
    data_browser,
    live_figure,
    live_panel,
    lqr_designer,
    policy_inspector,
    training_monitor,
)


@pytest.fixture
def person(monkeypatch):
    """Somebody who looks at the panels of a test."""
    monkeypatch.setenv("JPY_SESSION_NAME", "x")
    monkeypatch.delenv("LQRLAB_HEADLESS", raising=False)


BARE = """
import jax, numpy as np
from lqrlab import classical, predictive, simulation, systems
from lqrlab.workbench import widgets
from lqrlab.workbench.figures import loop_design
plant = systems.make("cart_pole")
assert not jax.config.jax_enable_x64 and plant.pole_length.dtype == np.float32
try:
    predictive.optimum(simulation.Problem.of(plant, linear=True), [[0.1, 0.0, 0.0, 0.0]])
except ValueError as error:
    assert "expected float64" in str(error), error
else:
    raise AssertionError("an optimum in single precision")
assert classical.pid(systems.make("dc_motor"), "optimal", kind="p", num_starts=2).kp.dtype == np.float64
made = {
    "mpc_designer": lambda: widgets.mpc_designer(plant, num_steps=40),
    "lqr_designer": lambda: widgets.lqr_designer(plant, num_steps=20),
    "attraction_map": lambda: widgets.attraction_map(plant, num=100, num_steps=20),
    "policy_inspector": lambda: widgets.policy_inspector(lambda problem: 0.9 * problem.K, plant, num_steps=20),
    "loop_shaper": lambda: widgets.loop_shaper("dc_motor"),
    "live_figure": lambda: widgets.live_figure(lambda a: __import__("matplotlib.figure").figure.Figure(), a=(0, 1, 2)),
}
for name, make in made.items():
    jax.config.update("jax_enable_x64", False)
    picture = make()
    assert jax.config.jax_enable_x64, name
    assert "not solved" not in picture.html, name
    print(name, picture.words)
assert loop_design.one_plant(plant).pole_length.dtype == np.float64
"""


def test_panels_in_a_bare_process_compute_in_double_precision(tmp_path):
    """In a notebook of one's own nobody has called compute.setup(), as the settings of these tests do."""
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert not done.returncode, done.stderr
    with_setup = widgets.mpc_designer("cart_pole", num_steps=40)
    assert with_setup.words.strip() in done.stdout


def test_slow_work_is_done_once_for_the_settled_value():
    shown, begun = [], []

    def work(asked, check):
        begun.append(asked)
        return asked

    panel = live_panel.Live(work, shown.append, settle=0.2)
    for value in range(20):
        panel.ask(value)
        time.sleep(0.005)
    panel.wait()
    assert begun == shown == [19]


def test_work_is_announced_stopped_and_taken_up_again():
    shown, begun = [], threading.Event()

    def work(asked, check):
        begun.set()
        while asked == "slow":
            time.sleep(0.005)
            check()
        return asked

    panel = live_panel.Live(work, shown.append)
    panel.ask("slow")
    assert begun.wait(10)
    deadline = time.monotonic() + 10
    while "computing…" not in panel.status.value and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "computing…" in panel.status.value
    assert panel.stop.layout.display == ""
    panel.stop.click()
    panel.wait(10)
    assert "stopped" in panel.status.value
    assert panel.stop.layout.display == "none"
    assert shown == []
    panel.ask("slow")  # a newer question ends it as well
    panel.ask("quick")
    panel.wait(10)
    assert shown == ["quick"]
    assert panel.status.value == ""


def test_a_slider_stands_on_its_own_grid():
    """A browser moves what does not, and a plant would change for being looked at."""
    for value, low, high in ((0.4, -1.5, 1.5), (1.0, 0.05, 3.0), (9.81, 3.27, 20.0), (0.0, 0.0, 2.0), (2.0, 0.5, 2.0)):
        made = controls.slider("x", value, low, high)
        assert made.value == value
        steps = (value - low) / made.step
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert (high - low) / made.step == pytest.approx(200, rel=0.25)


def test_an_error_is_one_sentence_in_the_panel():
    def work(asked, check):
        raise asked

    panel = live_panel.Live(work, lambda _: None)
    panel.ask(ValueError("dt: expected <more>\nand a traceback"))
    panel.wait()
    assert panel.status.value == "<b>dt: expected &lt;more&gt;</b>"
    panel.ask(KeyError("x"))
    panel.wait()
    assert "KeyError" in panel.status.value


# A function of one's own -----------------------------------------------------------------------------------------


def test_a_function_of_ones_own_follows_its_sliders(monkeypatch):
    """In a thread, with a figure that pyplot does not know; as it stands without a person."""
    seen, shown, before = [], [], plt.get_fignums()

    def draw(size, count, kind):
        seen.append((size, count, kind))
        figure, (axis,) = plots.grid(1)
        shown.append(plt.get_fignums() != before)
        axis.plot(range(count), [size * k for k in range(count)])
        figure.suptitle(kind)
        return figure

    ranges = {"size": (0.0, 1.0, 5.0), "count": (2, 10, 20), "kind": ["line", "dots"]}
    panel = live_figure.LiveFigure(draw, ranges)
    assert "The first picture: as long as your function takes" in panel.picture.value  # it waits for the sliders
    panel.live.wait()
    first = panel.picture.value
    assert seen == [(1.0, 10, "line")]
    panel.sliders["size"].value, panel.sliders["kind"].value = 2.5, "dots"
    panel.live.wait()
    assert seen[-1] == (2.5, 10, "dots")
    assert panel.picture.value != first
    assert "dots; size 2.5, count 10, kind dots" in panel.picture.value
    assert shown == [False, False]
    assert "live_figure(draw=draw, size=(0.0, 1.0, 5.0)" in panel.code.value
    assert "make lab" in panel._repr_mimebundle_()["text/html"]  # where a page shows no widgets
    panel.close()
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    still = widgets.live_figure(draw, values={"count": 3}, **ranges)
    assert (1.0, 3, "line") in seen
    assert "image/png" in still.svg
    size, _, kind = still.axes  # what the sliders of a mailed page move
    assert [axis.label for axis in still.axes] == ["size", "count", "kind"]
    assert "<code>make lab</code>): its sliders draw the figure anew. Without a kernel, in a rep" in still.html
    assert (kind.words, kind.pictures[0]) == (["line", "dots"], None)
    assert {(float(word), 3, "line") for word in size.words} <= {*seen}
    with pytest.raises(ValueError, match=r"size: expected \(lowest, at first, highest\) .* found \(3, 1, 2\)"):
        widgets.live_figure(draw, size=(3, 1, 2))
    refused("return a figure or a picture, but found int", widgets.live_figure, lambda size: 3, size=(0, 1, 2))
    refused("draw: expected a function", widgets.live_figure, "sine", size=(0, 1, 2))


def test_the_inspectors_loops_keep_the_actuators_limits():
    plant = systems.make("cart_pole")
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
    panel = policy_inspector.Inspector(plant, 0.5 * K, "half", num_steps=40, limits=(-1.0, 0.5))
    panel.live.wait()
    assert "if its inputs had no limits" in panel.words.value
    (pair,) = panel._pairs.values()
    runs = policy_inspector.compare(pair, np.array([0.5, 0.1, 0.0, 0.0]))
    A, B = (np.asarray(a) for a in control.c2d(*plant.matrices(), plant.dt))
    for label, feedback in (("optimal", K), ("half", 0.5 * K)):
        path, x = runs["linear"][label].path, np.array([0.5, 0.1, 0.0, 0.0])
        for k in range(40):
            np.testing.assert_allclose(path.xs[k], x, atol=1e-5)
            x = A @ x + B @ np.clip(-feedback @ x, -1.0, 0.5)
    panel.close()


# The LQR designer --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def panel():
    made = lqr_designer.Designer("pendulum", num_steps=60)
    made.live.wait()
    return made


def test_the_designer_runs_what_it_says():
    """Delay, sampling and limits against SciPy's own zero-order hold of the linear plant, tick by tick."""
    A, B = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[0.0], [1.0]])
    plant = systems.from_matrices(A, B, Q=np.diag([3.0, 1.0]), R=[[1.0]], dt=0.04)
    panel = lqr_designer.Designer(plant, num_steps=40)
    panel.sample.value, panel.delay.value, panel.size.value, panel.limit.value = 6, 1.5, 1.0, 1.25
    panel.states["x1"].value = 10.0
    s = panel._question()
    assert (s.dt, s.delay) == (pytest.approx(0.06), 9)
    found = loop_design.design(s)
    tick, (a, b) = held(A, B, 0.01), held(A, B, 0.03)
    # z = (x, u[t-1], u[t-2]); u[t-2] acts for the first half of a sample, u[t-1] for the other
    z = np.zeros((4, 4))
    z[:2] = np.hstack([a @ a, b, a @ b])
    z[3, 2] = 1.0
    np.testing.assert_allclose(found.loop.opened[0], z, atol=1e-12)
    x, sent, acts = s.x0, [0.0] * 40, []
    for t in range(s.ticks):
        if t % 6 == 0:
            asked = -found.loop.K @ np.array([*x, sent[-1], sent[-2]])
            sent.append(float(np.clip(asked, -s.limits[0], s.limits[0])[0]))
        issued = (t - 9) // 6  # the newest that has arrived
        acts.append(sent[40 + issued])
        x = tick[0] @ x + tick[1][:, 0] * acts[-1]
        np.testing.assert_allclose(found.built.xs[t + 1], x, atol=1e-7)
    np.testing.assert_allclose(found.built.us[:, 0], acts, atol=1e-7)
    assert np.abs(acts).max() == pytest.approx(float(s.limits[0]))
    Ad, Bd, Qd, Rd, Nd = (np.asarray(m) for m in control.discretize(A, B, np.diag([30.0, 1.0]), [[1.0]], 0.06))
    _, P = gain(Ad, Bd, Qd, Rd, Nd)
    assert found.cost == pytest.approx(s.x0 @ P @ s.x0, rel=1e-9)
    assert np.sum(found.best.costs) == pytest.approx(found.cost, rel=1e-2)  # what is left at the end aside


DRAWN = {"b", "br", "circle", "div", "ellipse", "g", "i", "image", "input", "label", "p", "path", "rect", "span"}
DRAWN |= {"code", "small", "style", "svg", "text"}


def test_names_of_others_are_text_in_what_panels_show(panel, monkeypatch, tmp_path):
    plant, name = (systems.load(hostile_html.plant_file(tmp_path / "plant.json")), "".join(hostile_html.PAYLOADS))
    gain, ends = simulation.LinearPolicy(jnp.array([[1.0, 1.0]])), np.zeros(4)
    region = evaluation.Attraction(ends.astype(np.int8), ends)
    setting = attraction_map.AttractionSetting(plant, {}, 0, 1)
    question = panel._question()
    design = loop_design.design(question)
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    monkeypatch.setattr(type(plant), "title", name)
    monkeypatch.setattr(type(question.plant), "inputs", (systems.Signal(name, name, 1.0),))
    for shown in (
        widgets.policy_inspector(gain, plant, label=name, num_steps=20),
        svg.Picture("", "", loop_picture.words(question, design)),
        svg.Picture("", "", attraction_map._words(setting, {name: region, "b": region})),
        svg.Picture("", "", training_monitor._waiting(Path(name))),
    ):
        page = BeautifulSoup(shown.html, "html.parser")
        assert {tag.name for tag in page.find_all(True)} <= DRAWN
        assert hostile_html.PAYLOADS[-1] in page.get_text() + shown.alt


@pytest.mark.parametrize("kind", ["policy_inspector", "lqr_designer"])
def test_a_closed_panel_is_given_back(kind, person):
    before = set(ipywidgets.widgets.widget._instances)
    given = (simulation.no_control, "pendulum") if kind == "policy_inspector" else ("pendulum",)
    made = getattr(widgets, kind)(*given, num_steps=20)
    made.live.wait()
    made.close()
    assert set(ipywidgets.widgets.widget._instances) == before
    held = weakref.ref(made)
    del made
    gc.collect()
    assert held() is None


# Regions of attraction ---------------------------------------------------------------------------------------


def test_the_region_of_attraction_of_a_weak_motor_is_the_known_one():
    """ẋ = ax + bu, |u| ≤ u_max can be held where |x| < b u_max/a and nowhere else; any stabilising gain does."""
    a, b, u_max = 1.5, 2.0, 0.75
    plant = systems.from_matrices([[a]], [[b]], Q=[[1.0]], R=[[1.0]], dt=0.05)
    K = control.lqrd([[a]], [[b]], [[1.0]], [[1.0]], 0.05).K
    edge = b * u_max / a
    starts = edge * np.array([*np.linspace(-2, 2, 1200), -0.9999, 0.9999, -1.0001, 1.0001])[:, None]
    policy = simulation.LinearPolicy(K)
    found = evaluation.attraction(plant, policy, starts, limits=(-u_max, u_max), num_steps=1000)
    np.testing.assert_array_equal(found.converged, np.abs(starts[:, 0]) < edge)
    np.testing.assert_array_equal(found.diverged, np.abs(starts[:, 0]) > edge)


def test_the_region_of_attraction_of_a_nonlinear_plant_is_the_known_one():
    """ẋ = −x + x³ comes back from |x| < 1; y decides nothing."""
    field = lambda x, u: np.array([1.0, 0.0], x.dtype) * x[0] ** 3 - x + u  # noqa: E731
    plant = systems.from_dynamics(field, x_eq=[0, 0], u_eq=[0, 0], Q=np.eye(2), R=np.eye(2), dt=0.1)
    x0 = np.stack(np.meshgrid(np.linspace(-1.5, 1.5, 31), [-0.5, 0.0, 0.7], indexing="ij"), axis=-1)
    x0 = x0[np.abs(np.abs(x0[:, 0, 0]) - 1) > 1e-9].astype(np.float32)
    found = evaluation.attraction(plant, simulation.no_control(plant), x0)
    assert found.converged.shape == x0.shape[:2]
    np.testing.assert_array_equal(found.converged, np.abs(x0[..., 0]) < 1)
    np.testing.assert_array_equal(found.diverged, ~found.converged)


def test_the_map_counts_what_comes_back_and_keeps_the_ellipse_inside(monkeypatch):
    plant = systems.from_matrices([[0, 1], [2, 0]], [[0], [1]], Q=np.eye(2), R=[[1.0]], dt=0.05)
    weak = {"no control": simulation.no_control}
    limits = {"span": 2.0, "limit": 1.0, "num": 1800, "num_steps": 200}
    setting = attraction_map.AttractionSetting.of(plant, weak, None, **limits)
    found = attraction_map.maps(setting)
    x0, converged = setting.starts(), found["optimal"].converged
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    inside = np.einsum("...i,ij,...j", x0, design.P, x0) <= control.unsaturated_level(design.K, design.P, 1.0)
    assert converged[np.asarray(inside)].all()
    assert inside.sum() > 20
    assert 0.1 < found["optimal"].share < 0.9
    # the unstable mode s = √2 x + ẋ obeys ṡ = √2 s + u: with |u| ≤ 1 nothing beyond |s| = 1/√2 comes back
    reachable = np.abs(np.sqrt(2) * x0[..., 0] + x0[..., 1]) < 1 / np.sqrt(2)
    assert not (converged & ~reachable).any()
    panel = attraction_map.AttractionMap(setting)
    panel.live.wait()
    assert f"{100 * found['optimal'].share:.1f} %" in panel.words.value
    assert "data:image/png" in panel.picture.value
    panel.limit.value = 3.0
    panel.live.wait()
    assert f"{100 * found['optimal'].share:.1f} %" not in panel.words.value
    before = panel.picture.value
    panel.across.value = panel.up.value
    assert "two different states" in panel.live.status.value
    monkeypatch.setattr(attraction_map, "maps", lambda *_: 1 / 0)
    panel.across.value = 0
    panel.span.value = 1.0
    panel.live.wait()
    assert "ZeroDivisionError" in panel.live.status.value
    assert panel.picture.value == before


# The policy inspector ----------------------------------------------------------------------------------------


def test_a_push_is_a_force_of_one_sample_that_no_policy_is_told_of():
    """Against the matrix powers of the sampled plant, by hand."""
    plant = systems.make("pendulum")
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
    pair = policy_inspector.Pair.of(plant, simulation.LinearPolicy(0.8 * K), "weak gain", 30)
    x0, at, size = np.array([0.1, 0.0]), 7, 1.5
    runs = policy_inspector.compare(pair, x0, push=(at, size))["linear"]
    A, B = (np.asarray(a) for a in control.c2d(*plant.matrices(), plant.dt))
    for label, factor in (("optimal", 1.0), ("weak gain", 0.8)):
        x = x0
        for t in range(30):
            u = -factor * K @ x + (size * np.asarray(plant.scales[1]) if t == at else 0.0)
            np.testing.assert_allclose(runs[label].path.us[t] - plant.equilibrium()[1], u, atol=1e-9)
            x = A @ x + B @ u
        np.testing.assert_allclose(runs[label].path.xs[-1] - plant.equilibrium()[0], x, atol=1e-9)
    said = policy_inspector.words(pair, runs={k: runs for k in ("linear", "nonlinear")}, pushed=True)
    excess = 100 * (runs["weak gain"].ratio / runs["optimal"].ratio - 1)
    assert f"{excess:.3g} % above</b> the LQR" in said
    assert "x0ᵀP x0" not in said  # the least without a push


def test_the_inspector_bills_both_from_where_it_was_clicked(monkeypatch):
    A, B, Q, R = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[0.0], [1.0]]), np.diag([4.0, 1.0]), np.eye(1)
    plant = systems.from_matrices(A, B, Q=Q, R=R, dt=0.05)
    Ad, Bd, Qd, Rd, Nd = (np.asarray(m) for m in control.discretize(A, B, Q, R, 0.05))
    K, P = gain(Ad, Bd, Qd, Rd, Nd)
    keen = 1.7 * K
    closed = Ad - Bd @ keen
    stage = Qd - Nd @ keen - keen.T @ Nd.T + keen.T @ Rd @ keen
    costs = scipy.linalg.solve_discrete_lyapunov(closed.T, stage)
    panel = policy_inspector.Inspector(plant, simulation.LinearPolicy(keen), "keen gain")
    panel.span.value, panel.plane.point = 5.0, [0.75, 0.4]  # of ±5 scales
    panel.live.wait()
    x0, scales = np.array([s.value for s in panel.initial.values()]), np.asarray(plant.scales[0])
    np.testing.assert_allclose(x0 / scales, [2.5, -1.0], atol=0.016)  # half a step of the sliders
    (pair,) = panel._pairs.values()
    runs = policy_inspector.compare(pair, x0)["linear"]
    assert runs["optimal"].ratio == pytest.approx(1, rel=1e-9)
    assert runs["keen gain"].ratio == pytest.approx((x0 @ costs @ x0) / (x0 @ P @ x0), rel=1e-6)
    assert f"{100 * (runs['keen gain'].ratio - 1):.3g} % above" in panel.words.value
    before = panel.plane.svg, panel.picture.value
    panel.initial["x2"].value = 0.0
    panel.live.wait()
    assert (panel.plane.svg, panel.picture.value) != before
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    still = widgets.policy_inspector(simulation.no_control, plant, label="none", num_steps=200)
    assert "the none <b>diverges</b>" in still.words
    refused("controller: expected a policy", widgets.policy_inspector, 3.0, plant)


def test_panels_say_what_they_cannot_show(monkeypatch):
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    one = systems.from_matrices([[1.0]], [[1.0]], dt=0.05)
    two = systems.from_matrices([[0.0, 1.0], [2.0, 0.0]], [[0.0], [1.0]], dt=0.05)
    several = systems.sample("pendulum", key=jax.random.key(0), num=3)
    idle, gain = simulation.no_control, simulation.LinearPolicy
    for make, refusal in (
        (lambda: widgets.policy_inspector(idle, one), "plant: expected two states or more to make a plane of"),
        (lambda: widgets.attraction_map(one), "plant: expected two states or more to make a plane of"),
        (lambda: widgets.policy_inspector("pendulum", idle), "plant: expected the name of a family, as 'cart_"),
        (lambda: widgets.policy_inspector(idle, several), r"plant: expected one plant, .* batch of shape \(3,\)"),
        (lambda: widgets.policy_inspector(idle, two, num_steps=0), "num_steps: expected a whole number ≥ 1, but found"),
        (lambda: widgets.policy_inspector(idle, two, label="optimal"), "label: expected a name for the policy"),
        (lambda: widgets.policy_inspector(np.ones((2, 2)), two), r"controller: expected a gain .* \[..., 1, 2\]"),
        (lambda: widgets.policy_inspector(lambda c, x: x, two), r"a function from a problem .* one of \(c, x\)"),
        (lambda: widgets.lqr_designer(3), "plant: expected the name of a family, .* but found int"),
        (lambda: widgets.lqr_designer("pendulumm"), "no plant is called 'pendulumm'; did you mean pendulum"),
        (lambda: widgets.lqr_designer(two, num_steps=2.5), "num_steps: expected a whole number .* found 2.5"),
        (lambda: widgets.attraction_map(two, {"k": gain(jnp.ones((1, 3)))}), r"k: controller: expected a gain K of"),
        (lambda: widgets.attraction_map(two, {"k": gain(jnp.ones((4, 1, 2)))}), r"k: policy: gains of batch"),
        (lambda: widgets.attraction_map(two, {"k": 3}), "k: controller: expected a policy"),
        (lambda: widgets.attraction_map(two, gain(jnp.ones((1, 2)))), "policies: expected {label: policy}"),
        (lambda: widgets.attraction_map(two, {"optimal": idle}), "policies: expected other labels than"),
        (lambda: widgets.attraction_map(two, plane="x1"), "plane: expected two of x1, x2, but found x1"),
        (lambda: widgets.attraction_map(two, plane=["x1", "x2", "x1"]), "plane: expected two of x1, x2, but"),
        (lambda: widgets.attraction_map(two, span=0), "span: expected a number above 0, but found 0"),
        (lambda: widgets.attraction_map(two, limit=None), "limit: expected a number above 0, but found None"),
        (lambda: widgets.attraction_map(two, num=-4), "num: expected a whole number ≥ 1, but found -4"),
        (lambda: evaluation.attraction(two, idle(two), np.ones(2), num_steps=0), "num_steps: expected a whole number"),
    ):
        refused(refusal, make)


# Predictive control ------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_the_mpc_panel_shows_the_controller_of_each_horizon_and_compiles_one(monkeypatch):
    """Its program for all horizons is that of predictive.mpc, whose horizon is part of the program."""
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=np.eye(2), R=[[1.0]], dt=0.1)
    (Q, R), x0 = plant.weights(), jnp.array([1.0, 0.5])
    drawn, traced, programs, original = [], [], [], predictive.constrained_lqr
    monkeypatch.setattr(predictive, "constrained_lqr", lambda *a, **k: traced.append(a) or original(*a, **k))
    monkeypatch.setattr(mpc_designer, "_picture", lambda _, runs, *a: drawn.append(runs) or svg.Picture("", "", ""))
    for horizon, change in ((5, 100.0), (12, 0.17)):
        values = {"limit": 0.5, "horizon": horizon, "change": change, "weight": 0.01}
        values |= {"initial.x1": 1.0, "initial.x2": 0.5}
        widgets.mpc_designer(plant, num_steps=30, values=values)
        limits = simulation.Limits(u=(-0.5, 0.5), du=(-change, change) if change < 100 else None)
        design = predictive.mpc(simulation.Problem.of(plant, weights=(Q, R / 100), limits=limits), horizon)
        run = simulation.rollout(plant, design, x0, 30)
        assert drawn[-1]["MPC"].memory.solved.all()
        np.testing.assert_allclose(drawn[-1]["MPC"].us, run.us, atol=1e-7)
        assert np.abs(run.us).max() == pytest.approx(0.5)
        programs.append(len(traced))
    assert programs[0] == programs[1] > 0
    late = np.diff(drawn[-1]["clipped LQR"].us[:, 0], prepend=0.0)
    assert np.abs(late).max() == pytest.approx(0.17)
    assert np.abs(drawn[0]["clipped LQR"].us - drawn[0]["MPC"].us).max() > 0.01


# Data and training -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    families, sizes = ("mass_spring_damper", "pendulum"), {"variants": 3, "trajectories": 2, "num_steps": 20}
    config = dataset.DataConfig(families=families, held_out=("pendulum",), noise=200.0, seed=4, **sizes)
    return dataset.generate(config, tmp_path_factory.mktemp("data") / "set")


def test_the_browser_shows_what_is_on_disk(data, monkeypatch):
    panel = data_browser.Browser(data)
    panel.live.wait()
    assert panel.live.status.value == ""
    assert set(panel.split.options) == {"all splits", "train", "validation"}
    panel.family.value = "pendulum"
    panel.live.wait()
    runs = data.trajectories("held_out", "pendulum")
    missing = data.left_out["pendulum"]
    assert sum(missing.values()) > 0, "the noise is to leave something out"
    seen = set()
    for variant, row in enumerate(data.rows(None, "pendulum")):
        for number, at in enumerate(np.flatnonzero(runs.variant == row)):
            panel.variant.value, panel.trajectory.value = variant, number
            panel.live.wait()
            P = data.column("P", None, "pendulum")[variant]
            assert f"x0ᵀP x0 = {digits(runs.x0[at] @ P @ runs.x0[at], 4)}" in panel.words.value
            assert f"Recorded: {digits(runs.cost[at], 4)}" in panel.words.value
            seen.add(panel.picture.value)
    assert len(seen) == len(runs.cost)
    for why, count in missing.items():
        assert (f"{count} {dataset.card.REASONS[why]}" in panel.words.value) == (count > 0)


def test_the_browser_draws_the_optimum_that_scipy_finds(data):
    chosen = data_browser.Selection.of(data, "mass_spring_damper", "train")
    A, B, Q, R, dt = (data.column(name, "train", "mass_spring_damper")[0] for name in (*"ABQR", "dt"))
    x0 = np.array([0.1, -0.2])
    run = simulation.rollout(chosen.problem(0), chosen.problem(0).K, x0, 400)
    xs, us = run.xs, run.us
    Ad, Bd, Qd, Rd, Nd = (np.asarray(m) for m in control.discretize(A, B, Q, R, dt))
    _, P = gain(Ad, Bd, Qd, Rd, Nd)
    costs = np.einsum("ti,ij,tj->t", xs[:-1], Qd, xs[:-1]) + np.einsum("ti,ij,tj->t", us, Rd, us)
    total = costs.sum() + 2 * np.einsum("ti,ij,tj->", xs[:-1], Nd, us) + xs[-1] @ P @ xs[-1]
    assert total == pytest.approx(x0 @ P @ x0, rel=1e-9)


def test_the_monitor_follows_a_training_and_ends_it_with_the_best_kept(data, tmp_path, monkeypatch):
    model = learning.ModelConfig(kind="gain", window=1, hidden=16)
    every = {"steps_per_dispatch": 2, "report_every": 4, "checkpoint_every": 100}
    train = learning.TrainConfig(num_steps=400, batch_size=8, plants=8, closed_loop=0.0, **every)
    panel, shown = training_monitor.Monitor(tmp_path, interval=30.0), []
    assert "nothing to be seen yet" in panel.words.value
    panel.keep.click()
    assert "no training has begun" in panel.live.status.value

    def progress(row):
        panel.progress(row)
        panel.live.wait()
        shown.append(panel.words.value)
        if row["step"] == 8:
            panel.keep.click()
            assert panel.keep.disabled
            assert panel.keep.description == "stopping…"

    source = dataset.source(data, batch_size=8, window=1)
    fit = learning.fit(source, model, train, tmp_path, progress=progress)
    assert len(set(shown)) == len(fit.metrics) == 3
    assert panel.keep.description == "stopped, best kept"
    assert "of 400" in shown[0]
    assert not fit.stopped
    assert fit.steps == fit.metrics[-1]["step"] == 10
    assert f"{100 * max(row['validation_efficiency'] for row in fit.metrics):.5g} % at step" in shown[-1]
    assert learning.load(tmp_path / "checkpoints", "best") is not None
    assert learning.fit(source, model, train, tmp_path).steps == 10  # it stays ended
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write(f"{json.dumps(fit.metrics[-1])}\n[1]\n{json.dumps(fit.metrics[-1] | {'loss': 'x'})}\n")
        log.write('{"step": 11}\n{"step": 11, "los')  # being written
    rows = training_monitor.read(tmp_path)
    alone = [{name: value for name, value in row.items() if name != "imitation"} for row in rows]
    assert [len(rows), *(training_monitor.picture(r).svg.count(">imitation<") for r in (rows, alone))] == [3, 1, 0]
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    assert "Step 10" in widgets.training_monitor(tmp_path).words
    (tmp_path / "metrics.jsonl").write_text("".join((tmp_path / "metrics.jsonl").read_text().splitlines(True)[:1]))
    panel.look()  # trained anew
    assert (panel.keep.disabled, panel.keep.description) == (False, "stop and keep")
    panel.close()


@pytest.fixture(autouse=True)
def still(monkeypatch):
    """Without a person a panel is its first picture alone: a strip has twenty."""
    for kind in lqr_designer.Panel.__subclasses__():
        monkeypatch.setattr(kind, "moving", ())


def test_without_a_person_controls_move_in_the_page(monkeypatch):
    """Each picture is that of the panel at these values; words tell positions apart."""
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    monkeypatch.setattr(lqr_designer.Designer, "moving", ("delay", "limit"))
    made = widgets.lqr_designer("pendulum", num_steps=20)
    delay, limit = made.axes
    assert (delay.label, delay.words, delay.pictures[0]) == ("delay [samples]", ["0", "0.5", "1", "1.5", "2"], None)
    monkeypatch.setattr(lqr_designer.Designer, "moving", ())
    moved = widgets.lqr_designer("pendulum", num_steps=20, values={"delay": 1.0})
    assert delay.pictures[2] == dataclasses.replace(moved, note="")
    assert sum(picture is None for picture in limit.pictures) == 1
    page = BeautifulSoup(safe_html.sanitise(made.html), "html.parser")
    assert len(page.select(".lq-strip .lq-row")) == 2
    frames = page.select(".lq-strip .lq-frames .lq-frame")
    assert [bool(frame.find("svg")) for frame in frames] == [p is not None for a in made.axes for p in a.pictures]


@pytest.mark.parametrize("low", [0.0, 1000.0])
def test_positions_of_a_control_have_its_own_value_and_words_of_their_own(low):
    slider = controls.slider("p", low + 0.06, low, low + 0.2)  # between the five
    places = controls.positions(slider, 5)
    assert len(places) == 5
    assert slider.value in places.values()
    chosen = controls.positions(ipywidgets.Dropdown(options=list("abcdefg"), value="c"), 3)
    assert chosen == {"a": "a", "c": "c", "d": "d", "g": "g"}


# All panels --------------------------------------------------------------------------------------------------

MOVES = {
    "lqr_designer": {"states.angle": 4.0, "delay": 0.5, "parameters.length": 0.7},
    "mpc_designer": {"limit": 0.1, "horizon": 3, "initial.angle": -0.2, "weight": 0.03},
    "loop_shaper": {"lead": 40.0, "notch": 10.0, "ms": 3.0},
    "attraction_map": {"span": 3.05, "limit": 0.5},
    "policy_inspector": {"initial.angle": 0.3, "up": 0, "across": 1, "push": 2.0},
    "data_browser": {"split": "train", "trajectory": 1},
}


MPC = pytest.param("mpc_designer", marks=pytest.mark.matrix)
KINDS = [MPC if kind == "mpc_designer" else kind for kind in MOVES]
"""All that move; one compiles for long."""


@pytest.fixture(scope="module", params=[*KINDS, "training_monitor"])
def any_panel(request, data, tmp_path_factory):
    """A panel, and what the names in its code stand for."""
    known = {"widgets": widgets, "systems": systems, "policy": simulation.no_control}
    given = {
        "lqr_designer": {"plant": "pendulum", "num_steps": 40},
        "mpc_designer": {"plant": "pendulum", "num_steps": 40},
        "loop_shaper": {"plant": "pendulum"},
        "attraction_map": {"plant": "pendulum", "num": 40, "num_steps": 40},
        "policy_inspector": {"policy": simulation.no_control, "family": "pendulum", "num_steps": 40},
        "data_browser": {"path": data.path},
        "training_monitor": {"run": tmp_path_factory.mktemp("run")},
    }[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JPY_SESSION_NAME", "x")
        patch.delenv("LQRLAB_HEADLESS", raising=False)
        made = getattr(widgets, request.param)(**given)
        made.live.wait()
        yield request.param, made, known
        made.close()


def test_pinned_designs_stand_beside_the_next(person):
    plant = systems.make("pendulum")
    panel = widgets.lqr_designer(plant, num_steps=40)
    panel.live.wait()
    K = np.asarray(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
    assert f"K = [{K[0, 0]:.4g}, {K[0, 1]:.4g}]" in panel.words.value
    panel.inputs["torque"].value = 100.0
    panel.pin.click()
    panel.reset.click()
    panel.live.wait()
    assert panel.live.error is None
    assert "design 1" in panel.picture.value
    # the gain of the pinned weights in the plant's own, by Lyapunov, from the panel's start
    Q, R = plant.weights()
    other = control.lqrd(*plant.matrices(), Q, 100 * R, plant.dt).K
    sampled, x0 = control.discretize(*plant.matrices(), Q, R, plant.dt), panel._question().x0
    P, least = (np.asarray(control.cost_to_go(sampled, each)) for each in (other, K))
    excess = 100 * (x0 @ P @ x0 / (x0 @ least @ x0) - 1)
    (line,) = [part for part in panel.words.value.split("<br>") if "design 1" in part]
    assert float(re.search(r"</i>: ([\d.]+) % above", line)[1]) == pytest.approx(excess, rel=5e-3)
    for _ in range(3):
        panel.pin.click()
    assert "at most 3 designs" in panel.live.status.value
    panel.unpin.click()
    panel.live.wait()
    assert "design 1" not in panel.picture.value + panel.words.value
    panel.close()


def test_designs_are_kept_found_again_and_forgotten(tmp_path, person, monkeypatch):
    monkeypatch.setattr("lqrlab.workbench.runs.session._begun", [])
    monkeypatch.chdir(tmp_path)
    panel = widgets.lqr_designer("pendulum", num_steps=20)
    panel.set({"states.angle": 4.0, "delay": 0.5})
    panel.designs.keep.click()
    assert "name: expected 1 to 60 letters" in panel.designs.said.value
    panel.designs.name.value = "fast <b>"
    panel.designs.keep.click()
    panel.designs.name.value, panel.delay.value = "slow", 1.0
    panel.designs.keep.click()
    other = widgets.lqr_designer("cart_pole", num_steps=20)
    assert other.designs.name.options == ()  # another panel's
    other.designs.name.value = "its own"
    other.designs.keep.click()
    other.close()
    panel.close()
    again = widgets.lqr_designer("pendulum", num_steps=20)  # as after a restart
    assert again.designs.name.options == ("fast <b>", "slow")
    again.designs.take.click()
    assert "expected a kept design, fast &lt;b&gt;, slow" in again.designs.said.value
    again.designs.name.value = "fast <b>"
    again.designs.take.click()
    assert (again.states["angle"].value, again.delay.value) == (pytest.approx(4.0, rel=1e-3), 0.5)
    again.designs.forget.click()
    kept = json.loads((tmp_path / "designs.json").read_text()).values()
    assert [[*designs] for designs in kept] == [["slow"], ["its own"]]  # neither forgot the other's
    (tmp_path / "designs.json").write_text('{"widgets": ')
    again.designs.take.click()
    assert "expected a JSON object, but found no JSON" in again.designs.said.value
    assert (tmp_path / "designs.json").read_text() == '{"widgets": '
    again.designs.name.value = "new"
    again.designs.keep.click()
    assert "no JSON" in again.designs.said.value  # and what somebody wrote stays
    assert (tmp_path / "designs.json").read_text() == '{"widgets": '
    again.live.wait()
    again.close()


def code(panel):
    return BeautifulSoup(panel.code.value, "html.parser").find_all("pre")[-1].text


def standing(panel):
    panel.live.wait()
    assert panel.live.status.value == ""
    return panel.values, panel.picture.value, panel.words.value


def test_a_panel_is_reset_and_made_again_by_its_own_code(any_panel, monkeypatch):
    name, panel, known = any_panel
    moves, steps = MOVES.get(name, {}), [panel.live.wait() or standing(panel)]
    for moved, value in moves.items():
        panel.set({moved: value})
        steps.append(standing(panel))
    exec(code(panel), known)
    again = eval(code(panel).splitlines()[-1], known)
    again.live.wait()
    assert moves.items() <= again.values.items()
    assert (again.values, again.picture.value, again.words.value) == standing(panel) == steps[-1]
    with monkeypatch.context() as patch:
        patch.setenv("LQRLAB_HEADLESS", "1")
        still = eval(code(panel).splitlines()[-1], known)
    assert getattr(still, "words", still.value if not moves else "") == panel.words.value
    panel.reset.click()
    panel.live.wait()
    assert panel.values == panel._defaults
    again.close()


@pytest.mark.parametrize(
    ("kind", "moved", "sampled"),
    [  # at a tick and at a sample; with a delay, whose part of a sample its prediction knows
        ("lqr_designer", {"delay": 0.5, "states.angle": 2.0}, ["c2d", "delayed", "discretize", "discretize"]),
        ("attraction_map", {}, ["discretize"]),
        ("policy_inspector", {}, ["discretize"]),
    ],
)
def test_a_move_linearises_the_plant_once_and_samples_it_once_for_each_time(kind, moved, sampled, person, monkeypatch):
    given = (simulation.no_control, "pendulum") if kind == "policy_inspector" else ("pendulum",)
    panel = getattr(widgets, kind)(*given, num_steps=40, **({"num": 40} if kind == "attraction_map" else {}))
    panel.live.wait()
    done = []

    def counted(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: done.append(name) or original(*a, **k))

    counted(systems.family("pendulum"), "matrices")
    for name in ("discretize", "c2d", "lqrd", "delayed", "lqrd_delayed"):
        counted(control, name)
    panel.set(moved | {"parameters.length": 0.7})
    panel.live.wait()
    assert panel.live.status.value == ""
    assert sorted(done) == [*sampled, "matrices"]
    panel.close()


@pytest.mark.parametrize("kind", ["lqr_designer", MPC, "policy_inspector"])
def test_a_panels_controller_is_exported_as_it_stands(kind, monkeypatch, tmp_path):
    """As C, where a compiler is; the policy's inputs are the code's."""
    monkeypatch.chdir(tmp_path)
    plant = systems.make("cart_pole")
    K = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    panel, values = {
        "lqr_designer": lambda: (lqr_designer.Designer(plant, num_steps=60), {"kind": "LQG", "limit": 1.0}),
        "mpc_designer": lambda: (mpc_designer.PredictiveDesigner(plant, 20), {"weight": 3.0, "horizon": 5}),
        "policy_inspector": lambda: (policy_inspector.Inspector(plant, 0.9 * K, num_steps=60), {}),
    }[kind]()
    panel.set(values)
    panel.folder.value = "some/firmware"
    panel.export["write C code"].click()
    assert "README.md" in panel.exported.value
    controller, problem = panel._exported(panel._question())
    written = deployment.load_c("some/firmware")
    x0 = jnp.array([0.3, 0.02, 0.0, 0.0])
    ours, theirs = (simulation.rollout(problem, one, x0, 60) for one in (controller, written))
    np.testing.assert_allclose(theirs.us, ours.us, atol=1e-9)
    (tmp_path / "mine.txt").write_text("mine")
    panel.folder.value = "."
    panel.export["write C code"].click()
    assert "mine.txt" in panel.exported.value
    panel.close()


def test_values_that_cannot_be_are_refused_in_words(panel):
    for values, refusal in (
        ({"wheels": 4}, "values: expected some of states.angle, .*, but found 'wheels'"),
        ({"delay": 9.0}, "values: delay: expected a number from 0 to 2, but found 9.0"),
        ({"limit": 1e9}, "values: limit: expected a number from .* to .*, but found"),
        ({"sample": 5}, "values: sample: expected one of 1, 2, 3, .*, but found 5"),
        ({"size": "x"}, "values: size: expected a number from 0.05 to 3, but found 'x'"),
        ({"known": 3}, "values: known: expected True or False, but found 3"),
        ([1], "values: expected {control: value}, but found list"),
    ):
        refused(refusal, panel.set, values)
    panel.reset.click()
    panel.live.wait()


def test_what_goes_wrong_is_said_in_the_panel(any_panel, monkeypatch):
    """In the work, in what a control asks for, and in what is done when it moves."""
    name, panel, _ = any_panel

    def fail(*args, **kwargs):
        raise RuntimeError("a <real> exception")

    said = "<b>RuntimeError: a &lt;real&gt; exception</b>"
    if name == "training_monitor":
        with monkeypatch.context() as patch:
            patch.setattr(training_monitor, "read", fail)
            panel.keep.click()
        assert panel.live.status.value == said
        panel.live.say("")
        return
    for part in ("_compute", "_question", "_codes"):
        with monkeypatch.context() as patch:
            patch.setattr(panel, part, fail)
            patch.setattr(panel.live, "_work", panel._compute)
            panel.reset.click()
            panel.live.wait()
        assert panel.live.status.value == said
        panel.reset.click()
        standing(panel)


def test_a_panel_bears_all_its_sliders_at_their_ends(any_panel):
    _, panel, _ = any_panel
    for end in ("min", "max") if panel.values else ():
        values = {k: getattr(c, end) for k, c in panel._kept.items() if hasattr(c, end)}
        logarithmic = {k: panel._kept[k].base ** v for k, v in values.items() if hasattr(panel._kept[k], "base")}
        panel.set(values | logarithmic)
        panel.live.wait()
        assert panel.live.status.value == ""
        assert "nan" not in panel.picture.value + panel.words.value


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "data_browser"])
def test_a_panel_bears_a_loop_that_ends_at_infinity(kind, monkeypatch):
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    plant = systems.from_matrices([[0.0, 1.0], [2000.0, 0.0]], [[0.0], [1.0]], Q=np.eye(2), R=[[1.0]], dt=0.05)
    free = simulation.LinearPolicy(jnp.zeros((1, 2)))
    assert not np.isfinite(simulation.rollout(plant, free, jnp.ones(2), 400).xs).all()
    first = (free,) if kind == "policy_inspector" else ()
    low = {"limit": controls.limit_slider(0.0).value}
    values = {"lqr_designer": low | {"size": 3.0}, "loop_shaper": {"lead": 0.0}, "policy_inspector": {}}.get(kind, low)
    options = {"num": 40} if kind == "attraction_map" else {}
    options |= {} if kind == "loop_shaper" else {"num_steps": 400}
    shown = getattr(widgets, kind)(*first, plant, values=values, **options)
    assert re.search(r"\b(nan|inf|infinity)\b", shown.html, re.IGNORECASE) is None
