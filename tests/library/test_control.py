"""Designs against SciPy, against simulation, and against what is asked of bad input."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from scipy_oracle import gain, held, relative, van_loan

from lqrlab import control, simulation, systems
from lqrlab.compute import quick_jit
from lqrlab.control import matrix_checks, regulator

FAMILIES = "pendulum", "magnetic_levitation", "cart_pole", "two_link_arm", "quadrotor"  # of five dimensions
DOUBLE = (np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]), np.diag([2.0, 1.0]), np.eye(1))


def problem(seed, n, m, lead=()):
    """A dense random problem with cross weight and a joint weight ≥ 0."""
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(*lead, n, n)), rng.normal(size=(*lead, n, m))
    L = rng.normal(size=(*lead, n + m, n + m)) / np.sqrt(n + m)
    W = L @ np.swapaxes(L, -1, -2) + 0.1 * np.eye(n + m)
    return A, B, W[..., :n, :n], W[..., n:, n:], W[..., :n, n:]


def test_plants_of_mixed_dimension_share_one_call():
    plants = [systems.sample(name, key=jax.random.key(2), num=2) for name in FAMILIES]
    both = simulation.Problem.of(plants, optimum=False)
    A, B, Q, R, _ = both.continuous
    design = control.lqrd(A, B, Q, R, both.dt)
    assert design.K.shape == (2 * len(FAMILIES), systems.M_MAX, systems.N_MAX)
    for i, plant in enumerate(plants):
        n, m = plant.n, plant.m
        alone = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
        padded = np.array(design.K[2 * i : 2 * i + 2])
        assert relative(padded[:, :m, :n], np.asarray(alone.K)) < 1e-10
        padded[:, :m, :n] = 0
        assert np.all(padded == 0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
def test_continuous_and_discrete_gains_equal_scipys(n):
    m = max(1, n // 2)
    A, B, Q, R, N = problem(n, n, m, (20,))
    result, discrete = control.lqr(A, B, Q, R, N), control.dlqr(A, B, Q, R, N)
    for i in range(20):
        K, P = gain(A[i], B[i], Q[i], R[i], N[i], discrete=False)
        assert relative(result.K[i], K) < 1e-8
        assert relative(result.P[i], P) < 1e-8
        poles = np.linalg.eigvals(A[i] - B[i] @ np.asarray(result.K[i]))
        assert np.allclose(np.sort(np.asarray(result.poles[i])), np.sort(poles))
        assert relative(discrete.K[i], gain(A[i], B[i], Q[i], R[i], N[i])[0]) < 1e-8
    assert bool(jnp.all(result.stabilizing & discrete.stabilizing))
    assert float(jnp.max(result.residual)) < 1e-11


def test_a_design_unpacks():
    K, P, poles, residual, stabilizing = control.lqr(*DOUBLE)
    assert (K.shape, P.shape, poles.shape) == ((1, 2), (2, 2), (2,))
    assert float(residual) < 1e-13
    assert bool(stabilizing)
    assert np.allclose(K, [[np.sqrt(2), np.sqrt(1 + 2 * np.sqrt(2))]])  # by hand


def test_sampling_equals_the_block_exponential():
    A, B, Q, R, N = problem(5, 4, 2)
    for dt in (1e-3, 0.1, 2.0):
        result = control.discretize(A, B, Q, R, dt, N)
        for ours, theirs in zip(result, van_loan(A, B, Q, R, dt, N)):
            assert relative(ours, theirs) < 1e-11
        for ours, theirs in zip(control.c2d(A, B, dt), held(A, B, dt)):
            assert relative(ours, theirs) < 1e-12


@pytest.mark.parametrize("wrapped", [lambda f: f, jax.jit])
@pytest.mark.parametrize("fast", [1e7, 1e9, 1e20])
def test_sampling_of_a_plant_however_stiff_is_the_closed_form(fast, wrapped):
    a, dt = np.array([fast, 1.0]), 1.0
    Ad, Bd = wrapped(control.c2d)(np.diag(-a), np.eye(2), dt)
    assert np.allclose(np.diag(Ad), np.exp(-a * dt), rtol=1e-13, atol=0)
    assert np.allclose(np.diag(Bd), -np.expm1(-a * dt) / a, rtol=1e-13, atol=0)
    W = wrapped(control.sampled_noise)(np.diag(-a), np.eye(2), dt)
    assert np.allclose(np.diag(W), -np.expm1(-2 * a * dt) / (2 * a), rtol=1e-13, atol=0)


def test_a_member_that_is_not_finite_leaves_the_sampling_of_the_others_alone():
    A, B, Q, R, N = problem(8, 3, 1, (100,))
    A[3, 0, 0], A[7, 1, 1] = np.nan, np.inf
    for sampled in (control.discretize(A, B, Q, R, 0.3, N), jax.jit(control.discretize)(A, B, Q, R, 0.3, N)):
        for i in (0, 5, 99):
            single = van_loan(A[i], B[i], Q[i], R[i], 0.3, N[i])
            assert all(relative(np.asarray(a)[i], b) < 1e-10 for a, b in zip(sampled, single))
        assert np.isnan(np.asarray(sampled.Q)[[3, 7]]).all()


@pytest.mark.parametrize("n", [1, 4, 9])
def test_lyapunov_equations_equal_scipys(n):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n))
    Q = rng.normal(size=(n, n))  # not symmetric: the equation does not ask for it
    stable = A - (np.linalg.eigvals(A).real.max() + 0.1) * np.eye(n)
    assert relative(control.lyap(stable, Q), scipy.linalg.solve_continuous_lyapunov(stable, -Q)) < 1e-10
    stable = A / (np.abs(np.linalg.eigvals(A)).max() * 1.01)
    assert relative(control.dlyap(stable, Q), scipy.linalg.solve_discrete_lyapunov(stable, Q)) < 1e-10
    assert not np.all(np.isfinite(control.dlyap(1.01 * stable / 0.99, Q)))


def test_lyapunov_equations_hold_in_any_units_of_the_states():
    rng = np.random.default_rng(0)
    for _ in range(20):
        A, d = rng.normal(size=(4, 4)), 10 ** rng.uniform(-7, 7, 4)
        both = d[:, None] * d
        slow = A - (np.linalg.eigvals(A).real.max() + 0.3) * np.eye(4)
        X = np.asarray(control.lyap(slow * d[:, None] / d, both)) / both
        assert relative(X, scipy.linalg.solve_continuous_lyapunov(slow, -np.ones((4, 4)))) < 1e-9
        slow = A / (np.abs(np.linalg.eigvals(A)).max() * 1.2)
        X = np.asarray(control.dlyap(slow * d[:, None] / d, both)) / both
        assert relative(X, scipy.linalg.solve_discrete_lyapunov(slow, np.ones((4, 4)))) < 1e-9
    assert np.allclose(control.dlyap([[0.5, 1e14], [0.0, 0.5]], np.eye(2))[0, 0], 80 / 27 * 1e28)  # Σ (k aᵏ⁻¹)²


def test_lyapunov_equations_of_unstable_matrices_have_no_answer():
    A, Q = np.random.default_rng(0).normal(size=(2000, 4, 4)), np.eye(4)
    A[::2] *= 0.4
    answered = np.isfinite(control.dlyap(A, Q)).all((-1, -2))
    assert np.array_equal(answered, np.abs(np.linalg.eigvals(A)).max(-1) < 1)
    A -= 1.5 * np.eye(4)
    answered = np.isfinite(control.lyap(A, Q)).all((-1, -2))
    assert np.array_equal(answered, np.linalg.eigvals(A).real.max(-1) < 0)


# Broadcasting, jit, derivatives ----------------------------------------------------------------------------


def test_leading_axes_broadcast_and_vmap_agrees():
    A, B, _, R, _ = problem(7, 3, 1, (4, 1))
    weights = np.geomspace(0.1, 10, 5)[:, None, None] * np.eye(3)
    grid = control.dlqr(A, B, weights, R)
    assert grid.K.shape == (4, 5, 1, 3)
    one = control.dlqr(A[2, 0], B[2, 0], weights[3], R[2, 0])
    assert np.allclose(grid.K[2, 3], one.K, rtol=1e-11)
    mapped = jax.jit(jax.vmap(lambda w: control.dlqr(A[2, 0], B[2, 0], w, R[2, 0]).K))(weights)
    assert np.allclose(mapped, grid.K[2], rtol=1e-11)


DESIGNS = {
    "lqr": control.lqr,
    "lqrd": lambda A, B, Q, R, N: control.lqrd(A, B, Q, R, 0.1, N),  # a discrete design of a sampled problem
}


@pytest.mark.parametrize("name", DESIGNS)
def test_derivatives_equal_finite_differences(name):
    """First and second, in forward and in reverse mode, with respect to each of A, B, Q, R, N."""
    args = tuple(map(jnp.asarray, problem(11, 3, 2)))

    def value(args):  # a number that depends on each entry of K and P
        A, B, Q, R, N = args
        design = DESIGNS[name](A, B, (Q + Q.T) / 2, (R + R.T) / 2, N)
        return jnp.sum(jnp.sin(design.K)) + jnp.sum(jnp.cos(design.P))

    def inner(a, b):
        return sum(jnp.sum(x * y) for x, y in zip(a, b))

    slopes = jax.value_and_grad(value)
    first = quick_jit(slopes)
    forward = quick_jit(lambda push: jax.jvp(slopes, (args,), (push,))[1])
    reverse = quick_jit(jax.grad(lambda args, push: inner(jax.grad(value)(args), push)))
    gradient = first(args)[1]
    rng, h = np.random.default_rng(0), 1e-5
    for which in range(5):
        push = [jnp.zeros_like(a) for a in args]
        push[which] = jnp.asarray(rng.normal(size=args[which].shape))
        up, down = (first(tuple(a + s * h * p for a, p in zip(args, push))) for s in (1, -1))
        slope, second = forward(tuple(push))
        assert np.allclose(slope, (up[0] - down[0]) / (2 * h), rtol=1e-6), "ABQRN"[which]
        assert np.allclose(slope, inner(gradient, push), rtol=1e-9), "ABQRN"[which]
        backward = reverse(args, tuple(push))
        for k, (a, b, high, low) in enumerate(zip(second, backward, up[1], down[1])):
            scale = max(float(jnp.linalg.norm(d)) for d in second)
            assert jnp.linalg.norm(a - b) < 1e-9 * scale, ("ABQRN"[which], "ABQRN"[k])
            assert jnp.linalg.norm(a - (high - low) / (2 * h)) < 1e-6 * scale, ("ABQRN"[which], "ABQRN"[k])


# Bad input -------------------------------------------------------------------------------------------------


def test_an_unstabilizable_mode_is_named():
    A, B = np.diag([4.2, -1.0]), np.array([[0.0], [1.0]])
    refused(r"mode at \+4\.2 rad/s is not stabilizable.*state 0", control.lqr, A, B, np.eye(2), np.eye(1))
    refused(r"mode at \+4\.2 \(discrete\) is not stabilizable", control.dlqr, A, B, np.eye(2), np.eye(1))


def test_an_unweighted_integrator_is_named():
    refused("not detectable", control.lqr, np.diag([0.0, -1.0]), np.ones((2, 1)), np.diag([0.0, 1.0]), np.eye(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"R": -np.eye(1)}, "R: expected positive definite, but found the eigenvalue -1"),
        ({"R": np.zeros((1, 1))}, "R: expected positive definite"),
        ({"Q": np.diag([6.0, -4e-3])}, "Q: expected positive semidefinite, but found the eigenvalue -0.004"),
        ({"Q": np.diag([1.0, -2.0])}, "Q: expected positive semidefinite, but found the eigenvalue -2"),
        ({"Q": np.array([[1.0, 1.0], [0.0, 1.0]])}, "Q: expected a symmetric matrix"),
        ({"Q": np.eye(3)}, r"Q: expected shape \(2, 2\) \[n, n\] to go with B of shape \(2, 1\), but found \(3, 3\)"),
        ({"A": np.zeros((2, 3))}, r"A: expected shape \(2, 2\)"),
        ({"B": np.zeros(2)}, r"B: expected a matrix \[n, m\], but found shape \(2,\)"),
        ({"A": np.array([[0.0, np.nan], [0.0, 0.0]])}, "A: expected finite numbers, but found nan in row 0"),
        ({"N": np.full((2, 1), 9.0)}, "Q − N R⁻¹ Nᵀ: expected positive semidefinite"),
        ({"N": np.zeros((1, 2))}, r"N: expected shape \(2, 1\)"),
        ({"A": np.zeros((3, 2, 2)), "Q": np.ones((4, 1, 1)) * np.eye(2)}, "leading axes"),
    ],
)
def test_bad_matrices_are_refused_in_words(change, message):
    args = dict(zip("ABQR", DOUBLE)) | change
    refused(message, control.lqr, **args)


@pytest.mark.parametrize("design", ["lqr", "dlqr", "lqrd"])
def test_a_weight_that_printing_made_indefinite_is_answered_with_a_warning(design):
    rng = np.random.default_rng(0)
    V, A, B = np.linalg.qr(rng.normal(size=(3, 3)))[0], rng.normal(size=(3, 3)), rng.normal(size=(3, 1))
    Q = V @ np.diag([6.0, 1.0, -5e-4]) @ V.T
    Q = (Q + Q.T) / 2
    with pytest.warns(UserWarning, match=r"Q: .* found the eigenvalue -0\.0005, which the rounding of a table"):
        result = getattr(control, design)(A, B, Q, np.eye(1), *([0.1] if design == "lqrd" else []))
    problem = van_loan(A, B, Q, np.eye(1), 0.1) if design == "lqrd" else (A, B, Q, np.eye(1), np.zeros((3, 1)))
    K, P = gain(*problem, discrete=design != "lqr")
    with warnings.catch_warnings():  # a state that costs nothing is no reason for one
        warnings.simplefilter("error")
        getattr(control, design)(A, B, np.diag([2.0, 1.0, 0.0]), np.eye(1), *([0.1] if design == "lqrd" else []))
    assert relative(result.K, K) < 1e-10
    assert relative(result.P, P) < 1e-10


def test_inputs_that_cost_nothing_give_a_deadbeat_controller_in_discrete_time():
    A, B = np.array([[0.9, 1.0], [0.3, 1.1]]), np.array([[0.0], [1.0]])
    with pytest.warns(UserWarning, match="R: .* an input that costs nothing is bounded by what its effect costs"):
        result = control.dlqr(A, B, np.diag([1.0, 0.0]), np.zeros((1, 1)))
    assert np.allclose(np.linalg.matrix_power(A - B @ np.asarray(result.K), 2), 0, atol=1e-12)
    assert np.allclose(result.P, scipy.linalg.solve_discrete_are(A, B, np.diag([1.0, 0.0]), np.zeros((1, 1))))
    with pytest.warns(UserWarning, match="R: "), pytest.raises(ValueError, match="no input moves it"):
        control.dlqr(A, 0 * B, np.eye(2), np.zeros((1, 1)))  # without effect nothing bounds it
    refused("R: expected positive definite, but found the eigenvalue -", control.dlqr, A, B, np.eye(2), [[-0.1]])


@pytest.mark.parametrize("design", [control.lqr, control.dlqr, lambda *args: control.lqrd(*args, 0.1)])
def test_a_batch_answers_weights_that_printing_made_indefinite_as_a_single_problem_does(design):
    rng = np.random.default_rng(0)
    A, B, R = rng.normal(size=(3, 3)), rng.normal(size=(3, 1)), np.eye(1)
    Q = np.diag([6.0, 1.0, -5e-4])
    with pytest.warns(UserWarning, match=r"Q: .* found the eigenvalue -0\.0005"):
        alone = design(A, B, Q, R)
    Qs = np.stack([np.eye(3), Q, Q - 0.1 * np.eye(3), Q + np.eye(3, k=1)])
    with pytest.warns(UserWarning, match="eigenvalue -0.0005 in 1 of the batch, which the rounding of a table") as said:
        batch = design(A, B, Qs, R)
    assert len(said) == 1
    assert batch.stabilizing.tolist() == [True, True, False, False]
    assert relative(batch.K[1], np.asarray(alone.K)) < 1e-12
    assert jax.jit(design)(A, B, Qs, R).stabilizing.tolist() == [True, False, False, False]


def test_weights_bound_a_cost_below_as_their_eigenvalues_say():
    rng = np.random.default_rng(3)
    Q, R, N = (rng.normal(size=(300, *shape)) for shape in ((3, 3), (2, 2), (3, 2)))
    Q, R, N = Q @ Q.mT + 0.5 * (Q + Q.mT), R @ R.mT + 0.3 * (R + R.mT), 0.2 * N
    first = np.linalg.eigvalsh(R).min(-1)
    rest = np.linalg.eigvalsh(Q - N @ np.linalg.solve(R, N.mT)).min(-1)
    clear = (np.abs(first) > 1e-3) & (np.abs(rest) > 1e-3)
    bounded = (first > 0) & (rest > 0)
    for one, other in ((True, True), (True, False), (False, True)):
        assert np.sum(clear & ((first > 0) == one) & ((rest > 0) == other)) > 10
    found = regulator._bounded_below(*map(jnp.asarray, (Q, R, N)))
    np.testing.assert_array_equal(found[clear], bounded[clear])
    # a weight that is singular but for rounding is none that is negative
    V = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    Q = np.stack([V @ np.diag([1e3, 1.0, low]) @ V.T for low in (-1e-7, -1e-3)])
    assert regulator._bounded_below(jnp.asarray(Q), jnp.eye(1)[None], jnp.zeros((1, 3, 1))).tolist() == [True, False]


@pytest.mark.parametrize("design", [control.dlqr, lambda *args: control.lqrd(*args, 0.1)])
def test_a_batch_answers_inputs_that_cost_nothing_as_a_single_problem_does(design):
    A, B = np.array([[0.9, 1.0], [0.3, 1.1]]), np.array([[0.0], [1.0]])
    Q, R = np.diag([1.0, 0.0]), np.zeros((5, 1, 1))
    with pytest.warns(UserWarning, match="R: .* an input that costs nothing is bounded"):
        alone = design(A, B, Q, R[0])
    R[:2, 0, 0] = 1.0, -0.1
    with pytest.warns(UserWarning, match="eigenvalue 0 in 3 of the batch, an input that costs nothing") as said:
        batch = design(A, B, Q, R)
    assert len(said) == 1
    assert np.flatnonzero(~batch.stabilizing).tolist() == [1]
    assert relative(batch.K[2:], np.broadcast_to(alone.K, (3, 1, 2))) < 1e-8
    refused("R: expected positive definite, but found the eigenvalue 0", control.lqr, A, B, Q, R[2])
    assert not control.lqr(A, B, Q, R[2:]).stabilizing.any()


def test_a_sample_time_that_rounds_the_plant_away_is_said():
    (A, B, _, R), Q = DOUBLE, np.eye(2)
    fine = np.asarray(control.lqr(A, B, Q, R).K)
    for dt, lost in ((1e-12, 2e-3), (1e-10, 2e-6), (1e-9, 2e-7), (1e-8, 2e-8)):
        with pytest.warns(UserWarning, match="dt: a loop moves by only .* choose a longer sample time, or lqr"):
            assert np.abs(control.lqrd(A, B, Q, R, dt).K - fine).max() < lost
    assert relative(control.lqrd(A, B, Q, R, 1e-7).K, fine) < 2e-7


def test_the_reason_of_a_refusal_survives_the_debugging_of_nans():
    with jax.debug_nans(True):
        refused("is not stabilizable: no input moves it", control.lqr, [[2.0]], [[0.0]], [[1.0]], [[1.0]])
        assert np.isnan(control.care([[2.0]], [[0.0]], [[1.0]], [[1.0]]))


@pytest.mark.parametrize("dt", [0.0, -0.1, np.nan, np.inf])
def test_a_bad_sample_time_is_refused(dt):
    refused("dt: expected a sample time above 0 s", control.lqrd, *DOUBLE, dt)


@pytest.mark.parametrize("design", [control.lqr, control.dlqr])
def test_a_batch_marks_bad_members_and_solves_the_rest(design):
    A, B, Q, R, _ = problem(8, 3, 1, (6,))
    good = design(A, B, Q, R)
    A[1], A[3] = np.diag([2.0, 3.0, 0.1]), np.nan
    B[1] = np.array([[0.0], [1.0], [1.0]])  # nothing reaches the mode at 2
    # the equation has a solution, the cost no minimum
    R[4] = -R[4]
    Q[2] -= 1.1 * np.linalg.eigvalsh(Q[2])[0] * np.eye(3)
    for result in (design(A, B, Q, R), jax.jit(design)(A, B, Q, R)):
        assert np.array_equal(result.stabilizing, [True, False, False, False, False, True])
        assert np.all(np.isnan(np.asarray(result.K)[1:5]))
        assert np.allclose(np.asarray(result.K)[[0, 5]], np.asarray(good.K)[[0, 5]], rtol=1e-9)


def test_a_number_of_pythons_takes_the_type_of_the_matrices():
    A, B = np.diag([-1.0, -2.0]), np.ones((2, 1))
    single = [np.asarray(a, np.float32) for a in (A, B, np.eye(2))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of designs in float32
        for weight in (1.0, 1):
            assert control.lqr(*single, weight).K.dtype == np.float32
        assert control.lqr(*single, np.ones((1, 1))).K.dtype == np.float64
    assert control.lqr(A, B, np.eye(2), 1).K.dtype == np.float64


def test_no_problems_have_no_designs():
    nothing = np.zeros((0, 2, 2)), np.zeros((0, 2, 1)), np.eye(2), np.eye(1)
    assert control.lqrd(*nothing, 0.1).K.shape == control.lqr(*nothing).K.shape == (0, 1, 2)


def test_float32_answers_and_warns_once():
    matrix_checks._warn_of_float32.cache_clear()
    args = [np.asarray(a, np.float32) for a in DOUBLE]
    with pytest.warns(UserWarning, match="float32"):
        result = control.lqr(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        control.dlqr(*args)
    assert result.K.dtype == jnp.float32
    assert relative(result.K, np.asarray(control.lqr(*DOUBLE).K)) < 1e-5


# Identities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.8])
def test_the_cost_to_go_of_any_gain_is_what_its_loop_pays(scale):
    problem = control.Sampled(*(np.asarray(a) for a in control.discretize(*DOUBLE, 0.1)))
    design = control.dlqr(*problem)
    K = scale * np.asarray(design.K)
    P = control.cost_to_go(problem, K)
    x0 = np.array([1.0, -0.5])
    x, paid = x0, 0.0
    for _ in range(400):
        u = -K @ x
        paid += x @ problem.Q @ x + u @ problem.R @ u + 2 * x @ problem.N @ u
        x = problem.A @ x + problem.B @ u
    assert np.isclose(x0 @ P @ x0, paid, rtol=1e-9)
    assert (relative(P, np.asarray(design.P)) < 1e-12) == (scale == 1)


def test_a_plant_whose_products_overflow_is_refused_as_too_large():
    A, B, Q, R = DOUBLE
    refused("B: its entry of size 1e\\+300 is too large", control.lqr, A, 1e300 * np.asarray(B), Q, R)


def test_below_its_level_an_input_is_just_not_saturated():
    rng = np.random.default_rng(6)
    K, half, limit = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 4, 4)), np.array([0.5, 2.0])
    P = half @ half.mT + 0.1 * np.eye(4)
    level = control.unsaturated_level(K, P, limit)
    for gains, weight, c in zip(K, P, level):
        # the largest (Kx)² where xᵀPx = 1 is an eigenvalue of a pencil
        largest = [scipy.linalg.eigh(np.outer(k, k), weight, eigvals_only=True)[-1] for k in gains]
        assert np.isclose((np.sqrt(c * np.array(largest)) / limit).max(), 1, rtol=1e-9)
    assert np.allclose(control.unsaturated_level(K, P, 3.0), 9 * control.unsaturated_level(K, P, 1.0))
