"""Every controller asked sample by sample, as in a laboratory: nothing is compiled after the second call.

It costs a program a row, some 40 s of the processor.
"""

import dataclasses
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lqrlab
from lqrlab import (
    classical,
    control,
    deployment,
    environments,
    evaluation,
    identification,
    learning,
    predictive,
    simulation,
    systems,
    tuning,
    unknown,
)
from lqrlab.dataset.shuffling import shuffled
from lqrlab.extensions.deployment.fmu_export import PlantPolicy
from lqrlab.extensions.environments import agents, gymnasium_adapter
from lqrlab.extensions.predictive.predictive_policies import nearest_safe
from lqrlab.simulation import binding

PLANT = systems.make("pendulum")
PROBLEM = simulation.Problem.of(PLANT, limits=simulation.Limits(u=(-5.0, 5.0), x=([-2.0, -9.0], [2.0, 9.0])))
SAMPLED = control.discretize(*PLANT.matrices(), *PLANT.weights(), PLANT.dt)
GAIN = simulation.LinearPolicy(PROBLEM.K)
NOISE = 1e-4 * np.eye(2), 1e-4 * np.eye(1)
C = np.eye(2)[:1]


def lqg():
    *AB, Q, R, N = SAMPLED
    return control.lqg(*AB, C, Q, R, *NOISE, N, discrete=True)


def lqi():
    *AB, Q, R, N = SAMPLED
    return control.lqi(*AB, C, Q, R, Q[:1, :1], N, discrete=True)


def schedule():
    lengths = np.linspace(0.5, 1.5, 3)
    plants = systems.make("pendulum", length=lengths)
    designs = tuning.gain_schedule(lengths, *plants.matrices(), *plants.weights(), dt=PLANT.dt)
    return tuning.scheduled(PLANT, designs, lambda x: 1.0 + 0 * x[..., :1])


def late(of=GAIN):
    return simulation.DelayedPolicy(of, 3, 2, jnp.array([jnp.inf]), memory=1)


class Agent:
    """Predicts as a trained model of another library does."""

    def get_env(self):
        return gymnasium_adapter.PlantEnv("pendulum")

    def predict(self, observation, deterministic):
        return -np.sum(observation, axis=-1, keepdims=True), None


def exported(folder):
    deployment.to_c(PROBLEM.K, PROBLEM, folder)
    return deployment.load_c(folder)


ROWS = {
    "object": lambda _: np.asarray(PROBLEM.K),
    "LQR": lambda _: control.lqrd(*PLANT.matrices(), *PLANT.weights(), PLANT.dt),
    "LQG": lambda _: lqg(),
    "Integral": lambda _: lqi(),
    "StateSpace": lambda _: control.StateSpace([[-9.0]], [[1.0]], [[0.0]], [[-20.0]]),
    "LQTracking": lambda _: control.lq_tracking(*SAMPLED[:4], np.zeros((9, 2)), np.zeros((8, 1))),
    "ILQR": lambda _: predictive.ilqr(PLANT.dynamics, np.array([0.1, 0.0]), *PLANT.weights(), 9, dt=PLANT.dt),
    "MPC": lambda _: predictive.mpc(PROBLEM, 5),
    "NonlinearMPC": lambda _: predictive.nonlinear_mpc(PROBLEM, 5),
    "PID": lambda _: dataclasses.replace(classical.pid(classical.ProcessModel(-1.0, 0.5, delay=0.1)), C=jnp.asarray(C)),
    "Compensator": lambda _: classical.Compensator([[1.0, 0.0]], zeros=[-2.0], poles=[-20.0], gain=5.0),
    "ExportedController": exported,
    "Predicts": lambda _: agents.play and Agent(),
    "Module": lambda _: learning.pretrained("regulator"),
}
"""One controller of each kind that ``bind`` knows, by name; a folder, a path or text, holds a network."""
MADE = {
    "filtered": lambda: predictive.filtered(PROBLEM.K, PROBLEM, horizon=4),
    "extended Kalman": lambda: simulation.extended_kalman(PROBLEM.K, PROBLEM, C, 1e-6 * np.eye(2), *NOISE[::-1]),
    "unscented Kalman": lambda: simulation.unscented_kalman(PROBLEM.K, PROBLEM, C, 1e-6 * np.eye(2), *NOISE[::-1]),
    "late": late,
    "late MPC": lambda: late(simulation.bind(predictive.mpc(PROBLEM, 3), PROBLEM)),
    "switching": lambda: predictive.SwitchingPolicy(GAIN, GAIN, PROBLEM.P, jnp.ones(())),
    "scheduled": schedule,
    "network": lambda: learning.policy(learning.pretrained("regulator"), PLANT),
    "adaptive": lambda: unknown.adaptive(PLANT, unknown.wide()),
    "look-ahead": lambda: unknown.look_ahead(unknown.adaptive(PLANT, unknown.ridge()), num=2, steps=2, until=4),
    "plant": lambda: PlantPolicy(dataclasses.replace(PROBLEM, plant=None, linear=True)),
}


def bound(name, folder):
    return simulation.bind(ROWS[name](folder), PROBLEM) if name in ROWS else MADE[name]()


def compiled(caplog):
    return [record for record in caplog.records if "Compiling" in record.getMessage()]


@pytest.mark.parametrize("name", [*ROWS, *MADE])
def test_after_the_second_call_nothing_is_compiled(name, tmp_path, caplog):
    policy = bound(name, tmp_path)
    xs = np.random.default_rng(0).normal(size=(9, 12 if name == "sampled" else 1 if name == "plant" else 2))
    carry = policy.init(())
    for i, x in enumerate(xs):
        with jax.log_compiles(i >= 2):
            carry, u = policy(carry, jnp.asarray(x))
    assert np.isfinite(u).all()
    assert not compiled(caplog)


ENV = environments.make("pendulum", horizon=9)
STATE = ENV.reset(jax.random.key(0))[1]


def again(size, folder):
    """A state of one's own plant, saved and read."""
    _, state = ENV.reset(jax.random.key(0), systems.make("pendulum", length=size))
    return environments.load(environments.save(state, folder / "state"), ENV)


def plan(size, _):
    return predictive.mpc(PROBLEM, 4).plan(jnp.array([0.1, size]))


def scored(size, _):
    plant = systems.make("pendulum", length=size)
    return evaluation.evaluate(size * PROBLEM.K, plant, key=jax.random.key(0), num_steps=9)


AGAIN = {
    "Problem.step": lambda size, _: PROBLEM.step(jnp.array([0.1, size]), jnp.ones(1)),
    "its gradient": lambda size, _: jax.grad(lambda u: PROBLEM.step(jnp.array([0.1, size]), u)[1])(jnp.ones(1)),
    "linearised": lambda size, _: PROBLEM.linearised(jnp.array([0.1, size]), jnp.ones(1)),
    "correlated noise": lambda size, _: PROBLEM.disturbed(noise=size * np.eye(2)),
    "spectral radius": lambda size, _: control.spectral_radius(size * np.eye(2)),
    "plan": plan,
    "nearest safe": lambda size, _: nearest_safe(PROBLEM, 4, jnp.array([0.1, size]), jnp.ones(1)),
    "env.step": lambda size, _: ENV.step(jax.random.key(0), STATE, size * jnp.ones(1)),
    "gradient of env.step": lambda size, _: jax.grad(lambda u: ENV.step(jax.random.key(0), STATE, u)[2])(jnp.ones(1)),
    "environments.load": again,
    "evaluate": scored,
    "rollout": lambda size, _: simulation.rollout(PLANT, size * PROBLEM.K, size * np.ones(2), 9),
    "shuffled": lambda size, _: shuffled(jnp.arange(9), 100, int(10 * size), 1),
    "experiment": lambda size, _: identification.design(
        systems.make("pendulum", length=size), 20, 0.01, amplitude=size, iterations=2
    ),
    "robust gain": lambda size, _: identification.robust_gain(
        systems.make("pendulum", length=size * np.ones(3)), iterations=2
    ),
}
"""Calls of a size, which no shape follows from."""


@pytest.mark.parametrize("name", AGAIN)
def test_other_numbers_of_the_same_shapes_are_no_other_program(name, tmp_path, caplog):
    for i, size in enumerate((0.5, 0.6, 0.7, 0.8)):
        with jax.log_compiles(i >= 2):
            jax.block_until_ready(AGAIN[name](size, tmp_path))
    assert not compiled(caplog)


def test_no_kind_of_controller_and_no_policy_is_left_out():
    modules = [info.name for info in pkgutil.walk_packages(lqrlab.__path__, "lqrlab.") if "__main__" not in info.name]
    found = {
        item
        for module in map(importlib.import_module, modules)
        for item in list(vars(module).values())
        if dataclasses.is_dataclass(item)
        and isinstance(item, type)
        and hasattr(item, "init")
        and any("__call__" in vars(base) for base in item.__mro__)
    }
    kinds = {kind.__name__ for kind in binding._bound.registry} | {name.split(".")[-1] for name in binding._DESIGNS}
    assert kinds - {"Path", "PosixPath", "str", "GainTable"} == set(ROWS)  # the last where docs/controllers.md has run
    alone = {"_AnyHorizon", "Pushed"}  # policies of a panel's own loop
    assert {item.__name__ for item in found if not hasattr(item.__call__, "kept")} == alone
