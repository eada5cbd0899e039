"""Learning: masks, gradients, exact resume, and a toy problem whose optimum is known."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lqrlab import compute, control, dataset, learning, simulation, systems

KEY = jax.random.key(7)
SMALL = learning.ModelConfig(window=4, width=16, depth=2, heads=2, hidden=32)
BRIEF = learning.TrainConfig(
    num_steps=12, batch_size=32, steps_per_dispatch=2, report_every=4, checkpoint_every=4
)
CONFIG = {
    "families": ("mass_spring_damper", "pendulum", "dc_motor"),
    "held_out": ("dc_motor",),
    "variants": 4,
    "trajectories": 3,
    "num_steps": 20,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return dataset.generate(dataset.DataConfig(**CONFIG), tmp_path_factory.mktemp("data") / "set")


@pytest.fixture(scope="module", params=["transformer", "history only", "gain"])
def model(request):
    kind = request.param if request.param == "gain" else "transformer"
    return learning.models.build(
        learning.ModelConfig(
            kind=kind,
            window=4,
            width=16,
            depth=2,
            heads=2,
            hidden=32,
            description=request.param != "history only",
        )
    )


def windows(data, num=16):
    resident = dataset.resident(data, "train", window=4)
    return resident, resident.gather(np.arange(num) * 7 % resident.num_windows)


def answer(model, batch, table):
    described = jax.tree.map(lambda a: a[batch.variant], table.description)
    return model(batch.x, batch.u, batch.live_t, model.encode(described))


def perturbed(model):
    """The same model with every parameter moved: heads that start at zero would hide what they do."""
    graph, params = learning.models.split(model)
    keys = jax.random.split(KEY, len(params))
    moved = {k: a + 0.1 * jax.random.normal(r, a.shape, a.dtype) for r, (k, a) in zip(keys, params.items())}
    return learning.models.merge(graph, moved)


def test_masked_mse_is_a_mean_over_live_entries():
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 5, 3, 6))
    live = (rng.random((5, 3, 6)) > 0.5).astype(float)
    expected = sum(
        (prediction[i] - target[i]) ** 2 for i in np.ndindex(live.shape) if live[i]
    ) / sum(1 for i in np.ndindex(live.shape) if live[i])  # fmt: skip
    args = [jnp.asarray(a) for a in (prediction, target, live)]
    assert float(learning.losses.masked_mse(*args)) == pytest.approx(expected)
    wider = [jnp.concatenate([a, jnp.zeros((5, 3, 4))], axis=-1) for a in args]
    assert float(learning.losses.masked_mse(*wider)) == pytest.approx(expected)
    assert float(learning.losses.masked_mse(*(jnp.concatenate([a, a]) for a in args))) == pytest.approx(
        expected
    )


def test_masked_entries_have_no_gradient_even_if_they_are_nan():
    live = jnp.array([[[1.0, 0.0]]])
    target = jnp.array([[[0.5, jnp.nan]]])
    slope = jax.grad(lambda p: learning.losses.masked_mse(p, target, live))(jnp.array([[[1.0, jnp.nan]]]))
    np.testing.assert_array_equal(slope, [[[1.0, 0.0]]])


def test_answers_are_causal_homogeneous_and_masked(data, model):
    model = perturbed(model)
    resident, batch = windows(data)
    table = resident.table
    u = answer(model, batch, table)
    assert u.shape == (16, 4, 6)
    dead = (1 - np.asarray(batch.live_u))[:, None] + (1 - np.asarray(batch.live_t))[..., None]
    np.testing.assert_array_equal(np.asarray(u)[dead > 0], 0.0)
    double = answer(model, batch.__class__(**{**vars(batch), "x": 2 * batch.x, "u": 2 * batch.u}), table)
    np.testing.assert_allclose(double, 2 * u, rtol=2e-4, atol=1e-5)
    later = batch.__class__(**{**vars(batch), "x": batch.x.at[:, -1].add(1.0)})
    np.testing.assert_allclose(answer(model, later, table)[:, :-1], u[:, :-1], rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(answer(model, later, table)[:, -1] - u[:, -1]).max()) > 1e-3
    described = jax.tree.map(lambda a: a[batch.variant], table.description)
    last = model(batch.x, batch.u, batch.live_t, model.encode(described), last=True)
    np.testing.assert_allclose(last[:, 0], u[:, -1], rtol=1e-5, atol=1e-6)


def test_what_lies_before_the_episode_changes_nothing(data, model):
    model = perturbed(model)
    resident, batch = windows(data)
    begins = np.asarray(batch.live_t)[:, 0] == 0
    assert begins.any()
    noise = 9.0 * (1 - batch.live_t)[..., None]
    dirty = batch.__class__(**{**vars(batch), "x": batch.x + noise, "u": batch.u + noise})
    clean, other = (answer(model, b, resident.table) for b in (batch, dirty))
    np.testing.assert_allclose(other, clean, rtol=1e-5, atol=1e-6)


def test_without_its_description_a_network_cannot_see_it(data):
    resident, batch = windows(data)
    for switch in (True, False):
        config = learning.ModelConfig(**{**json.loads(SMALL.to_json()), "description": switch})
        net = perturbed(learning.models.build(config))
        other = jax.tree.map(lambda a: a, resident.table)
        stretched = other.description.__class__(**{**vars(other.description), "A": 1.3 * other.description.A})
        changed = other.__class__(**{**vars(other), "description": stretched})
        gap = float(jnp.abs(answer(net, batch, resident.table) - answer(net, batch, changed)).max())
        assert (gap > 1e-4) == switch


def test_gradient_equals_finite_differences(data):
    resident, batch = windows(data)
    graph, params = learning.models.split(perturbed(learning.models.build(SMALL)))
    params = {k: a.astype(jnp.float64) for k, a in params.items()}
    batch, table = (jax.tree.map(lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a, t)
                    for t in (batch, resident.table))  # fmt: skip

    def objective(params):
        prediction, live = learning.training.forward(graph, params, table, batch)
        return learning.losses.masked_mse(prediction, batch.target, live)

    slope = jax.grad(objective)(params)
    way = {
        k: jax.random.normal(jax.random.fold_in(KEY, i), a.shape, a.dtype)
        for i, (k, a) in enumerate(params.items())
    }

    def along(h):
        return float(objective({k: params[k] + h * way[k] for k in params}))

    numeric = (along(1e-5) - along(-1e-5)) / 2e-5
    exact = sum(float(jnp.vdot(slope[k], way[k])) for k in params)
    assert exact == pytest.approx(numeric, rel=1e-5)


def test_one_linear_plant_is_learned_to_its_optimum():
    """A gain network on one plant must find that plant's K: the loss has no other minimum."""
    plant = systems.make("pendulum")
    batch_of_one = jax.tree.map(lambda a: a[None], plant)
    described = jax.tree.map(lambda a: a.astype(jnp.float32), dataset.describe(batch_of_one))
    gain = np.zeros((1, 6, 12), np.float32)
    gain[0, :1, :2] = [[3.0, 1.5]]
    net = learning.models.build(learning.ModelConfig(kind="gain", window=1, hidden=16))
    graph, params = learning.models.split(net)
    x = jax.random.normal(KEY, (256, 1, 12), jnp.float32) * described.live_x[None]
    table = dataset.VariantTable(
        **{**{f: None for f in dataset.VariantTable.__dataclass_fields__}, "description": described,
           "gain": jnp.asarray(gain)}
    )  # fmt: skip
    ones = jnp.ones((256, 1), jnp.float32)
    wide = {"live_x": jnp.tile(described.live_x, (256, 1)), "live_u": jnp.tile(described.live_u, (256, 1))}
    batch = dataset.Batch(
        variant=jnp.zeros(256, jnp.int32), x=x, u=jnp.zeros((256, 1, 6)),
        target=-jnp.einsum("ij,bwj->bwi", jnp.asarray(gain[0]), x), live_t=ones, **wide,
    )  # fmt: skip
    optimize = optax.adam(optax.cosine_decay_schedule(3e-2, 600))
    step = jax.jit(learning.train_step(graph, optimize))
    state = learning.TrainState(params, optimize.init(params), jnp.zeros((), jnp.int32))
    for _ in range(600):
        state, _ = step(state, batch, table)
    written = learning.models.merge(graph, state.params).encode(described).gain.reshape(6, 12)[:1, :2]
    np.testing.assert_allclose(written, [[3.0, 1.5]], rtol=1e-4)
    assert int(state.step) == 600


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(data, tmp_path, monkeypatch):
    whole = learning.fit(data, SMALL, BRIEF, tmp_path / "whole")
    stop_after = []

    def interrupt(row):
        stop_after.append(row["step"])
        if row["step"] == 8:
            os.kill(os.getpid(), signal.SIGINT)

    part = learning.fit(data, SMALL, BRIEF, tmp_path / "part", progress=interrupt)
    assert part.stopped
    assert stop_after[-1] == 8
    rest = learning.fit(data, SMALL, BRIEF, tmp_path / "part")
    assert not rest.stopped
    a, b = (learning.models.split(f.model)[1] for f in (whole, rest))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [4, 8, 12]
    losses = [[row["loss"] for row in f.metrics] for f in (whole, rest)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not(data, tmp_path):
    script = textwrap.dedent(
        """
        import sys
        from lqrlab import compute, control, dataset, learning
        compute.setup()
        small = learning.ModelConfig(window=4, width=16, depth=2, heads=2, hidden=32)
        brief = learning.TrainConfig(
            num_steps=4000, batch_size=32, steps_per_dispatch=2, report_every=4, checkpoint_every=4
        )
        data = dataset.open(sys.argv[1])
        learning.fit(data, small, brief, sys.argv[2], progress=lambda r: print(r["step"], flush=True))
        """
    )
    command = [sys.executable, "-c", script, str(data.path), str(tmp_path / "killed")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) >= 20:
            break
    process.kill()
    process.wait()
    steps = [
        int(p.name) for p in (tmp_path / "killed" / "checkpoints" / "last").iterdir() if p.name.isdigit()
    ]
    assert steps
    assert 16 <= max(steps) < 4000, "the kill did not land in the middle"
    kept = learning.load(tmp_path / "killed" / "checkpoints")
    assert all(np.isfinite(a).all() for a in learning.models.split(kept)[1].values())


def test_k_steps_in_one_dispatch_are_k_dispatches(data, tmp_path):
    one = learning.TrainConfig(**{**json.loads(BRIEF.to_json()), "steps_per_dispatch": 1})
    four = learning.TrainConfig(**{**json.loads(BRIEF.to_json()), "steps_per_dispatch": 4})
    a, b = (
        learning.models.split(learning.fit(data, SMALL, c, tmp_path / str(c.steps_per_dispatch)).model)[1]
        for c in (one, four)
    )
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)


def test_training_makes_the_validation_loss_small(data, tmp_path):
    config = learning.TrainConfig(
        num_steps=300, batch_size=64, steps_per_dispatch=25, report_every=25, checkpoint_every=100
    )
    fit = learning.fit(data, SMALL, config, tmp_path)
    first, last = fit.metrics[0]["validation_loss"], fit.metrics[-1]["validation_loss"]
    assert last < 0.2 * first
    loaded = learning.load(tmp_path / "checkpoints")
    for name, value in learning.models.split(fit.model)[1].items():
        np.testing.assert_array_equal(value, learning.models.split(loaded)[1][name])
    assert learning.load(tmp_path / "checkpoints", "best") is not None


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_checkpoint(data, tmp_path):
    good = learning.fit(data, SMALL, BRIEF, tmp_path / "run")
    assert not good.stopped
    wild = learning.TrainConfig(
        **{**json.loads(BRIEF.to_json()), "learning_rate": 1e30, "clip": 1e30, "warmup": 0.0}
    )
    with pytest.raises(learning.NonFiniteLossError, match=r"within the steps up to \d+, or the parameters"):
        learning.fit(data, SMALL, wild, tmp_path / "wild")
    if (tmp_path / "wild" / "checkpoints" / "last").exists():
        for path in (tmp_path / "wild" / "checkpoints" / "last").glob("[0-9]*"):
            assert int(path.name) < 12


def test_another_run_in_the_same_folder_is_refused(data, tmp_path):
    learning.fit(data, SMALL, BRIEF, tmp_path)
    other = learning.TrainConfig(**{**json.loads(BRIEF.to_json()), "learning_rate": 1e-4})
    with pytest.raises(ValueError, match=r"train\.learning_rate was 0\.002 and is now 0\.0001"):
        learning.fit(data, SMALL, other, tmp_path)


def test_a_policy_on_a_batch_and_on_stacked_families_is_the_same_policy(model):
    model = perturbed(model)
    plants = [systems.sample(n, key=KEY, num=2) for n in ("pendulum", "two_link_arm")]
    stacked = systems.stack(plants)
    x0 = stacked.initial_state(key=KEY, num=3)
    together = simulation.rollout(stacked, learning.policy(model, plants), x0, 6, linear=True)
    for k, plant in enumerate(plants):
        rows = slice(2 * k, 2 * k + 2)
        alone = simulation.rollout(
            systems.linearise(plant), learning.policy(model, plant), x0[rows, :, : plant.n], 6, linear=True
        )
        np.testing.assert_allclose(together.us[rows, ..., : plant.m], alone.us, rtol=1e-4, atol=1e-5)


def test_in_closed_loop_the_policy_sees_the_windows_it_was_trained_on(data, model):
    """Replaying a recorded trajectory step by step gives the answers that the windows give."""
    model = perturbed(model)
    resident = dataset.resident(data, "train", window=4)
    batch = resident.gather(np.arange(20))  # the first trajectory's windows
    variant = int(batch.variant[0])
    described = jax.tree.map(lambda a: a[variant : variant + 1], resident.table.description)
    expected = answer(model, batch, resident.table)[:, -1]
    context = model.encode(described)
    graph, params = learning.models.split(model)
    ones = jnp.ones((1, 12)), jnp.ones((1, 6))
    policy = learning.NetworkPolicy(params, context, *ones, graph, 4, 6)
    carry = policy.init((1,))
    for t in range(20):
        # the recorded input, excitation included, takes the place of the policy's own
        xs, us, live = carry
        carry = xs, us.at[:, -1].set(batch.u[t, -1]), live
        carry, u = policy(carry, batch.x[t, -1][None])
        np.testing.assert_allclose(u[0], expected[t], rtol=1e-4, atol=1e-5)


def test_a_network_that_writes_the_optimal_gain_is_the_optimal_policy(model):
    """In SI units: what the network says in its own scales is divided and multiplied by the plant's."""
    plants = systems.sample("fixed_wing", key=KEY, num=3)
    (A, B), (Q, R) = plants.matrices(), plants.weights()
    K = control.lqrd(A, B, Q, R, plants.dt).K
    bound = learning.policy(learning.models.build(learning.ModelConfig(kind="gain", window=1)), plants)
    flat = dataset.scaled_gain(K, plants).reshape(3, -1).astype(jnp.float32)
    bound = dataclasses.replace(bound, context=dataclasses.replace(bound.context, gain=flat))
    x = plants.initial_state(key=KEY, num=4)
    _, u = bound(bound.init((3, 4)), x)
    np.testing.assert_allclose(u, -jnp.einsum("vij,vsj->vsi", K, x), rtol=1e-4, atol=1e-4)


def test_weights_that_the_network_cannot_see_are_refused(model):
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=[[2.0, 0.9], [0.9, 1.0]])
    with pytest.raises(ValueError, match="plants: expected Q to be diagonal"):
        learning.policy(model, plant)


def test_validation_loss_is_of_the_validation_variants_and_best_is_the_lowest(data, tmp_path):
    fit = learning.fit(data, SMALL, BRIEF, tmp_path)
    held = dataset.resident(data, "validation", window=4)
    batch = held.gather(np.arange(held.num_windows))
    graph, params = learning.models.split(fit.model)
    prediction, live = learning.training.forward(graph, params, held.table, batch)
    error = np.asarray(live, float) * (np.asarray(prediction, float) - np.asarray(batch.target, float)) ** 2
    expected = error.sum() / (np.asarray(live) > 0).sum()
    assert fit.metrics[-1]["validation_loss"] == pytest.approx(expected, rel=1e-3)
    assert set(data.variants.split[int(v)] for v in batch.variant) == {"validation"}
    losses = [row["validation_loss"] for row in fit.metrics]
    kept = [int(p.name) for p in (tmp_path / "checkpoints" / "best").iterdir() if p.name.isdigit()]
    assert kept == [fit.metrics[int(np.argmin(losses))]["step"]]


def test_parameters_that_are_not_numbers_are_never_saved(data, tmp_path, monkeypatch):
    """The loss of a step is that of before its update: a bad update must not become the checkpoint."""
    learning.fit(data, SMALL, learning.TrainConfig(**{**json.loads(BRIEF.to_json())}), tmp_path / "good")
    inner = learning.fitting.optimizer

    def breaks_at_eight(config):
        def update(updates, state, params=None):
            updates, state = inner(config).update(updates, state, params)
            count = state[1][0].count
            return jax.tree.map(lambda g: jnp.where(count >= 8, jnp.nan, g), updates), state

        return optax.GradientTransformation(inner(config).init, update)

    monkeypatch.setattr(learning.fitting, "optimizer", breaks_at_eight)
    with pytest.raises(learning.NonFiniteLossError, match="The checkpoint of step 4 is kept"):
        learning.fit(data, SMALL, BRIEF, tmp_path / "bad")
    kept = learning.load(tmp_path / "bad" / "checkpoints")
    assert all(np.isfinite(a).all() for a in learning.models.split(kept)[1].values())


def test_loading_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="holds no training run"):
        learning.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 10, "heads": 4}, "width: expected a multiple of heads = 4, but found 10"),
        ({"depth": 0}, "depth: expected an integer ≥ 1, but found 0"),
        ({"description": "false"}, "description: expected bool, but found 'false'"),
        ({"seed": 1.5}, r"seed: expected int, but found 1\.5"),
    ],
)
def test_a_bad_model_config_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        learning.ModelConfig(**change)


def test_configs_go_through_json_and_refuse_unknown_keys():
    assert learning.TrainConfig.from_json(BRIEF.to_json()) == BRIEF
    with pytest.raises(
        ValueError, match="learning_rat: TrainConfig has no such setting; did you mean learning_rate"
    ):
        learning.TrainConfig.from_json('{"learning_rat": 1}')
    with pytest.raises(ValueError, match="learning_rate: expected a number above 0, but found nan"):
        learning.TrainConfig(learning_rate=float("nan"))
    with pytest.raises(ValueError, match="kind: expected a registered model"):
        learning.models.build(learning.ModelConfig(kind="oracle"))


def test_schedule_warms_up_and_ends_at_a_hundredth():
    config = learning.TrainConfig(num_steps=1000, learning_rate=0.01, warmup=0.1)
    rate = learning.schedule(config)
    assert float(rate(0)) == 0.0
    assert float(rate(50)) == pytest.approx(0.005)
    assert float(rate(100)) == pytest.approx(0.01)
    assert float(rate(550)) == pytest.approx(0.5 * (0.01 + 0.0001), rel=1e-6)
    assert float(rate(1000)) == pytest.approx(0.0001)


def test_backend_says_what_there_is():
    with pytest.raises(ValueError, match=r"device: 'gpu:7' is not on this machine, which has cpu:0"):
        _ = compute.Backend(device="gpu:7").jax_device
    with pytest.raises(ValueError, match="precision: expected one of"):
        compute.Backend(precision="good")
