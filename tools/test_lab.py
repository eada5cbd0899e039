"""Copies of the notebooks: one that nobody changed follows its notebook, a changed one stays."""

import json

import lab


def notebook(path, source, **more):
    cells = [{"cell_type": "code", "id": "a", "metadata": {}, "source": source, "execution_count": None, "outputs": []}]
    cells[0] |= more
    kept = json.loads(path.read_text())["metadata"] if path.exists() else {"kernelspec": {"name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kept, "nbformat": 4, "nbformat_minor": 5}))


def test_a_copy_follows_until_somebody_changes_it(tmp_path):
    (tmp_path / "notebooks").mkdir()
    ours, folder = tmp_path / "notebooks" / "01_a.ipynb", tmp_path / "lab"
    theirs = folder / ours.name
    notebook(ours, "x = 1")
    notebook(ours.with_name("40_mine.ipynb"), "y = 1")  # of a person: it is not in git
    first = ours.read_bytes()
    assert lab.copy(ours.parent, folder) == []
    assert [path.name for path in folder.iterdir()] == ["01_a.ipynb"]
    assert "x = 1" in theirs.read_text()
    run = [{"output_type": "stream", "name": "stdout", "text": "1"}]
    notebook(theirs, ["x = 1"], outputs=run, execution_count=3)  # as JupyterLab saves it
    assert lab.copy(ours.parent, folder) == []
    assert json.loads(theirs.read_text())["cells"][0]["outputs"] == run  # nothing is newer: results stay
    notebook(ours, "x = 2")
    assert lab.copy(ours.parent, folder) == []
    assert "x = 2" in theirs.read_text()
    notebook(theirs, "x = 9")
    assert lab.copy(ours.parent, folder) == []  # changed, and nothing newer to say
    notebook(ours, "x = 3")
    changed = theirs.read_bytes()
    assert lab.copy(ours.parent, folder) == ["01_a.ipynb"]
    assert theirs.read_bytes() == changed
    theirs.unlink()
    assert lab.copy(ours.parent, folder) == []
    assert "x = 3" in theirs.read_text()
    assert first != ours.read_bytes()
