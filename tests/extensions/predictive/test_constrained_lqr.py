"""Constrained LQR against dense conditions of optimality, DAQP, finite differences and a published record."""

from functools import partial
from pathlib import Path

import dense_qp
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from calls import solved
from refusals import refused

from lqrlab import control, predictive, simulation, systems
from lqrlab.extensions.predictive import constrained
from lqrlab.extensions.predictive import finite_horizon as horizon
from lqrlab.extensions.predictive.quadratic_program import horizon_solver, interior_point, shared_plant
from lqrlab.extensions.predictive.quadratic_program.active_set import ActiveSet

SHAPE = (2, 1, 6)
"""States, inputs, steps: of most problems here, so that they share compiled programs."""
KINDS = {
    "inputs": {"cross"},
    "states": {"x"},
    "outputs": {"y", "D"},
    "outputs_of_states": {"y"},
    "changes": {"du", "u_last"},
    "changes_from_any": {"du"},
    "soft": {"x", "soft"},
    "soft_outputs": {"y", "D", "soft"},
    "all": {"x", "y", "D", "du", "u_last"},
    "time_varying": {"x", "time_varying"},
    "time_varying_all": {"x", "y", "du", "time_varying", "soft"},
}
OFTEN = {"N": 0.3, "linear": 0.3, "unstable": 0.25, "one_sided": 0.3, "per_step": 0.3, "tight": 0.5, "free": 0.1}
"""Features that a problem of any kind may have, and how often."""
LIMITS = {"u": "u_limits", "x": "x_limits", "y": "y_limits", "du": "du_limits"}


def draw(kind, num, shape=SHAPE, seed=0):
    """Random problems of one shape; each seventh has limits that leave one value, each tenth starts at zero."""
    rng, problems = np.random.default_rng([seed, *map(ord, kind)]), []
    price = 10 ** rng.uniform(-1, 2, 2)
    for _ in range(num):
        has = KINDS[kind] | {name for name, chance in OFTEN.items() if rng.random() < chance}
        problem = dense_qp.random_problem(rng, sorted(has), shape)
        if "soft" in problem:
            problem["soft"] = tuple(price)
        if rng.random() < 1 / 7:
            for low, high in (problem[name] for name in LIMITS.values() if name in problem):
                at = rng.integers(len(low)), rng.integers(low.shape[1])
                if np.isfinite(low[at]) and np.isfinite(high[at]):
                    low[at] = high[at] = (low[at] + high[at]) / 2
        if rng.random() < 0.1:
            problem["x0"] = np.zeros(shape[0])
        problems.append(problem)
    return problems


def stacked(problems):
    """The arguments of a batch."""
    given = dict(problems[0])
    for name in given.keys() - {"num_steps", "time_varying", "soft"}:
        values = [problem[name] for problem in problems]
        pair = name.endswith("_limits")
        given[name] = tuple(map(np.stack, zip(*values))) if pair else np.stack(values)
    return given


def solve(problems):
    return jax.tree.map(np.asarray, solved(**stacked(problems)))


def member(found, i):
    """One problem's answer of a batch."""
    return jax.tree.map(lambda a: a[i], found)


def compare(problems, found):
    """Each optimum is proven by its multipliers, and DAQP's; so is what has none. The verdicts are returned."""
    for i, problem in enumerate(problems):
        qp = dense_qp.build(**problem)
        us, cost = dense_qp.by_daqp(qp)
        one = member(found, i)
        assert found.solved[i] != found.infeasible[i], i
        if found.solved[i]:
            assert found.residual[i] <= 1e-9
            assert dense_qp.kkt_residual(qp, one) <= 1e-9, i
            np.testing.assert_allclose(found.us[i], us, atol=1e-6 * (np.abs(us).max() + 1e-12))
            np.testing.assert_allclose(found.cost[i], cost, rtol=1e-8, atol=1e-8 * abs(qp.constant))
        else:
            assert us is None, i
            assert found.cost[i] == np.inf
            if np.isfinite(problem["u_limits"][0]).all():
                assert dense_qp.proves_infeasible(qp, one.multipliers), i
    return found.solved.tolist()


@pytest.mark.parametrize(("kind", "shape"), [*((kind, SHAPE) for kind in KINDS), ("states", (5, 1, 24))])
def test_answers_and_proofs_are_the_referees(kind, shape):
    problems = draw(kind, 100, shape)
    verdicts = compare(problems, solve(problems))
    assert verdicts.count(True) > 25
    always = kind in ("inputs", "changes_from_any") or "soft" in KINDS[kind]
    assert always == (verdicts.count(False) == 0)


def test_a_chain_of_integrators_whose_limits_cost_much_is_solved_alone_and_in_a_batch():
    """The optimum costs a thousand times that without limits."""
    given = {"A": np.eye(3) + np.eye(3, k=1), "B": np.eye(3)[:, 2:], "Q": np.eye(3), "R": [[1.0]], "num_steps": 25}
    given |= {"Qf": np.eye(3), "u_limits": (-1, 1), "du_limits": (-0.3, 0.3)}
    x0 = np.concatenate([[[3, -1.9, 5.5]], 3 * np.random.default_rng(0).normal(size=(11, 3))])
    together, alone = solved(x0=x0, **given), solved(x0=x0[0], **given)
    assert np.all(together.solved)
    for i, start in enumerate(x0):
        qp = dense_qp.build(x0=start, **given)
        assert together.cost[i] == pytest.approx(dense_qp.by_daqp(qp)[1], rel=1e-9)
        assert dense_qp.kkt_residual(qp, member(together, i)) <= 1e-9
    np.testing.assert_allclose(alone.us, together.us[0], atol=1e-9)


@pytest.mark.parametrize("size", [0.5, -2.0, 10.0])
def test_a_plant_that_limited_changes_cannot_hold_is_pushed_back_as_hard_as_they_allow(size):
    """Its state grows a thousand billion times: each input but the last pays for nothing else."""
    T, x, cost, limit = 40, size, 0.0, min(1.0, abs(size) / 2)
    pushed = -np.sign(size) * limit * np.minimum(0.3 * np.arange(1, T + 1), 1)
    for u in pushed:
        cost, x = cost + x**2 + u**2, 2 * x + u
    given = {"u_limits": (-limit, limit), "du_limits": (-0.3 * limit, 0.3 * limit), "u_last": [0.0]}
    found = solved([[2.0]], [[1.0]], [[1.0]], [[1.0]], [size], T, Qf=[[1.0]], **given)
    assert bool(found.solved)
    assert found.cost == pytest.approx(cost + x**2, rel=1e-9)
    np.testing.assert_allclose(found.us[: T // 2, 0], pushed[: T // 2], atol=1e-9)


def without_work(monkeypatch, search=0):
    """No method takes a step, but the search so many: programs that are compiled from now on stay open."""
    monkeypatch.setattr(interior_point, "STEPS", (0, 0))
    for name, steps in {"_STEPS": search, "_ROUNDS": search, "_CAREFUL": 0, "_NEARER": 0}.items():
        monkeypatch.setattr(horizon_solver, name, steps)


def test_what_stays_open_keeps_limits_of_inputs_and_changes_and_costs_what_it_says(monkeypatch):
    problems = draw("all", 20, (2, 1, 9))
    without_work(monkeypatch)
    found = solve(problems)
    left = np.flatnonzero(~(found.solved | found.infeasible))
    assert len(left) > 2
    for i in left:
        problem = problems[i]
        x, us, cost = problem["x0"], found.us[i], 0.0
        (low, high), (least, most) = problem["u_limits"], problem["du_limits"]
        change = np.diff(us, axis=0, prepend=problem["u_last"][None])
        assert np.all((us >= low) & (us <= high))
        kept = (change >= least - 1e-12) & (change <= most + 1e-12)
        assert np.all(kept | (us == low) | (us == high))  # what limits of the input itself leave no room for
        assert kept.mean() > 0.7
        for t, u in enumerate(us):
            np.testing.assert_allclose(found.xs[i, t], x, rtol=1e-12)
            cost += x @ problem["Q"] @ x + u @ problem["R"] @ u + 2 * x @ problem["N"] @ u
            cost += 2 * problem["q"] @ x + 2 * problem["r"] @ u
            x = problem["A"] @ x + problem["B"] @ u + problem["c"]
        assert found.cost[i] == pytest.approx(cost + x @ problem["Qf"] @ x + 2 * problem["qf"] @ x, rel=1e-9)


@pytest.mark.parametrize("design", [predictive.mpc, predictive.nonlinear_mpc])
def test_controllers_keep_limits_of_inputs_and_changes_whatever_their_plans_are(design, monkeypatch):
    """Plans that stay open, the last beyond the limits, and plans of which none keeps the limits of the states."""
    eye, one, rate = np.eye(2), np.eye(1), (-0.4, 0.3)
    for steps, du, x, search in ((9, rate, None, 0), (5, rate, (-1e-3, 1e-3), None), (9, None, None, 1)):
        limits = simulation.Limits(u=(-1.0, 1.0), du=du, x=x)
        problem = simulation.Problem.from_matrices([[1.0, 0.5], [0.3, 1.1]], [[0.0], [1.0]], eye, one, limits=limits)
        with monkeypatch.context() as patch:
            if search is not None:
                without_work(patch, search)
            policy, at, us = simulation.bind(design(problem, steps), problem), jnp.array([3.0, 4.0]), []
            carry = policy.init(())
            for _ in range(6):  # a rollout would cut what the policy asks for
                carry, u = policy(carry, at)
                at, us = problem.step(at, u)[0], [*us, float(u[0])]
        assert np.abs(us).max() <= 1
        if du:
            changes = np.diff(us, prepend=0)
            assert changes.min() >= -0.4 - 1e-12
            assert changes.max() <= 0.3 + 1e-12
    assert min(us) == -1


def test_the_published_problem():
    given = np.load(Path(__file__).parents[2] / "records" / "bounded_lqr.npz")
    found = solved(
        given["A"], given["B"], np.eye(8), np.eye(4), given["x0"], 20, c=given["b"], Qf=np.eye(8), u_limits=(-1, 1)
    )
    assert np.all(found.solved)
    np.testing.assert_allclose(found.us, given["u_1"], atol=2e-8)  # the published ones leave 2e-9 of stationarity
    np.testing.assert_allclose(found.cost, 2 * given["cost_1"], rtol=1e-12)  # published with a half


def walking():
    """The walk's plant, and what else its programs are: jerk moves a mass whose pressure must stay in a foot."""
    dt, given = 0.1, np.load(Path(__file__).parents[2] / "records" / "robot_mpc.npz")
    A, B = np.array([[1, dt, dt**2 / 2], [0, 1, dt], [0, 0, 1]]), np.array([[dt**3 / 6], [dt**2 / 2], [dt]])
    h = given["walk_h"].reshape(30, 16, 2)
    high, low = (np.concatenate([s * h[:, 1:, k], np.full((30, 1), s * np.inf)], 1) for k, s in enumerate((1, -1)))
    limits = {"C": np.array([[1.0, 0.0, -0.84 / 9.81]]), "y_limits": (low[..., None], high[..., None])}
    return A, B, np.zeros((3, 3)), np.eye(3), limits, given["walk_P"], given["walk_q"], given["walk_G"], given["walk_h"]


def balancing():
    """The same of the balancing robot: an inverted pendulum of 0.58 m on a cart whose acceleration is limited."""
    dt, given, g = 0.02, np.load(Path(__file__).parents[2] / "records" / "robot_mpc.npz"), 9.81
    w = np.sqrt(g / 0.58)
    c, s = np.cosh(w * dt), np.sinh(w * dt)
    A = np.array([[1, 0, dt, 0], [0, c, 0, s / w], [0, 0, 1, 0], [0, w * s, 0, c]])
    B = np.array([[dt**2 / 2], [(1 - c) / g], [dt], [-w * s / g]])
    G, h = np.kron(np.eye(50), [[1.0], [-1.0]]), np.full((30, 100), 10.0)
    return A, B, np.eye(4), 10 * np.eye(4), {"u_limits": (-10, 10)}, given["balance_P"], given["balance_q"], G, h


@pytest.mark.parametrize("robot", [walking, balancing])
def test_the_programs_of_a_public_collection_are_solved_to_nine_digits(robot):
    """By their own dense conditions of optimality: absolute, but for the gap, which is as large as the cost."""
    A, B, Q, Qf, limits, P, qs, G, hs = robot()
    T = len(P)
    found = solved(
        A, B, Q, [[1e-3]], np.zeros((30, len(A))), T, Qf=Qf, r=qs[..., None], time_varying=True, **limits
    )  # the starts' part is in q and h already
    assert np.all(found.solved)
    if robot is walking:  # a multiplier of ours stands at x[t+1], theirs at x[t]
        signed = np.concatenate([np.zeros((30, 1)), found.multipliers.y[:, :-1, 0]], axis=1)
    else:
        signed = np.asarray(found.multipliers.u[..., 0])
    for u, q, h, mu in zip(found.us[..., 0], qs, hs, signed):
        z = np.stack([np.maximum(mu, 0), np.maximum(-mu, 0)], axis=1).ravel() / 2  # their cost has a half
        assert np.abs(P @ u + q + G.T @ z).max() < 1e-9
        assert (G @ u - h).max() < 1e-9
        assert abs(u @ P @ u + q @ u + h @ z) < 1e-9 * max(1, abs(q @ u))


@pytest.mark.parametrize("share", [0.7, 20.0])
def test_a_state_that_is_zero_but_for_rounding_is_no_violation(share):
    """A segway's yaw has nothing to do with its pitch, but P's rounding between the two is as large as its part."""
    problem = simulation.Problem.of(systems.make("segway"), linear=True)
    x0 = np.array([-4.71, 1.168, -7.85e-16, 3.54, -4.2, 2.5e-15])
    edge = share * np.abs(np.asarray(problem.K @ x0))
    given = dict(zip("ABQRN", problem.sampled)) | {"num_steps": 16, "Qf": problem.P, "u_limits": (-edge, edge)}
    us, cost = dense_qp.by_daqp(dense_qp.build(x0=np.round(x0, 10), **given))
    assert np.any(np.abs(us) > (1 - 1e-9) * edge) == (share < 1)
    for size in (1e-24, 1.0):
        small = solved(x0=size * x0, **given | {"u_limits": (-size * edge, size * edge)})
        assert bool(small.solved)
        np.testing.assert_allclose(small.cost / size**2, cost, rtol=1e-9)


@pytest.mark.parametrize("num", [6, 48])
def test_starts_that_steps_of_all_limits_never_solve_are_solved(num):
    """Of 4096 starts of the published plant, those that need most steps; 48 of one plant are searched in the limits."""
    given = np.load(Path(__file__).parents[2] / "records" / "bounded_lqr.npz")
    x0 = np.random.RandomState(1).randn(4096, 8)[[213, 1075, 1818, 3428, 3694, 4062]]
    x0 = np.concatenate([x0, np.random.RandomState(2).randn(num - 6, 8)])
    problem = {
        "A": given["A"], "B": given["B"], "Q": np.eye(8), "R": np.eye(4), "num_steps": 20, "c": given["b"],
        "Qf": np.eye(8), "u_limits": (-1.0, 1.0),
    }  # fmt: skip
    found = solved(x0=x0, **problem)
    assert np.all(found.solved)
    for i, start in enumerate(x0):
        assert dense_qp.kkt_residual(dense_qp.build(x0=start, **problem), member(found, i)) < 1e-9


def test_most_starts_of_one_plant_are_solved_in_the_limits_alone(monkeypatch):
    given = np.load(Path(__file__).parents[2] / "records" / "bounded_lqr.npz")
    told, solve = [], constrained._on_all_cores
    monkeypatch.setattr(constrained, "_on_all_cores", lambda *args: told.append(args) or solve(*args))
    limits = {"c": given["b"], "Qf": np.eye(8), "u_limits": (-1, 1)}
    solved(given["A"], given["B"], np.eye(8), np.eye(4), given["x0"], 20, **limits)
    with jax.numpy_rank_promotion("allow"):
        qp, _ = horizon._program(*told[0])
        nothing = jnp.zeros(qp.limits.shape, bool)
        found = jax.jit(shared_plant.search)(qp, ActiveSet(nothing, nothing))
    good = np.asarray(found.residual) < 1e-11
    assert good.mean() > 0.9
    np.testing.assert_allclose(found.point.us[good], given["u_1"][good], atol=2e-8)


def test_arrays_that_a_compiled_function_encloses_are_arguments_too():
    A, B, eye, one = jnp.eye(2), jnp.ones((2, 1)), jnp.eye(2), jnp.ones((1, 1))
    c, limit, price = jnp.full(2, 0.1), jnp.full(2, 3.0), jnp.ones(())
    given = {"c": c, "x_limits": (-limit, limit), "soft": (price, price), "u_limits": (-1.0, 1.0)}
    solve = partial(solved, A, B, eye, one, num_steps=6, Qf=eye, **given)
    x0 = jnp.ones(2)
    np.testing.assert_allclose(jax.jit(lambda x0: solve(x0=x0).us)(x0), solve(x0=x0).us, atol=1e-12)


@pytest.mark.parametrize("kind", ["states", "soft_outputs"])
def test_batches_that_cores_share_give_what_parts_of_them_give(kind):
    problem = draw(kind, 1)[0]
    x0 = np.random.default_rng(6).normal(size=(1300, 2))  # from 1250 on
    whole = solved(**problem | {"x0": x0})
    part = solved(**problem | {"x0": x0[620:680]})  # about where it is cut
    np.testing.assert_array_equal(whole.solved[620:680], part.solved)
    good = np.asarray(part.solved)
    assert good.sum() > 10
    np.testing.assert_allclose(whole.us[620:680][good], part.us[good], atol=1e-8)


def test_one_plants_starts_give_what_each_gives_alone():
    rng = np.random.default_rng(5)
    problem = draw("states", 1)[0] | {"c": rng.normal(size=2) / 10}
    for name in ("u_limits", "x_limits"):
        problem[name] = tuple(np.clip(a, -3, 3) for a in problem[name])
    x0 = rng.normal(size=(70, 2))
    together = solved(**problem | {"x0": x0})
    alone = [solved(**problem | {"x0": start}) for start in x0]
    assert sum(bool(one.solved) for one in alone) > 10
    for i, one in enumerate(alone):
        assert (one.solved, one.infeasible) == (together.solved[i], together.infeasible[i])
        if one.solved:
            np.testing.assert_allclose(together.us[i], one.us, atol=1e-8)
            np.testing.assert_allclose(together.multipliers.u[i], one.multipliers.u, atol=1e-6)


def test_the_terminal_weight_is_that_of_the_regulator():
    A, B, Q, R, x0 = [[1.0, 0.1], [0.0, 1.0]], [[0.0], [0.1]], np.eye(2), [[0.1]], np.array([1.0, 0.0])
    found = solved(A, B, Q, R, x0, 6)
    regulator = control.dlqr(A, B, Q, R)
    assert found.cost == pytest.approx(float(x0 @ regulator.P @ x0), rel=1e-10)
    np.testing.assert_allclose(found.us[0], -regulator.K @ x0, rtol=1e-9)


# Gradients -----------------------------------------------------------------------------------------------------------


def smooth(found, problem, margin=1e-3):
    """Whether no limit is nearly touched, and none held by nearly nothing: there the optimum has a kink."""
    qp = dense_qp.build(**problem)
    flat, value = qp.flat(found.multipliers), qp.G @ np.ravel(found.us) + qp.g
    near = np.minimum(np.abs(value - qp.lower), np.abs(value - qp.upper)) < margin
    strong = np.abs(flat) > margin
    rows = qp.G[strong & near]
    if np.linalg.matrix_rank(rows, tol=1e-6) < len(rows):  # then multipliers, and their derivatives, are not unique
        return False
    if qp.soft is not None:
        linear = qp.soft[0]
        kink = qp.softened & (np.abs(np.abs(flat) - linear) < margin * linear)
        return not np.any(kink | ((near != strong) & ~(np.abs(flat) > linear)))
    return not np.any(near != strong)


def differentiable(problem):
    """The problem's arrays as a pytree of finite numbers, and the call with them."""
    fixed = {name: problem[name] for name in ("num_steps", "time_varying") if name in problem}
    arrays = {name: jnp.asarray(a) for name, a in problem.items() if name not in fixed and not isinstance(a, tuple)}
    pairs = {name: tuple(map(jnp.asarray, a)) for name, a in problem.items() if isinstance(a, tuple)}

    def score(given):
        """A number that depends on all of the answer."""
        found = solved(**given, **fixed)
        parts = [found.us, found.xs, found.cost, *(a for a in found.multipliers if a is not None)]
        return sum(jnp.sum(a * np.random.default_rng(k).normal(size=a.shape)) for k, a in enumerate(parts))

    return arrays | pairs, score


def without_kink(kind):
    """The problem with most limits that hold at its optimum, of those whose optimum has no kink."""
    problems = draw(kind, 60, seed=5)
    found = solve(problems)

    def held(i):
        one = member(found, i)
        if not (one.solved and smooth(one, problems[i])):
            return -1, 0
        each = [np.abs(a) > 1e-3 for kind in LIMITS if (a := getattr(one.multipliers, kind)) is not None]
        return sum(a.any() for a in each), sum(a.sum() for a in each)

    best = max(range(len(problems)), key=held)
    assert held(best)[0] > 0
    return problems[best]


def along(given, name, direction, by):
    return given | {name: jax.tree.map(lambda a, d: a + by * d, given[name], direction)}


@pytest.mark.parametrize("kind", ["all", "soft", "time_varying_all"])  # together they have each feature
def test_gradients_are_those_of_finite_differences(kind):
    """Each argument along a random direction, all differences in one batch, against central differences."""
    problem, step, tolerance = without_kink(kind), 1e-5, 2e-5
    given, score = differentiable(problem)
    gradient = jax.grad(score)(given)
    rng = np.random.default_rng(7)
    directions = {}
    for name, value in given.items():
        d = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), value)
        if name in ("Q", "R", "Qf"):
            d = (d + d.mT) / 2
        if isinstance(d, tuple):  # one side at a time has a meaning only where it is finite
            d = jax.tree.map(lambda d, a: jnp.where(jnp.isfinite(a), d, 0), d, value)
            if name != "soft":
                d = tuple(jnp.where(value[0] == value[1], 0, side) for side in d)
        directions[name] = d
    assert {"A", "B", "Q", "R", "N", "x0", "c", "q", "r", "Qf", "qf"} <= directions.keys()
    moved = [along(given, name, d, s * step) for name, d in directions.items() for s in (1, -1)]
    values = jax.lax.map(score, jax.tree.map(lambda *a: jnp.stack(a), *moved))
    for k, (name, d) in enumerate(directions.items()):
        difference = (values[2 * k] - values[2 * k + 1]) / (2 * step)
        exact = sum(
            jnp.sum(jnp.where(b == 0, 0, a * b)) for a, b in zip(jax.tree.leaves(gradient[name]), jax.tree.leaves(d))
        )
        assert exact == pytest.approx(float(difference), rel=tolerance, abs=tolerance), name
        assert abs(exact) > 1e-6 or name in LIMITS.values() or name == "u_last", name


def test_gradients_of_infeasible_problems_are_nan_and_of_their_neighbours_are_not():
    starts = np.array([[0.5], [100.0], [0.2]])

    def cost(x0):
        one = np.eye(1)
        return solved(one, one, one, one, x0, 6, u_limits=(-1, 1), x_limits=(-1, 1)).us.sum()

    gradient = np.asarray(jax.grad(cost)(jnp.asarray(starts)))
    assert np.isnan(gradient[1]).all()
    assert np.isfinite(gradient[[0, 2]]).all()
    assert np.abs(gradient[[0, 2]]).min() > 0.1


# Programs of JAX -----------------------------------------------------------------------------------------------------


def test_jit_vmap_batches_and_loops_give_the_same_whatever_the_neighbours():
    problems = draw("states", 8, seed=9)
    given = stacked(problems)
    T = given.pop("num_steps")
    batch = solved(**given, num_steps=T)
    assert 2 < np.sum(batch.solved) < 8

    def one(given):
        return solved(**given, num_steps=T)

    mapped = jax.jit(jax.vmap(one))(given)
    starts = given.pop("x0")
    last = jax.vmap(lambda x0, given: one(given | {"x0": x0}), (1, 0), -1)(starts.T, given)
    last = jax.tree.map(lambda a: np.moveaxis(a, -1, 0), last)
    for other in (mapped, last):
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(other)):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    first = jax.tree.map(lambda a: a[0], given)
    both = jax.vmap(lambda x0: one(first | {"x0": x0}).cost)(starts)
    np.testing.assert_allclose(both, one(first | {"x0": starts}).cost, rtol=1e-9)
    for i in range(8):
        single = one(jax.tree.map(lambda a, i=i: a[i], given | {"x0": starts}))
        for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(single)):
            np.testing.assert_allclose(a[i], b, rtol=1e-8, atol=1e-9)


def test_prices_are_gradients_of_the_cost():
    """Of the limits by which sides they hold at, and of the plant's equations; gradients are those of differences."""
    problem = without_kink("all")
    given, _ = differentiable(problem)
    T = problem["num_steps"]
    multipliers = solved(**given, num_steps=T).multipliers
    gradient = jax.grad(lambda given: solved(**given, num_steps=T).cost)(given)
    for kind, name in LIMITS.items():
        price = np.asarray(getattr(multipliers, kind))
        np.testing.assert_allclose(-sum(gradient[name]), price, rtol=1e-5, atol=1e-9 * (1 + np.abs(price).max()))
    np.testing.assert_allclose(multipliers.dynamics.sum(0), gradient["c"], rtol=1e-6)


# Bad input -----------------------------------------------------------------------------------------------------------

ONE = np.eye(2)
PLAIN = {"A": ONE, "B": ONE, "Q": ONE, "R": ONE, "x0": np.ones(2), "num_steps": 4}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x0": np.zeros((30, 2)), "r": np.zeros((30, 5, 2))}, r"x0 .30,., r .30, 5.; an axis of steps needs time_v"),
        ({"num_steps": 0}, r"num_steps: expected a whole number in \[1, 100000\], but found 0"),
        ({"num_steps": 10**6}, r"num_steps: expected a whole number in \[1, 100000\], but found 1000000"),
        ({"u_limits": (1, -1)}, "limits.u: the limits of signal 0 contradict each other: low 1 is above high -1"),
        ({"x_limits": ([0, 2], [1, 1])}, "limits.x: the limits of signal 1 contradict each other"),
        ({"du_limits": (np.inf, np.inf)}, "limits.du: leaves no value"),
        ({"u_limits": (np.nan, 1)}, "limits.u: found NaN"),
        ({"u_limits": (np.zeros(3), 1)}, "limits.u: expected a number or 2 for low"),
        ({"u_limits": (-np.ones((3, 2)), 1)}, "limits.u: expected one row or 4, one for each step, for low"),
        ({"u_limits": ("low", 1)}, "limits.u: expected"),
        ({"x0": [np.nan, 0]}, "x0: expected finite numbers"),
        ({"x0": np.zeros(3)}, r"x0: expected shape \(…, 2\), but found \(3,\)"),
        ({"c": np.zeros(3)}, r"c: expected shape \(…, 2\)"),
        ({"q": [np.inf, 0]}, "q: expected finite numbers"),
        ({"A": np.zeros((3, 3))}, "A: expected shape"),
        ({"A": np.full((2, 2), np.nan)}, "A: expected finite numbers"),
        ({"R": np.diag([1.0, -1.0])}, "R: expected positive definite"),
        ({"Q": np.diag([1.0, -1.0])}, "Q: expected positive semidefinite"),
        ({"Qf": np.eye(3)}, r"Qf: expected shape \(2, 2\)"),
        ({"Qf": -ONE}, "Qf: expected positive semidefinite"),
        ({"qf": np.zeros(3)}, r"qf: expected shape \(…, 2\)"),
        ({"y_limits": (-1, 1)}, "limits.C: expected the outputs that limits.y are of"),
        ({"y_limits": (-1, 1), "C": np.zeros((1, 3))}, r"C: expected shape \(…, 1, 2\)"),
        ({"y_limits": (-1, 1), "C": ONE, "D": np.zeros((1, 2))}, r"D: expected shape \(…, 2, 2\)"),
        ({"u_last": np.zeros(3), "du_limits": (-1, 1)}, r"u_last: expected shape \(…, 2\)"),
        ({"u_last": [np.nan, 0], "du_limits": (-1, 1)}, "u_last: expected finite numbers"),
        ({"Qf": np.full((2, 2), np.nan)}, "Qf: expected finite numbers"),
        ({"qf": [np.nan, 0]}, "qf: expected finite numbers"),
        ({"time_varying": True}, "Qf: expected a terminal weight"),
        ({"time_varying": True, "Qf": ONE, "A": np.zeros((3, 2, 2))}, "A: expected one matrix or one for each of 4"),
        ({"time_varying": True, "Qf": ONE, "c": np.zeros((3, 2))}, "c: expected one for each of 4 steps"),
        ({"soft": (-1.0, 1.0)}, "soft: expected costs ≥ 0"),
        ({"soft": (0.0, 0.0)}, "soft: expected costs ≥ 0"),
        ({"soft": (np.nan, 1.0)}, "soft: expected costs ≥ 0"),
        ({"num_steps": 2.5}, "num_steps: expected a whole number"),
        ({"u_limits": 1.0}, r"limits.u: expected \(low, high\), but found 1.0"),
        ({"x_limits": (1.0,)}, r"limits.x: expected \(low, high\), but found"),
        ({"time_varying": 1}, "time_varying: expected"),
        ({"soft": 1.0}, r"soft: expected \(linear, quadratic\)"),
    ],
)  # fmt: skip
def test_bad_input_is_said_in_sentences_where_types_are_not_checked(change, message):
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        refused(message, solved, **PLAIN | change)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
