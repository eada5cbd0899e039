"""Controllers from names and files beside loops in NumPy, which share no code with ours; processes that end."""

import dataclasses
import functools
import json
import shutil
import sys
import types
import zipfile
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused
from scipy.linalg import expm, solve_discrete_are

from lqrlab import control, controllers, deployment, environments, evaluation, systems
from lqrlab.compute import pytree
from lqrlab.extensions.controllers import processes
from lqrlab.extensions.controllers.command import judge as command
from lqrlab.extensions.controllers.selection import joined
from lqrlab.simulation import Problem, bind

KEY = jax.random.key(5)
PLANT, TANKS = systems.make("cart_pole"), systems.make("coupled_tanks")
GAIN = 1.2 * np.asarray(control.lqrd(*PLANT.matrices(), *PLANT.weights(), PLANT.dt).K)
TINY = controllers.PlantSelection(plants=("cart_pole",), variants=1, starts=1, noise=0.0)


def sampled(plant):
    """A, B and the weights of a step, by the matrix exponential of van Loan."""
    (A, B), (Q, R), dt = plant.matrices(), plant.weights(), float(plant.dt)
    n, m = B.shape
    F = np.block([[np.asarray(A), np.asarray(B)], [np.zeros((m, n + m))]])
    W = np.block([[np.asarray(Q), np.zeros((n, m))], [np.zeros((m, n)), np.asarray(R)]])
    whole = expm(np.block([[-F.T, W], [np.zeros_like(F), F]]) * dt)
    step = whole[n + m :, n + m :]
    return step[:n, :n], step[:n, n:], step.T @ whole[: n + m, n + m :]


def ratio(plant, act, x):
    """The cost of a loop over that of the Riccati equation."""
    A, B, W = sampled(plant)
    n = len(A)
    P = solve_discrete_are(A, B, W[:n, :n], W[n:, n:], s=W[:n, n:])
    paid, least = 0.0, x @ P @ x
    for _ in range(6000):
        z = np.concatenate([x, act(x)])
        paid, x = paid + z @ W @ z, A @ x + B @ z[n:]
    return paid / least


@pytree
@dataclasses.dataclass(frozen=True)
class Bent:
    """More than −Kx far from the equilibrium: a policy in which no gain is seen."""

    def init(self, batch_shape):
        """Nothing to remember."""

    def __call__(self, carry, x):
        return None, -jnp.einsum("ij,...j->...i", jnp.asarray(GAIN), x) * (1 + jnp.tanh(x[..., :1]) ** 2)


@pytree
@dataclasses.dataclass(frozen=True)
class Own(Bent):
    """A gain of its plant, which takes the last axes but two of states for plants."""

    K: jax.Array

    def __call__(self, carry, x):
        return None, -1.2 * jnp.squeeze(self.K @ x[..., None], -1)


@pytest.mark.parametrize("bent", [False, True, "own"])
def test_the_cost_above_the_optimum_is_that_of_a_loop_in_numpy(bent, tmp_path):
    plants = systems.sample("cart_pole", key=KEY, num=2, spread=0.2)
    found = controllers.load(str(deployment.save(GAIN, tmp_path / "gain.json"))) if not bent else lambda problem: Bent()
    if bent == "own":
        found = controllers.loading._of_function(lambda problem: Own(problem.K))
    score = evaluation.judge({"mine": found}, {"these": plants}, key=KEY, starts=2).scores["these"]["mine"]
    drawn = np.asarray(jax.random.normal(jax.random.fold_in(KEY, zlib.crc32(b"these")), (2, 2, 12)))

    own = [1.2 * np.asarray(control.lqrd(*p.matrices(), *p.weights(), p.dt).K) for p in (plants[0], plants[1])]

    def act(x):
        return -own[i] @ x if bent == "own" else -GAIN @ x * (1 + np.tanh(x[0]) ** 2 if bent else 1)

    if not bent:  # of another size, and first: its words, and the time of a step
        mixed = {"pendulum": systems.sample("pendulum", key=KEY, num=1, spread=0.2), "cart_pole": plants}
        both = evaluation.judge({"mine": found}, {"both": evaluation.Scenario(mixed)}, key=KEY)
        assert "its gain has the shape (1, 4)" in both.refused["mine"]["both"]["pendulum"]
        assert both.seconds["mine"][0] > 0
    for i, start in np.ndindex(2, 2):
        x0 = drawn[i, start, :4] * np.asarray(plants.scales[0]).reshape(-1, 4)[0]
        assert np.isclose(score.ratio[i, start], ratio(plants[i], act, x0), rtol=1e-9, atol=0)


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_c_code_and_units_are_given_absolute_signals(tmp_path):
    """A tank of another size has another equilibrium, which they do not know."""
    pytest.importorskip("fmpy")
    K = np.asarray(control.lqrd(*TANKS.matrices(), *TANKS.weights(), TANKS.dt).K)
    deployment.to_c(K, TANKS, tmp_path / "c")
    deployment.to_fmu(K, tmp_path / "unit.fmu", TANKS)
    x_own, u_own = map(np.asarray, TANKS.equilibrium())
    others = systems.sample("coupled_tanks", key=KEY, num=2, spread=0.3)
    x = 0.1 * np.ones((2, 1, TANKS.n))
    x_eq, u_eq = (np.asarray(a)[:, None] for a in others.equilibrium())
    expected = u_own - (x + x_eq - x_own) @ K.T - u_eq
    assert np.abs(u_eq - u_own).max() > 1e-3
    for name in ("c", "unit.fmu"):
        controller = controllers.load(str(tmp_path / name))
        policy = bind(controller, Problem.of(others, linear=True))
        _, u = policy(policy.init((2, 1)), jnp.asarray(x))
        assert np.allclose(u, expected, rtol=1e-12)
        found = evaluation.judge({"exported": controller, "gain": lambda _: K}, TANKS, key=KEY, starts=2)
        exported, gain = (found.scores["coupled_tanks"][k].ratio for k in ("exported", "gain"))
        assert np.allclose(exported, gain, rtol=1e-9)
        other = evaluation.judge({"exported": controller}, PLANT, key=KEY).refused["exported"]["cart_pole"]
        assert "expected the sample time of the exported controller, 0.5 s" in other["cart_pole"]


class Agent:
    """As a library loads it: an agent that was trained with states in scales and actions within ±1."""

    G = np.array([[0.3, -0.2, 0.5, 0.1]], np.float32)

    @classmethod
    def load(cls, path, device):
        env, agent = environments.make("cart_pole", units="limits"), cls()
        agent.observation_space, agent.action_space = env.observation_space, env.action_space
        return agent

    def predict(self, obs, deterministic):
        return np.clip(obs @ self.G.T, -1, 1), None


def test_an_agent_is_given_scaled_states_and_its_actions_are_shares_of_the_limits(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sbx", types.SimpleNamespace(PPO=Agent))
    with zipfile.ZipFile(tmp_path / "agent.zip", "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": {"__module__": "sbx.ppo.policies"}}))
    agent = controllers.load(str(tmp_path / "agent.zip"))
    policy = bind(agent, Problem.of(PLANT, linear=True))
    _, u = policy(policy.init((1,)), jnp.asarray([[0.2, 0.1, -0.1, 0.3]]))
    limit = environments.make("cart_pole").action_high
    shown = np.array([0.2, 0.1, -0.1, 0.3]) / np.asarray(PLANT.scales[0])
    assert np.allclose(u[0], np.clip(Agent.G @ shown, -1, 1) * limit, rtol=1e-5)
    found = evaluation.judge({"agent": agent}, systems.make("pendulum"), key=KEY)
    assert "trained on observations" in found.refused["agent"]["pendulum"]["pendulum"]


def test_what_ends_a_process_costs_its_own_rows(tmp_path):
    """One ends at its second scenario; it is not asked again, and another file of the name is another controller."""
    file, said = tmp_path / "mine.py", []
    file.write_text("import os\nasked = []\n\n\ndef gain(problem):\n    asked.append(problem)\n"
                    "    return 1.1 * problem.K if len(asked) < 3 else os._exit(7)\n")  # fmt: skip
    words = ["lqr", f"{file}:gain"]
    found = joined(processes.judge(words, TINY, tmp_path / "parts", say=said.append))
    first, second = found.scores
    assert np.all(found.scores[first][words[1]].ratio > 1)
    assert found.refused[words[1]][second] == {"cart_pole": "ended with code 7 before it was done"}
    assert np.all(found.scores[second][words[1]].verdict == evaluation.scores.NO_ANSWER)
    assert np.allclose([found.scores[name]["lqr"].ratio for name in found.scores], 1)
    assert controllers.verify(found) == []
    assert [said[0][:14], said[-1][-5:]] == ["2 controllers,", "left)"]
    said.clear()
    assert len(processes.judge(words, TINY, tmp_path / "parts", say=said.append)) == 2
    assert said == []
    before = processes.identity(words[1])
    file.write_text("gain = [[1.0, 2.0]]")
    assert processes.identity(words[1]) != before
    other = dataclasses.replace(found, recipe={**found.recipe, "selection": json.loads(TINY.to_json()) | {"seed": 1}})
    assert len(controllers.verify(other)) == 2


def test_a_judgement_that_no_loops_can_have_had_is_refused_and_none_of_its_code_is_run(tmp_path):
    """Somebody else's file, edited; the code of its plants stands where it says."""
    words = {"lqr": lambda p: p.K, "none": lambda p: 0 * p.K}
    scenarios = controllers.scenarios_of(TINY)
    found = evaluation.judge(words, scenarios, key=TINY.key, starts=TINY.starts)
    recipe = {"selection": json.loads(TINY.to_json()), "version": "0.0", "controllers": {"lqr": "12"}}
    content = json.loads(found.save(tmp_path / "true.json", **recipe).read_text())
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n")
    first = next(iter(scenarios))
    score, none, evil = ("scores", first, "lqr"), ("scores", first, "none"), str(tmp_path / "evil.py")
    rows = [
        ("lqr costs 0.5 of the optimum", (*score, "ratio"), [[0.5]]),
        ("table of costs of another shape", (*score, "ratio"), [[1.0, 1.0]]),
        ("table of costs of another shape", (*score, "asked"), [[1.0], [1.0]]),
        ("compared with <b>, not with unconstrained", (*score, "reference"), "<b>"),
        ("unknown verdicts", (*score, "verdict"), [[9]]),
        ("loops without cost that did not diverge", (*none, "lost"), [[False]]),
        ("its table of plants", ("plants", first), ["pendulum"]),
        ("its table of plants", ("left_out", first), 3),
        ("refusals, and no costs", ("refused",), {"lqr": {"another": {"cart_pole": "words"}}}),
        ("plants without an answer", ("refused",), {"lqr": {first: {"pendulum": "words"}}}),
        ("recipe cannot be followed", ("refused",), [1]),
        ("evil.py, code that would be executed", ("recipe", "selection", "plants"), [evil]),
        ("none is missing", ("scores", first), {"lqr": content["scores"][first]["lqr"]}),
        ("of the recipe, and missing", ("scores",), {first: content["scores"][first]}),
    ]
    for words, place, value in rows:
        edited = json.loads(json.dumps(content))
        *inside, last = place
        functools.reduce(dict.__getitem__, inside, edited)[last] = value
        if last == "ratio" and len(value[0]) == 2:
            edited["scores"][first]["lqr"] |= {"verdict": [[0, 0]], "lost": [[False, False]]}
        (tmp_path / "edited.json").write_text(json.dumps(edited))
        refused(words, controllers.compared, [tmp_path / "edited.json"])
    assert not (tmp_path / "run").exists()
    (tmp_path / "b").mkdir()
    content["recipe"]["version"] = "0.1"
    (tmp_path / "b" / "true.json").write_text(json.dumps(content))
    files = [tmp_path / "true.json", tmp_path / "b" / "true.json"]  # two machines' files of one name
    both = controllers.compared(files)
    assert list(both.scores[first]) == [f"{name} ({file})" for file in files for name in ("lqr", "none")]
    assert (both.recipe["version"], both.recipe["controllers"]) == ("0.0, 0.1", {f"lqr ({f})": "12" for f in files})
    assert "costs are those of the files" in both.recipe["verified"]


def test_a_function_that_asks_what_plant_it_has_is_told_so_among_many_families(tmp_path):
    """Among many families plants are padded, and have no name of their own: the answer must not be that of another."""
    (tmp_path / "mine.py").write_text(
        "def by_name(problem):\n    return (1.2 if problem.name == 'pendulum' else 1.0) * problem.K\n\n\n"
        "def by_size(problem):\n    return (1.2 if problem.n == 2 else 1.0) * problem.K\n\n\n"
        "def of_all(problem, factor=1.2):\n    return factor * problem.K\n"
    )
    names = ("by_name", "by_size", "of_all")
    mine = {name: controllers.load(f"{tmp_path / 'mine.py'}:{name}") for name in names}
    plants = {name: systems.sample(name, key=KEY, num=1, spread=0.2) for name in ("pendulum", "cart_pole")}
    scenario = {"both": evaluation.Scenario(plants), "pushed": evaluation.Scenario(plants, events=("push",))}
    for by in evaluation.judge(mine, scenario, key=KEY, starts=2).scores.values():
        ratio = {name: np.asarray(score.ratio) for name, score in by.items()}
        for name in ("by_name", "by_size"):
            assert np.allclose(ratio[name][0], ratio["of_all"][0], rtol=1e-9)
            assert np.all(ratio["of_all"] > 1.001)
            assert np.allclose(ratio[name][1], 1, rtol=1e-6)


def test_what_is_judged_is_of_the_file_as_it_is_now(tmp_path):
    """Other limits are another question; a package that was missing may be there now; names take no module's place."""
    file, helper = tmp_path / "copy.py", tmp_path / "elsewhere" / "tuned_gain.py"
    helper.parent.mkdir()
    file.write_text(f"import copy\nimport sys\nsys.path.append({str(helper.parent)!r})\nimport tuned_gain\n\n\n"
                    "def gain(problem):\n    if hasattr(copy, 'gain') or tuned_gain.factor < 1:\n"
                    "        raise SystemExit('too small')\n    return tuned_gain.factor * problem.K\n")  # fmt: skip

    def said(seconds):
        found = joined(processes.judge([str(file)], TINY, tmp_path / "parts", time_limit=seconds))
        first = next(iter(found.scores))
        return found.refused.get(str(file), {}).get(first, {}).get("cart_pole"), found.scores[first][str(file)].ratio

    assert said(60.0)[0] == "ModuleNotFoundError: No module named 'tuned_gain'"
    helper.write_text("factor = 0.5")
    assert said(60.0)[0] == "SystemExit: too small"
    helper.write_text("factor = 1.2")
    before = processes.identity(str(file))
    words, ratio = said(70.0)
    assert words is None
    assert 1 < ratio[0, 0] < 2
    (tmp_path / "gain.npy").write_bytes(b"1")
    assert processes.identity(str(file)) != before


def test_what_is_no_controller_or_selection_is_refused(tmp_path):
    plant = deployment.save(PLANT, tmp_path / "plant.json")
    (tmp_path / "wide.py").write_text("K = [[[1.0] * 4] * 3] * 2\n")
    (tmp_path / "two.py").write_text("def a(p): ...\n\n\ndef b(p): ...\n")
    (tmp_path / "agent.zip").write_text("none")
    rows = [
        ("expected one of lqr, .*nothing.py", controllers.load, "nothing.py"),
        ("expected a gain or a controller, but found a plant", controllers.load, str(plant)),
        (r"one gain \[m, n\].*\(2, 3, 4\)", controllers.load, str(tmp_path / "wide.py")),
        ("expected one controller, but found a, b", controllers.load, str(tmp_path / "two.py")),
        ("expected c, but found a, b", controllers.load, f"{tmp_path / 'two.py'}:c"),
        ("expected an agent of Stable-Baselines3", controllers.load, str(tmp_path / "agent.zip")),
        ("expected a horizon in samples", controllers.load, "mpc:x"),
        ("found none", controllers.scenarios_of, dataclasses.replace(TINY, plants=())),
        ("cart_pol", controllers.scenarios_of, dataclasses.replace(TINY, plants=("cart_pol",))),
        ("there is no such file", controllers.scenarios_of, dataclasses.replace(TINY, plants=("a.json",))),
        ("each once", processes.judge, ["lqr", "lqr"], TINY, tmp_path),
    ]
    for row in rows:
        refused(*row)
    for words, arguments in (
        ("plants: expected groups", ["lqr", "--plants", " ,"]),
        ("two.py: registers no plant", ["lqr", "--plants", str(tmp_path / "two.py"), "-o", str(tmp_path / "a.html")]),
        ("output: expected the page, as a.html", ["lqr", "-o", "a.json"]),
    ):
        assert words in str(CliRunner().invoke(command, arguments).exception)
    assert "found lqrr" in str(CliRunner().invoke(command, ["lqrr"]).exception)
