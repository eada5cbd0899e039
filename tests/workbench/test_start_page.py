"""``lqrlab start``: what was run with its answer, the notebooks with their questions, links that lead somewhere."""

import json
import re

import nbformat
import pytest
from click.testing import CliRunner

from lqrlab.workbench.cli import main
from lqrlab.workbench.panels import kept_designs
from lqrlab.workbench.runs import new_notebook, start_page


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_first.ipynb").write_text("{}")
    new_notebook.create("my_question", tmp_path / "notebooks")
    new_notebook.create("another", tmp_path / "notebooks")
    (tmp_path / "notebooks" / "01_first.ipynb").unlink()
    return tmp_path


def ran(study, name, said):
    folder = study / "data" / "runs" / name
    (folder / "notebooks").mkdir(parents=True)
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("x")
    (folder / "run.json").write_text(json.dumps({"status": "finished", "started": "2026-11-26T10:00:00"}))
    out = nbformat.v4.new_output("display_data", {"text/markdown": said, "text/plain": "x"})
    cell = nbformat.v4.new_code_cell("1", outputs=[out])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "notebooks" / "04_scores.ipynb")
    return folder


def read(study, *, write=False):
    """The text of the page, which is a valid notebook."""
    path = start_page.write(study / "notebooks") if write else study / "data" / "start.ipynb"
    page = nbformat.read(path, 4)
    nbformat.validate(page)
    (cell,) = page.cells
    return cell.source


def test_designs_that_were_kept_are_found_again(study):
    run = ran(study, "mine", "x")
    kept_designs.DesignFile("widgets.lqr_designer(plant='cart_pole')", run).keep("calm `one`", {"limit": 1.0})
    assert "kept design `calm ´one´` of `widgets.lqr_designer(plant='cart_pole')`" in read(study, write=True)
    (run / "designs.json").write_text("[3")
    assert "kept design" not in read(study, write=True)


def test_before_anything_was_run_it_says_how_to(study):
    text = read(study, write=True)
    assert "Nothing was run yet" in text
    assert text.count("How far is this controller from the optimum?") == 2


def test_runs_come_with_their_answer_and_all_links_lead_somewhere(study, monkeypatch):
    ran(study, "with space", "**The network** costs 3 % more.")
    assert CliRunner().invoke(main, ["start", "--notebooks", "notebooks"]).exit_code == 0
    text = read(study)
    assert "**The network** costs 3 % more." in text
    assert "2026-11-26 10:00: finished" in text
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) == 3
    for link in links:
        assert (study / "data" / link.replace("%20", " ")).exists()


@pytest.mark.parametrize("broken", ["{", "[]", '{"cells": 3}', '{"cells": [{"outputs": [3]}]}'])
def test_a_run_that_somebody_broke_is_listed_without_an_answer(study, broken):
    folder = ran(study, "run", "answer")
    (folder / "notebooks" / "04_scores.ipynb").write_text(broken)
    text = read(study, write=True)
    assert "**run**" in text
    assert "answer" not in text
