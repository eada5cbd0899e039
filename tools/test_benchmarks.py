"""What the rows of a benchmark mean; how fast anything is, no test says."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import __main__ as listing
from benchmarks import (
    constrained_network,
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
    training,
    unknown_plants,
)
from benchmarks import environments as stepping
from lqrlab.extensions import environments


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


BY_THEMSELVES = ("control/hard", "learned_agents/table", "unknown_plants/table", "unknown_plants/contact")
BY_THEMSELVES += ("unknown_plants/tune",)
"""Parts whose pieces tests run already, and which take minutes even so small; one takes hours."""
MODULES = (
    constrained_network,
    control,
    data,
    identification,
    mpc,
    panels,
    recovery,
    robust,
    simulation,
    startup,
    stepping,
    training,
)
PARTS = {
    f"{module.__name__.rpartition('.')[2]}/{name}": part
    for module in (*MODULES, unknown_plants)
    for name, part in module.PARTS.items()
}


@pytest.mark.parametrize("part", [part for part in PARTS if part not in BY_THEMSELVES])
@pytest.mark.matrix
def test_each_part_measures_with_quick_settings(part, monkeypatch):
    monkeypatch.setattr(mpc, "last_line", lambda *_, **__: "1.0")  # other processes know nothing of it
    measure, quick = PARTS[part]
    rows = list(measure(**quick))
    assert rows
    for row in rows:
        shown = {key: value for key, value in dataclasses.asdict(row).items() if key not in ("target", "reached")}
        assert None not in shown.values(), row


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


def test_osqp_and_qpax_solve_the_published_problem():
    pytest.importorskip("osqp")
    pytest.importorskip("qpax")
    for differ in (False, True):
        batch = mpc.published(3, 6, differ=differ)
        for solver in mpc.others(batch, 3).values():
            assert mpc.residual(batch, *solver.answer(solver.call())) < 1e-6


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
