"""A data set on disk: the same bytes each time, whole after any kill, refused where it is damaged."""

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import distributed
import h5py
import hostile_files
import jax
import numpy as np
import pytest
from click.testing import CliRunner
from refusals import refused
from scipy_oracle import gain, van_loan

from lqrlab import dataset, identification, systems
from lqrlab.dataset import DataConfig, trajectories
from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import cluster, notebooks

FAMILIES = ("pendulum", "two_link_arm", "dc_motor")
SHARD = "two_link_arm-00000.h5"
CONFIG = DataConfig(
    families=FAMILIES,
    held_out=("dc_motor",),
    variants=7,
    variants_per_shard=4,
    validation=0.3,
    trajectories=3,
    num_steps=12,
    seed=5,
)


def changed(**values):
    return dataclasses.replace(CONFIG, **values)


def files(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir()) if p.name != ".lock"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "made"
    dataset.generate(CONFIG, folder)
    return folder


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made, tmp_path / "copy")


# The config ------------------------------------------------------------------------------------------------


def test_config_survives_json_and_hashes():
    config = changed(linear=False, noise=1)
    again = DataConfig.from_json(config.to_json())
    assert again == config
    assert hash(again) == hash(config)
    assert isinstance(again.families, tuple)
    assert isinstance(again.noise, float)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("families", "pendulum", "families: expected a list"),
        ("families", (), "at least one"),
        ("families", ("pendulum", "pendulum"), "each family once"),
        ("families", ("../pendulum",), "names of plant families"),
        ("held_out", ("acrobot",), "some of families"),
        ("variants", 0, "whole number"),
        ("variants", 1, "at least 2"),
        ("variants", True, "whole number"),
        ("num_steps", 2.5, "whole number"),
        ("trajectories", "3", "whole number"),
        ("seed", -1, "whole number"),
        ("spread", 1.0, "share"),
        ("validation", 1.5, "share"),
        ("excitation", -0.1, "standard deviation"),
        ("noise", float("nan"), "standard deviation"),
        ("sensor_noise", "0", "standard deviation"),
        ("linear", 1, "True or False"),
        ("keep_every", 0, r"whole number ≥ 1"),
        ("segment_length", 0, r"whole number ≥ 1"),
    ],
)
def test_config_refuses(name, value, words):
    refused(f"(?=^{name}: ).*{words}", changed, **{name: value})


def test_families_are_held_out_by_default_where_all_of_them_are_there():
    usual = ("furuta_pendulum", "dc_motor")
    assert DataConfig() == DataConfig(held_out=usual)
    assert DataConfig(families=("pendulum", *usual)).held_out == usual
    assert DataConfig(families=("cart_pole", "dc_motor")).held_out == ()
    assert DataConfig.from_json('{"families": ["cart_pole"]}').held_out == ()


@pytest.mark.parametrize(
    ("share", "variants", "kept"),
    [(0.0, 5, 0), (0.2, 10, 2), (0.2, 2, 1), (0.01, 5, 1), (0.26, 10, 3), (0.95, 4, 3), (0.95, 2, 1), (0.6, 5, 3)],
)
def test_a_share_of_the_variants_is_kept_for_validation_and_some_are_trained_on(share, variants, kept):
    config = changed(validation=share, variants=variants, families=("pendulum", "dc_motor"), held_out=("dc_motor",))
    assert config.num_validation == kept
    split = dataset.manifest.splits(config, "pendulum").tolist()
    assert (split.count(b"validation"), split.count(b"train")) == (kept, variants - kept)
    assert set(dataset.manifest.splits(config, "dc_motor").tolist()) == {b"held_out"}


def test_the_defaults_of_a_config_are_those_of_notebook_02_and_of_its_documentation():
    nb = notebooks.read(Path(__file__).parents[2] / "notebooks" / "02_data_generation.ipynb")
    plain, compared = dataclasses.asdict(DataConfig()), 0
    for name, parameter in nb.parameters.items():
        if name in plain and name not in ("families", "held_out", "variants", "trajectories"):  # quick: fewer
            assert plain[name] == parameter.default, name
            compared += 1
    assert compared >= 7
    assert DataConfig(families=("pendulum",), variants=10).num_validation == 2
    config = DataConfig()
    assert (config.linear, config.sensor_noise) == (True, 0.0)
    assert config.variants_per_shard == 50


def test_config_refuses_foreign_json():
    refused("wariants: DataConfig has no such setting; did you mean variants", DataConfig.from_json, '{"wariants": 3}')
    for text in ('{"gain_error": 0.1}', '{"compression": "blosc"}', '{"saturation": 1.0}'):
        refused(r"expected .*, as this setting is gone, but found", DataConfig.from_json, text)
    for text in ("[]", "{", "null"):
        refused("JSON", DataConfig.from_json, text)


def test_unknown_family_lists_near_names(tmp_path):
    config = changed(families=("pendulun",), held_out=())
    refused("did you mean pendulum", dataset.generate, config, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# What is in it ---------------------------------------------------------------------------------------------


def test_layout_is_what_a_user_of_plain_h5py_expects(made):
    for family in FAMILIES:
        plant = systems.make(family)
        n, m = plant.n, plant.m
        for block, count in ((0, 4), (1, 3)):
            with h5py.File(made / f"{family}-{block:05d}.h5") as file:
                variants, runs = file["variants"], file["trajectories"]
                shapes = {"A": (n, n), "B": (n, m), "Q": (n, n), "R": (m, m), "K": (m, n), "P": (n, n), "dt": ()}
                for name, shape in (shapes | {"scale_x": (n,), "scale_u": (m,)}).items():
                    assert variants[name].shape == (count, *shape), name
                assert variants["variant"][...].tolist() == list(range(4 * block, 4 * block + count))
                assert set(variants["parameters"]) == set(systems.parameter_fields(type(plant)))
                assert variants["parameters/gravity" if "gravity" in variants["parameters"] else "dt"].attrs["unit"]
                assert runs["states"].shape == (3 * count, 13, n)
                assert runs["controls"].shape == (3 * count, 12, m)
                assert (runs["states"].dtype, runs["controls"].dtype) == (np.float32, np.float32)
                assert (runs["cost"].dtype, runs["x0"].dtype) == (np.float64, np.float64)
                assert runs["states"].attrs["unit"] == ", ".join(s.unit for s in plant.states)
                assert DataConfig.from_json(file.attrs["config"]) == CONFIG
                assert file.attrs["jax"] == jax.__version__
                assert file.attrs["left_out_diverged"] == 0


def sampled(v):
    """A, B, Q, R, N of a variant."""
    return van_loan(*(v[name] for name in (*"ABQR", "dt")))


def contents(file, variant):
    """A variant's columns, and its trajectories."""
    with h5py.File(file) as opened:
        v = {name: a[variant] for name, a in opened["variants"].items() if isinstance(a, h5py.Dataset)}
        runs = {name: a[...] for name, a in opened["trajectories"].items()}
    mine = runs["variant"] == variant
    return v, {name: a[mine] for name, a in runs.items()}


def test_design_and_trajectories_agree_with_scipy(made):
    """Zero-order hold, sampled weights by quadrature, the discrete Riccati equation, and the loop."""
    v, runs = contents(made / SHARD, 1)
    A, B, Q, R, N = sampled(v)
    K, P = gain(A, B, Q, R, N)
    np.testing.assert_allclose(v["P"], P, rtol=1e-8, atol=1e-9 * np.abs(P).max())
    np.testing.assert_allclose(v["K"], K, rtol=1e-8, atol=1e-9 * np.abs(K).max())
    assert len(runs["cost"]) == CONFIG.trajectories
    for i in range(CONFIG.trajectories):
        x, cost = runs["x0"][i], 0.0
        for t, u in enumerate(runs["controls"][i].astype(float)):
            np.testing.assert_allclose(runs["states"][i, t], x, rtol=1e-5, atol=1e-5 * np.abs(x).max())
            cost += x @ Q @ x + 2 * x @ N @ u + u @ R @ u
            x = A @ x + B @ u
        assert runs["cost"][i] == pytest.approx(cost, rel=1e-5)
    # the excitation has the size that was asked for
    pushed = runs["controls"] + runs["states"][:, :-1] @ K.T
    assert np.std(pushed / v["scale_u"]) == pytest.approx(CONFIG.excitation, rel=0.3)


def test_a_loop_costs_above_the_optimum_what_its_inputs_make_it(made, tmp_path):
    """Σ cost + xᵀPx at the end − x₀ᵀPx₀ = Σ (u + Kx)ᵀS(u + Kx), S = R + BᵀPB: zero without excitation.

    Source: B. D. O. Anderson and J. B. Moore, Optimal Control: Linear Quadratic Methods (1990), section 2.4.
    """
    calm = dataset.generate(changed(excitation=0.0, families=("pendulum",), held_out=()), tmp_path).path
    for folder, family in (*((made, family) for family in FAMILIES), (calm, "pendulum")):
        v, runs = contents(folder / f"{family}-00000.h5", 2)
        _, B, _, R, _ = sampled(v)
        x, u, K, P = runs["states"].astype(float), runs["controls"].astype(float), v["K"], v["P"]
        off = u + x[:, :-1] @ K.T
        made_of = np.einsum("nti,ij,ntj->n", off, R + B.T @ P @ B, off)
        begin, end = (np.einsum("ni,ij,nj->n", at, P, at) for at in (runs["x0"], x[:, -1]))
        np.testing.assert_allclose(runs["cost"] + end - begin, made_of, rtol=1e-4, atol=1e-6 * begin.max())
        assert np.all(made_of < 1e-9 * begin) if folder == calm else np.all(made_of > 0)


def test_validation_and_held_out_are_kept_apart(made):
    data = dataset.open(made)
    assert len(data.variants) == 21
    for family in FAMILIES:
        there = data.variants.split[data.variants.family == family].tolist()
        expected = {"held_out": 7} if family == "dc_motor" else {"train": 5, "validation": 2}
        assert {name: there.count(name) for name in set(there)} == expected
    # each family has a draw of its own
    picks = [data.variants.variant[data.rows("validation", family)].tolist() for family in FAMILIES[:2]]
    assert picks[0] != picks[1]
    other = dataset.manifest.splits(changed(seed=6), "pendulum")
    assert other.tolist() != data.variants.split[data.variants.family == "pendulum"].tolist()


def test_parameters_make_the_plants_again(made):
    data = dataset.open(made)
    plants = data.plants("train", "pendulum")
    A, B = plants.matrices()
    linear = data.linear("train", "pendulum")
    np.testing.assert_allclose(linear.A, A, rtol=1e-12)
    np.testing.assert_allclose(linear.B, B, rtol=1e-12)
    assert len(np.unique(plants.length)) == 5
    spread = np.asarray(plants.length) / systems.make("pendulum").length
    assert np.all(np.abs(spread - 1) <= CONFIG.spread)


def test_what_is_left_out_is_counted_with_its_reason(tmp_path):
    """Of nonlinear pendulums, which are thrown far enough by some of this noise; and made again to the same bits."""
    config = changed(families=("pendulum",), held_out=(), linear=False, noise=400.0, sensor_noise=0.02)
    data = dataset.generate(config, tmp_path)
    left_out = data.left_out["pendulum"]
    assert 0 < left_out["diverged"] < 21
    assert data.num_trajectories == 21 - left_out["diverged"]
    with h5py.File(tmp_path / "pendulum-00000.h5") as first, h5py.File(tmp_path / "pendulum-00001.h5") as second:
        assert sum(f.attrs["left_out_diverged"] for f in (first, second)) == left_out["diverged"]
        assert first.attrs["left_out_saturated"] == 0  # of earlier versions, whose files are read
    assert dataset.verify(tmp_path, again=True).ok


@pytest.mark.parametrize("linear", [True, False])
def test_loops_are_judged_in_units_of_their_scales(linear):
    config = changed(families=("pendulum",), held_out=(), linear=linear, excitation=0.0, num_steps=14)
    plants = systems.sample("pendulum", key=jax.random.key(1), num=3)
    problem = trajectories.posed(config, plants)
    scale_x = np.asarray(plants.scales[0])
    x0 = np.linspace(0.1, 1.0, 24).reshape(3, 4, 2) * scale_x
    runs = trajectories.simulate(config, problem, x0, jax.random.key(0))
    size = np.abs(runs["states"] / scale_x).max(-1)
    expected = {
        "start": x0 / scale_x,
        "peak": size.max(-1),
        "before": size[:, :, 9:12].max(-1),  # the last but one quarter of 15 samples
        "last": size[:, :, 12:].max(-1),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(runs[name], value, rtol=2e-6, atol=1e-7, err_msg=name)


def test_the_card_tells_a_stranger_what_it_is_and_how_to_read_it(made, monkeypatch):
    """Its Python lines are run as they stand, without our package."""
    text = (made / "card.md").read_text()
    assert "63 closed loops of 12 steps of 21 plants" in text
    assert "| dc_motor | 3, 1 | 0 | 0 | 7 | 21 | 0 |" in text
    monkeypatch.chdir(made)
    found = {}
    exec(text.partition("```python\n")[2].partition("```")[0], found)
    data = dataset.open(made)
    mine = data.trajectories(None, "pendulum")
    np.testing.assert_array_equal(found["x"], mine.states[: len(found["x"])])
    K = data.column("K", None, "pendulum")[found["of"]]
    np.testing.assert_allclose(found["target"], -np.einsum("nij,ntj->nti", K, found["x"][:, :-1]), rtol=1e-6)
    assert found["train"].sum() == np.isin(found["of"], data.rows("train", "pendulum")).sum()


# The same bytes --------------------------------------------------------------------------------------------


def test_same_bytes_each_time(made, tmp_path):
    dataset.generate(CONFIG, tmp_path / "again")
    assert files(tmp_path / "again") == files(made)
    dataset.generate(changed(seed=6), tmp_path / "other")
    assert not {h for n, h in files(tmp_path / "other").items() if n != "config.json"} & set(files(made).values())


def test_same_bytes_while_a_profiler_looks(tmp_path):
    """It holds frames, as that of every dask worker does, and with them arrays of the file that is being written."""
    arrays = {f"trajectories/{name}": np.ones((40, 9, 2), np.float32) for name in ("controls", "states")}
    content = dataset.shards.Content(arrays | {"trajectories/cost": np.ones(40)}, {}, {})
    dataset.shards.write(tmp_path / "plain.h5", content)
    held = []
    sys.setprofile(lambda frame, event, argument: held.append(frame))
    try:
        dataset.shards.write(tmp_path / "looked_at.h5", content)
    finally:
        sys.setprofile(None)
    assert (tmp_path / "looked_at.h5").read_bytes() == (tmp_path / "plain.h5").read_bytes()


@pytest.mark.matrix
def test_same_bytes_from_other_processes(made, tmp_path):
    """Two workers of a cluster."""
    given = {k: v for k, v in json.loads(CONFIG.to_json()).items() if v != getattr(DataConfig(), k, v)}
    command = [sys.executable, "-m", "lqrlab.workbench", "data", "generate", str(tmp_path / "made")]
    command += [f"-p{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()]
    command += ["--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    card = tmp_path / "made" / "card.html"  # which the command adds
    assert card.read_text().count("<img alt=") == 3
    card.unlink()
    assert files(tmp_path / "made") == files(made)


@pytest.mark.matrix
def test_a_scheduler_whose_worker_is_killed_makes_the_same_bytes(made, tmp_path):
    def progress(done, total, what):
        if done == 2:
            os.kill(next(iter(there.workers.values())).pid, signal.SIGKILL)

    alone = {"n_workers": 1, "threads_per_worker": 1, "memory_limit": 0, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**alone) as there, cluster.engine(scheduler=there.scheduler_address) as engine:
        dataset.generate(CONFIG, tmp_path / "far", engine=engine, progress=progress)
    assert files(tmp_path / "far") == files(made)


def test_an_address_without_a_scheduler_is_said_within_seconds(tmp_path, monkeypatch):
    """No address; nobody listens there; a scheduler without a worker."""
    monkeypatch.setattr(cluster, "_PATIENCE", 0.5)
    alone = distributed.LocalCluster(n_workers=0, dashboard_address=None, silence_logs=50)
    with alone, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        for address, words in (
            ("head", "expected the address"),
            ("", "expected the address"),
            (f"tcp://127.0.0.1:{closed.getsockname()[1]}", "no dask scheduler answers"),
            (alone.scheduler_address, "no dask scheduler answers there, or it has no worker"),
        ):
            command = ["data", "generate", str(tmp_path / "x"), "--scheduler", address]
            answer = CliRunner().invoke(main, command)
            assert answer.exit_code == 2
            assert answer.stderr.startswith(f"lqrlab: --scheduler {address}: {words}"), answer.stderr
            assert answer.stderr.count("\n") == 1


def test_a_shard_depends_on_itself_alone(made):
    """Made alone, or in a set of other families, its arrays are the same."""
    config = changed(families=("dc_motor", "two_link_arm"), held_out=("dc_motor",))
    shard = next(s for s in dataset.manifest.plan(config) if s.name == "two_link_arm-00001.h5")
    record = next(s for s in dataset.open(made).shards if s["file"] == shard.name)
    assert trajectories.make(config, shard).headers == record["arrays"]


def test_resume_makes_only_what_is_missing(made, copy):
    before = {p.name: p.stat().st_mtime_ns for p in copy.iterdir() if p.name != ".lock"}
    (copy / "manifest.json").unlink()
    (copy / "two_link_arm-00000.h5").unlink()
    damaged = copy / "pendulum-00001.h5"
    with h5py.File(damaged) as file:  # not every byte of a file is one that HDF5 reads
        place = file["trajectories/states"].id.get_chunk_info(0).byte_offset + 40
    flip(damaged, place)
    (copy / "pendulum-00000.h5.part").write_bytes(b"half of a file")
    refused("begun but not finished", dataset.open, copy)
    with pytest.warns(UserWarning, match=r"pendulum-00001\.h5 was made again: trajectories/states|damaged"):
        dataset.generate(CONFIG, copy)
    assert files(copy) == files(made)
    kept = {p.name for p in copy.iterdir() if p.stat().st_mtime_ns == before.get(p.name)}
    assert kept == set(files(made)) - {"manifest.json", "card.md", "two_link_arm-00000.h5", "pendulum-00001.h5"}


def test_nothing_is_deleted_from_a_folder_that_is_not_the_data_sets(tmp_path):
    for name in ("pendulum-00000.h5.part", "manifest.json.part", "thesis.part", ".lock"):
        (tmp_path / name).write_text("years of work")
    before = files(tmp_path)
    done = CliRunner().invoke(main, ["data", "generate", str(tmp_path), "-p", "families=pendulum"])
    assert isinstance(done.exception, ValueError | SystemExit)
    assert files(tmp_path) == before


def test_what_a_killed_run_left_stops_nothing_and_other_files_stay(made, copy):
    names = [name for name in files(made) if name != "manifest.json"]
    (copy / "manifest.json").unlink()
    for name in (*names, "manifest.json"):
        (copy / f"{name}.part").write_text("half of it")
    (copy / ".lock").write_text("4711")
    (copy / "thesis.part").write_text("years of work")
    dataset.generate(CONFIG, copy)
    (copy / "thesis.part").unlink()  # it is there still
    assert files(copy) == files(made)


def test_a_part_that_leads_elsewhere_is_not_written_through(tmp_path):
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json.part").symlink_to(tmp_path / "thesis")
    dataset.manifest.claim(tmp_path / "made", CONFIG)
    assert (tmp_path / "thesis").read_text() == "years of work"


def swap(folder):
    a, b = (folder / name for name in ("pendulum-00000.h5", "two_link_arm-00000.h5"))
    a.rename(folder / "c")
    b.rename(a)
    (folder / "c").rename(b)
    return [a, b]


def swap_blocks(folder):
    shutil.copy(folder / "pendulum-00001.h5", folder / "pendulum-00000.h5")
    return [folder / "pendulum-00000.h5"]


def append(folder):
    with (folder / "pendulum-00000.h5").open("ab") as file:
        file.write(b"junk" * 10)
    return [folder / "pendulum-00000.h5"]


def flip(path, at, bit=0):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def pipe(folder):
    hostile_files.fifo(folder / SHARD)
    return [folder / SHARD]


@pytest.mark.parametrize("harm", [swap, swap_blocks, append, pipe])
@pytest.mark.parametrize("sealed", [True, False])
def test_only_a_file_that_verifies_is_kept(harm, sealed, made, copy):
    harmed = harm(copy)
    if not sealed:
        (copy / "manifest.json").unlink()
    said = []
    dataset.generate(CONFIG, copy, say=said.append)
    assert files(copy) == files(made)
    assert [text.split(" was made again: ")[0] for text in said] == [str(path) for path in harmed]


def test_another_config_or_folder_is_refused(made, tmp_path):
    before = files(made)
    with pytest.raises(ValueError, match=r"another config: seed \(5 against 6\), excitation|excitation.*seed") as error:
        dataset.generate(changed(seed=6, excitation=0.1), made)
    assert "excitation (0.3 against 0.1)" in str(error.value)
    assert files(made) == before
    (tmp_path / "thesis.tex").write_text("years of work")
    refused(r"expected an empty folder.*thesis\.tex", dataset.generate, CONFIG, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_progress_and_lock(tmp_path):
    seen = []

    def progress(done, total, what):
        seen.append((done, total))
        if done == 1:
            refused("locked by another process", dataset.generate, CONFIG, tmp_path / "a")

    dataset.generate(CONFIG, tmp_path / "a", progress=progress)
    assert seen == [(i, 6) for i in range(7)]


def test_a_file_that_another_process_writes_is_locked_and_not_made_again(copy, monkeypatch):
    hold = "import sys, h5py; file = h5py.File(sys.argv[1], 'r+'); file['more'] = [1] * 9999; file.flush(); print()"
    command = [sys.executable, "-c", f"{hold}; sys.stdout.flush(); sys.stdin.read()", copy / SHARD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        before = files(copy)
        refused(f"{SHARD}: is locked: .* wait for it, or end it$", dataset.generate, CONFIG, copy)
        refused(f"{SHARD}: is locked: .* wait for it, or end it$", dataset.open, copy)
        assert str(dataset.verify(copy)).endswith("wait for it, or end it")
        (held := copy.parent / "held.mat").hardlink_to(copy / SHARD)
        for read in (systems.load, lambda path: identification.read(path, ["u"], ["y"])):
            refused("held.mat: is locked: .* wait for it, or end it$", read, held)
        assert files(copy) == before
        writer.stdin.close()
    with pytest.warns(UserWarning, match=f"{SHARD} was made again"):
        dataset.generate(CONFIG, copy)
    error = PermissionError(13, "Permission denied")
    monkeypatch.setattr(h5py, "File", lambda *_, **__: (_ for _ in ()).throw(error))
    refused("cannot be read now: Permission denied$", dataset.generate, CONFIG, copy)


# What is not what it should be ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", hostile_files.DATA_SETS, ids=lambda case: case.name)
def test_whatever_lies_in_the_folder_is_refused_in_words_and_soon(case, made, tmp_path):
    hostile_files.met("data set", case, tmp_path / "place", made)


def test_what_is_not_there_is_refused(copy, tmp_path):
    for keep in (-1, 0):
        (copy / SHARD).write_bytes(data := (copy / SHARD).read_bytes()[:keep])
        refused(rf"{SHARD}: has {len(data)} bytes where the manifest says", dataset.open, copy)
    refused(r"has no manifest\.json: it is no data set", dataset.open, tmp_path / "nowhere")
    (copy / SHARD).unlink()
    refused(f"{SHARD}: cannot be read: No such file", dataset.open, copy)


def test_any_flipped_bit_is_found(made, copy):
    """In numbers or in structure: never read without a word."""
    rng = np.random.default_rng(0)
    whole = (copy / SHARD).read_bytes()
    for at in rng.integers(len(whole), size=12):  # make torture: a thousand
        (copy / SHARD).write_bytes(whole)
        flip(copy / SHARD, at, rng.integers(8))
        report = dataset.verify(copy)
        if report.ok:  # a byte that HDF5 does not use: all that can be read is as it was
            with h5py.File(made / SHARD) as a, h5py.File(copy / SHARD) as b:
                names = []
                a.visit(names.append)
                same = [np.array_equal(a[n][...], b[n][...]) for n in names if isinstance(a[n], h5py.Dataset)]
            assert all(same)
        else:
            assert report.problems[0][0] == copy / SHARD
            assert report.problems[0][1]


def test_a_flipped_bit_in_the_numbers_is_not_trained_on(copy):
    path = copy / SHARD
    with h5py.File(path) as file:
        place = file["trajectories/states"].id.get_chunk_info(0).byte_offset + 40
    flip(path, place)
    opened = dataset.open(copy)  # a cheap look: the bytes are not read
    for kind in ("resident", "streaming"):
        with pytest.raises(dataset.BadFile, match=r"_arm-00000\.h5: .*is damaged"):
            list(dataset.source(opened, kind=kind, batch_size=8, window=4))
    flip(path, place)
    with h5py.File(path, "r+") as file:  # another number, whose chunk has the right checksum
        file["trajectories/states"][0, 0, 0] += 1
    for kind in ("resident", "memory"):
        with pytest.raises(dataset.BadFile, match="trajectories/states is not what the manifest lists"):
            dataset.source(dataset.open(copy), kind=kind, batch_size=8, window=4).windows(0, 8)
    with h5py.File(path) as file:
        place = file["variants/K"].id.get_offset() + 8
    flip(path, place)
    refused("variants/K is not what the manifest lists", dataset.open(copy).table)


# Verification ----------------------------------------------------------------------------------------------


def test_a_good_data_set_verifies_and_is_made_again_bit_for_bit(made):
    for again, words in ((False, "by their checksums"), (True, "made again bit for bit")):
        report = dataset.verify(made, again=again)
        assert report.ok, str(report)
        assert (report.variants, report.trajectories) == (21, 63)
        assert f"21 variants and 63 trajectories are as they were made ({words})" in str(report)


def forge(folder, name, arrays):
    """Write other arrays into a shard, with all checksums right, as a careless or dishonest maker would."""
    content = dataset.shards.read(folder / name)
    new = dataset.shards.Content(content.arrays | arrays, content.units, content.attributes)
    dataset.shards.write(folder / name, new)
    manifest = json.loads((folder / "manifest.json").read_text())
    i = next(i for i, s in enumerate(manifest["shards"]) if s["file"] == name)
    manifest["shards"][i] = dataset.manifest.record(folder / name, new)
    manifest = dataset.manifest.of_entries(dataset.DataConfig.from_dict(manifest["config"]), manifest["shards"])
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_forged_file_is_found_by_the_manifest_or_by_making_it_again(copy):
    manifest = (copy / "manifest.json").read_bytes()
    costs = dataset.shards.read(copy / SHARD).arrays["trajectories/cost"]
    forge(copy, SHARD, {"trajectories/cost": costs * (1 + 1e-12)})
    assert dataset.verify(copy).ok
    words = f"{copy / SHARD}: made again, trajectories/cost is not what the manifest lists; here are lqrlab "
    assert str(dataset.verify(copy, again=True)).startswith(words)
    (copy / "manifest.json").write_bytes(manifest)  # of the same size: only the manifest knows that it is not the one
    opened = dataset.open(copy)
    assert str(dataset.verify(copy)) == f"{copy / SHARD}: trajectories/cost is not what the manifest lists"
    refused("trajectories/cost is not what the manifest lists", opened.trajectories, None, "two_link_arm")


def test_verifying_raises_nothing_whatever_is_in_the_folder(copy, monkeypatch):
    for k in range(20):
        (copy / f"spare-{k:02}.h5").touch()
    assert "20 files are not of the data set: spare-00.h5, spare-01.h5" in str(dataset.verify(copy))

    def broken(*_):
        raise RecursionError("as deep as it goes")

    monkeypatch.setattr(dataset.manifest, "record", broken)
    report = dataset.verify(copy)
    assert all(why == "is no file of this data set: as deep as it goes" for _, why in report.problems[1:])
    assert len(report.problems) == 7


def test_data_sets_of_other_seeds_share_a_program():
    recorders, other = (trajectories._keep(changed(seed=seed)) for seed in (1, 2))
    assert recorders == other


def test_folds_hold_each_family_out_once_and_a_wrong_one_is_refused():
    families = systems.names()
    folds = [dataset.fold(families, f"{k}/4") for k in range(1, 5)]
    assert sorted(name for fold in folds for name in fold) == sorted(families)
    assert max(map(len, folds)) - min(map(len, folds)) <= 1
    for wrong in ("0/4", "5/4", "1/1", "1", "1/61", ""):
        refused("fold: expected k/n", dataset.fold, families, wrong)
