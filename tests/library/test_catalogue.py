"""The catalogue as a whole: complete, named, sampled, drawn, quick to import."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import latex2mathml.converter
import numpy as np
import pytest
import sympy
from catalogue import BUILT_IN, ONE_A_FIELD, around, compiled_for

from lqrlab import simulation, systems
from lqrlab.compute import jaxprs
from lqrlab.systems import drawing
from lqrlab.workbench.figures import plant_card

MAY_IMPORT = {"jax", "jaxtyping", "wadler_lindig", "numpy", "scipy", "_cyutility"}
"""Packages that the plants take with them when they are imported; most of them JAX imports before."""


def test_a_family_of_each_field_is_compiled_for_every_change():
    fields = [systems.family(name).__module__.rpartition(".")[2] for name in ONE_A_FIELD]
    assert sorted(fields) == sorted(systems.catalogue.FIELDS)


def test_every_dimension_is_covered():
    plants = [systems.make(name) for name in BUILT_IN]
    assert {p.n for p in plants} == set(range(1, systems.N_MAX + 1))
    assert {p.m for p in plants} == set(range(1, systems.M_MAX + 1))
    sizes = {name: (p.n, p.m) for name, p in zip(BUILT_IN, plants)}
    assert sizes["six_joint_arm"] == (12, 6)
    assert sizes["quadrotor"] == (12, 4)


@pytest.mark.parametrize("name", BUILT_IN)
def test_declaration_holds_together(name):
    cls = systems.family(name)
    systems.check(cls)
    assert name.isidentifier()
    assert cls.title
    assert len(cls.source) > 30
    fields = systems.parameter_fields(cls)
    assert all(f.metadata["low"] < f.metadata["high"] for f in fields.values())
    assert any(f.metadata["vary"] for f in fields.values())
    plant = systems.make(name)
    x, u = plant.equilibrium()
    for signal, value in zip((*plant.states, *plant.inputs), np.concatenate([x, u])):
        # the declared operating point is what tables and gauges show: near the one that is solved for
        assert abs(signal.at - value) < signal.scale, (signal, value)


@pytest.mark.parametrize("name", BUILT_IN)
def test_drawing_moves_with_the_state(name):
    plant = systems.make(name)
    rest = plant.drawing()
    assert type(plant).draw is not systems.Plant.draw
    left, right, bottom, top = drawing.bounds(rest)
    assert np.isfinite([left, right, bottom, top]).all()
    assert left < right
    assert bottom < top
    known = (drawing.Line, drawing.Box, drawing.Disc, drawing.Spring, drawing.Arrow, drawing.Text)
    xs, us = around(plant, np.random.default_rng(0), 5)
    for x, u in zip(xs, us):
        moved = plant.drawing(x, u)
        assert all(isinstance(s, known) and s.ink in drawing.INKS for s in moved)
        assert np.isfinite(drawing.bounds(moved)).all()
        assert [type(s) for s in moved] == [type(s) for s in rest]  # so that a canvas can update in place
    before, after = (np.concatenate([drawing.outline(s) for s in d]) for d in (rest, moved))
    assert not np.allclose(before, after)


@pytest.mark.parametrize("name", BUILT_IN)
def test_outputs_are_measured_and_named(name):
    plant = systems.make(name)
    x, _ = plant.equilibrium()
    C = plant.output_matrix()
    assert C.shape == (len(plant.outputs), plant.n)
    step = 1e-3 * np.asarray(plant.scales[0])
    up, down = (np.asarray(plant.output(x[None] + sign * np.diag(step))) for sign in (1, -1))
    slopes = (up - down).T / (2 * step)
    np.testing.assert_allclose(C, slopes, rtol=1e-4, atol=1e-6 * max(1.0, np.abs(C).max()))


def test_each_parameter_draws_from_a_key_of_its_own():
    # spelled out, so that data sets made before a change can be made again after it
    key, plants = jax.random.key(0), systems.sample("cart_pole", key=jax.random.key(0), num=3, spread=0.3)
    for i, (name, default) in enumerate((("cart_mass", 0.5), ("pole_mass", 0.2), ("pole_length", 0.3))):
        draw = jax.random.uniform(jax.random.fold_in(key, i), (3,), minval=-1.0, maxval=1.0)
        np.testing.assert_array_equal(plants.parameters[name], default * (1 + 0.3 * draw))


@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_variants_stay_within_range_and_constants_do_not_vary(spread):
    for name in BUILT_IN:
        plants = systems.sample(name, key=jax.random.key(5), num=64, spread=spread)
        for key, f in systems.parameter_fields(type(plants)).items():
            values = np.asarray(plants.parameters[key])
            assert values.shape == (64,)
            assert np.all((values >= f.metadata["low"]) & (values <= f.metadata["high"]))
            if not f.metadata["vary"]:
                assert np.all(values == f.default), (name, key)
            elif f.default:
                assert np.ptp(values) > 0.2 * spread * abs(f.default)
                assert np.all(np.abs(values / f.default - 1) <= spread * (1 + 1e-12))


def test_batches_of_different_families_stack_and_padding_is_neutral():
    plants = [systems.sample(name, key=jax.random.key(1), num=2) for name in ("dc_motor", "platoon", "cruise_control")]
    both = simulation.Problem.of(plants).continuous
    assert both.A.shape == (6, 12, 12)
    assert both.B.shape == (6, 12, 6)
    A, B = plants[1].matrices()
    np.testing.assert_array_equal(both.A[2:4, :11, :11], A)
    np.testing.assert_array_equal(both.B[2:4, :11], B)
    np.testing.assert_array_equal(both.A[2:4, 11], -np.eye(12)[[11, 11]])
    np.testing.assert_allclose(both.R[4:], np.broadcast_to(np.diag([25.0, 1, 1, 1, 1, 1]), (2, 6, 6)), rtol=1e-14)


def test_classes_with_as_many_parameters_are_different_trees():
    """Two dataclasses with as many leaves are one structure to jaxlib, and a compiled function takes one for
    the other now and then (seen: a pendulum's operating point returned for a circuit)."""
    trees = [jax.tree.structure(systems.make(name)) for name in BUILT_IN]
    assert not any(a == b for i, a in enumerate(trees) for b in trees[:i])


def test_gradients_reach_through_the_operating_point():
    for name, key in (("magnetic_levitation", "nominal_gap"), ("fixed_wing", "cruise"), ("two_link_arm", "mass2")):

        def entry(value, name=name, key=key):
            return jnp.sum(systems.make(name, **{key: value}).matrices()[0])

        value = float(systems.parameter_fields(systems.family(name))[key].default)
        step = 1e-4 * value
        slope = (entry(value + step) - entry(value - step)) / (2 * step)
        np.testing.assert_allclose(jax.grad(entry)(value), slope, rtol=1e-5)


def test_importing_is_quick():
    """Half a second beyond JAX is asked for: a few modules of each package, and none that takes long by itself."""
    code = (
        "import json, sys, jax, jax.numpy; before = set(sys.modules); import lqrlab.systems as s; "
        "names = s.names(); print(json.dumps([len(names), sorted(set(sys.modules) - before)]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    families, imported = json.loads(out)
    assert families == len(BUILT_IN)
    others = {name.split(".")[0] for name in imported} - {"lqrlab"} - sys.stdlib_module_names
    assert others <= MAY_IMPORT, others - MAY_IMPORT
    assert len(imported) < 150, len(imported)


@pytest.mark.parametrize("name", compiled_for(BUILT_IN))
def test_equations_are_what_is_computed(name):
    """The formulas, given numbers for their symbols, equal the program; and they can be printed."""
    plant = systems.make(name)
    lines = plant_card.equations_of(plant)
    assert all(latex2mathml.converter.convert(line) for line in lines)
    parameters, x_names, u_names = plant_card._symbols(plant)
    assert len({*parameters, *x_names, *u_names}) == len(parameters) + plant.n + plant.m
    (x,), (u,) = around(plant, np.random.default_rng(9), 1)
    half = plant.n // 2
    found, printed = plant_card.formulas(plant)
    if isinstance(plant, systems.Mechanical):
        q, v, push = jnp.asarray(x[:half]), jnp.asarray(x[half:]), jnp.asarray(u)
        expected = np.array([plant.kinetic(q, v), plant.potential(q), *plant.forces(q, v, push)])
    else:
        expected = plant.dynamics(x, u)
    values = sympy.lambdify(list(printed), list(found.values()))(*map(float, plant.parameters.values()), *x, *u)
    np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_long_equations_are_printed_with_letters_for_what_they_repeat():
    lines = plant_card.equations_of(systems.make("satellite_attitude"))
    assert r"z_{3} = - \omega_{\mathrm{orbit}}\,z_{2} + \omega_{\mathrm{pitch}}" in lines
    assert sum(line.count("z_{2}") for line in lines) >= 3  # one of them its definition
    assert max(map(len, lines)) < plant_card.LONGEST
    assert not any("z_" in line for line in plant_card.equations_of(systems.make("cart_pole")))


def test_formulas_of_branches_and_limits_and_what_has_none():
    def formula(fn, count=2):
        closed = jax.make_jaxpr(fn)(jnp.zeros(count))
        x = np.array(sympy.symbols(f"x:{count}", real=True))
        (out,) = jaxprs.evaluate(closed, [x], plant_card.algebra())
        return sympy.lambdify([list(x)], out.ravel().tolist())

    def fn(x):
        a, b = x
        limited = jnp.clip(jnp.where(a > b, jnp.maximum(a, 2 * b), jnp.tanh(b)), -1.5, 1.5)
        return jnp.array(
            [
                limited,
                jnp.arctan2(a, b) + jnp.where(a < b, 1.0, 0.0),
                jnp.sign(a) * jnp.exp(-jnp.abs(b)),
                -((a + b) ** 2),
            ]
        )

    computed = formula(fn)
    for x in ([0.3, -0.4], [-1.0, 0.7], [3.0, 2.0]):
        np.testing.assert_allclose(computed(x), fn(jnp.array(x)), rtol=1e-12)
    with pytest.raises(jaxprs.UnsupportedError, match="sort"):
        formula(jnp.sort)


def test_equations_read_like_a_textbook():
    lines = plant_card.equations_of(systems.make("pendulum"))
    assert lines[:3] == [
        r"T = \frac{m\,\ell^{2}\,\dot{\theta}^{2}}{2}",
        r"V = m\,\ell\,g\,\cos {\theta}",
        r"F_{\theta} = - b\,\dot{\theta} + \tau",
    ]
    lines = plant_card.equations_of(systems.make("dc_motor"))
    assert lines[2] == r"\dot{i} = \frac{- \mathrm{motor}_{\mathrm{constant}}\,\omega - R\,i + v}{L}"
    with pytest.raises(ValueError, match="this plant has none"):
        plant_card.equations_of(systems.from_matrices(np.eye(2), np.eye(2)))
