"""What the rows of a benchmark mean; how fast anything is, no test says."""

import dataclasses
import importlib
import json
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as listing
from benchmarks import (
    control,
    data,
    identification,
    learned_agents,
    measurement,
    mpc,
    panels,
    records,
    recovery,
    robust,
    simulation,
    startup,
    student_prior,
    training,
    unknown_plants,
)
from benchmarks import environments as stepping
from lqrlab import evaluation, systems
from lqrlab.extensions import environments
from lqrlab.extensions import robust as synthesis


def test_calls_take_turns_and_the_least_time_counts(monkeypatch):
    order, clock = [], iter([0.5, 0.1, 3.0, 5.0, 1.0, 7.0])
    monkeypatch.setattr(measurement, "seconds", lambda call: call() or next(clock))
    times = measurement.measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert times == {"a": 1.0, "b": 5.0}  # without the first calls, which may compile


def test_hard_problems_are_judged_by_their_closed_loops_and_equations(monkeypatch):
    rows = {row.name: row for row in control.acceptance((2,), num=30)}
    assert rows["sampled, stiff chain: problems"].value == 10
    assert all(row.reached for row in rows.values() if row.target is not None)
    design = control.control.lqr

    def wrong(*problem):
        found = design(*problem)
        return dataclasses.replace(found, K=-found.K, P=2 * found.P)

    monkeypatch.setattr(control.control, "lqr", wrong)
    rows = {row.name: row for row in control.acceptance((2,), num=30)}
    assert not rows["continuous, dense: accepted and unstable"].reached
    assert not rows["continuous, dense: accepted and above 1e-8"].reached


@pytest.mark.matrix
def test_environments_step_beside_gymnax_and_gymnasium():
    rows = list(stepping.bench_env(8, steps=5, repeats=1))
    assert len(rows) == 10
    assert all(row.value > 0 for row in rows)


def test_a_record_goes_on_where_it_was_stopped(tmp_path):
    path, measured = tmp_path / "record.json", []

    def speed():
        measured.append("speed")
        yield measurement.row("speed", 3, "×", 2)

    def killed():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(records.measure_all(path, {"a": speed, "b": killed}))
    rows = list(records.measure_all(path, {"a": speed, "b": speed}))
    assert measured == ["speed", "speed"]
    assert [row.reached for row in rows] == [True, True]
    path.write_text(path.read_text().replace('"cores": ', '"cores": 1'))
    with pytest.raises(ValueError, match="of this machine"):
        list(records.measure_all(path, {"a": speed}))
    path.write_text('{"parts": {"a": 1}}')
    with pytest.raises(ValueError, match="python -m benchmarks all wrote"):
        list(records.measure_all(path, {"a": speed}))


def test_a_ratio_that_became_a_fifth_worse_is_said(tmp_path, capsys):
    def written(name, *values):
        times = [("over SciPy", "×", True), ("gradient over solve", "×", False), ("first call", "s", False)]
        rows = [measurement.row(n, v, unit, least=least) for (n, unit, least), v in zip(times, values)]
        list(records.measure_all(tmp_path / name, {"control": lambda: rows}))
        return str(tmp_path / name)

    old, same, worse = written("old", 10, 2, 1), written("same", 9, 2.2, 90), written("worse", 11, 2.5, 1)
    assert [c.regression for c in records.compare(tmp_path / "old", tmp_path / "worse")] == [True, False]
    assert listing.main(["compare", old, same]) == 0
    assert "0 of 2 ratios" in capsys.readouterr().out
    assert listing.main(["compare", old, worse]) == 1
    said = capsys.readouterr().out
    assert "gradient over solve" in said
    assert "over SciPy" not in said


SMALL = learned_agents.Training(width=8, updates=30, batch=8, window=10, ppo_steps=0, sac_steps=0)


def test_learned_policies_stand_in_a_table_with_the_optimum():
    rows = {row.policy: row for row in learned_agents.bench_rl(["pendulum"], seeds=2, size=SMALL, episodes=8)}
    assert list(rows) == ["LQR", "imitation", "gradient"]
    assert abs(rows["LQR"].worst) < 1e-4  # percent
    for name in ("imitation", "gradient"):
        assert 1e-3 < rows[name].median <= rows[name].p95 <= rows[name].worst
    assert (rows["imitation"].steps, rows["gradient"].steps) == (64 * 200, 30 * 8 * 10)


def test_the_reward_of_sac_is_the_root_of_what_an_action_costs_above_the_optimum():
    env = learned_agents.task("pendulum")
    rooted = learned_agents.task("pendulum", reward=learned_agents.root_of_excess(env))
    obs, state = env.reset(jax.random.key(0))
    for shift in (0.0, 0.5):
        u = environments.optimal(env)(obs) + jnp.float32(shift)
        excess, root = (float(made.step_env(jax.random.key(1), state, u)[2]) for made in (env, rooted))
        assert root == pytest.approx(-np.sqrt(-excess), rel=1e-3, abs=1e-3)
    assert root < -0.01


@pytest.mark.matrix
def test_sac_learns_agents_that_act_within_the_limits_and_are_scored_like_any_policy():
    pytest.importorskip("rejax")
    env = learned_agents.task("mass_spring_damper")
    size = learned_agents.Training(sac_steps=2000)
    agents = learned_agents.sac(env, size, jax.random.split(jax.random.key(0), 2))
    assert len(agents) == 2
    u = agents[0](jnp.full(env.n, 100.0, jnp.float32))
    assert u.shape == (env.m,)
    assert (u >= env.action_low).all() & (u <= env.action_high).all()
    excess = learned_agents.excess_percent(env, agents, jax.random.key(1), 20)
    assert excess.shape == (40,)
    assert (excess > -1e-3).all()
    policy = environments.AgentPolicy.of(env, agents[0])
    plants = systems.sample("mass_spring_damper", key=jax.random.key(0), num=2, spread=0.1)
    assert evaluation.evaluate(policy, plants, key=jax.random.key(1), num_initial=2).ratio.shape == (2, 2)


def test_a_policy_that_leaves_the_model_is_infinitely_far_from_the_optimum(monkeypatch):
    lost = {"lost": (0, lambda keys: [lambda obs: obs[:1] * 1e9])}
    monkeypatch.setattr(learned_agents, "ways", lambda env, size: lost)
    (row,) = learned_agents.bench_rl(["pendulum"], seeds=1, episodes=4)
    assert (row.median, row.diverged) == (float("inf"), 100.0)


def command(monkeypatch, capsys, parts, *words):
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    measurement.main(parts)
    return capsys.readouterr().out


def test_a_module_measures_one_of_its_parts_and_shows_a_table_or_one_object_a_line(monkeypatch, capsys):
    asked = []

    def bench(**settings):
        """Agents."""
        asked.append(settings)
        row = learned_agents.AgentRow("pendulum", "PPO", 1.25, 30.0, float("inf"), 0.5, 200_000, 2.0)
        return [row]

    parts = {"table": (bench, {"seeds": 1}), "other": (lambda: [], {})}
    shown = command(monkeypatch, capsys, parts).splitlines()
    assert shown[0].split()[:3] == ["plant", "policy", "median"]
    assert shown[1].split() == ["pendulum", "PPO", "1.25", "30", "∞", "0.5", "200000", "2"]
    assert json.loads(command(monkeypatch, capsys, parts, "--quick", "--json"))["p95"] == 30.0
    assert asked == [{}, {"seeds": 1}]
    with pytest.raises(SystemExit):
        command(monkeypatch, capsys, parts, "wrong")


def test_the_list_names_all_modules_that_have_parts(capsys):
    assert listing.main([]) == 0
    said = capsys.readouterr().out
    folder = Path(listing.__file__).parent
    with_parts = {file.stem for file in folder.glob("*.py") if "\nPARTS" in file.read_text()}
    assert with_parts == set(listing.MODULES)
    for name in with_parts:
        assert f"benchmarks.{name}: " in said
        module = importlib.import_module(f"benchmarks.{name}")
        assert all(measure.__doc__ for measure, _ in module.PARTS.values()), name


SMOKE = {
    "control": control,
    "simulation": simulation,
    "data": data,
    "identification": identification,
    "learned_agents": learned_agents,
    "startup": startup,
    "recovery": recovery,
    "panels": panels,
    "training": training,
    "unknown_plants": unknown_plants,
}
SECONDS = [
    ("control", "hard"),
    ("simulation", "speed"),
    ("data", "loaders"),
    ("learned_agents", "table"),
    ("panels", "sliders"),
]
MINUTES = [
    (name, part) for name in SMOKE for part in SMOKE[name].PARTS if (name, part) not in SECONDS and part != "tune"
]


@pytest.mark.parametrize(
    ("name", "part"), [*SECONDS, *(pytest.param(*each, marks=pytest.mark.slow) for each in MINUTES)]
)
@pytest.mark.matrix
@pytest.mark.processor(400)  # the table of unknown plants takes 125 s where two share a core
def test_each_part_measures_with_quick_settings(name, part):
    measure, quick = SMOKE[name].PARTS[part]
    rows = list(measure(**quick))
    assert rows
    for row in rows:
        assert all(
            value is not None for key, value in dataclasses.asdict(row).items() if key not in ("target", "reached")
        )


@pytest.mark.slow
@pytest.mark.matrix
def test_the_training_of_a_student_goes_on_where_it_was_cut_off(tmp_path, monkeypatch):
    sizes = {"rounds": 12, "loops": 20, "num_steps": 25, "width": 8, "num": 40}
    whole, file, taught = student_prior.train(None, **sizes), tmp_path / "student.npz", student_prior.taught

    def cut_off(progress, *rest):
        if int(progress.round) == 11:
            raise KeyboardInterrupt
        return taught(progress, *rest)

    monkeypatch.setattr(student_prior, "taught", cut_off)
    with pytest.raises(KeyboardInterrupt):
        student_prior.train(file, **sizes)
    rounds = []
    monkeypatch.setattr(student_prior, "taught", lambda progress, *rest: rounds.append(1) or taught(progress, *rest))
    resumed = student_prior.train(file, **sizes)
    assert len(rounds) == 2  # those after the tenth, which was saved
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed)):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match=r"holds a student of 12 rounds, .* width 8, .*, not 12 rounds, .* width 9"):
        student_prior.train(file, **sizes | {"width": 9})


def test_solvers_of_constrained_lqr_agree_and_the_residual_shows_a_fault():
    for differ in (False, True):
        batch = mpc.published(3, 6, differ=differ)
        answers = {}
        for feedback in (False, True):
            solver = mpc.with_daqp(batch, 3, feedback=feedback, condensing=feedback)
            answers[feedback] = us, xs = solver.answer(solver.call())
            assert mpc.residual(batch, us, xs) < 1e-12
        np.testing.assert_allclose(answers[True][0], answers[False][0], atol=1e-9)
        assert np.abs(us).max() == pytest.approx(1)
        on_limit = np.abs(us) > 1 - 1e-9
        assert mpc.residual(batch, us + 1e-3 * ~on_limit, xs) > 1e-5
        assert mpc.residual(batch, us, xs + 1e-3) > 1e-5
        assert mpc.residual(batch, 1.001 * us, xs) > 1e-5
        assert mpc.residual(batch, *_rolled(batch, np.where(on_limit, -us, us))) > 1e-2
        assert mpc.residual(batch, *_rolled(batch, 0.9 * us)) > 1e-3


def _rolled(batch, us):
    xs = [batch.x0]
    for t in range(batch.steps):
        A = batch.A if batch.A.ndim == 3 else batch.A[None]
        xs.append(np.einsum("kij,kj->ki", np.broadcast_to(A, (len(us), 8, 8)), xs[-1]) + us[:, t] @ batch.B.T + batch.c)
    return us, np.stack(xs, 1)


@pytest.mark.matrix
def test_robust_designs_are_judged_by_their_loops(monkeypatch):
    """Of the other library here: its sign is wrong, it promises too much, and it says little."""

    class Other:
        def __call__(self, given, which):
            try:
                design = synthesis.hinfsyn(*given)
            except ValueError:
                return None, "info = 3", 0.1
            A, B, C, D = design.controller.matrices
            sign = -1 if given[-1] is None else 1
            return (A, B, sign * C, sign * D), 0.5 * design.norm, 0.1

        def close(self):
            """Nothing to be ended."""

    monkeypatch.setattr(robust, "Slycot", Other)
    monkeypatch.setattr(robust, "KINDS", ("regular", "discrete", "not stabilizable"))
    values = {row.name: row.value for row in robust.bench("hinf", 3)}
    for kind, stable in (("regular", 3), ("discrete", 3), ("not stabilizable", 0)):
        assert values[f"hinf, {kind}, lqrlab: stable loops"] == stable
        assert values[f"hinf, {kind}, lqrlab: unstable loops"] == values[f"hinf, {kind}, lqrlab: norm above γ"] == 0
    assert values["hinf, regular, slycot: unstable loops"] > 0
    assert values["hinf, discrete, slycot: stable loops"] == values["hinf, discrete, slycot: norm above γ"] == 3
    assert values["hinf, not stabilizable, lqrlab: refused, with the reason"] == 3
    assert values["hinf, not stabilizable, slycot: refused, without, or no answer"] == 3


@pytest.mark.matrix
def test_slycot_answers_from_its_own_process():
    slycot = robust.Slycot()
    given = robust.plant("regular", np.random.default_rng(1))
    K, _, seconds = slycot(given, "h2")
    slycot.close()
    assert seconds > 0
    assert np.isfinite(robust.norm(given, types.SimpleNamespace(**dict(zip("ABCD", K))), "h2"))


def test_osqp_and_qpax_solve_the_published_problem():
    pytest.importorskip("osqp")
    pytest.importorskip("qpax")
    for differ in (False, True):
        batch = mpc.published(3, 6, differ=differ)
        for solver in mpc.others(batch, 3).values():
            assert mpc.residual(batch, *solver.answer(solver.call())) < 1e-6


@pytest.mark.matrix
def test_constrained_lqr_is_measured_in_all_respects(monkeypatch):
    monkeypatch.setattr(mpc, "last_line", lambda *_, **__: "1.0")  # other processes know nothing of it
    rows = {row.name: row for part in mpc.PARTS.values() for row in part[0](**part[1])}
    assert rows["N=5, plants that differ: ours, 4 starts: relative KKT residual"].value < 1e-5
    assert rows["N=5, one plant: ours, 4 starts: over DAQP"].value > 0
    assert rows["gradient by x0: relative distance from differences"].value < 1e-2
    assert {"gradients, with their solutions", "slowest problem over the median", "exponent of the time in N"} <= {
        *rows
    }


def test_errors_of_models_do_not_depend_on_their_coordinates_and_plants_are_found():
    *_, plants = identification.records(4, 1, samples=10)
    A, B, C = plants[0]
    T = np.triu(np.ones((4, 4)))
    other = T @ A @ np.linalg.inv(T), T @ B, C @ np.linalg.inv(T)
    np.testing.assert_allclose(identification._errors(other, plants[0]), 0, atol=1e-10)
    assert identification._errors((A, 1.1 * B, C), plants[0]) == pytest.approx((0.1, 0.0))
    assert identification._errors((1.1 * A, B, C), plants[0])[1] == pytest.approx(
        0.1 * np.abs(np.linalg.eigvals(A)).min(), rel=1.0
    )
    rows = {row.name: row for row in identification._linear(2, 2, 1)}
    assert rows["n=2: subspace: error of the pulse response, median"].value < 3
    assert rows["n=2: subspace and refine: error of the pulse response, median"].value < 3
    assert rows["n=2: subspace"].unit == "records/s"
