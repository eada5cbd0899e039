"""The user's own plants, what is said of mistakes in them, files, modes in words."""

import dataclasses
import inspect
import itertools
import json
import os
import re
from types import SimpleNamespace

import hostile_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.io
import sympy
from refusals import refused
from sympy.polys.matrices import DomainMatrix

from lqrlab import control, predictive, simulation, systems
from lqrlab.systems import Plant, Signal, drawing, families, param, plant_files
from lqrlab.systems.plant import is_linear

A = np.array([[0.0, 1.0], [2.0, -0.1]])
B = np.array([[0.0], [3.0]])
C = np.array([[1.0, 0.0]])


pytestmark = pytest.mark.usefixtures("catalogue_as_before")


def works_everywhere(plant):
    """What any plant can do: be linearised, designed for, sampled from, drawn, stacked."""
    assert control.lqrd(*plant.matrices(), *plant.weights(), plant.dt).stabilizing
    assert plant.initial_state(key=jax.random.key(0), num=3).shape == (3, plant.n)
    assert len(plant.states) == plant.n
    assert len(plant.inputs) == plant.m
    assert plant.output_matrix().shape == (len(plant.outputs), plant.n)
    assert plant.drawing()
    assert control.modes_in_words(plant)
    assert plant.name in plant.describe()
    assert simulation.Problem.of([plant, systems.make("dc_motor")], optimum=False).A.shape == (2, 12, 12)


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
    states = ("angle [rad]", "rate [rad/s]")
    f = lambda x, u: jnp.stack([x[1], jnp.sin(x[0]) + u[0]])  # noqa: E731
    plant = systems.from_dynamics(f, x_eq=[0, 0], u_eq=[0], states=states)
    np.testing.assert_allclose(plant.matrices()[0], [[0, 1], [1, 0]])
    assert plant.states[0] == Signal("angle", "rad", 1.0)
    works_everywhere(plant)


def test_matrices_with_outputs():
    plant = systems.from_matrices(A, B, C, Q=np.diag([4.0, 1.0]))
    np.testing.assert_array_equal(plant.output_matrix(), C)
    assert [s.scale for s in plant.states] == [0.5, 1.0]
    works_everywhere(plant)


def test_one_plant_becomes_a_family_whose_variants_differ_in_speed_and_strength():
    given = systems.from_dynamics(lambda x, u: jnp.stack([x[1], -(x[0] ** 3) + u[0]]), x_eq=[1, 0], u_eq=[1], dt=0.03)
    systems.register(dataclasses.replace(given, name="cubic"))
    assert "cubic" in systems.names()
    plants = systems.sample("cubic", key=jax.random.key(0), num=5)
    (a, b), (a0, b0) = plants.matrices(), given.matrices()
    np.testing.assert_allclose(a, plants.time_scale[:, None, None] * np.asarray(a0)[None])
    np.testing.assert_allclose(b, (plants.time_scale * plants.input_gain)[:, None, None] * np.asarray(b0)[None])
    assert np.ptp(plants.time_scale) > 0
    assert systems.make("cubic").dt == 0.03
    works_everywhere(systems.make("cubic"))
    refused("name: expected what the plant is to be called", systems.register, given)
    with pytest.raises(ValueError, match="expected one plant, but found a batch"):
        systems.register(systems.from_matrices(np.stack([A, A]), B), name="two")
    refused("is in the catalogue already", systems.register, given, name="pendulum")


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
    refused(rf"plant{path.suffix}: cannot be read as {path.suffix} .*truncated", systems.load, path)


@pytest.mark.parametrize("case", hostile_files.PLANTS, ids=lambda case: f"{case.file} {case.name}")
def test_files_that_are_no_plants_are_refused_in_words_and_run_nothing(case, tmp_path):
    hostile_files.met("plant", case, tmp_path / "place")


@pytest.mark.parametrize("case", hostile_files.TABLES, ids=lambda case: case.name)
def test_tables_of_plants_of_others_are_refused_in_words(case, tmp_path):
    hostile_files.met("tables", case, tmp_path / "place")


def test_files_that_are_refused(tmp_path):
    refused(r"expected a file ending in \.npz, \.mat, \.json", systems.load, tmp_path / "plant.pkl")
    np.savez(tmp_path / "half.npz", A=A, X=B)
    refused(r"half\.npz.* B is missing; it holds A, X", systems.load, tmp_path / "half.npz")
    np.savez(tmp_path / "bare.npz", A=-np.eye(2), B=np.eye(2))
    assert float(systems.load(tmp_path / "bare.npz").dt) == 0.01


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
    (dict(mass=2.0), "field 'mass': write mass: Array = systems.param"),
    (dict(dynamics=lambda self, x, u: drag(x, u)), "dynamics: expected a derivative .* that of 'velocity' is not"),
    (
        dict(outputs=(Signal("range", "m", 1.0),), output=lambda self, x: jnp.linalg.norm(x)[None]),
        "output: expected a derivative .* that of 'range' is not",
    ),
    (dict(states=None), "declares no states"),
    (dict(inputs=()), "declares no inputs"),
    (dict(inputs=Signal("force", "N", 1.0)), "inputs: expected a tuple of Signal"),
    (dict(inputs=(Signal("force", "", 1.0),)), "signal 'force' has no unit"),
    (dict(inputs=(Signal("force", "N"),)), "signal 'force': expected a scale above 0"),
    (dict(inputs=(Signal("force", "N", np.complex128(1 + 1j)),)), "'force': expected a scale above 0, but found .*1j"),
    (dict(inputs=(Signal("force", "N", "3"),)), "'force': expected a scale above 0, but found '3'"),
    (dict(states=(Signal("position", "m", np.inf),)), "'position': expected a scale above 0, but found inf"),
    (dict(inputs=(Signal("position", "N", 1.0),)), "two signals are called 'position'"),
    (dict(dt=None), "dt: expected a sample time above 0 s"),
    (dict(dt=np.inf), "dt: expected a sample time above 0 s"),
    (dict(source=None), "source: expected the model's source"),
    (dict(outputs=("positon",)), "outputs names 'positon', which is not a state"),
    (dict(solve_for=("mass",)), "solve_for names 'mass', which is neither a state nor an input"),
    (dict(dynamics=None), "dynamics fails with NotImplementedError"),
    (dict(dynamics=lambda self, x, u: x[1:]), r"dynamics\(x, u\): expected ẋ of shape \(2,\), but found \(1,\)"),
    (dict(dynamics=lambda self, x, u: x @ u), "dynamics fails with TypeError"),
    (dict(dynamics=lambda self, x, u: [x[1], u[0]]), r"expected ẋ of shape \(2,\), but found a list"),
    (dict(dynamics=lambda self, x, u: None), r"expected ẋ of shape \(2,\), but found a NoneType"),
    (
        dict(operating_point=lambda self: (jnp.array([jnp.nan, 0.0]), jnp.zeros(1))),
        "no equilibrium: solving for nothing from the operating point finds none",
    ),
    (dict(weights=lambda self: (jnp.eye(3), jnp.eye(1))), r"a symmetric Q of shape \(2, 2\)"),
    (dict(weights=lambda self: (-jnp.eye(2), jnp.eye(1))), "expected Q ≥ 0, but found the eigenvalue -1"),
    (dict(weights=lambda self: (jnp.eye(2), jnp.zeros((1, 1)))), "expected R > 0, but found the eigenvalue 0"),
    (
        dict(dynamics=lambda self, x, u: jnp.stack([x[1], u[0] - 9.81])),
        "no equilibrium: at the operating point 'velocity' changes by 9.8 a second",
    ),
    (
        dict(dynamics=lambda self, x, u: jnp.stack([x[1], 1 + u[0] ** 2]), solve_for=("force",)),
        "no equilibrium: solving for force from the operating point finds none",
    ),
    (dict(operating_point=lambda self: (jnp.zeros(3), jnp.zeros(1))), "operating_point: expected x and u of shapes"),
    (dict(output=lambda self, x: x[:1]), r"output\(x\): expected shape \(2,\), but found \(1,\)"),
    (dict(draw=lambda self, x, u: x[7]), "draw fails with IndexError"),
]


@pytest.mark.parametrize(("changes", "why"), MISTAKES, ids=[re.sub(r"\W+", " ", why)[:40] for _, why in MISTAKES])
def test_a_mistake_in_a_declaration_is_named(changes, why):
    refused(f"^(?s:Toy: .*){why}", systems.register, declare(**changes))
    assert "toy" not in systems.names()


def test_a_parameter_that_hides_a_method_is_named():
    body = {"__annotations__": {"energy_": jax.Array, "matrices": jax.Array}}
    with pytest.raises(ValueError, match=r"parameter 'matrices' hides Plant\.matrices"):
        systems.register(
            declare(**body, mass=None, energy_=param(1.0, "J", "x", 0.0, 2.0), matrices=param(1.0, "J", "x", 0.0, 2.0))
        )


def test_the_line_at_fault_is_quoted_and_a_good_declaration_is_accepted():
    assert systems.register(declare()) is systems.family("toy")

    class Wrong(Plant):
        mass: jax.Array = param(2.0, "kg", "mass", 0.1, 10.0)
        length: jax.Array = param(1.0, "", "length", 0.1, 10.0)
        states = (Signal("position", "m", 1.0),)
        inputs = (Signal("force", "N", 1.0),)
        dt, source = 0.1, "an afternoon"

        def dynamics(self, x, u):
            return u / self.mass

    refused(r'\(line \d+: length: jax\.Array = param\(1\.0, "", "length"', systems.register, Wrong)


def test_signals_as_a_data_sheet_lists_them():
    assert systems.signals("x, y ± 0.5 m", "voltage = -9.3 ± 3e2 V, angle ± 1 1/(2π) rad") == (
        *(Signal(name, "m", 0.5) for name in "xy"),
        Signal("voltage", "V", 300.0, at=-9.3),
        Signal("angle", "1/(2π) rad", 1.0),
    )
    assert systems.with_rates("x = 2 ± 3 m", time=0.5)[1] == Signal("x_rate", "m/s", 6.0)
    refused(r"but found 'voltage 9\.3 ± 3 V'", systems.signals, "x ± 1 m, voltage 9.3 ± 3 V")
    refused("no scale and unit for x, y", systems.signals, "z ± 1 m, x, y")


def test_whole_numbers_are_a_state():
    p = systems.make("pendulum")
    np.testing.assert_array_equal(p.dynamics([1, 0], [0]), p.dynamics(np.array([1.0, 0.0]), np.zeros(1)))


def test_complex_numbers_enter_by_no_door_and_leave_by_none():
    plant, x, u = systems.make("pendulum"), np.array([0.1, 1j]), np.array([1j])
    units, A = systems.Coordinates.of(plant), 1j * np.eye(2)
    doors = [(plant.dynamics, x, [0.0]), (plant.dynamics, [0.1, 0.0], u), (plant.output, x)]
    doors += [(plant.drawing, x, [0.0]), (jax.jit(plant.dynamics), x, [0.0])]
    of_units = {"scale_state": (x,), "scale_input": (u,), "unscale_input": (u, 1), "scale": ("A", A)}
    of_units |= {"unscale": ("A", A, 2, 1), "zero_padding": (A, "x", "x")}  # without the tests' check of types
    doors += [(inspect.unwrap(getattr(systems.Coordinates, name)), units, *given) for name, given in of_units.items()]
    for door, *given in doors:
        refused("expected real numbers, but found complex128", door, *given)
    refused("angle: expected real", plant.point, angle=1j)
    rows = {"dynamics": lambda self, x, u: jax.lax.complex(x, x)}
    refused("dynamics fails with .*: expected real numbers", systems.register, declare(**rows))


def test_functions_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"f: .*jax\.numpy instead of numpy"):
        systems.from_dynamics(lambda x, u: np.sin(np.array(x)) + float(u[0]), x_eq=[0.0], u_eq=[0.0])
    refused("cls: expected a subclass of Plant or a plant", systems.register, dict)
    with pytest.raises(ValueError, match="states: expected 1 different names, but found 2"):
        systems.from_dynamics(lambda x, u: u, x_eq=[0.0], u_eq=[0.0], states=("a", "b"))
    refused("x_eq, u_eq: expected an equilibrium", systems.from_dynamics, lambda x, u: u, x_eq=[0.0], u_eq=[1.0])
    for label in ("a\nb", "\u202erad"):  # the first was no state at all
        refused("states: expected a list of 2 names", systems.from_matrices, A, B, states=[label, "b"])


def drag(x, u):
    """Right, but without a derivative at rest: that of the norm is 0/0."""
    return jnp.stack([x[1], u[0] - x[0] - x[1] * jnp.linalg.norm(x[1:])])


@pytest.mark.parametrize(
    ("f", "x_eq", "row"),
    [
        (drag, [0.0, 0.0], "x2"),
        (lambda x, u: jnp.stack([u[0] - jnp.sqrt(x[0]), x[0] - x[1]]), [0.0, 0.0], "x1"),
        (lambda x, u: jnp.stack([u[0] - x[0], -x[1] * jnp.arccos(1 - x[1] ** 2)]), [0.0, 0.0], "x2"),
    ],
)
def test_a_function_without_a_derivative_at_its_equilibrium_is_refused(f, x_eq, row):
    words = f"f: expected a derivative at the equilibrium, but that of '{row}' is not a finite number: .*jnp.abs"
    refused(words, systems.from_dynamics, f, x_eq=x_eq, u_eq=[0.0])
    given = {"f": f, "x_eq": jnp.asarray(x_eq), "u_eq": jnp.zeros(1), "Q": jnp.eye(2), "R": jnp.eye(1), "dt": 0.1}
    refused(f"plant: function: .* that of '{row}'", simulation.Problem.of, systems.custom.Function(**given))
    refused("f: its derivative along", predictive.ilqr, f, x_eq, np.eye(2), np.eye(1), 3, dt=0.1)


# Plants as arrays -----------------------------------------------------------------------------------------


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x, y)


def test_a_batch_of_plants_is_indexed_like_an_array():
    plants = systems.sample("pendulum", key=jax.random.key(0), num=7)
    assert len(plants) == 7
    assert plants[3].batch_shape == ()
    assert plants[3].mass == plants.mass[3]
    assert plants[-1].mass == plants.mass[-1]
    np.testing.assert_array_equal(plants[2:5].length, plants.length[2:5])
    mask = plants.mass > 1.0
    assert 0 < int(mask.sum()) < 7
    for index in (mask, np.asarray(mask)):
        np.testing.assert_array_equal(plants[index].mass, plants.mass[mask])
    np.testing.assert_array_equal(plants[[5, 0]].mass, plants.mass[np.array([5, 0])])
    assert [float(p.mass) for p in plants] == plants.mass.tolist()
    np.testing.assert_array_equal(jax.lax.map(lambda i: plants[i].mass, jnp.arange(7)), plants.mass)
    same(plants[1:3][1], plants[2])
    with pytest.raises(IndexError):
        plants[7]
    with pytest.raises(TypeError, match="pendulum: one plant cannot be indexed"):
        plants[0][0]
    with pytest.raises(TypeError, match="one plant has no length"):
        len(plants[0])
    with pytest.raises(TypeError, match="one plant has no length"):
        iter(plants[0])
    assert plants[0]  # a single plant is true, though it has no length


def test_a_grid_of_plants_is_indexed_along_all_its_axes():
    plants = systems.make("pendulum", mass=np.arange(1.0, 7.0).reshape(2, 3), length=[1.0, 2.0, 3.0])
    assert (plants.batch_shape, len(plants)) == ((2, 3), 2)
    assert (float(plants[1, 2].mass), float(plants[1, 2].length)) == (6.0, 3.0)
    np.testing.assert_array_equal(plants[..., 1].mass, [2.0, 5.0])
    np.testing.assert_array_equal(plants[:, ::2].mass, [[1.0, 3.0], [4.0, 6.0]])
    np.testing.assert_array_equal(plants[np.asarray(plants.mass) > 4.5].mass, [5.0, 6.0])
    assert [p.batch_shape for p in plants] == [(3,), (3,)]


def test_parameters_that_a_batch_shares_are_indexed_and_used():
    drawn = systems.sample("pendulum", key=jax.random.key(0), num=4)
    shared = dataclasses.replace(drawn, mass=jnp.asarray(2.0), gravity=jnp.asarray(1.62))
    spelled_out = dataclasses.replace(drawn, mass=jnp.full(4, 2.0), gravity=jnp.full(4, 1.62))
    assert shared.batch_shape == (4,)
    same(shared[1:3], spelled_out[1:3])
    same(shared[2], spelled_out[2])
    for a, b in zip(shared.matrices(), spelled_out.matrices()):
        np.testing.assert_array_equal(a, b)
    x, u = np.ones(2), np.zeros(1)
    np.testing.assert_array_equal(shared.dynamics(x, u), spelled_out.dynamics(x, u))


def test_plants_with_matrices_are_indexed_along_the_batch_alone():
    plants = systems.from_matrices(np.stack([A, 2 * A, 3 * A]), B, C, states=("angle [rad]", "rate [rad/s]"))
    second = plants[1]
    assert (len(plants), second.batch_shape, second.n) == (3, (), 2)
    np.testing.assert_array_equal(second.A, 2 * A)
    np.testing.assert_array_equal(second.C, C)
    assert second.states[0].name == "angle"
    same(plants[np.array([True, False, True])], plants[::2])
    both = [systems.sample("dc_motor", key=jax.random.key(0), num=2), plants]
    stacked = simulation.Problem.of(both, optimum=False)
    assert stacked[2:].A.shape == (3, 12, 12)
    function = systems.from_dynamics(lambda x, u: u - x, x_eq=[0.0], u_eq=[0.0])
    pair = jax.tree.map(lambda a: jnp.stack([a, a]), function)
    assert (pair.batch_shape, pair[1].x_eq.shape) == ((2,), (1,))


def test_the_operating_point_is_given_by_signals_names():
    plant = systems.make("magnetic_levitation")
    x, u = plant.point(gap=0.02, voltage=3.0)
    np.testing.assert_array_equal(x, [0.02, 0.0, 7.0])
    np.testing.assert_array_equal(u, [3.0])
    refused("curent: magnetic_levitation has no such signal; did you mean current", plant.point, curent=1.0)


# Families that build on another ---------------------------------------------------------------------------


def test_a_parameter_declared_again_inherits_what_is_left_out():
    class Heavier(systems.family("pendulum")):
        """A heavier pendulum.

        Source: the same afternoon,
        two lines of it
        """

        mass: jax.Array = param(5.0)
        length: jax.Array = param(0.7, high=2.0)
        states = (Signal("angle", "rad", 0.1), Signal("angular_velocity", "rad/s", 0.5))

    systems.register(Heavier)
    base, fields = (systems.parameter_fields(c) for c in (systems.family("pendulum"), Heavier))
    assert list(fields) == list(base)  # the order decides which key a parameter is drawn with
    assert fields["mass"].default == 5.0
    assert fields["mass"].metadata == base["mass"].metadata
    assert fields["length"].metadata == {**base["length"].metadata, "high": 2.0}
    assert Heavier.source == "the same afternoon, two lines of it"
    assert Heavier.outputs == Heavier.states[:1]  # not the base class's, which have other scales
    refused(r"expected heavier's pivot to bob within \[0\.05, 2\] m, but found 3", systems.make, "heavier", length=3.0)


def test_a_parameter_is_checked_by_name():
    cls = systems.family("pendulum")
    np.testing.assert_array_equal(systems.check_parameter(cls, "mass", [1, 2]), [1.0, 2.0])
    check, key = systems.check_parameter, jax.random.key(0)
    refused(r"expected pendulum's mass of the bob within \[0\.01, 50\] kg, but found", check, cls, "mass", [1.0, 90.0])
    refused("mass: expected finite numbers", check, cls, "mass", float("nan"))
    refused("mass: expected real numbers, but found 'heavy'", check, cls, "mass", "heavy")
    words = r"spread: expected a relative half-width in \[0, 1\), but found 1\.0"
    refused(words, systems.sample, "pendulum", key=key, num=2, spread=1.0)
    refused("num: expected a whole number ≥ 1, but found 0", systems.sample, "pendulum", key=key, num=0)
    refused("mas: pendulum has no such parameter; did you mean mass", systems.make, "pendulum", mas=1.0)


def test_a_mechanism_that_draws_itself_is_to_scale():
    assert systems.family("cart_pole").drawn_in == "m"
    assert systems.family("quarter_car").drawn_in == ""  # movements five times as large

    class Undrawn(systems.Mechanical):
        """Gauges, which have no scale."""

    assert Undrawn.drawn_in == ""


def test_a_crane_twice_as_long_is_drawn_twice_as_large():
    def numbers(shape):
        values = [getattr(shape, f.name) for f in dataclasses.fields(shape) if f.name not in ("angle", "width", "ink")]
        return np.concatenate([np.ravel(v) for v in values if not isinstance(v, bool | str)])

    drawn = [
        jax.tree.map(np.asarray, systems.make("gantry_crane", rope_length=length)).draw(
            np.array([0.2 * length, 0.3, 0, 0]), np.zeros(1)
        )
        for length in (1.0, 2.0)
    ]
    for small, large in zip(*drawn, strict=True):
        assert type(small) is type(large)
        np.testing.assert_allclose(numbers(large), 2 * numbers(small), atol=1e-12)
        if hasattr(small, "height"):  # the width of a line is of ink
            assert large.width == pytest.approx(2 * small.width)


def test_arrows_of_a_platoon_are_as_long_as_each_vehicle_is_too_fast():
    plant = jax.tree.map(np.asarray, systems.make("platoon"))
    x = np.asarray(plant.operating_point()[0]) + np.arange(1.0, 12.0) / 10
    arrows = [shape for shape in plant.draw(x, np.zeros(6)) if isinstance(shape, drawing.Arrow)]
    too_fast = [v - 22 for v, s in zip(x, plant.states) if s.name.startswith("speed")]
    lengths = np.array([arrow.b[0] - arrow.a[0] for arrow in arrows])
    np.testing.assert_allclose(lengths / lengths[0], np.array(too_fast) / too_fast[0], rtol=1e-5)


# Modes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matrix", "sentences"),
    [
        (np.diag([5.0]), ["one unstable real mode, time constant 0.2 s"]),
        (np.diag([-1.0, -1.0]), ["two decaying real modes, time constant 1 s"]),
        ([[0, 1], [0, 0]], ["2 poles at 0 (chains of 2)"]),
        (np.zeros((2, 2)), ["2 poles at 0 (chains of 1, 1)"]),
        ([[0, 2], [-2, 0]], ["one undamped oscillation, period 3.1 s"]),
        ([[-0.5, 2], [-2, -0.5]], ["one damped oscillation, period 3.1 s, damping ratio 0.24, time constant 2 s"]),
        ([[0.5, 2], [-2, 0.5]], ["one growing oscillation, period 3.1 s, damping ratio -0.24, time constant 2 s"]),
    ],
)
def test_modes_in_words(matrix, sentences):
    modes = control.modes_in_words(systems.from_matrices(matrix, np.eye(len(matrix))))
    assert [words for _, words in modes] == sentences
    found, expected = [value for value, _ in modes], np.linalg.eigvals(matrix)
    assert all(np.abs(expected - value).min() < 1e-9 and value.imag >= 0 for value in found)


def test_scales_keep_a_slow_orbits_double_integrator_apart_from_rounding():
    orbit = [words for _, words in control.modes_in_words(systems.make("satellite_orbit"))]
    assert [words.split()[0] for words in orbit] == ["one", "2"]
    with pytest.raises(ValueError, match="expected one plant, but found a batch"):
        control.modes_in_words(systems.sample("pendulum", key=jax.random.key(0), num=2))


@pytest.mark.parametrize(
    "name",
    [*("quadrotor", "planar_quadruped", "unicycle_robot", "vtol", "scara", "platoon"),
     *("two_mass_spring", "dc_motor", "pendulum")],
)  # fmt: skip
def test_integrators_are_counted_chain_by_chain_as_exact_arithmetic_finds_them(name):
    """Jordan blocks at zero by the ranks of powers in rational arithmetic."""
    plant = systems.make(name)
    A = np.asarray(plant.matrices()[0], float)
    exact = DomainMatrix.from_Matrix(sympy.Matrix([[sympy.Rational(float(a)) for a in row] for row in A]))
    power, ranks = exact.to_field(), [len(A)]
    while len(ranks) == 1 or ranks[-1] < ranks[-2]:
        ranks.append(power.rank())
        power = power * exact.to_field()
    longer = [before - after for before, after in itertools.pairwise(ranks)]
    chains = [sum(count > i for count in longer) for i in range(longer[0])]
    expected = [f"{sum(chains)} poles at 0 (chains of {', '.join(map(str, chains))})"]
    expected = ["integrator (pole at 0)"] if chains == [1] else expected
    sentences = [words for _, words in control.modes_in_words(plant)]
    assert [words for words in sentences if "at 0" in words] == (expected if chains else [])


TANK = """
import jax.numpy as jnp
from jax import Array
from lqrlab import systems


@systems.register
class LeakyTank(systems.Plant):
    \"\"\"A tank with a hole in its bottom.

    Source: Torricelli's law.
    \"\"\"

    area: Array = systems.param(0.5, "m²", "cross-section of the tank", 0.01, 10.0)
    states = systems.signals("level = 1 ± 0.2 m")
    inputs = systems.signals("inflow = 0.005 ± 0.001 m³/s")
    dt = 5.0
    solve_for = ("inflow",)

    def dynamics(self, x: Array, u: Array) -> Array:
        return (u - 1e-3 * jnp.sqrt(2 * 9.81 * x)) / self.area
"""


@pytest.fixture
def tank(tmp_path):
    """A file of the user's that registers a plant."""
    (tmp_path / "tank.py").write_text(TANK)
    return tmp_path / "tank.py"


def test_plants_of_a_file_stand_in_the_catalogue_here_and_in_processes_started_from_here(tank, monkeypatch):
    assert systems.register_file(tank) == ["leaky_tank"]
    assert systems.sample("leaky_tank", key=jax.random.key(0), num=3).batch_shape == (3,)
    assert os.environ["LQRLAB_PLANTS"] == str(tank)
    families.FAMILIES.pop("leaky_tank")  # as in a process that has only the variable
    monkeypatch.setattr(plant_files, "_entered", {"files": "", "packages": "none"})
    assert "leaky_tank" in systems.names()


def test_a_toml_file_lists_plants_by_their_matrices_or_files(tank):
    (tank.parent / "motor.json").write_text('{"A": [[-1.0]], "B": [[2.0]]}')
    file = tank.with_suffix(".toml")
    file.write_text(
        '[slide]\nA = [[0, 1], [0, 0]]\nB = [[0], [1]]\ndt = 0.02\nstates = ["x [m]", "v [m/s]"]\n'
        '[motor]\nfile = "motor.json"\ninputs = ["voltage [V]"]\n'
    )
    assert systems.register_file(file) == ["slide", "motor"]
    slide, motor = systems.make("slide", input_gain=2.0), systems.make("motor")
    assert (slide.name, slide.dt, slide.states[1].label) == ("slide", 0.02, "v [m/s]")
    np.testing.assert_allclose(slide.matrices()[1], [[0.0], [2.0]])
    assert motor.inputs[0].label == "voltage [V]"


@pytest.mark.parametrize(
    ("ending", "text", "message"),
    [
        (".py", "a = 1", "registers no plant; put @systems.register above the class"),
        (".py", "a = 1\nb = a / 0", r"line 2: ZeroDivisionError"),
        (".py", "def (", r"line 1: SyntaxError"),
        (".toml", "[slide]\nA = [[0]]\nb = 1", r"\[slide\]: key: expected one of .* found 'b'"),
        (".toml", "[slide]\nA = [[0]]", r"\[slide\]: expected the matrices A and B"),
        (".toml", "[cart_pole]\nA = [[0]]\nB = [[1]]", "is in the catalogue already"),
        (".toml", '[slide]\nfile = "fam.json"\ndt = 0.5', "fam.json: dt, name and signals are those of its family"),
        (".toml", '[slide]\nfile = "motor.json"\nA = [[9]]', r"motor.json: A is not its option: matrices are in"),
        (".toml", "slide", "is no TOML"),
        (".txt", "", "expected a file ending in .py, .toml"),
    ],
)
def test_a_file_of_plants_is_refused_with_the_line_or_table(tank, ending, text, message):
    (file := tank.with_name("mine" + ending)).write_text(text)
    tank.with_name("fam.json").write_text('{"family": "pendulum"}')
    refused(message, systems.register_file, file)
    assert os.environ["LQRLAB_PLANTS"] == ""


def test_plants_of_installed_packages_are_entered_and_a_broken_package_only_warns(tank, monkeypatch):
    mine = systems.from_matrices([[0.0]], [[1.0]], name="mine")
    points = [SimpleNamespace(name="mine", value="p:mine", load=lambda: mine)]
    points += [SimpleNamespace(name="bad", value="p:bad", load=lambda: 1 / 0)]
    monkeypatch.setattr(plant_files.importlib.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(plant_files, "_entered", {"files": "", "packages": ""})
    with pytest.warns(UserWarning, match="the plants of p:bad are left out: ZeroDivisionError"):
        assert systems.names()[-1] == "mine"


def test_plants_given_by_the_caller_have_names_and_units(tmp_path):
    signals = {"states": ["speed [m/s]"], "inputs": ["force [N]"]}
    (tmp_path / "a.json").write_text('{"A": [[-1]], "B": [[1]]}')
    for plant in (
        systems.from_dynamics(lambda x, u: u - x, x_eq=[0.0], u_eq=[0.0], name="slide", **signals),
        systems.from_matrices([[-1.0]], [[1.0]], name="slide", **signals),
        systems.load(tmp_path / "a.json", name="slide", **signals),
    ):
        assert plant.describe().startswith("slide: 1 state, 1 input, dt")
        assert [s.label for s in (*plant.states, *plant.inputs)] == ["speed [m/s]", "force [N]"]
    assert systems.from_matrices([[-1.0]], [[1.0]]).name == "linear"
    with pytest.raises(ValueError, match="name: expected letters, digits and _, such as 'my_plant'"):
        systems.from_matrices([[-1.0]], [[1.0]], name="my plant")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("area = 0.5", r"instead of area = 0.5, write area: Array = systems.param\(0.5, 'unit', .*0.05, 5\)"),
        ("__firstlineno__ = 7; area = 0.5", "instead of area = 0.5"),  # Python 3.13 writes such names by itself
        ("area: float = 0.5", r"field 'area': write area: Array = systems.param\(0.5"),
        ("area = systems.param(0.5, 'm²', 'it', 0.01, 10.0)", r"write area: Array = param\(...\)"),
    ],
)
def test_a_naive_class_is_told_what_to_write(tank, line, message):
    tank.write_text(re.sub(r"area: Array = .*", line, TANK))
    refused(message, systems.register_file, tank)


M = np.array([[2.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("linear", "f"),
    [
        (True, lambda x, u: jnp.linalg.solve(M, x) / 3 - 2 * x + u),
        (True, lambda x, u: jnp.zeros(2).at[0].set(x[1]).at[1].add(jnp.cos(0.3) * u[0]) + jax.vmap(lambda a: 2 * a)(x)),
        (True, lambda x, u: jnp.where(M[0, 0] > 1, jnp.einsum("ij,j->i", M, x), x) + jnp.roll(x, 1) + x.mean()),
        (False, lambda x, u: jnp.stack([x[1], u[0] - jnp.sign(x[1])])),
        (False, lambda x, u: jnp.where(x > 0, x, 2 * x) + u),
        (False, lambda x, u: (x > 0).astype(float) + x.astype(int).astype(float) - u),
        (False, lambda x, u: u - x[jnp.argsort(x)]),
        (False, lambda x, u: x * u[0]),
        (False, lambda x, u: u - jax.lax.stop_gradient(x)),
        (False, lambda x, u: u - jnp.linalg.solve(M + jnp.diag(x), x)),
    ],
)
def test_linear_equations_are_told_from_others_by_their_form(linear, f):
    """Most of the others have the derivative of a linear one almost everywhere."""
    plant = systems.Linear(A=M, B=M[:, :1], Q=M, R=M[:1, :1], dt=0.1)
    assert is_linear(plant)
    single = jax.tree.map(jnp.float32, (plant, systems.make("pendulum")))
    assert [*map(is_linear, single)] == [True, False]
    assert is_linear(systems.custom.Function(f=f, x_eq=M[0], u_eq=M[0, :1], Q=M, R=M[:1, :1], dt=0.1)) is linear
