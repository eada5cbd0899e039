"""A study: a new notebook that runs, and its test that passes."""

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


def test_a_name_that_is_there_is_refused_and_nothing_is_made(place):
    said = CliRunner().invoke(main, ["new", "first"])
    assert (said.exit_code, "NAME: 01_first.ipynb is there already" in said.output) == (2, True)
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
