"""The adaptive regulator from outputs alone: its filter against draws and Kalman's, its loops, what it is not given."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from lqrlab import control, simulation, systems, unknown
from lqrlab.extensions.unknown import output_policy

KEY = jax.random.key(3)


def believed(chain, rng):
    """Some mean and covariance of [x; θ; B]."""
    root = 0.3 * rng.normal(size=(chain.d, chain.d))
    return rng.normal(size=chain.d), root @ root.T


@pytest.mark.parametrize("sizes", [(1, 3, 1), (2, 2, 1), (2, 1, 2)])
def test_a_step_of_the_filter_has_the_exact_moments(sizes):
    """Against a million draws, propagated one by one: x⁺ = Ax + Bu + w with A and B drawn as well."""
    chain, rng = output_policy.Chain(*sizes), np.random.default_rng(0)
    p, n, m = chain.p, chain.n, chain.m
    mean, spread = believed(chain, rng)
    u, rate, variance = rng.normal(size=m), 0.2, 0.05
    drawn = rng.multivariate_normal(mean, spread, 1_000_000)
    x, theta, B = drawn[:, :n], drawn[:, n : n + p * n].reshape(-1, p, n), drawn[:, n + p * n :].reshape(-1, n, m)
    after = x + rate * np.pad(x[:, p:], ((0, 0), (0, p))) + B @ u + variance**0.5 * rng.normal(size=x.shape)
    after[:, n - p :] += np.einsum("kpn,kn->kp", theta, x)
    drawn = np.concatenate([after, drawn[:, n:]], axis=1)
    found, covariance = chain.ahead(*(jnp.asarray(a) for a in (mean, spread)), rate, variance, jnp.asarray(u))
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((found - drawn.mean(0)) / scale, 0, atol=0.006)
    np.testing.assert_allclose((covariance - np.cov(drawn.T)) / np.outer(scale, scale), 0, atol=0.02)
    np.testing.assert_array_equal(chain.matrices(jnp.asarray(mean), rate)[n:], mean[n + p * n :].reshape(n, m).T)


def test_of_a_plant_that_is_known_the_filter_is_kalmans():
    """Means, covariances and likelihoods of twenty steps of NumPy's filter, with SciPy's normal densities."""
    chain, rng = output_policy.Chain(2, 2, 1), np.random.default_rng(1)
    n, rate, v = chain.n, 0.1, 0.01
    numbers = 0.3 * rng.normal(size=chain.d - n)
    A = np.eye(n) + rate * np.eye(n, k=2)
    A[2:] += numbers[: 2 * n].reshape(2, n)
    B = numbers[2 * n :].reshape(n, 1)
    mean, spread = np.r_[np.zeros(n), numbers], np.diag(np.r_[np.ones(n), np.zeros(chain.d - n)])
    mean, spread = jnp.asarray(mean), jnp.asarray(spread)
    x, S = np.zeros(n), np.eye(n)
    for _ in range(20):
        y, u = rng.normal(size=2), rng.normal(size=1)
        E = S[:2, :2] + v * np.eye(2)
        density = scipy.stats.multivariate_normal(x[:2], E).logpdf(y) + np.log(2 * np.pi)
        x, S = x + S[:, :2] @ np.linalg.solve(E, y - x[:2]), S - S[:, :2] @ np.linalg.solve(E, S[:2])
        x, S = A @ x + B @ u, A @ S @ A.T + v * np.eye(n)
        mean, spread, found = chain.seen(mean, spread, v, jnp.asarray(y))
        mean, spread = chain.ahead(mean, spread, rate, v, jnp.asarray(u))
        assert float(found) == pytest.approx(density, rel=1e-9)
    np.testing.assert_allclose(mean[:n], x, rtol=1e-9)
    np.testing.assert_allclose(spread[:n, :n], S, rtol=1e-9, atol=1e-12)


def test_doubt_is_the_cost_of_what_is_not_known():
    chain, rng = output_policy.Chain(2, 2, 1), np.random.default_rng(2)
    spread = jnp.asarray(believed(chain, rng)[1])
    root = rng.normal(size=(4, 4))
    P = root @ root.T
    drawn = rng.multivariate_normal(np.zeros(chain.d), spread, 200_000)
    each = np.asarray(jax.vmap(lambda one: chain.matrices(one, 0.0))(jnp.asarray(drawn)))  # [A B]ᵀ of each
    each = each - np.concatenate([np.eye(4), np.zeros((1, 4))])
    expected = np.mean(each @ P @ each.transpose(0, 2, 1), axis=0)
    np.testing.assert_allclose(chain.doubt(spread, jnp.asarray(P)), expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["pendulum", "cart_pole", "dc_motor", "two_link_arm"])
def test_the_equation_of_the_outputs_is_learned(name):
    """From then on the next output is foretold, by a loop in NumPy with SciPy's exponential."""
    plant = systems.make(name)
    A, B, C = (np.asarray(M) for M in (*plant.matrices(), plant.output_matrix()))
    n, m = B.shape
    wide = scipy.linalg.expm(float(plant.dt) * np.block([[A, B], [np.zeros((m, n + m))]]))
    policy = unknown.adaptive_outputs(plant)
    step, carry = jax.jit(lambda carry, y: policy(carry, y)), policy.init(())
    x, missed, size = 0.3 * np.asarray(plant.scales[0]), [], []
    for _ in range(150):
        y = C @ x
        missed.append(np.abs(np.asarray(carry.expected * policy.scale_y) - y))
        size.append(np.abs(y))
        carry, u = step(carry, jnp.asarray(y))
        x = wide[:n, :n] @ x + wide[:n, n:] @ np.asarray(u)
    assert np.max(missed[40:]) < 1e-3 * np.max(size)
    assert np.abs(x / np.asarray(plant.scales[0])).max() < 0.1


def test_loops_from_outputs_alone_cost_little_more_than_the_optimum():
    names = ("pendulum", "gantry_crane", "coupled_tanks")
    for name in names:
        plants = systems.sample(name, key=jax.random.key(0), num=3)
        problem = unknown.problem_of(plants, outputs=True)
        C = np.asarray(plants.output_matrix()) * np.asarray(plants.scales[0])
        C = C / np.linalg.norm(C, axis=-1, keepdims=True)
        np.testing.assert_allclose(problem.Q[0, : plants.n, : plants.n], C.T @ C if C.ndim == 2 else C[0].T @ C[0])
        regret = unknown.score(unknown.from_outputs(plants), problem, key=KEY, num_initial=2)
        assert not regret.failed.any()
        assert 1 < float(jnp.median(regret.ratio)) < 2.5
        # it comes near the optimal gain's cost in the end
        assert float(jnp.median(regret.excess[..., 100])) < 0.1


def test_outputs_that_are_not_measured_teach_nothing_and_are_bridged_nor_does_a_push():
    plant = systems.make("pendulum")
    policy = unknown.adaptive_outputs(plant)
    sampled = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    A, B, C = (np.asarray(M) for M in (sampled.A, sampled.B, plant.output_matrix()))
    carry, x, step = policy.init(()), np.array([0.1, 0.0]), jax.jit(lambda carry, y: policy(carry, y))
    for t in range(300):
        lost, pushed = t in (3, 40, 41, 42, 60), t == 100
        before, x = carry, x + pushed
        carry, u = step(carry, jnp.full(1, jnp.nan) if lost else jnp.asarray(C @ x))
        assert np.isfinite(np.asarray(u)).all()
        if lost or pushed:
            numbers = slice(2, None)  # of the plant
            np.testing.assert_array_equal(carry.mean[..., numbers], before.mean[..., numbers])
            assert (
                np.diagonal(carry.spread[0], axis1=-2, axis2=-1)[:, 0]
                >= np.diagonal(before.spread[0], axis1=-2, axis2=-1)[:, 0]
            ).all()
        x = A @ x + B @ np.asarray(u)
    assert np.abs(x).max() < 1e-3


def test_one_filter_that_breaks_down_begins_again_and_is_no_push():
    plant = systems.make("pendulum")
    policy = unknown.adaptive_outputs(plant)
    carry = policy.init(())
    for y in (0.1, 0.1, 0.099):
        carry, _ = policy(carry, jnp.array([y]))
    broken = dataclasses.replace(carry, calm=jnp.full((), 30), spread=carry.spread.at[4, 15, 0, 0].set(-1.0))
    after, _ = policy(broken, jnp.array([0.098]))
    assert after.calm == 31
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(after))
    np.testing.assert_array_equal(after.spread[4, 15], policy.chain.prior()[15])
    assert after.odds[4, 15] < carry.odds[4, 15] - 50
    expected, _ = policy(dataclasses.replace(carry, calm=jnp.full((), 30)), jnp.array([0.098]))
    np.testing.assert_allclose(after.spread[0, :3], expected.spread[0, :3])


@pytest.mark.parametrize(
    ("name", "dtype", "what"),
    [
        *(("pendulum", dtype, what) for dtype in ("float32", "float64") for what in ("far start", "gap", "glitch")),
        *(("dc_motor", "float32", what) for what in ("gap", "push")),
        *((name, "float64", "push") for name in ("dc_motor", "cart_pole")),
        *((name, "float64", "pushes") for name in ("dc_motor", "pendulum")),
    ],
)
def test_no_measurement_blinds_it_for_ever(name, dtype, what):
    """A hundred scales away, sixty missing, one wrong by a scale, a push: filters may break, not the loop."""
    plant = systems.make(name)
    sampled = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    A, B, C, scale = (np.asarray(M, float) for M in (sampled.A, sampled.B, plant.output_matrix(), plant.scales[0]))
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
        policy = unknown.adaptive_outputs(plant)
        carry, step = policy.init(()), jax.jit(lambda carry, y: policy(carry, y))
        x = (100.0 if what == "far start" else 0.1) * scale * np.eye(plant.n)[0]
        for t in range(300):
            pushed = t in {"push": (100,), "pushes": (100, 110)}.get(what, ())
            x = x + (scale * np.eye(plant.n)[0] if pushed else 0.0)
            y = C @ x + (scale[0] if what == "glitch" and t == 100 else 0.0)
            y = y * np.nan if what == "gap" and 100 <= t < 160 else y
            carry, u = step(carry, jnp.asarray(y, dtype))
            assert all(np.isfinite(a).all() for a in jax.tree.leaves(carry))
            x = A @ x + B @ np.asarray(u, float)
    assert np.abs(x / scale).max() < 0.05


def test_a_batch_is_its_members_one_by_one():
    plants = systems.sample("pendulum", key=jax.random.key(1), num=2)
    policy = simulation.Measured(unknown.adaptive_outputs(plants), simulation.outputs(plants))
    x0 = jnp.array([[0.1, 0.0], [0.0, 0.3]])
    run = simulation.rollout(plants, policy, x0, 80)
    for i, plant in enumerate(plants):
        alone = simulation.Measured(unknown.adaptive_outputs(plant), simulation.outputs(plant))
        np.testing.assert_allclose(run.xs[i], simulation.rollout(plant, alone, x0[i], 80).xs, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), order=5), "order: expected at most 4, four states"),
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), order=0), "order: expected a whole number"),
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), noise=-1.0), "noise: expected finite numbers ≥ 0"),
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), noise=np.inf), "noise: expected finite numbers"),
        (
            lambda: unknown.adaptive_outputs(systems.make("pendulum"), noise=np.ones(2)),
            r"noise: expected one number, or one for each plant \(\), but found shape \(2,\)",
        ),
        (lambda: unknown.from_outputs([]), "plants: .* but found no plants"),
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), limit=np.nan), "limit: expected"),
        (lambda: unknown.adaptive_outputs(systems.make("pendulum"), doublings=-1), "doublings: expected"),
        (
            lambda: unknown.from_outputs(systems.make("pendulum"))(
                unknown.problem_of(systems.sample("pendulum", key=jax.random.key(0), num=2), outputs=True).hidden()
            ),
            "expected those of the problem, 2, but found 1",
        ),
        (
            lambda: unknown.from_outputs([systems.make("pendulum"), systems.make("cart_pole")]),
            "plants: expected one number of states, inputs and outputs, but found",
        ),
    ],
)
def test_plants_with_too_few_outputs_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_measurements_of_another_size_are_refused():
    policy = unknown.adaptive_outputs(systems.make("pendulum"))
    with pytest.raises(ValueError, match=r"expected 1 outputs, but found shape \(2,\); simulation\.Measured"):
        policy(policy.init(()), jnp.zeros(2))
