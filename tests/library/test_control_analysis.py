"""Noise, norms, sampling and bridges against python-control and long simulations."""

import control as python_control
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused

from lqrlab import control

A = np.array([[0.0, 1.0], [-2.0, -0.6]])
B = np.array([[0.0], [1.0]])
C = np.array([[1.0, 0.0]])


def test_norms_equal_python_controls():
    system = python_control.ss(A, B, C, [[0.0]])
    assert np.isclose(control.h2_norm(A, B, C), python_control.norm(system, 2), rtol=1e-8)
    refused("not stable", control.hinf_norm, -A, B, C)
    refused("hinf_norm takes one problem", control.hinf_norm, np.stack([A, A]), B, C)


def test_noise_keeps_up_the_cost_that_the_riccati_solution_says():
    Q, R, W = np.diag([1.0, 0.1]), np.eye(1), np.diag([0.01, 0.04])
    design = control.lqrd(A, B, Q, R, 0.1)
    sampled = control.discretize(A, B, Q, R, 0.1)
    X = scipy.linalg.solve_discrete_lyapunov(design.closed_loop, W)
    K = design.K
    stage = sampled.Q + K.T @ sampled.R @ K - sampled.N @ K - (sampled.N @ K).T
    assert np.isclose(jnp.trace(stage @ X), jnp.trace(design.P @ W), rtol=1e-10)


def test_the_h2_norm_of_an_output_that_sees_nothing_is_zero_but_for_rounding():
    rng = np.random.default_rng(2)
    for _ in range(50):
        a, T = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))
        a -= (np.linalg.eigvals(a).real.max() + 1) * np.eye(4)
        a[3, :3], a[3, 3] = 0.0, -1.0
        b = T @ np.append(rng.normal(size=3), 0.0)[:, None]
        assert control.h2_norm(T @ a @ np.linalg.inv(T), b, np.linalg.inv(T)[3:]) < 1e-3


def random_system(rng, dt):
    """A stable system, its poles from 1e-3 to 1 away from instability."""
    n, m, p = rng.integers(1, 7), rng.integers(1, 4), rng.integers(1, 4)
    a, b, c = rng.normal(size=(n, n)), rng.normal(size=(n, m)), rng.normal(size=(p, n))
    poles, away = np.linalg.eigvals(a), 10 ** rng.uniform(-3, 0)
    a = a - (poles.real.max() + away) * np.eye(n) if dt is None else a / (np.abs(poles).max() * (1 + away))
    return a, b, c, rng.integers(0, 2) * rng.normal(size=(p, m))


def responses(a, b, c, d, dt):
    """The response on a fine grid of frequencies, densest where poles are, and the frequencies."""
    poles = np.linalg.eigvals(a)
    poles = poles if dt is None else np.log(poles.astype(complex)) / dt
    near = (np.abs(poles.imag)[:, None] + np.abs(poles.real)[:, None] * np.linspace(-3, 3, 301)).ravel()
    w = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 8000), near])
    w = w if dt is None else np.concatenate([np.linspace(0, np.pi / dt, 8000), np.clip(near, 0, np.pi / dt)])
    z = 1j * w if dt is None else np.exp(1j * w * dt)
    return c @ np.linalg.solve(z[:, None, None] * np.eye(len(a)) - a, b.astype(complex)[None]) + d, w


@pytest.mark.parametrize("dt", [None, 0.1])
def test_the_hinf_norm_of_random_systems_is_the_peak_of_a_fine_grid(dt):
    rng = np.random.default_rng(1)
    for _ in range(40):
        a, b, c, d = random_system(rng, dt)
        gain, frequency = control.hinf_norm(a, b, c, d, dt)
        grid = np.linalg.norm(responses(a, b, c, d, dt)[0], 2, axis=(-2, -1)).max()
        grid = max(grid, np.linalg.norm(d, 2) if dt is None else 0.0)  # at ever higher frequencies
        assert grid * (1 - 1e-9) <= gain <= grid * (1 + 1e-4)
        if np.isfinite(frequency):
            z = 1j * frequency if dt is None else np.exp(1j * frequency * dt)
            there = c @ np.linalg.solve(z * np.eye(len(a)) - a, b.astype(complex)) + d
            assert np.isclose(np.linalg.norm(there, 2), gain, rtol=1e-9)


@pytest.mark.parametrize(
    ("n", "mode", "step", "b", "c", "dt"),
    [
        (9, -1.0, 10.0, 31.6228, -10.0, None), (9, -1.0, 20.0, 3.3732, -16.332, None),
        (12, -1.0, 3.0, 37.86, -4.0849, None), (12, 0.8, 1.0, 77.012, -6.3259, 0.1),
    ],
)  # fmt: skip
def test_the_hinf_norm_of_a_defective_matrix_whose_level_has_eigenvalues_off_the_axis_is_that_of_a_grid(
    n, mode, step, b, c, dt
):
    """A chain of equal modes: rounding moves the eigenvalues of a level by a hundredth and more."""
    a, B, C = mode * np.eye(n) + step * np.eye(n, k=1), np.zeros((n, 1)), np.zeros((1, n))
    B[-2:, 0], C[0, :2] = (b, 1.0), (1.0, c)
    w = np.linspace(1e-3, 3, 20001) if dt is None else np.linspace(0, np.pi / dt, 20001)
    z = (1j * w if dt is None else np.exp(1j * w * dt)) - mode
    # C (z − A)⁻¹B by the powers of step / (z − mode)
    powers = step ** np.arange(n) / z[:, None] ** (np.arange(n) + 1)
    response = sum(C[0, i] * B[k, 0] * powers[:, k - i] for i in (0, 1) for k in (n - 2, n - 1))
    assert control.hinf_norm(a, B, C, dt=dt)[0] == pytest.approx(np.abs(response).max(), rel=1e-5)


def test_the_hinf_norm_is_approached_at_high_frequencies_or_is_zero():
    assert control.hinf_norm([[-1.0]], [[1.0]], [[-1.0]], [[1.0]]) == (1.0, np.inf)  # s / (s + 1)
    assert control.hinf_norm([[-1.0]], [[0.0]], [[1.0]]) == (0.0, 0.0)
    gain, frequency = control.hinf_norm([[-0.5]], [[1.0]], [[1.0]], dt=0.1)  # 1 / (z + 0.5)
    assert np.allclose((gain, frequency), (2.0, np.pi / 0.1))


@pytest.mark.parametrize("dt", [None, 0.1])
def test_modulus_and_disk_margins_of_random_loops_are_those_of_a_fine_grid(dt):
    rng = np.random.default_rng(2)
    loops = [(np.array([[0.8, 0.0], [0.8, 1.0]]), np.array([[-0.5], [-0.6]]), np.array([[1.4, -7.1]]))]
    for _ in range(30):
        n, m = rng.integers(1, 5), rng.integers(1, 3)
        a, b = rng.normal(size=(n, n)), rng.normal(size=(n, m))
        design = control.lqr if dt is None else control.dlqr
        K = np.asarray(design(a, b, np.eye(n), np.eye(m)).K)
        loops.append((a, b, K + 0.05 * rng.normal(size=K.shape)))
    for a, b, K in loops:
        try:
            found = control.margins(a, b, K, dt)
        except ValueError:
            continue
        closed, one = a - b @ K, np.ones((1, 1))
        for i, margin in enumerate(found):
            S = responses(closed, b[:, [i]], -K[[i]], one, dt)[0].ravel()  # 1 / (1 + L)
            high = 1.0 if dt is None else 0.0  # S = 1 at ever higher frequencies
            assert np.isclose(margin.modulus_margin, 1 / max(np.abs(S).max(), high), rtol=1e-4)
            assert np.isclose(margin.disk.alpha, 1 / max(np.abs(S - 0.5).max(), high / 2), rtol=1e-4)


def test_zeros_of_random_systems_equal_slicots_and_drop_the_rank():
    pytest.importorskip("slycot")
    rng, compared = np.random.default_rng(3), 0
    for _ in range(60):
        a, b, c, d = random_system(rng, None)
        try:
            theirs = np.asarray(python_control.ss(a, b, c, d).zeros(), complex)
        except ValueError:  # slycot's work space is too small for some shapes
            continue
        ours = control.zeros(a, b, c, d)
        assert len(ours) == len(theirs)
        compared += len(ours) > 0
        for zero in ours:
            assert np.abs(theirs - zero).min() < 1e-6 * max(abs(zero), 1)
    assert compared > 10


@pytest.mark.parametrize("n", [2, 3, 6, 12])
def test_a_chain_of_integrators_has_no_zero_at_large_finite_numbers(n):
    a, b = np.diag(np.ones(n - 1), 1), np.eye(n)[:, -1:]
    assert control.zeros(a, b, np.eye(1, n)).size == 0
    assert control.zeros(a, b, np.eye(2, n)).size == 0  # two outputs
    assert np.allclose(control.zeros(a, b, [[1.0, 2.0, *np.zeros(n - 2)]]), [-0.5])
    assert np.allclose(control.zeros(a, np.eye(n)[:, :2], np.eye(1, n)), np.zeros(n - 2))  # hidden integrators


@pytest.mark.parametrize("dt", [None, 0.1])
def test_a_gain_without_states_has_its_largest_singular_value_as_norm(dt):
    D = np.array([[3.0, 0.0], [4.0, 0.0]])
    assert control.hinf_norm(np.zeros((0, 0)), np.zeros((0, 2)), np.zeros((2, 0)), D, dt)[0] == pytest.approx(5.0)


def test_gain_and_phase_margin_do_not_depend_on_units():
    # L = (s + 1) / s², |L| = 1 at ω² = (1 + √5)/2, where it is turned by atan ω from −180°
    A, B, K = np.diag([1.0], 1), np.array([[0.0], [1.0]]), np.array([[1.0, 1.0]])
    phase = np.arctan(np.sqrt((1 + np.sqrt(5)) / 2))
    rng = np.random.default_rng(0)
    for x, u in [([1.0, 1.0], 1e8), ([1.0, 1.0], 1e-8), *((10 ** rng.uniform(-8, 8, 2), 1.0) for _ in range(10))]:
        x = np.asarray(x)
        margin = control.margins(A * x[:, None] / x, B * x[:, None] / u, K * u / x)[0]
        assert np.isclose(margin.phase, phase)
        assert np.isinf(margin.gain_up)
        assert margin.gain_down == 0
    # L = 0.5 / (z (z − 0.5)) passes −1 where z² − 0.5 z + 0.5 g = 0 has |z|² = 0.5 g = 1
    loop = np.diag([1e12], 1) + np.diag([0.5, 0.0]), np.array([[0.0], [1e-6]]), np.array([[0.5e-6, 0.0]])
    assert np.isclose(control.margins(*loop, 0.1)[0].gain_up, 2.0)


def test_zeros_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    for k in range(30):
        n, m = rng.integers(2, 6), rng.integers(1, 3)
        a, b, c = rng.normal(size=(n, n)), rng.normal(size=(n, m)), rng.normal(size=(m, n))
        x, u, y = (10 ** rng.uniform(-7, 7, size) for size in (n, m, m))
        pencil = np.block([[a, b], [c, np.zeros((m, m))]])
        finite = scipy.linalg.eigvals(pencil, np.diag(np.r_[np.ones(n), np.zeros(m)]))
        finite = finite[np.abs(finite) < 1e6]
        zeros = control.zeros(a * x[:, None] / x, b * x[:, None] / u, c * y[:, None] / x)
        assert len(zeros) == len(finite) == n - m, k
        assert np.all(np.diff(zeros.real) <= 0)
        assert all(np.abs(zeros - z).min() < 1e-5 * max(1, abs(z)) for z in finite)


def test_a_modulus_margin_at_a_flat_peak_is_found():
    # python-control's norm stops at 1 - 1e-10, the value at high frequencies
    margin = control.margins([[0.8, 0.0], [0.8, 1.0]], [[-0.5], [-0.6]], [[1.4, -7.1]])[0]
    w = np.geomspace(1e-3, 1e3, 200001)
    L = control.frequency_response([[0.8, 0.0], [0.8, 1.0]], [[-0.5], [-0.6]], [[1.4, -7.1]], w)
    assert np.isclose(margin.modulus_margin, np.abs(1 + L).min(), rtol=1e-8)
    assert margin.modulus_margin < 0.9624
