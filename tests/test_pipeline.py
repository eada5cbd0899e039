"""The pipeline on toy notebooks: order, checks, failure, killing, resuming, locking."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import numpy as np
import papermill
import psutil
import pytest

from lqrlab.workbench.runs import notebooks, pipeline, session

FIRST = {
    "parameters": "run: str = 'data/runs/default'  # folder that this run reads and writes\n"
    "amount: int = 3  # how many numbers\nrate: float = 0.5  # step [1/s]\nshout: bool = False\n"
    "names: list[str] = ['a']  # of plants\nlimit: float | None = None",
    "cells": [
        "from lqrlab.workbench import session\nfolder = session.begin('01_first', run)",
        "(folder / 'numbers.txt').write_text(' '.join(map(str, range(amount))))\n"
        "with (folder / 'log').open('a') as log: log.write('first ')\nprint('numbers written')",
        "numbers = {'rate': rate, 'shout': shout, 'names': names}\n"
        "session.finish('01_first', folder, numbers, files=['numbers.txt'])",
    ],
}
SECOND = {
    "parameters": "run: str = 'data/runs/default'\nrate: float = 1.0  # step [1/s]\n"
    "pause: float = 0.0\nfault: bool = False",
    "cells": [
        "import time\nfrom lqrlab.workbench import session\nfolder = session.begin('02_second', run)",
        "total = sum(map(int, (folder / 'numbers.txt').read_text().split()))\n"
        "with (folder / 'log').open('a') as log: log.write('second ')\ntime.sleep(pause)",
        "if fault:\n    raise ArithmeticError('the sum is a matter of taste')",
        "session.finish('02_second', folder, {'total': total, 'rate': rate})",
    ],
}


def write_notebook(path: Path, content: dict) -> None:
    new = nbformat.v4
    cells = [new.new_markdown_cell(f"# About {path.stem}")]
    cells.append(new.new_code_cell(content["parameters"], metadata={"tags": ["parameters"]}))
    for i, text in enumerate(content["cells"]):
        cells += [new.new_markdown_cell(f"## Step {i}"), new.new_code_cell(text)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nb = new.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    for i, cell in enumerate(nb.cells):
        cell["id"] = f"cell-{i}"
    nbformat.write(nb, path)


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "package_hash", lambda: "as it is")  # whoever edits it meanwhile
    folder = tmp_path / "notebooks"
    (folder / "profiles").mkdir(parents=True)
    write_notebook(folder / "01_first.ipynb", FIRST)
    write_notebook(folder / "02_second.ipynb", SECOND)
    (folder / "profiles" / "toy.json").write_text(json.dumps({"01_first": {"amount": 4}}))
    return folder


def run(source, folder, overrides=None, **kwargs):
    """Run the toy chain; returns what was printed."""
    stream = io.StringIO()
    pipeline.run("toy", folder, overrides, source=source, report=False, stream=stream, **kwargs)
    return stream.getvalue()


def numbers(folder, name):
    return json.loads((folder / "results" / f"{name}.json").read_text())["numbers"]


@pytest.mark.slow
def test_chain_resume_and_rerun_of_what_depends(source, tmp_path):
    folder = tmp_path / "run"
    shown = run(source, folder, {"02_second.rate": "2", "names": "b,c", "shout": "true"})
    assert numbers(folder, "01_first") == {"rate": 0.5, "shout": True, "names": ["b", "c"]}
    assert numbers(folder, "02_second") == {"total": 0 + 1 + 2 + 3, "rate": 2.0}
    assert [line.split("  (")[0] for line in shown.splitlines() if "01_first" in line and "Step" in line] == [
        f"  01_first   {i + 3}/5  Step {i}" for i in range(3)
    ]
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["parameters"]["01_first"]["amount"] == 4
    assert record["device"].startswith("1 × cpu")
    executed = nbformat.read(folder / "notebooks" / "01_first.ipynb", 4)
    assert any("injected-parameters" in c.metadata.get("tags", []) for c in executed.cells)
    assert not list((folder / "notebooks").glob(".*"))

    again = {"02_second.rate": 2, "names": ["b", "c"], "shout": True}
    assert run(source, folder, again).count("finished before") == 2
    assert (folder / "log").read_text() == "first second "

    run(source, folder, again | {"02_second.rate": 3.0})  # the last alone
    assert (folder / "log").read_text() == "first second second "
    (folder / "numbers.txt").unlink()  # made by the first, which therefore counts as not finished
    run(source, folder, again | {"02_second.rate": 3.0})
    assert (folder / "log").read_text() == "first second second first "
    run(source, folder, again | {"02_second.rate": 3.0}, fresh=True)
    assert (folder / "log").read_text() == "first second second first first second "


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"amuont": "3"}, "amuont: no notebook has a parameter of this name; did you mean amount"),
        ({"01_first.rat": 1.0}, r"01_first\.rat: the notebook has no such parameter; did you mean rate"),
        ({"01_frist.rate": 1.0}, "there is no notebook '01_frist'; did you mean 01_first"),
        ({"amount": "3.5"}, r"01_first\.amount \(how many numbers\): expected int, but found '3.5'"),
        ({"amount": "many"}, "expected int, but found 'many'"),
        ({"amount": True}, "expected int, but found True"),
        (
            {"01_first.rate": "fast"},
            r"01_first\.rate \(step \[1/s\]\): expected a finite float, but found 'fast'",
        ),
        ({"rate": True}, "expected a finite float, but found True"),
        ({"rate": "nan"}, "expected a finite float, but found 'nan'"),
        ({"rate": "NaN"}, "expected a finite float, but found 'NaN'"),
        ({"rate": float("inf")}, "expected a finite float, but found inf"),
        ({"shout": "yes"}, "expected bool, but found 'yes'"),
        ({"shout": "1"}, "expected bool, but found '1'"),
        ({"names": "1,2"}, r"expected list\[str\], but found '1,2'"),
        ({"run": "/tmp/x"}, "run: is set by the run's folder"),
        ({"limit": "high"}, "limit: expected float | None"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_starts(source, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        run(source, tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_profiles_are_checked_as_strictly(source, tmp_path):
    profile = source / "profiles" / "toy.json"
    for content, message in [
        ({"01_first": {"rate": "0.1"}}, "expected a finite float, but found '0.1'"),
        ({"01_second": {}}, "profile: there is no notebook '01_second'; did you mean 02_second"),
        ({"02_second": {"amount": 1}}, "02_second.amount: the notebook has no such parameter"),
        ([], "expected {notebook: {parameter: value}}"),
    ]:
        profile.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            run(source, tmp_path / "run")
    with pytest.raises(ValueError, match=r"profile: there is no 'tyo' .* there are toy"):
        pipeline.run("tyo", tmp_path / "run", source=source)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e-3", float, 1e-3),
        ("3", float, 3.0),
        ("False", bool, False),
        ("3", str, "3"),
        ("none", float | None, None),
        ("2", float | None, 2.0),
        ("[1, 2]", list[float], [1.0, 2.0]),
        ("cart_pole,pendulum", list[str], ["cart_pole", "pendulum"]),
        ('{"cart_pole": 0.2}', dict[str, float], {"cart_pole": 0.2}),
    ],
)
def test_values_as_typed(text, kind, value):
    read = notebooks.convert(text, kind, text=True)
    assert read == value
    assert type(read) is type(value)


def test_declarations_are_read_as_papermill_reads_them(source):
    path = source / "01_first.ipynb"
    ours, theirs = notebooks.read(path).parameters, papermill.inspect_notebook(path)
    assert "limit" not in theirs  # papermill overlooks what is annotated as a union
    assert list(ours) == [*theirs, "limit"]
    for name, theirs_of_it in theirs.items():
        assert ours[name].type_name == theirs_of_it["inferred_type_name"]
        assert ours[name].about == theirs_of_it["help"]


@pytest.mark.slow
def test_a_failing_cell_is_shown_and_what_was_finished_is_kept(source, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(pipeline.RunError) as caught:
        run(source, folder, {"fault": True})
    message = str(caught.value)
    assert "ArithmeticError: the sum is a matter of taste" in message
    assert "if fault:" in message
    failed = folder / "notebooks" / "02_second.failed.ipynb"
    assert str(failed) in message
    assert "same command again" in message
    assert failed.exists()
    assert not (folder / "results" / "02_second.json").exists()
    assert json.loads((folder / "run.json").read_text())["status"] == "failed at 02_second"
    run(source, folder)
    assert (folder / "log").read_text() == "first second second "


@pytest.mark.parametrize(
    "last", ["", "(folder / 'results').mkdir()\n(folder / 'results/01_first.json').write_text('{}')"]
)
def test_a_notebook_that_ends_without_its_last_word_has_failed(source, tmp_path, last):
    write_notebook(source / "01_first.ipynb", FIRST | {"cells": [FIRST["cells"][0], last]})
    with pytest.raises(pipeline.RunError, match=r"ended without writing .*01_first\.json"):
        run(source, tmp_path / "run")


def test_a_kernel_that_dies_has_failed(source, tmp_path):
    cells = [*FIRST["cells"], "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"]
    write_notebook(source / "01_first.ipynb", FIRST | {"cells": cells})
    with pytest.raises(pipeline.RunError, match="DeadKernelError"):
        run(source, tmp_path / "run")
    assert not (tmp_path / "run" / "results" / "01_first.json").exists()


@pytest.mark.slow
def test_killed_in_the_middle_the_same_command_goes_on(source, tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "lqrlab.workbench", "run", "--profile", "toy", "--folder", str(folder)]
    command += ["--notebooks", str(source)]
    parent = subprocess.Popen([*command, "-p", "pause=600"], stdout=subprocess.DEVNULL)
    until(lambda: (folder / "log").exists() and (folder / "log").read_text() == "first second ")
    descendants = psutil.Process(parent.pid).children(recursive=True)
    assert len(descendants) >= 2  # papermill and its kernel
    with pytest.raises(ValueError, match=f"another run works in this folder .process {parent.pid}"):
        run(source, folder)
    parent.kill()
    parent.wait()
    until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in descendants), 20)

    finished = (folder / "results" / "01_first.json").read_text()
    assert not (folder / "results" / "02_second.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "01_first  finished before" in done.stdout
    assert (folder / "results" / "01_first.json").read_text() == finished
    assert (folder / "log").read_text() == "first second second "
    assert (folder / "report" / "index.html").exists()


@pytest.mark.slow
def test_interrupted_by_hand(source, tmp_path):
    folder = tmp_path / "run"
    # a shell starts what runs in the background deaf to Ctrl-C, and its children inherit that
    listening = (
        "import signal, runpy\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_module('lqrlab.workbench', run_name='__main__')"
    )
    command = [sys.executable, "-c", listening, "run", "--profile", "toy", "--folder", str(folder)]
    command += ["--notebooks", str(source), "-p", "pause=600"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: (folder / "log").exists() and (folder / "log").read_text() == "first second ")
    parent.send_signal(signal.SIGINT)
    out, err = parent.communicate(timeout=20)
    assert parent.returncode == 130
    assert 'interrupted at "Step 1"' in out
    assert "the same command goes on" in err
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"


def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_a_folder_that_is_held_is_refused(source, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, b"4711\n")
    with pytest.raises(ValueError, match=r"another run works in this folder \(process 4711"):
        run(source, folder)
    os.close(fd)


def test_a_deeper_notebook_runs_when_named_and_only_then(source, tmp_path):
    folder = tmp_path / "run"
    deeper = {
        "parameters": "run: str = 'data/runs/default'\namount: int = 1  # how many numbers",
        "cells": [
            "from lqrlab.workbench import session\nfolder = session.begin('12_deeper', run)",
            "session.finish('12_deeper', folder, {'amount': amount})",
        ],
    }
    write_notebook(source / "12_deeper.ipynb", deeper)
    (source / "profiles" / "toy.json").write_text(json.dumps({"12_deeper": {"amount": 7}}))
    (folder / "results").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"parameters": {"01_first": {"amount": 4}}}))
    assert [nb.name for nb in notebooks.find(source)] == ["01_first", "02_second"]
    shown = run(source, folder, only=["notebooks/12_deeper.ipynb"])
    assert "12_deeper" in shown
    assert "01_first" not in shown
    assert numbers(folder, "12_deeper") == {"amount": 7}
    record = json.loads((folder / "run.json").read_text())
    assert record["parameters"] == {"01_first": {"amount": 4}, "12_deeper": {"amount": 7}}
    assert "finished before" in run(source, folder, only=["12_deeper"])
    with pytest.raises(ValueError, match=r"there is no '12_deepr' .*; did you mean 12_deeper\?"):
        run(source, folder, only=["12_deepr"])


def test_fresh_removes_only_what_runs_make(tmp_path):
    for name in ("dataset/shard.h5", "checkpoints/1", "thesis.tex"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    pipeline.clear(tmp_path)  # not a run's folder: nothing is touched
    assert (tmp_path / "dataset").exists()
    (tmp_path / "run.json").touch()
    pipeline.clear(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


def test_rewording_a_notebook_reruns_it_alone_and_its_code_those_after(source):
    def prints(**given):
        chain = notebooks.find(source)
        return notebooks.fingerprints(chain, notebooks.effective(chain, {}, given))

    before = prints()
    assert prints(pause=1.0)["01_first"] == before["01_first"]
    assert prints(pause=1.0)["02_second"] != before["02_second"]
    assert prints(amount=5)["02_second"] != before["02_second"]
    first = source / "01_first.ipynb"
    first.write_text(first.read_text().replace("## Step 0", "## The beginning"))
    reworded = prints()
    assert reworded["01_first"] != before["01_first"]
    assert reworded["02_second"] == before["02_second"]
    first.write_text(first.read_text().replace("range(amount)", "range(1 + amount)"))
    assert prints()["02_second"] != before["02_second"]
    second = json.loads((source / "02_second.ipynb").read_text())
    second["metadata"]["lqrlab"] = {"needs": []}
    (source / "02_second.ipynb").write_text(json.dumps(second))
    independent = prints()["02_second"]
    first.write_text(first.read_text().replace("range(1 + amount)", "range(2 + amount)"))
    assert prints()["02_second"] == independent


def test_the_package_counts_apart_from_what_only_starts_and_shows(tmp_path):
    for name in ("control/riccati.py", "workbench/plots.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a = 1")
    before = notebooks.package_hash(tmp_path)
    (tmp_path / "workbench" / "plots.py").write_text("a = 2")
    assert notebooks.package_hash(tmp_path) == before
    (tmp_path / "control" / "riccati.py").write_text("a = 2")
    assert notebooks.package_hash(tmp_path) != before


def test_results_hold_arrays_and_numbers_that_are_not_finite(tmp_path):
    path = session.write_json(
        tmp_path / "a.json", {"k": np.arange(2), "worst": np.float64("inf"), "at": Path("x")}
    )
    assert json.loads(path.read_text()) == {"k": [0, 1], "worst": "inf", "at": "x"}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_plain_papermill_does_as_well(source, tmp_path):
    command = [Path(sys.executable).parent / "papermill", "01_first.ipynb", tmp_path / "out.ipynb"]
    command += ["-p", "run", "here", "--no-progress-bar"]
    (tmp_path / "pyproject.toml").touch()  # relative folders are meant from the project's folder
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    assert numbers(tmp_path / "here", "01_first")["rate"] == 0.5
    assert not (source / "here").exists()


def test_the_kernel_is_this_environments_whatever_jupyter_says(source, tmp_path, monkeypatch):
    foreign = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    spec = {
        "argv": ["/nowhere/python", "-m", "x", "{connection_file}"],
        "display_name": "x",
        "language": "python",
    }
    (foreign / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    look = (
        "import sys, psutil\nfiles = [f.path for f in psutil.Process().parent().open_files()]\n"
        "numbers = {'prefix': sys.prefix, 'locked': str(folder / '.lock') in files}\n"
        "session.finish('01_first', folder, numbers)"
    )
    write_notebook(source / "01_first.ipynb", FIRST | {"cells": [FIRST["cells"][0], look]})
    (source / "02_second.ipynb").unlink()
    run(source, tmp_path / "run")
    # and papermill holds the lock too: should the pipeline be killed, nobody comes in before it has ended
    assert numbers(tmp_path / "run", "01_first") == {"prefix": sys.prefix, "locked": True}
