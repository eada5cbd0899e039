"""Closed-loop costs, what a run learns from, several devices, seeds side by side."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from click.testing import CliRunner
from scipy_oracle import gain, van_loan

from lqrlab import compute, control, dataset, learning, simulation
from lqrlab.dataset import random_linear
from lqrlab.learning import batches, losses
from lqrlab.learning.training_step import Recipe
from lqrlab.workbench.cli import main

KEY = jax.random.key(3)
SMALL = {"kind": "gain", "window": 2, "hidden": 32}
BRIEF = {
    "num_steps": 12, "batch_size": 32, "plants": 16, "horizon": 4, "steps_per_dispatch": 2,
    "report_every": 4, "checkpoint_every": 4,
}  # fmt: skip
CONFIG = {"families": ("mass_spring_damper", "pendulum"), "held_out": (), "variants": 4, "num_steps": 20}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    config = dataset.DataConfig(trajectories=3, **CONFIG)
    return dataset.generate(config, tmp_path_factory.mktemp("data") / "set")


def fit(data, model, config, folder, **options):
    source = dataset.source(data, batch_size=config.batch_size, window=model.window, seed=config.seed)
    return learning.fit(source, model, config, folder, **options)


def wide(a, rows, cols):
    return np.pad(a, [(0, rows - a.shape[0]), (0, cols - a.shape[1])])


def random_problem(seed, n, m):
    """A discrete problem, its optimum by SciPy, and the same padded as a Problem."""
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(n, n)), rng.normal(size=(n, m))
    A *= 1.1 / np.abs(np.linalg.eigvals(A)).max()
    Q, R = np.eye(n), 0.5 * np.eye(m)
    K, P = gain(A, B, Q, R)
    problem = simulation.Problem.from_matrices(*(a[None] for a in (A, B, Q, R)), optimum=False)
    best = {"K": jnp.asarray(K)[None], "P": jnp.asarray(P)[None]}
    return (A, B, Q, R, K, P), dataclasses.replace(problem, **best).scaled()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2), (12, 6)])
def test_excess_of_a_gain_is_that_of_scipys_lyapunov_equation(n, m):
    (A, B, Q, R, K, P), problem = random_problem(n, n, m)
    worse = K + 0.02 * np.random.default_rng(1).normal(size=K.shape)
    X = scipy.linalg.solve_discrete_lyapunov((A - B @ worse).T, Q + worse.T @ R @ worse)
    more, verdict = losses.gain_excess(jnp.asarray(wide(worse, 6, 12))[None], problem)
    assert verdict[0] == simulation.Verdict.CONVERGED
    assert float(more[0]) == pytest.approx(np.trace(X) / np.trace(P) - 1, rel=1e-7)
    assert float(losses.gain_excess(problem.K, problem)[0][0]) == 0.0


def test_a_diverging_loop_has_a_finite_cost_whose_descent_leads_back():
    (A, B, *_), problem = random_problem(4, 4, 2)
    assert np.abs(np.linalg.eigvals(A)).max() > 1
    gain = jnp.zeros((1, 6, 12))
    slope = jax.jit(jax.value_and_grad(lambda g: jnp.log1p(losses.gain_excess(g, problem)[0][0])))
    assert losses.gain_excess(gain, problem)[1][0] == simulation.Verdict.DIVERGED
    for _ in range(60):
        value, way = slope(gain)
        assert np.isfinite(float(value))
        assert np.isfinite(np.asarray(way)).all()
        gain = gain - 0.02 * way / jnp.linalg.norm(way)
    closed = A - B @ np.asarray(gain)[0, :2, :4]
    assert np.abs(np.linalg.eigvals(closed)).max() < 1


def test_excess_of_a_rollout_is_its_cost_over_the_least():
    (A, B, Q, R, K, P), problem = random_problem(5, 3, 2)
    worse = K + 0.05
    x0 = np.array([1.0, -2.0, 0.5])
    x, cost = x0, 0.0
    for _ in range(9):
        u = -worse @ x
        cost += x @ Q @ x + u @ R @ u
        x = A @ x + B @ u
    policy = simulation.LinearPolicy(jnp.asarray(wide(worse, 6, 12))[None])
    start = jnp.pad(jnp.asarray(x0), (0, 9))[None]
    run = simulation.rollout(problem, policy, start, 9)
    assert float(problem.excess(run.xs, run.us)[0]) == pytest.approx((cost + x @ P @ x) / (x0 @ P @ x0) - 1)


def test_steps_with_a_python_if_are_the_compiled_ones():
    def steps(objective):
        step = learning.train_step(objective, optax.sgd(0.1))
        params = {"w": jnp.ones(2)}
        start = learning.TrainState(params, optax.sgd(0.1).init(params), jnp.int32(0))
        run = compute.compile(lambda state, xs: learning.training_step.scan(step, state, xs))
        return run(start, jnp.arange(12.0).reshape(3, 2, 2))

    def plain(params, x):
        return jnp.mean((x @ params["w"]) ** 2), {}

    def branching(params, x):
        value, _ = plain(params, x)
        return (value, {}) if value > 0 else (-value, {})

    with pytest.warns(compute.EagerFallbackWarning, match="if value > 0"):
        found = steps(branching)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, steps(plain))


def test_excess_of_a_data_sets_plant_is_that_of_its_sampled_problem(data):
    """From the continuous plant on disk, by van Loan's exponential and SciPy's solvers alone."""
    problem = data.table().problem
    for family in data.config.families:
        row, linear = int(data.rows(None, family)[0]), data.linear(None, family)
        sx, su = (data.column(name, None, family)[0] for name in ("scale_x", "scale_u"))
        A, B, Q, R = (np.asarray(a[0]) for a in (linear.A, linear.B, linear.Q, linear.R))
        A, B, Q, R = A * sx / sx[:, None], B * su / sx[:, None], Q * sx * sx[:, None], R * su * su[:, None]
        A, B, Q, R, N = van_loan(A, B, Q, R, float(linear.dt[0]))
        _, P = gain(A, B, Q, R, N)
        K = np.asarray(problem.K[row])[: len(su), : len(sx)] + 0.03
        feed, cost = np.vstack([np.eye(len(sx)), -K]), np.block([[Q, N], [N.T, R]])
        X = scipy.linalg.solve_discrete_lyapunov((A - B @ K).T, feed.T @ cost @ feed)
        more, verdict = losses.gain_excess(jnp.asarray(wide(K, 6, 12))[None], problem[row : row + 1])
        assert verdict[0] == simulation.Verdict.CONVERGED
        assert float(more[0]) == pytest.approx(np.trace(X) / np.trace(P) - 1, rel=1e-6)


@pytest.mark.parametrize("full_weights", [False, True])
@pytest.mark.matrix
def test_random_systems_are_of_all_sizes_and_have_a_certified_optimum(full_weights):
    problem = dataset.random_systems(KEY, 400, full_weights=full_weights)
    units = problem.coordinates
    n, m = (np.asarray(a).sum(-1).astype(int) for a in (units.state_mask, units.input_mask))
    assert set(n) == set(range(1, 13))
    assert set(m) == set(range(1, 7))
    A, B, Q, R, N, K = (np.asarray(a) for a in (*problem.sampled, problem.K))
    state, actor = np.asarray(units.state_mask) > 0, np.asarray(units.input_mask) > 0
    for nothing in (A[~state], B[~state], K[~actor], B.swapaxes(1, 2)[~actor]):
        assert not nothing.any()
    assert np.abs(np.linalg.eigvals(A - B @ K)).max() < 1
    modes = np.linalg.eigvals(A)
    assert 0.2 < (np.abs(modes).max(-1) > 1 + 1e-6).mean() < 0.9
    gain, change = (np.linalg.norm(K, axis=(1, 2)), np.linalg.norm(A - np.eye(12) * state[:, None], axis=(1, 2)))
    assert 150 < gain.max() < 1000
    assert 0.01 < (gain > 100).mean() < 0.2
    assert (change > 1).mean() > 0.3
    assert change.max() > 20
    turning = (np.abs(np.angle(modes)) > 0.5) & (np.abs(modes) > 0.98)
    assert 0.03 < turning.any(-1).mean() < 0.5  # fast and lightly damped
    low = np.linalg.eigvalsh(np.block([[Q, N], [N.swapaxes(1, 2), R]])).min(-1)
    assert low.min() > -1e-7 * np.abs(Q).max()
    error = control.dlqr(*problem[:20].sampled).K - K[:20]
    assert np.abs(error).max() < 1e-6 * gain[:20].max()


def drawn_by_hand(uniform, normal):
    """One random system in loops, of its raw numbers in the order in which they are drawn; zero-based as x[0]."""
    at = {"u": 0, "n": 0}

    def take(which, *shape):
        source, first = (uniform, at["u"]) if which == "u" else (normal, at["n"])
        at[which] += int(np.prod(shape))
        return source[first : at[which]].reshape(shape)

    def between(low, high, *shape):
        return low + (high - low) * take("u", *shape)

    def over(low, high, *shape):
        return low * (high / low) ** take("u", *shape)

    def happens(share, *shape):
        return take("u", *shape) < share

    def sparse(low, high, rows):
        present = take("u", 12, 12) < take("u")
        return take("n", 12, 12) * np.broadcast_to(over(low, high, rows, 1), (12, 12)) * present

    n = int(1 + 12 * take("u"))
    single = happens(0.4)
    m = int(1 + take("u") * min(n, 6))
    m = 1 if single else m
    half = n // 2
    kind = int(4 * take("u")) if n > 1 else (take("u"), 0)[1]

    # coupled first-order systems
    decays, decay, grow = happens(0.8, 12), over(1e-3, 1, 12), between(0, 0.15, 12)
    first = sparse(0.005, 0.5, 12)
    for i in range(12):
        first[i, i] = -decay[i] if decays[i] else grow[i]

    # positions, rates, and a lag behind them
    mechanical, speed = np.zeros((12, 12)), over(0.02, 0.5, 12)
    springs = sparse(0.005, 0.5, 1)
    damps, damping, lags = happens(0.7), over(1e-3, 0.3, 12), over(0.01, 1, 12)
    for i in range(12):
        if i < half:
            mechanical[i, i + half] = speed[i]
        elif i < 2 * half:
            for j in (*range(half), *range(2 * half, 12)):
                mechanical[i, j] = springs[i, j]
            mechanical[i, i] = -damping[i] if damps else 0
        else:
            mechanical[i, i] = -lags[i]

    # masses in a row
    stiff, links = over(0.02, 1.4) ** 2, over(0.1, 1, 12)
    held, anchors, pushed, mass = happens(0.4, 12), over(0.01, 1, 12), happens(0.3, 12), over(0.5, 4, 12)
    damping, unit, lags, lagged = over(1e-3, 0.5), over(0.05, 20), over(0.01, 1, 12), take("n", 12, 12)
    spring, masses = np.zeros((12, 12)), np.zeros((12, 12))
    for k in range(12):
        anchor = anchors[k] * (-0.1 if pushed[k] else 1) if held[k] else 0
        spring[k, k] += anchor
        if k < half - 1:
            spring[k : k + 2, k : k + 2] += links[k] * np.array([[1, -1], [-1, 1]])
    spring *= stiff / mass[:, None]
    for i in range(12):
        if i < half:
            masses[i, i + half] = unit
        elif i < 2 * half:
            for j in range(half):
                masses[i, j] = -spring[i - half, j] / unit
                masses[i, j + half] = -damping / np.sqrt(stiff) * spring[i - half, j]
            masses[i, 2 * half :] = lagged[i, 2 * half :]
        else:
            masses[i, i] = -lags[i]

    # modes, two by two, in other coordinates
    turns, turn, decay = happens(0.5, 6), over(0.01, 2, 6), over(1e-3, 1, 12)
    damped, growing, still = over(1e-3, 0.7, 6), happens(0.15, 6), happens(0.2, 6)
    chain, drives = over(0.02, 0.5, 12), happens(0.5)
    driven, modes = sparse(0.01, 1, 1), np.zeros((12, 12))
    for i in range(12):
        pair = i // 2
        speed = damped[pair] * turn[pair] if turns[pair] else decay[i]
        modes[i, i] = 0 if still[pair] else min(speed, 0.3) if growing[pair] else -speed
        if turns[pair]:
            modes[i, i ^ 1] += turn[pair] * (1 if i % 2 == 0 else -1)
        elif still[pair] and i < 11:
            modes[i, i + 1] += chain[i]
        if drives:
            modes[i, i + 2 :] += 0.3 * driven[i, i + 2 :]
    T = np.eye(12)
    for _ in range(3):
        v = take("n", 12) * (np.arange(12) < n)
        size = over(0.5, 2, 12)
        T = size[:, None] * ((np.eye(12) - 2 * np.outer(v, v) / (v @ v)) @ T)
    A = [first, mechanical, masses, T @ modes @ np.linalg.inv(T)][kind]

    force = take("n", 12, 6) * over(0.02, 5, 6) * over(0.2, 3)
    force *= take("u", 12, 6) < between(0.1, 1)
    if kind in (1, 2):
        force[:half] = 0
    rescaled, unit = happens(0.3), over(0.2, 5, 12)
    unit = unit if rescaled else np.ones(12)
    A, B = A * unit[:, None] / unit, force * unit[:, None]

    given, diagonal = happens(0.5), happens(0.3)
    x = take("n", 12, 12) * over(0.1, 3, 12)
    x *= (take("u", 12) < between(0.2, 1))[:, None]
    u = happens(0.4) * take("n", 12, 6)
    mixed, weighted, each, own = take("n", 6, 6), happens(0.7, 12), over(0.05, 5, 12), over(0.1, 3, 6)
    Q, R, N = np.eye(12), np.eye(6), np.zeros((12, 6))
    if given and diagonal:
        Q, R = np.diag(weighted * each), np.diag(own)
    elif given:
        Q, R, N = x.T @ x / 12, np.diag(own) + (mixed.T @ mixed + u.T @ u) / 12, x.T @ u / 12
    return A[:n, :n], B[:n, :m], Q[:n, :n], R[:m, :m], N[:n, :m]


def test_random_systems_are_what_their_numbers_say_in_loops():
    key, num = jax.random.key(11), 150
    plants, N, units = jax.jit(random_linear._drawn, static_argnums=1)(key, num, jnp.asarray(True), jnp.asarray(False))
    raw = [np.asarray(a) for a in random_linear._Draw(key, num).drawn]
    kinds = set()
    for i in range(num):
        expected = drawn_by_hand(raw[0][i], raw[1][i])
        n, m = expected[1].shape
        assert units.state_mask[i].tolist() == [1.0] * n + [0.0] * (12 - n)
        assert units.input_mask[i].tolist() == [1.0] * m + [0.0] * (6 - m)
        # padding decays and costs nothing that is coupled to anything
        A, Q, R = -np.eye(12), np.zeros((12, 12)), np.eye(6)
        B, cross = np.zeros((2, 12, 6))
        A[:n, :n], B[:n, :m], Q[:n, :n], R[:m, :m], cross[:n, :m] = expected
        for found, wanted in zip((plants.A, plants.B, plants.Q, plants.R, N), (A, B, Q, R, cross)):
            np.testing.assert_allclose(found[i], wanted, rtol=1e-9, atol=1e-9 * max(1, np.abs(wanted).max()))
        kinds.add((n, m))
    assert len(kinds) > 30
    np.testing.assert_array_equal(plants.dt, np.ones(num))


def test_a_batch_is_mixed_of_its_shares_evenly_and_goes_through_the_random_systems(data):
    config = learning.TrainConfig(**BRIEF, random_systems=20)
    source = dataset.source(data, batch_size=32, window=2)
    shown = jnp.arange(1, 241, dtype=jnp.float32).reshape(20, 12, 1)
    states = jnp.pad(jnp.broadcast_to(shown, (20, 12, 12)), ((0, 0), (0, 1), (0, 0))) / 100
    held = batches.recorded(states, jnp.zeros((20, 12, 6), jnp.float32), jnp.full(20, 900), 2)
    mixture = batches.Mixture(source, config, source.table, held)
    found = mixture.windows(0, 60, 5)
    random = np.asarray(found.variant) == 900
    assert np.all(random.sum(axis=1) == 8)
    # of any part of a batch its share, to one window
    assert np.abs(np.cumsum(random, axis=1) - np.arange(1, 33) * 8 / 32).max() <= 1
    lines = np.asarray(found.signals)[random].reshape(60, 8, -1)
    # thirty steps go through all windows once, the next ones in another order
    first, second = (np.concatenate(a)[:, 18] for a in (lines[:30], lines[30:]))
    assert len(set(first.tolist())) == 240 == held.num_windows
    assert set(second.tolist()) == set(first.tolist())
    assert np.mean(first == second) < 0.1
    own = source.windows(0, 60 * 24).signals.reshape(60, 24, 2, 18)
    np.testing.assert_array_equal(np.asarray(found.signals)[~random].reshape(own.shape), own)
    later = mixture.windows(7, 2, 5)
    np.testing.assert_array_equal(later.signals, found.signals[7:9])


def test_recorded_loops_are_windows_of_state_and_input_before_and_shrunk_as_a_whole_where_they_grow():
    rng = np.random.default_rng(0)
    xs, us = rng.normal(size=(4, 6, 12)) / 3, rng.normal(size=(4, 5, 6))
    xs[1, 3, 2] = -30.0  # ten times the largest state that is learned from
    xs[2, 4, 0], xs[3, 5, 1] = np.nan, np.inf
    held = batches.recorded(*(jnp.asarray(a, jnp.float32) for a in (xs, us)), jnp.array([7, 8, 9, 5]), 3)
    assert held.num_windows == 20
    assert held.variant.tolist() == [7, 8, 9, 5]
    found = held.gather(np.arange(20))
    for i in range(20):
        loop, t = divmod(i, 5)
        expected = np.zeros((3, 18))
        for row, time in enumerate(range(t - 2, t + 1)):
            if time >= 0 and loop < 2:
                expected[row, :12] = xs[loop, time]
                expected[row, 12:] = us[loop, time - 1] if time else 0
        np.testing.assert_allclose(found.signals[i], expected / (10 if loop == 1 else 1), rtol=1e-6)
        assert (int(found.t[i]), int(found.variant[i])) == (t, [7, 8, 9, 5][loop])


def test_random_systems_loops_are_under_their_optimum_with_the_data_sets_excitation(data):
    """Windows of two steps: x[t+1] = A x[t] + B u[t], u = −Kx and what explores, of plants behind the data set's."""
    config = learning.TrainConfig(**BRIEF, random_systems=20)
    mixture = batches.Mixture.of(dataset.source(data, batch_size=32, window=2), config)
    table, held = mixture.table, mixture.random
    loops = held.gather(np.arange(held.num_windows)).batch(table)
    rows, (x, u) = np.asarray(loops.variant), (np.asarray(a) for a in (loops.x, loops.u))
    assert sorted(set(rows)) == list(range(len(data.variants), len(data.variants) + 20))
    K, A, B = (np.asarray(a)[rows] for a in (table.problem.K, table.problem.A, table.problem.B))
    later = np.asarray(loops.time_mask)[:, 0] == 1
    after = np.einsum("bij,bj->bi", A, x[:, 0]) + np.einsum("bij,bj->bi", B, u[:, 1])
    np.testing.assert_allclose(x[later, 1], after[later], rtol=1e-3, atol=1e-4)
    explored = (u[:, 1] + np.einsum("bij,bj->bi", K, x[:, 0]))[later & (np.abs(x).max((1, 2)) < 2)]
    assert 0.1 < np.std(explored[np.abs(explored) > 0]) <= 1.1 * data.config.excitation


@pytest.mark.matrix
def test_a_training_learns_from_random_systems(data, tmp_path, monkeypatch):
    """Counted in what each step is given: windows of the data set are known, random systems have rows behind it."""
    model = learning.ModelConfig(**SMALL)
    config = learning.TrainConfig(**BRIEF | {"num_steps": 4, "closed_loop": 0.0}, random_systems=20)
    held = dataset.source(data, kind="resident", batch_size=32, window=model.window).held
    known = {line.tobytes() for line in np.asarray(held.gather(np.arange(held.num_windows)).signals)}
    steps, put = [], Recipe.put_batches

    def noted(recipe, windows):
        for signals, variant in zip(np.asarray(windows.signals), np.asarray(windows.variant)):
            from_data = sum(line.tobytes() in known for line in signals)
            steps.append((from_data, int(np.sum(variant >= len(data.variants)))))
        if len(steps) == config.num_steps:
            raise KeyboardInterrupt
        return put(recipe, windows)

    monkeypatch.setattr(Recipe, "put_batches", noted)
    with pytest.raises(KeyboardInterrupt):
        fit(data, model, config, tmp_path)
    assert steps == 4 * [(24, 8)]  # a quarter of 32 are random systems


@pytest.mark.slow
@pytest.mark.matrix
def test_a_training_with_random_systems_resumes_to_the_bit(data, tmp_path):
    config = learning.TrainConfig(**BRIEF, random_systems=20)
    model = learning.ModelConfig(**SMALL)
    whole = fit(data, model, config, tmp_path / "whole")

    def stop(row):
        if row["step"] == 8:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fit(data, model, config, tmp_path / "part", progress=stop)
    rest = fit(data, model, config, tmp_path / "part")
    a, b = (learning.models.split(f.model)[1] for f in (whole, rest))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    assert rest.metrics[-1]["validation_efficiency"] == whole.metrics[-1]["validation_efficiency"]


@pytest.mark.matrix
def test_eight_devices_do_what_one_does_and_a_checkpoint_goes_from_one_to_the_other(data, tmp_path):
    script = textwrap.dedent(
        """
        import sys
        import jax, numpy as np
        from lqrlab import compute, dataset, learning
        compute.setup()
        data, folder = dataset.open(sys.argv[1]), sys.argv[2]
        model, config = learning.ModelConfig.from_json(sys.argv[3]), learning.TrainConfig.from_json(sys.argv[4])

        def fit(name, mesh, stop=None):
            def progress(row):
                if row["step"] == stop:
                    raise KeyboardInterrupt
            backend = compute.Backend(mesh=mesh)
            try:
                source = dataset.source(data, batch_size=config.batch_size, window=model.window)
                found = learning.fit(source, model, config, folder + name, backend=backend, progress=progress)
            except KeyboardInterrupt:
                return
            return learning.models.split(found.model)[1]

        one, eight = fit("/one", ""), fit("/eight", "data=8")
        fit("/moved", "data=2", stop=8)  # the checkpoint of step 4 was written by two devices
        moved = fit("/moved", "")
        for name in one:
            np.testing.assert_allclose(eight[name], one[name], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(moved[name], one[name], rtol=1e-3, atol=1e-5)
        print(len(jax.devices()))
        """
    )
    settings = learning.ModelConfig(**SMALL).to_json(), learning.TrainConfig(**BRIEF).to_json()
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    out = subprocess.run(
        [sys.executable, "-c", script, str(data.path), str(tmp_path), *settings],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=290,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.split()[-1] == "8"


@pytest.mark.matrix
def test_two_processes_do_what_one_does(data, tmp_path):
    """``mpirun -n 2 lqrlab train`` against ``fit`` in this process, on the same data."""
    (tmp_path / "dataset").symlink_to(data.path)
    given = {"kind": "gain", "model_options": '{"hidden": 32}', "random_systems": 0, "batch_size": 32}
    given |= {"plants": 16, "num_steps": 30, "report_every": 10, "device": "cpu"}
    overrides = [word for name, value in given.items() for word in ("-p", f"{name}={value}")]
    command = [sys.executable, "-m", "lqrlab.workbench", "train", str(tmp_path), *overrides]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    names = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")
    step = os.environ | dict(zip(names, ("1", "2", "2", "1", "localhost"))) | {"JAX_COORDINATOR_ADDRESS": address}
    ranks = [step | {"SLURM_PROCID": str(k), "SLURM_LOCALID": str(k)} for k in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=rank, **pipes) for rank in ranks]
    try:
        outs = [process.communicate(timeout=250) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], outs[0][1][-2000:] + outs[1][1][-2000:]
    assert sum(out.count("validation_efficiency") for out, _ in outs) == 3  # one process speaks for both
    settings = json.loads((tmp_path / "checkpoints" / "settings.json").read_text())
    assert settings["data"] == json.loads(data.config.to_json())
    model, config = learning.ModelConfig(**settings["model"]), learning.TrainConfig(**settings["train"])
    one = fit(data, model, config, tmp_path / "one")
    a, b = (learning.models.split(m)[1] for m in (one.model, learning.load(tmp_path / "checkpoints")))
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-3, atol=1e-5)
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in metrics] == pytest.approx([row["loss"] for row in one.metrics], rel=1e-4)


def test_a_loss_that_is_no_number_ends_the_training_in_a_sentence(tmp_path, monkeypatch):
    def fails(*args, **kwargs):
        raise learning.NonFiniteLossError("the loss is nan at step 3; lower learning_rate")

    (tmp_path / "dataset" / "manifest.json").mkdir(parents=True)
    monkeypatch.setattr(dataset, "open", lambda path: None)
    monkeypatch.setattr(dataset, "source", lambda *args, **kwargs: None)
    monkeypatch.setattr(learning, "fit", fails)
    done = CliRunner().invoke(main, ["train", str(tmp_path), "--profile", "tiny"])
    assert done.stderr == "\nlqrlab: the loss is nan at step 3; lower learning_rate\n"
    assert done.exit_code == 1


def test_settings_of_the_model_are_checked_on_the_command_line(tmp_path):
    (tmp_path / "dataset" / "manifest.json").mkdir(parents=True)
    asked = ["train", str(tmp_path), "-p", 'model_options={"description": "maybe"}']
    done = CliRunner().invoke(main, asked)
    assert "description" in done.stderr
    assert "expected True or False" in done.stderr
