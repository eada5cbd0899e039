"""H∞ and H2 synthesis and model reduction: against slycot, closed forms, and loops put together here."""

import types
import warnings

import control as python_control
import numpy as np
import pytest
import scipy.linalg
import slycot
from loops import loop
from refusals import refused

from lqrlab import control, robust
from lqrlab.extensions.robust.generalized_plant import GeneralizedPlant
from lqrlab.extensions.robust.synthesis_result import best_controller

SECONDS = 0.1


def response(points, a, b, c, d):
    """Of a system at points of the plane of s or z."""
    return c @ np.linalg.solve(points[:, None, None] * np.eye(len(a)) - a, b + 0j) + d


def gains(a, b, c, d, dt=None):
    """Largest singular values on a grid of frequencies."""
    w = np.concatenate([[0.0], np.geomspace(1e-5, 1e7 if dt is None else np.pi / dt, 1500)])
    points = 1j * w if dt is None else np.exp(1j * w * dt)
    return np.linalg.norm(response(points, a, b, c, d), 2, axis=(1, 2))


def decays(a, dt=None):
    poles = np.linalg.eigvals(a)
    return bool((poles.real < 0).all() if dt is None else (np.abs(poles) < 1).all())


def checked(plant, nmeas, ncon, K, dt=None):
    """The norm of the loop on the grid; the loop is stable and keeps to what was promised."""
    closed = loop(*plant, nmeas, ncon, K.controller)
    assert decays(closed[0], dt)
    peak = gains(*closed, dt).max()
    assert peak <= K.norm * (1 + 1e-5)
    assert K.norm <= K.gamma
    return peak


def random_plant(rng, n, z=3, w=3, nmeas=2, ncon=2, *, d11=True, d22=True):
    """Often unstable, and regular."""
    A, B, C = rng.normal(size=(n, n)), rng.normal(size=(n, w + ncon)), rng.normal(size=(z + nmeas, n))
    D = rng.normal(size=(z + nmeas, w + ncon))
    D[:z, :w] *= d11
    D[z:, w:] *= d22
    return A, B, C, D


def as_continuous(A, B, C, D):
    """The continuous plant with the gains of a discrete one, z = (1 + s)/(1 − s)."""
    M = np.linalg.inv(A + np.eye(len(A)))
    return (A - np.eye(len(A))) @ M, np.sqrt(2) * M @ B, np.sqrt(2) * C @ M, D - C @ M @ B


def as_discrete(A, B, C, D):
    """The way back."""
    M = np.linalg.inv(np.eye(len(A)) - A)
    return (np.eye(len(A)) + A) @ M, np.sqrt(2) * M @ B, np.sqrt(2) * C @ M, D + C @ M @ B


def reachable(plant, nmeas, ncon, gamma):
    """True if a controller reaches this norm with a discrete plant, by slycot's SB10DD.

    Its SB10FD for continuous plants does not check ρ(XY) < γ², and SB10AD corrupts memory or never ends on some plants
    with D11 ≠ 0.
    """
    A, B, C, D = plant
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            slycot.sb10dd(len(A), B.shape[1], len(C), ncon, nmeas, gamma, A, B, C, D)
        except slycot.exceptions.SlycotError:
            return False
    return True


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_hinfsyn_finds_the_optimum_that_slycot_finds(dt):
    rng = np.random.default_rng(1)
    for i in range(24):
        plant = random_plant(rng, 1 + i % 10, d11=i % 2 == 0, d22=i % 3 == 0)
        d = robust.hinfsyn(*plant, 2, 2, dt)
        checked(plant, 2, 2, d, dt)
        assert d.regularisation == 0.0
        discrete = as_discrete(*plant) if dt is None else plant
        assert reachable(discrete, 2, 2, d.gamma)
        assert not reachable(discrete, 2, 2, d.gamma * (1 - 1e-3))


@pytest.mark.parametrize("pole", [-1.0, 0.0, 2.0])
def test_the_optima_of_a_scalar_plant(pole):
    """ẋ = ax + w1 + u, z = (x, u), y = x + w2: H∞ has X = Y = γ, γ² − 2aγ − 2 = 0; H2 X = Y = a + √(a² + 1)."""
    plant = [[pole]], [[1.0, 0.0, 1.0]], [[1.0], [0.0], [1.0]], [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
    d = robust.hinfsyn(*plant, 1, 1)
    assert d.gamma == pytest.approx(pole + np.sqrt(pole**2 + 2), rel=1e-3)
    assert checked(plant, 1, 1, d) == pytest.approx(d.norm, rel=1e-3)
    X = pole + np.sqrt(pole**2 + 1)
    assert robust.h2syn(*plant, 1, 1).norm ** 2 == pytest.approx(X + X**3)


def test_the_hinf_optimum_of_a_model_matching_problem_is_a_hankel_norm():
    """‖T1 − T2 Q‖ over stable Q, T2 = (s−1)(s−3)/((s+1)(s+3)) all-pass: the Hankel norm of T1/T2's unstable part."""
    from scipy import signal

    T1, T2 = ([2.0, 1.0], [1.0, 0.5, 2.0]), ([1.0, -4.0, 3.0], [1.0, 4.0, 3.0])
    (a1, b1, c1, d1), (a2, b2, c2, d2) = signal.tf2ss(*T1), signal.tf2ss(*T2)
    A, zero = scipy.linalg.block_diag(a1, a2), np.zeros((2, 1))
    B = np.block([[b1, zero], [zero, b2]])
    C = np.vstack([np.hstack([c1, -c2]), np.zeros((1, 4))])
    plant = A, B, C, np.array([[d1[0, 0], -d2[0, 0]], [1.0, 0.0]])
    # residues of T1/T2 at the zeros of T2: Σ r/(s − p), mirrored to be stable
    p = np.array([1.0, 3.0])
    residues = np.polyval(T1[0], p) / np.polyval(T1[1], p) * np.polyval(T2[1], p) / (2 * p - 4)
    grams = 1 / (p[:, None] + p[None])
    hankel = np.sqrt(np.abs(np.linalg.eigvals(grams @ (np.outer(residues, residues) * grams))).max())
    d = robust.hinfsyn(*plant, 1, 1)
    assert d.gamma == pytest.approx(hankel, rel=1e-3)
    checked(plant, 1, 1, d)
    assert decays(d.controller.A)  # P22 = 0: the loop is stable only with a stable Q


def test_no_controller_goes_below_what_d11_leaves():
    plant = [[-1.0]], [[1.0, 1.0]], [[0.0], [1.0], [1.0]], [[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    d = robust.hinfsyn(*plant, 1, 1)
    assert d.gamma == pytest.approx(3.0, rel=1e-3)
    assert "D11" in d.remark


@pytest.mark.parametrize("dt", [None, SECONDS])
@pytest.mark.parametrize("kind", ["D12", "D21", "both"])
def test_a_singular_plant_is_regularised_and_says_what_that_costs(kind, dt):
    rng = np.random.default_rng(3)
    for n in (3, 5, 8):
        A, B, C, D = random_plant(rng, n, d11=False, d22=False)
        if kind != "D21":
            D[:3, 3:] = 0
        if kind != "D12":
            D[3:, :3] = 0
        d = robust.hinfsyn(A, B, C, D, 2, 2, dt)
        checked((A, B, C, D), 2, 2, d, dt)
        if dt is None:
            assert 0 < d.regularisation <= 1e-2
            assert 0 < d.cost < 0.1
            assert f"{kind if kind != 'both' else 'D12'}: rank 0 of 2" in d.remark
        # a plant that costs more has no smaller optimum: none that is a thousandth below γ
        other = harder(A, B, C, D, 2, 2, 3e-6 * np.linalg.norm(B) * np.linalg.norm(C))
        assert not reachable(as_discrete(*other) if dt is None else other, 2, 2, d.gamma * (1 - 2e-3))


def harder(A, B, C, D, nmeas, ncon, small):
    """The plant with a cost of u and noise in y besides: its optimum is no smaller."""
    n, z, w = len(A), len(C) - nmeas, B.shape[1] - ncon
    cost, noise = small * np.eye(ncon), small * np.eye(nmeas)
    first, last = [D[:z, :w], np.zeros((z, nmeas)), D[:z, w:]], [D[z:, :w], noise, D[z:, w:]]
    D = np.block([first, [np.zeros((ncon, w + nmeas)), cost], last])
    B, C = np.hstack([B[:, :w], np.zeros((n, nmeas)), B[:, w:]]), np.vstack([C[:z], np.zeros((ncon, n)), C[z:]])
    return A, B, C, D


def test_imaginary_eigenvalues_of_a_nearly_singular_plant_are_noticed():
    """Its invariant subspaces are nearly those of a singular matrix: a smaller γ seemed to be within reach once."""
    A = np.array([[-1.2025, -0.0232, -0.8895], [-1.3036, -0.4162, 0.4427], [0.838, -0.8412, -0.6475]])
    B = np.array(
        [[-1.0031, 0.3656, 0.0466, 0.4369], [1.3651, -0.3001, -0.396, 1.0047], [-0.1245, -0.5631, 0.8535, 0.8852]]
    )
    z = [[-1.4057, -1.0458, 0.1676], [1.0665, 0.7383, -0.8371], [-0.0062, -1.0444, 1.3683]]
    plant = A, B, np.array([*z, [2.3256, -0.8345, -0.211], [-1.0989, 0.584, -0.3493]]), np.zeros((5, 4))
    d = robust.hinfsyn(*plant, 2, 1)
    checked(plant, 2, 1, d)
    assert d.cost <= 1e-3
    assert reachable(as_discrete(*harder(*plant, 2, 1, 1e-3)), 2, 1, d.gamma * (1 + 2e-3))


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_a_zero_on_the_stability_boundary_is_no_obstacle(dt):
    """A disturbance of the output that cannot move the integrator of the plant: published problems are like that."""
    A = np.array([[0.0, 1.0], [0.0, -1.0]])
    A = A if dt is None else scipy.linalg.expm(A * dt)
    B, C = np.array([[0.0, 0.0], [0.0, 1.0]]), np.array([[-1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    D = np.array([[1.0, 0.0], [0.0, 0.3], [1.0, 0.0]])
    d = robust.hinfsyn(A, B, C, D, 1, 1, dt)
    checked((A, B, C, D), 1, 1, d, dt)
    assert "invariant zero on the stability boundary at" in d.remark
    assert d.gamma == pytest.approx(1.0, rel=2e-2)  # S is one at high frequencies, and hardly more below


@pytest.mark.parametrize("function", [robust.hinfsyn, robust.h2syn])
def test_a_discrete_plant_may_have_modes_at_both_ends_of_the_circle(function):
    rng = np.random.default_rng(9)
    A, B, C, D = random_plant(rng, 4)
    T = rng.normal(size=(4, 4))
    A = T @ np.diag([-1.0, 1.0, 0.5, -1.3]) @ np.linalg.inv(T)
    d = function(A, B, C, D, 2, 2, SECONDS)
    assert decays(loop(A, B, C, D, 2, 2, d.controller)[0], SECONDS)
    assert d.regularisation == 0.0
    if function is robust.hinfsyn:
        checked((A, B, C, D), 2, 2, d, SECONDS)
        assert not reachable((A, B, C, D), 2, 2, d.gamma * (1 - 1e-3))


def test_a_plant_with_as_many_controls_as_states_or_more_needs_no_infinite_gain():
    """At z = −1 the optimum of such a discrete plant is without bound: its last digits would decide on the loop."""
    rng = np.random.default_rng(10)
    for n, more in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 1)):
        A, B, C, D = random_plant(rng, n, 2, 2, n + more, n + more)
        plant, dimensions = (A, B, C, 0 * D), (n + more, n + more)
        d = robust.hinfsyn(*plant, *dimensions, SECONDS)
        checked(plant, *dimensions, d, SECONDS)
        near = {name: a * (1 + 1e-9 * rng.normal(size=a.shape)) for name, a in zip("ABCD", d.controller.matrices)}
        assert gains(*loop(*plant, *dimensions, types.SimpleNamespace(**near)), SECONDS).max() <= d.gamma * (1 + 1e-2)


def test_a_controller_whose_last_digits_matter_is_passed_over():
    """Gains of 10¹² that cancel each other promise more than a plain one, and only on paper."""
    plant = GeneralizedPlant.of((-np.eye(1), np.ones((1, 3)), np.ones((3, 1)), np.zeros((3, 3))), 2, 2)
    static = -np.eye(1), np.zeros((1, 2)), np.zeros((2, 1))
    cancelling, plain = np.array([[-1.0, 0.0], [2e12, -2e12]]), -0.1 * np.eye(2)
    search, norm = lambda regular, below: (0.1, None), lambda system: gains(*system).max()
    candidates = lambda optimum, solved: [(0.5, (*static, cancelling)), (0.84, (*static, plain))]  # noqa: E731
    regular, remark = plant.regularised(1e-3)[0], lambda optimum, solved: ""
    found = best_controller(plant, regular, search, candidates, norm, remark)
    np.testing.assert_array_equal(found.controller.D, plain)


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_h2syn_finds_the_optimum(dt):
    """That of slycot, or of the two regulators by SciPy and the best of nearby controllers."""
    rng = np.random.default_rng(5)
    for i in range(12):
        plant = random_plant(rng, 1 + i % 8, d11=dt is not None, d22=i % 2 == 0)
        d = robust.h2syn(*plant, 2, 2, dt)
        closed = loop(*plant, 2, 2, d.controller)
        assert decays(closed[0], dt)
        norm = h2(closed, dt)
        assert d.norm == pytest.approx(norm, rel=1e-6)
        assert d.norm <= d.gamma * (1 + 1e-9)
        assert d.gamma == pytest.approx(norm, rel=2e-5)
        if dt is None:
            D0 = plant[3].copy()
            D0[3:, 3:] = 0
            K = python_control.h2syn(python_control.ss(*plant[:3], D0), 2, 2)
            assert norm == pytest.approx(h2(loop(*plant[:3], D0, 2, 2, K)), rel=1e-6)
        for _ in range(5):  # of a minimum, all that is near is worse by a square
            moved = (x + 1e-4 * rng.normal(size=x.shape) * np.abs(x).max() for x in d.controller.matrices)
            near = types.SimpleNamespace(**dict(zip("ABCD", moved)))
            if dt is None:  # white noise must not reach z
                near.D = d.controller.D
            moved = loop(*plant, 2, 2, near)
            assert not decays(moved[0], dt) or h2(moved, dt) >= norm * (1 - 1e-9)


def h2(system, dt=None):
    a, b, c, d = system
    if dt is None:
        return np.sqrt(np.trace(c @ scipy.linalg.solve_continuous_lyapunov(a, -b @ b.T) @ c.T))
    return np.sqrt(np.trace(c @ scipy.linalg.solve_discrete_lyapunov(a, b @ b.T) @ c.T + d @ d.T))


def test_h2syn_of_a_plant_with_white_noise_in_z():
    """Cancelled by a direct term of the controller where there is one that does, else refused."""
    plant = [[-1.0]], [[1.0, 0.0, 1.0]], [[1.0], [0.0], [1.0]], np.array([[0, 0, 0], [0, 2.0, 1], [0, 1, 0]])
    d = robust.h2syn(*plant, 1, 1)
    assert d.controller.D[0, 0] == pytest.approx(-2.0)
    assert h2(loop(*plant, 1, 1, d.controller)) == pytest.approx(d.norm)
    plant[3][0, 0] = 0.5
    refused(r"D: expected no white noise .* input 0 enters output 0 with 0.5", robust.h2syn, *plant, 1, 1)
    assert np.isfinite(robust.h2syn(*plant, 1, 1, SECONDS).norm)  # finite in discrete time
    for a in (-1.0, 1.0):  # control is free: what is left is the filter's error, 2aY + 1 = Y²
        d = robust.h2syn([[a]], [[1.0, 0.0, 1.0]], [[1.0], [1.0]], [[0, 0, 0], [0, 1.0, 0]], 1, 1)
        assert d.norm**2 == pytest.approx(a + np.sqrt(a * a + 1), rel=5e-4)
        assert 1e-4 <= d.regularisation <= 1e-3  # the largest with which that is so


@pytest.mark.parametrize("dt", [None, SECONDS])
@pytest.mark.parametrize("function", [robust.hinfsyn, robust.h2syn])
def test_a_plant_that_cannot_be_stabilized_is_refused_by_its_mode(function, dt):
    A = np.diag([1.5, -0.5, 0.2])
    B, C, D = np.ones((3, 2)), np.ones((2, 3)), np.array([[0.0, 1.0], [1.0, 0.0]])
    unmoved, unseen = B.copy(), C.copy()
    unmoved[0, 1] = 0
    unseen[1, 0] = 0
    lost = r"A, {}: expected .* mode at 1\.5 .*is not {}: none of the last 1 {}"
    refused(lost.format("B", "stabilizable", "inp"), function, A, unmoved, C, D, 1, 1, dt)
    refused(lost.format("C", "detectable", "outp"), function, A, B, unseen, D, 1, 1, dt)
    turning = scipy.linalg.block_diag([[0.0, 2.0], [-2.0, 0.0]], -0.5)  # two modes on the axis
    unmoved[:2] = 0
    refused("mode at 0 ± 2j", function, turning, unmoved, C, D, 1, 1, dt)


@pytest.mark.parametrize("function", [robust.hinfsyn, robust.h2syn])
def test_wrong_arguments_are_refused_in_words(function):
    A, B, C, D = random_plant(np.random.default_rng(0), 3, d11=False)
    for change, words in (
        ({"nmeas": 5}, "nmeas: expected fewer than the 5 outputs, some of which are kept small, but found 5"),
        ({"ncon": 5}, "ncon: expected fewer than the 5 inputs, some of which disturb, but found 5"),
        ({"nmeas": 0}, "nmeas: expected a whole number ≥ 1"),
        ({"A": A * np.nan}, "A: expected finite numbers"),
        ({"B": B[:2]}, "B: expected shape"),
        ({"D": D[:, :2]}, "D: expected shape"),
        ({"dt": 0.0}, "dt: expected a sample time above 0 s"),
        ({"dt": -1.0}, "dt: expected a sample time above 0 s"),
        ({"A": np.zeros((0, 0)), "B": np.zeros((0, 5)), "C": np.zeros((5, 0))}, "A: expected at least one state"),
        ({"A": A * 1e200}, "A, B, C, D: expected numbers nearer to one"),
    ):
        refused(words, function, **{"A": A, "B": B, "C": C, "D": D, "nmeas": 2, "ncon": 2} | change)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale):
    """Of states, of controls and measurements, and of time."""
    plant = A, B, C, D = random_plant(np.random.default_rng(8), 4)
    best = robust.hinfsyn(*plant, 2, 2).gamma
    x, u, y = (np.diag(scale ** np.linspace(-1, 1, k)) for k in (4, 2, 2))
    inputs, outputs = scipy.linalg.block_diag(np.eye(3), u), scipy.linalg.block_diag(np.eye(3), y)
    back = np.linalg.inv(x)
    moved = scale * x @ A @ back, scale * x @ B @ inputs, outputs @ C @ back, outputs @ D @ inputs
    d = robust.hinfsyn(*moved, 2, 2)
    assert d.gamma == pytest.approx(best, rel=1e-3)
    assert d.norm <= d.gamma


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_ncfsyn_reaches_the_margin_of_the_closed_form(dt):
    """γ² = 1 + λmax(XZ) with the two Riccati equations of the normalized coprime factors (McFarlane and Glover)."""
    rng = np.random.default_rng(2)
    for n in (1, 2, 4, 6):
        A, B, C, _ = random_plant(rng, n, 0, 0)
        D = np.zeros((2, 2))
        a, b, c, e = (A, B, C, D) if dt is None else as_continuous(A, B, C, D)
        S, R = np.eye(2) + e.T @ e, np.eye(2) + e @ e.T
        X = scipy.linalg.solve_continuous_are(a, b, c.T @ c, S, s=c.T @ e)
        Z = scipy.linalg.solve_continuous_are(a.T, c.T, b @ b.T, R, s=b @ e.T)
        best = np.sqrt(1 + np.abs(np.linalg.eigvals(X @ Z)).max())
        d = robust.ncfsyn(A, B, C, D, dt)
        assert d.gamma == pytest.approx(best, rel=1e-3)
        K = d.controller
        assert decays(np.block([[A + B @ K.D @ C, B @ K.C], [K.B @ C, K.A]]), dt)


def test_mixsyn_shapes_the_sensitivities():
    """Each weighted sensitivity is below γ, by python-control's arithmetic of systems."""
    G = python_control.ss(*random_plant(np.random.default_rng(4), 3, 0, 0)[:3], np.zeros((2, 2)))
    W1, W3 = ([[-0.01]], [[1.0]], [[0.5]], [[0.3]]), ([[-100.0]], [[1.0]], [[-900.0]], [[10.0]])
    d = robust.mixsyn((G.A, G.B, G.C, G.D), tuple(np.kron(np.eye(2), w) for w in W1), 0.1, np.eye(2))
    K = python_control.ss(d.controller.A, d.controller.B, d.controller.C, d.controller.D)
    w = np.geomspace(1e-4, 1e4, 200)
    L = np.moveaxis((G * K)(1j * w), -1, 0)
    S = np.linalg.inv(np.eye(2) + L)
    KS, one = np.moveaxis(K(1j * w), -1, 0) @ S, python_control.ss(*W1)(1j * w)
    stack = np.concatenate([one[:, None, None] * S, 0.1 * KS, np.eye(2) - S], axis=1)
    peaks = np.linalg.norm(stack, 2, axis=(1, 2))
    assert peaks.max() <= d.norm * (1 + 1e-6)
    assert peaks.max() == pytest.approx(d.norm, rel=1e-2)
    assert d.norm <= d.gamma
    alone = robust.mixsyn((G.A, G.B, G.C, G.D), None, None, tuple(np.kron(np.eye(2), w) for w in W3))
    assert alone.norm <= alone.gamma
    integrators = tuple(np.kron(np.eye(2), w) for w in ([[0.0]], [[1.0]], [[1.0]], [[0.0]]))
    for given, words in (
        ((), "W1, W2, W3: expected at least one weight"),
        (("x",), "W1: expected real numbers"),
        ((np.eye(3),), "W1: expected a weight of 2 signals, but found one of 3"),
        ((W1,), "W1: expected a weight of 2 signals, but found one of 1"),
        (((1, 2, 3),), r"W1: expected the matrices \(A, B, C, D\)"),
        ((integrators,), "mode at 0 rad/s is not detectable"),
    ):
        refused(words, robust.mixsyn, (G.A, G.B, G.C, G.D), *given)


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_balred_keeps_to_its_bound_and_what_is_not_stable(dt):
    rng = np.random.default_rng(6)
    for n in (4, 7, 10):
        a = rng.normal(size=(n, n))
        values = np.linalg.eigvals(a)
        a = a - (values.real.max() + 0.1) * np.eye(n) if dt is None else 0.97 * a / np.abs(values).max()
        kept = [0.0, 0.0, 0.7] if dt is None else [1.0, 1.0, 1.7]
        block = np.diag(kept) + np.eye(3, k=1) * [[0], [1], [0]]  # a double integrator too, coupled by the basis
        T = rng.normal(size=(n + 3, n + 3))
        A = T @ scipy.linalg.block_diag(block, a) @ np.linalg.inv(T)
        B, C, D = rng.normal(size=(n + 3, 2)), rng.normal(size=(3, n + 3)), rng.normal(size=(3, 2))
        for order in (3, 4, n, n + 3):
            r = robust.balred(A, B, C, D, order, dt)
            assert r.system.A.shape == (order, order)
            w = np.geomspace(1e-2, 1e3 if dt is None else np.pi / dt, 300)
            points = 1j * w if dt is None else np.exp(1j * w * dt)
            full, less = response(points, A, B, C, D), response(points, *r.system.matrices)
            scale = np.linalg.norm(full, 2, axis=(1, 2))
            assert (np.linalg.norm(full - less, 2, axis=(1, 2)) <= r.bound + 1e-8 * scale).all()
            assert r.bound == pytest.approx(2 * r.hankel[order - 3 :].sum())
            left = np.linalg.eigvals(r.system.A)
            assert np.abs(left[:, None] - np.array(kept)).min(0).max() < 1e-5
        refused("order: expected at least 3, the modes that are not stable", robust.balred, A, B, C, D, 2, dt)


def test_hankel_values_are_those_of_python_control_and_of_sums_of_first_order_systems():
    rng = np.random.default_rng(7)
    for n in (3, 8):
        a = rng.normal(size=(n, n))
        A = a - (np.linalg.eigvals(a).real.max() + 0.1) * np.eye(n)
        plant = A, rng.normal(size=(n, 2)), rng.normal(size=(2, n))
        found = robust.balred(*plant, np.zeros((2, 2)), n).hankel
        expected = python_control.hankel_singular_values(python_control.ss(*plant, np.zeros((2, 2))))
        np.testing.assert_allclose(found, np.sort(expected)[::-1], atol=1e-8 * found[0])
    # values far below the root of the rounding: a Cauchy matrix has them, G = Σ 1/(s + p) is symmetric
    p = np.array([1.0, 1.2, 1.4, 1.7, 2.0, 2.3, 3.0, 4.0])
    found = robust.balred(-np.diag(p), np.ones((8, 1)), np.ones((1, 8)), [[0.0]], 8).hankel
    expected = np.sort(np.linalg.eigvalsh(1 / (p[:, None] + p[None])))[::-1]
    assert expected[-1] < 1e-11
    np.testing.assert_allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_balred_keeps_integrators_that_are_all_there_is(dt):
    rng = np.random.default_rng(11)
    A = np.eye(3, k=1) * [[0], [1], [1]] + (0 if dt is None else np.eye(3))  # a double one and a single
    for T in (np.eye(3), rng.normal(size=(3, 3))):
        r = robust.balred(T @ A @ np.linalg.inv(T), T[:, 2:], np.linalg.inv(T)[1:2] + 0.1, [[0.0]], 3, dt)
        assert not len(r.hankel)
        assert r.system.A.shape == (3, 3)
        assert r.bound == 0.0


def test_balred_leaves_out_what_is_not_seen_takes_systems_without_states_and_refuses_wrong_loops():
    r = robust.balred(np.diag([-1.0, -2.0, -3.0]), [[1.0], [1.0], [0.0]], [[1.0, 0.0, 1.0]], [[0.5]], 3)
    assert r.system.A.shape == (1, 1)
    assert r.bound < 1e-14
    assert robust.balred(np.zeros((0, 0)), np.zeros((0, 1)), np.zeros((1, 0)), [[2.0]], 0).system.D == 2.0
    system = [[-1.0]], [[1.0]], [[1.0]], [[0.0]]
    refused("order: expected a whole number ≥ 0", robust.balred, *system, -1)
    refused("method: expected", robust.balred, *system, 1, method="residualise")
    for loop_, words in (
        (([[1.0]], [[1.0]]), "loop: expected three matrices, A, B, C of the plant, but found 2 of them"),
        (([[1.0]], [[1.0, 0.0]], [[1.0]]), "loop: expected a plant of 1 inputs and 1 outputs"),
        (([[1.0]], [[1.0]], [[1.0]]), "loop: expected a plant that the controller, u = K y, stabilises"),
    ):
        refused(words, robust.balred, *system, 1, loop=loop_)


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_residualisation_is_exact_at_rest_and_in_continuous_time_slycots(dt):
    rng = np.random.default_rng(12)
    a = rng.normal(size=(6, 6))
    values = np.linalg.eigvals(a)
    A = a - (values.real.max() + 0.3) * np.eye(6) if dt is None else 0.9 * a / np.abs(values).max()
    B, C, D = rng.normal(size=(6, 2)), rng.normal(size=(2, 6)), rng.normal(size=(2, 2))
    r = robust.balred(A, B, C, D, 3, dt, method="matchdc")
    points = 1j * np.geomspace(1e-3, 1e3, 60) if dt is None else np.exp(1j * np.linspace(0, np.pi, 60))

    ours = response(points, *r.system.matrices)
    assert np.linalg.norm(ours - response(points, A, B, C, D), 2, axis=(1, 2)).max() <= r.bound
    rest = np.array([0.0 if dt is None else 1.0])
    np.testing.assert_allclose(response(rest, *r.system.matrices), response(rest, A, B, C, D), atol=1e-9)
    if dt is None:  # of slycot's discrete one the gain at rest is another
        order, *theirs, _ = slycot.ab09bd("C", "B", "N", 6, 2, 2, A, B, C, D, 3)
        assert order == 3
        np.testing.assert_allclose(ours, response(points, *theirs), atol=1e-8)


@pytest.mark.parametrize("dt", [None, SECONDS])
def test_a_controller_is_reduced_for_its_loop_by_gramians_of_the_weighted_system(dt):
    """Hankel values of WoK Wi by SciPy's Lyapunov equations; and the loop of the reduced controller is much nearer."""
    A = np.array([[0.0, 1.0, 0.0, 0.0], [-1.0, -0.1, 1.0, 0.1], [0.0, 0.0, 0.0, 1.0], [1.0, 0.1, -1.0, -0.1]])
    B, C = np.array([[0.0], [1.0], [0.0], [0.0]]), np.array([[0.0, 0.0, 1.0, 0.0]])
    regulator, lyapunov = control.lqr, scipy.linalg.solve_continuous_lyapunov
    if dt is not None:
        A, B = (np.asarray(M) for M in control.c2d(A, B, dt))
        regulator, lyapunov = control.dlqr, lambda F, W: scipy.linalg.solve_discrete_lyapunov(F, -W)
    K, L = (np.asarray(regulator(*pair, np.eye(4), np.eye(1)).K) for pair in ((A, B), (A.T, C.T)))
    a, b, c, d = A - B @ K - L.T @ C, L.T, -K, np.zeros((1, 1))
    G, K = python_control.ss(A, B, C, 0, dt or 0), python_control.ss(a, b, c, d, dt or 0)
    S = python_control.feedback(python_control.ss([], [], [], 1, dt or 0), G * K, sign=1)
    before, behind = K * S, python_control.feedback(G, K, sign=1) * K
    n = len(a)
    assert np.allclose(before.A[:n, :n], a)  # python-control puts the states of the left factor first
    assert np.allclose(behind.A[-n:, -n:], a)
    at = slice(-n, None)
    P = lyapunov(before.A, -before.B @ before.B.T)[:n, :n]
    Q = lyapunov(behind.A.T, -behind.C.T @ behind.C)[at, at]
    expected = np.sort(np.sqrt(np.maximum(np.linalg.eigvals(P @ Q).real, 0)))[::-1]
    found = robust.balred(a, b, c, d, 2, dt, loop=(A, B, C))
    np.testing.assert_allclose(found.hankel, expected, atol=1e-7 * expected[0])
    assert found.bound == np.inf


def test_a_reduced_controller_that_loses_its_loop_is_refused_where_the_loop_is_given():
    """Of random unstable plants: what comes back stabilises its plant, by NumPy's eigenvalues."""
    rng, kept, left = np.random.default_rng(13), 0, 0
    for _ in range(12):
        A, B, C = rng.normal(size=(5, 5)), rng.normal(size=(5, 1)), rng.normal(size=(1, 5))
        K = control.lqg(A, B, C, np.eye(5), np.eye(1), np.eye(5), np.eye(1))
        for order in (1, 2, 3, 4):
            try:
                r = robust.balred(K.A, K.B, K.C, K.D, order, loop=(A, B, C), method="matchdc")
            except ValueError:  # in words, below
                left += 1
                continue
            kept += 1
            loop = np.block([[A + B @ r.system.D @ C, B @ r.system.C], [r.system.B @ C, r.system.A]])
            assert np.linalg.eigvals(loop).real.max() < 0
    assert min(kept, left) > 5
