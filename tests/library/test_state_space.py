"""The one value for whatever is u = K(z) y: against SciPy, and against a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal

from lqrlab import compute, control, simulation, systems
from lqrlab.compute.threads import aligned

A, B = np.array([[-1.0, 2.0], [0.0, -3.0]]), np.array([[0.5], [1.0]])
C, D = np.array([[1.0, -4.0]]), np.array([[0.2]])
SYSTEM = control.StateSpace(A, B, C, D)


def test_response_and_zero_order_hold_are_scipys():
    w = np.array([0.1, 1.0, 30.0])
    expected = scipy.signal.freqresp((A, B, C, D), w)[1]
    np.testing.assert_allclose(SYSTEM.response(w)[:, 0, 0], expected, rtol=1e-12)
    a, b, c, d, _ = scipy.signal.cont2discrete((A, B, C, D), 0.3)
    held = SYSTEM.sampled(0.3)
    for ours, theirs in zip(held.matrices, (a, b, c, d)):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)
    expected = scipy.signal.dfreqresp((a, b, c, d, 0.3), 0.3 * w[:2])[1]
    np.testing.assert_allclose(held.response(w[:2])[:, 0, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(np.sort(SYSTEM.poles.real), [-3.0, -1.0])
    assert held.sampled(0.3) is held


@pytest.mark.parametrize("sampled", [False, True])
def test_a_bound_system_is_its_recursion_within_the_limits(sampled):
    plant = systems.make("dc_motor")
    m, p = plant.m, plant.output_matrix().shape[-2]
    controller = control.StateSpace(A, np.ones((2, p)), np.ones((m, 2)), -0.5 * np.ones((m, p)))
    problem = simulation.Problem.of(plant, limits=(-0.3, 0.3), linear=True)
    a, b, c, d, _ = scipy.signal.cont2discrete(controller.matrices, float(plant.dt))
    given = control.StateSpace(a, b, c, d, float(plant.dt)) if sampled else controller
    run = simulation.rollout(problem, given, jnp.linspace(1.0, 2.0, plant.n), 40)
    x, z, shown = np.linspace(1.0, 2.0, plant.n), np.zeros(2), np.asarray(plant.output_matrix())
    for t in range(40):
        y = shown @ x
        u, z = np.clip(c @ z + d @ y, -0.3, 0.3), a @ z + b @ y
        np.testing.assert_allclose(run.us[t], u, atol=1e-9)
        x = np.asarray(problem.A) @ x + np.asarray(problem.B) @ u
    assert np.abs(run.us).max() == pytest.approx(0.3)


def test_without_states_it_is_a_gain():
    gain = control.StateSpace(np.zeros((0, 0)), np.zeros((0, 1)), np.zeros((1, 0)), [[-2.0]])
    assert (gain.order, gain.poles.size) == (0, 0)
    np.testing.assert_array_equal(gain.response([0.0, 5.0]), np.full((2, 1, 1), -2.0))
    plant = systems.make("dc_motor")
    problem = simulation.Problem.of(plant, linear=True)
    shown = jnp.eye(1, plant.n)
    policy = simulation.Measured(simulation.LinearController.of(gain, problem), shown)
    run = simulation.rollout(problem, policy, jnp.ones(plant.n), 5)
    np.testing.assert_allclose(run.us[:, 0], -2.0 * run.xs[:-1, 0], rtol=1e-12)


def test_it_is_a_value_that_jax_maps():
    many = jax.tree.map(lambda a: jnp.stack([a, 2.0 * a]), SYSTEM)
    traces = jax.vmap(lambda s: jnp.trace(s.A))(many)
    np.testing.assert_allclose(traces, [-4.0, -8.0])
    assert jax.tree.map(lambda _: None, SYSTEM).A is None  # as in_axes and the like are made


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: control.StateSpace(A, B[:1], C, D), "B: expected"),
        (lambda: control.StateSpace(A, B, C, D, 0.0), "sample time"),
        (lambda: control.StateSpace(A, B, C, D, 0.1).sampled(0.2), r"own sample time, 0\.1 s, but found 0\.2 s"),
        (lambda: simulation.bind(SYSTEM, systems.make("quadrotor")), "expected a StateSpace of 4 inputs by"),
    ],
)
def test_what_does_not_go_together_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_arrays_written_to_afterwards_change_nothing():
    """Such as JAX would share: on a boundary of 64 bytes."""
    A = aligned((8, 8), np.float64, np.zeros)
    kept = control.StateSpace(A, A[:, :1], A[:1], A[:1, :1], 0.1).A, compute.as_jax(A)
    A[:] = 9
    assert not np.any(kept)
