"""Windows: each once an epoch, scaled, padded, masked, from the right plants; as a reference cuts them."""

import inspect
import threading
import time

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from refusals import refused
from test_dataset_generation import CONFIG, changed

from lqrlab import control, dataset, systems
from lqrlab.compute import threads
from lqrlab.dataset import shuffling, sources, windows
from lqrlab.simulation import Problem

WINDOW, STEPS = 5, CONFIG.num_steps


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return dataset.generate(CONFIG, tmp_path_factory.mktemp("data") / "made")


def reference(data, split):
    """Every window of a split from the files alone, one after the other, by loops; none reaches over a row's start."""
    out = {name: [] for name in ("variant", "x", "u", "target", "time_mask", "state_mask", "input_mask")}
    row = 0
    for shard in data.shards:
        with h5py.File(data.path / shard["file"]) as file:
            v = {name: a[...] for name, a in file["variants"].items() if isinstance(a, h5py.Dataset)}
            runs = {name: a[...] for name, a in file["trajectories"].items()}
        for i, k in enumerate(runs["variant"]):
            if v["split"][k] != split.encode():
                continue
            n, m = v["B"][k].shape
            sx, su, K = v["scale_x"][k], v["scale_u"][k], v["K"][k]
            for t in range(runs["controls"].shape[1]):
                x, u, target = np.zeros((WINDOW, 12)), np.zeros((WINDOW, 6)), np.zeros((WINDOW, 6))
                live = np.zeros(WINDOW)
                for j in range(max(WINDOW - 1 - t, 0), WINDOW):
                    live[j], time = 1, t - (WINDOW - 1) + j
                    state = runs["states"][i, time].astype(float)
                    x[j, :n] = state / sx
                    target[j, :m] = -(K @ state) / su
                    if time > 0:
                        u[j, :m] = runs["controls"][i, time - 1] / su
                masks = (np.arange(12) < n).astype(float), (np.arange(6) < m).astype(float)
                for name, a in zip(out, (row + k, x, u, target, live, *masks)):
                    out[name].append(a)
        row += len(v["split"])
    return {name: np.array(a) for name, a in out.items()}


def joined(batches):
    """All batches of an epoch as one."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *batches)


def rows(batch):
    """One line of bytes for each window."""
    leaves = [np.asarray(leaf).reshape(len(batch.variant), -1) for leaf in jax.tree.leaves(batch)]
    table = np.concatenate([leaf.astype(np.float32) for leaf in leaves], axis=1)
    return sorted(line.tobytes() for line in table)


def source(data, kind="resident", **options):
    return dataset.source(data, kind=kind, **({"batch_size": 32, "window": WINDOW} | options))


FROM_FILES = ["resident", "memory", "streaming"]


@pytest.mark.parametrize("split", ["train", "validation", "held_out"])
def test_windows_equal_the_reference(split, data):
    expected = reference(data, split)
    held = source(data, split=split).held
    assert held.num_windows == len(expected["x"])
    batch = held.gather(jnp.arange(held.num_windows)).batch(data.table())
    assert (batch.x.dtype, batch.variant.dtype) == (jnp.float32, jnp.int32)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(batch, name), value, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_masked_entries_are_exactly_zero(kind, data):
    for batch in source(data, kind):
        x, u, target, t, lx, lu = (
            np.asarray(a) for a in (batch.x, batch.u, batch.target, batch.time_mask, batch.state_mask, batch.input_mask)
        )
        assert set(np.unique(t)) <= {0.0, 1.0}
        assert np.all(t[:, -1] == 1)  # the time to act at always exists
        for value, mask in ((x, lx), (u, lu), (target, lu)):
            assert np.all(value[(t[:, :, None] * mask[:, None, :]) == 0] == 0)
            assert np.count_nonzero(value) > 0
        first = np.argmax(t, axis=1)  # nothing reached the plant before the first time
        assert np.all(u[np.arange(len(u)), first][t[:, 0] == 0] == 0)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_each_window_once_an_epoch_in_another_order_each_time(kind, data):
    """36 windows a batch, ten batches an epoch; the pools of a streaming source hold a third of the windows."""
    some = source(data, kind, batch_size=36, pool_bytes=20_000)
    assert (some.num_windows, len(some)) == (360, 10)
    held = source(data).held
    expected = rows(held.gather(jnp.arange(360)).batch(data.table()))
    epochs = [joined(some.batches(10 * epoch, 10 * epoch + 10)) for epoch in (0, 1)]
    for epoch in epochs:
        assert rows(epoch) == expected
    assert not np.array_equal(epochs[0].x, epochs[1].x)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_windows_go_on_from_epoch_to_epoch_however_they_are_asked_for(kind, data):
    some = source(data, kind, pool_bytes=20_000)
    whole = some.windows(340, 60)  # the last 20 of epoch 0, the first 40 of epoch 1
    parts = [some.windows(340, 20), some.windows(360, 25), some.windows(385, 15)]
    jax.tree.map(lambda a, *b: np.testing.assert_array_equal(a, np.concatenate(b)), whole, *parts)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_only_variants_of_the_split_are_in_an_epoch(kind, data):
    """Through the plants' own numbers: the table's rows alone would agree with any mistake."""
    for split in ("train", "validation", "held_out"):
        epoch = joined(source(data, kind).of_split(split))
        seen = np.unique(epoch.variant)
        assert np.array_equal(seen, data.rows(split))
        assert set(data.variants.split[seen]) == {split}
        assert ("dc_motor" in data.variants.family[seen]) == (split == "held_out")
        # first states of trajectories, from the files
        starts = []
        for family in CONFIG.families:
            runs, sx = data.trajectories(None, family), data.column("scale_x", None, family)
            chosen = data.variants.split[runs.variant] == split
            starts += (runs.x0[chosen] / sx[runs.variant[chosen] - data.rows(None, family)[0]]).tolist()
        early = np.asarray(epoch.time_mask)[:, -2] == 0
        found = np.unique(np.asarray(epoch.x)[early, -1, :2], axis=0)
        np.testing.assert_allclose(found, np.unique([s[:2] for s in starts], axis=0), rtol=1e-5, atol=1e-6)


def test_all_kinds_give_the_same_batches_where_one_pool_holds_the_split(data):
    kinds = [source(data, kind, batch_size=50, seed=3) for kind in FROM_FILES]
    for batches in zip(*(some.batches(5, 20) for some in kinds), strict=True):
        for other in batches[1:]:
            jax.tree.map(np.testing.assert_array_equal, batches[0], other)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_a_batch_is_a_function_of_seed_and_position(kind, data):
    some = source(data, kind, seed=3, pool_bytes=20_000)
    whole = list(some.batches(20, 31))
    for a, b in zip(whole[4:], some.batches(24, 31), strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)
    again, other = (source(data, kind, seed=seed, pool_bytes=20_000) for seed in (3, 4))
    for position in (7, 0, 3):
        jax.tree.map(np.testing.assert_array_equal, again.batch(20 + position), whole[position])
    assert not np.array_equal(other.batch(20).x, whole[0].x)


def test_automatic_kind_is_by_size(data, monkeypatch):
    assert isinstance(source(data, "auto"), sources.ResidentSource)
    monkeypatch.setattr(sources, "_RESIDENT_BYTES", 1000)
    assert isinstance(source(data, "auto"), sources.StreamingSource)


def test_streaming_reads_little_at_a_time(data):
    """Two pools are held, whatever the size of the data set; blocks of several files are mixed."""
    some = source(data, "streaming", batch_size=16, pool_bytes=20_000)
    pools = some._epoch(0).pools
    assert len(pools) >= 2
    for batch in some:
        assert some._pools.cache_info().currsize <= 2
        assert batch.x.shape == (16, WINDOW, 12)
    assert any(len({block.shard for block in pool}) > 1 for pool in pools)


def test_the_description_is_that_of_the_plants(data):
    """A table from the matrices on disk equals one from the plants, which an unseen plant has too."""
    table = data.table()
    for family in CONFIG.families:
        plants, at = data.plants(None, family), data.rows(None, family)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7),
            table.told(at),
            Problem.of(plants, linear=True, optimum=False).scaled().told(),
        )
        design = control.lqrd(*plants.matrices(), *plants.weights(), plants.dt)
        sx, su = (np.asarray(s) for s in plants.scales)
        K = np.asarray(design.K) * np.broadcast_to(sx, design.poles.shape)[:, None] / su[..., :, None]
        np.testing.assert_allclose(table.problem.K[at, : plants.m, : plants.n], K, rtol=1e-8, atol=1e-9)
    assert table.gain(at).dtype == jnp.float32
    assert table.problem.A.dtype == jnp.float64
    assert np.array_equal(table.validation, data.rows("validation"))
    splits = [data.rows(split) for split in ("train", "validation", "held_out")]
    assert sorted(np.concatenate(splits).tolist()) == list(range(21))


def test_windows_in_a_scan(data):
    """What a train step does: one compiled loop that makes its own batches."""
    some = source(data, seed=3)

    @jax.jit
    def epoch(held):
        def step(total, position):
            windows = held.shuffled(position * 40, 1, 40, 3)
            return total + jnp.sum(windows.signals), windows.variant

        return jax.lax.scan(step, jnp.zeros((), jnp.float32), jnp.arange(9))

    total, variant = epoch(some.held)
    full = some.windows(360, 360)
    np.testing.assert_array_equal(variant.reshape(-1), full.variant)
    assert float(total) == pytest.approx(float(jnp.sum(full.signals)), rel=1e-4)


@pytest.mark.parametrize("linear", [True, False])
def test_loops_are_disturbed_as_the_config_says(linear, data, tmp_path):
    """What x[t+1] leaves over is the disturbance, what u = −Kx leaves over the noise of the sensors times K."""
    values = {"noise": 0.03, "sensor_noise": 0.1, "excitation": 0.0, "trajectories": 40}
    config = changed(families=("pendulum",), held_out=(), linear=linear, **values)
    made = dataset.generate(config, tmp_path).trajectories(None, "pendulum")
    of = np.repeat(made.variant, STEPS)
    # the plants are those of the other data set: a family's do not depend on the other families
    A, B, K, sx, su = (data.column(name, None, "pendulum")[of] for name in ("A", "B", "K", "scale_x", "scale_u"))
    x, after = (a.reshape(-1, 2) / sx for a in (made.states[:, :-1], made.states[:, 1:]))
    u = made.controls.reshape(-1, 1) / su
    if linear:
        flow = np.concatenate([np.concatenate([A, B], axis=2), np.zeros((len(A), 1, 3))], axis=1)
        flow = scipy.linalg.expm(flow * float(systems.make("pendulum").dt))
        moved = np.einsum("pij,pj->pi", flow, np.hstack([x * sx, u * su]))[:, :2] / sx
    else:
        plants = Problem.of(data.plants(None, "pendulum")[of], optimum=False)
        moved = np.asarray(plants.step(jnp.asarray(x * sx), jnp.asarray(u * su))[0]) / sx
    np.testing.assert_allclose((after - moved).std(0), 0.03, rtol=0.1)
    K = K[:, 0] / su * sx
    wanted, sensed = -np.sum(K * x, axis=1), 0.1 * np.linalg.norm(K, axis=1)
    assert np.std((u[:, 0] - wanted) / sensed) == pytest.approx(1.0, rel=0.15)


def test_placing_on_the_cpu_copies_nothing(data, monkeypatch):
    """Windows are gathered from the buffer that the files were read into; the pools' batches too."""
    read, _ = windows.read(data, WINDOW, windows.blocks(data, "train"), True)
    placed = jax.device_put(read, jax.devices("cpu")[0])
    assert placed.unsafe_buffer_pointer() == read.ctypes.data
    made = []
    monkeypatch.setattr(sources, "aligned", lambda *given: made.append(threads.aligned(*given)) or made[-1])
    batch = source(data, "streaming").windows(0, 32)
    assert batch.signals.unsafe_buffer_pointer() == made[-1].ctypes.data


def test_a_device_is_given_by_its_name_or_as_jaxs_own(data):
    (device,) = jax.local_devices(backend="cpu")
    for given in ("cpu", "cpu:0", "auto", device):
        made = source(data, "memory", device=given)
        assert made.spec.device == device
        assert made.windows(0, 8).signals.devices() == {device}
        assert made.of_split("validation").spec.device == device


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "cup"}, "device: 'cup' is not on this machine, which has cpu:0"),
        ({"split": "test"}, "split: expected one of train"),
        ({"kind": "cloud"}, "kind: expected one of"),
        ({"batch_size": 0}, "batch_size: expected a whole number"),
        ({"window": 0}, "window: expected a whole number"),
        ({"seed": -1}, "seed: expected"),
        ({"seed": 2**32}, "seed: expected"),
        ({"kind": "streaming", "pool_bytes": 100}, "pool_bytes: expected at least"),
    ],
)
def test_bad_arguments(arguments, words, data):
    refused(words, source, data, **arguments)


@pytest.mark.parametrize("kind", FROM_FILES)
def test_positions_before_the_first_and_after_the_last_epoch_are_refused(kind, data):
    some = source(data, kind)
    last = some.num_positions // some.batch_size - 1
    for position in (-1, last + 1, 10**30):
        refused(r"position: expected a whole number in \[0, ", some.batch, position)
        refused(r"first: expected a whole number in \[0, ", some.windows, position * some.batch_size, some.batch_size)
    refused("count: expected a whole number ≥ 1", some.windows, 0, 0)
    refused("start: expected a whole number ≥ 0", some.batches, -1)
    assert np.isfinite(some.batch(last).signals).all()


def test_an_empty_split_is_refused(tmp_path):
    config = changed(families=("pendulum",), held_out=(), variants=4, validation=0.0)
    opened = dataset.generate(config, tmp_path)
    for kind in FROM_FILES:
        refused("has no trajectory in 'held_out'", source, opened, kind, split="held_out")


def test_leaving_an_epoch_early_ends_its_thread(data):
    before = threading.active_count()
    batches = source(data, "resident").batches()
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    for _ in range(50):
        if threading.active_count() == before:
            return
        time.sleep(0.02)
    raise AssertionError(threading.enumerate())


# Shuffling -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 2, 3, 16, 17, 1000, 65_537])
def test_an_order_is_a_permutation_and_the_same_everywhere(num):
    at = np.arange(num)
    there = np.asarray(shuffling.shuffled(at, num, 7, 2))
    here = shuffling.shuffled_on_host(at, num, 7, 2)
    assert np.array_equal(there, here)
    assert np.array_equal(np.sort(here), at)
    assert np.array_equal(shuffling.shuffled_on_host(at[::3], num, 7, 2), here[::3])
    if num > 100:
        for other in (shuffling.shuffled_on_host(at, num, 8, 2), shuffling.shuffled_on_host(at, num, 7, 3)):
            assert np.mean(other == here) < 0.1


def test_an_order_is_that_of_the_published_cipher_in_whole_numbers():
    """And so it stays from one version to the next: a run that is resumed goes on in the order it began with."""

    def mix(v):
        v = (v ^ v >> 16) * 0x85EBCA6B % 2**32
        v = (v ^ v >> 13) * 0xC2B2AE35 % 2**32
        return v ^ v >> 16

    def walked(v, num, seed, epoch):
        bits = 1
        while 4**bits < num:
            bits += 1
        word = mix(mix(seed) ^ epoch * 0x9E3779B9 % 2**32)
        while True:
            left, right = v >> bits, v % 2**bits
            for i in range(6):
                left, right = right, left ^ mix(right ^ mix((word + 0x1234567 * (i + 1)) % 2**32)) % 2**bits
            v = left << bits | right
            if v < num:
                return v

    for num, seed, epoch in ((1, 0, 0), (2, 3, 1), (5, 1, 0), (17, 2**32 - 1, 9), (70_000, 4, 2), (2**32 - 1, 1, 1)):
        at = np.unique(np.linspace(0, num - 1, 50).astype(np.int64))
        found = shuffling.shuffled_on_host(at, num, seed, epoch)
        assert found.tolist() == [walked(int(v), num, seed, epoch) for v in at]
    for num in (0, 2**32):
        refused("num: expected between 1 and", shuffling.shuffled_on_host, np.arange(1), num, 0, 0)


def test_pools_hold_all_blocks_once_no_more_than_fit_and_in_order_where_all_fit():
    sizes = np.random.default_rng(0).integers(1, 6, 20)
    blocks = tuple(windows.Block(0, i, i + 1, np.arange(size), np.arange(size)) for i, size in enumerate(sizes))
    whole = int(sizes.sum())
    for room in (whole, whole + 7):
        (pool,) = (epoch := sources._plan_epoch(blocks, room, 3, 5, 1)).pools
        assert pool == blocks
        assert epoch.starts == [0, 3 * whole]
    seen = []
    for number in range(3):
        epoch = sources._plan_epoch(blocks, 11, 3, 5, number)
        held = [sum(map(len, pool)) for pool in epoch.pools]
        assert max(held) <= 11
        # the next block would not have fitted into the pool before
        assert all(a + len(pool[0]) > 11 for a, pool in zip(held, epoch.pools[1:]))
        assert epoch.starts == [0, *(3 * np.cumsum(held)).tolist()]
        order = [block.first for pool in epoch.pools for block in pool]
        assert sorted(order) == list(range(20))
        seen.append(order)
    assert len({tuple(order) for order in (*seen, range(20))}) == 4
    (alone,) = sources._plan_epoch(blocks, whole - 1, 3, 5, 0).pools[1:]
    assert len(alone) == 1


def test_streaming_shuffles_uniformly(tmp_path):
    """Over epochs every window is as likely at the start of an epoch as at its end, across pools."""
    config = changed(families=("pendulum",), held_out=(), variants=16, validation=0.0)
    opened = dataset.generate(config, tmp_path)
    epochs, early = 60, np.zeros(16)
    some = source(opened, "streaming", batch_size=144, window=1, pool_bytes=2 * 12 * STEPS * 24 * 4)
    for epoch in range(epochs):
        early += np.bincount(some.batch(4 * epoch).variant, minlength=16)
    # a quarter of all windows is in the first batch: blocks of four variants come and go together
    share = early.reshape(4, 4).sum(1) / early.sum()
    assert np.all(np.abs(share - 0.25) < 6 * np.sqrt(0.25 * 0.75 / epochs))
    assert np.all(early > 0)


@pytest.mark.parametrize("count", [1, 511, 512, 701])
def test_windows_are_cut_whole_however_many_threads_cut_them(count):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(9, 20, 18)).astype(np.float32)
    at, out = rng.integers(0, 176, count), np.full((count, 5, 18), np.nan, np.float32)
    windows.cut(rows, at, out)
    times = rows.reshape(180, 18)
    np.testing.assert_array_equal(out, [times[i : i + 5] for i in at])


@pytest.mark.parametrize("make", [np.empty, np.zeros])
def test_an_aligned_array_is_taken_over_without_a_copy(make):
    for count in range(1, 20):  # some of which begin elsewhere without it
        array = threads.aligned((count, 5, 3), make=make)
        assert (array.shape, array.dtype, array.ctypes.data % 64) == ((count, 5, 3), np.float32, 0)
        assert make is np.empty or not array.any()
        taken = jax.device_put(array, may_alias=True)
        assert taken.unsafe_buffer_pointer() == array.ctypes.data


def test_what_could_not_be_read_is_read_when_it_is_there_again(tmp_path):
    opened = dataset.generate(changed(families=("pendulum",), held_out=(), variants=4), tmp_path / "set")
    some = source(opened, "streaming")
    (tmp_path / "set").rename(tmp_path / "away")
    refused("cannot be read", some.batch, 0)
    (tmp_path / "away").rename(tmp_path / "set")
    assert some.batch(0).x.shape == (32, WINDOW, 12)


def test_a_path_is_no_opened_data_set(tmp_path):
    plain = inspect.unwrap(dataset.source)  # without the type checker of these tests
    refused(r"data: expected an opened data set, dataset.open\(path\)", plain, tmp_path, batch_size=32, window=WINDOW)
