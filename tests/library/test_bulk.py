"""Sweeps without a notebook: many designs in one program, against designs one at a time by other libraries."""

import numpy as np
import pandas as pd
import pytest
from bs4 import BeautifulSoup
from click.testing import CliRunner
from scipy_oracle import gain, van_loan

from lqrlab import systems
from lqrlab.simulation import Problem
from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import plant_sweep, run_folder, sweep


def ask(folder, *args):
    line = ["sweep", "mass_spring_damper", "--folder", str(folder), "--seed", "3", *args]
    return CliRunner().invoke(main, line)


GIVEN = ["-p", "mass=0.5:2", "-p", "dt=0.05:0.1:log", "-p", "q_position=0.1:10:log", "-p", "r_force=0.5,2"]


def by_scipy(point):
    """The mean cost of typical starts and the slowest time constant, the cost sampled by SciPy."""
    plant = systems.make("mass_spring_damper", mass=point["mass"])
    A, B = (np.asarray(a) for a in plant.matrices())
    Q, R = (np.asarray(a) for a in plant.weights())
    Q = Q * np.diag([point["q_position"], 1.0])
    A, B, *weights = van_loan(A, B, Q, point["r_force"] * R, point["dt"])
    K, P = gain(A, B, *weights)
    scale = np.array([s.scale for s in plant.states])
    return scale @ (np.diag(P) * scale), -point["dt"] / np.log(np.abs(np.linalg.eigvals(A - B @ K)).max())


@pytest.mark.matrix
def test_designs_in_one_program_are_those_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(plant_sweep, "_AT_ONCE", 5)  # the last of three programs is filled up
    done = ask(tmp_path, *GIVEN, "--random", "12")
    assert done.exit_code == 0, done.output
    frame = pd.read_csv(tmp_path / "results.csv")
    assert len(frame) == 12
    assert frame["status"].eq("finished").all()
    assert set(frame["r_force"]) == {0.5, 2.0}
    for row in frame.to_dict("records"):
        np.testing.assert_allclose((row["cost"], row["time_constant"]), by_scipy(row), rtol=1e-9)
    assert frame["nonlinear_p95"].abs().max() < 1e-3  # this plant is linear: nothing is above its optimum
    assert frame["nonlinear_diverged"].eq(0).all()

    page = BeautifulSoup((tmp_path / "report" / "index.html").read_text(), "html.parser")
    assert "nonlinear p95 [%]" in page.select("thead")[-1].get_text()
    assert "Points12 finished" in page.select_one("dl.facts").get_text().replace("\n", "")
    assert len(page.select("#runs ~ .scroll tbody tr")) == 12
    monkeypatch.setattr(sweep, "SHOWN", 11)  # of more there is the spread
    page = BeautifulSoup(sweep.compare(tmp_path).read_text(), "html.parser")
    assert len(page.select("#runs ~ .scroll tbody tr")) == 11
    found = {row.th.get_text(): row.select("td") for row in page.select("#spread ~ .scroll tbody tr")}
    assert found["cost"][-1].get_text() == f"{frame['cost'].max():.4g}"
    assert found["time constant"][0].get_text() == "s"
    assert run_folder.read(tmp_path / "sweep.json")["status"] == "finished"


def test_a_point_without_a_design_says_why_and_takes_none_along():
    plants = systems.make("mass_spring_damper", mass=[1.0, 0.5])
    Q, R = plants.weights()
    sign = np.array([1.0, -1.0])[:, None, None]  # the second one's inputs cost infinitely little
    problem = Problem.of(plants, weights=(Q * sign**2, R * sign))
    good, bad = (row for _, row in next(plant_sweep.tried(problem)).iterrows())
    assert (good["status"], good["nonlinear_diverged"], good["error"]) == ("finished", 0, "")
    assert (bad["status"], "R" in bad["error"]) == ("failed", True)
    assert np.isnan(bad[["cost", "time_constant", "nonlinear_p95"]].astype(float)).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "dt=0,1"], "mass_spring_damper.dt (sample time [s]): expected a number > 0, but found 0"),
        (["-p", "q_position=-1"], "q_position (factor of the weight): expected a number > 0"),
        (["-p", "mass=-1,1"], "mass: expected mass_spring_damper's"),
        (["-p", "mass=1", "--workers", "2"], "--workers: is for notebooks, but mass_spring_damper is a plant"),
        (["--random", "5"], "mass_spring_damper: expected -p NAME=VALUES, as in -p mass=LOW:HIGH"),
    ],
)
def test_what_a_plant_cannot_be_swept_over(tmp_path, args, message):
    done = ask(tmp_path / "sweep", *args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "sweep").exists()


def test_one_point_is_a_table_of_its_numbers():
    frame = pd.DataFrame([{"run": "1", "status": "finished", "mass": 2.0, "cost": 3.0, "error": ""}])
    assert sweep.axes(frame, {"runs": [{"point": {"mass": 2.0}}]}) == ([], ["cost"])
    assert sweep.spread(frame, ["cost"], {}).loc["cost"].tolist() == ["", 3.0, 3.0, 3.0, 3.0]


def test_a_points_numbers_are_its_own_and_each_point_is_checked():
    def numbers(*lengths):
        problem = plant_sweep.designs("pendulum", [{"length": length} for length in lengths])
        return next(plant_sweep.tried(problem))[list(plant_sweep.UNITS)].to_dict("records")

    assert numbers(0.3, 0.8)[1] == pytest.approx(numbers(0.8, 1.5)[0], rel=1e-6)
    with pytest.raises(ValueError, match="mass"):
        plant_sweep.designs("pendulum", [{"length": 0.5}, {"mass": -1.0}])
