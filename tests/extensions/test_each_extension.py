"""One short test of each extension, for ``make test``; their suites are in ``make check``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from loops import loop

from lqrlab import (
    classical,
    control,
    deployment,
    environments,
    identification,
    predictive,
    robots,
    robust,
    simulation,
    systems,
    tuning,
    unknown,
)

PLANT = systems.make("pendulum")


def test_predictive_keeps_its_limits():
    problem = simulation.Problem.of(PLANT, limits=(-2.0, 2.0), linear=True)
    run = simulation.rollout(problem, predictive.mpc(problem, 5), jnp.array([0.1, 0.0]), 60)
    assert np.abs(run.us).max() <= 2.0
    assert np.abs(run.xs[-1]).max() < 0.02


def test_robust_designs_have_the_norm_that_they_say():
    A, B, C = np.array([[0.5]]), np.array([[1.0, 0.0, 1.0]]), np.array([[1.0], [0.0], [1.0]])
    D = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    found = robust.hinfsyn(A, B, C, D, 1, 1)
    a, b, c, d = loop(A, B, C, D, 1, 1, found.controller)
    assert np.linalg.eigvals(a).real.max() < 0
    for w in np.geomspace(1e-3, 1e3, 99):
        gain = np.linalg.norm(c @ np.linalg.solve(1j * w * np.eye(len(a)) - a, b) + d, 2)
        assert gain <= found.gamma * (1 + 1e-6)


def test_classical_holds_a_set_point():
    plant = systems.make("dc_motor")
    design = classical.pid(plant, "simc", tau_c=0.3)
    run = simulation.rollout(plant, classical.pid_loops(plant, design, r=0.5), jnp.zeros(plant.n), 400)
    assert run.xs[-1, 0] == pytest.approx(0.5, abs=0.05)


def test_tuning_finds_weights_behind_a_gain():
    A, B = np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([[0.0], [1.0]])
    P = scipy.linalg.solve_continuous_are(A, B, np.diag([3.0, 1.0]), np.eye(1))
    found = tuning.inverse_lqr(A, B, B.T @ P)
    again = scipy.linalg.solve_continuous_are(A, B, np.asarray(found.Q), np.asarray(found.R))
    np.testing.assert_allclose(np.linalg.solve(found.R, B.T @ again), B.T @ P, rtol=1e-5)


def test_unknown_regulates_a_plant_that_it_is_not_given():
    problem = unknown.problem_of(systems.make("double_integrator").broadcast_to((1,)))
    score = unknown.score(lambda p: unknown.adaptive(p, unknown.ridge()), problem, key=jax.random.key(0), num_initial=1)
    assert not score.failed.any()


def test_identification_finds_a_pole():
    u = np.sign(np.sin(np.arange(200.0) ** 1.3))
    y = np.zeros(200)
    for t in range(199):
        y[t + 1] = 0.8 * y[t] + 0.5 * u[t]
    log = identification.read({"u": u, "y": y}, inputs=["u"], outputs=["y"], dt=0.1)
    model = identification.subspace(log, order=1)
    assert np.linalg.eigvals(model.A) == pytest.approx([0.8], abs=5e-3)


def test_environments_step_and_end():
    env = environments.make("pendulum", horizon=3)
    obs, state = env.reset(jax.random.key(0))
    ended = []
    for k in jax.random.split(jax.random.key(1), 3):
        obs, state, reward, terminated, truncated, _ = env.step(k, state, jnp.zeros(1))
        assert float(reward) <= 0
        ended.append(bool(truncated or terminated))
    assert ended == [False, False, True]
    assert obs.shape == env.observation_space.shape


def test_robots_are_plants(tmp_path):
    xml = """<mujoco><worldbody><body pos="0 0 1"><joint name="j" type="hinge" axis="0 1 0" damping="0.1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.02"/></body></worldbody>
    <actuator><motor joint="j" ctrlrange="-1 1"/></actuator></mujoco>"""
    (tmp_path / "arm.xml").write_text(xml)
    plant = robots.from_mujoco(tmp_path / "arm.xml", dt=0.02)
    assert (plant.n, plant.m) == (2, 1)


def test_deployment_makes_c_that_computes_the_same(tmp_path):
    K = np.asarray(control.lqrd(*PLANT.matrices(), *PLANT.weights(), PLANT.dt).K)
    problem = simulation.Problem.of(PLANT)
    deployment.to_c(K, problem, tmp_path / "c")
    written = deployment.load_c(tmp_path / "c")
    ours, theirs = (simulation.rollout(problem, c, jnp.array([0.1, 0.0]), 20) for c in (K, written))
    np.testing.assert_allclose(theirs.us, ours.us, atol=1e-9)
