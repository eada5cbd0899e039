"""The referee of constrained LQR against SciPy's solvers, a published problem, and faults put into its answers."""

from pathlib import Path

import dense_qp
import numpy as np
import pytest
import scipy.optimize

SEEDS = {kind: 100 + k for k, kind in enumerate(dense_qp.KINDS)}


def draw(kind, num=1, shape=None):
    rng = np.random.default_rng(SEEDS[kind])
    return [dense_qp.random_problem(rng, kind, shape) for _ in range(num)]


def test_the_published_problem():
    given = np.load(Path(__file__).parents[2] / "records" / "bounded_lqr.npz")
    for x0, us, cost in zip(given["x0"], given["u_1"], given["cost_1"]):
        qp = dense_qp.build(given["A"], given["B"], np.eye(8), np.eye(4), x0, 20, c=given["b"], u_limits=(-1, 1))
        found = dense_qp.solve(qp)
        assert found.feasible
        assert found.residual < 1e-14
        np.testing.assert_allclose(found.us, us, atol=2e-8)  # the published ones leave 2e-9 of stationarity
        assert found.cost == pytest.approx(2 * cost, rel=1e-12)  # published with a half
        assert np.abs(found.us).max() <= 1 + 1e-14


def by_slsqp(problem):
    """Inputs and cost by SLSQP, from sums over a simulated path."""
    T, n, m = problem["num_steps"], *problem["B"].shape[-2:]
    soft = problem.get("soft")

    def at(name, t, *shape):
        a = np.asarray(problem.get(name, np.zeros(shape)), float)
        return a[t] if name in problem and problem.get("time_varying") else a

    def path(us):
        xs = [problem["x0"]]
        for t in range(T):
            xs.append(at("A", t) @ xs[-1] + at("B", t) @ us[t] + at("c", t, n))
        return np.array(xs)

    def output(t, xs, us):
        if "D" in problem:
            return at("C", t) @ xs[t] + at("D", t) @ us[t]
        return at("C", t, 1, n) @ xs[t + 1]

    def ranges(us):
        """Limited values, their limits, and whether they are soft; in turn."""
        xs, before = path(us), problem.get("u_last")
        shown = {
            "u_limits": (us, False),
            "x_limits": (xs[1:], soft is not None),
            "y_limits": (np.array([output(t, xs, us) for t in range(T)]), soft is not None),
            "du_limits": (np.diff(us if before is None else np.vstack([before, us]), axis=0), False),
        }  # fmt: skip
        for name, (values, gives) in shown.items():
            if name in problem:
                low, high = (np.broadcast_to(a, (T, values.shape[1]))[-len(values) :] for a in problem[name])
                yield values, low, high, gives

    def room(z):
        """What must not be negative."""
        us, spare, parts = z[: T * m].reshape(T, m), iter(z[T * m :]), []
        for values, low, high, gives in ranges(us):
            for side in (high - values, values - low):
                side = side[np.isfinite(side)]
                parts.append(side + [next(spare) if gives else 0.0 for _ in side])
        return np.concatenate([*parts, z[T * m :]])

    num_soft = sum(
        np.isfinite(a).sum() for *_, low, high, gives in ranges(np.zeros((T, m))) for a in (low, high) if gives
    )

    def cost(z):
        us, spare = z[: T * m].reshape(T, m), z[T * m :]
        xs = path(us)
        total = xs[T] @ problem["Qf"] @ xs[T] + 2 * problem.get("qf", np.zeros(n)) @ xs[T]
        for t in range(T):
            x, u = xs[t], us[t]
            total += x @ at("Q", t) @ x + u @ at("R", t) @ u + 2 * x @ at("N", t, n, m) @ u
            total += 2 * at("q", t, n) @ x + 2 * at("r", t, m) @ u
        return total + (soft[0] * spare.sum() + soft[1] * spare @ spare if soft else 0)

    found = scipy.optimize.minimize(
        cost, np.zeros(T * m + num_soft), method="SLSQP", options={"ftol": 1e-14, "maxiter": 1000},
        constraints={"type": "ineq", "fun": room},
    )  # fmt: skip
    return found.x[: T * m].reshape(T, m), found.fun


@pytest.mark.parametrize("kind", dense_qp.KINDS)
def test_optima_are_those_of_sums_over_a_simulated_path(kind):
    found = []
    for problem in draw(kind, 6, shape=(2, 1, 4)):
        reference = dense_qp.solve(dense_qp.build(**problem))
        if reference.feasible:
            us, cost = by_slsqp(problem)
            found.append(reference)
            assert reference.cost == pytest.approx(cost, rel=1e-6)
            np.testing.assert_allclose(reference.us, us, atol=2e-3)
    assert any(np.any(each) for one in found for each in one.multipliers.values())


def test_inputs_in_boxes_are_those_of_bounded_least_squares():
    for problem in draw("box", 10):
        qp = dense_qp.build(**problem)
        H, f, _, lower, upper = dense_qp.condensed(qp)
        L = np.linalg.cholesky(H)
        other = scipy.optimize.lsq_linear(L.T, -np.linalg.solve(L, f), (lower, upper), method="bvls", tol=1e-14)
        np.testing.assert_allclose(dense_qp.solve(qp).us.ravel(), other.x, atol=1e-9)


@pytest.mark.parametrize("kind", dense_qp.KINDS)
def test_answers_are_exact_and_only_tight_limits_contradict(kind):
    verdicts = []
    for problem in draw(kind, 10):
        found = dense_qp.solve(dense_qp.build(**problem))
        verdicts.append(found.feasible)
        assert found.residual < 1e-13 or not found.feasible
    assert None not in verdicts
    assert ("tight" in dense_qp.KINDS[kind] and "soft" not in dense_qp.KINDS[kind]) or all(verdicts)


def unstable(radius, T=20):
    """Three states, one of them growing by ``radius`` a step, from a start that bounded inputs can just hold."""
    rng = np.random.default_rng(3)
    T0 = rng.normal(size=(3, 3))
    A = T0 @ np.diag([radius, 0.9, 0.5]) @ np.linalg.inv(T0)
    B = T0 @ np.array([[1.0], [0.5], [-1.0]])
    x0 = T0 @ np.array([0.9 / (radius - 1), 1, 1])
    return {"A": A, "B": B, "Q": np.eye(3), "R": np.eye(1), "x0": x0, "num_steps": T, "u_limits": (-1, 1)}


@pytest.mark.parametrize("growth", [1e2, 1e4, 1e8, 1e12])
def test_unstable_plants_whatever_their_growth_within_the_horizon(growth):
    found = dense_qp.solve(dense_qp.build(**unstable(growth ** (1 / 20))))
    assert found.feasible
    assert found.residual < 1e-13
    assert np.any(found.multipliers["u"])


def test_a_fault_in_an_answer_shows_in_the_residual():
    programs = [dense_qp.build(**problem) for problem in draw("tight_outputs", 20, (3, 2, 8))]
    qp, found = next((qp, found) for qp in programs if (found := dense_qp.solve(qp)).feasible)
    flat = qp.flat(found.multipliers)
    assert np.any(flat)
    assert dense_qp.kkt_residual(qp, found.us, found.multipliers, found.xs) < 1e-13
    assert dense_qp.kkt_residual(qp, found.us) < 1e-8  # multipliers found by least squares
    other = found.us + 1e-6 * np.eye(8, 2)
    assert dense_qp.kkt_residual(qp, other, found.multipliers) > 1e-8
    assert dense_qp.kkt_residual(qp, other) > 1e-8
    moved = found.xs + 1e-6 * np.arange(9)[:, None]
    assert dense_qp.kkt_terms(qp, found.us, found.multipliers, moved)["dynamics"] > 1e-8
    assert dense_qp.kkt_residual(qp, found.us, qp.by_kind(1.001 * flat)) > 1e-6
    inactive = np.argmax((flat == 0) & np.isfinite(qp.upper))
    terms = dense_qp.kkt_terms(qp, found.us, qp.by_kind(flat + np.eye(len(flat))[inactive] * np.abs(flat).max()))
    assert terms["slackness"] > 1e-3
    assert dense_qp.kkt_terms(qp, 100 * found.us, found.multipliers)["primal"] > 0.1


def test_a_multiplier_of_a_limit_that_is_none_or_beyond_a_soft_ones_price_is_a_fault():
    limits = {"u_limits": (-np.inf, 0.01), "x_limits": (-0.1, np.inf), "soft": (2.0, 1.0)}
    qp = dense_qp.build(**draw("box", shape=(2, 1, 5))[0] | limits)
    found = dense_qp.solve(qp)
    assert found.residual < 1e-13
    for kind, value in (("u", -1.0), ("x", 1.0)):
        wrong = {**found.multipliers, kind: np.full_like(found.multipliers[kind], value)}
        assert dense_qp.kkt_terms(qp, found.us, wrong)["dual"] > 0.01
    over = {**found.multipliers, "x": np.full_like(found.multipliers["x"], -1e3)}
    assert dense_qp.kkt_terms(qp, found.us, over)["dual"] > 0.1
    under = {**found.multipliers, "x": 0.5 * found.multipliers["x"]}
    assert dense_qp.kkt_terms(qp, found.us, under)["dual"] > 0.1


def test_multipliers_are_the_fall_of_the_cost_as_a_limit_widens():
    problem = draw("per_step", shape=(3, 2, 10))[0]
    low, high = problem["x_limits"]
    found = dense_qp.solve(dense_qp.build(**problem))
    t, i = np.unravel_index(np.abs(found.multipliers["x"]).argmax(), low.shape)
    wider, step = [low.copy(), high.copy()], 1e-4
    side = int(found.multipliers["x"][t, i] > 0)
    wider[side][t, i] += step
    change = dense_qp.solve(dense_qp.build(**problem | {"x_limits": tuple(wider)})).cost - found.cost
    assert -change / step == pytest.approx(found.multipliers["x"][t, i], rel=1e-2)


def test_what_contradicts_is_told_with_a_certificate():
    """One state that grows by 0.5 at least: 1 to 2 - 0.5 whatever the input."""
    problem = {"A": [[2.0]], "B": [[1.0]], "Q": [[1.0]], "R": [[1.0]], "x0": [1.0], "num_steps": 1}
    qp = dense_qp.build(**problem, u_limits=(-0.5, 0.5), x_limits=(-1, 1))
    assert dense_qp.least_violation(qp) == pytest.approx(0.25)  # both limits give
    assert dense_qp.solve(qp).feasible is False
    assert dense_qp.proves_infeasible(qp, {"u": np.array([[-1.0]]), "x": np.array([[1.0]])})
    assert dense_qp.proves_infeasible(qp, {"x": np.array([[1.0]])})  # the input's reach makes up for it
    assert not dense_qp.proves_infeasible(qp, {"u": np.array([[1.0]]), "x": np.array([[1.0]])})
    assert not dense_qp.proves_infeasible(qp, {"x": np.array([[-1.0]])})
    assert not dense_qp.proves_infeasible(qp, {})
    unlimited = dense_qp.build(**problem, x_limits=(-1, 1))
    assert not dense_qp.proves_infeasible(unlimited, {"x": np.array([[1.0]])})
    soft = dense_qp.build(**problem, u_limits=(-0.5, 0.5), x_limits=(-1, 1), soft=(1.0, 1.0))
    found = dense_qp.solve(soft)
    assert found.us == pytest.approx(-0.5)
    assert found.cost == pytest.approx(1 + 1.5**2 + 0.25 + 0.5 + 0.25)
    assert not dense_qp.proves_infeasible(soft, {"x": np.array([[1.0]])})


def test_problems_of_one_shape_can_be_stacked():
    for kind in dense_qp.KINDS:
        one, other = draw(kind, 2, (3, 2, 6))
        assert one.keys() == other.keys()
        assert all(np.shape(one[name]) == np.shape(other[name]) for name in one)


def test_mixed_problems_have_all_features():
    rng = np.random.default_rng(0)
    problems = [dense_qp.random_problem(rng) for _ in range(60)]
    names = {name for problem in problems for name in problem}
    assert names == {
        *("A", "B", "Q", "R", "x0", "num_steps", "N", "c", "q", "r", "Qf", "qf", "u_limits", "x_limits", "C", "D"),
        *("y_limits", "du_limits", "u_last", "time_varying", "soft"),
    }
    verdicts = [dense_qp.solve(dense_qp.build(**problem)).feasible for problem in problems]
    assert verdicts.count(False) > 2
    assert verdicts.count(None) == 0
