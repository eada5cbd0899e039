"""Horizons, estimators, tracking and structure against python-control, SciPy and simulation."""

import control as python_control
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from scipy_oracle import gain

from lqrlab import control


def plant(seed=0, n=3, m=2, p=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n)), rng.normal(size=(n, m)), rng.normal(size=(p, n))


def test_the_finite_horizon_of_a_batch_equals_the_plain_recursion():
    A, B, _ = plant(1)
    weights = np.array([0.1, 1.0, 10.0])[:, None, None] * np.eye(3)
    R, N, Qf, T = np.diag([1.0, 2.0]), 0.1 * np.ones((3, 2)), 5 * np.eye(3), 17
    result = control.finite_horizon(A, B, weights, R, T, Qf, N)
    for i, Q in enumerate(weights):
        P = Qf
        for t in reversed(range(T)):
            K = np.linalg.inv(R + B.T @ P @ B) @ (B.T @ P @ A + N.T)
            P = Q + A.T @ P @ A - (A.T @ P @ B + N) @ K
            assert np.allclose(result.K[i, t], K, rtol=1e-8)
            assert np.allclose(result.P[i, t], P, rtol=1e-8)
    assert np.array_equal(control.finite_horizon(A, B, weights, R, T).P[:, -1], weights)  # the last stage costs Q


def test_tracking_is_the_least_squares_optimum():
    rng, (T, n, m) = np.random.default_rng(0), (6, 3, 2)
    A, B, c = rng.normal(size=(T, n, n)), rng.normal(size=(T, n, m)), rng.normal(size=(T, n))
    xs, us, x0 = rng.normal(size=(T + 1, n)), rng.normal(size=(T, m)), rng.normal(size=n)
    Q, R, N, Qf = np.diag([1.0, 2.0, 3.0]), np.diag([1.0, 0.5]), 0.1 * np.ones((n, m)), 4 * np.eye(n)
    plan = control.lq_tracking(A, B, Q, R, xs, us, Qf, N, c=c)

    def run(inputs):
        x = [x0]
        for t in range(T):
            x.append(A[t] @ x[t] + B[t] @ inputs[t] + c[t])
        return np.array(x)

    root = np.linalg.cholesky(np.block([[Q, N], [N.T, R]])).T

    def residual(flat):
        inputs = flat.reshape(T, m)
        x = run(inputs)
        stage = np.concatenate([x[:-1] - xs[:-1], inputs - us], axis=1) @ root.T
        return np.concatenate([stage.ravel(), 2 * (x[-1] - xs[-1])])

    base = residual(np.zeros(T * m))
    columns = np.stack([residual(e) - base for e in np.eye(T * m)], axis=1)
    best = np.linalg.lstsq(columns, -base, rcond=None)[0].reshape(T, m)
    x = x0
    for t in range(T):
        u = np.asarray(plan.us[t] - plan.K[t] @ (x - plan.xs[t]))
        np.testing.assert_allclose(u, best[t], rtol=1e-7, atol=1e-9)
        x = A[t] @ x + B[t] @ u + c[t]
    still = control.lq_tracking(A[0], B[0], Q, R, np.zeros((T + 1, n)), Qf=Qf, N=N)
    np.testing.assert_allclose(still.K, control.finite_horizon(A[0], B[0], Q, R, T, Qf, N).K, rtol=1e-9)


def test_estimators_equal_python_controls():
    A, _, C = plant(2)
    W, V = np.diag([1.0, 2.0, 0.5]), np.diag([0.1, 0.3])
    for ours, theirs in ((control.lqe, python_control.lqe), (control.dlqe, python_control.dlqe)):
        result = ours(A, C, W, V)
        L, P, poles = theirs(A, np.eye(3), C, W, V)
        assert np.allclose(result.P, P, rtol=1e-8)
        assert np.allclose(np.sort_complex(result.poles), np.sort_complex(poles), rtol=1e-6)
        assert np.allclose(result.L, L, rtol=1e-7)
        assert bool(result.stabilizing)


def test_a_filter_of_noises_that_come_together_solves_scipys_riccati_equation():
    A, _, C = plant(2)
    W, V, S = np.diag([1.0, 2.0, 0.5]), np.diag([0.1, 0.3]), 0.1 * np.ones((3, 2))
    result = control.dlqe(A, C, W, V, S)
    P = scipy.linalg.solve_discrete_are(A.T, C.T, W, V, s=S)
    Y = C @ P @ C.T + V
    assert np.allclose(result.P, P, rtol=1e-8)
    assert np.allclose(result.L, (A @ P @ C.T + S) @ np.linalg.inv(Y), rtol=1e-7)
    assert np.allclose(result.M, P @ C.T @ np.linalg.inv(Y), rtol=1e-7)
    continuous = control.lqe(A, C, W, V, S)
    assert np.allclose(continuous.L, gain(A.T, C.T, W, V, S, discrete=False)[0].T, rtol=1e-7)
    assert continuous.M is None


def test_sampled_noise_is_van_loans_integral():
    A, W, dt = plant(2)[0], np.diag([1.0, 0.0, 0.5]), 0.3
    block = scipy.linalg.expm(np.block([[-A, W], [np.zeros((3, 3)), A.T]]) * dt)
    expected = block[3:, 3:].T @ block[:3, 3:]
    assert np.allclose(control.sampled_noise(A, W, dt), expected, rtol=1e-10)
    assert np.allclose(control.sampled_noise(np.stack([A, 2 * A]), W, [dt, dt])[0], expected)


def test_the_filter_form_is_the_optimum_under_noises_that_come_together():
    A, B, C = plant(3)
    Q, R, N = np.eye(3), np.eye(2), 0.2 * np.ones((3, 2))
    root = np.random.default_rng(0).normal(size=(5, 5))
    noise = root @ root.T / 5
    W, V, S = noise[:3, :3], noise[3:, 3:], noise[:3, 3:]

    def cost(z):
        """A step's mean cost of the controller (A, B; C, D) in z."""
        a, b, c, d = z[:3, :3], z[:3, 3:], z[3:, :3], z[3:, 3:]
        loop = np.block([[A + B @ d @ C, B @ c], [b @ C, a]])
        enter = np.block([[np.eye(3), B @ d], [np.zeros((3, 3)), b]])
        seen = np.block([[np.eye(3), np.zeros((3, 3))], [d @ C, c]])
        X = scipy.linalg.solve_discrete_lyapunov(loop, enter @ noise @ enter.T)
        weight = np.block([[Q, N], [N.T, R]])
        return np.trace(weight @ seen @ X @ seen.T) + np.trace(R @ d @ V @ d.T)

    costs, at_best = {}, None
    for form in ("predictor", "filter"):
        design = control.lqg(A, B, C, Q, R, W, V, N, S, discrete=True, form=form)
        at_best = np.block([[design.A, design.B], [design.C, design.D]])
        costs[form] = cost(at_best)
    assert costs["filter"] < 0.99 * costs["predictor"]
    for seed in range(10):
        step = 1e-4 * np.random.default_rng(seed).normal(size=(5, 5))
        slope = (cost(at_best + step) - cost(at_best - step)) / costs["filter"]
        assert abs(slope) < 1e-6


def test_margins_of_output_feedback_equal_python_controls():
    A, B, C = plant(6, m=1, p=1)
    for form, dt in (("predictor", None), ("predictor", 0.1), ("filter", 0.1)):
        a = A if dt is None else 0.6 * A
        design = control.lqg(a, B, C, np.eye(3), np.eye(1), np.eye(3), np.eye(1), discrete=dt is not None, form=form)
        time = () if dt is None else (dt,)
        controller = python_control.ss(design.A, design.B, design.C, design.D, *time)
        loop = -python_control.ss(a, B, C, 0, *time) * controller
        w = np.geomspace(1e-3, 1e3 if dt is None else np.pi / dt, 20001)
        modulus = np.abs(1 + loop(1j * w if dt is None else np.exp(1j * w * dt))).min()
        (ours,), (output,) = design.margins(dt), design.margins(dt, at="output")
        assert ours.modulus_margin == pytest.approx(modulus, rel=1e-3)
        assert output.modulus_margin == pytest.approx(ours.modulus_margin, rel=1e-6)  # one loop, opened elsewhere
        refused("dt: expected", design.margins, 0.1 if dt is None else None)


@pytest.mark.parametrize("discrete", [False, True])
def test_output_feedback_separates(discrete):
    A, B, C = plant(3)
    Q, R, W, V = np.diag([1.0, 2.0, 0.5]), np.diag([0.3, 1.0]), np.diag([2.0, 0.1, 1.0]), np.diag([0.2, 0.7])
    result = control.lqg(A, B, C, Q, R, W, V, discrete=discrete)
    K, L = gain(A, B, Q, R, discrete=discrete)[0], gain(A.T, C.T, W, V, discrete=discrete)[0].T
    for ours, expected in ((result.A, A - B @ K - L @ C), (result.B, L), (result.C, -K)):
        assert np.allclose(ours, expected, rtol=1e-7)


@pytest.mark.parametrize("discrete", [False, True])
def test_integral_action_removes_a_constant_disturbance(discrete):
    A, B, C = plant(4)
    C = C[:1]
    result = control.lqi(A, B, C, np.eye(3), np.eye(2), np.eye(1), discrete=discrete)
    push, wanted = np.array([1.0, -2.0, 0.5]), np.array([0.7])
    F, G, H, D = result.controller(0.1 if discrete else None).matrices
    loop = np.block([[A + B @ D, B @ H], [G, F]])
    rest = np.linalg.solve((np.eye(4) if discrete else np.zeros((4, 4))) - loop, np.append(push, -wanted))
    poles = np.linalg.eigvals(loop)
    assert (np.abs(poles) if discrete else np.exp(poles.real)).max() < 1
    assert np.allclose(C @ rest[:3], wanted)
    alone = np.linalg.solve((np.eye(3) if discrete else 0) - (A - B @ result.K), push)
    assert abs((C @ alone)[0] - wanted[0]) > 1e-3  # without the integrals there is an error


@pytest.mark.parametrize("discrete", [False, True])
def test_feedforward_holds_the_set_point(discrete):
    A, B, C = plant(5)
    Nx, Nu = control.feedforward(A, B, C, discrete=discrete)
    r = np.array([0.3, -1.0])
    x, u = Nx @ r, Nu @ r
    assert np.allclose(A @ x + B @ u, x if discrete else 0, atol=1e-10)
    assert np.allclose(C @ x, r)
    stacked = control.feedforward(np.stack([A, 2 * A]), B, C, discrete=discrete)[0]
    assert np.allclose(stacked[0], Nx)
    held, poles = scipy.linalg.qr(A)[0], np.diag([0.5, -0.3, -0.7])
    drift = poles - discrete * np.eye(3)
    C = scipy.linalg.null_space(np.linalg.solve(drift, B[:, :1]).T).T  # the first input moves neither at rest
    lost = control.feedforward(held @ poles @ held.T, held @ B, C @ held.T, discrete=discrete)
    assert not any(np.isfinite(a).any() for a in lost)  # in coordinates that hide the zero


def test_placed_poles_are_reached_or_refused():
    A, B, _ = plant(7)
    wanted = np.array([-1.0, -2 + 1j, -2 - 1j])
    K = control.place(A, B, wanted)
    assert np.allclose(np.sort_complex(np.linalg.eigvals(A - B @ K)), np.sort_complex(wanted))
    refused("poles:", control.place, np.diag([1.0, 2.0, 3.0]), np.array([[0.0], [1.0], [1.0]]), [-1.0, -2.0, -3.0])
    with pytest.raises(ValueError, match="poles: the nearest that was reached"):  # of a mode that no input moves
        control.place(np.diag([1.0002, 1.0001]), np.array([[1.0], [0.0]]), [0.9999, 0.9998])
    refused("n poles", control.place, A, B, [-1.0])


def test_gramians_and_matrices_equal_python_controls():
    A, B, C = plant(8)
    A = A - (np.linalg.eigvals(A).real.max() + 0.5) * np.eye(3)
    assert np.allclose(control.ctrb(A, B), python_control.ctrb(A, B))
    assert np.allclose(control.obsv(A, C), python_control.obsv(A, C))
    system = python_control.ss(A, B, C, 0)
    assert np.allclose(control.gram(A, B), python_control.gram(system, "c"))
    assert np.allclose(control.gram(A.T, C.T), python_control.gram(system, "o"))
    F = 0.2 * A
    total = sum(np.linalg.matrix_power(F, k) @ B @ B.T @ np.linalg.matrix_power(F, k).T for k in range(400))
    assert np.allclose(control.gram(F, B, discrete=True), total)


def test_modes_of_an_oscillator():
    A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.4, 0.0], [0.0, 0.0, -3.0]])
    swing, decay = control.modes(A)
    assert np.isclose(swing.frequency, 2.0)
    assert np.isclose(swing.damping, 0.1)
    assert np.isclose(swing.time_constant, 5.0)
    assert set(swing.states) == {0, 1}
    assert decay.states == (2,)
    sampled = control.modes(scipy.linalg.expm(0.1 * A), dt=0.1)
    assert np.allclose([m.pole for m in sampled], [swing.pole, decay.pole])
    (deadbeat,) = control.modes([[0.0]], dt=0.1)
    assert (deadbeat.pole, deadbeat.damping, deadbeat.time_constant) == (-np.inf, 1.0, 0.0)
    said = str(control.diagnose(np.diag([0.0, 0.5]), [[0.0], [1.0]], np.eye(2), np.eye(1), dt=0.1))
    assert "mode at -inf rad/s (in state 0) is moved by no input, but decays" in said


@pytest.mark.parametrize("dt", [None, 0.1])
def test_the_settling_time_is_that_of_the_slowest_modes_amplitude(dt):
    A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.4, 0.0], [0.0, 0.0, -3.0]])  # exp(−0.2 t)
    poles = np.linalg.eigvals(A if dt is None else scipy.linalg.expm(dt * A))
    values, vectors = np.linalg.eig(A)
    start = np.linalg.inv(vectors) @ np.ones(3)
    time = control.settling_time(np.stack([poles, 1.001 * poles**0]), dt, within=0.01)
    left = np.linalg.inv(vectors) @ scipy.linalg.expm(time[0] * A) @ np.ones(3)
    slowest = np.argmax(values.real)
    assert np.isclose(abs(left[slowest] / start[slowest]), 0.01)
    assert time[1] == np.inf
    if dt:
        assert np.isclose(control.settling_time(poles, 1.0, within=0.01) * dt, time[0])
        assert np.allclose(control.settling_time(np.stack([poles, poles]), np.array([dt, 2 * dt])),
                           np.array([1, 2]) * control.settling_time(poles, dt))  # fmt: skip


def test_a_horizon_is_so_many_settling_times_of_the_slowest_loop_rounded_up():
    poles = np.array([[0.9, 0.5j], [0.99, 0.1]])
    exact = np.log(1000) / -np.log(0.99)
    assert control.settling_steps(poles, multiple=1) == np.ceil(2 * exact)
    assert control.settling_steps(poles, times=1.0) == 50 * np.ceil(exact / 50)
    assert control.settling_steps(poles[0]) == 150
    assert control.settling_steps(poles[0], times=0.1) == 100
    assert control.settling_steps([1.01], longest=300) == control.settling_steps([[np.nan]], longest=300) == 300


@pytest.mark.parametrize("sampled", [True, False])
def test_margins_are_where_the_loops_own_eigenvalues_leave(sampled):
    """Also at the Nyquist frequency, where a loop that is sampled is lost to too much gain."""
    A0, B0 = np.array([[0.0, 1, 0], [4, 0, 1], [0, 0, -2.0]]), np.array([[0.0, 0], [1, 0], [0, 1]])
    Q, R, dt = np.eye(3), np.diag([0.1, 0.3]), 0.1
    A, B = (np.asarray(a) for a in control.c2d(A0, B0, dt)) if sampled else (A0, B0)
    K = np.asarray((control.lqrd(A0, B0, Q, R, dt) if sampled else control.lqr(A0, B0, Q, R)).K)

    def bears(i, factor):
        F = np.eye(2, dtype=complex)
        F[i, i] = factor
        poles = np.linalg.eigvals(A - B @ F @ K)
        return (np.abs(poles) < 1).all() if sampled else (poles.real < 0).all()

    for i, m in enumerate(control.margins(A, B, K, dt if sampled else None)):
        tries = np.geomspace(1e-3, 1e3, 600)
        for factor in tries:
            assert bears(i, factor) == (m.gain_down < factor < m.gain_up), (i, factor, m)
        assert np.isfinite(m.gain_up) == sampled
        for angle in np.linspace(0, np.pi, 300)[1:-1]:
            assert bears(i, np.exp(1j * angle)) or angle >= m.phase
        if np.isfinite(m.phase):  # at the input of the unstable mode
            assert bears(i, np.exp(0.999j * m.phase))
            assert not bears(i, np.exp(1.001j * m.phase))


def test_margins_of_a_loop_computed_by_hand():
    # L = 0.5 / (s (s + 1)²) is −0.25 at 1 rad/s
    A = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, -2.0]])
    (result,) = control.margins(A, np.array([[0.0], [0.0], [1.0]]), np.array([[0.5, 0.0, 0.0]]))
    assert np.isclose(result.gain_up, 4.0)
    assert result.gain_down == 0.0
    w = np.geomspace(1e-3, 1e3, 200001)
    L = 0.5 / (1j * w * (1j * w + 1) ** 2)
    assert np.isclose(result.modulus_margin, np.abs(1 + L).min(), rtol=1e-6)
    assert np.isclose(result.disk.alpha, (2 * np.abs(1 + L) / np.abs(1 - L)).min(), rtol=1e-6)
    # the disk of factors f = (1 + δ/2)/(1 − δ/2), |δ| < α: it ends at both gains and, on |f| = 1, at the phase
    for edge in (*result.disk.gain, np.exp(1j * result.disk.phase)):
        assert np.isclose(abs(2 * (edge - 1) / (edge + 1)), result.disk.alpha, rtol=1e-9)
    refused("not stable", control.margins, A, np.array([[0.0], [0.0], [1.0]]), np.array([[5.0, 0.0, 0.0]]))


def test_a_loop_whose_gain_stays_below_one_has_no_phase_to_lose_and_one_that_touches_it_has():
    resonance = np.array([[0.0, 1.0], [-1.0, -0.4]]), np.array([[0.0], [1.0]])
    unit = 0.4 * np.sqrt(0.96)  # of k / (s² + 0.4 s + 1) the peak is one
    lag = np.array([[-1.0]]), np.array([[1.0]])
    for (A, B), k, touching in (
        (resonance, 1.0001 * unit, False), (resonance, unit, True), (resonance, 0.9999 * unit, False),
        (lag, 1.0001, False), (lag, 1.0, True), (lag, 0.9999, False), (lag, -0.9999, False),
    ):  # fmt: skip
        K = k * np.eye(1, len(A))
        crossings = python_control.stability_margins(python_control.ss(A, B, K, 0), returnall=True)[1]
        (ours,) = control.margins(A, B, K)
        expected = min(np.deg2rad(crossings), default=np.inf)
        if touching and not np.isfinite(expected):  # at no frequency, where python-control does not look
            expected = np.pi
        np.testing.assert_allclose(ours.phase, expected, rtol=1e-5)


def test_the_diagnosis_names_what_is_wrong():
    A, B = np.diag([4.2, -1.0]), np.array([[0.0], [1.0]])
    result = control.diagnose(A, B, np.eye(2), np.eye(1))
    assert "mode at +4.2 rad/s is not stabilizable" in result.sentences[0]
    assert result.sentences[1:] == ("The mode at +4.2 rad/s (in state 0) is moved by no input.",)
    assert np.isnan(result.residual)
    fine = control.diagnose(np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0], [1.0]]), np.eye(2), np.eye(1))
    assert str(fine).startswith("The regulator exists")
    integrator = control.diagnose(np.diag([0.0, -1.0]), np.ones((2, 1)), np.diag([0.0, 1.0]), np.eye(1))
    assert "Q does not see it" in str(integrator)
    decaying = control.diagnose(np.diag([-3.0, -1.0]), B, np.eye(2), np.eye(1))
    assert decaying.sentences[0] == "The mode at -3 rad/s (in state 0) is moved by no input, but decays."
    for u, x in ((1e-13, 1.0), (1.0, 1e7)):  # units of the input and of the first state
        A, B, X = np.array([[0.0, 1.0], [2.0, -0.3]]), np.array([[0.0], [1.0]]), np.diag([x, 1.0])
        said = str(control.diagnose(X @ A / np.diag(X), X @ B * u, np.diag(1 / np.diag(X) ** 2), np.eye(1) * u * u))
        assert "controllable" not in said
        assert "no input" not in said
    barely = control.diagnose(np.diag([-3.0, -1.0]), [[1e-8], [1.0]], np.eye(2), np.eye(1)).sentences[0]
    assert barely.startswith("The mode at -3 rad/s (in state 0) is barely controllable: a relative change of")
    units = np.array([[0.0, 1e7], [-1e-7, 0.0]])  # at 1e8 a mode is 1e-8 from the boundary, where processors differ
    scaled = control.diagnose(units, np.array([[0.0], [1e-7]]), np.diag([1e-14, 1.0]), np.eye(1))
    assert "scaling is bad" in str(scaled)
    assert "The regulator exists" in str(scaled)


def test_integral_action_is_batched():
    A, B, C = plant(9)
    many = control.lqi(np.stack([A, A / 2]), B, C, np.eye(3), np.eye(2), np.eye(2))
    assert many.K.shape == (2, 2, 3)
    assert many.controller().poles.shape == (2, 2)
    assert np.allclose(many.K[1], control.lqi(A / 2, B, C, np.eye(3), np.eye(2), np.eye(2)).K, rtol=1e-8)
