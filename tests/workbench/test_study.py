"""A study: a new notebook that runs, its test that passes, and the page that JupyterLab opens on."""

import json
import re
import subprocess
import sys

import nbformat
import pytest
from click.testing import CliRunner

from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import notebooks, study


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_first.ipynb").write_text("{}")
    return tmp_path


def test_a_new_notebook_is_valid_and_its_parameters_are_read(place):
    said = CliRunner().invoke(main, ["new", "my_question"])
    assert said.exit_code == 0, said.output
    path = place / "notebooks" / "40_my_question.ipynb"
    nbformat.validate(nbformat.read(path, 4))
    (nb,) = notebooks.named(path.parent, ["40_my_question"])
    assert nb.title == "My question"
    assert nb.question == "How far is this controller from the optimum?"
    assert {*nb.parameters} == {"run", "plants_file", "family", "num_factors"}
    compile((place / "tests" / "test_40_my_question.py").read_text(), "test", "exec")
    assert study.new_notebook("another", path.parent)[0].name == "41_another.ipynb"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../x", "NAME: expected small letters"),
        ("First", "NAME: expected"),
        ("first", "01_first.ipynb is there already"),
    ],
)
def test_names_are_refused_in_words_and_nothing_is_made(place, name, words):
    said = CliRunner().invoke(main, ["new", name])
    assert said.exit_code == 2
    assert words in said.output
    assert [p.name for p in (place / "notebooks").iterdir()] == ["01_first.ipynb"]
    assert not (place / "tests").exists()


def test_a_hundredth_notebook_has_no_number(place):
    (place / "notebooks" / "99_last.ipynb").write_text("{}")
    with pytest.raises(ValueError, match="expected a number up to 99 to be free"):
        study.new_notebook("more", place / "notebooks")


@pytest.mark.matrix
def test_the_test_that_comes_with_it_passes(tmp_path, monkeypatch):
    """13 s."""
    assert CliRunner().invoke(main, ["init", str(tmp_path / "study")]).exit_code == 0
    monkeypatch.chdir(tmp_path / "study")
    study.new_notebook("my_question", tmp_path / "study" / "notebooks")
    subprocess.run([sys.executable, "-m", "pytest", "-q", "tests"], check=True, timeout=400)


@pytest.fixture
def studied(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_first.ipynb").write_text("{}")
    for name in ("my_question", "another"):
        study.new_notebook(name, tmp_path / "notebooks")
    (tmp_path / "notebooks" / "01_first.ipynb").unlink()
    return tmp_path


def ran(place, name, said):
    folder = place / "data" / "runs" / name
    (folder / "notebooks").mkdir(parents=True)
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("x")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "started": "2026-11-26T10:00:00"}))
    out = nbformat.v4.new_output("display_data", {"text/markdown": said, "text/plain": "x"})
    cell = nbformat.v4.new_code_cell("1", outputs=[out])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "notebooks" / "04_scores.ipynb")
    return folder


def read(place, *, write=False):
    """The text of the page, which is a valid notebook."""
    path = study.start_page(place / "notebooks") if write else place / "data" / "start.ipynb"
    page = nbformat.read(path, 4)
    nbformat.validate(page)
    (cell,) = page.cells
    return cell.source


def test_before_anything_was_run_it_says_how_to(studied):
    text = read(studied, write=True)
    assert "Nothing was run yet" in text
    assert text.count("How far is this controller from the optimum?") == 2


def test_runs_come_with_their_answer_and_all_links_lead_somewhere(studied, monkeypatch):
    ran(studied, "with space", "**The network** costs 3 % more.")
    assert CliRunner().invoke(main, ["start", "--notebooks", "notebooks"]).exit_code == 0
    text = read(studied)
    assert "**The network** costs 3 % more." in text
    assert "2026-11-26 10:00: finished" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) == 3
    for link in links:
        assert (studied / "data" / link.replace("%20", " ")).exists()


@pytest.mark.parametrize("broken", ["{", "[]", '{"cells": 3}', '{"cells": [{"outputs": [3]}]}'])
def test_a_run_that_somebody_broke_is_listed_without_an_answer(studied, broken):
    folder = ran(studied, "run", "answer")
    (folder / "notebooks" / "04_scores.ipynb").write_text(broken)
    text = read(studied, write=True)
    assert "**run**" in text
    assert "answer" not in text
