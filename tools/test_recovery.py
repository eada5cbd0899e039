"""Policies that recover what the LQR loses, and their trainings: formula, gradients, losses, what is kept; the rows."""

import dataclasses
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy_oracle import gain, van_loan

from benchmarks import recovery as measured_recovery
from benchmarks import recovery_training as recovery
from benchmarks.recovery_policy import RecoveryPolicy, Regulator, perceptron
from benchmarks.recovery_training import RecoveryConfig, train_recovery
from lqrlab import control, simulation, systems
from lqrlab.simulation import Problem

KEY = jax.random.key(4)
BRIEF = RecoveryConfig(num_steps=2, report_every=2, loops=8, window=4, width=8, longest=20)


def problem_of(plant):
    """The plant within these limits."""
    return Problem.of(plant, limits=limits_of(plant))


def limits_of(plant, strength=1.0):
    u_eq, scale = plant.equilibrium()[1], plant.scales[1]
    return u_eq - strength * scale, u_eq + strength * scale


def disturbed(policy, size, key=KEY):
    """The policy with random numbers in all layers."""
    leaves, tree = jax.tree.flatten(policy.layers)
    keys = jax.random.split(key, len(leaves))
    moved = [a + size * jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves)]
    return dataclasses.replace(policy, layers=jax.tree.unflatten(tree, moved))


def test_plants_and_limits_that_a_network_has_nothing_to_add_to_are_refused():
    pendulum, two = systems.make("pendulum"), systems.sample("pendulum", key=KEY, num=2)
    for words, plants, limits in (
        ("finite", pendulum, (-np.inf, np.inf)),
        ("could not even hold the operating point", pendulum, (1.0, 2.0)),
        ("expected one plant", two, (-3.0, 3.0)),
    ):
        refused(words, lambda p=plants, u=limits: Regulator.of(Problem.of(p, limits=u)))


@pytest.mark.parametrize("family", ["cart_pole", "quadrotor"])
def test_it_starts_as_the_lqr_exactly(family):
    plant = systems.make(family)
    limits = limits_of(plant)
    gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    problem, x0 = Problem.of(plant, limits=limits), plant.initial_state(key=KEY, num=20)
    policy = RecoveryPolicy.start(Regulator.of(problem, "float64"), 8, key=KEY)
    u, expected = policy(None, x0)[1], problem.saturate(simulation.LinearPolicy(gain)(None, x0)[1])
    np.testing.assert_allclose(u, expected, rtol=1e-12)


def test_a_policy_is_its_formula_by_numpy():
    plant = systems.make("cart_pole", pole_length=0.4)
    low, high = -8.0, 12.0
    sx, su = (np.asarray(a) for a in plant.scales)
    K, P = gain(*van_loan(*(np.asarray(a) for a in (*plant.matrices(), *plant.weights())), float(plant.dt)))
    K, P = K * sx / su[:, None], P * np.outer(sx, sx)
    level = 64.0 / su[0] ** 2 / (K @ np.linalg.solve(P, K.T))[0, 0]
    start = RecoveryPolicy.start(Regulator.of(Problem.of(plant, limits=(low, high)), "float64"), 8, key=KEY)
    policy = disturbed(start, 0.3)
    (W1, b1), (W2, b2), (W3, b3) = (map(np.asarray, layer) for layer in policy.layers)
    angles = [i for i, state in enumerate(plant.states) if state.name == "pole_angle" or state.unit == "rad"]
    assert angles == [1]
    size, V = np.linalg.eigh(P)
    seen = []
    for x in 2 * np.asarray(plant.initial_state(key=KEY, num=10)):
        z = x / sx
        cost = np.arcsinh(np.sqrt(size) * (V.T @ z))
        lqr = np.clip(-K @ z, low / su, high / su)
        signs = np.asarray(policy.regulator.root) @ z
        np.testing.assert_allclose(np.abs(np.arcsinh(signs)), np.abs(cost), rtol=1e-7)
        features = [np.arcsinh(z), np.arcsinh(signs), np.sin(x[angles]), np.cos(x[angles]) - 1, lqr]
        v = np.tanh(np.tanh(np.concatenate(features) @ W1 + b1) @ W2 + b2) @ W3 + b3
        beyond = z @ P @ z / (z @ P @ z + level)
        u = su * np.clip(lqr + (high - low) / su * beyond * v, low / su, high / su)
        np.testing.assert_allclose(policy(None, jnp.asarray(x))[1], u, rtol=1e-7)
        seen.append(u[0])
    assert np.ptp(seen) > 1
    # a network starts with activations of one size, whatever its width, and answers zero
    layers = perceptron(start.regulator, 200, 3, key=KEY)
    assert [w.shape for w, _ in layers] == [(2 * 4 + 2 + 1, 200), (200, 200), (200, 3)]
    for (w, b), inputs in zip(layers, (11, 200, None)):
        assert not np.any(b)
        assert float(jnp.std(w)) == pytest.approx(inputs**-0.5 if inputs else 0, rel=0.05)


def test_near_the_equilibrium_it_is_the_lqr_whatever_it_has_learned():
    plant = systems.make("cart_pole")
    regulator = Regulator.of(Problem.of(plant, limits=limits_of(plant)), "float64")
    policy = disturbed(RecoveryPolicy.start(regulator, 8, key=KEY), 0.5)
    gain = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    slope = jax.jacfwd(lambda x: policy(None, x)[1])(jnp.zeros(plant.n))
    np.testing.assert_allclose(slope, -gain, rtol=1e-9)


def test_no_input_exceeds_its_limits():
    plant = systems.make("quadrotor")
    limits = limits_of(plant, jnp.array([0.2, 0.4, 0.6, 0.8]))
    policy = disturbed(RecoveryPolicy.start(Regulator.of(Problem.of(plant, limits=limits)), 8, key=KEY), 3.0)
    u = policy(None, 8 * plant.initial_state(key=KEY, num=500).astype(jnp.float32))[1]
    u_eq = plant.equilibrium()[1]
    low, high = (np.asarray(a - u_eq, np.float32)[None] for a in limits)
    u = np.asarray(u)
    assert (u >= low - 1e-6).all()
    assert (u <= high + 1e-6).all()
    assert ((u < low + 1e-6) | (u > high - 1e-6)).mean() > 0.5  # else nothing has been tried


def test_the_gradient_of_a_window_is_that_of_finite_differences():
    plant = systems.make("pendulum")
    config = dataclasses.replace(BRIEF, steepest=1e9)
    task = jax.tree.map(
        lambda a: a.astype(float), recovery.task_of(Problem.of(plant, limits=limits_of(plant, 20.0)), config)
    )  # limits that no input reaches: there is a kink
    start = RecoveryPolicy.start(task.regulator, 4, key=KEY)
    actor = disturbed(start, 0.01).layers
    critic = perceptron(task.regulator, 4, 1, key=KEY)
    x0 = 0.3 * plant.initial_state(key=KEY, num=3)

    way = disturbed(start, 1.0, jax.random.key(9)).layers

    @jax.jit
    @jax.value_and_grad
    def loss(shift):
        moved = jax.tree.map(lambda a, d: a + shift * d, actor, way)
        return recovery.window_loss(task, moved, critic, x0)[0]

    (_, slope), h = loss(0.0), 1e-5
    assert abs(slope) > 1e-4
    np.testing.assert_allclose((loss(h)[0] - loss(-h)[0]) / (2 * h), slope, rtol=1e-6)


def test_the_loss_of_a_window_is_that_of_loops_by_numpy():
    """Of demands beyond the limits it takes a hundredth of their mean square, in units of the range of the input."""
    plant, lqr = unstable()
    config = dataclasses.replace(BRIEF, steepest=1e9)
    task = jax.tree.map(lambda a: a.astype(float), recovery.task_of(Problem.of(plant, limits=(-0.5, 0.5)), config))
    start = RecoveryPolicy.start(task.regulator, 4, key=KEY).layers
    actor = [*start[:-1], (start[-1][0], start[-1][1] + 2.0)]  # asks for twice the range where w is 1
    critic = perceptron(task.regulator, 4, 1, key=KEY)
    one = np.ones((1, 1))
    a, b, q, r, cross = (w.item() for w in van_loan(one, 2 * one, one, one, 0.05))
    k, p, far = lqr.K.item(), control.lqrd(one, 2 * one, one, one, 0.05).P.item(), float(task.outside_cost)
    level, x0 = 0.25 * p / k**2, np.array([0.2, 0.5, -0.8, 60.0, 99.5])  # the last is lost at once
    expected = 0.0
    for x in x0:
        costs, excess, alive = [], 0.0, True
        for _ in range(config.window):
            w = p * x * x / (p * x * x + level)
            asked = np.clip(-k * x, -0.5, 0.5) + 1.0 * w * 2.0
            u = np.clip(asked, -0.5, 0.5)
            if alive:
                costs.append(q * x * x + r * u * u + 2 * cross * x * u)
            excess += (asked - u) ** 2
            alive = alive and abs(a * x + b * u) < 100
            x = a * x + b * u if alive else x
        total = p * x * x / (1 + p * x * x / far) if alive else far
        for cost in reversed(costs):
            total = cost + config.discount * total
        expected += np.log(total) + 0.01 * excess / config.window
    loss, _ = recovery.window_loss(task, actor, critic, jnp.asarray(x0)[:, None])
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_a_steep_gradient_of_a_loop_is_cut_and_no_other():
    slopes = jnp.array([[3.0, 4.0], [0.3, 0.4]])
    cut = jax.grad(lambda x: jnp.sum(recovery.clipped(x, 1.0) * slopes))(jnp.ones((2, 2)))
    np.testing.assert_allclose(cut, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-5)


def test_both_networks_descend_by_adam_on_gradients_of_length_one_at_a_rate_that_warms_up_and_falls():
    config = dataclasses.replace(BRIEF, num_steps=120, learning_rate=0.02, critic_rate=0.5)
    slopes = np.random.default_rng(0).normal(0, 1.5, (130, 3))
    for optimizer, peak in zip(recovery._optimizers(config), (0.02, 0.5)):

        def step(state, slope, optimizer=optimizer):
            change, state = optimizer.update(slope, state)
            return state, change

        with jax.numpy_dtype_promotion("standard"):
            changes = jax.lax.scan(step, optimizer.init(jnp.zeros(3)), jnp.asarray(slopes))[1]
        mean = square = np.zeros(3)
        for t, slope in enumerate(slopes):
            cut = slope / max(np.linalg.norm(slope), 1.0)
            mean, square = 0.9 * mean + 0.1 * cut, 0.999 * square + 0.001 * cut**2
            ahead = min((t - 50) / (120 - 50), 1)
            rate = peak * (t / 50 if t < 50 else 0.05 + 0.95 * (1 + np.cos(np.pi * ahead)) / 2)
            step_by = mean / (1 - 0.9 ** (t + 1)) / (np.sqrt(square / (1 - 0.999 ** (t + 1))) + 1e-8)
            np.testing.assert_allclose(changes[t], -rate * step_by, rtol=1e-5, atol=1e-12)


def test_the_same_seed_gives_the_same_parameters_and_another_seed_others():
    plant = systems.make("pendulum")
    first, again, other = (
        train_recovery(problem_of(plant), dataclasses.replace(BRIEF, seed=seed)) for seed in (1, 1, 2)
    )
    assert [row["step"] for row in first.metrics] == [0, 2]
    assert np.isfinite([row["loss"] for row in first.metrics[1:]]).all()
    np.testing.assert_equal(first.metrics, again.metrics)
    for a, b in zip(jax.tree.leaves(first.policy), jax.tree.leaves(again.policy)):
        np.testing.assert_array_equal(a, b)
    assert first.metrics[1]["loss"] != other.metrics[1]["loss"]


def test_the_policy_kept_recovers_no_less_than_the_lqr_at_any_size_and_costs_least(monkeypatch):
    found = iter([(0.5, 0.5, 0.5, 3.0), (0.6, 0.6, 0.4, 1.0), (0.6, 0.5, 0.5, 2.0), (0.9, 0.9, 0.9, 2.5)])
    seen = []

    def judged(task, actor, x0):
        seen.append((actor, x0))
        *shares, cost = next(found)
        return jnp.array(shares), jnp.array(cost)

    monkeypatch.setattr(recovery, "_recovered", judged)
    plant, config = systems.make("pendulum"), dataclasses.replace(BRIEF, num_steps=6)
    kept = train_recovery(problem_of(plant), config).policy.layers
    assert [kept is actor for actor, _ in seen] == [False, False, True, False]
    assert all(x0 is seen[0][1] for _, x0 in seen)  # one set of starts judges all


def test_no_start_of_a_training_or_of_its_validation_is_one_of_the_test(monkeypatch):
    drawn = []
    starts, recovered = recovery.RecoveryTask.starts, recovery._recovered

    def seen(x):
        jax.debug.callback(lambda a: drawn.append(np.array(a)), x)
        return x

    monkeypatch.setattr(recovery.RecoveryTask, "starts", lambda task, key, num: seen(starts(task, key, num)))
    monkeypatch.setattr(recovery, "_recovered", lambda task, actor, x0: recovered(task, actor, seen(x0)))
    plant = systems.make("pendulum")
    config = dataclasses.replace(BRIEF, loops=9)  # as in no other test: compiled here, with seen
    train_recovery(problem_of(plant), config)
    jax.effects_barrier()
    assert sorted(len(x) for x in drawn) == [9, 9, 9, 128, 128]

    def directions(x):
        scaled = np.concatenate(x) / np.asarray(plant.scales[0])
        return scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)

    key = jax.random.key(0)  # of the benchmark and of the notebook
    single = np.asarray(jax.random.normal(key, (512, plant.n), jnp.float32))
    tested = [plant.initial_state(key=key, num=512), single * np.asarray(plant.scales[0])]
    distance = abs(directions(drawn)[:, None] - directions(tested)[None]).max(-1)
    assert distance.min() > 1e-7


def test_the_benchmark_says_share_and_cost_of_the_lqr_beside_those_of_each_training():
    plant, lqr = unstable()
    policies = {"LQR": lqr, "seed 0": simulation.LinearPolicy(0 * lqr.K), "seed 1": lqr}
    rows = list(measured_recovery.measured(Problem.of(plant, limits=(-0.5, 0.5)), policies))
    shares = {row.name.split(": ")[1]: row.value for row in rows}
    assert shares["starts at 1 scales recovered, LQR"] == shares["starts at 1 scales recovered, most"] > 60
    assert shares["starts at 1 scales recovered, least"] == 0
    middle = next(row for row in rows if row.name.endswith("recovered, median of 2 seeds"))
    assert middle.target == rows[0].value > middle.value
    assert not middle.reached
    assert measured_recovery._above(np.array([2.0, np.inf, 3.0]), np.array([1.0, 1.0, 3.0])) == 25
    config = measured_recovery.config_of("acrobot", 5, 300)
    assert (config.seed, config.spread, config.num_steps, config.report_every) == (5, 3.0, 300, 100)


def test_steps_that_no_report_ends_with_are_refused():
    refused("num_steps: .*a multiple of report_every = 200", RecoveryConfig, num_steps=300)


def unstable():
    """ẋ = x + 2u with its LQR; with |u| ≤ 0.5 it can be held where |x| < 1."""
    plant = systems.from_matrices([[1.0]], [[2.0]], Q=[[1.0]], R=[[1.0]], dt=0.05)
    return plant, simulation.LinearPolicy(control.lqrd([[1.0]], [[2.0]], [[1.0]], [[1.0]], 0.05).K)


def test_starts_of_a_plant_whose_limit_is_known_are_recovered_within_it():
    plant, lqr = unstable()
    settings = {"key": KEY, "sizes": (0.5, 2.0), "num": 64, "num_steps": 400}
    found = measured_recovery.recoveries(Problem.of(plant, limits=(-0.5, 0.5)), {"LQR": lqr}, **settings)["LQR"]
    starts = np.array([0.5, 2.0])[:, None] * np.asarray(plant.initial_state(key=KEY, num=64))[:, 0]
    np.testing.assert_array_equal(found.converged, abs(starts) < 1)
    assert 0 < found.converged[1].sum() < found.converged[0].sum()


def test_the_best_known_cost_is_the_optimum_where_that_is_known():
    plant, lqr = unstable()
    starts = jnp.array([[0.1], [-0.2], [3.0]])
    keen = simulation.LinearPolicy(2 * lqr.K)
    best, paid = measured_recovery.best_known_cost(
        Problem.of(plant, limits=(-0.5, 0.5)), {"keen": keen}, starts, key=KEY, horizon=60, num_steps=200
    )
    P = control.lqrd([[1.0]], [[2.0]], [[1.0]], [[1.0]], 0.05).P
    np.testing.assert_allclose(best[:2], P[0, 0] * starts[:2, 0] ** 2, rtol=1e-4)  # no input at its limit
    assert (best[:2] < paid["keen"][:2]).all()
    assert np.isinf(paid["keen"][2])  # no input brings it back


def test_random_guesses_of_the_best_known_cost_have_a_quarter_of_the_limits_for_their_deviation(monkeypatch):
    searched = mock.Mock(return_value=SimpleNamespace(cost=jnp.full((2, 900), jnp.nan)))
    monkeypatch.setattr(measured_recovery.predictive, "ilqr", searched)
    problem = Problem.of(unstable()[0], limits=(-1.0, 3.0))
    measured_recovery.best_known_cost(problem, {}, jnp.zeros((900, 1)), key=KEY, horizon=25)
    rest, random = searched.call_args.kwargs["search"].us[..., 0]
    assert not rest.any()
    np.testing.assert_array_equal(random, np.repeat(random[:, ::10], 10, axis=1)[:, :25])
    shares = [np.mean(random <= at) for at in (-1, 0.5, 2)]
    assert shares == pytest.approx([0.1587, 0.6915, 0.9772], abs=0.03)  # of the normal distribution


def test_loops_of_a_training_begin_at_ages_spread_evenly_over_the_longest():
    plant = systems.make("pendulum")
    task = recovery.task_of(problem_of(plant), BRIEF)
    ages = np.asarray(recovery._started(task, list(jax.random.split(KEY, 3))).age)
    np.testing.assert_array_equal(ages, [0, 2, 5, 7, 10, 12, 15, 17])  # 8 loops, at most 20 samples


def test_shares_recovered_and_the_mean_log_cost_are_those_of_loops_by_numpy(monkeypatch):
    monkeypatch.setattr(recovery, "_JUDGED_STEPS", 400)
    plant, lqr = unstable()
    task = recovery.task_of(Problem.of(plant, limits=(-0.5, 0.5)), BRIEF)
    one = np.ones((1, 1))
    a, b, q, r, cross = (x.item() for x in van_loan(one, 2 * one, one, one, 0.05))
    k, starts, shares, logs = float(lqr.K[0, 0]), np.array([0.1, -0.2, 0.3, -0.6, 0.9, 1.5]), [], []
    for size in (1.0, 2.0, 4.0):
        x, cost = size * starts, 0.0
        back = np.abs(x) < 1  # |2 u| ≤ 1 holds it there
        for _ in range(400):
            u = np.clip(-k * x, -0.5, 0.5)
            cost = cost + q * x * x + r * u * u + 2 * cross * x * u
            x = np.where(back, a * x + b * u, x)
        shares.append(back.mean())
        logs.append(np.log(np.where(back, cost, float(task.outside_cost))))
    assert len(set(shares)) == 3
    actor = RecoveryPolicy.start(task.regulator, BRIEF.width, key=KEY).layers
    found, log_cost = recovery._recovered(task, actor, jnp.asarray(starts[:, None], jnp.float32))
    np.testing.assert_allclose(found, shares, rtol=1e-6)
    assert float(log_cost) == pytest.approx(np.mean(logs), rel=1e-4)
