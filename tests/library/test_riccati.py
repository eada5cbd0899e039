"""The Riccati solvers where it is hard: textbook cases, bad scaling, slow loops, large batches."""

import warnings
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from scipy_oracle import gain, relative

from lqrlab import control, tuning
from lqrlab.compute import quick_jit
from lqrlab.compute.linalg import batch_last
from lqrlab.compute.threads import on_all_cores
from lqrlab.control.riccati import doubling, equations, on_host

with mock.patch.object(pytest.mark, "_config", None):  # it carries a marker of SciPy's own
    from scipy.linalg.tests import test_solvers


def textbook(kind, largest):
    """SciPy's cases of the CAREX and DAREX collections (P. Benner et al., 1995), real and up to a size."""
    for i, (A, B, Q, R, *_) in enumerate(getattr(test_solvers, f"TestSolve{kind}Are").cases):
        matrices = [np.atleast_2d(a) for a in (A, B, Q, R)]
        # number 16 (CAREX 17, a chain of 21 integrators) is out of reach in double precision, SciPy's too;
        # the loop of number 10 (CAREX 11) has its poles at ±j, so it has no stabilizing solution (asked for below)
        real = not any(np.iscomplexobj(a) for a in matrices)
        if real and len(matrices[0]) <= largest and (kind, i) not in (("Continuous", 10), ("Continuous", 16)):
            marks = [pytest.mark.matrix] if i >= 6 else []  # each size is another program
            solve = control.care if kind == "Continuous" else control.dare
            yield pytest.param(solve, *(a.astype(float) for a in matrices), id=f"{kind.lower()}{i}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("solve", "A", "B", "Q", "R"), [*textbook("Continuous", 30), *textbook("Discrete", 13)])
def test_textbook_cases(solve, A, B, Q, R):
    P = np.asarray(solve(A, B, Q, R))
    if solve is control.care:
        K = np.linalg.solve(R, B.T @ P)
        terms = A.T @ P, P @ A, -P @ B @ K, Q
    else:
        K = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
        terms = A.T @ P @ A, -P, -A.T @ P @ B @ K, Q
    assert np.linalg.norm(sum(terms)) < 1e-10 * max(map(np.linalg.norm, terms))
    poles = np.linalg.eigvals(A - B @ K)
    assert (poles.real.max() < 0) if solve is control.care else (np.abs(poles).max() < 1)


@pytest.mark.parametrize("kind", ["C", "D"])
def test_random_problems_equal_slycots(kind):
    slycot = pytest.importorskip("slycot")
    rng = np.random.default_rng(7)
    A, B = rng.normal(size=(20, 5, 5)), rng.normal(size=(20, 5, 2))
    result = (control.care if kind == "C" else control.dare)(A, B, np.eye(5), np.diag([1.0, 4.0]))
    for a, b, P in zip(A, B, result):
        G = b @ np.diag([1.0, 0.25]) @ b.T
        # of the inverse symplectic matrix in discrete time; in continuous time hinv does nothing
        theirs = slycot.sb02md(5, a.copy(), G.copy(), np.eye(5), kind, hinv="I")[0]
        assert np.linalg.norm(P - theirs) < 1e-8 * np.linalg.norm(theirs)


def chain(rng, count, masses):
    """Masses on stiff springs, light damping, one force: x = (positions, speeds), over ten decades of stiffness."""
    n = 2 * masses
    A, B = np.zeros((count, n, n)), np.zeros((count, n, 1))
    for i in range(count):
        stiffness = 10 ** rng.uniform(-2, 8, masses)
        mass = 10 ** rng.uniform(-2, 2, masses)
        K = np.diag(stiffness) + np.diag(np.append(stiffness[1:], 0))
        K -= np.diag(stiffness[1:], 1) + np.diag(stiffness[1:], -1)
        A[i, :masses, masses:] = np.eye(masses)
        A[i, masses:, :masses] = -K / mass[:, None]
        A[i, masses:, masses:] = (
            -(10 ** rng.uniform(-4, -1)) * K / np.sqrt(stiffness.max() * mass.max()) / mass[:, None]
        )
        B[i, masses, 0] = 1 / mass[0]
    Q = np.broadcast_to(np.eye(n), A.shape)
    R = 10 ** rng.uniform(-6, 2, (count, 1, 1))
    return A, B, Q, R


@pytest.mark.matrix
@pytest.mark.parametrize("masses", [1, 2, 3])
def test_no_stiff_chain_is_falsely_accepted(masses):
    A, B, Q, R = chain(np.random.default_rng(masses), 700, masses)
    result = control.lqr(A, B, Q, R)
    good = np.asarray(result.stabilizing)
    assert good.mean() > 0.95  # each has a solution; SciPy's own fails for some, too
    K = np.asarray(result.K)[good]
    assert np.all(np.linalg.eigvals(A[good] - B[good] @ K).real.max(-1) < 0)
    worst, seen = 0.0, 0
    for i in np.flatnonzero(good)[:100]:
        try:
            P = scipy.linalg.solve_continuous_are(A[i], B[i], Q[i], R[i])
        except np.linalg.LinAlgError:
            continue  # SciPy finds the pencil too badly scaled
        terms = A[i].T @ P, P @ A[i], -P @ B[i] @ B[i].T @ P / R[i], Q[i]
        if np.linalg.norm(sum(terms)) > 1e-12 * np.linalg.norm(terms[0]):
            continue  # its answer is too inexact to compare with
        seen += 1
        worst = max(worst, np.linalg.norm(result.P[i] - P) / np.linalg.norm(P))
    assert seen > 20
    assert worst < 1e-5


@pytest.mark.parametrize("continuous", [True, False])
def test_a_newton_step_is_kleinmans_or_hewers_and_an_answers_error_is_that_of_its_equation(continuous):
    rng = np.random.default_rng(2)
    A, B, L = rng.normal(size=(2, 4, 4)), rng.normal(size=(2, 4, 2)), rng.normal(size=(2, 6, 6))
    W = L @ L.mT + np.eye(6)
    Q, R, N = W[:, :4, :4], W[:, 4:, 4:], W[:, :4, 4:]
    P = np.stack([1.1 * gain(*args, discrete=not continuous)[1] for args in zip(A, B, Q, R, N)])
    last = [jnp.moveaxis(jnp.asarray(a), 0, -1) for a in (A, B, Q, R, N, P)]
    problem = doubling.DoublingProblem(*last[:5])
    better, reach = quick_jit(partial(problem.newton_step, continuous=continuous))(last[5])
    found, error = quick_jit(partial(problem.finished, continuous=continuous))(last[5], reach < jnp.inf)
    assert np.isfinite(reach).all()
    for i, (a, b, q, r, n, p) in enumerate(zip(A, B, Q, R, N, P)):
        S, M = (r, p @ b + n) if continuous else (r + b.T @ p @ b, a.T @ p @ b + n)
        K = np.linalg.solve(S, M.T)
        stage, closed = q + K.T @ r @ K - n @ K - K.T @ n.T, (a - b @ K).T
        if continuous:
            expected, terms = scipy.linalg.solve_continuous_lyapunov(closed, -stage), (p @ a, a.T @ p)
        else:
            expected, terms = scipy.linalg.solve_discrete_lyapunov(closed, stage), (a.T @ p @ a, -p)
        assert relative(better[..., i] - p, expected - p) < 1e-5  # six digits of a step are enough
        assert relative(found.K[..., i], K) < 1e-9
        assert relative(found.closed[..., i], closed.T) < 1e-9
        terms = *terms, -M @ K, q
        both = np.sqrt(np.outer(np.diag(p), np.diag(p)))  # of the units in which P has ones on its diagonal
        for size, given, more in ((np.ones_like(p), found.residual, 0), (both, error, 1)):  # it is not given out
            wrong = np.abs(sum(terms) / size).max() / max(np.abs(term / size).max() for term in terms)
            assert float(given[i]) - more == pytest.approx(wrong, rel=1e-7)
    found, error = problem.finished(last[5], jnp.array([True, False]), continuous=continuous)
    assert np.isfinite(error).tolist() == [True, False]
    assert found.stable.tolist() == [1, 0]


@pytest.mark.parametrize("num", [None, 5, 80])
def test_a_slow_state_beside_a_costly_one_has_its_own_gain(num):
    """Closed form of each scalar problem: costs that differ by 1e14 take no digits from the smaller one."""
    fast, slow, dt = 0.3, 25_000.0, 0.06
    A, B, Q, R = (np.diag(d) for d in ([-1 / fast, -1 / slow], [1 / fast, 1.0], [1e5, 2e-10], [0.05, 0.014]))
    (a, b, q, r, _) = (np.diag(m)[1] for m in control.discretize(A, B, Q, R, dt))
    rest = r * (1 - a * a) - q * b * b  # b²p² + (r − a²r − qb²)p − qr = 0
    p = 2 * q * r / (rest + np.sqrt(rest**2 + 4 * b * b * q * r))
    A, B = (m if num is None else np.stack([m] * num) for m in (A, B))
    for design in (control.lqrd(A, B, Q, R, dt), jax.jit(control.lqrd)(A, B, Q, R, dt)):
        assert np.allclose(np.asarray(design.K)[..., 1, 1], a * b * p / (r + b * b * p), rtol=1e-6)
        assert np.allclose(np.asarray(design.P)[..., 1, 1], p, rtol=1e-6)


@pytest.mark.parametrize("continuous", [True, False])
def test_doubling_that_stalls_is_rescued(continuous):
    # the second loop decays at a ten-thousandth of its speed: its weights are tiny, the plant does not decay
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    A, B = turn if continuous else scipy.linalg.expm(turn), np.array([[0.0], [1.0]])
    Q, R = np.stack([q * np.eye(2) for q in (1.0, 1e-8, 2.0)]), np.eye(1)
    full = [jnp.stack([a] * 3, axis=-1) for a in (A, B)] + [jnp.moveaxis(Q, 0, -1)]
    full += [jnp.ones((1, 1, 3)), jnp.zeros((2, 1, 3))]
    _, error = quick_jit(partial(doubling.by_doubling, continuous=continuous))(*full)
    assert np.array_equal(error > 1e-11, [False, True, False])
    design = control.lqr if continuous else control.dlqr
    for result in (design(A, B, Q, R), quick_jit(design)(A, B, Q, R)):  # outside and inside a trace
        assert bool(jnp.all(result.stabilizing))
        assert np.allclose(result.P, [gain(A, B, q, R, discrete=not continuous)[1] for q in Q], rtol=1e-7)


def test_a_singular_input_weight_has_scipys_answer():
    A, B, Q = np.array([[0.9, 1.0], [0.0, 1.1]]), np.array([[0.0], [1.0]]), np.diag([1.0, 0.0])
    R = np.zeros((1, 1))
    assert np.allclose(control.dare(A, B, Q, R), scipy.linalg.solve_discrete_are(A, B, Q, R))
    rng = np.random.default_rng(1)
    for n, m in ((4, 2), (6, 3)):
        A, B, L = rng.normal(size=(n, n)), rng.normal(size=(n, m)), rng.normal(size=(n, n + m - 1))
        W = L.T @ L  # one input costs nothing, in no direction of its own
        Q, R, N = W[:n, :n], np.diag([0.0, *np.ones(m - 1)]), np.zeros((n, m))
        N[:, 1:] = 0.1 * W[:n, n:]
        Q = Q + N @ N.T
        assert relative(control.dare(A, B, Q, R, N), scipy.linalg.solve_discrete_are(A, B, Q, R, s=N)) < 1e-8


@pytest.mark.parametrize("continuous", [True, False])
def test_plants_that_their_input_hardly_moves_have_stable_loops_or_are_called_uncertified(continuous):
    # those of 10,000 random problems whose P is some 1e10
    rng, design = np.random.default_rng(2), control.lqr if continuous else control.dlqr
    A, B = (rng.normal(size=(10000, 4, k)) for k in (4, 1))
    rows = np.array([5085, 3164, 0, 1])
    A, B, Q, R = A[rows], B[rows], np.eye(4), np.eye(1)
    for found in (jax.jit(design)(A, B, Q, R), design(A, B, Q, R)):
        assert (found.stabilizing | found.uncertified).all()
        assert found.stabilizing[2:].all()
        good = np.flatnonzero(found.stabilizing)
        poles = np.linalg.eigvals(A[good] - B[good] @ np.asarray(found.K)[good])
        assert ((poles.real if continuous else np.abs(poles) - 1) < 0).all()


def test_a_program_certifies_no_cost_that_rounding_has_decided():
    """A mode that grows 1e5 times a step: outside a trace P is polished, in a program it was wrong by an eighth."""
    rng = np.random.default_rng(287)
    T, B = rng.normal(size=(3, 3)), rng.normal(size=(3, 2))
    A = T @ np.diag([1e5, 3.0, 0.5]) @ np.linalg.inv(T)
    found, polished = jax.jit(control.dlqr)(A, B, np.eye(3), np.eye(2)), control.dlqr(A, B, np.eye(3), np.eye(2))
    assert polished.stabilizing
    assert not found.stabilizing
    assert found.uncertified


def test_where_there_is_no_optimum_nothing_is_called_uncertified():
    A = np.stack([np.diag([1.0, 2.0])] * 3)
    B = np.stack([np.array([[1.0], [0.0]]), np.ones((2, 1)), np.ones((2, 1))])
    Q = np.stack([np.eye(2), np.diag([1.0, -3.0]), np.eye(2)])  # the second has no lower bound
    for design in (control.lqr, jax.jit(control.lqr)):
        found = design(A, B, Q, np.eye(1))
        assert found.stabilizing.tolist() == [False, False, True]
        assert not found.uncertified.any()
        assert np.isinf(found.residual).tolist() == [True, False, False]
    refused("close to one that has|leaves a relative", control.lqr, np.diag([1, 1 + 1e-7]), B[1], np.eye(2), [[1]])
    for a in 1.0 + np.geomspace(1e-4, 1e-6, 9):  # closer than one digit of the cost, but determined: p(s)p(-s) says it
        p, q = np.sqrt(np.roots([1, -3 - a * a, 2 * a * a + 1]))
        found = control.lqr(np.diag([1.0, a]), B[1], np.eye(2), np.eye(1)).K[0]
        np.testing.assert_allclose(found, np.array([-(1 + p) * (1 + q), (a + p) * (a + q)]) / (a - 1), rtol=1e-12)


def test_a_problem_of_which_only_digits_are_missing_is_told_from_one_without_an_optimum():
    gaps, B = np.geomspace(1e-6, 5e-8, 40), np.ones((2, 1))
    many = control.lqr(np.stack([np.diag([1.0, 1.0 + gap]) for gap in gaps]), B, np.eye(2), np.eye(1))
    gap = gaps[np.flatnonzero(many.uncertified)[0]]  # which of them it is depends on the processor's rounding
    A = np.diag([1.0, 1.0 + gap])
    K = np.array([[-2 * 3, (2 + gap) * (3 + gap)]]) / gap  # by Ackermann's formula
    assert np.allclose(np.sort(np.linalg.eigvals(A - B @ K).real), [-2, -1], atol=0.1)
    assert control.lqr(np.stack([A, A]), B, np.eye(2), np.eye(1)).uncertified.all()
    refused(r"loop was found, but its Riccati equation leaves a relative \d", control.lqr, A, B, np.eye(2), [[1]])
    with pytest.raises(ValueError, match="the first at 2: a stable loop was found, but its Riccati equation leaves"):
        tuning.gain_schedule(np.array([1.0, 2.0]), np.stack([np.diag([1.0, 2.0]), A]), B, np.eye(2), np.eye(1))
    lost = np.diag([1.0, 1.0])  # here no input tells the two apart
    refused("not stabilizable", control.lqr, lost, B, np.eye(2), np.eye(1))


@pytest.mark.parametrize("continuous", [True, False])
def test_the_host_and_the_compiled_program_give_the_same(continuous):
    rng = np.random.default_rng(6)
    A, B, L = rng.normal(size=(70, 4, 4)), rng.normal(size=(70, 4, 2)), rng.normal(size=(70, 6, 6))
    W = L @ L.mT + 0.1 * np.eye(6)
    problems = A, B, W[:, :4, :4], W[:, 4:, 4:], W[:, :4, 4:]
    design = control.lqr if continuous else control.dlqr
    compiled, few = design(*problems), design(*(a[:5] for a in problems))
    assert relative(compiled.K[:5], np.asarray(few.K)) < 1e-8
    found, error = on_host.solved(problems, continuous=continuous, enough=1e-11)
    assert (error < 1e-8).all()
    assert relative(found.P, np.asarray(compiled.P)) < 1e-7


@pytest.mark.parametrize(("dtype", "enough", "more"), [(np.float64, 9e-9, 1e-6), (np.float32, 2e-4, 1e-3)])
def test_an_answer_holds_to_the_digits_of_its_type_and_its_loop_is_stable(dtype, enough, more):
    one = np.ones((4, 1, 1), dtype)
    P = one * np.array([1, 1, np.nan, 1], dtype)[:, None, None]
    residual = np.array([enough, more, enough, enough], dtype)
    found = doubling.Solution(one, P, one, residual, np.array([1, 1, 1, 0], dtype), one[:, 0, 0])
    assert equations.certain(doubling.Solution(*map(jnp.asarray, found))).tolist() == [True] + 3 * [False]


def test_a_design_whose_equation_holds_to_six_digits_only_is_not_given(monkeypatch):
    A, B, Q, R = (np.broadcast_to(a, (2, *np.shape(a))) for a in (np.eye(2), np.eye(2), np.eye(2), np.eye(2)))
    exact = equations.solution
    inexact = jnp.array([0.0, 1e-6])
    monkeypatch.setattr(equations, "solution", lambda *args, **how: exact(*args, **how)._replace(residual=inexact))
    for result in (control.dlqr(A, B, Q, R), control.lqr(A, B, Q, R), control.lqrd(A, B, Q, R, 0.1)):
        assert result.stabilizing.tolist() == [True, False]
        assert result.uncertified.tolist() == [False, True]
        assert np.isfinite(result.K[0]).all()
        assert np.isnan(result.K[1]).all()
        assert np.isnan(result.P[1]).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_small_and_large_batches_give_the_same(n):
    rng = np.random.default_rng(n)
    A, b = rng.normal(size=(n, n, 40)) + 2 * np.eye(n)[:, :, None], rng.normal(size=(n, n, 40))
    mul, inverted, positive = (quick_jit(f) for f in (batch_last.mul, batch_last.inverse, batch_last.positive))
    one = np.moveaxis(A, -1, 0)
    assert np.allclose(np.moveaxis(mul(A, b), -1, 0), one @ np.moveaxis(b, -1, 0), rtol=1e-12)
    assert np.allclose(mul(A[..., :5], b[..., :5]), mul(A, b)[..., :5], rtol=1e-12)
    inverse = np.moveaxis(np.linalg.inv(one), 0, -1)
    assert np.allclose(inverted(A), inverse, rtol=1e-6, atol=1e-9)
    assert np.allclose(inverted(A[..., :5]), inverse[..., :5], rtol=1e-9, atol=1e-12)
    wide = np.moveaxis(one @ one.mT - 0.5 * np.eye(n), 0, -1)
    assert np.array_equal(positive(wide), np.linalg.eigvalsh(np.moveaxis(wide, -1, 0)).min(-1) > 0)


@pytest.mark.parametrize("continuous", [True, False])
def test_doubling_alone_gives_scipys_answer_and_the_sign_function_in_any_units(continuous):
    rng = np.random.default_rng(8)
    A, B, L = np.tril(rng.normal(size=(3, 3))), rng.normal(size=(3, 2)), rng.normal(size=(5, 5))
    W = L @ L.T + np.eye(5)
    Q, R, N = W[:3, :3], W[3:, 3:], W[:3, 3:]
    K, P = gain(A, B, Q, R, N, discrete=not continuous)
    doubled = quick_jit(partial(doubling.by_doubling, continuous=continuous))
    for F, cross in ((A, N), (A - B @ np.linalg.solve(R, N.T), 0 * N), (np.triu(A), 0 * N)):  # alone, in SI units
        found, error = doubled(*(jnp.asarray(a)[..., None] for a in (F, B, Q, R, cross)))
        assert float(error[0]) < 1e-12
        for result, expected in zip((found.K, found.P), gain(F, B, Q, R, cross, discrete=not continuous)):
            assert relative(result[..., 0], expected) < 1e-10
    x, u = np.array([1e-3, 1.0, 1e4]), np.array([1e2, 1e-3])  # of states and inputs
    units = A * x[:, None] / x, B * x[:, None] / u, Q / x[:, None] / x, R / u[:, None] / u, N / x[:, None] / u
    solve = quick_jit(partial(doubling.by_sign_function, continuous=continuous))
    for problem, scale in (((A, B, Q, R, N), (np.ones(3), np.ones(2))), (units, (x, u))):
        found, error = solve(*(jnp.asarray(a)[..., None] for a in problem))
        assert float(error[0]) < 1e-11
        assert found.stable.tolist() == [1]
        x, u = scale
        assert relative(np.asarray(found.P)[..., 0] * x[:, None] * x, P) < 1e-9
        assert relative(np.asarray(found.K)[..., 0] / u[:, None] * x, K) < 1e-9


def test_balancing_undoes_bad_units():
    rng = np.random.default_rng(0)
    F, G, H = rng.normal(size=(4, 4)), np.eye(4), np.eye(4)
    d = np.array([1e-4, 1.0, 1e3, 1e5])
    bad = F * d[:, None] / d, G * np.outer(d, d), H / np.outer(d, d)
    result = np.asarray(doubling.scales(*(jnp.asarray(a)[:, :, None] for a in bad)))[:, 0]
    assert np.ptp(np.log10(result / d)) < 1.5
    assert np.all(np.log2(result) == np.round(np.log2(result)))


@pytest.mark.parametrize("count", [625, 1251, 2600])
def test_pieces_on_many_cores_are_put_together_in_order(count):
    A = jnp.arange(float(count)).reshape(count, 1, 1)
    result = on_all_cores(jax.jit(lambda a, b: a @ b), (A, 2), (jnp.ones((1, 1, 1)), 2))
    assert np.array_equal(result, A)


def test_threads_keep_the_callers_precision():
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            A = jnp.full((1300, 1, 1), 0.1)
            assert A.dtype == jnp.float64
            result = on_all_cores(jax.jit(lambda a: a + jnp.asarray(0.2)), (A, 2))
    finally:
        jax.config.update("jax_enable_x64", True)
    assert result.dtype == jnp.float64
    assert np.ptp(result) == 0
    assert float(result[0, 0, 0]) == 0.1 + 0.2


def test_a_large_batch_equals_its_members():
    rng = np.random.default_rng(4)
    A, B = rng.normal(size=(1300, 3, 3)), rng.normal(size=(1300, 3, 2))
    result = control.lqrd(A, B, np.eye(3), np.eye(2), 0.1)
    some = [0, 649, 650, 1299]
    few = control.lqrd(A[some], B[some], np.eye(3), np.eye(2), 0.1)
    assert np.allclose(result.K[np.array(some)], few.K, rtol=1e-9)
    assert np.allclose(few.K[1], control.lqrd(A[649], B[649], np.eye(3), np.eye(2), 0.1).K, rtol=1e-9)


def improvable(spread, num=40, n=3, m=2):
    """Problems with a cross weight, their optimum, and gains that far from it."""
    rng = np.random.default_rng(3)
    A, B = 1.2 * rng.normal(size=(num, n, n)), rng.normal(size=(num, n, m))
    problem = A, B, np.eye(n) + 0 * A, np.eye(m), 0.1 * rng.normal(size=(num, n, m))
    optimum = control.dlqr(*problem)
    return problem, optimum, np.asarray(optimum.K) + spread * rng.normal(size=(num, m, n))


def test_a_step_of_policy_iteration_is_hewers():
    problem, _, K = improvable(0.05)
    better = control.policy_iteration(*problem, K=K)
    stable = np.abs(np.linalg.eigvals(problem[0] - problem[1] @ K)).max(-1) < 1
    assert stable.sum() > 20
    for i in np.flatnonzero(stable):
        A, B, Q, R, N = (np.broadcast_to(a, (40, *a.shape[-2:]))[i] for a in problem)

        def cost(K, A=A, B=B, Q=Q, R=R, N=N):
            stage = Q + K.T @ R @ K - N @ K - K.T @ N.T
            return scipy.linalg.solve_discrete_lyapunov((A - B @ K).T, stage)

        P = cost(K[i])
        expected = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)
        np.testing.assert_allclose(better.K[i], expected, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(better.P[i], cost(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("squarings", [0, 3])
def test_the_bound_on_a_spectral_radius_is_the_root_of_a_power_by_numpy(squarings):
    A, N = np.random.default_rng(0).normal(size=(2, 3, 3)), 2**squarings
    expected = [np.linalg.norm(np.linalg.matrix_power(a, N)) ** (1 / N) for a in A]
    found = control.spectral_radius(jnp.asarray(A), squarings=squarings)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.3, 10.0])
def test_policy_iteration_ends_at_the_optimum_from_gains_that_do_not_stabilise(spread):
    problem, optimum, K = improvable(spread)
    K = K if spread else np.zeros_like(K)
    unstable = np.abs(np.linalg.eigvals(problem[0] - problem[1] @ K)).max(-1) >= 1
    assert unstable.mean() > 0.3
    first = control.policy_iteration(*problem, K=K, steps=0)
    assert first.stabilizing.all()
    np.testing.assert_array_equal(first.K[~unstable], K[~unstable])
    reached = control.policy_iteration(*problem, K=K, steps=12)
    np.testing.assert_allclose(reached.K, optimum.K, rtol=1e-6, atol=1e-8)
    traced = jax.jit(partial(control.policy_iteration, steps=12))(*problem, K=K)
    np.testing.assert_allclose(traced.K, optimum.K, rtol=1e-6, atol=1e-8)


def test_policy_iteration_stabilises_a_mode_that_costs_nothing_and_says_where_none_can():
    A = np.array([[[2.0, 0.0], [0.0, 0.5]], [[0.5, 0.0], [0.0, 2.0]]])  # the input moves the first state only
    found = control.policy_iteration(A, [[1.0], [0.0]], np.zeros((2, 2)), [[1.0]], K=[[0.0, 0.0]], steps=8)
    assert found.stabilizing.tolist() == [True, False]
    np.testing.assert_allclose(found.K[0], [[1.5, 0.0]], atol=1e-6)
    assert np.isnan(found.K[1]).all()


def slopes(function, args):
    """Of a function of arrays along a random direction: forward, backward, and by finite differences."""
    rng = np.random.default_rng(0)
    args, compiled = [jnp.asarray(a) for a in args], quick_jit(function)
    along = [jnp.asarray(rng.normal(size=a.shape)) for a in args]
    along = [a + a.mT if a.shape[-1] == a.shape[-2] else a for a in along]
    _, forward = quick_jit(lambda *a: jax.jvp(function, a, tuple(along)))(*args)
    backward = quick_jit(jax.grad(function, argnums=tuple(range(len(args)))))(*args)
    ahead, behind = (compiled(*(a + s * 1e-6 * d for a, d in zip(args, along))) for s in (1, -1))
    pulled = sum(float(jnp.sum(g * d)) for g, d in zip(backward, along))
    return float(forward), pulled, float(ahead - behind) / 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "steps"), [(0.02, 1), (2.0, 12)])
def test_policy_iteration_has_the_slope_of_finite_differences(spread, steps):
    """From a stabilizing gain of each step's; from another, near the optimum, of the Riccati equation's."""
    (A, B, Q, R, N), _, K = improvable(spread, num=2)
    unstable = np.abs(np.linalg.eigvals(A - B @ K)).max(-1) >= 1
    assert unstable.all() == (spread == 2.0)

    def total(A, B, Q, R, N, K):
        reached = control.policy_iteration(A, B, Q, R, N, K=K, steps=steps)
        return jnp.sum(jnp.sin(reached.K)) + jnp.sum(jnp.log(jnp.abs(reached.P)))

    args = (np.broadcast_to(a, (2, *a.shape[-2:])) for a in (A, B, Q, R, N, K))
    forward, backward, differences = slopes(total, args)
    assert forward == pytest.approx(differences, rel=1e-4)
    assert forward == pytest.approx(backward, rel=1e-8)


def test_redundant_inputs_that_cost_nearly_nothing_are_designed_for():
    """S = R + BᵀPB is ill-conditioned then: its explicit inverse would lose the gain."""
    b, r = np.array([100.0, 200.0, 300.0]), 1e-6
    P = np.roots([b @ b, -b @ b, -r])[0]  # the scalar equation P = 1 + P − P² bᵀb / (r + P bᵀb)
    K = control.dlqr([[1.0]], [b], [[1.0]], r * np.eye(3)).K
    np.testing.assert_allclose(K[:, 0], P * b / (r + P * (b @ b)), rtol=1e-4)


def on_the_boundary(rng, continuous, unseen):
    """A, B, Q, R of four states with a mode on the stability boundary that no input moves, or that Q does not see."""
    a = [np.zeros((2, 2)), np.array([[0.0, 2.0], [-2.0, 0.0]])] if continuous else []
    a = a or [np.diag([1.0, -1.0]), np.array([[0.6, -0.8], [0.8, 0.6]])]
    A, B, C = rng.normal(size=(4, 4)), rng.normal(size=(4, 2)), rng.normal(size=(2, 4))
    A[:2, :2] = a[rng.integers(2)]
    if unseen:
        A[2:, :2] = C[:, :2] = 0
    else:
        A[:2, 2:] = B[:2] = 0
    T = [np.eye(4), np.linalg.qr(rng.normal(size=(4, 4)))[0], np.diag([1.0, 1e3, 1e-4, 1.0])][rng.integers(3)]
    back = np.linalg.inv(T)
    C = C @ back if unseen else back
    return T @ A @ back, T @ B, 10 ** rng.uniform(-3, 4) * C.T @ C, np.eye(2)


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("unseen", [True, False])
def test_a_mode_on_the_boundary_that_no_input_moves_or_no_weight_sees_is_certified_nowhere(continuous, unseen):
    """By construction there is no stabilizing solution; rounding makes one, of a P of 1e16 or with a pole 1e-8 off."""
    rng, design = np.random.default_rng(5), control.lqr if continuous else control.dlqr
    problems = [on_the_boundary(rng, continuous, unseen) for _ in range(80)]
    batch = [np.stack(a) for a in zip(*problems)]
    for found in (design(*batch), jax.jit(design)(*batch), design(*(a[:40] for a in batch))):
        assert not found.stabilizing.any()
        assert np.isnan(found.K).all((-1, -2)).all()
    T, (A, B) = rng.normal(size=(80, 4, 4)), batch[:2]
    moved = (a[np.abs(A).max((1, 2)) < 99] for a in (T @ A @ np.linalg.inv(T), T @ B, np.linalg.inv(T)))
    assert np.isnan(control.h2_norm(*moved, discrete=not continuous)).all()
    for problem in problems[::4]:
        refused(r"no input moves it|Q does not see it", design, *problem)
        assert "decays" not in str(control.diagnose(*problem, dt=None if continuous else 1.0))
        for function, last in ((control.hinf_norm, np.eye(4)), (control.margins, np.zeros((2, 4)))):
            refused("not stable", function, *problem[:2], last, dt=None if continuous else 1.0)
    if not continuous:  # Newton's steps halve what is left to the circle
        reached = control.policy_iteration(*batch, K=np.zeros((80, 2, 4)), steps=40)
        assert not reached.stabilizing.any()


def test_one_plant_that_no_input_moves_is_refused_whatever_its_weights():
    for Q in 10.0 ** np.arange(-6, 7)[:, None, None] * np.eye(2):  # the left eigenvector [2, −1] is orthogonal to B
        refused(r"mode at \+1 \(discrete\) is not stabilizable", control.dlqr, np.eye(2), [[1.0], [2.0]], Q, [[1.0]])
    T = np.random.default_rng(0).normal(size=(4, 4))  # in coordinates in which rounding seems to move it
    A, B = T @ np.diag([1.0, -1.0, -2.0, -3.0]) @ np.linalg.inv(T), T @ np.array([[0.0], [1.0], [1.0], [1.0]])
    refused("not stabilizable: no input moves it", control.lqr, A, B, np.eye(4), np.eye(1))
    turning = np.array([[0.0, 1.0], [-1.0, 0.0]])
    for periods in (1, 2, 5):  # inputs held for whole periods of an oscillator do not move it
        refused("not stabilizable", control.lqrd, turning, [[0.0], [1.0]], np.eye(2), [[1.0]], 2 * np.pi * periods)
    assert bool(control.lqrd(turning, [[0.0], [1.0]], np.eye(2), [[1.0]], 2 * np.pi - 1e-3).stabilizing)


def test_a_pole_of_the_closed_loop_on_the_circle_is_no_solution():
    """X = diag(1, 0) solves the equation, by hand, with a pole at exactly +1: what is 1e-6 beside it is not it."""
    A, B, Q, R = [[0.0, -1.0], [0.0, 2.0]], [[1.0, 0.0], [1.0, 1.0]], np.diag([1.0, 0.0]), [[4.0, 2.0], [2.0, 1.0]]
    with pytest.warns(UserWarning, match="R: expected"), pytest.raises(ValueError, match=r"\+1 \(discrete\)"):
        control.dlqr(A, B, Q, R)
    assert np.isnan(control.dare(A, B, Q, R)).all()
    reached = [control.policy_iteration(A, B, Q, R, K=[[0.0, -1.0], [0.0, 2.5]], steps=steps) for steps in (5, 40)]
    assert [bool(a.stabilizing) for a in reached] == [True, False]
    A, Q = np.array([[3.0, 1.0], [4.0, 2.0]]), np.array([[-11.0, -5.0], [-5.0, -2.0]])
    assert np.isnan(control.care(A, np.ones((2, 1)), Q, [[1.0]])).all()  # X = [[2, 1], [1, 1]], poles at ±j: CAREX 11
    for half in (1.0, 7.0, 1e-3):  # (A − X G)² = 0 in continuous time, X = 1
        assert np.isnan(control.care([[half]], [[1.0]], [[-(half**2)]], [[1.0]]))


@pytest.mark.parametrize("slow", [1e-3, 1e-6, 1e-8, 1e-10])
@pytest.mark.parametrize("units", [1e-4, 1.0, 1e5])
def test_slow_plants_are_solved_however_close_to_the_boundary_they_are(slow, units):
    """Closed forms: ẋ = slow (−x + u) alone, beside a fast one, sampled; a mode that nothing moves but that decays."""
    K = np.sqrt(2.0) - 1
    A, B = np.diag([-slow, -1.0]), np.diag([slow * units, 1.0])
    Q, R = np.diag([1 / units**2, 1.0]), np.eye(2)
    for num in (None, 80):
        a, b = (m if num is None else np.stack([m] * num) for m in (A, B))
        found = control.lqr(a, b, Q, R)
        assert np.allclose(np.asarray(found.K)[..., 0, 0] * units, K, rtol=1e-7)
        F, G = (np.diag([1 - slow, 0.5]), B) if num is None else (np.diag([1 - slow, 0.5]) + 0 * a, b)
        found = control.dlqr(F, G, Q, R)
        f = 1 - slow  # x = f²x/(1 + slow²x) + 1
        rest = 1 - f * f - slow**2
        x = 2 / (rest + np.sqrt(rest**2 + 4 * slow**2))
        expected = f * slow * x / (1 + slow**2 * x)
        assert np.allclose(np.asarray(found.K)[..., 0, 0] * units, expected, rtol=max(1e-7, 1e-14 / slow))
        unmoved = control.dlqr(F, np.diag([0.0, 1.0]) + 0 * b, Q, R)
        assert np.allclose(np.asarray(unmoved.P)[..., 0, 0] * units**2, 1 / (1 - f * f), rtol=max(1e-9, 1e-14 / slow))
    dt = slow  # a plant of one second, held for so long
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = control.lqrd(np.diag([-1.0, 1.0]), np.diag([units, 1.0]), Q, R, dt)
    assert np.allclose(np.diag(found.K) * [units, 1], [K, 1 + np.sqrt(2)], rtol=max(dt, 1e-14 / dt))


@pytest.mark.parametrize("num", [None, 5, 80])
def test_an_equation_of_a_game_has_its_stabilizing_solution(num):
    """R = diag(1, −γ²): a disturbance that plays against the input. Scalar closed forms; SciPy."""
    R, g = np.diag([1.0, -4.0]), 1 - 1 / 4
    P = control.dare(np.ones((1, 1) if num is None else (num, 1, 1)), [[1.0, 1.0]], [[1.0]], R)
    assert np.allclose(P, (g + np.sqrt(g * g + 4 * g)) / (2 * g), rtol=1e-12)  # g x² − g x − 1 = 0
    P = control.care(np.ones((1, 1) if num is None else (num, 1, 1)), [[1.0, 1.0]], [[1.0]], R)
    assert np.allclose(P, (1 + np.sqrt(1 + g)) / g, rtol=1e-12)
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 4, 4)), rng.normal(size=(2, 4, 3))
    R, N = np.diag([1.0, 2.0, -400.0]), 0.1 * rng.normal(size=(4, 3))
    oracles = {control.dare: scipy.linalg.solve_discrete_are, control.care: scipy.linalg.solve_continuous_are}
    for solve, oracle in oracles.items():
        expected = np.stack([oracle(a, b, np.eye(4), R, s=N) for a, b in zip(A, B)])
        many = (A, B) if num is None else (np.repeat(A, num, 0), np.repeat(B, num, 0))
        for found in (solve(*many, np.eye(4), R, N), jax.jit(solve)(*many, np.eye(4), R, N)):
            assert relative(found[:: num or 1], expected) < 1e-9
    refused("R: expected positive definite", control.dlqr, [[1.0]], [[1.0, 1.0]], [[1.0]], np.diag([1.0, -4.0]))
