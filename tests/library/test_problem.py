"""The three nouns: problems against SciPy's sampling and designs, every controller in everything that takes one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy_oracle
from refusals import refused

from lqrlab import classical, control, dataset, evaluation, learning, predictive, simulation, systems, unknown
from lqrlab.extensions import environments
from lqrlab.simulation import LinearPolicy, Problem, bind
from lqrlab.systems import M_MAX, N_MAX
from lqrlab.workbench import widgets

KEY = jax.random.key(0)
pytestmark = pytest.mark.filterwarnings("ignore:limits. actions without bounds")


def oracle(plant, dt=None, weights=None):
    """A, B, Q, R, N, K, P of one plant by SciPy."""
    matrices = [np.asarray(a) for a in (*plant.matrices(), *(weights or plant.weights()))]
    A, B, Q, R, N = scipy_oracle.van_loan(*matrices, float(plant.dt if dt is None else dt))
    return A, B, Q, R, N, *scipy_oracle.gain(A, B, Q, R, N)


def close(problem, expected):
    for name, a in zip("ABQRNKP", expected):
        assert scipy_oracle.relative(getattr(problem, name), a) < 1e-9, name


# How it is made -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [None, 3, 40])
def test_a_problem_is_sampled_and_solved_as_scipy_does(num):
    """One plant, a few, and so many that they are worked out together in scaled, padded coordinates."""
    plant = systems.make("quarter_car") if num is None else systems.sample("quarter_car", key=KEY, num=num)
    problem = Problem.of(plant, dt=0.004, weights=(np.diag([1e4, 3.0, 1e4, 2.0]), [[1e-6]]))
    for i in (None,) if num is None else (0, num - 1):
        one, at = (plant, problem) if i is None else (plant[i], problem[i])
        close(at, oracle(one, 0.004, (np.diag([1e4, 3.0, 1e4, 2.0]), np.array([[1e-6]]))))


def test_plants_of_many_families_become_one_problem():
    plants = [systems.sample("pendulum", key=KEY, num=2), systems.make("quadrotor"), systems.make("dc_motor")]
    problem = Problem.of(plants)
    assert (problem.batch_shape, problem.n, problem.m) == ((4,), N_MAX, M_MAX)
    sizes = [(2, 1), (2, 1), (12, 4), (systems.make("dc_motor").n, 1)]
    for i, plant in enumerate([*plants[0], *plants[1:]]):
        n, m = sizes[i]
        A, _B, _Q, _R, _N, K, P = oracle(plant)
        one = problem[i]
        assert scipy_oracle.relative(one.K[:m, :n], K) < 1e-8
        assert scipy_oracle.relative(one.P[:n, :n], P) < 1e-8
        assert scipy_oracle.relative(one.A[:n, :n], A) < 1e-10
        for a in (one.A[n:], one.A[:, n:], one.B[n:], one.B[:, m:], one.K[m:], one.K[:, n:], one.P[n:], one.Q[:, n:]):
            assert not np.any(a)  # padding stands still, costs nothing and has no gain
        assert (one.coordinates.state_mask.sum(), one.coordinates.input_mask.sum()) == (n, m)


def test_a_scaled_problem_is_the_same_problem():
    """Costs, inputs and sizes do not depend on the units that they are counted in."""
    plant = systems.sample("cart_pole", key=KEY, num=3)
    problem = Problem.of(plant, linear=True, limits=(-4.0, 3.0), noise=[0.1, 0.2, 0.3, 0.4], excitation=0.5)
    scaled = problem.scaled()
    x = plant.initial_state(key=KEY, num=5)
    there, scale = problem.coordinates.scale_state, problem.coordinates.scale_x[:, None, :4]
    np.testing.assert_allclose(scaled.optimal_cost(there(x)), problem.optimal_cost(x), rtol=1e-12)
    u = jnp.full((3, 5, 1), 7.0)
    moved, paid = scaled.step(there(x), problem.coordinates.scale_input(u))
    expected, cost = problem.step(x, u)
    np.testing.assert_allclose(moved[..., :4] * scale, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(paid, cost, rtol=1e-10)  # u is cut to 3 in both
    np.testing.assert_allclose(scaled.noise.state[:, :4] * problem.scale_x, problem.noise.state, rtol=1e-12)
    np.testing.assert_allclose(scaled.noise.input[:, :1] * problem.scale_u, problem.noise.input, rtol=1e-12)
    assert scaled.scaled() is scaled
    assert np.all(np.asarray(scaled.scale_x) == 1)


def test_several_sample_times_make_a_batch_of_one_plant():
    plant, times = systems.make("cart_pole"), np.array([0.01, 0.02, 0.05])
    problem = Problem.of(plant, dt=times)
    for i, dt in enumerate(times):
        close(problem[i], oracle(plant, dt))
    assert problem.plant.batch_shape == (3,)
    with pytest.raises(ValueError, match=r"dt: expected one sample time, or one for each plant of the batch \(4,\)"):
        Problem.of(systems.sample("cart_pole", key=KEY, num=4), dt=times)


def test_where_there_is_no_optimum_one_plant_says_why_and_a_batch_has_no_numbers():
    A = np.array([[[1.0, 0.0], [0.0, -1.0]], [[-1.0, 0.0], [0.0, -1.0]]])
    plants = systems.from_matrices(A, np.array([[[0.0], [1.0]]] * 2), dt=0.1)
    problem = Problem.of(plants)
    assert problem.has_optimum.tolist() == [False, True]
    assert np.isnan(problem.K[0]).all()
    assert np.isnan(problem.P[0]).all()
    refused("plants: 1 of 2 have no stabilizing optimum to compare with", problem.solved)
    refused(r"mode at \+1 rad/s is not stabilizable: no input moves it", Problem.of, plants[0])
    assert Problem.of(plants[0], optimum=False).K is None  # can be run all the same


def test_a_problem_inside_a_program_is_the_one_outside():
    def cost(mass):
        problem = Problem.of(systems.make("pendulum", mass=mass), limits=(-1.0, 1.0), linear=True)
        return problem.optimal_cost(jnp.array([0.1, 0.0]))

    outside = float(cost(0.7))
    assert float(jax.jit(cost)(0.7)) == pytest.approx(outside, rel=1e-12)
    numeric = (float(cost(0.7 + 1e-5)) - float(cost(0.7 - 1e-5))) / 2e-5
    assert float(jax.jit(jax.grad(cost))(0.7)) == pytest.approx(numeric, rel=1e-6)


def test_what_is_told_is_all_or_units_and_noise():
    problem = Problem.of(systems.make("cart_pole"), linear=True, limits=(-10.0, 4.0))
    problem = problem.disturbed(noise=0.01 * problem.scale_x, sensor_noise=0.02 * problem.scale_x)
    told, units = problem.told(), problem.told("units")
    assert float(units.noise) == pytest.approx(0.01)
    assert float(units.sensor_noise) == pytest.approx(0.02)
    assert float(units.limit) == pytest.approx(4.0 / float(problem.scale_u[0]))
    assert units.A is None
    position, rate = (float(problem.scale_x[i]) for i in (0, 2))
    assert float(units.steps[0, 2]) == pytest.approx(0.02 * rate / position)
    np.testing.assert_array_equal(told.A, problem.scaled().A)
    hidden = problem.hidden()
    assert all(np.isnan(getattr(hidden, name)).all() for name in "ABQRNKP")
    assert hidden.plant is None
    assert hidden.continuous is None
    np.testing.assert_array_equal(hidden.told("units").steps, units.steps)
    refused("what: expected one of everything, units, but found 'all'", problem.told, "all")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: Problem.of([]), "plants: expected a plant, or a list of at least one"),
        (lambda p: Problem.of([p], weights=p.weights()), "weights, N: expected those of one plant"),
        (lambda p: Problem.of(p, N=np.zeros((2, 1))), "N: a cross weight needs the linearised plant"),
        (lambda p: Problem.of(p, limits=(1.0, 2.0)), "could not even hold the operating point"),
        (lambda p: Problem.of(p, weights=(-np.eye(2), np.eye(1))), "Q: expected .*positive semidefinite"),
        (lambda p: jax.jit(lambda p: Problem.of([p]).A)(p), "plants: a list of plants is padded"),
        (lambda p: len(Problem.of(p)), "one problem has no length"),
        *((lambda p, dt=dt: Problem.from_matrices(*SAMPLED[:4], dt=dt), "dt: expected") for dt in (np.nan, 0, [1, 2])),
        (lambda p: Problem.from_matrices(*SAMPLED[:4], limits=(np.nan, 1.0)), "limits.u: found NaN"),
        (lambda p: Problem.from_matrices(*SAMPLED[:4], limits=(-1.0, np.nan)), "limits.u: found NaN"),
    ],
)
def test_what_makes_no_problem_is_refused_in_words(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(systems.make("pendulum"))


# Every controller, everywhere -----------------------------------------------------------------------------------

PLANT = systems.make("pendulum")
SAMPLED = control.discretize(*PLANT.matrices(), *PLANT.weights(), PLANT.dt)
K = np.asarray(control.dlqr(*SAMPLED).K)


def network(kind, **settings):
    return learning.models.build(learning.ModelConfig(kind=kind, hidden=8, window=4, **settings))


def agent():
    return environments.AgentPolicy.of(
        environments.make(PLANT, linear=True, limits=None), lambda obs: -obs @ K.T.astype(obs.dtype)
    )


class Model:
    """What a library's model has that was trained in an environment of ours and runs on the host."""

    def __init__(self):
        core = environments.make(PLANT, linear=True, limits=None)
        self.venv = type("Vector", (), {"envs": [type("Env", (), {"unwrapped": type("Core", (), {"core": core})})]})

    def get_env(self):
        return self.venv

    def predict(self, obs, deterministic):
        assert obs.ndim == 2, "libraries take a batch with one axis"
        return (-obs @ K.T).astype(obs.dtype), None


def lqg():
    A, B, Q, R, N = SAMPLED
    return control.lqg(A, B, [[1.0, 0.0]], Q, R, 1e-4 * np.eye(2), [[1e-4]], N, discrete=True)


def lqi():
    A, B, Q, R, N = SAMPLED
    return control.lqi(A, B, [[1.0, 0.0]], Q, R, Q[:1, :1], N, discrete=True)


def pid():
    """What the regulator asks for at rest, of the angle alone and its derivative."""
    kp, kd = K[0]
    one = {"filter_time": 2 * PLANT.dt, "b": 1.0, "c": 0.0, "tracking_time": 1.0}
    gains = {name: jnp.asarray(float(value)) for name, value in {"kp": kp, "ki": 0.1 * kp, "kd": kd, **one}.items()}
    return classical.PID(**gains, C=jnp.asarray([[1.0, 0.0]]), dt=jnp.asarray(PLANT.dt))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The checkpoints of a run as short as can be."""
    config = dataset.DataConfig(families=("pendulum",), held_out=(), variants=6, trajectories=2, num_steps=8)
    data = dataset.generate(config, tmp_path_factory.mktemp("run") / "dataset")
    model = learning.ModelConfig(kind="gain", hidden=8, window=1)
    train = learning.TrainConfig(num_steps=2, report_every=1, batch_size=4, plants=2, random_systems=0)
    source = dataset.source(data, batch_size=4, window=1)
    learning.fit(source, model, train, data.path.parent)
    return data.path.parent / "checkpoints"


LIKE_K = {
    "gain": lambda: K,
    "nested lists": lambda: K.tolist(),
    "regulator": lambda: control.dlqr(*SAMPLED),
    "policy": lambda: LinearPolicy(jnp.asarray(K)),
    "function of a problem": lambda: lambda problem: problem.K if problem.K is not None else K,
    "function that takes no notice": lambda: lambda problem: jnp.asarray(K),
    "function that designs": lambda: lambda problem: control.dlqr(*problem.sampled),
    "agent": agent,
    "model of a library": Model,
}
OTHERS = {
    "LQG": lqg,
    "LQI": lqi,
    "PID": pid,
    "MPC": lambda: predictive.mpc(simulation.Problem.of(PLANT, limits=(-9, 9)), 4),
    "plan": lambda: control.finite_horizon(*SAMPLED[:4], 12, N=SAMPLED[4]),
    "network that is a gain": lambda: network("gain"),
    "network with a history": lambda: network("mlp", width=8, depth=1),
    "bound network": lambda: learning.policy(network("gain"), PLANT),
    "adaptive regulator": lambda: lambda problem: unknown.adaptive(problem, unknown.ridge()),
}
X0 = np.array([[0.1, 0.0], [0.0, 0.2], [-0.05, 0.1]])


@pytest.fixture(scope="module")
def controllers(folder):
    made = {name: make() for name, make in (LIKE_K | OTHERS).items()}
    return made | {"checkpoints folder": str(folder)}


def test_whatever_is_the_optimal_gain_runs_and_scores_as_it(controllers):
    """x[t+1] = (A − BK) x[t], by NumPy, and a cost of exactly the optimum."""
    A, B = (np.asarray(a) for a in SAMPLED[:2])
    expected = [X0]
    for _ in range(20):
        expected.append(expected[-1] @ (A - B @ K).T)
    for name in LIKE_K:
        run = simulation.rollout(PLANT, controllers[name], X0, 20, linear=True)
        single = {"rtol": 1e-4, "atol": 1e-6} if "agent" in name or "model" in name else {"rtol": 1e-9, "atol": 1e-14}
        np.testing.assert_allclose(run.xs, np.stack(expected, 1), **single, err_msg=name)
        score = evaluation.evaluate(controllers[name], PLANT, key=KEY, num_initial=3)
        np.testing.assert_allclose(score.ratio, 1.0, rtol=1e-4, err_msg=name)


@pytest.mark.matrix
def test_everything_that_takes_a_controller_takes_every_kind(controllers):
    """Who binds it first is given any kind; what is slow is asked for one of each kind of policy."""
    problem = Problem.of(PLANT, linear=True)
    env = environments.make(PLANT, linear=True, limits=None, horizon=8, dtype="float64")
    for name, controller in controllers.items():
        run = simulation.rollout(problem, controller, X0, 5)
        assert np.isfinite(run.xs).all(), name
        score = evaluation.evaluate(controller, problem, key=KEY, num_initial=2, num_steps=40)
        assert score.ratio.shape == (2,), name
        played = environments.play(env, controller, key=KEY, num=2)
        assert (played.ratio >= 1 - 1e-9).all(), name
        assert name not in LIKE_K or (played.ratio < 1 + 1e-6).all(), name
    kinds = {type(bind(controller, problem)): name for name, controller in controllers.items()}
    for name in kinds.values():
        controller = controllers[name]
        region = evaluation.attraction(PLANT, controller, X0, num_steps=40)
        assert region.verdict.shape == (3,), name
        picture = widgets.policy_inspector(controller, PLANT, num_steps=20)
        assert "<svg" in picture.svg, name


def test_a_policy_with_a_memory_plays_as_it_rolls_out():
    """The same inputs in an environment as in the loop: what it remembers is carried on, episode by episode."""
    env = environments.make(PLANT, linear=True, limits=None, horizon=12, dtype="float64")
    played = environments.play(env, lqg(), key=KEY, num=3, keep="full")
    run = simulation.rollout(PLANT, lqg(), np.asarray(played.log["x"])[:, 0], 12, linear=True)
    np.testing.assert_allclose(played.log["x"], run.xs[:, :-1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(played.log["u"], run.us, rtol=1e-9, atol=1e-12)
    assert (played.ratio > 1 + 1e-6).all()


def test_unknown_plants_bind_to_their_own_plants(controllers):
    regret = unknown.score(
        controllers["adaptive regulator"], systems.sample("pendulum", key=KEY, num=2), key=KEY, num_steps=30
    )
    assert not regret.failed.any()
    with pytest.raises(ValueError, match="plants with A and B, the inputs of this network"):
        unknown.score(controllers["network that is a gain"], systems.sample("pendulum", key=KEY, num=2), key=KEY)


def test_a_gain_of_one_plant_is_no_gain_for_plants_of_many_families():
    both = Problem.of([PLANT, systems.make("dc_motor")])  # what the ladder binds to
    for fixed in (LinearPolicy(jnp.asarray(K)), K, control.dlqr(*SAMPLED)):
        refused(r"gain K of shape \[..., 6, 12\]", bind, fixed, both)
    assert bind(lambda problem: 0.9 * problem.K, both).K.shape == (2, 6, 12)


@pytest.mark.parametrize(
    ("controller", "words"),
    [
        (3, "expected a policy, a gain K, a function from a problem to a policy, or one of .*LQG.*, but found int"),
        ({"K": K}, "but found dict"),
        (
            np.ones((3, 2)),
            r"expected a gain K of shape \[..., 1, 2\], inputs by states of pendulum, but found \(3, 2\)",
        ),
        (np.ones((1, 3)), "simulation.delayed makes the policy of a gain on inputs that are on their way"),
        (lambda: None, "expected a function from a problem to a policy, but found one of"),
        (lambda problem: "nothing", "checkpoints|no settings|found"),
        (lqg, "expected a function"),
        ("no/such/folder", "no/such/folder"),
        ([[1.0, 2.0], [3.0]], "controller: expected real numbers, but found rows of different lengths"),
        (control.lqg(*PLANT.matrices(), [[1.0, 0.0]], *PLANT.weights(), np.eye(2), [[1.0]]), "discrete=True"),
    ],
)
def test_what_is_no_controller_of_the_plant_is_refused_in_words(controller, words):
    refused(words, bind, controller, PLANT)


def test_a_new_kind_of_controller_is_one_registration():
    """And everything takes it."""

    @dataclasses.dataclass(frozen=True)
    class Proportional:
        factor: float

    @bind.register
    def _(controller: Proportional, problem: simulation.Problem):
        return LinearPolicy(controller.factor * problem.solved().K)

    score = evaluation.evaluate(Proportional(1.0), systems.make("cart_pole"), key=KEY, num_initial=2)
    np.testing.assert_allclose(score.ratio, 1.0, rtol=1e-9)
    refused("Proportional", bind, object(), PLANT)


def test_a_function_of_the_problem_finds_the_optimum_there_on_a_bare_plant():
    """Where whoever takes the controller makes the problem, it is designed only if a function may ask for it."""
    plant = systems.make("pendulum")
    x0 = jnp.array([0.1, 0.0])
    best = Problem.of(plant).K
    of_function = simulation.rollout(plant, lambda problem: problem.K, x0, 20)
    np.testing.assert_allclose(of_function.us, simulation.rollout(plant, best, x0, 20).us, rtol=1e-9)
    starts = plant.initial_state(key=KEY, num=20)
    region = evaluation.attraction(plant, lambda problem: problem.K, starts, num_steps=50)
    np.testing.assert_array_equal(region.verdict, evaluation.attraction(plant, best, starts, num_steps=50).verdict)
    lost = systems.from_matrices([[1.0]], [[0.0]], dt=0.1, Q=[[1.0]], R=[[1.0]])  # nothing stabilizes it
    assert bind(lambda problem: jnp.zeros((1, 1)), lost).K.shape == (1, 1)


def test_limits_of_a_list_of_plants_are_absolute_and_those_that_do_not_exist_have_none():
    quad = systems.make("planar_quadrotor")
    alone, listed = (Problem.of(plants, limits=(0.0, 5.0)) for plants in (quad, [quad]))
    np.testing.assert_allclose(listed.low[0, :2], alone.low, rtol=1e-12)
    np.testing.assert_allclose(listed.high[0, :2], alone.high, rtol=1e-12)
    assert np.isinf(listed.high[0, 2:]).all()
    assert float(listed.told().limit[0]) == pytest.approx(float(alone.told().limit))
    Problem.of([quad], limits=(1.0, 5.0))  # a range around the input that holds it up, not around zero
