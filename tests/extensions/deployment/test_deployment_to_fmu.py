"""Units for co-simulation, run by FMPy, which shares no code with ours."""

import ctypes
import shutil
import subprocess
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from lqrlab import control, simulation, systems
from lqrlab.extensions import deployment

fmpy = pytest.importorskip("fmpy", reason="FMPy runs the units: pip install fmpy")
if not any(map(shutil.which, ("cc", "gcc", "clang"))):
    pytest.skip("needs a C compiler", allow_module_level=True)
from fmpy.fmi2 import FMU2Slave  # noqa: E402
from fmpy.validation import validate_fmu  # noqa: E402

PLANT = systems.make("cart_pole")


def problem_of(plant=PLANT, **options):
    u_eq = plant.equilibrium()[1]
    return simulation.Problem.of(plant, limits=(u_eq - plant.scales[1], u_eq + plant.scales[1]), **options)


def regulator(plant):
    return control.lqrd(*plant.matrices(), *plant.weights(), plant.dt)


class Running:
    """A unit under FMPy."""

    def __init__(self, path, folder, **start):
        self.description = fmpy.read_model_description(str(path))
        where = str(folder / f"{path.stem}_files")
        if not Path(where).exists():  # else an instance of the same library
            fmpy.extract(str(path), where)
        about = {"guid": self.description.guid, "modelIdentifier": self.description.coSimulation.modelIdentifier}
        self.unit = FMU2Slave(**about, unzipDirectory=where, instanceName="one")
        self.unit.instantiate()
        self.unit.setupExperiment(startTime=0.0)
        self.unit.enterInitializationMode()
        self.set(**start)
        self.unit.exitInitializationMode()

    def refs(self, names):
        return [next(v.valueReference for v in self.description.modelVariables if v.name == name) for name in names]

    def named(self, causality):
        return [v.name for v in self.description.modelVariables if v.causality == causality]

    def set(self, **values):
        self.unit.setReal(self.refs(values), [float(v) for v in values.values()])

    def get(self):
        return np.array(self.unit.getReal(self.refs(self.named("output"))))

    def step(self, time, dt, values):
        self.set(**dict(zip(self.named("input"), values)))
        self.unit.doStep(time, dt)
        return self.get()


@pytest.mark.parametrize("family", ["cart_pole", "quadrotor"])
def test_a_plant_against_a_controller_is_the_rollout(family, tmp_path):
    plant = systems.make(family)
    problem, K = problem_of(plant), regulator(plant)
    one = deployment.to_fmu(problem, tmp_path / "plant.fmu")
    other = deployment.to_fmu(K, tmp_path / "controller.fmu", problem=problem)
    for path in (one, other):
        assert validate_fmu(str(path)) == []
        assert path.stat().st_size < 100_000
    for path in (one, other):
        assert float(fmpy.read_model_description(str(path)).defaultExperiment.stepSize) == float(plant.dt)
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    x0 = 0.5 * np.asarray(plant.scales[0])  # so far that the input saturates
    start = dict(zip([s.name for s in plant.states], x_eq + x0))
    moving, controlling = Running(one, tmp_path, **start), Running(other, tmp_path)
    xs, us, dt = [moving.get()], [], float(plant.dt)
    for k in range(200):
        us.append(controlling.step(k * dt, dt, xs[-1]))
        xs.append(moving.step(k * dt, dt, us[-1]))
    run = simulation.rollout(problem, K, jnp.asarray(x0), 200)
    assert np.any(np.abs(run.us) == np.asarray(plant.scales[1]))
    np.testing.assert_allclose(np.array(xs) - x_eq, run.xs, rtol=0, atol=1e-12 * np.abs(run.xs).max())
    np.testing.assert_allclose(np.array(us) - u_eq, run.us, rtol=0, atol=1e-12 * np.abs(run.us).max())


def test_a_plant_in_c_is_the_plant_of_a_real_time_loop(tmp_path):
    """The loop around a unit is a rollout of what it was written from, the excitation with it."""
    other = systems.make("cart_pole", pole_length=0.3)
    hardware = problem_of(other)
    x0 = np.array([0.1, 0.05, 0.0, 0.2])
    path = deployment.to_fmu(hardware, tmp_path / "plant.fmu")
    refused("trusted=True", deployment.CoSimulation, path, PLANT.dt)
    known = fmpy.read_model_description(str(path)).modelVariables
    start = dict(zip([v.name for v in known if v.causality == "output"], x0))
    unit = deployment.CoSimulation(path, PLANT.dt, trusted=True, start=start)
    np.testing.assert_allclose(unit(None), x0)
    gain = regulator(PLANT)
    excited = problem_of(excitation=0.2)
    given = {"seconds": 100 * float(PLANT.dt), "problem": excited, "key": jax.random.key(0), "clock": "simulated"}
    run = deployment.realtime(gain, unit, **given)
    move = jax.jit(lambda x, u: hardware.step(x, u)[0])
    x, added = x0, run.us + run.ys @ np.asarray(gain.K).T
    assert 0.1 < added.std() < 0.3
    for y, u in zip(run.ys, run.us):
        np.testing.assert_allclose(y, x, atol=1e-12)
        x = np.asarray(move(x, u))
    again = deployment.CoSimulation(path, PLANT.dt, trusted=True, start=start)
    given["problem"] = problem_of()
    run = deployment.realtime(gain, again, **given)
    np.testing.assert_allclose(run.ys, simulation.rollout(hardware, gain, x0, 100).xs[:-1], atol=1e-12)
    strong = problem_of(excitation=50.0)
    given |= {"problem": strong, "seconds": 20 * float(PLANT.dt)}
    run = deployment.realtime(gain, deployment.CoSimulation(path, PLANT.dt, trusted=True), **given)
    low, high = np.asarray(strong.low), np.asarray(strong.high)  # the equilibrium's input is zero
    assert ((run.us >= low) & (run.us <= high)).all()
    assert (run.us == high).any()


def test_what_a_plant_in_c_refuses(tmp_path):
    path = deployment.to_fmu(PLANT, tmp_path / "plant.fmu")
    with pytest.raises(ValueError, match="start: speed is no variable of plant"):
        deployment.CoSimulation(path, 0.01, trusted=True, start={"speed": 1.0})
    lost = {PLANT.states[0].name: float("nan")}
    refused("start: expected finite", deployment.CoSimulation, path, 0.01, trusted=True, start=lost)
    unit = deployment.CoSimulation(path, PLANT.dt, trusted=True)
    refused("u: expected 1 numbers", unit, [0.0, 1.0])
    refused("u: expected numbers, but found 1 masked", unit, np.ma.masked_equal([1.0], 1.0))
    refused("refused a step", deployment.CoSimulation(path, 0.3 * PLANT.dt, trusted=True), [0.0])
    refused("there is no such file", deployment.CoSimulation, tmp_path / "no.fmu", 0.01, trusted=True)
    with pytest.raises(ValueError, match="key: the problem's excitation"):
        deployment.realtime(regulator(PLANT), unit, seconds=1.0, problem=problem_of(excitation=0.2))


def test_a_step_of_many_samples_holds_the_input_and_another_is_refused(tmp_path):
    problem, dt = problem_of(linear=True), float(PLANT.dt)
    path = deployment.to_fmu(problem, tmp_path / "plant.fmu")
    u = np.asarray(PLANT.equilibrium()[1]) + 0.1
    once = Running(path, tmp_path)
    held = once.step(0.0, 5 * dt, u)
    x = np.zeros(4)
    for _ in range(5):
        x = np.asarray(problem.A) @ x + np.asarray(problem.B) @ [0.1]
    np.testing.assert_allclose(held, x + np.asarray(PLANT.equilibrium()[0]), rtol=1e-12)
    with pytest.raises(Exception, match="DoStep"):
        once.step(5 * dt, 1.5 * dt, u)
    for time, step in ((5 * dt, np.nan), (0.0, dt)):
        with pytest.raises(Exception, match="DoStep"):
            once.step(time, step, u)
    with pytest.raises(Exception, match="SetReal"):
        once.set(angle=0.0)  # the state, once the simulation has begun


def test_units_stand_beside_each_other_and_go_back_to_a_state(tmp_path):
    """An observer's, which remembers."""
    A, B, Q, R, N = simulation.Problem.of(PLANT).sampled
    C = [[1.0, 0, 0, 0], [0, 2.0, 1.0, 0]]  # the second a sum, which has no unit
    design = control.lqg(A, B, C, Q, R, 0.01 * np.eye(4), 0.001 * np.eye(2), N, discrete=True)
    path = deployment.to_fmu(design, tmp_path / "observer.fmu", problem=PLANT)
    dt, known = float(PLANT.dt), fmpy.read_model_description(str(path)).modelVariables
    assert [(v.name, v.unit) for v in known] == [("position", "m"), ("2_angle_rad_velocity_m_s", None), ("force", "N")]
    ys = 0.1 * np.random.default_rng(0).normal(size=(30, 2))
    first, second = Running(path, tmp_path), Running(path, tmp_path)
    for k in range(10):
        first.step(k * dt, dt, ys[k])
    kept = first.unit.getFMUstate()
    data = first.unit.serializeFMUstate(kept)
    on = [first.step(k * dt, dt, ys[k]) for k in range(10, 30)]
    first.unit.setFMUstate(kept)
    again = [first.step(k * dt, dt, ys[k]) for k in range(10, 30)]
    second.unit.setFMUstate(second.unit.deSerializeFMUstate(data))
    elsewhere = [second.step(k * dt, dt, ys[k]) for k in range(10, 30)]
    fresh = Running(path, tmp_path)
    assert not np.array_equal([fresh.step(k * dt, dt, ys[10 + k]) for k in range(20)], on)
    np.testing.assert_array_equal(again, on)
    np.testing.assert_array_equal(elsewhere, on)
    first.unit.reset()
    np.testing.assert_array_equal(first.get(), np.asarray(PLANT.equilibrium()[1]))


def test_the_sources_compile_without_a_warning(tmp_path):
    path = deployment.to_fmu(PLANT, tmp_path / "plant.fmu")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path, [name for name in names if name.startswith("sources/")])
    assert [name for name in names if name.startswith("binaries/")]
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fPIC", "-c"]
    for name in ("controller.c", "model.c"):
        subprocess.run(["cc", *strict, name, "-o", f"{name}.o"], cwd=tmp_path / "sources", check=True)


def test_a_unit_of_another_export_is_not_taken_for_this_one(tmp_path):
    path = deployment.to_fmu(PLANT, tmp_path / "plant.fmu")
    where = fmpy.extract(str(path), str(tmp_path / "files"))
    name = fmpy.read_model_description(str(path)).coSimulation.modelIdentifier
    library = ctypes.CDLL(f"{where}/binaries/linux64/{name}.so")
    library.fmi2Instantiate.restype = ctypes.c_void_p
    assert library.fmi2Instantiate(b"one", 1, b"{other}", b"", None, 0, 0) is None


def test_what_is_refused(tmp_path):
    other = tmp_path / "other.fmu"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("modelDescription.xml", "<fmiModelDescription/>")
    for args, words in [
        ((PLANT, tmp_path / "plant.zip"), "ends in .fmu"),
        ((PLANT, other), "would be overwritten"),
        ((np.zeros((1, 4)).tobytes(), tmp_path / "gain.fmu"), "the plant that the controller is for"),
        ((systems.sample("cart_pole", key=jax.random.key(0), num=2), tmp_path / "plant.fmu"), "one plant"),
    ]:
        refused(words, deployment.to_fmu, *args)
    first = deployment.to_fmu(PLANT, tmp_path / "plant.fmu").read_bytes()
    assert deployment.to_fmu(PLANT, tmp_path / "plant.fmu").read_bytes() == first  # its own file is written again
