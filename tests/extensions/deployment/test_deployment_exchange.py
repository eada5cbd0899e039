"""Files of other tools: what is written is read back, by us and by who shares no code with us."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import scipy.linalg
from refusals import refused

from lqrlab import control, deployment, identification, simulation, systems
from lqrlab.simulation import Problem

RNG = np.random.default_rng(0)
PLANT = systems.make("cart_pole", pole_length=0.6)
PROBLEM = Problem.of(PLANT, limits=(-8.0, 8.0))
A, B, Q, R, N = PROBLEM.sampled
LQG = control.lqg(A, B, np.eye(4)[:2], Q, R, 1e-4 * np.eye(4), 1e-4 * np.eye(2), N, discrete=True)
ENDINGS = [".mat", ".json", ".npz"]


def foreign(path):
    """The arrays of a file, read by others."""
    if path.suffix == ".mat":
        return {k: v for k, v in scipy.io.loadmat(path).items() if k[0] != "_"}
    if path.suffix == ".json":
        return {k: np.asarray(v) for k, v in json.loads(path.read_text()).items()}
    return dict(np.load(path, allow_pickle=False))


@pytest.mark.parametrize("ending", ENDINGS)
def test_gains_plants_and_controllers_come_back(ending, tmp_path):
    gain = deployment.save(PROBLEM.K, tmp_path / f"gain{ending}")
    np.testing.assert_array_equal(foreign(gain)["K"], PROBLEM.K)
    np.testing.assert_array_equal(deployment.load(gain), PROBLEM.K)
    optimum = control.lqrd(*PLANT.matrices(), *PLANT.weights(), PLANT.dt)
    np.testing.assert_array_equal(deployment.load(deployment.save(optimum, tmp_path / f"o{ending}")), optimum.K)

    names = {k: [s.label for s in getattr(PLANT, k)] for k in ("states", "inputs")}
    weights = dict(zip("QR", PLANT.weights()))
    linear = systems.from_matrices(*PLANT.matrices(), **weights, dt=PLANT.dt, **names)
    plant = deployment.load(deployment.save(linear, tmp_path / f"plant{ending}"))
    assert (plant.n, plant.m, float(plant.dt)) == (4, 1, float(PLANT.dt))
    for a, b in zip((*plant.matrices(), *plant.weights()), (*PLANT.matrices(), *PLANT.weights())):
        np.testing.assert_allclose(a, b, atol=1e-14)
    assert [s.label for s in (*plant.states, *plant.inputs)] == [s.label for s in (*PLANT.states, *PLANT.inputs)]

    controller = deployment.load(deployment.save(LQG, tmp_path / f"lqg{ending}"))
    ys = RNG.normal(size=(20, 2))
    carry, z = controller.init(()), np.zeros(4)
    for y in ys:
        carry, u = controller(carry, jnp.asarray(y))
        np.testing.assert_allclose(u, LQG.C @ z + LQG.D @ y, atol=1e-12)
        z = LQG.A @ z + LQG.B @ y


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_bound_controller_keeps_its_limits_and_what_stands_in_for_lost_measurements(ending, tmp_path):
    policy = simulation.bind(LQG, PROBLEM).policy
    again = deployment.load(deployment.save(policy, tmp_path / f"c{ending}"))
    jax.tree.map(np.testing.assert_array_equal, policy, again)
    x0 = np.array([0.1, 0.1, 0.0, 0.0])
    seen = simulation.Measured(again, np.eye(4)[:2])
    runs = [simulation.rollout(PROBLEM, c, x0, 100) for c in (LQG, seen)]
    np.testing.assert_array_equal(runs[0].xs, runs[1].xs)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_plant_of_the_catalogue(ending, tmp_path):
    """In JSON with its parameters, so that it stays nonlinear; else its linearisation."""
    plant = deployment.load(deployment.save(PLANT, tmp_path / f"plant{ending}"))
    assert (plant.name == "cart_pole") == (ending == ".json")
    if ending == ".json":
        assert float(plant.pole_length) == 0.6
    for a, b in zip(plant.matrices(), PLANT.matrices()):
        np.testing.assert_allclose(a, b, atol=1e-14)


def test_systems_of_python_control(tmp_path):
    pc = pytest.importorskip("control")
    for dt in (0, 0.05):
        system = pc.ss(RNG.normal(size=(3, 3)), RNG.normal(size=(3, 2)), RNG.normal(size=(1, 3)), [[0.0, 1.0]], dt)
        for ending in ENDINGS:
            again = deployment.load(deployment.save(system, tmp_path / f"s{ending}"))
            assert (again.dt or 0) == dt
            for k in "ABCD":
                np.testing.assert_array_equal(getattr(again, k), getattr(system, k))


@pytest.mark.parametrize("ending", ENDINGS)
def test_logs_with_their_records_and_units(ending, tmp_path):
    us, ys = RNG.normal(size=(30, 1)), RNG.normal(size=(30, 2))
    signals = [systems.Signal("torque", "N·m"), systems.Signal("arm angle", "rad"), systems.Signal("rate", "rad/s")]
    log = identification.Log(us, ys, 0.02, (signals[0],), tuple(signals[1:]), first=(0, 12))
    path = deployment.save(log, tmp_path / f"log{ending}")
    arrays = foreign(path)
    np.testing.assert_array_equal(np.ravel(arrays["arm_angle"]), ys[:, 0])
    again = identification.read(deployment.load(path), ["torque"], ["arm angle", "rate"])
    np.testing.assert_array_equal(again.us, us)
    np.testing.assert_array_equal(again.ys, ys)
    assert again.first == (0, 12)
    assert again.dt == pytest.approx(0.02)
    assert [s.unit for s in (*again.inputs, *again.outputs)] == ["N·m", "rad", "rad/s"]
    if ending != ".json":  # identification reads the file itself, too
        direct = identification.read(path, ["torque"], ["arm_angle", "rate"])
        np.testing.assert_array_equal(direct.ys, ys)


def test_a_run_in_real_time_is_a_log(tmp_path):
    run = deployment.realtime(PROBLEM.K, PLANT, seconds=2.0, x0=[0.1, 0.1, 0, 0], clock="simulated")
    names = [s.name for s in PLANT.inputs], [s.name for s in PLANT.states]
    log = identification.read(deployment.load(deployment.save(run, tmp_path / "run.mat")), *names)
    same = identification.read(run.trajectory, plant=PLANT)
    np.testing.assert_allclose(log.ys, same.ys, atol=1e-15)
    np.testing.assert_allclose(log.us, same.us, atol=1e-15)


def test_files_that_others_wrote(tmp_path):
    K = RNG.normal(size=(1, 4))
    scipy.io.savemat(tmp_path / "k.mat", {"K": K, "note": "from MATLAB"})
    np.testing.assert_array_equal(deployment.load(tmp_path / "k.mat"), K)
    log = {"kind": b"log", "t": [0.0, 0.1], "inputs": np.array([b"u [N]"]), "outputs": np.array([b"y"]), "u": [1, 2]}
    np.savez(tmp_path / "log.npz", y=[3.0, 4.0], **log)  # names as C has them
    assert [*deployment.load(tmp_path / "log.npz")] == ["t", "u [N]", "y"]
    (tmp_path / "c.json").write_text(json.dumps(FOUND | {"Ts": 0.1}))
    assert deployment.load(tmp_path / "c.json").system.dt == 0.1


def test_what_is_refused_in_words(tmp_path):
    pc = pytest.importorskip("control")
    servo = control.lqi(A, B, np.eye(4)[:1], Q, R, np.eye(1), discrete=True)
    for thing, name, words in (
        (PROBLEM.K, "k.xls", "ending in .mat, .json"),
        (np.zeros((2, 1, 4)), "k.mat", "one gain"),
        (lambda p: p.K, "k.mat", "expected a gain, a plant"),
        (systems.sample("pendulum", key=jax.random.key(0), num=2), "p.mat", "found a batch"),
        (np.array([[1.0, np.nan]]), "k.json", "thing: expected finite numbers, but K holds"),
        (np.ma.array([[1.0, 2.0]], mask=[[True, False]]), "k.mat", "thing: expected numbers, but found 1 masked"),
        (np.zeros((0, 2)), "k.mat", "one gain"),
        (servo, "x.json", "found Integral; simulation.bind makes linear controllers"),
        (dataclasses.replace(PROBLEM, plant=None), "x.json", "found Problem"),
        (pc.ss([[0.5]], [[1.0]], [[1.0]], [[0.0]], True), "x.json", "its dt: expected seconds"),
        (pc.tf([1.0], [1.0, 1.0]), "x.json", "but found TransferFunction"),
    ):
        refused(words, deployment.save, thing, tmp_path / name)
    assert not list(tmp_path.iterdir())
    (tmp_path / "odd.json").write_text('{"kind": "cake", "A": [[1]]}')
    (tmp_path / "half.json").write_text('{"kind": "controller", "A": [[1]]}')
    (tmp_path / "twice.json").write_text('{"kind": "gain", "K": [[1.0]], "K": [[2.0]]}')
    for name, words in (
        ("odd.json", "kind"),
        ("twice.json", "two entries of one object are called K"),
        ("half.json", "a controller needs 'B'"),
    ):
        refused(words, deployment.load, tmp_path / name)


FOUND = {"kind": "controller", "A": [[0.5, 0.0], [0.0, 0.4]], "B": [[1.0], [2.0]], "C": [[1.0, 1.0]], "D": [[0.0]]}
SYSTEM, NAN = {"kind": "system"}, float("nan")
REFUSED = [
    ({"E": [[1.0, 2.0]]}, r"E: expected shape \(2, 1\), but found \(1, 2\)"),  # its transpose
    ({"H": [[1.0], [2.0]]}, "H: expected shape"),
    ({"A": [0.5, 0.0, 0.1, 0.4]}, "A: expected shape"),  # rows or columns?
    *(({name: a}, f"{name}: expected shape") for name, a in (("start", [1.0]), ("B", [[1.0, 2.0]]))),
    (SYSTEM | {"C": [[1.0], [1.0]]}, "C: expected shape"),
    *(({name: NAN * np.ones(np.shape(FOUND[name]))}, f"{name}: expected finite") for name in "ABCD"),
    (SYSTEM | {"A": [[0.5, np.inf], [0.0, 0.4]]}, "A: expected finite"),
    ({"kind": "gain", "K": [[NAN, 1.0]]}, "K: expected finite"),
    ({"kind": "gain", "K": [[[1.0]]]}, "K: expected shape"),
    ({"low": [NAN]}, "low: expected finite"),
    *((limits, "low, high: expected low ≤ high") for limits in ({"low": [1.0], "high": [-1.0]}, {"low": [np.inf]})),
    *((kind | {name: [-1.0]}, f"'{name}' is no field") for kind, name in (({}, "Low"), ({}, "ts"), (SYSTEM, "ts"))),
    *((kind | {"dt": dt}, "dt: expected") for kind in (SYSTEM, {}) for dt in (None, "0.1", [], [0.1, 0.2], NAN, -1.0)),
    (SYSTEM | {"E": [[2.0, 0.0], [0.0, 1.0]]}, "E: expected ẋ = Ax [+] Bu, but found a matrix before ẋ"),
    (SYSTEM | {"InputDelay": [0.0, 0.3]}, "InputDelay: expected a model without dead time"),
    ({"A": [[1.0, 0.0], [0.5]]}, "A: expected real numbers, but found rows of different lengths, 1 to 2"),
    ({"kind": "log", "t": [0, 1], "inputs": ["u"], "outputs": ["y"], "u": [1, 2, 3], "y": [1, 2]}, "u: expected 2 sam"),
    ({"kind": "log", "t": [0, 1], "inputs": ["u [N]"], "outputs": ["u [m]"], "u": [1, 2]}, "inputs, outputs: expected"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_fields_that_do_not_go_together_are_refused(change, words, tmp_path):
    content = {k: np.asarray(v).tolist() if isinstance(v, np.ndarray) else v for k, v in (FOUND | change).items()}
    (tmp_path / "c.json").write_text(json.dumps(content))
    refused(f"c.json: {words}", deployment.load, tmp_path / "c.json")
    if all(isinstance(v, np.ndarray) for v in change.values()):
        np.savez(tmp_path / "c.npz", **(FOUND | change))
        refused(f"c.npz: {words}", deployment.load, tmp_path / "c.npz")


@pytest.mark.parametrize("ending", ENDINGS)
def test_odd_but_legal_things_come_back(ending, tmp_path):
    """A controller with limits on one side and a memory to start from, a static one; a log with lost samples."""
    file = tmp_path / f"c{ending}"
    lag = control.StateSpace(*(jnp.asarray(a) for a in ([[0.5]], [[1.0]], [[1.0], [2.0]], [[0.0], [0.0]])), 0.1)
    limits = jnp.array([-1.0, -jnp.inf]), jnp.array([jnp.inf, 3.0])
    one = simulation.LinearController(lag, jnp.zeros((1, 2)), jnp.zeros(1), *limits, start=jnp.ones(1))
    jax.tree.map(np.testing.assert_array_equal, one, deployment.load(deployment.save(one, file)))
    static = control.StateSpace(np.zeros((0, 0)), np.zeros((0, 2)), np.zeros((3, 0)), RNG.normal(size=(3, 2)))
    jax.tree.map(np.testing.assert_array_equal, static, deployment.load(deployment.save(static, file)))
    signals = [systems.Signal("1st", "V"), systems.Signal("Δp", "Pa")]
    ts, ys, us = np.arange(3.0), np.array([[1.0], [NAN], [3.0]]), np.ones((3, 1))
    run = deployment.TimedRun(
        0.1, np.arange(3), ts, ts, ys, us, ys[:, 0] > 0, (signals[1],), (signals[0],), None, "simulated", 3
    )  # fmt: skip
    columns = deployment.load(deployment.save(run, file))
    np.testing.assert_array_equal(columns["Δp [Pa]"], [1, NAN, 3])
    if ending == ".json":
        assert json.loads(file.read_text(), parse_constant=pytest.fail)["x_p"] == [1, None, 3]
