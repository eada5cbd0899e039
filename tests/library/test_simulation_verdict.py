"""The verdict on closed loops: against exact poles, and on runs whose end is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from lqrlab import compute, control, evaluation, simulation, systems
from lqrlab.simulation import Verdict, verdict

CONVERGED, BOUNDED, DIVERGED = Verdict


def rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def jordan(block, coupling):
    """A block above itself, as in two equal oscillators of which one drives the other."""
    return np.kron(np.eye(2), block) + coupling * np.kron(np.eye(2, k=1), np.eye(len(block)))


LOOPS = {
    "nothing moves": (np.zeros((2, 2)), CONVERGED),
    "deadbeat": (np.eye(3, k=1), CONVERGED),
    "all modes decay": (np.diag([0.99, -0.5, 0.0]), CONVERGED),
    "one mode grows": (np.diag([1.01, 0.5]), DIVERGED),
    "one mode grows with alternating sign": (np.diag([-1.01, 0.5]), DIVERGED),
    "damped oscillator": (0.999 * rotation(0.3), CONVERGED),
    "undamped oscillator": (rotation(0.3), BOUNDED),
    "growing oscillator": (1.001 * rotation(0.3), DIVERGED),
    "two equal oscillators apart": (np.kron(np.eye(2), rotation(0.3)), BOUNDED),
    "two equal oscillators, one driving the other": (jordan(rotation(0.3), 0.1), DIVERGED),
    "integrator": (np.eye(1), BOUNDED),
    "integrator beside what decays": (np.diag([1.0, 0.5, -0.2]), BOUNDED),
    "a padded integrator": (np.diag([1.0, 0.0, 0.0, 0.0]), BOUNDED),
    "sign that alternates": (np.diag([-1.0, 0.5]), BOUNDED),
    "two integrators apart": (np.eye(2), BOUNDED),
    "double integrator": (np.array([[1.0, 0.1], [0.0, 1.0]]), DIVERGED),
    "triple integrator": (np.eye(3) + 0.1 * np.eye(3, k=1), DIVERGED),
    "integrator driven by what decays": (np.array([[1.0, 1.0], [0.0, 0.9]]), BOUNDED),
    "defective and decaying": (jordan(0.9 * np.eye(1), 1.0), CONVERGED),
    "defective oscillator, decaying": (jordan(0.95 * rotation(0.3), 1.0), CONVERGED),
    "large before it decays": (np.array([[0.5, 30.0], [0.0, 0.4]]), CONVERGED),
    "not a number": (np.array([[0.5, np.nan], [0.0, 0.4]]), DIVERGED),
    "beyond all numbers": (np.array([[np.inf, 0.0], [0.0, 0.4]]), DIVERGED),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", LOOPS)
def test_a_gain_is_judged_by_the_poles_and_chains_of_its_closed_loop(name, dtype):
    F, expected = LOOPS[name]
    turn = scipy.linalg.qr(np.random.default_rng(1).normal(size=F.shape))[0]
    finite = np.isfinite(F).all()
    seen = np.stack([F, turn @ F @ turn.T if finite else F, F])  # the same loop in other coordinates
    judged = verdict.of_gain(jnp.asarray(seen, dtype))
    assert judged.dtype == jnp.int8
    assert judged.tolist() == [expected] * 3


@pytest.mark.parametrize(("n", "dtype"), [(2, np.float32), (6, np.float32), (6, np.float64), (12, np.float64)])
def test_a_transients_size_is_no_divergence(n, dtype):
    """Triangular, so its poles are its diagonal: 0.99 with states of some 1e9 on the way for six, 1e19 for twelve."""
    for pole, coupling, expected in ((0.99, 1.0, CONVERGED), (-0.95, 5.0, CONVERGED), (1.01, 1.0, DIVERGED)):
        F = pole * np.eye(n) + coupling * np.eye(n, k=1)
        assert verdict.of_gain(jnp.asarray(np.stack([F, F.T]), dtype)).tolist() == [expected] * 2
    assert int(verdict.of_gain(jnp.asarray(1e6 * np.eye(n, k=1), dtype))) == CONVERGED  # at rest after n samples


@pytest.mark.parametrize("n", [4, 6, 8])
def test_no_road_calls_a_linear_runs_transient_divergence(n):
    """Of 1e5 to 1e14 scales on the way to rest; the poles are 0.99, and 1.01 in the last loop."""
    x0, steps = np.random.default_rng(n).normal(size=(3, n)), 8000
    for pole, expected in ((0.99, CONVERGED), (1.01, DIVERGED)):
        A, b = pole * np.eye(n) + np.eye(n, k=1), np.eye(n)[:, -1:]
        problem = simulation.Problem.of(systems.from_matrices(scipy.linalg.logm(A).real / 0.1, b, dt=0.1))
        nothing = control.StateSpace(*(np.zeros(shape) for shape in ((1, 1), (1, n), (1, 1), (1, n))), 0.1)
        runs = np.stack([np.linalg.matrix_power(A, k) @ x0.T for k in range(0, steps, 5)], -1)
        sizes = np.abs(runs).max(0)
        assert sizes.max() > 1e5
        assert (verdict.of_sizes(sizes, linear=True) == expected).all()
        assert (verdict.of_sizes(sizes, linear=True, disturbed=True) == max(expected, BOUNDED)).all()
        assert (verdict.of_sizes(sizes) == DIVERGED).all()
        found = evaluation.evaluate(nothing, problem, x0=x0, num_steps=steps, key=jax.random.key(0))
        assert (found.verdict == expected).all()
        if pole < 1:
            assert evaluation.attraction(problem, nothing, x0, num_steps=steps).converged.all()
    left = np.concatenate([np.geomspace(1.0, 1e9, 50), np.geomspace(1e9, 3.0, 50), np.full(100, 3.0)])
    assert int(verdict.of_sizes(left, linear=True)) == BOUNDED  # three scales are no rest beside a transient's 1e9


@pytest.mark.parametrize("gap", [1e-6, 1e-9, 1e-12])
def test_slow_loops_are_judged_as_designs_certify_them(gap):
    with jax.enable_x64(True):
        design = control.dlqr(np.diag([1 - gap, 0.5]), [[0.0], [1.0]], np.eye(2), [[1.0]])
        assert bool(design.stabilizing)
        assert int(verdict.of_gain(design.closed_loop)) == CONVERGED
        assert verdict.of_gain(jnp.array([[[1.0 + gap]], [[1.0]]])).tolist() == [DIVERGED, BOUNDED]
        assert verdict.of_gain(np.array([[[0]], [[-1]], [[2]]])).tolist() == [CONVERGED, BOUNDED, DIVERGED]


@pytest.mark.parametrize("radius", [0.9, 0.999, 0.999999, 1.000001, 1.001, 1.1])
def test_random_loops_are_judged_by_their_spectral_radius(radius):
    F = np.random.default_rng(0).normal(size=(50, 6, 6))
    F = F * (radius / np.abs(np.linalg.eigvals(F)).max(-1))[:, None, None]
    assert (verdict.of_gain(jnp.asarray(F)) == (CONVERGED if radius < 1 else DIVERGED)).all()


@pytest.mark.parametrize(("dtype", "decades"), [(np.float64, 6), (np.float32, 3)])
@pytest.mark.parametrize("shape", [np.asarray, np.triu], ids=["dense", "triangular"])
@pytest.mark.parametrize("radius", [0.99, 1.01])
def test_units_do_not_change_the_verdict_on_a_gain(radius, shape, dtype, decades):
    rng = np.random.default_rng(2)
    F = shape(rng.normal(size=(50, 6, 6)))
    F = F * (radius / np.abs(np.linalg.eigvals(F)).max(-1))[:, None, None]
    units = 10.0 ** rng.uniform(-decades, decades, (50, 6))
    seen = F * units[:, None, :] / units[:, :, None]
    assert (verdict.of_gain(jnp.asarray(seen, dtype)) == (CONVERGED if radius < 1 else DIVERGED)).all()


@pytest.mark.parametrize(
    ("F", "dtype"),
    [
        ([[8.5, 5, 10], [3, 3, 4], [-7.5, -5, -9]], np.float32),
        ([[352.5, 0, -418], [370, 1, -440], [296, 0, -351]], np.float64),
    ],
)
def test_exact_numbers_of_a_loop_on_the_boundary_are_not_rounded(F, dtype):
    assert int(verdict.of_gain(jnp.asarray(F, dtype))) == BOUNDED


@pytest.mark.parametrize("residue", [0.0, 1e-18, 1e-30])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_large_coupling_beside_a_residue_of_rounding_is_no_growth(residue, dtype):
    assert int(verdict.of_gain(jnp.asarray([[0.5, 1e6], [residue, 0.5]], dtype))) == CONVERGED


def test_the_optimum_of_a_satellite_in_metres_and_radians_converges():
    problem = simulation.Problem.of(systems.make("satellite_orbit"), linear=True)
    assert float(jnp.max(jnp.abs(problem.closed_loop()))) > 1e5  # its units are as uneven as that
    assert int(verdict.of_gain(problem.closed_loop())) == CONVERGED


T = np.arange(201.0)
RUNS = {
    "at rest from the start": (0 * T, CONVERGED),
    "zero to rounding": (1e-16 * (1 + np.sin(T)), CONVERGED),
    "decays to nothing": (0.9**T, CONVERGED),
    "far out, then at rest": (500 * np.exp(-T / 10), CONVERGED),
    "still decaying, within one scale": (2 * 0.99**T, CONVERGED),
    "still decaying, within a tenth of the start": (200 * 0.98**T, CONVERGED),
    "still decaying, far out": (20 * 0.995**T, BOUNDED),
    "decays by less than a hundredth from quarter to quarter": (0.9999**T, BOUNDED),
    "stays where it is": (0 * T + 0.3, BOUNDED),
    "limit cycle": (np.abs(np.sin(T)), BOUNDED),
    "another equilibrium": (5 - 4 * 0.9**T, BOUNDED),
    "grows": (1.005**T, DIVERGED),
    "grows like time": (T / 10, DIVERGED),
    "leaves the model and comes back": (np.where(T == 50, 1001.0, 0.5**T), DIVERGED),
    "within a thousand times a large start": (np.where(T == 50, 9000.0, 10 * 0.5**T), CONVERGED),
    "not a number": (np.where(T == 100, np.nan, 0.9**T), DIVERGED),
    "beyond all numbers": (np.where(T == 100, np.inf, 0.9**T), DIVERGED),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_judged_by_its_sizes(name, dtype):
    sizes, expected = RUNS[name]
    runs = jnp.asarray(np.stack([sizes, sizes]), dtype)
    assert verdict.of_sizes(runs).tolist() == [expected] * 2
    left = not np.all(sizes <= 1000 * max(sizes[0], 1))
    disturbed = DIVERGED if left or name == "beyond all numbers" else BOUNDED
    assert verdict.of_sizes(runs, disturbed=True).tolist() == [disturbed] * 2


@pytest.mark.parametrize("steps", [1, 2, 3, 200])
def test_the_quarters_of_a_run_do_not_overlap(steps):
    before, last = verdict.quarters(steps)
    assert 0 <= before <= last <= steps
    assert last - before in (steps + 1 - last, last)  # a run of two samples has no more


def test_the_size_of_a_state_is_in_scales_of_its_plant():
    xs, scales = np.array([[[1.0, -6.0], [3.0, 2.0]]]), np.array([[1.0, 3.0]])
    np.testing.assert_array_equal(verdict.size(xs, scales), [[2.0, 3.0]])
    np.testing.assert_array_equal(verdict.size(jnp.asarray(xs), jnp.asarray(scales)), [[2.0, 3.0]])


def test_a_region_of_attraction_is_judged_as_whole_runs_are():
    """Loops that have decided are not run further, which must not change the verdict on them."""
    plant = systems.make("pendulum")
    policy = simulation.LinearPolicy(jnp.array([[6.0, 1.0]]))
    limits = (-0.6, 0.6)
    x0 = np.stack(np.meshgrid(np.linspace(-3, 3, 9), np.linspace(-6, 6, 7)), axis=-1)
    found = evaluation.attraction(plant, policy, x0, limits=limits, num_steps=330)
    run = simulation.rollout(plant, policy, x0, 330, limits=limits)
    expected = np.asarray(verdict.of_sizes(verdict.size(run.xs, plant.scales[0])))
    assert {BOUNDED, CONVERGED} <= set(expected.ravel().tolist())
    np.testing.assert_array_equal(found.verdict, expected)
    assert found.share == np.mean(expected == CONVERGED)
    np.testing.assert_array_equal(found.converged | found.diverged, expected != BOUNDED)
    early = found.seconds < 330 * plant.dt
    assert early.any(), "what is at rest is not run to the end"
    assert (found.verdict[early] != BOUNDED).all()


@compute.pytree
@dataclasses.dataclass(frozen=True)
class Tiring:
    """A gain; but nothing after 60 samples in a loop that began with a positive angle."""

    K: jax.Array

    def init(self, batch_shape):
        return jnp.zeros(batch_shape), jnp.zeros(batch_shape)

    def __call__(self, memory, x):
        count, first = memory
        first = jnp.where(count == 0, x[..., 0], first)
        tired = (first > 0) & (count >= 60)
        return (count + 1, first), jnp.where(tired[..., None], 0.0, -x @ self.K.T)


def test_policies_keep_their_memory_on_a_region_of_attraction():
    plant = systems.make("pendulum")
    K = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).K
    x0 = np.array([[0.0, 0.0], [0.3, 0.0], [-0.2, 0.5]])  # the first is at rest from the first look on
    assert evaluation.attraction(plant, simulation.LinearPolicy(K), x0, num_steps=400).converged.all()
    tired = evaluation.attraction(plant, Tiring(K), x0, num_steps=400)
    assert tired.converged.tolist() == [True, False, True]
    run = simulation.rollout(plant, Tiring(K), x0, 400)
    expected = verdict.of_sizes(verdict.size(run.xs, plant.scales[0]))
    np.testing.assert_array_equal(tired.verdict, expected)


def attracted(A, x0, num_steps, dt, scale=1.0):
    """Verdicts and seconds of loops that are left to themselves."""
    Q = np.eye(len(A)) / scale**2  # which is where the scales of such a plant come from
    plant = systems.from_matrices(A, np.zeros((len(A), 1)), Q=Q, dt=dt)
    policy = simulation.no_control(plant)
    found = evaluation.attraction(plant, policy, np.array(x0, float), num_steps=num_steps)
    return found.verdict.tolist(), found.seconds


def test_a_loop_is_run_until_it_has_left_the_model_or_is_at_rest():
    """By closed forms: e^t; a chain that swings up to 1000/e times its start beside a state that stands still; e^-t."""
    num_steps, dt = 400, 0.05
    look = 25 * dt
    verdicts, seconds = attracted([[1.0]], [[0.1], [5.0]], num_steps, dt)
    assert verdicts == [DIVERGED] * 2
    np.testing.assert_allclose(seconds, num_steps * dt)  # a linear model holds everywhere
    plant = systems.from_dynamics(
        lambda x, u: jnp.where(x > 0, x, 2 * x) + u, x_eq=[0.0], u_eq=[0.0], Q=[[1.0]], R=[[1.0]], dt=dt
    )
    found = evaluation.attraction(plant, simulation.no_control(plant), np.array([[0.1], [5.0]]), num_steps=num_steps)
    assert found.diverged.all()
    left = np.log([1e4, 1e3])  # a thousand scales, and a thousand times the start
    assert np.all((left - dt <= found.seconds) & (found.seconds <= left + look + dt))
    # up to 1800 scales, 370 times the start, and then at 5 for ever: neither far away nor at rest
    verdicts, seconds = attracted([[-1, 1000, 0], [0, -1, 0], [0, 0, 0]], [[0, 5, 5]], num_steps, dt)
    assert verdicts == [BOUNDED]
    np.testing.assert_allclose(seconds, num_steps * dt)
    verdicts, seconds = attracted([[-1.0]], [[3.0]], num_steps, dt)
    assert verdicts == [CONVERGED]
    assert np.log(1e4) <= seconds[0] <= np.log(1e4) + 2 * look


@pytest.mark.parametrize(
    ("rate", "start", "scale", "expected"),
    [
        (0.006, 1.0, 1.0, DIVERGED),  # sample 7 is more than 1 % above sample 5, sample 6 is not
        (0.004, 1.0, 1.0, BOUNDED),
        (-0.02, 0.9, 1.0, CONVERGED),  # within one scale and still falling
        (-0.02, 0.9, 0.01, BOUNDED),  # 80 scales away
        (-0.43, 20.0, 1.0, CONVERGED),  # within a tenth of the start
        (-0.30, 20.0, 1.0, BOUNDED),
    ],
)
def test_a_short_run_is_judged_by_its_last_two_quarters(rate, start, scale, expected):
    """e^(rate k) at the samples 0 … 7, of which 4, 5 and 6, 7 are the last quarters."""
    assert attracted([[rate]], [[start]], 7, 1.0, scale)[0] == [expected]


def test_gradients_do_not_pass_through_a_verdict():
    assert float(jax.grad(lambda F: F.sum() + 0.0 * verdict.of_gain(F).astype(float))(0.5 * jnp.eye(2))[0, 0]) == 1.0


@pytest.mark.parametrize("num_steps", [1, 2, 6])
def test_a_swing_seen_for_a_few_samples_is_no_growth(num_steps):
    swing = 1 + 0.5 * jnp.arange(num_steps + 1.0)
    assert int(simulation.verdict.of_sizes(swing)) == BOUNDED
    assert int(simulation.verdict.of_sizes(swing.at[-1].set(jnp.nan))) == DIVERGED
