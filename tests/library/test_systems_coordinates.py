"""Scaled, padded coordinates: there and back, neutral to every gain, NumPy on the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

from lqrlab import control, systems
from lqrlab.systems import Coordinates

BATCH = {"one": (), "batch": (3,), "grid": (2, 3)}


def coordinates_of(shape, kind=jnp):
    """Coordinates that differ from plant to plant, so that a mixed-up batch axis shows."""
    rng = np.random.default_rng(1)
    return Coordinates.from_scales(
        kind.asarray(rng.uniform(0.1, 10.0, (*shape, 8))), kind.asarray(rng.uniform(0.1, 10.0, (*shape, 2)))
    )


@pytest.mark.parametrize("kind", [np, jnp], ids=["numpy", "jax"])
@pytest.mark.parametrize("extra", [(), (4,), (5, 4)], ids=["vector", "many", "rollouts"])
@pytest.mark.parametrize("shape", BATCH.values(), ids=BATCH)
def test_signals_there_and_back(shape, extra, kind):
    c, rng = coordinates_of(shape, kind), np.random.default_rng(2)
    for size, wide, scale, there in (
        (8, systems.N_MAX, c.scale_x, c.scale_state),
        (2, systems.M_MAX, c.scale_u, c.scale_input),
    ):
        x = kind.asarray(rng.normal(size=(*shape, *extra, size)))
        scaled = there(x)
        assert scaled.shape == (*shape, *extra, wide)
        assert not np.any(scaled[..., size:])
        one_scale = np.reshape(scale[..., :size], (*shape, *(1,) * len(extra), size))
        np.testing.assert_allclose(scaled[..., :size] * one_scale, x, rtol=1e-14)
    np.testing.assert_allclose(c.unscale_input(scaled, 2), x, rtol=1e-14)


@pytest.mark.parametrize("shape", BATCH.values(), ids=BATCH)
def test_a_gain_means_the_same_in_scaled_coordinates(shape):
    c, rng = coordinates_of(shape), np.random.default_rng(3)
    K, x = (jnp.asarray(rng.normal(size=(*shape, *s))) for s in ((2, 8), (8,)))
    u = -jnp.einsum("...mn,...n->...m", K, x)
    scaled = -jnp.einsum("...mn,...n->...m", c.scale("K", K), c.scale_state(x))
    np.testing.assert_allclose(c.unscale_input(scaled, 2), u, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(c.unscale("K", c.scale("K", K), 8, 2), K, rtol=1e-13)
    assert not np.any(c.scale("K", K)[..., 2:, :])


def scaled_plant(c, plant):
    wide = systems.pad(plant)
    return systems.Linear(**{name: c.scale(name, getattr(wide, name)) for name in "ABQR"}, dt=plant.dt)


def test_scaling_and_padding_change_no_gain():
    # two inputs and cross-coupled states, along two batch axes
    batch = systems.linearise(systems.sample("ball_and_plate", key=jax.random.key(0), num=6, spread=0.3))
    plant = jax.tree.map(lambda a: a.reshape(2, 3, *a.shape[1:]), batch)
    c = coordinates_of((2, 3))
    scaled = scaled_plant(c, plant)
    assert (scaled.n, scaled.m, scaled.batch_shape) == (systems.N_MAX, systems.M_MAX, (2, 3))
    plain, wide = (control.lqrd(p.A, p.B, p.Q, p.R, p.dt) for p in (plant, scaled))
    np.testing.assert_allclose(c.unscale("K", wide.K, 8, 2), plain.K, rtol=1e-7, atol=1e-9)
    units = c.scale_x[..., :8, None] * c.scale_x[..., None, :8]
    np.testing.assert_allclose(wide.P[..., :8, :8], plain.P * units, rtol=1e-7, atol=1e-9)
    # nothing leaks into the padding, nor out of it
    np.testing.assert_allclose(c.zero_padding(wide.K, "u", "x"), wide.K, atol=1e-12)
    assert not np.any(wide.P[..., :8, 8:])


def test_masks_and_scales_say_what_exists():
    c = Coordinates.of(systems.sample("dc_motor", key=jax.random.key(0), num=2))
    np.testing.assert_array_equal(c.state_mask, [[1.0] * 3 + [0.0] * 9] * 2)
    np.testing.assert_array_equal(c.input_mask, [[1.0] + [0.0] * 5] * 2)
    np.testing.assert_array_equal(c.scale_x, [[0.5, 1.0, 5.0] + [1.0] * 9] * 2)
    np.testing.assert_array_equal(c.scale_u, [[12.0] + [1.0] * 5] * 2)
    full = jnp.ones((2, 12, 6))
    np.testing.assert_array_equal(c.zero_padding(full, "x", "u"), np.pad(np.ones((2, 3, 1)), ((0, 0), (0, 9), (0, 5))))


def test_bryson_weights_are_the_identity_in_scaled_coordinates():
    plants = systems.sample("cart_pole", key=jax.random.key(0), num=2)
    scaled = scaled_plant(Coordinates.of(plants), systems.linearise(plants))
    np.testing.assert_allclose(scaled.Q, [np.diag([1.0] * 4 + [0.0] * 8)] * 2, atol=1e-14)
    np.testing.assert_allclose(scaled.R, [np.eye(6)] * 2, atol=1e-14)


def test_a_plant_of_weights_gets_its_scales_from_them():
    plant = systems.from_matrices(-np.eye(2), np.eye(2), Q=np.diag([4.0, 0.0]), R=np.diag([1.0, 25.0]))
    c = Coordinates.of(plant)
    np.testing.assert_array_equal(c.scale_x[:2], [0.5, 1.0])
    np.testing.assert_array_equal(c.scale_u[:2], [1.0, 0.2])


def test_numpy_stays_numpy_and_jax_stays_jax():
    for kind, other in ((np, jnp), (jnp, np)):
        x, K = (kind.ones(s) for s in ((3, 8), (3, 2, 8)))
        for c in (coordinates_of((3,), kind), coordinates_of((3,), other)):  # whatever holds the scales
            wanted = np.ndarray if kind is np else jax.Array
            results = [c.scale_state(x), c.scale("K", K), c.zero_padding(K, "u", "x")]
            results += [c.unscale("K", K, 8, 2), c.scale_input(x[:, :2]), c.unscale_input(x, 2)]
            assert all(isinstance(a, wanted) for a in results)
    plant = systems.linearise(systems.sample("ball_and_plate", key=jax.random.key(0), num=3))
    plant = jax.tree.map(np.asarray, plant)
    assert all(isinstance(a, np.ndarray) for a in jax.tree.leaves(scaled_plant(coordinates_of((3,)), plant)))


def test_they_work_inside_jit_and_vmap():
    c, x = coordinates_of((3,)), jnp.ones((3, 8))
    there = jax.vmap(lambda c, x: c.scale_state(x))
    np.testing.assert_array_equal(jax.jit(there)(c, x), c.scale_state(x))
    constant = np.ones((3, 8))  # known when traced, in coordinates that are not
    np.testing.assert_array_equal(jax.jit(lambda c: c.scale_state(constant))(c), c.scale_state(x))


def test_too_large_a_plant_is_refused():
    refused("13 states and 1 inputs does not fit into 12 and 6", Coordinates.from_scales, np.ones(13), np.ones(1))
    plant = systems.from_matrices(-np.eye(3), np.eye(3))
    refused("3 states and 3 inputs does not fit into 12 and 2", systems.pad, plant, m=2)
    refused("does not fit into 2 and 6", systems.pad, plant, n=2)
