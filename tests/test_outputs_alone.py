"""The adaptive regulator from outputs alone: its window against NumPy's, its prior, its loops, what it is not given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from lqrlab import control, evaluation, learning, simulation, systems

KEY = jax.random.key(3)


def test_before_anything_is_seen_outputs_go_on_as_polynomials_do():
    plant = systems.make("two_mass_spring")  # four states, one output
    policy = learning.adaptive_outputs(plant)
    carry = policy.init(())
    ys = [0.3, 0.4, 0.6, 1.0]
    for y in ys:
        carry, _ = policy(carry, jnp.array([y]) * policy.scale_y)
    window = np.asarray(carry[1])
    np.testing.assert_allclose(window[:4], ys[::-1])
    # cubic through 0.3, 0.4, 0.6, 1.0 at the next sample, but for what the inputs are thought to do: nothing yet
    assert float(carry[0].expected[0]) == pytest.approx(np.polyval(np.polyfit(range(4), ys, 3), 4), abs=1e-9)


@pytest.mark.parametrize("name", ["pendulum", "cart_pole", "dc_motor", "two_link_arm"])
def test_the_window_is_a_state_whose_equation_is_learned(name):
    """From then on the next output is foretold, by a loop in NumPy with SciPy's exponential."""
    plant = systems.make(name)
    A, B, C = (np.asarray(M) for M in (*plant.matrices(), plant.output_matrix()))
    n, m = B.shape
    wide = scipy.linalg.expm(float(plant.dt) * np.block([[A, B], [np.zeros((m, n + m))]]))
    policy = learning.adaptive_outputs(plant)
    step, carry = jax.jit(lambda carry, y: policy(carry, y)), policy.init(())
    x, missed, size = 0.3 * np.asarray(plant.scales[0]), [], []
    for _ in range(150):
        y = C @ x
        missed.append(np.abs(np.asarray(carry[0].expected[: len(C)] * policy.scale_y) - y))
        size.append(np.abs(y))
        carry, u = step(carry, jnp.asarray(y))
        x = wide[:n, :n] @ x + wide[:n, n:] @ np.asarray(u)
    assert np.max(missed[40:]) < 1e-3 * np.max(size)
    assert np.abs(x / np.asarray(plant.scales[0])).max() < 0.1


def test_loops_from_outputs_alone_cost_little_more_than_the_optimum():
    names = ("pendulum", "gantry_crane", "coupled_tanks")
    for name in names:
        plants = systems.sample(name, key=jax.random.key(0), num=3)
        problem = evaluation.unknown_problem(plants, outputs=True)
        C = np.asarray(plants.output_matrix()) * np.asarray(plants.scales[0])
        C = C / np.linalg.norm(C, axis=-1, keepdims=True)
        np.testing.assert_allclose(problem.Q[0, : plants.n, : plants.n], C.T @ C if C.ndim == 2 else C[0].T @ C[0])
        regret = evaluation.unknown(evaluation.from_outputs(plants), problem, key=KEY, num_initial=2)
        assert not regret.failed.any()
        assert 1 < float(jnp.median(regret.ratio)) < 2.5
        # it comes near the optimal gain's cost in the end
        assert float(jnp.median(regret.excess[..., 100])) < 0.1


def test_outputs_that_are_not_measured_teach_nothing_and_are_bridged():
    plant = systems.make("pendulum")
    policy = learning.adaptive_outputs(plant)
    sampled = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    A, B, C = (np.asarray(M) for M in (sampled.A, sampled.B, plant.output_matrix()))
    carry, x, step = policy.init(()), np.array([0.1, 0.0]), jax.jit(lambda carry, y: policy(carry, y))
    for t in range(150):
        lost = t in (3, 40, 41, 42, 60)
        before = carry[0].belief
        carry, u = step(carry, jnp.full(1, jnp.nan) if lost else jnp.asarray(C @ x))
        assert np.isfinite(np.asarray(u)).all()
        if lost:
            np.testing.assert_array_equal(carry[0].belief.theta, before.theta)
        x = A @ x + B @ np.asarray(u)
    assert np.abs(x).max() < 1e-3
    assert int(carry[2]) == 150 - 61


def test_a_batch_is_its_members_one_by_one():
    plants = systems.sample("pendulum", key=jax.random.key(1), num=2)
    policy = simulation.Measured(learning.adaptive_outputs(plants), simulation.outputs(plants))
    x0 = jnp.array([[0.1, 0.0], [0.0, 0.3]])
    run = simulation.rollout(plants, policy, x0, 80)
    for i, plant in enumerate(plants):
        alone = simulation.Measured(learning.adaptive_outputs(plant), simulation.outputs(plant))
        np.testing.assert_allclose(run.xs[i], simulation.rollout(plant, alone, x0[i], 80).xs, atol=1e-7)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: learning.adaptive_outputs(systems.make("pendulum"), order=5), "at most four states an output"),
        (lambda: learning.adaptive_outputs(systems.make("pendulum"), order=0), "order: expected a whole number"),
        (lambda: learning.adaptive_outputs(systems.make("pendulum"), noise=-1.0), "noise: expected numbers ≥ 0"),
        (lambda: learning.adaptive_outputs(systems.make("pendulum"), limit=np.nan), "limit: expected"),
        (lambda: learning.adaptive_outputs(systems.make("pendulum"), doublings=-1), "doublings: expected"),
        (
            lambda: evaluation.from_outputs(systems.make("pendulum"))(
                evaluation.unknown_problem(
                    systems.sample("pendulum", key=jax.random.key(0), num=2), outputs=True
                ).hidden()
            ),
            "expected those of the problem, 2, but found 1",
        ),
    ],
)
def test_plants_with_too_few_outputs_are_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_measurements_of_another_size_are_refused():
    policy = learning.adaptive_outputs(systems.make("pendulum"))
    with pytest.raises(ValueError, match=r"expected 1 outputs, but found shape \(2,\); simulation\.Measured"):
        policy(policy.init(()), jnp.zeros(2))
