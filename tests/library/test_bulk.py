"""Sweeps without a notebook: many designs in one program, against designs one at a time by other libraries."""

import json

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from scipy_oracle import gain, van_loan

from lqrlab import systems
from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import notebooks, plant_designs, report, sweep


def ask(folder, *args):
    line = ["sweep", "mass_spring_damper", "--folder", str(folder), "--seed", "3", *args]
    return CliRunner().invoke(main, line)


GIVEN = ["-p", "mass=0.5:2", "-p", "dt=0.05:0.1:log", "-p", "q_position=0.1:10:log", "-p", "r_force=0.5,2"]


def by_scipy(point):
    """The mean cost of typical starts and the slowest mode, from a fine Euler-free sampling of the cost by SciPy."""
    plant = systems.make("mass_spring_damper", mass=point["mass"])
    A, B = (np.asarray(a) for a in plant.matrices())
    Q, R = (np.asarray(a) for a in plant.weights())
    Q = Q * np.diag([point["q_position"], 1.0])
    A, B, *weights = van_loan(A, B, Q, point["r_force"] * R, point["dt"])
    K, P = gain(A, B, *weights)
    scale = np.array([s.scale for s in plant.states])
    return scale @ (np.diag(P) * scale), np.abs(np.linalg.eigvals(A - B @ K)).max()


@pytest.mark.matrix
def test_designs_in_one_program_are_those_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "package_hash", lambda: "as it is")  # whoever edits it meanwhile
    done = ask(tmp_path, *GIVEN, "--random", "12", "--no-report")
    assert done.exit_code == 0, done.output
    frame = pd.read_csv(tmp_path / "results.csv")
    assert len(frame) == 12
    assert frame["status"].eq("finished").all()
    assert set(frame["r_force"]) == {0.5, 2.0}
    for row in frame.to_dict("records")[:5]:
        np.testing.assert_allclose((row["cost"], row["slowest"]), by_scipy(row), rtol=1e-9)
    assert (frame["nominal_excess"] >= -1e-9).all()
    assert frame["nominal_excess"].max() > 1
    assert frame["nonlinear_p95"].abs().max() < 1e-3  # this plant is linear: nothing is above its optimum
    assert frame["nonlinear_diverged"].eq(0).all()

    # the same command computes only what is missing (12 points again: nothing new to compile); a line that a crash
    # cut short is missing
    lines = [line for line in (tmp_path / sweep.NUMBERS).read_text().splitlines(keepends=True) if line != "\n"]
    (tmp_path / sweep.NUMBERS).write_text("".join(lines[:6]) + lines[6][:20])
    again = ask(tmp_path, *GIVEN, "--random", "18", "--no-report")
    assert "18 points, 6 finished before" in again.stdout
    after = pd.read_csv(tmp_path / "results.csv")
    pd.testing.assert_frame_equal(after[:12], frame)
    assert after["status"].eq("finished").all()

    page = BeautifulSoup(report.compare(tmp_path).read_text(), "html.parser")
    assert "nonlinear_p95" in page.select("thead")[-1].get_text()
    assert "Points18 finished" in page.select_one("dl.facts").get_text().replace("\n", "")
    assert len(page.select("#runs ~ .scroll tbody tr")) == 18
    found = {row.th.get_text(): row.select("td") for row in page.select("#spread ~ .scroll tbody tr")}
    assert found["cost"][-1].get_text() == f"{after['cost'].max():.4g}"
    ask(tmp_path, *GIVEN, "--random", "18", "--no-report")  # nothing is missing, and the units are still there
    assert json.loads((tmp_path / "sweep.json").read_text())["units"]["time_constant"] == "s"


def test_a_point_without_a_design_says_why_and_takes_none_along():
    plants, dt, (Q, R) = plant_designs.batch("mass_spring_damper", [{"mass": 1.0}, {"mass": 0.5}])
    R = R.at[1].multiply(-1)  # its second variant costs infinitely little
    found = dict(row for rows in plant_designs.designs("mass_spring_damper", (plants, dt, (Q, R))) for row in rows)
    assert found[0]["nonlinear_diverged"] == 0
    assert "R" in found[1]["error"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "mas=1"], "mass_spring_damper.mas: the plant has no such parameter; did you mean mass"),
        (["-p", "mass=-1,1"], "mass: expected mass_spring_damper's"),
        (["-p", "mass=1", "--workers", "2"], "--workers: is for notebooks, but mass_spring_damper is a plant"),
        (["-p", "mass=1", "--from", "x"], "--from: is for notebooks"),
    ],
)
def test_what_a_plant_cannot_be_swept_over(tmp_path, args, message):
    done = ask(tmp_path / "sweep", *args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "sweep").exists()


def test_neither_a_notebook_nor_a_plant():
    done = CliRunner().invoke(main, ["sweep", "cart_poel", "-p", "mass=1"])
    assert done.exit_code == 2
    assert "cart_poel: is neither a notebook nor a plant; did you mean cart_pole" in done.stderr


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["cart_pole", "--random", "5"], "cart_pole: expected -p NAME=VALUES or --list, as in -p cart_mass=LOW:HIGH"),
        (["cart_pole"], "cart_pole: expected -p NAME=VALUES or --list"),
        (["03_training", "--random", "5"], "--random 5: expected values or ranges to draw from, as in -p"),
    ],
)
def test_a_sweep_over_nothing_is_refused(tmp_path, asked, words):
    done = CliRunner().invoke(main, ["sweep", *asked, "--folder", str(tmp_path / "sweep")])
    assert (done.exit_code, words in done.stderr) == (2, True), done.output
    assert not (tmp_path / "sweep").exists()


def test_one_point_is_a_table_of_its_numbers():
    frame = pd.DataFrame([{"run": "1", "status": "finished", "mass": 2.0, "cost": 3.0, "error": ""}])
    assert sweep.axes(frame, {"runs": [{"point": {"mass": 2.0}}]}) == ([], ["cost"])
    assert sweep.spread(frame, ["cost"], {}).loc["cost"].tolist() == ["", 3.0, 3.0, 3.0, 3.0]


def test_a_points_numbers_are_its_own_and_each_point_is_checked(tmp_path):
    def numbers(*lengths):
        given = [{"length": length} for length in lengths]
        batch = plant_designs.batch("pendulum", given)
        return dict(pair for part in plant_designs.designs("pendulum", batch) for pair in part)

    assert numbers(0.3, 0.8)[1] == pytest.approx(numbers(0.8, 1.5)[0], rel=1e-6)
    with pytest.raises(ValueError, match="mass"):
        plant_designs.batch("pendulum", [{"length": 0.5}, {"mass": -1.0}])
