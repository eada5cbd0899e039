"""Windows: each once an epoch, scaled, padded, masked, from the right plants; as a reference cuts them."""

import dataclasses
import gc
import threading
import time
import types

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from lqrlab import dataset, simulation, systems
from lqrlab.compute import memory
from lqrlab.dataset import DataConfig, shuffling
from lqrlab.dataset.sources import streaming

WINDOW, STEPS = 5, 12
CONFIG = DataConfig(
    families=("pendulum", "two_link_arm", "dc_motor"),
    held_out=("dc_motor",),
    variants=7,
    variants_per_shard=4,
    validation=0.3,
    trajectories=3,
    num_steps=STEPS,
    seed=5,
)


def changed(**values):
    return dataclasses.replace(CONFIG, **values)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return dataset.generate(CONFIG, tmp_path_factory.mktemp("data") / "made")


def reference(data, split):
    """Every window of a split from the files alone, one after the other, by loops."""
    out = {name: [] for name in ("variant", "x", "u", "target", "time_mask", "state_mask", "input_mask")}
    row = 0
    for family in CONFIG.families:
        for block in (0, 1):
            with h5py.File(data.path / f"{family}-{block:05d}.h5") as file:
                v = {name: a[...] for name, a in file["variants"].items() if isinstance(a, h5py.Dataset)}
                runs = {name: a[...] for name, a in file["trajectories"].items()}
            for i, k in enumerate(runs["variant"]):
                if v["split"][k] != split.encode():
                    continue
                n, m = v["B"][k].shape
                sx, su, K = v["scale_x"][k], v["scale_u"][k], v["K"][k]
                for t in range(STEPS):
                    x, u, target = np.zeros((WINDOW, 12)), np.zeros((WINDOW, 6)), np.zeros((WINDOW, 6))
                    live = np.zeros(WINDOW)
                    for j in range(WINDOW):
                        time = t - (WINDOW - 1) + j
                        if time < 0:
                            continue
                        live[j] = 1
                        state = runs["states"][i, time].astype(float)
                        x[j, :n] = state / sx
                        target[j, :m] = -(K @ state) / su
                        if time > 0:
                            u[j, :m] = runs["controls"][i, time - 1] / su
                    out["variant"].append(row + k)
                    out["x"].append(x)
                    out["u"].append(u)
                    out["target"].append(target)
                    out["time_mask"].append(live)
                    out["state_mask"].append((np.arange(12) < n).astype(float))
                    out["input_mask"].append((np.arange(6) < m).astype(float))
            row += len(v["split"])
    return {name: np.array(a) for name, a in out.items()}


def joined(batches):
    """All batches of an epoch as one."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def rows(batch):
    """One line of bytes for each window."""
    leaves = [np.asarray(leaf).reshape(len(batch.variant), -1) for leaf in jax.tree.leaves(batch)]
    table = np.concatenate([leaf.astype(np.float32) for leaf in leaves], axis=1)
    return sorted(line.tobytes() for line in table)


@pytest.mark.parametrize("split", ["train", "validation", "held_out"])
def test_windows_equal_the_reference(split, data):
    expected = reference(data, split)
    windows = dataset.resident(data, split, WINDOW)
    assert windows.num_windows == len(expected["x"])
    batch = windows.gather(jnp.arange(windows.num_windows))
    assert (batch.x.dtype, batch.variant.dtype) == (jnp.float32, jnp.int32)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(batch, name), value, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("mode", ["resident", "memory", "streaming"])
def test_masked_entries_are_exactly_zero(mode, data):
    for batch in dataset.loader(data, batch_size=32, window=WINDOW, mode=mode):
        x, u, target, t, lx, lu = (
            np.asarray(a)
            for a in (batch.x, batch.u, batch.target, batch.time_mask, batch.state_mask, batch.input_mask)
        )
        assert set(np.unique(t)) <= {0.0, 1.0}
        assert np.all(t[:, -1] == 1)  # the time to act at always exists
        for value, live in ((x, lx), (u, lu), (target, lu)):
            assert np.all(value[(t[:, :, None] * live[:, None, :]) == 0] == 0)
            assert np.count_nonzero(value) > 0
        first = np.argmax(t, axis=1)  # nothing reached the plant before the first time
        assert np.all(u[np.arange(len(u)), first][t[:, 0] == 0] == 0)


@pytest.mark.parametrize("mode", ["resident", "memory", "streaming"])
def test_every_window_once_an_epoch_in_another_order_each_time(mode, data):
    windows = dataset.resident(data, "train", WINDOW)
    expected = rows(windows.gather(jnp.arange(windows.num_windows)))
    epochs = []
    for epoch in (0, 1):
        loader = dataset.loader(
            data,
            batch_size=50,
            window=WINDOW,
            epoch=epoch,
            mode=mode,
            drop_remainder=False,
            pool_bytes=20_000,
        )
        batches = list(loader)
        assert len(batches) == len(loader) == -(-windows.num_windows // 50)
        assert {len(b.variant) for b in batches[:-1]} == {50}
        epochs.append(joined(batches))
        assert rows(epochs[-1]) == expected
    assert not np.array_equal(epochs[0].x, epochs[1].x)


@pytest.mark.parametrize("mode", ["resident", "memory", "streaming"])
def test_only_variants_of_the_split_are_in_an_epoch(mode, data):
    """Through the plants' own numbers: the table's rows alone would agree with any mistake."""
    for split in ("train", "validation", "held_out"):
        epoch = joined(dataset.loader(data, split=split, batch_size=12, window=WINDOW, mode=mode))
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
        found = sorted(np.asarray(epoch.x)[early, -1, :2].tolist())
        np.testing.assert_allclose(found, sorted(s[:2] for s in starts), rtol=1e-5, atol=1e-6)


def test_resident_and_memory_give_the_same_batches(data):
    arguments = {"batch_size": 50, "window": WINDOW, "seed": 3, "epoch": 2}
    there, here = (dataset.loader(data, mode=mode, **arguments) for mode in ("resident", "memory"))
    for a, b in zip(there, here, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("mode", ["resident", "memory", "streaming"])
def test_a_batch_is_a_function_of_seed_epoch_and_position(mode, data):
    arguments = {
        "batch_size": 32,
        "window": WINDOW,
        "seed": 3,
        "epoch": 2,
        "mode": mode,
        "pool_bytes": 20_000,
    }
    whole = list(dataset.loader(data, **arguments))
    resumed = list(dataset.loader(data, start=4, **arguments))
    assert len(resumed) == len(whole) - 4
    for a, b in zip(whole[4:], resumed, strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)
    loader = dataset.loader(data, **arguments)
    for position in (7, 0, 3):
        jax.tree.map(np.testing.assert_array_equal, loader.batch(position), whole[position])
    other = dataset.loader(data, **(arguments | {"seed": 4})).batch(0)
    assert not np.array_equal(other.x, whole[0].x)


def test_streaming_reads_little_at_a_time(data):
    """Two pools are held, whatever the size of the data set; blocks of several files are mixed."""
    loader = dataset.loader(data, batch_size=16, window=WINDOW, mode="streaming", pool_bytes=20_000)
    held = loader.batch.__closure__
    stream = next(c.cell_contents.stream for c in held if hasattr(c.cell_contents, "stream"))
    assert len(stream.pools) >= 2
    for batch in loader:
        assert len(stream._held) <= 2
        assert batch.x.shape == (16, WINDOW, 12)
    assert any(len({block.shard for block in pool}) > 1 for pool in stream.pools)


def test_the_description_is_that_of_the_plants(data):
    """A table from the matrices on disk equals one from the plants, which an unseen plant has too."""
    table = data.table(np.float64)
    for family in CONFIG.families:
        plants, at = data.plants(None, family), data.rows(None, family)
        described = dataset.describe(plants)
        jax.tree.map(
            lambda a, b, at=at: np.testing.assert_allclose(a[at], b, rtol=1e-9, atol=1e-12),
            table.description,
            described,
        )
        gain = dataset.scaled_gain(jnp.asarray(data.column("K", None, family)), plants)
        np.testing.assert_allclose(table.gain[at], gain, rtol=1e-8, atol=1e-9)
    assert data.table().gain.dtype == jnp.float32
    splits = [np.asarray(getattr(table, split)) for split in ("train", "validation", "held_out")]
    assert sorted(np.concatenate(splits).tolist()) == list(range(21))
    for split, at in zip(("train", "validation", "held_out"), splits):
        assert set(data.variants.split[at]) == {split}


def test_description_is_exact_zero_order_hold():
    plant = systems.make("cart_pole", pole_length=0.5)
    described, (A, B) = dataset.describe(plant), plant.matrices()
    sx, su = (np.asarray(s) for s in plant.scales)
    step = scipy.linalg.expm(np.block([[np.asarray(A), np.asarray(B)], [np.zeros((1, 5))]]) * plant.dt)
    np.testing.assert_allclose(described.A[:4, :4], step[:4, :4] * sx / sx[:, None], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(described.B[:4, :1], step[:4, 4:] * su / sx[:, None], rtol=1e-12, atol=1e-14)
    outside = np.ones((12, 12), bool)
    outside[:4, :4] = False
    for value in (described.A, described.Q):
        assert np.all(np.asarray(value)[outside] == 0)
    np.testing.assert_allclose(described.Q[:4, :4], np.eye(4), atol=1e-12)
    assert np.asarray(described.state_mask).tolist() == [1.0] * 4 + [0.0] * 8


def test_gather_in_a_scan(data):
    """What a train step does: one compiled loop that makes its own batches."""
    windows = dataset.resident(data, "train", WINDOW)

    @jax.jit
    def epoch(windows, seed):
        def step(total, position):
            batch = windows.gather(windows.order(position * 40 + jnp.arange(40), seed, 1))
            return total + jnp.sum(batch.x), batch.variant

        return jax.lax.scan(step, jnp.zeros((), jnp.float32), jnp.arange(9))

    total, variant = epoch(windows, 3)
    assert windows.num_windows == 360
    full = windows.gather(windows.epoch_order(3, 1))
    np.testing.assert_array_equal(variant.reshape(-1), full.variant)
    assert float(total) == pytest.approx(float(jnp.sum(full.x)), rel=1e-4)


def test_families_by_weight(data):
    weights = {"two_link_arm": 3.0, "pendulum": 1.0}
    for mode in ("resident", "memory"):
        arguments = {"batch_size": 100, "window": WINDOW, "mode": mode, "family_weights": weights}
        epochs = [joined(dataset.loader(data, epoch=epoch, **arguments)) for epoch in range(6)]
        family = np.concatenate([data.variants.family[e.variant] for e in epochs])
        assert np.mean(family == "two_link_arm") == pytest.approx(0.75, abs=0.04)
        assert not np.array_equal(epochs[0].variant, epochs[1].variant)
        first, second = (epochs[0].x[at : at + 100] for at in (0, 100))  # nor the same draw in each batch
        assert not np.array_equal(first, second)
    alone = {"batch_size": 60, "window": WINDOW, "family_weights": {"pendulum": 1.0}}
    only, other = (joined(dataset.loader(data, seed=seed, **alone)) for seed in (0, 1))
    assert set(data.variants.family[only.variant]) == {"pendulum"}
    assert not np.array_equal(only.variant, other.variant)
    assert len(only.variant) == 360  # of 180 windows, of which 360 draws see 1 − e⁻² = 86 %
    assert len(set(rows(only))) == pytest.approx(180 * 0.865, abs=15)
    for mode in ("memory", "streaming"):
        for weights, words in (
            ({"dc_motor": 1.0}, "'dc_motor' is not in this split of pendulum, two_link_arm"),
            ({"pendulum": -1.0}, "weight ≥ 0"),
            ({"pendulum": float("inf")}, "weight ≥ 0"),
            ({"pendulum": 0.0}, "above 0"),
        ):
            with pytest.raises(ValueError, match=f"family_weights: .*{words}"):
                dataset.loader(data, batch_size=10, window=WINDOW, family_weights=weights, mode=mode)


@pytest.mark.parametrize("mode", ["memory", "streaming"])
def test_families_by_weight_in_each_mode(mode, data):
    """In streaming mode whole blocks are drawn; over many epochs the shares are those asked for."""
    weights = {"two_link_arm": 3.0, "pendulum": 1.0}
    arguments = {"batch_size": 36, "window": 1, "mode": mode, "family_weights": weights}
    family = [
        data.variants.family[np.asarray(b.variant)]
        for epoch in range(60)
        for b in dataset.loader(data, epoch=epoch, drop_remainder=False, **arguments)
    ]
    assert np.mean(np.concatenate(family) == "two_link_arm") == pytest.approx(0.75, abs=0.1)


def test_blocks_of_any_size_bring_their_family_as_often_as_its_weight_says():
    """Two uneven blocks of twenty trajectories against five blocks of two, at equal weights."""
    blocks = [streaming._Block(0, 0, n, np.arange(n)) for n in (2, 18)]
    blocks += [streaming._Block(1, 0, 2, np.arange(2))] * 5
    shards = types.SimpleNamespace(shards=[{"family": "a"}, {"family": "b"}])
    drawn = [b for e in range(400) for b in streaming._drawn(shards, blocks, {"a": 1.0, "b": 1.0}, 0, e)]
    sizes = [sum(len(b.keep) for b in drawn if b.shard == shard) for shard in (0, 1)]
    assert sizes[0] / sum(sizes) == pytest.approx(0.5, abs=0.05)
    assert np.mean([len(b.keep) == 18 for b in drawn if b.shard == 0]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("mode", ["memory", "streaming"])
def test_hosts_read_parts_that_are_disjoint_and_together_complete(mode, data):
    windows = dataset.resident(data, "train", WINDOW)
    expected = rows(windows.gather(jnp.arange(windows.num_windows)))
    arguments = {"batch_size": 30, "window": WINDOW, "mode": mode, "process_count": 3}
    found, batches = [], set()
    for host in range(3):
        whole = dataset.loader(data, process_index=host, drop_remainder=False, **arguments)
        found += rows(joined(whole))
        batches.add(len(dataset.loader(data, process_index=host, **arguments)))
    assert sorted(found) == expected  # each window on exactly one host: they are all different
    assert len(set(found)) == len(found)
    assert len(batches) == 1  # in step with each other


def test_live_batches_are_loops_of_the_same_plants_each_time_others(data):
    """Against the plants' own matrices, by NumPy: each window follows from one state to the next."""
    arguments = {"batch_size": 40, "window": WINDOW, "seed": 3, "at_once": 12}
    loader = dataset.live(CONFIG, **arguments)
    jax.tree.map(np.testing.assert_array_equal, loader.table, data.table())
    assert len(loader) == len(dataset.loader(data, batch_size=40, window=WINDOW)) == 9
    d = data.table(np.float64).description
    batches = list(loader)
    for batch in batches:
        x, u, of = (np.asarray(a, float) for a in (batch.x, batch.u, batch.variant))
        A, B = (np.asarray(a)[of.astype(int)] for a in (d.A, d.B))
        after = np.einsum("bij,btj->bti", A, x[:, :-1]) + np.einsum("bij,btj->bti", B, u[:, 1:])
        there = np.asarray(batch.time_mask)[:, :-1, None] > 0
        np.testing.assert_allclose(np.where(there, x[:, 1:], 0), np.where(there, after, 0), atol=2e-4)
        assert set(data.variants.split[of.astype(int)]) == {"train"}
        assert np.all(x[np.asarray(batch.time_mask) == 0] == 0)
    seen = rows(joined(batches[:3]))  # the first round: 144 windows, three batches of 40
    assert len(set(seen)) == len(seen)
    jax.tree.map(
        np.testing.assert_array_equal, dataset.live(CONFIG, start=4, **arguments).batch(5), batches[5]
    )
    others = [{"epoch": 1}, {"process_index": 1, "process_count": 2}, {"seed": 4}]
    for other in (batches[3], *(dataset.live(CONFIG, **(arguments | o)).batch(0) for o in others)):
        assert not set(rows(other)) & set(rows(batches[0]))
    spread = np.asarray(joined(batches).u + 0.0)
    assert np.std(spread[..., 0][np.abs(spread[..., 0]) > 0]) > 0.8 * CONFIG.excitation


def test_live_batches_of_nonlinear_plants_are_their_rollouts(data):
    """Whole trajectories under saturation, against each plant's own rollout from where they began."""
    config = changed(linear=False, saturation=0.3, excitation=0.0)
    arguments = {"batch_size": 30, "window": STEPS, "seed": 3, "at_once": 20}
    loader = dataset.live(config, **arguments)
    assert len(loader) == 12
    batches = list(loader)
    jax.tree.map(np.testing.assert_array_equal, dataset.live(config, **arguments).batch(7), batches[7])
    every, limited, seen = joined(batches), False, set()
    whole = np.flatnonzero(np.asarray(every.time_mask).all(axis=1))
    for i in whole:
        row = int(every.variant[i])
        family = data.variants.family[row]
        at = list(data.rows(None, family)).index(row)
        plant = jax.tree.map(lambda a: a[at] if jnp.ndim(a) else a, data.plants(None, family))  # noqa: B023
        (K, sx, su) = (data.column(name, None, family)[at] for name in ("K", "scale_x", "scale_u"))
        u_eq = np.asarray(plant.equilibrium()[1])
        x = np.asarray(every.x, float)[i, :, : plant.n] * sx
        run = simulation.rollout(
            plant, simulation.LinearPolicy(jnp.asarray(K)), x[0], STEPS, limits=(u_eq - 0.3 * su, u_eq + 0.3 * su)
        )  # fmt: skip
        np.testing.assert_allclose(x / sx, np.asarray(run.xs)[:-1] / sx, atol=1e-4 * np.abs(x / sx).max())
        u = np.asarray(every.u)[i, 1:, : plant.m]
        np.testing.assert_allclose(u, np.asarray(run.us)[:-1] / su, atol=1e-4)
        limited |= bool(np.any(np.abs(u) > 0.2999))
        seen.add(row)
    assert limited
    assert len(whole) > 20
    assert {data.variants.split[row] for row in seen} == {"train"}
    assert {data.variants.family[row] for row in seen} == {"pendulum", "two_link_arm"}


def test_live_batches_of_nonlinear_plants_are_disturbed_as_the_config_says(data):
    """What a plant's own step leaves over is the noise, what −Kx leaves over the excitation."""
    config = changed(linear=False, noise=0.05, excitation=0.4, families=("pendulum",), held_out=())
    loops = dataset.live(config, batch_size=180, window=2, at_once=300)
    batch = loops.batch(0)
    pairs = np.asarray(batch.time_mask).all(axis=1)
    family = data.plants(None, "pendulum")  # the same: a family's plants do not depend on the others
    of = np.asarray(batch.variant)[pairs]
    x, u, K = (
        np.asarray(a, float)[pairs] for a in (batch.x[..., :2], batch.u[..., :1], batch.gain[:, :1, :2])
    )
    sx, su = (data.column(name, None, "pendulum")[of] for name in ("scale_x", "scale_u"))
    world = simulation.env(jax.tree.map(lambda a: a[of] if jnp.ndim(a) else a, family))
    after, _ = world.step(jnp.asarray(x[:, 0] * sx), jnp.asarray(u[:, 1] * su))
    assert np.std(x[:, 1] - np.asarray(after) / sx) == pytest.approx(0.05, rel=0.15)
    assert np.std(u[:, 1, 0] + np.einsum("bij,bj->bi", K, x[:, 0])[:, 0]) == pytest.approx(0.4, rel=0.15)
    rough = dataclasses.replace(
        config, gain_error=2.0, num_steps=100
    )  # where some leave, others take their place
    assert np.abs(dataset.live(rough, batch_size=1500, window=1, at_once=15).batch(0).x).max() < 1e3
    wild = dataclasses.replace(config, gain_error=50.0, num_steps=100)
    with pytest.raises(ValueError, match="every loop of a round leaves the model for good"):
        dataset.live(wild, batch_size=20, window=2, at_once=20).batch(0)


def test_placing_on_the_cpu_copies_nothing(data):
    """What windows are gathered from is the buffer that the files were read into; the pools' batches too."""
    rows, variant = dataset.windows.flat(data, "train", WINDOW)
    there = dataset.windows.resident_of(data, rows, variant, WINDOW, jax.devices("cpu")[0])
    assert there.signals.unsafe_buffer_pointer() == rows.ctypes.data
    batch = dataset.loader(data, batch_size=32, window=WINDOW, mode="streaming").batch(0)
    places = [(b.ctypes.data, b.ctypes.data + b.size) for b in memory._kept]
    assert any(low <= batch.signals.unsafe_buffer_pointer() < high for low, high in places)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split": "test"}, "split: expected one of train"),
        ({"mode": "cloud"}, "mode: expected one of"),
        ({"batch_size": 0}, "batch_size: expected a whole number"),
        ({"batch_size": 10_000}, "batch_size: expected at most 360"),
        ({"window": 0}, "window: expected at least one step"),
        ({"epoch": -1}, "epoch: expected"),
        ({"process_index": 2, "process_count": 2}, "process_index: expected less than process_count, 2"),
        ({"process_count": 0}, "process_count: expected a whole number from 1"),
        ({"mode": "streaming", "process_count": 9}, "4 blocks, too few for 9 parts"),
        ({"mode": "memory", "process_index": 77, "process_count": 99}, "too few trajectories for 99 parts"),
        ({"mode": "streaming", "pool_bytes": 100}, "pool_bytes: expected at least"),
    ],
)
def test_bad_arguments(arguments, words, data):
    with pytest.raises(ValueError, match=words):
        dataset.loader(data, **({"batch_size": 8, "window": WINDOW} | arguments))
    with pytest.raises(ValueError, match="position: expected one of 45 batches"):
        dataset.loader(data, batch_size=8, window=WINDOW).batch(45)


def test_an_empty_split_is_refused(tmp_path):
    config = changed(families=("pendulum",), held_out=(), variants=4, validation=0.0)
    opened = dataset.generate(config, tmp_path)
    for mode in dataset.sources.loading.MODES:
        with pytest.raises(ValueError, match="has no trajectory in 'held_out'"):
            dataset.loader(opened, split="held_out", batch_size=8, window=WINDOW, mode=mode)


def test_leaving_an_epoch_early_ends_its_thread(data):
    before = threading.active_count()
    batches = iter(dataset.loader(data, batch_size=8, window=WINDOW, mode="memory"))
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


def test_an_order_is_uniform():
    """Where each index goes over many epochs, and how far neighbours are thrown apart, by χ² at six σ."""
    num, epochs = 48, 4000
    orders = np.stack([shuffling.shuffled_on_host(np.arange(num), num, 1, epoch) for epoch in range(epochs)])
    counts = np.stack([np.bincount(orders[:, i], minlength=num) for i in range(num)])
    chi = np.sum((counts - epochs / num) ** 2 / (epochs / num))
    freedom = (num - 1) ** 2
    assert abs(chi - freedom) < 6 * np.sqrt(2 * freedom)
    gaps = np.bincount((orders[:, 1:] - orders[:, :-1]).ravel() + num, minlength=2 * num)
    shifts = np.arange(-num, num)
    expected = np.where(shifts == 0, 0, num - np.abs(shifts)) / (num * (num - 1)) * epochs * (num - 1)
    seen = expected > 0
    chi = np.sum((gaps[seen] - expected[seen]) ** 2 / expected[seen])
    assert abs(chi - seen.sum()) < 6 * np.sqrt(2 * seen.sum())


def test_streaming_shuffles_uniformly(tmp_path):
    """Over epochs every window is as likely at the start of an epoch as at its end, across pools."""
    config = changed(families=("pendulum",), held_out=(), variants=16, validation=0.0)
    opened = dataset.generate(config, tmp_path)
    epochs = 60
    early = np.zeros(16)
    for epoch in range(epochs):
        loader = dataset.loader(
            opened,
            batch_size=144,
            window=1,
            epoch=epoch,
            mode="streaming",
            pool_bytes=2 * 12 * STEPS * 24 * 4,
        )
        early += np.bincount(loader.batch(0).variant, minlength=16)
    # a quarter of all windows is in the first batch: blocks of four variants come and go together
    share = early.reshape(4, 4).sum(1) / early.sum()
    assert np.all(np.abs(share - 0.25) < 6 * np.sqrt(0.25 * 0.75 / epochs))
    assert np.all(early > 0)


def test_a_buffer_is_used_again_only_when_nothing_refers_to_it():
    shape = (7, 5, 3)  # a size of its own
    first = memory.aligned(shape)
    first[...] = 1.0
    taken = jax.device_put(first)
    address = first.ctypes.data
    del first
    second = memory.aligned(shape)
    second[...] = 2.0
    assert np.all(np.asarray(taken) == 1.0)
    del taken, second
    gc.collect()
    assert memory.aligned(shape).ctypes.data == address
