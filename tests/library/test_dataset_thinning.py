"""Thinned data sets: pieces of the whole one, each a row with its own start and cost, told by all that reads them."""

import dataclasses

import numpy as np
import pytest
from refusals import refused
from test_dataset_loading import FROM_FILES, WINDOW, joined, reference, rows

from lqrlab import dataset
from lqrlab.dataset import DataConfig
from lqrlab.workbench.figures import data_card
from lqrlab.workbench.panels import data_browser

STEPS = 3
STARTS = (0, 6, 12)  # of 17 steps, every second stretch of three: 15 and 16 are no stretch
WHOLE = DataConfig(
    families=("pendulum", "dc_motor"),
    held_out=("dc_motor",),
    variants=5,
    variants_per_shard=3,
    validation=0.3,
    trajectories=4,
    num_steps=17,
    seed=5,
)
THINNED = dataclasses.replace(WHOLE, keep_every=2, segment_length=STEPS)
SHARD = "pendulum-00000.h5"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return dataset.generate(THINNED, tmp_path_factory.mktemp("data") / "thinned")


@pytest.mark.parametrize(
    "ways",
    [
        {},
        {"linear": False, "sensor_noise": 0.1, "num_steps": 100, "segment_length": 10},
        {"linear": False, "noise": 400.0},
    ],
    ids=["linear", "nonlinear", "diverging"],
)
def test_rows_are_pieces_of_the_whole_trajectories(ways, tmp_path):
    """To the bit, with a cost of their own; and who is left out as a whole is left out in pieces."""
    config = dataclasses.replace(THINNED, families=("pendulum",), held_out=(), **ways)
    every = dataclasses.replace(config, keep_every=1)
    whole = dataset.generate(every, tmp_path / "whole")
    data = dataset.generate(config, tmp_path / "thinned")
    assert data.left_out == whole.left_out
    assert "noise" not in ways or sum(data.left_out["pendulum"].values()) > 0
    runs, full = data.trajectories(None, "pendulum"), whole.trajectories(None, "pendulum")
    starts = range(0, config.num_steps - config.segment_length + 1, 2 * config.segment_length)
    assert len(full.cost) > 0
    assert np.array_equal(runs.start, np.tile(starts, len(full.cost)))
    assert np.array_equal(runs.variant, np.repeat(full.variant, len(starts)))
    for i, start in enumerate(starts):
        mine, end = slice(i, None, len(starts)), start + config.segment_length
        assert np.array_equal(runs.states[mine], full.states[:, start : end + 1])
        assert np.array_equal(runs.controls[mine], full.controls[:, start:end])
        assert np.array_equal(runs.x0[mine], full.states[:, start] if start else full.x0)
    assert not np.any(full.start)
    report = dataset.verify(tmp_path / "thinned")
    assert report.ok, report
    assert f"{len(runs.cost)} segments of trajectories" in str(report)
    if "noise" in ways:
        return
    # the cost of each, by the trapezoidal rule
    Q, R, dt = (data.column(name, None, "pendulum")[runs.variant] for name in ("Q", "R", "dt"))
    xs, us = runs.states.astype(float), runs.controls.astype(float)
    paid = np.einsum("nti,nij,ntj->nt", xs, Q, xs)
    paid = (paid[:, 1:] + paid[:, :-1]) / 2 + np.einsum("nti,nij,ntj->nt", us, R, us)
    np.testing.assert_allclose(runs.cost, dt * paid.sum(1), rtol=0.02)


# The config ------------------------------------------------------------------------------------------------


def test_without_thinning_the_length_of_a_segment_says_nothing():
    """Files carry the config: equal data sets are equal bytes."""
    assert WHOLE.to_json() == dataclasses.replace(WHOLE, segment_length=3).to_json()
    assert dataclasses.replace(WHOLE, segment_length=3) == WHOLE
    assert DataConfig.from_json(THINNED.to_json()) == THINNED
    assert THINNED.differences(WHOLE) == ["keep_every (2 against 1)", "segment_length (3 against 64)"]


def test_where_rows_begin():
    assert (THINNED.starts, THINNED.row_steps, THINNED.kept_steps) == (STARTS, STEPS, 9)
    assert (WHOLE.starts, WHOLE.row_steps, WHOLE.kept_steps) == ((0,), 17, 17)
    just = dataclasses.replace(THINNED, num_steps=15)  # the last stretch ends where the trajectory does
    assert just.starts == STARTS
    assert dataclasses.replace(THINNED, num_steps=14).starts == STARTS[:2]


def test_a_segment_that_does_not_fit_and_a_file_without_starts_are_refused(made):
    with pytest.raises(ValueError, match=r"segment_length: expected at most num_steps = 17 .else no segment fits"):
        dataclasses.replace(THINNED, segment_length=18)
    entry, shard = made.shards[0], dataset.manifest.plan(THINNED)[0]
    entry = entry | {"arrays": {k: a for k, a in entry["arrays"].items() if k != "trajectories/start"}}
    refused("trajectories/start are missing", dataset.manifest.check_entry, entry, THINNED, shard)


# Windows ---------------------------------------------------------------------------------------------------


def test_windows_of_segments_are_those_of_the_reference_from_each_source(made):
    expected = reference(made, "train")
    assert len(expected["x"]) == 3 * 4 * 9  # variants, trajectories, times
    kinds = [dataset.source(made, kind=kind, batch_size=9, window=WINDOW) for kind in FROM_FILES]
    batch = kinds[0].held.gather(np.arange(108)).batch(made.table())
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(batch, name), value, rtol=1e-5, atol=1e-6, err_msg=name)
    for source in kinds:
        assert (source.num_windows, len(source)) == (108, 12)
        assert rows(joined(source)) == rows(batch)


# What people see -------------------------------------------------------------------------------------------


def test_the_card_says_what_a_row_is(made):
    text = (made.path / "card.md").read_text()
    assert "120 segments of 3 steps from closed loops of 17 steps of 10 plants from 2 families: 360 windows" in text
    assert "Of every\n2 segments of 3 steps of a loop the first is kept" in text
    assert "one row a segment of a closed loop, which begins at its step `start`" in text


def test_figures_place_a_row_at_its_own_time(made):
    figure = data_card.examples(made)
    dt = made.column("dt", None, "pendulum")[0]
    line = figure.axes[0].lines[0]
    live = np.isfinite(line.get_ydata())
    expected = [start + step for start in STARTS for step in range(STEPS + 1)]
    np.testing.assert_allclose(line.get_xdata()[live], dt * np.array(expected))
    sx = made.column("scale_x", None, "pendulum")[0, 0]
    first = made.trajectories(None, "pendulum").states[:3, :, 0].ravel() / sx
    np.testing.assert_allclose(line.get_ydata()[live], first, rtol=1e-6)
    data_card.coverage(made)
    data_card.plots.plt.close("all")


def test_the_browser_leafs_through_stretches(made):
    runs = made.trajectories(None, "pendulum")
    shelf = data_browser.Selection.of(made, "pendulum", None)
    for number in (0, 2):
        words = data_browser.picture(shelf, 0, number).words
        dt = float(made.column("dt", None, "pendulum")[0])
        assert f"Recorded: {runs.cost[number]:.4g} in {3 * dt:.3g} s from {dt * STARTS[number]:.3g} s on" in words
    panel = data_browser.Browser(made)
    panel.live.wait()
    assert panel.trajectory.max == 3 * 4 - 1
