"""The user's own plants, what is said of mistakes in them, files, modes in words."""

import json
import re

import control as python_control
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io

from lqrlab import control, systems
from lqrlab.systems import Plant, Signal, param, registry

A = np.array([[0.0, 1.0], [2.0, -0.1]])
B = np.array([[0.0], [3.0]])
C = np.array([[1.0, 0.0]])


@pytest.fixture(autouse=True)
def catalogue_as_before(monkeypatch):
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))


def works_everywhere(plant):
    """What any plant can do: be linearised, designed for, sampled from, drawn, stacked."""
    assert control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).stabilizing
    assert plant.initial_state(key=jax.random.key(0), num=3).shape == (3, plant.n)
    assert len(plant.states) == plant.n
    assert len(plant.inputs) == plant.m
    assert plant.output_matrix().shape == (len(plant.outputs), plant.n)
    assert plant.drawing()
    assert systems.open_loop_modes(plant)
    assert plant.name in plant.describe()
    assert systems.stack([plant, systems.make("dc_motor")]).A.shape == (2, 12, 12)


# Ways to bring a plant ------------------------------------------------------------------------------------


def test_a_class_in_ten_lines():
    @systems.register
    class Toy(Plant):
        """A cart in honey."""

        mass: jax.Array = param(2.0, "kg", "mass", 0.1, 10.0)
        states = (Signal("position", "m", 1.0), Signal("velocity", "m/s", 1.0))
        inputs = (Signal("force", "N", 1.0),)
        dt, source = 0.1, "an afternoon"

        def dynamics(self, x, u):
            return jnp.stack([x[1], (u[0] - x[1]) / self.mass])

    plant = systems.make("toy", mass=4.0)
    np.testing.assert_allclose(plant.matrices()[0], [[0, 1], [0, -0.25]])
    assert plant.title == "A cart in honey"
    variants = systems.sample("toy", key=jax.random.key(0), num=4)
    assert variants.matrices()[0].shape == (4, 2, 2)
    works_everywhere(plant)


def test_a_function():
    plant = systems.from_dynamics(
        lambda x, u: jnp.stack([x[1], jnp.sin(x[0]) + u[0]]),
        x_eq=[0, 0],
        u_eq=[0],
        states=("angle [rad]", "rate [rad/s]"),
    )
    np.testing.assert_allclose(plant.matrices()[0], [[0, 1], [1, 0]])
    assert plant.states[0] == Signal("angle", "rad", 1.0)
    works_everywhere(plant)


def test_matrices_with_outputs():
    plant = systems.from_matrices(A, B, C, Q=np.diag([4.0, 1.0]))
    np.testing.assert_array_equal(plant.output_matrix(), C)
    assert [s.scale for s in plant.states] == [0.5, 1.0]
    works_everywhere(plant)


def test_a_python_control_state_space():
    ss = python_control.ss(A, B, C, 0, states=["angle", "rate"], inputs=["torque"])
    plant = systems.from_control(ss, dt=0.02)
    np.testing.assert_array_equal(plant.matrices()[0], A)
    assert [s.name for s in (*plant.states, *plant.inputs)] == ["angle", "rate", "torque"]
    unnamed = systems.from_control(python_control.ss(A, B, C, 0))
    assert [s.name for s in unnamed.states] == ["x[0]", "x[1]"]
    works_everywhere(plant)
    with pytest.raises(ValueError, match=r"continuous time, but found a sampled system with dt = 0\.1"):
        systems.from_control(python_control.ss(A, B, C, 0, 0.1))
    with pytest.raises(ValueError, match="D = 0"):
        systems.from_control(python_control.ss(A, B, C, 1))
    with pytest.raises(ValueError, match="found a TransferFunction"):
        systems.from_control(python_control.tf([1], [1, 1]))


def test_one_plant_becomes_a_family_whose_variants_differ_in_speed_and_strength():
    given = systems.from_dynamics(
        lambda x, u: jnp.stack([x[1], -(x[0] ** 3) + u[0]]), x_eq=[1, 0], u_eq=[1], dt=0.03
    )
    systems.register(given, name="cubic")
    assert "cubic" in systems.names()
    plants = systems.sample("cubic", key=jax.random.key(0), num=5)
    (a, b), (a0, b0) = plants.matrices(), given.matrices()
    np.testing.assert_allclose(a, plants.time_scale[:, None, None] * np.asarray(a0)[None])
    np.testing.assert_allclose(b, (plants.time_scale * plants.input_gain)[:, None, None] * np.asarray(b0)[None])
    assert np.ptp(plants.time_scale) > 0
    assert systems.make("cubic").dt == 0.03
    works_everywhere(systems.make("cubic"))
    with pytest.raises(ValueError, match="name: expected what the plant is to be called"):
        systems.register(given)
    with pytest.raises(ValueError, match="expected one plant, but found a batch"):
        systems.register(systems.from_matrices(np.stack([A, A]), B), name="two")
    with pytest.raises(ValueError, match="is in the catalogue already"):
        systems.register(given, name="pendulum")


@pytest.mark.parametrize("kind", ["npz", "mat", "json"])
def test_a_file(tmp_path, kind):
    path = tmp_path / f"plant.{kind}"
    content = {"A": A, "B": B, "C": C, "Q": np.diag([4.0, 1.0]), "R": np.eye(1), "dt": 0.05}
    if kind == "npz":
        np.savez(path, **content, states=["angle [rad]", "rate [rad/s]"])
    elif kind == "mat":
        scipy.io.savemat(path, {**content, "states": ["angle [rad]", "rate [rad/s]"]})
    else:
        plain = {key: np.asarray(value).tolist() for key, value in content.items()}
        path.write_text(json.dumps({**plain, "states": ["angle [rad]", "rate [rad/s]"]}))
    plant = systems.load(path)
    np.testing.assert_array_equal(plant.matrices()[0], A)
    np.testing.assert_array_equal(plant.output_matrix(), C)
    assert (float(plant.dt), plant.states[0].unit) == (0.05, "rad")
    assert float(systems.load(path, dt=0.2).dt) == 0.2
    works_everywhere(plant)

    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"plant\.{kind}: cannot be read as \.{kind} .*truncated"):
        systems.load(path)


def test_files_that_are_refused(tmp_path):
    def refused(name, why):
        with pytest.raises(ValueError, match=why) as caught:
            systems.load(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)

    refused("none.npz", "there is no such file")
    refused("plant.pkl", r"expected a file ending in \.npz, \.mat, \.json")
    (tmp_path / "photo.npz").write_bytes(b"\x89PNG" * 100)
    refused("photo.npz", "cannot be read")
    (tmp_path / "list.json").write_text("[1, 2]")
    refused("list.json", "an object with A and B")
    np.savez(tmp_path / "half.npz", A=A, X=B)
    refused("half.npz", "B is missing; it holds A, X")
    np.savez(tmp_path / "misfit.npz", A=A, B=np.ones((3, 1)))
    refused("misfit.npz", r"A: expected shape \(3, 3\)")
    np.savez(tmp_path / "nan.npz", A=A * np.nan, B=B)
    refused("nan.npz", "A: expected finite numbers")
    (tmp_path / "words.json").write_text('{"A": "one", "B": [[1]]}')
    refused("words.json", "A: expected a matrix")
    np.savez(tmp_path / "object.npz", A=np.array([print], dtype=object), B=B)
    refused("object.npz", "pickle")


# Mistakes in a declaration --------------------------------------------------------------------------------


def declare(**changes):
    """A good declaration with some lines changed; None leaves one out."""
    body = {
        "__doc__": "Toy.",
        "__annotations__": {"mass": jax.Array},
        "mass": param(2.0, "kg", "mass", 0.1, 10.0),
        "states": (Signal("position", "m", 1.0), Signal("velocity", "m/s", 1.0)),
        "inputs": (Signal("force", "N", 1.0),),
        "dt": 0.1,
        "source": "an afternoon",
        "dynamics": lambda self, x, u: jnp.stack([x[1], u[0] / self.mass]),
    }
    body.update(changes)
    return type("Toy", (Plant,), {key: value for key, value in body.items() if value is not None})


MISTAKES = [
    (dict(mass=param(2.0, "", "mass", 0.1, 10.0)), "parameter 'mass' has no unit"),
    (dict(mass=param(2.0, "kg")), "parameter 'mass' has no about"),
    (dict(mass=param(2.0, "kg", "mass")), r"parameter 'mass' has no range \(low, high\)"),
    (dict(mass=param(2.0, "kg", "mass", 3.0, 1.0)), "parameter 'mass' has no range"),
    (dict(mass=param(20.0, "kg", "mass", 0.1, 10.0)), r"'mass': default 20 is outside \[0\.1, 10\] kg"),
    (dict(mass=2.0), "field 'mass': declare it with param"),
    (dict(states=None), "declares no states"),
    (dict(inputs=()), "declares no inputs"),
    (dict(inputs=Signal("force", "N", 1.0)), "inputs: expected a tuple of Signal"),
    (dict(inputs=(Signal("force", "", 1.0),)), "signal 'force' has no unit"),
    (dict(inputs=(Signal("force", "N"),)), "signal 'force': expected a scale above 0"),
    (dict(inputs=(Signal("position", "N", 1.0),)), "two signals are called 'position'"),
    (dict(dt=None), "dt: expected a sample time above 0 s"),
    (dict(source=None), "source: say where the model comes from"),
    (dict(outputs=("positon",)), "outputs names 'positon', which is no state"),
    (dict(solve_for=("mass",)), "solve_for names 'mass', which is neither a state nor an input"),
    (dict(dynamics=None), "dynamics fails with NotImplementedError"),
    (
        dict(dynamics=lambda self, x, u: x[1:]),
        r"dynamics\(x, u\): expected ẋ of shape \(2,\), but found \(1,\)",
    ),
    (dict(dynamics=lambda self, x, u: x @ u), "dynamics fails with TypeError"),
    (dict(dynamics=lambda self, x, u: [x[1], u[0]]), r"expected ẋ of shape \(2,\), but found a list"),
    (dict(dynamics=lambda self, x, u: None), r"expected ẋ of shape \(2,\), but found a NoneType"),
    (
        dict(operating_point=lambda self: (jnp.array([jnp.nan, 0.0]), jnp.zeros(1))),
        "no equilibrium: solving for nothing from the operating point finds none",
    ),
    (dict(weights=lambda self: (jnp.eye(3), jnp.eye(1))), r"a symmetric Q of shape \(2, 2\)"),
    (dict(weights=lambda self: (-jnp.eye(2), jnp.eye(1))), "expected Q ≥ 0, but found the eigenvalue -1"),
    (
        dict(weights=lambda self: (jnp.eye(2), jnp.zeros((1, 1)))),
        "expected R > 0, but found the eigenvalue 0",
    ),
    (
        dict(dynamics=lambda self, x, u: jnp.stack([x[1], u[0] - 9.81])),
        "no equilibrium: at the operating point 'velocity' changes by 9.8 a second",
    ),
    (
        dict(dynamics=lambda self, x, u: jnp.stack([x[1], 1 + u[0] ** 2]), solve_for=("force",)),
        "no equilibrium: solving for force from the operating point finds none",
    ),
    (
        dict(operating_point=lambda self: (jnp.zeros(3), jnp.zeros(1))),
        "operating_point: expected x and u of shapes",
    ),
    (dict(output=lambda self, x: x[:1]), r"output\(x\): expected shape \(2,\), but found \(1,\)"),
    (dict(draw=lambda self, x, u: x[7]), "draw fails with IndexError"),
]


@pytest.mark.parametrize(
    ("changes", "why"), MISTAKES, ids=[re.sub(r"\W+", " ", why)[:40] for _, why in MISTAKES]
)
def test_a_mistake_in_a_declaration_is_named(changes, why):
    with pytest.raises(ValueError, match=why) as caught:
        systems.register(declare(**changes))
    assert str(caught.value).startswith("Toy: ")
    assert "toy" not in systems.names()


def test_the_good_declaration_is_accepted():
    assert systems.register(declare()) is systems.family("toy")


def test_a_parameter_that_hides_a_method_is_named():
    body = {"__annotations__": {"energy_": jax.Array, "matrices": jax.Array}}
    with pytest.raises(ValueError, match=r"parameter 'matrices' hides Plant\.matrices"):
        systems.register(
            declare(
                **body, mass=None, energy_=param(1.0, "J", "x", 0, 2), matrices=param(1.0, "J", "x", 0, 2)
            )
        )


def test_the_line_at_fault_is_quoted():
    class Wrong(Plant):
        mass: jax.Array = param(2.0, "kg", "mass", 0.1, 10.0)
        length: jax.Array = param(1.0, "", "length", 0.1, 10.0)
        states = (Signal("position", "m", 1.0),)
        inputs = (Signal("force", "N", 1.0),)
        dt, source = 0.1, "an afternoon"

        def dynamics(self, x, u):
            return u / self.mass

    with pytest.raises(ValueError, match=r'\(line \d+: length: jax\.Array = param\(1\.0, "", "length"'):
        systems.register(Wrong)


def test_whole_numbers_are_a_state():
    p = systems.make("pendulum")
    np.testing.assert_array_equal(p.dynamics([1, 0], [0]), p.dynamics(np.array([1.0, 0.0]), np.zeros(1)))


def test_what_is_no_plant_is_refused():
    with pytest.raises(ValueError, match="cls: expected a subclass of Plant or a plant"):
        systems.register(dict)


def test_functions_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"f: .*jax\.numpy instead of numpy"):
        systems.from_dynamics(lambda x, u: np.sin(np.array(x)) + float(u[0]), x_eq=[0.0], u_eq=[0.0])
    with pytest.raises(ValueError, match="states: expected 1 names, but found 2"):
        systems.from_dynamics(lambda x, u: u, x_eq=[0.0], u_eq=[0.0], states=("a", "b"))
    with pytest.raises(ValueError, match="x_eq, u_eq: expected an equilibrium"):
        systems.from_dynamics(lambda x, u: u, x_eq=[0.0], u_eq=[1.0])


# Modes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "sentences"),
    [
        (np.diag([5.0]), ["one unstable real mode, time constant 0.2 s"]),
        (np.diag([-1.0, -1.0]), ["two decaying real modes, time constant 1 s"]),
        ([[0, 1], [0, 0]], ["two integrators in a row: a push grows on"]),
        (np.zeros((2, 2)), ["two integrators: what is put in stays"]),
        ([[0, 2], [-2, 0]], ["one undamped oscillation, period 3.1 s"]),
        (
            [[-0.5, 2], [-2, -0.5]],
            ["one damped oscillation, period 3.1 s, damping ratio 0.24, time constant 2 s"],
        ),
        (
            [[0.5, 2], [-2, 0.5]],
            ["one growing oscillation, period 3.1 s, damping ratio -0.24, time constant 2 s"],
        ),
    ],
)
def test_modes_in_words(matrix, sentences):
    modes = systems.open_loop_modes(systems.from_matrices(matrix, np.eye(len(matrix))))
    assert [mode.sentence for mode in modes] == sentences
    assert sum(mode.count * (2 if mode.eigenvalue.imag > 1e-9 else 1) for mode in modes) == len(matrix)


def test_modes_in_numbers():
    (mode,) = systems.open_loop_modes(systems.make("mass_spring_damper", mass=2.0, stiffness=8.0, damping=0.8))
    np.testing.assert_allclose([mode.frequency, mode.damping, mode.time_constant], [2.0, 0.1, 5.0])
    # scales keep a slow orbit's double integrator apart from rounding
    orbit = systems.open_loop_modes(systems.make("satellite_orbit"))
    assert [mode.count for mode in orbit] == [1, 2]
    with pytest.raises(ValueError, match="expected one plant, but found a batch"):
        systems.open_loop_modes(systems.sample("pendulum", key=jax.random.key(0), num=2))
