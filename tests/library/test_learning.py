"""Learning: masks, gradients, exact resume, and a toy problem whose optimum is known."""

import dataclasses
import functools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import hostile_files
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from refusals import refused
from scipy_oracle import gain, van_loan

from lqrlab import dataset, learning, simulation, systems
from lqrlab.compute.files import read_rows
from lqrlab.workbench.runs import notebooks

KEY = jax.random.key(7)
SMALL = learning.ModelConfig(kind="transformer", window=4, width=16, depth=2, heads=2, hidden=32)
BRIEF = learning.TrainConfig(
    num_steps=12, batch_size=32, plants=32, steps_per_dispatch=2, report_every=4, checkpoint_every=4, closed_loop=0.0
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


HISTORY_ONLY = pytest.param("history only", marks=pytest.mark.matrix)


@pytest.fixture(scope="module", params=["transformer", HISTORY_ONLY, "mlp", "gain", "matrix"])
def model(request):
    kind = "transformer" if request.param == "history only" else request.param
    described = request.param != "history only"
    return learning.models.build(learning.models.used(dataclasses.replace(SMALL, kind=kind, description=described)))


def source(data, config=BRIEF, model=SMALL):
    return dataset.source(data, batch_size=config.batch_size, window=model.window, seed=config.seed)


def fit(data, model, config, folder, **options):
    return learning.fit(source(data, config, model), model, config, folder, **options)


def windows(data, num=16):
    """Some windows of the data set, and all plants."""
    held = source(data).held
    return data.table(), held.gather(np.arange(num) * 7 % held.num_windows)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _answer(graph, params, batch, told, last):
    model = learning.models.merge(graph, params)
    return model(batch.x, batch.u, batch.time_mask, learning.models.answer(model, told), last=last)


def answer(model, batch, table, last=False):
    return _answer(*learning.models.split(model), batch, table.told(batch.variant), last)


def perturbed(model):
    """The same model with every parameter moved: heads that start at zero would hide what they do."""
    graph, params = learning.models.split(model)
    rng = np.random.default_rng(7)
    moved = {k: np.asarray(a) + 0.1 * rng.normal(size=a.shape).astype(a.dtype) for k, a in params.items()}
    return learning.models.merge(graph, jax.tree.map(jnp.asarray, moved))


def masked_mse(prediction, target, weight):
    return learning.losses.masked_mse(learning.losses.Predictions(prediction, target, weight))


def test_masked_mse_is_a_mean_over_live_entries():
    rng = np.random.default_rng(0)
    prediction, target = rng.normal(size=(2, 5, 3, 6))
    live = (rng.random((5, 3, 6)) > 0.5).astype(float)
    expected = sum(
        (prediction[i] - target[i]) ** 2 for i in np.ndindex(live.shape) if live[i]
    ) / sum(1 for i in np.ndindex(live.shape) if live[i])  # fmt: skip
    args = [jnp.asarray(a) for a in (prediction, target, live)]
    assert float(masked_mse(*args)) == pytest.approx(expected)
    wider = [jnp.concatenate([a, jnp.zeros((5, 3, 4))], axis=-1) for a in args]
    assert float(masked_mse(*wider)) == pytest.approx(expected)
    assert float(masked_mse(*(jnp.concatenate([a, a]) for a in args))) == pytest.approx(expected)
    weight = live * rng.choice([0.5, 1.0, 2.0], size=(5, 1, 1))
    weighted = (weight * (prediction - target) ** 2).sum() / live.sum()
    assert float(masked_mse(*args[:2], jnp.asarray(weight))) == pytest.approx(weighted)
    # what is masked has no gradient, not even where it is NaN
    target, live = jnp.array([[[0.5, jnp.nan]]]), jnp.array([[[1.0, 0.0]]])
    slope = jax.grad(lambda p: masked_mse(p, target, live))(jnp.array([[[1.0, jnp.nan]]]))
    np.testing.assert_array_equal(slope, [[[1.0, 0.0]]])


def edited(batch, **channels):
    parts = [channels.get(name, getattr(batch, name)) for name in ("x", "u")]
    return dataclasses.replace(batch, signals=jnp.concatenate(parts, axis=-1))


def test_answers_are_causal_homogeneous_and_masked(data, model):
    model = perturbed(model)
    table, some = windows(data)
    batch = some.batch(table)
    u = answer(model, batch, table)
    assert u.shape == (16, 4, 6)
    dead = (1 - np.asarray(batch.input_mask))[:, None] + (1 - np.asarray(batch.time_mask))[..., None]
    np.testing.assert_array_equal(np.asarray(u)[dead > 0], 0.0)
    double = answer(model, edited(batch, x=2 * batch.x, u=2 * batch.u), table)
    np.testing.assert_allclose(double, 2 * u, rtol=2e-4, atol=1e-5)
    later = edited(batch, x=batch.x.at[:, -1].add(1.0))
    np.testing.assert_allclose(answer(model, later, table)[:, :-1], u[:, :-1], rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(answer(model, later, table)[:, -1] - u[:, -1]).max()) > 1e-3
    last = answer(model, batch, table, last=True)
    np.testing.assert_allclose(last[:, 0], u[:, -1], rtol=1e-5, atol=1e-6)


def test_what_lies_before_the_episode_changes_nothing(data, model):
    model = perturbed(model)
    table, some = windows(data)
    batch = some.batch(table)
    begins = np.asarray(batch.time_mask)[:, 0] == 0
    assert begins.any()
    noise = 9.0 * (1 - batch.time_mask)[..., None]
    dirty = edited(batch, x=batch.x + noise, u=batch.u + noise)
    clean, other = (answer(model, b, table) for b in (batch, dirty))
    np.testing.assert_allclose(other, clean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_without_its_description_a_network_cannot_see_it_and_has_no_parameters_for_it(kind, data):
    table, some = windows(data)
    batch = some.batch(table)
    for switch in (True, False):
        config = dataclasses.replace(SMALL, kind=kind, description=switch)
        net = perturbed(learning.models.build(learning.models.used(config)))
        assert any("encoder" in name for name in learning.models.split(net)[1]) == switch
        problem = dataclasses.replace(table.problem, A=1.3 * table.problem.A)
        changed = dataclasses.replace(table, problem=problem)
        gap = float(jnp.abs(answer(net, batch, table) - answer(net, batch, changed)).max())
        assert (gap > 1e-4) == switch


def train_batch(data, num=16):
    table, some = windows(data, num)
    return learning.batches.train_batch(table, some, 7, jnp.int32(0))


def test_under_noise_the_optimal_gain_has_no_excess_and_another_gain_more_than_without(data):
    """J − J* = Σ (u + Kx)ᵀS(u + Kx) along the loop, whatever disturbs it."""
    given = train_batch(data)
    graph, params = learning.models.split(learning.models.build(learning.ModelConfig(kind="gain", window=1)))
    context = learning.models.merge(graph, params).encode(given.told)

    def excess(factor, noise):
        mine = dataclasses.replace(context, gain=factor * given.problem.K.reshape(16, -1))
        policy = learning.NetworkPolicy(params, mine, given.told.coordinates, graph, 1)
        found, _ = learning.losses.closed_loop(policy, False, given.problem, given.x0, 30, noise, given.key[0])
        return np.asarray(found)

    np.testing.assert_allclose(excess(1.0, 0.3), 0, atol=1e-5)
    assert excess(0.9, 0.3).mean() > 2 * excess(0.9, 0.0).mean()
    assert np.all(excess(0.9, 0.0) > 0)


SLOWER = [pytest.param(kind, marks=pytest.mark.matrix) for kind in ("mlp", "matrix")]


@pytest.mark.parametrize("kind", ["transformer", "gain", *SLOWER])
def test_gradient_equals_finite_differences(data, kind):
    """Of the whole objective, imitation and closed loop, by rollout and by the Lyapunov equation."""
    config = learning.models.used(dataclasses.replace(SMALL, kind=kind))
    graph, params = learning.models.split(learning.models.build(config))
    given = train_batch(data)
    params, given = (jax.tree.map(lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a, t)
                     for t in (params, given))  # fmt: skip
    config = learning.TrainConfig(batch_size=16, plants=16, horizon=4)
    value = jax.jit(jax.value_and_grad(learning.objective(graph, config), has_aux=True))
    small = ("gain/kernel", "gain/bias", "head/kernel", "head/bias")  # else loops diverge, and costs are discounted
    params |= {k: 0.1 * params[k] for k in small if k in params}
    (_, _), slope = value(params, given)
    rng = np.random.default_rng(3)
    way = {k: jnp.asarray(rng.normal(size=a.shape)) for k, a in params.items()}

    def along(h):
        (total, metrics), _ = value({k: params[k] + h * way[k] for k in params}, given)
        assert kind != "gain" or abs(float(metrics["diverged"])) < 1e-6
        return float(total)

    numeric = (along(1e-5) - along(-1e-5)) / 2e-5
    exact = sum(float(jnp.vdot(slope[k], way[k])) for k in params)
    assert exact == pytest.approx(numeric, rel=1e-5)


@pytest.mark.matrix
def test_gradients_that_are_written_out_are_those_that_jax_derives():
    """Of attention (a row with nothing allowed too) and products of matrices, against plain formulas."""
    history, matrix = learning.models.history_network, learning.models.matrix
    keys = iter(jax.random.split(KEY, 11))

    def draw(*shape):
        return jax.random.normal(next(keys), shape, jnp.float64)

    def attend(q, k, v, allowed):
        score = jnp.where(allowed[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0, -1e30)
        weight = jnp.exp(score - score.max(-1, keepdims=True))
        return jnp.einsum("bhqk,bkhd->bqhd", weight / weight.sum(-1, keepdims=True), v)

    def resolvent(V):
        return jnp.linalg.inv(jnp.eye(4)[(None,) * (V.ndim - 2)] + V @ V.mT)

    allowed = jnp.tril(jnp.ones((3, 3), bool))[None] & jnp.array([[False, True, True]])[:, None, :]
    tokens = draw(2, 3, 2, 4), draw(2, 3, 2, 4), draw(2, 3, 2, 4)
    for ours, plain, args, fixed in (
        (history.attend, attend, tokens, (jnp.broadcast_to(allowed, (2, 3, 3)),)),
        (matrix._resolvent, resolvent, (draw(3, 2, 4, 4),), ()),
    ):
        value, back = jax.vjp(lambda *a, fn=ours, f=fixed: fn(*a, *f), *args)
        expected, expected_back = jax.vjp(lambda *a, fn=plain, f=fixed: fn(*a, *f), *args)
        np.testing.assert_allclose(value, expected, atol=1e-12)
        slope = jnp.sin(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape)
        for a, b in zip(back(slope), expected_back(slope), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def test_one_linear_plant_is_learned_to_its_optimum(data):
    """A gain network, from its closed loop's cost alone, must find SciPy's K: there is no other minimum."""
    given = train_batch(data, 1)
    linear = data.linear("train", "mass_spring_damper")
    sx, su = (data.column(name, "train", "mass_spring_damper")[0] for name in ("scale_x", "scale_u"))
    net = learning.models.build(learning.ModelConfig(kind="gain", window=4, hidden=16))
    graph, params = learning.models.split(net)
    optimize = optax.adam(optax.cosine_decay_schedule(1e-2, 800))
    config = learning.TrainConfig(imitation=0.0)
    step = learning.train_step(learning.objective(graph, config), optimize)
    state = learning.TrainState(params, optimize.init(params), jnp.zeros((), jnp.int32))
    many = jax.jit(lambda state: jax.lax.scan(lambda s, _: step(s, given), state, length=800))
    state, metrics = many(state)
    assert float(metrics["closed_loop"][-1]) < 1e-8
    context = learning.models.merge(graph, state.params).encode(given.told)
    written = np.asarray(context.gain).reshape(6, 12)[:1, :2] / sx[None] * su[:, None]
    expected = gain(*van_loan(*(np.asarray(a[0]) for a in (linear.A, linear.B, linear.Q, linear.R, linear.dt))))[0]
    np.testing.assert_allclose(written, expected, rtol=1e-4)
    assert int(state.step) == 800


GAIN = learning.ModelConfig(kind="gain", window=4, hidden=32)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """A run of a small network, with checkpoints of steps 8 and 12: its folder, and what it ended with."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, fit(data, GAIN, BRIEF, folder)


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def file(folder, which, step):
    return folder / "checkpoints" / which / f"{step}.safetensors"


def assert_same_weights(one, other):
    jax.tree.map(np.testing.assert_array_equal, *(learning.models.split(model)[1] for model in (one, other)))


def assert_same_run(one, other):
    """Equal to the bit, but for the clock."""
    assert_same_weights(one.model, other.model)
    told = ("step", "loss", "validation_loss", "validation_efficiency")
    assert [[row[k] for k in told] for row in one.metrics] == [[row[k] for k in told] for row in other.metrics]


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of that run."""
    return shutil.copytree(finished[0], tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b""), "holds no weights that can be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "holds no weights that can be read"),
        (flipped, "has changed since it was written"),
    ],
    ids=["emptied", "cut off", "bit flip"],
)
def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(damage, words, data, finished, copied):
    run = finished[1]
    damage(file(copied, "last", 12))
    with pytest.warns(UserWarning, match=rf"'last' .*step 12: .*{words}.* that of step 8 is taken"):
        loaded = learning.load(copied / "checkpoints")
    older = learning.models.split(loaded)[1]
    assert any((older[k] != a).any() for k, a in learning.models.split(run.model)[1].items())
    with pytest.warns(UserWarning, match=words):
        rest = fit(data, GAIN, BRIEF, copied)
    assert_same_run(rest, run)
    assert_same_run(fit(data, GAIN, BRIEF, copied), run)  # and is whole again: no warning
    assert [row["step"] for row in read_rows(copied / "metrics.jsonl")] == [4, 8, 12]


def test_checkpoints_none_of_which_is_whole_are_refused_with_what_to_do(data, copied):
    with mock.patch.object(Path, "open", side_effect=PermissionError(13, "")):  # of which nothing is known to be wrong
        refused("12.safetensors cannot be read now: Permission denied$", learning.load, copied / "checkpoints")
    for which, step in (("last", 8), ("last", 12), ("best", 12)):
        flipped(file(copied, which, step))
    words = "no '{}' checkpoint in .* is whole .*; put a copy of one back.* from scratch"
    refused(words.format("last"), fit, data, GAIN, BRIEF, copied)
    for which in ("last", "best"):
        refused(words.format(which), learning.load, copied / "checkpoints", which)
    assert file(copied, "last", 12).exists()  # nothing is removed


def test_a_damaged_best_checkpoint_is_made_again(data, finished, copied):
    assert list((finished[0] / "checkpoints" / "best").iterdir()) == [file(finished[0], "best", 12)]
    flipped(file(copied, "best", 12))
    with pytest.warns(UserWarning, match="the 'best' checkpoint of step 12 is damaged .* it is made again"):
        fit(data, GAIN, BRIEF, copied)
    assert_same_weights(*(learning.load(folder / "checkpoints", "best") for folder in (finished[0], copied)))


@pytest.mark.parametrize("content", ['{"model": 1}', None], ids=repr)
def test_damaged_settings_are_those_of_the_newest_checkpoint(content, data, finished, copied):
    path = copied / "checkpoints" / "settings.json"
    original = path.read_text()
    path.write_text(content) if content is not None else path.unlink()
    with pytest.warns(UserWarning, match=r"settings\.json: .* those of the checkpoint of step 12"):
        learning.load(path.parent)
    with (
        pytest.warns(UserWarning, match="settings"),
        pytest.raises(ValueError, match=r"model\.kind was 'gain' and is now 'mlp'"),
    ):
        fit(data, dataclasses.replace(GAIN, kind="mlp"), BRIEF, copied)
    with pytest.warns(UserWarning, match="settings"):
        assert_same_run(fit(data, GAIN, BRIEF, copied), finished[1])
    assert path.read_text() == original


def test_a_best_checkpoint_of_a_later_step_than_the_last_is_in_nobodys_way(data, finished, copied):
    """Of a run that was cut off after it had kept its best, and before its next checkpoint."""
    shutil.rmtree(copied / "checkpoints" / "last")
    assert_same_run(fit(data, GAIN, BRIEF, copied), finished[1])


def test_a_training_whose_checkpoints_find_no_room_says_so_and_resumes(data, finished, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"could not be written: File too large: '.*checkpoints/best/4.safetensors'"):
            fit(data, GAIN, BRIEF, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_same_run(fit(data, GAIN, BRIEF, tmp_path / "run"), finished[1])


@pytest.mark.parametrize("case", hostile_files.CHECKPOINTS, ids=lambda case: case.name)
def test_checkpoints_of_others_are_refused_or_replaced_in_words_and_soon(case, finished, tmp_path):
    hostile_files.met("checkpoints", case, tmp_path / "place", finished[0] / "checkpoints")


@pytest.mark.parametrize("case", hostile_files.WEIGHTS, ids=lambda case: case.name)
def test_weights_of_others_are_refused_in_words_before_a_model_is_made(case, tmp_path):
    hostile_files.met("weights", case, tmp_path / "place")


@pytest.mark.parametrize("name", ["", *learning.weight_files.names()])
def test_any_flipped_bit_of_weights_is_refused_or_changes_nothing(name, finished, tmp_path):
    """Of those that are written, and of those that come with the package."""
    path = tmp_path / "w.safetensors"
    learning.weight_files.write(path, finished[1].model, {"data": "three families"})
    if name:
        shutil.copy(Path(learning.__file__).with_name("trained") / f"{name}.safetensors", path)
    whole = path.read_bytes()
    (expected, card), rng, refusals = learning.weight_files.load_arrays(path), np.random.default_rng(0), 0
    for at in (*rng.integers(0, len(whole), 30), *rng.integers(0, 600, 30)):  # a header of some hundred bytes
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << rng.integers(8)]) + whole[at + 1 :])
        try:
            found, told = learning.weight_files.load_arrays(path)
        except ValueError:
            refusals += 1
        else:
            jax.tree.map(np.testing.assert_array_equal, found, expected)
            assert told == card
    assert refusals > 50


@pytest.mark.parametrize("case", hostile_files.METRICS, ids=lambda case: case.name)
def test_metrics_are_read_or_refused_whatever_they_are(case, tmp_path):
    hostile_files.met("metrics", case, tmp_path / "place")


@pytest.mark.parametrize("line", [b"[1]", b'{"step": "4"}', b'{"step": 8, "loss'], ids=lambda line: repr(line)[:20])
def test_lines_that_are_no_rows_of_metrics_are_told_of_and_left_out(line, data, finished, copied):
    log = copied / "metrics.jsonl"
    first, second, third = log.read_bytes().splitlines()
    log.write_bytes(b"\n".join([first, line, second[:30], third, b""]))  # the second row is lost too
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: lines that are no rows .* \(2 of them\)"):
        assert_same_run(fit(data, GAIN, BRIEF, copied), finished[1])
    assert log.read_bytes().splitlines() == [first, second, third]


def test_a_second_training_in_a_folder_is_refused_and_a_killed_one_is_in_nobodys_way(data, finished, copied, tmp_path):
    script = (
        "import sys, time; from lqrlab.compute import files\n"
        "with files.locked(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(copied / "checkpoints")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            before = (copied / "metrics.jsonl").read_bytes()
            refused("checkpoints: the folder is locked by another process", fit, data, GAIN, BRIEF, copied)
            assert (copied / "metrics.jsonl").read_bytes() == before
        finally:
            other.kill()
    assert_same_run(fit(data, GAIN, BRIEF, copied), finished[1])
    seen = []

    def again(row):
        refused("locked by another process", fit, data, GAIN, BRIEF, tmp_path / "new")
        seen.append(row["step"])

    fit(data, GAIN, BRIEF, tmp_path / "new", progress=again)
    assert seen == [4, 8, 12]


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(data, finished, tmp_path):
    whole, stop_after = finished[1], []

    def interrupt(row):
        stop_after.append(row["step"])
        if row["step"] == 8:
            os.kill(os.getpid(), signal.SIGINT)

    part = fit(data, GAIN, BRIEF, tmp_path / "part", progress=interrupt)
    assert part.stopped
    assert stop_after[-1] == 8
    rest = fit(data, GAIN, BRIEF, tmp_path / "part")
    assert not rest.stopped
    assert_same_run(rest, whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [4, 8, 12]


def test_k_steps_in_one_dispatch_are_k_dispatches(data, tmp_path):
    """And a run compiles its steps once, however many dispatches it takes."""
    one = dataclasses.replace(BRIEF, steps_per_dispatch=1)
    four = dataclasses.replace(BRIEF, steps_per_dispatch=4)
    runs = [fit(data, GAIN, c, tmp_path / str(c.steps_per_dispatch)) for c in (one, four)]
    a, b = (learning.models.split(run.model)[1] for run in runs)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5)
    compiled = [run.metrics[-1]["compilation"] for run in runs]
    assert [(c["calls"], c["programs"]) for c in compiled] == [(12, 1), (3, 1)]


def test_training_makes_the_validation_loss_small(data, tmp_path):
    config = learning.TrainConfig(
        num_steps=300, batch_size=64, steps_per_dispatch=25, report_every=25, checkpoint_every=100, closed_loop=0.0
    )
    run = fit(data, GAIN, config, tmp_path)
    first, last = run.metrics[0]["validation_loss"], run.metrics[-1]["validation_loss"]
    assert last < 0.2 * first
    assert_same_weights(run.model, learning.load(tmp_path / "checkpoints"))
    assert learning.load(tmp_path / "checkpoints", "best") is not None


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_checkpoint(data, tmp_path):
    wild = dataclasses.replace(BRIEF, learning_rate=1e30, clip=1e30, warmup=0.0)
    with pytest.raises(learning.NonFiniteLossError, match=r"within the steps up to \d+, or the parameters"):
        fit(data, GAIN, wild, tmp_path / "wild")
    if (tmp_path / "wild" / "checkpoints" / "last").exists():
        for path in (tmp_path / "wild" / "checkpoints" / "last").glob("[0-9]*"):
            assert int(path.stem) < 12


def test_another_run_or_order_of_windows_in_the_same_folder_is_refused(data, copied):
    other, order = dataclasses.replace(BRIEF, learning_rate=1e-4), source(data, dataclasses.replace(BRIEF, seed=5))
    refused(r"train\.learning_rate was 0\.002 and is now 0\.0001", fit, data, GAIN, other, copied)
    refused(r"source\.seed was 0 and is now 5", learning.fit, order, GAIN, BRIEF, copied)


def any_problem(rng, n, m):
    """A, B and full weights Q, R, N of a sampled problem; Q is singular."""
    joint = rng.normal(size=(n + m - 1, n + m))
    joint = joint.T @ joint
    A, B = 0.2 * rng.normal(size=(n, n)) + np.eye(n), rng.normal(size=(n, m))
    L = rng.normal(size=(n - 2, n))
    Q, R = L.T @ L, joint[n:, n:] + np.eye(m)
    N = 0.2 * L.T @ rng.normal(size=(n - 2, m))
    return A, B, Q + N @ np.linalg.solve(R, N.T), R, N


def described(A, B, Q, R, N):
    """One sampled problem as a network is told of it, float64."""
    one = (a[None] for a in (A, B, Q, R, N))
    return simulation.Problem.from_matrices(*one, optimum=False).told()


@jax.jit
def normal_form(told):
    return learning.models.matrix.NormalForm.of(told, told.state_mask)


def test_the_normal_form_has_the_optimum_of_the_problem():
    """A gain found in normal form is the one of SciPy's solution in the plant's coordinates, with any weights."""
    problem = any_problem(np.random.default_rng(1), 6, 3)
    A, B, Q, R, N = problem
    K, _ = gain(A, B, Q, R, N)
    form = normal_form(described(*problem))
    D, B, H = (np.asarray(a)[0, :6] for a in (form.D, form.B, form.H))
    F, B, H = D[:, :6] + np.eye(6), B[:, :3], H[:, :6]
    inner, _ = gain(F, B, H + 1e-15 * np.eye(6), np.eye(3))
    found = form.gain(jnp.asarray(np.pad(inner, [(0, 3), (0, 6)]))[None])[0]
    np.testing.assert_allclose(found[:3, :6], K, rtol=1e-6, atol=1e-8)
    assert not np.asarray(found)[3:].any()
    assert not np.asarray(found)[:, 6:].any()


def test_an_unstable_plant_whose_state_costs_nothing_has_a_finite_normal_form():
    """Without a floor its size is that of rounding, the optimal cost there is 1e30, and training meets NaN."""
    for A in (np.diag([1.2, 0.9]), np.random.default_rng(0).normal(size=(6, 6))):
        B = np.ones((len(A), 1))
        form = normal_form(described(A, B, 0 * A, np.eye(1), 0 * B))
        _, P = gain(A, B, 1e-12 * np.eye(len(A)), np.eye(1))
        back = np.linalg.inv(np.asarray(form.into)[0, : len(A), : len(A)])
        assert 0.1 < np.linalg.norm(back.T @ P @ back, 2) < 1e4


def test_a_policy_on_a_batch_and_on_stacked_families_is_the_same_policy(model):
    model = perturbed(model)
    plants = [systems.sample(n, key=KEY, num=2) for n in ("pendulum", "two_link_arm")]
    stacked = simulation.Problem.of(plants)
    x0 = stacked.initial_state(key=KEY, num=3)
    together = simulation.rollout(stacked, learning.policy(model, plants, verify=False), x0, 6)
    for k, plant in enumerate(plants):
        rows = slice(2 * k, 2 * k + 2)
        bound, plant = learning.policy(model, plant, verify=False), systems.linearise(plant)
        alone = simulation.rollout(plant, bound, x0[rows, :, : plant.n], 6, linear=True)
        size = float(jnp.abs(alone.us).max())  # the loops grow, and their rounding with them
        np.testing.assert_allclose(together.us[rows, ..., : plant.m], alone.us, rtol=1e-4, atol=1e-5 * size)


def test_in_closed_loop_the_policy_sees_the_windows_it_was_trained_on(data, model):
    """Replaying a recorded trajectory step by step gives the predictions that the windows give."""
    model = perturbed(model)
    table = data.table()
    batch = source(data).held.gather(np.arange(20)).batch(table)  # the first trajectory's windows
    told = table.told(batch.variant[:1])
    expected = answer(model, batch, table)[:, -1]
    policy = learning.policy(model, told, verify=False)
    carry, act = policy.init((1,)), jax.jit(policy.__call__)
    for t in range(20):
        # the recorded input, excitation included, takes the place of the policy's own
        xs, us, live = carry
        carry = xs, us.at[:, -1].set(batch.u[t, -1]), live
        carry, u = act(carry, batch.x[t, -1][None])
        np.testing.assert_allclose(u[0], expected[t], rtol=1e-4, atol=1e-5)


def test_weights_that_the_network_cannot_see_are_refused(model):
    plant = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=[[2.0, 0.9], [0.9, 1.0]])
    diagonal = systems.from_matrices([[0.0, 1.0], [0.0, 0.0]], [[0.0], [1.0]], Q=np.diag([2.0, 1.0]))
    crossed = simulation.Problem.of(diagonal, N=np.array([[0.3], [0.1]]), linear=True, optimum=False)
    assert model.any_weights == (model.config.kind == "matrix")
    if model.any_weights:
        for bound in (learning.policy(model, plant), learning.policy(model, crossed)):
            assert np.isfinite(bound.context.gain).all()
        return
    refused("plant: expected Q to be diagonal", learning.policy, model, plant)
    refused("N: expected no cross weight", learning.policy, model, crossed)


@pytest.mark.matrix
def test_validation_is_of_the_validation_variants_and_best_is_the_least_wasteful(data, tmp_path):
    run = fit(data, SMALL, BRIEF, tmp_path)
    held, table = source(data).of_split("validation").held, data.table()
    batch = held.gather(np.arange(held.num_windows)).batch(table)
    prediction, target, gain = (
        np.asarray(a, float) for a in (answer(run.model, batch, table), batch.target, batch.gain)
    )
    weight = np.asarray(batch.time_mask)[:, :, None] * np.asarray(batch.input_mask)[:, None]
    weight = weight / np.sqrt(np.linalg.norm(gain, axis=(1, 2)))[:, None, None]
    expected = (weight * (prediction - target) ** 2).sum() / (weight > 0).sum()
    assert run.metrics[-1]["validation_loss"] == pytest.approx(expected, rel=1e-3)
    assert set(data.variants.split[int(v)] for v in batch.variant) == {"validation"}
    scores = [row["validation_efficiency"] for row in run.metrics]
    kept = [int(p.stem) for p in (tmp_path / "checkpoints" / "best").iterdir()]
    assert kept == [run.metrics[int(np.argmax(scores))]["step"]]


def test_parameters_that_are_not_numbers_are_never_saved(data, tmp_path, monkeypatch):
    """The loss of a step is that of before its update: a bad update must not become the checkpoint."""
    inner = learning.training_step.optimizer

    def breaks_at_eight(config):
        def update(updates, state, params=None):
            updates, state = inner(config).update(updates, state, params)
            count = state[1][0].count
            return jax.tree.map(lambda g: jnp.where(count >= 8, jnp.nan, g), updates), state

        return optax.GradientTransformation(inner(config).init, update)

    monkeypatch.setattr(learning.training_step, "optimizer", breaks_at_eight)
    with pytest.raises(learning.NonFiniteLossError, match="The checkpoint of step 4 is kept"):
        fit(data, GAIN, dataclasses.replace(BRIEF, seed=9), tmp_path / "bad")  # a run whose steps no test has compiled
    kept = learning.load(tmp_path / "bad" / "checkpoints")
    assert all(np.isfinite(a).all() for a in learning.models.split(kept)[1].values())
    refused("which: expected one of last, best", learning.load, tmp_path / "bad" / "checkpoints", "newest")


def test_the_settings_of_a_run_are_those_it_was_made_with_and_none_where_nothing_was_trained(finished, tmp_path):
    for folder in (finished[0] / "checkpoints", str(finished[0] / "checkpoints")):
        model, train = learning.checkpoints.settings(folder)
        assert (model.kind, model.window, model.hidden) == ("gain", 4, 32)
        assert model == learning.models.used(GAIN)
        assert train == BRIEF
    assert learning.checkpoints.settings(tmp_path) is None
    refused("holds no training run", learning.load, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "transformer", "width": 10, "heads": 4}, "width: expected a multiple of heads = 4, but found 10"),
        ({"kind": "gain", "width": 24}, "width: a model of kind gain has no such setting; there are kind, window"),
        ({"kind": "transformr"}, "kind: expected a registered model .*did you mean transformer"),
        ({"kind": "mlp", "depth": 0}, "depth: expected a whole number in .*, but found 0"),
        ({"kind": "mlp", "description": "false"}, "description: expected True or False, but found 'false'"),
        ({"kind": "mlp", "seed": 1.5}, r"seed: expected a whole number in \[0, 4294967295\], but found 1\.5"),
        ({"imitation": 0.0, "closed_loop": 0.0}, "closed_loop: expected a weight above 0 with imitation = 0"),
        ({"plants": 513}, "plants: expected at most batch_size = 512"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a number > 0, but found nan"),
        ({"warmup": np.ones(2)}, "warmup: expected .* but found"),
        ({"seed": 10**400}, "seed: expected .* but found"),
        ({"learning_rat": 1}, "learning_rat: TrainConfig has no such setting; did you mean learning_rate"),
        ({"random_share": 1.0}, "random_share: expected a share"),
        ({"dagger_rounds": 2}, "dagger_rounds: expected 0, as this setting is gone, but found 2"),
        ({"ema": 0.9}, "ema: expected 0.0, as this setting is gone, but found 0.9"),
    ],
)
def test_a_bad_config_is_refused_and_one_at_the_edge_of_that_is_taken(change, message):
    build = lambda change: learning.models.build(learning.ModelConfig(**change))  # noqa: E731
    refused(message, build if "kind" in change else learning.TrainConfig.from_dict, change)
    learning.TrainConfig(plants=512, imitation=0.0)
    learning.TrainConfig(imitation=1.0, closed_loop=0.0, random_share=0.9)


def test_rows_of_metrics_say_how_often_the_data_were_gone_through_and_how_fast_it_learned(data, finished):
    train = [family for family in CONFIG["families"] if family != "dc_motor"]
    counted = sum(len(data.trajectories("train", family).cost) for family in train) * CONFIG["num_steps"]
    peak, warm = BRIEF.learning_rate, round(BRIEF.warmup * 12)
    assert [row["step"] for row in finished[1].metrics] == [4, 8, 12]
    for row in finished[1].metrics:
        assert row["epoch"] == pytest.approx(row["step"] * 32 / counted)
        ahead = (row["step"] - warm) / (12 - warm)
        rate = peak * (0.01 + 0.99 * (1 + np.cos(np.pi * ahead)) / 2)
        assert row["learning_rate"] == pytest.approx(rate, rel=1e-5)


def test_the_defaults_of_the_configs_are_those_of_notebook_03():
    nb = notebooks.read(Path(__file__).parents[2] / "notebooks" / "03_training.ipynb")
    defaults = {name: parameter.default for name, parameter in nb.parameters.items()}
    assert notebooks.config(learning.ModelConfig, defaults) == learning.ModelConfig()


def test_configs_go_through_json_also_those_of_before():
    assert learning.TrainConfig.from_json(BRIEF.to_json()) == BRIEF
    # settings that are gone, of a run that did not use them
    idle = {"ema": 0.0, "accumulate": 1, "patience": 0, "dagger_rounds": 0}
    assert learning.TrainConfig.from_dict(json.loads(BRIEF.to_json()) | idle) == BRIEF
    assert learning.ModelConfig.from_dict(json.loads(SMALL.to_json()) | {"remat": False, "activation": "gelu"}) == SMALL
    for text in ("", "[1]", "NaN", "[" * 100_000):
        refused("TrainConfig: expected", learning.TrainConfig.from_json, text)
    refused("kind: expected a registered model", learning.models.build, learning.ModelConfig(kind="recurrent"))


def test_the_optimizer_is_adamw_of_clipped_gradients():
    """Loshchilov and Hutter's recursion by NumPy; two arrays have one norm."""
    config = learning.TrainConfig(num_steps=5, learning_rate=0.1, warmup=0.0, weight_decay=0.3, clip=2.0)
    optimize, rng = learning.optimizer(config), np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=(2, 3))), "b": jnp.asarray(rng.normal(size=4))}
    p, state = np.concatenate([np.ravel(a) for a in params.values()]), optimize.init(params)
    m, v = np.zeros(10), np.zeros(10)
    for t, size in enumerate((30.0, 0.5, 4.0, 1.0, 0.1)):
        g = rng.normal(size=10)
        g *= size / np.linalg.norm(g)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimize.update(
                {"a": jnp.asarray(g[:6].reshape(2, 3)), "b": jnp.asarray(g[6:])}, state, params
            )
        params = optax.apply_updates(params, updates)
        g *= min(1, 2.0 / size)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        way = m / (1 - 0.9 ** (t + 1)) / (np.sqrt(v / (1 - 0.999 ** (t + 1))) + 1e-8)
        rate = 0.001 + 0.099 * (1 + np.cos(np.pi * t / 5)) / 2
        p = p - rate * (way + 0.3 * p)
        np.testing.assert_allclose(np.concatenate([np.ravel(a) for a in params.values()]), p, rtol=1e-6)


def test_the_terms_of_the_objective_count_as_much_as_their_weights(data):
    graph, params = learning.models.split(perturbed(learning.models.build(GAIN)))
    given = train_batch(data)

    def value(**weights):
        config = learning.TrainConfig(plants=16, **weights)
        return float(learning.objective(graph, config)(params, given)[0])

    imitation, closed_loop = value(imitation=1.0, closed_loop=0.0), value(imitation=0.0, closed_loop=1.0)
    assert min(imitation, closed_loop) > 0.01
    both = value(imitation=2.0, closed_loop=0.3)
    assert both == pytest.approx(2 * imitation + 0.3 * closed_loop, rel=1e-6)
    # and each window as much as its own, which is 1/√‖K‖
    size = np.linalg.norm(np.asarray(given.batch.gain, float), axis=(1, 2))
    np.testing.assert_allclose(given.weight, size**-0.5, rtol=1e-5)
    given = dataclasses.replace(given, weight=4 * given.weight)
    assert value(imitation=1.0, closed_loop=0.0) == pytest.approx(4 * imitation, rel=1e-6)


@pytest.mark.matrix
def test_what_is_registered_in_a_cell_works_in_fit_and_load(data, tmp_path):
    @learning.models.register("plain")
    class Plain(learning.models.HistoryNetwork):
        def read(self, tokens, prefix, exists, rows):
            return jnp.tanh(tokens + prefix[:, None])[:, -rows:]

    @learning.losses.register("absolute")
    def absolute(predictions):
        error = jnp.abs(predictions.prediction - predictions.target)
        return jnp.sum(predictions.weight * error) / jnp.sum(predictions.weight)

    config = learning.ModelConfig(kind="plain", window=4, width=16, hidden=32)
    train = dataclasses.replace(BRIEF, loss="absolute")
    run = fit(data, config, train, tmp_path)
    assert isinstance(run.model, Plain)
    assert_same_weights(run.model, learning.load(tmp_path / "checkpoints"))
    with pytest.raises(ValueError, match=r"loss: expected a registered loss .*; did you mean absolute"):
        fit(data, config, learning.TrainConfig(loss="absolut"), tmp_path / "other")


def test_wrong_shapes_are_told_in_terms_of_plants_windows_and_channels(data):
    table, some = windows(data)
    batch = some.batch(table)
    net = learning.models.build(SMALL)
    context = net.encode(table.told(batch.variant))
    long = jnp.zeros((16, 5, 12)), jnp.zeros((16, 5, 6)), jnp.ones((16, 5))
    for args, words in (
        (long, r"of 16 plants and at most 4 steps \(more: build .*window=.* but found \(16, 5, 12\)"),
        ((batch.x[..., :4], batch.u, batch.time_mask), r"expected .*, steps, 12\], .* padded.* but found \(16, 4, 4\)"),
        ((batch.x[:3], batch.u[:3], batch.time_mask[:3]), r"of 16 plants .*, but found \(3, "),
    ):
        refused(words, net, *args, context)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"window": 5}, "window = 4, as the model sees, but found 5"),
        ({"batch_size": 7}, "batch_size = 32, as in the config, but found 7"),
        ({"split": "validation"}, "split = 'train'"),
    ],
)
def test_a_source_that_does_not_fit_a_training_is_refused(changes, words, data, tmp_path):
    some = dataset.source(data, **({"batch_size": 32, "window": 4} | changes))
    refused(words, learning.fit, some, SMALL, BRIEF, tmp_path)
    assert not list(tmp_path.iterdir())
