"""The page of designs on sliders: its numbers against SciPy alone, its size, what of it a report keeps."""

import base64
import dataclasses
import gzip
import json
import re

import hostile_html
import nbformat
import numpy as np
import pytest
import scipy.linalg
import scipy_oracle
from bs4 import BeautifulSoup

from lqrlab import systems
from lqrlab.simulation.verdict import Verdict
from lqrlab.workbench import design_page
from lqrlab.workbench.figures import design_grid, safe_html
from lqrlab.workbench.runs import report, run_folder

SECONDS = {"ms": 1e-3, "s": 1.0}


@pytest.fixture(scope="module")
def made():
    return design_page.page("mass_spring_damper")


def decoded(markup):
    """What the page carries, read as its script reads it."""
    text = BeautifulSoup(markup, "html.parser").select_one("[data-designs]")["data-designs"]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def position(data, *at):
    """The number of the design at a position of the sliders."""
    return int(np.ravel_multi_index(at, [len(axis["words"]) for axis in data["axes"]]))


def number(words):
    return float(re.search(r"[\d.]+", words)[0])


def test_a_design_of_the_page_is_scipys_and_its_curves_are_the_recursion(made):
    """At 0.2 s, a hundredth of the weight and half the stiffness; the plant is linear, so the recursion is exact."""
    data, at = decoded(made.html), (4, 0, 0)
    time, factor, stiffness = (axis["words"][i] for axis, i in zip(data["axes"], at))
    dt = number(time) * SECONDS[time.split()[1]]
    assert (dt, number(factor), number(stiffness)) == (0.2, 0.01, 2.0)
    A, B = np.array([[0, 1], [-2.0, -0.4]]), np.array([[0], [1.0]])
    Q, R = (np.asarray(W) for W in systems.make("mass_spring_damper").weights())
    Ad, Bd, *weights = scipy_oracle.van_loan(A, B, Q, 0.01 * R, dt)
    K, _ = scipy_oracle.gain(Ad, Bd, *weights)
    here = position(data, *at)
    poles = np.sort_complex(np.array(data["poles"]["at"][here]) @ [1, 1j])
    np.testing.assert_allclose(poles, np.sort_complex(np.linalg.eigvals(Ad - Bd @ K)), atol=1e-4)
    interval, count = data["interval"], len(data["curves"][0][position(data, 2, 4, 3)])
    x, held, expected = np.array([0.4, 0.0]), np.zeros(1), []  # 0.8 of the position's scale
    for k in range(count):
        late = (k * interval) % dt
        if min(late, dt - late) < 1e-9:
            held = -K @ x
        expected.append([*x, *held])
        E = scipy.linalg.expm(np.block([[A, B], [np.zeros((1, 3))]]) * interval)
        x = E[:2, :2] @ x + E[:2, 2:] @ held
    for column, (chart, curves) in enumerate(zip(data["charts"], data["curves"])):
        found = chart["scale"] * np.cumsum(curves[here])
        seen = len(found)  # a curve ends where it leaves its chart
        assert seen > count / 2 or column == 2
        np.testing.assert_allclose(found[: seen - 1], np.array(expected)[: seen - 1, column], atol=chart["scale"])


def test_what_is_said_of_a_design_is_so(made):
    data = decoded(made.html)
    said = {row["label"]: row["words"] for row in data["words"]}
    slowest = [np.abs(np.array(poles) @ [1, 1j]).max() for poles in data["poles"]["at"]]
    np.testing.assert_allclose([float(words) for words in said["slowest pole, |z|"]], slowest, atol=6e-4)
    usual = position(data, *(axis["at"] for axis in data["axes"]))
    force = data["charts"][2]["scale"] * np.cumsum(data["curves"][2][usual])
    assert number(said["largest force"][usual]) == pytest.approx(np.abs(force).max(), rel=0.01)
    x0 = np.array([0.4, 0.0])
    plant = systems.make("mass_spring_damper")
    sampled = scipy_oracle.van_loan(*(np.asarray(M) for M in (*plant.matrices(), *plant.weights())), 0.05)
    promised = x0 @ scipy_oracle.gain(*sampled)[1] @ x0  # what is left to pay at the end is not worth a digit
    cost = said["cost in 4.05 s"][usual]
    assert number(cost) == number(cost.partition("default")[2]) == pytest.approx(promised, rel=2e-3)
    assert said["on the nonlinear plant"][usual] == "converges"
    assert len(data["poles"]["at"]) == 7 * 9 * 7


def test_the_drawing_is_where_the_curves_are(made):
    """The block moves with the position, at one scale in all designs, to a pixel."""
    data = decoded(made.html)
    scene, chart = data["scene"], data["charts"][0]
    corner = scene["moving"].index(len(scene["fixed"]) - 8)  # the first of the block's four, which is drawn last
    pixels, positions = [], []
    for poses, curve in zip(scene["poses"], data["curves"][0]):
        run = chart["scale"] * np.cumsum(curve)[:: scene["every"]]
        positions += run.tolist()
        pixels += (np.cumsum(poses[corner])[: len(run)] / scene["fine"]).tolist()
    scale, middle = np.polyfit(positions, pixels, 1)
    assert scale > 20
    usual = np.cumsum(scene["poses"][position(data, *(axis["at"] for axis in data["axes"]))], axis=1)
    assert usual[:, scene["at"]].tolist() == [scene["fixed"][k] for k in scene["moving"]]
    np.testing.assert_allclose(pixels, scale * np.array(positions) + middle, atol=0.5)


def test_the_page_is_small_and_stands_for_the_defaults_without_a_script(made, tmp_path):
    page = BeautifulSoup(made.save(tmp_path / "page.html").read_text(), "html.parser")
    assert len((tmp_path / "page.html").read_bytes()) < 300_000
    assert [row.get_text(" ") for row in page.select(".lq-row")] == [
        "sample time 50 ms",
        "weight of force × 1",
        "stiffness 4 N/m",
        "time 0.60 s",
    ]
    assert not page.select("input, button")
    data = decoded(made.html)
    for chart, line in zip(data["charts"], page.select(".lq-live")):
        assert len(re.findall(r"[MLHV]", line["d"])) > 20
        assert float(re.match(r"M([\d.]+)", line["d"])[1]) == pytest.approx(chart["x"][0], abs=0.1)
    assert all(len(drawing["aria-label"]) > 20 for drawing in page.select("svg[role=img]"))
    assert page.select("svg .lq-part")


@pytest.mark.matrix
def test_a_drawing_that_has_no_room_is_left_out(monkeypatch):
    """With its slider and the marks of its time."""
    found = design_grid.grid(systems.make("mass_spring_damper"))
    monkeypatch.setattr(design_page, "grid", lambda *_: found)
    monkeypatch.setattr(design_page, "_MOST", 90_000)
    made = design_page.page("mass_spring_damper")
    page = BeautifulSoup(made.html, "html.parser")
    assert [axis["label"] for axis in decoded(made.html)["axes"]] == ["sample time", "weight of force", "stiffness"]
    assert len(page.select(".lq-row")) == 3
    assert not page.select(".lq-part, .lq-now")


def test_loops_that_diverge_and_designs_that_do_not_exist_are_said_in_words(monkeypatch):
    """And what leaves its chart, or is no number, ends there."""
    found = design_grid.grid(systems.make("mass_spring_damper"))
    xs, verdicts = found.xs.copy(), found.verdicts.copy()
    xs[0, 0, 0, 10:], xs[0, 0, 0, 20:], verdicts[0, 0, 0] = 1e9, np.nan, Verdict.DIVERGED
    xs[1, 0, 0], poles, there = np.nan, found.poles.copy(), found.found.copy()
    poles[1, 0, 0], there[1, 0, 0] = np.nan, False
    changed = dataclasses.replace(found, xs=xs, verdicts=verdicts, poles=poles, found=there)
    monkeypatch.setattr(design_page, "grid", lambda *_: changed)
    data = decoded(design_page.page("mass_spring_damper").html)
    wild, none = position(data, 0, 0, 0), position(data, 1, 0, 0)
    fate = data["words"][-1]["words"]
    assert (fate[wild], fate[none]) == ("diverges", "no stabilising gain was found")
    assert [row["words"][none] for row in data["words"][:-1]] == ["–"] * 4
    assert len(data["curves"][0][wild]) == 11
    assert len(data["curves"][0][none]) == 1
    assert data["poles"]["at"][none] == []
    assert np.cumsum(data["scene"]["poses"][wild], axis=1)[:, 4:].std(axis=1).max() == 0  # it stands still


@pytest.mark.matrix
def test_a_plant_without_parameters_has_two_sliders_and_names_are_text(tmp_path):
    plant = systems.load(hostile_html.plant_file(tmp_path / "plant.json"))
    made = design_page.page(plant)
    page = BeautifulSoup(made.html, "html.parser")
    assert [axis["label"][:9] for axis in decoded(made.html)["axes"]] == ["sample ti", "weight of"]
    assert not page.select("script, img, iframe, a, input")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"parameter": "lenght"}, "parameter: expected one of mass, stiffness, damping, but found 'lenght'"),
        ({"weight": "mass"}, "weight: expected one of position, velocity, force, but found 'mass'"),
    ],
)
def test_an_unknown_slider_is_refused_in_words(arguments, words):
    with pytest.raises(ValueError, match=words):
        design_page.page("mass_spring_damper", **arguments)


def reported(made, folder):
    """The report of a notebook that shows the page and nothing else."""
    (folder / "notebooks").mkdir(parents=True)
    output = nbformat.v4.new_output("display_data", {"text/html": made.html, "text/plain": made.alt})
    cells = [nbformat.v4.new_markdown_cell("# Exploration"), nbformat.v4.new_code_cell("", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "notebooks" / "01_exploration.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=cells[:1]), folder / "notebooks" / "02_data.ipynb")
    run_folder.begin(folder / "run.json")
    return report.write(folder).with_name("01_exploration.html")


def test_a_report_keeps_the_page_whole_and_lets_its_script_alone_run(made, tmp_path):
    path = reported(made, tmp_path)
    page = BeautifulSoup(path.read_text(), "html.parser")
    assert decoded(path.read_text()) == decoded(made.html)
    assert [script.get_text() for script in page.select("script")] == [design_page.SCRIPT]
    assert page.select_one("meta[http-equiv]")["content"] == safe_html.policy(design_page.SCRIPT)
    assert len(page.select(".lq-charts svg .lq-live")) == 4
    other = BeautifulSoup(path.with_name("02_data.html").read_text(), "html.parser")
    assert not other.select("script")
    assert other.select_one("meta[http-equiv]")["content"] == safe_html.POLICY


def test_only_base64_is_kept_as_data():
    assert "data-designs" in safe_html.sanitise('<div data-designs="AZ+/="></div>')
    assert "data-designs" not in safe_html.sanitise('<div data-designs="{&quot;a&quot;: 1}"></div>')
    assert "data-designs" not in safe_html.sanitise('<p data-designs="AZ"></p>')
