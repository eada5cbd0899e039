"""Engines: the same numbers as the reference scan, as a loop in NumPy, and as SciPy's integrator."""

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import BUILT_IN
from scipy.integrate import solve_ivp
from unrecognised import Unrecognised

from lqrlab import control, simulation, systems
from lqrlab.compute import jaxprs
from lqrlab.compute.jaxprs import componentwise, sincos
from lqrlab.simulation import Keep, Noise, constant_gain, loop
from lqrlab.simulation.noise import drawing

KEY = jax.random.key(3)


@pytest.fixture(autouse=True)
def engines_take_little_work(monkeypatch):
    """That of a test does not pay for the compilation of an engine."""
    monkeypatch.setattr(loop, "MUCH", 0)


def gains(plants):
    return control.lqrd(*plants.matrices(), *plants.weights(), plants.dt).K


def problem_and_starts(linear, limited, batched, dtype):
    """8 plants with 9 starts each, or one with 70."""
    plants = systems.sample("pendulum", key=KEY, num=8)
    plants = plants if batched else jax.tree.map(lambda a: a[0], plants)
    limits = (-0.5, 0.5) if limited else None  # which about half of the loops reach
    problem = simulation.Problem.of(
        plants, linear=linear, limits=limits, noise=[0.001, 0.02], substeps=2, optimum=False
    )
    return problem, gains(plants), 0.3 * plants.initial_state(key=KEY, num=9 if batched else 70).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_engines_are_the_reference_scan(linear, limited, batched, dtype, monkeypatch):
    problem, K, x0 = problem_and_starts(linear, limited, batched, dtype)
    problem = problem.disturbed()
    policy = simulation.LinearPolicy(K)
    fast = simulation.rollout(problem, policy, x0, 13)
    part = simulation.rollout(problem, policy, x0, 13, keep=("costs",))
    monkeypatch.setattr(loop, "MANY", 10**9)
    reference = simulation.rollout(problem, policy, x0, 13)
    assert bool(jnp.any(jnp.abs(reference.us) > 0.5)) is not limited
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-3, "atol": 1e-5}
    for name in ("ts", "xs", "us", "costs"):
        ours, expected = getattr(fast, name), getattr(reference, name)
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(ours, expected, **tolerance, err_msg=name)
    np.testing.assert_allclose(part.costs, fast.costs, **tolerance)
    assert part.xs is part.us is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_mode_whose_powers_overflow_but_that_no_start_excites_stays_at_rest(dtype):
    problem = simulation.Problem.from_matrices(
        np.diag([1e10, 0.5]), np.zeros((2, 1)), np.eye(2), [[1.0]], optimum=False
    )
    run = simulation.rollout(problem, np.zeros((1, 2)), np.tile(np.array([0, 1], dtype), (5000, 1)), 100)
    np.testing.assert_array_equal(run.xs[0], np.stack([np.zeros(101), 0.5 ** np.arange(101.0)], 1).astype(dtype))


@pytest.mark.parametrize(("linear", "num_steps", "engine"), [(True, 5, True), (True, 4, False), (False, 5, False)])
def test_linear_loops_take_the_engine_sooner(linear, num_steps, engine, monkeypatch):
    """From 0.4 of the steps of nonlinear ones: 350 of 800."""
    monkeypatch.setattr(loop, "MUCH", 800)
    taken = mock.Mock(side_effect=loop.loops_of)
    monkeypatch.setattr(loop, "loops_of", taken)
    problem, K, x0 = problem_and_starts(linear, False, False, np.float64)
    problem = dataclasses.replace(problem.disturbed(), substeps=1)
    simulation.rollout(problem, simulation.LinearPolicy(K), x0, num_steps)
    assert taken.called is engine


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("linear", [True, False])
def test_disturbed_loops_follow_the_noise_that_is_drawn(linear, batched, dtype):
    """Step by step with the same numbers, drawn in single precision by each loop's index and the time."""
    problem, K, x0 = problem_and_starts(linear, True, batched, dtype)
    disturbed = {"key": KEY, "sensor_noise": [0.001, 0.01], "excitation": 0.05}
    run = simulation.rollout(problem, simulation.LinearPolicy(K), x0, 60, **disturbed)
    count, dtype = x0.size // 2, x0.dtype
    spread = Noise(jnp.array([[0.001], [0.02]]), jnp.array([[0.001], [0.01]]), jnp.array([[0.05]]))
    draws = drawing(KEY, jnp.arange(count), spread, dtype)(60, jnp.int32(0))
    push, sense, excite = (jnp.moveaxis(a, -1, 1).reshape(60, *x0.shape[:-1], -1) for a in draws)
    np.testing.assert_allclose(run.seen, run.xs[..., :-1, :] + jnp.moveaxis(sense, 0, -2), rtol=1e-5, atol=1e-7)
    problem = jax.tree.map(lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, problem)
    hold, policy = jax.jit(lambda x, u: problem.step(x, u)), simulation.LinearPolicy(K)
    x, tolerance = x0, {"rtol": 1e-6, "atol": 1e-6} if dtype == jnp.float64 else {"rtol": 1e-2, "atol": 1e-4}
    for t in range(60):
        u = problem.saturate(policy(None, x + sense[t])[1].astype(dtype) + excite[t])
        after, cost = hold(x, u)
        np.testing.assert_allclose(run.us[..., t, :], u, **tolerance)
        np.testing.assert_allclose(run.costs[..., t], cost, **tolerance)
        x = after + push[t]
        np.testing.assert_allclose(run.xs[..., t + 1, :], x, **tolerance)


@pytest.mark.parametrize("limit", [None, 0.02])
def test_linear_loops_are_the_recursion_in_numpy(limit, monkeypatch):
    monkeypatch.setattr(constant_gain, "CALL", 10_000)  # several blocks, the last one overlapping
    plants = systems.sample("quarter_car", key=KEY, num=25)
    K, x0 = gains(plants), plants.initial_state(key=KEY, num=7)
    _, u_eq = plants.equilibrium()
    limits = None if limit is None else (np.asarray(u_eq)[0] - limit, np.asarray(u_eq)[0] + limit)
    run = simulation.rollout(plants, simulation.LinearPolicy(K), x0, 30, linear=True, limits=limits)
    run = jax.tree.map(np.asarray, run)
    A, B, Q, R, N = (np.asarray(a) for a in control.discretize(*plants.matrices(), *plants.weights(), plants.dt))
    x, gain = np.asarray(x0), np.asarray(K)
    for t in range(30):
        u = -np.einsum("vmn,vsn->vsm", gain, x)
        u = u if limit is None else np.clip(u, -limit, limit)
        cost = sum(np.einsum("vsi,vij,vsj->vs", a, M, b) for a, M, b in ((x, Q, x), (u, R, u), (x, 2 * N, u)))
        scale = np.abs(run.xs).max((0, 1, 2))
        np.testing.assert_allclose(run.xs[:, :, t] / scale, x / scale, atol=1e-12)
        np.testing.assert_allclose(run.us[:, :, t], u, rtol=1e-9, atol=1e-12 * np.abs(run.us).max())
        np.testing.assert_allclose(run.costs[:, :, t], cost, rtol=1e-9, atol=1e-12 * np.abs(run.costs).max())
        x = np.einsum("vij,vsj->vsi", A, x) + np.einsum("vim,vsm->vsi", B, u)


@pytest.mark.parametrize("name", ["two_link_arm", "planar_quadrotor", "quadruple_tank"])
def test_nonlinear_loops_and_their_cost_follow_solve_ivp(name):
    """Of which the second rests on its inputs, and the third has levels that are not zero either."""
    plants = systems.sample(name, key=KEY, num=2)
    K, x0 = gains(plants), plants.initial_state(key=KEY, num=40)
    run = simulation.rollout(plants, simulation.LinearPolicy(K), x0, 3, substeps=30)
    (x_eq, u_eq), (Q, R) = plants.equilibrium(), plants.weights()
    one = jax.tree.map(lambda a: a[1], plants)
    field = jax.jit(one.dynamics)
    x, price = np.asarray(x0[1, 37]), 0.0
    for t in range(3):
        u = -np.asarray(K[1]) @ x

        def rates(_, z, u=u):
            d = z[:-1]
            return np.append(field(d + x_eq[1], u + u_eq[1]), d @ Q[1] @ d + u @ R[1] @ u)

        end = solve_ivp(rates, (0, float(one.dt)), np.append(x, price), rtol=1e-10, atol=1e-12).y[:, -1]
        x, price = end[:-1], end[-1]
        np.testing.assert_allclose(run.xs[1, 37, t + 1], x, rtol=1e-6, atol=1e-8 * np.abs(x0).max())
    np.testing.assert_allclose(run.cost[1, 37], price, rtol=1e-6)


def test_each_loop_has_noise_of_its_own_whatever_the_blocks(monkeypatch):
    plant = systems.from_matrices([[-1.0]], [[1.0]], Q=[[1.0]], R=[[1.0]], dt=0.1)
    still = simulation.LinearPolicy(jnp.zeros((1, 1)))

    def run(**noise):
        return simulation.rollout(plant, still, jnp.zeros((4000, 1)), 40, linear=True, key=KEY, **noise)

    pushed = run(excitation=0.5).us
    assert abs(float(pushed.std()) - 0.5) < 5e-3
    assert np.abs(np.corrcoef(pushed[:50, :, 0]) - np.eye(50)).max() < 0.8
    A = float(np.exp(-0.1))
    moved = run(noise=0.3).xs[..., 0]
    np.testing.assert_allclose((moved[:, 1:] - A * moved[:, :-1]).std(), 0.3, rtol=0.01)
    monkeypatch.setattr(constant_gain, "CALL", 30_000)
    np.testing.assert_array_equal(run(excitation=0.5).us, pushed)


def test_many_loops_of_a_plant_share_its_matrices_whatever_the_blocks(monkeypatch):
    plants = systems.sample("cart_pole", key=KEY, num=3)
    policy, x0 = simulation.LinearPolicy(gains(plants)), plants.initial_state(key=KEY, num=101)

    def run(linear):
        options = {"linear": linear, "key": KEY, "excitation": 0.1, "noise": 0.01, "limits": (-4.0, 4.0)}
        return simulation.rollout(plants, policy, x0, 20, **options)

    runs = [run(linear) for linear in (True, False)]
    monkeypatch.setattr(constant_gain, "SHARED", 10**9)  # blocks reach over plants
    monkeypatch.setattr(constant_gain, "CALL", 10_000)
    # noise is in single precision
    for linear, one in zip((True, False), runs):
        np.testing.assert_allclose(run(linear).xs, one.xs, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(run(linear).costs, one.costs, rtol=1e-6, atol=1e-6)


# families in whose dynamics all operations of the catalogue occur
OPERATIONS = (
    *("planar_biped", "mass_train", "cable_robot", "vehicle_lateral", "platoon", "fixed_wing_lateral"),
    "stirred_tank_reactor",
)


ANY_NUMBER = jaxprs.Algebra(lambda _: 0.0, dict.fromkeys(jaxprs._ARRAYS.functions, lambda *_: 0.0))


def operations(jaxpr):
    found = set()
    for e in jaxpr.eqns:
        found |= {(e.primitive.name, e.params.get("y"))}
        inner = jaxprs._inner(e)
        found |= operations(inner.jaxpr) if inner else set()
    return found


@pytest.mark.matrix
def test_each_operation_of_the_catalogue_has_an_elementwise_form_and_is_tried_below():
    found = {}
    for name in BUILT_IN:
        plant = systems.make(name)
        x, u = jnp.zeros(plant.n), jnp.zeros(plant.m)
        closed = jax.make_jaxpr(lambda plant, x, u: plant.dynamics(x, u))(plant, x, u)
        numbers = [np.zeros(v.shape, object) for v in closed.in_avals]
        jaxprs.evaluate(closed, numbers, ANY_NUMBER)  # raises where there is no form
        found[name] = operations(closed.jaxpr)
    assert set().union(*found.values()) == set().union(*(found[name] for name in OPERATIONS))


@pytest.mark.parametrize("name", OPERATIONS)
def test_components_of_a_familys_dynamics_are_its_dynamics(name):
    plant = systems.make(name)
    x_eq, u_eq = (np.asarray(a) for a in plant.equilibrium())
    random = np.random.default_rng(0)
    x = x_eq[:, None] + random.normal(size=(plant.n, 3)) * np.asarray(plant.scales[0])[:, None] / 4
    u = u_eq[:, None] + random.normal(size=(plant.m, 3)) * np.asarray(plant.scales[1])[:, None] / 4
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), plant)
    many = componentwise(lambda plant, x, u: plant.dynamics(x, u), shapes, x_eq, u_eq)
    with jax.disable_jit(), mock.patch("jax.vmap", side_effect=AssertionError("not componentwise")):
        out = many(jax.tree.map(lambda a: jnp.asarray(a)[..., None], plant), jnp.asarray(x), jnp.asarray(u))
    for i in range(3):
        expected = plant.dynamics(x[:, i], u[:, i])
        np.testing.assert_allclose(out[:, i], expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_a_state_that_diverges_is_seen_although_what_it_does_not_touch_stays_finite():
    """ẋ₁ = x₁³ leaves at t = 1/2, ẋ₂ = −x₂ does not; their coupling is a constant 0, and 0·inf is NaN step by step."""
    apart = jnp.array([[0.0, 0.0], [0.0, -1.0]])
    plant = systems.from_dynamics(
        lambda x, u: apart @ x + jnp.array([1.0, 0.0]) * (x[0] ** 3 + u[0]),
        x_eq=[0, 0], u_eq=[0], Q=np.diag([0.0, 1.0]), R=[[1.0]], dt=0.1,
    )  # fmt: skip
    few, many = (simulation.rollout(plant, simulation.no_control(plant), np.ones((num, 2)), 20) for num in (1, 100))
    first = [int(np.argmin(np.isfinite(run.xs[0, :, 0]))) for run in (few, many)]
    assert 4 < first[0] == first[1] < 10
    assert not np.isfinite(many.xs[:, first[1] :, 0]).any(), "a state never comes back from there"
    assert not np.isfinite(many.cost).any(), "not even where the state that is lost costs nothing"
    np.testing.assert_allclose(many.xs[:, -1, 1], np.exp(-2.0), rtol=1e-5)


def test_a_loop_inside_a_function_is_mapped_over():
    def repeated(x):
        return jax.lax.fori_loop(0, 3, lambda _, v: jnp.sin(v) + x, x)

    x = np.random.default_rng(0).normal(size=(4, 5))
    expected = np.stack([repeated(column) for column in x.T], axis=-1)
    np.testing.assert_allclose(componentwise(repeated, x[:, 0])(jnp.asarray(x)), expected, rtol=1e-12)


def test_sine_and_cosine_are_numpys():
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-r, r, 20_000) for r in (1e-3, 1.0, 50.0, 1e4, 1e6)])
    x = np.concatenate([x, np.arange(-40, 41) * np.pi / 4, [0.0, -0.0]])
    s, c = jax.jit(sincos)(x)
    np.testing.assert_allclose(s, np.sin(x), atol=3e-16)
    np.testing.assert_allclose(c, np.cos(x), atol=3e-16)
    assert not np.isfinite(sincos(jnp.array([np.inf, np.nan]))[0]).any()


def test_an_accelerators_numbers_are_a_cpus(monkeypatch):
    plants = systems.sample("cart_pole", key=KEY, num=30)
    policy, x0 = simulation.LinearPolicy(gains(plants)), plants.initial_state(key=KEY, num=3)
    expected = simulation.rollout(plants, policy, x0, 10, linear=True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    got = simulation.rollout(plants, policy, x0, 10, linear=True)
    np.testing.assert_allclose(got.xs, expected.xs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.costs, expected.costs, rtol=1e-9)


@pytest.mark.parametrize("ways", [{"linear": True}, {"linear": True, "limits": (-9.0, 9.0)}, {}])
def test_half_precision_that_numpy_has_not_stays_what_it_is(ways):
    plant = systems.make("pendulum")
    policy, x0 = simulation.LinearPolicy(gains(plant)), jnp.full((70, 2), 0.1, jnp.bfloat16)
    many, few = (simulation.rollout(plant, policy, x, 5, **ways) for x in (x0, x0[:1]))
    assert many.xs.dtype == many.costs.dtype == jnp.bfloat16
    np.testing.assert_array_equal(many.xs[:1], few.xs)


@pytest.mark.parametrize("linear", [True, False])
def test_who_looks_for_nan_finds_it_although_the_program_has_run_before(linear):
    plant = systems.from_dynamics(
        lambda x, u: x * jnp.array([1.0, -1.0]) + u, x_eq=[0, 0], u_eq=[0], Q=np.eye(2), R=[[1.0]], dt=300.0
    )

    def run():
        still = simulation.no_control(plant)
        return simulation.rollout(plant, still, jnp.full((70, 2), 1e200), 30, linear=linear)

    assert np.isnan(run().xs).any()
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run()


@pytest.mark.parametrize("linear", [True, False])
def test_a_gain_for_each_loop_is_that_loops_gain(linear, monkeypatch):
    plants = systems.sample("pendulum", key=KEY, num=8)
    K = gains(plants)[:, None] * jnp.linspace(0.8, 1.2, 9)[None, :, None, None]
    x0 = 0.3 * plants.initial_state(key=KEY, num=9)
    ask = [plants, simulation.LinearPolicy(K), x0, 12]
    many = simulation.rollout(*ask, linear=linear)
    monkeypatch.setattr(loop, "MANY", 10**9)
    few = simulation.rollout(*ask, linear=linear)
    np.testing.assert_allclose(many.xs, few.xs, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(many.cost, few.cost, rtol=1e-9)


def test_gains_that_do_not_lead_the_states_are_refused():
    plant = systems.make("pendulum")
    K = jnp.stack([gains(plant)] * 2)
    for num in (6, 100):
        with pytest.raises(ValueError, match="policy"):
            simulation.rollout(plant, simulation.LinearPolicy(K), jnp.ones((num, 2)), 5)


def test_within_a_trace_many_loops_are_simulated_as_few_are():
    plant = systems.make("pendulum")
    policy, x0 = simulation.LinearPolicy(gains(plant)), 0.1 * jnp.ones((64, 2))

    def cost(key, size=0.1):
        return simulation.rollout(plant, policy, x0, 5, linear=True, key=key, excitation=size).cost.sum()

    keys = jax.random.split(KEY, 2)
    one = jax.jit(cost)(keys[1])
    np.testing.assert_allclose(jax.vmap(cost)(keys)[1], one, rtol=1e-9)
    assert np.isfinite(jax.grad(lambda size: cost(KEY, size))(0.1))


def test_whole_numbers_and_choices_among_three_are_left_to_vmap():
    functions = [
        lambda x: x * ((jnp.floor(x[0] * 10).astype(jnp.int32) & 5).astype(x.dtype) + 0.5),
        lambda x: x * jax.lax.div(jnp.floor(x[0] * 10).astype(jnp.int32), jnp.int32(3)).astype(x.dtype),
        lambda x: jax.lax.select_n(jnp.full(x.shape, 2, jnp.int32), x, 2 * x, 3 * x),
        lambda x: jax.lax.round(x + 0.5),
    ]
    x = np.array([[0.7, -0.3], [0.5, 1.5]])
    for fn in functions:
        expected = np.stack([fn(jnp.asarray(column)) for column in x.T], axis=-1)
        np.testing.assert_allclose(componentwise(fn, x[:, 0])(jnp.asarray(x)), expected, rtol=1e-12)


KEEP = Keep(
    points=lambda xs, us, costs, t, extra: {"x": xs * extra[None]},
    intervals=lambda xs, us, costs, t, extra: {"u": us, "paid": costs},
    sums=lambda xs, us, costs, t, extra: {"cost": costs, "late": jnp.where(t[:, None] >= 90, costs, 0)},
    peaks=lambda xs, us, costs, t, extra: {"peak": jnp.abs(xs[:, 0])},
)


@pytest.mark.parametrize("linear", [True, False])
def test_what_is_recorded_is_that_of_whole_trajectories(linear, monkeypatch):
    """Of the reference scan; by an engine, of segments, and on an accelerator."""
    monkeypatch.setattr(constant_gain, "CALL", 20_000)  # several blocks, the last one overlapping
    plants = systems.sample("pendulum", key=KEY, num=30)
    K, x0 = gains(plants), plants.initial_state(key=KEY, num=5)
    problem, extra = (
        simulation.Problem.of(plants, linear=linear, limits=(-9.0, 9.0)),
        jnp.linspace(1, 2, 60).reshape(30, 2),
    )

    def record(keep=KEEP):
        return simulation.record(problem, simulation.LinearPolicy(K), x0, 130, keep, extra=extra)

    whole = record()
    shapes = {"x": (131, 2), "u": (130, 1), "paid": (130,), "cost": (), "late": (), "peak": (), "end": (2,)}
    assert {name: a.shape for name, a in whole.items()} == {name: (150, *shape) for name, shape in shapes.items()}
    run = simulation.rollout(problem, Unrecognised(K), x0, 130)
    np.testing.assert_allclose(whole["u"].reshape(run.us.shape), run.us, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(whole["paid"].reshape(run.costs.shape), run.costs, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(whole["cost"], run.cost.ravel(), rtol=1e-9)
    np.testing.assert_allclose(whole["late"], run.costs[..., 90:].sum(-1).ravel(), rtol=1e-9)
    np.testing.assert_allclose(whole["peak"], jnp.abs(run.xs[..., 0]).max(-1).ravel(), rtol=1e-9)
    np.testing.assert_allclose(whole["end"], run.xs[..., -1, :].reshape(-1, 2), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(whole["x"].reshape(run.xs.shape), run.xs * extra[:, None, None], rtol=1e-8, atol=1e-12)
    segments = KEEP._replace(starts=(0, 44, 110), length=20)
    some = record(segments)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    accelerated = record(segments)
    for row, first in enumerate((0, 44, 110)):
        np.testing.assert_array_equal(some["x"][:, row], whole["x"][:, first : first + 21])
        for name in ("u", "paid"):
            np.testing.assert_array_equal(some[name][:, row], whole[name][:, first : first + 20])
    for name in shapes:
        np.testing.assert_allclose(accelerated[name], some[name], rtol=1e-8, atol=1e-12, err_msg=name)
    for name in ("cost", "late", "peak", "end"):
        np.testing.assert_array_equal(some[name], whole[name])
