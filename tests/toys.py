"""Toy notebooks for the tests of runs and sweeps: they start in a second, because they import no JAX."""

import json
import time
from pathlib import Path

import nbformat

BEGIN = """import json, os, pathlib, time
folder = pathlib.Path(run)
def finish(name, numbers, files=()):  # what session.finish writes
    path = folder / 'results' / f'{name}.json'
    path.parent.mkdir(exist_ok=True)
    known = {'fingerprint': os.environ.get('LQRLAB_FINGERPRINT')}
    about = {'notebook': name, 'started': '2026-11-21T10:00:00', 'seconds': 0.1, 'device': '1 × cpu', 'versions': {}}
    path.write_text(json.dumps(known | about | {'numbers': numbers, 'files': list(files)}))
def log(word):
    with (folder / 'log').open('a') as file: file.write(word + ' ')"""


def until(condition, seconds=60.0):
    """What the condition gives as soon as it holds."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return found


def write_notebook(path: Path, parameters: str, *cells: str, title: str = "") -> Path:
    """A notebook with a heading above each cell; its parameters come first."""
    new = nbformat.v4
    made = [new.new_markdown_cell(f"# {title or f'About {path.stem}'}")]
    made.append(new.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    for i, text in enumerate(cells):
        made += [new.new_markdown_cell(f"## Step {i}"), new.new_code_cell(text)]
    for i, cell in enumerate(made):
        cell["id"] = f"cell-{i}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new.new_notebook(cells=made, metadata={"kernelspec": kernel}), path)
    return path


def numbers(folder: Path, name: str) -> dict:
    """What a notebook found out."""
    return json.loads((folder / "results" / f"{name}.json").read_text())["numbers"]
