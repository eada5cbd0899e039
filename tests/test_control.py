"""Designs against SciPy, against simulation, and against what is asked of bad input."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from lqrlab import control, simulation, systems
from lqrlab.control import checks

FAMILIES = (
    "mass_spring_damper", "pendulum", "cart_pole", "furuta_pendulum", "acrobot", "ball_and_beam",
    "magnetic_levitation", "dc_motor", "two_link_arm", "vehicle_lateral", "fixed_wing", "quadrotor",
)  # fmt: skip
DOUBLE = (np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]), np.diag([2.0, 1.0]), np.eye(1))


def van_loan(A, B, Q, R, dt, N=None):
    """The sampled problem by one block exponential on the host: shares no code with ours."""
    n, m = B.shape
    M = np.block([[A, B], [np.zeros((m, n + m))]])
    N = np.zeros((n, m)) if N is None else N
    W = np.block([[Q, N], [N.T, R]])
    E = scipy.linalg.expm(np.block([[-M.T, W], [np.zeros_like(M), M]]) * dt)
    flow = E[n + m :, n + m :]
    cost = flow.T @ E[: n + m, n + m :]
    cost = (cost + cost.T) / 2
    return flow[:n, :n], flow[:n, n:], cost[:n, :n], cost[n:, n:], cost[:n, n:]


def scipy_gain(A, B, Q, R, N):
    P = scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)
    return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T), P


def problem(seed, n, m, lead=()):
    """A dense random problem with cross weight and a joint weight ≥ 0."""
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(*lead, n, n)), rng.normal(size=(*lead, n, m))
    L = rng.normal(size=(*lead, n + m, n + m)) / np.sqrt(n + m)
    W = L @ np.swapaxes(L, -1, -2) + 0.1 * np.eye(n + m)
    return A, B, W[..., :n, :n], W[..., n:, n:], W[..., :n, n:]


def relative(found, expected):
    return np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_gains_equal_scipys(family):
    plants = systems.sample(family, key=jax.random.key(1), num=200)
    (A, B), (Q, R) = plants.matrices(), plants.weights()
    dt = float(plants.dt)
    design = control.lqrd(A, B, Q, R, dt)
    assert bool(jnp.all(design.stabilizing))
    A, B, Q, R = (np.asarray(a) for a in (A, B, Q, R))
    for i in range(200):
        K, P = scipy_gain(*van_loan(A[i], B[i], Q[i], R[i], dt))
        assert relative(design.K[i], K) < 1e-9
        assert relative(design.P[i], P) < 1e-9


def test_plants_of_mixed_dimension_share_one_call():
    plants = [systems.sample(name, key=jax.random.key(2), num=3) for name in FAMILIES]
    both = systems.stack(plants)
    design = control.lqrd(both.A, both.B, both.Q, both.R, both.dt)
    assert design.K.shape == (36, systems.M_MAX, systems.N_MAX)
    for i, plant in enumerate(plants):
        n, m = plant.n, plant.m
        alone = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
        wide = np.array(design.K[3 * i : 3 * i + 3])
        assert relative(wide[:, :m, :n], np.asarray(alone.K)) < 1e-10
        wide[:, :m, :n] = 0
        assert np.all(wide == 0)


@pytest.mark.parametrize("family", ["pendulum", "cart_pole", "quadrotor"])
def test_simulated_cost_is_the_quadratic_form(family):
    plant = systems.make(family)
    design = control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)
    x0 = plant.initial_state(key=jax.random.key(3), num=5)
    slowest = float(jnp.max(jnp.abs(design.poles)))
    steps = int(np.ceil(np.log(1e-8) / np.log(slowest)))
    path = simulation.rollout(plant, simulation.LinearPolicy(design.K), x0, steps, linear=True)
    assert np.allclose(path.cost, jnp.einsum("bi,ij,bj->b", x0, design.P, x0), rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 12])
def test_continuous_and_discrete_gains_equal_scipys(n):
    m = max(1, n // 2)
    A, B, Q, R, N = problem(n, n, m, (20,))
    found, discrete = control.lqr(A, B, Q, R, N), control.dlqr(A, B, Q, R, N)
    for i in range(20):
        P = scipy.linalg.solve_continuous_are(A[i], B[i], Q[i], R[i], s=N[i])
        assert relative(found.K[i], np.linalg.solve(R[i], B[i].T @ P + N[i].T)) < 1e-8
        assert relative(found.P[i], P) < 1e-8
        poles = np.linalg.eigvals(A[i] - B[i] @ np.asarray(found.K[i]))
        assert np.allclose(np.sort(np.asarray(found.poles[i])), np.sort(poles))
        assert relative(discrete.K[i], scipy_gain(A[i], B[i], Q[i], R[i], N[i])[0]) < 1e-8
    assert bool(jnp.all(found.stabilizing & discrete.stabilizing))
    assert float(jnp.max(found.residual)) < 1e-11


def test_a_design_unpacks():
    K, P, poles, residual, stabilizing = control.lqr(*DOUBLE)
    assert (K.shape, P.shape, poles.shape) == ((1, 2), (2, 2), (2,))
    assert float(residual) < 1e-13
    assert bool(stabilizing)
    assert np.allclose(K, [[np.sqrt(2), np.sqrt(1 + 2 * np.sqrt(2))]])  # by hand


def test_sampling_equals_the_block_exponential():
    A, B, Q, R, N = problem(5, 4, 2)
    for dt in (1e-3, 0.1, 2.0):
        found = control.discretize(A, B, Q, R, dt, N)
        for ours, theirs in zip(found, van_loan(A, B, Q, R, dt, N)):
            assert relative(ours, theirs) < 1e-11
        Ad, Bd = control.c2d(A, B, dt)
        M = scipy.linalg.expm(np.block([[A, B], [np.zeros((2, 6))]]) * dt)
        assert relative(Ad, M[:4, :4]) < 1e-12
        assert relative(Bd, M[:4, 4:]) < 1e-12


def test_sampling_of_a_stiff_plant_keeps_its_slow_mode():
    A = np.array([[-1e5, 0.0], [1.0, -0.5]])  # van Loan's block would hold exp(+1e5 · 0.1)
    Ad, Bd = control.c2d(A, np.array([[1e5], [0.0]]), 0.1)
    exact = scipy.linalg.expm(A * 0.1)
    assert np.allclose(Ad, exact, rtol=1e-10, atol=1e-14)
    assert np.allclose(Bd, np.linalg.solve(A, (exact - np.eye(2)) @ np.array([[1e5], [0.0]])), rtol=1e-10)


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


def test_is_stable_agrees_with_eigenvalues():
    A = np.random.default_rng(0).normal(size=(2000, 4, 4))
    A[::2] *= 0.4
    assert np.array_equal(control.is_stable(A), np.abs(np.linalg.eigvals(A)).max(-1) < 1)
    A -= 1.5 * np.eye(4)
    assert np.array_equal(control.is_stable(A, continuous=True), np.linalg.eigvals(A).real.max(-1) < 0)


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
    "dlqr": control.dlqr,
    "lqrd": lambda A, B, Q, R, N: control.lqrd(A, B, Q, R, 0.1, N),
}


def scalar(design, args):
    """A number that depends on every entry of K and P."""
    A, B, Q, R, N = args
    found = design(A, B, (Q + Q.T) / 2, (R + R.T) / 2, N)
    return jnp.sum(jnp.sin(found.K)) + jnp.sum(jnp.cos(found.P))


@pytest.mark.parametrize("name", DESIGNS)
def test_gradients_equal_finite_differences(name):
    args = tuple(map(jnp.asarray, problem(11, 3, 2)))

    @jax.jit
    def value(args):
        return scalar(DESIGNS[name], args)

    gradient = jax.grad(value)(args)
    rng = np.random.default_rng(0)
    for which in range(5):
        push = [jnp.zeros_like(a) for a in args]
        push[which] = jnp.asarray(rng.normal(size=args[which].shape))
        slope = sum(jnp.sum(g * p) for g, p in zip(gradient, push))
        h = 1e-5
        up, down = (value([a + s * h * p for a, p in zip(args, push)]) for s in (1, -1))
        assert np.allclose(slope, (up - down) / (2 * h), rtol=1e-6), "ABQRN"[which]
        forward = jax.jvp(value, (args,), (tuple(push),))[1]
        assert np.allclose(slope, forward, rtol=1e-9), "ABQRN"[which]


@pytest.mark.parametrize("name", DESIGNS)
def test_second_derivatives_equal_differences_of_gradients(name):
    args = tuple(map(jnp.asarray, problem(12, 2, 1)))
    push = tuple(0.01 * jnp.asarray(np.random.default_rng(1).normal(size=a.shape)) for a in args)

    def along(t):
        return scalar(DESIGNS[name], [a + t * p for a, p in zip(args, push)])

    h = 1e-5
    slope = jax.jit(jax.grad(along))
    expected = (slope(h) - slope(-h)) / (2 * h)
    assert np.allclose(jax.grad(slope)(0.0), expected, rtol=1e-5)
    assert np.allclose(jax.jacfwd(slope)(0.0), expected, rtol=1e-5)


def test_gradient_reaches_a_physical_parameter():
    def cost(length):
        plant = systems.make("cart_pole", pole_length=length)
        return jnp.trace(control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).P)

    slope = jax.grad(cost)(0.5)
    assert np.isclose(slope, (cost(0.5 + 1e-5) - cost(0.5 - 1e-5)) / 2e-5, rtol=1e-5)


# Bad input -------------------------------------------------------------------------------------------------


def test_an_unstabilizable_mode_is_named():
    A, B = np.diag([4.2, -1.0]), np.array([[0.0], [1.0]])
    with pytest.raises(ValueError, match=r"mode at \+4\.2 rad/s is not stabilizable.*state 0"):
        control.lqr(A, B, np.eye(2), np.eye(1))
    with pytest.raises(ValueError, match=r"mode at \+4\.2 \(discrete\) is not stabilizable"):
        control.dlqr(A, B, np.eye(2), np.eye(1))


def test_an_unweighted_integrator_is_named():
    with pytest.raises(ValueError, match="not detectable"):
        control.lqr(np.diag([0.0, -1.0]), np.ones((2, 1)), np.diag([0.0, 1.0]), np.eye(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"R": -np.eye(1)}, "R: expected positive definite, but found the eigenvalue -1"),
        ({"R": np.zeros((1, 1))}, "R: expected positive definite"),
        ({"Q": np.diag([1.0, -2.0])}, "Q: expected positive semidefinite, but found the eigenvalue -2"),
        ({"Q": np.array([[1.0, 1.0], [0.0, 1.0]])}, "Q: expected a symmetric matrix"),
        ({"Q": np.eye(3)}, r"Q: expected shape \(2, 2\) to go with B of shape \(2, 1\), but found \(3, 3\)"),
        ({"A": np.zeros((2, 3))}, r"A: expected shape \(2, 2\)"),
        ({"B": np.zeros(2)}, r"B: expected a matrix, but found shape \(2,\)"),
        ({"A": np.array([[0.0, np.nan], [0.0, 0.0]])}, "A: expected finite numbers, but found nan in row 0"),
        ({"N": np.full((2, 1), 9.0)}, "Q − N R⁻¹ Nᵀ: expected positive semidefinite"),
        ({"N": np.zeros((1, 2))}, r"N: expected shape \(2, 1\)"),
        ({"A": np.zeros((3, 2, 2)), "Q": np.ones((4, 1, 1)) * np.eye(2)}, "leading axes"),
    ],
)
def test_bad_matrices_are_refused_in_words(change, message):
    args = dict(zip("ABQR", DOUBLE)) | change
    with pytest.raises(ValueError, match=message):
        control.lqr(**args)


@pytest.mark.parametrize("dt", [0.0, -0.1, np.nan, np.inf])
def test_a_bad_sample_time_is_refused(dt):
    with pytest.raises(ValueError, match="dt: expected a sample time above 0 s"):
        control.lqrd(*DOUBLE, dt)


@pytest.mark.parametrize("design", [control.lqr, control.dlqr])
def test_a_batch_marks_bad_members_and_solves_the_rest(design):
    A, B, Q, R, _ = problem(8, 3, 1, (6,))
    good = design(A, B, Q, R)
    A[1], A[3] = np.diag([2.0, 3.0, 0.1]), np.nan
    B[1] = np.array([[0.0], [1.0], [1.0]])  # nothing reaches the mode at 2
    # the equation has a solution, the cost no minimum
    R[4] = -R[4]
    Q[2] -= 1.1 * np.linalg.eigvalsh(Q[2])[0] * np.eye(3)
    for found in (design(A, B, Q, R), jax.jit(design)(A, B, Q, R)):
        assert np.array_equal(found.stabilizing, [True, False, False, False, False, True])
        assert np.all(np.isnan(np.asarray(found.K)[1:5]))
        assert np.allclose(np.asarray(found.K)[[0, 5]], np.asarray(good.K)[[0, 5]], rtol=1e-9)


def test_float32_answers_and_warns_once(monkeypatch):
    monkeypatch.setattr(checks, "_warned", False)
    args = [np.asarray(a, np.float32) for a in DOUBLE]
    with pytest.warns(UserWarning, match="float32"):
        found = control.lqr(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        control.dlqr(*args)
    assert found.K.dtype == jnp.float32
    assert relative(found.K, np.asarray(control.lqr(*DOUBLE).K)) < 1e-5


# Identities ------------------------------------------------------------------------------------------------


def test_the_finite_horizon_grows_into_the_infinite_one():
    A, B, Q, R, N = problem(9, 3, 2)
    long = control.finite_horizon(A, B, Q, R, 200, N=N)
    forever = control.dlqr(A, B, Q, R, N)
    assert (long.K.shape, long.P.shape) == ((200, 2, 3), (201, 3, 3))
    assert relative(long.K[0], np.asarray(forever.K)) < 1e-10
    assert np.array_equal(long.P[-1], Q)


def test_the_finite_horizon_is_the_least_squares_optimum():
    A, B, Q, R, _ = problem(10, 2, 1)
    steps, x0 = 5, np.array([1.0, -2.0])
    design = control.finite_horizon(A, B, Q, R, steps, Qf=3 * Q)
    powers = [np.linalg.matrix_power(A, k) for k in range(steps + 1)]
    free = np.concatenate(powers) @ x0
    push = np.zeros((2 * (steps + 1), steps))
    for t in range(1, steps + 1):
        for k in range(t):
            push[2 * t : 2 * t + 2, k] = powers[t - 1 - k] @ B[:, 0]
    W = scipy.linalg.block_diag(*[Q] * steps, 3 * Q)
    H = push.T @ W @ push + R[0, 0] * np.eye(steps)
    us = -np.linalg.solve(H, push.T @ W @ free)  # one dense quadratic programme: no recursion
    x, played = x0, []
    for t in range(steps):
        u = -np.asarray(design.K[t]) @ x
        played.append(u[0])
        x = A @ x + B @ u
    assert np.allclose(played, us, rtol=1e-9)
    assert np.isclose(x0 @ design.P[0] @ x0, us @ H @ us + 2 * us @ push.T @ W @ free + free @ W @ free)


def test_sampled_designs_approach_the_continuous_one_from_above():
    A, B, Q, R, N = problem(13, 3, 1)
    limit = control.lqr(A, B, Q, R, N).P
    costs = [float(jnp.trace(control.lqrd(A, B, Q, R, dt, N).P)) for dt in (1e-4, 1e-3, 1e-2, 1e-1, 0.2)]
    assert np.all(np.diff([float(jnp.trace(limit)), *costs]) > 0)
    assert relative(control.lqrd(A, B, Q, R, 1e-4, N).P, np.asarray(limit)) < 1e-6


def test_coordinates_and_units_of_cost_do_not_matter():
    A, B, Q, R, N = problem(14, 4, 2)
    T = np.random.default_rng(3).normal(size=(4, 4))
    inverse = np.linalg.inv(T)
    K = np.asarray(control.lqr(A, B, Q, R, N).K)
    moved = control.lqr(T @ A @ inverse, T @ B, inverse.T @ Q @ inverse, R, inverse.T @ N)
    assert relative(moved.K @ T, K) < 1e-9
    assert relative(control.lqr(A, B, 1e6 * Q, 1e6 * R, 1e6 * N).K, K) < 1e-10
