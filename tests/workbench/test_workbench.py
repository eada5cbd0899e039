"""Panels, figures and tables: what they show is what the numbers say."""

from types import SimpleNamespace
from xml.etree import ElementTree

import jax.numpy as jnp
import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image
from refusals import refused

from lqrlab import control, evaluation, simulation, systems, workbench
from lqrlab.workbench.figures import charts, plant_card, plots, tables
from lqrlab.workbench.runs import terminal


@pytest.fixture
def run():
    plant = systems.make("cart_pole")
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    K = control.lqrd(A, B, Q, R, plant.dt).K
    return plant, simulation.rollout(plant, simulation.LinearPolicy(K), 0.3 * plant.scales[0], 40)


def test_responses_show_every_signal_with_its_unit(run):
    plant, path = run
    figure = plots.responses(plant, {"optimal": path})
    assert len(figure.axes) == 5
    for axis, signal in zip(figure.axes, (*plant.states, *plant.inputs)):
        assert signal.unit in axis.get_ylabel()
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), path.xs[:, 1])
    np.testing.assert_allclose(figure.axes[1].lines[0].get_xdata(), path.ts)
    plt.close(figure)


def test_responses_from_many_starts_are_a_distribution(run):
    plant, one = run
    rng = np.random.default_rng(0)
    factors = rng.normal(size=301)[:, None, None]
    xs, us = (factors * np.asarray(a) for a in (one.xs, one.us))
    many = simulation.Trajectory(one.ts, xs, us, one.costs)
    figure = plots.responses(plant, {"optimal": many})
    axis, expected = figure.axes[0], np.sort(factors.ravel())  # all proportional: quantiles are the factors'
    np.testing.assert_allclose(axis.lines[0].get_ydata(), expected[150] * one.xs[:, 0], atol=1e-12)
    wide = axis.collections[0].get_paths()[0].vertices
    for t, x in zip(np.asarray(one.ts)[:3], np.asarray(one.xs)[:3, 0]):
        at = wide[np.isclose(wide[:, 0], t), 1]
        np.testing.assert_allclose((at.min(), at.max()), np.sort(expected[[15, 285]] * x), rtol=1e-6)
    plt.close(figure)


def test_the_first_phrase_of_a_title_tells_the_plants_apart():
    phrases = {plant_card.phrase(systems.family(name).title) for name in systems.names()}
    assert len(phrases) == len(systems.names())


def test_a_figure_is_saved_with_letters_and_words(tmp_path):
    figure, (axis,) = plots.grid(1)
    axis.set_xlabel("sample time [ms]")
    paths = plots.save(figure, tmp_path / "new" / "one_gain", "What sampling costs & why")
    assert [p.name for p in paths] == ["one_gain.pdf", "one_gain.svg", "one_gain.png"]
    drawn = ElementTree.parse(paths[1]).getroot()
    assert "sample time [ms]" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert drawn.find(".//{http://purl.org/dc/elements/1.1/}description").text == "What sampling costs & why"
    assert Image.open(paths[2]).text["Description"] == "What sampling costs & why"
    document = paths[0].read_bytes()
    assert b"/FontFile2" in document  # the font itself, TrueType
    assert b"/Subtype /Type3" not in document  # which no editor takes for text
    assert plots.save(figure, tmp_path / "new" / "dt_0.5", "words")[2].name == "dt_0.5.png"
    (tmp_path / "file").touch()
    for stem, words, refusal in (
        ("x.gif", "words", "stem: expected a path without an ending, but found 'x.gif'"),
        ("file/x", "words", "stem: the folder .*file cannot be made"),
        ("x", " ", "alt: expected a description of the figure, but found ' '"),
    ):
        refused(refusal, plots.save, figure, tmp_path / stem, words)
    refused("figure: expected a figure of matplotlib's, but found Axes", plots.save, axis, tmp_path / "x", "words")
    refused("alt: expected a description", plots.show, figure, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "new"]
    plt.close(figure)


def test_gaps_mark_what_does_not_converge():
    values = {"pendulum": np.array([1.0, 10.0, np.inf, np.inf])}
    figure = plots.gaps({"network": values})
    assert any("50 % do not converge" in text.get_text() for text in figure.axes[0].texts)
    assert "optimum" in figure.axes[0].get_legend_handles_labels()[1][-1]
    plt.close(figure)


@pytest.mark.parametrize("worst", [10.0, 99.0, 3e4])
def test_infinity_stands_outside_of_the_numbered_axis(worst):
    figure = plots.gaps({"network": {"pendulum": np.array([1.0, worst, np.inf])}})
    (axis,) = figure.axes
    at = np.sort(axis.collections[0].get_offsets()[:, 0])
    marks = dict(zip([label.get_text() for label in axis.get_xticklabels()], axis.get_xticks()))
    assert at[-1] == marks.pop("∞")
    numbers = {float(text): place for text, place in marks.items()}
    assert numbers == {value: value for value in numbers}
    ends = axis.spines["bottom"].get_bounds()[1]
    assert worst <= ends == max(numbers) < at[-1] / 3
    assert not len(axis.get_xticks(minor=True))
    plt.close(figure)


def test_a_table_of_scores_is_the_scores():
    ratio = jnp.array([[1.0, 1.1], [1.2, 1.3], [3.0, jnp.inf]])
    score = evaluation.Score(ratio, jnp.isinf(ratio), jnp.zeros_like(ratio))
    table = tables.scores({"network": score}, ["a", "a", "b"])
    assert table.loc[("a", "network"), "worst"] == pytest.approx(30.0)
    assert table.loc[("b", "network"), "worst"] == np.inf
    assert table.loc[("b", "network")].iloc[-1] == 50.0  # the share that diverged
    html = tables.show_scores(table, "caption").to_html()
    assert "∞" in html
    assert "caption" in html


def test_the_catalogue_table_has_dimensions_and_modes():
    table = tables.catalogue(["cart_pole", "quadrotor"])
    assert table.loc["quadrotor", "states"] == 12
    assert table.loc["quadrotor", "inputs"] == 4
    assert "unstable" in table.loc["cart_pole", "least stable mode"]


def test_a_table_is_cut_to_a_terminal_and_goes_whole_into_a_file(monkeypatch):
    rows = [("cart_pole", "x" * 300)]
    monkeypatch.setenv("COLUMNS", "60")
    assert len(terminal.table(rows, wide=False)) > 300
    monkeypatch.setattr(terminal.sys, "stdout", SimpleNamespace(isatty=lambda: True))
    assert len(terminal.table(rows, wide=False)) == 60
    assert len(terminal.table(rows)) > 300


def test_percentages_are_written_as_people_do():
    values = (np.inf, 0.0, 4.14e-5, 0.00711, 0.0833, 5.83, 14.2, 1234.5, -0.5)
    words = ["∞", "0", "≤0.001", "0.00711", "0.0833", "5.83", "14.2", "1,234", "-0.5"]
    assert [charts.percent(value) for value in values] == words


def test_a_name_that_the_workbench_has_not_is_an_attribute_error():
    assert not hasattr(workbench, "figure")
    with pytest.raises(AttributeError, match=r"'lqrlab\.workbench' has no attribute 'figure'"):
        workbench.figure  # noqa: B018
