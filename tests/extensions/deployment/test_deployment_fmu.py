"""Functional mock-up units as plants: a unit that is compiled here, and archives that are hostile."""

import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from refusals import refused

from lqrlab import control, deployment, simulation, systems
from lqrlab.simulation import Problem

fmpy = pytest.importorskip("fmpy")
COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
UNIT = r"""
#include <math.h>
#include <stdlib.h>
typedef struct { double x[2], u, length; } unit;
typedef struct { int more, stop, nominals, values, timed; double time; } events;
void *fmi2Instantiate(const char *n, int t, const char *g, const char *r, const void *f, int v, int l) {
    unit *c = calloc(1, sizeof *c);
    c->x[0] = 0.0; c->length = 0.5;
    return c;
}
void fmi2FreeInstance(void *c) { free(c); }
int fmi2NewDiscreteStates(void *c, events *e) { *e = (events){0}; return 0; }
int fmi2SetContinuousStates(void *c, const double x[], size_t n) {
    for (size_t i = 0; i < n; i++) ((unit *)c)->x[i] = x[i];
    return 0;
}
int fmi2GetContinuousStates(void *c, double x[], size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = ((unit *)c)->x[i];
    return 0;
}
int fmi2SetReal(void *c, const unsigned r[], size_t n, const double v[]) {
    if (n != 1 || r[0] != 5) return 3;
    ((unit *)c)->u = v[0];
    return 0;
}
int fmi2GetDerivatives(void *c, double dx[], size_t n) {
    unit *p = c;
    dx[0] = p->x[1];
    dx[1] = 9.81 / p->length * sin(p->x[0]) - 0.1 * p->x[1] + 2.0 * p->u * cos(p->x[0]);
    return 0;
}
"""
STUBS = """SetupExperiment EnterInitializationMode ExitInitializationMode EnterContinuousTimeMode SetTime
GetTypesPlatform GetVersion SetDebugLogging Terminate Reset GetReal GetInteger GetBoolean GetString
SetInteger SetBoolean SetString GetFMUstate SetFMUstate FreeFMUstate SerializedFMUstateSize SerializeFMUstate
DeSerializeFMUstate GetDirectionalDerivative EnterEventMode CompletedIntegratorStep GetEventIndicators
GetNominalsOfContinuousStates"""
DESCRIPTION = """<?xml version="1.0" encoding="UTF-8"?>
<fmiModelDescription fmiVersion="2.0" modelName="Inverted.Pendulum" guid="{g}" numberOfEventIndicators="0">
  <KIND modelIdentifier="pendulum"/>
  <UnitDefinitions><Unit name="rad"/><Unit name="N.m"/></UnitDefinitions>
  <ModelVariables>
    <ScalarVariable name="angle" valueReference="1" causality="output" variability="continuous" initial="exact">
      <Real unit="rad" start="0"/></ScalarVariable>
    <ScalarVariable name="der(angle)" valueReference="2" causality="local" variability="continuous">
      <Real derivative="1"/></ScalarVariable>
    <ScalarVariable name="rate" valueReference="3" causality="output" variability="continuous" initial="exact">
      <Real start="0"/></ScalarVariable>
    <ScalarVariable name="der(rate)" valueReference="4" causality="local" variability="continuous">
      <Real derivative="3"/></ScalarVariable>
    <ScalarVariable name="torque" valueReference="5" causality="input" variability="continuous">
      <Real unit="N.m" start="0"/></ScalarVariable>
  </ModelVariables>
  <ModelStructure>
    <Outputs><Unknown index="1"/><Unknown index="3"/></Outputs>
    <Derivatives><Unknown index="2"/><Unknown index="4"/></Derivatives>
    <InitialUnknowns><Unknown index="2"/><Unknown index="4"/></InitialUnknowns>
  </ModelStructure>
</fmiModelDescription>
"""
NEWER = """<?xml version="1.0" encoding="UTF-8"?>
<fmiModelDescription fmiVersion="3.0" modelName="newer" instantiationToken="{g}">
  <ModelExchange modelIdentifier="newer"/>
  <ModelVariables><Float64 name="time" valueReference="0" causality="independent"/></ModelVariables>
  <ModelStructure/>
</fmiModelDescription>
"""


def field(x, u):
    """The same equations, written down once more."""
    return np.array([x[1], 9.81 / 0.5 * np.sin(x[0]) - 0.1 * x[1] + 2.0 * u[0] * np.cos(x[0])])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if COMPILER is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, on Linux")
    folder = tmp_path_factory.mktemp("fmu")
    (folder / "unit.c").write_text(UNIT + "".join(f"int fmi2{name}() {{ return 0; }}\n" for name in STUBS.split()))
    command = [COMPILER, "-O1", "-w", "-fPIC", "-shared", "-o", folder / "unit.so", folder / "unit.c", "-lm"]
    subprocess.run(command, check=True, timeout=60)
    return folder / "unit.so"


def packed(path, library, kind="ModelExchange", description=DESCRIPTION):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("modelDescription.xml", description.replace("KIND", kind))
        if library is not None:
            archive.write(library, "binaries/linux64/pendulum.so")
    return path


@pytest.fixture(scope="module")
def plant(library, tmp_path_factory):
    path = packed(tmp_path_factory.mktemp("plant") / "pendulum.fmu", library)
    return deployment.from_fmu(path, trusted=True, dt=0.02)


def test_its_rates_are_those_of_the_binary(plant):
    assert [s.label for s in (*plant.states, *plant.inputs)] == ["angle [rad]", "rate [1]", "torque [N.m]"]
    assert plant.name == "Inverted_Pendulum"
    rng = np.random.default_rng(0)
    xs, us = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 1))
    found = plant.dynamics(jnp.asarray(xs), jnp.asarray(us))
    for i in np.ndindex(3, 4):
        np.testing.assert_allclose(found[i], field(xs[i], us[i]), rtol=1e-15)


def test_it_is_linearised_by_differences_and_says_so(plant, library, tmp_path):
    with jax.enable_x64(False):
        single = deployment.from_fmu(packed(tmp_path / "pendulum.fmu", library), trusted=True).matrices()
    for (A, B), near in ((plant.matrices(), 1e-8), (single, 1e-5)):
        np.testing.assert_allclose(np.hstack([A, B]), [[0.0, 1.0, 0.0], [19.62, -0.1, 2.0]], rtol=near, atol=near / 10)
    assert "differences" in plant.source


def test_it_is_controlled_and_simulated(plant):
    """The loop goes as SciPy's integrator takes the same equations."""
    problem = Problem.of(plant)
    x0 = np.array([0.3, 0.0])
    run = simulation.rollout(problem, problem.K, x0, 100)
    x = x0
    for t in range(40):
        np.testing.assert_allclose(run.xs[t], x, atol=1e-6)
        u = -np.asarray(problem.K) @ x
        x = scipy.integrate.solve_ivp(lambda _, x, u=u: field(x, u), (0, 0.02), x, rtol=1e-10, atol=1e-12).y[:, -1]
    assert np.abs(run.xs[-1]).max() < 1e-2
    batch = simulation.rollout(problem, problem.K, np.array([x0, -x0]), 20)
    np.testing.assert_allclose(batch.xs[1], -run.xs[:21], atol=1e-12)
    loop = deployment.realtime(problem.K, plant, seconds=0.4, x0=x0)
    if not loop.skipped:
        np.testing.assert_allclose(loop.trajectory.xs, run.xs[:21], atol=1e-12)


def test_systems_load_finds_the_reader(library, tmp_path):
    names = [point.name for point in importlib.metadata.entry_points(group="lqrlab.plant_files")]
    if "fmu" not in names:
        pytest.skip("installed before this reader came; pip install -e . again")
    plant = systems.load(packed(tmp_path / "pendulum.fmu", library), trusted=True, dt=0.05)
    assert float(plant.dt) == 0.05
    assert control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).stabilizing


def test_nothing_is_executed_without_a_word(library, tmp_path):
    before = os.getcwd()
    bomb, outside = (f"<!DOCTYPE m [{e}]><fmi" for e in (LAUGHS, '<!ENTITY x SYSTEM "/etc/hostname">'))
    (tmp_path / "foreign.so").write_bytes(b"\x7fELF" + bytes(100))
    (tmp_path / "half.so").write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    texts = {
        "up": (DESCRIPTION.replace('modelIdentifier="', 'modelIdentifier="../../'), "modelIdentifier: expected a name"),
        "bomb": (DESCRIPTION.replace("<fmi", bomb, 1).replace('Name="', 'Name="&g;', 1), "XMLSyntaxError"),
        "outside": (DESCRIPTION.replace("<fmi", outside, 1).replace('Name="', 'Name="&x;', 1), "XMLSyntaxError"),
        "half": (DESCRIPTION[:300], "XMLSyntaxError"),
        "still": (re.sub(r" *<Derivatives>.*\n", "", DESCRIPTION), "states and inputs, but found 0 and 1"),
        "other": (DESCRIPTION.replace('s><Unknown index="2"', 's><Unknown index="1"'), "one derivative of each state"),
        "twins": (DESCRIPTION.replace('<Unknown index="4"/></D', '<Unknown index="2"/></D'), "of each state"),
        "input": (DESCRIPTION.replace('valueReference="5"', 'valueReference="7"'), "refuses its start: .*fmi2SetReal"),
    }
    refused("trusted=True if you trust its source", deployment.from_fmu, packed(tmp_path / "a.fmu", library))
    for path, words, options in (
        (packed(tmp_path / "c.fmu", library, "CoSimulation"), "of one for co-simulation the states are not known", {}),
        (packed(tmp_path / "e.fmu", library, description=NEWER), r"expected a unit of FMI 2\.0, but found 3\.0", {}),
        (packed(tmp_path / "b.fmu", None), "cannot be started on this computer", {}),
        (packed(tmp_path / "f.fmu", tmp_path / "foreign.so"), "cannot be started on this computer", {}),
        (packed(tmp_path / "h.fmu", tmp_path / "half.so"), "ends a process that loads it .*: cut off or damaged", {}),
        *((packed(tmp_path / f"{k}.fmu", library, description=d), words, {}) for k, (d, words) in texts.items()),
        (packed(tmp_path / "d.fmu", library), "would drift away", {"at": ([0.3, 0.0], [0.0])}),
        (tmp_path / "none.fmu", "there is no such file", {}),
    ):
        refused(words, deployment.from_fmu, path, trusted=True, **options)
    assert os.getcwd() == before  # to which FMPy does not come back from a binary that it cannot load


LAUGHS = '<!ENTITY a "' + "ha" * 50 + '">'
LAUGHS += "".join(f'<!ENTITY {b} "{f"&{a};" * 50}">' for a, b in zip("abcdef", "bcdefg"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_archives_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    cases = {
        "up": ("../../evil.so", b"x", 0),
        "root": ("/etc/evil", b"x", 0),
        "drive": ("C:/evil", b"x", 0),
        "backslash": ("..\\evil", b"x", 0),
        "link": ("binaries/link", b"/etc/passwd", stat.S_IFLNK | 0o777),
        "bomb": ("resources/zeros", bytes(64 << 20), 0),
        "twins": ("modelDescription.xml", b"", 0),
    }
    for name, (member, content, mode) in cases.items():
        path, member = packed(tmp_path / f"{name}.fmu", None), zipfile.ZipInfo(member)
        member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, mode << 16
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(member, content)
        with monkeypatch.context() as patch:
            patch.setattr(zipfile.ZipFile, "extractall", lambda *a, **k: pytest.fail("was unpacked"))
            patch.setattr(zipfile.ZipFile, "open", lambda *a, **k: pytest.fail("was read"))
            refused(r"hostile or damaged|implausible ratio", deployment.from_fmu, path, trusted=True)
    with zipfile.ZipFile(tmp_path / "many.fmu", "w") as archive:
        for i in range(10_001):
            archive.writestr(str(i), b"")
    refused("at most 10000 files in it, but found 10001", deployment.from_fmu, tmp_path / "many.fmu", trusted=True)
    (tmp_path / "text.fmu").write_text("no archive")
    refused("is no functional mock-up unit", deployment.from_fmu, tmp_path / "text.fmu", trusted=True)
