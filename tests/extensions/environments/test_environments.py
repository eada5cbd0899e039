"""Plants as environments: the optimum scores 1 through every interface, resets, actions, records, states on disk."""

import dataclasses
import functools
import inspect
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import scipy.linalg
from catalogue import BUILT_IN
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from refusals import refused
from safetensors import safe_open

from lqrlab import evaluation, simulation, systems
from lqrlab.extensions import environments
from lqrlab.extensions.environments import actions, agents, gymnasium_adapter, ids
from lqrlab.simulation import loop

ROOT = Path(__file__).parents[3]
KEY = jax.random.key(0)
pytestmark = pytest.mark.filterwarnings("ignore:limits. actions without bounds")


@pytest.fixture(scope="module")
def cart():
    return environments.make("cart_pole", linear=True, horizon=60)


@pytest.fixture(scope="module")
def pendulum():
    return environments.make("pendulum", linear=True, horizon=20, limits=None)


def one_step(env, action, key=KEY, **reset):
    _, state = env.reset(key, **reset)
    return env.step_env(key, state, action)


@pytest.mark.parametrize(
    "settings", [{}, {"units": "scaled"}, {"units": "limits"}, {"delay": 0, "observe": "history:2"}]
)
def test_the_optimum_scores_one_on_a_linear_task(settings):
    env = environments.make("pendulum", linear=True, horizon=40, **settings)
    played = environments.play(env, environments.optimal(env), key=KEY, num=5)
    np.testing.assert_allclose(played.ratio, 1.0, rtol=1e-6)
    assert not played.terminated.any()
    lazy = environments.play(env, lambda obs: jnp.zeros(1, jnp.float32), key=KEY, num=5)
    assert (lazy.ratio > 1.01).all()


def test_the_optimum_scores_one_through_gymnasium(cart):
    K = np.asarray(environments.optimal(cart).K)
    settings = {"linear": True, "horizon": 60, "units": "physical"}
    with gymnasium.make("lqrlab.extensions.environments:lqrlab/CartPole-v0", **settings) as single:
        obs, _ = single.reset(seed=3)
        over = False
        while not over:
            obs, _, terminated, over, info = single.step(-K @ obs)
            assert not terminated
        assert abs(info["ratio"] - 1) < 1e-6


def test_the_optimum_scores_one_through_gymnax():
    env = environments.make("pendulum", linear=True, horizon=30, units="scaled")
    agent = environments.optimal(env)
    wrapped = environments.gymnax(env)
    params = wrapped.default_params
    obs, state = wrapped.reset(KEY, params)
    assert wrapped.observation_space(params).shape == obs.shape
    for i in range(30):
        obs, state, _, terminated, truncated, info = wrapped.step(jax.random.key(i), state, agent(obs), params)
    assert truncated
    assert not terminated
    assert abs(info["ratio"] - 1) < 1e-6
    assert state.time == 0  # of the next episode
    raw, learners = (environments.gymnax("pendulum", linear=True, **more) for more in ({"units": "physical"}, {}))
    assert float(learners.action_space(params).high[0]) == 1 < float(raw.action_space(params).high[0])
    older = environments.gymnax(env, returns=5)
    assert len(older.step(KEY, state, agent(obs)[0])) == 5  # one input without its axis


def test_a_loop_of_steps_is_the_one_closed_loop():
    env = environments.make("cart_pole", horizon=50, dtype="float64")
    plant = systems.make("cart_pole")
    policy = simulation.LinearPolicy(environments.optimal(env).K)
    _, state = env.reset(KEY)
    x0 = 0.1 * np.asarray(state.x)
    state = dataclasses.replace(state, x=jnp.asarray(x0))
    run = simulation.rollout(plant, policy, x0, 20)
    for t in range(20):
        _, state, reward, *_ = env.step_env(KEY, state, -policy.K @ state.x)
        np.testing.assert_allclose(state.x, run.xs[t + 1], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(-reward, run.costs[t], rtol=1e-12)


def test_an_episode_that_ends_begins_anew_and_shows_its_last_observation(pendulum):
    obs, state = pendulum.reset(KEY)
    for i in range(20):
        key = jax.random.key(i)
        kept = pendulum.step_env(key, state, jnp.zeros(1))
        obs, state, reward, terminated, truncated, info = pendulum.step(key, state, jnp.zeros(1))
        assert truncated == (i == 19)
        assert not terminated
        assert reward == kept[2]
        np.testing.assert_array_equal(info["final_observation"], kept[0])
    assert state.time == 0
    fresh, _ = pendulum.reset(jax.random.fold_in(key, 0))
    np.testing.assert_array_equal(obs, fresh)
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(obs, info["final_observation"])


@pytest.mark.parametrize("ending", [0, 1, 2, 40])
def test_new_episodes_are_the_same_however_many_begin(pendulum, ending):
    keys = jax.random.split(KEY, 40)
    _, states = environments.batch_reset(pendulum, keys)
    # of one that ends, the first, which fills up an index, is not it
    time = jnp.where((jnp.arange(40) * 7 + 1) % 40 < ending, 19, 3).astype(jnp.int32)
    states = dataclasses.replace(states, time=time)
    u = jnp.zeros((40, 1), jnp.float32)
    obs, after, *_ = environments.batch_step(pendulum, keys, states, u)
    one_by_one = jax.jit(jax.vmap(pendulum.step))(keys, states, u)
    assert int((after.time == 0).sum()) == ending
    np.testing.assert_allclose(obs, one_by_one[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.optimum, one_by_one[1].optimum, rtol=1e-5)


@pytest.mark.parametrize("linear", [True, False])
def test_not_a_number_stays_in_its_own_row(linear):
    env = environments.make("cart_pole", linear=linear, horizon=20, on_error="nan", limits=None)
    keys = jax.random.split(KEY, 4)
    _, states = environments.batch_reset(env, keys)
    good = jnp.full((4, 1), 0.5, jnp.float32)
    clean = environments.batch_step(env, keys, states, good)
    obs, after, reward, terminated, _, info = environments.batch_step(env, keys, states, good.at[2].set(jnp.nan))
    assert terminated.tolist() == [False, False, True, False]
    assert np.isinf(info["ratio"][2])
    assert np.isfinite(obs).all()  # its next episode has begun
    assert np.isnan(info["final_observation"][2]).any()
    rest = np.array([0, 1, 3])
    for a, b in ((obs, clean[0]), (reward, clean[2]), (after.x, clean[1].x), (info["ratio"], clean[5]["ratio"])):
        np.testing.assert_array_equal(np.asarray(a)[rest], np.asarray(b)[rest])


def test_a_gradient_through_a_step_is_that_of_finite_differences():
    env = environments.make("pendulum", horizon=10, dtype="float64", limits=None)

    def cost(u, length):
        _, state = env.reset(KEY, systems.make("pendulum", length=length))
        total = 0.0
        for _ in range(2):
            _, state, reward, *_ = env.step(KEY, state, u)
            total = total - reward
        return total

    u, length, h = jnp.array([0.3]), 0.6, 1e-5
    by_u, by_length = jax.jit(jax.grad(cost, argnums=(0, 1)))(u, length)
    cost = jax.jit(cost)
    np.testing.assert_allclose(by_u[0], (cost(u + h, length) - cost(u - h, length)) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(by_length, (cost(u, length + h) - cost(u, length - h)) / (2 * h), rtol=1e-5)


def test_each_environment_can_have_its_own_plant(pendulum):
    plants = systems.sample("pendulum", key=KEY, num=3)
    keys = jnp.stack([KEY] * 3)
    _, states = environments.batch_reset(pendulum, keys, plants)
    _, after, *_ = environments.batch_step(pendulum, keys, states, jnp.zeros((3, 1), jnp.float32))
    assert len(np.unique(np.asarray(after.x)[:, 1])) == 3  # from one start, under one input
    alone = simulation.Problem.of(plants[1], linear=True, optimum=False)
    expected, _ = alone.step(states.x[1].astype(float), jnp.zeros(1))
    np.testing.assert_allclose(after.x[1], expected, rtol=1e-5)


def test_a_spread_draws_another_variant_at_each_reset():
    env = environments.make("pendulum", linear=True, spread=0.2, variants=8, horizon=5)
    _, states = environments.batch_reset(env, jax.random.split(KEY, 50))
    assert set(np.asarray(states.variant).tolist()) == set(range(8))
    played = environments.play(env, environments.optimal(env), key=KEY, num=20)
    assert (played.ratio >= 1 - 1e-6).all()
    assert (played.ratio > 1 + 1e-6).any()  # the first variant's gain is not the others'


def test_noise_and_outputs_are_in_what_is_seen():
    quiet = environments.make("pendulum", linear=True, horizon=9, limits=None)
    noisy = environments.make("pendulum", linear=True, horizon=9, noise=0.1)
    after = [one_step(env, jnp.zeros(1), jax.random.key(1))[1].x[0] for env in (noisy, quiet)]
    assert after[0] != after[1]
    sensed = environments.make("pendulum", linear=True, horizon=9, sensor_noise=[0.1, 0.0])
    obs, state = sensed.reset(KEY)
    assert obs[0] != state.x[0]
    assert obs[1] == state.x[1]
    levels = environments.make("coupled_tanks", observe="outputs", horizon=9)
    obs, state = levels.reset(KEY)
    np.testing.assert_allclose(
        obs, np.asarray(systems.make("coupled_tanks").output_matrix()) @ np.asarray(state.x), rtol=1e-3
    )


def test_an_input_acts_as_many_samples_late_as_the_delay_says():
    """Against the plant's recursion in NumPy, under inputs of which no two are alike."""
    env = environments.make("pendulum", linear=True, horizon=9, delay=3, limits=None, dtype="float64")
    A, B = (np.asarray(a[0]) for a in (env.pool.A, env.pool.B))
    us = np.linspace(1.0, 3.0, 8)[:, None] * (-1.0) ** np.arange(8)[:, None]
    _, state = env.reset(KEY)
    x = np.asarray(state.x)
    for t in range(8):
        _, state, *_ = env.step_env(KEY, state, us[t])
        x = A @ x + B @ (us[t - 3] if t >= 3 else np.zeros(1))
        np.testing.assert_allclose(state.x, x, rtol=1e-9, atol=1e-12)


def test_a_swing_up_begins_hanging_and_its_optimum_is_not_known():
    env = environments.make("acrobot", task="swing_up", start=0.0, horizon=9)
    obs, state = env.reset(KEY)
    np.testing.assert_allclose(obs, [np.pi, 0, 0, 0], atol=1e-6)
    assert np.isnan(env.step(KEY, state, jnp.zeros(1))[5]["ratio"])


def test_leaving_the_model_pays_for_the_rest_of_the_horizon():
    env = environments.make("pendulum", horizon=10, terminate=1.0, start=0.0, limits=None)
    _, state = env.reset(KEY)
    for time, steps in ((0, 10), (9, 1), (10, 1), (25, 1)):  # also where step_env goes on beyond the horizon
        at = dataclasses.replace(state, time=jnp.int32(time))
        _, _, reward, terminated, truncated, info = env.step(KEY, at, jnp.full(1, 1e3, jnp.float32))
        assert (bool(terminated), bool(truncated)) == (True, False)
        np.testing.assert_allclose(reward, -steps * info["cost"], rtol=1e-6)


def test_rewards_are_of_the_kind_that_was_asked_for():
    u = jnp.full(1, 0.7, jnp.float32)
    rewards = {}
    for kind in ("cost", "excess", "relative", lambda x, u, after, cost: u[0]):
        env = environments.make("pendulum", linear=True, horizon=9, reward=kind)
        _, _, rewards[kind], _, _, info = one_step(env, u)
    assert list(rewards.values())[3] == u[0]
    np.testing.assert_allclose(rewards["relative"], rewards["cost"] / info["optimum"], rtol=1e-6)
    np.testing.assert_allclose(1 - rewards["excess"] / info["optimum"], info["ratio"], rtol=1e-6)


# Actions ---------------------------------------------------------------------------------------------------------


def test_structured_actions_address_what_they_name():
    env = environments.make("dual_arm", horizon=9, linear=True)
    m = env.m
    for action, expected in (
        (environments.InputChannel(1, 3.0), jnp.zeros(m).at[1].set(3.0)),
        (environments.InputChannel([2, 1], [4.0, 5.0]), jnp.zeros(m).at[2].set(4.0).at[1].set(5.0)),
        (environments.Mask(jnp.arange(m) == 0, jnp.ones(m)), jnp.zeros(m).at[0].set(1.0)),
    ):
        np.testing.assert_allclose(action.to_input(env), expected)
        assert one_step(env, action)[5]["invalid"] == False  # noqa: E712


def test_a_grid_of_levels_reaches_from_limit_to_limit():
    env = environments.make("pendulum", action="levels:3", limits=(-2.0, 2.0), linear=True)
    inputs = [float(actions.input_of(i, env)[0]) for i in range(3)]
    assert inputs == [-2.0, 0.0, 2.0]
    assert env.action_space == environments.Discrete(3)
    environments.batch_step(env, KEY[None], environments.batch_reset(env, KEY[None])[1], jnp.array([2]))


BAD = {
    "a number that is none": (np.float32([np.nan]), {}),
    "an index out of range": (environments.InputChannel(7, 1.0), {}),
    "one of several": (environments.InputChannel([0, -1], [1.0, 1.0]), {}),
    "a level out of range": (9, {"action": "levels:3"}),
}


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_an_invalid_action_does_what_on_error_says(bad, monkeypatch):
    action, settings = BAD[bad]
    made = lambda **more: environments.make("pendulum", linear=True, horizon=9, **settings, **more)  # noqa: E731
    refused("action: expected finite inputs", one_step, made(), action)
    _, after, _, terminated, *_ = one_step(made(on_error="nan"), action)
    assert terminated
    assert np.isnan(after.x).any()
    assert not one_step(made(on_error="clip"), action)[3]
    monkeypatch.setenv("LQRLAB_ON_ERROR", "clip")
    assert not one_step(made(), action)[3]


def test_an_invalid_action_raises_from_compiled_and_batched_code(pendulum):
    keys = jax.random.split(KEY, 3)
    _, states = environments.batch_reset(pendulum, keys)
    batch_step = functools.partial(environments.batch_step, pendulum)
    for step in (jax.vmap(pendulum.step), batch_step):
        program = jax.jit(lambda u, step=step: step(keys, states, u)[0])
        jax.block_until_ready(program(jnp.zeros((3, 1), jnp.float32)))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)action: expected finite inputs"):
            jax.block_until_ready(program(jnp.zeros((3, 1), jnp.float32).at[1].set(jnp.nan)))


def test_actions_in_other_bytes_are_the_same_and_masked_ones_refused(pendulum):
    keys = jax.random.split(KEY, 3)
    state, states = pendulum.reset(KEY)[1], environments.batch_reset(pendulum, keys)[1]
    for step, action in (
        (lambda a: pendulum.step(KEY, state, a), np.array([0.3])),
        (lambda a: environments.batch_step(pendulum, keys, states, a), np.array([[0.3], [-0.2], [0.1]])),
    ):
        seen = step(action)[0]
        np.testing.assert_array_equal(step(action.astype(">f8"))[0], seen)
        refused("expected numbers, but found 1 masked", step, np.ma.masked_equal(action, 0.3))


@pytest.mark.parametrize(
    "action",
    [np.zeros(2), np.zeros((1, 1)), "left", environments.Mask([1.0], [1.0]), environments.InputChannel([0], 1.0)],
)
def test_a_wrong_shape_of_action_is_refused_inside_a_trace_too(pendulum, action):
    _, state = pendulum.reset(KEY)
    with pytest.raises((ValueError, TypeError), match=r"action|mask|value"):
        jax.jit(lambda s: pendulum.step(KEY, s, action))(state)


# Arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"plant": "cart_pool"}, "did you mean cart_pole"),
        ({"task": "balance"}, "task: expected"),
        ({"horizon": 0}, "horizon: expected a whole number ≥ 1"),
        ({"dtype": "float16"}, "dtype: expected"),
        ({"observe": "history:x"}, "observe: expected"),
        ({"action": "levels:1"}, "action: expected at least 2 levels"),
        ({"action": "levels:3", "limits": None}, "needs limits"),
        ({"limits": "wide"}, "limits: expected"),
        ({"on_error": "ignore"}, "on_error: expected"),
        ({"terminate": -1.0}, "terminate: expected"),
        ({"task": "swing_up", "plant": "dc_motor"}, "task: expected one of pendulum"),
        ({"reward": "return"}, "reward: expected"),
        ({"spread": 1.5}, "spread: expected"),
        ({"plant": systems.from_matrices([[0.1]], [[0.0]])}, "not stabilizable"),
        ({"plant": systems.from_matrices([[0.1]], [[1.0]]), "spread": 0.1}, "spread: only families"),
        ({"dt": [0.01, 0.02]}, "dt: expected"),
        ({"sensor_noise": -0.1}, "sensor_noise: expected standard deviations ≥ 0"),
        ({"sensor_noise": [0.1, float("nan")]}, "sensor_noise: expected standard deviations ≥ 0"),
        ({"sensor_noise": [[0.1, 0.0], [0.0, 0.1]]}, "sensor_noise: expected standard deviations, one for all states"),
        ({"observe": "history:1000000000"}, "observe: expected .*'history:8' .at most 10000"),
        ({"horizont": 5}, "horizont: Settings has no such setting; did you mean horizon"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_in_words(settings, message):
    settings = {"plant": "pendulum"} | settings
    with pytest.raises(ValueError, match=message):  # without the tests' own check of types
        inspect.unwrap(environments.make)(settings.pop("plant"), **settings)


def test_only_a_plant_of_the_family_and_as_many_as_there_are_take_an_environments_place(pendulum):
    batch, other = systems.sample("pendulum", key=KEY, num=3, spread=0.1), systems.make("cart_pole")
    words = "plant: expected one of the environment's family, pendulum"
    refused(words, pendulum.reset, KEY, other)
    refused(words, environments.batch_reset, pendulum, jax.random.split(KEY, 3), other)
    refused(r"plant: expected one plant, but found a batch of shape \(3,\)", pendulum.reset, KEY, batch)


def test_plants_of_ones_own_are_environments_too(tmp_path):
    class Tank(systems.Plant):
        """A tank.

        Source: made up for this test
        """

        area: jax.Array = systems.param(1.0, "m²", "area", 0.1, 10.0)
        states = systems.signals("level ± 1 m")
        inputs = systems.signals("flow ± 1 m³/s")
        dt = 0.1

        def dynamics(self, x, u):
            return (u - x) / self.area

    np.savez(tmp_path / "plant.npz", A=[[-1.0]], B=[[1.0]])
    plain = systems.from_dynamics(lambda x, u: -x + u, x_eq=[0.0], u_eq=[0.0], dt=0.1)
    batch = systems.from_matrices([[[-1.0]], [[-2.0]]], [[[1.0]], [[1.0]]], dt=0.1)
    for plant in (Tank, plain, str(tmp_path / "plant.npz"), batch):
        env = environments.make(plant, linear=True, horizon=8)
        played = environments.play(env, environments.optimal(env), key=KEY, num=2)
        assert (played.ratio < 1.2).all()


def test_equal_settings_are_equal_environments_and_share_a_program(pendulum, caplog):
    again = environments.make("pendulum", linear=True, horizon=20, limits=None)
    other = environments.make("pendulum", linear=True, horizon=21, limits=None)
    assert again == pendulum != other
    assert hash(again) == hash(pendulum)
    one_step(pendulum, jnp.zeros(1, jnp.float32))
    with jax.log_compiles():
        one_step(again, jnp.zeros(1, jnp.float32))
        assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
        one_step(other, jnp.zeros(1, jnp.float32))
        assert [record for record in caplog.records if "Compiling" in record.getMessage()]


def test_the_same_key_is_the_same_episode_and_another_is_another(pendulum):
    a, b, c = (pendulum.reset(jax.random.key(i))[0] for i in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()
    with pytest.raises((ValueError, TypeError)):
        pendulum.reset(3)
    refused("keys: expected one random key for each", environments.batch_reset, pendulum, KEY)


# Records and files -----------------------------------------------------------------------------------------------


def test_records_hold_what_was_asked_for_and_no_more(cart):
    agent = environments.optimal(cart)
    kept = ("full", "every:7", "ring:5", "summary")
    logs = {keep: environments.play(cart, agent, key=KEY, num=2, keep=keep).log for keep in kept}
    full = logs["full"]
    assert full["x"].shape == (2, 60, 4)
    np.testing.assert_array_equal(logs["every:7"]["x"], full["x"][:, ::7])
    order = (np.arange(55, 60) % 5).argsort()
    np.testing.assert_array_equal(logs["ring:5"]["x"], np.asarray(full["x"])[:, 55:][:, order])
    np.testing.assert_allclose(logs["summary"]["sum"], full["x"].sum(1), rtol=1e-4)
    np.testing.assert_array_equal(logs["summary"]["peak"], np.abs(full["x"]).max(1))
    np.testing.assert_allclose(logs["summary"]["cost"], full["cost"].sum(1), rtol=1e-5)
    refused("keep: expected", environments.Recorder, cart, "every:")
    grid = environments.make("cart_pole", action="levels:3")
    refused("a policy sees the state and chooses any input", environments.play, grid, np.zeros((1, 4)), key=KEY)


def test_a_state_on_disk_is_small_and_goes_on_bit_for_bit(tmp_path):
    plants = systems.sample("mass_train", key=KEY, num=128)
    env = environments.make("mass_train", linear=True, horizon=9, delay=1)
    keys = jax.random.split(KEY, 128)
    _, states = environments.batch_reset(env, keys, plants)
    actions = jnp.ones((128, env.m), jnp.float32)
    states = environments.batch_step(env, keys, states, actions)[1]
    file = environments.save(states, tmp_path / "state", key=KEY)
    whole = sum(np.asarray(a).nbytes for a in jax.tree.leaves(states))
    assert file.stat().st_size <= 0.1 * whole
    again, key = environments.load(file, env)
    assert key == KEY
    after, after_again = (environments.batch_step(env, keys, s, actions) for s in (states, again))
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(after_again)):
        np.testing.assert_array_equal(a, b)


def test_torn_and_foreign_state_files_are_refused(tmp_path, pendulum):
    _, state = pendulum.reset(KEY)
    file = environments.save(state, tmp_path / "state")
    data = file.read_bytes()
    np.savez(tmp_path / "other.npz", a=1)
    for wrong in (data[:-30], b"", b"hello", (tmp_path / "other.npz").read_bytes()):
        file.write_bytes(wrong)
        refused(r"that environments\.save wrote", environments.load, file, pendulum)
    refused("key: expected a random key or keys", environments.save, state, tmp_path / "state.npz", key=np.zeros(3))
    lost = dataclasses.replace(state, x=state.x * jnp.nan)
    refused(r"state: expected finite numbers.*; reset these", environments.save, lost, tmp_path / "lost")
    assert not (tmp_path / "lost").exists()


@pytest.mark.parametrize(
    "other",
    [{"plant": "acrobot"}, {"dt": 0.01}, {"horizon": 61}, {"spread": 0.2, "variants": 2},
     {"linear": False, "task": "swing_up"}, {"start": 2.0}], ids=str,
)  # fmt: skip
def test_the_state_of_another_environment_is_refused(tmp_path, cart, other):
    """Of as many states and inputs, and the same numbers: only what they mean is another."""
    _, state = cart.reset(KEY)
    file = environments.save(state, tmp_path / "state")
    settings = {"plant": "cart_pole", "linear": True, "horizon": 60} | other
    env = environments.make(settings.pop("plant"), **settings)
    refused("the state is of another environment than Environment", environments.load, file, env)
    words, states = "state: expected one of this environment", jax.tree.map(lambda a: a[None], state)
    refused(words, env.step, KEY, state, jnp.zeros(1))
    refused(words, environments.batch_step, env, KEY[None], states, jnp.zeros((1, 1)))


def test_a_state_goes_on_in_an_environment_that_rewards_and_refuses_otherwise(tmp_path, cart):
    _, state = cart.reset(KEY)
    file = environments.save(state, tmp_path / "state")
    same = environments.make("cart_pole", linear=True, horizon=60, reward="excess", on_error="clip", seed=0)
    assert same != cart
    again, _ = environments.load(file, same)
    np.testing.assert_array_equal(same.step(KEY, again, jnp.zeros(1))[1].x, cart.step(KEY, state, jnp.zeros(1))[1].x)


def test_a_state_that_was_changed_on_disk_is_refused_in_words(tmp_path, cart):
    file = environments.save(cart.reset(KEY, systems.make("cart_pole"))[1], tmp_path / "state", key=KEY)
    with safe_open(file, "np") as opened:
        kept, told = {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118
    for change, more in (
        ({"time": np.int32(7)}, {}),
        ({"plant0": np.float64(2.0)}, {}),
        ({"x": None}, {}),
        ({}, {"card": json.dumps({"owner": "cart"})}),
        ({}, {"card": "{}", "sha256": ""}),
        ({}, {"card": f"{told['card'][:-1]}, {told['card'][1:]}", "sha256": ""}),  # each entry twice
    ):
        arrays = {k: np.asarray(a) for k, a in (kept | change).items() if a is not None}
        safetensors.numpy.save_file(arrays, file, told | more)
        refused("torn or of another kind", environments.load, file, cart)


# Gymnasium -------------------------------------------------------------------------------------------------------


# the adapter is the same for all; LQRLAB_FAMILIES=all asks for all of them
SAMPLE = ("cart_pole", "quadrotor", "omnidirectional_robot", "cable_robot")
FAMILIES = ids.FAMILIES if os.environ.get("LQRLAB_FAMILIES") == "all" else SAMPLE


@pytest.mark.parametrize("family", FAMILIES)
def test_gymnasium_finds_nothing_wrong(family):
    """Its checker warns of spaces without bounds, and of none between -1 and 1; each way to render takes it 2 s."""
    env = gymnasium.make(ids.gymnasium_id(family), horizon=20).unwrapped
    refused(r"call reset\(\) first", env.step, np.zeros(env.core.m))
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore", UserWarning)
        check_env(env, skip_render_check=family != "cart_pole")


def test_gymnasium_and_gymnax_have_the_task_that_learners_expect():
    """Random returns of ordinary size; the optimum, which goes 50 scales far, is let be: −x0ᵀPx0 / 10 tr(P scale²)."""
    env = gymnasium.make_vec("lqrlab/Acrobot-v0", num_envs=64, linear=True)
    core, at, least = env.unwrapped.core, np.asarray(env.reset(seed=0)[0]), env.reset(seed=0)[1]["optimal_return"]
    P, scale = (np.asarray(a[0], float) for a in (core.pool.P, core.pool.scale_x))
    start, mean = at * scale, P.diagonal() @ scale**2
    np.testing.assert_allclose(least, -np.einsum("si,ij,sj->s", start, P, start) / mean / 10, rtol=1e-4)
    rewards, K = {}, np.asarray(environments.optimal(core).K)
    for name, act in (("optimum", lambda x: -x @ K.T), ("random", lambda _: env.action_space.sample())):
        (obs, _), over, total = env.reset(seed=0), np.zeros(64, bool), np.zeros(64)
        for _ in range(200):
            obs, reward, terminated, truncated, info = env.step(np.asarray(act(obs)))
            total, over = total + np.where(over, 0, reward), over | terminated | truncated
            assert name == "random" or (not terminated.any() and np.all(np.abs(info["ratio"] - 1) < 1e-2))
        rewards[name] = total
    assert (least - 1e-5 < rewards["optimum"]).all() and (rewards["optimum"] < 0.3 * least).all()  # noqa: PT018
    assert (rewards["random"] < least).all() and (rewards["random"] > -1000).all()  # noqa: PT018


def test_actions_of_gymnasium_are_within_one_and_episodes_end():
    """The input that an action of 1 is: the end of the limits, of each input."""
    for make, many in ((gymnasium.make, ()), (functools.partial(gymnasium.make_vec, num_envs=2), (2,))):
        env = make("lqrlab/Quadrotor-v0", terminate="never")
        core, box = env.unwrapped.core, env.action_space
        assert (box.low.min(), box.low.max(), box.high.min(), box.high.max()) == (-1, -1, 1, 1)
        np.testing.assert_allclose(core.unit_u, core.pool.high[0], rtol=1e-6)
        env.reset(seed=0)
        for t in range(200):
            *_, truncated, _ = env.step(np.zeros((*many, core.m), np.float32))
            assert np.all(truncated) == (t == 199)
        lift = make("lqrlab/MagneticLevitation-v0", limits=(0.0, 21.0)).unwrapped.core
        low, high = (float(lift.pool.low[0, 0]), float(lift.pool.high[0, 0]))
        np.testing.assert_allclose([lift.action_low[0], lift.action_high[0]], np.array([low, high]) / max(-low, high))
    for make, name in ((gymnasium.make, "lqrlab/Pendulum-v0"), (environments.make, "pendulum")):
        with pytest.warns(UserWarning, match="limits: actions without bounds"):
            assert np.max(make(name, limits=None).action_space.high) == np.inf
    half = np.asarray(environments.BoxSpace((-np.inf, 5.0, -np.inf), (-3.0, np.inf, np.inf)).sample(KEY))
    assert np.all((half >= np.array([-5.0, 5.0, -1.0])) & (half <= np.array([-3.0, 7.0, 1.0])))


def test_every_family_has_an_id():
    assert set(ids.FAMILIES) == set(BUILT_IN)
    assert all(ids.gymnasium_id(name) in gymnasium.registry for name in ids.FAMILIES)


def test_importing_lqrlab_after_gymnasium_names_the_ids_without_jax_and_the_adapter_without_scipys_modules():
    code = (
        "import sys, gymnasium, lqrlab\n"
        "print('lqrlab/CartPole-v0' in gymnasium.registry, 'jax' in sys.modules)\n"
        "import lqrlab.extensions.environments.gymnasium_adapter\n"
        "print({f'scipy.{name}' for name in ('signal', 'linalg', 'optimize', 'stats')} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["True", "False", "set()"], done.stderr


@pytest.mark.parametrize("film", [False, True])
def test_pictures_and_films_show_the_plant_moving(film, tmp_path):
    env = gymnasium.make("lqrlab/CartPole-v0", render_mode="rgb_array", horizon=5)
    if film:
        pytest.importorskip("moviepy")
        env = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "film"), disable_logger=True)
    with env:
        env.reset(seed=0)
        first = env.unwrapped.render()
        for _ in range(5):
            env.step(env.action_space.high)
        second = env.unwrapped.render()
    assert not film or next((tmp_path / "film").glob("*.mp4")).stat().st_size > 1000
    assert first.shape == (360, 480, 3)
    assert first.dtype == np.uint8
    assert 0.01 < (first != second).any(-1).mean() < 0.5
    drawn = functools.partial(gymnasium_adapter._frame_of, systems.make("cart_pole"), bounds=(-2.0, 2.0, -1.0, 1.0))
    np.testing.assert_array_equal(drawn(np.full(4, np.nan), np.full(1, np.nan)), drawn(np.zeros(4), np.zeros(1)))


def vectors(mode, num=3, **settings):
    env = gymnasium.make_vec(
        "lqrlab/Pendulum-v0", num_envs=num, autoreset_mode=mode, horizon=4, linear=True, units="physical", **settings
    )
    return env, env.reset(seed=5)[0]


def test_vectors_reset_when_told_where_they_do_not_by_themselves():
    env, _ = vectors(AutoresetMode.DISABLED)
    action = np.zeros((3, 1), np.float32)
    for _ in range(4):
        last = env.step(action)[0]
    refused("reset_mask", env.step, action)
    for mask in (np.ones(2, bool), np.ones(3), np.zeros(3, bool)):
        refused("reset_mask: expected 3 truth values, some True", env.reset, options={"reset_mask": mask})
    obs, _ = env.reset(options={"reset_mask": np.array([True, False, True])})
    assert (obs != last).all(1).tolist() == [True, False, True]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_information_of_vectors_is_of_the_episode_that_is_shown(mode):
    """Against the plant's recursion in NumPy, SciPy's P and a sum of the rewards."""
    env, obs = vectors(mode, dtype="float64", limits=(-1e9, 1e9))
    A, B, Q, R, N = (np.asarray(a[0]) for a in env.unwrapped.core.pool.sampled)
    P = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
    least = lambda x: np.einsum("si,ij,sj->s", x, P, x)  # noqa: E731
    optimum, paid, over = least(obs), np.zeros(3), np.zeros(3, bool)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    assert env.metadata["autoreset_mode"] is mode
    for t in range(11):
        u, before = np.full((3, 1), 0.1 * t - 0.5), obs
        obs, reward, _, truncated, info = env.step(u)
        assert truncated.all() == ((t % (5 if mode is AutoresetMode.NEXT_STEP else 4)) == 3)
        begins = over if mode is AutoresetMode.NEXT_STEP else truncated
        moved, costs = before @ A.T + u @ B.T, np.where(over & begins, 0, -reward)
        if mode is AutoresetMode.SAME_STEP and truncated.all():
            final = info["final_info"]
            close(info["final_obs"], moved, atol=1e-9)
            close(final["optimum"], optimum)
            close(final["cost"], costs)
            close(final["ratio"], (paid + costs + least(moved)) / optimum)
        assert ("final_obs" in info) == (mode is AutoresetMode.SAME_STEP and truncated.all())
        assert begins.all() == (np.abs(obs - moved).max() > 1e-3)
        paid, optimum = np.where(begins, 0, paid + costs), np.where(begins, least(obs), optimum)
        close(info["cost"], np.where(begins, 0, costs), atol=1e-12)
        close(info["optimum"], optimum)
        close(info["ratio"], (paid + least(obs)) / optimum)
        over = truncated


def test_vectors_are_reproducible_and_refuse_what_is_wrong_without_a_trace_of_it():
    a, b = (vectors(AutoresetMode.NEXT_STEP, noise=0.1) for _ in range(2))
    np.testing.assert_array_equal(a[1], b[1])
    assert len(np.unique(a[1][:, 0])) == 3
    for wrong, message in ((np.zeros((2, 1)), "expected shape"), (np.full((3, 1), np.nan), "expected finite")):
        refused(f"action: {message}", a[0].step, wrong)
    action = np.zeros((3, 1), np.float32)
    np.testing.assert_array_equal(a[0].step(action)[0], b[0].step(action)[0])
    refused("seed: expected a whole number", a[0].reset, seed=[0, 1, 1.5])
    refused("num_envs: expected a whole number ≥ 1", gymnasium.make_vec, "lqrlab/Pendulum-v0", num_envs=0)
    refused("plant: expected", gymnasium.make, "lqrlab/Plant-v0")


# Agents as policies ----------------------------------------------------------------------------------------------


class Model:
    """A library's model on the host: as Stable-Baselines3 and SBX, it takes observations of its space, one or a batch.

    It computes in JAX, in the precision that it was trained in.
    """

    def __init__(self, env, memory=None):
        self.K, self.memory, self.space = np.asarray(environments.optimal(env).K), memory, env.observation_space.shape
        self.venv = SimpleNamespace(envs=[SimpleNamespace(unwrapped=SimpleNamespace(core=env))])

    def get_env(self):
        return self.venv

    def predict(self, obs, deterministic):
        assert deterministic
        assert jnp.zeros(1).dtype == np.float32
        if obs.shape != self.space and obs.shape[1:] != self.space:
            raise ValueError(f"Unexpected observation shape {obs.shape}")
        return -obs @ self.K.T, self.memory


@pytest.fixture
def model():
    return Model(environments.make("pendulum", linear=True, limits=None))


class VecMonitor:
    def __init__(self, venv):
        self.venv = venv

    def __getattr__(self, name):  # what it has not itself, as that of Stable-Baselines3
        return getattr(self.venv, name)


class VecNormalize(VecMonitor):
    """What Stable-Baselines3's wrapper of that name has."""

    def __init__(self, venv, norm_obs=True):
        super().__init__(venv)
        self.norm_obs = norm_obs

    def normalize_obs(self, obs):
        return obs / np.float32([2.0, 5.0])


class VecFrameStack(VecMonitor):
    pass


class Doubled(gymnasium.ObservationWrapper):
    def observation(self, obs):
        return 2 * obs


@pytest.mark.parametrize("norm_obs", [True, False])
def test_a_model_behind_normalised_observations_sees_them_normalised(norm_obs, model):
    if norm_obs:
        model.K = model.K * np.float32([2.0, 5.0])
    model.venv = VecMonitor(VecNormalize(model.venv, norm_obs))
    score = evaluation.evaluate(model, systems.make("pendulum"), key=KEY, num_initial=2)
    np.testing.assert_allclose(score.ratio, 1.0, rtol=1e-5)


def test_a_model_behind_other_observations_is_refused_in_words(model):
    doubled = SimpleNamespace(envs=[Doubled(gymnasium.make("lqrlab/Pendulum-v0"))])
    for venv, words in (
        (VecFrameStack(VecNormalize(model.venv)), r"VecFrameStack; environments\.AgentPolicy\.of"),
        (doubled, "Doubled"),
    ):
        model.venv = venv
        refused(f"found one behind {words}", evaluation.evaluate, model, systems.make("pendulum"), key=KEY)


def test_an_agent_takes_a_missing_measurement_for_the_one_before_and_sends_its_last_input():
    """One that looks at the newest observation, and one that looks at the one before."""
    env = environments.make("pendulum", linear=True, limits=None, observe="history:3", dtype="float64")
    K, states = np.asarray(env.pool.K[0]), np.random.default_rng(0).normal(size=(8, 2))
    for late in (0, 1):
        policy = environments.AgentPolicy.of(env, lambda obs, k=3 * late: -jnp.asarray(K) @ obs[k : k + 2])
        ask, carry = jax.jit(lambda carry, x, policy=policy: policy(carry, x)), policy.init(())
        for t, x in enumerate(states):
            carry, u = ask(carry, np.where(t == 4, np.nan, x))
            if t > late and (t != 4 or not late):
                seen = {0: 3 if t == 4 else t, 1: 3 if t == 5 else t - 1}[late]
                np.testing.assert_allclose(u, -K @ states[seen], rtol=1e-9)


def test_an_agent_of_a_library_is_scored_on_one_plant_and_on_three_and_compiled_once(model):
    """It computes as where it was trained: settings of JAX that scores need are not the model's."""
    plant = systems.make("pendulum")
    three = systems.sample("pendulum", key=KEY, num=3, spread=0.1)
    for plants, shape in ((plant, (4,)), (three, (3, 4))):
        score = evaluation.evaluate(model, plants, key=KEY, num_initial=4)
        gain = evaluation.evaluate(model.K.astype(float), plants, key=KEY, num_initial=4)
        assert score.ratio.shape == shape
        np.testing.assert_allclose(score.ratio, gain.ratio, rtol=1e-4)
        if plants is plant:
            before = loop._run.kept().misses
            again = evaluation.evaluate(model, plant, key=KEY, num_initial=4)
            np.testing.assert_allclose(again.ratio, 1.0, rtol=1e-5)
            assert loop._run.kept().misses == before
    assert np.ptp(score.ratio) > 1e-4  # the gain of another plant is not the optimum


def test_play_takes_agents_and_models_and_refuses_others_in_words():
    """Controllers of every other kind are played in ``test_problem``."""
    env = environments.make("pendulum", linear=True, horizon=15, limits=None, dtype="float64")
    K = env.pool.K[0]
    for agent in (lambda obs: -K @ obs, Model(env)):
        np.testing.assert_allclose(environments.play(env, agent, key=KEY, num=3).ratio, 1.0, rtol=1e-9)
    with pytest.raises(TypeError, match="wrong"):
        environments.play(env, lambda obs: obs["wrong"], key=KEY)
    refused(r"action: expected inputs of shape \(1,\)", environments.play, env, lambda obs: obs, key=KEY)
    refused("agent: expected a function", environments.AgentPolicy.of, env, 3)
    with pytest.raises(Exception, match="predict: expected an agent without memory"):
        agents.HostAgent(Model(env, memory=()), env)(jnp.zeros(2))
