"""The pipeline on toy notebooks: order, checks, failure, killing, resuming, locking."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hostile_files
import nbformat
import numpy as np
import papermill
import psutil
import pytest
from click.testing import CliRunner
from refusals import refused
from toys import BEGIN, numbers, until, write_notebook

import lqrlab
from lqrlab import learning
from lqrlab.systems import families
from lqrlab.workbench.cli import main
from lqrlab.workbench.runs import notebooks, pipeline, plant_copies, report, run_folder, session

RUN = "run: str = 'data/runs/default'  # folder that this run reads and writes\n"
FIRST = [
    RUN + "amount: int = 3  # how many numbers\nrate: float = 0.5  # step [1/s]\nshout: bool = False\n"
    "names: list[str] = ['a']  # of plants\nlimit: float | None = None",
    BEGIN,
    "(folder / 'numbers.txt').write_text(' '.join(map(str, range(amount))))\nlog('first')\nprint('numbers written')",
    "finish('01_first', {'rate': rate, 'shout': shout, 'names': names}, files=['numbers.txt'])",
]
SECOND = [
    RUN + "rate: float = 1.0  # step [1/s]\npause: float = 0.0\nfault: bool = False",
    BEGIN,
    "total = sum(map(int, (folder / 'numbers.txt').read_text().split()))\nlog('second')\ntime.sleep(pause)",
    "if fault:\n    raise ArithmeticError('the sum is a matter of taste')",
    "finish('02_second', {'total': total, 'rate': rate})",
]


def make_source(folder: Path) -> Path:
    write_notebook(folder / "01_first.ipynb", *FIRST)
    write_notebook(folder / "02_second.ipynb", *SECOND)
    (folder / "profiles").mkdir()
    (folder / "profiles" / "toy.json").write_text(json.dumps({"01_first": {"amount": 4}}))
    return folder


@pytest.fixture(autouse=True)
def package_as_it_is(monkeypatch):
    monkeypatch.setattr(notebooks, "package_hash", lambda: "as it is")  # whoever edits it meanwhile


@pytest.fixture
def source(tmp_path):
    return make_source(tmp_path / "notebooks")


def run(source, folder, overrides=None, **kwargs):
    """Run the toy chain; returns what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as stream:
        pipeline.run("toy", folder, overrides, source=source, report=False, **kwargs)
    return stream.getvalue()


GIVEN = {"02_second.rate": "2", "names": "b,c", "shout": "true"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The toy chain, run once: its notebooks, its folder, and what was printed."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebooks, "package_hash", lambda: "as it is")
        shown = run(make_source(place / "notebooks"), place / "run", GIVEN)
    return place, shown


@pytest.fixture
def again(finished, tmp_path):
    """A copy of the finished chain's notebooks and folder, and how to run it once more with other parameters."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "run"

    def rerun(given=None, only=(), **kwargs):
        values = {key: value for key, value in (GIVEN | (given or {})).items() if not only or "." not in key}
        return run(tmp_path / "notebooks", folder, values, only=only, **kwargs)

    return folder, rerun


def test_a_chain_hands_files_on_and_says_how_far_it_is(finished):
    folder, shown = finished[0] / "run", finished[1]
    assert numbers(folder, "01_first") == {"rate": 0.5, "shout": True, "names": ["b", "c"]}
    assert numbers(folder, "02_second") == {"total": 0 + 1 + 2 + 3, "rate": 2.0}
    lines = [line.split("  (")[0] for line in shown.splitlines()]
    assert lines[1:6] == [
        *(f"  01_first  {title}" for title in ("About 01_first", "Step 0", "Step 1", "Step 2")),
        "✓ 01_first  finished",
    ]
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["parameters"]["01_first"]["amount"] == 4
    assert record["device"].startswith("1 × cpu")
    executed = nbformat.read(folder / "notebooks" / "01_first.ipynb", 4)
    assert any("injected-parameters" in c.metadata.get("tags", []) for c in executed.cells)
    assert not list((folder / "notebooks").glob(".*"))


@pytest.mark.slow
def test_only_what_is_missing_or_out_of_date_runs_again(again):
    folder, rerun = again
    assert rerun({"02_second.rate": 2, "names": ["b", "c"], "shout": True}).count("finished before") == 2
    assert (folder / "log").read_text() == "first second "
    rerun({"02_second.rate": 3.0})  # the last alone
    assert (folder / "log").read_text() == "first second second "
    (folder / "numbers.txt").unlink()  # made by the first, which therefore counts as not finished
    rerun({"02_second.rate": 3.0})
    assert (folder / "log").read_text() == "first second second first "
    rerun(only=["01_first"], fresh=True)
    assert (folder / "log").read_text() == "first second second first first "
    assert not (folder / "results" / "02_second.json").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"amuont": "3"}, "amuont: no notebook has a parameter of this name; did you mean amount"),
        ({"01_first.rat": 1.0}, r"01_first\.rat: the notebook has no such parameter; did you mean rate"),
        ({"01_frist.rate": 1.0}, "there is no notebook '01_frist'; did you mean 01_first"),
        ({"amount": "3.5"}, r"01_first\.amount \(how many numbers\): expected a whole number, but found 3.5"),
        ({"01_first.rate": "fast"}, r"rate \(step \[1/s\]\): expected a finite number, but found 'fast'"),
        ({"shout": "1"}, "expected True or False, but found 1"),
        ({"run": "/tmp/x"}, "run: is set by the run's folder"),
        ({"01_first.plants_file": "x"}, "01_first.plants_file: is set by --plants FILE"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_starts(source, tmp_path, given, message):
    refused(message, run, source, tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_profiles_are_checked_as_strictly(source, tmp_path):
    profile = source / "profiles" / "toy.json"
    for content, message in [
        ({"01_first": {"rate": "0.1"}}, "expected a finite number, but found '0.1'"),
        ({"01_second": {}}, "profile: there is no notebook '01_second'; did you mean 02_second"),
        ({"02_second": {"amount": 1}}, "02_second.amount: the notebook has no such parameter"),
        ([], "expected {notebook: {parameter: value}}"),
    ]:
        profile.write_text(json.dumps(content))
        refused(message, run, source, tmp_path / "run")
    refused(r"profile: there is no 'tyo' .* did you mean toy", pipeline.run, "tyo", tmp_path / "run", source=source)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1e-3", float, 1e-3),
        ("False", bool, False),
        ("3", str, "3"),
        ("none", float | None, None),
        ("[1, 2]", list[float], [1.0, 2.0]),
        ("cart_pole,pendulum", list[str], ["cart_pole", "pendulum"]),
        ('{"cart_pole": 0.2}', dict[str, float], {"cart_pole": 0.2}),
    ],
)
def test_values_as_typed(source, text, kind, value):
    nb = notebooks.read(source / "01_first.ipynb")
    nb.parameters["x"] = notebooks.Parameter("x", kind, None)
    read = notebooks.effective([nb], {}, {"x": text})["01_first"]["x"]
    assert read == value
    assert type(read) is type(value)


def test_declarations_are_read_as_papermill_reads_them(source):
    path = source / "01_first.ipynb"
    ours, theirs = notebooks.read(path).parameters, papermill.inspect_notebook(path)
    assert list(ours) == [*theirs, "limit"]  # papermill overlooks what is annotated as a union
    for name, of_it in theirs.items():
        kind = ours[name].type
        assert of_it["inferred_type_name"] in (str(kind), getattr(kind, "__name__", None))
        assert ours[name].about == of_it["help"]


@pytest.mark.parametrize("case", hostile_files.NOTEBOOKS, ids=lambda case: case.name)
def test_reading_a_notebook_runs_nothing_and_ends(case, tmp_path):
    hostile_files.met("notebook", case, tmp_path / "place")


def offered(words):
    """What the Tab key offers after these words of the command line."""
    env = {"_LQRLAB_COMPLETE": "bash_complete", "COMP_WORDS": f"lqrlab {words}"}
    return CliRunner().invoke(main, prog_name="lqrlab", env=env | {"COMP_CWORD": str(len(words.split()))})


@pytest.mark.parametrize("declaration", hostile_files.DECLARATIONS)
def test_no_command_runs_what_a_notebook_declares(tmp_path, monkeypatch, declaration):
    """Nor does the Tab key; the notebook stands among the sources, and executed in a run's folder."""
    mark, place = tmp_path / "mark", tmp_path / "data" / "runs" / "toy"
    text = RUN + declaration.replace("MARK", str(mark))
    for path in (tmp_path / "notebooks" / "01_hostile.ipynb", place / "notebooks" / "01_hostile.ipynb"):
        write_notebook(path, text)
    (tmp_path / "notebooks" / "profiles").mkdir()
    (tmp_path / "notebooks" / "profiles" / "toy.json").write_text("{}")
    run_folder.begin(place / "run.json")
    monkeypatch.chdir(tmp_path)
    for line in (
        ["run", "--profile", "toy"],
        ["sweep", "notebooks/01_hostile.ipynb", "-p", "x=1"],
        ["report", str(place)],
    ):
        done = CliRunner().invoke(main, line)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1), done.output
        assert re.search(r"a plain value and a type of|is not Python", done.stderr)
    for words in ("run 01_hostile -p x", "sweep 01_hostile -p x"):
        assert offered(words).stdout.strip() == ""
    assert not mark.exists()


@pytest.mark.slow
def test_a_failing_cell_is_shown_and_what_was_finished_is_kept(again):
    folder, rerun = again
    with pytest.raises(run_folder.RunError) as caught:
        rerun({"fault": True})
    message = str(caught.value)
    assert "ArithmeticError: the sum is a matter of taste" in message
    assert "│ if fault:" in message
    failed = folder / "notebooks" / "02_second.failed.ipynb"
    assert str(failed) in message
    assert "run the same command again" in message
    assert failed.exists()
    assert not (folder / "results" / "02_second.json").exists()
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["error"] == "02_second failed: ArithmeticError: the sum is a matter of taste"
    rerun()
    assert (folder / "log").read_text() == "first second second second "


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ("", r"ended without writing .*01_first\.json"),
        ("(folder / 'results').mkdir()\n(folder / 'results/01_first.json').write_text('{}')", "ended without"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "DeadKernelError"),
    ],
)
def test_a_notebook_that_ends_without_its_last_word_has_failed(source, tmp_path, last, message):
    write_notebook(source / "01_first.ipynb", *FIRST[:2], last)
    with pytest.raises(run_folder.RunError, match=message):
        run(source, tmp_path / "run")
    assert not (tmp_path / "run" / "results" / "01_first.json").exists()


def command(again, *args):
    """The command line that runs the toy chain, at work in its second notebook."""
    folder = again[0]
    line = ["run", "--profile", "toy", "--folder", str(folder), "--notebooks", str(folder.parent / "notebooks")]
    given = [f"-p{name}={value}" for name, value in GIVEN.items()]
    return [*line, *given, *args]


PACKAGE_AS_IT_IS = (
    "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"  # what runs in the
    "from lqrlab.workbench.cli import main\nfrom lqrlab.workbench.runs import notebooks\n"  # background is deaf
    "notebooks.package_hash = lambda: 'as it is'\nmain(sys.argv[1:])"
)


def started(again):
    """A process that runs the toy chain, when it has come to the long pause in the second notebook."""
    line = [sys.executable, "-c", PACKAGE_AS_IT_IS, *command(again, "-p", "pause=600")]
    parent = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: (again[0] / "log").read_text() == "first second second ")
    return parent


@pytest.mark.matrix
def test_killed_in_the_middle_the_same_command_resumes(again):
    folder, rerun = again
    result = (folder / "results" / "01_first.json").read_text()
    parent = started(again)
    (kernel,) = psutil.Process(parent.pid).children()
    refused(rf"another run works in this folder .process .*\b{parent.pid}\b", rerun)
    kernel.suspend()  # so that it outlives its parent
    parent.kill()
    parent.communicate()
    refused(rf"another run works in this folder .process .*\b{kernel.pid}\b", rerun)
    kernel.resume()
    with run_folder.hold(folder, patience=20):
        until(lambda: not kernel.is_running() or kernel.status() == psutil.STATUS_ZOMBIE, 20)

    assert not (folder / "results" / "02_second.json").exists()
    done = CliRunner().invoke(main, command(again))
    assert done.exit_code == 0, done.output
    assert "01_first  finished before" in done.stdout
    assert (folder / "results" / "01_first.json").read_text() == result
    assert (folder / "log").read_text() == "first second second second "
    assert (folder / "report" / "index.html").exists()


@pytest.mark.matrix
def test_interrupted_by_hand(again):
    parent = started(again)
    parent.send_signal(signal.SIGINT)
    out, err = parent.communicate(timeout=20)
    assert parent.returncode == 130
    assert "  02_second  Step 1" in out
    assert "✗ 02_second  interrupted" in out
    assert "the same command resumes it" in err
    assert json.loads((again[0] / "run.json").read_text())["status"] == "stopped"


def test_a_folder_that_is_used_is_refused(source, tmp_path):
    """Several may read from it at a time, and nobody writes meanwhile; what a killed process left does not count."""
    folder = tmp_path / "run"
    with run_folder.hold(folder), pytest.raises(ValueError, match="another run works in this folder"):
        run(source, folder)
    with run_folder.use(folder), run_folder.use(folder), pytest.raises(ValueError, match="in this folder"):
        run(source, folder)
    (folder / run_folder.USERS / "4711-killed").mkdir(parents=True)
    with run_folder.hold(folder):
        assert not (folder / run_folder.USERS / "4711-killed").exists()


def test_a_folder_is_waited_for_until_its_user_ends(tmp_path):
    """As a sweep's run waits for its folder: the user takes its mark away with it."""
    code = "import sys, time\nfrom pathlib import Path\nfrom lqrlab.workbench.runs import run_folder\n"
    code += "with run_folder.use(Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(0.5)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout.readline() == "in\n"
        with run_folder.hold(tmp_path, patience=20):
            assert user.wait(timeout=20) == 0


def listing(place):
    """All files under a folder with their contents, and all that is no file."""
    return {path: path.read_bytes() if path.is_file() else None for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        (".", "holds the notebooks themselves"),
        ("notebooks", "holds the notebooks themselves"),
        ("notebooks/profiles/..", "holds the notebooks themselves"),
        ("notebooks/run", "inside of their folder"),
        ("link", "holds the notebooks themselves"),
        ("link/notebooks/run", "inside of their folder"),
        ("linked", "holds the notebooks themselves"),
        ("/", "holds the notebooks themselves"),
        ("~", "holds the notebooks themselves"),
        ("~/empty/..", "holds the notebooks themselves"),
        ("file", "expected a folder, but found a file"),
        ("thesis", r"expected a new folder or one with the record run.json, but found figures there"),
        ("other", "but found notebooks there"),
        ("sweep", "but found sweep.json there"),
        ("record", "but found run.json there"),
    ],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_is_not_for_a_run_is_refused_and_not_touched(
    source, tmp_path, monkeypatch, folder, message, fresh
):
    for name in ("thesis/figures/map.pdf", "other/notebooks/01_first.ipynb", "record/run.json", "file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    for name in ("empty", "sweep", "linked"):
        (tmp_path / name).mkdir()
    run_folder.begin(tmp_path / "sweep" / "sweep.json")
    run_folder.begin(tmp_path / "linked" / "run.json")
    (tmp_path / "linked" / "notebooks").symlink_to(source)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = listing(tmp_path)
    line = ["run", "--profile", "toy", "--notebooks", "notebooks", "--folder", folder, *["--fresh"] * fresh]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert len(done.stderr.splitlines()) == 1
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        *(("results/01_first.json", {"files": files}, "") for files in (3, [1], "numbers.txt", ["../none"])),
        ("results/01_first.json", {"seconds": "x"}, ""),
        ("results/01_first.json", {"seconds": float("inf")}, "not an executed notebook"),
        *(
            ("run.json", change, "found a damaged run.json")
            for change in ({"started": 5}, {"plants": 3}, {"commit": [1]})
        ),
        *(("run.json", {"versions": versions}, "found a damaged run.json") for versions in (None, {}, ["lqrlab"])),
        *(
            ("notebooks/01_first.ipynb", change, "01_first.ipynb: not an executed notebook")
            for change in ({"metadata": {"papermill": 3}}, {"nbformat": 3}, {"metadata": {"language_info": 3}})
        ),
    ],
)
def test_a_run_that_was_edited_is_run_again_or_refused_in_words(file, change, words, again):
    folder, rerun = again
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if words:
        refused(words, report.write, folder)
    else:
        assert "01_first: would run" in rerun(dry_run=True)
        report.write(folder)


def test_the_folder_of_home_is_refused(source, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    refused("expected a folder for this alone", run, source, "~")
    assert not any((tmp_path / "home").iterdir())


def test_a_sweep_and_a_report_refuse_the_same_folders(source, tmp_path, monkeypatch):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "results.csv").touch()
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    for line, message in [
        (["sweep", "01_first", "-p", "rate=1,2", "--folder", "."], "holds the notebooks themselves"),
        (["sweep", "01_first", "-p", "rate=1,2", "--folder", "thesis"], "but found results.csv there"),
        (["report", "."], "but found no run.json, the record of one"),
    ]:
        done = CliRunner().invoke(main, line)
        assert (done.exit_code, message in done.stderr) == (2, True), done.output
    assert listing(tmp_path) == before


def test_what_was_made_by_hand_is_gone_on_with(tmp_path):
    """A data set, a training or notebooks run by hand: a run may follow in their folder."""
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "manifest.json").touch()
    (tmp_path / "designs.json").write_text("{}")  # of a panel
    run_folder.place(tmp_path)
    (tmp_path / "notebooks").mkdir()
    refused("but found dataset there", run_folder.place, tmp_path)


def test_parameters_of_one_line_are_no_magic_of_ipython(source, tmp_path):
    """``run: str = …`` as a cell of its own would be ``%run``, of the file ``:.py`` if there is one."""
    mark = tmp_path / "mark"
    (tmp_path / ":.py").write_text(f"open({str(mark)!r}, 'w').close()")
    write_notebook(source / "01_first.ipynb", "run: str = 'data/runs/default'", BEGIN, "finish('01_first', {})")
    (source / "profiles" / "toy.json").write_text("{}")
    run(source, tmp_path / "run", only=["01_first"])
    assert numbers(tmp_path / "run", "01_first") == {}
    assert not mark.exists()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "run/x"),
            1,
            "lqrlab: run/x: No space left on device; make room",
        ),
        (OSError(errno.EROFS, "Read-only file system", "run"), 1, "lqrlab: run: Read-only file system; give a folder"),
        (PermissionError(errno.EACCES, "Permission denied"), 1, "lqrlab: Permission denied; give a folder that may be"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/run"), 1, "lqrlab: file/run: Not a directory"),
        (TimeoutError("nobody answers"), 1, "lqrlab: nobody answers"),
        (ConnectionResetError(), 1, "lqrlab: ConnectionResetError"),
        (KeyboardInterrupt(), 130, "stopped; the same command resumes it"),
    ],
)
def test_what_fails_ends_in_a_sentence_and_an_exit_code(monkeypatch, error, code, words):
    def fails(*args, **kwargs):
        raise error

    monkeypatch.setattr(pipeline, "run", fails)
    done = CliRunner().invoke(main, ["run"])
    assert done.exit_code == code
    assert done.stderr.strip().startswith(words)
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_disk_that_is_full_is_said_with_the_file(source, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lqrlab.compute.files.os.fsync", full)
    line = ["run", "--profile", "toy", "--notebooks", str(source), "--folder", str(tmp_path / "run")]
    done = CliRunner().invoke(main, line)
    where = tmp_path / "run" / "run.json"
    assert done.stderr == (
        f"\nlqrlab: {where}: could not be written: No space left on device; "
        "make room there and run the same command again\n"
    )
    assert done.exit_code == 1
    assert not list((tmp_path / "run").glob("run.json*"))


def test_a_folder_below_a_file_or_a_link_to_itself_is_refused(source, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for folder in ("file/run", "loop", "loop/run"):
        line = ["run", "--profile", "toy", "--notebooks", str(source), "--folder", str(tmp_path / folder)]
        done = CliRunner().invoke(main, line)
        assert (done.exit_code, len(done.stderr.strip().splitlines())) == (1, 1), done.output
        assert str(tmp_path / folder.partition("/")[0]) in done.stderr


def test_a_deeper_notebook_runs_when_named_and_only_then(source, tmp_path):
    folder = tmp_path / "run"
    given = RUN + "amount: int = 1  # how many numbers"
    write_notebook(source / "12_deeper.ipynb", given, BEGIN, "finish('12_deeper', {'amount': amount})")
    (source / "profiles" / "toy.json").write_text(json.dumps({"12_deeper": {"amount": 7}}))
    folder.mkdir(parents=True)
    record = {"parameters": {"01_first": {"amount": 4}}, "versions": {"lqrlab": "1"}}
    (folder / "run.json").write_text(json.dumps(record))
    assert [nb.name for nb in notebooks.find(source)] == ["01_first", "02_second"]
    shown = run(source, folder, only=["notebooks/12_deeper.ipynb"])
    assert "12_deeper" in shown
    assert "01_first" not in shown
    assert numbers(folder, "12_deeper") == {"amount": 7}
    record = json.loads((folder / "run.json").read_text())
    assert record["parameters"] == {"01_first": {"amount": 4}, "12_deeper": {"amount": 7}}
    assert "finished before" in run(source, folder, only=["12_deeper"])
    refused(r"there is no '12_deepr'; did you mean 12_deeper\?", run, source, folder, only=["12_deepr"])


def test_a_notebook_is_named_by_the_beginning_of_its_name(source):
    write_notebook(source / "12_deeper.ipynb", RUN)
    write_notebook(source / "12_deep.ipynb", RUN)
    assert [nb.name for nb in notebooks.named(source, ["02", "01_f", "12_deep", "02_second.ipynb"])] == [
        "02_second",
        "01_first",
        "12_deep",
    ]
    refused(r"no '12'; 12_deep and 12_deeper begin so", notebooks.named, source, ["12"])
    refused("there is no '';", notebooks.named, source, [""])
    values = notebooks.effective(notebooks.find(source), {}, {"02.rate": "3"})
    assert (values["01_first"]["rate"], values["02_second"]["rate"]) == (0.5, 3.0)


def test_the_notebook_that_is_named_is_the_one_that_is_blamed(source, tmp_path):
    path = write_notebook(source / "12_deeper.ipynb", RUN + "rate: float = 1.0\nmine: int = 2")
    content = json.loads(path.read_text())
    content["metadata"]["lqrlab"] = {"needs": []}
    path.write_text(json.dumps(content))
    refused(r"^12_deeper\.rate: expected a finite number", run, source, tmp_path / "run", {"rate": "fast"}, only=["12"])
    with pytest.raises(ValueError, match=r"^amount: no notebook has a parameter of this name; there are mine, rate"):
        run(source, tmp_path / "run", {"amount": "2"}, only=["12"])  # only 01_first has it, which does not run
    with pytest.raises(ValueError, match=r"^01_first\.amount"):
        run(source, tmp_path / "run", {"amount": "x"}, only=["02"])  # which reads what 01_first makes


def test_fresh_removes_only_what_the_record_lists(tmp_path):
    def make(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()

    make("thesis.tex", "run.json", "figures/mine.pdf")
    run_folder.clear(tmp_path)  # no record of a run: nothing is touched
    assert (tmp_path / "figures").exists()
    run_folder.begin(tmp_path / "run.json")
    make("checkpoints/1", "metrics.jsonl")
    run_folder.begin(tmp_path / "run.json")  # what the first has made, the second may not disown
    refused("holds figures, which is not in its record of a run", run_folder.clear, tmp_path)
    assert (tmp_path / "checkpoints" / "1").exists()
    shutil.rmtree(tmp_path / "figures")
    run_folder.clear(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "thesis.tex"]
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "not started"


def test_a_record_that_lists_other_places_removes_nothing_there(tmp_path):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    victim.mkdir()
    folder.mkdir()
    (folder / "dataset").symlink_to(victim)
    made = ["../victim", str(victim), "dataset", "thesis", {}, None]
    (folder / "thesis").mkdir()
    (folder / "run.json").write_text(json.dumps({"versions": {"lqrlab": "1"}, "made": made}))
    run_folder.clear(folder)
    assert victim.exists()
    assert (folder / "thesis").exists()


def test_a_notebook_that_reads_from_a_later_one_is_refused(source):
    first, second = notebooks.find(source)[:2]
    early = dataclasses.replace(first, metadata={"needs": [second.name]})
    with pytest.raises(ValueError, match=f"{first.name}.*need '{second.name}', which does not come before it"):
        notebooks.fingerprints([early, second], notebooks.effective([first, second], {}, {}))


def test_a_result_is_of_its_notebook_its_parameters_and_what_it_reads(source):
    def prints(**given):
        chain = notebooks.find(source)
        return notebooks.fingerprints(chain, notebooks.effective(chain, {}, given))

    before = prints()
    assert prints(pause=1.0)["01_first"] == before["01_first"]
    assert prints(pause=1.0)["02_second"] != before["02_second"]
    assert prints(amount=5)["02_second"] != before["02_second"]
    first = source / "01_first.ipynb"
    first.write_text(first.read_text().replace("range(amount)", "range(1 + amount)"))
    changed = prints()
    assert changed["01_first"] != before["01_first"]
    assert changed["02_second"] != before["02_second"]
    second = json.loads((source / "02_second.ipynb").read_text())
    second["metadata"]["lqrlab"] = {"needs": []}
    (source / "02_second.ipynb").write_text(json.dumps(second))
    independent = prints()["02_second"]
    first.write_text(first.read_text().replace("range(1 + amount)", "range(2 + amount)"))
    assert prints()["02_second"] == independent


def test_the_package_counts_with_its_version_and_without_what_only_starts_and_shows(tmp_path, monkeypatch):
    monkeypatch.undo()
    for name in ("control/riccati.py", "workbench/plots.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a = 1")
    before = notebooks.package_hash(tmp_path)
    (tmp_path / "workbench" / "plots.py").write_text("a = 2")
    assert notebooks.package_hash(tmp_path) == before
    (tmp_path / "control" / "riccati.py").write_text("a = 2")
    after = notebooks.package_hash(tmp_path)
    assert after != before
    monkeypatch.setattr(lqrlab, "__version__", "9.9")
    assert notebooks.package_hash(tmp_path) != after
    (tmp_path / "mine.toml").write_text("[a]")
    monkeypatch.setenv("LQRLAB_PLANTS", str(tmp_path / "mine.toml"))
    with_plants = notebooks.package_hash(tmp_path)
    (tmp_path / "mine.toml").write_text("[b]")
    assert notebooks.package_hash(tmp_path) != with_plants


def test_results_hold_arrays_and_numbers_that_are_not_finite(tmp_path):
    folder = session.begin("01_first", tmp_path)
    numbers = {"k": np.arange(2), "worst": np.float64("inf"), "at": Path("x")}
    path = session.finish("01_first", folder, numbers)
    assert json.loads(path.read_text())["numbers"] == {"k": [0, 1], "worst": "inf", "at": "x"}
    assert [p.name for p in path.parent.iterdir()] == ["01_first.json"]


@pytest.mark.parametrize("make", (hostile_files.NO_FILE | hostile_files.NO_JSON).values())
def test_what_is_no_result_or_profile_is_refused_in_words(make, source, tmp_path):
    (tmp_path / "results").mkdir()
    make(tmp_path / "results" / "01_first.json")
    refused("no result of 01_first", session.results, tmp_path, "01_first")
    make(source / "profiles" / "toy.json")
    refused(r"profile: there is no|expected \{notebook: \{parameter: value", notebooks.read_profile, source, "toy")


@pytest.mark.parametrize("mark", ["pyproject.toml", "notebooks"])
def test_relative_folders_are_meant_from_the_projects_folder(tmp_path, monkeypatch, mark):
    (tmp_path / "study" / mark).mkdir(parents=True)
    (tmp_path / "study" / "thoughts").mkdir()
    monkeypatch.chdir(tmp_path / "study" / "thoughts")
    assert session.begin("01_first", "here") == tmp_path / "study" / "here"


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A study in which somebody has a notebook open, and two runs: quick, and tiny, which is newer."""
    (tmp_path / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JPY_SESSION_NAME", "x")
    monkeypatch.delenv("LQRLAB_HEADLESS", raising=False)
    for age, name in enumerate(("tiny", "quick")):
        folder = tmp_path / "data" / "runs" / name
        (folder / "dataset").mkdir(parents=True)
        (folder / "dataset" / "manifest.json").touch()
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (1e9 - age, 1e9 - age))
    return tmp_path / "data" / "runs"


def test_a_notebook_opened_by_a_person_finds_the_latest_run_and_names_the_others(opened, monkeypatch, capsys):
    assert session.begin("01_first", "latest") == opened / "tiny"
    shown = capsys.readouterr().out
    assert 'run = "data/runs/tiny", the latest run' in shown
    assert 'run = "data/runs/quick"' in shown
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    assert session.begin("01_first", "latest") == opened / "default"


@pytest.mark.parametrize("headless", ["", "1"])
def test_the_latest_run_is_the_newest_that_has_what_is_read(opened, monkeypatch, capsys, headless):
    """As plain ``papermill 04`` after ``lqrlab run``, with a newer data set next to it that nobody trained on."""
    if headless:
        monkeypatch.setenv("LQRLAB_HEADLESS", headless)
    (opened / "quick" / "checkpoints").mkdir()
    assert session.begin("03", "latest", reads="dataset") == opened / "tiny"
    assert session.begin("04", "latest", reads=("dataset", "checkpoints")) == opened / "quick"
    shown = capsys.readouterr().out
    assert 'run = "data/runs/quick", the latest run that has dataset and checkpoints' in shown


def test_a_notebook_takes_a_file_of_plants_relative_to_the_project(opened, catalogue_as_before, capsys):
    (opened.parents[1] / "mine.toml").write_text("[slide]\nA = [[0]]\nB = [[1]]\n")
    folder = session.begin("01_first", "latest", plants="mine.toml")
    assert "plants of mine.toml: slide" in capsys.readouterr().out
    assert "slide" in families.FAMILIES
    original = (opened.parents[1] / "mine.toml").read_bytes()
    run_folder.begin(folder / "run.json")
    for record in (session.finish("01_first", folder, {}), folder / "run.json"):
        (entry,) = json.loads(record.read_text())["plants"]
        assert entry["sha256"] == hashlib.sha256(original).hexdigest()
        assert (folder / entry["file"]).read_bytes() == original
        assert str(opened.parents[1]) not in record.read_text()
    assert plant_copies.names(run_folder.read(folder / "run.json")) == ["mine.toml"]
    assert plant_copies.names({"plants": ["/home/me/mine.toml"]}) == ["mine.toml"]  # of an earlier version


def test_a_file_of_plants_is_kept_with_the_files_that_it_names(tmp_path, monkeypatch):
    """A table names a robot, which names a mesh in its meshdir: all are copied, and results are of them."""
    source, run = tmp_path / "source", tmp_path / "run"
    files = {
        "mine.toml": '[lever]\nfile = "robots/lever.xml"\n',
        "robots/lever.xml": '<mujoco><compiler meshdir="shapes"/><mesh file="arm.stl"/><mesh file="../../x.stl"/>'
        '<a b="key" c=".hidden/key.json"/></mujoco>',
        "robots/shapes/arm.stl": "solid",
        "robots/other.xml": "not named",
        "robots/key": "a secret",
        "robots/.hidden/key.json": "another",
    }
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    (tmp_path / "x.stl").write_text("outside")
    monkeypatch.setenv("LQRLAB_PLANTS", str(source / "mine.toml"))
    (entry,) = plant_copies.keep(run)
    kept = {p.relative_to((run / entry["file"]).parent).as_posix() for p in run.rglob("*") if p.is_file()}
    assert kept == set(list(files)[:3])
    before = plant_copies.checksum(source / "mine.toml")
    assert plant_copies.checksum(run / entry["file"]) == before  # what the copy gives is up to date too
    (source / "robots" / "shapes" / "arm.stl").write_text("liquid")
    assert plant_copies.checksum(source / "mine.toml") != before
    plant_copies.keep(run)
    assert (run / entry["file"]).with_name("robots").joinpath("shapes", "arm.stl").read_text() == "solid"


def test_a_new_folder_of_a_person_reads_the_data_of_the_latest_run(opened, capsys):
    folder = session.begin("03_training", "data/runs/mine", reads="dataset")
    assert (folder / "dataset").resolve() == opened / "tiny" / "dataset"
    assert "a link" in capsys.readouterr().out


def test_what_was_trained_is_shown_to_a_person_and_refused_with_nobody_there(opened, monkeypatch, capsys):
    asked, made = learning.TrainConfig(num_steps=5), learning.TrainConfig(num_steps=7)
    assert session.settings(opened, [asked], [made]) == [made]
    assert "num_steps (7 against 5). What was made there is shown; to use" in capsys.readouterr().out
    assert session.settings(opened, [asked], None) == [asked]
    monkeypatch.setenv("LQRLAB_HEADLESS", "1")
    assert session.settings(opened, [asked], [made]) == [asked]


@pytest.mark.parametrize("headless", ["", "1"])
def test_a_look_at_a_finished_run_writes_its_files_elsewhere(opened, monkeypatch, headless):
    """A person in JupyterLab with 200 variants for 80, and plain papermill: figures stay those of the numbers."""
    folder = opened / "tiny"

    def notebook():
        session.begin("01_first", folder)
        place = session.output("01_first", folder)
        place.mkdir(exist_ok=True)
        (place / "figure.svg").write_text("80" if place == folder else "200")
        session.finish("01_first", folder, {})

    monkeypatch.setenv("LQRLAB_FINGERPRINT", "abc")
    notebook()
    before = listing(folder)
    monkeypatch.delenv("LQRLAB_FINGERPRINT")
    if headless:
        monkeypatch.setenv("LQRLAB_HEADLESS", headless)
    notebook()
    after = listing(folder)
    assert {path: after[path] for path in before} == before
    assert {p.relative_to(folder).as_posix() for p in after.keys() - before.keys()} == {"by_hand", "by_hand/figure.svg"}


def test_a_dry_run_says_what_is_kept(again, tmp_path, capsys):
    given = GIVEN | {"02_second.rate": "3"}
    pipeline.run("toy", again[0], given, source=tmp_path / "notebooks", dry_run=True)
    said = capsys.readouterr().out
    assert f"01_first: finished before, is kept in {again[0]}" in said
    assert f"02_second: would run in {again[0]}\n  rate = 3.0  (default 1.0)" in said
    assert "\n  rate = 0.5\n" in said  # the first one's, as it is by default
    pipeline.run("toy", again[0], GIVEN, source=tmp_path / "notebooks", dry_run=True, fresh=True)
    assert f"01_first: would run in {again[0]}" in capsys.readouterr().out
    assert numbers(again[0], "01_first")["rate"] == 0.5, "nothing was removed"


def test_plain_papermill_does_as_well(source, tmp_path):
    begin = "from lqrlab.workbench import session\nfolder = session.begin('01_first', run)"
    write_notebook(source / "01_first.ipynb", FIRST[0], begin, "session.finish('01_first', folder, {'a': 1})")
    line = [Path(sys.executable).parent / "papermill", "01_first.ipynb", tmp_path / "out.ipynb", "--no-progress-bar"]
    subprocess.run([*line, "-p", "run", "here"], cwd=source, check=True, capture_output=True)
    assert numbers(tmp_path / "here", "01_first") == {"a": 1}
    assert not (source / "here").exists()
    write_notebook(source / "01_first.ipynb", FIRST[0], begin.replace("run)", "run, reads='dataset')"))
    for given, words in (
        (("amuont", "3"), "01_first.amuont: the notebook has no such parameter; did you mean amount"),
        (("rate", "nan"), r"01_first.rate .step .1/s..: expected a finite number, but found nan"),
        (("run", "new"), f"01_first: reads what 02_data_generation made, but {tmp_path}/new has none; run 02_"),
    ):
        done = subprocess.run([*line, "-p", *given], cwd=source, capture_output=True, text=True)
        assert (done.returncode, bool(re.search(words, done.stderr))) == (1, True), done.stderr
        assert not (tmp_path / "new").exists()


def test_the_kernel_is_this_environments_whatever_jupyter_says(source, tmp_path, monkeypatch):
    foreign = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    argv = ["/nowhere/python", "-m", "x", "{connection_file}"]
    spec = {"argv": argv, "display_name": "x", "language": "python"}
    (foreign / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    look = "import sys\nfinish('01_first', {'prefix': sys.prefix})"
    write_notebook(source / "01_first.ipynb", *FIRST[:2], look)
    (source / "02_second.ipynb").unlink()
    run(source, tmp_path / "run")
    assert numbers(tmp_path / "run", "01_first") == {"prefix": sys.prefix}
