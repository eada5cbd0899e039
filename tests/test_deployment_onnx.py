"""ONNX files: another runtime computes what JAX does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import control, deployment, learning, simulation, systems
from lqrlab.learning import models
from lqrlab.learning.train_config import ModelConfig
from lqrlab.simulation import Problem

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(0)


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def answers(path, arrays):
    """By name, of the arrays that the file asks for."""
    run = session(path)
    names = [o.name for o in run.get_outputs()]
    return dict(zip(names, run.run(None, {i.name: np.asarray(arrays[i.name]) for i in run.get_inputs()})))


def error(found, expected):
    """Largest deviation over the largest number."""
    found, expected = (np.asarray(a, float) for a in (found, expected))
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / np.abs(expected).max()


def network(kind, **settings):
    """A network whose parameters are all different from what they are at first."""
    graph, params = models.split(models.build(ModelConfig(kind=kind, **settings)))
    bent = {k: a + jnp.asarray(0.1 * RNG.normal(size=a.shape) / len(a) ** 0.5, a.dtype) for k, a in params.items()}
    return models.merge(graph, bent)


@pytest.fixture(scope="module")
def told():
    """Descriptions of plants of two sizes."""
    plants = [systems.sample(name, key=jax.random.key(1), num=4) for name in ("cart_pole", "dc_motor")]
    return Problem.of(plants, optimum=False).told()


def arguments(told, window, dtype):
    """Arrays by the names of the file's inputs."""
    batch = len(told.A)
    arrays = {k: np.asarray(getattr(told, k), dtype) for k in (*"ABQRN", "state_mask", "input_mask")}
    past = np.arange(window) >= np.arange(batch)[:, None] % window
    x, u = (RNG.normal(size=(batch, window, k)) for k in (12, 6))
    history = {"past_x": x * arrays["state_mask"][:, None], "past_u": u * arrays["input_mask"][:, None]}
    return arrays | {k: np.asarray(a, dtype) for k, a in (history | {"time_mask": past}).items()}


def by_jax(model, told, arrays, dtype):
    graph, params = models.split(model)
    net = models.merge(graph, jax.tree.map(lambda a: a.astype(dtype), params))
    context = jax.jit(net.encode)(told.astype(np.dtype(dtype)))
    if model.linear:
        return context.gain.reshape(-1, 6, 12)
    return net(*(jnp.asarray(arrays[k], dtype) for k in ("past_x", "past_u", "time_mask")), context, last=True)[:, 0]


SETTINGS = {
    "gain": {"hidden": 32},
    "matrix": {"width": 4, "depth": 1},
    "mlp": {"hidden": 32, "width": 16, "window": 4, "depth": 1},
    "transformer": {"hidden": 32, "width": 16, "window": 3, "depth": 1, "heads": 2},
}


SLOW = {"matrix": pytest.mark.matrix, "transformer": pytest.mark.matrix}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=SLOW.get(k, ())) for k in SETTINGS])
def test_a_network_answers_as_in_jax(kind, told, tmp_path):
    model = network(kind, **SETTINGS[kind])
    for dtype, most in {"float64": 1e-6, "float32": 2e-5}.items():
        if (kind, dtype) == ("matrix", "float32"):  # the trained one below
            continue
        file = deployment.to_onnx(model, tmp_path / "net.onnx", dtype=dtype)
        arrays = arguments(told, model.config.window, dtype)
        (found,) = answers(file, arrays).values()
        assert found.dtype == dtype
        assert error(found, by_jax(model, told, arrays, "float64")) < most


@pytest.mark.matrix
def test_the_trained_matrix_network_gives_its_gains(told, tmp_path):
    """In float64 to 1e-6; in float32 about as far off as JAX in float32 is."""
    model = learning.pretrained("regulator")
    exact = by_jax(model, told, {}, "float64")
    arrays = arguments(told, 1, "float64")
    assert error(answers(deployment.to_onnx(model, tmp_path / "d.onnx", dtype="float64"), arrays)["gain"], exact) < 1e-6
    single = {k: a.astype("float32") for k, a in arrays.items()}
    off = error(answers(deployment.to_onnx(model, tmp_path / "s.onnx"), single)["gain"], exact)
    assert off < 5 * error(by_jax(model, told, {}, "float32"), exact) < 1e-3


TYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int32)": "int32", "tensor(int64)": "int64"}


def looped(file, policy, x, steps):
    """The relative difference of inputs in a loop in which the file remembers what it returned."""
    memory = {f"memory_{i}": np.asarray(a) for i, a in enumerate(jax.tree.leaves(policy.init((len(x),))))}
    carry, run, us = policy.init((len(x),)), session(file), []
    names, types = [o.name for o in run.get_outputs()], {i.name: TYPES[i.type] for i in run.get_inputs()}
    for _ in range(steps):
        out = dict(zip(names, run.run(None, {k: a.astype(types[k]) for k, a in ({"x": x} | memory).items()})))
        memory = {k: out[f"next_{k}"] for k in memory}
        carry, u = policy(carry, jnp.asarray(x))
        us.append((out["u"], np.asarray(u)))
        x = 0.95 * x + 0.01 * RNG.normal(size=x.shape)
    return error(*np.swapaxes(us, 0, 1))


def lqg(plant):
    A, B, Q, R, N = control.discretize(*plant.matrices(), *plant.weights(), plant.dt)
    C = np.eye(plant.n)[: plant.n // 2]
    return control.lqg(A, B, C, Q, R, 1e-4 * np.eye(plant.n), 1e-4 * np.eye(len(C)), N, discrete=True)


@pytest.mark.matrix
def test_policies_with_and_without_memory(tmp_path):
    plant = systems.make("cart_pole")
    problem = Problem.of(plant, limits=(-15.0, 15.0))
    plan = control.finite_horizon(*problem.sampled[:4], num_steps=20)
    x = 0.1 * RNG.normal(size=(3, plant.n))
    controllers = {
        "gain": problem.K,
        "estimator": lqg(plant),
        "plan": plan,
        "network": network("mlp", window=2, width=8, depth=1, hidden=8),
    }
    for name, controller in controllers.items():
        file = deployment.to_onnx(controller, tmp_path / f"{name}.onnx", problem, dtype="float64")
        policy = simulation.bind(controller, problem)
        assert looped(file, policy, x, 25) < 1e-6, name
    about = {p.key: json.loads(p.value) for p in onnx.load(tmp_path / "estimator.onnx").metadata_props}
    assert about["states"][0] == plant.states[0].label
    assert np.shape(about["memory"][0]) == (4,)


def test_a_gain_needs_no_problem_and_any_batch_will_do(tmp_path):
    K = RNG.normal(size=(2, 5))
    file = deployment.to_onnx(K, tmp_path / "gain.onnx")
    for batch in (1, 7, 1000):
        x = RNG.normal(size=(batch, 5)).astype("float32")
        assert error(answers(file, {"x": x})["u"], -x @ K.T) < 1e-5


def test_what_cannot_be_translated_is_refused_in_words(tmp_path):
    plant = systems.make("pendulum")

    class Sorting:
        def init(self, batch_shape):
            return None

        def __call__(self, carry, x):
            return None, jnp.sort(x, axis=-1)[..., :1]

    with pytest.raises(ValueError, match="ONNX has no operator for JAX's sort"):
        deployment.to_onnx(Sorting(), tmp_path / "a.onnx", plant)
    with pytest.raises(ValueError, match=r"ending in \.onnx"):
        deployment.to_onnx([[1.0, 2.0]], tmp_path / "a.bin")
    with pytest.raises(ValueError, match="say of which plant"):
        deployment.to_onnx(lambda p: p.K, tmp_path / "a.onnx")
    with pytest.raises(ValueError, match="dtype"):
        deployment.to_onnx([[1.0, 2.0]], tmp_path / "a.onnx", dtype="bfloat16")
    assert not list(tmp_path.iterdir())
