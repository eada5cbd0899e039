"""The judge: against SciPy's Lyapunov solver and loops in NumPy; what a controller does costs its own rows only."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from refusals import refused
from unrecognised import Unrecognised

from lqrlab import classical, evaluation, predictive, simulation, systems
from lqrlab.evaluation import Judgement, Scenario, judging, scenarios

KEY = jax.random.key(5)
OUTSIDE = ["third_order_plant", "position_servo"]
GAINS = {"detuned": lambda problem: 0.9 * problem.K, "nominal": evaluation.FamilyGain(), "lqr": lambda p: p.K}


@pytest.fixture(scope="module")
def suites():  # over four families: variants, and the default parameters
    some = {name: scenarios.published()[name] for name in OUTSIDE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenarios, "published", lambda: some)
        patch.setattr(scenarios, "_SIZES", ((3, 2),))
        patch.setattr(systems, "names", lambda: ("pendulum", "cart_pole", "two_mass_spring", "dc_motor"))
        made = [evaluation.suite(("pendulum", "cart_pole"), key=KEY, variants=3, spread=s) for s in (0.2, 0.0)]
    return made


@pytest.fixture(scope="module")
def judged(suites):
    return evaluation.judge(GAINS, suites[0], key=KEY, starts=2)


def starts_of(name, count, n):  # the judge's draws, before scales
    return np.asarray(jax.random.normal(judging.key_of(KEY, name), (count, 2, systems.N_MAX)))[..., :n]


def linear(scenario, name):  # NumPy's matrices of the variants of a family, with SciPy's P
    problem = simulation.Problem.of(scenario.plants[name], linear=True)
    A, B, Q, R, N = (np.asarray(getattr(problem, each)) for each in "ABQRN")
    P = [scipy.linalg.solve_discrete_are(*each[:4], s=each[4]) for each in zip(A, B, Q, R, N)]
    return A, B, Q, R, N, np.array(P), np.asarray(problem.scale_x)


def optimal(A, B, R, N, P):
    return np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + N.T)


def test_the_suite_goes_from_the_trained_families_to_dense_systems(suites, judged):
    named = [sorted(set(names)) for names in judged.plants.values()]
    home, far = ["cart_pole", "pendulum"], ["dc_motor", "two_mass_spring"]
    assert named == [home, home, far, sorted(OUTSIDE), ["3 states, 2 inputs"], home, home, home, home]
    for name, by in judged.summary().items():
        assert name == "A and B unknown" or name == "another plant" or by["lqr"]["worst"] < 1e-6
    assert judged.summary()["dense systems"]["nominal"]["no answer"] == 100
    still = evaluation.judge({"nominal": evaluation.FamilyGain()}, suites[1], key=KEY, starts=2).summary()
    near, wide, *_ = (by["nominal"] for by in still.values())
    assert near["worst"] < 1e-6 < wide["median"]


def test_the_cost_of_a_gain_is_scipy_s_on_the_very_plants_and_starts(suites, judged):
    for name in list(suites[0])[:5]:
        x0 = starts_of(name, len(judged.plants[name]), systems.N_MAX)
        for family in dict.fromkeys(judged.plants[name]):
            at = np.flatnonzero(np.array(judged.plants[name]) == family)
            for i, A, B, Q, R, N, P, scale in zip(at, *linear(suites[0][name], family)):
                K = 0.9 * optimal(A, B, R, N, P)
                stage = Q + K.T @ R @ K - N @ K - K.T @ N.T
                cost = scipy.linalg.solve_discrete_lyapunov((A - B @ K).T, stage)
                x = x0[i, :, : len(A)] * scale
                ratio = np.einsum("si,ij,sj->s", x, cost, x) / np.einsum("si,ij,sj->s", x, P, x)
                np.testing.assert_allclose(judged.scores[name]["detuned"].ratio[i], ratio, rtol=1e-9)


@pytest.mark.parametrize("event", ["push", "another plant"])
def test_a_push_and_another_plant_cost_what_a_loop_of_numpy_pays(suites, event):
    after = {"cart_pole": systems.sample("cart_pole", key=jax.random.key(9), num=3, spread=0.2)}
    plants = {"cart_pole": suites[0]["noise, σ = 0.01"].plants["cart_pole"]}
    scenario = Scenario(plants, events=(event,), then=after if event != "push" else {})
    found = evaluation.judge(GAINS, {"one": scenario}, key=KEY, starts=2).scores["one"]["detuned"]
    first, then = linear(scenario, "cart_pole"), linear(dataclasses.replace(scenario, plants=after), "cart_pole")
    key = judging.key_of(KEY, "one")
    normal = np.asarray(jax.random.normal(jax.random.fold_in(key, 0), (3, 2, systems.N_MAX)))[..., :4]
    push = normal / np.linalg.norm(normal, axis=-1, keepdims=True)
    for i in range(3):
        scale, K = first[6][i], 0.9 * optimal(*(first[k][i] for k in (0, 1, 3, 4, 5)))
        x = y = starts_of("one", 3, 4)[i] * scale
        for plant, kick in ((first, 0.0), (first if event == "push" else then, push[i] * scale)):
            A, B, Q, R, N, P, _ = (each[i] for each in plant)
            best, paid, least, x, y = optimal(A, B, R, N, P), 0.0, 0.0, x + kick, y + kick
            for _ in range(100):
                for state, gain in ((x, K), (y, best)):
                    u = -state @ gain.T
                    cost = np.sum(state @ Q * state, -1) + np.sum((2 * state @ N + u @ R) * u, -1)
                    paid, least = (paid + cost, least) if gain is K else (paid, least + cost)
                x, y = x @ A.T - x @ K.T @ B.T, y @ A.T - y @ best.T @ B.T
        ratio = (paid + np.sum(x @ P * x, -1)) / (least + np.sum(y @ P * y, -1))
        np.testing.assert_allclose(found.ratio[i], ratio, rtol=1e-9)


@pytest.mark.slow
def test_a_policy_of_any_kind_and_pid_by_family_cost_what_their_loops_cost(suites, judged, monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    monkeypatch.setattr(judging, "_MOST_MAPS", 0)
    tuned = {"dc_motor": classical.pid(systems.make("dc_motor"), "simc", pairs=[(0, 0)])}
    some = dict(list(suites[0].items())[:5])
    found = evaluation.judge({"any": lambda p: Unrecognised(0.9 * p.K), "PID": tuned}, some, key=KEY, starts=2)
    for name, by in found.scores.items():
        np.testing.assert_allclose(by["any"].ratio, judged.scores[name]["detuned"].ratio, rtol=2e-3)
    assert cleared or not pathlib.Path("/proc/self/maps").exists()  # programs of many families fill a process's maps
    name = "families never trained on, ±20 %"
    assert found.refused["PID"][name] == {"two_mass_spring": "there is no controller for two_mass_spring"}
    at = np.flatnonzero(found.scores[name]["PID"].answered[:, 0])
    problem = simulation.Problem.of(some[name].plants["dc_motor"], linear=True)
    x0 = starts_of(name, 6, problem.n)[at] * np.asarray(problem.scale_x)[:, None]
    alone = evaluation.evaluate(tuned["dc_motor"], problem, key=KEY, x0=x0, num_steps=4000)
    np.testing.assert_allclose(found.scores[name]["PID"].ratio[at], alone.ratio, rtol=1e-3)


@pytest.mark.matrix
def test_with_limits_the_reference_is_the_constrained_optimum():
    mpc = {"MPC 20": lambda p: predictive.mpc(p, 20), "lqr": lambda p: p.K}
    plants = {name: systems.sample(name, key=KEY, num=1, spread=0.0) for name in ("double_integrator", "pendulum")}
    some = {str(limit): Scenario(plants, limit=limit) for limit in (0.3, 1e6)}
    found = evaluation.judge(mpc, some, key=KEY, starts=4, reference=predictive.reference)
    again = simulation.Problem.of(plants["pendulum"], limits=(-1.0, 1.0), linear=True)
    assert predictive.reference(again) is predictive.reference(again)  # controllers share the search
    for score in found.scores["1000000.0"].values():
        np.testing.assert_allclose(score.ratio, 1.0, atol=1e-6)
    tight = found.scores["0.3"]
    both = np.isfinite(tight["MPC 20"].ratio) & np.isfinite(tight["lqr"].ratio)
    assert both.sum() >= 4
    assert (np.asarray(tight["MPC 20"].ratio)[both] <= np.asarray(tight["lqr"].ratio)[both] + 1e-6).all()
    summary = found.summary()["0.3"]
    assert summary["lqr"]["beyond limit"] > 0 == summary["MPC 20"]["beyond limit"]
    assert "no optimum" in summary["lqr"]


def test_a_controller_that_fails_costs_its_own_rows_only():
    def breaks(problem):
        if problem.n != 2:
            raise RuntimeError("no cart-poles")
        return problem.K

    plants = {name: systems.sample(name, key=KEY, num=2) for name in ("pendulum", "cart_pole")}

    def one_plant(problem):  # SciPy's, for a single plant
        A, B, Q, R, N = (np.asarray(getattr(problem, each)) for each in "ABQRN")
        return optimal(A, B, R, N, scipy.linalg.solve_discrete_are(A, B, Q, R, s=N))

    controllers = {"breaks": breaks, "one plant": one_plant, "nan": lambda p: np.nan * p.K, "lqr": lambda p: p.K}
    found = evaluation.judge(
        controllers, {"both": Scenario(plants), "not told": Scenario(plants, told="units")}, key=KEY
    )
    assert found.refused["breaks"]["both"] == {"cart_pole": "RuntimeError: no cart-poles"}
    summary = found.summary()["both"]
    assert (summary["breaks"]["no answer"], summary["breaks"]["worst"]) == (50, pytest.approx(0, abs=1e-6))
    assert [summary[name]["worst"] for name in ("lqr", "one plant")] == pytest.approx([0, 0], abs=1e-6)
    assert summary["nan"]["failed"] == 100
    assert found.refused["one plant"]["not told"]["pendulum"].endswith("A and B are unknown here: they are NaN")
    assert set(found.refused["lqr"]["not told"].values()) == {"it needs A and B, which are unknown here"}


def test_a_judgement_is_kept_joined_and_refused_if_it_is_of_other_plants(judged, suites, tmp_path):
    saved = judged.save(tmp_path / "a.json", seed=5)
    with jax.enable_x64(False):
        back = Judgement.read(saved)
    assert back.recipe == {"seed": 5}
    assert back.plants == judged.plants
    for name, by in judged.scores.items():
        for controller, score in by.items():
            np.testing.assert_allclose(back.scores[name][controller].ratio, score.ratio, rtol=1e-11)
    home = dict(list(suites[0].items())[:1])
    half = Unrecognised(0.5 * simulation.Problem.of([*next(iter(home.values())).plants.values()]).K)
    other = evaluation.judge({"half": half}, home, key=KEY, starts=2)
    assert list(Judgement.together([judged, other]).scores[next(iter(home))]) == [*GAINS, "half"]
    with pytest.raises(ValueError, match="found twice: detuned, lqr, nominal"):
        Judgement.together([judged, judged])
    moved = evaluation.judge({"half": half}, home, key=jax.random.key(6), starts=2)
    with pytest.raises(ValueError, match="expected the same plants and starts"):
        Judgement.together([judged, moved])
    content = json.loads((tmp_path / "a.json").read_text())
    content["plants"][next(iter(home))].pop()
    for text in (json.dumps(content), '{"kind": "another"}', "[]"):
        (tmp_path / "b.json").write_text(text)
        with pytest.raises(ValueError, match=r"expected a file of Judgement\.save"):
            Judgement.read(tmp_path / "b.json")


def test_dense_systems_have_normal_entries_of_a_size_that_is_uniform(monkeypatch):
    monkeypatch.setattr(scenarios, "_SIZES", ((12, 3),))
    [(name, plants)] = scenarios._dense(KEY, 200).items()
    assert name == "12 states, 3 inputs"
    A, B = (np.asarray(a) for a in plants.matrices())
    assert scipy.stats.kstest(B.ravel(), "norm").pvalue > 1e-3
    size = np.linalg.norm(A, axis=(1, 2)) / 12**0.5  # r, within 6 %
    assert scipy.stats.kstest(size, "uniform", (0.3, 2.7)).pvalue > 1e-3
    assert scipy.stats.kstest((A / size[:, None, None] * 12**0.5).ravel(), "norm").pvalue > 1e-3


def test_what_cannot_be_judged_is_refused_in_words():
    plant = systems.make("pendulum")
    still = systems.from_matrices([[[2.0]]], [[[0.0]]], dt=0.1)
    for controllers, plants, words in (
        ({}, plant, "controllers: expected a table of names and controllers"),
        ({"three": 3.0}, plant, r"controller: expected a policy, .* of .*LQG.*, but found float"),
        (GAINS, {}, "plants: expected scenarios, or plants by name"),
        (GAINS, {"none": still}, "plants: none has a stabilizing optimum"),
        (GAINS, {"tight": Scenario({"pendulum": plant}, limit=1.0)}, "reference: expected one for 'tight'"),
    ):
        refused(words, evaluation.judge, controllers, plants, key=KEY)
    for trained, options, words in (
        ((), {}, "trained: expected at least one family"),
        (("pendulums",), {}, "no plant is called 'pendulums'"),
        (("pendulum",), {"limit": 0.0}, "limit: expected a number above 0"),
        (("pendulum",), {"noise": -1.0}, "noise: expected a number ≥ 0"),
        (("pendulum",), {"variants": 0}, "variants: expected a whole number"),
    ):
        refused(words, evaluation.suite, trained, **{"key": KEY} | options)
