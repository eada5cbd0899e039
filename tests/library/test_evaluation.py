"""Scores: against exact costs from SciPy's Lyapunov solver, and the laws that any score must keep."""

import dataclasses
import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from refusals import refused
from unrecognised import Unrecognised

from lqrlab import control, evaluation, simulation, systems
from lqrlab.evaluation import scenarios, scores
from lqrlab.simulation import Verdict, verdict

KEY = jax.random.key(5)
FAMILIES = ("mass_spring_damper", "cart_pole", "fixed_wing")


def score_of(ratio):
    judged = jnp.where(jnp.isinf(ratio), Verdict.DIVERGED, Verdict.CONVERGED)
    return evaluation.Score(ratio, judged, jnp.zeros_like(ratio))


@pytest.fixture(scope="module")
def plants():
    return {name: systems.sample(name, key=KEY, num=4) for name in FAMILIES}


@pytest.fixture(scope="module")
def references(plants):
    names, problem = [name for name in plants for _ in range(4)], simulation.Problem.of(list(plants.values()))
    gains = {"optimal": problem.K, "nominal gain": evaluation.FamilyGain().gains(names, problem)}
    return {name: simulation.LinearPolicy(gain) for name, gain in gains.items()}


@pytest.mark.matrix
def test_the_optimum_of_every_family_scores_one_in_its_own_units():
    """Nine seconds: a variant of each, run together."""
    variants = [systems.sample(name, key=KEY, num=1) for name in systems.names()]
    score = evaluation.evaluate(lambda problem: problem.K, variants, key=KEY, num_initial=2)
    np.testing.assert_allclose(score.ratio, 1.0, atol=1e-8)


def test_a_gain_scores_its_lyapunov_cost(plants, references):
    """cost / optimum = x0ᵀ P_K x0 / x0ᵀ P x0 with P_K from SciPy, up to what is left after the horizon."""
    stacked = simulation.Problem.of(list(plants.values()))
    score = evaluation.evaluate(references["nominal gain"], stacked, key=KEY, num_initial=3)
    x0 = np.asarray(stacked.initial_state(key=KEY, num=3))
    A, B, Q, R, _ = stacked.continuous
    A, B, Q, R, N = (np.asarray(a) for a in control.discretize(A, B, Q, R, stacked.dt))
    for i, K in enumerate(np.asarray(references["nominal gain"].K)):
        closed = A[i] - B[i] @ K
        own = scipy.linalg.solve_discrete_are(A[i], B[i], Q[i], R[i], s=N[i])
        stage = Q[i] + K.T @ R[i] @ K - N[i] @ K - K.T @ N[i].T
        cost = scipy.linalg.solve_discrete_lyapunov(closed.T, stage)
        expected = np.einsum("si,ij,sj->s", x0[i], cost, x0[i]) / np.einsum("si,ij,sj->s", x0[i], own, x0[i])
        np.testing.assert_allclose(score.ratio[i], expected, rtol=1e-4)


def test_a_nonlinear_plant_is_scored_on_its_own_equations():
    """ẋ = x³ + u, an integrator at the origin: its P is √(1 + dt²/12), and solve_ivp runs the loop."""
    dt = 0.2
    plant = systems.from_dynamics(lambda x, u: x**3 + u, x_eq=[0.0], u_eq=[0.0], Q=np.eye(1), R=np.eye(1), dt=dt)
    P = np.sqrt(1 + dt**2 / 12)
    k = (P * dt + dt**2 / 2) / (dt + dt**3 / 3 + dt**2 * P)
    policy, starts = simulation.LinearPolicy(jnp.array([[k]])), [0.6, -0.5]
    score = evaluation.evaluate(policy, plant, key=KEY, x0=jnp.array(starts)[:, None], linear=False)
    for x0, ratio in zip(starts, score.ratio):
        x, cost = x0, 0.0
        for _ in range(100):
            u = -k * x
            found = scipy.integrate.solve_ivp(
                lambda _, z, u=u: [z[0] ** 3 + u, z[0] ** 2 + u**2], (0, dt), [x, cost], rtol=1e-9, atol=1e-12
            )
            x, cost = found.y[:, -1]
        assert cost / (P * x0**2) > 1.1
        assert ratio == pytest.approx(cost / (P * x0**2), rel=1e-4)
    linear = evaluation.evaluate(policy, plant, key=KEY, x0=jnp.array(starts)[:, None])
    np.testing.assert_allclose(linear.ratio, 1.0, rtol=1e-8)


def test_a_slow_but_stable_loop_converges_and_a_slowly_growing_one_diverges():
    for damping, judged in ((0.02, Verdict.CONVERGED), (-0.02, Verdict.DIVERGED)):
        plant = systems.from_matrices([[[0.0, 1.0], [-1.0, -damping]]], [[[0.0], [1.0]]], dt=0.1)
        score = evaluation.evaluate(simulation.no_control(plant), plant, key=KEY, num_initial=8)
        assert (score.verdict == judged).all()


def test_summary_is_order_statistics_in_percent():
    ratio = jnp.asarray(1 + np.arange(100) / 100).reshape(10, 10)
    summary = score_of(ratio).summary()
    assert summary["median"] == pytest.approx(50.0)
    assert summary["p95"] == pytest.approx(95.0)
    assert summary["worst"] == pytest.approx(99.0)
    two_hundred = score_of(jnp.asarray(1 + np.arange(200) / 100)).summary()
    assert two_hundred["p99"] == pytest.approx(198.0)
    one_gone = score_of(ratio.at[0, 0].set(jnp.inf)).summary()
    assert one_gone["worst"] == np.inf
    assert one_gone["p95"] == pytest.approx(96.0)
    assert one_gone["diverged"] == 1
    still = dataclasses.replace(score_of(ratio), verdict=jnp.full(ratio.shape, Verdict.BOUNDED)).summary()
    assert (still["diverged"], still["bounded"]) == (0, 100)


@pytest.mark.matrix
@pytest.mark.parametrize("linear", [True, False])
def test_loops_of_which_nothing_is_kept_have_the_scores_of_their_trajectories(linear, monkeypatch):
    """Loops that converge, that stay bounded and that diverge; under gains, and under a policy that may remember."""
    plants = systems.sample("cart_pole", key=KEY, num=3, spread=0.1)
    problem = simulation.Problem.of(plants, linear=linear)
    K = control.lqrd(*plants.matrices(), *plants.weights(), plants.dt).K[0]
    starts = np.array([0.3, 1.0, 3.0])[None, :, None] * plants.initial_state(key=KEY, num=3)
    for controller in (simulation.LinearPolicy(K), Unrecognised(K), Unrecognised(0.1 * K)):
        run = simulation.rollout(problem, controller, starts, 203)
        judged = verdict.of_sizes(verdict.size(run.xs, problem.scale_x))
        ratio = (run.cost + problem.optimal_cost(run.xs[..., -1, :])) / problem.optimal_cost(starts)
        for many in (0, 10**9):
            monkeypatch.setattr(scores, "_MANY", many)
            score = evaluation.evaluate(controller, problem, key=KEY, x0=starts, num_steps=203)
            if not (linear and isinstance(controller, simulation.LinearPolicy)):
                np.testing.assert_array_equal(score.verdict, judged)
            np.testing.assert_allclose(score.ratio, np.where(score.converged, ratio, np.inf), rtol=1e-9)
        assert score.converged.any() != (controller.K is not K)


MEMORY = """
import resource, sys
import jax, jax.numpy as jnp
from lqrlab import compute, evaluation, simulation, systems
sys.path.insert(0, "tests")
from unrecognised import Unrecognised

compute.setup()
problem = simulation.Problem.of(systems.make("pendulum"), linear=True)
for controller in (1.1 * problem.K, Unrecognised(1.1 * problem.K)):
    evaluation.evaluate(controller, problem, key=jax.random.key(0), num_initial=5, num_steps=200)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for controller in (1.1 * problem.K, Unrecognised(1.1 * problem.K)):
    score = evaluation.evaluate(controller, problem, key=jax.random.key(0), num_initial=200_000, num_steps=200)
    assert score.converged.all() and score.ratio.shape == (200_000,)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.matrix
def test_scores_of_many_loops_need_no_memory_for_their_trajectories():
    """200,000 loops of 200 samples; their states, inputs and costs are 1.3 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) < 300


@pytest.mark.filterwarnings("ignore:a Riccati")
def test_what_has_no_optimum_to_compare_with_is_refused_and_a_trace():
    idle, plant = simulation.no_control, systems.make("pendulum")
    noisy = simulation.Problem.of(plant, linear=True, noise=0.01)
    refused("plants: expected a problem without noise", evaluation.evaluate, noisy.K, noisy, key=KEY)
    lost = systems.from_matrices(jnp.eye(2)[None], jnp.zeros((1, 2, 1)))
    refused("plants: 1 of 1 have no stabilizing optimum", evaluation.evaluate, idle(lost), lost, key=KEY)
    traced = jax.jit(lambda K: evaluation.evaluate(simulation.LinearPolicy(K), plant, key=KEY).ratio)
    refused("evaluate: runs on the host, so not inside jit, vmap or grad", traced, np.ones((1, 2)))
    with jax.enable_x64(False):
        half = systems.make("pendulum")
        refused("plants: expected float64, but found float32", evaluation.evaluate, idle(half), half, key=KEY)


def test_a_loop_that_stays_where_it_was_driven_is_bounded_and_costs_without_end():
    """An integrator left alone, and a gain that ignores the position: |λ| = 1."""
    plant = systems.from_matrices([[[0.0, 1.0], [0.0, -1.0]]], [[[0.0], [1.0]]], dt=0.1)
    for policy in (simulation.no_control(plant), Unrecognised(jnp.array([[0.0, 0.5]]))):
        score = evaluation.evaluate(policy, plant, key=KEY, num_initial=8)
        assert (score.verdict == Verdict.BOUNDED).all()
        assert np.isinf(score.ratio).all()
        assert (score.remaining == 1).all()


def test_gains_are_judged_alike_from_the_closed_loop_and_from_the_run(plants, references):
    batch = plants["cart_pole"]
    (A, B), (Q, R) = batch.matrices(), batch.weights()
    design = control.lqrd(A, B, Q, R, batch.dt)
    for factor in (0.05, 0.4, 1.0, 1.5):
        K = factor * design.K[0]
        exact = evaluation.evaluate(simulation.LinearPolicy(K), batch, key=KEY, num_initial=3)
        seen = evaluation.evaluate(Unrecognised(K), batch, key=KEY, num_initial=3)
        np.testing.assert_array_equal(exact.verdict, seen.verdict)
    assert float(jnp.max(exact.remaining)) < 1e-3


def test_the_nominal_gain_is_that_of_the_default_parameters(plants, references):
    first = references["nominal gain"].K[4]  # the first cart-pole
    plant = systems.make("cart_pole")
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    np.testing.assert_allclose(first[:1, :4], control.lqrd(A, B, Q, R, plant.dt).K, rtol=1e-8)
    assert not first[1:].any()


@pytest.mark.parametrize("size", [0.0, 1e-200, 1.0, 1e200])
def test_the_optimum_scores_one_from_any_size_of_start(size):
    plant = systems.make("pendulum")
    policy = simulation.LinearPolicy(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K)
    score = evaluation.evaluate(policy, plant, key=KEY, x0=jnp.full((1, 2), size))
    np.testing.assert_allclose(score.ratio, 1.0, atol=1e-8)
    assert score.converged.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x0": np.array([[1j, 0.0]])}, "x0: expected real numbers"),
        ({"x0": "text"}, "x0: expected real numbers, but found 'text'"),
        ({"x0": np.zeros((0, 2))}, "x0: expected one or more starts"),
        ({"x0": np.zeros(2)}, "x0: expected one or more starts"),
        ({"x0": np.zeros((4, 3))}, r"x0: expected one or more starts \[S, 2\] of pendulum"),
        ({"x0": np.full((1, 2), 1e200), "linear": False}, "x0: expected deviations of a finite cost"),
        ({"num_initial": 0}, "num_initial: expected a whole number"),
        ({"num_steps": 1.5}, "num_steps: expected a whole number"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_words(change, message):
    plant = systems.make("pendulum")
    with pytest.raises(ValueError, match=message):
        # unwrapped: without the type checker of these tests
        inspect.unwrap(evaluation.evaluate)(simulation.no_control(plant), plant, **{"key": KEY} | change)


@pytest.mark.parametrize("name", [name for name, design in scenarios.PUBLISHED.items() if "K" in design])
def test_designs_from_outside_have_the_gains_that_their_sources_print(name):
    design, plant = scenarios.PUBLISHED[name], scenarios.published()[name]
    K = control.lqr(plant.A, plant.B, plant.Q, plant.R).K[0]
    np.testing.assert_allclose(K, design["K"], rtol=1e-4, atol=5e-5)


MESH = """
import sys
import jax, jax.numpy as jnp, numpy as np
from lqrlab import compute, control, evaluation, simulation, systems

compute.setup(cpu_devices=8)
backend = compute.Backend(mesh="data=8")
A = jax.random.normal(jax.random.key(0), (16, 3, 3))
gain = lambda A: control.lqr(A, jnp.eye(3), jnp.eye(3), jnp.eye(3)).K
split = jax.jit(backend.split(gain))(A)
assert len(split.devices()) == 8 and split.addressable_shards[0].data.shape[0] == 2, split.sharding
np.testing.assert_allclose(split, gain(A), rtol=1e-9)
slopes = [jax.jit(jax.grad(lambda A: jnp.sum(f(A))))(A) for f in (gain, backend.split(gain))]
np.testing.assert_allclose(*slopes, rtol=1e-9)
for call, says in ((lambda: backend.split(gain)(A[:9]), "evenly divisible"),
                   (lambda: compute.setup(cpu_devices=4), "restart the kernel")):
    try:
        call()
        raise SystemExit(f"no error that says {says}")
    except ValueError as error:
        assert says in str(error), error
plants = systems.sample("pendulum", key=jax.random.key(0), num=8, spread=0.1)
gain = simulation.LinearPolicy(1.05 * control.lqrd(*plants.matrices(), *plants.weights(), plants.dt).K)
x0 = plants.initial_state(key=jax.random.key(1), num=16)
for linear in (True, False):
    one = simulation.rollout(plants, gain, x0, 20, linear=linear)
    eight = simulation.rollout(plants, backend.put(gain), backend.share(x0), 20, linear=linear)
    for a, b in ((one.xs, eight.xs), (one.us, eight.us), (one.costs, eight.costs)):
        assert len(b.devices()) == 8 and b.addressable_shards[0].data.shape[0] == 1, b.sharding
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
given = {"key": jax.random.key(2), "num_steps": 20}
one, eight = (evaluation.evaluate(gain, plants, **given, x0=x) for x in (x0, backend.share(x0)))
assert eight.ratio.addressable_shards[0].data.shape == (1, 16), eight.ratio.sharding
np.testing.assert_allclose(one.ratio, eight.ratio, rtol=1e-9)
np.testing.assert_array_equal(one.verdict, eight.verdict)
three = backend.share(np.zeros((3, 2)))
assert three.sharding.is_fully_replicated
"""


@pytest.mark.matrix
def test_designs_rollouts_and_scores_stay_on_eight_devices_and_equal_one():
    done = subprocess.run(
        [sys.executable, "-c", MESH], capture_output=True, text=True, timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
